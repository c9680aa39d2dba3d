//! Locks that the kernel drops when an address space is gone.
//!
//! A byte of the control file is locked through an open file description of its
//! own (an OFD lock), and the only thing that refers to this description is one
//! mapped page. So the lock ends exactly when the address space does: by death
//! (also before the parent has waited for it), by `exec`, or by dropping the
//! [`Alive`]. Closing descriptors doesn't end it, and a forked child doesn't
//! prolong it, as the page isn't inherited. "Free" means that nobody can write
//! any more. "Held" may be late by some milliseconds: a program that another
//! thread starts in the instant of locking has the descriptor until its `exec`.

use std::ffi::c_void;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::param::page_size;

use crate::fork;
use crate::memfd::Memfd;
use crate::refused_by;

/// What `Alive::owner` is while forked children inherit the page.
const INHERITED: u64 = 0;

/// A locked byte; dropping it frees the byte.
#[derive(Debug)]
pub struct Alive {
    page: NonNull<c_void>,
    /// The cookie of the process that has the page, or [`INHERITED`].
    owner: AtomicU64,
}

// SAFETY: the page is never read or written, only mapped; see `release` for who unmaps it.
unsafe impl Send for Alive {}
// SAFETY: as above; `owner` is atomic.
unsafe impl Sync for Alive {}

impl Alive {
    /// Locks a byte for as long as this address space lives; `None` if somebody holds it.
    ///
    /// # Errors
    ///
    /// `NotFound` without `/proc`, `Unsupported` where the lock can't be seen by others,
    /// `EBADF` if the host program has closed the control file's descriptor.
    pub fn hold(control: &Memfd, byte: u64) -> io::Result<Option<Alive>> {
        // Neither the descriptor nor the page may be inherited by a fork in another thread.
        let alive = fork::without_fork(|| {
            let alive = Alive::lock(control, byte)?;
            if let Some(alive) = &alive {
                alive.stop_inheriting()?;
            }
            io::Result::Ok(alive)
        })?;
        alive.map(|alive| alive.tested(control, byte)).transpose()
    }

    /// Does the same for this process and each child that it forks from now on.
    ///
    /// Serves to lock on behalf of a child: the child calls [`Alive::stop_inheriting`], the
    /// parent drops its copy, and the byte is free when both have let go.
    ///
    /// # Errors
    ///
    /// Those of [`Alive::hold`].
    pub fn hold_inheritable(control: &Memfd, byte: u64) -> io::Result<Option<Alive>> {
        let alive = fork::without_fork(|| Alive::lock(control, byte))?;
        alive.map(|alive| alive.tested(control, byte)).transpose()
    }

    /// Makes the lock this process's own: children forked from now on don't inherit it.
    pub fn stop_inheriting(&self) -> io::Result<()> {
        // The owner first: a child forked in between keeps the page, rather than unmapping an
        // address at which it has something else.
        self.owner.store(fork::cookie(), Ordering::Release);
        // SAFETY: this process has the page, as `lock` mapped it, or this is a child that
        // inherited it; the advice changes neither content nor protection.
        unsafe { madvise(self.page.as_ptr(), page_size(), Advice::LinuxDontFork)? };
        Ok(())
    }

    fn lock(control: &Memfd, byte: u64) -> io::Result<Option<Alive>> {
        let description = control.private_description()?;
        if !set_lock(description.as_fd(), byte)? {
            return Ok(None);
        }
        // SAFETY: a map at a new address disturbs nobody.
        let page = unsafe {
            let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED);
            mmap(ptr::null_mut(), page_size(), protection, flags, &description, 0)?
        };
        let page = NonNull::new(page).expect("the kernel maps nothing at address 0");
        let owner = AtomicU64::new(INHERITED);
        Ok(Some(Alive { page, owner }))
    }

    fn tested(self, control: &Memfd, byte: u64) -> io::Result<Alive> {
        if is_held(control, byte)? {
            return Ok(self);
        }
        Err(io::Error::new(
            ErrorKind::Unsupported,
            format!("the lock on byte {byte} can't be seen by other processes on this system"),
        ))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        let owner = self.owner.load(Ordering::Acquire);
        if owner == INHERITED || owner == fork::cookie() {
            // SAFETY: the page is mapped here: either children inherit it, or this is the
            // process that stopped that (a child has another cookie, and no page).
            let _ = unsafe { munmap(self.page.as_ptr(), page_size()) };
        }
    }
}

/// Says whether some address space, this one included, holds the byte.
///
/// # Errors
///
/// `EBADF` if the host program has closed the control file's descriptor.
pub fn is_held(control: &Memfd, byte: u64) -> io::Result<bool> {
    let mut lock = exclusive(byte)?;
    // SAFETY: the descriptor is open and `lock` is what this operation reads and writes.
    let done = unsafe { libc::fcntl(control.open()?.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    if done == -1 {
        return Err(refused_by("fcntl(F_OFD_GETLK), which tells who lives")(io::Error::last_os_error()));
    }
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

fn set_lock(description: BorrowedFd<'_>, byte: u64) -> io::Result<bool> {
    let lock = exclusive(byte)?;
    // SAFETY: the descriptor is open and `lock` is what this operation reads.
    if unsafe { libc::fcntl(description.as_raw_fd(), libc::F_OFD_SETLK, &lock) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(refused_by("fcntl(F_OFD_SETLK), by which others see that a process lives")(error)),
    }
}

fn exclusive(byte: u64) -> io::Result<libc::flock> {
    let start = byte.try_into().map_err(|_| ErrorKind::InvalidInput)?;
    Ok(libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: 1,
        l_pid: 0,
    })
}

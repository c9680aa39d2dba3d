//! A memory file in this address space.
//!
//! Maps may be far larger than memory (terabytes of holes), so nothing here may
//! touch all of a map: it is left out of core dumps, which would fill it page by
//! page, and refused under `mlockall(MCL_FUTURE)`, which would do so at once.

use std::ffi::c_void;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MsyncFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, msync,
    munmap,
};
use rustix::param::page_size;

use crate::fork;
use crate::memfd::Memfd;
use crate::refused_by;

const HUGE_PAGE: usize = 2 << 20;

/// What a map may be used for, and who sees what is written through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Writes are seen by every process that maps the file.
    ReadWrite,
    /// Writing is a fault.
    ReadOnly,
    /// Writes are seen by nobody else (copy on write).
    Private,
}

impl Access {
    pub(crate) fn protection(self) -> ProtFlags {
        match self {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite | Access::Private => ProtFlags::READ | ProtFlags::WRITE,
        }
    }

    fn flags(self) -> MapFlags {
        match self {
            Access::Private => MapFlags::PRIVATE | MapFlags::NORESERVE,
            Access::ReadWrite | Access::ReadOnly => MapFlags::SHARED,
        }
    }
}

/// A mapped part of a memory file; dropping it unmaps it.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    pub(crate) access: Access,
    /// The registration for `fork`, 0 if there is none.
    pub(crate) ticket: AtomicU64,
}

// SAFETY: a `Mapping` is a range of addresses; it never reads or writes the memory behind it.
unsafe impl Send for Mapping {}
// SAFETY: as above; the system calls of its methods may run at once in several threads.
unsafe impl Sync for Mapping {}

#[expect(clippy::len_without_is_empty, reason = "there are no empty maps")]
impl Mapping {
    /// Maps `len` bytes of the file from `offset`, which must be a multiple of the page size.
    ///
    /// From 2 MiB on, address and offset are equal modulo 2 MiB (so the address is aligned to
    /// 2 MiB where the offset is): huge pages need it. If that fails half-way, addresses may
    /// stay reserved; memory never does.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for an empty map or an unaligned offset, `ENOMEM` beyond `RLIMIT_AS`,
    /// `Unsupported` if this process has asked for all future maps to be locked in memory.
    pub fn new(fd: &Memfd, offset: u64, len: usize, access: Access) -> io::Result<Mapping> {
        let file = fd.open()?;
        if len == 0 || !offset.is_multiple_of(page_size() as u64) {
            return Err(invalid(format!(
                "a map must have bytes and start at a whole page, got {len} bytes from {offset}"
            )));
        }
        let start = if len < HUGE_PAGE {
            map(ptr::null_mut(), file, offset, len, access)?
        } else {
            map(reserve(len, offset)?, file, offset, len, access)?
        };
        let ticket = AtomicU64::new(0);
        let mapping = Mapping { start, len, access, ticket };
        mapping
            .advise(0, len, Advice::LinuxDontDump)
            .map_err(refused_by("madvise(MADV_DONTDUMP), without which a core dump would fill the memory"))?;
        Ok(mapping)
    }

    /// Returns the first address.
    pub fn ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the length in bytes, as asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Turns what lies between whole 2 MiB boundaries into huge pages, and says whether it did.
    ///
    /// Holes in there get memory. `false` where the kernel can't (before Linux 6.1), where pages
    /// are pinned, where no huge page is free, and where there is no whole 2 MiB.
    pub fn collapse(&self, offset: usize, len: usize) -> bool {
        if self.check(offset, len).is_err() {
            return false;
        }
        let base = self.start.addr().get();
        let first = (base + offset).next_multiple_of(HUGE_PAGE);
        let end = (base + offset + len) / HUGE_PAGE * HUGE_PAGE;
        if first >= end {
            return false;
        }
        let at = self.start.as_ptr().wrapping_add(first - base);
        // SAFETY: `check` found the range inside this map; collapsing doesn't change its content.
        unsafe { libc::madvise(at.cast(), end - first, libc::MADV_COLLAPSE) == 0 }
    }

    /// Makes each page of the range present and writable, so that the first write is no fault.
    ///
    /// # Errors
    ///
    /// `EINVAL` before Linux 5.14 and for read-only maps, `InvalidInput` outside the map.
    pub fn populate_write(&self, offset: usize, len: usize) -> io::Result<()> {
        self.advise(offset, len, Advice::LinuxPopulateWrite)
    }

    /// Drops the pages of the range; a private map shows the file's content again.
    ///
    /// # Errors
    ///
    /// `InvalidInput` outside the map, and `EINVAL` where `offset` isn't a whole page.
    pub fn discard(&self, offset: usize, len: usize) -> io::Result<()> {
        self.advise(offset, len, Advice::LinuxDontNeed)
    }

    /// Forbids every access to the range, or allows again what the map was made for.
    ///
    /// # Errors
    ///
    /// `InvalidInput` outside the map, and `EINVAL` where `offset` isn't a whole page.
    pub fn protect(&self, offset: usize, len: usize, readable: bool) -> io::Result<()> {
        self.check(offset, len)?;
        let flags = match readable {
            true => MprotectFlags::from_bits_retain(self.access.protection().bits()),
            false => MprotectFlags::empty(),
        };
        // SAFETY: `check` found the range inside this map. Who has a pointer into it and goes on
        // using it gets a fault, which is what this is for.
        unsafe { mprotect(self.at(offset), len, flags)? };
        Ok(())
    }

    fn at(&self, offset: usize) -> *mut c_void {
        self.start.as_ptr().wrapping_add(offset).cast()
    }

    fn advise(&self, offset: usize, len: usize, advice: Advice) -> io::Result<()> {
        self.check(offset, len)?;
        // SAFETY: `check` found the range inside this map. Of the advice given here only
        // `DontNeed` changes content, and only that of private maps, as `discard` says.
        unsafe { madvise(self.at(offset), len, advice)? };
        Ok(())
    }

    fn check(&self, offset: usize, len: usize) -> io::Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(invalid(format!("{len} bytes from {offset} aren't inside a map of {} bytes", self.len))),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        fork::deregister(self.ticket.load(Ordering::Acquire));
        // SAFETY: `new` mapped this range for this value alone, and whoever hands out pointers
        // into it keeps the `Mapping` alive for as long.
        let _ = unsafe { munmap(self.at(0), self.len) };
    }
}

/// Maps at `place`, replacing the reservation there, or anywhere if it is null.
fn map(
    place: *mut c_void,
    file: BorrowedFd<'_>,
    offset: u64,
    len: usize,
    access: Access,
) -> io::Result<NonNull<u8>> {
    let mut flags = access.flags();
    if !place.is_null() {
        flags |= MapFlags::FIXED;
    }
    // SAFETY: a map at a new address disturbs nobody; a `place` that isn't null is `len` bytes
    // that `reserve` has just made for this call.
    let start =
        unsafe { mmap(place, len, access.protection(), flags, file, offset) }.map_err(unless_locked)?;
    NonNull::new(start.cast()).ok_or_else(|| invalid("the kernel mapped address 0".into()))
}

/// Reserves addresses for `len` bytes that are equal to `offset` modulo 2 MiB.
fn reserve(len: usize, offset: u64) -> io::Result<*mut c_void> {
    let whole = len.checked_next_multiple_of(page_size()).and_then(|pages| pages.checked_add(HUGE_PAGE));
    let Some(whole) = whole else {
        return Err(Errno::NOMEM.into());
    };
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: an anonymous map at a new address disturbs nobody.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), whole, ProtFlags::empty(), flags) };
    let start = start.map_err(unless_locked)?;
    refuse_locked(start, whole)?;
    // How far the next address is that is equal to `offset`.
    let shift = (offset as usize).wrapping_sub(start.addr()) % HUGE_PAGE;
    let place = start.wrapping_byte_add(shift);
    let after = whole - HUGE_PAGE;
    if shift > 0 {
        // SAFETY: what lies before `place` belongs to the reservation, and nobody else knows it.
        unsafe { munmap(start, shift)? };
    }
    // SAFETY: the same for what lies behind; `shift` is less than 2 MiB, so it isn't empty.
    unsafe { munmap(place.wrapping_byte_add(after), HUGE_PAGE - shift)? };
    Ok(place)
}

/// Unmaps the reservation and fails if the kernel locks new maps in memory.
fn refuse_locked(start: *mut c_void, len: usize) -> io::Result<()> {
    // SAFETY: `reserve` has just mapped the range. This changes nothing, and fails on locked maps.
    if unsafe { msync(start, len, MsyncFlags::INVALIDATE) } != Err(Errno::BUSY) {
        return Ok(());
    }
    // SAFETY: nobody else knows the range.
    unsafe { munmap(start, len)? };
    Err(locked())
}

fn locked() -> io::Error {
    let text = "this process locks all future maps in memory (mlockall with MCL_FUTURE), so a \
                large map would be filled at once";
    io::Error::new(ErrorKind::Unsupported, text)
}

/// The kernel says `EAGAIN` where a map would be locked, beyond `RLIMIT_MEMLOCK`.
fn unless_locked(error: Errno) -> io::Error {
    if error == Errno::AGAIN { locked() } else { error.into() }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, text)
}

//! Sealed memory files.
//!
//! A file is sealed against shrinking, growing and further seals before anyone
//! else can see it, so a page within its length can always be touched: holes
//! fill with zeros, and nobody can cut the file under a reader (`SIGBUS`). Its
//! mode is 0600: another user can't open it through `/proc`.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{
    FallocateFlags, FileType, MemfdFlags, Mode, OFlags, SealFlags, Stat, fallocate, fchmod, fcntl_add_seals,
    fcntl_get_seals, fstat, ftruncate, memfd_create, open,
};
use rustix::io::Errno;

use crate::descriptor::{Descriptor, shows};
use crate::{limits, process, refused_by};

/// What the name of each of our memory files starts with.
pub const PREFIX: &str = "ropeway";

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A memory file of fixed length that this process holds open.
#[derive(Debug)]
pub struct Memfd(Descriptor);

#[expect(clippy::len_without_is_empty, reason = "the length is fixed by whoever creates it")]
impl Memfd {
    /// Creates a sealed file of `len` bytes, all of them a hole.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if `name` doesn't start with [`PREFIX`], `FileTooLarge` if `len` is above
    /// `RLIMIT_FSIZE` (the kernel would send a deadly `SIGXFSZ`), or what the kernel says.
    pub fn create(name: &str, len: u64) -> io::Result<Memfd> {
        if !name.starts_with(PREFIX) {
            let text = format!("the name of a memfd must start with {PREFIX:?}, got {name:?}");
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        if let Some(limit) = limits::file_size().filter(|&limit| len > limit) {
            let text = format!("a file of {len} bytes asked, RLIMIT_FSIZE is {limit}");
            return Err(io::Error::new(ErrorKind::FileTooLarge, text));
        }
        let fd = create_empty(name)
            .map_err(refused_by("memfd_create, without which there is no shared memory"))?;
        fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(refused_by("fchmod, which keeps other users out"))?;
        ftruncate(&fd, len).map_err(refused_by("ftruncate"))?;
        fcntl_add_seals(&fd, SEALS)
            .map_err(refused_by("fcntl(F_ADD_SEALS), without which anybody could cut the memory off"))?;
        Ok(Memfd(Descriptor::own(fd)?))
    }

    /// Opens the file behind descriptor `fd` of process `pid`, as a new open file description.
    ///
    /// Needs no help from that process: it may be busy or stopped.
    ///
    /// # Errors
    ///
    /// `NotFound` if the process or the descriptor isn't there, `PermissionDenied` for another
    /// user's, and `InvalidData`, saying what was found, for anything but a file of ours.
    pub fn open_peer(pid: u32, fd: i32) -> io::Result<Memfd> {
        // For ourselves not by number: `/proc` may count processes by another namespace than ours.
        let path = match pid == process::pid() {
            true => format!("/proc/thread-self/fd/{fd}"),
            false => format!("/proc/{pid}/fd/{fd}"),
        };
        let link = fs::read_link(&path)?;
        let expected = format!("/memfd:{PREFIX}");
        if !link.as_os_str().as_bytes().starts_with(expected.as_bytes()) {
            return Err(refused(&path, &format!("it shows {link:?}")));
        }
        // Should the number be given out again right now, then don't wait for a FIFO's writer.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = open(&path, flags, Mode::empty())?;
        verify(&file, &path)?;
        Ok(Memfd(Descriptor::own(file)?))
    }

    /// Takes over a descriptor that somebody has sent, after the checks of [`Memfd::open_peer`].
    ///
    /// # Errors
    ///
    /// `InvalidData`, saying what was found, for anything but a sealed file of the same user.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Memfd> {
        verify(&fd, "the descriptor received")?;
        Ok(Memfd(Descriptor::own(fd)?))
    }

    /// Returns the descriptor's number, by which another process can open the file.
    pub fn raw(&self) -> RawFd {
        self.0.number()
    }

    /// Borrows the descriptor, without looking whether it still shows this file.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.borrow()
    }

    /// Returns the file's length in bytes.
    pub fn len(&self) -> io::Result<u64> {
        Ok(self.stat()?.st_size.unsigned_abs())
    }

    /// Returns device and inode number, as they were when the file was opened.
    pub fn inode(&self) -> (u64, u64) {
        self.0.file()
    }

    /// Says whether the descriptor's number still shows this file.
    ///
    /// All methods that use the descriptor look first and fail with `EBADF` if it doesn't.
    pub fn is_open(&self) -> bool {
        self.0.open().is_ok()
    }

    /// Opens the file once more: a new open file description, whose locks are its own.
    ///
    /// # Errors
    ///
    /// `NotFound` without `/proc`, `EBADF` if the host program has closed the descriptor.
    pub fn private_description(&self) -> io::Result<OwnedFd> {
        self.0.open()?;
        // Not /proc/self: it is empty once the process's first thread has ended.
        let path = format!("/proc/thread-self/fd/{}", self.raw());
        let fd = open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|error| {
            let text = format!("{path}, a file of this process (is /proc mounted?): {error}");
            io::Error::new(io::Error::from(error).kind(), text)
        })?;
        if !shows(fd.as_fd(), self.inode()) {
            return Err(Errno::BADF.into());
        }
        Ok(fd)
    }

    /// Gives the range memory of its own, in one system call that may take long.
    ///
    /// # Errors
    ///
    /// `Interrupted` after a signal, with what this call had committed undone; `ENOSPC` or
    /// `ENOMEM` if there is no memory; `EPERM` beyond the file's end.
    pub fn commit(&self, offset: u64, len: u64) -> io::Result<()> {
        fallocate(self.0.open()?, FallocateFlags::empty(), offset, len)?;
        Ok(())
    }

    /// Gives the range's memory back to the system; it reads as zeros afterwards.
    pub fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(self.0.open()?, flags, offset, len)?;
        Ok(())
    }

    /// Returns how many bytes of memory the file has.
    pub fn allocated(&self) -> io::Result<u64> {
        Ok(self.stat()?.st_blocks.unsigned_abs() * 512)
    }

    /// The descriptor, if it still shows this file.
    pub(crate) fn open(&self) -> io::Result<BorrowedFd<'_>> {
        self.0.open()
    }

    fn stat(&self) -> io::Result<Stat> {
        Ok(fstat(self.0.open()?)?)
    }
}

/// `MFD_NOEXEC_SEAL` is younger (Linux 6.3) than all else that is needed.
fn create_empty(name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, flags),
        other => other,
    }
}

fn verify(fd: &OwnedFd, what: &str) -> io::Result<()> {
    let stat = fstat(fd)?;
    let file_type = FileType::from_raw_mode(stat.st_mode);
    if file_type != FileType::RegularFile {
        return Err(refused(what, &format!("it is a {file_type:?}")));
    }
    if stat.st_uid != process::uid() {
        return Err(refused(what, &format!("it belongs to user {}", stat.st_uid)));
    }
    match fcntl_get_seals(fd) {
        Ok(seals) if seals.contains(SEALS) => Ok(()),
        Ok(seals) => Err(refused(what, &format!("its seals are {seals:?}"))),
        Err(_) => Err(refused(what, "it is a file that can't be sealed")),
    }
}

fn refused(what: &str, found: &str) -> io::Error {
    let text = format!(
        "{what} isn't a memory file of ropeway: expected a memfd of user {}, sealed against \
         shrinking, growing and further seals, but {found}",
        process::uid()
    );
    io::Error::new(ErrorKind::InvalidData, text)
}

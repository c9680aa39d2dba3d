//! A descriptor number that the host program may take away.
//!
//! Programs that become daemons close all descriptors, also ours, and the
//! numbers are given out again. Each use therefore looks first whether the
//! number still shows the file that it was opened on, and so does the close.

use std::io;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use rustix::fs::fstat;
use rustix::io::Errno;

/// Device and inode number: what a file is, whatever shows it.
pub(crate) type FileId = (u64, u64);

/// Owns a descriptor number for as long as it shows the same file.
#[derive(Debug)]
pub(crate) struct Descriptor {
    number: RawFd,
    file: FileId,
}

impl Descriptor {
    pub(crate) fn own(fd: OwnedFd) -> io::Result<Self> {
        let stat = fstat(&fd)?;
        let file = (stat.st_dev, stat.st_ino);
        let number = fd.into_raw_fd();
        Ok(Self { number, file })
    }

    pub(crate) fn number(&self) -> RawFd {
        self.number
    }

    pub(crate) fn file(&self) -> FileId {
        self.file
    }

    /// Borrows the number unseen; it may show another file by now.
    pub(crate) fn borrow(&self) -> BorrowedFd<'_> {
        // SAFETY: `own` got the number from an `OwnedFd`, so it isn't -1. If the host program
        // closed it, a system call on it fails or meets another file, which isn't memory-unsafe.
        unsafe { BorrowedFd::borrow_raw(self.number) }
    }

    /// Borrows the number if it still shows the file.
    ///
    /// # Errors
    ///
    /// `EBADF` if the host program has closed it, also if it has been given out again.
    pub(crate) fn open(&self) -> io::Result<BorrowedFd<'_>> {
        if shows(self.borrow(), self.file) { Ok(self.borrow()) } else { Err(Errno::BADF.into()) }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if shows(self.borrow(), self.file) {
            // SAFETY: the number shows our file, so it is the one that `own` was given.
            unsafe { libc::close(self.number) };
        }
    }
}

/// Says whether a descriptor shows this file. Async-signal-safe.
pub(crate) fn shows(fd: BorrowedFd<'_>, file: FileId) -> bool {
    fstat(fd).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == file)
}

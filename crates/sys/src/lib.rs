#![doc = "The system calls of ropeway; no other crate makes any."]
//!
//! The crate knows files, addresses, locks and processes, and nothing of pools,
//! slots or leases. From the bottom up:
//!
//! - [`memfd`]: sealed memory files, and how a process opens those of another.
//! - [`mapping`]: such a file (or a part of it) in this address space.
//! - [`futex`]: sleeping on a word that several processes map.
//! - [`liveness`]: locks that the kernel drops when an address space is gone.
//! - [`fork`]: what a forked child must not share with its parent.
//! - [`names`]: finding a memory file by name.
//! - [`memory`], [`limits`], [`process`]: what the machine has and who we are.
//!
//! Two hazards shape it. A host program may close every descriptor and open
//! others under the same numbers, so a number is used only while it still shows
//! the inode it was opened on. And any thread may fork at any time, so nothing
//! that a child would need is guarded by a lock.

pub mod fork;
pub mod futex;
pub mod limits;
pub mod liveness;
pub mod mapping;
pub mod memfd;
pub mod memory;
pub mod names;
pub mod process;

mod descriptor;

/// Names the system call that was refused, and what it is for.
pub(crate) fn refused_by<E: Into<std::io::Error>>(call: &str) -> impl FnOnce(E) -> std::io::Error {
    move |error| {
        let error = error.into();
        std::io::Error::new(error.kind(), format!("{call}: {error}"))
    }
}

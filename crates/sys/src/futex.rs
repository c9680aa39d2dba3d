//! Sleeping on a word that several processes map.
//!
//! The futexes are shared ones: the kernel finds a sleeper by file and offset,
//! whatever address each process has mapped the word at.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};
use rustix::time::Timespec;

/// The most that the kernel takes, as it reads a signed number.
const EVERYBODY: u32 = i32::MAX as u32;

/// Why [`wait`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Somebody called [`wake_all`]; now and then nobody did.
    Woken,
    /// The word had another value already.
    Changed,
    /// The time was up.
    TimedOut,
    /// A signal handler ran in this thread.
    Interrupted,
}

/// Sleeps until the word is woken, unless it no longer has the value `expected`.
///
/// A sleeper that dies leaves nothing behind.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Duration) -> Woken {
    let timeout = Timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match futex::wait(word, Flags::empty(), expected, Some(&timeout)) {
        Ok(()) => Woken::Woken,
        Err(Errno::TIMEDOUT) => Woken::TimedOut,
        Err(Errno::INTR) => Woken::Interrupted,
        // EAGAIN; whatever else the kernel may say, the caller has to look at the word.
        Err(_) => Woken::Changed,
    }
}

/// Wakes all who sleep on the word, in whichever process, and returns how many they were.
pub fn wake_all(word: &AtomicU32) -> usize {
    futex::wake(word, Flags::empty(), EVERYBODY).unwrap_or(0)
}

//! Who this process is, what others are called, and what time it is.
//!
//! Pids are for messages and for opening a file of another process. Whether a
//! process lives is the business of [`crate::liveness`] alone.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};

/// Returns this process's id, as its own pid namespace has it.
pub fn pid() -> u32 {
    std::process::id()
}

/// Returns the number of the calling thread, which no other thread of its pid namespace has.
pub fn thread_id() -> u64 {
    thread_local! {
        // Beside the cookie of the process that asked: a forked child's thread has another number.
        static KNOWN: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    }
    let cookie = crate::fork::cookie();
    let ask = || rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs().into();
    let known = KNOWN.try_with(|known| {
        if known.get().0 != cookie {
            known.set((cookie, ask()));
        }
        known.get().1
    });
    known.unwrap_or_else(|_| ask())
}

/// Returns whether this process has a single thread; false without `/proc`.
pub fn is_single_threaded() -> bool {
    fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

/// Returns the user in whose name this process makes and opens files.
pub fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns what a process is called (at most 15 bytes); `None` if it isn't there.
pub fn name_of(pid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
}

/// Returns 16 bytes that nobody else has.
pub fn random_id() -> [u8; 16] {
    random()
}

/// Returns the time since boot as of the last clock tick (some milliseconds ago), the cheap way.
pub fn monotonic_coarse_ns() -> u64 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Returns by how many ns this process's monotonic clock is ahead of the machine's: a time namespace may
/// have moved it. 0 without `/proc`.
pub fn clock_offset_ns() -> i64 {
    let namespace = |name: &str| fs::metadata(format!("/proc/thread-self/ns/{name}")).map(|link| link.ino());
    // The file tells of children to come, and of this process unless it has called `unshare` itself.
    if namespace("time").ok() != namespace("time_for_children").ok() {
        return 0;
    }
    let text = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let mut words =
        text.lines().find_map(|line| line.strip_prefix("monotonic")).unwrap_or("").split_whitespace();
    let mut number = || words.next().and_then(|word| word.parse::<i64>().ok()).unwrap_or(0);
    number().wrapping_mul(1_000_000_000).wrapping_add(number())
}

/// Kills this process on the spot, as a test's way to die in the middle of something.
pub fn kill_self() -> ! {
    // SAFETY: neither call touches memory; nothing of this process runs after the first.
    unsafe {
        libc::kill(libc::getpid(), libc::SIGKILL);
        libc::_exit(137)
    }
}

/// Bytes from the kernel's generator; async-signal-safe. Up to 256 come all at once.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    loop {
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(_) => return bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the kernel gives no random bytes: {error}"),
        }
    }
}

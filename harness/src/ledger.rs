//! What the processes of a round write down, apart from the pool that is on trial.
//!
//! One page range of anonymous shared memory, made by the process that forks all others. Each entry
//! has one writer at a time; whoever dies leaves behind what it had written.

use std::fmt::Display;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// The most processes of one round.
pub const PEOPLE: usize = 12;
/// The most producers of one round.
pub const PRODUCERS: usize = 3;
/// The most messages of one producer.
pub const EACH: usize = 64;

/// Where a process of the round stands.
pub mod state {
    pub const RUNNING: u32 = 1;
    pub const FINISHED: u32 = 2;
    pub const GONE: u32 = 3;
}

/// One process of the round.
pub struct Person {
    pub pid: AtomicU32,
    /// One of [`state`].
    pub state: AtomicU32,
    /// The message that it has in hand, plus 1.
    pub current: AtomicU32,
    /// Leases that it has had.
    pub leases: AtomicU32,
    /// When it was gone, in ns of the monotonic clock.
    pub gone_at: AtomicU64,
    /// How long its slots stayed away after that, in ns, plus 1.
    pub recovery: AtomicU64,
}

/// One message.
pub struct Message {
    /// Its producer has begun to publish it.
    pub begun: AtomicU32,
    /// Its producer has come back from publishing it.
    pub published: AtomicU32,
    /// Times that a consumer had it before itself, whole.
    pub read: AtomicU32,
    /// Times that a consumer has come back from releasing it.
    pub done: AtomicU32,
}

/// Where handles of arrays are left for others.
pub mod mail {
    /// How many there are.
    pub const BOXES: usize = 4;
    /// The longest handle.
    pub const LONGEST: usize = 480;
    pub const EMPTY: u32 = 0;
    pub const BUSY: u32 = 1;
    pub const FULL: u32 = 2;
}

/// One handle on its way.
pub struct Mail {
    state: AtomicU32,
    len: AtomicUsize,
    bytes: [AtomicU8; mail::LONGEST],
}

impl Mail {
    /// Makes sure that nobody else leaves a handle here.
    pub fn reserve(&self) -> bool {
        self.state.compare_exchange(mail::EMPTY, mail::BUSY, SeqCst, SeqCst).is_ok()
    }

    /// Leaves a handle where one was reserved.
    pub fn put(&self, handle: &[u8]) {
        assert!(handle.len() <= mail::LONGEST, "a handle of {} bytes", handle.len());
        self.bytes.iter().zip(handle).for_each(|(to, from)| to.store(*from, SeqCst));
        self.len.store(handle.len(), SeqCst);
        self.state.store(mail::FULL, SeqCst);
    }

    /// Takes a handle that was left here.
    pub fn take(&self) -> Option<Vec<u8>> {
        self.state.compare_exchange(mail::FULL, mail::BUSY, SeqCst, SeqCst).ok()?;
        let bytes = &self.bytes[..self.len.load(SeqCst)];
        let handle = bytes.iter().map(|byte| byte.load(SeqCst)).collect();
        self.state.store(mail::EMPTY, SeqCst);
        Some(handle)
    }
}

/// All that is written down in a round.
pub struct Ledger {
    handle: [AtomicU8; 1024],
    handle_len: AtomicUsize,
    /// Processes that have opened the pool.
    pub joined: AtomicU32,
    /// Children of theirs that still use the pool.
    pub children: AtomicU32,
    /// The maker of the pool may go now.
    pub dismissed: AtomicU32,
    pub people: [Person; PEOPLE],
    pub messages: [Message; PRODUCERS * EACH],
    pub mails: [Mail; mail::BOXES],
    /// Losses that the pool has reported.
    pub lost: AtomicU32,
    said: [AtomicU8; 16384],
    said_len: AtomicUsize,
}

impl Ledger {
    /// Makes the one ledger of this process and its children.
    pub fn shared() -> &'static Ledger {
        let (len, kind) = (size_of::<Ledger>(), libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping; the arguments are valid.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, kind, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "no memory for the ledger");
        // SAFETY: the mapping is large enough, page-aligned, never unmapped, and all zeros, which is
        // valid for a struct of atomics.
        unsafe { &*at.cast::<Ledger>() }
    }

    /// Forgets a round. Nobody else may be alive.
    pub fn clear(&self) {
        // SAFETY: no other process uses the ledger; atomics may be overwritten with zeros.
        unsafe { std::ptr::write_bytes(std::ptr::from_ref(self).cast_mut(), 0, 1) };
    }

    /// Writes down how the pool is found.
    pub fn set_handle(&self, bytes: &[u8]) {
        self.handle.iter().zip(bytes).for_each(|(to, from)| to.store(*from, SeqCst));
        self.handle_len.store(bytes.len(), SeqCst);
    }

    /// How the pool is found, as soon as it exists.
    pub fn handle(&self) -> Option<Vec<u8>> {
        let len = self.handle_len.load(SeqCst);
        (len > 0).then(|| self.handle[..len].iter().map(|byte| byte.load(SeqCst)).collect())
    }

    /// Writes down what is wrong.
    pub fn complain(&self, what: impl Display) {
        let line = format!("process {}: {what}\n", std::process::id());
        let start = self.said_len.fetch_add(line.len(), SeqCst);
        let room = self.said.iter().skip(start);
        room.zip(line.bytes()).for_each(|(to, from)| to.store(from, SeqCst));
    }

    /// All that was wrong.
    pub fn complaints(&self) -> String {
        let len = self.said_len.load(SeqCst).min(self.said.len());
        let bytes: Vec<_> = self.said[..len].iter().map(|byte| byte.load(SeqCst)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Person {
    /// Writes down that the process is gone, or about to be.
    pub fn leave(&self, how: u32) {
        if self.state.load(SeqCst) == state::RUNNING {
            self.gone_at.store(now(), SeqCst);
            self.state.store(how, SeqCst);
        }
    }

    /// True once the process holds nothing any more, or shouldn't.
    pub fn has_left(&self) -> bool {
        self.state.load(SeqCst) >= state::FINISHED
    }

    /// True when the process has come to an end that wasn't its own.
    pub fn is_gone(&self) -> bool {
        self.state.load(SeqCst) == state::GONE
    }
}

/// The monotonic clock in ns.
pub fn now() -> u64 {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `at` outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut at) };
    Duration::new(at.tv_sec as u64, at.tv_nsec as u32).as_nanos() as u64
}

//! The bytes of a slot. loom watches for races on them; under shuttle each access is a step.

#[cfg(shuttle)]
use ropeway::sync::{AtomicU64, Ordering};

/// The batch that lies in a slot: its number three times, so that half a write shows.
#[cfg(loom)]
pub struct Bytes(loom::cell::UnsafeCell<[u64; 3]>);

// SAFETY: loom checks every access and fails the model at the first race.
#[cfg(loom)]
unsafe impl Sync for Bytes {}
// SAFETY: plain numbers.
#[cfg(loom)]
unsafe impl Send for Bytes {}

#[cfg(loom)]
impl Bytes {
    pub fn new() -> Bytes {
        Bytes(loom::cell::UnsafeCell::new([0; 3]))
    }

    pub fn get(&self) -> [u64; 3] {
        // SAFETY: loom has checked that nobody writes now.
        self.0.with(|bytes| unsafe { *bytes })
    }

    pub fn set(&self, at: usize, value: u64) {
        // SAFETY: loom has checked that nobody else reads or writes now.
        self.0.with_mut(|bytes| unsafe { (*bytes)[at] = value });
    }
}

/// The batch that lies in a slot: its number three times, so that half a write shows.
#[cfg(shuttle)]
pub struct Bytes([AtomicU64; 3]);

#[cfg(shuttle)]
impl Bytes {
    pub fn new() -> Bytes {
        Bytes([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)])
    }

    pub fn get(&self) -> [u64; 3] {
        [0, 1, 2].map(|at| self.0[at].load(Ordering::Relaxed))
    }

    pub fn set(&self, at: usize, value: u64) {
        self.0[at].store(value, Ordering::Relaxed);
    }
}

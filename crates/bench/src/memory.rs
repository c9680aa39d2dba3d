//! The memory that both processes see: two counters, then the slots.

use std::error::Error;
use std::hint::spin_loop;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::*};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::thread::futex;

use crate::options::{Means, Options};

/// Where the slots begin: the counters fill the page before.
const SLOTS_AT: usize = 4096;

/// Counts the slots that were handed over in one direction, and is what their receiver waits on.
#[repr(C, align(128))]
pub struct Counter {
    count: AtomicU32,
    sleepers: AtomicU32,
}

impl Counter {
    /// Hands one more slot over.
    pub fn advance(&self) {
        self.count.fetch_add(1, SeqCst);
        if self.sleepers.load(SeqCst) != 0 {
            // A wake-up that finds nobody is no error; nothing else can fail for a mapped word.
            let _ = futex::wake(&self.count, futex::Flags::empty(), 1);
        }
    }

    /// Waits until more than `seen` slots were handed over.
    pub fn pass(&self, seen: u32, means: Means) {
        while self.count.load(Acquire) == seen {
            if means == Means::Spin {
                spin_loop();
                continue;
            }
            self.sleepers.fetch_add(1, SeqCst);
            // Returns at once where the count has moved, and on any signal: the loop looks again.
            let _ = futex::wait(&self.count, futex::Flags::empty(), seen, None);
            self.sleepers.fetch_sub(1, SeqCst);
        }
    }
}

#[repr(C)]
struct Counters {
    there: Counter,
    back: Counter,
}

/// The mapping of that memory in this process; it stays until the process ends.
pub struct Memory {
    counters: &'static Counters,
    slots: &'static [AtomicU8],
    bytes: usize,
}

impl Memory {
    /// Makes the memory with every slot filled, and the descriptor that the far process opens it by.
    pub fn create(options: &Options) -> Result<(Self, OwnedFd), Box<dyn Error>> {
        let file = memfd_create("ropeway-floor", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, (SLOTS_AT + options.slots as usize * options.bytes) as u64)?;
        let memory = Self::map(file.as_fd(), options)?;
        for slot in 0..options.slots {
            memory.slot(slot).iter().for_each(|byte| byte.store(mark(slot), Relaxed));
        }
        Ok((memory, file))
    }

    /// Opens the memory behind `file` and checks every byte of every slot.
    pub fn open(file: impl AsFd, options: &Options) -> Result<Self, Box<dyn Error>> {
        let memory = Self::map(file, options)?;
        for slot in 0..options.slots {
            if let Some(found) =
                memory.slot(slot).iter().map(|byte| byte.load(Relaxed)).find(|&b| b != mark(slot))
            {
                return Err(format!("slot {slot} was to hold {} and holds {found}", mark(slot)).into());
            }
        }
        Ok(memory)
    }

    fn map(file: impl AsFd, options: &Options) -> Result<Self, Box<dyn Error>> {
        let length = options.slots as usize * options.bytes;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                SLOTS_AT + length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        // SAFETY: `create` made the file this long and nobody shortens it; the mapping is never undone; both types are
        // made of atomics, so what another process writes meanwhile is no data race.
        let (counters, slots) = unsafe {
            (
                &*base.cast::<Counters>(),
                std::slice::from_raw_parts(base.cast::<AtomicU8>().add(SLOTS_AT), length),
            )
        };
        Ok(Self { counters, slots, bytes: options.bytes })
    }

    /// The direction from near to far.
    pub fn there(&self) -> &Counter {
        &self.counters.there
    }

    /// The direction from far to near.
    pub fn back(&self) -> &Counter {
        &self.counters.back
    }

    /// Reads one byte of a slot, as every receiver does.
    ///
    /// # Panics
    /// Where the byte is not what the slot was filled with.
    pub fn look(&self, slot: u32) {
        assert_eq!(self.slot(slot)[0].load(Relaxed), mark(slot), "slot {slot} holds the wrong contents");
    }

    fn slot(&self, slot: u32) -> &[AtomicU8] {
        let start = slot as usize * self.bytes;
        &self.slots[start..start + self.bytes]
    }
}

/// What every byte of a slot holds.
fn mark(slot: u32) -> u8 {
    slot as u8 | 0x40
}

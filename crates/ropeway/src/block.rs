#![allow(unsafe_code)]
//! The memory of one ad-hoc array, and its handle.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

use ropeway_sys::mapping::Mapping;

use crate::arena::Arena;
use crate::error::Result;
use crate::handle::Handle;
use crate::marks::{Marks, PICKLED};
use crate::session::{arena_of, new_session, session};
use crate::wire::{Reader, Writer, checksum};

/// The memory of one array. Dropping the last of a process takes the process's mark off it.
pub struct Block {
    pub(crate) arena: Arc<Arena>,
    pub(crate) window: Arc<Mapping>,
    pub(crate) slot: usize,
    pub(crate) serial: u64,
    pub(crate) start: NonNull<u8>,
    pub(crate) len: usize,
    pub(crate) fresh: bool,
}

// SAFETY: the bytes stay mapped while `arena` lives; sharing them is what they are for.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for an array without elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True when the pages were never used, so every byte is zero.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// True once a handle was made.
    pub fn is_pickled(&self) -> bool {
        self.arena.at.board.0.passed(self.slot).load(Acquire) & PICKLED != 0
    }

    /// What to send to another process. From now on the array is kept until somebody opens it.
    pub fn handle(&self) -> Vec<u8> {
        let arena = self.arena.here();
        arena.at.board.0.passed(self.slot).fetch_or(PICKLED, AcqRel);
        let mut w = Writer::default();
        w.number(self.slot as u64).number(self.serial).bytes(&arena.handle().to_bytes());
        let sum = checksum(&w.0);
        w.number(sum);
        w.0
    }

    /// Opens a handle. Any number of times, in any process of the user that can reach the arena.
    pub fn open(handle: &[u8]) -> Result<Block> {
        let mut r = Reader::new(handle, "an array's handle");
        let (slot, serial, home) = (r.number()?, r.number()?, r.bytes()?);
        let (sum, found) = (checksum(&handle[..handle.len().saturating_sub(8)]), r.number()?);
        if sum != found {
            return Err(r.broken("it was changed on the way"));
        }
        r.end()?;
        arena_of(&Handle::from_bytes(home)?)?.open_slot(slot as usize, serial)
    }

    /// Takes memory for an array from this session's arena.
    pub fn allocate(len: usize, pulse: &mut dyn FnMut() -> bool) -> Result<Block> {
        let arena = session()?;
        let block = arena.allocate(len, pulse);
        // A program that becomes a daemon closes all descriptors, and goes on with a session of its own.
        if block.is_err() && !arena.has_descriptors() {
            return new_session()?.allocate(len, pulse);
        }
        block
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.here().close_slot(self.slot);
    }
}

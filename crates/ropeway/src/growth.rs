//! One thread at a time gives a held slot memory, and the slot stays where it is meanwhile.
//!
//! Committing memory may take long, and runs a pulse between its steps: signal handlers, which may
//! do anything. So nothing is locked meanwhile that another use of the lease needs. Whoever ends the
//! lease doesn't wait either: as with exports, the slot moves on afterwards.

use std::sync::atomic::Ordering::*;
use std::time::Duration;

use crate::board::Store;
use crate::error::{Error, Result};
use crate::extents::Cursor;
use crate::field::{Field, alignment};
use crate::hold::{ENDED, GROWING, Hold};
use crate::memory::Asking;

/// How often a thread looks whether another has finished.
const GLIMPSE: Duration = Duration::from_millis(1);

/// The turn of a thread that changes what belongs to a slot.
pub(crate) struct Growth<'a>(&'a Hold);

impl Drop for Growth<'_> {
    fn drop(&mut self) {
        self.0.grower.store(0, Relaxed);
        if self.0.uses.fetch_and(!GROWING, AcqRel) == ENDED | GROWING {
            self.0.give_back();
        }
    }
}

impl Hold {
    /// Begins to change what belongs to the slot; `None` while another thread does.
    pub fn begin_growth(&self) -> Result<Option<Growth<'_>>> {
        self.check_open()?;
        let free = |uses| (uses & (ENDED | GROWING) == 0).then_some(uses | GROWING);
        match self.uses.fetch_update(AcqRel, Acquire, free) {
            Ok(_) => {
                self.grower.store(self.at.board.0.thread(), Relaxed);
                Ok(Some(Growth(self)))
            }
            Err(uses) if uses & ENDED != 0 => Err(self.ended()),
            Err(_) if self.grower.load(Relaxed) == self.at.board.0.thread() => {
                Err(self.is_growing("changed"))
            }
            Err(_) => Ok(None),
        }
    }

    /// Begins to change what belongs to the slot, as soon as no other thread does.
    pub fn grow(&self, pulse: &mut dyn FnMut() -> bool) -> Result<Growth<'_>> {
        loop {
            if let Some(growth) = self.begin_growth()? {
                return Ok(growth);
            }
            std::thread::sleep(GLIMPSE);
            if !pulse() {
                return Err(Error::Interrupted(self.label()));
            }
        }
    }

    /// Why the lease can't be ended or changed.
    #[cold]
    pub fn is_growing(&self, verb: &str) -> Error {
        let who = match self.grower.load(Relaxed) == self.at.board.0.thread() {
            true => "this thread, which a signal has interrupted,",
            false => "another thread",
        };
        Error::InUse(format!("{}: {who} is giving it memory, so it can't be {verb} yet", self.label()))
    }

    /// Adds an array, and commits its memory.
    pub fn add(&self, field: Field, pulse: &mut dyn FnMut() -> bool) -> Result<()> {
        let _growth = self.grow(pulse)?;
        let (at, slot, bytes) = (&self.at, self.claim.index, field.bytes());
        let cursor = self.contents(|contents| contents.room_for(at, slot, &field, &self.label()))?;
        let what = format!("{}, array {:?} of {bytes} bytes", self.label(), field.name);
        let placed = self.place(cursor, bytes.max(1), &what, pulse)?;
        at.memory.settle(&at.board.0, slot, None);
        self.contents(|contents| contents.put(field, placed));
        Ok(())
    }

    /// Commits one stretch of `bytes` for the arrays that are to come.
    pub fn reserve(&self, bytes: u64, pulse: &mut dyn FnMut() -> bool) -> Result<()> {
        if self.at.regions.is_some() || bytes == 0 {
            return self.check_open();
        }
        let _growth = self.grow(pulse)?;
        let cursor = self.contents(|contents| contents.room(&self.at, self.claim.index))?;
        let (_, end) = self.place(cursor, bytes, &self.label(), pulse)?;
        let room = Cursor { extent: end.extent, used: end.used - bytes };
        self.contents(|contents| contents.set_room(room));
        Ok(())
    }

    /// Finds and commits memory behind a place; where it is, and what lies behind it.
    fn place(
        &self,
        mut cursor: Cursor,
        bytes: u64,
        what: &str,
        pulse: &mut dyn FnMut() -> bool,
    ) -> Result<(u64, Cursor)> {
        let (at, slot) = (&self.at, self.claim.index);
        let mut pulse = || pulse() && at.is_mine(); // a signal handler may fork
        let mut asking = Asking { me: at.me, what, pulse: &mut pulse };
        let offset = at.memory.place(&at.board.0, slot, &mut cursor, bytes, alignment(bytes), &mut asking)?;
        Ok((offset, cursor))
    }
}

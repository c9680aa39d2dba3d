//! Memory for ad-hoc arrays, shared by a tree of processes.
//!
//! An arena is a control and a data segment like a pool's, but a slot holds one array and is held by
//! a *set* of members (`marks.rs`). It moves as a pool's slots do: *free* is idle at stage 0, *live* idle
//! at stage 1. A handle names slot and serial number; an array that was pickled and not yet opened
//! anywhere is kept until it is.
//!
//! All that a process does to an arena's marks happens under one lock of that process.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ropeway_sys::fork;
use ropeway_sys::liveness::Alive;
use ropeway_sys::mapping::Mapping;
use ropeway_sys::{memory, process};

use crate::attachment::Attachment;
use crate::bequest;
use crate::block::Block;
use crate::board::{Claim, Store};
use crate::commitment::committed_of;
use crate::config::{MAX_SLOTS, Options};
use crate::error::{Error, Result};
use crate::extents::Cursor;
use crate::guard;
use crate::handle::{Handle, Route};
use crate::layout::ARENA_END;
use crate::marks::{CLAIMED, LIVE, Marks};
use crate::memory::Asking;
use crate::sweep::Tenancy;
use crate::sync::crash_point;
use crate::word::Move;

/// Nothing is published to the first stage, so its tickets number the arrays.
const FREE: usize = 0;
/// Fresh memory for an array below this size costs little.
const SMALL: u64 = 64 << 10;
/// Arrays begin at a multiple of this.
const ALIGN: u64 = 64;

/// A process's place in an arena.
pub(crate) struct Arena {
    /// The mapped segments; in a forked child those of its parent, which are shared.
    pub at: Arc<Attachment>,
    pub me: usize,
    pub tenancy: Tenancy,
    pub cookie: u64,
    /// Keeps the lock of an entry that the parent claimed for this process.
    pub alive: Option<Alive>,
    pub open: Mutex<Open>,
}

/// What this process has open.
#[derive(Clone, Default)]
pub(crate) struct Open {
    /// How often it has each slot open.
    pub counts: HashMap<usize, usize>,
    /// The mapped data segment; it goes with the last array.
    window: Weak<Mapping>,
    /// Small arrays that get new slots before free ones are looked for again.
    fresh: usize,
}

/// What an arena holds.
#[derive(Clone, Debug, Default)]
pub struct ArenaStatus {
    /// Arrays that somebody holds, or that wait to be opened.
    pub arrays: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Arrays that were pickled and not yet opened by anybody.
    pub unclaimed: usize,
    /// Their bytes.
    pub unclaimed_bytes: u64,
    /// Bytes of memory that the arena has, with what is kept for reuse.
    pub committed: u64,
    /// Processes that have the arena open.
    pub members: usize,
}

impl Arena {
    pub fn found() -> Result<Arena> {
        let mut options = Options::new(1);
        options.max_slots = MAX_SLOTS;
        options.stages = vec!["free".into(), "live".into()];
        options.repeatable = vec![LIVE];
        options.redeliveries = u8::MAX;
        Ok(Arena::of(Attachment::found(&options, ARENA_END)?))
    }

    pub fn of(at: Attachment) -> Arena {
        bequest::register_hooks();
        Arena {
            me: at.me,
            tenancy: at.tenancy,
            cookie: at.cookie,
            at: Arc::new(at),
            alive: None,
            open: Mutex::default(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn label() -> &'static str {
        "this session's arena"
    }

    // ---- marking ------------------------------------------------------------------------------

    fn set_mark(&self, slot: usize) {
        self.at.board.set_mark(self.me, self.tenancy, slot);
    }

    /// Lets go of a slot for this process, and frees it if nobody else has it.
    fn clear_mark(&self, slot: usize) {
        self.at.board.clear_mark(self.me, slot);
        self.try_free(slot);
    }

    fn try_free(&self, slot: usize) {
        if self.at.board.free_unmarked(self.me, slot) {
            self.trim(slot);
        }
    }

    /// Frees what the dead have left, if this process hasn't looked for a while.
    pub fn sweep(&self, now: bool) {
        let due = self.at.sweep_due();
        if (due || now) && self.at.board.sweep().dead > 0 {
            for slot in 0..self.at.board.0.slots() {
                self.try_free(slot);
            }
        }
    }

    // ---- memory -------------------------------------------------------------------------------

    /// Memory that is kept for reuse, at most.
    fn spare() -> u64 {
        (memory::total() / 16).max(64 << 20)
    }

    /// Gives the memory of a free slot back if too much is kept.
    fn trim(&self, slot: usize) {
        let board = &self.at.board;
        if committed_of(&board.0, slot, false) < 1 << 20 || self.idle_bytes() <= Arena::spare() {
            return;
        }
        let word = board.0.slot(slot).load();
        if !word.is_idle_at(0) {
            return;
        }
        if let Some(claim) = board.claim(slot, word, Move::Acquire { me: self.me }) {
            let _ = self.at.memory.punch(&board.0, slot);
            board.move_on(claim, Move::Release { me: self.me });
        }
    }

    fn idle_bytes(&self) -> u64 {
        let control = &self.at.board.0;
        let free = (0..control.slots()).filter(|&slot| control.slot(slot).load().is_idle_at(0));
        free.map(|slot| committed_of(control, slot, false)).fold(0, u64::saturating_add)
    }

    /// Claims the free slot whose memory fits best, or a new one, or any.
    ///
    /// A search costs a look at each slot. After a vain one so many small arrays get new slots without a
    /// search that the looks come to 16 for each, however many arrays there are.
    fn claim_slot(&self, open: &mut Open, bytes: u64) -> Option<Claim> {
        let board = &self.at.board;
        if bytes < SMALL && open.fresh > 0 {
            open.fresh -= 1;
            if let Some(claim) = self.append() {
                return Some(claim);
            }
        }
        for most in [bytes.saturating_mul(2).saturating_add(1 << 16), 0, u64::MAX] {
            if most == 0 {
                open.fresh = board.0.slots() / 16;
                match self.append().or_else(|| board.add(self.me, MAX_SLOTS)) {
                    Some(claim) => return Some(claim),
                    None => continue,
                }
            }
            let fits = |slot: &usize| {
                let size = committed_of(&board.0, *slot, false);
                most == u64::MAX || (size >= bytes && size <= most)
            };
            let free = (0..board.0.slots()).filter(|&slot| board.0.slot(slot).load().is_idle_at(0));
            let found = free
                .filter(fits)
                .find_map(|slot| board.claim(slot, board.0.slot(slot).load(), Move::Acquire { me: self.me }));
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Brings the slot behind the last into being.
    fn append(&self) -> Option<Claim> {
        let board = &self.at.board;
        (board.0.slots()..MAX_SLOTS).find_map(|index| {
            board.0.extend_to(index);
            board.claim(index, board.0.slot(index).load(), Move::Add { me: self.me })
        })
    }

    pub fn allocate(self: &Arc<Arena>, len: usize, pulse: &mut dyn FnMut() -> bool) -> Result<Block> {
        let (control, bytes) = (&self.at.board.0, (len as u64).max(1));
        let claimed = {
            let mut open = self.lock();
            self.sweep(false);
            self.claim_slot(&mut open, bytes)
        };
        let claim = claimed.ok_or_else(|| {
            Error::OutOfMemory(format!("{}: it has {MAX_SLOTS} arrays already", Arena::label()))
        })?;
        let (slot, record) = (claim.index, control.record(claim.index));
        let before = committed_of(control, slot, false);
        let what = format!("an array of {len} bytes in {}", Arena::label());
        // The slot is held, so this needs no lock; `pulse` may run anything, also a fork, in whose child
        // the slot is still the parent's.
        let is_mine = || self.cookie == fork::cookie();
        let mut pulse = || pulse() && is_mine();
        let mut asking = Asking { me: self.me, what: &what, pulse: &mut pulse };
        let placed = self.check_unclaimed(bytes).and_then(|()| {
            self.at.memory.place(control, slot, &mut Cursor::default(), bytes, ALIGN, &mut asking)
        });
        let offset = placed.inspect_err(|_| {
            if is_mine() {
                self.at.board.move_on(claim, Move::Release { me: self.me });
            }
        })?;
        let serial = control.tickets(FREE).fetch_add(1, AcqRel).wrapping_add(1);
        record.blob.store(offset + 1, Relaxed);
        record.bytes.store(len as u64, Relaxed);
        record.passed.store(0, Relaxed);
        crash_point!("serial.before");
        record.serial.store(serial, Release);
        let mut open = self.lock();
        self.set_mark(slot);
        if !self.at.board.move_on(claim, Move::Publish { me: self.me }) {
            self.clear_mark(slot);
            return Err(Error::Gone(format!("{what}: its slot was taken away")));
        }
        let block = self.block(&mut open, slot, serial, offset, len, before == 0)?;
        self.at.memory.settle(control, slot, Some(&block.window));
        Ok(block)
    }

    /// A block over a slot that is marked and known to be the right one.
    fn block(
        self: &Arc<Arena>,
        open: &mut Open,
        slot: usize,
        serial: u64,
        offset: u64,
        len: usize,
        fresh: bool,
    ) -> Result<Block> {
        let window = match open.window.upgrade() {
            Some(window) => window,
            None => match self.at.memory.window(Arena::label()) {
                Ok(window) => Arc::new(window),
                Err(e) => {
                    self.clear_mark(slot);
                    return Err(e);
                }
            },
        };
        open.window = Arc::downgrade(&window);
        self.guard(slot, &window, true);
        *open.counts.entry(slot).or_default() += 1;
        let start = window.ptr().as_ptr().wrapping_add(offset as usize);
        let start = NonNull::new(start).expect("a mapping isn't at address 0");
        Ok(Block { arena: self.clone(), window, slot, serial, start, len, fresh })
    }

    /// Refuses more memory while too much of it waits in pickles that nobody opens.
    fn check_unclaimed(&self, bytes: u64) -> Result<()> {
        let cap = memory::total() / 4;
        let control = &self.at.board.0;
        if !control.tickets(FREE).load(Relaxed).is_multiple_of(64) && bytes < 1 << 20 {
            return Ok(());
        }
        let status = self.status();
        if status.unclaimed_bytes.saturating_add(bytes) > cap && status.unclaimed > 0 {
            return Err(Error::OutOfMemory(format!(
                "{}: {bytes} bytes asked, but {} arrays of {} bytes were pickled and never opened (at most {cap} may wait)",
                Arena::label(),
                status.unclaimed,
                status.unclaimed_bytes
            )));
        }
        Ok(())
    }

    // ---- handles ------------------------------------------------------------------------------

    pub fn handle(&self) -> Handle {
        let mine =
            Route { pid: process::pid(), control: self.at.board.0.fd.raw(), data: self.at.memory.fd.raw() };
        let mut handle = self.at.handle();
        handle.routes.retain(|route| route.pid != mine.pid);
        handle.routes.insert(0, mine);
        handle
    }

    /// Opens an array: mark first, look second, as the freer looks at marks after its own move.
    pub fn open_slot(self: &Arc<Arena>, slot: usize, serial: u64) -> Result<Block> {
        let mut open = self.lock();
        let gone = || Error::Gone(format!("array {serial} of {}: it was freed already", Arena::label()));
        let board = &self.at.board;
        if slot >= board.0.slots() {
            return Err(gone());
        }
        self.sweep(false);
        let count = open.counts.get(&slot).copied().unwrap_or(0);
        self.set_mark(slot);
        let found = if board.is_live(slot, serial) { self.find(slot, serial) } else { Err(gone()) };
        let (offset, len) = found.inspect_err(|_| {
            if count == 0 {
                self.clear_mark(slot);
            }
        })?;
        board.0.passed(slot).fetch_or(CLAIMED, AcqRel);
        self.block(&mut open, slot, serial, offset, len as usize, false)
    }

    /// Offset and length of the array in a live slot that this process marks.
    fn find(&self, slot: usize, serial: u64) -> Result<(u64, u64)> {
        let control = &self.at.board.0;
        let record = control.record(slot);
        let (offset, len) = (record.blob.load(Relaxed).wrapping_sub(1), record.bytes.load(Relaxed));
        let spans = self.at.memory.extents(control, slot)?;
        if offset.is_multiple_of(ALIGN) && spans.iter().any(|span| span.contains(offset, len)) {
            return Ok((offset, len));
        }
        Err(Error::Incompatible(format!("array {serial} of {}: it lies outside of its slot", Arena::label())))
    }

    /// Lets this process at the pages of a slot that it has open, or takes them away, when debugging.
    fn guard(&self, slot: usize, window: &Mapping, open: bool) {
        if self.at.guard.is_some()
            && let Ok(spans) = self.at.memory.extents(&self.at.board.0, slot)
        {
            spans.iter().for_each(|span| guard::protect(window, *span, open));
        }
    }

    /// Forgets one use of a slot; does nothing in a child that has never joined this arena.
    pub fn close_slot(&self, slot: usize) {
        if self.cookie != fork::cookie() {
            return;
        }
        let mut open = self.lock();
        let Some(count) = open.counts.get_mut(&slot) else { return };
        *count -= 1;
        if *count == 0 {
            open.counts.remove(&slot);
            open.fresh = 0;
            if let Some(window) = open.window.upgrade() {
                self.guard(slot, &window, false);
            }
            self.clear_mark(slot);
        }
    }

    pub fn status(&self) -> ArenaStatus {
        let control = &self.at.board.0;
        let mut status = ArenaStatus::default();
        for slot in 0..control.slots() {
            status.committed = status.committed.saturating_add(committed_of(control, slot, false));
            let word = control.slot(slot).load();
            if word.stage() != LIVE {
                continue;
            }
            let bytes = control.record(slot).bytes.load(Relaxed);
            status.arrays += 1;
            status.bytes = status.bytes.saturating_add(bytes);
            if self.at.board.is_awaited(slot) {
                status.unclaimed += 1;
                status.unclaimed_bytes = status.unclaimed_bytes.saturating_add(bytes);
            }
        }
        status.members = (0..control.members()).filter(|&k| self.at.board.tenancy(k).is_live()).count();
        status
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.cookie == fork::cookie() && self.alive.is_some() {
            self.at.board.depart(self.me);
        }
    }
}

//! Who holds an array: a set of members, each by a mark of its own.
//!
//! An array lies in a slot that is idle at the last stage, *live*, and belongs to nobody in the sense of
//! its word. Each member that has it open marks the slot; only that member clears its mark, or a sweep.
//! Whoever clears one tries to free the array: it takes the slot (*freeing* is held at `live`) and then
//! looks at the marks. Whoever opens marks the slot and then looks at its word. So of the two at least one
//! sees the other. An array that was pickled and not yet opened anywhere is kept without a mark.

use crate::board::{Board, Store};
use crate::sweep::Tenancy;
use crate::sync::{AtomicU16, AtomicU64, Ordering, crash_point, fence};
use crate::word::{Move, State};

/// The stage at which arrays live.
pub const LIVE: usize = 1;

/// A handle of the array was made.
pub const PICKLED: u64 = 1;
/// A handle of the array was opened.
pub const CLAIMED: u64 = 2;

/// The storage of a board whose slots hold arrays.
pub trait Marks: Store {
    /// A member's mark on a slot: 0, or its folded incarnation.
    fn mark(&self, member: usize, slot: usize) -> &AtomicU16;
    /// Whether handles of the slot's array were made and opened: [`PICKLED`], [`CLAIMED`].
    fn passed(&self, slot: usize) -> &AtomicU64;
    /// The number of the slot's array, which no other array has.
    fn serial(&self, slot: usize) -> &AtomicU64;
}

/// What a member marks with: never 0, different in consecutive incarnations.
fn mark(tenancy: Tenancy) -> u16 {
    (tenancy.incarnation() % u64::from(u16::MAX)) as u16 + 1
}

/// Clears the marks of a dead member; the sweeper tries to free the arrays afterwards.
///
/// A late sweeper must not clear those of the next owner of the index.
pub fn take_back(store: &impl Marks, member: usize, tenancy: Tenancy) {
    for slot in 0..store.slots() {
        let found = store.mark(member, slot);
        let _ = found.compare_exchange(mark(tenancy), 0, Ordering::AcqRel, Ordering::Relaxed);
    }
    // As in `clear_mark`: the last living holder may let go at the same time.
    fence(Ordering::SeqCst);
}

impl<S: Marks> Board<S> {
    /// Marks a slot. The caller holds it, or looks at its word afterwards.
    pub fn set_mark(&self, me: usize, tenancy: Tenancy, slot: usize) {
        self.0.mark(me, slot).store(mark(tenancy), Ordering::Release);
        crash_point!("mark.after");
        fence(Ordering::SeqCst);
    }

    /// Clears a mark; the caller tries to free the array afterwards.
    pub fn clear_mark(&self, me: usize, slot: usize) {
        self.0.mark(me, slot).store(0, Ordering::Release);
        crash_point!("unmark.after");
        // Of two who let go at once, one must see that the other has: it frees the slot.
        fence(Ordering::SeqCst);
    }

    fn is_marked(&self, slot: usize) -> bool {
        (0..self.0.members()).any(|member| self.0.mark(member, slot).load(Ordering::Acquire) != 0)
    }

    /// True for an array that waits to be opened for the first time.
    pub fn is_awaited(&self, slot: usize) -> bool {
        self.0.passed(slot).load(Ordering::Acquire) & (PICKLED | CLAIMED) == PICKLED
    }

    /// Frees a live slot that nobody marks and nobody awaits; true if this call did.
    pub fn free_unmarked(&self, me: usize, slot: usize) -> bool {
        loop {
            let word = self.0.slot(slot).load();
            if !word.is_idle_at(LIVE) || self.is_awaited(slot) || self.is_marked(slot) {
                return false;
            }
            let mv = Move::Take { me, stage: LIVE, write: true };
            let Some(freeing) = self.claim(slot, word, mv) else { continue };
            fence(Ordering::SeqCst);
            if self.is_marked(slot) || self.is_awaited(slot) {
                // Somebody has opened it in between, or has turned it back already.
                self.move_on(freeing, Move::PutBack { me });
                continue;
            }
            if self.move_on(freeing, Move::Release { me }) {
                return true;
            }
        }
    }

    /// Whether the array of that number lives in a slot that the caller has marked.
    pub fn is_live(&self, slot: usize, serial: u64) -> bool {
        loop {
            let word = self.0.slot(slot).load();
            match (word.state(), word.stage()) {
                (Some(State::Idle), LIVE) => return self.0.serial(slot).load(Ordering::Acquire) == serial,
                (Some(State::HeldWrite), LIVE) => {
                    // Being freed: turn it back. The freer finds out when its own move fails.
                    let Some(freer) = word.owner() else { return false };
                    self.claim(slot, word, Move::Sweep { owner: freer, clean: false });
                }
                _ => return false,
            }
        }
    }
}

//! Traps for stale pointers, in processes that are started with `ROPEWAY_DEBUG=1`.
//!
//! A framework that goes on using an address after it has said that it is done reads another batch
//! or spoils it, and nobody knows who did it. Under the switch a process has no access to the pages
//! of a slot from the end of its lease to its next one, so the culprit faults on the spot; what has
//! become free is filled with a byte that makes every float a NaN.
//!
//! Pages are guarded in each process for itself. Only whole pages can be: where neighbours of a
//! packed pool share one, their slots are poisoned and not guarded there. A forked child has private
//! pages of its own, without guards. Arrays of an arena are guarded, and not poisoned.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use ropeway_sys::mapping::Mapping;

use crate::attachment::Attachment;
use crate::board::Store;
use crate::commitment::committed_of;
use crate::field::{PAGE, round_up};
use crate::memory::Span;
use crate::sync::{Ordering, crash_point};
use crate::word::Move;

/// What freed slots are full of: as a float of any size it is a NaN.
const POISON: u8 = 0xff;
/// Private maps that stay out of use before their addresses are given to others.
const BURIED: usize = 64;

/// The traps of one pool in this process.
#[derive(Default)]
pub(crate) struct Guard {
    buried: Mutex<VecDeque<Mapping>>,
}

impl Guard {
    /// A guard if the environment asks for one.
    pub fn from_environment() -> Option<Guard> {
        let wish = std::env::var_os("ROPEWAY_DEBUG")?;
        (!wish.is_empty() && wish != "0").then(Guard::default)
    }

    /// Lets this process at the pages of a slot that it has just claimed.
    pub fn open(&self, at: &Attachment, slot: usize) {
        each(at, slot, true);
    }

    /// Takes the pages of a slot away that this process still holds, and has no export of.
    pub fn shut(&self, at: &Attachment, slot: usize) {
        each(at, slot, false);
    }

    /// Fills a slot that this process has just freed, unless somebody has taken it already.
    ///
    /// The slot is claimed for that like by any producer: while a reader holds it, its death must
    /// leave the content as it was.
    pub fn poison(&self, at: &Attachment, slot: usize) {
        let word = at.board.0.slot(slot).load();
        if !word.is_idle_at(0) || at.leaving.load(Ordering::Relaxed) {
            return;
        }
        let Some(claim) = at.board.claim(slot, word, Move::Acquire { me: at.me }) else { return };
        self.open(at, slot);
        for span in committed(at, slot) {
            at.memory.fill(span, POISON);
            crash_point!("poison.after");
        }
        self.shut(at, slot);
        at.board.move_on(claim, Move::Release { me: at.me });
    }

    /// Keeps the addresses of a private map from being used for anything else for a while.
    pub fn bury(&self, map: Mapping) {
        let _ = map.discard(0, map.len());
        let _ = map.protect(0, map.len(), false);
        let mut buried = self.buried.lock().unwrap_or_else(PoisonError::into_inner);
        buried.push_back(map);
        if buried.len() > BURIED {
            buried.pop_front();
        }
    }
}

/// Opens or shuts whatever belongs to a slot, in all maps that show it.
fn each(at: &Attachment, slot: usize, open: bool) {
    for span in stretches(at, slot) {
        at.memory.maps().for_each(|map| protect(map, span, open));
    }
}

/// Opens or shuts the whole pages of a stretch.
///
/// The kernel may refuse to cut a map into ever more pieces. A stretch that can't be shut stays
/// open then; if one can't be opened, all are.
pub(crate) fn protect(map: &Mapping, span: Span, open: bool) {
    let first = round_up(span.offset, PAGE).unwrap_or(u64::MAX);
    let end = span.end() & !(PAGE - 1);
    if first < end && map.protect(first as usize, (end - first) as usize, open).is_err() && open {
        let _ = map.protect(0, map.len(), true);
    }
}

/// The stretches of a slot that hold arrays.
fn stretches(at: &Attachment, slot: usize) -> Vec<Span> {
    match &at.regions {
        Some(regions) => {
            let fields = at.config().fields.iter().flatten();
            let span = |(bytes, base)| Span { offset: base + slot as u64 * bytes, len: bytes };
            fields.map(|field| field.bytes()).zip(regions.iter().copied()).map(span).collect()
        }
        None => at.memory.extents(&at.board.0, slot).unwrap_or_default(),
    }
}

/// As much of them as has memory; filling the rest would take some.
fn committed(at: &Attachment, slot: usize) -> Vec<Span> {
    let (control, mut spans) = (&at.board.0, stretches(at, slot));
    match at.regions {
        Some(_) => {
            let mut left = committed_of(control, slot, true);
            for span in &mut spans {
                span.len = span.len.min(left);
                left -= span.len;
            }
        }
        None => {
            for (span, extent) in spans.iter_mut().zip(&control.record(slot).extents) {
                span.len = span.len.min(extent.committed.load(Ordering::Relaxed));
            }
        }
    }
    spans
}

//! Where in the data segment the bytes of a slot lie.
//!
//! A slot of an arena pool owns up to 16 extents of the segment, each at least as long as all
//! before it. They come from a counter that only grows and are only ever appended, so live views
//! never move and nobody maps again; a kill wastes addresses, never memory. A packed pool has one
//! region for each field instead, and no extents.

use std::collections::{BTreeMap, HashMap};
use std::sync::{MutexGuard, PoisonError};

use ropeway_sys::mapping::Mapping;

use crate::board::Store;
use crate::commitment::committed_of;
use crate::config::{HUGE, PACKED_META};
use crate::error::{Error, Result};
use crate::field::{PAGE, round_up};
use crate::layout::{Control, EXTENTS};
use crate::memory::{Asking, Memory, Span};
use crate::sync::{Ordering, crash_point};

/// Bit of `settled`: the slot lies in huge pages, as far as the system had any.
const COLLAPSED: u64 = 1;

/// Extents of the slots that this process has looked at, and all of them by offset.
pub(crate) type Known = (HashMap<usize, Vec<Span>>, BTreeMap<u64, u64>);
/// Keeps others from looking at extents.
pub(crate) type KnownGuard<'a> = MutexGuard<'a, Known>;

/// Where the next array of a slot goes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    pub extent: usize,
    pub used: u64,
}

impl Memory {
    /// Locks the known extents.
    pub fn lock_known(&self) -> KnownGuard<'_> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The extents of a slot, each checked once: in bounds, in pages, over no other, never changed.
    pub fn extents(&self, control: &Control, slot: usize) -> Result<Vec<Span>> {
        let broken =
            |why: String| Err(Error::Incompatible(format!("{}: slot {slot}: {why}", control.config.label())));
        let mut known = self.lock_known();
        let (slots, all) = &mut *known;
        let spans = slots.entry(slot).or_default();
        for (i, extent) in control.record(slot).extents.iter().enumerate() {
            let found = Span {
                offset: extent.offset.load(Ordering::Relaxed),
                len: extent.len.load(Ordering::Acquire),
            };
            if let Some(span) = spans.get(i) {
                if *span != found {
                    return broken(format!("extent {i} has changed from {span:?} to {found:?}"));
                }
                continue;
            }
            if found.len == 0 {
                break;
            }
            let fits = self.all().contains(found.offset, found.len);
            if !fits || !found.offset.is_multiple_of(PAGE) || !found.len.is_multiple_of(PAGE) {
                return broken(format!(
                    "extent {i} is {found:?}, outside of {} bytes or not in pages",
                    self.all().len
                ));
            }
            let before = all.range(..found.end()).next_back();
            if before.is_some_and(|(&offset, &len)| offset + len > found.offset) {
                return broken(format!("extent {i}, {found:?}, overlaps that of another slot"));
            }
            all.insert(found.offset, found.len);
            spans.push(found);
        }
        Ok(spans.clone())
    }

    /// Appends an extent of at least `bytes` to a slot that the caller holds.
    fn append(&self, control: &Control, slot: usize, spans: &[Span], bytes: u64, what: &str) -> Result<Span> {
        let total: u64 = spans.iter().map(|s| s.len).sum();
        let align = if bytes.max(total) >= HUGE { HUGE } else { PAGE };
        let len = round_up(bytes.max(total), align)
            .ok_or_else(|| Error::OutOfMemory(format!("{what}: {bytes} bytes")))?;
        if spans.len() >= EXTENTS {
            return Err(Error::OutOfMemory(format!("{what}: slot {slot} has {EXTENTS} extents already")));
        }
        // The counter only grows, so it is beyond all that was given out before this look. One that was
        // garbled would give out what slots own already.
        let owned = match self.owned.load(Ordering::Acquire) {
            0 => owned(control),
            below => below,
        };
        let bump = &control.header().bump.0;
        let mut from = bump.load(Ordering::Relaxed);
        let offset = loop {
            let offset = round_up(from, align).unwrap_or(u64::MAX);
            let end = offset.checked_add(len).filter(|&end| end <= self.all().len).ok_or_else(|| {
                Error::OutOfMemory(format!(
                    "{what}: {len} bytes asked, but {} of the segment's {} bytes of address space are used up",
                    from.min(self.all().len),
                    self.all().len
                ))
            })?;
            match bump.compare_exchange(from, end, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break offset,
                Err(now) => from = now,
            }
        };
        crash_point!("extent.reserved");
        if offset < owned {
            return Err(Error::Incompatible(format!(
                "{what}: {len} bytes from {offset} were free, but slots own what lies below {owned}"
            )));
        }
        self.owned.fetch_max(offset + len, Ordering::AcqRel);
        let extent = &control.record(slot).extents[spans.len()];
        extent.committed.store(0, Ordering::Relaxed);
        extent.offset.store(offset, Ordering::Relaxed);
        extent.len.store(len, Ordering::Release);
        crash_point!("extent.recorded");
        Ok(Span { offset, len })
    }

    /// Finds room for `bytes` in a slot that the caller holds, behind `cursor`, and commits it.
    ///
    /// Returns where it lies and moves the cursor behind it.
    pub fn place(
        &self,
        control: &Control,
        slot: usize,
        cursor: &mut Cursor,
        bytes: u64,
        align: u64,
        asking: &mut Asking,
    ) -> Result<u64> {
        let mut spans = self.extents(control, slot)?;
        loop {
            while let Some(span) = spans.get(cursor.extent) {
                let at = round_up(span.offset + cursor.used, align).filter(|&at| span.contains(at, bytes));
                if let Some(at) = at {
                    let end = at + bytes - span.offset;
                    self.commit_extent(control, slot, cursor.extent, *span, end, asking)?;
                    cursor.used = end;
                    return Ok(at);
                }
                *cursor = Cursor { extent: cursor.extent + 1, used: 0 };
            }
            self.check_limit(control, bytes, asking.what)?;
            self.afford(control, bytes, 0, asking)?;
            self.append(control, slot, &spans, bytes.max(1), asking.what)?;
            spans = self.extents(control, slot)?;
        }
    }

    fn commit_extent(
        &self,
        control: &Control,
        slot: usize,
        index: usize,
        span: Span,
        end: u64,
        asking: &mut Asking,
    ) -> Result<()> {
        let committed = &control.record(slot).extents[index].committed;
        let from = committed.load(Ordering::Relaxed).min(span.len);
        let to = round_up(end, PAGE).unwrap_or(end).min(span.len);
        if to > from {
            self.commit(control, span.offset, from, to, asking, |done| {
                committed.store(done, Ordering::Relaxed)
            })?;
        }
        Ok(())
    }

    // ---- packed slots -----------------------------------------------------------------------

    /// Commits the memory of a packed slot that the caller holds, once in its life.
    pub fn settle_packed(
        &self,
        control: &Control,
        slot: usize,
        regions: &[u64],
        asking: &mut Asking,
    ) -> Result<()> {
        let record = control.record(slot);
        let fields = control.config.fields.as_deref().unwrap_or(&[]);
        let size = fields.iter().map(|f| f.bytes()).sum::<u64>();
        let mut before = 0;
        for (field, base) in fields.iter().zip(regions) {
            let bytes = field.bytes();
            let done = record.settled.load(Ordering::Relaxed).saturating_sub(before).min(bytes);
            if done < bytes {
                let offset = base + slot as u64 * bytes;
                self.commit(control, offset, done, bytes, asking, |done| {
                    record.settled.store(before + done, Ordering::Relaxed)
                })?;
            }
            before += bytes;
        }
        record.settled.store(size, Ordering::Relaxed);
        Ok(())
    }

    /// Where the metadata of a packed slot lies.
    pub fn packed_meta(regions: &[u64], slot: usize) -> Span {
        Span { offset: regions[regions.len() - 2] + slot as u64 * PACKED_META, len: PACKED_META }
    }

    /// Commits a page of metadata of a packed slot.
    pub fn commit_meta(&self, control: &Control, offset: u64, len: u64, asking: &mut Asking) -> Result<()> {
        self.commit(control, offset, 0, len, asking, |_| ())
    }

    /// Turns a large slot of an elastic pool, or of an arena, into huge pages, when it is filled for
    /// the second time at the same size. The caller holds the slot; `map` is of the whole segment.
    pub fn settle(&self, control: &Control, slot: usize, map: Option<&Mapping>) {
        let Some(map) = map.or(self.mapping()) else { return };
        let (record, size) = (control.record(slot), committed_of(control, slot, false));
        let seen = record.settled.load(Ordering::Relaxed);
        if size < HUGE || seen == size | COLLAPSED {
            return;
        }
        if seen != size {
            record.settled.store(size, Ordering::Relaxed);
            return;
        }
        for (extent, span) in record.extents.iter().zip(self.extents(control, slot).unwrap_or_default()) {
            let committed = extent.committed.load(Ordering::Relaxed).min(span.len);
            map.collapse(span.offset as usize, committed as usize);
        }
        record.settled.store(size | COLLAPSED, Ordering::Relaxed);
    }

    /// Gives the memory of an extent back to the system; its addresses stay the slot's.
    pub fn punch(&self, control: &Control, slot: usize) -> Result<()> {
        control.record(slot).settled.store(0, Ordering::Relaxed);
        for (i, span) in self.extents(control, slot)?.iter().enumerate() {
            control.record(slot).extents[i].committed.store(0, Ordering::Relaxed);
            crash_point!("punch.before");
            self.fd.punch(span.offset, span.len).map_err(Error::system("can't give memory back"))?;
        }
        Ok(())
    }
}

/// Where the last extent ends of which some slot says that it owns it.
fn owned(control: &Control) -> u64 {
    let extents = (0..control.slots()).flat_map(|slot| &control.record(slot).extents);
    let ends = extents.filter(|extent| extent.len.load(Ordering::Acquire) != 0).map(|extent| {
        extent.offset.load(Ordering::Relaxed).saturating_add(extent.len.load(Ordering::Relaxed))
    });
    ends.max().unwrap_or(0)
}

#![allow(unsafe_code)]
//! The bytes of the slots: one sparse data segment, mapped whole once.
//!
//! A slot of an arena pool owns up to 16 extents of the segment, each at least as long as all
//! before it. They come from a counter that only grows and are only ever appended, so live views
//! never move and nobody maps again; a kill wastes addresses, never memory. A packed pool has one
//! region for each field instead, and no extents. Memory is committed in steps before it is
//! promised, after a look at what the system and the cgroup have left.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::AtomicU64 as LocalU64;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ropeway_sys::fork::{self, Privatized};
use ropeway_sys::mapping::{Access, Mapping};
use ropeway_sys::memfd::Memfd;
use ropeway_sys::{limits, memory};

use crate::board::Store;
use crate::config::{Config, HUGE, PACKED_META};
use crate::error::{Error, Result};
use crate::field::{PAGE, round_up};
use crate::layout::{Control, EXTENTS};
use crate::sync::{Ordering, crash_point};

/// Memory is committed in steps of this many bytes, with a look around before each.
const STEP: u64 = 64 << 20;

/// A stretch of the data segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub offset: u64,
    pub len: u64,
}

impl Span {
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }

    pub fn contains(&self, offset: u64, len: u64) -> bool {
        offset >= self.offset && offset.checked_add(len).is_some_and(|end| end <= self.end())
    }
}

/// Who asks for memory, and what may interrupt it.
pub(crate) struct Asking<'a> {
    pub me: usize,
    pub what: &'a str,
    pub pulse: &'a mut dyn FnMut() -> bool,
}

/// Through which pages a reader looks at a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// Those that the writer wrote. Only the flag of an array keeps readers from writing.
    #[default]
    Shared,
    /// The same memory, where a write is a fault.
    ReadOnly,
    /// Private copies of what the reader writes to, gone with the lease. Nobody else sees them.
    Private,
}

/// A map, and what becomes of it in a forked child.
struct Map {
    mapping: Mapping,
    _private_in_child: Privatized,
}

/// Extents of the slots that this process has looked at, and all of them by offset.
type Known = (HashMap<usize, Vec<Span>>, BTreeMap<u64, u64>);
/// Keeps others from looking at extents.
pub(crate) type KnownGuard<'a> = MutexGuard<'a, Known>;

/// A process's view of the data segment.
pub(crate) struct Memory {
    pub fd: Memfd,
    len: u64,
    /// The whole segment, mapped as long as this process is in the pool; `None` for arenas, whose
    /// arrays keep a window themselves.
    map: Option<Map>,
    /// The whole segment again, to read only: made by the first who asks for it.
    read_only: OnceLock<Map>,
    known: Mutex<Known>,
    /// Bytes that may be committed before the next look at what is left.
    credit: LocalU64,
}

/// The length of a pool's data segment: what it needs when packed, otherwise as much address space
/// as is reasonable on this machine and within the limits of this process.
pub(crate) fn segment_len(config: &Config) -> u64 {
    if config.is_packed() {
        let end = config.regions().and_then(|r| r.last().copied()).unwrap_or(0);
        return round_up(end, HUGE).unwrap_or(end);
    }
    let wish = config.memory_limit.map_or(u64::MAX, |limit| limit.saturating_mul(4));
    let most = (memory::total() * 8).min(16 << 40);
    let limits =
        limits::file_size().unwrap_or(u64::MAX).min(limits::address_space().map_or(u64::MAX, |n| n / 4));
    round_up(wish.clamp(1 << 30, most).min(limits), HUGE)
        .map_or(HUGE, |n| n.min(limits.max(HUGE) & !(HUGE - 1)))
}

impl Memory {
    /// Makes the data segment of a pool.
    pub fn create(len: u64, what: &str, mapped: bool) -> Result<Memory> {
        let fd = Memfd::create("ropeway-data", len)
            .map_err(Error::system(format!("{what}: can't make a data segment of {len} bytes")))?;
        Memory::over(fd, len, what, mapped)
    }

    /// Maps the data segment that belongs to a control segment.
    pub fn open(fd: Memfd, config: &Config, mapped: bool) -> Result<Memory> {
        let what = config.label();
        let len = fd.len().map_err(Error::system(format!("{what}: can't read its data segment's length")))?;
        if (len, fd.inode()) != (config.data_len, config.data_inode) {
            return Err(Error::Incompatible(format!(
                "{what}: its data segment has {} bytes as inode {:?}, found {len} bytes as inode {:?}",
                config.data_len,
                config.data_inode,
                fd.inode()
            )));
        }
        if config.is_packed() && segment_len(config) > len {
            return Err(Error::Incompatible(format!(
                "{what}: its fields need {} bytes, its data segment has {len}",
                segment_len(config)
            )));
        }
        Memory::over(fd, len, &what, mapped)
    }

    fn over(fd: Memfd, len: u64, what: &str, mapped: bool) -> Result<Memory> {
        let map = mapped.then(|| Map::whole(&fd, len, Access::ReadWrite, what)).transpose()?;
        Ok(Memory {
            fd,
            len,
            map,
            read_only: OnceLock::new(),
            known: Mutex::default(),
            credit: LocalU64::new(0),
        })
    }

    /// Makes what looking through pages of that kind needs, once.
    pub fn prepare(&self, pages: Pages) -> Result<()> {
        if pages == Pages::ReadOnly && self.read_only.get().is_none() {
            // Of two threads that make one, the second drops its own.
            let _ = self.read_only.set(Map::whole(&self.fd, self.len, Access::ReadOnly, "a pool")?);
        }
        Ok(())
    }

    /// The address of a byte of the segment where it can only be read.
    pub fn at_read_only(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset <= self.len);
        let map = self.read_only.get().expect("`prepare` was called before the slot was taken");
        map.mapping.ptr().as_ptr().wrapping_add(offset as usize)
    }

    /// Maps a stretch of a held slot so that what is written there stays in this map; also the
    /// address in it of the stretch's first byte.
    pub fn private(
        &self,
        control: &Control,
        span: Span,
        me: usize,
        what: &str,
    ) -> Result<(Mapping, *mut u8)> {
        assert!(self.all().contains(span.offset, span.len));
        self.afford(control, span.len, &Asking { me, what, pulse: &mut || true })?;
        let first = span.offset & !(PAGE - 1);
        let before = span.offset - first;
        let map = Mapping::new(&self.fd, first, (before + span.len) as usize, Access::Private)
            .map_err(Error::system(format!("{what}: can't map {} bytes privately", span.len)))?;
        let start = map.ptr().as_ptr().wrapping_add(before as usize);
        Ok((map, start))
    }

    /// A map of the whole segment that lives as long as its user wants.
    pub fn window(&self, what: &str) -> Result<Mapping> {
        map_whole(&self.fd, self.len, Access::ReadWrite, what)
    }

    fn all(&self) -> Span {
        Span { offset: 0, len: self.len }
    }

    /// The address of a byte of the segment.
    pub fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset <= self.len);
        let map = self.map.as_ref().expect("a pool's memory is mapped");
        map.mapping.ptr().as_ptr().wrapping_add(offset as usize)
    }

    /// Bytes of memory that the segment has, holes left out; all there could be if nobody knows.
    pub fn allocated(&self) -> u64 {
        self.fd.allocated().unwrap_or(self.len)
    }

    /// Copies bytes out of the segment. The caller has checked the range.
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        assert!(self.all().contains(offset, len as u64));
        let mut bytes = vec![0; len];
        // SAFETY: the range was checked against the mapping just above; whoever writes there at the
        // same time breaks the protocol and garbles bytes, which every reader checks.
        unsafe { std::ptr::copy_nonoverlapping(self.at(offset), bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Copies bytes into the segment. The caller holds the slot and has checked the range.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        assert!(self.all().contains(offset, bytes.len() as u64));
        // SAFETY: as in `read`; the caller holds the slot to write.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset), bytes.len()) };
    }

    // ---- extents ----------------------------------------------------------------------------

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
                    self.len
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
        let bump = &control.header().bump.0;
        let mut from = bump.load(Ordering::Relaxed);
        let offset = loop {
            let offset = round_up(from, align).unwrap_or(u64::MAX);
            let end = offset.checked_add(len).filter(|&end| end <= self.len).ok_or_else(|| {
                Error::OutOfMemory(format!(
                    "{what}: {len} bytes asked, but {} of the segment's {} bytes of address space are used up",
                    from.min(self.len),
                    self.len
                ))
            })?;
            match bump.compare_exchange(from, end, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break offset,
                Err(now) => from = now,
            }
        };
        crash_point!("extent.reserved");
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
            self.afford(control, bytes, asking)?;
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

    // ---- committing -------------------------------------------------------------------------

    /// Commits `from..to` behind `offset` in steps and tells after each how far it is.
    fn commit(
        &self,
        control: &Control,
        offset: u64,
        from: u64,
        to: u64,
        asking: &mut Asking,
        done: impl Fn(u64),
    ) -> Result<()> {
        self.check_limit(control, to - from, asking.what)?;
        let announced = Announced::new(control, asking.me);
        let (mut at, mut longest) = (from, STEP);
        while at < to {
            announced.set(to - at);
            let step = (to - at).min(longest);
            self.afford(control, to - at, asking)?;
            match self.fd.commit(offset + at, step) {
                Ok(()) => {
                    at += step;
                    crash_point!("commit.before");
                    done(at);
                }
                // A signal has undone the step (older kernels let any do so). If they come faster than
                // a step takes, only shorter ones get anywhere.
                Err(e) if e.kind() == io::ErrorKind::Interrupted => longest = (step / 2).max(PAGE),
                Err(e) if matches!(e.raw_os_error(), Some(12 | 28)) => {
                    return Err(Error::OutOfMemory(format!(
                        "{}: the system refused {step} bytes: {e}",
                        asking.what
                    )));
                }
                Err(_) if !self.fd.is_open() => {
                    return Err(Error::Gone(format!(
                        "{}: {step} bytes asked, but this program has closed the pool's descriptors",
                        asking.what
                    )));
                }
                Err(e) => {
                    return Err(Error::system(format!("{}: can't commit {step} bytes", asking.what))(e));
                }
            }
            if (to - from > STEP || longest < STEP) && !(asking.pulse)() {
                return Err(Error::Interrupted(asking.what.to_owned()));
            }
        }
        Ok(())
    }

    /// Checks that `bytes` more are there, by the system, the cgroup and what others have announced.
    fn afford(&self, control: &Control, bytes: u64, asking: &Asking) -> Result<()> {
        let spend = |credit: u64| credit.checked_sub(bytes);
        if self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_ok() {
            return Ok(());
        }
        let available = memory::available();
        let others: u64 = (0..control.members())
            .filter(|&k| k != asking.me && control.member(k).load(Ordering::Relaxed) & 1 != 0)
            .map(|k| control.member_entry(k).announced.load(Ordering::Relaxed))
            .fold(0, u64::saturating_add);
        let reserve = (memory::total() / 64).min(256 << 20);
        let free = available.bytes.saturating_sub(others).saturating_sub(reserve);
        if bytes > free {
            return Err(Error::OutOfMemory(format!(
                "{}: {bytes} bytes asked, {free} available ({}; {others} announced by other processes, {reserve} kept free)",
                asking.what, available.source
            )));
        }
        self.credit.store(((free - bytes) / 8).min(STEP), Ordering::Relaxed);
        Ok(())
    }

    /// Checks that `bytes` more stay within the pool's own limit.
    fn check_limit(&self, control: &Control, bytes: u64, what: &str) -> Result<()> {
        let Some(limit) = control.config.memory_limit else { return Ok(()) };
        let used = committed(control);
        if used.checked_add(bytes).is_none_or(|all| all > limit) {
            return Err(Error::OutOfMemory(format!(
                "{what}: {bytes} bytes asked, but {used} of memory_limit={limit} bytes are in use"
            )));
        }
        Ok(())
    }

    /// Checks that a pool of this size could be filled at all, before any of it is promised.
    pub fn check_promise(&self, control: &Control, me: usize, bytes: u64) -> Result<()> {
        let what = control.config.label();
        if let Some(limit) = control.config.memory_limit.filter(|&limit| bytes > limit) {
            return Err(Error::OutOfMemory(format!(
                "{what}: its {} slots need {bytes} bytes, memory_limit is {limit}",
                control.config.slots
            )));
        }
        self.afford(control, bytes, &Asking { me, what: &what, pulse: &mut || true })
    }

    /// Asks for huge pages under a stretch of a held slot; does without where there are none.
    pub fn collapse(&self, span: Span) {
        if let Some(map) = &self.map {
            map.mapping.collapse(span.offset as usize, span.len as usize);
        }
    }

    /// Gives the memory of an extent back to the system; its addresses stay the slot's.
    pub fn punch(&self, control: &Control, slot: usize) -> Result<()> {
        for (i, span) in self.extents(control, slot)?.iter().enumerate() {
            control.record(slot).extents[i].committed.store(0, Ordering::Relaxed);
            crash_point!("punch.before");
            self.fd.punch(span.offset, span.len).map_err(Error::system("can't give memory back"))?;
        }
        Ok(())
    }
}

impl Map {
    fn whole(fd: &Memfd, len: u64, access: Access, what: &str) -> Result<Map> {
        let mapping = map_whole(fd, len, access, what)?;
        let private = fork::privatize_in_child(&mapping, fd, 0)
            .map_err(Error::system(format!("{what}: can't protect it from forked children")))?;
        Ok(Map { mapping, _private_in_child: private })
    }
}

fn map_whole(fd: &Memfd, len: u64, access: Access, what: &str) -> Result<Mapping> {
    Mapping::new(fd, 0, len as usize, access).map_err(|e| {
        let limit = limits::address_space().map_or("no RLIMIT_AS".into(), |n| format!("RLIMIT_AS is {n}"));
        Error::OutOfMemory(format!("{what}: can't map its data segment of {len} bytes ({limit}): {e}"))
    })
}

/// Where the next array of a slot goes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    pub extent: usize,
    pub used: u64,
}

/// Bytes that all slots of a pool have committed.
pub(crate) fn committed(control: &Control) -> u64 {
    let packed = control.config.is_packed();
    (0..control.slots()).map(|slot| committed_of(control, slot, packed)).fold(0, u64::saturating_add)
}

/// Bytes that one slot has committed.
pub(crate) fn committed_of(control: &Control, slot: usize, packed: bool) -> u64 {
    let record = control.record(slot);
    if packed {
        return record.settled.load(Ordering::Relaxed);
    }
    let extents = record.extents.iter().take_while(|e| e.len.load(Ordering::Relaxed) != 0);
    extents.map(|e| e.committed.load(Ordering::Relaxed)).fold(0, u64::saturating_add)
}

/// What this member is about to commit, until dropped.
struct Announced<'a>(&'a Control, usize);

impl<'a> Announced<'a> {
    fn new(control: &'a Control, me: usize) -> Announced<'a> {
        Announced(control, me)
    }

    fn set(&self, bytes: u64) {
        self.0.member_entry(self.1).announced.store(bytes, Ordering::Relaxed);
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.set(0);
    }
}

#![allow(unsafe_code)]
//! Where everything lies in a control segment, and the only casts from its bytes.
//!
//! The control segment is a sealed memfd. Its first page has the identity and the counters; then
//! follow the configuration (written once, before anybody else sees the segment), the members, the
//! slots' words and the slots' records. Everything that changes is an atomic, so a reference to it
//! is sound whatever other processes write.

use std::mem::{offset_of, size_of};
use std::time::Duration;

use ropeway_sys::liveness;
use ropeway_sys::mapping::{Access, Mapping};
use ropeway_sys::memfd::Memfd;
use ropeway_sys::{futex, process};

use crate::board::{Slot, Store};
use crate::config::{Config, MAX_SLOTS};
use crate::error::{Error, Result};
use crate::marks::{self, Marks};
use crate::memory::unmapped;
use crate::sweep::Tenancy;
use crate::sync::{AtomicU16, AtomicU32, AtomicU64, Ordering, bare};
use crate::word::{MAX_MEMBERS, MAX_STAGES, Rules};

const MAGIC: u64 = u64::from_le_bytes(*b"ropeway\0");
/// The version of this layout; others are refused.
pub const VERSION: u32 = 1;

/// One value alone on its cache line.
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub T);

/// The first page.
#[repr(C)]
pub(crate) struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    config_len: AtomicU32,
    id: [AtomicU64; 2],
    config_sum: AtomicU64,
    pub phase: Line<AtomicU32>,
    /// Slots that scans look at.
    pub slots: Line<AtomicU32>,
    /// The next free byte of the data segment.
    pub bump: Line<AtomicU64>,
    /// Member indices that have ever been used.
    pub members: Line<AtomicU32>,
    /// Members that died without leaving.
    pub deaths: Line<AtomicU64>,
    /// Process id of the last of them, for messages.
    pub last_dead: Line<AtomicU64>,
    /// The creator's index + 1 (low 16 bits) and incarnation.
    pub creator: Line<AtomicU64>,
    pub stages: [Line<Stage>; MAX_STAGES],
}

/// What the publishers to a stage share, on one line: each of them looks at both.
#[repr(C)]
pub(crate) struct Stage {
    /// The event count on which takers sleep.
    event: AtomicU32,
    /// Slots that were published to the stage.
    tickets: AtomicU64,
}

impl Header {
    fn id(&self) -> [u8; 16] {
        let half = |i: usize| u128::from(self.id[i].load(Ordering::Relaxed));
        (half(0) | half(1) << 64).to_le_bytes()
    }
}

/// What a member says of itself. Only `word` decides anything; the rest is for messages and routes.
#[repr(C, align(64))]
pub(crate) struct Member {
    pub word: AtomicU64,
    pub pid: AtomicU64,
    /// Descriptor numbers of control (low half) and data segment in that process.
    pub descriptors: AtomicU64,
    /// Bytes that the member is about to commit.
    pub announced: AtomicU64,
}

/// The most extents that a slot can own.
pub(crate) const EXTENTS: usize = 16;

/// One stretch of the data segment that belongs to a slot for good.
#[repr(C)]
pub(crate) struct Extent {
    pub offset: AtomicU64,
    pub len: AtomicU64,
    /// Bytes from the beginning whose memory is there.
    pub committed: AtomicU64,
}

/// What a slot owns and where its description lies. Written by the holder only.
#[repr(C, align(64))]
pub(crate) struct Record {
    pub extents: [Extent; EXTENTS],
    /// Where the blob (arrays, metadata) of the slot lies in the data segment, plus 1; 0 is none.
    /// One store puts a new blob in place of the old one.
    pub blob: AtomicU64,
    /// Packed slots: bytes whose memory is there. Others: bytes that it had last, lowest bit: in huge pages.
    pub settled: AtomicU64,
    /// Times that the slot was filled to the size in `settled`.
    pub fills: AtomicU64,
    /// Arena slots: number of the array that lies there, unique in the arena.
    pub serial: AtomicU64,
    /// Arena slots: bytes of that array.
    pub bytes: AtomicU64,
    /// Arena slots: whether a handle was made, and whether any process has opened one.
    pub passed: AtomicU64,
}

const CONFIG: usize = 4096;
const CONFIG_MAX: usize = MEMBERS - CONFIG;
const MEMBERS: usize = 1 << 18;
const SLOTS: usize = MEMBERS + MAX_MEMBERS.next_power_of_two() * size_of::<Member>();
const RECORDS: usize = SLOTS + MAX_SLOTS * size_of::<Slot>();
/// Length of a pool's control segment.
pub(crate) const POOL_END: usize = RECORDS + MAX_SLOTS * size_of::<Record>();

/// Length of an arena's control segment: behind all that a pool has, a row of marks for each member.
pub(crate) const ARENA_END: usize =
    POOL_END + MAX_MEMBERS.next_power_of_two() * MAX_SLOTS * size_of::<AtomicU16>();

const _: () = {
    assert!(size_of::<Header>() <= CONFIG);
    assert!(offset_of!(Header, phase) == 64 && offset_of!(Header, stages) == 512);
    assert!(size_of::<Member>() == 64 && offset_of!(Member, announced) == 24);
    assert!(size_of::<Slot>() == 64 && offset_of!(Slot, thread) == 48);
    assert!(size_of::<Extent>() == 24 && size_of::<Record>() == 448 && offset_of!(Record, blob) == 384);
    assert!(
        MEMBERS.is_multiple_of(4096)
            && SLOTS.is_multiple_of(4096)
            && RECORDS.is_multiple_of(4096)
            && POOL_END.is_multiple_of(4096)
    );
};

/// A mapped, checked control segment.
pub(crate) struct Control {
    pub fd: Memfd,
    map: Mapping,
    pub config: Config,
    /// See [`process::clock_offset_ns`].
    clock_offset: i64,
}

impl Control {
    /// Makes a control segment for a pool.
    pub fn create(config: Config, len: usize) -> Result<Control> {
        let refused = || Error::system(format!("{}: can't make its control segment", config.label()));
        let fd = Memfd::create("ropeway-control", len as u64).map_err(refused())?;
        let what = format!("{}: its control segment", config.label());
        let map = Mapping::new(&fd, 0, len, Access::ReadWrite).map_err(unmapped(what, len as u64))?;
        let bytes = config.write();
        if bytes.len() > CONFIG_MAX {
            return Err(Error::Invalid(format!(
                "{}: its fields and stages take {} bytes to describe, at most {CONFIG_MAX} fit",
                config.label(),
                bytes.len()
            )));
        }
        let control = Control { fd, map, config, clock_offset: process::clock_offset_ns() };
        // SAFETY: the range lies in the mapping (checked above) and nobody else knows the segment yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), control.at(CONFIG), bytes.len()) };
        let header = control.header();
        let id = control.config.id;
        header.config_len.store(bytes.len() as u32, Ordering::Relaxed);
        header.config_sum.store(crate::wire::checksum(&bytes), Ordering::Relaxed);
        header.id[0].store(u64::from_le_bytes(id[..8].try_into().expect("8 of 16 bytes")), Ordering::Relaxed);
        header.id[1].store(u64::from_le_bytes(id[8..].try_into().expect("8 of 16 bytes")), Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(control)
    }

    /// The id that a segment bears, at the same place in every version; `None` for other files.
    pub fn id_of(fd: &Memfd) -> Result<Option<[u8; 16]>> {
        let refused = || Error::system("can't map a control segment's first page");
        if fd.len().map_err(refused())? < CONFIG as u64 {
            return Ok(None);
        }
        let page = Mapping::new(fd, 0, CONFIG, Access::ReadOnly).map_err(refused())?;
        // SAFETY: a `Header` is all atomics and fits into the page, which is inside the file.
        Ok(Some(unsafe { &*page.ptr().as_ptr().cast::<Header>() }.id()))
    }

    /// Maps and checks a segment that somebody else has made.
    pub fn open(fd: Memfd, len: usize) -> Result<Control> {
        let refused = || Error::system("can't map a pool's control segment");
        let found = fd.len().map_err(refused())?;
        if found != len as u64 {
            return Err(Error::Incompatible(format!(
                "the pool's control segment: {len} bytes expected, {found} found"
            )));
        }
        let what = "the pool's control segment".to_owned();
        let map = Mapping::new(&fd, 0, len, Access::ReadWrite).map_err(unmapped(what, found))?;
        let config = read_config(&map)?;
        Ok(Control { fd, map, config, clock_offset: process::clock_offset_ns() })
    }

    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.map.len());
        self.map.ptr().as_ptr().wrapping_add(offset)
    }

    /// A reference to something at a fixed place of the segment.
    ///
    /// # Safety
    /// `T` consists of atomics, and `offset..offset + size_of::<T>()` lies in the segment and is
    /// aligned for `T`.
    pub unsafe fn get<T>(&self, offset: usize) -> &T {
        debug_assert!(offset + size_of::<T>() <= self.map.len());
        // SAFETY: the caller answers for range and type; the mapping lives as long as `self`.
        unsafe { &*self.at(offset).cast::<T>() }
    }

    pub fn header(&self) -> &Header {
        // SAFETY: the header is at the beginning; every segment is at least POOL_END long.
        unsafe { self.get(0) }
    }

    pub fn member_entry(&self, index: usize) -> &Member {
        assert!(index < MAX_MEMBERS, "member {index}");
        // SAFETY: the index was checked; the members lie below SLOTS.
        unsafe { self.get(MEMBERS + index * size_of::<Member>()) }
    }

    pub fn record(&self, index: usize) -> &Record {
        assert!(index < MAX_SLOTS, "slot {index}");
        // SAFETY: the index was checked; the records lie below POOL_END.
        unsafe { self.get(RECORDS + index * size_of::<Record>()) }
    }

    /// True for the control segment of an arena.
    pub fn has_marks(&self) -> bool {
        self.map.len() == ARENA_END
    }

    /// How many members have died without leaving.
    pub fn deaths(&self) -> u64 {
        self.header().deaths.0.load(Ordering::Acquire)
    }

    /// The byte whose lock says that the member's address space exists.
    pub fn lock_byte(member: usize) -> u64 {
        (1 << 40) + member as u64
    }
}

impl Store for Control {
    fn rules(&self) -> &Rules {
        &self.config.rules
    }

    fn slots(&self) -> usize {
        (self.header().slots.0.load(Ordering::Acquire) as usize).min(self.config.max_slots)
    }

    #[inline]
    fn slot(&self, index: usize) -> &Slot {
        assert!(index < MAX_SLOTS, "slot {index}");
        // SAFETY: the index was checked; the slots lie below RECORDS.
        unsafe { self.get(SLOTS + index * size_of::<Slot>()) }
    }

    fn extend_to(&self, index: usize) {
        self.header().slots.0.fetch_max(index as u32 + 1, Ordering::AcqRel);
    }

    fn event(&self, stage: usize) -> &AtomicU32 {
        &self.header().stages[stage].0.event
    }

    fn phase(&self) -> &AtomicU32 {
        &self.header().phase.0
    }

    fn tickets(&self, stage: usize) -> &AtomicU64 {
        &self.header().stages[stage].0.tickets
    }

    fn members(&self) -> usize {
        (self.header().members.0.load(Ordering::Acquire) as usize).min(MAX_MEMBERS)
    }

    fn member(&self, index: usize) -> &AtomicU64 {
        &self.member_entry(index).word
    }

    fn is_alive(&self, member: usize) -> bool {
        // A descriptor that the program has closed can't ask; then others will.
        liveness::is_held(&self.fd, Control::lock_byte(member)).unwrap_or(true)
    }

    fn pid(&self, member: usize) -> u64 {
        self.member_entry(member).pid.load(Ordering::Relaxed)
    }

    fn take_back_more(&self, member: usize, tenancy: Tenancy) {
        if self.has_marks() {
            marks::take_back(self, member, tenancy);
        }
    }

    fn count_death(&self, tenancy: Tenancy) {
        if !tenancy.is_clean() {
            self.header().deaths.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn note_death(&self, member: usize, tenancy: Tenancy) {
        let header = self.header();
        if !tenancy.is_clean() {
            header.last_dead.0.store(self.pid(member), Ordering::Relaxed);
        }
        if header.creator.0.load(Ordering::Acquire) == creator_tag(member, tenancy) {
            let phase =
                if tenancy.is_clean() { crate::board::Phase::Closed } else { crate::board::Phase::Orphaned };
            // The sweep that calls this advances every stage afterwards.
            header.phase.0.fetch_max(phase as u32, Ordering::AcqRel);
        }
    }

    fn sleep(&self, event: &AtomicU32, value: u32, slice: Duration) -> bool {
        matches!(futex::wait(bare(event), value, slice), futex::Woken::Woken | futex::Woken::Changed)
    }

    fn wake(&self, event: &AtomicU32) {
        futex::wake_all(bare(event));
    }

    fn now(&self) -> u64 {
        // By the machine's clock, as others compare it with theirs.
        process::monotonic_coarse_ns().wrapping_add_signed(self.clock_offset.wrapping_neg())
    }

    fn thread(&self) -> u64 {
        process::thread_id()
    }

    fn waiting_limit(&self) -> Option<usize> {
        self.config.waiting_limit
    }
}

impl Marks for Control {
    fn mark(&self, member: usize, slot: usize) -> &AtomicU16 {
        assert!(self.has_marks() && member < MAX_MEMBERS && slot < MAX_SLOTS, "mark {member}, {slot}");
        // SAFETY: the indices were checked; the marks lie between POOL_END and ARENA_END.
        unsafe { self.get(POOL_END + (member * MAX_SLOTS + slot) * size_of::<AtomicU16>()) }
    }

    fn passed(&self, slot: usize) -> &AtomicU64 {
        &self.record(slot).passed
    }

    fn serial(&self, slot: usize) -> &AtomicU64 {
        &self.record(slot).serial
    }
}

/// Copies the configuration once and checks it.
fn read_config(map: &Mapping) -> Result<Config> {
    let wrong = |what: &str, expected: u64, found: u64| {
        Err(Error::Incompatible(format!(
            "the pool's control segment: {what} {expected:#x} expected, {found:#x} found"
        )))
    };
    // SAFETY: `open` has checked that the mapping is at least POOL_END long; Header is all atomics.
    let header = unsafe { &*map.ptr().as_ptr().cast::<Header>() };
    let (magic, version) = (header.magic.load(Ordering::Acquire), header.version.load(Ordering::Relaxed));
    if magic != MAGIC {
        return wrong("magic", MAGIC, magic);
    }
    if version != VERSION {
        return wrong("version", VERSION.into(), version.into());
    }
    let len = header.config_len.load(Ordering::Relaxed) as usize;
    if len > CONFIG_MAX {
        return wrong("at most this many bytes of configuration", CONFIG_MAX as u64, len as u64);
    }
    let mut bytes = vec![0; len];
    // SAFETY: CONFIG + CONFIG_MAX lies in the mapping, whose length `open` has checked; a
    // concurrent write by a broken peer can only garble bytes, which are checked below.
    unsafe {
        std::ptr::copy_nonoverlapping(map.ptr().as_ptr().wrapping_add(CONFIG), bytes.as_mut_ptr(), len)
    };
    let (sum, found) = (header.config_sum.load(Ordering::Relaxed), crate::wire::checksum(&bytes));
    if sum != found {
        return wrong("checksum of the configuration", sum, found);
    }
    Config::read(&bytes, header.id())
}

/// How the header names a pool's creator.
pub(crate) fn creator_tag(member: usize, tenancy: Tenancy) -> u64 {
    tenancy.incarnation() << 16 | (member as u64 + 1)
}

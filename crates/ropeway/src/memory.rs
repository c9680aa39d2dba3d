#![allow(unsafe_code)]
//! The bytes of the slots: one sparse data segment, mapped whole once.

use std::io;
use std::sync::atomic::AtomicU64 as LocalU64;
use std::sync::{Mutex, OnceLock};

use ropeway_sys::fork::{self, Privatized};
use ropeway_sys::mapping::{Access, Mapping};
use ropeway_sys::memfd::Memfd;
use ropeway_sys::{limits, memory};

use crate::config::{Config, HUGE};
use crate::error::{Error, Result};
use crate::extents::Known;
use crate::field::{PAGE, round_up};
use crate::layout::Control;

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

/// A process's view of the data segment.
pub(crate) struct Memory {
    pub fd: Memfd,
    len: u64,
    /// The whole segment, mapped as long as this process is in the pool; `None` for arenas, whose
    /// arrays keep a window themselves.
    map: Option<Map>,
    /// The whole segment again, to read only: made by the first who asks for it.
    read_only: OnceLock<Map>,
    pub(crate) known: Mutex<Known>,
    /// Where the last extent ends that this process knows of, once it has appended one.
    pub(crate) owned: LocalU64,
    /// Bytes that may be committed before the next look at what is left.
    pub(crate) credit: LocalU64,
}

/// The length of a pool's data segment: what it needs when packed, otherwise as much address space
/// as is reasonable on this machine and within the limits of this process.
pub(crate) fn segment_len(config: &Config) -> u64 {
    if config.is_packed() {
        let end = config.regions().and_then(|r| r.last().copied()).unwrap_or(0);
        return round_up(end, HUGE).unwrap_or(end);
    }
    let wish = config.memory_limit.map_or(u64::MAX, |limit| limit.saturating_mul(4));
    let most = (memory::total() * 8).clamp(1 << 30, 16 << 40);
    let limits =
        limits::file_size().unwrap_or(u64::MAX).min(limits::address_space().map_or(u64::MAX, |n| n / 4));
    round_up(wish.clamp(1 << 30, most).min(limits), HUGE)
        .map_or(HUGE, |n| n.min(limits & !(HUGE - 1)).max(HUGE))
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
            owned: LocalU64::new(0),
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
        self.afford(control, span.len, 0, &Asking { me, what, pulse: &mut || true })?;
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

    /// All of the segment.
    pub fn all(&self) -> Span {
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

    /// The maps of the whole segment through which this process looks at slots.
    pub fn maps(&self) -> impl Iterator<Item = &Mapping> {
        self.map.iter().chain(self.read_only.get()).map(|map| &map.mapping)
    }

    /// Fills a stretch of a slot that the caller holds to write.
    pub fn fill(&self, span: Span, byte: u8) {
        assert!(self.all().contains(span.offset, span.len));
        // SAFETY: as in `write`.
        unsafe { std::ptr::write_bytes(self.at(span.offset), byte, span.len as usize) };
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

    /// The map of the whole segment, where this process has one.
    pub fn mapping(&self) -> Option<&Mapping> {
        self.map.as_ref().map(|map| &map.mapping)
    }

    /// Asks for huge pages under a stretch of a held slot; does without where there are none.
    pub fn collapse(&self, span: Span) {
        if let Some(map) = &self.map {
            map.mapping.collapse(span.offset as usize, span.len as usize);
        }
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
    Mapping::new(fd, 0, len as usize, access).map_err(unmapped(format!("{what}: its data segment"), len))
}

/// What Linux says when a process may have no more addresses.
const ENOMEM: i32 = 12;

/// Why a segment of `len` bytes can't be mapped.
pub(crate) fn unmapped(what: String, len: u64) -> impl FnOnce(io::Error) -> Error {
    move |error| match (error.raw_os_error(), limits::address_space()) {
        (Some(ENOMEM), Some(limit)) => Error::OutOfMemory(format!(
            "{what} can't be mapped: {len} bytes of addresses asked, RLIMIT_AS is {limit} in all: raise it, \
             or set it before the segment is made"
        )),
        (Some(ENOMEM), None) => {
            Error::OutOfMemory(format!("{what} can't be mapped: {len} bytes asked: {error}"))
        }
        _ => Error::system(format!("{what} of {len} bytes can't be mapped"))(error),
    }
}

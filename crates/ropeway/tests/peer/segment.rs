//! What lies below a pool: its segments, as a hostile member can open and change them.

use ropeway::Pool;
use ropeway_sys::mapping::{Access, Mapping};
use ropeway_sys::memfd::Memfd;

/// Opens the control segment (first) and the data segment of a pool, as a hostile member can.
pub fn segments(pool: &Pool) -> (Memfd, Memfd) {
    segments_of(&pool.handle().unwrap().to_bytes())
}

/// Does the same by the bytes of a handle.
pub fn segments_of(handle: &[u8]) -> (Memfd, Memfd) {
    let number = |at: usize| u64::from_le_bytes(handle[at..at + 8].try_into().unwrap());
    let open = |fd: u64| Memfd::open_peer(number(32) as u32, fd as i32).unwrap();
    (open(number(40)), open(number(48)))
}

/// Writes whatever it likes into a segment.
pub struct Scribbler(Mapping);

impl Scribbler {
    pub fn over(segment: &Memfd) -> Scribbler {
        Scribbler(Mapping::new(segment, 0, segment.len().unwrap() as usize, Access::ReadWrite).unwrap())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.0.len());
        // SAFETY: the range is inside the map; others that write there garble bytes.
        unsafe { std::slice::from_raw_parts(self.0.ptr().as_ptr().add(at), len).to_vec() }
    }

    pub fn read_number(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.read(at, 8).try_into().unwrap())
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.0.len());
        // SAFETY: the range is inside the map; that it hurts others is the point.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.ptr().as_ptr().add(at), bytes.len()) };
    }

    pub fn write_number(&self, at: usize, n: u64) {
        self.write(at, &n.to_le_bytes());
    }
}

/// A slot's record in the control segment: what it owns, and where its description lies.
pub struct Record(Scribbler, usize);

/// Opens the record of a slot; the offsets are those of `layout.rs`.
pub fn record(control: &Memfd, slot: usize) -> Record {
    const RECORDS: usize = (1 << 18) + 4096 * 64 + 65_536 * 64;
    Record(Scribbler::over(control), RECORDS + slot * 448)
}

impl Record {
    pub fn extent(&self, index: usize) -> (u64, u64) {
        (self.0.read_number(self.1 + 24 * index), self.0.read_number(self.1 + 24 * index + 8))
    }

    pub fn set_extent(&self, index: usize, offset: u64, len: u64) {
        self.0.write_number(self.1 + 24 * index, offset);
        self.0.write_number(self.1 + 24 * index + 8, len);
    }

    pub fn blob(&self) -> u64 {
        self.0.read_number(self.1 + 384)
    }

    pub fn set_blob(&self, at: u64) {
        self.0.write_number(self.1 + 384, at);
    }

    pub fn bytes(&self) -> u64 {
        self.0.read_number(self.1 + 416)
    }

    pub fn set_bytes(&self, n: u64) {
        self.0.write_number(self.1 + 416, n);
    }
}

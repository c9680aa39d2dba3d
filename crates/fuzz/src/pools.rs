//! Pools, what lies below them, and all that can be done with one.

use std::time::Duration;

use ropeway::{Error, Field, Handle, Options, Pool, Result, Wait};
use ropeway_sys::mapping::{Access, Mapping};
use ropeway_sys::memfd::Memfd;

/// A field of bytes.
pub(crate) fn field(name: &str, len: u64) -> Field {
    Field::new(name, "|u1", 1, &[len]).expect("a plain field")
}

/// A pool whose slots are laid out by their holders, or one of packed slots.
pub(crate) fn options(packed: bool, slots: usize) -> Options {
    let options = Options { max_slots: slots + 2, ..Options::new(slots).stages(["fill", "change", "use"]) };
    if packed { options.fields(vec![field("a", 4096), field("b", 64)]) } else { options }
}

/// A segment of a pool, mapped by one who doesn't follow the protocol.
pub(crate) struct Segment(Mapping);

impl Segment {
    pub fn over(file: &Memfd) -> Segment {
        Segment::try_over(file).expect("a segment can be mapped")
    }

    pub fn try_over(file: &Memfd) -> Option<Segment> {
        Mapping::new(file, 0, file.len().ok()? as usize, Access::ReadWrite).ok().map(Segment)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.0.len());
        // SAFETY: the range is inside the map, as was just checked; that it hurts others is the point.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.ptr().as_ptr().add(at), bytes.len()) };
    }

    pub fn write_number(&self, at: usize, n: u64) {
        self.write(at, &n.to_le_bytes());
    }

    pub fn read_number(&self, at: usize) -> u64 {
        assert!(at + 8 <= self.0.len());
        // SAFETY: the range is inside the map, and any bytes are a number.
        unsafe { self.0.ptr().as_ptr().add(at).cast::<u64>().read_unaligned() }
    }
}

/// The control and the data segment of a pool.
pub(crate) fn segments(pool: &Pool) -> (Memfd, Memfd) {
    let handle = pool.handle().expect("an open pool has a handle").to_bytes();
    let number = |at: usize| u64::from_le_bytes(handle[at..at + 8].try_into().expect("8 bytes"));
    let open = |fd: u64| Memfd::open_peer(number(32) as u32, fd as i32).expect("an open pool's file");
    (open(number(40)), open(number(48)))
}

/// Where a slot's record lies in a control segment; the offsets are those of `layout.rs`.
pub(crate) fn record(slot: usize) -> usize {
    (1 << 18) + 4096 * 64 + 65_536 * 64 + slot * 448
}

/// Reads and writes each byte of all arrays that a slot says it has.
fn look(fields: Vec<Field>, export: impl Fn(&str) -> Result<ropeway::Export>, writes: bool) -> Result<()> {
    for field in fields {
        let view = export(&field.name)?;
        assert_eq!(view.len() as u64, field.bytes());
        assert_eq!(view.as_ptr().addr() % 64, 0);
        // SAFETY: a live view of a held slot; whatever bytes are there are bytes.
        unsafe {
            let bytes = std::slice::from_raw_parts(view.as_ptr(), view.len());
            std::hint::black_box(bytes.iter().max());
            if writes {
                view.as_ptr().write_bytes(7, view.len());
            }
        }
    }
    Ok(())
}

/// Acquires a slot, fills it, publishes it.
pub(crate) fn send(pool: &Pool, len: u64) -> Result<()> {
    let slot = pool.try_acquire()?;
    if pool.fields().is_none() {
        slot.add(field("a", len), &mut || true)?;
    }
    slot.set_meta(b"meta")?;
    look(slot.fields()?, |name| Ok(slot.export(name)?.0), true)?;
    slot.publish()
}

/// Takes a slot at the middle stage, changes it, sends it on.
pub(crate) fn change(pool: &Pool) -> Result<()> {
    let mut pulse = || true;
    let mut wait = Wait::new(Some(Duration::ZERO), &mut pulse);
    let slot = pool.take_mut_with("change", None, &mut wait)?;
    slot.meta()?;
    look(slot.fields()?, |name| Ok(slot.export(name)?.0), true)?;
    slot.set_meta(b"changed")?;
    slot.publish()
}

/// Takes a slot and reads all of it.
pub(crate) fn receive(pool: &Pool) -> Result<()> {
    let slot = pool.try_take()?;
    slot.meta()?;
    look(slot.fields()?, |name| Ok(slot.export(name)?.0), false)
}

/// Does whatever only looks.
pub(crate) fn observe(pool: &Pool) -> Result<()> {
    let status = pool.status();
    assert!(!format!("{status:?}").is_empty());
    pool.sweep()?;
    pool.is_full()?;
    pool.waiting("use")?;
    let handle = pool.handle()?;
    assert_eq!(Handle::from_bytes(&handle.to_bytes())?, handle, "a handle reads back");
    Ok(())
}

/// Checks that an error is one of those that a broken peer may cause.
pub(crate) fn expected(done: Result<()>) {
    if let Err(error) = done {
        assert!(!matches!(error, Error::Interrupted(_)), "{error:?}");
    }
}

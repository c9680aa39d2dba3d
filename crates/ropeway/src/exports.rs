//! What keeps the slots of a pool where they are, in this process: for people who ask.
//!
//! The lease decides by its own word; this is a look at it from outside.

use std::fmt::{self, Display, Formatter};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ropeway_sys::process::monotonic_coarse_ns;

use crate::config::MAX_SLOTS;
use crate::field::Field;

/// In which way somebody has the memory of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A base array or buffer; its views count with it.
    Array,
    /// A DLPack capsule, or the tensor that another framework made of it.
    Capsule,
    /// An array of the Arrow C data interface.
    Arrow,
    /// An address that was given away with a promise to say when it is done with.
    Pointer,
}

impl Kind {
    /// All there are, in the order of their numbers.
    pub const ALL: [Kind; 4] = [Kind::Array, Kind::Capsule, Kind::Arrow, Kind::Pointer];

    /// What messages call one of them.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Array => "array",
            Kind::Capsule => "DLPack capsule",
            Kind::Arrow => "Arrow array",
            Kind::Pointer => "raw pointer",
        }
    }
}

/// Exports of one kind of one array of one slot that live in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportStatus {
    /// The array's name.
    pub array: String,
    /// The kind.
    pub kind: Kind,
    /// How many.
    pub count: u32,
    /// For how long there has been one without a break.
    pub age: Duration,
}

/// Exports of a slot, in words: `image: 2 arrays, 1 DLPack capsule; label: 1 array`.
pub(crate) struct Listed(pub Vec<ExportStatus>);

impl Display for Listed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (i, status) in self.0.iter().enumerate() {
            match i.checked_sub(1).map(|before| &self.0[before].array) {
                None => write!(f, "{}: ", status.array)?,
                Some(before) if *before != status.array => write!(f, "; {}: ", status.array)?,
                Some(_) => f.write_str(", ")?,
            }
            let plural = if status.count == 1 { "" } else { "s" };
            write!(f, "{} {}{plural}", status.count, status.kind.name())?;
        }
        Ok(())
    }
}

const CHUNK: usize = 128;
/// Arrays of a slot that are counted one by one; those behind the last are counted with it.
const ARRAYS: usize = 8;
const KINDS: usize = Kind::ALL.len();

#[derive(Default)]
struct Entry {
    counts: [[AtomicU16; KINDS]; ARRAYS],
    since: [[AtomicU64; KINDS]; ARRAYS],
    /// Of arrays that were added one by one.
    names: Mutex<[String; ARRAYS]>,
}

impl Entry {
    fn names(&self) -> MutexGuard<'_, [String; ARRAYS]> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Live exports by slot. Takes memory for the slots that ever had one.
pub(crate) struct Exports([OnceLock<Box<[Entry]>>; MAX_SLOTS.div_ceil(CHUNK)]);

impl Exports {
    pub fn new() -> Exports {
        Exports(std::array::from_fn(|_| OnceLock::new()))
    }

    fn entry(&self, slot: usize) -> &Entry {
        let chunk = self.0[slot / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Entry::default()).collect());
        &chunk[slot % CHUNK]
    }

    /// Notes the name of a slot's array, before its first export; needn't be where names are fixed.
    pub fn name(&self, slot: usize, array: usize, name: &str) {
        let known = &mut self.entry(slot).names()[array.min(ARRAYS - 1)];
        if known != name {
            name.clone_into(known);
        }
    }

    /// Notes one more.
    pub fn begin(&self, slot: usize, array: usize, kind: Kind) {
        let (entry, array) = (self.entry(slot), array.min(ARRAYS - 1));
        if entry.counts[array][kind as usize].fetch_add(1, Relaxed) == 0 {
            entry.since[array][kind as usize].store(monotonic_coarse_ns(), Relaxed);
        }
    }

    /// Notes that one which had begun is gone.
    pub fn end(&self, slot: usize, array: usize, kind: Kind) {
        if let Some(chunk) = self.0[slot / CHUNK].get() {
            chunk[slot % CHUNK].counts[array.min(ARRAYS - 1)][kind as usize].fetch_sub(1, Relaxed);
        }
    }

    /// What lives of a slot; each line is true by itself.
    pub fn of(&self, slot: usize, fixed: Option<&[Field]>) -> Vec<ExportStatus> {
        let Some(chunk) = self.0.get(slot / CHUNK).and_then(OnceLock::get) else { return Vec::new() };
        let (entry, now) = (&chunk[slot % CHUNK], monotonic_coarse_ns());
        let name = |array: usize| match fixed {
            Some(fields) => fields.get(array).map(|field| field.name.clone()).unwrap_or_default(),
            None => entry.names()[array].clone(),
        };
        let all = (0..ARRAYS).flat_map(|array| Kind::ALL.map(|kind| (array, kind)));
        all.filter_map(|(array, kind)| {
            let count = u32::from(entry.counts[array][kind as usize].load(Relaxed));
            let since = entry.since[array][kind as usize].load(Relaxed);
            (count > 0).then(|| ExportStatus {
                array: name(array),
                kind,
                count,
                age: Duration::from_nanos(now.saturating_sub(since)),
            })
        })
        .collect()
    }
}

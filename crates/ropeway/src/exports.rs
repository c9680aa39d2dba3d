//! What keeps the slots of a pool where they are, in this process: for people who ask.
//!
//! The lease decides by its own word; this is a look at it from outside.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use ropeway_sys::process::monotonic_coarse_ns;

use crate::config::MAX_SLOTS;

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

/// Exports of one kind of one slot that live in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportStatus {
    /// The kind.
    pub kind: Kind,
    /// How many.
    pub count: u32,
    /// For how long there has been one without a break.
    pub age: Duration,
}

const CHUNK: usize = 1024;

#[derive(Default)]
struct Entry {
    counts: [AtomicU32; Kind::ALL.len()],
    since: [AtomicU64; Kind::ALL.len()],
}

/// Live exports by slot. Takes memory for the slots that ever had one.
pub(crate) struct Exports([OnceLock<Box<[Entry]>>; MAX_SLOTS.div_ceil(CHUNK)]);

impl Exports {
    pub fn new() -> Exports {
        Exports(std::array::from_fn(|_| OnceLock::new()))
    }

    /// Notes one more.
    pub fn begin(&self, slot: usize, kind: Kind) {
        let chunk = self.0[slot / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Entry::default()).collect());
        let entry = &chunk[slot % CHUNK];
        if entry.counts[kind as usize].fetch_add(1, Relaxed) == 0 {
            entry.since[kind as usize].store(monotonic_coarse_ns(), Relaxed);
        }
    }

    /// Notes that one which had begun is gone.
    pub fn end(&self, slot: usize, kind: Kind) {
        if let Some(chunk) = self.0[slot / CHUNK].get() {
            chunk[slot % CHUNK].counts[kind as usize].fetch_sub(1, Relaxed);
        }
    }

    /// What lives of a slot; each line is true by itself.
    pub fn of(&self, slot: usize) -> Vec<ExportStatus> {
        let Some(chunk) = self.0.get(slot / CHUNK).and_then(OnceLock::get) else { return Vec::new() };
        let (entry, now) = (&chunk[slot % CHUNK], monotonic_coarse_ns());
        let lives = |&kind: &Kind| entry.counts[kind as usize].load(Relaxed) > 0;
        Kind::ALL
            .into_iter()
            .filter(lives)
            .map(|kind| ExportStatus {
                kind,
                count: entry.counts[kind as usize].load(Relaxed),
                age: Duration::from_nanos(now.saturating_sub(entry.since[kind as usize].load(Relaxed))),
            })
            .collect()
    }
}

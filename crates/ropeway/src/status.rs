//! Who holds what, since when.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use ropeway_sys::memfd::Memfd;

use crate::board::{Board, Phase, Store};
use crate::commitment::{committed, committed_of};
use crate::error::{Error, Result};
use crate::exports::ExportStatus;
use crate::layout::{Control, POOL_END};
use crate::word::{State, Word};

/// A pool at one moment. Slots move while it is taken; each line is true by itself.
#[derive(Clone, Debug)]
pub struct PoolStatus {
    /// How messages call the pool.
    pub label: String,
    /// Open, closed or aborted.
    pub phase: Phase,
    /// Every slot.
    pub slots: Vec<SlotStatus>,
    /// Every member whose entry isn't free.
    pub members: Vec<MemberStatus>,
    /// For each slot the last content that was lost.
    pub lost: Vec<LostSlot>,
    /// Times that a slot was published, over all stages.
    pub published: u64,
    /// Members that died without leaving.
    pub deaths: u64,
    /// Bytes of memory that the slots have.
    pub committed: u64,
    /// The limit for `committed`.
    pub memory_limit: Option<u64>,
}

/// One slot.
#[derive(Clone, Debug)]
pub struct SlotStatus {
    /// Its index.
    pub index: usize,
    /// What is going on in it.
    pub state: State,
    /// Where it is.
    pub stage: String,
    /// The process that holds it.
    pub pid: Option<u64>,
    /// The thread that took it, while its lease is open.
    pub thread: Option<u64>,
    /// How long it has been held.
    pub held_for: Option<Duration>,
    /// Times that a reader died with its content.
    pub deliveries: u8,
    /// Moves that it has made.
    pub generation: u64,
    /// Bytes of memory that it has.
    pub committed: u64,
    /// What keeps it where it is, if this process holds it.
    pub exports: Vec<ExportStatus>,
}

impl SlotStatus {
    /// Who holds the slot, in words.
    pub fn held_by(&self) -> Option<String> {
        let (pid, held) = (self.pid?, self.held_for?);
        Some(format!(
            "slot {} is held by process {pid} at {:?} for {:.1} s",
            self.index,
            self.stage,
            held.as_secs_f64()
        ))
    }
}

/// One member.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// Its process id.
    pub pid: u64,
    /// Whether its address space exists.
    pub alive: bool,
    /// Whether it left by a normal exit.
    pub left: bool,
    /// Bytes that it is about to commit.
    pub announced: u64,
}

/// Published content that nobody will get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostSlot {
    /// The slot that held it.
    pub index: usize,
    /// Moves that the slot had made then.
    pub generation: u64,
    /// Where it was lost.
    pub stage: String,
    /// The process that held it.
    pub pid: u64,
}

/// Looks at a pool of another process without becoming a member of it: its control segment is open
/// there under that descriptor number.
pub fn observe(pid: u32, descriptor: i32) -> Result<PoolStatus> {
    let what = format!("process {pid}, descriptor {descriptor}: no pool can be looked at there");
    let fd = Memfd::open_peer(pid, descriptor).map_err(Error::system(what))?;
    Ok(read(&Board(Control::open(fd, POOL_END)?)))
}

/// Reads a pool's status.
pub(crate) fn read(board: &Board<Control>) -> PoolStatus {
    let control = &board.0;
    let (config, now, packed) = (&control.config, control.now(), control.config.is_packed());
    let slots = (0..control.slots()).map(|index| {
        let slot = control.slot(index);
        let word = slot.load();
        let held = word.is_held();
        SlotStatus {
            index,
            state: word.state().unwrap_or(State::Absent),
            stage: config.stages.get(word.stage()).cloned().unwrap_or_default(),
            pid: word.owner().filter(|_| held).map(|k| control.pid(k)),
            thread: Some(slot.thread.load(Relaxed)).filter(|&t| held && t != 0),
            held_for: held.then(|| Duration::from_nanos(now.saturating_sub(slot.since.load(Relaxed)))),
            deliveries: word.deliveries(),
            generation: word.generation(),
            committed: committed_of(control, index, packed),
            exports: Vec::new(),
        }
    });
    let members = (0..control.members()).filter(|&k| board.tenancy(k).is_live()).map(|k| MemberStatus {
        pid: control.pid(k),
        alive: control.is_alive(k),
        left: board.tenancy(k).is_clean(),
        announced: control.member_entry(k).announced.load(Relaxed),
    });
    let lost = (0..control.slots()).filter_map(|index| {
        let slot = control.slot(index);
        let word = Word(slot.loss.load(Acquire));
        (word.generation() > 0).then(|| LostSlot {
            index,
            generation: word.generation(),
            stage: config.stages.get(word.stage()).cloned().unwrap_or_default(),
            pid: slot.loss_pid.load(Relaxed),
        })
    });
    PoolStatus {
        label: config.label(),
        phase: board.phase(),
        slots: slots.collect(),
        members: members.collect(),
        lost: lost.collect(),
        published: (1..=config.rules.last)
            .map(|stage| control.tickets(stage).load(Relaxed))
            .fold(0, u64::saturating_add),
        deaths: control.deaths(),
        committed: committed(control),
        memory_limit: config.memory_limit,
    }
}

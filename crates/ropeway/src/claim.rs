//! Claiming a slot, at once or by waiting, and what callers are told when none comes.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use ropeway_sys::process;

use crate::attachment::Attachment;
use crate::board::{Claim, Phase, Store};
use crate::error::{Error, Result};
use crate::hold::Hold;
use crate::status::{self, SlotStatus};
use crate::wait::{Ended, Until, Waiter};

/// How long to wait, and what to do between the slices of a wait.
pub struct Wait<'a> {
    /// `None` waits for ever, zero doesn't wait.
    pub timeout: Option<Duration>,
    /// Runs at least every 50 ms during a wait; false interrupts it.
    pub pulse: &'a mut dyn FnMut() -> bool,
    /// Says whether no other thread of this process can end a lease of this one. Then a wait without a
    /// limit that only this thread could end is an error at once.
    pub alone: &'a dyn Fn() -> bool,
    /// Runs, once, what may take long; what is there at once is done without it. A binding lets go of
    /// its interpreter here.
    pub around: &'a dyn Fn(&mut dyn FnMut()),
}

impl<'a> Wait<'a> {
    /// A wait by one of the threads that the system counts in this process.
    pub fn new(timeout: Option<Duration>, pulse: &'a mut dyn FnMut() -> bool) -> Wait<'a> {
        Wait { timeout, pulse, alone: &process::is_single_threaded, around: &|work| work() }
    }

    /// Does what may take long, with the pulse that it is to call meanwhile.
    pub fn run<T>(&mut self, work: impl FnOnce(&mut dyn FnMut() -> bool) -> T) -> T {
        let (mut work, mut done) = (Some(work), None);
        (self.around)(&mut || done = work.take().map(|work| work(self.pulse)));
        done.expect("`around` has run it")
    }
}

/// A free slot, or one that is added, and checks that the pool is open; the phase if it isn't.
pub(crate) fn free(at: &Attachment) -> Option<std::result::Result<Claim, Phase>> {
    if at.leaving.load(Relaxed) {
        return Some(Err(Phase::Closed));
    }
    let (board, me, config, hint) = (&at.board, at.me, at.config(), at.next_free());
    let claim = match config.slots < config.max_slots {
        true => board.acquire_or_add(me, hint, config.max_slots),
        false => board.acquire(me, hint),
    };
    match claim {
        Some(claim) => Some(board.confirm(me, claim)),
        None => Some(board.phase()).filter(|&phase| phase != Phase::Open).map(Err),
    }
}

fn published(at: &Attachment, stage: usize, write: bool, number: Option<u64>) -> Option<Claim> {
    if at.leaving.load(Relaxed) || at.board.phase() == Phase::Aborted {
        return None;
    }
    match number {
        None => at.board.take_next(at.me, stage, write, &at.taken[stage]),
        Some(n) => at.board.take_where(at.me, stage, write, |slot| slot.number.load(Relaxed) == n),
    }
}

/// Takes a slot at a stage, the one with that number if one is given.
pub(crate) fn take(
    at: &Arc<Attachment>,
    stage: usize,
    write: bool,
    number: Option<u64>,
    wait: &mut Wait<'_>,
) -> Result<Arc<Hold>> {
    let claim = || published(at, stage, write, number);
    let drained = || {
        let phase = at.board.phase();
        let over = phase == Phase::Aborted || at.leaving.load(Relaxed);
        (over || phase != Phase::Open && at.board.is_drained(stage)).then_some(Ended::Over(phase))
    };
    let claim = match claim() {
        Some(found) => found,
        None => wait_for(at, stage, wait, claim, drained)?,
    };
    Ok(Hold::new(at.clone(), claim))
}

/// Waits at a stage, and says in words why it came to nothing.
pub(crate) fn wait_for<T>(
    at: &Attachment,
    stage: usize,
    wait: &mut Wait<'_>,
    claim: impl FnMut() -> Option<T>,
    mut ended: impl FnMut() -> Option<Ended>,
) -> Result<T> {
    let config = at.config();
    if wait.timeout.is_none() && holds_everything(at) && (wait.alone)() {
        return Err(Error::InUse(format!(
            "{}: this thread, the only one, holds all {} slots itself, so waiting at {:?} would never end; \
             publish or release one first",
            config.label(),
            at.board.0.slots(),
            config.stages[stage]
        )));
    }
    let due = || at.sweep_due();
    let (hint, drawn) = (at.next_free(), at.board.0.tickets(stage).load(Relaxed));
    let look = || at.board.may_have_come(stage, hint, drawn);
    let waiter = Waiter { stage, spin: &at.spins[stage], look: &look, sweep_due: &due };
    let endless = wait.timeout.is_none();
    let alone = || (endless && stage > 0 && is_alone(at, stage)).then_some(Ended::Alone);
    let timeout = wait.timeout;
    let found = wait.run(|pulse| {
        // A signal handler may fork: the child has no rights of its parent's, and must claim nothing by them.
        let mut pulse = || pulse() && at.is_mine();
        let mut patience = Until::new(timeout, &mut pulse);
        at.board.wait(&waiter, &mut patience, claim, || ended().or_else(alone))
    });
    found.map_err(|why| match why {
        Ended::Over(phase) => over(at, stage, phase),
        Ended::Interrupted => {
            Error::Interrupted(format!("{}: the wait at {:?}", config.label(), config.stages[stage]))
        }
        Ended::Alone => {
            at.mourned.store(at.board.0.deaths(), Relaxed);
            Error::PeerDied(format!(
                "{}: process {} died, nothing is on its way to {:?}, and no other member lives",
                config.label(),
                at.board.0.header().last_dead.0.load(Relaxed),
                config.stages[stage]
            ))
        }
        Ended::TimedOut => timed_out(at, stage, timeout.unwrap_or_default()),
    })
}

/// True when a member has died, no other lives, and nothing can come to `stage` any more.
///
/// Each death is told once to each process: one that starts a replacement can wait again.
fn is_alone(at: &Attachment, stage: usize) -> bool {
    let control = &at.board.0;
    control.deaths() > at.mourned.load(Relaxed)
        && (0..control.members()).all(|k| k == at.me || !at.board.tenancy(k).is_live())
        && at.board.is_drained(stage)
}

/// True when every slot is held by an open lease of the calling thread.
fn holds_everything(at: &Attachment) -> bool {
    let control = &at.board.0;
    let thread = control.thread();
    if at.config().slots < at.config().max_slots {
        return false;
    }
    (0..control.slots()).all(|index| {
        let slot = control.slot(index);
        slot.load().owner() == Some(at.me) && slot.thread.load(Relaxed) == thread
    })
}

pub(crate) fn over(at: &Attachment, stage: usize, phase: Phase) -> Error {
    let (label, stage) = (at.config().label(), &at.config().stages[stage]);
    match phase {
        Phase::Orphaned => Error::PeerDied(format!(
            "{label}: its creator, process {}, died; nothing comes to {stage:?} any more",
            at.config().creator_pid
        )),
        Phase::Aborted => Error::Closed(format!("{label} was aborted")),
        _ if at.leaving.load(Relaxed) => Error::Closed(format!("{label}: this process is leaving")),
        _ => Error::Closed(format!("{label} is closed; nothing comes to {stage:?} any more")),
    }
}

fn timed_out(at: &Attachment, stage: usize, timeout: Duration) -> Error {
    let mut text = format!(
        "{}: no slot came to {:?} within {:.3} s",
        at.config().label(),
        at.config().stages[stage],
        timeout.as_secs_f64()
    );
    if !timeout.is_zero() {
        let holders: Vec<_> = status::read(&at.board).slots.iter().filter_map(SlotStatus::held_by).collect();
        text += &match holders.len() {
            0 => "; nobody holds any".to_owned(),
            n => format!("; {}{}", holders[..n.min(4)].join(", "), if n > 4 { ", ..." } else { "" }),
        };
    }
    Error::Timeout(text)
}

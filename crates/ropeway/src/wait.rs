//! How a process waits: claim, spin a little, announce, claim again, sleep a slice.
//!
//! One word per stage is an event count on a shared futex: bit 0 says that somebody may sleep, the
//! rest counts events. A wake is a hint, the slice of 50 ms is the promise: a waiter that is never
//! woken still sees everything within it, and takes back what the dead held.

use std::time::{Duration, Instant};

use crate::board::{Board, Phase, Store};
use crate::sync::{AtomicU32, Ordering, fence, spin_hint};

/// The longest time that a waiter sleeps without looking around.
pub const SLICE: Duration = Duration::from_millis(50);

/// A waiter that is woken again and again pulses at every so many wakes.
const PULSE_EVERY: u32 = 16;

/// Why a wait ended without a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The time was up.
    TimedOut,
    /// The caller's pulse asked to stop (a signal came).
    Interrupted,
    /// The pool is in this phase and nothing is left to wait for.
    Over(Phase),
    /// A member has died, nothing is on its way, and no other member lives.
    Alone,
}

/// How long a caller is ready to wait, and what it does between slices.
pub trait Patience {
    /// The time that is left; `None` without a limit, zero when it is up.
    fn left(&self) -> Option<Duration>;
    /// Runs between slices; false ends the wait.
    fn pulse(&mut self) -> bool;
}

/// Patience up to a point in time, with a closure for signals.
pub struct Until<'a> {
    deadline: Option<Instant>,
    pulse: &'a mut dyn FnMut() -> bool,
}

impl<'a> Until<'a> {
    /// Waits for `timeout` (for ever if `None`), calling `pulse` at least every [`SLICE`].
    pub fn new(timeout: Option<Duration>, pulse: &'a mut dyn FnMut() -> bool) -> Until<'a> {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        Until { deadline, pulse }
    }
}

impl Patience for Until<'_> {
    fn left(&self) -> Option<Duration> {
        self.deadline.map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn pulse(&mut self) -> bool {
        (self.pulse)()
    }
}

/// The spin budget of one stage in this process: it follows what spinning brought lately.
///
/// Two processes on one core must not burn their time slices, and an idle core takes as long to
/// wake as hundreds of hand-offs. So the budget is twice what the last success took, shrinks to
/// nothing when spinning fails, and every 64th wait probes whether it pays again.
#[derive(Debug)]
pub struct Spin {
    budget_ns: std::sync::atomic::AtomicU32,
    waits: std::sync::atomic::AtomicU32,
    longest_ns: u32,
}

impl Spin {
    const LEAST_NS: u32 = 2_000;
    const PROBE_NS: u32 = 50_000;
    const PROBE_EVERY: u32 = 64;

    /// A budget that never exceeds `longest`; zero switches spinning off.
    pub fn new(longest: Duration) -> Spin {
        let longest_ns = u32::try_from(longest.as_nanos()).unwrap_or(u32::MAX);
        Spin { budget_ns: Self::PROBE_NS.min(longest_ns).into(), waits: 0.into(), longest_ns }
    }

    fn budget(&self) -> Duration {
        use std::sync::atomic::Ordering::Relaxed;
        let budget = self.budget_ns.load(Relaxed);
        let probe =
            budget < Self::PROBE_NS && self.waits.fetch_add(1, Relaxed).is_multiple_of(Self::PROBE_EVERY);
        let ns = if probe { Self::PROBE_NS } else { budget };
        Duration::from_nanos(u64::from(ns.min(self.longest_ns)))
    }

    fn learn(&self, took: Option<Duration>) {
        use std::sync::atomic::Ordering::Relaxed;
        let next = match took {
            Some(took) => {
                let twice = u32::try_from(took.as_nanos() * 2).unwrap_or(u32::MAX);
                twice.clamp(Self::LEAST_NS, Self::PROBE_NS * 2)
            }
            None => match self.budget_ns.load(Relaxed) / 4 {
                small if small < Self::LEAST_NS / 4 => 0,
                smaller => smaller,
            },
        };
        self.budget_ns.store(next, Relaxed);
    }

    /// Spins for at most the budget until `claim` succeeds: at every eighth turn it is tried, at
    /// the others only if `look` says that it may.
    fn spin<T>(&self, look: &dyn Fn() -> bool, claim: &mut impl FnMut() -> Option<T>) -> Option<T> {
        let budget = self.budget();
        if budget.is_zero() {
            return None;
        }
        let start = Instant::now();
        loop {
            for turn in 1..=8 {
                if (turn == 8 || look())
                    && let Some(found) = claim()
                {
                    self.learn(Some(start.elapsed()));
                    return Some(found);
                }
                spin_hint();
            }
            if start.elapsed() >= budget {
                self.learn(None);
                return None;
            }
        }
    }
}

/// What a waiter at one stage needs besides the board.
pub struct Waiter<'a> {
    /// The stage whose event count it sleeps on.
    pub stage: usize,
    /// Its spin budget.
    pub spin: &'a Spin,
    /// Says cheaply whether a claim may succeed by now.
    pub look: &'a dyn Fn() -> bool,
    /// Says whether this process should look for the dead now.
    pub sweep_due: &'a dyn Fn() -> bool,
}

impl<S: Store> Board<S> {
    /// Waits at a stage until `claim` succeeds or `ended` says why it never will.
    pub fn wait<T>(
        &self,
        waiter: &Waiter<'_>,
        patience: &mut impl Patience,
        mut claim: impl FnMut() -> Option<T>,
        mut ended: impl FnMut() -> Option<Ended>,
    ) -> Result<T, Ended> {
        let mut round = 0_u32;
        loop {
            round = round.wrapping_add(1);
            if let Some(found) = claim() {
                return Ok(found);
            }
            if let Some(why) = self.is_over(&mut ended) {
                return Err(why);
            }
            if (waiter.sweep_due)() && self.sweep().slots > 0 {
                continue;
            }
            let left = patience.left();
            if left == Some(Duration::ZERO) {
                return Err(Ended::TimedOut);
            }
            if let Some(found) = waiter.spin.spin(waiter.look, &mut claim) {
                return Ok(found);
            }
            let event = self.0.event(waiter.stage);
            let value = announce(event);
            if let Some(found) = claim() {
                return Ok(found);
            }
            if let Some(why) = self.is_over(&mut ended) {
                return Err(why);
            }
            let woken = self.0.sleep(event, value, left.map_or(SLICE, |left| left.min(SLICE)));
            if (!woken || round.is_multiple_of(PULSE_EVERY)) && !patience.pulse() {
                return Err(Ended::Interrupted);
            }
        }
    }

    /// Why the wait is over, asked again after a sweep: what the dead hold may come back to it.
    fn is_over(&self, ended: &mut impl FnMut() -> Option<Ended>) -> Option<Ended> {
        ended()?;
        self.sweep();
        ended()
    }
}

/// Says on the event count that somebody may sleep, and returns the value to sleep on.
fn announce(event: &AtomicU32) -> u32 {
    let value = event.fetch_or(1, Ordering::AcqRel) | 1;
    fence(Ordering::SeqCst);
    value
}

//! How a process waits: claim, spin a little, announce, claim again, sleep a slice.
//!
//! One word per stage is an event count on a shared futex: bit 0 says that somebody may sleep, the
//! rest counts events. A wake is a hint, the slice of 50 ms is the promise: a waiter that is never
//! woken still sees everything within it, and takes back what the dead held.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::board::{Board, Phase, Store};
use crate::sync::{self, Ordering, fence, spin_hint};

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

/// How a waiter at one stage spins in this process; it follows what spinning brought lately.
///
/// A spinner polls for a microsecond, and then yields the processor between looks: on a core of its
/// own that costs little, on a shared one it is the shortest way to whoever it waits for. It goes on
/// for twice as long as the last success took. Where spinning fails, because the other side is slow
/// or its core asleep, the budget shrinks to nothing; where a yield let a third party run for long,
/// yields stop. Probes, rarer and rarer while they fail, find out whether it pays again.
#[derive(Debug)]
pub struct Spin {
    budget_ns: AtomicU32,
    probe: Probe,
    /// Yields before it polls: the last success came when another process had run on this core.
    yields_first: AtomicBool,
    /// Says when to yield, once it took too long.
    uncrowded: Probe,
    longest_ns: u32,
}

impl Spin {
    const LEAST_NS: u32 = 2_000;
    const PROBE_NS: u32 = 50_000;
    /// Polling without a yield; and a yield of this length has let somebody else run.
    const POLL: Duration = Duration::from_micros(1);
    /// So often others may run before it sleeps after all.
    const TURNS: u32 = 3;
    /// A yield of this length let the wrong one run.
    const CROWDED: Duration = Duration::from_micros(100);

    /// A budget that never exceeds `longest`; zero switches spinning off.
    pub fn new(longest: Duration) -> Spin {
        let longest_ns = u32::try_from(longest.as_nanos()).unwrap_or(u32::MAX);
        Spin {
            budget_ns: Self::PROBE_NS.min(longest_ns).into(),
            probe: Probe::new(4, 1 << 10),
            yields_first: false.into(),
            uncrowded: Probe::new(1 << 10, 1 << 20),
            longest_ns,
        }
    }

    fn budget(&self) -> Duration {
        let ns = match self.budget_ns.load(Relaxed) {
            0 if self.probe.is_due() => Self::PROBE_NS,
            budget => budget,
        };
        Duration::from_nanos(u64::from(ns.min(self.longest_ns)))
    }

    fn succeeded(&self, spun: Duration, others_ran: bool) {
        let twice = u32::try_from(spun.as_nanos() * 2).unwrap_or(u32::MAX);
        self.budget_ns.store(twice.clamp(Self::LEAST_NS, Self::PROBE_NS * 2), Relaxed);
        self.probe.succeeded();
        self.yields_first.store(others_ran, Relaxed);
        if others_ran {
            self.uncrowded.succeeded();
        }
    }

    fn failed(&self) {
        match self.budget_ns.load(Relaxed) / 4 {
            small if small < Self::LEAST_NS / 4 => {
                self.budget_ns.store(0, Relaxed);
                self.probe.failed();
            }
            smaller => self.budget_ns.store(smaller, Relaxed),
        }
    }

    /// Spins for at most the budget until `claim` succeeds: at every eighth turn it is tried, at
    /// the others only if `look` says that it may.
    fn spin<T>(&self, look: &dyn Fn() -> bool, claim: &mut impl FnMut() -> Option<T>) -> Option<T> {
        let may_yield = self.uncrowded.is_due();
        let budget = self.budget();
        if budget.is_zero() {
            return None;
        }
        let mut yields = may_yield && self.yields_first.load(Relaxed);
        let mut others_ran = Others::default();
        let start = Instant::now();
        loop {
            if yields {
                let before = start.elapsed();
                std::thread::yield_now();
                let took = start.elapsed() - before;
                if took >= Self::CROWDED {
                    self.uncrowded.failed();
                    return None;
                }
                others_ran.count(took);
            }
            for turn in 1..=8 {
                if (turn == 8 || look())
                    && let Some(found) = claim()
                {
                    self.succeeded(start.elapsed() - others_ran.time, others_ran.turns > 0);
                    return Some(found);
                }
                spin_hint();
            }
            let spun = start.elapsed() - others_ran.time;
            if spun >= budget || others_ran.turns >= Self::TURNS {
                self.failed();
                return None;
            }
            yields = may_yield && (spun >= Self::POLL || others_ran.turns > 0);
        }
    }
}

/// What others did on this core while a spinner yielded.
#[derive(Default)]
struct Others {
    turns: u32,
    time: Duration,
}

impl Others {
    fn count(&mut self, yielded: Duration) {
        if yielded >= Spin::POLL {
            self.turns += 1;
            self.time += yielded;
        }
    }
}

/// Says when something that failed is to be tried again: after more and more waits.
#[derive(Debug)]
struct Probe {
    waits: AtomicU32,
    pause: AtomicU32,
    least: u32,
    most: u32,
}

impl Probe {
    /// Due at once; later after `least` waits, twice as many after each failure, at most `most`.
    fn new(least: u32, most: u32) -> Probe {
        Probe { waits: 0.into(), pause: 0.into(), least, most }
    }

    /// Counts a wait; true when it is one to try.
    fn is_due(&self) -> bool {
        let left = self.waits.load(Relaxed);
        self.waits.store(left.saturating_sub(1), Relaxed);
        left == 0
    }

    fn succeeded(&self) {
        self.pause.store(0, Relaxed);
    }

    fn failed(&self) {
        let pause = self.pause.load(Relaxed).saturating_mul(2).clamp(self.least, self.most);
        self.pause.store(pause, Relaxed);
        self.waits.store(pause, Relaxed);
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
    /// Waits at a stage until `claim`, which the caller has tried already, succeeds, or `ended` says
    /// why it never will.
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
            if let Some(why) = self.is_over(&mut ended) {
                return Err(why);
            }
            if (waiter.sweep_due)()
                && self.sweep().slots > 0
                && let Some(found) = claim()
            {
                return Ok(found);
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
            if let Some(found) = claim() {
                return Ok(found);
            }
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
fn announce(event: &sync::AtomicU32) -> u32 {
    let value = event.fetch_or(1, Ordering::AcqRel) | 1;
    fence(Ordering::SeqCst);
    value
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// In how many of these waits a waiter spins at all, if its spinning helps or not.
    fn spins(spin: &Spin, waits: u32, helps: bool) -> u32 {
        let one = |_: &u32| {
            let mut tried = false;
            spin.spin(&|| true, &mut || {
                tried = true;
                helps.then_some(())
            });
            tried
        };
        (0..waits).filter(one).count() as u32
    }

    #[test]
    fn spinning_that_doesnt_help_gets_rare_and_never_stops_for_good() {
        let spin = Spin::new(Duration::from_micros(5));
        let first = spins(&spin, 4_000, false);
        let later = spins(&spin, 20_000, false);
        assert!((4..100).contains(&first), "{first}");
        assert!((4..40).contains(&later), "{later}");
    }

    #[test]
    fn spinning_that_helps_again_is_found_by_a_probe_and_kept() {
        let spin = Spin::new(Duration::from_micros(5));
        spins(&spin, 4_000, false);
        assert!(spins(&spin, 2_000, true) > 900);
        assert_eq!(spins(&spin, 1_000, true), 1_000);
    }

    #[test]
    fn a_budget_of_zero_never_spins() {
        assert_eq!(spins(&Spin::new(Duration::ZERO), 10_000, true), 0);
    }

    #[test]
    fn pauses_between_tries_double_up_to_a_bound_and_begin_again_after_a_success() {
        let probe = Probe::new(4, 16);
        let pause = || (0..).take_while(|_| !probe.is_due()).count();
        assert_eq!(pause(), 0);
        let pauses = [(); 4].map(|()| {
            probe.failed();
            pause()
        });
        assert_eq!(pauses, [4, 8, 16, 16]);
        probe.succeeded();
        probe.failed();
        assert_eq!(pause(), 4);
    }
}

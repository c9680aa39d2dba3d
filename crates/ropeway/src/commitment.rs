//! Memory is committed before it is promised, in steps, after a look at what is left.
//!
//! What is left is the least of what the system, the control groups and the pool's own limit allow,
//! less what other members have announced.

use std::io;
use std::time::Duration;

use ropeway_sys::{fork, memory};

use crate::board::Store;
use crate::error::{Error, Result};
use crate::field::PAGE;
use crate::layout::Control;
use crate::memory::{Asking, Memory};
use crate::sync::{Ordering, crash_point, fence};

/// Memory is committed in steps of this many bytes, with a look around before each.
const STEP: u64 = 64 << 20;

/// How often one who meets others at a pool's limit looks again, some milliseconds in all.
const RESERVE_ROUNDS: u32 = 40;

impl Memory {
    /// Commits `from..to` behind `offset` in steps and tells after each how far it is.
    pub fn commit(
        &self,
        control: &Control,
        offset: u64,
        from: u64,
        to: u64,
        asking: &mut Asking,
        done: impl Fn(u64),
    ) -> Result<()> {
        let mut announced = self.reserve(control, to - from, asking)?;
        let (mut at, mut longest) = (from, STEP);
        while at < to {
            announced.set(to - at);
            let step = (to - at).min(longest);
            self.afford(control, to - at, to - at, asking)?;
            match self.fd.commit(offset + at, step) {
                Ok(()) => {
                    at += step;
                    crash_point!("commit.before");
                    done(at);
                    crash_point!("commit.after");
                }
                // A signal has undone the step (older kernels let any do so). If they come faster than
                // a step takes, only shorter ones get anywhere.
                Err(e) if e.kind() == io::ErrorKind::Interrupted => longest = (step / 2).max(PAGE),
                Err(e) if matches!(e.raw_os_error(), Some(12 | 28)) => {
                    return Err(Error::OutOfMemory(format!(
                        "{}: the system refused {step} bytes: {e}",
                        asking.what
                    )));
                }
                Err(_) if !self.fd.is_open() => {
                    return Err(Error::Gone(format!(
                        "{}: {step} bytes asked, but this program has closed the pool's descriptors",
                        asking.what
                    )));
                }
                Err(e) => {
                    return Err(Error::system(format!("{}: can't commit {step} bytes", asking.what))(e));
                }
            }
            if (to - from > STEP || longest < STEP) && !(asking.pulse)() {
                return Err(Error::Interrupted(asking.what.to_owned()));
            }
        }
        Ok(())
    }

    /// Checks that `bytes` more are there, by the system, the cgroup and what others have announced;
    /// the caller itself has announced `mine`.
    pub fn afford(&self, control: &Control, bytes: u64, mine: u64, asking: &Asking) -> Result<()> {
        let spend = |credit: u64| credit.checked_sub(bytes);
        if self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_ok() {
            return Ok(());
        }
        let available = memory::available();
        let others = announced(control).saturating_sub(mine);
        let reserve = (memory::total() / 64).min(256 << 20);
        let free = available.bytes.saturating_sub(others).saturating_sub(reserve);
        if bytes > free {
            return Err(Error::OutOfMemory(format!(
                "{}: {bytes} bytes asked, {free} available ({}; {others} announced by other processes, {reserve} kept free)",
                asking.what, available.source
            )));
        }
        self.credit.store(((free - bytes) / 8).min(STEP), Ordering::Relaxed);
        Ok(())
    }

    /// Announces `bytes` that are about to be committed, within the pool's own limit.
    ///
    /// Who announces first and adds up afterwards sees everybody who does the same at that time, so
    /// the limit holds. Two who see each other both step back, and try again at different times; if
    /// that goes on, what the others want counts as taken.
    fn reserve<'a>(&self, control: &'a Control, bytes: u64, asking: &mut Asking) -> Result<Announced<'a>> {
        let mut announced = Announced { control, me: asking.me, bytes: 0, cookie: fork::cookie() };
        let Some(limit) = control.config.memory_limit else { return Ok(announced) };
        for round in 0_u32.. {
            announced.set(bytes);
            fence(Ordering::SeqCst);
            let others = self::announced(control).saturating_sub(bytes);
            self.check_limit(control, bytes, asking.what)?;
            if committed(control).saturating_add(others).saturating_add(bytes) <= limit {
                break;
            }
            announced.set(0);
            if round == RESERVE_ROUNDS {
                return Err(Error::OutOfMemory(format!(
                    "{}: {bytes} bytes asked, but {} of memory_limit={limit} bytes are in use and {others} \
                     asked by other processes",
                    asking.what,
                    committed(control)
                )));
            }
            std::thread::sleep(Duration::from_micros(200 * (1 + u64::from(round) * asking.me as u64 % 7)));
            if !(asking.pulse)() {
                return Err(Error::Interrupted(asking.what.to_owned()));
            }
        }
        Ok(announced)
    }

    /// Checks that `bytes` more stay within the pool's own limit.
    pub fn check_limit(&self, control: &Control, bytes: u64, what: &str) -> Result<()> {
        let Some(limit) = control.config.memory_limit else { return Ok(()) };
        let used = committed(control);
        if used.checked_add(bytes).is_none_or(|all| all > limit) {
            return Err(Error::OutOfMemory(format!(
                "{what}: {bytes} bytes asked, but {used} of memory_limit={limit} bytes are in use"
            )));
        }
        Ok(())
    }

    /// Checks that a pool of this size could be filled at all, before any of it is promised.
    pub fn check_promise(&self, control: &Control, me: usize, bytes: u64) -> Result<()> {
        let what = control.config.label();
        if let Some(limit) = control.config.memory_limit.filter(|&limit| bytes > limit) {
            return Err(Error::OutOfMemory(format!(
                "{what}: its {} slots need {bytes} bytes, memory_limit is {limit}",
                control.config.slots
            )));
        }
        self.afford(control, bytes, 0, &Asking { me, what: &what, pulse: &mut || true })
    }
}

/// Bytes that all slots of a pool have committed.
pub(crate) fn committed(control: &Control) -> u64 {
    let packed = control.config.is_packed();
    (0..control.slots()).map(|slot| committed_of(control, slot, packed)).fold(0, u64::saturating_add)
}

/// Bytes that one slot has committed.
pub(crate) fn committed_of(control: &Control, slot: usize, packed: bool) -> u64 {
    let record = control.record(slot);
    if packed {
        return record.settled.load(Ordering::Relaxed);
    }
    let extents = record.extents.iter().take_while(|e| e.len.load(Ordering::Relaxed) != 0);
    extents.map(|e| e.committed.load(Ordering::Relaxed)).fold(0, u64::saturating_add)
}

/// Bytes that living members are about to commit.
///
/// Who adds them to what is committed asks for them first: a member says what it has committed before
/// it announces less.
fn announced(control: &Control) -> u64 {
    (0..control.members())
        .filter(|&k| control.member(k).load(Ordering::Relaxed) & 1 != 0)
        .map(|k| (k, control.member_entry(k).announced.load(Ordering::Acquire)))
        .filter(|&(k, bytes)| bytes > 0 && control.is_alive(k))
        .fold(0, |all, (_, bytes)| all.saturating_add(bytes))
}

/// What a thread of this member is about to commit, until dropped.
struct Announced<'a> {
    control: &'a Control,
    me: usize,
    bytes: u64,
    /// A child that a signal handler forks takes back nothing.
    cookie: u64,
}

impl Announced<'_> {
    fn set(&mut self, bytes: u64) {
        let all = &self.control.member_entry(self.me).announced;
        let change = |all: u64| Some(all.saturating_sub(self.bytes).saturating_add(bytes));
        let _ = all.fetch_update(Ordering::AcqRel, Ordering::Relaxed, change);
        self.bytes = bytes;
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        if self.cookie == fork::cookie() {
            self.set(0);
        }
    }
}

//! What the processes of a round do, and what they check while they have a message in hand.

use std::panic::resume_unwind;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use ropeway::{Error, Handle, Pool, Result, Wait, WriteLease};

use crate::arrays;
use crate::chance::{Chance, mix};
use crate::deeds;
use crate::ledger::{EACH, Ledger, Message, PRODUCERS, Person, now};
use crate::plan::{Deed, Fate, Plan, Role, field};

/// How long anybody waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What the thread of a process unwinds with when it is its fate.
pub struct Unwound;

/// A process of a round, from the inside.
pub struct Actor<'a> {
    pub plan: &'a Plan,
    pub ledger: &'a Ledger,
    /// Its place in the plan; the judge's is behind the last.
    pub index: usize,
    pub chance: Chance,
    /// The last message of each producer that it has taken, plus 1.
    seen: [usize; PRODUCERS],
}

impl<'a> Actor<'a> {
    pub fn new(plan: &'a Plan, ledger: &'a Ledger, index: usize) -> Actor<'a> {
        let chance = Chance(mix(plan.seed ^ (index as u64 + 1)));
        Actor { plan, ledger, index, chance, seen: [0; PRODUCERS] }
    }

    pub fn me(&self) -> &'a Person {
        &self.ledger.people[self.index]
    }

    /// All others, with their roles.
    pub fn everybody(&self) -> impl Iterator<Item = (Role, &'a Person)> + use<'a> {
        let (plan, people) = (self.plan, &self.ledger.people);
        plan.parts.iter().enumerate().map(move |(index, part)| (part.role, &people[index]))
    }

    /// How many of them have not left yet.
    pub fn living(&self) -> usize {
        self.everybody().filter(|(_, person)| !person.has_left()).count()
    }

    /// How many came to an end that wasn't theirs.
    pub fn gone(&self) -> usize {
        self.everybody().filter(|(_, person)| person.is_gone()).count()
    }

    /// True when those who are gone hold nothing, as `has_settled` says; notes how long that took.
    pub fn note_recoveries(&self, has_settled: impl Fn(&Person) -> Result<bool>) -> Result<bool> {
        let mut settled = true;
        for (_, person) in self.everybody() {
            if !person.is_gone() || person.recovery.load(SeqCst) > 0 {
                continue;
            }
            if has_settled(person)? {
                let took = now().saturating_sub(person.gone_at.load(SeqCst));
                person.recovery.store(took + 1, SeqCst);
            } else {
                settled = false;
            }
        }
        Ok(settled)
    }

    fn role(&self) -> Option<Role> {
        self.plan.parts.get(self.index).map(|part| part.role)
    }

    fn fate(&self) -> &'a Fate {
        self.plan.parts.get(self.index).map_or(&Fate::Peace, |part| &part.fate)
    }

    /// Plays a role to its end.
    pub fn play(&mut self, role: Role) -> Result<()> {
        match role {
            Role::Maker => return self.make(),
            Role::Sharer => return arrays::share(self),
            _ => {}
        }
        let pool = self.join()?;
        match role {
            Role::Producer(number) => self.produce(&pool, number)?,
            Role::Relay => while self.relay(&pool, PATIENCE)? {},
            _ => while self.consume(&pool, PATIENCE)? {},
        }
        ropeway::leave_all();
        drop(pool);
        Ok(())
    }

    fn make(&mut self) -> Result<()> {
        let pool = Pool::create(&self.plan.options)?;
        self.ledger.set_handle(&pool.handle()?.to_bytes());
        self.until("it was dismissed", |ledger| ledger.dismissed.load(SeqCst) > 0);
        pool.close()?;
        ropeway::leave_all();
        Ok(())
    }

    /// Joins the pool of the round.
    pub fn join(&self) -> Result<Pool> {
        self.until("the pool was made", |ledger| ledger.handle().is_some());
        let pool = match &self.plan.options.name {
            Some(name) if self.index.is_multiple_of(2) => Pool::find(name),
            _ => Pool::attach(&Handle::from_bytes(&self.ledger.handle().unwrap_or_default())?),
        };
        self.ledger.joined.fetch_add(1, SeqCst);
        pool
    }

    /// Waits until the ledger says so.
    pub fn until(&self, what: &str, so: impl Fn(&Ledger) -> bool) {
        let mut tries = 0;
        while !so(self.ledger) {
            tries += 1;
            std::thread::sleep(Duration::from_micros(50));
            if tries == 100_000 {
                return self.ledger.complain(format!("never: {what}"));
            }
        }
    }

    // ---- messages -----------------------------------------------------------------------------

    fn produce(&mut self, pool: &Pool, number: usize) -> Result<()> {
        for seq in 0..self.plan.messages {
            // What a thread that died had begun is begun again.
            let id = number * EACH + seq;
            if self.ledger.messages[id].published.load(SeqCst) > 0 {
                continue;
            }
            let slot = match self.wait(|wait| pool.acquire_with(wait)) {
                Ok(slot) => slot,
                Err(Error::Closed(_) | Error::PeerDied(_)) if self.plan_ends_early() => return Ok(()),
                Err(e) => return Err(e),
            };
            self.fill(slot, id)?;
        }
        Ok(())
    }

    fn fill(&mut self, mut slot: WriteLease, id: usize) -> Result<()> {
        let message = &self.ledger.messages[id];
        self.me().current.store(id as u32 + 1, SeqCst);
        if self.plan.options.fields.is_none() {
            let len = self.chance.pick(&[8, 60, 600, 3000]);
            slot.add(field(len), &mut || true)?;
        }
        write(&mut slot, id, 0)?;
        self.linger(Some(&mut slot));
        message.begun.store(1, SeqCst);
        slot.publish()?;
        message.published.store(1, SeqCst);
        self.me().current.store(0, SeqCst);
        Ok(())
    }

    /// Changes a message in place and sends it on; false at the end.
    pub fn relay(&mut self, pool: &Pool, timeout: Duration) -> Result<bool> {
        let taken = match timeout.is_zero() {
            true => pool.take_mut_with("change", None, &mut Wait::new(Some(timeout), &mut || true)),
            false => self.wait(|wait| pool.take_mut_with("change", None, wait)),
        };
        let Some(mut slot) = self.unless_over(taken, timeout)? else { return Ok(false) };
        let Some(id) = self.identify(&slot.slice::<u64>("n")?) else { return Ok(true) };
        self.me().current.store(id as u32 + 1, SeqCst);
        write(&mut slot, id, 1)?;
        self.linger(Some(&mut slot));
        slot.publish()?;
        self.me().current.store(0, SeqCst);
        Ok(true)
    }

    /// Takes a message and looks at it; false at the end.
    pub fn consume(&mut self, pool: &Pool, timeout: Duration) -> Result<bool> {
        if self.plan.writing_readers {
            let take = |wait: &mut Wait<'_>| pool.take_mut_with("use", None, wait);
            let taken = if timeout.is_zero() { at_once(take) } else { self.wait(take) };
            let Some(mut slot) = self.unless_over(taken, timeout)? else { return Ok(false) };
            let Some(message) = self.read(&slot.slice::<u64>("n")?, slot.deliveries()) else {
                return Ok(true);
            };
            self.linger(Some(&mut slot));
            slot.release()?;
            self.finish(message);
        } else {
            let take = |wait: &mut Wait<'_>| pool.take_with(None, wait);
            let taken = if timeout.is_zero() { at_once(take) } else { self.wait(take) };
            let Some(slot) = self.unless_over(taken, timeout)? else { return Ok(false) };
            let Some(message) = self.read(&slot.slice::<u64>("n")?, slot.deliveries()) else {
                return Ok(true);
            };
            self.linger(None);
            slot.release()?;
            self.finish(message);
        }
        Ok(true)
    }

    fn finish_current(&self) {
        let current = self.me().current.load(SeqCst) as usize;
        if let Some(message) = current.checked_sub(1).and_then(|id| self.ledger.messages.get(id)) {
            self.finish(message);
        }
    }

    fn finish(&self, message: &Message) {
        message.done.fetch_add(1, SeqCst);
        self.me().current.store(0, SeqCst);
    }

    /// Checks every number of a message; says which it is.
    fn read(&mut self, numbers: &[u64], deliveries: u8) -> Option<&'a Message> {
        let id = self.identify(numbers)?;
        self.me().current.store(id as u32 + 1, SeqCst);
        let changes = u64::from(self.plan.has_relays());
        let wrong = |(place, found): &(usize, &u64)| **found != number(id, changes, *place);
        if let Some((place, found)) = numbers.iter().enumerate().skip(1).find(wrong) {
            let len = numbers.len();
            self.ledger.complain(format!("message {id} is torn: {found:#x} at {place} of {len}"));
        }
        let (producer, seq) = (id / EACH, id % EACH + 1);
        let in_order = !self.plan.has_relays()
            && self
                .plan
                .parts
                .iter()
                .all(|part| part.fate == Fate::Peace || matches!(part.role, Role::Producer(_)));
        if in_order && deliveries == 0 && seq <= self.seen[producer] {
            self.ledger.complain(format!("message {id} came after {}", self.seen[producer] - 1));
        }
        self.seen[producer] = seq;
        let message = &self.ledger.messages[id];
        message.read.fetch_add(1, SeqCst);
        Some(message)
    }

    fn identify(&self, numbers: &[u64]) -> Option<usize> {
        let id = numbers.first().map_or(usize::MAX, |&id| id as usize);
        let known = self.ledger.messages.get(id).is_some_and(|message| message.begun.load(SeqCst) > 0);
        if !known {
            self.ledger.complain(format!("a message that nobody has begun: {id}"));
        }
        known.then_some(id)
    }

    // ---- waiting ------------------------------------------------------------------------------

    /// Waits with or without a limit, but never for ever.
    fn wait<T>(&mut self, wait: impl FnOnce(&mut Wait<'_>) -> Result<T>) -> Result<T> {
        let end = std::time::Instant::now() + PATIENCE;
        let timeout = self.chance.one_in(2).then_some(PATIENCE);
        wait(&mut Wait::new(timeout, &mut || std::time::Instant::now() < end))
    }

    fn unless_over<T>(&self, taken: Result<T>, timeout: Duration) -> Result<Option<T>> {
        match taken {
            Ok(slot) => Ok(Some(slot)),
            Err(Error::Closed(_) | Error::PeerDied(_)) => Ok(None),
            Err(Error::Timeout(_)) if timeout.is_zero() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// True when the pool may close before all is published.
    fn plan_ends_early(&self) -> bool {
        self.plan.parts.iter().any(|part| part.role == Role::Maker && part.fate != Fate::Peace)
    }

    /// Keeps the lease for a moment, in which its fate may come.
    fn linger(&mut self, slot: Option<&mut WriteLease>) {
        let nth = self.me().leases.fetch_add(1, SeqCst) + 1;
        if self.chance.one_in(6) {
            std::thread::sleep(Duration::from_micros(self.chance.below(300)));
        }
        if let Fate::Do(when, deed) = *self.fate()
            && when == nth
        {
            if deed == Deed::Panic && self.role() == Some(Role::Consumer) {
                // A reader that unwinds gives its lease back.
                self.finish_current();
            }
            deeds::commit(deed, self, slot);
        }
    }
}

fn at_once<T>(take: impl FnOnce(&mut Wait<'_>) -> Result<T>) -> Result<T> {
    take(&mut Wait::new(Some(Duration::ZERO), &mut || true))
}

/// What stands at a place of a message after so many changes.
fn number(id: usize, changes: u64, place: usize) -> u64 {
    if place == 0 { id as u64 } else { mix((id << 32 | place) as u64).wrapping_add(changes) }
}

/// Writes every number of a message. Doing it again changes nothing.
fn write(slot: &mut WriteLease, id: usize, changes: u64) -> Result<()> {
    let mut numbers = slot.slice_mut::<u64>("n")?;
    numbers.iter_mut().enumerate().for_each(|(place, to)| *to = number(id, changes, place));
    Ok(())
}

/// Ends the calling thread by unwinding.
pub fn unwind() -> ! {
    resume_unwind(Box::new(Unwound))
}

//! The protocol of a pool, apart from the memory that it runs on.
//!
//! A [`Board`] is handed its storage by a [`Store`]: the mapped control segment, or the heap
//! objects of a model checker. Here are the moves with their memory orderings, and closing;
//! `sweep.rs` has the members and taking back what the dead held, `wait.rs` the waiting. The protocol
//! is explained in `docs/protocol.md`.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::sweep::Tenancy;
use crate::sync::{AtomicU32, AtomicU64, Ordering, crash_point, fence, model_fence, spin_hint};
use crate::word::{Move, Rules, State, Step, Word, step};

/// The shared words of one slot, alone on their cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    /// Where the slot is: a [`Word`].
    pub word: AtomicU64,
    /// Its place in the order of publishing; valid only together with the word loaded before it.
    pub ticket: AtomicU64,
    /// Monotonic time in ns of the last claim, for messages only.
    pub since: AtomicU64,
    /// The last word whose published bytes were lost, keyed by its generation.
    pub loss: AtomicU64,
    /// Process id of the holder in `loss`, for messages only.
    pub loss_pid: AtomicU64,
    /// A number that the holder gives its content, by which others can ask for it.
    pub number: AtomicU64,
    /// Kernel thread that made the last claim, until its lease ends; for messages, and to tell a
    /// thread that it waits for itself.
    pub thread: AtomicU64,
}

impl Slot {
    /// A slot that starts with `word`.
    pub fn new(word: Word) -> Slot {
        Slot {
            word: AtomicU64::new(word.0),
            ticket: AtomicU64::new(0),
            since: AtomicU64::new(0),
            loss: AtomicU64::new(0),
            loss_pid: AtomicU64::new(0),
            number: AtomicU64::new(0),
            thread: AtomicU64::new(0),
        }
    }

    /// Loads the word, with everything that its last mover wrote before.
    pub fn load(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    pub(crate) fn swap(&self, from: Word, to: Word) -> Result<Word, Word> {
        self.word
            .compare_exchange(from.0, to.0, Ordering::SeqCst, Ordering::Acquire)
            .map(|_| to)
            .map_err(Word)
    }
}

/// Whether the pool still takes new slots; it only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Phase {
    /// Slots go round.
    Open = 0,
    /// No new slot is begun; what is there is drained.
    Closed = 1,
    /// Closed because the creator died.
    Orphaned = 2,
    /// Every wait ends, nothing is published any more.
    Aborted = 3,
}

impl Phase {
    fn of(bits: u32) -> Phase {
        match bits {
            0 => Phase::Open,
            1 => Phase::Closed,
            2 => Phase::Orphaned,
            _ => Phase::Aborted,
        }
    }
}

/// The storage of a board: memory of a mapped segment, or of a model.
pub trait Store {
    /// The rules by which slots move.
    fn rules(&self) -> &Rules;
    /// How many slots may exist; scans end here.
    fn slots(&self) -> usize;
    /// The words of slot `index`.
    fn slot(&self, index: usize) -> &Slot;
    /// Lets scans see slot `index` too.
    fn extend_to(&self, index: usize);
    /// The event count of a stage.
    fn event(&self, stage: usize) -> &AtomicU32;
    /// The word that holds the [`Phase`].
    fn phase(&self) -> &AtomicU32;
    /// The counter that gives each slot that is published to a stage its place there.
    fn tickets(&self, stage: usize) -> &AtomicU64;
    /// How many member indices have ever been used.
    fn members(&self) -> usize;
    /// The word of a member.
    fn member(&self, index: usize) -> &AtomicU64;
    /// Asks the kernel whether the member's address space still exists.
    fn is_alive(&self, member: usize) -> bool;
    /// The member's process id, for messages.
    fn pid(&self, member: usize) -> u64;
    /// Takes back what else the dead member had, beyond slots. May run more than once.
    fn take_back_more(&self, member: usize, tenancy: Tenancy);
    /// Notes that a member is gone, before its entry is freed. May run more than once.
    fn note_death(&self, member: usize, tenancy: Tenancy);
    /// Counts a member that is gone, after its entry was freed; once, unless the sweeper dies too.
    fn count_death(&self, tenancy: Tenancy);
    /// Sleeps while the word has this value, at most for `slice`; true when an event ended it.
    fn sleep(&self, event: &AtomicU32, value: u32, slice: Duration) -> bool;
    /// Wakes all who sleep on the word.
    fn wake(&self, event: &AtomicU32);
    /// Monotonic time in ns, the same for all processes; may be coarse.
    fn now(&self) -> u64;
    /// The calling thread, never 0.
    fn thread(&self) -> u64;
    /// How many messages may be filling or waiting at once (queues).
    fn waiting_limit(&self) -> Option<usize>;
}

/// A slot that the caller holds now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Index of the slot.
    pub index: usize,
    /// Its word, as the claim left it.
    pub word: Word,
}

/// How often a producer that clashes with others over a queue's last place tries again.
const CLASHES: u64 = if cfg!(any(loom, shuttle)) { 2 } else { 32 };

/// What this process has taken, for [`Board::take_next`].
#[derive(Debug, Default)]
pub struct Taken {
    /// It has taken every ticket below this one.
    below: std::sync::atomic::AtomicU64,
    /// Where the next ticket is likely to be.
    index: std::sync::atomic::AtomicUsize,
}

impl Taken {
    fn count(&self, ticket: u64, index: usize, slots: usize) {
        self.index.store(if index < slots { index } else { 0 }, Relaxed);
        let _ = self.below.compare_exchange(ticket, ticket.wrapping_add(1), Relaxed, Relaxed);
    }
}

/// The moves of a pool over its storage.
#[derive(Debug)]
pub struct Board<S>(pub S);

impl<S: Store> Board<S> {
    // ---- claiming -------------------------------------------------------------------------

    /// Takes a free slot, beginning the search at `hint`.
    pub fn acquire(&self, me: usize, hint: usize) -> Option<Claim> {
        self.within_limit(me, || self.claim_free(me, hint))
    }

    /// Takes a free slot, or brings one into being, among at most `limit`, if none is free.
    ///
    /// A slot that came free behind the scan, or that was given back because another producer took
    /// the queue's last place, is one to take: a pool must not grow with every such race.
    pub fn acquire_or_add(&self, me: usize, hint: usize, limit: usize) -> Option<Claim> {
        self.within_limit(me, || {
            loop {
                if let Some(claim) = self.claim_free(me, hint) {
                    break Some(claim);
                }
                if !(0..self.0.slots()).any(|index| self.0.slot(index).load().is_idle_at(0)) {
                    break self.claim_absent(me, limit);
                }
            }
        })
    }

    /// Brings a slot into being, among at most `limit`, held by `me`.
    pub fn add(&self, me: usize, limit: usize) -> Option<Claim> {
        self.within_limit(me, || self.claim_absent(me, limit))
    }

    fn claim_free(&self, me: usize, hint: usize) -> Option<Claim> {
        let slots = self.0.slots();
        let start = if hint < slots { hint } else { 0 };
        (start..slots).chain(0..start).find_map(|index| {
            let word = self.0.slot(index).load();
            if word.is_idle_at(0) { self.claim(index, word, Move::Acquire { me }) } else { None }
        })
    }

    fn claim_absent(&self, me: usize, limit: usize) -> Option<Claim> {
        (0..limit).find_map(|index| {
            if index >= self.0.slots() {
                self.0.extend_to(index);
            }
            let word = self.0.slot(index).load();
            if word.state() == Some(State::Absent) { self.claim(index, word, Move::Add { me }) } else { None }
        })
    }

    /// Takes the slot at `stage` that was published first.
    ///
    /// One scan isn't enough for first-in-first-out: a slot may be published behind the scan and
    /// another, later one, before it. Whatever was published before the candidate is visible to a
    /// scan that begins after the candidate was seen, so scans go on until one finds nothing lower.
    pub fn take(&self, me: usize, stage: usize, write: bool) -> Option<Claim> {
        self.take_where(me, stage, write, |_| true)
    }

    /// Takes the slot at `stage` that was published first, and looks first where it is if this
    /// process is the only one that takes.
    ///
    /// Each ticket is drawn once, so when this process has taken all below the next one, nothing
    /// can stand before that one, and one look replaces the scans.
    pub fn take_next(&self, me: usize, stage: usize, write: bool, taken: &Taken) -> Option<Claim> {
        let (next, index) = (taken.below.load(Relaxed), taken.index.load(Relaxed));
        if index < self.0.slots() {
            let slot = self.0.slot(index);
            let word = slot.load();
            if word.is_idle_at(stage) && slot.ticket.load(Ordering::Relaxed) == next {
                let claim = self.claim(index, word, Move::Take { me, stage, write });
                if claim.is_some() {
                    taken.count(next, index + 1, self.0.slots());
                    self.notify_room();
                    return claim;
                }
            }
        }
        let claim = self.take(me, stage, write)?;
        let ticket = self.0.slot(claim.index).ticket.load(Ordering::Relaxed);
        taken.count(ticket, claim.index + 1, self.0.slots());
        Some(claim)
    }

    /// Takes the first of those slots at `stage` whose content is `wanted`.
    pub fn take_where(
        &self,
        me: usize,
        stage: usize,
        write: bool,
        wanted: impl Fn(&Slot) -> bool,
    ) -> Option<Claim> {
        loop {
            let mut first = self.lowest(stage, u64::MAX, &wanted)?;
            while let Some(lower) = self.lowest(stage, first.2, &wanted) {
                first = lower;
            }
            let claim = self.claim(first.0, first.1, Move::Take { me, stage, write });
            if claim.is_some() {
                self.notify_room();
                return claim;
            }
        }
    }

    /// Tells those who wait for room in a queue that a message was taken.
    fn notify_room(&self) {
        if self.0.waiting_limit().is_some() {
            self.notify(0);
        }
    }

    fn lowest(
        &self,
        stage: usize,
        below: u64,
        wanted: &impl Fn(&Slot) -> bool,
    ) -> Option<(usize, Word, u64)> {
        let mut lowest = None;
        let mut below = below;
        for index in 0..self.0.slots() {
            let slot = self.0.slot(index);
            let word = slot.load();
            // What stands beside the word is valid only with the word: the claim's swap decides.
            if word.is_idle_at(stage) && wanted(slot) {
                // No pool lives to draw the last one; a garbled slot must not be beyond all takers.
                let ticket = slot.ticket.load(Ordering::Relaxed).min(u64::MAX - 1);
                if ticket < below {
                    below = ticket;
                    lowest = Some((index, word, ticket));
                }
            }
        }
        lowest
    }

    /// Claims a slot by one move from exactly `from`.
    pub fn claim(&self, index: usize, from: Word, mv: Move) -> Option<Claim> {
        let slot = self.0.slot(index);
        crash_point!("claim.before");
        let word = slot.swap(from, step(from, mv, self.0.rules())?.to).ok()?;
        crash_point!("claim.after");
        slot.since.store(self.0.now(), Ordering::Relaxed);
        slot.thread.store(self.0.thread(), Ordering::Relaxed);
        Some(Claim { index, word })
    }

    /// True while a queue has room for one message more, besides `own` of the caller.
    pub fn has_room(&self, own: usize) -> bool {
        let Some(limit) = self.0.waiting_limit() else { return true };
        let waiting = (0..self.0.slots())
            .map(|index| self.0.slot(index).load())
            .filter(|word| match word.state() {
                Some(State::Idle) => word.stage() > 0,
                Some(State::HeldWrite) => word.stage() == 0,
                _ => false,
            })
            .count();
        waiting < limit.saturating_add(own)
    }

    /// Makes a claim if there is room, and gives it back when others have used the last place.
    ///
    /// Of two that do so at the same time each may see the other and step back. So they try again, at
    /// different paces: one of them is to get the place, also if none waits for it.
    fn within_limit(&self, me: usize, claim: impl Fn() -> Option<Claim>) -> Option<Claim> {
        for round in 0..CLASHES {
            if !self.has_room(0) {
                return None;
            }
            let claim = claim()?;
            if self.0.waiting_limit().is_none() {
                return Some(claim);
            }
            fence(Ordering::SeqCst);
            if self.has_room(1) {
                return Some(claim);
            }
            self.move_on(claim, Move::PutBack { me });
            (0..round * (1 + self.0.thread() % 16)).for_each(|_| spin_hint());
        }
        None
    }

    /// A look, far cheaper than a claim, at whether the claim of a waiter that spins may succeed.
    ///
    /// It spares the line of the slot: each look of a spinner takes it away from the holder, who is
    /// about to write there. Acquirers look at the slot that comes next, takers at the tickets that
    /// were drawn; other slots are seen by the claims that the waiter makes as well.
    pub fn may_have_come(&self, stage: usize, hint: usize, tickets: u64) -> bool {
        match stage {
            0 => self.0.slot(hint).load().is_idle_at(0),
            _ => self.0.tickets(stage).load(Ordering::Relaxed) != tickets,
        }
    }

    // ---- moving on ------------------------------------------------------------------------

    /// Makes a move of the holder; false when the word isn't the holder's any more.
    pub fn move_on(&self, claim: Claim, mv: Move) -> bool {
        let Some(to) = step(claim.word, mv, self.0.rules()) else { return false };
        let slot = self.0.slot(claim.index);
        if let Move::Publish { .. } = mv {
            let ticket = self.0.tickets(to.to.stage()).fetch_add(1, Ordering::Relaxed);
            crash_point!("publish.ticket");
            slot.ticket.store(ticket, Ordering::Relaxed);
        }
        self.record_loss(slot, claim.word, to);
        // Before the word: the next holder's claim is seen before its own thread is written.
        slot.thread.store(0, Ordering::Relaxed);
        crash_point!("move.before");
        if slot.swap(claim.word, to.to).is_err() {
            return false;
        }
        crash_point!("move.after");
        // A slot that is gone can come into being again, which producers wait for, too.
        self.notify(to.to.stage());
        true
    }

    /// Writes that published bytes are gone, before the slot moves; only ever to a newer generation.
    pub(crate) fn record_loss(&self, slot: &Slot, from: Word, to: Step) {
        if !to.lost {
            return;
        }
        let mut last = Word(slot.loss.load(Ordering::Acquire));
        while last.generation() < from.generation() {
            slot.loss_pid.store(from.owner().map_or(0, |k| self.0.pid(k)), Ordering::Relaxed);
            crash_point!("loss.before");
            match slot.loss.compare_exchange(last.0, from.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => last = Word(now),
            }
        }
    }

    /// Wakes those who sleep at `stage`, if any do. The caller has moved a word there, by a swap.
    pub fn notify(&self, stage: usize) {
        model_fence();
        if self.0.event(stage).load(Ordering::SeqCst) & 1 != 0 {
            self.advance(stage);
        }
        if self.phase() != Phase::Open {
            self.advance_all();
        }
    }

    /// Counts an event at `stage` and wakes all who sleep there.
    fn advance(&self, stage: usize) {
        let event = self.0.event(stage);
        let mut value = event.load(Ordering::Relaxed);
        while let Err(now) =
            event.compare_exchange(value, (value & !1).wrapping_add(2), Ordering::AcqRel, Ordering::Relaxed)
        {
            value = now;
        }
        crash_point!("advance.after");
        self.0.wake(event);
    }

    /// Counts an event at every stage.
    pub fn advance_all(&self) {
        for stage in 0..=self.0.rules().last {
            self.advance(stage);
        }
    }

    // ---- closing --------------------------------------------------------------------------

    /// The phase that the pool is in.
    pub fn phase(&self) -> Phase {
        Phase::of(self.0.phase().load(Ordering::SeqCst))
    }

    /// Brings the pool into `phase`, unless it is further already.
    pub fn enter(&self, phase: Phase) {
        crash_point!("close.before");
        let mut now = self.0.phase().load(Ordering::Acquire);
        while now < phase as u32 {
            match self.0.phase().compare_exchange(now, phase as u32, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        crash_point!("close.after");
        fence(Ordering::SeqCst);
        self.advance_all();
    }

    /// Confirms a claim at the first stage, or gives it back because the pool isn't open.
    ///
    /// The claim comes first and the look second, so that after `close` returned no slot is begun
    /// that a taker doesn't see.
    pub fn confirm(&self, me: usize, claim: Claim) -> Result<Claim, Phase> {
        model_fence();
        match self.phase() {
            Phase::Open => Ok(claim),
            phase => {
                self.move_on(claim, Move::PutBack { me });
                Err(phase)
            }
        }
    }

    /// True when nothing can come to `stage` any more. The caller has seen the pool closed.
    pub fn is_drained(&self, stage: usize) -> bool {
        fence(Ordering::SeqCst);
        (0..self.0.slots()).all(|index| {
            let word = self.0.slot(index).load();
            match word.state() {
                Some(State::Idle) => word.stage() == 0 || word.stage() > stage,
                Some(State::HeldRead | State::HeldWrite) => word.stage() >= stage,
                _ => true,
            }
        })
    }
}

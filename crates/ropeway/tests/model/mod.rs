//! A pool on the heap of a model checker, and a ledger that knows what really happened.
//!
//! [`Heap`] is the [`Store`] of the real code over the atomics of loom or shuttle. A member's lock in
//! the kernel is a flag, a futex is a mutex and a condition variable without timeouts, so a lost
//! wake-up is a deadlock, which the checkers report. Only where the protocol leans on the slice of a
//! sleep does time pass: while somebody who died hasn't been swept, and for waits with a timeout.
//!
//! [`Member`] composes the pieces of [`Board`] as `pool.rs` does.
#![allow(dead_code)] // each model uses its part

mod ledger;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

#[cfg(loom)]
use loom::sync::{Arc, Condvar, Mutex};
#[cfg(loom)]
use loom::thread;
#[cfg(shuttle)]
use shuttle::sync::{Arc, Condvar, Mutex};
#[cfg(shuttle)]
use shuttle::thread;

use ropeway::board::{Board, Claim, Phase, Slot, Store, Swept, Tenancy};
use ropeway::sync::crash::{self, Died, Hook};
use ropeway::sync::{AtomicU32, AtomicU64, Ordering};
use ropeway::wait::{Ended, Patience, SLICE, Spin, Waiter};
use ropeway::word::{Move, Rules, State, Word};

pub use ledger::Ledger;

/// The size and the rules of a modelled pool.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Slots that exist from the start.
    pub slots: usize,
    /// Slots that may exist.
    pub max_slots: usize,
    /// Index of the last stage.
    pub last: usize,
    pub repeatable: u16,
    pub redeliveries: u8,
    /// Entries for members.
    pub members: usize,
    pub waiting_limit: Option<usize>,
}

impl Shape {
    /// A pool with the stages `fill` and `use`.
    pub fn new(slots: usize, members: usize) -> Shape {
        Shape {
            slots,
            max_slots: slots,
            last: 1,
            repeatable: 0,
            redeliveries: 3,
            members,
            waiting_limit: None,
        }
    }
}

/// The batch that lies in a slot: its number three times, so that half a write shows.
#[cfg(loom)]
struct Bytes(loom::cell::UnsafeCell<[u64; 3]>);

// SAFETY: loom checks every access and fails the model at the first race.
#[cfg(loom)]
unsafe impl Sync for Bytes {}
// SAFETY: plain numbers.
#[cfg(loom)]
unsafe impl Send for Bytes {}

#[cfg(loom)]
impl Bytes {
    fn new() -> Bytes {
        Bytes(loom::cell::UnsafeCell::new([0; 3]))
    }

    fn get(&self) -> [u64; 3] {
        // SAFETY: loom has checked that nobody writes now.
        self.0.with(|bytes| unsafe { *bytes })
    }

    fn set(&self, at: usize, value: u64) {
        // SAFETY: loom has checked that nobody else reads or writes now.
        self.0.with_mut(|bytes| unsafe { (*bytes)[at] = value });
    }
}

/// The batch that lies in a slot: its number three times, so that half a write shows.
#[cfg(shuttle)]
struct Bytes([AtomicU64; 3]);

#[cfg(shuttle)]
impl Bytes {
    fn new() -> Bytes {
        Bytes([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)])
    }

    fn get(&self) -> [u64; 3] {
        [0, 1, 2].map(|at| self.0[at].load(Ordering::Relaxed))
    }

    fn set(&self, at: usize, value: u64) {
        self.0[at].store(value, Ordering::Relaxed);
    }
}

/// An event count, and where its sleepers lie.
struct Event {
    word: AtomicU32,
    bed: Mutex<()>,
    bell: Condvar,
}

/// The storage of a modelled pool.
pub struct Heap {
    shape: Shape,
    rules: Rules,
    slots: Vec<Slot>,
    visible: AtomicU32,
    bytes: Vec<Bytes>,
    events: Vec<Event>,
    phase: AtomicU32,
    tickets: AtomicU64,
    members: Vec<AtomicU64>,
    /// 1 while an address space holds the member's lock.
    locks: Vec<AtomicU32>,
    /// The first incarnation of this member is the creator.
    pub creator: Option<usize>,
    pub ledger: Ledger,
}

impl Heap {
    fn event_of(&self, word: &AtomicU32) -> &Event {
        self.events.iter().find(|e| std::ptr::eq(&e.word, word)).expect("an event of this pool")
    }

    fn ring(&self, event: &Event) {
        let bed = event.bed.lock().unwrap();
        event.bell.notify_all();
        drop(bed);
    }

    /// True while an entry is that of a dead member: until the sweep, only the slice is promised.
    fn somebody_lies_dead(&self) -> bool {
        self.ledger
            .dead()
            .into_iter()
            .any(|(member, dead)| self.members[member].load(Ordering::Acquire) & !2 == dead.0 & !2)
    }
}

impl Store for Heap {
    fn rules(&self) -> &Rules {
        &self.rules
    }

    fn slots(&self) -> usize {
        // A pool that can't grow needs no load, which spares the models some states.
        if self.shape.slots == self.shape.max_slots {
            return self.shape.slots;
        }
        self.visible.load(Ordering::Acquire) as usize
    }

    fn slot(&self, index: usize) -> &Slot {
        &self.slots[index]
    }

    fn extend_to(&self, index: usize) {
        self.visible.fetch_max(index as u32 + 1, Ordering::AcqRel);
    }

    fn event(&self, stage: usize) -> &AtomicU32 {
        &self.events[stage].word
    }

    fn phase(&self) -> &AtomicU32 {
        &self.phase
    }

    fn tickets(&self) -> &AtomicU64 {
        &self.tickets
    }

    fn members(&self) -> usize {
        self.members.len()
    }

    fn member(&self, index: usize) -> &AtomicU64 {
        &self.members[index]
    }

    fn is_alive(&self, member: usize) -> bool {
        self.locks[member].load(Ordering::Acquire) == 1
    }

    fn pid(&self, member: usize) -> u64 {
        100 + member as u64
    }

    fn take_back_more(&self, _: usize, _: Tenancy) {}

    fn note_death(&self, member: usize, tenancy: Tenancy) {
        if self.creator == Some(member) && tenancy.incarnation() == 0 {
            let phase = if tenancy.is_clean() { Phase::Closed } else { Phase::Orphaned };
            self.phase.fetch_max(phase as u32, Ordering::AcqRel);
        }
    }

    fn count_death(&self, _: Tenancy) {}

    fn sleep(&self, event: &AtomicU32, value: u32, slice: Duration) -> bool {
        crash::reached("sleep");
        let event = self.event_of(event);
        let bed = event.bed.lock().unwrap();
        if event.word.load(Ordering::Relaxed) != value {
            return true;
        }
        if slice < SLICE || self.somebody_lies_dead() {
            drop(bed);
            thread::yield_now();
            return false;
        }
        drop(event.bell.wait(bed).unwrap());
        true
    }

    fn wake(&self, event: &AtomicU32) {
        self.ring(self.event_of(event));
    }

    fn now(&self) -> u64 {
        0
    }

    fn thread(&self) -> u64 {
        1
    }

    fn waiting_limit(&self) -> Option<usize> {
        self.shape.waiting_limit
    }
}

/// A modelled pool.
pub struct Pool {
    pub board: Board<Heap>,
}

impl Pool {
    pub fn new(shape: Shape) -> Arc<Pool> {
        Pool::with_creator(shape, None)
    }

    /// A pool that is orphaned when the first member with this index dies.
    pub fn with_creator(shape: Shape, creator: Option<usize>) -> Arc<Pool> {
        let word = |index| if index < shape.slots { Word::FREE } else { Word::ABSENT };
        let event = || Event { word: AtomicU32::new(0), bed: Mutex::new(()), bell: Condvar::new() };
        let heap = Heap {
            shape,
            rules: Rules {
                last: shape.last,
                repeatable: shape.repeatable,
                redeliveries: shape.redeliveries,
            },
            slots: (0..shape.max_slots).map(|index| Slot::new(word(index))).collect(),
            visible: AtomicU32::new(shape.slots as u32),
            bytes: (0..shape.max_slots).map(|_| Bytes::new()).collect(),
            events: (0..=shape.last).map(|_| event()).collect(),
            phase: AtomicU32::new(0),
            tickets: AtomicU64::new(0),
            members: (0..shape.members).map(|_| AtomicU64::new(0)).collect(),
            locks: (0..shape.members).map(|_| AtomicU32::new(0)).collect(),
            creator,
            ledger: Ledger::new(shape.max_slots),
        };
        Arc::new(Pool { board: Board(heap) })
    }

    fn heap(&self) -> &Heap {
        &self.board.0
    }

    pub fn ledger(&self) -> &Ledger {
        &self.heap().ledger
    }

    pub fn close(&self) {
        self.board.enter(Phase::Closed);
    }

    /// Joins on that entry, if its lock and its word are free: the lock first.
    pub fn join(self: &Arc<Pool>, me: usize) -> Option<Member> {
        let lock = &self.heap().locks[me];
        lock.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).ok()?;
        match self.board.join(me) {
            Some(tenancy) => Some(Member { pool: self.clone(), me, tenancy }),
            None => {
                lock.store(0, Ordering::Release);
                None
            }
        }
    }

    /// Joins on an entry that nobody else wants.
    pub fn member(self: &Arc<Pool>, me: usize) -> Member {
        self.join(me).expect("the entry is free")
    }

    /// Joins on any entry, sweeping if there is none.
    pub fn join_any(self: &Arc<Pool>) -> Member {
        loop {
            let entries = 0..self.heap().members.len();
            if let Some(member) = entries.into_iter().find_map(|me| self.join(me)) {
                return member;
            }
            self.board.sweep();
            thread::yield_now();
        }
    }

    /// What the kernel does when an address space goes; a slice passes for everybody who sleeps.
    fn vanish(&self, me: usize, tenancy: Tenancy) {
        self.ledger().died(me, tenancy);
        self.heap().locks[me].store(0, Ordering::Release);
        for event in &self.heap().events {
            self.heap().ring(event);
        }
    }

    /// Checks, when only `survivor` is left, that the dead hold nothing and that nothing was lost
    /// but what the pool says.
    pub fn settle(&self, survivor: &Member) {
        survivor.sweep();
        for (index, lock) in self.heap().locks.iter().enumerate() {
            let dead = self.board.tenancy(index).is_live() && lock.load(Ordering::Acquire) == 0;
            assert!(!dead, "the entry of the dead member {index} wasn't freed");
        }
        for index in 0..self.board.0.slots() {
            let word = self.board.0.slot(index).load();
            let holder = self.ledger().holder(index);
            assert_eq!(word.owner(), holder, "slot {index}, {word:?}: its word, and who holds it");
        }
        for stage in 1..=self.heap().rules.last {
            while let Some(held) = survivor.try_take(stage) {
                survivor.pass_on(held);
            }
        }
        let loss = |index: usize| Word(self.board.0.slot(index).loss.load(Ordering::Acquire));
        self.ledger().audit(loss);
    }
}

/// Waits without end.
pub struct Forever;

impl Patience for Forever {
    fn left(&self) -> Option<Duration> {
        None
    }

    fn pulse(&mut self) -> bool {
        true
    }
}

/// A wait with a timeout of so many slices.
pub struct Slices(pub u32);

impl Patience for Slices {
    fn left(&self) -> Option<Duration> {
        Some(SLICE.mul_f32(0.5) * self.0.min(1))
    }

    fn pulse(&mut self) -> bool {
        self.0 = self.0.saturating_sub(1);
        true
    }
}

/// A participant that holds a slot.
#[must_use]
pub struct Held {
    pub claim: Claim,
    pub batch: u64,
}

/// A participant, at home in an address space of its own.
pub struct Member {
    pub pool: Arc<Pool>,
    pub me: usize,
    pub tenancy: Tenancy,
}

impl Member {
    pub fn board(&self) -> &Board<Heap> {
        &self.pool.board
    }

    fn ledger(&self) -> &Ledger {
        self.pool.ledger()
    }

    fn bytes(&self, claim: Claim) -> &Bytes {
        &self.pool.heap().bytes[claim.index]
    }

    /// Lives until `dies` says otherwise at one of the points; the result of a life that went well.
    pub fn mortal<R>(&self, dies: Hook, life: impl FnOnce(&Member) -> R) -> Option<R> {
        crash::install(Some(dies));
        let end = catch_unwind(AssertUnwindSafe(|| life(self)));
        crash::install(None);
        match end {
            Ok(result) => Some(result),
            Err(cause) if cause.is::<Died>() => {
                self.pool.vanish(self.me, self.tenancy);
                None
            }
            Err(cause) => resume_unwind(cause),
        }
    }

    /// Leaves by a normal exit: nothing is held, so the entry goes at once.
    pub fn exit(self) {
        self.board().leave(self.me, self.tenancy);
        self.board().depart(self.me);
        self.pool.heap().locks[self.me].store(0, Ordering::Release);
    }

    /// Leaves by a normal exit with whatever it holds.
    pub fn exit_holding(self, held: Held) {
        self.board().leave(self.me, self.tenancy);
        if held.claim.word.stage() == self.pool.heap().rules.last {
            self.ledger().consumed(held.batch);
        }
        self.pool.vanish(self.me, self.tenancy);
    }

    pub fn sweep(&self) -> Swept {
        self.board().sweep()
    }

    fn wait<T>(
        &self,
        stage: usize,
        patience: &mut impl Patience,
        claim: impl FnMut() -> Option<T>,
        ended: impl FnMut() -> Option<Ended>,
    ) -> Result<T, Ended> {
        let due = || self.pool.heap().somebody_lies_dead();
        let waiter = Waiter { stage, spin: &Spin::new(Duration::ZERO), sweep_due: &due };
        self.board().wait(&waiter, patience, claim, ended)
    }

    // ---- filling ------------------------------------------------------------------------------

    fn claim_free(&self) -> Option<Result<Claim, Phase>> {
        let board = self.board();
        let shape = &self.pool.heap().shape;
        let claim = board.acquire(self.me, 0);
        let claim = claim.or_else(|| {
            if shape.slots < shape.max_slots { board.add(self.me, shape.max_slots) } else { None }
        });
        match claim {
            Some(claim) => Some(board.confirm(self.me, claim)),
            None => Some(board.phase()).filter(|&phase| phase != Phase::Open).map(Err),
        }
    }

    fn filling(&self, claim: Claim, batch: u64) -> Held {
        self.ledger().claimed(claim.index, self.me);
        self.ledger().confirmed(self.pool.heap().shape.waiting_limit);
        self.ledger().begun(batch, claim.index);
        let bytes = self.bytes(claim);
        bytes.set(0, batch);
        bytes.set(1, batch);
        crash::reached("bytes.half");
        bytes.set(2, batch);
        Held { claim, batch }
    }

    /// Claims a free slot if there is one, and fills it.
    pub fn try_fill(&self, batch: u64) -> Option<Held> {
        Some(self.filling(self.claim_free()?.ok()?, batch))
    }

    /// Waits for a free slot and fills it.
    pub fn fill(&self, batch: u64, patience: &mut impl Patience) -> Result<Held, Ended> {
        let found = self.wait(0, patience, || self.claim_free(), || None)?;
        found.map(|claim| self.filling(claim, batch)).map_err(Ended::Over)
    }

    /// Fills a slot and publishes it.
    pub fn send(&self, batch: u64) -> Result<(), Ended> {
        let held = self.fill(batch, &mut Forever)?;
        self.publish(held);
        Ok(())
    }

    pub fn publish(&self, held: Held) {
        self.move_on(&held, Move::Publish { me: self.me });
        self.ledger().published(held.batch, held.claim.word.generation() + 1);
    }

    // ---- taking -------------------------------------------------------------------------------

    fn taking(&self, claim: Claim) -> Held {
        self.ledger().claimed(claim.index, self.me);
        let [batch, a, b] = self.bytes(claim).get();
        let torn = batch != a || a != b;
        // Only a repeatable stage sees what a dead changer left, and makes it good from the plan.
        let repeatable = self.pool.heap().rules.repeatable & (1 << claim.word.stage()) != 0;
        assert!(!torn || repeatable, "slot {} was delivered half changed: {batch} {a} {b}", claim.index);
        self.ledger().delivered(batch, claim.word);
        Held { claim, batch }
    }

    fn claim_published(&self, stage: usize) -> Option<Claim> {
        if self.board().phase() == Phase::Aborted {
            return None;
        }
        self.ledger().taking(true);
        let claim = self.board().take(self.me, stage, stage != self.pool.heap().rules.last);
        self.ledger().taking(false);
        if claim.is_some() {
            self.ledger().taken();
        }
        claim
    }

    /// Takes a slot at a stage if one waits there; at the last stage to read.
    pub fn try_take(&self, stage: usize) -> Option<Held> {
        self.claim_published(stage).map(|claim| self.taking(claim))
    }

    /// Waits for a slot at a stage.
    pub fn take(&self, stage: usize, patience: &mut impl Patience) -> Result<Held, Ended> {
        let drained = || {
            let phase = self.board().phase();
            let over = phase == Phase::Aborted || phase != Phase::Open && self.board().is_drained(stage);
            over.then_some(Ended::Over(phase))
        };
        let claim = self.wait(stage, patience, || self.claim_published(stage), drained)?;
        Ok(self.taking(claim))
    }

    /// Does the work of a stage: changes in place and publishes, or reads and releases.
    pub fn pass_on(&self, held: Held) {
        let (stage, last) = (held.claim.word.stage(), self.pool.heap().rules.last);
        if stage < last {
            self.change(&held);
            self.publish(held);
        } else {
            self.consume(held);
        }
    }

    /// Takes at a stage until the pool is closed and drained; the batches in their order.
    pub fn serve(&self, stage: usize) -> Vec<u64> {
        let mut served = Vec::new();
        while let Ok(held) = self.take(stage, &mut Forever) {
            served.push(held.batch);
            self.pass_on(held);
        }
        served
    }

    /// Works in place on a slot that is held to write.
    pub fn change(&self, held: &Held) {
        let bytes = self.bytes(held.claim);
        bytes.set(1, u64::MAX);
        crash::reached("bytes.half");
        bytes.set(1, held.batch);
        bytes.set(2, held.batch);
    }

    pub fn consume(&self, held: Held) {
        let batch = held.batch;
        assert_eq!(self.bytes(held.claim).get(), [batch; 3], "slot {} while it is read", held.claim.index);
        self.ledger().consuming(batch);
        self.move_on(&held, Move::Release { me: self.me });
        self.ledger().consumed(batch);
    }

    /// Gives back a slot as it was.
    pub fn put_back(&self, held: Held) {
        self.ledger().put_back(held.batch);
        self.move_on(&held, Move::PutBack { me: self.me });
    }

    /// Gives back a slot that was filled and not published, or changed and not passed on.
    pub fn abandon(&self, held: Held) {
        let me = self.me;
        let mv = if held.claim.word.stage() == 0 { Move::Release { me } } else { Move::Abandon { me } };
        self.move_on(&held, mv);
    }

    fn move_on(&self, held: &Held, mv: Move) {
        self.ledger().given(held.claim.index, self.me);
        let moved = self.board().move_on(held.claim, mv);
        assert!(moved, "slot {} was taken from its living holder {}", held.claim.index, self.me);
    }
}

/// Dies at the `n`-th point that it reaches, counted from 0; `reached` counts them.
pub fn dies_at(n: usize) -> Hook {
    let mut passed = 0;
    Box::new(move |_| {
        passed += 1;
        passed == n + 1
    })
}

/// Survives, so that only points are counted.
pub fn is_held(word: Word) -> bool {
    matches!(word.state(), Some(State::HeldRead | State::HeldWrite))
}

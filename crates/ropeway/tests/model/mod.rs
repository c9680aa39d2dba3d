//! A pool on the heap of a model checker, and a ledger that knows what really happened.
//!
//! [`Heap`] is the [`Store`] of the real code over the atomics of loom or shuttle. A member's lock in
//! the kernel is a flag, a futex is a mutex and a condition variable without timeouts, so a lost
//! wake-up is a deadlock, which the checkers report. Only where the protocol leans on the slice of a
//! sleep does time pass: while somebody who died hasn't been swept, and for waits with a timeout.
//!
//! [`Member`] composes the pieces of [`Board`] as `claim.rs` does.
#![allow(dead_code)] // each model uses its part

pub mod arrays;
mod bytes;
mod ledger;
mod member;
pub mod planted;
pub mod scenes;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

#[cfg(loom)]
use loom::sync::{Condvar, Mutex};
#[cfg(loom)]
pub use loom::thread;
#[cfg(shuttle)]
use shuttle::sync::{Condvar, Mutex};
#[cfg(shuttle)]
pub use shuttle::thread;

use ropeway::board::{Board, Phase, Slot, Store};
use ropeway::marks::{self, Marks};
use ropeway::sweep::Tenancy;
use ropeway::sync::crash::{self, Died, Hook};
use ropeway::sync::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use ropeway::wait::SLICE;
use ropeway::word::{Rules, State, Word};

use bytes::Bytes;
pub use ledger::Ledger;
pub use member::{Forever, Held, Member, Slices, dies_at};

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
    /// Whether slots hold arrays, which members mark.
    pub arrays: bool,
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
            arrays: false,
        }
    }

    /// The pool of a session's arrays.
    pub fn arena(slots: usize, members: usize) -> Shape {
        Shape { repeatable: 0b10, redeliveries: u8::MAX, arrays: true, ..Shape::new(slots, members) }
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
    tickets: Vec<AtomicU64>,
    members: Vec<AtomicU64>,
    /// 1 while an address space holds the member's lock.
    locks: Vec<AtomicU32>,
    arrays: Vec<Array>,
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

    fn tickets(&self, stage: usize) -> &AtomicU64 {
        &self.tickets[stage]
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

    fn take_back_more(&self, member: usize, tenancy: Tenancy) {
        if self.shape.arrays {
            marks::take_back(self, member, tenancy);
        }
    }

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

/// What the pool knows of the array in a slot.
struct Array {
    marks: Vec<AtomicU16>,
    passed: AtomicU64,
    serial: AtomicU64,
}

impl Marks for Heap {
    fn mark(&self, member: usize, slot: usize) -> &AtomicU16 {
        &self.arrays[slot].marks[member]
    }

    fn passed(&self, slot: usize) -> &AtomicU64 {
        &self.arrays[slot].passed
    }

    fn serial(&self, slot: usize) -> &AtomicU64 {
        &self.arrays[slot].serial
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
        let array = || Array {
            marks: (0..shape.members).map(|_| AtomicU16::new(0)).collect(),
            passed: AtomicU64::new(0),
            serial: AtomicU64::new(0),
        };
        let event = || Event { word: AtomicU32::new(0), bed: Mutex::new(()), bell: Condvar::new() };
        let heap = Heap {
            shape,
            rules: Rules { last: shape.last, repeatable: shape.repeatable, redeliveries: shape.redeliveries },
            slots: (0..shape.max_slots).map(|index| Slot::new(word(index))).collect(),
            visible: AtomicU32::new(shape.slots as u32),
            bytes: (0..shape.max_slots).map(|_| Bytes::new()).collect(),
            events: (0..=shape.last).map(|_| event()).collect(),
            phase: AtomicU32::new(0),
            tickets: (0..=shape.last).map(|_| AtomicU64::new(0)).collect(),
            members: (0..shape.members).map(|_| AtomicU64::new(0)).collect(),
            locks: (0..shape.members).map(|_| AtomicU32::new(0)).collect(),
            arrays: (0..if shape.arrays { shape.slots } else { 0 }).map(|_| array()).collect(),
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

    /// Locks a member's byte, if nobody has.
    fn lock(&self, me: usize) -> bool {
        let lock = &self.heap().locks[me];
        crash::spared(|| lock.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_ok())
    }

    fn unlock(&self, me: usize) {
        crash::spared(|| self.heap().locks[me].store(0, Ordering::Release));
    }

    /// Joins on that entry, if its lock and its word are free: the lock first.
    pub fn join(self: &Arc<Pool>, me: usize) -> Option<Member> {
        // A look before saves a lock on what is still the entry of somebody dead, who would seem alive.
        if self.board.tenancy(me).is_live() || !self.lock(me) {
            return None;
        }
        let joined = catch_unwind(AssertUnwindSafe(|| self.board.join(me)));
        match joined {
            Ok(Some(tenancy)) => Some(Member::new(self, me, tenancy)),
            Ok(None) => {
                self.unlock(me);
                None
            }
            Err(died) => {
                self.vanish(me, self.board.tenancy(me));
                resume_unwind(died)
            }
        }
    }

    /// Joins and lives until `dies` says otherwise at one of the points, in joining at the earliest.
    ///
    /// The result of a life that went well, if it began.
    pub fn newcomer<R>(
        self: &Arc<Pool>,
        dies: Hook,
        join: impl FnOnce(&Arc<Pool>) -> Option<Member>,
        life: impl FnOnce(&Member) -> R,
    ) -> Option<Option<R>> {
        let mut born = None;
        let result = until_death(dies, || {
            born = join(self);
            born.as_ref().map(life)
        });
        if result.is_none() {
            // Whoever is killed in a sweep before it is a member leaves no sign: the slice serves.
            self.let_a_slice_pass();
            born.inspect(Member::die);
        }
        result
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
        self.unlock(me);
        self.let_a_slice_pass();
    }

    fn let_a_slice_pass(&self) {
        self.heap().events.iter().for_each(|event| self.heap().ring(event));
    }

    /// Checks, when only `survivor` is left, that the dead hold nothing and that nothing was lost
    /// but what the pool says.
    pub fn settle(&self, survivor: &Member) {
        survivor.sweep();
        for (index, lock) in self.heap().locks.iter().enumerate() {
            let (lives, is_live) = (lock.load(Ordering::Acquire) == 1, self.board.tenancy(index).is_live());
            assert_eq!(is_live, lives, "member {index}: whether it has its entry, and whether it lives");
        }
        for index in 0..self.board.0.slots() {
            let word = self.board.0.slot(index).load();
            let holder = self.ledger().holder(index);
            assert_eq!(word.owner(), holder, "slot {index}, {word:?}: its word, and who holds it");
            // Whoever makes a slot visible may die before it adds it.
            let there = word.is_held() || word.state() == Some(State::Idle);
            assert!(there || index >= self.heap().shape.slots, "slot {index} is lost: {word:?}");
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

/// Runs until `dies` says otherwise at one of the points; the result, if it never did.
fn until_death<R>(dies: Hook, life: impl FnOnce() -> R) -> Option<R> {
    crash::install(Some(dies));
    let end = catch_unwind(AssertUnwindSafe(life));
    crash::install(None);
    match end {
        Ok(result) => Some(result),
        Err(cause) if cause.is::<Died>() => None,
        Err(cause) => resume_unwind(cause),
    }
}

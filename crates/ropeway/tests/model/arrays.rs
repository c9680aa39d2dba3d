//! Arrays that a set of members holds: scenes, and the protocol with a piece left out.

use std::sync::Arc;

use ropeway::board::{Board, Claim, Store};
use ropeway::marks::{CLAIMED, LIVE, Marks, PICKLED};
use ropeway::sync::{AtomicU16, Ordering};
use ropeway::word::Move;

use super::{Heap, Member, Pool, Shape, dies_at, thread};

/// A handle: slot and number of an array.
#[derive(Clone, Copy)]
pub struct Handle {
    slot: usize,
    serial: u64,
}

/// How a member lets go of an array.
pub type LetGo = fn(&Member, usize);
/// How a member opens an array; true if it is there.
pub type Open = fn(&Member, Handle) -> bool;

impl Member {
    /// Makes an array in a free slot, as `Arena::allocate` does.
    pub fn make(&self) -> Option<Handle> {
        let (board, heap) = (self.board(), &self.board().0);
        let claim = board.acquire(self.me, 0)?;
        let serial = heap.tickets(0).fetch_add(1, Ordering::AcqRel) + 1;
        (0..3).for_each(|at| heap.bytes[claim.index].set(at, serial));
        heap.passed(claim.index).store(0, Ordering::Relaxed);
        heap.serial(claim.index).store(serial, Ordering::Release);
        board.set_mark(self.me, self.tenancy, claim.index);
        assert!(board.move_on(claim, Move::Publish { me: self.me }));
        Some(Handle { slot: claim.index, serial })
    }

    /// Opens an array, as `Arena::open_slot` does.
    pub fn open(&self, handle: Handle) -> bool {
        self.board().set_mark(self.me, self.tenancy, handle.slot);
        let live = self.board().is_live(handle.slot, handle.serial);
        self.opened(handle, live)
    }

    fn opened(&self, handle: Handle, live: bool) -> bool {
        match live {
            true => _ = self.board().0.passed(handle.slot).fetch_or(CLAIMED, Ordering::AcqRel),
            false => self.let_go(handle.slot),
        }
        live
    }

    pub fn let_go(&self, slot: usize) {
        self.board().clear_mark(self.me, slot);
        self.board().free_unmarked(self.me, slot);
    }

    /// Opens an array, reads it, lets go of it; whether it was there.
    fn visit(&self, handle: Handle, open: Open) -> bool {
        let there = open(self, handle);
        if there {
            self.read(handle);
            self.let_go(handle.slot);
        }
        there
    }

    /// Nobody else has the array's memory while it is open here.
    fn read(&self, handle: Handle) {
        let found = self.board().0.bytes[handle.slot].get();
        assert_eq!(found, [handle.serial; 3], "array {} is another by now", handle.serial);
    }

    /// Frees what the dead have left, as `Arena::sweep` does.
    pub fn sweep_arrays(&self) {
        if self.sweep().dead > 0 {
            for slot in 0..self.board().0.slots() {
                self.board().free_unmarked(self.me, slot);
            }
        }
    }

    // ---- planted ------------------------------------------------------------------------------

    pub fn open_looking_first(&self, handle: Handle) -> bool {
        let live = self.board().is_live(handle.slot, handle.serial);
        self.board().set_mark(self.me, self.tenancy, handle.slot);
        self.opened(handle, live)
    }

    pub fn open_whatever_is_there(&self, handle: Handle) -> bool {
        self.board().set_mark(self.me, self.tenancy, handle.slot);
        let serial = self.board().0.serial(handle.slot).load(Ordering::Acquire);
        let live = self.board().is_live(handle.slot, serial);
        self.opened(handle, live)
    }

    pub fn let_go_without_fence(&self, slot: usize) {
        self.board().0.mark(self.me, slot).store(0, Ordering::Release);
        self.board().free_unmarked(self.me, slot);
    }

    /// Frees what nobody has marked before it was claimed.
    pub fn let_go_without_second_look(&self, slot: usize) {
        let (board, me) = (self.board(), self.me);
        board.clear_mark(me, slot);
        let word = board.0.slot(slot).load();
        let marked = (0..board.0.members()).any(|k| board.0.mark(k, slot).load(Ordering::Acquire) != 0);
        if word.is_idle_at(LIVE) && !marked {
            let claim = board.claim(slot, word, Move::Take { me, stage: LIVE, write: true });
            claim.map(|claim: Claim| board.move_on(claim, Move::Release { me }));
        }
    }

    /// Sweeps, and clears the marks of the dead in a way of its own, without a fence.
    fn sweep_clearing(&self, clear: impl Fn(&AtomicU16)) {
        let heap = &self.board().0;
        for dead in 0..heap.members() {
            let tenancy = self.board().tenancy(dead);
            if tenancy.is_live() && !heap.is_alive(dead) {
                (0..heap.slots()).for_each(|slot| clear(heap.mark(dead, slot)));
                let (word, freed) = (heap.member(dead), (tenancy.incarnation() + 1) << 2);
                let _ = word.compare_exchange(tenancy.0, freed, Ordering::AcqRel, Ordering::Acquire);
            }
        }
        (0..heap.slots()).for_each(|slot| _ = self.board().free_unmarked(self.me, slot));
    }

    /// So that a late one clears the next member's.
    pub fn sweep_by_stores(&self) {
        self.sweep_clearing(|mark| mark.store(0, Ordering::Release));
    }

    pub fn sweep_without_fence(&self) {
        self.sweep_clearing(|mark| _ = mark.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed));
    }
}

/// When only `survivor` is left: no mark, and each slot free unless its array waits to be opened.
fn settle(survivor: &Member) {
    survivor.sweep_arrays();
    let board: &Board<Heap> = survivor.board();
    for slot in 0..board.0.slots() {
        let word = board.0.slot(slot).load();
        let marks: Vec<_> =
            (0..board.0.members()).map(|k| board.0.mark(k, slot).load(Ordering::Acquire)).collect();
        assert!(marks.iter().all(|&mark| mark == 0), "slot {slot} is marked by the dead: {marks:?}");
        let kept = word.is_idle_at(LIVE) && board.is_awaited(slot);
        assert!(word.is_idle_at(0) || kept, "slot {slot} is lost: {word:?}");
    }
}

fn arena(slots: usize, members: usize) -> Arc<Pool> {
    Pool::new(Shape::arena(slots, members))
}

/// Both holders of an array let go of it.
pub fn two_let_go(let_go: LetGo) {
    let pool = arena(1, 2);
    let (one, two) = (pool.member(0), pool.member(1));
    let array = one.make().unwrap();
    assert!(two.open(array));
    let other = thread::spawn(move || let_go(&two, array.slot));
    let_go(&one, array.slot);
    other.join().unwrap();
    settle(&one);
}

/// One opens an array while its only holder lets go of it, and makes another in the same place.
pub fn opening_the_last(open: Open, let_go: LetGo) {
    let pool = arena(1, 2);
    let (one, two) = (pool.member(0), pool.member(1));
    let array = one.make().unwrap();
    let visiting = thread::spawn(move || two.visit(array, open));
    let_go(&one, array.slot);
    if let Some(next) = one.make() {
        one.read(next);
        let_go(&one, next.slot);
    }
    visiting.join().unwrap();
    settle(&one);
}

/// An array that was pickled stays until it is opened, though its maker lets go of it.
pub fn opening_what_waits() {
    let pool = arena(1, 2);
    let (one, two) = (pool.member(0), pool.member(1));
    let array = one.make().unwrap();
    one.board().0.passed(array.slot).fetch_or(PICKLED, Ordering::AcqRel);
    let visiting = thread::spawn(move || two.visit(array, Member::open));
    one.let_go(array.slot);
    assert!(visiting.join().unwrap(), "an array was freed before anybody had opened it");
    settle(&one);
}

/// One dies at its `n`-th point while it makes, opens and drops arrays; true if it died.
pub fn a_holder_dies_at(n: usize) -> bool {
    let pool = arena(2, 2);
    let (one, victim) = (pool.member(0), pool.member(1));
    let array = one.make().unwrap();
    let living = thread::spawn(move || {
        let life = |victim: &Member| {
            victim.visit(array, Member::open);
            if let Some(own) = victim.make() {
                victim.board().0.passed(own.slot).fetch_or(PICKLED, Ordering::AcqRel);
                victim.visit(own, Member::open);
            }
        };
        victim.mortal(dies_at(n), life).is_none()
    });
    one.read(array);
    one.let_go(array.slot);
    one.sweep_arrays();
    let died = living.join().unwrap();
    settle(&one);
    died
}

/// Two sweep what a dead holder has left; one of them dies at its `n`-th point; true if it did.
pub fn a_sweeper_of_arrays_dies_at(n: usize) -> bool {
    let pool = arena(1, 3);
    let (one, victim, two) = (pool.member(0), pool.member(1), pool.member(2));
    victim.make().unwrap();
    victim.die();
    let sweeping = thread::spawn(move || two.mortal(dies_at(n), Member::sweep_arrays).is_none());
    one.sweep_arrays();
    let died = sweeping.join().unwrap();
    settle(&one);
    died
}

/// Two sweep a dead holder while a newcomer marks an array on the same index.
pub fn sweepers_and_a_newcomer_with_an_array(sweep: fn(&Member)) {
    let pool = arena(1, 3);
    let (one, victim, two) = (pool.member(0), pool.member(1), pool.member(2));
    victim.make().unwrap();
    victim.die();
    let sweeping = thread::spawn(move || sweep(&two));
    let joining = {
        let pool = pool.clone();
        thread::spawn(move || {
            let newcomer = pool.join(1)?;
            let array = newcomer.make();
            array.map(|array| newcomer.read(array));
            array.map(|array| assert!(newcomer.is_marked(array), "a newcomer's mark was cleared"));
            array.map(|array| newcomer.let_go(array.slot));
            Some(newcomer)
        })
    };
    sweep(&one);
    sweeping.join().unwrap();
    let newcomer = joining.join().unwrap();
    settle(&one);
    drop(newcomer);
}

impl Member {
    fn is_marked(&self, array: Handle) -> bool {
        self.board().0.mark(self.me, array.slot).load(Ordering::Acquire) != 0
    }
}

/// A parent marks an array for its child, and dies; the child still has it.
pub fn a_childs_array(sweep: fn(&Member)) {
    let pool = arena(1, 3);
    let (one, parent, child) = (pool.member(0), pool.member(1), pool.member(2));
    let array = parent.make().unwrap();
    parent.board().set_mark(child.me, child.tenancy, array.slot);
    let growing_up = thread::spawn(move || {
        child.read(array);
        child.let_go(array.slot);
    });
    parent.die();
    sweep(&one);
    if let Some(next) = one.make() {
        one.let_go(next.slot);
    }
    growing_up.join().unwrap();
    settle(&one);
}

//! The protocol with one piece left out or misplaced each: the models must notice.

use std::sync::Arc;

use ropeway::board::{Claim, Phase, Store};
use ropeway::sweep::Tenancy;
use ropeway::sync::{Ordering, crash, fence};
use ropeway::wait::SLICE;
use ropeway::word::{Move, Word, step};

use super::{Held, Member, Pool, thread};

/// A sweep with its safeguards, which can be switched off.
#[derive(Clone, Copy)]
pub struct Sweep {
    /// Looks at the member word again before each move.
    pub looks_twice: bool,
    /// Moves by compare-and-swap.
    pub swaps: bool,
    /// Records a loss before the move.
    pub records_first: bool,
    /// Gives the freed entry a new incarnation.
    pub counts: bool,
}

impl Sweep {
    pub const SOUND: Sweep = Sweep { looks_twice: true, swaps: true, records_first: true, counts: true };

    /// Sweeps for `member`.
    pub fn run(self, member: &Member) {
        let heap = &member.board().0;
        for dead in 0..heap.members() {
            let tenancy = member.board().tenancy(dead);
            if tenancy.is_live() && !heap.is_alive(dead) && self.take_back(member, dead, tenancy) {
                let freed = if self.counts { (tenancy.incarnation() + 1) << 2 } else { tenancy.0 & !3 };
                let word = heap.member(dead);
                let _ = word.compare_exchange(tenancy.0, freed, Ordering::AcqRel, Ordering::Acquire);
            }
        }
        member.board().advance_all();
    }

    fn take_back(self, member: &Member, dead: usize, seen: Tenancy) -> bool {
        let heap = &member.board().0;
        for index in 0..heap.slots() {
            let slot = heap.slot(index);
            let word = slot.load();
            if !word.is_held() || word.owner() != Some(dead) {
                continue;
            }
            if self.looks_twice && member.board().tenancy(dead) != seen {
                return false;
            }
            let mv = Move::Sweep { owner: dead, clean: seen.is_clean() };
            let to = step(word, mv, heap.rules()).expect("a legal move");
            if to.lost && self.records_first {
                slot.loss.fetch_max(word.0, Ordering::AcqRel);
            }
            if self.swaps {
                member.swap(index, word, to.to);
            } else {
                slot.word.store(to.to.0, Ordering::Release);
            }
            crash::reached("planted");
            if to.lost {
                slot.loss.fetch_max(word.0, Ordering::AcqRel);
            }
        }
        true
    }
}

/// Joins by claiming the entry before its lock.
pub fn join_claiming_first(pool: &Arc<Pool>, me: usize) -> Option<Member> {
    let tenancy = pool.board.join(me)?;
    pool.lock(me).then(|| Member::new(pool, me, tenancy))
}

impl Member {
    fn swap(&self, index: usize, from: Word, to: Word) -> bool {
        let word = &self.board().0.slot(index).word;
        word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn step(&self, from: Word, mv: Move) -> Word {
        step(from, mv, self.board().0.rules()).expect("a legal move").to
    }

    /// Takes what one scan shows as the lowest.
    pub fn take_by_one_scan(&self) -> Option<Held> {
        let heap = &self.board().0;
        let waiting = (0..heap.slots()).filter_map(|index| {
            let word = heap.slot(index).load();
            word.is_idle_at(1).then(|| (heap.slot(index).ticket.load(Ordering::Relaxed), index, word))
        });
        let (_, index, word) = waiting.min_by_key(|(ticket, ..)| *ticket)?;
        let claim = self.board().claim(index, word, Move::Take { me: self.me, stage: 1, write: false })?;
        Some(self.taking(claim))
    }

    /// Takes by a scan and a claim that don't acquire what the publisher wrote.
    pub fn take_by_relaxed_loads(&self) -> Option<Held> {
        let heap = &self.board().0;
        let load = |index| Word(heap.slot(index).word.load(Ordering::Relaxed));
        let (index, word) = (0..heap.slots()).map(|i| (i, load(i))).find(|(_, word)| word.is_idle_at(1))?;
        let to = self.step(word, Move::Take { me: self.me, stage: 1, write: false });
        let slot = &heap.slot(index).word;
        slot.compare_exchange(word.0, to.0, Ordering::Release, Ordering::Relaxed).ok()?;
        Some(self.taking(Claim { index, word: to }))
    }

    /// Publishes, and looks for sleepers without a fence.
    pub fn publish_without_fence(&self, held: Held) {
        self.ledger().given(held.claim.index, self.me);
        let heap = &self.board().0;
        let to = self.step(held.claim.word, Move::Publish { me: self.me });
        assert!(self.swap(held.claim.index, held.claim.word, to));
        if heap.event(to.stage()).load(Ordering::Relaxed) & 1 != 0 {
            self.board().notify(to.stage());
        }
        self.ledger().published(held.batch, to.generation());
    }

    /// Looks for sleepers, and publishes then.
    pub fn publish_after_the_wake(&self, held: Held) {
        self.board().notify(held.claim.word.stage() + 1);
        self.ledger().given(held.claim.index, self.me);
        let to = self.step(held.claim.word, Move::Publish { me: self.me });
        assert!(self.swap(held.claim.index, held.claim.word, to));
        self.ledger().published(held.batch, to.generation());
    }

    /// Gives a filled slot back and wakes the sleepers of its stage, as if the pool were open.
    pub fn give_up_waking_one_stage(&self, held: Held) {
        self.ledger().given(held.claim.index, self.me);
        let to = self.step(held.claim.word, Move::Release { me: self.me });
        assert!(self.swap(held.claim.index, held.claim.word, to));
        fence(Ordering::SeqCst);
        let event = self.board().0.event(0);
        if event.fetch_add(2, Ordering::AcqRel) & 1 != 0 {
            self.board().0.wake(event);
        }
    }

    /// Waits, and announces its sleep without a fence.
    pub fn take_without_fence(&self) -> Held {
        let event = self.board().0.event(1);
        loop {
            let value = event.fetch_or(1, Ordering::AcqRel) | 1;
            if let Some(held) = self.try_take(1) {
                return held;
            }
            self.board().0.sleep(event, value, SLICE);
        }
    }

    /// Waits, and goes to sleep without a look after the announcement.
    pub fn take_without_second_claim(&self) -> Held {
        let event = self.board().0.event(1);
        loop {
            if let Some(held) = self.try_take(1) {
                return held;
            }
            let value = event.fetch_or(1, Ordering::AcqRel) | 1;
            fence(Ordering::SeqCst);
            self.board().0.sleep(event, value, SLICE);
        }
    }

    /// Fills a slot if the pool was open before the claim.
    pub fn try_fill_closed_checked_first(&self, batch: u64) -> Option<Held> {
        if self.board().phase() != Phase::Open {
            return None;
        }
        Some(self.filling(self.board().acquire(self.me, 0)?, batch))
    }

    /// Takes until it sees nothing on its way and then, later, that the pool is closed.
    pub fn serve_drained_checked_first(&self) -> usize {
        let mut served = 0;
        loop {
            while let Some(held) = self.try_take(1) {
                self.pass_on(held);
                served += 1;
            }
            if self.board().is_drained(1) && self.board().phase() != Phase::Open {
                return served;
            }
            thread::yield_now();
        }
    }

    /// Fills a slot of a queue if there was room before the claim.
    pub fn try_fill_without_second_look(&self, batch: u64) -> Option<Held> {
        if !self.board().has_room(0) {
            return None;
        }
        let (index, word) = (0..self.board().0.slots())
            .map(|index| (index, self.board().0.slot(index).load()))
            .find(|(_, word)| word.is_idle_at(0))?;
        let claim = self.board().claim(index, word, Move::Acquire { me: self.me })?;
        Some(self.filling(claim, batch))
    }

    /// Leaves by a normal exit that looks like a death.
    pub fn exit_without_a_word(&self, held: Held) {
        self.ledger().consumed(held.batch);
        self.pool.vanish(self.me, self.tenancy);
    }
}

//! The protocol with one piece left out or misplaced each: the models must notice.

use ropeway::board::{Phase, Store};
use ropeway::sync::{Ordering, fence};
use ropeway::wait::SLICE;
use ropeway::word::{Move, Word, step};

use super::{Held, Member};

impl Member {
    fn swap(&self, index: usize, from: Word, to: Word) -> bool {
        let word = &self.board().0.slot(index).word;
        word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn step(&self, from: Word, mv: Move) -> Word {
        step(from, mv, self.board().0.rules()).expect("a legal move").to
    }

    /// Takes what one scan shows as the lowest.
    pub fn take_by_one_scan(&self, stage: usize) -> Option<Held> {
        let heap = &self.board().0;
        let waiting = (0..heap.slots()).filter_map(|index| {
            let word = heap.slot(index).load();
            word.is_idle_at(stage).then(|| (heap.slot(index).ticket.load(Ordering::Relaxed), index, word))
        });
        let (_, index, word) = waiting.min_by_key(|(ticket, ..)| *ticket)?;
        let claim = self.board().claim(index, word, Move::Take { me: self.me, stage, write: false })?;
        Some(self.taking(claim))
    }

    /// Takes by a scan that doesn't acquire what the publisher wrote.
    pub fn take_by_relaxed_loads(&self, stage: usize) -> Option<Held> {
        let heap = &self.board().0;
        let load = |index| Word(heap.slot(index).word.load(Ordering::Relaxed));
        let (index, word) = (0..heap.slots()).map(|i| (i, load(i))).find(|(_, word)| word.is_idle_at(stage))?;
        let to = self.step(word, Move::Take { me: self.me, stage, write: false });
        let slot = &heap.slot(index).word;
        slot.compare_exchange(word.0, to.0, Ordering::Release, Ordering::Relaxed).ok()?;
        Some(self.taking(ropeway::board::Claim { index, word: to }))
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
    pub fn take_without_fence(&self, stage: usize) -> Held {
        let event = self.board().0.event(stage);
        loop {
            let value = event.fetch_or(1, Ordering::AcqRel) | 1;
            if let Some(held) = self.try_take(stage) {
                return held;
            }
            self.board().0.sleep(event, value, SLICE);
        }
    }

    /// Waits, and goes to sleep without a look after the announcement.
    pub fn take_without_second_claim(&self, stage: usize) -> Held {
        let event = self.board().0.event(stage);
        loop {
            if let Some(held) = self.try_take(stage) {
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

    /// Polls until it sees nothing on its way and then, later, that the pool is closed.
    pub fn serve_drained_checked_first(&self, stage: usize) -> usize {
        let mut served = 0;
        loop {
            while let Some(held) = self.try_take(stage) {
                self.pass_on(held);
                served += 1;
            }
            if self.board().is_drained(stage) && self.board().phase() != Phase::Open {
                return served;
            }
            super::thread::yield_now();
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

    /// Takes back what the dead held, by the index in the slot's word alone.
    pub fn sweep_without_second_look(&self) {
        let heap = &self.board().0;
        for member in 0..heap.members() {
            let tenancy = self.board().tenancy(member);
            if !tenancy.is_live() || heap.is_alive(member) {
                continue;
            }
            for index in 0..heap.slots() {
                let word = heap.slot(index).load();
                if word.is_held() && word.owner() == Some(member) {
                    let to = self.step(word, Move::Sweep { owner: member, clean: tenancy.is_clean() });
                    self.swap(index, word, to);
                }
            }
        }
        self.sweep();
    }

    /// Takes back what the dead held by stores.
    pub fn sweep_by_stores(&self) {
        let heap = &self.board().0;
        for member in 0..heap.members() {
            if !self.board().tenancy(member).is_live() || heap.is_alive(member) {
                continue;
            }
            for index in 0..heap.slots() {
                let word = heap.slot(index).load();
                if word.is_held() && word.owner() == Some(member) && self.board().tenancy(member).is_live() {
                    let to = self.step(word, Move::Sweep { owner: member, clean: false });
                    heap.slot(index).word.store(to.0, Ordering::Release);
                }
            }
        }
        self.sweep();
    }

    /// Frees the entries of the dead, under the same incarnation, before what they held.
    pub fn bury_first(&self) {
        for member in 0..self.board().0.members() {
            if self.board().tenancy(member).is_live() && !self.board().0.is_alive(member) {
                self.board().depart(member);
            }
        }
        self.sweep();
    }

    /// Takes back what dead changers held, and records the loss afterwards.
    pub fn sweep_recording_late(&self) {
        let heap = &self.board().0;
        for member in 0..heap.members() {
            let tenancy = self.board().tenancy(member);
            if !tenancy.is_live() || heap.is_alive(member) {
                continue;
            }
            for index in 0..heap.slots() {
                let word = heap.slot(index).load();
                if word.is_held() && word.owner() == Some(member) {
                    let to = self.step(word, Move::Sweep { owner: member, clean: tenancy.is_clean() });
                    self.swap(index, word, to);
                    ropeway::sync::crash::reached("planted");
                    heap.slot(index).loss.store(word.0, Ordering::Release);
                }
            }
        }
        self.sweep();
    }
}

//! A participant of a modelled pool. It composes the pieces of the board as `claim.rs` does.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use ropeway::board::{Board, Claim, Phase, Store, Taken};
use ropeway::sweep::{Swept, Tenancy};
use ropeway::sync::Ordering;
use ropeway::sync::crash::{self, Hook};
use ropeway::wait::{Ended, Patience, SLICE, Spin, Waiter};
use ropeway::word::Move;

use super::{Bytes, Heap, Ledger, Pool, until_death};

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

/// A wait that ends after `left` slices, or after `nerves` by a signal.
pub struct Slices {
    pub left: u32,
    pub nerves: u32,
}

impl Patience for Slices {
    fn left(&self) -> Option<Duration> {
        Some(SLICE.mul_f32(0.5) * self.left.min(1))
    }

    fn pulse(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.nerves = self.nerves.saturating_sub(1);
        self.nerves > 0
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
    /// Where it looks for a free slot first.
    hint: AtomicUsize,
    /// What it has taken at each stage.
    taken: Vec<Taken>,
}

impl Member {
    pub(super) fn new(pool: &Arc<Pool>, me: usize, tenancy: Tenancy) -> Member {
        let taken = (0..=pool.heap().rules.last).map(|_| Taken::default()).collect();
        Member { pool: pool.clone(), me, tenancy, hint: AtomicUsize::new(me), taken }
    }

    pub fn board(&self) -> &Board<Heap> {
        &self.pool.board
    }

    pub(super) fn ledger(&self) -> &Ledger {
        self.pool.ledger()
    }

    fn bytes(&self, claim: Claim) -> &Bytes {
        &self.pool.heap().bytes[claim.index]
    }

    /// Is killed, with whatever it holds.
    pub fn die(&self) {
        self.pool.vanish(self.me, self.tenancy);
    }

    /// Lives until `dies` says otherwise at one of the points; the result of a life that went well.
    pub fn mortal<R>(&self, dies: Hook, life: impl FnOnce(&Member) -> R) -> Option<R> {
        let result = until_death(dies, || life(self));
        if result.is_none() {
            self.die();
        }
        result
    }

    /// Leaves by a normal exit: nothing is held, so the entry goes at once.
    pub fn exit(&self) {
        self.board().leave(self.me, self.tenancy);
        self.board().depart(self.me);
        self.pool.unlock(self.me);
    }

    /// Leaves by a normal exit with whatever it holds.
    pub fn exit_holding(&self, held: Held) {
        self.ledger().consuming(held.batch);
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
        mut claim: impl FnMut() -> Option<T>,
        ended: impl FnMut() -> Option<Ended>,
    ) -> Result<T, Ended> {
        if let Some(found) = claim() {
            return Ok(found);
        }
        let due = || self.pool.heap().somebody_lies_dead();
        let waiter = Waiter { stage, spin: &Spin::new(Duration::ZERO), look: &|| true, sweep_due: &due };
        self.board().wait(&waiter, patience, claim, ended)
    }

    // ---- filling ------------------------------------------------------------------------------

    fn claim_free(&self) -> Option<Result<Claim, Phase>> {
        let board = self.board();
        let (shape, hint) = (&self.pool.heap().shape, self.hint.load(Ordering::Relaxed));
        let claim = match shape.slots < shape.max_slots {
            true => board.acquire_or_add(self.me, hint, shape.max_slots),
            false => board.acquire(self.me, hint),
        };
        match claim {
            Some(claim) => Some(board.confirm(self.me, claim)),
            None => Some(board.phase()).filter(|&phase| phase != Phase::Open).map(Err),
        }
    }

    pub(super) fn filling(&self, claim: Claim, batch: u64) -> Held {
        self.ledger().claimed(claim.index, self.me);
        self.ledger().confirmed(self.pool.heap().shape.waiting_limit);
        self.ledger().begun(batch, claim.index);
        self.hint.store(claim.index + 1, Ordering::Relaxed);
        self.board().0.slot(claim.index).number.store(batch, Ordering::Relaxed);
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

    /// Fills and publishes a free slot if there is one.
    pub fn try_send(&self, batch: u64) -> bool {
        let held = self.try_fill(batch);
        held.map(|held| self.publish(held)).is_some()
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

    pub(super) fn taking(&self, claim: Claim) -> Held {
        self.ledger().claimed(claim.index, self.me);
        let [batch, a, b] = self.bytes(claim).get();
        let torn = batch != a || a != b;
        // Only a repeatable stage sees what a dead changer left, and makes it good from the plan.
        let repeatable = self.pool.heap().rules.repeatable & (1 << claim.word.stage()) != 0;
        assert!(!torn || repeatable, "slot {} was delivered half changed: {batch} {a} {b}", claim.index);
        self.ledger().delivered(batch, claim.word);
        Held { claim, batch }
    }

    fn claim_published(&self, stage: usize, number: Option<u64>) -> Option<Claim> {
        if self.board().phase() == Phase::Aborted {
            return None;
        }
        let (me, write) = (self.me, stage != self.pool.heap().rules.last);
        self.ledger().taking(true);
        let claim = match number {
            None => self.board().take_next(me, stage, write, &self.taken[stage]),
            Some(n) => self.board().take_where(me, stage, write, |s| s.number.load(Ordering::Relaxed) == n),
        };
        self.ledger().taking(false);
        if claim.is_some() {
            self.ledger().taken();
        }
        claim
    }

    /// Takes a slot at a stage if one waits there; at the last stage to read.
    pub fn try_take(&self, stage: usize) -> Option<Held> {
        self.claim_published(stage, None).map(|claim| self.taking(claim))
    }

    /// Waits for a slot at a stage, or for the one of that number.
    pub fn take_numbered(
        &self,
        stage: usize,
        number: Option<u64>,
        patience: &mut impl Patience,
    ) -> Result<Held, Ended> {
        let drained = || {
            let phase = self.board().phase();
            let over = phase == Phase::Aborted || phase != Phase::Open && self.board().is_drained(stage);
            over.then_some(Ended::Over(phase))
        };
        let claim = self.wait(stage, patience, || self.claim_published(stage, number), drained)?;
        Ok(self.taking(claim))
    }

    /// Waits for a slot at a stage.
    pub fn take(&self, stage: usize, patience: &mut impl Patience) -> Result<Held, Ended> {
        self.take_numbered(stage, None, patience)
    }

    /// Takes a slot at a stage if one waits there, and does the work of the stage.
    pub fn pass(&self, stage: usize) -> bool {
        let held = self.try_take(stage);
        held.map(|held| self.pass_on(held)).is_some()
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

    /// Takes a free slot out of the pool.
    pub fn trim(&self, slot: usize) {
        let (board, me) = (self.board(), self.me);
        let word = board.0.slot(slot).load();
        if let Some(claim) =
            word.is_idle_at(0).then(|| board.claim(slot, word, Move::Acquire { me })).flatten()
        {
            assert!(board.move_on(claim, Move::Drop { me }));
        }
    }

    fn move_on(&self, held: &Held, mv: Move) {
        self.ledger().given(held.claim.index, self.me);
        let moved = self.board().move_on(held.claim, mv);
        assert!(moved, "slot {} was taken from its living holder {}", held.claim.index, self.me);
    }
}

/// Dies at the `n`-th point that is reached, counted from 0.
pub fn dies_at(n: usize) -> Hook {
    let mut passed = 0;
    Box::new(move |_| {
        passed += 1;
        passed == n + 1
    })
}

//! What really happened in a run: plain memory that the model checker doesn't see.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ropeway::sweep::Tenancy;
use ropeway::word::Word;

/// The true holders, and the fate of each batch.
pub struct Ledger(Mutex<Facts>);

#[derive(Default)]
struct Facts {
    holders: Vec<Option<usize>>,
    dead: Vec<(usize, Tenancy)>,
    batches: Vec<Batch>,
    /// Batches in a queue: filling or waiting for certain.
    waiting: usize,
    /// Takes under way, which may have claimed one of these already.
    taking: usize,
}

#[derive(Clone, Default)]
struct Batch {
    slot: usize,
    /// Generation at which it was seen published last; 0 if it wasn't for certain.
    published: u64,
    deliveries: usize,
    put_back: usize,
    /// A release has begun.
    consuming: bool,
    consumed: bool,
}

impl Facts {
    fn batch(&mut self, number: u64) -> &mut Batch {
        let number = number as usize;
        if self.batches.len() <= number {
            self.batches.resize(number + 1, Batch::default());
        }
        &mut self.batches[number]
    }
}

impl Ledger {
    pub fn new(slots: usize) -> Ledger {
        Ledger(Mutex::new(Facts { holders: vec![None; slots], ..Facts::default() }))
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn holder(&self, slot: usize) -> Option<usize> {
        self.facts().holders[slot]
    }

    pub fn claimed(&self, slot: usize, me: usize) {
        let before = self.facts().holders[slot].replace(me);
        assert_eq!(before, None, "slot {slot} is held twice, the second time by {me}");
    }

    pub fn given(&self, slot: usize, me: usize) {
        let before = self.facts().holders[slot].take();
        assert_eq!(before, Some(me), "slot {slot} is given back by {me}");
    }

    /// A member is gone, and with it what it held.
    pub fn died(&self, me: usize, tenancy: Tenancy) {
        let mut facts = self.facts();
        facts.holders.iter_mut().filter(|holder| **holder == Some(me)).for_each(|holder| *holder = None);
        facts.dead.push((me, tenancy));
    }

    pub fn dead(&self) -> Vec<(usize, Tenancy)> {
        self.facts().dead.clone()
    }

    /// A producer was let into the queue. Each death may have taken one out unseen.
    pub fn confirmed(&self, limit: Option<usize>) {
        let mut facts = self.facts();
        facts.waiting += 1;
        let (waiting, leaving) = (facts.waiting, facts.taking + facts.dead.len());
        if let Some(limit) = limit {
            assert!(
                waiting <= limit + leaving,
                "a queue of {limit} holds {waiting}, {leaving} on their way out"
            );
        }
    }

    pub fn taking(&self, begins: bool) {
        let mut facts = self.facts();
        facts.taking = if begins { facts.taking + 1 } else { facts.taking - 1 };
    }

    pub fn taken(&self) {
        let mut facts = self.facts();
        facts.waiting = facts.waiting.saturating_sub(1);
    }

    pub fn begun(&self, number: u64, slot: usize) {
        self.facts().batch(number).slot = slot;
    }

    pub fn published(&self, number: u64, generation: u64) {
        let mut facts = self.facts();
        let batch = facts.batch(number);
        batch.published = batch.published.max(generation);
    }

    pub fn put_back(&self, number: u64) {
        self.facts().batch(number).put_back += 1;
    }

    pub fn delivered(&self, number: u64, word: Word) {
        let mut facts = self.facts();
        let deaths = facts.dead.len();
        let batch = facts.batch(number);
        assert!(!batch.consumed, "batch {number} is delivered though it was consumed: {word:?}");
        // Stage s delivers once more than stage s - 1; each death and each return adds one.
        let most = word.stage() + deaths + batch.put_back;
        assert!(batch.deliveries < most, "batch {number} is delivered twice: {word:?}");
        assert!(usize::from(word.deliveries()) <= deaths, "{word:?} after {deaths} deaths");
        batch.deliveries += 1;
        batch.published = batch.published.max(word.generation() - 1);
    }

    pub fn consuming(&self, number: u64) {
        self.facts().batch(number).consuming = true;
    }

    pub fn consumed(&self, number: u64) {
        let mut facts = self.facts();
        let batch = facts.batch(number);
        assert!(!batch.consumed, "batch {number} is consumed twice");
        batch.consumed = true;
    }

    /// Checks that each batch that was published was consumed, or that the record of losses of its
    /// slot names it.
    pub fn audit(&self, loss: impl Fn(usize) -> Word) {
        let facts = self.facts();
        for (number, batch) in facts.batches.iter().enumerate() {
            // Whoever dies in a release may or may not have done it.
            let done = batch.consumed || batch.consuming && !facts.dead.is_empty();
            if batch.published > 0 && !done {
                let record = loss(batch.slot);
                assert!(
                    record.generation() > batch.published && record.owner().is_some(),
                    "batch {number} of slot {} is gone without a word: {record:?}",
                    batch.slot
                );
            }
        }
    }
}

//! Members: who comes, who leaves, and taking back what the dead held.

use crate::board::{Board, Store};
use crate::sync::{Ordering, crash_point};
use crate::word::{Move, step};

/// A member's word: incarnation, whether it lives, whether it left cleanly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenancy(pub u64);

impl Tenancy {
    const LIVE: u64 = 1;
    const CLEAN: u64 = 2;

    /// True from joining until everything that the member held has been taken back.
    pub fn is_live(self) -> bool {
        self.0 & Self::LIVE != 0
    }

    /// True once the member has left by a normal exit.
    pub fn is_clean(self) -> bool {
        self.0 & Self::CLEAN != 0
    }

    /// Counts the members that have had this index.
    pub fn incarnation(self) -> u64 {
        self.0 >> 2
    }

    fn joined(self) -> Tenancy {
        Tenancy(self.0 | Self::LIVE)
    }

    fn cleaned(self) -> Tenancy {
        Tenancy(self.0 | Self::CLEAN)
    }

    fn freed(self) -> Tenancy {
        Tenancy((self.incarnation() + 1) << 2)
    }
}

/// What a sweep found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Members that were gone.
    pub dead: usize,
    /// Slots that were taken back.
    pub slots: usize,
}

impl<S: Store> Board<S> {
    /// Claims a member's entry whose lock the caller holds already; `None` if it isn't free.
    pub fn join(&self, index: usize) -> Option<Tenancy> {
        let word = self.0.member(index);
        let free = Tenancy(word.load(Ordering::Acquire));
        if free.is_live() {
            return None;
        }
        crash_point!("join.before");
        word.compare_exchange(free.0, free.joined().0, Ordering::AcqRel, Ordering::Acquire).ok()?;
        crash_point!("join.after");
        Some(free.joined())
    }

    /// Marks a member as cleanly left. It claims nothing more.
    pub fn leave(&self, index: usize, tenancy: Tenancy) {
        let word = self.0.member(index);
        let _ = word.compare_exchange(tenancy.0, tenancy.cleaned().0, Ordering::AcqRel, Ordering::Acquire);
        crash_point!("leave.after");
    }

    /// Frees the entry of a member that holds nothing and still has its lock.
    pub fn depart(&self, index: usize) {
        let now = self.tenancy(index);
        let word = self.0.member(index);
        let _ = word.compare_exchange(now.0, now.freed().0, Ordering::AcqRel, Ordering::Acquire);
        crash_point!("depart.after");
    }

    /// The word of a member.
    pub fn tenancy(&self, index: usize) -> Tenancy {
        Tenancy(self.0.member(index).load(Ordering::Acquire))
    }

    /// Takes back what the dead held. Anybody may, at any time, any number of them at once.
    pub fn sweep(&self) -> Swept {
        let mut swept = Swept::default();
        for member in 0..self.0.members() {
            let tenancy = self.tenancy(member);
            if tenancy.is_live() && !self.0.is_alive(member) {
                swept.slots += self.take_back(member, tenancy);
                self.bury(member, tenancy, &mut swept);
            }
        }
        if swept != Swept::default() {
            self.advance_all();
        }
        swept
    }

    /// Takes back the slots of a dead member; stops as soon as others have finished with it.
    fn take_back(&self, member: usize, seen: Tenancy) -> usize {
        let mut moved = 0;
        for index in 0..self.0.slots() {
            let slot = self.0.slot(index);
            let mut word = slot.load();
            while word.is_held() && word.owner() == Some(member) {
                // The owner field is an index only: the second look ties the slot's word to the
                // dead incarnation, or else a late sweeper would rob the next owner of the index.
                let now = self.tenancy(member);
                if !now.is_live() || now.incarnation() != seen.incarnation() {
                    return moved;
                }
                let mv = Move::Sweep { owner: member, clean: now.is_clean() };
                let Some(to) = step(word, mv, self.0.rules()) else { break };
                self.record_loss(slot, word, to);
                crash_point!("sweep.before");
                match slot.swap(word, to.to) {
                    Ok(_) => {
                        crash_point!("sweep.after");
                        moved += 1;
                        break;
                    }
                    Err(other) => word = other,
                }
            }
        }
        moved
    }

    /// Frees the entry of a dead member for the next incarnation.
    fn bury(&self, member: usize, seen: Tenancy, swept: &mut Swept) {
        let now = self.tenancy(member);
        if !now.is_live() || now.incarnation() != seen.incarnation() {
            return;
        }
        self.0.take_back_more(member, now);
        self.0.note_death(member, now);
        crash_point!("bury.before");
        let word = self.0.member(member);
        if word.compare_exchange(now.0, now.freed().0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            swept.dead += 1;
            self.0.count_death(now);
        }
        crash_point!("bury.after");
    }
}

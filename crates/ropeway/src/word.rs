//! The word that says where a slot is, and every move it can make.
//!
//! One 64-bit word per slot is the whole truth about that slot. Each move is one compare-and-swap
//! from the exact word that was loaded, so there is no instant at which a kill can lose a slot.
//! The layout and the table of moves are those of `docs/protocol.md`; a test compares the two.

use std::fmt;

const STAGE_BITS: u32 = 4;
const STATE_BITS: u32 = 3;
const DELIVERY_BITS: u32 = 3;
const OWNER_BITS: u32 = 12;

const STATE_SHIFT: u32 = STAGE_BITS;
const DELIVERY_SHIFT: u32 = STATE_SHIFT + STATE_BITS;
const OWNER_SHIFT: u32 = DELIVERY_SHIFT + DELIVERY_BITS;
const GENERATION_SHIFT: u32 = OWNER_SHIFT + OWNER_BITS;

/// The most stages that a pool can have.
pub const MAX_STAGES: usize = 1 << STAGE_BITS;
/// The most members that a pool can have at once.
pub const MAX_MEMBERS: usize = (1 << OWNER_BITS) - 1;
/// The most deliveries that the word can count; it stays there.
pub const MAX_DELIVERIES: u8 = (1 << DELIVERY_BITS) - 1;

/// What is going on in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// The slot doesn't exist (any more).
    Absent = 0,
    /// Nobody holds the slot; it waits at its stage.
    Idle = 1,
    /// Its owner may read its bytes.
    HeldRead = 2,
    /// Its owner may write its bytes.
    HeldWrite = 3,
}

/// The state word of one slot.
///
/// | bits | field | meaning |
/// | --- | --- | --- |
/// | 0–3 | stage | index into the pool's stages |
/// | 4–6 | state | [`State`] |
/// | 7–9 | deliveries | times given back by a dead reader, saturating |
/// | 10–21 | owner | member index + 1; 0 is nobody |
/// | 22–63 | generation | + 1 at each move |
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    /// A slot that doesn't exist.
    pub const ABSENT: Word = Word(0);

    /// A slot that is free and has never moved.
    pub const FREE: Word = Word((State::Idle as u64) << STATE_SHIFT);

    /// Index of the stage at which the slot is.
    pub fn stage(self) -> usize {
        (self.0 & ((1 << STAGE_BITS) - 1)) as usize
    }

    /// The state, or `None` for bits that no move ever writes (a broken peer did).
    pub fn state(self) -> Option<State> {
        match (self.0 >> STATE_SHIFT) & ((1 << STATE_BITS) - 1) {
            0 => Some(State::Absent),
            1 => Some(State::Idle),
            2 => Some(State::HeldRead),
            3 => Some(State::HeldWrite),
            _ => None,
        }
    }

    /// How often a dead reader has given the slot back since it was published.
    pub fn deliveries(self) -> u8 {
        ((self.0 >> DELIVERY_SHIFT) & u64::from(MAX_DELIVERIES)) as u8
    }

    /// Index of the member that holds the slot.
    pub fn owner(self) -> Option<usize> {
        match (self.0 >> OWNER_SHIFT) & MAX_MEMBERS as u64 {
            0 => None,
            tag => Some(tag as usize - 1),
        }
    }

    /// The number of moves that the slot has made.
    pub fn generation(self) -> u64 {
        self.0 >> GENERATION_SHIFT
    }

    /// True when the slot waits at `stage` and nobody holds it.
    pub fn is_idle_at(self, stage: usize) -> bool {
        const MASK: u64 = (1 << DELIVERY_SHIFT) - 1;
        self.0 & MASK == ((State::Idle as u64) << STATE_SHIFT | stage as u64)
    }

    /// True when somebody holds the slot.
    pub fn is_held(self) -> bool {
        matches!(self.state(), Some(State::HeldRead | State::HeldWrite))
    }

    fn next(self, stage: usize, state: State, deliveries: u8, owner: Option<usize>) -> Word {
        let owner = owner.map_or(0, |index| index as u64 + 1);
        let generation = self.generation().wrapping_add(1) << GENERATION_SHIFT;
        Word(
            generation
                | owner << OWNER_SHIFT
                | u64::from(deliveries) << DELIVERY_SHIFT
                | (state as u64) << STATE_SHIFT
                | stage as u64,
        )
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {}", self.state(), self.stage())?;
        if let Some(owner) = self.owner() {
            write!(f, " by {owner}")?;
        }
        write!(f, ", {} deliveries, generation {}", self.deliveries(), self.generation())
    }
}

/// What of a pool decides where a move leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Index of the last stage.
    pub last: usize,
    /// Bit s is set when the work of stage s can be done again from what is published there.
    pub repeatable: u16,
    /// How often a slot is delivered again after the death of a reader; more than
    /// [`MAX_DELIVERIES`] is always.
    pub redeliveries: u8,
}

impl Rules {
    fn is_repeatable(&self, stage: usize) -> bool {
        self.repeatable & (1 << stage) != 0
    }
}

/// Everything that can happen to a slot; `me` and `owner` are indices of members.
#[allow(missing_docs)] // the fields are explained in the line above
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// A slot comes into being, held by `me`.
    Add { me: usize },
    /// A producer takes a free slot.
    Acquire { me: usize },
    /// The holder sends the slot on to the next stage.
    Publish { me: usize },
    /// A consumer takes a slot; to read only at the last stage.
    Take { me: usize, stage: usize, write: bool },
    /// The holder is done with the slot: it is free.
    Release { me: usize },
    /// A holder that was interrupted between claim and return leaves everything as it was.
    PutBack { me: usize },
    /// The holder leaves a middle stage without publishing: what it may have changed is lost.
    Abandon { me: usize },
    /// Somebody takes back what the dead `owner` held; `clean` if it left by a normal exit.
    Sweep { owner: usize, clean: bool },
    /// The holder takes the slot out of the pool.
    Drop { me: usize },
}

/// Where a move leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The word after the move.
    pub to: Word,
    /// True when bytes that were published are gone with this move: a loss record comes first.
    pub lost: bool,
}

/// The table of moves: the word after `mv`, or `None` when `from` doesn't allow it.
pub fn step(from: Word, mv: Move, rules: &Rules) -> Option<Step> {
    use State::{Absent, HeldRead, HeldWrite, Idle};
    let (state, stage, by) = (from.state()?, from.stage(), from.owner());
    let kept = |to| Some(Step { to, lost: false });
    let lost = |to| Some(Step { to, lost: true });
    match (mv, state) {
        (Move::Add { me }, Absent) => kept(from.next(0, HeldWrite, 0, Some(me))),
        (Move::Acquire { me }, Idle) if stage == 0 => kept(from.next(0, HeldWrite, 0, Some(me))),
        (Move::Publish { me }, HeldWrite) if by == Some(me) && stage < rules.last => {
            kept(from.next(stage + 1, Idle, 0, None))
        }
        (Move::Take { me, stage: at, write }, Idle)
            if stage == at && at > 0 && (write || at == rules.last) =>
        {
            let state = if write { HeldWrite } else { HeldRead };
            kept(from.next(at, state, from.deliveries(), Some(me)))
        }
        (Move::Release { me }, HeldRead | HeldWrite)
            if by == Some(me) && (stage == rules.last || stage == 0) =>
        {
            kept(from.next(0, Idle, 0, None))
        }
        (Move::PutBack { me }, HeldRead | HeldWrite) if by == Some(me) => {
            kept(from.next(stage, Idle, from.deliveries(), None))
        }
        (Move::Abandon { me }, HeldWrite) if by == Some(me) && stage > 0 && stage < rules.last => {
            if rules.is_repeatable(stage) {
                kept(from.next(stage, Idle, from.deliveries(), None))
            } else {
                lost(from.next(0, Idle, 0, None))
            }
        }
        (Move::Sweep { owner, clean }, HeldRead | HeldWrite) if by == Some(owner) => {
            let again = rules.redeliveries > MAX_DELIVERIES || from.deliveries() < rules.redeliveries;
            let back = from.next(stage, Idle, (from.deliveries() + 1).min(MAX_DELIVERIES), None);
            let free = from.next(0, Idle, 0, None);
            match state {
                _ if stage == 0 => kept(free),
                _ if clean && stage == rules.last => kept(free),
                HeldWrite if rules.is_repeatable(stage) && again => kept(back),
                HeldRead if again => kept(back),
                _ => lost(free),
            }
        }
        (Move::Drop { me }, HeldWrite) if by == Some(me) && stage == 0 => kept(from.next(0, Absent, 0, None)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULES: Rules = Rules { last: 2, repeatable: 0, redeliveries: 3 };

    fn word(stage: usize, state: State, deliveries: u8, owner: Option<usize>) -> Word {
        Word(41 << GENERATION_SHIFT).next(stage, state, deliveries, owner)
    }

    fn to(from: Word, mv: Move) -> Option<(usize, State, u8, Option<usize>, bool)> {
        step(from, mv, &RULES).map(|s| {
            assert_eq!(s.to.generation(), from.generation() + 1);
            (s.to.stage(), s.to.state().unwrap(), s.to.deliveries(), s.to.owner(), s.lost)
        })
    }

    #[test]
    fn a_slot_goes_round() {
        use State::*;
        let held = to(Word::ABSENT, Move::Add { me: 7 });
        assert_eq!(held, Some((0, HeldWrite, 0, Some(7), false)));
        assert_eq!(
            to(word(0, HeldWrite, 0, Some(7)), Move::Publish { me: 7 }),
            Some((1, Idle, 0, None, false))
        );
        let take = Move::Take { me: 8, stage: 1, write: true };
        assert_eq!(to(word(1, Idle, 0, None), take), Some((1, HeldWrite, 0, Some(8), false)));
        let read = Move::Take { me: 8, stage: 2, write: false };
        assert_eq!(to(word(2, Idle, 1, None), read), Some((2, HeldRead, 1, Some(8), false)));
        assert_eq!(
            to(word(2, HeldRead, 1, Some(8)), Move::Release { me: 8 }),
            Some((0, Idle, 0, None, false))
        );
        assert_eq!(
            to(word(0, HeldWrite, 0, Some(8)), Move::Drop { me: 8 }),
            Some((0, Absent, 0, None, false))
        );
    }

    #[test]
    fn nobody_moves_what_another_holds() {
        for state in [State::HeldRead, State::HeldWrite] {
            for stage in 0..=RULES.last {
                let held = word(stage, state, 0, Some(3));
                let moves = [
                    Move::Add { me: 4 },
                    Move::Acquire { me: 4 },
                    Move::Publish { me: 4 },
                    Move::Take { me: 4, stage, write: true },
                    Move::Release { me: 4 },
                    Move::PutBack { me: 4 },
                    Move::Abandon { me: 4 },
                    Move::Sweep { owner: 4, clean: false },
                    Move::Drop { me: 4 },
                ];
                for mv in moves {
                    assert_eq!(step(held, mv, &RULES), None, "{held:?} {mv:?}");
                }
            }
        }
    }

    #[test]
    fn a_middle_stage_is_always_taken_to_write() {
        let read = Move::Take { me: 0, stage: 1, write: false };
        assert_eq!(step(word(1, State::Idle, 0, None), read, &RULES), None);
    }

    #[test]
    fn a_dead_readers_slot_is_delivered_again_up_to_the_limit() {
        use State::*;
        let dead = Move::Sweep { owner: 5, clean: false };
        assert_eq!(to(word(2, HeldRead, 0, Some(5)), dead), Some((2, Idle, 1, None, false)));
        assert_eq!(to(word(2, HeldRead, 3, Some(5)), dead), Some((0, Idle, 0, None, true)));
    }

    #[test]
    fn half_changed_bytes_are_never_delivered() {
        use State::*;
        let dead = Move::Sweep { owner: 5, clean: false };
        assert_eq!(to(word(0, HeldWrite, 0, Some(5)), dead), Some((0, Idle, 0, None, false)));
        assert_eq!(to(word(1, HeldWrite, 0, Some(5)), dead), Some((0, Idle, 0, None, true)));
        assert_eq!(to(word(2, HeldWrite, 0, Some(5)), dead), Some((0, Idle, 0, None, true)));
    }

    #[test]
    fn a_repeatable_stage_is_done_again() {
        let rules = Rules { repeatable: 0b10, ..RULES };
        let dead = Move::Sweep { owner: 5, clean: false };
        let done = step(word(1, State::HeldWrite, 0, Some(5)), dead, &rules).unwrap();
        assert!(done.to.is_idle_at(1) && !done.lost && done.to.deliveries() == 1);
        let left = step(word(1, State::HeldWrite, 0, Some(5)), Move::Abandon { me: 5 }, &rules).unwrap();
        assert!(left.to.is_idle_at(1) && !left.lost);
    }

    #[test]
    fn a_clean_leave_consumes_what_was_read() {
        use State::*;
        let left = Move::Sweep { owner: 5, clean: true };
        assert_eq!(to(word(2, HeldRead, 0, Some(5)), left), Some((0, Idle, 0, None, false)));
        assert_eq!(to(word(2, HeldWrite, 0, Some(5)), left), Some((0, Idle, 0, None, false)));
        assert_eq!(to(word(1, HeldWrite, 0, Some(5)), left), Some((0, Idle, 0, None, true)));
    }

    proptest! {
        /// Whatever a broken peer leaves in a word, a move from it is refused or well-formed.
        #[test]
        fn any_bits_are_safe(bits: u64, me in 0..MAX_MEMBERS, stage in 0..=RULES.last, write: bool, clean: bool) {
            let from = Word(bits);
            let moves = [
                Move::Add { me }, Move::Acquire { me }, Move::Publish { me }, Move::Take { me, stage, write },
                Move::Release { me }, Move::PutBack { me }, Move::Abandon { me }, Move::Sweep { owner: me, clean },
                Move::Drop { me },
            ];
            for mv in moves {
                if let Some(done) = step(from, mv, &RULES) {
                    prop_assert!(done.to.stage() <= RULES.last.max(from.stage()));
                    prop_assert_eq!(done.to.is_held(), done.to.owner().is_some());
                    prop_assert_ne!(done.to, from);
                }
            }
        }
    }
}

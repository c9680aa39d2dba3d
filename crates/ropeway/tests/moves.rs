//! The table of moves in `docs/protocol.md` is the one in `word.rs`: for every word, move and rules.
#![cfg(not(any(loom, shuttle)))]

use ropeway::State;
use ropeway::word::{MAX_DELIVERIES, Move, Rules, Word, step};

const PAGE: &str = include_str!("../../../docs/protocol.md");
const ME: usize = 7;
const OTHER: usize = 8;

/// A row of the table: its cells, those with several words split.
struct Row {
    name: String,
    from: Vec<String>,
    at: Vec<String>,
    conditions: Vec<String>,
    to: String,
    to_stage: String,
    deliveries: String,
    lost: bool,
}

fn rows() -> Vec<Row> {
    let section = PAGE.split("\n## Moves\n").nth(1).expect("a section about moves");
    let section = section.split("\n## ").next().expect("its text");
    let table = section.lines().filter(|line| line.starts_with('|')).skip(2);
    table.map(row).collect()
}

fn row(line: &str) -> Row {
    let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
    let words = |cell: &str| cell.split(", ").map(str::to_owned).collect::<Vec<_>>();
    let &[name, from, at, conditions, to, to_stage, deliveries, loss] = &cells[..] else {
        panic!("8 cells expected: {line}");
    };
    Row {
        name: name.to_owned(),
        from: words(from),
        at: words(at),
        conditions: words(conditions),
        to: to.to_owned(),
        to_stage: to_stage.to_owned(),
        deliveries: deliveries.to_owned(),
        lost: loss == "recorded",
    }
}

fn state(word: Word) -> &'static str {
    match word.state().expect("a well-formed word") {
        State::Absent => "absent",
        State::Idle => "idle",
        State::HeldRead => "held-read",
        State::HeldWrite => "held-write",
    }
}

fn place(stage: usize, rules: &Rules) -> &'static str {
    match stage {
        0 => "first",
        s if s == rules.last => "last",
        _ => "middle",
    }
}

/// How the page calls a move, and whether it is one that claims.
fn name(mv: Move) -> (&'static str, bool) {
    match mv {
        Move::Add { .. } => ("add", true),
        Move::Acquire { .. } => ("acquire", true),
        Move::Publish { .. } => ("publish", false),
        Move::Take { write: true, .. } => ("take to write", true),
        Move::Take { write: false, .. } => ("take to read", true),
        Move::Release { .. } => ("release", false),
        Move::PutBack { .. } => ("put back", false),
        Move::Abandon { .. } => ("abandon", false),
        Move::Sweep { clean: false, .. } => ("sweep the dead", false),
        Move::Sweep { clean: true, .. } => ("sweep one who left", false),
        Move::Drop { .. } => ("drop", false),
    }
}

fn holds(condition: &str, from: Word, rules: &Rules) -> bool {
    let repeatable = rules.repeatable & (1 << from.stage()) != 0;
    let again = rules.redeliveries > MAX_DELIVERIES || from.deliveries() < rules.redeliveries;
    match condition {
        "" => true,
        "repeatable" => repeatable,
        "not repeatable" => !repeatable,
        "again" => again,
        "not again" => !again,
        other => panic!("the page has an unknown condition: {other:?}"),
    }
}

/// Stage, state, deliveries, owner, and whether something is lost.
type Outcome = (usize, &'static str, u8, Option<usize>, bool);

/// What the page says about a move.
fn by_the_page(rows: &[Row], from: Word, mv: Move, rules: &Rules) -> Option<Outcome> {
    let (name, claims) = name(mv);
    // The owner's moves are the owner's; a take is for the stage that it names.
    if !claims && from.owner() != Some(ME) {
        return None;
    }
    if matches!(mv, Move::Take { stage, .. } if stage != from.stage()) {
        return None;
    }
    let mut fitting = rows.iter().filter(|row| {
        row.name == name
            && row.from.iter().any(|f| f == state(from))
            && row.at.iter().any(|at| at == place(from.stage(), rules))
            && row.conditions.iter().all(|condition| holds(condition, from, rules))
    });
    let row = fitting.next()?;
    assert!(fitting.next().is_none(), "two rows fit {from:?}, {mv:?}, {rules:?}");
    let stage = match &row.to_stage[..] {
        "first" => 0,
        "next" => from.stage() + 1,
        "s" => from.stage(),
        other => panic!("the page has an unknown place: {other:?}"),
    };
    let deliveries = match &row.deliveries[..] {
        "0" => 0,
        "kept" => from.deliveries(),
        "+ 1" => (from.deliveries() + 1).min(MAX_DELIVERIES),
        other => panic!("the page has unknown deliveries: {other:?}"),
    };
    let to = ["absent", "idle", "held-read", "held-write"].into_iter().find(|name| *name == row.to);
    Some((stage, to.expect("a state"), deliveries, claims.then_some(ME), row.lost))
}

/// What the code says about a move.
fn by_the_code(from: Word, mv: Move, rules: &Rules) -> Option<Outcome> {
    let done = step(from, mv, rules)?;
    assert_eq!(done.to.generation(), from.generation() + 1, "{from:?}, {mv:?}");
    Some((done.to.stage(), state(done.to), done.to.deliveries(), done.to.owner(), done.lost))
}

/// The layout of the word, as the page describes it.
fn word(stage: usize, state: State, deliveries: u8, owner: Option<usize>) -> Word {
    let owner = owner.map_or(0, |index| index as u64 + 1);
    Word(41 << 22 | owner << 10 | u64::from(deliveries) << 7 | (state as u64) << 4 | stage as u64)
}

fn words(rules: &Rules) -> Vec<Word> {
    let mut words = vec![word(0, State::Absent, 0, None)];
    for stage in 0..=rules.last {
        for deliveries in 0..=MAX_DELIVERIES {
            words.push(word(stage, State::Idle, deliveries, None));
            for held in [State::HeldRead, State::HeldWrite] {
                words.extend([ME, OTHER].map(|owner| word(stage, held, deliveries, Some(owner))));
            }
        }
    }
    words
}

fn moves(rules: &Rules) -> Vec<Move> {
    let me = ME;
    let mut moves = vec![
        Move::Add { me },
        Move::Acquire { me },
        Move::Publish { me },
        Move::Release { me },
        Move::PutBack { me },
        Move::Abandon { me },
        Move::Sweep { owner: me, clean: false },
        Move::Sweep { owner: me, clean: true },
        Move::Drop { me },
    ];
    for stage in 0..=rules.last {
        moves.extend([true, false].map(|write| Move::Take { me, stage, write }));
    }
    moves
}

#[test]
fn the_page_and_the_code_have_the_same_moves() {
    let rows = rows();
    let mut used = 0;
    for last in 1..=3 {
        for repeatable in 0..1 << (last + 1) {
            for redeliveries in [0, 1, 3, MAX_DELIVERIES, MAX_DELIVERIES + 1, u8::MAX] {
                let rules = Rules { last, repeatable, redeliveries };
                for from in words(&rules) {
                    for mv in moves(&rules) {
                        let (page, code) =
                            (by_the_page(&rows, from, mv, &rules), by_the_code(from, mv, &rules));
                        assert_eq!(page, code, "page and code: {from:?}, {mv:?}, {rules:?}");
                        used += usize::from(code.is_some());
                    }
                }
            }
        }
    }
    assert!(used > 1000 && rows.len() > 10, "{used} moves by {} rows", rows.len());
}

/// Rows that no word fits would be wrong without being noticed.
#[test]
fn every_row_of_the_page_is_about_something() {
    let all = rows();
    for row in &all {
        let fits = [0, 0b1110].into_iter().any(|repeatable| {
            let rules = Rules { last: 3, repeatable, redeliveries: 3 };
            words(&rules).into_iter().any(|from| {
                moves(&rules).into_iter().any(|mv| {
                    name(mv).0 == row.name
                        && by_the_page(std::slice::from_ref(row), from, mv, &rules).is_some()
                })
            })
        });
        assert!(fits, "no word fits the row {:?} from {:?} at {:?}", row.name, row.from, row.at);
    }
}

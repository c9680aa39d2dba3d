//! Kills members of a pool at any instant, round after round, and looks at what is left.
//!
//! `ropeway-kill ROUNDS [SEED]`. Each round has processes of its own, forked from this one, which
//! has one thread and never touches a pool: producers, middle stages, consumers, sometimes a maker,
//! and a judge. After it every message must have arrived once and whole, or be reported lost with
//! the number of its dead holder; every slot must be free; nothing may be left behind.

mod arrays;
mod belongings;
mod chance;
mod deeds;
mod judge;
mod ledger;
mod plan;
mod roles;
mod round;
mod table;

use std::process::ExitCode;
use std::time::Instant;

use chance::mix;
use ledger::Ledger;
use plan::{Kind, Plan};
use table::Table;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let rounds: u64 = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(500);
    let seed: u64 = arguments.next().and_then(|n| n.parse().ok()).unwrap_or_else(ledger::now);
    // One kind only, or one round again: `ropeway-kill 1 SEED KIND`.
    let only: Option<usize> = arguments.next().and_then(|n| n.parse().ok());
    // SAFETY: the call touches no memory. Children of those who died become this process's.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
    let (ledger, kinds, start) = (Ledger::shared(), Kind::all(), Instant::now());
    let mut table = Table::new();
    for round in 0..rounds {
        let which = only.unwrap_or(round as usize % kinds.len());
        let one = if rounds == 1 { seed } else { mix(seed.wrapping_add(round)) };
        let plan = Plan::draw(kinds[which % kinds.len()], one);
        let outcome = round::play(&plan, ledger);
        table.count(plan.kind, &outcome);
        if !outcome.complaints.is_empty() {
            eprintln!("round {round} (ropeway-kill 1 {one} {which}): {plan:?}\n{}", outcome.complaints);
        }
    }
    let took = start.elapsed().as_secs_f64();
    println!("{}", table.text());
    println!("{rounds} rounds in {took:.0} s, seed {seed}; times in ms, from the death until all is back");
    let untried = table.untried();
    if rounds >= 10 * kinds.len() as u64 && !untried.is_empty() {
        println!("nobody ever got to: {}", untried.join(", "));
        return ExitCode::FAILURE;
    }
    if table.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! Rounds with arrays of a session: processes make them, send handles to each other, open what they
//! get, look at every byte and let go; some are killed at that.

use std::time::Duration;

use ropeway::{Block, Error, Result, arena_status, join_session};

use crate::chance::mix;
use crate::ledger::{Mail, Person, mail, now};
use crate::roles::{Actor, PATIENCE};

/// Makes, sends, opens and drops arrays.
pub fn share(actor: &mut Actor<'_>) -> Result<()> {
    actor.until("the session was founded", |ledger| ledger.handle().is_some());
    let session = actor.ledger.handle().unwrap_or_default();
    join_session(Some(&String::from_utf8_lossy(&session)))?;
    let mut kept = None;
    for _ in 0..actor.plan.messages {
        let len = actor.chance.pick(&[24, 800, 5000, 70_000]);
        let block = Block::allocate(len, &mut || true)?;
        let word = actor.chance.next();
        fill(&block, word);
        // A mark more in this process, and none in any other.
        if actor.chance.one_in(3) {
            drop(Block::open(&block.handle())?);
        } else {
            send(actor, &block);
        }
        if let Some(mail) = actor.chance.pick(&slots(actor)).take() {
            look_at(actor, &mail)?;
        }
        kept = actor.chance.one_in(2).then_some(block);
    }
    drop(kept);
    ropeway::leave_all();
    Ok(())
}

/// Founds the session, waits until all have left, and looks what is left of their arrays.
pub fn judge(actor: &mut Actor<'_>) -> Result<()> {
    let session = join_session(None)?;
    actor.ledger.set_handle(session.as_bytes());
    // A member that has finished counts until its process has ended.
    let all = actor.plan.parts.len();
    let settled = |_: &Person| Ok(arena_status()?.members <= 1 + all - actor.gone());
    let end = now() + PATIENCE.as_nanos() as u64;
    while !(actor.note_recoveries(settled)? && arena_status()?.members == 1 && actor.living() == 0) {
        if now() > end {
            actor.ledger.complain(format!("members are left: {:?}", arena_status()?));
            break;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    for mail in &actor.ledger.mails {
        if let Some(handle) = mail.take() {
            look_at(actor, &handle)?;
        }
    }
    // Who dies with a handle in hand leaves an array that waits for being opened.
    let status = arena_status()?;
    let died = actor.gone();
    if status.arrays != status.unclaimed || status.unclaimed > 2 * died || status.members != 1 {
        actor.ledger.complain(format!("{died} died, and arrays are left: {status:?}"));
    }
    // What is left of the memory works.
    let block = Block::allocate(100_000, &mut || true)?;
    fill(&block, 1);
    check(actor, &block);
    Ok(())
}

fn slots<'a>(actor: &Actor<'a>) -> [&'a Mail; mail::BOXES] {
    std::array::from_fn(|index| &actor.ledger.mails[index])
}

fn send(actor: &mut Actor<'_>, block: &Block) {
    let to = actor.chance.pick(&slots(actor));
    if to.reserve() {
        to.put(&block.handle());
    }
}

fn look_at(actor: &Actor<'_>, handle: &[u8]) -> Result<()> {
    match Block::open(handle) {
        Ok(block) => check(actor, &block),
        // The maker lets go of what it has sent, but an array waits for being opened.
        Err(Error::Gone(e)) => actor.ledger.complain(format!("an array that was sent is gone: {e}")),
        Err(e) => return Err(e),
    }
    Ok(())
}

fn numbers(block: &Block) -> &[u64] {
    // SAFETY: the block is mapped, aligned and lives as long as the slice; nobody writes into an
    // array that has been sent.
    unsafe { std::slice::from_raw_parts(block.as_ptr().cast::<u64>(), block.len() / 8) }
}

fn fill(block: &Block, word: u64) {
    for place in 0..block.len() / 8 {
        // SAFETY: within the block, which is aligned, and which nobody else has yet.
        unsafe { block.as_ptr().cast::<u64>().add(place).write(expected(word, place)) };
    }
}

fn expected(word: u64, place: usize) -> u64 {
    if place == 0 { word } else { mix(word ^ place as u64) }
}

fn check(actor: &Actor<'_>, block: &Block) {
    let all = numbers(block);
    let wrong = all.iter().enumerate().find(|(place, found)| **found != expected(all[0], *place));
    if let Some((place, found)) = wrong {
        actor.ledger.complain(format!("an array is torn: {found:#x} at {place} of {}", all.len()));
    }
}

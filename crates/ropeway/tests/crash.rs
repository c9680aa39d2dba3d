//! Death at every named instant: `cargo test -p ropeway --features crash-points --test crash`.
#![cfg(feature = "crash-points")]

mod peer;

use peer::{PATIENCE, Peer, bytes, change, listen, pool, roles, say, sweep, words};
use ropeway::sweep::Swept;
use ropeway::sync::crash::POINTS;
use ropeway::{Block, Error, Options, Pool, Result, State, arena_status, join_session};

roles!(works, trims, makes_and_closes, root, makes_arrays);

/// Whether a member of a pool passes the point in an ordinary life.
fn is_passed(point: &str) -> bool {
    // Makers close; arenas have marks and give memory back; the rest is what `another` leaves.
    let others = ["close.", "serial.", "mark.", "unmark.", "punch."];
    point != "store" && !others.iter().any(|other| point.starts_with(other))
}

/// Dies at the instant that is given behind the pool, in the middle of all that a member can do.
fn works(given: &str) {
    let (given, instant) = given.split_once(' ').unwrap();
    // SAFETY: this process has one thread.
    unsafe { std::env::set_var("ROPEWAY_CRASH", instant) };
    if instant.starts_with("poison") {
        // SAFETY: as above.
        unsafe { std::env::set_var("ROPEWAY_DEBUG", "1") };
    }
    let pool = pool(given);
    say("joined");
    // Takes back what another has left, which died before this one was started.
    let _ = pool.sweep();
    for n in 0..4 {
        let _ = send(&pool, n);
        let _ = change(&pool, "augment").and_then(|slot| slot.publish());
        // Leaves without publishing: what it may have changed is lost.
        let _ = send(&pool, n);
        drop(change(&pool, "augment"));
        let _ = pool.take_timeout(PATIENCE).map(drop);
    }
    ropeway::leave_all();
    drop(pool);
}

fn send(pool: &Pool, n: u64) -> Result<()> {
    let mut slot = pool.acquire_timeout(PATIENCE)?;
    slot.add(bytes("a", 100 + n * 5000), &mut || true)?;
    slot.slice_mut::<u8>("a")?.fill(n as u8);
    slot.publish()
}

/// Adds slots, gives them back and trims the pool; dies at an instant of that.
fn trims(given: &str) {
    let (given, instant) = given.split_once(' ').unwrap();
    // SAFETY: this process has one thread.
    unsafe { std::env::set_var("ROPEWAY_CRASH", instant) };
    let pool = pool(given);
    let slots: Vec<_> = (0..4).filter_map(|_| pool.try_acquire().ok()).collect();
    slots.iter().for_each(|slot| slot.add(bytes("a", 5000), &mut || true).unwrap());
    drop(slots);
    assert_eq!(pool.trim(0).unwrap(), 2);
    ropeway::leave_all();
}

/// Makes a pool with a message in it and dies at an instant of closing it.
fn makes_and_closes(instant: &str) {
    // SAFETY: this process has one thread.
    unsafe { std::env::set_var("ROPEWAY_CRASH", instant) };
    let pool = Pool::create(&options()).unwrap();
    send(&pool, 1).unwrap();
    change(&pool, "augment").unwrap().publish().unwrap();
    say(words(&pool));
    listen();
    drop(pool);
}

/// Founds a session; when told that another process has died, looks whether it holds anything.
fn root(_: &str) {
    say(join_session(None).unwrap());
    while !listen().is_empty() {
        let status = arena_status().unwrap();
        // Whoever dies between making a handle and opening it leaves an array that waits for that.
        let waiting = status.unclaimed;
        assert_eq!((status.arrays, status.members), (waiting, 1), "{status:?}");
        let mine: Vec<_> = (0..3).map(|n| Block::allocate(5000 * n, &mut || true).unwrap()).collect();
        assert_eq!(arena_status().unwrap().arrays, mine.len() + waiting);
        say("whole");
    }
}

/// Makes, opens and drops arrays in a session, and dies at the instant that is given.
fn makes_arrays(given: &str) {
    let (session, instant) = given.split_once(' ').unwrap();
    // SAFETY: this process has one thread.
    unsafe { std::env::set_var("ROPEWAY_CRASH", instant) };
    join_session(Some(session)).unwrap();
    for n in 1..4 {
        let block = Block::allocate(3000 * n, &mut || true).unwrap();
        let again = Block::open(&block.handle()).unwrap();
        drop((block, again));
    }
}

fn options() -> Options {
    Options { max_slots: 4, redeliveries: 1, ..Options::new(2).stages(["fill", "augment", "use"]) }
}

/// Everything that the pool can still do works, and at its end every slot is free.
fn is_whole(pool: &Pool) {
    sweep(pool, 1);
    // Whatever was on its way comes out whole: each array is full of one byte.
    while pool.waiting("augment").unwrap() > 0 {
        change(pool, "augment").unwrap().publish().unwrap();
    }
    while let Ok(slot) = pool.try_take() {
        let array = slot.slice::<u8>("a").unwrap();
        assert!(array.iter().all(|byte| *byte == array[0] && *byte < 4), "torn or poisoned");
    }
    let free = |pool: &Pool| {
        let slots = pool.status().slots;
        slots.iter().all(|s| s.state == State::Absent || (s.state == State::Idle && s.stage == "fill"))
    };
    assert!(free(pool), "{:#?}", pool.status().slots);
    let held: Vec<_> = std::iter::from_fn(|| pool.try_acquire().ok()).collect();
    assert_eq!(held.len(), 4, "no slot is missing");
    drop(held);
    send(pool, 3).unwrap();
    change(pool, "augment").unwrap().publish().unwrap();
    assert_eq!(pool.take_timeout(PATIENCE).unwrap().slice::<u8>("a").unwrap()[0], 3);
    assert_eq!(pool.sweep().unwrap(), Swept::default());
    assert_eq!(pool.status().members.len(), 1, "{:?}", pool.status().members);
}

#[test]
fn a_pool_is_whole_wherever_a_member_died() {
    for instant in POINTS.into_iter().filter(|point| is_passed(point)) {
        let mut died = 0;
        for passage in 1..=12 {
            let pool = Pool::create(&options()).unwrap();
            // One that is dead already is what the next one sweeps.
            let given = format!("{} claim.after:2", words(&pool));
            let mut first = Peer::start("works", &given);
            first.wait_dead();
            let mut second = Peer::start("works", &format!("{} {instant}:{passage}", words(&pool)));
            second.wait_dead();
            let was_killed = !second.status().success();
            died += usize::from(was_killed);
            is_whole(&pool);
            if !was_killed {
                break;
            }
        }
        assert!(died > 0, "nobody passes {instant}");
    }
}

/// Between two stores only system calls change what others see, and they have points of their own.
#[test]
fn a_pool_is_whole_whichever_store_a_member_died_before() {
    let mut stores = 0;
    for nth in 1.. {
        let pool = Pool::create(&options()).unwrap();
        let mut first = Peer::start("works", &format!("{} claim.after:2", words(&pool)));
        first.wait_dead();
        let mut second = Peer::start("works", &format!("{} store:{nth}", words(&pool)));
        second.wait_dead();
        let survived = second.status().success();
        is_whole(&pool);
        if survived {
            break;
        }
        stores = nth;
    }
    assert!(stores > 100, "{stores} stores are few for all that it does");
}

#[test]
fn a_pool_is_whole_wherever_a_member_died_that_trims_it() {
    for instant in ["claim.before", "claim.after", "punch.before", "move.before", "move.after"] {
        let mut died = 0;
        for passage in 1..=12 {
            let pool = Pool::create(&options()).unwrap();
            let mut peer = Peer::start("trims", &format!("{} {instant}:{passage}", words(&pool)));
            peer.wait_dead();
            is_whole(&pool);
            match peer.status().success() {
                true => break,
                false => died += 1,
            }
        }
        assert!(died > 1, "{instant} was passed {died} times");
    }
}

#[test]
fn a_closing_pool_is_closed_wherever_its_maker_died() {
    for instant in ["close.before", "close.after", "advance.after", "leave.after", "depart.after"] {
        let mut maker = Peer::start("makes_and_closes", &format!("{instant}:1"));
        let pool = pool(&maker.hear());
        maker.tell("close");
        maker.wait_dead();
        let slot = pool.take_timeout(PATIENCE).unwrap();
        assert_eq!(slot.slice::<u8>("a").unwrap().len(), 5100);
        drop(slot);
        sweep(&pool, 1);
        assert!(matches!(pool.try_acquire(), Err(Error::Closed(_) | Error::PeerDied(_))), "{instant}");
        assert!(matches!(pool.try_take(), Err(Error::Closed(_) | Error::PeerDied(_))), "{instant}");
    }
}

#[test]
fn an_arena_is_whole_wherever_a_process_died() {
    let of_pools =
        ["close.", "sweep.", "bury.", "loss.", "leave.", "depart.", "advance.", "blob.", "punch.", "poison."];
    let passed = |point: &&str| !of_pools.iter().any(|other| point.starts_with(other));
    for instant in POINTS.into_iter().filter(passed) {
        let most = if instant == "store" { usize::MAX } else { 20 };
        assert!(deaths_of_a_maker_of_arrays(instant, most) > 0, "nobody passes {instant}");
    }
}

/// Lets processes die at one passage of an instant after the other; how many did.
fn deaths_of_a_maker_of_arrays(instant: &str, most: usize) -> usize {
    let mut root = Peer::start("root", "");
    let session = root.hear();
    let survives = |passage: usize| {
        let mut maker = Peer::start("makes_arrays", &format!("{session} {instant}:{passage}"));
        let survived = maker.status().success();
        root.tell("died");
        assert_eq!(root.hear(), "whole");
        survived
    };
    (1..=most).map(survives).take_while(|survived| !survived).count()
}

#[test]
fn every_point_in_the_code_is_named_once_in_the_list() {
    let folders = ["/src", "/src/sync"].map(|folder| format!("{}{folder}", env!("CARGO_MANIFEST_DIR")));
    let mut found: Vec<String> = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap())
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default())
        .flat_map(|text| {
            let uses = text.split("crash_point!(\"").skip(1);
            uses.map(|rest| rest.split('"').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
        })
        .collect();
    found.sort();
    let mut listed = POINTS.map(str::to_owned).to_vec();
    listed.sort();
    assert_eq!(found, listed);
}

//! The dead hold nothing, and the living keep what they hold.

mod peer;

use std::os::unix::process::CommandExt;
use std::process::{Command, exit};

use peer::{
    MOMENT, PATIENCE, Peer, TWO_SLICES, change, endless, eventually, get, listen, numbers, pool, put, roles,
    say, slices_after, sweep, words,
};
use ropeway::sweep::Swept;
use ropeway::{Error, LostSlot, Options, Pool, State, Wait};

roles!(
    writer,
    reader,
    changer,
    reader_that_leaves,
    closes_all,
    execs,
    leader_gone,
    produces,
    consumes,
    relays
);

/// Holds a slot to fill; publishes it when told to.
fn writer(given: &str) {
    let mut slot = pool(given).acquire_timeout(PATIENCE).unwrap();
    slot.slice_mut::<u64>("n").unwrap().fill(7);
    say(slot.index());
    listen();
    slot.publish().unwrap();
}

/// Holds a slot to read.
fn reader(given: &str) {
    let slot = pool(given).take_timeout(PATIENCE).unwrap();
    say(slot.deliveries());
    listen();
}

/// Holds a slot to change it, at the stage that is given behind the pool.
fn changer(given: &str) {
    let (given, stage) = given.split_once(' ').unwrap();
    let mut slot = change(&pool(given), stage).unwrap();
    slot.slice_mut::<u64>("n").unwrap()[0] = 666;
    say(slot.index());
    listen();
}

/// Exits normally, in the middle of reading.
fn reader_that_leaves(given: &str) {
    let pool = pool(given);
    std::mem::forget(pool.take_timeout(PATIENCE).unwrap());
    ropeway::leave_all();
    assert!(matches!(pool.try_take(), Err(Error::Closed(_))), "who leaves claims nothing more");
    assert!(matches!(pool.try_acquire(), Err(Error::Closed(_))));
    say("leaving");
    listen();
    exit(0);
}

/// Closes every descriptor, as programs that become daemons do, and goes on.
fn closes_all(given: &str) {
    let pool = pool(given);
    let mut slot = pool.acquire_timeout(PATIENCE).unwrap();
    // SAFETY: nothing in this process uses a descriptor afterwards, but for 0 to 2.
    assert_eq!(unsafe { libc::close_range(3, u32::MAX, 0) }, 0);
    say("held");
    listen();
    slot.slice_mut::<u64>("n").unwrap().fill(7);
    slot.publish().unwrap();
    let unsettled = pool.acquire_timeout(PATIENCE).map(|slot| slot.index());
    let why = "closed the pool's descriptors";
    assert!(matches!(&unsettled, Err(Error::Gone(text)) if text.contains(why)), "{unsettled:?}");
    say("published");
    listen();
}

/// Becomes another program, which has the same pid, while it holds a slot.
fn execs(given: &str) {
    let _slot = pool(given).acquire_timeout(PATIENCE).unwrap();
    say("held");
    listen();
    panic!("{}", Command::new("cat").exec());
}

/// Goes on in a second thread when its first, by which the kernel knows it, has ended.
fn leader_gone(given: &str) {
    let given = given.to_owned();
    std::thread::spawn(move || {
        writer(&given);
        exit(0);
    });
    // SAFETY: ends this thread only; nothing on its stack is used by the other.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

fn produces(given: &str) {
    let pool = pool(given);
    say("go");
    let mut n = 0;
    while put(&pool, n).is_ok() {
        n += 1;
    }
}

fn consumes(given: &str) {
    let pool = pool(given);
    say("go");
    while get(&pool).is_ok() {}
}

fn relays(given: &str) {
    let pool = pool(given);
    say("go");
    while let Ok(slot) = change(&pool, "augment") {
        slot.publish().unwrap();
    }
}

fn acquires(pool: &Pool) -> impl FnOnce(&mut Wait<'_>) -> ropeway::Result<usize> {
    |wait| pool.acquire_with(wait).map(|slot| slot.index())
}

fn is_free(pool: &Pool) -> bool {
    pool.status().slots.iter().all(|slot| slot.state == State::Idle && slot.stage == pool.stages()[0])
}

#[test]
fn a_killed_writers_slot_is_free_within_100_ms_for_who_waits() {
    let pool = Pool::create(&numbers(1)).unwrap();
    let mut writer = Peer::start("writer", &words(&pool));
    assert_eq!(writer.hear(), "0");
    let (_, slices) = slices_after(|| writer.kill(), acquires(&pool));
    assert!(slices <= TWO_SLICES, "{slices} slices of 50 ms");
    let status = pool.status();
    assert_eq!((status.published, status.deaths, status.lost), (0, 1, vec![]));
}

#[test]
fn polling_without_waiting_finds_what_the_dead_held() {
    let pool = Pool::create(&numbers(1)).unwrap();
    let mut writer = Peer::start("writer", &words(&pool));
    assert_eq!(writer.hear(), "0");
    assert!(pool.try_acquire().is_err());
    writer.kill();
    eventually("the slot is free", || pool.try_acquire().is_ok());
}

#[test]
fn a_killed_readers_batch_is_delivered_again_up_to_the_limit() {
    let pool = Pool::create(&Options { redeliveries: 2, ..numbers(1) }).unwrap();
    put(&pool, 42).unwrap();
    let mut first = Peer::start("reader", &words(&pool));
    assert_eq!(first.hear(), "0");
    let ((n, deliveries), slices) = slices_after(
        || first.kill(),
        |wait| {
            let slot = pool.take_with(None, wait)?;
            let seen = (slot.slice::<u64>("n")?[0], slot.deliveries());
            std::mem::forget(slot);
            Ok(seen)
        },
    );
    assert_eq!((n, deliveries), (42, 1));
    assert!(slices <= TWO_SLICES, "{slices} slices of 50 ms");
}

#[test]
fn at_the_limit_a_batch_is_lost_and_its_last_reader_named() {
    let pool = Pool::create(&Options { redeliveries: 2, ..numbers(1) }).unwrap();
    put(&pool, 42).unwrap();
    let mut last = 0;
    for deliveries in 0..=2 {
        let mut reader = Peer::start("reader", &words(&pool));
        assert_eq!(reader.hear_number::<u8>(), deliveries);
        let generation = pool.status().slots[0].generation;
        reader.kill();
        assert_eq!(sweep(&pool, 1), Swept { dead: 1, slots: 1 });
        let lost = LostSlot { index: 0, generation, stage: "use".into(), pid: reader.pid().into() };
        assert_eq!(pool.status().lost, if deliveries < 2 { vec![] } else { vec![lost] });
        last = generation;
    }
    assert!(matches!(pool.try_take(), Err(Error::Timeout(_))), "what is lost isn't delivered");
    put(&pool, 43).unwrap();
    assert_eq!(get(&pool).unwrap(), 43);
    assert_eq!(pool.status().lost[0].generation, last);
}

#[test]
fn what_a_killed_changer_held_is_lost_and_never_delivered() {
    let three = numbers(1).stages(["fill", "augment", "use"]);
    for (options, stage) in [(three, "augment"), (numbers(1), "use")] {
        let pool = Pool::create(&options).unwrap();
        put(&pool, 42).unwrap();
        let mut changer = Peer::start("changer", &format!("{} {stage}", words(&pool)));
        assert_eq!(changer.hear(), "0");
        let (_, slices) = slices_after(|| changer.kill(), acquires(&pool));
        assert!(slices <= TWO_SLICES, "{slices} slices of 50 ms");
        assert!(matches!(pool.take_timeout(MOMENT), Err(Error::Timeout(_))));
        let lost = &pool.status().lost[0];
        assert_eq!((&*lost.stage, lost.pid), (stage, changer.pid().into()));
    }
}

#[test]
fn a_repeatable_stage_is_done_again() {
    let options = numbers(1).stages(["plan", "work", "use"]);
    let pool = Pool::create(&Options { repeatable: vec![1], ..options }).unwrap();
    put(&pool, 42).unwrap();
    let mut worker = Peer::start("changer", &format!("{} work", words(&pool)));
    assert_eq!(worker.hear(), "0");
    let again = |wait: &mut Wait<'_>| pool.take_mut_with("work", None, wait).map(|slot| slot.deliveries());
    let (deliveries, slices) = slices_after(|| worker.kill(), again);
    assert_eq!((deliveries, pool.status().lost), (1, vec![]));
    assert!(slices <= TWO_SLICES, "{slices} slices of 50 ms");
}

#[test]
fn a_normal_exit_consumes_what_was_read() {
    let pool = Pool::create(&numbers(1)).unwrap();
    put(&pool, 42).unwrap();
    let mut reader = Peer::start("reader_that_leaves", &words(&pool));
    assert_eq!(reader.hear(), "leaving");
    assert!(
        matches!(pool.acquire_timeout(MOMENT), Err(Error::Timeout(_))),
        "it may read on until it is gone"
    );
    let (index, _) = slices_after(|| reader.finish(), acquires(&pool));
    assert_eq!(index, 0);
    assert!(matches!(pool.try_take(), Err(Error::Timeout(_))));
    let status = pool.status();
    assert_eq!((status.deaths, status.lost, status.slots[0].deliveries), (0, vec![], 0));
}

#[test]
fn two_may_die_at_once() {
    let pool = Pool::create(&numbers(2)).unwrap();
    put(&pool, 42).unwrap();
    let mut reader = Peer::start("reader", &words(&pool));
    assert_eq!(reader.hear(), "0");
    let mut writer = Peer::start("writer", &words(&pool));
    assert_eq!(writer.hear(), "1");
    reader.kill();
    writer.kill();
    assert_eq!(sweep(&pool, 1), Swept { dead: 2, slots: 2 });
    assert_eq!((pool.status().deaths, pool.status().members.len()), (2, 1));
    assert_eq!(get(&pool).unwrap(), 42);
    assert!(is_free(&pool));
}

#[test]
fn who_is_stopped_keeps_its_slot_and_is_named() {
    let pool = Pool::create(&numbers(1)).unwrap();
    let mut writer = Peer::start("writer", &words(&pool));
    assert_eq!(writer.hear(), "0");
    writer.signal(libc::SIGSTOP);
    let error = pool.acquire_timeout(MOMENT).map(|slot| slot.index()).unwrap_err();
    let named = format!("slot 0 is held by process {} at \"fill\" for ", writer.pid());
    assert!(matches!(error, Error::Timeout(_)) && error.to_string().contains(&named), "{error}");
    let status = pool.status();
    assert_eq!(status.slots[0].pid, Some(writer.pid().into()));
    assert!(status.members.iter().all(|member| member.alive && !member.left));
    writer.signal(libc::SIGCONT);
    writer.tell("publish");
    assert_eq!(get(&pool).unwrap(), 7);
}

#[test]
fn who_has_closed_all_descriptors_keeps_its_slot() {
    let pool = Pool::create(&numbers(2)).unwrap();
    let mut peer = Peer::start("closes_all", &words(&pool));
    assert_eq!(peer.hear(), "held");
    assert!(matches!(pool.take_timeout(MOMENT), Err(Error::Timeout(_))));
    assert_eq!(pool.sweep().unwrap().dead, 0);
    assert_eq!(pool.status().slots[0].pid, Some(peer.pid().into()));
    peer.tell("publish");
    assert_eq!(peer.hear(), "published");
    assert_eq!(get(&pool).unwrap(), 7);
    assert!(is_free(&pool));
    peer.finish();
}

#[test]
fn a_slot_is_free_when_its_holder_becomes_another_program() {
    let pool = Pool::create(&numbers(1)).unwrap();
    let mut peer = Peer::start("execs", &words(&pool));
    assert_eq!(peer.hear(), "held");
    let (_, _) = slices_after(|| peer.tell("exec"), acquires(&pool));
    peer.signal(0);
    peer.finish();
}

#[test]
fn a_process_lives_on_without_its_first_thread() {
    let pool = Pool::create(&numbers(1)).unwrap();
    let mut peer = Peer::start("leader_gone", &words(&pool));
    assert_eq!(peer.hear(), "0");
    assert!(matches!(pool.acquire_timeout(MOMENT), Err(Error::Timeout(_))));
    peer.tell("publish");
    assert_eq!(get(&pool).unwrap(), 7);
    peer.finish();
}

// ---- killed anywhere ------------------------------------------------------------------------------

/// Kills a peer some time after it has begun; other instants in each round.
fn kill_in_round(peer: &mut Peer, round: u64) {
    assert_eq!(peer.hear(), "go");
    std::thread::sleep(std::time::Duration::from_micros(37 * round));
    peer.kill();
}

/// What comes out of a pool that is closed; then every slot is free.
fn drained(pool: &Pool) -> Vec<u64> {
    pool.close().unwrap();
    let all: Vec<_> = std::iter::from_fn(|| match get(pool) {
        Ok(n) => Some(n),
        Err(Error::Closed(_)) => None,
        Err(e) => panic!("{e}"),
    })
    .collect();
    assert!(is_free(pool), "{:?}", pool.status().slots);
    all
}

#[test]
fn a_producer_killed_anywhere_loses_no_slot_and_no_message() {
    for round in 0..30 {
        let pool = Pool::create(&numbers(3)).unwrap();
        let mut peer = Peer::start("produces", &words(&pool));
        let early: Vec<_> = (0..round).map(|_| get(&pool).unwrap()).collect();
        kill_in_round(&mut peer, round);
        let all = [early, drained(&pool)].concat();
        assert_eq!(all, (0..all.len() as u64).collect::<Vec<_>>());
    }
}

#[test]
fn a_consumer_killed_anywhere_loses_no_slot_and_only_what_it_released() {
    for round in 0..30 {
        let pool = Pool::create(&numbers(3)).unwrap();
        let mut peer = Peer::start("consumes", &words(&pool));
        (0..100).for_each(|n| put(&pool, n).unwrap());
        kill_in_round(&mut peer, round);
        let rest = drained(&pool);
        assert_eq!(rest, (100 - rest.len() as u64..100).collect::<Vec<_>>());
        assert_eq!(pool.status().lost, []);
    }
}

#[test]
fn a_relay_killed_anywhere_loses_what_it_held_and_says_so() {
    for round in 0..30 {
        let pool = Pool::create(&numbers(3).stages(["fill", "augment", "use"])).unwrap();
        let mut peer = Peer::start("relays", &words(&pool));
        let consumed: Vec<_> = (0..40).map(|n| put(&pool, n).and_then(|()| get(&pool)).unwrap()).collect();
        assert_eq!(consumed, (0..40).collect::<Vec<_>>());
        (40..43).for_each(|n| put(&pool, n).unwrap());
        kill_in_round(&mut peer, round);
        sweep(&pool, 1);
        let (lost, mut rest) = (pool.status().lost.len(), 0);
        while pool.waiting("augment").unwrap() > 0 {
            change(&pool, "augment").unwrap().publish().unwrap();
        }
        while pool.try_take().is_ok() {
            rest += 1;
        }
        assert_eq!(rest + lost, 3);
        assert!(is_free(&pool));
    }
}

#[test]
fn the_dead_are_found_where_nobody_ever_waits() {
    let pool = Pool::create(&numbers(3)).unwrap();
    put(&pool, 1).unwrap();
    let mut reader = Peer::start("reader", &words(&pool));
    reader.hear();
    reader.kill();
    eventually("the slot is back", || {
        for n in 0..100 {
            pool.try_acquire().unwrap().publish().unwrap();
            pool.try_take().unwrap_or_else(|e| panic!("{n}: {e}")).release().unwrap();
        }
        pool.status().slots.iter().all(|slot| slot.pid.is_none())
    });
}

#[test]
fn a_taker_that_is_left_alone_is_told_of_each_death_once() {
    let pool = Pool::create(&numbers(1)).unwrap();
    put(&pool, 42).unwrap();
    let mut reader = Peer::start("reader", &words(&pool));
    reader.hear();
    reader.kill();
    assert_eq!(get(&pool).unwrap(), 42);
    let told = endless(|wait| pool.take_with(None, wait)).err();
    assert!(
        matches!(&told, Some(Error::PeerDied(text)) if text.contains(&reader.pid().to_string())),
        "{told:?}"
    );
    // It can wait again, say for a replacement: longer than the slices that would tell it.
    std::thread::scope(|scope| {
        let again = || endless(|wait| pool.take_with(None, wait)).map(|slot| slot.index());
        let waiting = scope.spawn(again);
        std::thread::sleep(MOMENT);
        put(&pool, 43).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), 0);
    });
}

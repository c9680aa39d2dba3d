//! Every wait ends when a pool does, and what is in it isn't lost.

mod peer;

use std::process::exit;

use peer::{MOMENT, PATIENCE, Peer, endless, eventually, get, listen, numbers, pool, put, roles, say, words};
use ropeway::{Error, Phase, Pool, Result, Wait};

roles!(creator, creator_that_leaves, acquires, takes, holds, produces);

/// Makes a pool with one message in it and one that is being read, and says where it is.
fn creator(given: &str) {
    let pool = Pool::create(&numbers(3)).unwrap();
    put(&pool, 1).unwrap();
    put(&pool, 2).unwrap();
    let slot = pool.take_timeout(PATIENCE).unwrap();
    say(words(&pool));
    listen();
    drop(slot);
    if given == "drop" {
        drop(pool);
    }
    say("ready");
    listen();
}

/// Makes a pool and exits in the middle of everything, normally.
fn creator_that_leaves(_: &str) {
    let pool = Pool::create(&numbers(2)).unwrap();
    put(&pool, 1).unwrap();
    std::mem::forget(pool.acquire_timeout(PATIENCE).unwrap());
    say(words(&pool));
    listen();
    ropeway::leave_all();
    exit(0);
}

fn name(result: Result<()>) -> &'static str {
    match result {
        Ok(()) => "ok",
        Err(Error::Closed(_)) => "closed",
        Err(Error::PeerDied(_)) => "peer died",
        Err(Error::Timeout(_)) => "timeout",
        Err(e) => panic!("{e}"),
    }
}

/// Waits for a free slot without any limit, and says what came of it.
fn acquires(given: &str) {
    let pool = pool(given);
    say("waiting");
    say(name(pool.acquire().map(drop)));
}

/// Waits for a message without any limit, and says what came of it.
fn takes(given: &str) {
    let pool = pool(given);
    say("waiting");
    say(name(pool.take().map(drop)));
}

/// Holds a slot to fill; publishes it when told to, and says what came of it.
fn holds(given: &str) {
    let pool = pool(given);
    let mut slot = pool.acquire_timeout(PATIENCE).unwrap();
    slot.slice_mut::<u64>("n").unwrap().fill(7);
    say("held");
    while listen() == "publish" {
        say(name(slot.publish()));
    }
    say(name(slot.release()));
}

/// Publishes until the pool is closed, and says how many messages it were.
fn produces(given: &str) {
    let pool = pool(given);
    say("go");
    let sent = (0_u64..).find(|&n| put(&pool, n).is_err()).unwrap();
    assert!(matches!(pool.acquire(), Err(Error::Closed(_))));
    say(sent);
}

#[test]
fn close_ends_the_waits_of_other_processes() {
    let pool = Pool::create(&numbers(1)).unwrap();
    let held = pool.try_acquire().unwrap();
    let mut producer = Peer::start("acquires", &words(&pool));
    let mut consumer = Peer::start("takes", &words(&pool));
    assert_eq!((producer.hear(), consumer.hear()), ("waiting".into(), "waiting".into()));
    pool.close().unwrap();
    assert_eq!(producer.hear(), "closed");
    held.release().unwrap();
    assert_eq!(consumer.hear(), "closed");
    assert!(matches!(endless(|wait| pool.acquire_with(wait)), Err(Error::Closed(_))), "one's own as well");
    assert!(matches!(endless(|wait| pool.take_with(None, wait)), Err(Error::Closed(_))));
}

#[test]
fn what_was_held_at_close_is_still_published_and_taken() {
    let pool = Pool::create(&numbers(2)).unwrap();
    let mut holder = Peer::start("holds", &words(&pool));
    assert_eq!(holder.hear(), "held");
    put(&pool, 6).unwrap();
    pool.close().unwrap();
    assert_eq!(get(&pool).unwrap(), 6);
    assert!(matches!(pool.try_take(), Err(Error::Timeout(_))), "the other may still come");
    holder.tell("publish");
    assert_eq!(holder.hear(), "ok");
    assert_eq!(get(&pool).unwrap(), 7);
    assert!(matches!(endless(|wait| pool.take_with(None, wait)), Err(Error::Closed(_))));
}

#[test]
fn a_closed_pool_is_drained_when_its_last_holder_dies() {
    let pool = Pool::create(&numbers(1)).unwrap();
    let mut holder = Peer::start("holds", &words(&pool));
    assert_eq!(holder.hear(), "held");
    pool.close().unwrap();
    let mut pulse = || {
        holder.kill();
        true
    };
    let taken = pool.take_with(None, &mut Wait::new(Some(PATIENCE), &mut pulse));
    assert!(matches!(taken, Err(Error::Closed(_))));
}

#[test]
fn what_a_racing_close_lets_through_is_taken() {
    for _ in 0..15 {
        let pool = Pool::create(&numbers(3)).unwrap();
        let start = || Peer::start("produces", &words(&pool));
        let mut producers = [start(), start()];
        producers.iter_mut().for_each(|peer| assert_eq!(peer.hear(), "go"));
        assert!((0..50).all(|_| get(&pool).is_ok()));
        pool.close().unwrap();
        let rest = std::iter::from_fn(|| get(&pool).ok()).count() as u64;
        let sent: u64 = producers.iter_mut().map(Peer::hear_number::<u64>).sum();
        assert_eq!(50 + rest, sent);
    }
}

#[test]
fn a_dead_creator_ends_acquiring_and_leaves_what_is_there_to_be_taken() {
    let mut creator = Peer::start("creator", "");
    let pool = pool(&creator.hear());
    let mut waiting = pool.try_acquire().unwrap();
    let mut taker = Peer::start("takes", &words(&pool));
    assert_eq!(taker.hear(), "waiting");
    assert_eq!(taker.hear(), "ok", "a message was there");
    creator.kill();
    // The message that the creator was reading comes again; what is held may still be published.
    assert_eq!(get(&pool).unwrap(), 1);
    eventually("the death is seen", || {
        pool.sweep().unwrap();
        pool.phase() == Phase::Orphaned
    });
    assert!(matches!(endless(|wait| pool.acquire_with(wait)), Err(Error::PeerDied(_))));
    waiting.slice_mut::<u64>("n").unwrap().fill(3);
    waiting.publish().unwrap();
    assert_eq!(get(&pool).unwrap(), 3);
    let error = endless(|wait| pool.take_with(None, wait)).map(drop).unwrap_err();
    assert!(matches!(error, Error::PeerDied(_)));
    assert!(error.to_string().contains(&format!("process {}", creator.pid())), "{error}");
}

#[test]
fn a_creators_death_ends_a_wait_that_goes_on() {
    let mut creator = Peer::start("creator", "");
    let pool = pool(&creator.hear());
    let mut taker = Peer::start("takes", &words(&pool));
    assert_eq!((taker.hear(), taker.hear()), ("waiting".into(), "ok".into()));
    let mut taker = Peer::start("takes", &words(&pool));
    assert_eq!(taker.hear(), "waiting");
    let held: Vec<_> = (0..2).map(|_| pool.try_acquire().unwrap()).collect();
    let mut producer = Peer::start("acquires", &words(&pool));
    assert_eq!(producer.hear(), "waiting");
    creator.kill();
    assert_eq!(producer.hear(), "peer died");
    assert_eq!(taker.hear(), "ok", "what the creator was reading");
    drop(held);
}

#[test]
fn a_pool_is_closed_when_its_creator_lets_go_of_it() {
    let mut creator = Peer::start("creator", "drop");
    let pool = pool(&creator.hear());
    creator.tell("drop");
    assert_eq!(creator.hear(), "ready");
    assert_eq!(pool.phase(), Phase::Closed);
    assert!(matches!(endless(|wait| pool.acquire_with(wait)), Err(Error::Closed(_))));
    assert_eq!(get(&pool).unwrap(), 2);
    assert!(matches!(endless(|wait| pool.take_with(None, wait)), Err(Error::Closed(_))));
}

#[test]
fn a_creators_normal_exit_closes_the_pool() {
    let mut creator = Peer::start("creator_that_leaves", "");
    let pool = pool(&creator.hear());
    creator.finish();
    assert!(matches!(endless(|wait| pool.acquire_with(wait)), Err(Error::Closed(_))));
    assert_eq!(get(&pool).unwrap(), 1);
    assert!(matches!(endless(|wait| pool.take_with(None, wait)), Err(Error::Closed(_))));
    assert_eq!(pool.status().deaths, 0);
}

#[test]
fn abort_ends_everything_at_once() {
    let pool = Pool::create(&numbers(3)).unwrap();
    let mut holder = Peer::start("holds", &words(&pool));
    assert_eq!(holder.hear(), "held");
    put(&pool, 1).unwrap();
    let (read, held) = (pool.try_take().unwrap(), pool.try_acquire().unwrap());
    let mut producer = Peer::start("acquires", &words(&pool));
    let mut consumer = Peer::start("takes", &words(&pool));
    assert_eq!((producer.hear(), consumer.hear()), ("waiting".into(), "waiting".into()));
    pool.abort().unwrap();
    assert_eq!((producer.hear(), consumer.hear()), ("closed".into(), "closed".into()));
    holder.tell("publish");
    assert_eq!(holder.hear(), "closed", "nothing is published any more");
    holder.tell("release");
    assert_eq!(holder.hear(), "ok", "giving back always works");
    read.release().unwrap();
    assert!(matches!(held.publish(), Err(Error::Closed(_))));
    drop(held);
    assert!(pool.status().slots.iter().all(|slot| slot.pid.is_none()));
    pool.close().unwrap();
    assert_eq!(pool.phase(), Phase::Aborted, "the phase only grows");
}

/// Waits like `endless`, in the belief that no other thread has leases.
fn alone<T>(wait: impl FnOnce(&mut Wait<'_>) -> Result<T>) -> Result<T> {
    endless(|w| wait(&mut Wait { alone: &|| true, ..Wait::new(None, w.pulse) }))
}

#[test]
fn a_wait_that_only_this_thread_could_end_is_an_error() {
    let pool = Pool::create(&numbers(1)).unwrap();
    let held = pool.try_acquire().unwrap();
    assert!(matches!(alone(|wait| pool.acquire_with(wait)), Err(Error::InUse(_))));
    assert!(matches!(alone(|wait| pool.take_with(None, wait)), Err(Error::InUse(_))));
    held.publish().unwrap();
    let read = pool.try_take().unwrap();
    let error = alone(|wait| pool.acquire_with(wait)).map(drop).unwrap_err();
    assert!(matches!(error, Error::InUse(_)) && error.to_string().contains("this thread"), "{error}");
    drop(read);
    pool.try_acquire().unwrap();
}

#[test]
fn a_wait_that_another_thread_ends_goes_on() {
    let pool = Pool::create(&numbers(1)).unwrap();
    let held = pool.try_acquire().unwrap();
    let other = std::thread::spawn(move || {
        std::thread::sleep(MOMENT);
        drop(held);
    });
    endless(|wait| pool.acquire_with(wait)).unwrap();
    other.join().unwrap();
}

#[test]
fn a_pulse_ends_a_wait() {
    let pool = Pool::create(&numbers(1)).unwrap();
    let mut left = 3;
    let mut pulse = || {
        left -= 1;
        left > 0
    };
    let taken = pool.take_with(None, &mut Wait::new(Some(PATIENCE), &mut pulse));
    assert!(matches!(taken, Err(Error::Interrupted(_))));
    assert_eq!(left, 0);
}

//! Messages come in the order in which they were sent, each once, and no more than fit.

mod peer;

use std::time::Duration;

use peer::{MOMENT, PATIENCE, Peer, get, listen, numbers, pool, put, roles, say, words};
use ropeway::{Error, Options, Pool};

roles!(producer, consumer, fills_up, races, adder);

/// Sends `count` messages that begin with `first`.
fn producer(given: &str) {
    let [words, first, count] = given.split(' ').collect::<Vec<_>>()[..] else { panic!("{given}") };
    let (pool, first): (Pool, u64) = (pool(words), first.parse().unwrap());
    let count: u64 = count.parse().unwrap();
    (first..first + count).for_each(|n| put(&pool, n).unwrap());
    say("done");
    listen();
}

/// Takes all that comes, and says how many it were and their sum.
fn consumer(given: &str) {
    let pool = pool(given);
    let (mut count, mut sum) = (0_u64, 0_u64);
    loop {
        match get(&pool) {
            Ok(n) => (count, sum) = (count + 1, sum + n),
            Err(Error::Closed(_)) => break,
            Err(e) => panic!("{e}"),
        }
    }
    say(count);
    say(sum);
}

/// Whenever told to, sends as much as there is room for, and says how many it were.
fn fills_up(given: &str) {
    let pool = pool(given);
    while listen() == "fill" {
        let sent = std::iter::from_fn(|| match pool.acquire_timeout(MOMENT) {
            Ok(slot) => Some(slot.publish()),
            Err(Error::Timeout(_)) => None,
            Err(e) => Some(Err(e)),
        });
        say(sent.map(Result::unwrap).count());
    }
}

/// Sends as fast as it can, without ever waiting, until the pool is closed.
fn races(given: &str) {
    let pool = pool(given);
    say("go");
    loop {
        match pool.try_acquire() {
            Ok(slot) => slot.publish().unwrap(),
            Err(Error::Timeout(_)) => {}
            Err(_) => return,
        }
    }
}

/// Takes a slot and says which it was.
fn adder(given: &str) {
    let slot = pool(given).acquire_timeout(PATIENCE).unwrap();
    say(slot.index());
    listen();
}

#[test]
fn a_million_messages_come_in_order() {
    come_in_order(1_000_000);
}

/// As many as it took to see two messages of two million swapped before a take scanned twice.
#[test]
#[ignore = "takes half a minute; `make test-long` runs it"]
fn ten_million_messages_come_in_order() {
    come_in_order(10_000_000);
}

fn come_in_order(messages: u64) {
    let pool = Pool::create(&numbers(4)).unwrap();
    let mut producer = Peer::start("producer", &format!("{} 0 {messages}", words(&pool)));
    for n in 0..messages {
        assert_eq!(get(&pool).unwrap(), n);
    }
    assert_eq!(producer.hear(), "done");
    assert_eq!(pool.status().published, messages);
    producer.finish();
}

#[test]
fn each_of_two_producers_is_heard_in_its_own_order() {
    const MESSAGES: u64 = 50_000;
    let pool = Pool::create(&numbers(16)).unwrap();
    let start = |first| Peer::start("producer", &format!("{} {first} {MESSAGES}", words(&pool)));
    let (mut low, mut high) = (start(0), start(MESSAGES));
    let mut next = [0, MESSAGES];
    for _ in 0..2 * MESSAGES {
        let n = get(&pool).unwrap();
        let next = &mut next[(n >= MESSAGES) as usize];
        assert_eq!(n, *next);
        *next += 1;
    }
    assert_eq!((low.hear(), high.hear()), ("done".into(), "done".into()));
}

#[test]
fn each_message_is_taken_once() {
    const MESSAGES: u64 = 20_000;
    let pool = Pool::create(&numbers(8)).unwrap();
    let start = || Peer::start("consumer", &words(&pool));
    let mut consumers = [start(), start()];
    (0..MESSAGES).for_each(|n| put(&pool, n).unwrap());
    pool.close().unwrap();
    let mut hear = || consumers.iter_mut().map(Peer::hear_number::<u64>).sum::<u64>();
    assert_eq!(hear(), MESSAGES);
    assert_eq!(hear(), MESSAGES * (MESSAGES - 1) / 2);
}

#[test]
fn as_many_messages_wait_as_the_limit_says() {
    const LIMIT: usize = 3;
    let options = Options { max_slots: 64, waiting_limit: Some(LIMIT), ..Options::new(1) };
    let pool = Pool::create(&options).unwrap();
    let start = || Peer::start("fills_up", &words(&pool));
    let mut peers = [start(), start()];
    for left in (0..LIMIT).cycle().take(12) {
        peers.iter_mut().for_each(|peer| peer.tell("fill"));
        let sent: usize = peers.iter_mut().map(Peer::hear_number::<usize>).sum();
        assert!(sent > 0);
        assert_eq!(pool.waiting("use").unwrap(), LIMIT);
        assert!(pool.is_full().unwrap());
        // What a consumer holds doesn't count, so its views don't stop the producers.
        let mut held: Vec<_> = (left..LIMIT).map(|_| pool.take_timeout(PATIENCE).unwrap()).collect();
        assert!(!pool.is_full().unwrap());
        (left..LIMIT).for_each(|_| pool.acquire_timeout(PATIENCE).unwrap().publish().unwrap());
        assert!(matches!(pool.try_acquire(), Err(Error::Timeout(_))));
        held.extend(std::iter::from_fn(|| pool.try_take().ok()));
        assert_eq!(held.len(), 2 * LIMIT - left);
    }
}

#[test]
fn racing_producers_never_send_more_than_the_limit() {
    let options = Options { max_slots: 64, waiting_limit: Some(1), ..Options::new(2) };
    let pool = Pool::create(&options).unwrap();
    let mut peer = Peer::start("races", &words(&pool));
    assert_eq!(peer.hear(), "go");
    for _ in 0..50_000 {
        // Makes room, for which both run.
        let _ = pool.try_take().map(|slot| slot.release().unwrap());
        let _ = pool.try_acquire().map(|slot| slot.publish().unwrap());
        // Nobody else takes, so what is seen here can't be more than there is at once.
        let waiting = pool.waiting("use").unwrap();
        assert!(waiting <= 1, "{waiting} messages wait");
    }
    pool.close().unwrap();
    peer.finish();
}

#[test]
fn a_pool_grows_up_to_max_slots() {
    let pool = Pool::create(&Options { max_slots: 4, ..numbers(2) }).unwrap();
    let mut held: Vec<_> = (0..2).map(|_| pool.try_acquire().unwrap()).collect();
    let mut other = Peer::start("adder", &words(&pool));
    assert_eq!(other.hear_number::<usize>(), 2);
    held.push(pool.try_acquire().unwrap());
    assert_eq!(held[2].index(), 3);
    assert!(matches!(pool.try_acquire(), Err(Error::Timeout(_))));
    assert_eq!(pool.status().slots.len(), 4);
    assert_eq!(pool.status().slots[2].pid, Some(other.pid().into()));

    held.drain(..).for_each(|mut slot| {
        let n = slot.index() as u64;
        slot.slice_mut::<u64>("n").unwrap().fill(n);
        slot.publish().unwrap();
    });
    assert_eq!((0..3).map(|_| get(&pool).unwrap()).collect::<Vec<_>>(), [0, 1, 3]);
}

#[test]
fn a_pool_without_max_slots_stays_as_it_is() {
    let pool = Pool::create(&numbers(1)).unwrap();
    let held = pool.try_acquire().unwrap();
    assert!(matches!(pool.acquire_timeout(Duration::from_millis(1)), Err(Error::Timeout(_))));
    drop(held);
    assert_eq!(pool.status().slots.len(), 1);
}

#[test]
fn of_two_who_want_the_last_place_at_once_one_gets_it() {
    const ROUNDS: usize = 20_000;
    let options = Options { max_slots: 8, waiting_limit: Some(1), ..Options::new(2) };
    let pool = Pool::create(&options).unwrap();
    let meeting = Meeting::default();
    let race = || {
        (0..ROUNDS).map(|round| {
            meeting.meet(2 * round + 1);
            let slot = pool.try_acquire();
            meeting.meet(2 * round + 2);
            slot.is_ok()
        })
    };
    let won = std::thread::scope(|scope| {
        let other = scope.spawn(|| race().collect::<Vec<_>>());
        let mine: Vec<_> = race().collect();
        (mine, other.join().unwrap())
    });
    let winners: Vec<_> = won.0.iter().zip(&won.1).map(|(&one, &two)| one as usize + two as usize).collect();
    let wrong = winners.iter().filter(|&&n| n != 1).count();
    assert_eq!(wrong, 0, "rounds of {ROUNDS} in which none or both got the place");
}

/// Where two threads wait for each other, close enough to race afterwards.
#[derive(Default)]
struct Meeting(std::sync::atomic::AtomicUsize);

impl Meeting {
    fn meet(&self, nth: usize) {
        use std::sync::atomic::Ordering::SeqCst;
        self.0.fetch_add(1, SeqCst);
        let mut spins = 0_u32;
        while self.0.load(SeqCst) < 2 * nth {
            spins += 1;
            if spins.is_multiple_of(200) {
                std::thread::yield_now();
            }
        }
    }
}

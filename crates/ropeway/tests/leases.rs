//! A slot never moves on while a view of it lives.

mod peer;

use std::thread;

use peer::{
    MOMENT, PATIENCE, Peer, TWO_SLICES, bytes, change, get, listen, numbers, pool, put, roles, say,
    slices_after, words,
};
use ropeway::{Error, Options, Pool, State};

roles!(taker, keeps_a_view);

/// Waits for a message and says what it was.
fn taker(given: &str) {
    say(get(&pool(given)).unwrap());
}

/// Lets everything go but for one view of the slot that it holds.
fn keeps_a_view(given: &str) {
    let pool = pool(given);
    let lease = pool.take_timeout(PATIENCE).unwrap();
    let (view, _) = lease.export("n").unwrap();
    lease.end();
    drop((lease, pool));
    say("held");
    listen();
    drop(view);
    say("dropped");
    listen();
}

#[test]
fn a_live_view_refuses_publish_and_release_and_nothing_changes() {
    let pool = Pool::create(&numbers(1)).unwrap();
    let mut lease = pool.try_acquire().unwrap();
    lease.slice_mut::<u64>("n").unwrap().fill(5);
    let (first, second) = (lease.export("n").unwrap().0, lease.export("n").unwrap().0);
    let before = pool.status().slots[0].generation;
    for (result, verb) in [(lease.publish(), "published"), (lease.release(), "released")] {
        let Err(Error::InUse(text)) = result else { panic!("{verb} with live views") };
        assert!(text.contains("2 views of its arrays live") && text.contains(verb), "{text}");
    }
    assert_eq!((lease.exports(), lease.has_ended()), (2, false));
    assert_eq!(pool.status().slots[0].generation, before);
    drop(first);
    assert!(matches!(lease.publish(), Err(Error::InUse(_))));
    drop(second);
    lease.publish().unwrap();
    assert!(matches!(lease.publish(), Err(Error::Invalid(_))), "a lease ends once");
    assert!(matches!(lease.export("n"), Err(Error::Invalid(_))));

    let lease = pool.try_take().unwrap();
    let slice = lease.slice::<u64>("n").unwrap();
    assert!(matches!(lease.release(), Err(Error::InUse(_))), "a slice is a view too");
    assert_eq!(*slice, [5; 8]);
    drop(slice);
    lease.release().unwrap();
}

#[test]
fn a_slot_moves_when_its_last_view_goes_from_whatever_thread() {
    let pool = Pool::create(&numbers(1)).unwrap();
    put(&pool, 5).unwrap();
    let lease = pool.try_take().unwrap();
    let views = [lease.export("n").unwrap().0, lease.export("n").unwrap().0];
    drop(lease);
    let generation = pool.status().slots[0].generation;
    let [first, last] = views;
    thread::spawn(|| drop(first)).join().unwrap();
    assert!(matches!(pool.acquire_timeout(MOMENT), Err(Error::Timeout(_))));
    let slot = &pool.status().slots[0];
    assert_eq!((slot.generation, slot.state), (generation, State::HeldRead));
    // SAFETY: the view lives, so the bytes are there and nobody writes them.
    assert_eq!(unsafe { last.as_ptr().cast::<u64>().read() }, 5);
    thread::spawn(|| drop(last)).join().unwrap();
    assert_eq!(pool.status().slots[0].generation, generation + 1);
    pool.try_acquire().unwrap();
}

#[test]
fn a_view_outlives_lease_and_pool_object() {
    let pool = Pool::create(&numbers(1)).unwrap();
    put(&pool, 5).unwrap();
    let mut keeper = Peer::start("keeps_a_view", &words(&pool));
    assert_eq!(keeper.hear(), "held");
    assert!(matches!(pool.acquire_timeout(MOMENT), Err(Error::Timeout(_))));
    assert_eq!(pool.status().members.len(), 2, "a view keeps the membership");
    keeper.tell("drop");
    assert_eq!(keeper.hear(), "dropped");
    pool.try_acquire().unwrap();
    assert_eq!(pool.status().members.len(), 1, "and nothing else does");
    assert_eq!(pool.status().lost, []);
}

#[test]
fn a_process_that_dies_with_a_view_holds_nothing() {
    let pool = Pool::create(&numbers(1)).unwrap();
    put(&pool, 5).unwrap();
    let mut keeper = Peer::start("keeps_a_view", &words(&pool));
    assert_eq!(keeper.hear(), "held");
    let take = |wait: &mut ropeway::Wait<'_>| pool.take_with(None, wait).map(|slot| slot.deliveries());
    let (deliveries, slices) = slices_after(|| keeper.kill(), take);
    assert_eq!(deliveries, 1);
    assert!(slices <= TWO_SLICES, "{slices} slices of 50 ms");
}

#[test]
fn a_waiting_process_gets_the_slot_when_the_last_view_goes() {
    let pool = Pool::create(&numbers(1).stages(["fill", "use"])).unwrap();
    let mut lease = pool.try_acquire().unwrap();
    lease.slice_mut::<u64>("n").unwrap().fill(9);
    let mut taker = Peer::start("taker", &words(&pool));
    let view = lease.export("n").unwrap().0;
    assert!(lease.publish().is_err());
    drop(view);
    lease.publish().unwrap();
    assert_eq!(taker.hear(), "9");
}

#[test]
fn dropping_a_write_lease_gives_the_slot_back_unused() {
    let pool = Pool::create(&numbers(1).stages(["fill", "augment", "use"])).unwrap();
    drop(pool.try_acquire().unwrap());
    assert_eq!(pool.waiting("fill").unwrap(), 1);
    put(&pool, 5).unwrap();
    drop(change(&pool, "augment").unwrap());
    let status = pool.status();
    assert_eq!((&*status.slots[0].stage, status.slots[0].state), ("fill", State::Idle));
    let (lost, me) = (&status.lost[0], u64::from(std::process::id()));
    assert_eq!((&*lost.stage, lost.pid), ("augment", me), "it may have been changed, so it is lost");
}

#[test]
fn racing_exports_and_ends_give_a_slot_back_once() {
    let pool =
        Pool::create(&Options::new(1).fields(vec![bytes("n", 64)]).stages(["fill", "work", "use"])).unwrap();
    for _ in 0..20_000 {
        pool.try_acquire().unwrap().publish().unwrap();
        let lease = change(&pool, "work").unwrap();
        thread::scope(|scope| {
            scope.spawn(|| while lease.export("n").is_ok() {});
            while let Err(e) = lease.publish() {
                assert!(matches!(e, Error::InUse(_)), "{e}");
            }
        });
        pool.try_take().unwrap().release().unwrap();
    }
    assert_eq!(pool.status().lost, []);
}

#[test]
fn a_slot_that_another_thread_has_just_taken_isnt_held_by_this_one() {
    let pool = Pool::create(&numbers(1)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..30_000 {
                put(&pool, number).unwrap();
            }
        });
        for number in 0..30_000 {
            // Without a timeout: such a wait is refused when the thread waits for itself.
            let slot = pool.take().unwrap();
            assert_eq!(slot.slice::<u64>("n").unwrap()[0], number);
            slot.release().unwrap();
        }
    });
}

/// An array that takes more than one step to commit, with a pulse between them.
const TWO_STEPS: u64 = 65 << 20;

#[test]
fn while_a_slot_is_given_memory_its_lease_works_and_the_slot_stays() {
    let pool = Pool::create(&Options::new(1)).unwrap();
    let lease = pool.try_acquire().unwrap();
    let mut pulses = 0;
    let mut pulse = || {
        pulses += 1;
        assert_eq!(lease.fields().unwrap().len(), 0, "what a signal handler asks for is answered");
        lease.set_meta(b"meta").unwrap();
        let refused = [lease.release(), lease.publish(), lease.add(bytes("b", 1), &mut || true)];
        for result in refused {
            let Err(Error::InUse(text)) = result else { panic!("{result:?}") };
            assert!(text.contains("giving it memory"), "{text}");
        }
        true
    };
    lease.add(bytes("a", TWO_STEPS), &mut pulse).unwrap();
    assert!(pulses > 0);
    lease.publish().unwrap();
    let lease = pool.try_take().unwrap();
    assert_eq!((lease.fields().unwrap()[0].bytes(), lease.meta().unwrap()), (TWO_STEPS, b"meta".to_vec()));
}

#[test]
fn a_slot_whose_lease_ends_while_it_is_given_memory_moves_on_afterwards() {
    let pool = Pool::create(&Options::new(1)).unwrap();
    let lease = pool.try_acquire().unwrap();
    let mut pulse = || {
        lease.end();
        let slot = &pool.status().slots[0];
        assert_eq!((slot.state, slot.stage.as_str()), (State::HeldWrite, "fill"));
        true
    };
    lease.add(bytes("a", TWO_STEPS), &mut pulse).unwrap();
    assert!(lease.has_ended());
    assert_eq!(pool.status().slots[0].state, State::Idle);
    pool.try_acquire().unwrap();
}

#[test]
fn two_threads_add_arrays_to_one_slot() {
    let pool = Pool::create(&Options::new(1)).unwrap();
    let lease = pool.try_acquire().unwrap();
    thread::scope(|threads| {
        for name in ["a", "b", "c"] {
            let lease = &lease;
            threads.spawn(move || lease.add(bytes(name, TWO_STEPS), &mut || true).unwrap());
        }
    });
    let names = lease.fields().unwrap().into_iter().map(|field| field.name);
    let mut places: Vec<_> = names.map(|name| lease.export(&name).unwrap().0.as_ptr().addr()).collect();
    places.sort_unstable();
    assert!(places.windows(2).all(|two| two[1] - two[0] >= TWO_STEPS as usize), "{places:?}");
}

//! Every interleaving, within a bound on preemptions, of two or three participants of the real
//! protocol, with the weak memory that the language allows:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target-loom cargo test -p ropeway --release --test loom
//! ```
#![cfg(loom)]

mod model;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use model::{Forever, Held, Member, Pool, Shape, Slices, dies_at, thread};
use ropeway::board::Phase;
use ropeway::wait::Ended;

/// Runs every execution with at most `preemptions` preemptions, or `LOOM_MAX_PREEMPTIONS`.
fn explore(name: &str, preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.max_branches = 20_000;
    let (count, start) = (Arc::new(AtomicUsize::new(0)), std::time::Instant::now());
    let counted = count.clone();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        run();
    });
    eprintln!("{name}: {} executions in {:.1} s", count.load(Ordering::Relaxed), start.elapsed().as_secs_f32());
}

// ---- the slot word ------------------------------------------------------------------------------

#[test]
fn two_takers_and_a_producer_never_hold_one_slot_twice() {
    explore("two takers", 2, || {
        let pool = Pool::new(Shape::new(2, 3));
        let (producer, one, two) = (pool.member(0), pool.member(1), pool.member(2));
        let takers = [one, two].map(|taker| {
            thread::spawn(move || {
                if let Some(held) = taker.try_take(1) {
                    taker.consume(held);
                }
            })
        });
        producer.send(0).unwrap();
        producer.send(1).unwrap();
        takers.into_iter().for_each(|taker| taker.join().unwrap());
        pool.settle(&producer);
    });
}

#[test]
fn two_producers_never_hold_one_slot_twice() {
    explore("two producers", 3, || {
        let pool = Pool::new(Shape::new(1, 2));
        let (one, two) = (pool.member(0), pool.member(1));
        let other = thread::spawn(move || one.try_fill(0).map(|held| one.publish(held)).is_some());
        let mine = two.try_fill(1).map(|held| two.publish(held)).is_some();
        assert!(mine != other.join().unwrap());
        pool.settle(&two);
    });
}

#[test]
fn one_consumer_takes_in_the_order_of_one_producer() {
    explore("order", 3, || {
        let pool = Pool::new(Shape::new(3, 2));
        let (producer, consumer) = (pool.member(0), pool.member(1));
        let sending = thread::spawn(move || (0..3).for_each(|batch| producer.send(batch).unwrap()));
        let mut order = Vec::new();
        for _ in 0..2 {
            if let Some(held) = consumer.try_take(1) {
                order.push(held.batch);
                consumer.consume(held);
            }
        }
        sending.join().unwrap();
        assert!(order.iter().copied().eq(0..order.len() as u64), "{order:?}");
        pool.settle(&consumer);
    });
}

// ---- waiting ------------------------------------------------------------------------------------

#[test]
fn a_producer_and_a_consumer_wake_each_other() {
    explore("1p1c", 2, || {
        let pool = Pool::new(Shape::new(1, 2));
        let (producer, consumer) = (pool.member(0), pool.member(1));
        let sending = thread::spawn(move || (0..2).for_each(|batch| producer.send(batch).unwrap()));
        for batch in 0..2 {
            let held = consumer.take(1, &mut Forever).unwrap();
            assert_eq!(held.batch, batch);
            consumer.consume(held);
        }
        sending.join().unwrap();
        pool.settle(&consumer);
    });
}

#[test]
fn two_sleeping_takers_are_both_served() {
    explore("two sleepers", 2, || {
        let pool = Pool::new(Shape::new(2, 3));
        let (producer, one, two) = (pool.member(0), pool.member(1), pool.member(2));
        let takers = [one, two].map(|taker| {
            thread::spawn(move || {
                let held = taker.take(1, &mut Forever).unwrap();
                taker.consume(held);
            })
        });
        producer.send(0).unwrap();
        producer.send(1).unwrap();
        takers.into_iter().for_each(|taker| taker.join().unwrap());
        pool.settle(&producer);
    });
}

#[test]
fn a_timeout_takes_no_wake_up_with_it() {
    explore("timeout", 2, || {
        let pool = Pool::new(Shape::new(1, 3));
        let (producer, hasty, patient) = (pool.member(0), pool.member(1), pool.member(2));
        let hasty = thread::spawn(move || match hasty.take(1, &mut Slices(1)) {
            Ok(held) => hasty.put_back(held),
            Err(why) => assert_eq!(why, Ended::TimedOut),
        });
        let patient = thread::spawn(move || {
            let held = patient.take(1, &mut Forever).unwrap();
            patient.consume(held);
        });
        producer.send(0).unwrap();
        hasty.join().unwrap();
        patient.join().unwrap();
        pool.settle(&producer);
    });
}

// ---- closing ------------------------------------------------------------------------------------

#[test]
fn close_ends_the_wait_of_every_taker() {
    explore("close, takers", 3, || {
        let pool = Pool::new(Shape::new(1, 3));
        let (closer, one, two) = (pool.member(0), pool.member(1), pool.member(2));
        let takers = [one, two].map(|taker| {
            thread::spawn(move || {
                assert_eq!(taker.take(1, &mut Forever).err(), Some(Ended::Over(Phase::Closed)));
            })
        });
        pool.close();
        takers.into_iter().for_each(|taker| taker.join().unwrap());
        pool.settle(&closer);
    });
}

#[test]
fn close_ends_the_wait_of_a_producer() {
    explore("close, producer", 3, || {
        let pool = Pool::new(Shape::new(1, 2));
        let (producer, holder) = (pool.member(0), pool.member(1));
        let held = holder.try_fill(0).unwrap();
        let waiting = thread::spawn(move || producer.fill(1, &mut Forever).err());
        pool.close();
        assert_eq!(waiting.join().unwrap(), Some(Ended::Over(Phase::Closed)));
        holder.publish(held);
        pool.settle(&holder);
    });
}

/// One fills, one takes until the end, one closes.
fn closing(fill: fn(&Member) -> Option<Held>, serve: fn(&Member) -> usize) {
    let pool = Pool::new(Shape::new(1, 3));
    let (closer, producer, taker) = (pool.member(0), pool.member(1), pool.member(2));
    let sending = thread::spawn(move || fill(&producer).map(|held| producer.publish(held)).is_some());
    let taking = thread::spawn(move || serve(&taker));
    pool.close();
    let (sent, served) = (sending.join().unwrap(), taking.join().unwrap());
    assert_eq!(served, usize::from(sent), "a batch came after a taker had seen the end");
    pool.settle(&closer);
}

#[test]
fn what_is_begun_before_close_returns_is_seen_by_takers() {
    explore("close, race", 2, || {
        closing(|producer| producer.fill(0, &mut Forever).ok(), |taker| taker.serve(1).len());
    });
}

/// A holder gives up what was on its way when the pool is closed.
fn draining(give_up: fn(&Member, Held)) {
    let pool = Pool::new(Shape::new(1, 3));
    let (producer, closer, taker) = (pool.member(0), pool.member(1), pool.member(2));
    let held = producer.try_fill(0).unwrap();
    let taking = thread::spawn(move || taker.serve(1).len());
    let giving = thread::spawn(move || give_up(&producer, held));
    pool.close();
    giving.join().unwrap();
    assert_eq!(taking.join().unwrap(), 0);
    pool.settle(&closer);
}

#[test]
fn the_last_move_upstream_of_a_closed_pool_ends_the_wait() {
    explore("close, drained by a holder", 2, || draining(Member::abandon));
}

// ---- queues -------------------------------------------------------------------------------------

/// Two fill a queue that has room for one.
fn queueing(fill: fn(&Member, u64) -> Option<Held>) {
    let pool = Pool::new(Shape { waiting_limit: Some(1), ..Shape::new(2, 2) });
    let (one, two) = (pool.member(0), pool.member(1));
    let other = thread::spawn(move || fill(&one, 0).map(|held| one.publish(held)).is_some());
    let mine = fill(&two, 1).map(|held| two.publish(held)).is_some();
    let other = other.join().unwrap();
    assert!(!(mine && other), "two are in a queue of one");
    pool.settle(&two);
}

#[test]
fn a_queue_never_holds_more_than_its_limit() {
    explore("limit", 3, || queueing(Member::try_fill));
}

#[test]
fn producers_of_a_full_queue_are_woken() {
    explore("limit, sleepers", 2, || {
        let pool = Pool::new(Shape { waiting_limit: Some(1), ..Shape::new(2, 3) });
        let (one, two, taker) = (pool.member(0), pool.member(1), pool.member(2));
        one.send(0).unwrap();
        let sending = thread::spawn(move || two.send(1).unwrap());
        let held = taker.take(1, &mut Forever).unwrap();
        sending.join().unwrap();
        taker.consume(held);
        pool.settle(&taker);
    });
}

#[test]
fn two_producers_share_a_queue_of_one() {
    explore("limit, two sleepers", 2, || {
        let pool = Pool::new(Shape { waiting_limit: Some(1), ..Shape::new(2, 3) });
        let (one, two, taker) = (pool.member(0), pool.member(1), pool.member(2));
        let producers = [(one, 0), (two, 1)].map(|(p, batch)| thread::spawn(move || p.send(batch).unwrap()));
        for _ in 0..2 {
            let held = taker.take(1, &mut Forever).unwrap();
            taker.consume(held);
        }
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        pool.settle(&taker);
    });
}

// ---- the dead -----------------------------------------------------------------------------------

/// A pool of three stages in which batch 0 waits at stage 1.
fn three_stages(slots: usize, members: usize) -> (Arc<Pool>, Member) {
    let pool = Pool::new(Shape { last: 2, ..Shape::new(slots, members) });
    let member = pool.member(0);
    member.send(0).unwrap();
    (pool, member)
}

/// What a participant does until it dies.
type Life = fn(&Member);

const LIVES: [(&str, Life); 4] = [
    ("fills", |member| {
        member.try_fill(1).map(|held| member.publish(held));
    }),
    ("changes", |member| {
        member.try_take(1).map(|held| member.pass_on(held));
    }),
    ("gives up", |member| {
        member.try_take(1).map(|held| member.abandon(held));
    }),
    ("changes and reads", |member| {
        member.try_take(1).map(|held| member.pass_on(held));
        member.try_take(2).map(|held| member.pass_on(held));
    }),
];

/// Runs the model for a death at the first point, the second, ... until nobody dies any more.
fn explore_deaths(name: &str, preemptions: usize, run: impl Fn(usize) -> bool + Send + Sync + 'static) {
    let run = Arc::new(run);
    for n in 0.. {
        let (run, died) = (run.clone(), Arc::new(AtomicUsize::new(0)));
        let count = died.clone();
        explore(&format!("{name}, dead at {n}"), preemptions, move || {
            count.fetch_add(usize::from(run(n)), Ordering::Relaxed);
        });
        if died.load(Ordering::Relaxed) == 0 {
            assert!(n > 1, "nobody died");
            return;
        }
    }
}

#[test]
fn a_death_at_any_point_loses_no_slot_and_no_batch() {
    for (name, life) in LIVES {
        explore_deaths(name, 3, move |n| {
            let (pool, other) = three_stages(2, 2);
            let victim = pool.member(1);
            let living = thread::spawn(move || victim.mortal(dies_at(n), life).is_none());
            other.try_take(2).map(|held| other.consume(held));
            other.sweep();
            other.try_take(1).map(|held| other.pass_on(held));
            let died = living.join().unwrap();
            pool.settle(&other);
            died
        });
    }
}

/// What a participant holds when it dies; the pool has one slot and three stages.
const HOLDING: [(&str, Life); 3] = [
    ("filling", |member| drop(member.try_fill(0))),
    ("changing", |member| {
        member.send(0).unwrap();
        drop(member.try_take(1));
    }),
    ("reading", |member| {
        member.send(0).unwrap();
        member.try_take(1).map(|held| member.pass_on(held));
        drop(member.try_take(2));
    }),
];

/// A pool of three members, of whom the second has died holding the slot.
fn bereaved(life: Life) -> (Arc<Pool>, Member, Member) {
    let pool = Pool::new(Shape { last: 2, ..Shape::new(1, 3) });
    let (one, victim, two) = (pool.member(0), pool.member(1), pool.member(2));
    life(&victim);
    victim.die();
    (pool, one, two)
}

/// Two sweep at once, a third joins on the freed index and claims the slot.
fn sweepers_and_a_newcomer(life: Life, sweep: fn(&Member)) {
    let (pool, one, two) = bereaved(life);
    let sweeping = thread::spawn(move || sweep(&two));
    let joining = {
        let pool = pool.clone();
        thread::spawn(move || {
            let newcomer = pool.join(1)?;
            newcomer.try_fill(1).map(|held| newcomer.publish(held));
            newcomer.try_take(2).map(|held| newcomer.consume(held));
            Some(newcomer)
        })
    };
    sweep(&one);
    sweeping.join().unwrap();
    let newcomer = joining.join().unwrap();
    pool.settle(&one);
    drop(newcomer);
}

fn sweep(member: &Member) {
    member.sweep();
}

#[test]
fn two_sweepers_leave_a_newcomer_in_peace() {
    for (name, life) in HOLDING {
        explore(&format!("{name}, two sweepers, newcomer"), 2, move || sweepers_and_a_newcomer(life, sweep));
    }
}

#[test]
fn a_sweeper_that_dies_is_followed_by_another() {
    for (name, life) in HOLDING {
        explore_deaths(&format!("{name}, sweeper"), 2, move |n| {
            let (pool, one, two) = bereaved(life);
            let sweeping = thread::spawn(move || two.mortal(dies_at(n), sweep).is_none());
            one.sweep();
            one.try_take(2).map(|held| one.consume(held));
            let died = sweeping.join().unwrap();
            pool.settle(&one);
            died
        });
    }
}

#[test]
fn what_a_member_read_before_a_normal_exit_is_consumed() {
    explore("normal exit", 3, || {
        let pool = Pool::new(Shape::new(1, 2));
        let (one, two) = (pool.member(0), pool.member(1));
        one.send(0).unwrap();
        let held = two.try_take(1).unwrap();
        let exiting = thread::spawn(move || two.exit_holding(held));
        one.sweep();
        one.try_take(1).map(|held| one.consume(held));
        exiting.join().unwrap();
        pool.settle(&one);
    });
}

// ---- planted bugs: the models see them -----------------------------------------------------------

#[test]
#[should_panic(expected = "out of order")]
fn planted_one_scan() {
    explore("one scan", 3, || {
        let pool = Pool::new(Shape::new(3, 2));
        let (producer, consumer) = (pool.member(0), pool.member(1));
        let sending = thread::spawn(move || (0..2).for_each(|batch| producer.send(batch).unwrap()));
        if let Some(held) = consumer.take_by_one_scan(1) {
            assert_eq!(held.batch, 0, "out of order");
            consumer.consume(held);
        }
        sending.join().unwrap();
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn planted_relaxed_scan() {
    explore("relaxed scan", 2, || {
        let pool = Pool::new(Shape::new(1, 2));
        let (producer, consumer) = (pool.member(0), pool.member(1));
        let sending = thread::spawn(move || producer.send(0).unwrap());
        consumer.take_by_relaxed_loads(1).map(|held| consumer.consume(held));
        sending.join().unwrap();
    });
}

/// One producer publishes, one consumer waits.
fn handing_over(publish: fn(&Member, Held), take: fn(&Member) -> Held) {
    let pool = Pool::new(Shape::new(1, 2));
    let (producer, consumer) = (pool.member(0), pool.member(1));
    let held = producer.try_fill(0).unwrap();
    let sending = thread::spawn(move || publish(&producer, held));
    let held = take(&consumer);
    consumer.consume(held);
    sending.join().unwrap();
}

#[test]
#[should_panic(expected = "deadlock")]
fn planted_publish_without_fence() {
    let take = |consumer: &Member| consumer.take(1, &mut Forever).unwrap();
    explore("publish without fence", 3, move || handing_over(Member::publish_without_fence, take));
}

#[test]
#[should_panic(expected = "deadlock")]
fn planted_sleep_without_fence() {
    explore("sleep without fence", 3, || handing_over(Member::publish, |c| c.take_without_fence(1)));
}

#[test]
#[should_panic(expected = "deadlock")]
fn planted_no_second_claim() {
    explore("no second claim", 3, || handing_over(Member::publish, |c| c.take_without_second_claim(1)));
}

#[test]
#[should_panic(expected = "came after a taker had seen the end")]
fn planted_closed_before_the_claim() {
    explore("closed before the claim", 2, || {
        closing(|producer| producer.try_fill_closed_checked_first(0), |taker| taker.serve(1).len());
    });
}

#[test]
#[should_panic(expected = "came after a taker had seen the end")]
fn planted_drained_before_closed() {
    explore("drained before closed", 2, || {
        closing(|producer| producer.try_fill(0), |taker| taker.serve_drained_checked_first(1));
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn planted_only_one_stage_is_woken() {
    explore("one stage", 2, || draining(Member::give_up_waking_one_stage));
}

#[test]
#[should_panic(expected = "a queue of 1 holds 2")]
fn planted_no_second_look_at_the_limit() {
    explore("no second look at the limit", 2, || queueing(Member::try_fill_without_second_look));
}

#[test]
#[should_panic(expected = "slot 0 was taken from its living holder 1")]
fn planted_no_second_look_in_a_sweep() {
    explore("no second look", 2, || {
        sweepers_and_a_newcomer(HOLDING[0].1, Member::sweep_without_second_look);
    });
}

#[test]
#[should_panic(expected = "slot 0")]
fn planted_sweep_by_stores() {
    explore("stores", 2, || sweepers_and_a_newcomer(HOLDING[0].1, Member::sweep_by_stores));
}

#[test]
#[should_panic(expected = "its word, and who holds it")]
fn planted_entry_freed_first() {
    explore("entry first", 2, || sweepers_and_a_newcomer(HOLDING[1].1, Member::bury_first));
}

#[test]
#[should_panic(expected = "gone without a word")]
fn planted_loss_recorded_late() {
    explore_deaths("loss recorded late", 2, |n| {
        let (pool, one, two) = bereaved(HOLDING[1].1);
        let died = two.mortal(dies_at(n), Member::sweep_recording_late).is_none();
        pool.settle(&one);
        died
    });
}

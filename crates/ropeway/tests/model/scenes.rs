//! Small scenes that both checkers play; what a planted bug replaces is a parameter.

use std::sync::Arc;

use ropeway::board::Phase;
use ropeway::wait::Ended;

use super::{Forever, Held, Member, Pool, Shape, Slices, dies_at, thread};

/// Somebody's part in a scene.
pub type Life = fn(&Member);

// ---- the slot word ------------------------------------------------------------------------------

/// Two take, one publishes a second batch meanwhile.
pub fn two_takers_and_a_producer() {
    let pool = Pool::new(Shape::new(2, 3));
    let (producer, one, two) = (pool.member(0), pool.member(1), pool.member(2));
    producer.send(0).unwrap();
    let takers = [one, two].map(|taker| thread::spawn(move || taker.pass(1)));
    producer.send(1).unwrap();
    for taker in takers {
        taker.join().unwrap();
    }
    pool.settle(&producer);
}

/// Two want the only slot.
pub fn two_producers() {
    let pool = Pool::new(Shape::new(1, 2));
    let (one, two) = (pool.member(0), pool.member(1));
    let other = thread::spawn(move || one.try_send(0));
    let mine = two.try_send(1);
    assert!(mine != other.join().unwrap());
    pool.settle(&two);
}

/// One publishes, one takes without waiting.
pub fn in_order(take: fn(&Member) -> Option<Held>) {
    let pool = Pool::new(Shape::new(3, 2));
    let (producer, consumer) = (pool.member(0), pool.member(1));
    let sending = thread::spawn(move || (0..3).for_each(|batch| producer.send(batch).unwrap()));
    let mut order = Vec::new();
    for _ in 0..2 {
        if let Some(held) = take(&consumer) {
            order.push(held.batch);
            consumer.consume(held);
        }
    }
    sending.join().unwrap();
    assert!(order.iter().copied().eq(0..order.len() as u64), "out of order: {order:?}");
    pool.settle(&consumer);
}

/// What two have published isn't overtaken by what one of them publishes afterwards.
pub fn in_order_of_two() {
    let pool = Pool::new(Shape::new(3, 3));
    let (one, two, consumer) = (pool.member(0), pool.member(1), pool.member(2));
    let held = one.try_fill(0).unwrap();
    let publishing = thread::spawn(move || one.publish(held));
    two.send(1).unwrap();
    assert!(consumer.pass(1));
    publishing.join().unwrap();
    two.send(2).unwrap();
    let held = consumer.try_take(1).unwrap();
    assert_ne!(held.batch, 2, "out of order");
    consumer.consume(held);
    pool.settle(&consumer);
}

// ---- waiting ------------------------------------------------------------------------------------

/// One publishes, one waits for it.
pub fn handing_over(publish: fn(&Member, Held), take: fn(&Member) -> Held) {
    let pool = Pool::new(Shape::new(1, 2));
    let (producer, consumer) = (pool.member(0), pool.member(1));
    let held = producer.try_fill(0).unwrap();
    let sending = thread::spawn(move || publish(&producer, held));
    let held = take(&consumer);
    consumer.consume(held);
    sending.join().unwrap();
    pool.settle(&consumer);
}

/// One slot goes there and back again; both sides wait.
pub fn there_and_back() {
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
}

/// A producer waits while the only free slot is taken out of the pool: another may come in its place.
pub fn trimming() {
    let pool = Pool::new(Shape { max_slots: 2, ..Shape::new(1, 3) });
    let (holder, trimmer, producer) = (pool.member(0), pool.member(1), pool.member(2));
    let (held, free) = (holder.try_fill(0).unwrap(), holder.try_fill(1).unwrap());
    holder.abandon(free);
    let trimming = thread::spawn(move || trimmer.trim(1));
    let added = producer.fill(2, &mut Forever).unwrap();
    producer.abandon(added);
    trimming.join().unwrap();
    holder.abandon(held);
}

/// A taker waits for the end of a pool that is closed while a slot is taken out of it.
pub fn trimming_at_the_end() {
    let pool = Pool::new(Shape::new(1, 2));
    let (trimmer, taker) = (pool.member(0), pool.member(1));
    let trimming = thread::spawn(move || trimmer.trim(0));
    pool.close();
    assert!(taker.take(1, &mut Forever).is_err());
    trimming.join().unwrap();
}

/// Two wait, each for one of two batches.
pub fn two_sleepers() {
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
    for taker in takers {
        taker.join().unwrap();
    }
    pool.settle(&producer);
}

/// One waits for the batch that comes, another for one that never does.
pub fn two_who_ask_for_different_numbers() {
    let pool = Pool::new(Shape::new(1, 3));
    let (producer, one, two) = (pool.member(0), pool.member(1), pool.member(2));
    let in_vain = thread::spawn(move || two.take_numbered(1, Some(7), &mut Forever).err());
    let taking = thread::spawn(move || {
        let held = one.take_numbered(1, Some(0), &mut Forever).unwrap();
        one.consume(held);
    });
    producer.send(0).unwrap();
    taking.join().unwrap();
    pool.close();
    assert_eq!(in_vain.join().unwrap(), Some(Ended::Over(Phase::Closed)));
    pool.settle(&producer);
}

/// Two wait for one batch; one of them gives up, or gives back what it got.
pub fn a_hasty_and_a_patient_taker() {
    let pool = Pool::new(Shape::new(1, 3));
    let (producer, hasty, patient) = (pool.member(0), pool.member(1), pool.member(2));
    let hasty = thread::spawn(move || match hasty.take(1, &mut Slices { left: 1, nerves: 9 }) {
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
}

// ---- closing ------------------------------------------------------------------------------------

/// Two wait at the last stage of an empty pool that is closed.
pub fn closing_on_takers() {
    let pool = Pool::new(Shape::new(1, 3));
    let (closer, one, two) = (pool.member(0), pool.member(1), pool.member(2));
    let takers = [one, two].map(|taker| thread::spawn(move || taker.take(1, &mut Forever).err()));
    pool.close();
    for taker in takers {
        assert_eq!(taker.join().unwrap(), Some(Ended::Over(Phase::Closed)));
    }
    pool.settle(&closer);
}

/// One waits for a free slot of a pool that is closed.
pub fn closing_on_a_producer() {
    let pool = Pool::new(Shape::new(1, 2));
    let (producer, holder) = (pool.member(0), pool.member(1));
    let held = holder.try_fill(0).unwrap();
    let waiting = thread::spawn(move || producer.fill(1, &mut Forever).err());
    pool.close();
    assert_eq!(waiting.join().unwrap(), Some(Ended::Over(Phase::Closed)));
    holder.publish(held);
    pool.settle(&holder);
}

/// One fills, one takes until the end, one closes.
pub fn closing(fill: fn(&Member) -> Option<Held>, serve: fn(&Member) -> usize) {
    let pool = Pool::new(Shape::new(1, 3));
    let (closer, producer, taker) = (pool.member(0), pool.member(1), pool.member(2));
    let sending = thread::spawn(move || fill(&producer).map(|held| producer.publish(held)).is_some());
    let taking = thread::spawn(move || serve(&taker));
    pool.close();
    let (sent, served) = (sending.join().unwrap(), taking.join().unwrap());
    assert_eq!(served, usize::from(sent), "a batch came after a taker had seen the end");
    pool.settle(&closer);
}

/// A holder gives up what was on its way when the pool is closed.
pub fn draining(give_up: fn(&Member, Held)) {
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

// ---- queues -------------------------------------------------------------------------------------

fn queue_of_one(members: usize) -> Arc<Pool> {
    Pool::new(Shape { waiting_limit: Some(1), ..Shape::new(2, members) })
}

/// Two fill a queue that has room for one.
pub fn queueing(fill: fn(&Member, u64) -> Option<Held>) {
    let pool = queue_of_one(2);
    let (one, two) = (pool.member(0), pool.member(1));
    let other = thread::spawn(move || fill(&one, 0).map(|held| one.publish(held)).is_some());
    let mine = fill(&two, 1).map(|held| two.publish(held)).is_some();
    let other = other.join().unwrap();
    assert!(!(mine && other), "two are in a queue of one");
    pool.settle(&two);
}

/// One waits until a full queue has room.
pub fn a_full_queue() {
    let pool = queue_of_one(3);
    let (one, two, taker) = (pool.member(0), pool.member(1), pool.member(2));
    one.send(0).unwrap();
    let sending = thread::spawn(move || two.send(1).unwrap());
    let held = taker.take(1, &mut Forever).unwrap();
    sending.join().unwrap();
    taker.consume(held);
    pool.settle(&taker);
}

/// Two send through a queue that has room for one.
pub fn two_producers_of_a_queue() {
    let pool = queue_of_one(3);
    let (one, two, taker) = (pool.member(0), pool.member(1), pool.member(2));
    let producers = [(one, 0), (two, 1)].map(|(p, batch)| thread::spawn(move || p.send(batch).unwrap()));
    for _ in 0..2 {
        let held = taker.take(1, &mut Forever).unwrap();
        taker.consume(held);
    }
    for producer in producers {
        producer.join().unwrap();
    }
    pool.settle(&taker);
}

// ---- the dead -----------------------------------------------------------------------------------

/// What somebody does who dies meanwhile; batch 0 waits at stage 1 of 2.
pub const LIVES: [(&str, Life); 4] = [
    ("fills", |member| {
        member.try_send(1);
    }),
    ("changes", |member| {
        member.pass(1);
    }),
    ("gives up", |member| {
        if let Some(held) = member.try_take(1) {
            member.abandon(held);
        }
    }),
    ("changes, reads and leaves", |member| {
        member.pass(1);
        member.pass(2);
        member.exit();
    }),
];

/// One dies at its `n`-th point while another takes and sweeps; true if it died.
pub fn a_death_at(life: Life, n: usize) -> bool {
    let pool = Pool::new(Shape { last: 2, ..Shape::new(2, 2) });
    let (other, victim) = (pool.member(0), pool.member(1));
    other.send(0).unwrap();
    let living = thread::spawn(move || victim.mortal(dies_at(n), life).is_none());
    other.pass(2);
    other.sweep();
    other.pass(1);
    let died = living.join().unwrap();
    pool.settle(&other);
    died
}

/// What somebody holds who is dead; the pool has one slot and three stages.
pub const HOLDING: [(&str, Life); 3] = [
    ("filling", |member| {
        let _held = member.try_fill(0);
    }),
    ("changing", |member| {
        member.send(0).unwrap();
        let _held = member.try_take(1);
    }),
    ("reading", |member| {
        member.send(0).unwrap();
        member.pass(1);
        let _held = member.try_take(2);
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
pub fn sweepers_and_a_newcomer(life: Life, sweep: Life, join: fn(&Arc<Pool>, usize) -> Option<Member>) {
    let (pool, one, two) = bereaved(life);
    let sweeping = thread::spawn(move || sweep(&two));
    let joining = {
        let pool = pool.clone();
        thread::spawn(move || {
            let newcomer = join(&pool, 1)?;
            newcomer.try_send(1);
            newcomer.pass(2);
            Some(newcomer)
        })
    };
    sweep(&one);
    sweeping.join().unwrap();
    let newcomer = joining.join().unwrap();
    pool.settle(&one);
    drop(newcomer);
}

/// One of two sweepers dies at its `n`-th point; true if it did.
pub fn a_dead_sweeper(life: Life, sweep: Life, n: usize) -> bool {
    let (pool, one, two) = bereaved(life);
    let sweeping = thread::spawn(move || two.mortal(dies_at(n), sweep).is_none());
    one.sweep();
    one.pass(2);
    let died = sweeping.join().unwrap();
    pool.settle(&one);
    died
}

/// One waits for the slot of another, who dies and is swept by a third.
pub fn a_sleeper_and_a_sweeper() {
    let pool = Pool::new(Shape::new(1, 3));
    let (one, victim, two) = (pool.member(0), pool.member(1), pool.member(2));
    let _held = victim.try_fill(0);
    let sweeping = thread::spawn(move || {
        victim.die();
        two.sweep()
    });
    one.send(1).unwrap();
    sweeping.join().unwrap();
    pool.settle(&one);
}

/// A newcomer dies at its `n`-th point, in joining at the earliest; true if it did.
pub fn a_dead_newcomer(n: usize) -> bool {
    let (pool, one, _two) = bereaved(HOLDING[1].1);
    let joining = {
        let pool = pool.clone();
        thread::spawn(move || {
            let newcomer = |member: &Member| member.try_send(1);
            pool.newcomer(dies_at(n), |pool| pool.join(1), newcomer).is_none()
        })
    };
    one.sweep();
    let died = joining.join().unwrap();
    pool.settle(&one);
    died
}

/// A pool is closed while a dead reader holds its last batch.
pub fn the_last_batch_of_the_dead() {
    let (pool, one, two) = bereaved(HOLDING[2].1);
    let sweeping = thread::spawn(move || two.sweep());
    pool.close();
    assert_eq!(one.serve(2), [0], "a taker left while the dead held its batch");
    sweeping.join().unwrap();
    pool.settle(&one);
}

/// One leaves by a normal exit while it still holds what it has read.
pub fn a_normal_exit(exit: fn(&Member, Held)) {
    let pool = Pool::new(Shape::new(1, 2));
    let (one, two) = (pool.member(0), pool.member(1));
    one.send(0).unwrap();
    let held = two.try_take(1).unwrap();
    let exiting = thread::spawn(move || exit(&two, held));
    one.sweep();
    one.pass(1);
    exiting.join().unwrap();
    pool.settle(&one);
}

//! Whole pools of the real protocol under random schedules, with deaths at random points:
//!
//! ```text
//! RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=target-shuttle cargo test -p ropeway --release --test shuttle
//! ```
//!
//! Memory is sequentially consistent here; `loom.rs` looks at orderings. A failure prints its
//! schedule, which `shuttle::replay` plays again. `ROPEWAY_SEED` gives other schedules.
#![cfg(shuttle)]

mod model;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use model::arrays::*;
use model::planted::Sweep;
use model::scenes::*;
use model::{Forever, Member, Pool, Shape, Slices, thread};
use ropeway::board::Phase;
use ropeway::sync::crash::Hook;
use ropeway::wait::Ended;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};

fn run(scheduler: impl Scheduler + 'static, scene: &Arc<impl Fn() + Send + Sync + 'static>) {
    let mut config = shuttle::Config::new();
    config.stack_size = 0x20000;
    config.silence_warnings = true;
    let scene = scene.clone();
    shuttle::Runner::new(scheduler, config).run(move || scene());
}

/// Plays a scene in so many random schedules, and as many with few preemptions at random places.
fn explore(schedules: usize, scene: impl Fn() + Send + Sync + 'static) {
    let seed = std::env::var("ROPEWAY_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(7);
    let (scene, start) = (Arc::new(scene), Instant::now());
    run(RandomScheduler::new_from_seed(seed, schedules), &scene);
    run(PctScheduler::new_from_seed(seed, 3, schedules), &scene);
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    eprintln!("{name}: twice {schedules} schedules in {:.1} s", start.elapsed().as_secs_f32());
}

/// Plays a scene for a death at the first point, the second, ... until nobody dies any more.
fn explore_deaths(schedules: usize, scene: impl Fn(usize) -> bool + Send + Sync + 'static) {
    let scene = Arc::new(scene);
    for n in 0.. {
        let (scene, died) = (scene.clone(), Arc::new(AtomicUsize::new(0)));
        let count = died.clone();
        explore(schedules, move || {
            count.fetch_add(usize::from(scene(n)), Ordering::Relaxed);
        });
        if died.load(Ordering::Relaxed) == 0 {
            assert!(n > 1, "nobody died");
            return;
        }
    }
}

// ---- the scenes that loom plays ------------------------------------------------------------------

#[test]
fn small_scenes() {
    explore(2000, two_takers_and_a_producer);
    explore(2000, two_producers);
    explore(2000, || in_order(|consumer| consumer.try_take(1)));
    explore(2000, in_order_of_two);
    explore(2000, there_and_back);
    explore(2000, trimming);
    explore(2000, trimming_at_the_end);
    explore(2000, two_sleepers);
    explore(2000, two_who_ask_for_different_numbers);
    explore(2000, a_hasty_and_a_patient_taker);
    explore(2000, closing_on_takers);
    explore(2000, closing_on_a_producer);
    explore(2000, || closing(|p| p.fill(0, &mut Forever).ok(), |taker| taker.serve(1).len()));
    explore(2000, || draining(Member::abandon));
    explore(2000, || queueing(Member::try_fill));
    explore(2000, a_full_queue);
    explore(2000, two_producers_of_a_queue);
    explore(2000, the_last_batch_of_the_dead);
    explore(2000, || a_normal_exit(Member::exit_holding));
}

fn sweep(member: &Member) {
    member.sweep();
}

#[test]
fn small_scenes_of_death() {
    for (_, life) in LIVES {
        explore_deaths(500, move |n| a_death_at(life, n));
    }
    for (_, life) in HOLDING {
        explore(2000, move || sweepers_and_a_newcomer(life, sweep, Pool::join));
        explore_deaths(500, move |n| a_dead_sweeper(life, sweep, n));
    }
    explore_deaths(500, a_dead_newcomer);
    explore(2000, a_sleeper_and_a_sweeper);
}

#[test]
fn scenes_of_arrays() {
    explore(2000, || two_let_go(Member::let_go));
    explore(2000, || opening_the_last(Member::open, Member::let_go));
    explore(2000, opening_what_waits);
    explore(2000, || sweepers_and_a_newcomer_with_an_array(Member::sweep_arrays));
    explore(2000, || a_childs_array(Member::sweep_arrays));
    explore_deaths(500, a_holder_dies_at);
    explore_deaths(500, a_sweeper_of_arrays_dies_at);
}

#[test]
#[should_panic(expected = "is another by now")]
fn planted_freed_without_second_look() {
    explore(5000, || opening_the_last(Member::open, Member::let_go_without_second_look));
}

#[test]
#[should_panic(expected = "out of order")]
fn planted_one_scan() {
    explore(2000, || in_order(Member::take_by_one_scan));
}

#[test]
#[should_panic(expected = "deadlock")]
fn planted_publish_after_the_wake() {
    explore(2000, || {
        handing_over(Member::publish_after_the_wake, |consumer| consumer.take(1, &mut Forever).unwrap());
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn planted_no_second_claim() {
    explore(2000, || handing_over(Member::publish, Member::take_without_second_claim));
}

#[test]
#[should_panic(expected = "came after a taker had seen the end")]
fn planted_closed_before_the_claim() {
    explore(5000, || {
        closing(|producer| producer.try_fill_closed_checked_first(0), |taker| taker.serve(1).len());
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn planted_only_one_stage_is_woken() {
    explore(5000, || draining(Member::give_up_waking_one_stage));
}

#[test]
#[should_panic(expected = "a queue of 1 holds 2")]
fn planted_no_second_look_at_the_limit() {
    explore(2000, || queueing(Member::try_fill_without_second_look));
}

#[test]
#[should_panic(expected = "slot 0 was taken from its living holder")]
fn planted_no_second_look_in_a_sweep() {
    let sweep = |member: &Member| Sweep { looks_twice: false, ..Sweep::SOUND }.run(member);
    explore(20_000, move || sweepers_and_a_newcomer(HOLDING[0].1, sweep, Pool::join));
}

#[test]
#[should_panic(expected = "is gone without a word")]
fn planted_loss_recorded_late() {
    explore_deaths(500, |n| {
        a_dead_sweeper(HOLDING[1].1, |member| Sweep { records_first: false, ..Sweep::SOUND }.run(member), n)
    });
}

#[test]
#[should_panic(expected = "though it was consumed")]
fn planted_exit_without_a_word() {
    explore(2000, || a_normal_exit(Member::exit_without_a_word));
}

// ---- whole pools ---------------------------------------------------------------------------------

/// A participant in a thread of its own.
fn spawn<T: Send + 'static>(
    member: Member,
    life: impl FnOnce(&Member) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    thread::spawn(move || life(&member))
}

fn join<T>(threads: impl IntoIterator<Item = thread::JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn total(threads: impl IntoIterator<Item = thread::JoinHandle<usize>>) -> usize {
    join(threads).into_iter().sum()
}

/// Numbers for batches, up to a limit.
struct Numbers {
    next: AtomicU64,
    end: u64,
}

impl Numbers {
    fn up_to(end: u64) -> Arc<Numbers> {
        Arc::new(Numbers { next: AtomicU64::new(0), end })
    }

    /// Sends batches until the numbers are used up or the pool is closed; how many.
    fn send(&self, member: &Member) -> usize {
        let numbers = std::iter::repeat_with(|| self.next.fetch_add(1, Ordering::Relaxed));
        let sent = numbers.take_while(|&number| number < self.end && member.send(number).is_ok());
        sent.count()
    }

    /// Producers in threads of their own.
    fn producers(
        self: &Arc<Numbers>,
        pool: &Arc<Pool>,
        entries: impl IntoIterator<Item = usize>,
    ) -> Vec<thread::JoinHandle<usize>> {
        let numbers = || {
            let numbers = self.clone();
            move |member: &Member| numbers.send(member)
        };
        entries.into_iter().map(|me| spawn(pool.member(me), numbers())).collect()
    }
}

/// Takers of a stage in threads of their own.
fn takers(
    pool: &Arc<Pool>,
    entries: impl IntoIterator<Item = usize>,
    stage: usize,
) -> Vec<thread::JoinHandle<usize>> {
    let serve = move |member: &Member| member.serve(stage).len();
    entries.into_iter().map(|me| spawn(pool.member(me), serve)).collect()
}

#[test]
fn one_consumer_takes_in_the_order_of_one_producer() {
    explore(5000, || {
        let pool = Pool::new(Shape::new(3, 3));
        let producing = Numbers::up_to(8).producers(&pool, [0]);
        let serving = spawn(pool.member(1), |consumer| consumer.serve(1));
        join(producing);
        pool.close();
        assert_eq!(serving.join().unwrap(), (0..8).collect::<Vec<_>>());
        pool.settle(&pool.member(2));
    });
}

/// A batch whose publish had returned isn't overtaken by one whose publish began later.
#[test]
fn one_consumer_takes_in_the_order_of_many_producers() {
    explore(5000, || {
        let pool = Pool::new(Shape::new(3, 4));
        let (clock, numbers) = (Arc::new(AtomicU64::new(0)), Numbers::up_to(8));
        let producing = [0, 1].map(|me| {
            let (clock, numbers) = (clock.clone(), numbers.clone());
            spawn(pool.member(me), move |member| {
                let next = || Some(numbers.next.fetch_add(1, Ordering::Relaxed)).filter(|&n| n < 8);
                let publish = |number| {
                    let held = member.fill(number, &mut Forever).unwrap();
                    let began = clock.fetch_add(1, Ordering::Relaxed);
                    member.publish(held);
                    (number, began, clock.fetch_add(1, Ordering::Relaxed))
                };
                std::iter::from_fn(next).map(publish).collect::<Vec<_>>()
            })
        });
        let serving = spawn(pool.member(2), |consumer| consumer.serve(1));
        let published: Vec<_> = join(producing).into_iter().flatten().collect();
        pool.close();
        let order = serving.join().unwrap();
        let place = |number| order.iter().position(|&taken| taken == number).expect("it was taken");
        for &(one, _, ended) in &published {
            for &(other, began, _) in published.iter().filter(|(_, began, _)| ended < *began) {
                assert!(
                    place(one) < place(other),
                    "{other}, begun at {began}, overtook {one}, ended at {ended}"
                );
            }
        }
        pool.settle(&pool.member(3));
    });
}

#[test]
fn every_batch_is_consumed_once() {
    explore(5000, || {
        let pool = Pool::new(Shape { last: 2, ..Shape::new(3, 7) });
        let producing = Numbers::up_to(6).producers(&pool, [0, 1]);
        let (changing, serving) = (takers(&pool, [2, 3], 1), takers(&pool, [4, 5], 2));
        join(producing);
        pool.close();
        assert_eq!((total(changing), total(serving)), (6, 6));
        pool.settle(&pool.member(6));
    });
}

#[test]
fn a_close_at_any_time_drops_nothing() {
    explore(5000, || {
        let pool = Pool::new(Shape::new(2, 5));
        let producing = Numbers::up_to(8).producers(&pool, [0, 1]);
        let serving = takers(&pool, [2, 3], 1);
        pool.close();
        assert_eq!(total(producing), total(serving));
        pool.settle(&pool.member(4));
    });
}

#[test]
fn an_abort_ends_every_wait() {
    explore(5000, || {
        let pool = Pool::new(Shape { last: 2, ..Shape::new(2, 5) });
        let producing = Numbers::up_to(8).producers(&pool, [0, 1]);
        let (changing, serving) = (takers(&pool, [2], 1), takers(&pool, [3], 2));
        pool.board.enter(Phase::Aborted);
        assert!(total(producing) >= total(changing).max(total(serving)));
    });
}

#[test]
fn timeouts_and_interruptions_lose_nothing() {
    explore(5000, || {
        let pool = Pool::new(Shape::new(2, 4));
        let producing = Numbers::up_to(5).producers(&pool, [0]);
        let hasty = spawn(pool.member(1), |member| {
            for _ in 0..4 {
                let mut patience =
                    Slices { left: thread_rng().gen_range(0..3), nerves: thread_rng().gen_range(0..3) };
                match member.take(1, &mut patience) {
                    Ok(held) if thread_rng().gen_bool(0.5) => member.put_back(held),
                    Ok(held) => member.consume(held),
                    Err(why) => assert_ne!(why, Ended::Alone),
                }
            }
        });
        let serving = takers(&pool, [2], 1);
        join(producing);
        hasty.join().unwrap();
        pool.close();
        join(serving);
        pool.settle(&pool.member(3));
    });
}

#[test]
fn a_queue_keeps_its_limit_and_wakes_its_producers() {
    explore(5000, || {
        let pool = Pool::new(Shape { waiting_limit: Some(2), max_slots: 5, ..Shape::new(1, 6) });
        let producing = Numbers::up_to(6).producers(&pool, [0, 1, 2]);
        let serving = takers(&pool, [3, 4], 1);
        join(producing);
        pool.close();
        assert_eq!(total(serving), 6);
        pool.settle(&pool.member(5));
    });
}

/// Takers who ask for different numbers sleep on one event count.
#[test]
fn whoever_asks_for_a_number_gets_it() {
    explore(5000, || {
        let pool = Pool::new(Shape::new(2, 4));
        let producing = Numbers::up_to(6).producers(&pool, [0]);
        let asking = [1, 2].map(|me| {
            spawn(pool.member(me), move |member| {
                for number in (me as u64 - 1..6).step_by(2) {
                    let held = member.take_numbered(1, Some(number), &mut Forever).unwrap();
                    assert_eq!(held.batch, number);
                    member.consume(held);
                }
            })
        });
        join(producing);
        join(asking);
        pool.settle(&pool.member(3));
    });
}

/// Threads of one process share its entry; each slot is still held by one of them.
#[test]
fn threads_share_a_membership() {
    explore(5000, || {
        let pool = Pool::new(Shape::new(3, 2));
        let (shared, numbers) = (Arc::new(pool.member(0)), Numbers::up_to(6));
        let producing = [(); 2].map(|()| {
            let (member, numbers) = (shared.clone(), numbers.clone());
            thread::spawn(move || numbers.send(&member))
        });
        let serving = [(); 2].map(|()| {
            let member = shared.clone();
            thread::spawn(move || member.serve(1).len())
        });
        assert_eq!(total(producing), 6);
        pool.close();
        assert_eq!(total(serving), 6);
        pool.settle(&shared);
    });
}

// ---- whole pools of mortals ------------------------------------------------------------------------

/// Lets up to `lives` participants die, each at any point with a chance of one in `odds`.
fn lottery(lives: &Arc<AtomicUsize>) -> Hook {
    const ODDS: u32 = 30;
    let lives = lives.clone();
    Box::new(move |_| {
        let dies = lives.load(Ordering::Relaxed) > 0 && thread_rng().gen_ratio(1, ODDS);
        if dies {
            lives.fetch_sub(1, Ordering::Relaxed);
        }
        dies
    })
}

/// A participant that may die; another takes up its work then, on any free index.
fn spawn_mortal(
    member: Member,
    lives: &Arc<AtomicUsize>,
    life: impl Fn(&Member) + Send + 'static,
) -> thread::JoinHandle<()> {
    let lives = lives.clone();
    thread::spawn(move || {
        let mut alive = member.mortal(lottery(&lives), &life).is_some();
        while !alive {
            let newcomer = |pool: &Arc<Pool>| Some(pool.join_any());
            alive = member.pool.newcomer(lottery(&lives), newcomer, &life).is_some();
        }
    })
}

/// Producers, changers and consumers who die anywhere, in `deaths` deaths; who lives leaves.
fn mortals(shape: Shape, deaths: usize, [producers, changers, consumers]: [usize; 3]) {
    let pool = Pool::new(shape);
    let (numbers, lives) = (Numbers::up_to(6), Arc::new(AtomicUsize::new(deaths)));
    let observer = pool.member(0);
    let mut crew: Vec<_> = (1..=producers + changers + consumers).map(|me| pool.member(me)).collect();
    let consumers = crew.split_off(producers + changers);
    let changers = crew.split_off(producers);
    let spawn_all = |crew: Vec<Member>, stage: usize| {
        let numbers = numbers.clone();
        let life = move |member: &Member| {
            match stage {
                0 => numbers.send(member),
                stage => member.serve(stage).len(),
            };
            member.exit();
        };
        crew.into_iter().map(|member| spawn_mortal(member, &lives, life.clone())).collect::<Vec<_>>()
    };
    let producing = spawn_all(crew, 0);
    let (changing, serving) = (spawn_all(changers, 1), spawn_all(consumers, shape.last));
    join(producing);
    pool.close();
    join(changing);
    join(serving);
    pool.settle(&observer);
}

#[test]
fn deaths_anywhere_lose_nothing_between_two_stages() {
    explore(5000, || mortals(Shape::new(3, 5), 3, [2, 0, 2]));
}

#[test]
fn deaths_anywhere_are_reported_where_a_stage_changes_in_place() {
    explore(5000, || mortals(Shape { last: 2, ..Shape::new(3, 5) }, 3, [1, 2, 1]));
}

#[test]
fn deaths_anywhere_cost_nothing_where_a_stage_can_be_repeated() {
    explore(5000, || mortals(Shape { last: 2, repeatable: 0b10, ..Shape::new(2, 5) }, 3, [1, 2, 1]));
}

#[test]
fn a_reader_that_dies_again_and_again_ends_at_the_limit() {
    explore(5000, || mortals(Shape { redeliveries: 1, ..Shape::new(2, 4) }, 5, [1, 0, 2]));
}

#[test]
fn deaths_anywhere_leave_a_queue_within_its_limit() {
    explore(5000, || {
        let limit = Some(2);
        mortals(Shape { waiting_limit: limit, max_slots: 4, ..Shape::new(1, 5) }, 3, [2, 0, 2]);
    });
}

/// The creator's death lets nothing begin; what is there is drained.
#[test]
fn a_creator_that_dies_orphans_its_pool() {
    explore(5000, || {
        let pool = Pool::with_creator(Shape::new(2, 5), Some(0));
        let creator = pool.member(0);
        let numbers = Numbers::up_to(100);
        let life = {
            let numbers = numbers.clone();
            move |member: &Member| numbers.send(member)
        };
        let lives = Arc::new(AtomicUsize::new(1));
        let creating = thread::spawn(move || {
            creator.mortal(lottery(&lives), life);
            creator.die();
        });
        let producing = numbers.producers(&pool, [1]);
        let serving = takers(&pool, [2, 3], 1);
        creating.join().unwrap();
        join(producing);
        join(serving);
        assert_eq!(pool.board.phase(), Phase::Orphaned);
        pool.settle(&pool.member(4));
    });
}

/// A reader leaves by a normal exit with what it holds, or dies in the attempt.
#[test]
fn what_leavers_have_read_is_consumed() {
    explore(5000, || {
        let pool = Pool::new(Shape::new(2, 4));
        let lives = Arc::new(AtomicUsize::new(1));
        let producing = Numbers::up_to(4).producers(&pool, [0]);
        let leaver = pool.member(1);
        let leaving = thread::spawn(move || {
            leaver.mortal(lottery(&lives), |leaver| {
                if let Ok(held) = leaver.take(1, &mut Forever) {
                    leaver.exit_holding(held);
                }
            })
        });
        let serving = takers(&pool, [2], 1);
        join(producing);
        pool.close();
        leaving.join().unwrap();
        join(serving);
        pool.settle(&pool.member(3));
    });
}

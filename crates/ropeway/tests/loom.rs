//! Every interleaving, within a bound on preemptions, of two or three participants of the real
//! protocol, with the weak memory that the language allows:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target-loom cargo test -p ropeway --release --test loom
//! ```
//!
//! `LOOM_MAX_PREEMPTIONS` sets another bound: one more takes ten times as long.
#![cfg(loom)]

mod model;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use model::arrays::*;
use model::planted::{Sweep, join_claiming_first};
use model::scenes::*;
use model::{Forever, Member, Pool};

/// Plays a scene in every way with at most so many preemptions.
fn explore(name: &str, preemptions: usize, scene: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.max_branches = 20_000;
    let (count, start) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let counted = count.clone();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        scene();
    });
    let (count, took) = (count.load(Ordering::Relaxed), start.elapsed().as_secs_f32());
    eprintln!("{name}: {count} executions in {took:.1} s");
}

/// Plays a scene for a death at the first point, the second, ... until nobody dies any more.
fn explore_deaths(name: &str, preemptions: usize, scene: impl Fn(usize) -> bool + Send + Sync + 'static) {
    let scene = Arc::new(scene);
    for n in 0.. {
        let (scene, died) = (scene.clone(), Arc::new(AtomicUsize::new(0)));
        let count = died.clone();
        explore(&format!("{name}, dead at {n}"), preemptions, move || {
            count.fetch_add(usize::from(scene(n)), Ordering::Relaxed);
        });
        if died.load(Ordering::Relaxed) == 0 {
            assert!(n > 1, "nobody died");
            return;
        }
    }
}

// ---- the slot word ------------------------------------------------------------------------------

#[test]
fn takers_and_a_producer_never_hold_one_slot_twice() {
    explore("two takers", 2, two_takers_and_a_producer);
}

#[test]
fn producers_never_hold_one_slot_twice() {
    explore("two producers", 3, two_producers);
}

#[test]
fn one_consumer_takes_in_the_order_of_one_producer() {
    explore("order", 2, || in_order(|consumer| consumer.try_take(1)));
}

#[test]
fn one_consumer_takes_in_the_order_of_two_producers() {
    explore("order of two", 3, in_order_of_two);
}

#[test]
#[should_panic(expected = "out of order")]
fn planted_one_scan() {
    explore("one scan", 2, || in_order(Member::take_by_one_scan));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn planted_relaxed_scan() {
    explore("relaxed scan", 2, || in_order(Member::take_by_relaxed_loads));
}

// ---- waiting ------------------------------------------------------------------------------------

#[test]
fn no_wake_up_is_lost() {
    explore("handing over", 3, || {
        handing_over(Member::publish, |consumer| consumer.take(1, &mut Forever).unwrap());
    });
    explore("there and back", 2, there_and_back);
}

#[test]
fn both_of_two_sleepers_are_woken() {
    explore("two sleepers", 1, two_sleepers);
}

/// An event has a number, as a second sleeper sets the bit again that the event has cleared.
#[test]
fn a_wake_up_isnt_hidden_by_who_goes_to_sleep_behind_it() {
    explore("different numbers", 2, two_who_ask_for_different_numbers);
}

#[test]
fn a_timeout_takes_no_wake_up_with_it() {
    explore("timeout", 1, a_hasty_and_a_patient_taker);
}

#[test]
#[should_panic(expected = "deadlock")]
fn planted_publish_without_fence() {
    explore("publish without fence", 3, || {
        handing_over(Member::publish_without_fence, |consumer| consumer.take(1, &mut Forever).unwrap());
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn planted_publish_after_the_wake() {
    explore("publish after the wake", 3, || {
        handing_over(Member::publish_after_the_wake, |consumer| consumer.take(1, &mut Forever).unwrap());
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn planted_sleep_without_fence() {
    explore("sleep without fence", 3, || handing_over(Member::publish, Member::take_without_fence));
}

#[test]
#[should_panic(expected = "deadlock")]
fn planted_no_second_claim() {
    explore("no second claim", 3, || handing_over(Member::publish, Member::take_without_second_claim));
}

// ---- closing ------------------------------------------------------------------------------------

#[test]
fn close_ends_every_wait() {
    explore("close, takers", 2, closing_on_takers);
    explore("close, producer", 3, closing_on_a_producer);
}

#[test]
fn what_is_begun_before_close_returns_is_seen_by_takers() {
    explore("close, race", 2, || {
        closing(|producer| producer.fill(0, &mut Forever).ok(), |taker| taker.serve(1).len());
    });
}

#[test]
fn the_last_move_upstream_of_a_closed_pool_ends_the_wait() {
    explore("close, drained by a holder", 2, || draining(Member::abandon));
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
        closing(|producer| producer.try_fill(0), Member::serve_drained_checked_first);
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn planted_only_one_stage_is_woken() {
    explore("one stage", 2, || draining(Member::give_up_waking_one_stage));
}

// ---- queues -------------------------------------------------------------------------------------

#[test]
fn a_queue_never_holds_more_than_its_limit() {
    explore("limit", 3, || queueing(Member::try_fill));
}

#[test]
fn producers_of_a_full_queue_are_woken() {
    explore("full queue", 3, a_full_queue);
    explore("queue, two producers", 1, two_producers_of_a_queue);
}

#[test]
#[should_panic(expected = "a queue of 1 holds 2")]
fn planted_no_second_look_at_the_limit() {
    explore("no second look at the limit", 2, || queueing(Member::try_fill_without_second_look));
}

// ---- the dead -----------------------------------------------------------------------------------

fn sweep(member: &Member) {
    member.sweep();
}

#[test]
fn a_death_at_any_point_loses_no_slot_and_no_batch() {
    for (name, life) in LIVES {
        explore_deaths(name, 2, move |n| a_death_at(life, n));
    }
}

#[test]
fn two_sweepers_leave_a_newcomer_in_peace() {
    for (name, life) in HOLDING {
        explore(&format!("{name}, two sweepers, newcomer"), 2, move || {
            sweepers_and_a_newcomer(life, sweep, Pool::join);
        });
    }
}

#[test]
fn a_sweeper_that_dies_is_followed_by_another() {
    for (name, life) in HOLDING {
        explore_deaths(&format!("{name}, sweeper"), 2, move |n| a_dead_sweeper(life, sweep, n));
    }
}

#[test]
fn a_sweep_wakes_whoever_waits_for_what_the_dead_held() {
    explore("sleeper, sweeper", 3, a_sleeper_and_a_sweeper);
}

#[test]
fn a_newcomer_that_dies_is_swept_like_anybody() {
    explore_deaths("newcomer", 3, a_dead_newcomer);
}

#[test]
fn a_taker_doesnt_leave_a_closed_pool_while_the_dead_hold_its_batch() {
    explore("closed, dead reader", 1, the_last_batch_of_the_dead);
}

#[test]
fn what_a_member_read_before_a_normal_exit_is_consumed() {
    explore("normal exit", 3, || a_normal_exit(Member::exit_holding));
}

/// A sweep without one of its safeguards, and a newcomer.
fn planted_sweep(sweep: Life) {
    explore("planted sweep", 2, move || sweepers_and_a_newcomer(HOLDING[0].1, sweep, Pool::join));
}

#[test]
fn the_planted_sweep_is_sound_without_a_bug() {
    explore("sound sweep", 1, || {
        sweepers_and_a_newcomer(HOLDING[1].1, |member| Sweep::SOUND.run(member), Pool::join);
    });
}

#[test]
#[should_panic(expected = "slot 0 was taken from its living holder")]
fn planted_no_second_look_in_a_sweep() {
    planted_sweep(|member| Sweep { looks_twice: false, ..Sweep::SOUND }.run(member));
}

#[test]
#[should_panic(expected = "slot 0 was taken from its living holder")]
fn planted_sweep_by_stores() {
    planted_sweep(|member| Sweep { swaps: false, ..Sweep::SOUND }.run(member));
}

#[test]
#[should_panic(expected = "member 1: whether it has its entry")]
fn planted_entry_keeps_its_incarnation() {
    planted_sweep(|member| Sweep { counts: false, ..Sweep::SOUND }.run(member));
}

#[test]
#[should_panic(expected = "is gone without a word")]
fn planted_loss_recorded_late() {
    explore_deaths("loss recorded late", 2, |n| {
        a_dead_sweeper(HOLDING[1].1, |member| Sweep { records_first: false, ..Sweep::SOUND }.run(member), n)
    });
}

#[test]
#[should_panic(expected = "member 1: whether it has its entry")]
fn planted_entry_claimed_before_its_lock() {
    explore("entry before lock", 2, || {
        sweepers_and_a_newcomer(HOLDING[0].1, sweep, join_claiming_first);
    });
}

#[test]
#[should_panic(expected = "though it was consumed")]
fn planted_exit_without_a_word() {
    explore("exit without a word", 2, || a_normal_exit(Member::exit_without_a_word));
}

// ---- arrays -------------------------------------------------------------------------------------

#[test]
fn an_array_goes_with_the_last_of_two_who_let_go_at_once() {
    explore("two let go", 3, || two_let_go(Member::let_go));
}

#[test]
fn an_array_that_is_opened_isnt_freed() {
    explore("opening the last", 3, || opening_the_last(Member::open, Member::let_go));
}

#[test]
fn an_array_waits_until_it_is_opened() {
    explore("opening what waits", 3, opening_what_waits);
}

#[test]
fn a_holder_of_arrays_may_die_at_any_point() {
    explore_deaths("holder", 2, a_holder_dies_at);
}

#[test]
fn a_sweeper_of_arrays_may_die_at_any_point() {
    explore_deaths("sweeper of arrays", 2, a_sweeper_of_arrays_dies_at);
}

#[test]
fn sweepers_leave_a_newcomers_array_in_peace() {
    explore("arrays, two sweepers, newcomer", 2, || {
        sweepers_and_a_newcomer_with_an_array(Member::sweep_arrays);
    });
}

#[test]
fn a_child_keeps_the_array_that_its_dead_parent_has_marked_for_it() {
    explore("a child's array", 3, || a_childs_array(Member::sweep_arrays));
}

#[test]
#[should_panic(expected = "is lost")]
fn planted_let_go_without_fence() {
    explore("let go without fence", 3, || two_let_go(Member::let_go_without_fence));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn planted_freed_without_second_look() {
    explore("freed without second look", 3, || {
        opening_the_last(Member::open, Member::let_go_without_second_look);
    });
}

#[test]
#[should_panic(expected = "is another by now")]
fn planted_opened_by_looking_first() {
    explore("opened by looking first", 3, || {
        opening_the_last(Member::open_looking_first, Member::let_go);
    });
}

#[test]
#[should_panic(expected = "is another by now")]
fn planted_opened_whatever_is_there() {
    explore("opened whatever is there", 3, || {
        opening_the_last(Member::open_whatever_is_there, Member::let_go);
    });
}

#[test]
#[should_panic(expected = "a newcomer's mark was cleared")]
fn planted_marks_cleared_by_stores() {
    explore("marks cleared by stores", 2, || {
        sweepers_and_a_newcomer_with_an_array(Member::sweep_by_stores);
    });
}

#[test]
#[should_panic(expected = "is lost")]
fn planted_marks_cleared_without_fence() {
    explore("marks cleared without fence", 3, || a_childs_array(Member::sweep_without_fence));
}

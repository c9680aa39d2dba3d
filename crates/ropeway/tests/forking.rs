//! A forked child has nothing of its parent's, and can do it no harm.
//!
//! Each test forks in a peer, which has one thread and plays the parent.

mod peer;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use peer::{
    PATIENCE, Peer, TWO_SLICES, bytes, clone, fork, get, listen, numbers, pool, put, reap, roles, say,
    slices_after, sweep, words,
};
use ropeway::{Error, Export, Handle, Options, Pool, ReadLease, SlotStatus, State, WriteLease};

roles!(
    keeps_its_leases,
    keeps_its_leases_from_a_clone,
    keeps_its_bytes,
    has_children_that_join,
    has_grandchildren,
    has_children_that_leave,
    forks_while_threads_work,
    dies_before_its_child,
    dies_before_its_clone,
);

fn plays(role: &str) {
    Peer::start(role, "").finish();
}

/// A pool of two slots that this process holds, one of each kind, with a view of each.
fn held() -> (Pool, WriteLease, ReadLease, [Export; 2]) {
    let pool = Pool::create(&numbers(2)).unwrap();
    put(&pool, 7).unwrap();
    let read = pool.take_timeout(PATIENCE).unwrap();
    let mut write = pool.acquire_timeout(PATIENCE).unwrap();
    write.slice_mut::<u64>("n").unwrap().fill(8);
    let views = [read.export("n").unwrap().0, write.export("n").unwrap().0];
    (pool, write, read, views)
}

fn moves(pool: &Pool) -> Vec<(u64, State, Option<u64>)> {
    pool.status().slots.iter().map(|slot| (slot.generation, slot.state, slot.pid)).collect()
}

fn number(view: &Export) -> u64 {
    // SAFETY: the view lives and its first element is a number.
    unsafe { view.as_ptr().cast::<u64>().read_volatile() }
}

fn set_number(view: &Export, n: u64) {
    // SAFETY: as above; the tests say who may write.
    unsafe { view.as_ptr().cast::<u64>().write_volatile(n) };
}

/// What a child does with what it inherits; whichever way, its parent's slots stay as they are.
fn let_go((pool, write, read, views): (Pool, WriteLease, ReadLease, [Export; 2])) {
    for refused in [write.publish(), write.release(), read.release(), write.set_meta(b"x")] {
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    assert!(matches!(write.export("n"), Err(Error::Invalid(_))));
    assert!(matches!(read.slice::<u64>("n"), Err(Error::Invalid(_))));
    write.end();
    drop((views, write, read, pool));
}

fn parents_leases_stand(forked: impl FnOnce(Box<dyn FnOnce()>) -> libc::pid_t) {
    let all = held();
    let before = moves(&all.0);
    // SAFETY: the copy is dropped in another process, of which this one sees nothing.
    let copy = unsafe { std::ptr::read(&all) };
    let copy = std::mem::ManuallyDrop::new(copy);
    reap(forked(Box::new(move || let_go(std::mem::ManuallyDrop::into_inner(copy)))));
    let (pool, write, read, views) = all;
    assert_eq!(members(&pool), [u64::from(std::process::id())], "the parent is a member as before");
    assert_eq!(pool.sweep().unwrap().dead, 0);
    assert_eq!(moves(&pool), before);
    assert_eq!((number(&views[0]), number(&views[1])), (7, 8));
    assert!(matches!(write.publish(), Err(Error::InUse(_))));
    drop(views);
    read.release().unwrap();
    write.publish().unwrap();
    assert_eq!(get(&pool).unwrap(), 8);
}

fn keeps_its_leases(_: &str) {
    parents_leases_stand(fork);
}

/// The same with a child that no fork handler knows of.
fn keeps_its_leases_from_a_clone(_: &str) {
    parents_leases_stand(clone);
}

fn keeps_its_bytes(_: &str) {
    let (pool, write, read, views) = held();
    reap(fork(|| {
        assert_eq!((number(&views[0]), number(&views[1])), (7, 8), "what is inherited can be read");
        views.iter().for_each(|view| set_number(view, 666));
        assert_eq!((number(&views[0]), number(&views[1])), (666, 666));
        reap(fork(|| {
            assert_eq!(number(&views[1]), 666, "a grandchild sees what its parent wrote");
            set_number(&views[1], 999);
        }));
        assert_eq!(number(&views[1]), 666);
    }));
    assert_eq!((number(&views[0]), number(&views[1])), (7, 8));
    drop(views);
    read.release().unwrap();
    write.publish().unwrap();
    assert_eq!(get(&pool).unwrap(), 8);
}

fn members(pool: &Pool) -> Vec<u64> {
    pool.status().members.iter().map(|member| member.pid).collect()
}

fn holders(pool: &Pool) -> Vec<u64> {
    pool.status().slots.iter().filter_map(|slot: &SlotStatus| slot.pid).collect()
}

fn has_children_that_join(_: &str) {
    let me = u64::from(std::process::id());
    let pool = Pool::create(&numbers(3)).unwrap();
    put(&pool, 7).unwrap();
    let mine = pool.acquire_timeout(PATIENCE).unwrap();
    reap(fork(|| {
        let me_too = u64::from(std::process::id());
        assert_eq!(members(&pool), [me], "a child is no member until it uses the pool");
        assert_eq!(get(&pool).unwrap(), 7);
        assert_eq!(members(&pool), [me, me_too]);
        let its = pool.acquire_timeout(PATIENCE).unwrap();
        assert_eq!(holders(&pool).len(), 2);
        assert!(holders(&pool).contains(&me_too));
        drop(its);
        put(&pool, 9).unwrap();
        let same = Pool::attach(&Handle::from_bytes(&pool.handle().unwrap().to_bytes()).unwrap()).unwrap();
        assert_eq!(members(&same), [me, me_too], "one process is one member");
    }));
    sweep(&pool, 1);
    assert_eq!((members(&pool), holders(&pool)), (vec![me], vec![me]));
    assert_eq!(get(&pool).unwrap(), 9, "what the child wrote is in the pool, not in a copy");
    mine.release().unwrap();
}

fn has_grandchildren(_: &str) {
    let pool = Pool::create(&numbers(4)).unwrap();
    let mine = pool.acquire_timeout(PATIENCE).unwrap();
    reap(fork(|| {
        // This child hasn't used the pool, and the grandchild does.
        reap(fork(|| put(&pool, 1).unwrap()));
        // Now it has, and the second grandchild joins through its membership.
        let its = pool.acquire_timeout(PATIENCE).unwrap();
        reap(fork(|| {
            assert!(matches!(its.publish(), Err(Error::Invalid(_))));
            assert!(matches!(mine.publish(), Err(Error::Invalid(_))));
            put(&pool, 2).unwrap();
            assert_eq!(holders(&pool).len(), 2);
        }));
        assert_eq!(holders(&pool).len(), 2);
        drop(its);
    }));
    assert_eq!((get(&pool).unwrap(), get(&pool).unwrap()), (1, 2));
    assert_eq!(holders(&pool), [u64::from(std::process::id())]);
    mine.release().unwrap();
}

fn has_children_that_leave(_: &str) {
    let pool = Pool::create(&numbers(2)).unwrap();
    put(&pool, 7).unwrap();
    let mine = pool.take_timeout(PATIENCE).unwrap();
    reap(fork(ropeway::leave_all));
    reap(fork(|| {
        put(&pool, 8).unwrap();
        std::mem::forget(pool.take_timeout(PATIENCE).unwrap());
        ropeway::leave_all();
    }));
    sweep(&pool, 1);
    let status = pool.status();
    assert_eq!((pool.phase(), status.deaths), (ropeway::Phase::Open, 0));
    assert_eq!(holders(&pool), [u64::from(std::process::id())]);
    mine.release().unwrap();
    assert!(matches!(pool.try_take(), Err(Error::Timeout(_))), "the child's exit has consumed it");
}

fn forks_while_threads_work(_: &str) {
    let pool = Pool::create(&Options { max_slots: 64, ..Options::new(8) }).unwrap();
    let over = AtomicBool::new(false);
    let work = |name: &str, n: u64| {
        let slot = pool.acquire_timeout(PATIENCE).unwrap();
        slot.add(bytes(name, 1 + n % 10_000), &mut || true).unwrap();
        slot.publish().unwrap();
        drop(pool.take_timeout(PATIENCE).unwrap());
    };
    std::thread::scope(|scope| {
        for name in ["a", "b"] {
            let (work, over) = (&work, &over);
            scope.spawn(move || (0..).take_while(|_| !over.load(Relaxed)).for_each(|n| work(name, n)));
        }
        for n in 0..40 {
            reap(fork(|| work("child", n)));
        }
        over.store(true, Relaxed);
    });
}

fn dies_before_its_child(given: &str) {
    dies_before(given, fork);
}

fn dies_before_its_clone(given: &str) {
    dies_before(given, clone);
}

/// Says who its child is, and waits, holding a slot.
fn dies_before(given: &str, forked: impl FnOnce(fn()) -> libc::pid_t) {
    let pool = pool(given);
    let slot = pool.acquire_timeout(PATIENCE).unwrap();
    // SAFETY: the call touches no memory.
    say(forked(|| assert_eq!(unsafe { libc::pause() }, -1)));
    listen();
    drop(slot);
}

#[test]
fn a_child_inherits_no_lease_and_releases_none() {
    plays("keeps_its_leases");
}

#[test]
fn a_cloned_child_inherits_no_lease_and_releases_none() {
    plays("keeps_its_leases_from_a_clone");
}

#[test]
fn a_child_cant_write_into_a_batch_of_its_parent() {
    plays("keeps_its_bytes");
}

#[test]
fn a_child_joins_as_a_member_of_its_own_when_it_first_uses_the_pool() {
    plays("has_children_that_join");
}

#[test]
fn a_child_of_a_child_is_a_child() {
    plays("has_grandchildren");
}

#[test]
fn a_child_leaves_for_itself_only() {
    plays("has_children_that_leave");
}

#[test]
fn a_child_can_use_the_pool_whatever_other_threads_did_at_the_fork() {
    plays("forks_while_threads_work");
}

#[test]
fn a_child_doesnt_keep_its_dead_parent_alive() {
    is_free_though_a_child_lives("dies_before_its_child");
}

#[test]
fn a_cloned_child_doesnt_keep_its_dead_parent_alive() {
    is_free_though_a_child_lives("dies_before_its_clone");
}

fn is_free_though_a_child_lives(role: &str) {
    let pool = Pool::create(&numbers(1)).unwrap();
    let mut parent = Peer::start(role, &words(&pool));
    let child: libc::pid_t = parent.hear_number();
    let acquire = |wait: &mut ropeway::Wait<'_>| pool.acquire_with(wait).map(|slot| slot.index());
    let (_, slices) = slices_after(|| parent.kill(), acquire);
    assert!(slices <= TWO_SLICES, "{slices} slices of 50 ms");
    // SAFETY: the child still waits: nobody else ends it, and it isn't reaped while it lives.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
}

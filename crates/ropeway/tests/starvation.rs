//! Without memory, descriptors or files that others take for granted: clear errors, and a pool that goes
//! on working.

mod peer;

use std::io::Write;

use peer::starving::{grow, limit, play, works};
use peer::{
    PATIENCE, Peer, bytes, eventually, fork, get, listen, numbers, pool, put, reap, roles, say, skipped,
    words,
};
use ropeway::{Block, Error, Options, Pool};

roles!(
    has_no_descriptors,
    is_in_a_small_group,
    has_no_network,
    wants_nothing_executable,
    has_no_shm,
    has_no_proc,
    has_another_clock,
    has_unclaimed_arrays,
    eats_slowly,
);

const MIB: u64 = 1 << 20;

fn text(error: Error) -> String {
    error.to_string()
}

// ---- descriptors ----------------------------------------------------------------------------------

#[test]
fn without_descriptors_pools_go_on_and_new_ones_are_clear_errors() {
    let pool = Pool::create(&numbers(2)).unwrap();
    play("", "has_no_descriptors", &words(&pool));
}

fn has_no_descriptors(given: &str) {
    let (theirs, ours) = (pool(given), Pool::create(&Options::new(1)).unwrap());
    let another = Pool::create(&numbers(1)).unwrap();
    let handle = another.handle().unwrap();
    drop(another);
    say("ready");
    let before = limit(libc::RLIMIT_NOFILE, 3);
    for refused in [Pool::create(&numbers(1)).map(drop), Pool::create(&numbers(1).name("none")).map(drop)] {
        let why = text(refused.unwrap_err());
        assert!(why.contains("Too many open files"), "{why}");
    }
    assert!(matches!(Pool::attach(&handle), Err(Error::Gone(_))));
    works(&theirs);
    grow(&ours, 10 * MIB).unwrap();
    let Err(Error::OutOfMemory(why)) = grow(&ours, 1 << 45) else {
        panic!("more than all memory is refused")
    };
    assert!(why.contains("35184372088832 bytes asked") && why.contains("available"), "{why}");
    ours.sweep().unwrap();
    assert_eq!(ours.status().members.len(), 1);
    limit(libc::RLIMIT_NOFILE, before);
    works(&Pool::create(&numbers(1)).unwrap());
}

// ---- memory ---------------------------------------------------------------------------------------

#[test]
fn a_cgroups_limit_is_an_error_with_numbers() {
    play("a_cgroups_limit_is_an_error_with_numbers", "is_in_a_small_group", "");
}

/// A cgroup with 96 MiB of memory; removed when dropped.
struct Group(std::path::PathBuf);

impl Group {
    fn new() -> std::io::Result<Group> {
        let name = format!("ropeway-test-{}", std::process::id());
        let limits = [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];
        let mut last = std::io::Error::other("there is no cgroup file system with memory limits");
        for (mount, file) in limits {
            let group = Group(std::path::Path::new(mount).join(&name));
            match std::fs::create_dir(&group.0).and_then(|()| group.write(file, "100663296")) {
                Ok(()) => return Ok(group),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Writes to a file that must be there: what is mounted at the place may be no cgroup.
    fn write(&self, file: &str, text: &str) -> std::io::Result<()> {
        std::fs::OpenOptions::new().write(true).open(self.0.join(file))?.write_all(text.as_bytes())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Not before the last process has left it.
        for _ in 0..1000 {
            if std::fs::remove_dir(&self.0).is_ok() || !self.0.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

fn is_in_a_small_group(_: &str) {
    let group = match Group::new() {
        Ok(group) => group,
        Err(why) => return say(format!("no cgroup can be made here: {why}")),
    };
    reap(fork(|| {
        group.write("cgroup.procs", &std::process::id().to_string()).unwrap();
        say("ready");
        let pool = Pool::create(&Options::new(1)).unwrap();
        grow(&pool, 20 * MIB).unwrap();
        for len in [100 * MIB, 1 << 30] {
            let Err(Error::OutOfMemory(why)) = grow(&pool, len) else { panic!("{len} bytes were promised") };
            assert!(
                why.contains(&format!("{len} bytes asked")) && why.contains("the cgroup's memory."),
                "{why}"
            );
        }
        grow(&pool, 20 * MIB).unwrap();
        let packed = Options::new(200).fields(vec![bytes("a", MIB)]);
        let Err(Error::OutOfMemory(why)) = Pool::create(&packed) else { panic!("200 MiB were promised") };
        assert!(why.contains("209715200 bytes asked"), "{why}");
        works(&Pool::create(&numbers(2)).unwrap());
    }));
}

// ---- networks -------------------------------------------------------------------------------------

#[test]
fn another_network_namespace_has_names_of_its_own_and_handles_go_through() {
    let pool = Pool::create(&numbers(2).name("in-this-network")).unwrap();
    let test = "another_network_namespace_has_names_of_its_own_and_handles_go_through";
    play(test, "has_no_network", &words(&pool));
}

fn has_no_network(given: &str) {
    // SAFETY: the call touches no memory, and a peer has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return say("this user may not make namespaces");
    }
    say("ready");
    works(&pool(given));
    assert!(matches!(Pool::find("in-this-network"), Err(Error::Gone(_))));
    let ours = Pool::create(&numbers(2).name("in-this-network")).unwrap();
    assert_eq!(Pool::find("in-this-network").unwrap().id(), ours.id());
}

// ---- files ----------------------------------------------------------------------------------------

/// Leaves for a mount namespace of its own, whose changes nobody else sees.
fn own_mounts() -> bool {
    // SAFETY: the texts end in zeros; a peer has one thread.
    unsafe {
        let (none, flags) = (c"none".as_ptr(), libc::MS_REC | libc::MS_PRIVATE);
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, c"/".as_ptr(), none, flags, std::ptr::null()) == 0
    }
}

fn mount(what: &std::ffi::CStr, at: &std::ffi::CStr, options: &std::ffi::CStr) {
    // SAFETY: the texts end in zeros.
    let mounted =
        unsafe { libc::mount(what.as_ptr(), at.as_ptr(), what.as_ptr(), 0, options.as_ptr().cast()) };
    assert_eq!(mounted, 0, "{}", std::io::Error::last_os_error());
}

/// Shows a file at the place of another.
fn bind(what: &std::ffi::CStr, at: &std::ffi::CStr) {
    // SAFETY: the texts end in zeros.
    let done =
        unsafe { libc::mount(what.as_ptr(), at.as_ptr(), std::ptr::null(), libc::MS_BIND, std::ptr::null()) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn dev_shm_may_be_small_or_not_there() {
    for size in ["small", "none"] {
        play("dev_shm_may_be_small_or_not_there", "has_no_shm", size);
    }
}

fn has_no_shm(given: &str) {
    if !own_mounts() {
        return say("this user may not make mount namespaces");
    }
    match given {
        "small" => mount(c"tmpfs", c"/dev/shm", c"size=1m"),
        _ => mount(c"tmpfs", c"/dev", c"size=1m"),
    }
    say("ready");
    let pool = Pool::create(&Options::new(1)).unwrap();
    grow(&pool, 30 * MIB).unwrap();
    works(&Pool::create(&numbers(2).name("without-shm")).unwrap());
}

#[test]
fn without_proc_a_new_pool_is_a_clear_error_and_old_ones_go_on() {
    play("without_proc_a_new_pool_is_a_clear_error_and_old_ones_go_on", "has_no_proc", "");
}

fn has_no_proc(_: &str) {
    let (settled, ours) = (Pool::create(&numbers(2)).unwrap(), Pool::create(&Options::new(1)).unwrap());
    if !own_mounts() {
        return say("this user may not make mount namespaces");
    }
    mount(c"tmpfs", c"/proc", c"size=1m");
    say("ready");
    let why = text(Pool::create(&numbers(1)).map(drop).unwrap_err());
    assert!(why.contains("is /proc mounted?"), "{why}");
    works(&settled);
    grow(&ours, 10 * MIB).unwrap();
    let Err(Error::OutOfMemory(why)) = grow(&ours, 2 * ropeway_sys::memory::total()) else {
        panic!("that is more than there is")
    };
    assert!(why.contains("/proc can't be read"), "{why}");
}

#[test]
fn nothing_needs_to_be_executable() {
    for strictness in ["1", "2"] {
        play("nothing_needs_to_be_executable", "wants_nothing_executable", strictness);
    }
}

/// Works where memfds that could be executed are refused; the setting is that of a pid namespace.
fn wants_nothing_executable(given: &str) {
    // SAFETY: the call touches no memory.
    if !own_mounts() || unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
        return say("this user may not make namespaces");
    }
    reap(fork(|| {
        mount(c"proc", c"/proc", c"");
        if let Err(why) = std::fs::write("/proc/sys/vm/memfd_noexec", given) {
            return say(format!("vm.memfd_noexec can't be set: {why}"));
        }
        say("ready");
        works(&Pool::create(&numbers(2)).unwrap());
        let pool = Pool::create(&Options::new(1)).unwrap();
        grow(&pool, MIB).unwrap();
    }));
}

// ---- arrays that nobody opens ---------------------------------------------------------------------

#[test]
fn arrays_that_wait_to_be_opened_are_limited_in_bytes() {
    play("arrays_that_wait_to_be_opened_are_limited_in_bytes", "has_unclaimed_arrays", "");
}

/// Pickles arrays on what seems a small machine, until a quarter of it waits for somebody to open it.
fn has_unclaimed_arrays(_: &str) {
    if !own_mounts() {
        return say("this user may not make mount namespaces");
    }
    mount(c"tmpfs", c"/mnt", c"size=1m");
    std::fs::write("/mnt/meminfo", "MemTotal: 131072 kB\nMemAvailable: 131072 kB\n").unwrap();
    bind(c"/mnt/meminfo", c"/proc/meminfo");
    if ropeway_sys::memory::total() != 128 * MIB {
        return say("a control group allows less than 128 MiB");
    }
    say("ready");
    let array = |bytes: u64| Block::allocate(bytes as usize, &mut || true);
    let full = |bytes: u64| array(bytes).map(drop).map_err(text).unwrap_err();
    let waiting: Vec<_> = (0..4).map(|_| array(8 * MIB).unwrap()).collect();
    drop(array(8 * MIB).expect("none of them was pickled"));
    let handles: Vec<_> = waiting.iter().map(Block::handle).collect();
    drop(waiting);
    for bytes in [MIB, 8 * MIB] {
        let told =
            format!("{bytes} bytes asked, but 4 arrays of 33554432 bytes were pickled and never opened");
        let why = full(bytes);
        assert!(why.contains(&told) && why.contains("at most 33554432 may wait"), "{why}");
    }
    // Of small ones some pass before the next look.
    assert!((0..64).any(|_| array(4096).is_err()));
    drop(Block::open(&handles[0]).unwrap());
    assert!(matches!(Block::open(&handles[0]), Err(Error::Gone(_))), "it was opened, and went");
    drop(array(8 * MIB).expect("there is room again"));
    assert!((0..64).all(|_| array(4096).is_ok()));
}

// ---- time -----------------------------------------------------------------------------------------

#[test]
fn members_with_other_clocks_wait_and_tell_the_same_times() {
    let pool = Pool::create(&numbers(3)).unwrap();
    let test = "members_with_other_clocks_wait_and_tell_the_same_times";
    let _held = pool.acquire_timeout(PATIENCE).unwrap();
    for days in ["+30", "-1"] {
        let mut peer = Peer::start("has_another_clock", &format!("{days} {}", words(&pool)));
        let said = peer.hear();
        if said != "ready" {
            skipped(test, &said);
            continue;
        }
        let told = ages(&pool);
        assert_eq!(told.len(), 2, "this process's slot and the peer's");
        assert!(told.iter().all(|&age| age < 10 * PATIENCE), "{told:?}");
        peer.tell("on");
        assert_eq!(get(&pool).unwrap(), 8);
        peer.finish();
    }
}

/// How long each held slot has been held.
fn ages(pool: &Pool) -> Vec<std::time::Duration> {
    pool.status().slots.iter().filter_map(|slot| slot.held_for).collect()
}

/// Works with a monotonic clock that is days ahead of or behind that of the pool's maker.
fn has_another_clock(given: &str) {
    let (days, given) = given.split_once(' ').unwrap();
    let here = ropeway_sys::process::monotonic_coarse_ns() / 1_000_000_000;
    let ahead = (days.parse::<i64>().unwrap() * 86_400).max(-(here as i64) / 2);
    // SAFETY: the call touches no memory, and a peer has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWTIME) } != 0 {
        return say("this user may not make time namespaces");
    }
    let offsets = format!("monotonic {ahead} 0\nboottime {ahead} 0");
    std::fs::write("/proc/self/timens_offsets", offsets).unwrap();
    let inherited = pool(given);
    reap(fork(|| {
        let there = ropeway_sys::process::monotonic_coarse_ns() / 1_000_000_000;
        assert!(there.abs_diff(here) >= ahead.unsigned_abs() / 2, "another clock");
        // One pool was attached with the clock of before, the other here: both in this process now.
        let theirs = pool(given);
        let held = inherited.acquire_timeout(PATIENCE).unwrap();
        let told = ages(&theirs);
        assert_eq!(told.len(), 2, "the maker's slot and this process's");
        assert!(told.iter().all(|&age| age < 10 * PATIENCE), "{told:?}");
        say("ready");
        listen();
        drop(held);
        let moment = std::time::Duration::from_millis(60);
        let before = std::time::Instant::now();
        assert!(matches!(theirs.take_timeout(moment), Err(Error::Timeout(_))));
        assert!(before.elapsed() >= moment);
        assert_eq!(theirs.sweep().unwrap().slots, 0, "nobody is dead");
        put(&theirs, 8).unwrap();
    }));
}

// ---- consumers ------------------------------------------------------------------------------------

#[test]
fn a_stopped_consumer_costs_nothing_but_its_slot() {
    let pool = Pool::create(&numbers(3)).unwrap();
    let mut eater = Peer::start("eats_slowly", &words(&pool));
    put(&pool, 0).unwrap();
    assert_eq!(eater.hear(), "0");
    eater.signal(libc::SIGSTOP);
    let before = pool.status().committed;
    (1..3).for_each(|n| put(&pool, n).unwrap());
    let Err(Error::Timeout(why)) = pool.acquire_timeout(peer::MOMENT) else { panic!("all slots are in use") };
    assert!(why.contains(&format!("held by process {}", eater.pid())), "{why}");
    assert_eq!(pool.sweep().unwrap(), Default::default(), "who is stopped isn't dead");
    let status = pool.status();
    let held: Vec<_> = status.slots.iter().filter_map(|slot| slot.pid).collect();
    assert_eq!((held, status.deaths), (vec![u64::from(eater.pid())], 0));
    assert!(status.members.iter().all(|member| member.alive));
    assert!(status.committed <= before + 3 * 4096, "{} after {before}", status.committed);
    eater.signal(libc::SIGCONT);
    eater.tell("on");
    (3..20).for_each(|n| put(&pool, n).unwrap());
    for n in 1..20 {
        assert_eq!(eater.hear_number::<u64>(), n, "everything arrives once, in order");
    }
    eventually("all slots are free", || pool.waiting("fill").unwrap() == 3);
    eater.tell("end");
}

/// Holds the first slot until it is told to go on, then eats the rest one by one.
fn eats_slowly(given: &str) {
    let pool = pool(given);
    let first = pool.take_timeout(PATIENCE).unwrap();
    say(first.slice::<u64>("n").unwrap()[0]);
    listen();
    first.release().unwrap();
    for _ in 1..20 {
        say(get(&pool).unwrap());
    }
    listen();
}

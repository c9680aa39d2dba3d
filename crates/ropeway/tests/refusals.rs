//! Where the system refuses a call, as filters of containers do, or a limit stands in the way: errors that
//! name the call or the limit, and pools that go on working.

mod peer;

use peer::starving::{forbid, grow, limit, play, works};
use peer::{fork, get, numbers, pool, put, reap, roles, say, words};
use ropeway::{Error, Options, Pool};

roles!(
    has_no_memfd,
    has_no_fallocate,
    has_no_sockets,
    has_no_call_for_new_pools,
    has_few_addresses,
    may_make_no_long_files,
    locks_all_maps,
);

fn text(error: Error) -> String {
    error.to_string()
}

/// Why no pool can be made.
fn refused() -> String {
    text(Pool::create(&numbers(1)).map(drop).unwrap_err())
}

// ---- calls ----------------------------------------------------------------------------------------

#[test]
fn without_memfd_create_a_new_pool_is_a_clear_error_and_others_can_be_used() {
    let pool = Pool::create(&numbers(2)).unwrap();
    for errno in [libc::ENOSYS, libc::EPERM] {
        play("", "has_no_memfd", &format!("{errno} {}", words(&pool)));
        works(&pool);
    }
}

fn has_no_memfd(given: &str) {
    let (errno, given) = given.split_once(' ').unwrap();
    forbid(libc::SYS_memfd_create, None, errno.parse().unwrap());
    say("ready");
    let why = refused();
    assert!(why.contains("memfd_create") && why.contains(&format!("os error {errno}")), "{why}");
    works(&pool(given));
}

#[test]
fn without_fallocate_growing_is_a_clear_error() {
    play("", "has_no_fallocate", "");
}

fn has_no_fallocate(_: &str) {
    let settled = Pool::create(&numbers(1)).unwrap();
    works(&settled);
    forbid(libc::SYS_fallocate, None, libc::EPERM);
    say("ready");
    let pool = Pool::create(&Options::new(1)).unwrap();
    for _ in 0..2 {
        let why = text(grow(&pool, 1000).unwrap_err());
        assert!(why.contains("can't commit 4096 bytes") && why.contains("os error 1"), "{why}");
    }
    works(&settled);
}

#[test]
fn without_sockets_only_names_are_missing() {
    let pool = Pool::create(&numbers(2)).unwrap();
    play("", "has_no_sockets", &words(&pool));
}

fn has_no_sockets(given: &str) {
    forbid(libc::SYS_socket, Some((0, libc::AF_UNIX as u32)), libc::EACCES);
    say("ready");
    works(&pool(given));
    let ours = Pool::create(&numbers(2)).unwrap();
    let handle = ours.handle().unwrap();
    reap(fork(|| put(&Pool::attach(&handle).unwrap(), 6).unwrap()));
    assert_eq!(get(&ours).unwrap(), 6);
    let why = text(Pool::create(&numbers(1).name("unheard")).map(drop).unwrap_err());
    assert!(why.contains("the name \"unheard\"") && why.contains("os error 13"), "{why}");
}

/// What is refused, with its first or second argument, and what errors say of it.
const CALLS: [(&str, libc::c_long, u32, &str); 4] = [
    ("locks", libc::SYS_fcntl, libc::F_OFD_SETLK as u32, "fcntl(F_OFD_SETLK), by which others see"),
    ("looks", libc::SYS_fcntl, libc::F_OFD_GETLK as u32, "fcntl(F_OFD_GETLK), which tells who lives"),
    ("seals", libc::SYS_fcntl, libc::F_ADD_SEALS as u32, "fcntl(F_ADD_SEALS), without which"),
    ("advice", libc::SYS_madvise, libc::MADV_DONTDUMP as u32, "madvise(MADV_DONTDUMP), without which"),
];

#[test]
fn a_call_without_which_there_is_no_pool_is_named_and_old_pools_go_on() {
    let pool = Pool::create(&numbers(2)).unwrap();
    for (what, ..) in CALLS {
        play("", "has_no_call_for_new_pools", &format!("{what} {}", words(&pool)));
        works(&pool);
    }
}

fn has_no_call_for_new_pools(given: &str) {
    let (what, given) = given.split_once(' ').unwrap();
    let (_, call, argument, named) = CALLS.into_iter().find(|(name, ..)| *name == what).unwrap();
    let theirs = pool(given);
    let ours = Pool::create(&Options::new(1)).unwrap();
    let place = if call == libc::SYS_fcntl { 1 } else { 2 };
    forbid(call, Some((place, argument)), libc::EPERM);
    say("ready");
    for _ in 0..2 {
        let why = refused();
        assert!(why.contains(named) && why.contains("os error 1"), "{why}");
    }
    works(&theirs);
    grow(&ours, 10 << 20).unwrap();
    // Where nobody can be asked for, nobody is taken for dead.
    assert_eq!(theirs.sweep().unwrap(), Default::default());
}

// ---- limits ---------------------------------------------------------------------------------------

#[test]
fn too_few_addresses_are_an_error_with_numbers() {
    play("", "has_few_addresses", "");
}

fn has_few_addresses(_: &str) {
    let ours = Pool::create(&numbers(2)).unwrap();
    say("ready");
    // Neither is there room for the control segment of another pool.
    let before = limit(libc::RLIMIT_AS, 1 << 20);
    let why = refused();
    let limited = limit(libc::RLIMIT_AS, before);
    assert!(why.contains("bytes of addresses asked") && why.contains("RLIMIT_AS is 1048576"), "{why}");
    assert_eq!(limited, 1 << 20);
    works(&ours);
    works(&Pool::create(&numbers(1)).unwrap());
}

#[test]
fn too_short_files_are_an_error_with_numbers() {
    play("", "may_make_no_long_files", "");
}

fn may_make_no_long_files(_: &str) {
    let ours = Pool::create(&Options::new(1)).unwrap();
    say("ready");
    for most in [0, 1 << 20] {
        let before = limit(libc::RLIMIT_FSIZE, most);
        for refused in [refused(), text(Pool::create(&Options::new(1)).map(drop).unwrap_err())] {
            let named = format!("RLIMIT_FSIZE is {most}");
            assert!(refused.contains("bytes asked") && refused.contains(&named), "{refused}");
        }
        grow(&ours, 10 << 20).expect("what is there already grows");
        limit(libc::RLIMIT_FSIZE, before);
    }
    works(&Pool::create(&numbers(1)).unwrap());
}

#[test]
fn a_program_that_locks_all_its_memory_is_told_so_and_keeps_its_pools() {
    for who in ["root", "stranger"] {
        play("", "locks_all_maps", who);
    }
}

/// Locks all maps to come, as programs for hard deadlines do; a stranger within a limit.
fn locks_all_maps(who: &str) {
    let ours = Pool::create(&Options::new(1)).unwrap();
    limit(libc::RLIMIT_MEMLOCK, 1 << 20);
    // SAFETY: the calls touch no memory; only root can become another user, anybody else is limited.
    unsafe {
        if who == "stranger" && libc::geteuid() == 0 {
            assert_eq!(libc::setuid(65_534), 0);
        }
        assert_eq!(libc::mlockall(libc::MCL_FUTURE), 0);
    }
    say("ready");
    for _ in 0..2 {
        let why = refused();
        assert!(why.contains("mlockall"), "{why}");
    }
    if who == "root" {
        grow(&ours, 10 << 20).unwrap();
    }
    assert!(ours.status().committed <= 11 << 20);
    // SAFETY: the call touches no memory.
    unsafe { libc::munlockall() };
    works(&Pool::create(&numbers(1)).unwrap());
}

//! Other users of the machine: they can't open, list, name or disturb a pool. And processes of other
//! namespaces, who are members like any other where they can reach the pool at all.
//!
//! Only root can play another user; where the tests run as somebody else, they say that they were left
//! out.

mod peer;

use std::os::fd::RawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use peer::segment::segments;
use peer::{PATIENCE, Peer, fork, get, listen, numbers, pool, put, reap, roles, say, skipped, unhex, words};
use ropeway::{Error, Handle, Options, Pool, Result};
use ropeway_sys::names;

roles!(opens, looks, creates, binds, wants_to_write, lives_apart, forks_apart, opens_apart);

const STRANGER: u32 = 65_534;

fn become_stranger() {
    // SAFETY: the calls touch no memory, and a peer has one thread.
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setgid(STRANGER), 0);
        assert_eq!(libc::setuid(STRANGER), 0);
    }
}

fn is_root(test: &str) -> bool {
    // SAFETY: the call touches no memory.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        skipped(test, "only root can play another user");
    }
    root
}

fn outcome<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => "ok".into(),
        Err(Error::Gone(text)) => format!("gone {text}"),
        Err(Error::Incompatible(text)) => format!("incompatible {text}"),
        Err(other) => format!("{other:?}"),
    }
}

// ---- another user ---------------------------------------------------------------------------------

fn opens(given: &str) {
    become_stranger();
    say(outcome(Handle::from_bytes(&unhex(given)).and_then(|handle| Pool::attach(&handle))));
}

fn looks(given: &str) {
    become_stranger();
    say(outcome(Pool::find(given)));
    say(names::list().unwrap().iter().filter(|found| found.name == given).count());
}

fn creates(given: &str) {
    become_stranger();
    let pool = Pool::create(&numbers(1).name(given)).unwrap();
    put(&pool, 5).unwrap();
    say(get(&Pool::find(given).unwrap()).unwrap());
    listen();
}

/// As a stranger, binds addresses that look like root's: given ones, and one that leads to a pool of its
/// own that has the name.
fn binds(given: &str) {
    become_stranger();
    let pool = Pool::create(&numbers(1).name("stolen")).unwrap();
    let (control, _data) = segments(&pool);
    let own = format!("{}/{}", std::process::id(), control.raw());
    let address = |way: &str| SocketAddr::from_abstract_name(format!("ropeway/0/stolen/{way}/0")).unwrap();
    let ways = given.split(' ').chain([own.as_str()]);
    let _bound: Vec<_> = ways.map(|way| UnixListener::bind_addr(&address(way)).unwrap()).collect();
    say("bound");
    listen();
}

#[test]
fn another_user_cant_open_a_pool() {
    if is_root("another_user_cant_open_a_pool") {
        let pool = Pool::create(&numbers(1)).unwrap();
        let said = Peer::start("opens", &words(&pool)).hear();
        assert!(said.starts_with("gone ") && said.contains("ermission denied"), "{said}");
        assert_eq!(pool.status().members.len(), 1);
    }
}

#[test]
fn another_user_finds_no_pool_and_has_the_name_for_itself() {
    if is_root("another_user_finds_no_pool_and_has_the_name_for_itself") {
        let pool = Pool::create(&numbers(1).name("of-two-users")).unwrap();
        let mut looking = Peer::start("looks", "of-two-users");
        assert!(looking.hear().starts_with("gone "));
        assert_eq!(looking.hear(), "0");
        let mut stranger = Peer::start("creates", "of-two-users");
        assert_eq!(stranger.hear(), "5");
        put(&pool, 6).unwrap();
        assert_eq!(get(&Pool::find("of-two-users").unwrap()).unwrap(), 6);
        assert_eq!(names::list().unwrap().iter().filter(|found| found.name == "of-two-users").count(), 1);
    }
}

#[test]
fn another_user_cant_take_our_names() {
    if !is_root("another_user_cant_take_our_names") {
        return;
    }
    let other = Pool::create(&Options::new(1).name("another-of-ours")).unwrap();
    let (control, data) = segments(&other);
    let ours = std::process::id();
    // They lead nowhere, to another pool of ours, to its data.
    let ways = [(ours, 9999), (1, 0), (ours, control.raw()), (ours, data.raw())];
    let ways = ways.map(|(pid, fd): (u32, RawFd)| format!("{pid}/{fd}")).join(" ");
    let mut stranger = Peer::start("binds", &ways);
    assert_eq!(stranger.hear(), "bound");
    let missing = outcome(Pool::find("stolen"));
    assert!(missing.starts_with("incompatible ") || missing.starts_with("gone "), "{missing}");
    let pool = Pool::create(&numbers(1).name("stolen")).unwrap();
    put(&pool, 7).unwrap();
    assert_eq!(get(&Pool::find("stolen").unwrap()).unwrap(), 7);
    let again = Pool::create(&numbers(1).name("stolen")).map(drop).unwrap_err();
    assert!(again.to_string().contains("exists already"), "{again}");
}

#[test]
fn a_read_only_descriptor_stays_read_only() {
    if !is_root("a_read_only_descriptor_stays_read_only") {
        return;
    }
    let pool = Pool::create(&numbers(1)).unwrap();
    put(&pool, 8).unwrap();
    let (control, data) = segments(&pool);
    for file in [control, data] {
        let path = std::ffi::CString::new(format!("/proc/self/fd/{}", file.raw())).unwrap();
        // SAFETY: the path ends in a zero. Not closed on exec, as the peer is to have it.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY) };
        assert!(fd >= 0);
        let mut stranger = Peer::start("wants_to_write", &fd.to_string());
        assert_eq!(stranger.hear(), "readable");
        assert_eq!(stranger.hear(), "nothing worked");
        stranger.finish();
        // SAFETY: opened above, for nobody else in this process.
        unsafe { libc::close(fd) };
    }
    assert_eq!(get(&pool).unwrap(), 8);
}

/// Tries everything to write to the file behind a descriptor that it has got to read.
fn wants_to_write(given: &str) {
    become_stranger();
    let fd: RawFd = given.parse().unwrap();
    let mut byte = [0_u8];
    let path = |text: String| std::ffi::CString::new(text).unwrap();
    let ways = [format!("/proc/self/fd/{fd}"), format!("/dev/fd/{fd}"), format!("/proc/thread-self/fd/{fd}")];
    // SAFETY: each call gets valid pointers; what it could change is what this is about.
    let worked: Vec<&str> = unsafe {
        assert_eq!(libc::pread(fd, byte.as_mut_ptr().cast(), 1, 0), 1);
        say("readable");
        let map = |protection| libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, fd, 0);
        let readable = map(libc::PROT_READ);
        assert_ne!(readable, libc::MAP_FAILED);
        let reopened = |way: &String, flags| libc::open(path(way.clone()).as_ptr(), flags) >= 0;
        [
            ("write", libc::pwrite(fd, byte.as_ptr().cast(), 1, 0) >= 0),
            ("truncate", libc::ftruncate(fd, 0) == 0),
            ("fallocate", libc::fallocate(fd, 3, 0, 4096) == 0),
            ("map", map(libc::PROT_READ | libc::PROT_WRITE) != libc::MAP_FAILED),
            ("protect", libc::mprotect(readable, 4096, libc::PROT_READ | libc::PROT_WRITE) == 0),
            ("chmod", libc::fchmod(fd, 0o666) == 0),
            ("chown", libc::fchown(fd, STRANGER, STRANGER) == 0),
            ("seal", libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_WRITE) == 0),
            (
                "flags",
                libc::fcntl(fd, libc::F_SETFL, libc::O_RDWR) == 0
                    && libc::pwrite(fd, byte.as_ptr().cast(), 1, 0) >= 0,
            ),
            ("reopen", ways.iter().any(|way| reopened(way, libc::O_RDWR))),
            ("reopen to write", ways.iter().any(|way| reopened(way, libc::O_WRONLY | libc::O_TRUNC))),
            ("reopen to read", ways.iter().any(|way| reopened(way, libc::O_RDONLY))),
            ("truncate by path", libc::truncate(path(ways[0].clone()).as_ptr(), 0) == 0),
        ]
        .into_iter()
        .filter_map(|(what, worked)| worked.then_some(what))
        .collect()
    };
    say(if worked.is_empty() { "nothing worked".into() } else { worked.join(", ") });
}

// ---- namespaces -----------------------------------------------------------------------------------

/// Runs `body` as the first process of a pid namespace, with its own `/proc` ("own") or the old one,
/// and says "apart" before that, or else why it can't.
fn in_pid_namespace(proc: &str, body: impl FnOnce()) {
    // SAFETY: the call touches no memory, and a peer has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWPID | libc::CLONE_NEWNS) } != 0 {
        return say("this user may not make namespaces");
    }
    reap(fork(|| {
        assert_eq!(std::process::id(), 1);
        if proc == "own" && !mount_proc() {
            return say("this user may not mount /proc");
        }
        say("apart");
        body();
    }));
}

/// Shows the processes of this pid namespace, and only those, in `/proc`.
fn mount_proc() -> bool {
    let (none, proc) = (c"none".as_ptr(), c"proc".as_ptr());
    // SAFETY: the texts end in zeros.
    unsafe {
        let private = libc::MS_REC | libc::MS_PRIVATE;
        libc::mount(none, c"/".as_ptr(), none, private, std::ptr::null()) == 0
            && libc::mount(proc, c"/proc".as_ptr(), proc, 0, std::ptr::null()) == 0
    }
}

/// Starts a role for either `/proc`, unless namespaces aren't to be had.
fn apart(test: &str, role: &str, given: &str, mut check: impl FnMut(&str, Peer)) {
    for proc in ["own", "old"] {
        let mut peer = Peer::start(role, &format!("{proc} {given}"));
        match peer.hear().as_str() {
            "apart" => check(proc, peer),
            why => skipped(test, why),
        }
    }
}

/// Forks a child that dies while it has a slot.
fn die_with_a_slot(pool: &Pool) {
    let child = fork(|| {
        let _held = pool.take_timeout(PATIENCE).unwrap();
        ropeway_sys::process::kill_self();
    });
    let mut status = 0;
    // SAFETY: `status` outlives the call. The child has a watchdog.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, libc::SIGKILL);
}

#[test]
fn a_pool_lives_in_a_pid_namespace_of_its_own() {
    apart("a_pool_lives_in_a_pid_namespace_of_its_own", "lives_apart", "", |_, mut peer| {
        assert_eq!(peer.hear(), "10 once more");
        peer.finish();
    });
}

fn lives_apart(given: &str) {
    in_pid_namespace(given.trim(), || {
        let pool = Pool::create(&numbers(2).name("apart")).unwrap();
        reap(fork(|| put(&pool, 9).unwrap()));
        assert_eq!(get(&Pool::find("apart").unwrap()).unwrap(), 9);
        put(&pool, 10).unwrap();
        die_with_a_slot(&pool);
        let slot = pool.take_timeout(PATIENCE).unwrap();
        assert_eq!(slot.deliveries(), 1);
        say(format!("{} once more", slot.slice::<u64>("n").unwrap()[0]));
    });
}

#[test]
fn a_child_that_is_forked_into_another_pid_namespace_is_a_member() {
    let pool = Pool::create(&numbers(2)).unwrap();
    let test = "a_child_that_is_forked_into_another_pid_namespace_is_a_member";
    apart(test, "forks_apart", &words(&pool), |_, mut peer| {
        put(&pool, 11).unwrap();
        assert_eq!(peer.hear(), "dead");
        assert_eq!(peer::sweep(&pool, 3).slots, 1);
        let slot = pool.take_timeout(PATIENCE).unwrap();
        assert_eq!((slot.slice::<u64>("n").unwrap()[0], slot.deliveries()), (11, 1));
        slot.release().unwrap();
        assert_eq!(get(&pool).unwrap(), 12, "the child's own");
        peer.tell("end");
        peer.finish();
    });
}

fn forks_apart(given: &str) {
    let (proc, given) = given.split_once(' ').unwrap();
    let pool = pool(given);
    in_pid_namespace(proc, || {
        die_with_a_slot(&pool);
        put(&pool, 12).unwrap();
        say("dead");
        listen();
    });
}

#[test]
fn a_peer_in_another_pid_namespace_comes_in_where_it_sees_a_member() {
    let pool = Pool::create(&numbers(2)).unwrap();
    let test = "a_peer_in_another_pid_namespace_comes_in_where_it_sees_a_member";
    apart(test, "opens_apart", &words(&pool), |proc, mut peer| {
        let said = peer.hear();
        match proc {
            "own" => assert!(said.starts_with("gone ") && said.contains("namespace"), "{said}"),
            _ => assert_eq!((said.as_str(), get(&pool).unwrap()), ("ok", 13)),
        }
        peer.finish();
    });
}

fn opens_apart(given: &str) {
    let (proc, given) = given.split_once(' ').unwrap();
    in_pid_namespace(proc, || {
        let opened = Handle::from_bytes(&unhex(given)).and_then(|handle| Pool::attach(&handle));
        if let Ok(pool) = &opened {
            put(pool, 13).unwrap();
        }
        say(outcome(opened));
    });
}

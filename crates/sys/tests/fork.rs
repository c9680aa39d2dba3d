//! What a forked child shares with its parent, and what it doesn't.

mod peer;

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use peer::{fork, wait};
use ropeway_sys::fork::{Hooks, Privatized, cookie, on_fork, privatize_in_child};
use ropeway_sys::mapping::{Access, Mapping};
use ropeway_sys::memfd::Memfd;

const LEN: usize = 8192;

struct Shared {
    file: Memfd,
    map: Mapping,
}

impl Shared {
    fn new() -> Shared {
        let file = Memfd::create("ropeway-fork", LEN as u64).unwrap();
        let map = Mapping::new(&file, 0, LEN, Access::ReadWrite).unwrap();
        Shared { file, map }
    }

    fn privatize(&self) -> io::Result<Privatized> {
        privatize_in_child(&self.map, &self.file, 0)
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the map is zeros at first, aligned, as long as `self`, and only used so.
        unsafe { self.map.ptr().cast().as_ref() }
    }

    /// Forks a child that adds 1 to the word and exits with what it has then.
    fn child_adds_one(&self) -> i32 {
        wait(fork(|| self.word().fetch_add(1, SeqCst) as i32 + 1))
    }
}

const fn exited(code: i32) -> i32 {
    code << 8
}

#[test]
fn a_child_reads_a_privatized_map_and_its_writes_stay_its_own() {
    let shared = Shared::new();
    let _registered = shared.privatize().unwrap();
    shared.word().store(6, SeqCst);
    assert_eq!(shared.child_adds_one(), exited(7));
    assert_eq!(shared.word().load(SeqCst), 6);
}

#[test]
fn a_grandchild_sees_what_the_child_wrote() {
    let shared = Shared::new();
    let _registered = shared.privatize().unwrap();
    let child = fork(|| {
        shared.word().store(1, SeqCst);
        wait(fork(|| shared.word().load(SeqCst) as i32)) >> 8
    });
    assert_eq!(wait(child), exited(1));
    assert_eq!(shared.word().load(SeqCst), 0);
}

#[test]
fn a_map_is_shared_again_when_its_registration_is_dropped() {
    let shared = Shared::new();
    drop(shared.privatize().unwrap());
    assert_eq!(shared.child_adds_one(), exited(1));
    assert_eq!(shared.word().load(SeqCst), 1);
}

#[test]
fn a_registration_ends_with_its_map() {
    let shared = Shared::new();
    // In a child, where no other thread can map something at the address.
    let child = fork(move || {
        let start = shared.map.ptr().as_ptr();
        let registered = shared.privatize();
        drop(shared.map);
        let grandchild = fork(|| {
            // SAFETY: `mincore` writes one byte for the page.
            unsafe { libc::mincore(start.cast(), 1, &mut 0) + 1 }
        });
        i32::from(registered.is_err() || wait(grandchild) != 0)
    });
    assert_eq!(wait(child), 0, "the dropped map came back");
}

#[test]
fn without_its_descriptor_a_privatized_map_can_only_be_read() {
    let shared = Shared::new();
    let _registered = shared.privatize().unwrap();
    let other = Memfd::create("ropeway-other", LEN as u64).unwrap();
    // SAFETY: `Memfd` allows for numbers that show another file.
    assert!(unsafe { libc::dup2(other.raw(), shared.file.raw()) } >= 0);
    shared.word().store(5, SeqCst);
    assert_eq!(wait(fork(|| shared.word().load(SeqCst) as i32)), exited(5));
    assert_eq!(shared.child_adds_one() & 0x7f, libc::SIGSEGV);
    assert_eq!(shared.word().load(SeqCst), 5);
}

#[test]
fn the_cookie_changes_with_a_fork_and_only_with_a_fork() {
    let report = Shared::new();
    let own = cookie();
    wait(fork(|| {
        report.word().store(cookie(), SeqCst);
        i32::from(cookie() != report.word().load(SeqCst))
    }));
    let child = report.word().load(SeqCst);
    assert!(own != 0 && child != 0 && own != child, "{own} and {child}");
    assert_eq!(cookie(), own);
}

#[test]
fn the_cookie_changes_with_a_clone_that_runs_no_handlers() {
    let report = Shared::new();
    let own = cookie();
    // SAFETY: without flags and stack this is a fork; the child is async-signal-safe and exits.
    unsafe {
        let pid = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t;
        if pid == 0 {
            report.word().store(cookie(), SeqCst);
            libc::_exit(0);
        }
        assert_eq!(wait(pid), 0);
    }
    let child = report.word().load(SeqCst);
    assert!(child != 0 && child != own);
}

static PREPARED: AtomicU32 = AtomicU32::new(0);
static FIRST: AtomicU32 = AtomicU32::new(0);
static SECOND: AtomicU32 = AtomicU32::new(0);

#[test]
fn hooks_run_around_a_fork_in_order_of_registration() {
    fn nothing() {}
    on_fork(Hooks {
        prepare: || PREPARED.store(1, SeqCst),
        parent: nothing,
        child: || FIRST.store(1, SeqCst),
    });
    on_fork(Hooks {
        prepare: nothing,
        parent: nothing,
        child: || SECOND.store(FIRST.load(SeqCst) + 1, SeqCst),
    });
    let child = fork(|| SECOND.load(SeqCst) as i32);
    assert_eq!(wait(child), exited(2));
    assert_eq!(FIRST.load(SeqCst), 0, "a child's hook ran in the parent");
    assert_eq!(PREPARED.load(SeqCst), 1);
}

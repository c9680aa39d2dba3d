//! A lock is held exactly as long as the address space that took it.

mod peer;

use std::os::unix::process::CommandExt;
use std::process::Command;

use peer::{Peer, eventually, fork, listen, say};
use ropeway_sys::liveness::{Alive, is_held};
use ropeway_sys::memfd::Memfd;

fn control() -> Memfd {
    Memfd::create("ropeway-control", 4096).unwrap()
}

#[test]
fn roles() {
    let Some((role, control)) = peer::role() else {
        return;
    };
    if role == "fork all the time" {
        return hold_while_another_thread_forks(&control);
    }
    let inheritable = role == "fork, inheritable";
    let hold = if inheritable { Alive::hold_inheritable } else { Alive::hold };
    let alive = hold(&control, 0).unwrap().expect("the byte is free");
    match role.as_str() {
        // SAFETY: nothing in this process uses a descriptor afterwards, but for 0 to 2.
        "close all" => assert_eq!(unsafe { libc::close_range(3, u32::MAX, 0) }, 0),
        "exec" => {
            say("held");
            listen();
            panic!("{}", Command::new("cat").exec());
        }
        // SAFETY: the call touches no memory.
        _ => say(fork(|| unsafe { libc::pause() })),
    }
    say("held");
    listen();
    drop(alive);
    say("dropped");
    listen();
}

#[test]
fn the_lock_survives_closing_all_descriptors_and_ends_when_dropped() {
    let control = control();
    let mut peer = Peer::start("close all", &control);
    assert_eq!(peer.hear(), "held");
    assert!(is_held(&control, 0).unwrap());
    assert!(Alive::hold(&control, 0).unwrap().is_none());
    peer.tell();
    assert_eq!(peer.hear(), "dropped");
    assert!(!is_held(&control, 0).unwrap());
}

/// When a process was started, in clock ticks since boot; `None` if it isn't there.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[test]
fn the_lock_is_free_when_its_holder_was_killed_and_is_still_unreaped() {
    let control = control();
    let mut peer = Peer::start("close all", &control);
    assert_eq!(peer.hear(), "held");
    peer.kill();
    // Not at once, if somebody is reading its entry in /proc right now.
    eventually("free", || !is_held(&control, 0).unwrap());
    assert!(start_time(peer.child.id()).is_some(), "it was reaped");
    assert!(Alive::hold(&control, 0).unwrap().is_some());
}

#[test]
fn the_lock_is_free_after_exec_though_pid_and_start_time_are_the_same() {
    let control = control();
    let mut peer = Peer::start("exec", &control);
    assert_eq!(peer.hear(), "held");
    assert!(is_held(&control, 0).unwrap());
    let started = start_time(peer.child.id());
    peer.tell();
    eventually("free", || !is_held(&control, 0).unwrap());
    assert_eq!(start_time(peer.child.id()), started);
    assert_eq!(peer.child.try_wait().unwrap(), None);
}

/// Kills a holder that has forked, and waits until the byte is held or free while the fork lives.
fn after_the_death_of_a_holder_that_has_forked(role: &str, held: bool) {
    let control = control();
    let mut peer = Peer::start(role, &control);
    let fork: libc::pid_t = peer.hear().parse().unwrap();
    assert_eq!(peer.hear(), "held");
    assert!(is_held(&control, 0).unwrap());
    peer.kill();
    eventually("as expected", || is_held(&control, 0).unwrap() == held);
    // SAFETY: the call touches no memory, and the process is one of this test.
    let killed = unsafe { libc::kill(fork, libc::SIGKILL) };
    assert_eq!(killed, 0, "the fork was gone");
    eventually("free", || !is_held(&control, 0).unwrap());
}

#[test]
fn a_fork_does_not_prolong_the_lock() {
    after_the_death_of_a_holder_that_has_forked("fork", false);
}

#[test]
fn a_fork_prolongs_an_inheritable_lock() {
    after_the_death_of_a_holder_that_has_forked("fork, inheritable", true);
}

fn hold_while_another_thread_forks(control: &Memfd) {
    // SAFETY: the call touches no memory.
    let forker = std::thread::spawn(|| [(); 50].map(|()| fork(|| unsafe { libc::pause() })));
    let mut bytes = 0;
    while !forker.is_finished() {
        Alive::hold(control, bytes).unwrap().expect("the byte is free");
        bytes += 1;
    }
    let caught = (0..bytes).filter(|&byte| is_held(control, byte).unwrap());
    say(format!("caught {}", caught.count()));
    for fork in forker.join().unwrap() {
        // SAFETY: the call touches no memory, and the process is a child of this one.
        unsafe { libc::kill(fork, libc::SIGKILL) };
    }
}

#[test]
fn a_fork_in_another_thread_catches_no_lock_half_made() {
    let control = control();
    assert_eq!(Peer::start("fork all the time", &control).hear(), "caught 0");
}

#[test]
fn a_child_can_take_over_a_lock_and_a_second_fork_lets_it_go() {
    let control = control();
    let alive = Alive::hold_inheritable(&control, 0).unwrap().unwrap();
    let child = fork(|| match alive.stop_inheriting() {
        // SAFETY: the call touches no memory.
        Ok(()) => unsafe { libc::pause() },
        Err(_) => 1,
    });
    drop(alive);
    assert!(is_held(&control, 0).unwrap());
    // SAFETY: the call touches no memory, and the process is a child of this test.
    unsafe { libc::kill(child, libc::SIGKILL) };
    peer::wait(child);
    // The forks of other tests may have inherited it, too.
    eventually("free", || !is_held(&control, 0).unwrap());
}

#[test]
fn a_forked_copy_unmaps_nothing_when_dropped() {
    let control = control();
    let alive = Alive::hold(&control, 0).unwrap().unwrap();
    let before = mapped(&format!("{alive:?}"));
    let child = fork(|| {
        let page = before as *mut libc::c_void;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: the flags allow only addresses at which nothing is mapped.
        let taken = unsafe { libc::mmap(page, 1, libc::PROT_READ, flags, -1, 0) };
        // SAFETY: this makes a second owner of the page, which must not unmap it here; the
        // first is never dropped in this process.
        drop(unsafe { std::ptr::read(&alive) });
        // SAFETY: a read of a page that was mapped three lines above, if it still is.
        i32::from(taken != page || unsafe { page.cast::<u8>().read_volatile() } != 0)
    });
    assert_eq!(peer::wait(child), 0);
    assert!(is_held(&control, 0).unwrap());
}

/// The address in the debug text of an [`Alive`].
fn mapped(text: &str) -> usize {
    let (_, hex) = text.split_once("0x").unwrap();
    usize::from_str_radix(hex.split_once(',').unwrap().0, 16).unwrap()
}

#[test]
fn bytes_of_one_process_are_told_apart() {
    let control = control();
    let first = Alive::hold(&control, 1).unwrap().unwrap();
    let _second = Alive::hold(&control, 2).unwrap().unwrap();
    assert!(Alive::hold(&control, 1).unwrap().is_none());
    drop(first);
    // A peer that another test starts may have the descriptor until its exec.
    eventually("free", || !is_held(&control, 1).unwrap());
    assert!(is_held(&control, 2).unwrap());
}

#[test]
fn a_reused_descriptor_number_is_an_error_rather_than_free() {
    let control = control();
    let _alive = Alive::hold(&control, 0).unwrap().unwrap();
    let other = Memfd::create("ropeway-other", 4096).unwrap();
    // SAFETY: `Memfd` allows for numbers that show another file.
    assert!(unsafe { libc::dup2(other.raw(), control.raw()) } >= 0);
    let error = is_held(&control, 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EBADF));
}

//! The arena of a session: handles open anywhere, and arrays go when nobody holds them.
//!
//! A process has one session, so every test plays in peers of its own.

mod peer;

use peer::segment::{Scribbler, record, segments_of};
use peer::{Peer, clone, eventually, hex, listen, reap, roles, say, unhex};
use ropeway::{Block, Error, arena_status, join_session};

roles!(root, maker, opener, forks_after_a_death, clones, reuses);

fn array(len: usize) -> Block {
    Block::allocate(len, &mut || true).unwrap()
}

fn fill(block: &Block, byte: u8) {
    // SAFETY: a block has `len` bytes; the tests take turns in writing them.
    unsafe { block.as_ptr().write_bytes(byte, block.len()) };
}

/// The byte that a block is full of.
fn look(block: &Block) -> u8 {
    // SAFETY: as above.
    let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr(), block.len()) };
    assert!(bytes.iter().all(|b| *b == bytes[0]), "torn");
    bytes[0]
}

/// Founds a session, says its name, and then for each line how many arrays live and wait.
fn root(_: &str) {
    say(join_session(None).unwrap());
    while !listen().is_empty() {
        let status = arena_status().unwrap();
        say(format!("{} {}", status.arrays, status.unclaimed));
    }
}

/// Makes arrays in a session and says their handles; then drops them when told.
fn maker(given: &str) {
    let (session, count) = given.split_once(' ').unwrap();
    join_session(Some(session)).unwrap();
    let blocks: Vec<_> = (0..count.parse().unwrap()).map(|n| (n, array(1000 + n as usize))).collect();
    for (n, block) in &blocks {
        fill(block, *n as u8);
        say(hex(&block.handle()));
    }
    listen();
    drop(blocks);
    say("dropped");
    listen();
}

/// Opens each handle that it is told, keeps the array, and says what is in it.
fn opener(_: &str) {
    let mut open = Vec::new();
    loop {
        let told = listen();
        if told.is_empty() {
            return;
        }
        if told == "drop" {
            open.clear();
            say("dropped");
            continue;
        }
        match Block::open(&unhex(&told)) {
            Ok(block) => {
                say(format!("{} of {}", block.len(), look(&block)));
                open.push(block);
            }
            Err(Error::Gone(_)) => say("gone"),
            Err(Error::Incompatible(_)) => say("incompatible"),
            Err(e) => panic!("{e}"),
        }
    }
}

struct Session {
    root: Peer,
    name: String,
}

impl Session {
    fn found() -> Session {
        let mut root = Peer::start("root", "");
        let name = root.hear();
        Session { root, name }
    }

    /// A peer that has made so many arrays, and their handles.
    fn maker(&self, count: usize) -> (Peer, Vec<String>) {
        let mut maker = Peer::start("maker", &format!("{} {count}", self.name));
        let handles = (0..count).map(|_| maker.hear()).collect();
        (maker, handles)
    }

    /// How many arrays live, and how many of them were never opened.
    fn counts(&mut self) -> String {
        self.root.tell("count");
        self.root.hear()
    }

    fn becomes(&mut self, counts: &str) {
        eventually(&format!("there are {counts} arrays"), || self.counts() == counts);
    }
}

fn ask(opener: &mut Peer, what: &str) -> String {
    opener.tell(what);
    opener.hear()
}

#[test]
fn an_array_opens_in_another_process_as_often_as_one_likes() {
    let mut session = Session::found();
    let (mut maker, handles) = session.maker(2);
    let mut opener = Peer::start("opener", "");
    for n in [1, 0, 1, 1, 0] {
        assert_eq!(ask(&mut opener, &handles[n]), format!("{} of {n}", 1000 + n));
    }
    assert!(handles.iter().all(|handle| handle.len() / 2 < 256), "a handle is short");
    assert_eq!(session.counts(), "2 0");
    assert_eq!(ask(&mut maker, "drop"), "dropped");
    assert_eq!(session.counts(), "2 0", "the opener holds them");
    assert_eq!(ask(&mut opener, "drop"), "dropped");
    assert_eq!(session.counts(), "0 0");
    assert_eq!(ask(&mut opener, &handles[0]), "gone", "a pickle that is read too late");
}

#[test]
fn the_dead_hold_no_arrays() {
    let mut session = Session::found();
    let (mut maker, handles) = session.maker(3);
    let mut opener = Peer::start("opener", "");
    assert_eq!(ask(&mut opener, &handles[2]), "1002 of 2");
    maker.kill();
    session.becomes("3 2");
    assert_eq!(ask(&mut opener, &handles[1]), "1001 of 1", "kept until it is opened, though its maker died");
    opener.kill();
    session.becomes("1 1");
}

#[test]
fn what_a_worker_made_outlives_it() {
    let mut session = Session::found();
    let (maker, handles) = session.maker(1);
    maker.finish();
    let mut opener = Peer::start("opener", "");
    assert_eq!(ask(&mut opener, &handles[0]), "1000 of 0");
    assert_eq!(session.counts(), "1 0");
}

#[test]
fn arrays_outlive_the_root_while_somebody_has_them() {
    let mut session = Session::found();
    let (mut maker, handles) = session.maker(2);
    session.root.kill();
    let mut opener = Peer::start("opener", "");
    assert_eq!(ask(&mut opener, &handles[0]), "1000 of 0", "a newcomer asks the maker");
    maker.kill();
    assert_eq!(ask(&mut opener, &handles[1]), "1001 of 1", "who is attached goes on");
    let mut late = Peer::start("opener", "");
    assert_eq!(ask(&mut late, &handles[0]), "gone");
}

#[test]
fn ten_thousand_arrays_wait_to_be_opened() {
    let mut session = Session::found();
    let (maker, handles) = session.maker(10_000);
    assert_eq!(session.counts(), "10000 10000");
    maker.finish();
    session.becomes("10000 10000");
    let mut opener = Peer::start("opener", "");
    for (n, handle) in handles.iter().enumerate() {
        assert_eq!(ask(&mut opener, handle), format!("{} of {}", 1000 + n, n % 256));
    }
    assert_eq!(session.counts(), "10000 0");
    assert_eq!(ask(&mut opener, "drop"), "dropped");
    assert_eq!(session.counts(), "0 0");
}

#[test]
fn a_changed_handle_is_refused() {
    let session = Session::found();
    let (_maker, handles) = session.maker(1);
    let mut opener = Peer::start("opener", "");
    let bytes = unhex(&handles[0]);
    for at in (0..bytes.len()).step_by(7) {
        let mut changed = bytes.clone();
        changed[at] ^= 4;
        assert_eq!(ask(&mut opener, &hex(&changed)), "incompatible");
    }
    for len in [1, 8, 40, bytes.len() - 1] {
        assert_eq!(ask(&mut opener, &hex(&bytes[..len])), "incompatible");
    }
    assert_eq!(ask(&mut opener, &handles[0]), "1000 of 0");
}

#[test]
fn an_array_outside_of_its_slot_is_refused_and_not_kept() {
    let mut session = Session::found();
    let (mut maker, handles) = session.maker(1);
    let mut refused = Peer::start("opener", "");
    let (control, _) = segments_of(&unhex(&session.name));
    let slot = u64::from_le_bytes(unhex(&handles[0])[..8].try_into().unwrap());
    let record = record(&control, slot as usize);
    let (blob, bytes) = (record.blob(), record.bytes());
    for (at, n) in [(1, 1 << 50), (u64::MAX, 1), (blob + 8, 1), (0, 1), (blob, 1 << 40), (blob, u64::MAX)] {
        record.set_blob(at);
        record.set_bytes(n);
        assert_eq!(ask(&mut refused, &handles[0]), "incompatible");
    }
    record.set_blob(blob);
    record.set_bytes(bytes);
    let mut opener = Peer::start("opener", "");
    assert_eq!(ask(&mut opener, &handles[0]), "1000 of 0");
    assert_eq!((ask(&mut maker, "drop"), ask(&mut opener, "drop")), ("dropped".into(), "dropped".into()));
    assert_eq!(session.counts(), "0 0");
}

#[test]
fn what_the_dead_had_announced_isnt_held_against_a_forked_child() {
    let mut peer = Peer::start("forks_after_a_death", "");
    assert_eq!(peer.hear(), "there is memory");
}

/// Forks a child that gets the entry of a process that died while it took a lot of memory.
fn forks_after_a_death(_: &str) {
    const MEMBER: usize = (1 << 18) + 64;
    join_session(None).unwrap();
    let control = Scribbler::over(&segments_of(&array(1).handle()[24..]).0);
    assert_eq!(control.read_number(MEMBER) & 1, 0, "the entry behind this process's is free");
    control.write_number(MEMBER + 24, 1 << 50);
    // SAFETY: the child calls nothing but `pause`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: it takes nothing.
        unsafe { libc::pause() };
    }
    assert_eq!(control.read_number(MEMBER) & 1, 1, "the child has it");
    let made = Block::allocate(65 << 20, &mut || true);
    // SAFETY: a child of this process.
    unsafe { (libc::kill(child, libc::SIGKILL), libc::waitpid(child, std::ptr::null_mut(), 0)) };
    made.unwrap();
    say("there is memory");
}

#[test]
fn a_cloned_child_lets_go_of_none_of_its_parents_arrays() {
    Peer::start("clones", "").finish();
}

/// Clones a child, of which no handler hears, that drops an array.
fn clones(_: &str) {
    join_session(None).unwrap();
    let block = array(1000);
    fill(&block, 7);
    let mut held = Some(block);
    reap(clone(|| drop(held.take())));
    assert_eq!(arena_status().unwrap().arrays, 1);
    fill(&array(1000), 9);
    assert_eq!(look(held.as_ref().unwrap()), 7);
}

#[test]
fn what_was_dropped_is_used_again_among_many_small_arrays() {
    Peer::start("reuses", "").finish();
}

/// Has so many arrays that a vain search for a free slot is followed by some arrays without one.
fn reuses(_: &str) {
    join_session(None).unwrap();
    let mut blocks: Vec<_> = (0..1000).map(|_| array(1000)).collect();
    let before = arena_status().unwrap().committed;
    for at in 0..100 {
        blocks.swap_remove(at);
        blocks.push(array(1000));
    }
    assert_eq!(arena_status().unwrap().committed, before);
}

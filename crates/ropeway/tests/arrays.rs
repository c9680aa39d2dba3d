//! Ad-hoc arrays in a process and those that it forks: who holds them, and what becomes of their memory.
//!
//! A process has one session, so every test plays in a peer of its own.

mod peer;

use std::collections::HashSet;

use peer::{Peer, clone, eventually, fork, listen, reap, roles, say};
use ropeway::{Block, Error, arena_status};

roles!(
    frees_with_the_last_holder,
    tells_arrays_apart,
    leaves_blocks_to_children,
    children_drop_nothing,
    clones_drop_nothing,
    makes_many,
    makes_large_ones,
    forks_for_the_unclaimed,
);

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

fn arrays() -> usize {
    arena_status().unwrap().arrays
}

fn plays(role: &str) {
    Peer::start(role, "").finish();
}

#[test]
fn an_array_goes_with_its_last_holder() {
    plays("frees_with_the_last_holder");
}

fn frees_with_the_last_holder(_: &str) {
    let block = array(5000);
    assert!(block.is_fresh() && !block.is_pickled());
    let handle = block.handle();
    assert!(block.is_pickled());
    let again = Block::open(&handle).unwrap();
    assert_eq!(block.as_ptr(), again.as_ptr(), "the same memory, no second map");
    drop(block);
    assert_eq!(arrays(), 1);
    drop(again);
    assert_eq!(arrays(), 0);
    drop(array(10));
    assert_eq!(arrays(), 0, "what was never pickled goes at once");
}

#[test]
fn a_handle_is_of_one_array_though_its_memory_is_used_again() {
    plays("tells_arrays_apart");
}

fn tells_arrays_apart(_: &str) {
    let old = array(5000);
    let (handle, address) = (old.handle(), old.as_ptr());
    drop(Block::open(&handle).unwrap());
    drop(old);
    let new = array(5000);
    assert_eq!((new.as_ptr(), new.is_fresh()), (address, false), "the memory is used again");
    assert!(matches!(Block::open(&handle), Err(Error::Gone(_))));
    fill(&new, 3);
    assert_eq!(arrays(), 1);
    assert_eq!(look(&new), 3);
}

#[test]
fn a_childs_arrays_are_held_without_its_parent() {
    let mut parent = Peer::start("leaves_blocks_to_children", "");
    assert_eq!(parent.hear(), "made others");
    parent.tell("look");
    parent.finish();
}

fn leaves_blocks_to_children(_: &str) {
    let block = array(100_000);
    fill(&block, 5);
    let address = block.as_ptr();
    // The grandchild holds it too, when everybody else has let go.
    let tree = fork(|| {
        let grandchild = fork(|| {
            assert_eq!(listen(), "look");
            assert_eq!(look(&block), 5);
            assert_eq!(arrays(), 11);
        });
        drop(block);
        reap(grandchild);
        assert_eq!(arrays(), 10, "its own copies of what it inherited are forgotten");
    });
    // Here the block went into the closure of the child, and was dropped.
    let others: Vec<_> = (0..10).map(|_| array(100_000)).collect();
    assert!(others.iter().all(|other| other.as_ptr() != address), "the child's memory was used again");
    others.iter().for_each(|other| fill(other, 6));
    assert_eq!(arrays(), 11);
    say("made others");
    reap(tree);
    eventually("the memory is free", || arrays() == 10);
    assert_eq!(array(100_000).as_ptr(), address);
}

#[test]
fn what_a_child_drops_its_parent_keeps() {
    plays("children_drop_nothing");
}

fn children_drop_nothing(_: &str) {
    let block = array(100_000);
    fill(&block, 5);
    reap(fork(|| fill(&block, 6)));
    assert_eq!(look(&block), 6, "ad-hoc arrays are shared");
    let handle = block.handle();
    reap(fork(|| {
        let mine = array(10);
        assert_eq!(arrays(), 2, "a child has the same session");
        let again = Block::open(&handle).unwrap();
        assert_eq!(again.as_ptr(), block.as_ptr());
        drop((mine, again));
        // SAFETY: the copy is dropped in this process, which has no other use of it.
        drop(unsafe { std::ptr::read(&block) });
        assert_eq!(arrays(), 1);
    }));
    drop(array(100_000));
    assert_eq!((arrays(), look(&block)), (1, 6));
}

#[test]
fn what_a_cloned_child_drops_its_parent_keeps() {
    plays("clones_drop_nothing");
}

fn clones_drop_nothing(_: &str) {
    let block = array(100_000);
    fill(&block, 5);
    reap(clone(|| {
        // SAFETY: the copy is dropped in this process, which has no other use of it.
        drop(unsafe { std::ptr::read(&block) });
    }));
    assert_eq!(arrays(), 1);
    let other = array(100_000);
    fill(&other, 6);
    assert_eq!(look(&block), 5);
}

#[test]
fn what_is_pickled_and_never_opened_survives_forks() {
    plays("forks_for_the_unclaimed");
}

fn forks_for_the_unclaimed(_: &str) {
    let handle = array(1000).handle();
    reap(fork(|| assert_eq!(arena_status().unwrap().unclaimed, 1)));
    assert_eq!(arena_status().unwrap().unclaimed, 1);
    reap(fork(|| drop(Block::open(&handle).unwrap())));
    assert_eq!(arrays(), 0);
    assert!(matches!(Block::open(&handle), Err(Error::Gone(_))));
}

#[test]
fn twenty_thousand_arrays_fit() {
    let mut peer = Peer::start("makes_many", "");
    for thousands in 1..=20 {
        assert_eq!(peer.hear_number::<usize>(), thousands);
    }
    peer.finish();
}

fn makes_many(_: &str) {
    const MANY: usize = 20_000;
    let mut blocks = Vec::new();
    while blocks.len() < MANY {
        blocks.extend((0..1000).map(|n| array(1 + n % 500)));
        say(blocks.len() / 1000);
    }
    blocks.iter().enumerate().for_each(|(n, block)| fill(block, n as u8));
    assert!(blocks.iter().enumerate().all(|(n, block)| look(block) == n as u8));
    let places: HashSet<_> = blocks.iter().map(Block::as_ptr).collect();
    assert_eq!((places.len(), arrays()), (MANY, MANY));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.matches("ropeway-data").count() == 1, "arrays need no map of their own");
    drop(blocks);
    assert_eq!(arrays(), 0);
}

#[test]
fn memory_comes_back() {
    plays("makes_large_ones");
}

fn makes_large_ones(_: &str) {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut held = Vec::new();
    for _ in 0..200 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let block = array((random >> 33) as usize % (8 << 20));
        held.push(block);
        if held.len() > 3 {
            held.remove((random >> 20) as usize % 4);
        }
    }
    let status = arena_status().unwrap();
    // In all 800 MiB were asked for. Three arrays live; beside them lies one of each size class.
    assert!(status.committed < 160 << 20, "{} MiB are committed", status.committed >> 20);
    drop(held);
    assert_eq!(arrays(), 0);
}

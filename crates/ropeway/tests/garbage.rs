//! A member writes random bytes over a whole control segment while others work: they may see errors,
//! never a crash, a hang, or memory outside of their slots.
//!
//! Each round is a process tree of its own kind of pool and seed. Who crashes or panics ends badly,
//! who hangs is killed by its watchdog: both fail the round.

mod peer;

use std::time::{Duration, Instant};

use peer::segment::{Scribbler, segments, segments_of};
use peer::{Peer, bytes, hex, listen, numbers, pool, roles, say, unhex, words};
use ropeway::{Block, Error, Export, Options, Pool, Result, Wait};

roles!(works, scribbles, allocates);

/// How long the garbage flows in one round.
const ROUND: Duration = Duration::from_millis(300);
const ROUNDS: u64 = 8;
/// How long a worker waits for anything.
const GLIMPSE: Duration = Duration::from_millis(3);
const LEN: u64 = 5000;

// ---- the broken member ----------------------------------------------------------------------------

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }
}

/// Writes garbage for a round; given a seed and the handle of a pool or an arena.
fn scribbles(given: &str) {
    let (seed, handle) = given.split_once(' ').unwrap();
    let control = Scribbler::over(&segments_of(&unhex(handle)).0);
    let mut random = Random(seed.parse().unwrap());
    let end = Instant::now() + ROUND;
    while Instant::now() < end {
        for _ in 0..random.below(20) {
            scribble(&control, &mut random);
        }
        std::thread::sleep(Duration::from_micros(random.next() % 300));
    }
    say("scribbled");
    listen();
}

/// Writes random bytes, zeros, ones or a small number somewhere: anywhere, or where it hurts most.
fn scribble(control: &Scribbler, random: &mut Random) {
    const MEMBERS: usize = 1 << 18;
    const SLOTS: usize = MEMBERS + 4096 * 64;
    const RECORDS: usize = SLOTS + 65_536 * 64;
    let places = [(0, 4096), (64, 1024), (MEMBERS, 1024), (SLOTS, 1024), (RECORDS, 4096), (0, control.len())];
    let (start, len) = places[random.below(places.len())];
    let at = start + random.below(len);
    let at = if random.next().is_multiple_of(4) { at } else { at & !7 };
    let most = [1, 8, 8, 64, 512, 4096][random.below(6)];
    let n = (1 + random.below(most)).min(control.len() - at);
    let garbage = match random.below(5) {
        0 => vec![0; n],
        1 => vec![0xff; n],
        2 => (random.next() % 100).to_le_bytes().into_iter().cycle().take(n).collect(),
        3 => (random.next() % 100 * 4096).to_le_bytes().into_iter().cycle().take(n).collect(),
        _ => (0..n).map(|_| random.next() as u8).collect::<Vec<_>>(),
    };
    control.write(at, &garbage);
}

// ---- those who work -------------------------------------------------------------------------------

/// Does with the pool whatever can be done, until it is told to stop.
fn works(given: &str) {
    let pool = pool(given);
    say("works");
    let told = std::thread::spawn(listen);
    let mut done = 0_u64;
    while !told.is_finished() {
        done += u64::from(use_all_of(&pool));
    }
    say(done);
}

/// Says whether anything of it worked.
fn use_all_of(pool: &Pool) -> bool {
    let results = [produce(pool), produce(pool), change(pool), consume(pool), observe(pool)];
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        assert!(!error.to_string().is_empty(), "{error:?}");
        assert!(!matches!(error, Error::Interrupted(_)), "{error}");
    }
    results.iter().any(Result::is_ok)
}

/// Checks that an array lies in its slot, where that is known, and touches all of it.
fn touch(pool: &Pool, slot: usize, view: &Export, writes: bool) {
    if let Ok(ring) = pool.ring("n") {
        let size = ring.field.bytes() as usize;
        assert!(slot < ring.slots && view.len() == size);
        assert_eq!(view.as_ptr(), ring.as_ptr().wrapping_add(slot * size), "the array isn't in its slot");
    }
    // SAFETY: a live view of a held slot; others may write there too, and any bytes are bytes.
    unsafe {
        std::hint::black_box(std::slice::from_raw_parts(view.as_ptr(), view.len()).iter().max());
        if writes {
            view.as_ptr().write_bytes(7, view.len());
        }
    }
}

fn produce(pool: &Pool) -> Result<()> {
    let slot = pool.acquire_timeout(GLIMPSE)?;
    if pool.fields().is_none() {
        slot.add(bytes("n", LEN), &mut || true)?;
    }
    for field in slot.fields()? {
        touch(pool, slot.index(), &slot.export(&field.name)?.0, true);
    }
    slot.set_meta(b"meta")?;
    slot.publish()
}

fn change(pool: &Pool) -> Result<()> {
    let slot = pool.take_mut_with("change", None, &mut Wait::new(Some(GLIMPSE), &mut || true))?;
    for field in slot.fields()? {
        touch(pool, slot.index(), &slot.export(&field.name)?.0, true);
    }
    slot.publish()
}

fn consume(pool: &Pool) -> Result<()> {
    let slot = pool.take_timeout(GLIMPSE)?;
    slot.meta()?;
    for field in slot.fields()? {
        touch(pool, slot.index(), &slot.export(&field.name)?.0, false);
    }
    slot.release()
}

fn observe(pool: &Pool) -> Result<()> {
    assert!(!format!("{:?}", pool.status()).is_empty());
    let handle = pool.handle()?;
    let again = ropeway::Handle::from_bytes(&handle.to_bytes())?;
    assert_eq!(again, handle);
    pool.sweep()?;
    pool.is_full()?;
    pool.waiting("use").map(drop)
}

// ---- rounds ---------------------------------------------------------------------------------------

fn survive(options: &Options) {
    for seed in 0..ROUNDS {
        let pool = Pool::create(&options.clone().stages(["fill", "change", "use"])).unwrap();
        let mut workers = [(); 2].map(|()| Peer::start("works", &words(&pool)));
        workers.iter_mut().for_each(|worker| assert_eq!(worker.hear(), "works"));
        let mut scribbler = Peer::start("scribbles", &format!("{seed} {}", words(&pool)));
        assert_eq!(scribbler.hear(), "scribbled");
        for _ in 0..20 {
            use_all_of(&pool);
        }
        for mut worker in workers {
            worker.tell("stop");
            let _done: u64 = worker.hear_number();
            worker.finish();
        }
        scribbler.kill();
        let _ = (pool.close(), pool.abort());
    }
}

#[test]
fn packed_pools_are_survived() {
    survive(&Options { max_slots: 6, ..numbers(4) });
}

#[test]
fn pools_of_any_arrays_are_survived() {
    survive(&Options::new(4));
}

#[test]
fn queues_are_survived() {
    survive(&Options { max_slots: 200, waiting_limit: Some(4), ..Options::new(3) });
}

#[test]
fn the_arena_is_survived() {
    for seed in 0..ROUNDS {
        let mut owner = Peer::start("allocates", "");
        let handle = owner.hear();
        let mut other = Peer::start("allocates", &handle);
        other.hear();
        let mut scribbler = Peer::start("scribbles", &format!("{seed} {}", &handle[48..]));
        assert_eq!(scribbler.hear(), "scribbled");
        for mut peer in [owner, other] {
            peer.tell("stop");
            let _done: u64 = peer.hear_number();
            peer.finish();
        }
        scribbler.kill();
    }
}

/// Makes and opens arrays in its own arena, and opens those of a handle that it was given.
fn allocates(given: &str) {
    let block = Block::allocate(LEN as usize, &mut || true).unwrap();
    let (ours, theirs) = (block.handle(), unhex(given));
    say(hex(&ours));
    let told = std::thread::spawn(listen);
    let mut done = 0_u64;
    while !told.is_finished() {
        let opened = [Block::open(&ours), Block::open(&theirs), Block::allocate(LEN as usize, &mut || true)];
        for block in opened.iter().flatten() {
            assert_eq!(block.as_ptr().addr() % 64, 0);
            // SAFETY: a block keeps its bytes mapped; others may write there too.
            unsafe { block.as_ptr().write_bytes(7, block.len()) };
            done += 1;
        }
        assert!(!format!("{:?}", ropeway::arena_status()).is_empty());
        let _again = opened.iter().flatten().next().map(|block| Block::open(&block.handle()));
    }
    say(done);
}

#[test]
fn the_scribbler_does_hurt() {
    // Otherwise the tests above show nothing.
    let pool = Pool::create(&numbers(4).stages(["fill", "change", "use"])).unwrap();
    let control = Scribbler::over(&segments(&pool).0);
    let mut random = Random(1);
    let before = format!("{:?}", pool.status());
    for _ in 0..1000 {
        scribble(&control, &mut random);
    }
    assert_ne!(format!("{:?}", pool.status()), before);
}

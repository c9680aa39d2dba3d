//! Memory is committed before it is promised, and a shortage is an error that changes nothing.

mod peer;

use std::os::unix::process::ExitStatusExt;
use std::process::abort;
use std::slice;

use peer::segment::{Scribbler, segments};
use peer::{MOMENT, PATIENCE, Peer, bytes, eventually, get, listen, numbers, pool, put, roles, say, words};
use ropeway::{Error, Export, Field, Options, Pool, Result, WriteLease};

roles!(
    has_little_address_space,
    attaches_with_little_address_space,
    has_short_files,
    aborts,
    grows_under_a_fast_timer,
    reads_grown,
    grows_in_a_race,
    stays,
);

const MIB: u64 = 1 << 20;

fn add(slot: &WriteLease, name: &str, len: u64) -> Result<()> {
    slot.add(bytes(name, len), &mut || true)
}

fn view(slot: &WriteLease, name: &str) -> Export {
    slot.export(name).unwrap().0
}

fn fill(view: &Export, byte: u8) {
    // SAFETY: a live view of a held slot; nobody else looks at it.
    unsafe { view.as_ptr().write_bytes(byte, view.len()) };
}

fn is_full_of(view: &Export, byte: u8) -> bool {
    // SAFETY: as above.
    unsafe { slice::from_raw_parts(view.as_ptr(), view.len()) }.iter().all(|b| *b == byte)
}

fn out_of_memory<T>(result: Result<T>, numbers: &[&str]) {
    let Err(Error::OutOfMemory(text)) = result else { panic!("OutOfMemory expected") };
    assert!(numbers.iter().all(|number| text.contains(number)), "{text}");
}

fn limit(resource: libc::__rlimit_resource_t, bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: `limit` outlives the call.
    assert_eq!(unsafe { libc::setrlimit(resource, &limit) }, 0);
}

#[test]
fn a_slot_grows_and_its_views_stay_in_place() {
    let pool = Pool::create(&Options::new(1)).unwrap();
    let slot = pool.try_acquire().unwrap();
    let sizes = [("a", 1 << 10), ("b", MIB), ("c", 40 * MIB), ("d", 1 << 10)];
    let mut views = Vec::new();
    for (n, (name, len)) in sizes.into_iter().enumerate() {
        add(&slot, name, len).unwrap();
        views.push(view(&slot, name));
        fill(&views[n], n as u8 + 1);
    }
    let places: Vec<_> = views.iter().map(Export::as_ptr).collect();
    assert!(views.iter().zip(1..).all(|(view, byte)| is_full_of(view, byte)));
    assert!(sizes.iter().zip(&places).all(|((name, _), place)| view(&slot, name).as_ptr() == *place));
    assert!(places.iter().all(|place| place.addr() % 64 == 0));
    let grown = pool.status().committed;
    assert!((41 * MIB..60 * MIB).contains(&grown), "{grown} bytes");
    drop(views);
    slot.publish().unwrap();

    let mut reader = Peer::start("reads_grown", &words(&pool));
    assert_eq!(reader.hear(), "1024:1 1048576:2 41943040:3 1024:4");
    eventually("the slot is free", || pool.waiting("fill").unwrap() == 1);
    let slot = pool.try_acquire().unwrap();
    add(&slot, "a", 1 << 10).unwrap();
    assert_eq!(view(&slot, "a").as_ptr(), places[0], "a slot keeps what it grew to");
    add(&slot, "c", 40 * MIB).unwrap();
    assert_eq!(pool.status().committed, grown);
}

/// Says the size of each array and the byte that it is full of.
fn reads_grown(given: &str) {
    let slot = pool(given).take_timeout(PATIENCE).unwrap();
    let of = |field: &Field| {
        let array = slot.slice::<u8>(&field.name).unwrap();
        assert!(array.iter().all(|byte| *byte == array[0]));
        format!("{}:{}", array.len(), array[0])
    };
    say(slot.fields().unwrap().iter().map(of).collect::<Vec<_>>().join(" "));
}

#[test]
fn what_is_beyond_memory_limit_is_an_error_with_numbers() {
    let pool = Pool::create(&Options { memory_limit: Some(8 * MIB), ..Options::new(2) }).unwrap();
    let slot = pool.try_acquire().unwrap();
    add(&slot, "a", 6 * MIB).unwrap();
    out_of_memory(add(&slot, "b", 6 * MIB), &["6291456 bytes", "memory_limit=8388608", "\"b\""]);
    assert!(add(&slot, "b", MIB).is_ok(), "what fits goes on fitting");
    slot.publish().unwrap();
    out_of_memory(add(&pool.try_acquire().unwrap(), "a", 2 * MIB), &["2097152 bytes"]);
    let status = pool.status();
    assert!(status.committed <= 8 * MIB, "{status:?}");
    assert_eq!(pool.waiting("fill").unwrap(), 1, "the slot is free");
    assert_eq!(pool.try_take().unwrap().fields().unwrap().len(), 2);
}

#[test]
fn a_packed_slot_beyond_memory_limit_stays_free() {
    let field = || Field::new("x", "<f4", 4, &[MIB / 4]).unwrap();
    let options =
        |slots| Options { memory_limit: Some(3 * MIB), ..Options::new(slots).fields(vec![field()]) };
    out_of_memory(Pool::create(&options(4)), &["4194304 bytes", "3145728"]);
    let pool = Pool::create(&Options { max_slots: 5, ..options(2) }).unwrap();
    let held: Vec<_> = (0..3).map(|_| pool.try_acquire().unwrap()).collect();
    out_of_memory(pool.try_acquire(), &["1048576 bytes", "3145728 of memory_limit=3145728"]);
    let free = pool.status().slots.into_iter().filter(|slot| slot.pid.is_none()).count();
    assert_eq!((free, pool.status().committed), (1, 3 * MIB));
    drop(held);
    assert!(pool.try_acquire().is_ok());
}

#[test]
fn absurd_sizes_are_errors_and_the_slot_stays_usable() {
    let pool = Pool::create(&Options::new(1)).unwrap();
    let slot = pool.try_acquire().unwrap();
    for len in [1 << 45, 1 << 62, i64::MAX as u64] {
        out_of_memory(add(&slot, "x", len), &[&len.to_string(), "available"]);
        out_of_memory(slot.reserve(len, &mut || true), &[&len.to_string()]);
    }
    assert!(matches!(Field::new("x", "|u1", 1, &[u64::MAX, 2]), Err(Error::Invalid(_))));
    add(&slot, "x", 100).unwrap();
    slot.publish().unwrap();
    assert_eq!(pool.try_take().unwrap().slice::<u8>("x").unwrap().len(), 100);
    assert!(pool.status().committed < MIB);
    let huge = Field::new("x", "|u1", 1, &[1 << 45]).unwrap();
    out_of_memory(Pool::create(&Options::new(1).fields(vec![huge])), &["35184372088832 bytes"]);
}

#[test]
fn a_pool_fits_into_little_address_space() {
    Peer::start("has_little_address_space", "").finish();
}

fn has_little_address_space(_: &str) {
    limit(libc::RLIMIT_AS, 600 * MIB);
    let pool = Pool::create(&Options::new(1)).unwrap();
    let slot = pool.acquire_timeout(PATIENCE).unwrap();
    add(&slot, "a", 20 * MIB).unwrap();
    fill(&view(&slot, "a"), 1);
    out_of_memory(add(&slot, "b", 1 << 30), &["1073741824 bytes"]);
    slot.publish().unwrap();
    assert!(pool.try_take().unwrap().slice::<u8>("a").unwrap().iter().all(|byte| *byte == 1));
}

#[test]
fn a_pool_that_cant_be_mapped_is_an_error_that_names_the_limit() {
    let pool = Pool::create(&Options::new(1)).unwrap();
    Peer::start("attaches_with_little_address_space", &words(&pool)).finish();
    assert_eq!(pool.status().members.len(), 1);
}

fn attaches_with_little_address_space(given: &str) {
    limit(libc::RLIMIT_AS, 600 * MIB);
    let handle = ropeway::Handle::from_bytes(&peer::unhex(given)).unwrap();
    out_of_memory(Pool::attach(&handle), &["RLIMIT_AS is 629145600"]);
}

#[test]
fn a_pool_is_made_within_the_limit_for_files() {
    Peer::start("has_short_files", "").finish();
}

fn has_short_files(_: &str) {
    limit(libc::RLIMIT_FSIZE, 128 * MIB);
    let pool = Pool::create(&Options::new(1)).unwrap();
    let slot = pool.acquire_timeout(PATIENCE).unwrap();
    add(&slot, "a", 20 * MIB).unwrap();
    out_of_memory(add(&slot, "b", 200 * MIB), &["209715200 bytes", "134217728"]);
    drop(slot);
    put(&Pool::create(&numbers(1)).unwrap(), 1).unwrap();
    limit(libc::RLIMIT_FSIZE, MIB);
    let refused = Pool::create(&Options::new(1)).map(drop).unwrap_err();
    assert!(refused.to_string().contains("can't make"), "an error and no signal: {refused}");
}

#[test]
fn a_core_dump_fills_nothing() {
    let folder = std::env::temp_dir().join(format!("ropeway-core-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let pool = Pool::create(&Options::new(64).fields(vec![bytes("x", MIB)])).unwrap();
    let data = segments(&pool).1;
    let before = data.allocated().unwrap();
    let mut peer = Peer::start("aborts", &format!("{} {}", words(&pool), folder.display()));
    assert_eq!(peer.hear(), "held");
    peer.tell("abort");
    let status = peer.status();
    let grown = data.allocated().unwrap() - before;
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(status.signal(), Some(libc::SIGABRT));
    assert!(grown <= 2 * MIB, "the dump has filled {grown} bytes");
    if !status.core_dumped() {
        eprintln!("this system dumps no core, so the test has shown nothing");
    }
    pool.try_acquire().unwrap();
}

/// Dies by a signal that dumps core, with one slot of many in use.
fn aborts(given: &str) {
    let (given, folder) = given.split_once(' ').unwrap();
    std::env::set_current_dir(folder).unwrap();
    limit(libc::RLIMIT_CORE, libc::RLIM_INFINITY);
    let pool = pool(given);
    let mut slot = pool.acquire_timeout(PATIENCE).unwrap();
    slot.slice_mut::<u8>("x").unwrap().fill(1);
    say("held");
    listen();
    abort();
}

#[test]
fn a_fast_timer_doesnt_stop_a_slot_from_growing() {
    Peer::start("grows_under_a_fast_timer", "").finish();
}

/// Commits memory while a signal comes more often than a step takes.
fn grows_under_a_fast_timer(_: &str) {
    extern "C" fn ignore(_: i32) {}
    let often = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let often = libc::itimerspec { it_interval: often, it_value: often };
    // SAFETY: all zeros is a valid `sigevent`; the handler does nothing; all outlives the calls.
    unsafe {
        libc::signal(libc::SIGUSR1, ignore as *const () as libc::sighandler_t);
        let mut event: libc::sigevent = std::mem::zeroed();
        let mut timer: libc::timer_t = std::ptr::null_mut();
        (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_SIGNAL, libc::SIGUSR1);
        assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
        assert_eq!(libc::timer_settime(timer, 0, &often, std::ptr::null_mut()), 0);
    }
    let pool = Pool::create(&Options::new(1)).unwrap();
    let slot = pool.acquire_timeout(PATIENCE).unwrap();
    add(&slot, "a", 128 * MIB).unwrap();
    assert!(pool.status().committed >= 128 * MIB);
}

#[test]
fn growing_can_be_interrupted_and_the_slot_stays_free() {
    let pool = Pool::create(&Options::new(1)).unwrap();
    let slot = pool.try_acquire().unwrap();
    assert!(matches!(slot.add(bytes("a", 129 * MIB), &mut || false), Err(Error::Interrupted(_))));
    drop(slot);
    let status = pool.status();
    assert!((1..=64 * MIB).contains(&status.committed), "one step: {}", status.committed);
    let slot = pool.acquire_timeout(MOMENT).unwrap();
    add(&slot, "a", 10 * MIB).unwrap();
    assert_eq!(pool.status().committed, status.committed, "what was committed is used");
}

#[test]
fn members_of_a_pool_see_each_others_growth() {
    let pool = Pool::create(&Options { max_slots: 8, ..numbers(1) }).unwrap();
    for n in 0..8 {
        put(&pool, n).unwrap();
    }
    assert_eq!(pool.status().slots.len(), 8);
    assert_eq!((0..8).map(|_| get(&pool).unwrap()).sum::<u64>(), 28);
}

#[test]
fn many_who_grow_at_once_stay_within_memory_limit() {
    for _ in 0..5 {
        let pool = Pool::create(&Options { memory_limit: Some(40 * MIB), ..Options::new(64) }).unwrap();
        let mut peers = [(); 3].map(|()| Peer::start("grows_in_a_race", &words(&pool)));
        peers.iter_mut().for_each(|peer| assert_eq!(peer.hear(), "ready"));
        peers.iter_mut().for_each(|peer| peer.tell("go"));
        let grown: u64 = peers.iter_mut().map(|peer| peer.hear_number::<u64>()).sum();
        let status = pool.status();
        assert!(status.committed <= 40 * MIB, "{} bytes", status.committed);
        assert!(grown > 0 && status.committed >= 30 * MIB, "what fits is given out: {}", status.committed);
        assert!(segments(&pool).1.allocated().unwrap() <= 41 * MIB);
        peers.into_iter().for_each(Peer::finish);
    }
}

#[test]
fn what_others_are_about_to_take_isnt_promised_twice() {
    /// Where the first peer says in the control segment what it is about to take.
    const ANNOUNCED: usize = (1 << 18) + 64 + 24;
    let pool = Pool::create(&Options::new(1)).unwrap();
    let mut peer = Peer::start("stays", &words(&pool));
    assert_eq!(peer.hear(), "here");
    Scribbler::over(&segments(&pool).0).write_number(ANNOUNCED, 1 << 50);
    let slot = pool.acquire_timeout(PATIENCE).unwrap();
    let told = "1125899906842624 announced by other processes";
    out_of_memory(add(&slot, "a", 200 * MIB), &["209715200 bytes asked, 0 available", told]);
    peer.kill();
    add(&slot, "a", MIB).expect("the dead take nothing");
}

fn stays(given: &str) {
    let _pool = pool(given);
    say("here");
    listen();
}

/// Takes slots of 3 MiB in two threads until there is no more memory, and says how many it got.
fn grows_in_a_race(given: &str) {
    let pool = pool(given);
    say("ready");
    listen();
    let got = std::thread::scope(|scope| {
        [(); 2].map(|()| scope.spawn(|| grow_to_the_limit(&pool))).map(|thread| thread.join().unwrap())
    });
    say(got.iter().sum::<u64>());
    listen();
}

fn grow_to_the_limit(pool: &Pool) -> u64 {
    let mut got = 0;
    loop {
        let slot = pool.acquire_timeout(PATIENCE).unwrap();
        match add(&slot, "a", 3 * MIB) {
            Ok(()) => got += 1,
            Err(Error::OutOfMemory(text)) => {
                assert!(text.contains("memory_limit=41943040"), "{text}");
                return got;
            }
            Err(other) => panic!("{other}"),
        }
        slot.publish().unwrap();
    }
}

#[test]
fn trimming_takes_free_slots_out_and_gives_their_memory_back() {
    let pool = Pool::create(&Options { max_slots: 8, ..Options::new(2) }).unwrap();
    let slots: Vec<_> = (0..6).map(|_| pool.try_acquire().unwrap()).collect();
    slots.iter().for_each(|slot| add(slot, "x", MIB).unwrap());
    let held = slots.into_iter().find(|slot| slot.index() == 4).unwrap(); // the others are given back
    let data = segments(&pool).1;
    assert!(data.allocated().unwrap() >= 6 * MIB);
    assert_eq!(pool.trim(3).unwrap(), 2, "slots 3 and 5");
    assert_eq!(pool.trim(0).unwrap(), 1, "slot 2: those of the beginning stay");
    assert!(data.allocated().unwrap() < 4 * MIB);
    fill(&view(&held, "x"), 7);
    assert!(is_full_of(&view(&held, "x"), 7));
    drop(held);
    let again: Vec<_> = (0..8).map(|_| pool.try_acquire().unwrap()).collect();
    again.iter().for_each(|slot| add(slot, "x", MIB).unwrap());
    assert!(pool.try_acquire().is_err());
}

#[test]
fn a_large_slot_that_is_filled_again_lies_in_huge_pages() {
    let pool = Pool::create(&Options::new(1)).unwrap();
    for round in 0..3 {
        let slot = pool.try_acquire().unwrap();
        add(&slot, "x", 8 * MIB).unwrap();
        let x = view(&slot, "x");
        assert!(round == 0 || is_full_of(&x, round), "what was there stays");
        fill(&x, round + 1);
        let huge = in_huge_pages(x.as_ptr() as usize);
        assert!(round > 0 || huge == 0);
        if round > 0 && huge == 0 {
            eprintln!("this system has given no huge pages, so the test has shown nothing");
        }
        drop(x);
        slot.publish().unwrap();
        pool.try_take().unwrap().release().unwrap();
    }
}

/// KiB of huge pages in the mapping that an address lies in.
fn in_huge_pages(address: usize) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in maps.lines() {
        if let Some((range, _)) = line.split_once(' ').filter(|(range, _)| range.contains('-')) {
            let bound = |text| usize::from_str_radix(text, 16).unwrap_or(0);
            let (from, to) = range.split_once('-').unwrap();
            inside = (bound(from)..bound(to)).contains(&address);
        } else if let Some(rest) = line.strip_prefix("ShmemPmdMapped:").filter(|_| inside) {
            return rest.trim().trim_end_matches(" kB").parse().unwrap();
        }
    }
    0
}

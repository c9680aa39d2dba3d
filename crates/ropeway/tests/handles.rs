//! A handle opens the pool that it was made for, or says why it can't.

mod peer;

use peer::segment::{Scribbler, segments};
use peer::{PATIENCE, Peer, get, hex, listen, numbers, put, roles, say, unhex, words};
use ropeway::{Error, Handle, Options, Pool};

roles!(attaches, finds, keeps_open, creates, reuses_descriptors, swaps_descriptors, swaps_data);

/// What came of opening a pool.
fn outcome(opened: ropeway::Result<Pool>) -> String {
    match opened {
        Ok(pool) => format!("ok {}", pool.label()),
        Err(Error::Gone(text)) => format!("gone {text}"),
        Err(Error::Incompatible(text)) => format!("incompatible {text}"),
        Err(Error::Invalid(text)) => format!("invalid {text}"),
        Err(e) => panic!("{e:?}"),
    }
}

fn open(bytes: &[u8]) -> String {
    outcome(Handle::from_bytes(bytes).and_then(|handle| Pool::attach(&handle)))
}

/// Opens a handle, and says what came of it.
fn attaches(given: &str) {
    say(open(&unhex(given)));
}

fn elsewhere(handle: &[u8]) -> String {
    Peer::start("attaches", &hex(handle)).hear()
}

/// Finds the pool of that name, and says what came of it.
fn finds(given: &str) {
    say(outcome(Pool::find(given)));
}

/// Opens a pool and says its own handle, by which others come in when its maker is gone.
fn keeps_open(given: &str) {
    let pool = peer::pool(given);
    say(words(&pool));
    listen();
}

/// Makes a pool of that name, and says whether it could.
fn creates(given: &str) {
    let pool = Pool::create(&numbers(1).name(given));
    say(if pool.is_ok() { "made".into() } else { outcome(pool) });
    listen();
}

/// Opens and closes pools, so that one's descriptors become another's, in other roles too.
fn reuses_descriptors(_: &str) {
    let old = Pool::create(&numbers(1)).unwrap();
    let handle = old.handle().unwrap().to_bytes();
    drop(old);
    let said = open(&handle);
    assert!(said.starts_with("gone "), "nothing is there: {said}");
    let same_roles = Pool::create(&numbers(1)).unwrap();
    let said = open(&handle);
    assert!(said.starts_with("gone "), "another pool is there: {said}");
    drop(same_roles);
    // With the lowest number taken, the old control segment's is that of the new data segment.
    let _lowest = std::fs::File::open("/dev/null").unwrap();
    let _other_roles = Pool::create(&numbers(1)).unwrap();
    let said = open(&handle);
    assert!(said.starts_with("gone "), "another segment is there: {said}");
}

#[test]
fn a_handle_opens_the_pool_elsewhere_and_is_the_same_pool_here() {
    let pool = Pool::create(&numbers(1).stages(["fill", "augment", "use"])).unwrap();
    let bytes = pool.handle().unwrap().to_bytes();
    assert!(bytes.len() < 512);
    assert_eq!(elsewhere(&bytes), format!("ok {}", pool.label()));
    let again = Pool::attach(&Handle::from_bytes(&bytes).unwrap()).unwrap();
    assert_eq!((again.id(), again.stages(), again.fields()), (pool.id(), pool.stages(), pool.fields()));
    peer::sweep(&pool, 1);
    assert_eq!(pool.status().members.len(), 1, "one process is one member");
}

#[test]
fn a_changed_or_cut_handle_is_refused() {
    let pool = Pool::create(&numbers(1)).unwrap();
    let bytes = pool.handle().unwrap().to_bytes();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        assert!(open(&changed).starts_with("incompatible "), "byte {at}");
        assert!(open(&bytes[..at]).starts_with("incompatible "), "{at} bytes");
    }
    assert!(open(&[bytes, vec![0]].concat()).starts_with("incompatible "));
}

#[test]
fn a_handle_whose_pool_is_gone_says_so() {
    let mut creator = Peer::start("creates", "gone-with-its-maker");
    assert_eq!(creator.hear(), "made");
    let pool = Pool::find("gone-with-its-maker").unwrap();
    let handle = pool.handle().unwrap().to_bytes();
    drop(pool);
    creator.kill();
    let said = elsewhere(&handle);
    assert!(said.starts_with("gone ") && said.contains(&format!("process {}", creator.pid())), "{said}");
    assert!(Peer::start("finds", "gone-with-its-maker").hear().starts_with("gone "));
}

#[test]
fn a_descriptor_that_shows_another_pool_by_now_isnt_taken_for_the_old_one() {
    Peer::start("reuses_descriptors", "").finish();
}

#[test]
fn another_member_lets_newcomers_in_when_the_maker_is_gone() {
    let mut creator = Peer::start("creates", "outlives-its-maker");
    assert_eq!(creator.hear(), "made");
    let pool = Pool::find("outlives-its-maker").unwrap();
    let mut member = Peer::start("keeps_open", &words(&pool));
    let handle = member.hear();
    creator.kill();
    drop(pool);
    assert!(elsewhere(&unhex(&handle)).starts_with("ok "));
}

#[test]
fn a_pool_is_found_by_its_name_while_it_is_there() {
    let pool = Pool::create(&numbers(1).name("found-by-name")).unwrap();
    put(&pool, 4).unwrap();
    assert_eq!(Peer::start("finds", "found-by-name").hear(), "ok pool \"found-by-name\"");
    let same = Pool::find("found-by-name").unwrap();
    assert_eq!(get(&same).unwrap(), 4);
    let taken = Peer::start("creates", "found-by-name").hear();
    assert!(taken.starts_with("invalid ") && taken.contains(&std::process::id().to_string()), "{taken}");
    drop((pool, same));
    let gone = Peer::start("finds", "found-by-name").hear();
    assert!(gone.starts_with("gone ") && gone.contains("found-by-name"), "{gone}");
    assert_eq!(Peer::start("creates", "found-by-name").hear(), "made");
}

#[test]
fn another_version_is_refused() {
    let pool = Pool::create(&numbers(1)).unwrap();
    let handle = pool.handle().unwrap().to_bytes();
    let header = Scribbler::over(&segments(&pool).0);
    for (at, what) in [(0, "magic"), (8, "version"), (12, "bytes of configuration"), (32, "checksum")] {
        let before = header.read(at, 4);
        header.write(at, &0x5555_5555_u32.to_le_bytes());
        let said = elsewhere(&handle);
        assert!(said.starts_with("incompatible ") && said.contains(what), "{said}");
        assert!(said.contains("55555555 found") || what == "checksum", "{said}");
        header.write(at, &before);
    }
    assert!(elsewhere(&handle).starts_with("ok "));
}

#[test]
fn fields_that_dont_fit_into_the_data_segment_are_refused() {
    let pool = Pool::create(&numbers(1)).unwrap();
    let handle = pool.handle().unwrap().to_bytes();
    let header = Scribbler::over(&segments(&pool).0);
    let len = u32::from_le_bytes(header.read(12, 4).try_into().unwrap()) as usize;
    let mut config = header.read(4096, len);
    // The last number is the only axis of the only field: 8 elements of 8 bytes.
    assert_eq!(config[len - 8..], 8_u64.to_le_bytes());
    config[len - 8..].copy_from_slice(&(1_u64 << 30).to_le_bytes());
    let sum = config
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    header.write(4096, &config);
    header.write_number(32, sum);
    let said = elsewhere(&handle);
    assert!(said.starts_with("incompatible "), "{said}");
}

#[test]
fn nothing_has_a_name_in_the_file_system() {
    let pool = Pool::create(&Options::new(1)).unwrap();
    let slot = pool.acquire_timeout(PATIENCE).unwrap();
    slot.add(peer::bytes("x", 100_000), &mut || true).unwrap();
    let (control, data) = segments(&pool);
    for fd in [control.raw(), data.raw()] {
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
        assert!(link.to_string_lossy().starts_with("/memfd:ropeway-"), "{link:?}");
        // SAFETY: all zeros is a valid `stat`, which the call fills.
        let stat = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            assert_eq!(libc::fstat(fd, &mut stat), 0);
            stat
        };
        assert_eq!((stat.st_nlink, stat.st_mode & 0o777), (0, 0o600));
    }
    let shm = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    assert!(shm.into_iter().all(|entry| !entry.file_name().to_string_lossy().contains("ropeway")));
}

#[test]
fn descriptors_that_were_swapped_under_a_pool_reach_no_other() {
    Peer::start("swaps_descriptors", "").finish();
}

#[test]
fn a_newcomer_gets_the_data_of_a_pool_from_whoever_has_it() {
    let mut maker = Peer::start("swaps_data", "");
    let given = maker.hear();
    let pool = peer::pool(&given);
    maker.tell("swap");
    assert_eq!(maker.hear(), "swapped");
    put(&pool, 5).unwrap();
    assert!(elsewhere(&unhex(&given)).starts_with("ok "), "this process has it");
    assert_eq!(get(&pool).unwrap(), 5);
}

/// Makes a pool, and puts another memory file of ropeway under the number of its data.
fn swaps_data(_: &str) {
    let (ours, other) = (Pool::create(&numbers(1)).unwrap(), Pool::create(&numbers(1)).unwrap());
    let given = words(&ours);
    say(&given);
    listen();
    let number = u64::from_le_bytes(unhex(&given)[48..56].try_into().unwrap()) as i32;
    // SAFETY: the call touches no memory.
    assert!(unsafe { libc::dup2(segments(&other).1.raw(), number) } >= 0);
    say("swapped");
    listen();
}

/// Puts another pool's segments under the numbers of this one's, as `dup2` in a program may.
fn swaps_descriptors(_: &str) {
    let (ours, other) = (Pool::create(&Options::new(1)).unwrap(), Pool::create(&Options::new(1)).unwrap());
    put_bytes(&ours, 7);
    let handle = ours.handle().unwrap().to_bytes();
    let number = |at: usize| u64::from_le_bytes(handle[at..at + 8].try_into().unwrap()) as i32;
    let (control, data) = segments(&other);
    // SAFETY: the calls touch no memory; whose numbers they are is what this is about.
    unsafe {
        assert!(libc::dup2(control.raw(), number(40)) >= 0);
        assert!(libc::dup2(data.raw(), number(48)) >= 0);
    }
    let before = data.allocated().unwrap();
    let slot = ours.take_timeout(PATIENCE).unwrap();
    assert_eq!(slot.slice::<u8>("a").unwrap()[..], [7; 100], "what is mapped stays");
    slot.release().unwrap();
    let slot = ours.acquire_timeout(PATIENCE).unwrap();
    let refused = slot.add(peer::bytes("a", 10 << 20), &mut || true);
    assert!(matches!(refused, Err(Error::Gone(_))), "{refused:?}");
    assert_eq!(data.allocated().unwrap(), before, "the other pool got nothing");
    drop(slot);
    assert_eq!(ours.sweep().unwrap(), Default::default(), "nobody is taken for dead");
    assert_eq!(other.sweep().unwrap(), Default::default());
    assert!(elsewhere(&handle).starts_with("gone "), "nobody comes to the other pool by this one's handle");
    // A child can't map this pool's memory anew, and may read it but not write.
    peer::reap(peer::fork(|| assert!(ours.acquire_timeout(PATIENCE).is_err())));
    put_bytes(&other, 8);
    assert_eq!(other.take_timeout(PATIENCE).unwrap().slice::<u8>("a").unwrap()[0], 8);
}

fn put_bytes(pool: &Pool, byte: u8) {
    let mut slot = pool.acquire_timeout(PATIENCE).unwrap();
    slot.add(peer::bytes("a", 100), &mut || true).unwrap();
    slot.slice_mut::<u8>("a").unwrap().fill(byte);
    slot.publish().unwrap();
}

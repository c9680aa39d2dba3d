//! Whatever a broken member writes into shared memory, others get errors and stay in their slots.

mod peer;

use std::time::Duration;

use peer::segment::{Record, Scribbler, record, segments};
use peer::{PATIENCE, Peer, bytes, listen, numbers, pool, roles, say, words};
use ropeway::{Error, Options, Pool, Result, Wait};

roles!(reads, grows, survives_anything);

const LEN: u64 = 10_000;

/// Whenever told to, takes a slot, looks at all that is in it, and says what came of it.
fn reads(given: &str) {
    let pool = pool(given);
    while !listen().is_empty() {
        say(match look(&pool) {
            Ok(found) => found,
            Err(Error::Incompatible(text)) => format!("incompatible: {text}"),
            Err(e) => panic!("{e:?}"),
        });
    }
}

fn refused(said: &str, why: &str) {
    assert!(said.starts_with("incompatible") && said.contains(why), "{said:?}, not {why:?}");
}

/// Reads every byte of every array of the next slot, and gives the slot back.
fn look(pool: &Pool) -> Result<String> {
    let slot = pool.take_timeout(PATIENCE)?;
    let mut found = slot.meta()?;
    for field in slot.fields()?.iter() {
        let view = slot.export(&field.name)?.0;
        // SAFETY: a live view of a held slot. The bytes may be garbage.
        let bytes = unsafe { std::slice::from_raw_parts(view.as_ptr(), view.len()) };
        found.extend(bytes.iter().max());
    }
    Ok(format!("{found:?}"))
}

/// Publishes a slot with one array, full of 7s, and metadata.
fn send(pool: &Pool) -> usize {
    let mut slot = pool.acquire_timeout(PATIENCE).unwrap();
    slot.add(bytes("a", LEN), &mut || true).unwrap();
    slot.slice_mut::<u8>("a").unwrap().fill(7);
    slot.set_meta(b"m").unwrap();
    slot.publish().unwrap();
    slot.index()
}

/// Acquires a slot and puts an array into it.
fn grow(pool: &Pool) -> Result<()> {
    let mut slot = pool.acquire_timeout(PATIENCE)?;
    slot.add(bytes("a", LEN), &mut || true)?;
    slot.slice_mut::<u8>("a")?.fill(9);
    Ok(())
}

const SENT: &str = "[109, 7]";

#[test]
fn an_extent_that_isnt_ones_own_is_refused() {
    /// Offset and length of the extent, from those of another slot and the segment's end.
    type Case = fn(u64, u64, u64) -> (u64, u64);
    let cases: [Case; 7] = [
        |offset, len, _| (offset, len),
        |offset, len, _| (offset + len - 4096, 4 * len),
        |_, _, end| (0, end),
        |_, _, end| (end - 4096, 8192),
        |_, _, _| (u64::MAX - 4095, 8192),
        |_, _, end| (end / 2 + 8, 4096 * 4),
        |_, _, end| (end / 2, 4096 * 4 + 8),
    ];
    for case in cases {
        let pool = Pool::create(&Options::new(2)).unwrap();
        assert_eq!(send(&pool), 0);
        let (control, data) = segments(&pool);
        let (offset, len) = record(&control, 0).extent(0);
        let (offset, len) = case(offset, len, data.len().unwrap());
        record(&control, 1).set_extent(0, offset, len);
        let error = grow(&pool).unwrap_err();
        assert!(matches!(&error, Error::Incompatible(text) if text.contains("slot 1")), "{error:?}");
        assert_eq!(pool.waiting("fill").unwrap(), 1, "the slot is given back");
        assert_eq!(look(&pool).unwrap(), SENT);
    }
}

#[test]
fn an_extent_that_changes_is_refused() {
    let pool = Pool::create(&Options::new(1)).unwrap();
    send(&pool);
    look(&pool).unwrap();
    let record = record(&segments(&pool).0, 0);
    let (offset, len) = record.extent(0);
    record.set_extent(0, offset + (1 << 30), len);
    assert!(matches!(grow(&pool), Err(Error::Incompatible(_))));
    record.set_extent(0, offset, len);
    grow(&pool).unwrap();
}

#[test]
fn addresses_that_are_given_out_twice_arent_used() {
    const BUMP: usize = 192;
    let pool = Pool::create(&Options::new(2)).unwrap();
    let mut reader = Peer::start("reads", &words(&pool));
    send(&pool);
    let header = Scribbler::over(&segments(&pool).0);
    let bump = header.read_number(BUMP);
    assert_eq!(bump % 4096, 0, "the counter of free addresses");
    header.write_number(BUMP, 0);
    let mut other = Peer::start("grows", &words(&pool));
    refused(&other.hear(), "slots own what lies below");
    header.write_number(BUMP, bump);
    reader.tell("read");
    assert_eq!(reader.hear(), SENT);
    grow(&pool).unwrap();
    other.tell("end");
}

/// Says what came of an array in a slot that this process has never seen; it knows no other either.
fn grows(given: &str) {
    say(match grow(&pool(given)) {
        Ok(()) => "grown".into(),
        Err(e) => format!("incompatible: {e}"),
    });
    listen();
}

/// A pool, a reader of it, and what a broken member would write to.
struct Victim {
    pool: Pool,
    reader: Peer,
    record: Record,
    data: Scribbler,
}

impl Victim {
    fn new() -> Victim {
        let pool = Pool::create(&Options::new(1)).unwrap();
        let (control, data) = segments(&pool);
        let reader = Peer::start("reads", &words(&pool));
        Victim { pool, reader, record: record(&control, 0), data: Scribbler::over(&data) }
    }

    /// What the reader says of the next slot, after `spoil` was told where its description lies.
    fn after(&mut self, spoil: impl FnOnce(&Record, &Scribbler, usize)) -> String {
        send(&self.pool);
        spoil(&self.record, &self.data, self.record.blob() as usize - 1);
        self.reader.tell("read");
        self.reader.hear()
    }
}

#[test]
fn a_description_outside_of_its_slot_is_refused() {
    let mut victim = Victim::new();
    assert_eq!(victim.after(|_, _, _| ()), SENT);
    for at in [1 << 30, 1 << 60, u64::MAX] {
        refused(&victim.after(|record, _, _| record.set_blob(at)), "lies outside of it");
    }
    for len in [1 << 20, 1 << 40, u64::MAX - 8, u64::MAX] {
        refused(&victim.after(|_, data, at| data.write_number(at, len)), "reaches out of it");
    }
    assert_eq!(victim.after(|_, _, _| ()), SENT);
}

#[test]
fn a_description_longer_than_all_memory_is_refused() {
    let mut victim = Victim::new();
    let half = segments(&victim.pool).1.len().unwrap() / 2;
    let said = victim.after(|record, data, _| {
        record.set_extent(1, half, half);
        record.set_blob(half + 1);
        data.write_number(half as usize, half - 8);
    });
    refused(&said, "longer than all");
}

#[test]
fn an_array_outside_of_its_slot_is_refused() {
    let mut victim = Victim::new();
    // Behind three lengths and a count: name (8 + 1), dtype (8 + 3), itemsize, axes, axis, offset.
    let axis = 24 + 9 + 11 + 16;
    for (at, n) in [(axis, 1 << 20), (axis, 1 << 62), (axis, u64::MAX), (axis - 8, 2), (axis - 8, u64::MAX)] {
        refused(&victim.after(|_, data, blob| data.write_number(blob + at, n)), "");
    }
    for offset in [1 << 20, 1 << 60, 8, u64::MAX - 63] {
        let said = victim.after(|_, data, blob| data.write_number(blob + axis + 8, offset));
        refused(&said, "array \"a\" lies outside of it");
    }
    assert_eq!(victim.after(|_, _, _| ()), SENT);
}

#[test]
fn a_reader_survives_any_description() {
    let mut victim = Victim::new();
    for round in 0..400_usize {
        let said = victim.after(|_, data, blob| {
            let at = blob + round % 100;
            data.write(at, &[data.read(at, 1)[0] ^ [0x01, 0x10, 0x80, 0xff][round / 100]]);
        });
        assert!(said.starts_with("incompatible") || said.starts_with('['), "{said}");
    }
}

// ---- anything -------------------------------------------------------------------------------------

#[test]
fn a_member_survives_whatever_stands_in_the_control_segment() {
    Peer::start("survives_anything", "").finish();
}

/// Writes garbage into all shared words, and does with the pool whatever can be done.
fn survives_anything(_: &str) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..200 {
        let arena = Options { max_slots: 6, waiting_limit: Some(4), ..Options::new(3) };
        let pool = Pool::create(&if round % 2 == 0 { arena } else { numbers(3) }).unwrap();
        let words = Scribbler::over(&segments(&pool).0);
        for _ in 0..25 {
            for _ in 0..3 {
                words.write_number(random.place(), random.number());
            }
            words.write_number(PHASE, random.next() % 4 / 3);
            use_all_of(&pool, &mut random);
        }
    }
}

fn use_all_of(pool: &Pool, random: &mut Random) {
    if let Ok(slot) = pool.try_acquire() {
        let _ = slot.add(bytes("a", random.next() % LEN), &mut || true);
        let _ = slot.set_meta(b"meta");
        let _ = slot.publish();
    }
    let _ = pool.try_take().and_then(|slot| {
        let names = slot.fields()?.iter().map(|field| field.name.clone()).collect::<Vec<_>>();
        names.iter().try_for_each(|name| slot.export(name).map(drop)).and(slot.meta())
    });
    let _ = pool
        .take_mut_with("use", None, &mut Wait::new(Some(Duration::ZERO), &mut || true))
        .map(|slot| slot.release());
    let _ = (pool.status(), pool.sweep(), pool.is_full(), pool.waiting("use"), pool.handle());
}

const PHASE: usize = 64;
const MEMBERS: u64 = 1 << 18;
const SLOTS: u64 = MEMBERS + 4096 * 64;
const RECORDS: u64 = SLOTS + 65_536 * 64;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 32
    }

    /// A word of the header, or of what the first members and slots have.
    fn place(&mut self) -> usize {
        let n = self.next();
        let at = match self.next() % 4 {
            0 => PHASE as u64 + n % 200 * 8,
            1 => MEMBERS + n % 32 * 8,
            2 => SLOTS + n % 48 * 8,
            _ => RECORDS + n % 200 * 8,
        };
        at as usize
    }

    fn number(&mut self) -> u64 {
        match self.next() % 5 {
            0 => self.next() % 8,
            1 => u64::MAX - self.next() % 8,
            2 => 1 << (self.next() % 64),
            3 => self.next() % 64 * 4096,
            _ => self.next() << 32 | self.next(),
        }
    }
}

//! Through which pages a reader looks, and what keeps a slot where it is.

use std::time::Duration;

use ropeway::{Error, Export, Field, Kind, Options, Pages, Pool, ReadLease, Wait};

/// Two slots whose arrays share pages with each other, as none is a whole number of pages.
fn pool() -> Pool {
    let odd = Field::new("odd", "|u1", 1, &[64 * 97]).unwrap();
    let small = Field::new("small", "|u1", 1, &[64]).unwrap();
    Pool::create(&Options::new(2).fields(vec![odd, small])).unwrap()
}

fn publish(pool: &Pool, value: u8) {
    let mut slot = pool.acquire().unwrap();
    for name in ["odd", "small"] {
        slot.slice_mut::<u8>(name).unwrap().fill(value);
    }
    slot.publish().unwrap();
}

fn take(pool: &Pool, pages: Pages) -> ReadLease {
    let mut pulse = || true;
    let mut wait = Wait::new(Some(Duration::from_secs(10)), &mut pulse);
    pool.take_through(pages, None, &mut wait).unwrap()
}

fn bytes(export: &Export) -> Vec<u8> {
    // SAFETY: the export lives, and no other thread of this test writes.
    unsafe { std::slice::from_raw_parts(export.as_ptr(), export.len()) }.to_vec()
}

fn fill(export: &Export, value: u8) {
    assert!(export.is_writable());
    // SAFETY: the export lives and may be written; nothing else of this test looks at it now.
    unsafe { export.as_ptr().write_bytes(value, export.len()) };
}

#[test]
fn what_is_written_privately_reaches_nobody_and_is_gone_in_the_next_round() {
    let pool = pool();
    publish(&pool, 1);
    publish(&pool, 2);
    for _ in 0..3 {
        let (one, two) = (take(&pool, Pages::Private), take(&pool, Pages::Private));
        for (lease, value, written) in [(&one, 1, 77), (&two, 2, 88)] {
            for name in ["odd", "small"] {
                let (export, field) = lease.export(name).unwrap();
                assert_eq!(bytes(&export), vec![value; field.bytes() as usize]);
                fill(&export, written);
            }
        }
        for (lease, written) in [(&one, 77), (&two, 88)] {
            let (export, _) = lease.export("odd").unwrap();
            assert_eq!(
                bytes(&export),
                vec![written; 64 * 97],
                "an array is the same each time it is asked for"
            );
        }
        for (lease, value) in [(one, 1), (two, 2)] {
            let (index, generation) = (lease.index(), lease.generation());
            lease.release().unwrap();
            let mut slot = pool.acquire().unwrap();
            assert!((slot.index(), slot.generation()) > (index, generation) || slot.index() != index);
            for name in ["odd", "small"] {
                let mut slice = slot.slice_mut::<u8>(name).unwrap();
                assert!(
                    !slice.contains(&77) && !slice.contains(&88),
                    "the writer sees a reader's private bytes"
                );
                slice.fill(value);
            }
            slot.publish().unwrap();
        }
    }
}

#[test]
fn read_only_pages_show_the_same_memory() {
    let pool = pool();
    publish(&pool, 5);
    let lease = take(&pool, Pages::ReadOnly);
    let (export, _) = lease.export("odd").unwrap();
    assert!(!export.is_writable());
    assert_eq!(bytes(&export), vec![5; 64 * 97]);
    drop(export);
    lease.release().unwrap();
    publish(&pool, 6);
    let lease = take(&pool, Pages::ReadOnly);
    assert_eq!(bytes(&lease.export("small").unwrap().0), [6; 64]);
}

#[test]
fn a_refusal_names_kinds_and_numbers_and_status_lists_them() {
    let pool = pool();
    publish(&pool, 1);
    let lease = take(&pool, Pages::Shared);
    let (array, _) = lease.export("odd").unwrap();
    let capsules = [array.again(Kind::Capsule).unwrap(), array.again(Kind::Capsule).unwrap()];
    let pointer = array.again(Kind::Pointer).unwrap();
    drop(array);
    let Err(Error::InUse(text)) = lease.release() else { panic!("released with exports") };
    assert!(text.contains("2 DLPack capsules, 1 raw pointer"), "{text}");
    let status = pool.status();
    let exports = &status.slots[lease.index()].exports;
    assert_eq!(
        exports.iter().map(|e| (e.kind, e.count)).collect::<Vec<_>>(),
        [(Kind::Capsule, 2), (Kind::Pointer, 1)]
    );
    lease.end();
    let late = pointer.again(Kind::Arrow).unwrap();
    drop((pointer, capsules));
    assert!(pool.status().slots[lease.index()].pid.is_some(), "an export keeps the slot");
    drop(late);
    assert_eq!(pool.status().slots[lease.index()].pid, None);
    assert!(pool.status().slots[lease.index()].exports.is_empty());
}

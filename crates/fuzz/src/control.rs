//! Any words of the control segment, written while the pool is used.

use ropeway::Pool;

use crate::bytes::Bytes;
use crate::pools::{Segment, change, expected, observe, options, receive, record, segments, send};

const MEMBERS: usize = 1 << 18;
const SLOTS: usize = MEMBERS + 4096 * 64;

/// Reads the input as a program that writes words and uses the pool in turn, and runs it.
pub fn control(input: &[u8]) {
    let mut input = Bytes(input);
    let Ok(pool) = Pool::create(&options(input.byte() & 1 != 0, 2)) else { return };
    let words = Segment::over(&segments(&pool).0);
    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        let op = input.byte();
        let work = match op % 8 {
            0..4 => {
                let at = place(op % 4, input.short()).min(words.len() - 8);
                words.write_number(at, number(op >> 4, &mut input));
                continue;
            }
            4 => send(&pool, u64::from(input.short())),
            5 => change(&pool),
            6 => receive(&pool),
            _ => observe(&pool),
        };
        expected(work);
    }
}

/// A word of the header, of the members, of the slots' words or of their records.
fn place(area: u8, n: u16) -> usize {
    let n = usize::from(n);
    match area {
        0 => 64 + n % 504 * 8,
        1 => MEMBERS + n % 512 * 8,
        2 => SLOTS + n % 64 * 8,
        _ => record(0) + n % 256 * 8,
    }
}

/// A number such as are dangerous, or any.
fn number(kind: u8, input: &mut Bytes<'_>) -> u64 {
    match kind % 5 {
        0 => input.byte().into(),
        1 => u64::MAX - u64::from(input.byte()),
        2 => 1_u64.rotate_left(input.byte().into()),
        3 => u64::from(input.short()) << 12,
        _ => input.number(),
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let work = [4, 100, 0, 5, 6, 7];
    let mut seeds = vec![vec![0], vec![1]];
    for packed in 0..2 {
        seeds.push([&[packed], &work[..], &work[..]].concat());
        for area in 0..4 {
            for kind in 0..5 {
                let write = [area | kind << 4, 3, 0, 0x23, 1, 0, 0x40, 0, 0, 0, 0];
                seeds.push([&[packed], &work[..3], &write, &work[..], &write, &work[..]].concat());
            }
        }
    }
    seeds
}

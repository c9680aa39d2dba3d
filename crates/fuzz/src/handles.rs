//! Handles of pools and of arrays.

use ropeway::{Block, Handle};

use crate::bytes::{Bytes, checksum};

/// Reads the input as a handle of either kind, as it is and with its checksum repaired.
///
/// A handle that is accepted isn't opened, as it may name any process of this user; that it leads
/// to nothing but a checked segment is for the target `attach`.
pub fn handles(input: &[u8]) {
    let mut input = Bytes(input);
    let kind = input.byte();
    let mut bytes = input.0.to_vec();
    if kind & 1 != 0 {
        let body = bytes.len().saturating_sub(8);
        let sum = checksum(&bytes[..body]).to_le_bytes();
        bytes[body..].copy_from_slice(&sum[..input.0.len() - body]);
    }
    match Handle::from_bytes(&bytes) {
        Ok(handle) => assert_eq!(handle.to_bytes(), bytes, "a handle is written as it was read"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    // An array's handle has a pool's inside. With a checksum of its own that one is never right by
    // chance, so nothing is opened.
    if kind & 2 != 0 {
        let _ = Block::open(&bytes);
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let routes =
        |n: u64| (0..n).flat_map(|i| [i, i + 3, i + 4]).flat_map(u64::to_le_bytes).collect::<Vec<_>>();
    let pool = |n: u64| [&b"rwpool1\0"[..], &[9; 16], &n.to_le_bytes(), &routes(n), &[0; 8]].concat();
    let array =
        |inner: &[u8]| [&[7, 1, inner.len() as u64].map(u64::to_le_bytes).concat(), inner, &[0; 8]].concat();
    let mut seeds = Vec::new();
    for n in [0, 1, 2, 40] {
        seeds.push([&[1], &pool(n)[..]].concat());
        seeds.push([&[0], &pool(n)[..]].concat());
        seeds.push([&[3], &array(&pool(n))[..]].concat());
    }
    seeds
}

#![allow(unsafe_code)]
//! What keeps exported memory in place.

use std::sync::Arc;

use crate::export::Heap;

/// Keeps memory where it is, until it is dropped.
///
/// # Safety
///
/// The bytes that an export of it describes stay mapped and keep their address while it lives.
/// Dropping it works on any thread, needs no interpreter (there may be none any more), doesn't
/// wait for other threads' work, and doesn't panic.
pub unsafe trait Owner: Send + 'static {}

// SAFETY: its memory doesn't move, as it is never changed; dropping it frees memory.
unsafe impl Owner for Heap {}

// SAFETY: dropping an `Arc` drops at most what is in it.
unsafe impl<T: Owner + Sync> Owner for Arc<T> {}

//! Hands large contiguous arrays between processes without copying a byte.
//!
//! A [`Pool`] owns shared memory, divided into slots. A producer [acquires](Pool::acquire) a slot,
//! fills its arrays in place and [publishes](WriteLease::publish) it; a consumer [takes](Pool::take)
//! it, reads the same bytes and lets it go. The right to touch a slot is a *lease*, a value that
//! hands itself back; what a killed process held is taken back by whoever notices first.
//!
//! The layers, each knowing only those above it: `word` (the state of a slot and its moves),
//! `board`, `sweep`, `wait` and `marks` (the protocol, apart from the memory that it runs on, so that loom and
//! shuttle can run it), `layout` and `memory` (the mapped segments), `attachment` (a process's
//! membership), `hold`, `contents` and `lease`, `claim`, `pool`.
#![deny(unsafe_code)]

pub mod board;
pub mod marks;
pub mod sweep;
pub mod sync;
pub mod wait;
pub mod word;

#[cfg(not(any(loom, shuttle)))]
mod arena;
#[cfg(not(any(loom, shuttle)))]
mod attachment;
#[cfg(not(any(loom, shuttle)))]
mod bequest;
#[cfg(not(any(loom, shuttle)))]
mod block;
#[cfg(not(any(loom, shuttle)))]
mod claim;
#[cfg(not(any(loom, shuttle)))]
mod commitment;
#[cfg(not(any(loom, shuttle)))]
mod config;
#[cfg(not(any(loom, shuttle)))]
mod contents;
#[cfg(not(any(loom, shuttle)))]
mod error;
#[cfg(not(any(loom, shuttle)))]
mod export;
#[cfg(not(any(loom, shuttle)))]
mod exports;
#[cfg(not(any(loom, shuttle)))]
mod extents;
#[cfg(not(any(loom, shuttle)))]
mod field;
#[cfg(not(any(loom, shuttle)))]
mod growth;
#[cfg(not(any(loom, shuttle)))]
mod guard;
#[cfg(not(any(loom, shuttle)))]
mod handle;
#[cfg(not(any(loom, shuttle)))]
mod hold;
#[cfg(not(any(loom, shuttle)))]
mod layout;
#[cfg(not(any(loom, shuttle)))]
mod lease;
#[cfg(not(any(loom, shuttle)))]
mod member;
#[cfg(not(any(loom, shuttle)))]
mod memory;
#[cfg(not(any(loom, shuttle)))]
mod pool;
#[cfg(not(any(loom, shuttle)))]
mod process;
#[cfg(not(any(loom, shuttle)))]
mod ring;
#[cfg(not(any(loom, shuttle)))]
mod session;
#[cfg(not(any(loom, shuttle)))]
mod status;
#[cfg(not(any(loom, shuttle)))]
mod view;
#[cfg(not(any(loom, shuttle)))]
mod wire;

pub use board::Phase;
#[cfg(not(any(loom, shuttle)))]
pub use {
    arena::ArenaStatus,
    block::Block,
    claim::Wait,
    config::{MAX_SLOTS, Options},
    error::{Error, Result},
    export::Export,
    exports::{ExportStatus, Kind},
    field::{ALIGNMENT, Element, Field},
    handle::Handle,
    lease::{ReadLease, WriteLease},
    memory::Pages,
    pool::Pool,
    process::leave_all,
    ring::Ring,
    session::{arena_status, join_session},
    status::{LostSlot, MemberStatus, PoolStatus, SlotStatus, observe},
    view::{View, ViewMut},
    word::State,
};

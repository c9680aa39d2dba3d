//! How the memory of an array is handed to another framework of the same process, and taken from one.
//!
//! Nothing here knows an interpreter or a pool: memory comes with an [`Owner`] that keeps it in
//! place, and what is given out drops that owner when the other side is done, on whatever thread.
//!
//! - [`abi`]: the structures of DLPack 1.3 and of the Arrow C data interface
//! - [`dtype`]: element types, by DLPack's codes and by our texts
//! - [`export`](mod@export): tensors that are given out
//! - [`import`]: tensors of others, checked before anything of theirs is used
//! - [`arrow`]: arrays by the Arrow C data interface, both ways

#![deny(unsafe_code)]

pub mod abi;
pub mod arrow;
pub mod dtype;
pub mod export;
pub mod import;
mod layout;
mod owner;

pub use export::Tensor;
pub use import::Foreign;
pub use layout::{Axes, Layout, MAX_NDIM};
pub use owner::Owner;

/// Why an array can't be handed over, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// What most functions here return.
pub type Result<T> = std::result::Result<T, Refusal>;

fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(Refusal(why.into()))
}

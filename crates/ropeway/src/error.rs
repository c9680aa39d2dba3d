//! What can go wrong, in sentences that name the object, the expected and the found value.

use std::io;

/// The result of a pool operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation of a pool failed. The pool goes on working and no slot is used up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The time was up before there was anything to claim.
    #[error("{0}")]
    Timeout(String),
    /// The caller's pulse ended the wait (a signal came).
    #[error("{0} was interrupted")]
    Interrupted(String),
    /// The pool was closed or aborted, and nothing is left to wait for.
    #[error("{0}")]
    Closed(String),
    /// The process at the other end has died, and nothing is left to wait for.
    #[error("{0}")]
    PeerDied(String),
    /// Views of a slot live, or the waiting thread itself holds what it waits for.
    #[error("{0}")]
    InUse(String),
    /// Memory isn't there.
    #[error("{0}")]
    OutOfMemory(String),
    /// What was found isn't a pool of this version, or not the pool that was meant.
    #[error("{0}")]
    Incompatible(String),
    /// The thing that a handle or name points to doesn't exist any more.
    #[error("{0}")]
    Gone(String),
    /// An argument that can't be.
    #[error("{0}")]
    Invalid(String),
    /// A field or stage that the pool doesn't have.
    #[error("{0}")]
    NoSuch(String),
    /// The system refused a call.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    /// Wraps an error of the system with what was being done.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::System { what, source }
    }
}

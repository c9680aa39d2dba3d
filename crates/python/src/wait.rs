#![allow(unsafe_code)]
//! The one way in which this module blocks: detached from the interpreter, in slices of at most
//! 50 ms, with a look at signals between them.

use std::time::Duration;

use pyo3::prelude::*;
use ropeway::{Result, Wait};

use crate::errors::translate;

/// Runs something that may have to wait; only then is it detached.
pub fn waiting<T>(
    py: Python<'_>,
    timeout: Option<Duration>,
    work: impl FnOnce(&mut Wait<'_>) -> Result<T>,
) -> PyResult<T> {
    let mut signal = None;
    let mut pulse = || match Python::attach(|py| py.check_signals()) {
        Ok(()) => true,
        Err(e) => {
            signal = Some(e);
            false
        }
    };
    let around = |work: &mut dyn FnMut()| {
        let work = ByThisThread(work);
        py.detach(|| work.run());
    };
    let result = work(&mut Wait { timeout, pulse: &mut pulse, alone: &is_alone, around: &around });
    match signal {
        Some(signal) => Err(signal),
        None => result.map_err(translate),
    }
}

/// Runs something that may take long, detached; it is handed what it is to call meanwhile.
pub fn blocking<T>(py: Python<'_>, work: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<T>) -> PyResult<T> {
    waiting(py, None, |wait| wait.run(work))
}

/// What `detach` runs, which it does in the thread that calls it.
struct ByThisThread<'a>(&'a mut dyn FnMut());

// SAFETY: `detach` asks for `Send` to keep objects of Python out. What the core waits with has none:
// the pulse attaches again before it touches the interpreter.
unsafe impl Send for ByThisThread<'_> {}

impl ByThisThread<'_> {
    fn run(self) {
        (self.0)();
    }
}

/// Whether no other thread of Python's can end a lease; those that NumPy's libraries start never do.
fn is_alone() -> bool {
    let count = |py: Python<'_>| py.import("threading")?.call_method0("active_count")?.extract::<usize>();
    Python::attach(|py| count(py).is_ok_and(|count| count == 1))
}

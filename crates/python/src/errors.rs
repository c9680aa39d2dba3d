//! Errors of the core as the exceptions of `ropeway._errors`; the only place that maps them.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;
use ropeway::Error;

static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// An exception of that class with that text.
pub fn raise(class: &str, text: String) -> PyErr {
    Python::attach(|py| {
        let module = MODULE.get_or_try_init(py, || Ok::<_, PyErr>(py.import("ropeway._errors")?.unbind()));
        match module.and_then(|module| module.bind(py).getattr(class)) {
            Ok(class) => class.call1((text,)).map_or_else(|e| e, PyErr::from_value),
            Err(e) => e,
        }
    })
}

/// The exception for an error of the core.
pub fn translate(error: Error) -> PyErr {
    let class = match &error {
        Error::Timeout(_) => "Timeout",
        Error::Closed(_) => "Closed",
        Error::PeerDied(_) => "PeerDied",
        Error::InUse(_) => "InUse",
        Error::OutOfMemory(_) => "OutOfMemory",
        Error::Incompatible(_) => "Incompatible",
        Error::Gone(_) => "Gone",
        Error::Invalid(_) => "Invalid",
        Error::NoSuch(_) => "NoSuch",
        _ => "RopewayError",
    };
    raise(class, error.to_string())
}

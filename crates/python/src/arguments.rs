//! Arguments as Python gives them; what they can't be is said in a sentence with the value found.

use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString};

/// How long to wait; anything up to zero doesn't wait.
pub struct Timeout(pub Duration);

impl<'py> FromPyObject<'_, 'py> for Timeout {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Timeout> {
        match object.extract::<f64>() {
            Ok(s) if s.is_nan() => {
                Err(PyValueError::new_err("timeout must be a number of seconds, found nan"))
            }
            Ok(s) => Ok(Timeout(Duration::try_from_secs_f64(s.max(0.0)).unwrap_or(Duration::MAX))),
            Err(_) => Err(PyTypeError::new_err(format!(
                "timeout must be a number of seconds or None, found {}",
                found(object)
            ))),
        }
    }
}

/// The name of an array of a slot.
#[derive(Clone, Copy)]
pub struct ArrayName<'a>(pub &'a str);

impl<'a, 'py> FromPyObject<'a, 'py> for ArrayName<'a> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<ArrayName<'a>> {
        text("the name of an array", object).map(ArrayName)
    }
}

/// The name of a stage.
pub struct StageName<'a>(pub &'a str);

impl<'a, 'py> FromPyObject<'a, 'py> for StageName<'a> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<StageName<'a>> {
        text("the name of a stage", object).map(StageName)
    }
}

/// A number of things, or the number of one. Python adds to the error which argument it is.
pub struct Whole(pub u64);

impl<'py> FromPyObject<'_, 'py> for Whole {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Whole> {
        object.extract::<u64>().map(Whole).map_err(|_| {
            let sentence = format!("an int from 0 to 2**64 - 1 expected, found {}", found(object));
            if object.is_instance_of::<PyInt>() {
                PyValueError::new_err(sentence)
            } else {
                PyTypeError::new_err(sentence)
            }
        })
    }
}

fn text<'a>(what: &str, object: Borrowed<'a, '_, PyAny>) -> PyResult<&'a str> {
    object.extract::<&'a str>().map_err(|_| {
        if object.is_instance_of::<PyString>() {
            PyValueError::new_err(format!(
                "{what} must be text that UTF-8 can write, found {}",
                found(object)
            ))
        } else {
            PyTypeError::new_err(format!("{what} must be a str, found {}", found(object)))
        }
    })
}

/// What was found, as Python shows it, or its type if it can't.
fn found(object: Borrowed<'_, '_, PyAny>) -> String {
    let shown = object.call_method0("__repr__").and_then(|repr| repr.str()?.extract::<String>());
    shown.unwrap_or_else(|_| object.get_type().to_string())
}

#![allow(unsafe_code)]
//! Arrays of other frameworks, checked, as buffers to read.

use std::ffi::c_int;
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use ropeway_exchange::{Foreign, dtype};

use crate::capsule;
use crate::export::fill_buffer;

/// An array of another framework: its bytes from the lowest to the highest, and where in them its
/// elements are.
#[pyclass(name = "Foreign", module = "ropeway._core", frozen)]
pub struct PyForeign {
    array: Foreign,
    rows: Option<String>,
}

#[pymethods]
impl PyForeign {
    /// The dtype text.
    #[getter]
    fn dtype(&self) -> &str {
        self.array.dtype
    }

    /// Elements along each axis.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.array.layout.shape)
    }

    /// Bytes from one element to the next along each axis.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let item = dtype::code(self.array.dtype).map_err(capsule::refused).map(dtype::itemsize)?;
        PyTuple::new(py, self.array.layout.strides.iter().map(|stride| stride * item as i64))
    }

    /// Bytes from the lowest to the first element.
    #[getter]
    fn offset(&self) -> usize {
        self.array.layout.before
    }

    /// What an Arrow schema says about the shape of each row, JSON.
    #[getter]
    fn rows(&self) -> Option<&str> {
        self.rows.as_deref()
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let array = &slf.get().array;
        let start = if array.layout.is_empty() { ptr::dangling_mut() } else { array.start() };
        // SAFETY: the interpreter passes a `view` to fill; `slf` keeps the other's memory in place.
        unsafe { fill_buffer(slf.as_any(), view, flags, start, array.layout.span, false) }
    }
}

/// Takes a DLPack capsule over.
#[pyfunction]
pub fn import_dlpack(capsule: &Bound<'_, PyAny>) -> PyResult<PyForeign> {
    Ok(PyForeign { array: capsule::take(capsule)?, rows: None })
}

/// Takes a pair of Arrow capsules over.
#[pyfunction]
pub fn import_arrow(schema: &Bound<'_, PyAny>, array: &Bound<'_, PyAny>) -> PyResult<PyForeign> {
    let (array, rows) = capsule::take_arrow(schema, array)?;
    Ok(PyForeign { array, rows })
}

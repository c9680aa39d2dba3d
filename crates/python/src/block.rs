#![allow(unsafe_code)]
//! Memory of ad-hoc arrays.

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use ropeway::Block;

use crate::export::fill_buffer;
use crate::wait::blocking;

/// Memory of one array in an arena, as a writable buffer of bytes.
#[pyclass(name = "Block", module = "ropeway._core", frozen)]
pub struct PyBlock(pub Arc<Block>);

#[pymethods]
impl PyBlock {
    /// Bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.len()
    }

    /// Address of the first byte in this process.
    #[getter]
    fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }

    /// Whether the pages were never used, so that every byte is zero.
    #[getter]
    fn fresh(&self) -> bool {
        self.0.is_fresh()
    }

    /// Whether a handle was made.
    #[getter]
    fn pickled(&self) -> bool {
        self.0.is_pickled()
    }

    /// What to send to another process.
    #[getter]
    fn handle<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.handle())
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let block = &slf.get().0;
        // SAFETY: the interpreter passes a `view` to fill; `slf` keeps the memory mapped.
        unsafe { fill_buffer(slf.as_any(), view, flags, block.as_ptr(), block.len(), true) }
    }
}

/// Joins the session that the environment names, or founds one; its text for the environment.
#[pyfunction]
#[pyo3(signature = (inherited))]
pub fn session(py: Python<'_>, inherited: Option<String>) -> PyResult<String> {
    blocking(py, |_| ropeway::join_session(inherited.as_deref()))
}

/// Takes memory for an array.
#[pyfunction]
pub fn allocate(py: Python<'_>, nbytes: usize) -> PyResult<PyBlock> {
    blocking(py, |pulse| Block::allocate(nbytes, pulse)).map(|block| PyBlock(Arc::new(block)))
}

/// Opens a handle.
#[pyfunction]
pub fn open_block(py: Python<'_>, handle: &[u8]) -> PyResult<PyBlock> {
    blocking(py, |_| Block::open(handle)).map(|block| PyBlock(Arc::new(block)))
}

/// What this session's arena holds.
#[pyfunction]
pub fn arena_snapshot(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let status = blocking(py, |_| ropeway::arena_status())?;
    let dict = PyDict::new(py);
    dict.set_item("arrays", status.arrays)?;
    dict.set_item("bytes", status.bytes)?;
    dict.set_item("unclaimed", status.unclaimed)?;
    dict.set_item("unclaimed_bytes", status.unclaimed_bytes)?;
    dict.set_item("committed", status.committed)?;
    dict.set_item("members", status.members)?;
    Ok(dict)
}

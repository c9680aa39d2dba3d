#![allow(unsafe_code)]
//! Memory of a slot as a Python buffer.

use std::ffi::{c_int, c_void};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use ropeway::{Export, Ring};

/// What the bytes belong to.
pub enum Memory {
    Slot(Export),
    Ring(Ring),
}

/// The bytes of one array. While it or a buffer of it lives, the slot doesn't move on.
#[pyclass(name = "Export", module = "ropeway._core", frozen)]
pub struct PyExport(pub Memory);

impl PyExport {
    fn span(&self) -> (*mut u8, usize, bool) {
        match &self.0 {
            Memory::Slot(export) => (export.as_ptr(), export.len(), export.is_writable()),
            Memory::Ring(ring) => (ring.as_ptr(), ring.len(), true),
        }
    }
}

#[pymethods]
impl PyExport {
    /// Bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.span().1
    }

    /// Whether the bytes may only be read.
    #[getter]
    fn readonly(&self) -> bool {
        !self.span().2
    }

    /// Address of the first byte in this process.
    #[getter]
    fn address(&self) -> usize {
        self.span().0 as usize
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let (start, len, writable) = slf.get().span();
        // SAFETY: the interpreter passes a `view` to fill; `slf` keeps the memory mapped and held.
        unsafe { fill_buffer(slf.as_any(), view, flags, start, len, writable) }
    }
}

/// Describes memory that `owner` keeps to a consumer of the buffer protocol.
///
/// # Safety
/// `view` is the interpreter's to fill, and `owner` keeps `len` bytes at `start` in place.
pub unsafe fn fill_buffer(
    owner: &Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    start: *mut u8,
    len: usize,
    writable: bool,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("a buffer to fill expected, null found"));
    }
    // SAFETY: the caller answers for `view`, `owner` and the memory.
    let done = unsafe {
        ffi::PyBuffer_FillInfo(
            view,
            owner.as_ptr(),
            start.cast::<c_void>(),
            len as isize,
            c_int::from(!writable),
            flags,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(PyErr::fetch(owner.py())),
    }
}

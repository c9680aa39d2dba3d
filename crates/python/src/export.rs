#![allow(unsafe_code)]
//! Memory of a slot as a Python buffer.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use ropeway::{Export, Ring};

/// What the bytes belong to.
pub enum Memory {
    Slot(Export),
    Ring(Ring),
    /// Nothing: it belongs to an array that has died and waits for another slot (`spare.rs`).
    Nothing,
}

/// The bytes of one array. While it or a buffer of it lives, the slot doesn't move on.
#[pyclass(name = "Export", module = "ropeway._core", frozen)]
pub struct PyExport(UnsafeCell<Memory>);

// SAFETY: `Memory` is `Sync`, and it changes only in `put` and `end`, whose callers share it with nobody.
unsafe impl Sync for PyExport {}

impl PyExport {
    pub fn new(memory: Memory) -> PyExport {
        PyExport(UnsafeCell::new(memory))
    }

    pub fn memory(&self) -> &Memory {
        // SAFETY: see `Sync`.
        unsafe { &*self.0.get() }
    }

    /// Gives an empty one something again.
    ///
    /// # Safety
    /// The caller has the only reference to the object.
    pub unsafe fn put(&self, memory: Memory) {
        // SAFETY: nobody else looks at it.
        unsafe { *self.0.get() = memory };
    }

    /// Ends the export of a slot; false, and nothing changes, for other memory.
    ///
    /// # Safety
    /// The caller has the only reference to the object.
    pub unsafe fn end(&self) -> bool {
        let slot = matches!(self.memory(), Memory::Slot(_));
        if slot {
            // SAFETY: nobody else looks at it.
            unsafe { *self.0.get() = Memory::Nothing };
        }
        slot
    }

    fn span(&self) -> (*mut u8, usize, bool) {
        match self.memory() {
            Memory::Slot(export) => (export.as_ptr(), export.len(), export.is_writable()),
            Memory::Ring(ring) => (ring.as_ptr(), ring.len(), true),
            Memory::Nothing => (NonNull::dangling().as_ptr(), 0, false),
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

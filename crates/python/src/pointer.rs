//! Addresses, for those who take nothing else.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{Bound, intern};
use ropeway::Kind;

use crate::errors::raise;
use crate::exchange::Keeper;

/// The address of an array in ropeway's memory, and the promise that it stays what it is.
///
/// Made by `slot.pointer(name)`, or of any array that a slot, a ring or shared memory gave. Until it
/// is released (at the end of its `with` block, or when it is dropped) it counts as an export: the
/// slot doesn't move on. Whoever got the address must be done with it by then.
#[pyclass(name = "Pointer", module = "ropeway", frozen)]
pub struct PyPointer {
    keeper: Mutex<Option<Keeper>>,
    address: usize,
    nbytes: usize,
    readonly: bool,
    shape: Py<PyAny>,
    dtype: Py<PyAny>,
}

impl PyPointer {
    fn keeper(&self) -> MutexGuard<'_, Option<Keeper>> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyPointer {
    /// Points to the first element of an array in C order. Raises TypeError for what is no array,
    /// BufferError for gaps and other orders, and for memory that isn't ropeway's.
    #[new]
    pub fn new(array: &Bound<'_, PyAny>) -> PyResult<PyPointer> {
        let py = array.py();
        let ndarray = py.import(intern!(py, "numpy"))?.getattr(intern!(py, "ndarray"))?;
        if !array.is_instance(&ndarray)? {
            return Err(PyTypeError::new_err(format!(
                "an array in ropeway's memory expected, found {}",
                array.get_type().name()?
            )));
        }
        let interface = array.getattr(intern!(py, "__array_interface__"))?.cast_into::<PyDict>()?;
        let (address, readonly): (usize, bool) = interface.as_any().get_item("data")?.extract()?;
        if !interface.as_any().get_item("strides")?.is_none() {
            return Err(PyBufferError::new_err(
                "an address says nothing of strides, so the array must be in C order without gaps: point to \
                 the whole array, or to rows of it",
            ));
        }
        let keeper = Keeper::of(array, Kind::Pointer)?.ok_or_else(|| {
            PyBufferError::new_err(
                "this array isn't in ropeway's memory, so nothing would keep it in place: \
                 rw.share(x) copies it there",
            )
        })?;
        Ok(PyPointer {
            keeper: Mutex::new(Some(keeper)),
            address,
            readonly,
            nbytes: array.getattr(intern!(py, "nbytes"))?.extract()?,
            shape: array.getattr(intern!(py, "shape"))?.unbind(),
            dtype: array.getattr(intern!(py, "dtype"))?.unbind(),
        })
    }

    /// Address of the first byte in this process; `Invalid` once released.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        match self.released() {
            true => {
                Err(raise("Invalid", "this pointer was released: its memory may be another's by now".into()))
            }
            false => Ok(self.address),
        }
    }

    /// Bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// The NumPy dtype.
    #[getter]
    fn dtype(&self) -> &Py<PyAny> {
        &self.dtype
    }

    /// Elements along each axis.
    #[getter]
    fn shape(&self) -> &Py<PyAny> {
        &self.shape
    }

    /// Whether the bytes may only be read; an address alone can't keep anybody from writing.
    #[getter]
    fn readonly(&self) -> bool {
        self.readonly
    }

    /// True once the memory may be somebody else's.
    #[getter]
    fn released(&self) -> bool {
        self.keeper().is_none()
    }

    /// Lets go of the memory; does nothing the second time.
    fn release(&self) {
        let keeper = self.keeper().take();
        drop(keeper);
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().address()?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exc))]
    fn __exit__(&self, _exc: &Bound<'_, PyTuple>) {
        self.release();
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = if self.released() { "released".into() } else { format!("{:#x}", self.address) };
        format!("<ropeway.Pointer {state}, {} of {}>", self.shape.bind(py), self.dtype.bind(py))
    }
}

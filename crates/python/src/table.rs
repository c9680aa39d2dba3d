#![allow(unsafe_code)]
//! DLPack's table of C functions, by which other extensions exchange our arrays without Python calls.

use std::collections::TryReserveError;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use ropeway_exchange::abi::{
    DLManagedTensorVersioned, DLPackExchangeAPI, DLTensor, EXCHANGE_API, SetError, VERSION,
};
use ropeway_exchange::export::Heap;
use ropeway_exchange::import::{axes, check_device};
use ropeway_exchange::{Layout, Refusal, Tensor, dtype, export};

use crate::capsule::give;
use crate::exchange::{Keeper, exported};

/// Lives as long as the process, as consumers keep its address.
static TABLE: DLPackExchangeAPI = DLPackExchangeAPI {
    version: VERSION,
    previous: ptr::null_mut(),
    allocate: Some(allocate),
    from_object: Some(from_object),
    to_object: Some(to_object),
    // Strides in bytes are all that an array has, so there is nothing to lend.
    borrow: None,
    stream: Some(stream),
};

/// The capsule of the table.
#[pyfunction]
pub fn exchange_api(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let table = ptr::from_ref(&TABLE).cast_mut().cast::<c_void>();
    // SAFETY: table and name are static.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(table, EXCHANGE_API.as_ptr(), None)) }
}

/// What the functions answer: 0, or -1 with the exception set.
fn answer(py: Python<'_>, result: PyResult<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(e) => {
            e.restore(py);
            -1
        }
    }
}

unsafe extern "C" fn from_object(object: *mut c_void, out: *mut *mut DLManagedTensorVersioned) -> c_int {
    // SAFETY: the caller is attached to the interpreter, and passes an object and where to put the answer.
    unsafe {
        let py = Python::assume_attached();
        let object = Bound::from_borrowed_ptr(py, object.cast());
        answer(py, exported(&object).map(|managed| *out = managed.as_ptr()))
    }
}

unsafe extern "C" fn to_object(managed: *mut DLManagedTensorVersioned, out: *mut *mut c_void) -> c_int {
    static OVER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    // SAFETY: the caller is attached to the interpreter, and hands a tensor over.
    unsafe {
        let py = Python::assume_attached();
        let array = NonNull::new(managed)
            .ok_or_else(|| PyBufferError::new_err("a tensor expected, null found"))
            .and_then(|managed| give(py, managed))
            .and_then(|capsule| OVER.import(py, "ropeway._sources", "by_capsule")?.call1((capsule,)));
        answer(py, array.map(|array| *out = array.into_ptr().cast()))
    }
}

unsafe extern "C" fn stream(_kind: i32, _id: i32, out: *mut *mut c_void) -> c_int {
    // SAFETY: the caller passes where to put the answer: the CPU has no streams.
    unsafe { *out = ptr::null_mut() };
    0
}

unsafe extern "C" fn allocate(
    prototype: *mut DLTensor,
    out: *mut *mut DLManagedTensorVersioned,
    context: *mut c_void,
    set_error: Option<SetError>,
) -> c_int {
    // SAFETY: the caller passes a prototype with as many lengths as it says.
    let (kind, why) = match unsafe { like(&*prototype) } {
        Ok(Ok(managed)) => {
            // SAFETY: the caller passes where to put the answer.
            unsafe { *out = managed.as_ptr() };
            return 0;
        }
        Ok(Err(why)) => (c"MemoryError", why.to_string()),
        Err(Refusal(why)) => (c"BufferError", why),
    };
    if let Some(set_error) = set_error {
        let why = std::ffi::CString::new(why).unwrap_or_default();
        // SAFETY: the caller's function takes its context, a kind and a text.
        unsafe { set_error(context, kind.as_ptr(), why.as_ptr()) };
    }
    -1
}

/// A tensor over fresh memory, if there was any.
type Allocated = Result<NonNull<DLManagedTensorVersioned>, TryReserveError>;

/// Fresh memory of this process for an array like the prototype.
///
/// # Safety
/// The prototype's shape has `ndim` entries.
unsafe fn like(prototype: &DLTensor) -> Result<Allocated, Refusal> {
    check_device(prototype.device)?;
    let dtype = prototype.dtype;
    dtype::text(dtype)?;
    // SAFETY: the caller answers for the shape; there are no strides to look at.
    let (shape, _) = unsafe { axes(&DLTensor { strides: ptr::null_mut(), ..*prototype }) }?;
    let layout = Layout::new(&shape, None, dtype::itemsize(dtype))?;
    Ok(Heap::new(layout.span).map(|mut heap| {
        let tensor = Tensor { data: heap.data(), dtype, shape: &layout.shape, strides: &layout.strides };
        export::versioned(&tensor, 0, Keeper::Copy(heap))
    }))
}

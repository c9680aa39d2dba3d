#![allow(unsafe_code)]
//! Capsules: how Python carries what `ropeway-exchange` gives out and takes.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use ropeway_exchange::abi::{
    self, ArrowArray, ArrowSchema, DLManagedTensor, DLManagedTensorVersioned, UNVERSIONED, USED_UNVERSIONED,
    USED_VERSIONED, VERSIONED,
};
use ropeway_exchange::{Foreign, Refusal, arrow};

const ARROW_SCHEMA: &CStr = c"arrow_schema";
const ARROW_ARRAY: &CStr = c"arrow_array";

/// A refusal as the exception that the protocols want.
pub fn refused(Refusal(why): Refusal) -> PyErr {
    PyBufferError::new_err(why)
}

/// What a capsule of ours points to, and how to let go of it if nobody has taken it.
pub trait Content: Sized {
    const NAME: &'static CStr;
    /// # Safety
    /// The pointer comes from a capsule of that name, which nobody has consumed.
    unsafe fn let_go(content: *mut Self);
}

impl Content for DLManagedTensorVersioned {
    const NAME: &'static CStr = VERSIONED;
    unsafe fn let_go(content: *mut Self) {
        // SAFETY: the capsule wasn't consumed, so the deleter is still to be called.
        unsafe { (*content).deleter.map_or((), |delete| delete(content)) }
    }
}

impl Content for DLManagedTensor {
    const NAME: &'static CStr = UNVERSIONED;
    unsafe fn let_go(content: *mut Self) {
        // SAFETY: as above.
        unsafe { (*content).deleter.map_or((), |delete| delete(content)) }
    }
}

/// Arrow's structures are moved out of their capsules, which keep the empty shell.
macro_rules! arrow_content {
    ($structure:ty, $name:ident) => {
        impl Content for $structure {
            const NAME: &'static CStr = $name;
            unsafe fn let_go(content: *mut Self) {
                // SAFETY: `give` was passed a leaked box of it; a callback that isn't null wasn't run.
                unsafe {
                    if let Some(release) = (*content).release {
                        release(content);
                    }
                    drop(Box::from_raw(content));
                }
            }
        }
    };
}
arrow_content!(ArrowSchema, ARROW_SCHEMA);
arrow_content!(ArrowArray, ARROW_ARRAY);

/// A capsule that lets go of its content unless somebody takes it.
pub fn give<T: Content>(py: Python<'_>, content: NonNull<T>) -> PyResult<Bound<'_, PyAny>> {
    unsafe extern "C" fn destroy<T: Content>(capsule: *mut ffi::PyObject) {
        // SAFETY: the interpreter destroys a capsule that `give` has made; a consumer has renamed it.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule, T::NAME.as_ptr()) == 1 {
                T::let_go(ffi::PyCapsule_GetPointer(capsule, T::NAME.as_ptr()).cast());
            }
        }
    }
    // SAFETY: the name is static, the pointer isn't null, and an error is turned into an exception.
    unsafe {
        let capsule =
            ffi::PyCapsule_New(content.as_ptr().cast::<c_void>(), T::NAME.as_ptr(), Some(destroy::<T>));
        Bound::from_owned_ptr_or_err(py, capsule).inspect_err(|_| T::let_go(content.as_ptr()))
    }
}

/// A tensor of somebody else.
pub fn take(capsule: &Bound<'_, PyAny>) -> PyResult<Foreign> {
    if let Some(managed) = consume::<DLManagedTensorVersioned>(capsule, USED_VERSIONED)? {
        // SAFETY: the capsule's name says what it holds, and now that nobody else will take it.
        return unsafe { Foreign::versioned(managed) }.map_err(refused);
    }
    if let Some(managed) = consume::<DLManagedTensor>(capsule, USED_UNVERSIONED)? {
        // SAFETY: as above.
        return unsafe { Foreign::unversioned(managed) }.map_err(refused);
    }
    Err(PyTypeError::new_err("an unused DLPack capsule expected; each can be taken once"))
}

/// The content of a capsule that is renamed by that; `None` if it has another name.
fn consume<T: Content>(capsule: &Bound<'_, PyAny>, used: &'static CStr) -> PyResult<Option<NonNull<T>>> {
    let Some(content) = look::<T>(capsule) else { return Ok(None) };
    // SAFETY: `look` has found a capsule; the name is static.
    match unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } {
        0 => Ok(Some(content)),
        _ => Err(PyErr::fetch(capsule.py())),
    }
}

/// The content of a capsule that has the name for it.
fn look<T: Content>(capsule: &Bound<'_, PyAny>) -> Option<NonNull<T>> {
    // SAFETY: any object may be asked; the name is static.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), T::NAME.as_ptr()) == 0 {
            return None;
        }
        NonNull::new(ffi::PyCapsule_GetPointer(capsule.as_ptr(), T::NAME.as_ptr()).cast())
    }
}

/// An Arrow array of somebody else, and the shape of its rows as JSON.
pub fn take_arrow(schema: &Bound<'_, PyAny>, array: &Bound<'_, PyAny>) -> PyResult<arrow::Taken> {
    let (Some(schema), Some(array)) = (look::<ArrowSchema>(schema), look::<ArrowArray>(array)) else {
        return Err(PyTypeError::new_err("two capsules expected, arrow_schema and arrow_array"));
    };
    // SAFETY: the capsules' names say what they hold; an import leaves released shells behind.
    unsafe { arrow::import(schema, array) }.map_err(refused)
}

/// DLPack's code and bits of a dtype text; BufferError where it has none.
#[pyfunction]
pub fn dlpack_code(text: &str) -> PyResult<(u8, u8)> {
    ropeway_exchange::dtype::code(text).map(|dtype| (dtype.code, dtype.bits)).map_err(refused)
}

/// The device of a `__dlpack_device__`, refused if the CPU can't read its memory.
#[pyfunction]
pub fn check_device(kind: i32, id: i32) -> PyResult<()> {
    ropeway_exchange::import::check_device(abi::DLDevice { kind, id }).map_err(refused)
}

#![allow(unsafe_code)]
//! Makes arrays over memory of ours by NumPy's C API.
//!
//! The API is a table of functions in a capsule; its order is part of NumPy's promise to compiled
//! packages. Two of them are used, which have stood at their places since NumPy 1.7. Where the table
//! can't be had, `ropeway._arrays.view` makes the same arrays by calls of Python, in three times the
//! time.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyType};
use ropeway::Field;

use crate::errors::raise;

type GetVersion = unsafe extern "C" fn() -> c_uint;
type NewFromDescr = unsafe extern "C" fn(
    *mut ffi::PyTypeObject,
    *mut ffi::PyObject,
    c_int,
    *const isize,
    *const isize,
    *mut c_void,
    c_int,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;
type SetBaseObject = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> c_int;

const GET_VERSION: usize = 0;
const NEW_FROM_DESCR: usize = 94;
const SET_BASE_OBJECT: usize = 282;
/// Versions of the binary interface in which the two are known to stand there: NumPy 1 and 2.
const VERSIONS: [c_uint; 2] = [0x0100_0009, 0x0200_0000];
/// C contiguous and aligned; and writable.
const CARRAY_RO: c_int = 0x0101;
const WRITEABLE: c_int = 0x0400;

struct Api {
    new: NewFromDescr,
    set_base: SetBaseObject,
    view: Py<PyType>,
}

/// An array of `ropeway._views.View` over memory that `owner` keeps; `None` without NumPy's table.
///
/// # Errors
/// `Incompatible` if the dtype's text can't be read, or has another size than the field says: it may
/// have been written by anybody.
///
/// # Safety
/// `owner` keeps the field's bytes at `start` in place.
pub unsafe fn array<'py>(
    owner: &Bound<'py, PyAny>,
    start: *mut u8,
    writable: bool,
    field: &Field,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    static API: PyOnceLock<Option<Api>> = PyOnceLock::new();
    let py = owner.py();
    let Some(api) = API.get_or_init(py, || table(py).ok()).as_ref() else { return Ok(None) };
    let (descr, itemsize) = decoded(py, &field.dtype)?;
    if itemsize != field.itemsize as usize {
        return Err(raise(
            "Incompatible",
            format!(
                "array {:?}: its dtype {:?} has {itemsize} bytes, its description says {}",
                field.name, field.dtype, field.itemsize
            ),
        ));
    }
    let flags = CARRAY_RO | if writable { WRITEABLE } else { 0 };
    // SAFETY: the functions have these signatures in the versions that `table` lets through; the
    // reference to `descr` is given away. The caller answers for the field's bytes, of which there are
    // as many as shape and itemsize say (`Field`), and the dtype has that size. A length that isn't an
    // `isize`, of an array without elements, is one that NumPy refuses.
    let made = unsafe {
        (api.new)(
            api.view.as_ptr().cast(),
            descr.into_ptr(),
            field.shape.len() as c_int,
            field.shape.as_ptr().cast::<isize>(),
            std::ptr::null(),
            start.cast(),
            flags,
            std::ptr::null_mut(),
        )
    };
    // SAFETY: a new reference, or null with an exception set.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, made)? };
    // SAFETY: `made` is an array without a base; the reference to its owner is given away.
    match unsafe { (api.set_base)(made.as_ptr(), owner.clone().into_ptr()) } {
        0 => Ok(Some(made)),
        _ => Err(PyErr::fetch(py)),
    }
}

/// Finds NumPy's table of functions.
fn table(py: Python<'_>) -> PyResult<Api> {
    let module =
        py.import("numpy._core._multiarray_umath").or_else(|_| py.import("numpy.core._multiarray_umath"))?;
    let capsule = module.getattr("_ARRAY_API")?;
    // SAFETY: the capsule has no name; the call checks that it is one.
    let table = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) };
    if table.is_null() {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: NumPy's table is an array of pointers, the first of which is this function.
    let version = unsafe {
        let entry = *table.cast::<*const c_void>().add(GET_VERSION);
        std::mem::transmute::<*const c_void, GetVersion>(entry)()
    };
    if !VERSIONS.contains(&version) {
        return Err(pyo3::exceptions::PyImportError::new_err("NumPy's C interface has another version"));
    }
    let view = py.import("ropeway._views")?.getattr("View")?.cast_into::<PyType>()?.unbind();
    // SAFETY: in these versions the two functions stand at these places, with these signatures.
    unsafe {
        let entry = |index: usize| *table.cast::<*const c_void>().add(index);
        Ok(Api {
            new: std::mem::transmute::<*const c_void, NewFromDescr>(entry(NEW_FROM_DESCR)),
            set_base: std::mem::transmute::<*const c_void, SetBaseObject>(entry(SET_BASE_OBJECT)),
            view,
        })
    }
}

/// The most dtypes that are kept: texts come from anybody, and must not fill memory.
const KEPT: usize = 64;

/// The dtype of a text, and its bytes. Plain ones are kept; others could be changed by whoever gets them.
fn decoded<'py>(py: Python<'py>, text: &str) -> PyResult<(Bound<'py, PyAny>, usize)> {
    // A program has a few, which are found faster than hashed.
    static PLAIN: Mutex<Vec<(String, Py<PyAny>, usize)>> = Mutex::new(Vec::new());
    static DECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let plain = || PLAIN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, dtype, size)) = plain().iter().find(|(known, ..)| known == text) {
        return Ok((dtype.bind(py).clone(), *size));
    }
    let dtype = DECODE.import(py, "ropeway._dtypes", "decode")?.call1((PyString::new(py, text),))?;
    let size = dtype.getattr("itemsize")?.extract()?;
    if !text.starts_with(['{', '[']) {
        let mut plain = plain();
        if plain.len() < KEPT {
            plain.push((text.to_owned(), dtype.clone().unbind(), size));
        }
    }
    Ok((dtype, size))
}

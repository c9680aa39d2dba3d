#![allow(unsafe_code)]
//! Makes arrays over memory of ours by NumPy's C API.
//!
//! The API is a table of functions in a capsule; its order is part of NumPy's promise to compiled
//! packages. Two of them are used, which have stood at their places since NumPy 1.7. Where the table
//! can't be had, `ropeway._arrays.view` makes the same arrays by calls of Python, in three times the
//! time.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyType};
use ropeway::{Export, Field};

use crate::errors::raise;
use crate::export::{Memory, PyExport};
use crate::spare;

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

fn api(py: Python<'_>) -> Option<&'static Api> {
    static API: PyOnceLock<Option<Api>> = PyOnceLock::new();
    API.get_or_init(py, || table(py).ok()).as_ref()
}

/// Whether [`array`] can work.
pub fn is_there(py: Python<'_>) -> bool {
    api(py).is_some()
}

/// An array of `ropeway._views.View` over an export of that field.
///
/// # Errors
/// `Incompatible` if the dtype's text can't be read, or has another size than the field says: it may
/// have been written by anybody.
pub fn array<'py>(py: Python<'py>, export: Export, field: &Field) -> PyResult<Bound<'py, PyAny>> {
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
    // SAFETY: the export is of this field, whose elements have that dtype and size.
    match unsafe { spare::again(&descr, itemsize, &field.shape, export) } {
        Ok(array) => Ok(array),
        // SAFETY: as above.
        Err(export) => unsafe { fresh(descr, &field.shape, export) },
    }
}

/// Makes an array over an export.
///
/// # Safety
/// The field that the export is of has that shape, in elements of `descr`.
unsafe fn fresh<'py>(descr: Bound<'py, PyAny>, shape: &[u64], export: Export) -> PyResult<Bound<'py, PyAny>> {
    let py = descr.py();
    let api = api(py).expect("the caller has looked");
    let (start, writable) = (export.as_ptr(), export.is_writable());
    let owner = Bound::new(py, PyExport::new(Memory::Slot(export)))?;
    let flags = CARRAY_RO | if writable { WRITEABLE } else { 0 };
    // NumPy refuses a length that isn't an `isize`, of an array without elements.
    // SAFETY: `table` lets only versions through that have these signatures; the reference to `descr` is
    // given away; the owner keeps the field's bytes in place, as many as shape and itemsize say (`Field`).
    let made = unsafe {
        (api.new)(
            api.view.as_ptr().cast(),
            descr.into_ptr(),
            shape.len() as c_int,
            shape.as_ptr().cast::<isize>(),
            std::ptr::null(),
            start.cast(),
            flags,
            std::ptr::null_mut(),
        )
    };
    // SAFETY: a new reference, or null with an exception set.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, made)? };
    // SAFETY: `made` is an array without a base; the reference to its owner is given away.
    match unsafe { (api.set_base)(made.as_ptr(), owner.into_ptr()) } {
        0 => Ok(made),
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
    let view = py.import("ropeway._views")?.getattr("View")?.cast_into::<PyType>()?;
    spare::begin(&view)?;
    let view = view.unbind();
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
    static PLAIN: [OnceLock<(String, Py<PyAny>, usize)>; KEPT] = [const { OnceLock::new() }; KEPT];
    static DECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let mut known = PLAIN.iter().map_while(OnceLock::get);
    if let Some((_, dtype, size)) = known.find(|(known, ..)| known == text) {
        return Ok((dtype.bind(py).clone(), *size));
    }
    let dtype = DECODE.import(py, "ropeway._dtypes", "decode")?.call1((PyString::new(py, text),))?;
    let size = dtype.getattr("itemsize")?.extract()?;
    if !text.starts_with(['{', '[']) {
        let entry = (text.to_owned(), dtype.clone().unbind(), size);
        // Full ones hand the entry on to the next.
        let _ = PLAIN.iter().try_fold(entry, |entry, place| match place.set(entry) {
            Ok(()) => Err(()),
            Err(entry) => Ok(entry),
        });
    }
    Ok((dtype, size))
}

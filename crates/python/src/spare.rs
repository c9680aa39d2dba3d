#![allow(unsafe_code)]
//! Arrays that have died and are kept to be used again, as CPython keeps tuples and floats.
//!
//! An array of a slot is two objects: the array, and the [`PyExport`] under it. Making both and
//! freeing them costs more than a hand-off, and the next slot wants the same again. So the class of
//! arrays has a destructor of its own: it ends the export, as ever, and keeps the two empty objects
//! if nobody else has the second. Only whoever makes an array gets them back, with everything in
//! them that a holder could have changed set anew.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;
use ropeway::Export;

use crate::export::{Memory, PyExport};

/// What NumPy 1 and 2 promise to compiled packages of an array's structure (`PyArrayObject_fields`).
#[repr(C)]
struct Array {
    object: ffi::PyObject,
    data: *mut c_char,
    nd: c_int,
    shape: *mut isize,
    strides: *mut isize,
    base: *mut ffi::PyObject,
    descr: *mut ffi::PyObject,
    flags: c_int,
    weak: *mut ffi::PyObject,
    buffers: *mut c_void,
    allocator: *mut ffi::PyObject,
}

const C_ORDER: c_int = 0x1;
const FORTRAN_ORDER: c_int = 0x2;
const OWNS_DATA: c_int = 0x4;
const ALIGNED: c_int = 0x100;
const WRITEABLE: c_int = 0x400;
const WRITES_BACK: c_int = 0x2000;

/// The classes by which the destructor knows what it may keep, once they are all there.
struct Classes {
    free_array: ffi::destructor,
    view: *mut ffi::PyTypeObject,
    export: *mut ffi::PyTypeObject,
}

// SAFETY: addresses of a function and of classes that live as long as the module.
unsafe impl Send for Classes {}
// SAFETY: as above.
unsafe impl Sync for Classes {}

static FREE_ARRAY: OnceLock<ffi::destructor> = OnceLock::new();
static CLASSES: OnceLock<Classes> = OnceLock::new();

/// Dead arrays, each at the place that its shape and dtype choose. Only touched under the
/// interpreter's lock: without one nothing is kept.
static PLACES: [AtomicPtr<Array>; 16] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 16];

/// Makes the class between `numpy.ndarray` and `ropeway._views.View` that has the destructor.
#[pyfunction]
pub fn array_base(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let ndarray = py.import("numpy")?.getattr("ndarray")?.cast_into::<PyType>()?;
    // SAFETY: a class has the slot or null; a destructor is what stands there.
    let free = unsafe {
        let slot = ffi::PyType_GetSlot(ndarray.as_type_ptr(), ffi::Py_tp_dealloc);
        std::mem::transmute::<*mut c_void, Option<ffi::destructor>>(slot)
    };
    FREE_ARRAY.get_or_init(|| free.expect("ndarray has a destructor"));
    let mut slots = [
        ffi::PyType_Slot { slot: ffi::Py_tp_dealloc, pfunc: dealloc as *mut c_void },
        ffi::PyType_Slot { slot: 0, pfunc: std::ptr::null_mut() },
    ];
    let mut spec = ffi::PyType_Spec {
        name: c"ropeway._core.ArrayBase".as_ptr(),
        basicsize: 0, // as the base
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_BASETYPE) as _,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: the description is whole, and copied; a new reference comes back, or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpecWithBases(&mut spec, ndarray.as_ptr())) }
}

/// Begins to keep arrays of the class `view`, if all that this rests on is there.
pub fn begin(view: &Bound<'_, PyType>) -> PyResult<()> {
    let py = view.py();
    let flags: String = py.import("sys")?.getattr("abiflags")?.extract()?;
    let size: usize = view.getattr("__basicsize__")?.extract()?;
    let free_threaded = flags.contains('t');
    if let (false, true, Some(&free_array)) = (free_threaded, size >= size_of::<Array>(), FREE_ARRAY.get()) {
        let export = py.get_type::<PyExport>().as_type_ptr();
        CLASSES.get_or_init(|| Classes { free_array, view: view.as_type_ptr(), export });
    }
    Ok(())
}

/// A kept array of that dtype and shape, over an export; the export comes back if there is none.
///
/// # Safety
/// The field that the export is of has that shape, in elements of `descr`, which has `itemsize` bytes.
pub unsafe fn again<'py>(
    descr: &Bound<'py, PyAny>,
    itemsize: usize,
    shape: &[u64],
    export: Export,
) -> Result<Bound<'py, PyAny>, Export> {
    let py = descr.py();
    // SAFETY: what is kept is a whole array that is nobody's, and stays so until it is initialised.
    unsafe {
        let place = place(descr.as_ptr(), shape);
        let Some(array) = place.load(Relaxed).as_mut() else { return Err(export) };
        let fits = array.descr == descr.as_ptr()
            && array.shape().iter().map(|&n| n as u64).eq(shape.iter().copied())
            && ffi::Py_REFCNT(array.base) == 1;
        if !fits {
            return Err(export);
        }
        place.store(std::ptr::null_mut(), Relaxed);
        array.data = export.as_ptr().cast();
        array.flags = (array.flags & (C_ORDER | FORTRAN_ORDER | ALIGNED))
            | if export.is_writable() { WRITEABLE } else { 0 };
        let mut stride = itemsize as isize;
        for axis in (0..shape.len()).rev() {
            *array.strides.add(axis) = stride;
            stride *= (*array.shape.add(axis)).max(1);
        }
        array.export(py).put(Memory::Slot(export));
        let object = std::ptr::from_mut(array).cast();
        ffi::PyObject_Init(object, ffi::Py_TYPE(object));
        ffi::PyObject_GC_Track(object.cast());
        Ok(Bound::from_owned_ptr(py, object))
    }
}

impl Array {
    /// # Safety
    /// The array is whole.
    unsafe fn shape(&self) -> &[isize] {
        if self.nd == 0 {
            return &[];
        }
        // SAFETY: an array has as many numbers there as axes.
        unsafe { std::slice::from_raw_parts(self.shape, self.nd as usize) }
    }

    /// # Safety
    /// The base is a `PyExport`.
    unsafe fn export<'a>(&'a self, py: Python<'a>) -> &'a PyExport {
        // SAFETY: the array has a reference to it.
        unsafe { Borrowed::from_ptr(py, self.base).cast_unchecked::<PyExport>().get() }
    }
}

fn place(descr: *mut ffi::PyObject, shape: &[u64]) -> &'static AtomicPtr<Array> {
    let mix = |all: usize, &n: &u64| all.wrapping_mul(31).wrapping_add(n as usize);
    &PLACES[shape.iter().fold(descr.addr() >> 4, mix) % PLACES.len()]
}

/// The destructor of arrays.
unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this for an array without references that the garbage collector
    // has forgotten; its class is one made at run time, to which each instance has a reference.
    unsafe {
        let class = ffi::Py_TYPE(object);
        if !keep(object.cast(), class)
            && let Some(free) = FREE_ARRAY.get()
        {
            free(object);
        }
        ffi::Py_DECREF(class.cast());
    }
}

/// Keeps an array without references, if it is one of ours as it was made; its export ends.
///
/// # Safety
/// As for a destructor.
unsafe fn keep(array: *mut Array, class: *mut ffi::PyTypeObject) -> bool {
    let Some(classes) = CLASSES.get().filter(|classes| classes.view == class) else { return false };
    // SAFETY: the array is whole, and its destructor is the only one that knows it.
    unsafe {
        let found = &*array;
        let base = found.base;
        let as_made = !base.is_null()
            && ffi::Py_TYPE(base) == classes.export
            && ffi::Py_REFCNT(base) == 1
            && found.flags & (C_ORDER | ALIGNED | OWNS_DATA | WRITES_BACK) == C_ORDER | ALIGNED
            && found.weak.is_null()
            && found.buffers.is_null()
            && found.allocator.is_null();
        if !as_made || !found.export(Python::assume_attached()).end() {
            return false;
        }
        let shape = std::slice::from_raw_parts(found.shape().as_ptr().cast::<u64>(), found.nd as usize);
        let before = place(found.descr, shape).swap(array, Relaxed);
        if !before.is_null() {
            (classes.free_array)(before.cast());
        }
        true
    }
}

#![allow(unsafe_code)]
//! How arrays over our memory are given to other frameworks.

use std::collections::TryReserveError;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pyo3::exceptions::{PyBufferError, PyMemoryError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyMemoryView, PyTuple, PyType};
use pyo3::{ffi, intern};
use ropeway::{Block, Export, Kind, Ring};
use ropeway_exchange::abi::{DLDataType, DLManagedTensorVersioned, IS_COPIED, READ_ONLY};
use ropeway_exchange::export::Heap;
use ropeway_exchange::{Axes, Owner, Tensor, arrow, dtype, export};

use crate::block::PyBlock;
use crate::capsule::{give, refused};
use crate::errors::translate;
use crate::export::{Memory, PyExport};

/// Whatever keeps exported memory in place, without the interpreter.
#[expect(dead_code, reason = "what is in it is kept, not read")]
pub enum Keeper {
    Slot(Export),
    Block(Arc<Block>),
    Ring(Ring),
    Copy(Heap),
    Nothing,
}

// SAFETY: each keeps its bytes mapped and in place; dropping one moves a slot on by a word in shared
// memory, or frees memory of this process, which any thread may do, with or without an interpreter.
unsafe impl Owner for Keeper {}

impl Keeper {
    /// What keeps the memory of an array, counted once more; `None` if it isn't ours.
    pub fn of(array: &Bound<'_, PyAny>, kind: Kind) -> PyResult<Option<Keeper>> {
        let py = array.py();
        let mut base = array.getattr(intern!(py, "base"))?;
        loop {
            if let Ok(export) = base.cast::<PyExport>() {
                return match export.get().memory() {
                    Memory::Slot(export) => Ok(Some(Keeper::Slot(export.again(kind).map_err(translate)?))),
                    Memory::Ring(ring) => Ok(Some(Keeper::Ring(ring.clone()))),
                    Memory::Nothing => Ok(None),
                };
            }
            if let Ok(block) = base.cast::<PyBlock>() {
                return Ok(Some(Keeper::Block(block.get().0.clone())));
            }
            let next = if base.is_instance_of::<PyMemoryView>() { "obj" } else { "base" };
            match base.getattr_opt(next)? {
                Some(next) if !next.is_none() => base = next,
                _ => return Ok(None),
            }
        }
    }

    /// What to do where the old capsule can't say that the array may only be read.
    fn ways_out(&self) -> String {
        match self {
            Keeper::Slot(export) => format!(
                "{}: take the slot with pool.take(private=True), whose arrays may be written and reach nobody, or \
                 with pool.take(write=True), exclusively; for a framework that never writes, rw.asarray(x, like=...) may do",
                export.label()
            ),
            _ => "give it x.copy(), or set x.flags.writeable = True first".into(),
        }
    }
}

/// An array's memory as NumPy describes it through the buffer protocol; held until dropped.
struct Described {
    view: ffi::Py_buffer,
    /// In elements.
    strides: Axes,
    dtype: DLDataType,
}

impl Described {
    fn new(array: &Bound<'_, PyAny>) -> PyResult<Described> {
        let dtype = code(array)?;
        let mut view = MaybeUninit::<ffi::Py_buffer>::zeroed();
        // SAFETY: the structure is there to be filled; the array may be asked for strides.
        let done = unsafe {
            ffi::PyObject_GetBuffer(array.as_ptr(), view.as_mut_ptr(), ffi::PyBUF_STRIDES as c_int)
        };
        if done != 0 {
            return Err(PyErr::fetch(array.py()));
        }
        // SAFETY: it was filled, and `Described` releases it.
        let view = unsafe { view.assume_init() };
        let mut described = Described { view, strides: Axes::from_iter([]), dtype };
        let item = described.view.itemsize.max(1);
        let strides = described.numbers(described.view.strides);
        if let Some(odd) = strides.iter().find(|&&stride| stride % item as i64 != 0) {
            return Err(PyBufferError::new_err(format!(
                "DLPack counts strides in elements, and {odd} bytes are no multiple of {item}: give it x.copy()"
            )));
        }
        described.strides = strides.iter().map(|stride| stride / item as i64).collect();
        Ok(described)
    }

    fn numbers(&self, at: *const isize) -> &[i64] {
        if self.view.ndim == 0 || at.is_null() {
            return &[];
        }
        // SAFETY: the buffer protocol has filled in `ndim` numbers, of 64 bits as pointers are.
        unsafe { std::slice::from_raw_parts(at.cast::<i64>(), self.view.ndim as usize) }
    }

    fn shape(&self) -> &[i64] {
        self.numbers(self.view.shape)
    }

    fn readonly(&self) -> bool {
        self.view.readonly != 0
    }

    fn tensor(&self) -> Tensor<'_> {
        Tensor { data: self.view.buf.cast(), dtype: self.dtype, shape: self.shape(), strides: &self.strides }
    }
}

impl Drop for Described {
    fn drop(&mut self) {
        // SAFETY: `new` got the buffer, and this runs attached to the interpreter.
        unsafe { ffi::PyBuffer_Release(&mut self.view) };
    }
}

// SAFETY: only a copy is made without the interpreter, of memory that the held buffer keeps.
unsafe impl Send for Described {}
// SAFETY: as above.
unsafe impl Sync for Described {}

/// DLPack's code for an array's dtype, from a table of those seen.
///
/// The last few are found by address alone: `SEEN` keeps dtypes alive, so none is used again.
fn code(array: &Bound<'_, PyAny>) -> PyResult<DLDataType> {
    static SEEN: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    static LAST: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];
    let py = array.py();
    let dtype = array.getattr(intern!(py, "dtype"))?;
    let address = dtype.as_ptr().addr() as u64;
    let last = &LAST[(address >> 4) as usize % LAST.len()];
    let packed = last.load(Relaxed);
    if packed >> 16 == address {
        return Ok(unpack(packed));
    }
    let seen = SEEN.get_or_init(py, || PyDict::new(py).unbind()).bind(py);
    if let Some(found) = seen.get_item(&dtype)? {
        return Ok(unpack(found.extract()?));
    }
    let found = dtype::code(&text(&dtype)?)
        .map_err(|why| PyBufferError::new_err(format!("{why}. This array has dtype {dtype}.")))?;
    let packed = u64::from(found.bits) << 8 | u64::from(found.code);
    seen.set_item(&dtype, packed)?;
    last.store(address << 16 | packed, Relaxed);
    Ok(found)
}

fn unpack(packed: u64) -> DLDataType {
    DLDataType { code: packed as u8, bits: (packed >> 8) as u8, lanes: 1 }
}

/// The text of a dtype; BufferError for one that has none.
fn text(dtype: &Bound<'_, PyAny>) -> PyResult<String> {
    static ENCODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = dtype.py();
    let text = ENCODE.import(py, "ropeway._dtypes", "encode")?.call1((dtype,));
    text.and_then(|text| text.extract()).map_err(|e| match e.is_instance_of::<PyTypeError>(py) {
        true => PyBufferError::new_err(e.value(py).to_string()),
        false => e,
    })
}

/// What arrays over our memory have for other frameworks; a base of `ropeway._views.View`.
#[pyclass(name = "Exchange", module = "ropeway._core", subclass, frozen)]
pub struct PyExchange;

#[pymethods]
impl PyExchange {
    /// Exports the memory; the slot stays as long as anybody has the export.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<&Bound<'py, PyTuple>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, array) = (slf.py(), slf.as_any());
        if let Some(stream) = stream.filter(|stream| !matches!(stream.extract::<i64>(), Ok(-1))) {
            return Err(PyBufferError::new_err(format!(
                "the CPU has no streams: stream=None expected, or -1 (wait for nothing), found {stream}"
            )));
        }
        if let Some(device) = dl_device.filter(|&device| device != (export::DEVICE.kind, export::DEVICE.id)) {
            return Err(PyBufferError::new_err(format!(
                "this array is in the CPU's memory, device (1, 0), and is exported there only; asked for {device:?}"
            )));
        }
        let versioned = match max_version {
            Some(version) => version.get_item(0)?.extract::<u32>()? >= 1,
            None => false,
        };
        let described = Described::new(array)?;
        if copy == Some(true) {
            return copied(py, &described, versioned);
        }
        let Some(keeper) = keeper(array, &described)? else {
            return match export_by_numpy(array, max_version) {
                // Before NumPy 2.5 it has no code for them.
                Err(_)
                    if copy.is_none()
                        && dtype::is_small_float(described.dtype)
                        && (versioned || !described.readonly()) =>
                {
                    copied(py, &described, versioned)
                }
                other => other,
            };
        };
        if versioned {
            let flags = if described.readonly() { READ_ONLY } else { 0 };
            return give(py, export::versioned(&described.tensor(), flags, keeper));
        }
        if described.readonly() {
            return Err(PyBufferError::new_err(format!(
                "the consumer asks for an unversioned DLPack capsule, which can't say that an array may only be \
                 read: {}",
                keeper.ways_out()
            )));
        }
        give(py, export::unversioned(&described.tensor(), keeper).map_err(refused)?)
    }

    /// Where the memory is: (1, 0), the CPU's.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (export::DEVICE.kind, export::DEVICE.id)
    }

    /// Leaves results of ufuncs what they are: ordinary arrays, scalars where NumPy has them.
    #[pyo3(signature = (array, context=None, return_scalar=None))]
    fn __array_wrap__<'py>(
        slf: &Bound<'py, Self>,
        array: Bound<'py, PyAny>,
        context: Option<&Bound<'py, PyAny>>,
        return_scalar: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        static NDARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let _ = context;
        let py = slf.py();
        if array.is(slf) {
            return Ok(array);
        }
        let scalar = match return_scalar {
            Some(scalar) => scalar,
            None => array.getattr(intern!(py, "ndim"))?.extract::<usize>()? == 0, // NumPy 1 doesn't say
        };
        if scalar {
            return array.get_item(PyTuple::empty(py));
        }
        let ndarray = NDARRAY.import(py, "numpy", "ndarray")?;
        match array.get_type().is(ndarray) {
            true => Ok(array),
            false => array.call_method1(intern!(py, "view"), (ndarray,)),
        }
    }

    /// Exports the memory as an Arrow array: numbers, or a fixed-shape tensor for each row.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        slf: &Bound<'py, Self>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let _ = requested_schema; // a wish: the protocol lets producers ignore it
        let (py, array) = (slf.py(), slf.as_any());
        let text = text(&array.getattr(intern!(py, "dtype"))?)?;
        dtype::arrow_format(&text).map_err(refused)?;
        let described = Described::new(array)?;
        let layout = ropeway_exchange::Layout::new(described.shape(), Some(&described.strides), 1);
        if !layout.map_err(refused)?.is_compact() {
            return Err(PyBufferError::new_err(
                "Arrow takes arrays in C order without gaps: give it x.copy()",
            ));
        }
        let tensor = described.tensor();
        let (start, keeper) = match Keeper::of(array, Kind::Arrow)? {
            Some(keeper) => (tensor.data.cast_const(), keeper),
            None => {
                let (mut copy, _) = Heap::copy_of(&tensor).map_err(no_memory)?;
                (copy.data().cast_const(), Keeper::Copy(copy))
            }
        };
        let (schema, data) = arrow::export(start, &text, tensor.shape, keeper).map_err(refused)?;
        let (schema, data) =
            (NonNull::from(Box::leak(Box::new(schema))), NonNull::from(Box::leak(Box::new(data))));
        PyTuple::new(py, [give(py, schema), give(py, data)].into_iter().collect::<PyResult<Vec<_>>>()?)
    }
}

/// What keeps an array's memory for a capsule; nothing where there are no elements.
///
/// PyTorch 1.13 never calls the deleter of a tensor without data.
fn keeper(array: &Bound<'_, PyAny>, described: &Described) -> PyResult<Option<Keeper>> {
    if described.shape().contains(&0) {
        return Ok(Some(Keeper::Nothing));
    }
    Keeper::of(array, Kind::Capsule)
}

/// What callers get when a copy has no room.
fn no_memory(why: TryReserveError) -> PyErr {
    PyMemoryError::new_err(format!("a copy of the array: {why}"))
}

/// A versioned tensor over an array's memory, for those who ask by C.
pub fn exported(array: &Bound<'_, PyAny>) -> PyResult<NonNull<DLManagedTensorVersioned>> {
    let described = Described::new(array)?;
    let flags = if described.readonly() { READ_ONLY } else { 0 };
    match keeper(array, &described)? {
        Some(keeper) => Ok(export::versioned(&described.tensor(), flags, keeper)),
        None => {
            let (mut copy, strides) = Heap::copy_of(&described.tensor()).map_err(no_memory)?;
            let tensor = Tensor { data: copy.data(), strides: &strides, ..described.tensor() };
            Ok(export::versioned(&tensor, IS_COPIED, Keeper::Copy(copy)))
        }
    }
}

/// An unversioned capsule even of an array that may only be read, for consumers that never write.
#[pyfunction]
pub fn constant_capsule<'py>(array: &Bound<'py, PyExchange>) -> PyResult<Bound<'py, PyAny>> {
    let described = Described::new(array.as_any())?;
    match keeper(array.as_any(), &described)? {
        Some(keeper) => give(array.py(), export::unversioned(&described.tensor(), keeper).map_err(refused)?),
        None => export_by_numpy(array.as_any(), None),
    }
}

/// A capsule over a fresh copy in C order.
fn copied<'py>(py: Python<'py>, described: &Described, versioned: bool) -> PyResult<Bound<'py, PyAny>> {
    let (mut copy, strides) = py.detach(|| Heap::copy_of(&described.tensor())).map_err(no_memory)?;
    let tensor = Tensor { data: copy.data(), strides: &strides, ..described.tensor() };
    let keeper = Keeper::Copy(copy);
    match versioned {
        true => give(py, export::versioned(&tensor, IS_COPIED, keeper)),
        false => give(py, export::unversioned(&tensor, keeper).map_err(refused)?),
    }
}

/// NumPy's own export, for arrays that are of our type but not in our memory.
fn export_by_numpy<'py>(
    array: &Bound<'py, PyAny>,
    max_version: Option<&Bound<'py, PyTuple>>,
) -> PyResult<Bound<'py, PyAny>> {
    static EXPORT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = array.py();
    let export = EXPORT.get_or_try_init(py, || {
        py.import("numpy")?.getattr("ndarray")?.getattr("__dlpack__").map(Bound::unbind)
    })?;
    let options = PyDict::new(py);
    if max_version.is_some() {
        options.set_item("max_version", max_version)?;
    }
    match export.bind(py).call((array,), Some(&options)) {
        // Before NumPy 2.1 it takes no such argument, and gives the old form.
        Err(e) if e.is_instance_of::<PyTypeError>(py) => export.bind(py).call1((array,)),
        other => other,
    }
}

#![allow(unsafe_code)]
//! Leases: the right to touch one slot.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyIterator, PyList, PyString, PyTuple};
use ropeway::{Export, Field, ReadLease, WriteLease};

use crate::arguments::{ArrayName, Whole};
use crate::errors::translate;
use crate::export::{Memory, PyExport};
use crate::numpy;
use crate::pointer::PyPointer;
use crate::wait::blocking;

/// An array over an export.
fn view<'py>(py: Python<'py>, export: Export, field: &Field) -> PyResult<Bound<'py, PyAny>> {
    static VIEW: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if numpy::is_there(py) {
        return numpy::array(py, export, field);
    }
    let (export, dtype, shape) = parts(py, export, field)?;
    VIEW.import(py, "ropeway._arrays", "view")?.call1((export, dtype, shape))
}

/// An export with dtype text and shape.
type Parts<'py> = (Bound<'py, PyExport>, Bound<'py, PyString>, Bound<'py, PyTuple>);

fn parts<'py>(py: Python<'py>, export: Export, field: &Field) -> PyResult<Parts<'py>> {
    let shape = PyTuple::new(py, &field.shape)?;
    Ok((Bound::new(py, PyExport::new(Memory::Slot(export)))?, PyString::new(py, &field.dtype), shape))
}

fn decode<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    static DECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    DECODE.import(py, "ropeway._meta", "decode")?.call1((PyBytes::new(py, bytes),))
}

macro_rules! lease_methods {
    ($class:ident, $name:literal, { $($own:tt)* }) => {
        impl $class {
            /// An array by name, or the only one.
            fn array_of<'py>(&self, py: Python<'py>, name: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
                self.0.export_to(name, |export, field| view(py, export, field)).map_err(translate)?
            }
        }

        #[pymethods]
        impl $class {
            /// Index of the slot.
            #[getter]
            fn index(&self) -> usize {
                self.0.index()
            }

            /// Moves that the slot had made when it was claimed.
            #[getter]
            fn generation(&self) -> u64 {
                self.0.generation()
            }

            /// Name of the stage at which the slot is held.
            #[getter]
            fn stage(&self) -> &str {
                self.0.stage()
            }

            /// How often a reader has died holding this content.
            #[getter]
            fn deliveries(&self) -> u8 {
                self.0.deliveries()
            }

            /// The number that a holder gave the content.
            #[getter]
            fn number(&self) -> u64 {
                self.0.number()
            }

            /// True once the lease was published or released.
            #[getter]
            fn ended(&self) -> bool {
                self.0.has_ended()
            }

            fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
                slf
            }

            #[pyo3(signature = (*_exc))]
            fn __exit__(&self, _exc: &Bound<'_, PyTuple>) {
                self.0.end();
            }

            fn __getitem__<'py>(&self, py: Python<'py>, name: ArrayName<'_>) -> PyResult<Bound<'py, PyAny>> {
                self.array_of(py, Some(name.0))
            }

            fn __contains__(&self, name: &Bound<'_, PyAny>) -> PyResult<bool> {
                let names = self.keys()?;
                Ok(name.extract::<String>().is_ok_and(|name| names.contains(&name)))
            }

            fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
                PyList::new(py, self.keys()?)?.try_iter()
            }

            /// The only array of the slot.
            #[getter]
            fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                self.array_of(py, None)
            }

            /// The address of one array (by default the only one), for those who take nothing else.
            #[pyo3(signature = (name=None))]
            fn pointer(&self, py: Python<'_>, name: Option<ArrayName<'_>>) -> PyResult<PyPointer> {
                PyPointer::new(&self.array_of(py, name.map(|name| name.0))?)
            }

            /// Names of the arrays.
            fn keys(&self) -> PyResult<Vec<String>> {
                Ok(self.0.fields().map_err(translate)?.into_iter().map(|f| f.name).collect())
            }

            /// The memory of one array, its dtype text and its shape.
            fn export<'py>(&self, py: Python<'py>, name: ArrayName<'_>) -> PyResult<Parts<'py>> {
                self.0.export_to(Some(name.0), |export, field| parts(py, export, field)).map_err(translate)?
            }

            /// Gives the slot back; `InUse` while views live.
            fn release(&self) -> PyResult<()> {
                self.0.release().map_err(translate)
            }

            /// The metadata as bytes.
            #[getter]
            fn meta_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
                Ok(PyBytes::new(py, &self.0.meta().map_err(translate)?))
            }

            /// The metadata.
            #[getter]
            fn meta<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                decode(py, &self.0.meta().map_err(translate)?)
            }

            fn __repr__(&self) -> String {
                format!("<{} of {}{}>", $name, self.0.label(), if self.0.has_ended() { ", ended" } else { "" })
            }

            $($own)*
        }
    };
}

/// The right to read a slot.
#[pyclass(name = "ReadLease", module = "ropeway", frozen)]
pub struct PyReadLease(pub ReadLease);

lease_methods!(PyReadLease, "ReadLease", {});

/// The right to read and write a slot.
#[pyclass(name = "WriteLease", module = "ropeway", frozen)]
pub struct PyWriteLease(pub WriteLease);

lease_methods!(PyWriteLease, "WriteLease", {
    /// Sends the slot on to the next stage; `InUse` while views live.
    fn publish(&self) -> PyResult<()> {
        self.0.publish().map_err(translate)
    }

    /// Adds an array to a slot whose arrays aren't fixed, by dtype text.
    fn add_field(
        &self,
        py: Python<'_>,
        name: ArrayName<'_>,
        dtype: &str,
        itemsize: u32,
        shape: Vec<u64>,
    ) -> PyResult<()> {
        let field = Field::new(name.0, dtype, itemsize, &shape).map_err(translate)?;
        blocking(py, |pulse| self.0.add(field, pulse))
    }

    /// Adds an array to a slot whose arrays aren't fixed, and gives it out.
    fn add<'py>(
        &self,
        py: Python<'py>,
        name: ArrayName<'_>,
        shape: &Bound<'py, PyAny>,
        dtype: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        static DESCRIBE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let described = DESCRIBE.import(py, "ropeway._layout", "describe")?.call1((shape, dtype))?;
        let (dtype, itemsize, shape): (String, u32, Vec<u64>) = described.extract()?;
        self.add_field(py, name, &dtype, itemsize, shape)?;
        self.__getitem__(py, name)
    }

    /// Writes a value into an array and leaves no view behind.
    fn fill(&self, py: Python<'_>, name: ArrayName<'_>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        static SOURCE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let source = SOURCE.import(py, "ropeway._sources", "for_numpy")?.call1((value,))?;
        self.__getitem__(py, name)?.set_item(py.Ellipsis(), source)
    }

    fn __setitem__(&self, py: Python<'_>, name: ArrayName<'_>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.fill(py, name, value)
    }

    #[setter]
    fn set_number(&self, number: Whole) -> PyResult<()> {
        self.0.set_number(number.0).map_err(translate)
    }

    #[setter]
    fn set_meta_bytes(&self, meta: &[u8]) -> PyResult<()> {
        self.0.set_meta(meta).map_err(translate)
    }

    #[setter]
    fn set_meta(&self, py: Python<'_>, meta: &Bound<'_, PyAny>) -> PyResult<()> {
        static ENCODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let bytes = ENCODE.import(py, "ropeway._meta", "encode")?.call1((meta,))?;
        self.0.set_meta(bytes.cast::<PyBytes>()?.as_bytes()).map_err(translate)
    }
});

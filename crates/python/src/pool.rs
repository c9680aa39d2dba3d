//! The pool and what opens it.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use ropeway::{Field, Handle, Options, Pages, Phase, Pool};

use crate::arguments::{ArrayName, StageName, Timeout, Whole};
use crate::errors::{raise, translate};
use crate::export::{Memory, PyExport};
use crate::lease::{PyReadLease, PyWriteLease};
use crate::status;
use crate::wait::{blocking, waiting};

/// An open pool; `Pool` is made of it.
#[pyclass(name = "Core", module = "ropeway._core", frozen)]
pub struct PyCore(Arc<Pool>);

type Description = (String, String, u32, Vec<u64>);

/// Makes a pool.
#[expect(clippy::too_many_arguments, reason = "one Python function with keywords")]
#[pyfunction]
#[pyo3(signature = (
    slots, fields, stages, name=None, memory_limit=None, max_slots=None, waiting_limit=None,
    repeatable=Vec::new(), redeliveries=3
))]
pub fn create(
    py: Python<'_>,
    slots: usize,
    fields: Option<Vec<Description>>,
    stages: Vec<String>,
    name: Option<String>,
    memory_limit: Option<u64>,
    max_slots: Option<usize>,
    waiting_limit: Option<usize>,
    repeatable: Vec<usize>,
    redeliveries: u8,
) -> PyResult<PyCore> {
    let fields = fields
        .map(|all| {
            all.iter().map(|(name, dtype, size, shape)| Field::new(name, dtype, *size, shape)).collect()
        })
        .transpose()
        .map_err(translate)?;
    let options = Options {
        fields,
        name,
        memory_limit,
        waiting_limit,
        max_slots: max_slots.unwrap_or(0),
        repeatable,
        redeliveries,
        ..Options::new(slots)
    };
    let options = options.stages(stages);
    blocking(py, |_| Pool::create(&options)).map(|pool| PyCore(Arc::new(pool)))
}

/// Opens a pool by its handle.
#[pyfunction]
pub fn attach(py: Python<'_>, handle: &[u8]) -> PyResult<PyCore> {
    let handle = Handle::from_bytes(handle).map_err(translate)?;
    blocking(py, |_| Pool::attach(&handle)).map(|pool| PyCore(Arc::new(pool)))
}

/// Opens the pool of that name.
#[pyfunction]
pub fn find(py: Python<'_>, name: &str) -> PyResult<PyCore> {
    blocking(py, |_| Pool::find(name)).map(|pool| PyCore(Arc::new(pool)))
}

/// Marks every membership of this process as cleanly left.
#[pyfunction]
pub fn leave() {
    ropeway::leave_all();
}

/// A pool of slots.
#[pyclass(name = "Pool", module = "ropeway._core", subclass, frozen)]
pub struct PyPool(Arc<Pool>);

#[pymethods]
impl PyPool {
    #[new]
    fn new(core: &PyCore) -> PyPool {
        PyPool(core.0.clone())
    }

    /// What to send to another process.
    #[getter]
    fn handle<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.0.handle().map_err(translate)?.to_bytes()))
    }

    /// Unique id, hexadecimal.
    #[getter]
    fn id(&self) -> String {
        self.0.id().iter().map(|b| format!("{b:02x}")).collect()
    }

    /// The name, if it has one.
    #[getter]
    fn name(&self) -> Option<&str> {
        self.0.name()
    }

    /// Names of the stages.
    #[getter]
    fn stages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.stages())
    }

    /// Whether all slots of one field form one contiguous array.
    #[getter]
    fn packed(&self) -> bool {
        self.0.is_packed()
    }

    /// The arrays of every slot: name, dtype text, itemsize, shape.
    #[getter]
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let Some(fields) = self.0.fields() else { return Ok(None) };
        let list = PyList::empty(py);
        for field in fields {
            list.append((&field.name, &field.dtype, field.itemsize, PyTuple::new(py, &field.shape)?))?;
        }
        Ok(Some(list))
    }

    /// Takes a free slot to fill.
    #[pyo3(signature = (timeout=None, nbytes=Whole(0)), text_signature = "($self, timeout=None, nbytes=0)")]
    fn acquire(&self, py: Python<'_>, timeout: Option<Timeout>, nbytes: Whole) -> PyResult<PyWriteLease> {
        let lease = waiting(py, timeout.map(|t| t.0), |wait| self.0.acquire_with(wait))?;
        if nbytes.0 > 0 {
            blocking(py, |pulse| lease.reserve(nbytes.0, pulse))?;
        }
        Ok(PyWriteLease(lease))
    }

    /// Takes the slot that was published first.
    #[expect(clippy::too_many_arguments, reason = "one Python method with keywords")]
    #[pyo3(signature = (stage=None, write=false, timeout=None, number=None, readonly=None, private=false))]
    fn take<'py>(
        &self,
        py: Python<'py>,
        stage: Option<StageName<'_>>,
        write: bool,
        timeout: Option<Timeout>,
        number: Option<Whole>,
        readonly: Option<&str>,
        private: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (pages, timeout, number) = (pages(readonly, private)?, timeout.map(|t| t.0), number.map(|n| n.0));
        let last = self.0.stages().last().map(String::as_str).unwrap_or_default();
        let stage = stage.map_or(last, |name| name.0);
        if write || stage != last {
            if pages != Pages::Shared {
                return Err(raise(
                    "Invalid",
                    format!(
                        "readonly and private are for reading at {last:?}; what is taken to write has its own pages"
                    ),
                ));
            }
            let lease = waiting(py, timeout, |wait| self.0.take_mut_with(stage, number, wait))?;
            return Ok(Bound::new(py, PyWriteLease(lease))?.into_any());
        }
        let lease = waiting(py, timeout, |wait| self.0.take_through(pages, number, wait))?;
        Ok(Bound::new(py, PyReadLease(lease))?.into_any())
    }

    /// Lets no new slot begin; what is there can still be taken.
    fn close(&self) -> PyResult<()> {
        self.0.close().map_err(translate)
    }

    /// Ends every wait now; nothing is published any more.
    fn abort(&self) -> PyResult<()> {
        self.0.abort().map_err(translate)
    }

    /// True once the pool takes no new slots.
    #[getter]
    fn closed(&self) -> bool {
        self.0.phase() != Phase::Open
    }

    /// How many slots wait at a stage, by default the last.
    #[pyo3(signature = (stage=None))]
    fn waiting(&self, stage: Option<StageName<'_>>) -> PyResult<usize> {
        let stage =
            stage.map(|name| name.0).or(self.0.stages().last().map(String::as_str)).unwrap_or_default();
        self.0.waiting(stage).map_err(translate)
    }

    /// Whether as many messages are filling or waiting as the pool's limit allows.
    fn full(&self) -> PyResult<bool> {
        self.0.is_full().map_err(translate)
    }

    /// All slots of one field as one stretch of memory.
    fn ring_export<'py>(
        &self,
        py: Python<'py>,
        field: ArrayName<'_>,
    ) -> PyResult<(Bound<'py, PyExport>, usize)> {
        let ring = self.0.ring(field.0).map_err(translate)?;
        let slots = ring.slots;
        Ok((Bound::new(py, PyExport::new(Memory::Ring(ring)))?, slots))
    }

    /// Takes every waiting slot and gives it back unread; the number of them.
    fn discard(&self, py: Python<'_>) -> PyResult<usize> {
        blocking(py, |_| self.0.discard())
    }

    /// Takes back what the dead held; the number of slots.
    fn sweep(&self, py: Python<'_>) -> PyResult<usize> {
        blocking(py, |_| self.0.sweep()).map(|swept| swept.slots)
    }

    /// Takes free slots from index `keep` on out of the pool, and gives their memory back.
    #[pyo3(signature = (keep=Whole(0)), text_signature = "($self, keep=0)")]
    fn trim(&self, py: Python<'_>, keep: Whole) -> PyResult<usize> {
        let keep = usize::try_from(keep.0).unwrap_or(usize::MAX);
        blocking(py, |_| self.0.trim(keep))
    }

    /// The numbers behind `status()`.
    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        status::dict(py, &self.0.status())
    }
}

/// Through which pages to read, as the arguments of `take` say it.
fn pages(readonly: Option<&str>, private: bool) -> PyResult<Pages> {
    match (readonly, private) {
        (None, false) => Ok(Pages::Shared),
        (Some("map"), false) => Ok(Pages::ReadOnly),
        (None, true) => Ok(Pages::Private),
        (Some("map"), true) => {
            Err(raise("Invalid", "take either readonly=\"map\" or private=True, found both".into()))
        }
        (Some(other), _) => Err(raise(
            "Invalid",
            format!("readonly must be \"map\" or None (the flag alone), found {other:?}"),
        )),
    }
}

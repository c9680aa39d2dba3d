//! A pool's status as dicts: the numbers behind `ropeway.PoolStatus`.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use ropeway::{Phase, PoolStatus, State};

use crate::wait::blocking;

/// Looks at a pool of another process without becoming a member of it.
#[pyfunction]
pub fn observe(py: Python<'_>, pid: u32, descriptor: i32) -> PyResult<Bound<'_, PyDict>> {
    dict(py, &blocking(py, |_| ropeway::observe(pid, descriptor))?)
}

/// The status as a dict, with the names of the attributes of `ropeway._status`.
pub fn dict<'py>(py: Python<'py>, status: &PoolStatus) -> PyResult<Bound<'py, PyDict>> {
    let (slots, members, lost) = (PyList::empty(py), PyList::empty(py), PyList::empty(py));
    for slot in &status.slots {
        let dict = PyDict::new(py);
        dict.set_item("index", slot.index)?;
        dict.set_item("state", state(slot.state))?;
        dict.set_item("stage", &slot.stage)?;
        dict.set_item("pid", slot.pid)?;
        dict.set_item("thread", slot.thread)?;
        dict.set_item("held_s", slot.held_for.map(|d| d.as_secs_f64()))?;
        dict.set_item("deliveries", slot.deliveries)?;
        dict.set_item("generation", slot.generation)?;
        dict.set_item("committed", slot.committed)?;
        let exports = slot.exports.iter().map(|e| (&e.array, e.kind.name(), e.count, e.age.as_secs_f64()));
        dict.set_item("exports", PyList::new(py, exports.collect::<Vec<_>>())?)?;
        slots.append(dict)?;
    }
    for member in &status.members {
        let dict = PyDict::new(py);
        dict.set_item("pid", member.pid)?;
        dict.set_item("alive", member.alive)?;
        dict.set_item("left", member.left)?;
        dict.set_item("announced", member.announced)?;
        members.append(dict)?;
    }
    for one in &status.lost {
        let dict = PyDict::new(py);
        dict.set_item("index", one.index)?;
        dict.set_item("generation", one.generation)?;
        dict.set_item("stage", &one.stage)?;
        dict.set_item("pid", one.pid)?;
        lost.append(dict)?;
    }
    let dict = PyDict::new(py);
    dict.set_item("label", &status.label)?;
    dict.set_item("state", phase(status.phase))?;
    dict.set_item("slots", slots)?;
    dict.set_item("members", members)?;
    dict.set_item("lost", lost)?;
    dict.set_item("published", status.published)?;
    dict.set_item("deaths", status.deaths)?;
    dict.set_item("committed", status.committed)?;
    dict.set_item("memory_limit", status.memory_limit)?;
    Ok(dict)
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Open => "open",
        Phase::Closed => "closed",
        Phase::Orphaned => "orphaned",
        Phase::Aborted => "aborted",
    }
}

fn state(state: State) -> &'static str {
    match state {
        State::Absent => "absent",
        State::Idle => "idle",
        State::HeldRead => "held-read",
        State::HeldWrite => "held-write",
    }
}

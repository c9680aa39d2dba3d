//! `ropeway._core`: the core for Python. It translates and decides nothing.
#![allow(missing_docs)] // the classes are documented where Python shows them

mod arguments;
mod block;
mod capsule;
mod errors;
mod exchange;
mod export;
mod foreign;
mod lease;
mod numpy;
mod pointer;
mod pool;
mod spare;
mod status;
mod table;
mod wait;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<pool::PyCore>()?;
    module.add_function(wrap_pyfunction!(pool::create, module)?)?;
    module.add_function(wrap_pyfunction!(pool::attach, module)?)?;
    module.add_function(wrap_pyfunction!(pool::find, module)?)?;
    module.add_function(wrap_pyfunction!(pool::leave, module)?)?;
    module.add_function(wrap_pyfunction!(status::observe, module)?)?;
    module.add_class::<pool::PyPool>()?;
    module.add_class::<lease::PyWriteLease>()?;
    module.add_class::<lease::PyReadLease>()?;
    module.add_class::<export::PyExport>()?;
    module.add_function(wrap_pyfunction!(spare::array_base, module)?)?;
    module.add_class::<exchange::PyExchange>()?;
    module.add_function(wrap_pyfunction!(exchange::constant_capsule, module)?)?;
    module.add_function(wrap_pyfunction!(table::exchange_api, module)?)?;
    module.add_class::<pointer::PyPointer>()?;
    module.add_class::<foreign::PyForeign>()?;
    module.add_function(wrap_pyfunction!(foreign::import_dlpack, module)?)?;
    module.add_function(wrap_pyfunction!(foreign::import_arrow, module)?)?;
    module.add_function(wrap_pyfunction!(capsule::check_device, module)?)?;
    module.add_function(wrap_pyfunction!(capsule::dlpack_code, module)?)?;
    module.add_class::<block::PyBlock>()?;
    module.add_function(wrap_pyfunction!(block::session, module)?)?;
    module.add_function(wrap_pyfunction!(block::allocate, module)?)?;
    module.add_function(wrap_pyfunction!(block::open_block, module)?)?;
    module.add_function(wrap_pyfunction!(block::arena_snapshot, module)?)?;
    Ok(())
}

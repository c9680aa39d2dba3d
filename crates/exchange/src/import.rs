#![allow(unsafe_code)]
//! Tensors of others: a capsule is an arbitrary pointer, so what it says is checked before it is used.

use std::ptr::NonNull;

use crate::abi::{
    CPU, CUDA_HOST, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLTensor, READ_ONLY, ROCM_HOST,
    VERSION,
};
use crate::{Layout, MAX_NDIM, Result, arrow, dtype, refuse};

/// An array of somebody else, checked; dropping it lets go of it.
#[derive(Debug)]
pub struct Foreign {
    /// The first element.
    pub data: *mut u8,
    /// The type of its elements.
    pub dtype: &'static str,
    /// Where they lie.
    pub layout: Layout,
    /// Whether it may only be read.
    pub readonly: bool,
    pub(crate) _release: Release,
}

// SAFETY: deleters and release callbacks may be called from any thread, as both standards say, and
// the memory is only read through pointers that the user of a `Foreign` makes.
unsafe impl Send for Foreign {}
// SAFETY: as above; a shared `Foreign` can only be looked at.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// The lowest byte of any element.
    pub fn start(&self) -> *mut u8 {
        self.data.wrapping_sub(self.layout.before)
    }

    /// Takes over a versioned tensor. Whatever happens, its deleter runs once.
    ///
    /// # Errors
    ///
    /// A sentence that says what of it can't be.
    ///
    /// # Safety
    ///
    /// The pointer comes from a producer that follows DLPack, nobody else calls its deleter, and
    /// shape and strides have as many entries as they should.
    pub unsafe fn versioned(managed: NonNull<DLManagedTensorVersioned>) -> Result<Foreign> {
        let release = Release::Versioned(managed);
        // SAFETY: the caller passes a tensor; version and deleter are where they are in any version.
        let version = unsafe { (*managed.as_ptr()).version };
        if version.major != VERSION.major {
            return refuse(format!(
                "it speaks DLPack {}.{}; ropeway knows version {}",
                version.major, version.minor, VERSION.major
            ));
        }
        // SAFETY: the version says that the rest is laid out as we know it.
        let (tensor, flags) = unsafe { ((*managed.as_ptr()).tensor, (*managed.as_ptr()).flags) };
        // SAFETY: the caller answers for shape and strides.
        unsafe { check(&tensor, flags & READ_ONLY != 0, release) }
    }

    /// Takes over an unversioned tensor. Whatever happens, its deleter runs once.
    ///
    /// # Errors
    ///
    /// A sentence that says what of it can't be.
    ///
    /// # Safety
    ///
    /// As for [`versioned`](Foreign::versioned).
    pub unsafe fn unversioned(managed: NonNull<DLManagedTensor>) -> Result<Foreign> {
        let release = Release::Unversioned(managed);
        // SAFETY: the caller passes a tensor and answers for its shape and strides. The old form
        // doesn't say whether it may be written, so it may not.
        unsafe { check(&(*managed.as_ptr()).tensor, true, release) }
    }
}

/// How to let go of an array.
#[derive(Debug)]
pub(crate) enum Release {
    Versioned(NonNull<DLManagedTensorVersioned>),
    Unversioned(NonNull<DLManagedTensor>),
    Arrow { _held: arrow::Held },
}

impl Drop for Release {
    fn drop(&mut self) {
        // SAFETY: whoever made this value has handed the tensor over, so the deleter is ours to call.
        unsafe {
            match self {
                Release::Versioned(m) => (*m.as_ptr()).deleter.map_or((), |delete| delete(m.as_ptr())),
                Release::Unversioned(m) => (*m.as_ptr()).deleter.map_or((), |delete| delete(m.as_ptr())),
                Release::Arrow { .. } => (),
            }
        }
    }
}

/// Refuses memory that the CPU can't read.
///
/// # Errors
///
/// Names the device and what to do.
pub fn check_device(device: DLDevice) -> Result<()> {
    if matches!(device.kind, CPU | CUDA_HOST | ROCM_HOST) {
        return Ok(());
    }
    let name = match device.kind {
        2 => "CUDA",
        4 => "OpenCL",
        7 => "Vulkan",
        8 => "Metal",
        9 => "VPI",
        10 => "ROCm",
        13 => "CUDA, managed",
        14 => "oneAPI",
        15 => "WebGPU",
        16 => "Hexagon",
        17 => "MAIA",
        18 => "Trainium",
        _ => "unknown to ropeway",
    };
    refuse(format!("it is on device ({}, {}) ({name}): copy it to the CPU first", device.kind, device.id))
}

/// # Safety
///
/// Shape and strides, where they aren't null, have `ndim` entries.
unsafe fn check(tensor: &DLTensor, readonly: bool, release: Release) -> Result<Foreign> {
    check_device(tensor.device)?;
    let text = dtype::text(tensor.dtype)?;
    // SAFETY: the caller answers for both.
    let (shape, strides) = unsafe { axes(tensor) }?;
    let layout = Layout::new(&shape, strides.as_deref(), dtype::itemsize(tensor.dtype))?;
    let data = place(tensor.data.cast(), tensor.byte_offset, &layout)?;
    Ok(Foreign { data, dtype: text, layout, readonly, _release: release })
}

/// What a tensor says of its axes: shape, and strides if it has them.
///
/// # Errors
///
/// For a number of axes that can't be, and for axes without a shape.
///
/// # Safety
///
/// Shape and strides, where they aren't null, have `ndim` entries.
pub unsafe fn axes(tensor: &DLTensor) -> Result<(Vec<i64>, Option<Vec<i64>>)> {
    let ndim = usize::try_from(tensor.ndim).unwrap_or(usize::MAX);
    if ndim > MAX_NDIM {
        return refuse(format!("it says that it has {} axes; at most {MAX_NDIM} are taken", tensor.ndim));
    }
    if ndim > 0 && tensor.shape.is_null() {
        return refuse(format!("it has {ndim} axes and no shape"));
    }
    // SAFETY: neither is null where there are axes, and the caller answers for the number of entries.
    let entries = |at: *mut i64| (0..ndim).map(|axis| unsafe { at.add(axis).read_unaligned() }).collect();
    Ok((entries(tensor.shape), (!tensor.strides.is_null()).then(|| entries(tensor.strides))))
}

/// The first element, `offset` bytes behind `data`, after a check that all elements have addresses.
pub(crate) fn place(data: *mut u8, offset: u64, layout: &Layout) -> Result<*mut u8> {
    if layout.is_empty() {
        return Ok(std::ptr::null_mut());
    }
    if data.is_null() {
        return refuse(format!("it has {} elements and no memory", layout.len()));
    }
    let first = usize::try_from(offset).ok().and_then(|by| data.addr().checked_add(by));
    let lowest = first.and_then(|first| first.checked_sub(layout.before)).filter(|&lowest| lowest > 0);
    let end =
        lowest.and_then(|lowest| lowest.checked_add(layout.span)).filter(|&end| end <= isize::MAX as usize);
    match end {
        Some(_) => Ok(data.wrapping_add(offset as usize)),
        None => refuse(format!(
            "its {} bytes from {data:p} with offset {offset} aren't all inside the address space",
            layout.span
        )),
    }
}

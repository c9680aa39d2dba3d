#![allow(unsafe_code)]
//! Tensors that are given out: each holds its owner until the other side calls the deleter.

use std::collections::TryReserveError;
use std::ffi::c_void;
use std::ptr::{self, NonNull};

use crate::abi::{CPU, DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLTensor, VERSION};
use crate::layout::{Axes, compact, normalize};
use crate::{Owner, Result, refuse};

/// Our device, as `__dlpack_device__` says it.
pub const DEVICE: DLDevice = DLDevice { kind: CPU, id: 0 };

/// Memory to give out, in the words of DLPack.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// The first element.
    pub data: *mut u8,
    /// Type of the elements.
    pub dtype: DLDataType,
    /// Elements along each axis.
    pub shape: &'a [i64],
    /// Elements from one to the next along each axis.
    pub strides: &'a [i64],
}

/// What DLPack points to, and what keeps the memory; `managed` is at its start.
#[repr(C)]
struct Exported<M, O> {
    managed: M,
    shape: Axes,
    strides: Axes,
    owner: O,
}

/// Gives out a tensor in the form that says its version and flags.
///
/// Whoever gets it must see that its deleter is called, once.
pub fn versioned<O: Owner>(tensor: &Tensor<'_>, flags: u64, owner: O) -> NonNull<DLManagedTensorVersioned> {
    unsafe extern "C" fn delete<O>(managed: *mut DLManagedTensorVersioned) {
        // SAFETY: `versioned` has leaked this very box, and the deleter is called once.
        drop(unsafe { Box::from_raw(managed.cast::<Exported<DLManagedTensorVersioned, O>>()) });
    }
    leak(tensor, owner, |tensor| DLManagedTensorVersioned {
        version: VERSION,
        context: ptr::null_mut(),
        deleter: Some(delete::<O>),
        flags,
        tensor,
    })
}

/// Gives out a tensor in the old form, which can't say that it may only be read.
///
/// Whoever gets it must see that its deleter is called, once.
///
/// # Errors
///
/// For negative strides: old consumers end the process on them.
pub fn unversioned<O: Owner>(tensor: &Tensor<'_>, owner: O) -> Result<NonNull<DLManagedTensor>> {
    unsafe extern "C" fn delete<O>(managed: *mut DLManagedTensor) {
        // SAFETY: `unversioned` has leaked this very box, and the deleter is called once.
        drop(unsafe { Box::from_raw(managed.cast::<Exported<DLManagedTensor, O>>()) });
    }
    if tensor.strides.iter().any(|&stride| stride < 0) {
        return refuse(format!(
            "an old consumer (one that asks without max_version) can't take negative strides, found {:?}: \
             give it a copy",
            tensor.strides
        ));
    }
    Ok(leak(tensor, owner, |tensor| DLManagedTensor {
        tensor,
        context: ptr::null_mut(),
        deleter: Some(delete::<O>),
    }))
}

fn leak<M: Managed, O>(tensor: &Tensor<'_>, owner: O, manage: impl FnOnce(DLTensor) -> M) -> NonNull<M> {
    let described = DLTensor {
        data: if tensor.shape.contains(&0) { ptr::null_mut() } else { tensor.data.cast::<c_void>() },
        device: DEVICE,
        ndim: tensor.shape.len() as i32,
        dtype: tensor.dtype,
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let (shape, strides) = (tensor.shape.iter().copied().collect(), tensor.strides.iter().copied().collect());
    let exported = Box::leak(Box::new(Exported { managed: manage(described), shape, strides, owner }));
    normalize(&exported.shape, &mut exported.strides);
    if !tensor.shape.is_empty() {
        let (shape, strides) = (exported.shape.as_mut_ptr(), exported.strides.as_mut_ptr());
        let tensor = exported.managed.tensor();
        (tensor.shape, tensor.strides) = (shape, strides);
    }
    // `managed` is the first field of a C structure, so its address is that of the whole.
    NonNull::from(exported).cast()
}

/// A structure with a tensor in it.
trait Managed {
    fn tensor(&mut self) -> &mut DLTensor;
}

impl Managed for DLManagedTensorVersioned {
    fn tensor(&mut self) -> &mut DLTensor {
        &mut self.tensor
    }
}

impl Managed for DLManagedTensor {
    fn tensor(&mut self) -> &mut DLTensor {
        &mut self.tensor
    }
}

/// Memory of this process for an array; dropping it frees the memory.
#[derive(Debug)]
pub struct Heap {
    memory: Vec<u64>,
    start: usize,
}

impl Heap {
    /// Room for `bytes` bytes, aligned to 64 bytes; what is in them is whatever was there.
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    pub fn new(bytes: usize) -> std::result::Result<Heap, TryReserveError> {
        let mut memory = Vec::<u64>::new();
        memory.try_reserve_exact(bytes.div_ceil(8) + 8)?;
        let start = memory.as_ptr().addr();
        Ok(Heap { memory, start: start.next_multiple_of(64) - start })
    }

    /// A copy of a tensor's elements in C order, and their strides. The caller keeps the tensor's
    /// memory in place meanwhile.
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    pub fn copy_of(tensor: &Tensor<'_>) -> std::result::Result<(Heap, Vec<i64>), TryReserveError> {
        let item = crate::dtype::itemsize(tensor.dtype);
        let count = tensor.shape.iter().product::<i64>() as usize;
        let mut heap = Heap::new(count * item)?;
        if count > 0 {
            gather(tensor.data, item, tensor.shape, tensor.strides, &mut heap.data());
        }
        Ok((heap, compact(tensor.shape)))
    }

    /// The first byte.
    pub fn data(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr().cast::<u8>().wrapping_add(self.start)
    }
}

/// Copies elements one after the other to `target`, and moves it behind them.
fn gather(source: *const u8, item: usize, shape: &[i64], strides: &[i64], target: &mut *mut u8) {
    let mut steps = strides.to_vec();
    normalize(shape, &mut steps);
    if steps == compact(shape) {
        let run = shape.iter().product::<i64>() as usize * item;
        // SAFETY: the caller of `copy_of` keeps these elements, and `Heap::new` has made room for them.
        unsafe { std::ptr::copy_nonoverlapping(source, *target, run) };
        *target = target.wrapping_add(run);
        return;
    }
    for i in 0..shape[0] {
        let from = source.wrapping_offset((i * strides[0] * item as i64) as isize);
        gather(from, item, &shape[1..], &strides[1..], target);
    }
}

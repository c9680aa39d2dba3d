#![allow(unsafe_code)]
//! The structures of DLPack 1.3 and of the Arrow C data interface, as their headers lay them out.

use std::ffi::{c_char, c_int, c_void};

/// The version that our exports say.
pub const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 3 };

/// The memory of the CPU.
pub const CPU: i32 = 1;
/// The memory of the CPU, pinned for CUDA.
pub const CUDA_HOST: i32 = 3;
/// The memory of the CPU, pinned for ROCm.
pub const ROCM_HOST: i32 = 11;

/// The consumer may not write.
pub const READ_ONLY: u64 = 1;
/// The producer has made a copy for this consumer.
pub const IS_COPIED: u64 = 2;

/// Name of an unversioned capsule that nobody has consumed.
pub const UNVERSIONED: &std::ffi::CStr = c"dltensor";
/// Name of an unversioned capsule that somebody has consumed.
pub const USED_UNVERSIONED: &std::ffi::CStr = c"used_dltensor";
/// Name of a versioned capsule that nobody has consumed.
pub const VERSIONED: &std::ffi::CStr = c"dltensor_versioned";
/// Name of a versioned capsule that somebody has consumed.
pub const USED_VERSIONED: &std::ffi::CStr = c"used_dltensor_versioned";
/// Name of the capsule with the table of functions.
pub const EXCHANGE_API: &std::ffi::CStr = c"dlpack_exchange_api";

/// A version of DLPack.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLPackVersion {
    /// Changes when the layout does.
    pub major: u32,
    /// Changes when meanings are added.
    pub minor: u32,
}

/// Where memory is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDevice {
    /// Kind of the device.
    pub kind: i32,
    /// Which of them.
    pub id: i32,
}

/// The type of an element.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DLDataType {
    /// Kind of number.
    pub code: u8,
    /// Bits of one number.
    pub bits: u8,
    /// Numbers of one element.
    pub lanes: u16,
}

/// An array: its memory and how to read it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    /// Where the memory starts.
    pub data: *mut c_void,
    /// What memory it is.
    pub device: DLDevice,
    /// Number of axes.
    pub ndim: i32,
    /// Type of the elements.
    pub dtype: DLDataType,
    /// Elements along each axis.
    pub shape: *mut i64,
    /// Elements from one to the next along each axis; null means C order.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// An array and how to let go of it.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The array.
    pub tensor: DLTensor,
    /// The producer's.
    pub context: *mut c_void,
    /// Lets go of the array, and frees this structure; to be called once, from any thread.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// An array, how to let go of it, and what may be done with it.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// Looked at before anything but the deleter.
    pub version: DLPackVersion,
    /// The producer's.
    pub context: *mut c_void,
    /// Lets go of the array, and frees this structure; to be called once, from any thread.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// [`READ_ONLY`], [`IS_COPIED`].
    pub flags: u64,
    /// The array.
    pub tensor: DLTensor,
}

/// Tells the caller of an allocator what went wrong.
pub type SetError = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char);

/// Functions by which other extensions exchange arrays of a type without calling Python.
#[repr(C)]
#[derive(Debug)]
pub struct DLPackExchangeAPI {
    /// Looked at before anything else.
    pub version: DLPackVersion,
    /// A table of an older major version, or null.
    pub previous: *mut c_void,
    /// Makes an array like a prototype.
    pub allocate: Option<
        unsafe extern "C" fn(
            *mut DLTensor,
            *mut *mut DLManagedTensorVersioned,
            *mut c_void,
            Option<SetError>,
        ) -> c_int,
    >,
    /// Exports an object of the type.
    pub from_object: Option<unsafe extern "C" fn(*mut c_void, *mut *mut DLManagedTensorVersioned) -> c_int>,
    /// Makes an object of an array, and takes it over.
    pub to_object: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned, *mut *mut c_void) -> c_int>,
    /// Describes an object of the type as long as that lives.
    pub borrow: Option<unsafe extern "C" fn(*mut c_void, *mut DLTensor) -> c_int>,
    /// The stream on which the type's work runs.
    pub stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}

// SAFETY: a table is never changed, and its functions may be called from any thread.
unsafe impl Sync for DLPackExchangeAPI {}

/// What an Arrow array consists of.
#[repr(C)]
#[derive(Debug)]
pub struct ArrowSchema {
    /// The type.
    pub format: *const c_char,
    /// A name, or null.
    pub name: *const c_char,
    /// Pairs of keys and values, or null.
    pub metadata: *const c_char,
    /// Bits; 2 says that there may be nulls.
    pub flags: i64,
    /// Number of children.
    pub n_children: i64,
    /// The children.
    pub children: *mut *mut ArrowSchema,
    /// The type of dictionary values, or null.
    pub dictionary: *mut ArrowSchema,
    /// Frees what this structure owns; null when that has been done.
    pub release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    /// The producer's.
    pub private_data: *mut c_void,
}

/// An Arrow array.
#[repr(C)]
#[derive(Debug)]
pub struct ArrowArray {
    /// Elements.
    pub length: i64,
    /// Elements that are null, -1 if nobody has counted.
    pub null_count: i64,
    /// Elements before the first.
    pub offset: i64,
    /// Number of buffers.
    pub n_buffers: i64,
    /// Number of children.
    pub n_children: i64,
    /// The buffers.
    pub buffers: *mut *const c_void,
    /// The children.
    pub children: *mut *mut ArrowArray,
    /// Dictionary values, or null.
    pub dictionary: *mut ArrowArray,
    /// Lets go of the memory; null when that has been done.
    pub release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    /// The producer's.
    pub private_data: *mut c_void,
}

/// A release callback that has run leaves a structure like this.
macro_rules! released {
    ($($structure:ty),*) => {
        $(impl $structure {
            /// True once its contents are gone, or were moved elsewhere.
            pub fn is_released(&self) -> bool {
                self.release.is_none()
            }
        })*
    };
}
released!(ArrowSchema, ArrowArray);

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<DLTensor>() == 48);
    assert!(offset_of!(DLTensor, device) == 8 && offset_of!(DLTensor, ndim) == 16);
    assert!(offset_of!(DLTensor, dtype) == 20 && offset_of!(DLTensor, shape) == 24);
    assert!(offset_of!(DLTensor, strides) == 32 && offset_of!(DLTensor, byte_offset) == 40);
    assert!(size_of::<DLManagedTensor>() == 64 && offset_of!(DLManagedTensor, deleter) == 56);
    assert!(size_of::<DLManagedTensorVersioned>() == 80);
    assert!(offset_of!(DLManagedTensorVersioned, context) == 8);
    assert!(offset_of!(DLManagedTensorVersioned, deleter) == 16);
    assert!(offset_of!(DLManagedTensorVersioned, flags) == 24);
    assert!(offset_of!(DLManagedTensorVersioned, tensor) == 32);
    assert!(size_of::<DLPackExchangeAPI>() == 56 && offset_of!(DLPackExchangeAPI, allocate) == 16);
    assert!(size_of::<ArrowSchema>() == 72 && offset_of!(ArrowSchema, release) == 56);
    assert!(size_of::<ArrowArray>() == 80 && offset_of!(ArrowArray, release) == 64);
};

//! Tensors and Arrow arrays of others.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{self, NonNull};

use ropeway_exchange::Foreign;
use ropeway_exchange::abi::{
    ArrowArray, ArrowSchema, DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion,
    DLTensor,
};
use ropeway_exchange::arrow;

use crate::bytes::Bytes;

thread_local! {
    /// How many things of this input were let go of.
    static RELEASED: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    RELEASED.set(RELEASED.get() + 1);
}

unsafe extern "C" fn delete_versioned(_: *mut DLManagedTensorVersioned) {
    count();
}

unsafe extern "C" fn delete(_: *mut DLManagedTensor) {
    count();
}

unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    count();
    // SAFETY: whoever calls a release callback passes the structure that has it.
    unsafe { (*schema).release = None };
}

unsafe extern "C" fn release_array(array: *mut ArrowArray) {
    count();
    // SAFETY: as above.
    unsafe { (*array).release = None };
}

/// Reads the input as a DLPack tensor (of either form) or an Arrow array, imports it, and checks
/// that what was accepted makes sense and that everything is let go of once.
pub fn exchange(input: &[u8]) {
    let mut input = Bytes(input);
    RELEASED.set(0);
    let things = match input.byte() % 3 {
        0 => tensor(&mut input, true),
        1 => tensor(&mut input, false),
        _ => arrow(&mut input),
    };
    assert_eq!(RELEASED.get(), things, "everything is let go of once");
}

/// Checks that all elements of an import have addresses.
fn check(foreign: &Foreign) {
    let (start, layout) = (foreign.start().addr(), &foreign.layout);
    assert_eq!(layout.shape.len(), layout.strides.len());
    if layout.span > 0 {
        assert!(layout.before < layout.span && start > 0);
        assert!(start.checked_add(layout.span).is_some_and(|end| end <= isize::MAX as usize));
        assert!(layout.shape.iter().all(|&n| n > 0));
    }
}

fn tensor(input: &mut Bytes<'_>, versioned: bool) -> usize {
    let version = DLPackVersion { major: input.byte().into(), minor: input.byte().into() };
    let flags = input.byte();
    let device = DLDevice { kind: i32::from(input.byte() as i8), id: 0 };
    let dtype = DLDataType { code: input.byte(), bits: input.byte(), lanes: input.short() };
    let ndim = i32::from(input.byte() as i8);
    let (data, byte_offset) = (input.number() as usize, input.number());
    let has = input.byte();
    // As many entries as an import may read, however many there are said to be.
    let mut axes = || (0..64).map(|_| input.number() as i64).collect::<Vec<_>>();
    let (mut shape, mut strides) = (axes(), axes());
    let tensor = DLTensor {
        data: ptr::without_provenance_mut::<c_void>(data),
        device,
        ndim,
        dtype,
        shape: if has & 1 != 0 { shape.as_mut_ptr() } else { ptr::null_mut() },
        strides: if has & 2 != 0 { strides.as_mut_ptr() } else { ptr::null_mut() },
        byte_offset,
    };
    let context = ptr::null_mut();
    // SAFETY: shape and strides have 64 entries or are null; the deleters count.
    let taken = unsafe {
        if versioned {
            let deleter = Some(delete_versioned as unsafe extern "C" fn(_));
            let mut managed =
                DLManagedTensorVersioned { version, context, deleter, flags: flags.into(), tensor };
            Foreign::versioned(NonNull::from(&mut managed)).inspect(check).map(drop)
        } else {
            let mut managed = DLManagedTensor { tensor, context, deleter: Some(delete) };
            Foreign::unversioned(NonNull::from(&mut managed)).inspect(check).map(drop)
        }
    };
    if let Err(refusal) = taken {
        assert!(!refusal.0.is_empty());
    }
    1
}

/// What one level of an Arrow array consists of.
struct Level {
    schema: ArrowSchema,
    array: ArrowArray,
    _format: Vec<u8>,
    _buffers: Box<[*const c_void; 3]>,
}

impl Level {
    fn new(input: &mut Bytes<'_>) -> Level {
        let n = usize::from(input.byte() % 16);
        let mut format: Vec<u8> = input.take(n).iter().copied().filter(|&byte| byte != 0).collect();
        format.push(0);
        let mut buffers =
            Box::new([0; 3].map(|_: u8| ptr::without_provenance::<c_void>(input.number() as usize)));
        let (length, null_count, offset) =
            (input.number() as i64, input.number() as i64, input.number() as i64);
        let has = input.byte();
        let schema = ArrowSchema {
            format: if has & 1 != 0 { ptr::null() } else { format.as_ptr().cast() },
            name: ptr::null(),
            metadata: ptr::null(),
            flags: 0,
            n_children: 0,
            children: ptr::null_mut(),
            dictionary: ptr::null_mut(),
            release: Some(release_schema),
            private_data: ptr::null_mut(),
        };
        let array = ArrowArray {
            length,
            null_count,
            offset,
            n_buffers: i64::from(has >> 4) % 4,
            n_children: 0,
            buffers: if has & 2 != 0 { ptr::null_mut() } else { buffers.as_mut_ptr() },
            children: ptr::null_mut(),
            dictionary: ptr::null_mut(),
            release: Some(release_array),
            private_data: ptr::null_mut(),
        };
        Level { schema, array, _format: format, _buffers: buffers }
    }
}

fn arrow(input: &mut Bytes<'_>) -> usize {
    let nested = !input.byte().is_multiple_of(4);
    let mut outer = Level::new(input);
    let mut inner = Level::new(input);
    let (mut schemas, mut arrays) = ([&raw mut inner.schema], [&raw mut inner.array]);
    if nested {
        (outer.schema.n_children, outer.array.n_children) = (1, 1);
        (outer.schema.children, outer.array.children) = (schemas.as_mut_ptr(), arrays.as_mut_ptr());
    }
    // SAFETY: both are laid out as the interface says, with as many children and buffers as they say;
    // the parents' callbacks don't release the children, which own nothing.
    let taken = unsafe { arrow::import(NonNull::from(&mut outer.schema), NonNull::from(&mut outer.array)) };
    match taken {
        Ok((foreign, _)) => check(&foreign),
        Err(refusal) => assert!(!refusal.0.is_empty()),
    }
    2
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let numbers = |numbers: &[u64]| numbers.iter().copied().flat_map(u64::to_le_bytes).collect::<Vec<_>>();
    let axes = |given: &[u64]| numbers(&[given, &vec![0; 64 - given.len()][..]].concat());
    let tensor = |form: u8, ndim: u8, has: u8, shape: &[u64], strides: &[u64]| {
        let head = [form, 1, 3, 1, 1, 2, 32, 1, 0, ndim];
        [&head[..], &numbers(&[1 << 32, 0]), &[has], &axes(shape), &axes(strides)].concat()
    };
    let level = |format: &str, buffers: u8, length: u64| {
        let body = numbers(&[0, 1 << 32, 0, length, 0, 0]);
        [&[format.len() as u8], format.as_bytes(), &body, &[buffers << 4]].concat()
    };
    vec![
        tensor(0, 2, 3, &[3, 4], &[4, 1]),
        tensor(0, 2, 3, &[3, 4], &[u64::MAX, 3]),
        tensor(0, 0, 0, &[], &[]),
        tensor(1, 3, 1, &[3, 0, 4], &[]),
        tensor(1, 1, 1, &[1 << 62], &[]),
        [&[2, 0], &level("f", 2, 10)[..]].concat(),
        [&[2, 1], &level("+w:4", 1, 3)[..], &level("C", 2, 12)].concat(),
        [&[2, 1], &level("+w:999", 1, 3)[..], &level("g", 2, u64::MAX)].concat(),
    ]
}

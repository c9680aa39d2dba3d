//! Whatever an Arrow array says, an import is refused or stays inside the memory that it described.

use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering::*};

use ropeway_exchange::abi::{ArrowArray, ArrowSchema};
use ropeway_exchange::arrow;

unsafe extern "C" fn schema_done(schema: *mut ArrowSchema) {
    // SAFETY: the schemas of these tests have a counter.
    unsafe {
        (*(*schema).private_data.cast::<AtomicUsize>()).fetch_add(1, AcqRel);
        (*schema).release = None;
    }
}

unsafe extern "C" fn array_done(array: *mut ArrowArray) {
    // SAFETY: the arrays of these tests have a counter.
    unsafe {
        (*(*array).private_data.cast::<AtomicUsize>()).fetch_add(1, AcqRel);
        (*array).release = None;
    }
}

fn schema(format: &'static CStr, children: *mut *mut ArrowSchema, count: &AtomicUsize) -> ArrowSchema {
    ArrowSchema {
        format: format.as_ptr(),
        name: ptr::null(),
        metadata: ptr::null(),
        flags: 0,
        n_children: i64::from(!children.is_null()),
        children,
        dictionary: ptr::null_mut(),
        release: Some(schema_done),
        private_data: ptr::from_ref(count).cast_mut().cast::<c_void>(),
    }
}

fn array(
    length: i64,
    buffers: &mut [*const c_void],
    children: *mut *mut ArrowArray,
    count: &AtomicUsize,
) -> ArrowArray {
    ArrowArray {
        length,
        null_count: 0,
        offset: 0,
        n_buffers: buffers.len() as i64,
        n_children: i64::from(!children.is_null()),
        buffers: buffers.as_mut_ptr(),
        children,
        dictionary: ptr::null_mut(),
        release: Some(array_done),
        private_data: ptr::from_ref(count).cast_mut().cast::<c_void>(),
    }
}

/// Why an import is refused; both structures are released once, whatever comes of it.
fn refusal(schema: &mut ArrowSchema, array: &mut ArrowArray, count: &AtomicUsize) -> Option<String> {
    // SAFETY: the tests make structures whose pointers lead somewhere or are null.
    let taken = unsafe { arrow::import(NonNull::from(&mut *schema), NonNull::from(&mut *array)) };
    let why = taken.map(drop).err().map(|refusal| refusal.0);
    assert_eq!(count.load(Acquire), 2);
    assert!(schema.release.is_none() && array.release.is_none());
    why
}

#[test]
fn lists_that_are_their_own_items_are_refused() {
    let count = AtomicUsize::new(0);
    let mut inner = (ptr::null_mut(), ptr::null_mut());
    let mut buffers = [ptr::null()];
    let mut schema = schema(c"+w:1", &raw mut inner.0, &count);
    let mut array = array(1, &mut buffers, &raw mut inner.1, &count);
    inner = (&raw mut schema, &raw mut array);
    assert!(refusal(&mut schema, &mut array, &count).unwrap().contains("nested"));
    assert!(!inner.0.is_null() && !inner.1.is_null());
}

#[test]
fn lists_without_items_are_refused() {
    let count = AtomicUsize::new(0);
    let mut inner = (ptr::null_mut(), ptr::null_mut());
    let mut buffers = [ptr::null()];
    let mut schema = schema(c"+w:1", &raw mut inner.0, &count);
    let mut array = array(1, &mut buffers, &raw mut inner.1, &count);
    assert!(refusal(&mut schema, &mut array, &count).unwrap().contains("can't be read"));
}

#[test]
fn numbers_without_memory_or_with_odd_lengths_are_refused() {
    let memory = [1.0f64, 2.0];
    let data = memory.as_ptr().cast::<c_void>();
    for (length, offset, data, why) in [
        (2, 0, ptr::null(), Some("no memory")),
        (-1, 0, data, Some("can't be")),
        (2, -1, data, Some("can't be")),
        (i64::MAX, 1, data, Some("can't be")),
        (i64::MAX / 2, 0, data, Some("more than there can be")),
        (2, 0, ptr::without_provenance(usize::MAX - 7), Some("address space")),
        (2, 0, data, None),
        (0, 0, ptr::null(), None),
    ] {
        let count = AtomicUsize::new(0);
        let mut buffers = [ptr::null(), data];
        let mut schema = schema(c"g", ptr::null_mut(), &count);
        let mut array = array(length, &mut buffers, ptr::null_mut(), &count);
        array.offset = offset;
        let found = refusal(&mut schema, &mut array, &count);
        match why {
            Some(why) => assert!(found.unwrap().contains(why), "{length} from {offset}"),
            None => assert_eq!(found, None),
        }
    }
}

//! The owner of an export is dropped once, by whoever lets go last, on whatever thread.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::thread;

use ropeway_exchange::abi::{ArrowArray, DLManagedTensor, DLManagedTensorVersioned};
use ropeway_exchange::{Foreign, Owner, Tensor, arrow, dtype, export};

#[derive(Clone)]
struct Counted {
    drops: Arc<AtomicUsize>,
    _numbers: Arc<Vec<u64>>,
}

// SAFETY: the vector is never changed; counting needs nothing of any thread.
unsafe impl Owner for Counted {}

impl Drop for Counted {
    fn drop(&mut self) {
        self.drops.fetch_add(1, AcqRel);
    }
}

struct Case {
    drops: Arc<AtomicUsize>,
    numbers: Arc<Vec<u64>>,
}

impl Case {
    fn new() -> Case {
        Case { drops: Arc::default(), numbers: Arc::new((0..24).collect()) }
    }

    fn owner(&self) -> Counted {
        Counted { drops: self.drops.clone(), _numbers: self.numbers.clone() }
    }

    fn data(&self) -> *mut u8 {
        self.numbers.as_ptr().cast_mut().cast()
    }

    fn tensor<'a>(&self, shape: &'a [i64], strides: &'a [i64]) -> Tensor<'a> {
        Tensor { data: self.data(), dtype: dtype::code("<u8").unwrap(), shape, strides }
    }

    fn drops(&self) -> usize {
        self.drops.load(Acquire)
    }
}

struct Everywhere<T>(NonNull<T>);
// SAFETY: DLPack lets any thread call a deleter.
unsafe impl<T> Send for Everywhere<T> {}

#[test]
fn a_versioned_tensor_is_what_was_exported() {
    let case = Case::new();
    let given = export::versioned(&case.tensor(&[4, 1, 6], &[6, 77, 1]), 1, case.owner());
    // SAFETY: it was just made and nobody has let go of it.
    let managed = unsafe { given.as_ref() };
    assert_eq!((managed.version.major, managed.version.minor, managed.flags), (1, 3, 1));
    assert_eq!((managed.tensor.ndim, managed.tensor.byte_offset), (3, 0));
    // SAFETY: it has three axes.
    let strides = unsafe { std::slice::from_raw_parts(managed.tensor.strides, 3) };
    assert_eq!(strides, [6, 6, 1], "the stride of an axis of length 1 is as in C order");
    // SAFETY: it comes from `export`.
    let foreign = unsafe { Foreign::versioned(given) }.unwrap();
    assert_eq!((foreign.data, foreign.readonly, foreign.dtype), (case.data(), true, "<u8"));
    assert_eq!((foreign.layout.shape.as_slice(), foreign.layout.span), ([4, 1, 6].as_slice(), 24 * 8));
    assert_eq!(case.drops(), 0);
    drop(foreign);
    assert_eq!(case.drops(), 1);
}

#[test]
fn no_axes_and_no_elements_are_said_as_the_standard_wants() {
    let case = Case::new();
    let none = export::versioned(&case.tensor(&[], &[]), 0, case.owner());
    let empty = export::versioned(&case.tensor(&[5, 0], &[0, 1]), 0, case.owner());
    // SAFETY: both were just made.
    let (none_said, empty_said) = unsafe { (none.as_ref().tensor, empty.as_ref().tensor) };
    assert!(none_said.shape.is_null() && none_said.strides.is_null() && !none_said.data.is_null());
    assert!(empty_said.data.is_null() && !empty_said.strides.is_null());
    // SAFETY: both come from `export`.
    let (none, empty) = unsafe { (Foreign::versioned(none).unwrap(), Foreign::versioned(empty).unwrap()) };
    assert_eq!((none.layout.len(), empty.layout.len(), empty.layout.is_empty()), (1, 0, true));
}

#[test]
fn deleters_run_on_any_thread() {
    let case = Case::new();
    let tensor = case.tensor(&[24], &[1]);
    let new = Everywhere(export::versioned(&tensor, 0, case.owner()));
    let old = Everywhere(export::unversioned(&tensor, case.owner()).unwrap());
    thread::spawn(move || {
        let (new, old) = (new, old);
        let (new, old): (NonNull<DLManagedTensorVersioned>, NonNull<DLManagedTensor>) = (new.0, old.0);
        // SAFETY: each deleter is called once.
        unsafe { (new.as_ref().deleter.unwrap())(new.as_ptr()) };
        // SAFETY: as above.
        unsafe { (old.as_ref().deleter.unwrap())(old.as_ptr()) };
    })
    .join()
    .unwrap();
    assert_eq!(case.drops(), 2);
}

#[test]
fn a_refused_tensor_is_let_go_of() {
    let case = Case::new();
    let mut given = export::versioned(&case.tensor(&[24], &[1]), 0, case.owner());
    // SAFETY: it was just made.
    unsafe { given.as_mut() }.version.major = 2;
    // SAFETY: it comes from `export`.
    let refusal = unsafe { Foreign::versioned(given) }.unwrap_err();
    assert!(refusal.0.contains("DLPack 2.3"), "{refusal}");
    assert_eq!(case.drops(), 1);
}

#[test]
fn old_consumers_get_no_negative_strides() {
    let case = Case::new();
    let refusal = export::unversioned(&case.tensor(&[24], &[-1]), case.owner()).unwrap_err();
    assert!(refusal.0.contains("negative"), "{refusal}");
    assert_eq!(case.drops(), 1);
}

#[test]
fn arrow_rows_come_back_with_their_shape() {
    let case = Case::new();
    for (shape, rows) in [(vec![24], None), (vec![4, 2, 3], Some("{\"shape\":[2,3]}"))] {
        let (mut schema, mut array) = arrow::export(case.data(), "<u8", &shape, case.owner()).unwrap();
        let before = case.drops();
        // SAFETY: both come from `export`.
        let (foreign, details) =
            unsafe { arrow::import(NonNull::from(&mut schema), NonNull::from(&mut array)) }.unwrap();
        assert!(schema.is_released() && array.is_released(), "both were taken over");
        assert_eq!((foreign.data, details.as_deref()), (case.data(), rows));
        assert_eq!(foreign.layout.len(), 24);
        assert_eq!(case.drops(), before);
        drop(foreign);
        assert_eq!(case.drops(), before + 1);
    }
}

#[test]
fn a_child_that_was_moved_out_keeps_the_memory() {
    let case = Case::new();
    let (mut schema, mut array) = arrow::export(case.data(), "<u8", &[4, 6], case.owner()).unwrap();
    // SAFETY: a list has one child; moving it out leaves a null callback behind.
    let mut child: ArrowArray = unsafe {
        let child = *array.children;
        let moved = child.read();
        (*child).release = None;
        moved
    };
    // SAFETY: each callback is called once.
    unsafe { (array.release.unwrap())(&mut array) };
    assert_eq!(case.drops(), 0);
    // SAFETY: as above.
    unsafe { (child.release.unwrap())(&mut child) };
    assert_eq!(case.drops(), 1);
    // SAFETY: as above.
    unsafe { (schema.release.unwrap())(&mut schema) };
    assert!(schema.is_released() && array.is_released() && child.is_released());
}

#[test]
fn a_release_callback_that_is_called_again_does_nothing() {
    let case = Case::new();
    let (mut schema, mut array) = arrow::export(case.data(), "<u8", &[4, 6], case.owner()).unwrap();
    let (release_schema, release_array) = (schema.release.unwrap(), array.release.unwrap());
    for _ in 0..2 {
        // SAFETY: both structures are still there, released or not.
        unsafe { release_schema(&mut schema) };
        // SAFETY: as above.
        unsafe { release_array(&mut array) };
        assert!(schema.is_released() && array.is_released());
        assert_eq!(case.drops(), 1);
    }
}

#[test]
fn memory_is_aligned_or_there_is_none() {
    for bytes in [0, 1, 63, 64, 1000] {
        assert_eq!(export::Heap::new(bytes).unwrap().data().addr() % 64, 0);
    }
    assert!(export::Heap::new(1 << 62).is_err());
    let case = Case::new();
    let (shape, strides) = ([1 << 58], [0]);
    assert!(export::Heap::copy_of(&case.tensor(&shape, &strides)).is_err());
}

#![allow(unsafe_code)]
//! The elements of an array as Rust slices, which keep the slot where it is while they live.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::slice;

use crate::export::Export;

/// The elements of one array of a held slot, in C order.
///
/// It is an export as any other: while it lives, `publish` and `release` refuse.
pub struct View<'a, T> {
    export: Export,
    len: usize,
    lease: PhantomData<&'a [T]>,
}

impl<T> View<'_, T> {
    /// # Safety
    /// The export has `len` valid and aligned elements, and no `ViewMut` over them lives during `'a`.
    pub(crate) unsafe fn new(export: Export, len: usize) -> Self {
        View { export, len, lease: PhantomData }
    }
}

impl<T> Deref for View<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` was promised elements; the export keeps the mapping, and the slot from others.
        unsafe { slice::from_raw_parts(self.export.as_ptr().cast(), self.len) }
    }
}

/// The elements of one array of a slot that is held to write, in C order.
///
/// It is an export as any other: while it lives, `publish` and `release` refuse.
pub struct ViewMut<'a, T> {
    export: Export,
    len: usize,
    lease: PhantomData<&'a mut [T]>,
}

impl<T> ViewMut<'_, T> {
    /// # Safety
    /// The export is writable and has `len` valid and aligned elements, and nothing else of this
    /// process reads or writes them during `'a`.
    pub(crate) unsafe fn new(export: Export, len: usize) -> Self {
        ViewMut { export, len, lease: PhantomData }
    }
}

impl<T> Deref for ViewMut<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` was promised elements; the export keeps the mapping, and the slot from others.
        unsafe { slice::from_raw_parts(self.export.as_ptr().cast(), self.len) }
    }
}

impl<T> DerefMut for ViewMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `new` was promised that nothing aliases, and `self` is borrowed alone.
        unsafe { slice::from_raw_parts_mut(self.export.as_ptr().cast(), self.len) }
    }
}

#![allow(unsafe_code)]
//! A view of a held slot, whoever has it.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::Result;
use crate::exports::Kind;
use crate::hold::Hold;
use crate::memory::Pages;

/// A live view of a held slot: while it lives, the slot doesn't move on.
pub struct Export {
    hold: Arc<Hold>,
    /// Which of the slot's arrays it is.
    array: usize,
    kind: Kind,
    start: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the bytes stay mapped while `hold` lives; who may touch them when is the lease's rule,
// the same for every thread.
unsafe impl Send for Export {}
// SAFETY: as above.
unsafe impl Sync for Export {}

impl Export {
    /// The caller has checked that the lease is open.
    #[inline(always)]
    pub(crate) fn new(hold: &Arc<Hold>, array: usize, offset: u64, len: u64) -> Result<Export> {
        // Counting and ending are on the same word, so no export begins once the lease has ended.
        hold.count_export(array, Kind::Array, false)?;
        let mut export = Export {
            hold: hold.clone(),
            array,
            kind: Kind::Array,
            start: NonNull::dangling(),
            len: len as usize,
            writable: hold.writes() || hold.pages == Pages::Private,
        };
        export.start = NonNull::new(hold.address(offset, len)?).expect("a mapping isn't at address 0");
        Ok(export)
    }

    /// The same memory once more, for somebody who lets go of it at another time. Works as long as
    /// this export lives, even if the lease has ended.
    pub fn again(&self, kind: Kind) -> Result<Export> {
        self.hold.count_export(self.array, kind, true)?;
        let Export { array, start, len, writable, .. } = *self;
        Ok(Export { hold: self.hold.clone(), array, kind, start, len, writable })
    }

    /// How messages call the slot.
    pub fn label(&self) -> String {
        self.hold.label()
    }

    /// Whether what is written reaches nobody else.
    pub fn is_private(&self) -> bool {
        self.hold.pages == Pages::Private
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for an array without elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the lease allows writing.
    pub fn is_writable(&self) -> bool {
        self.writable
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.hold.drop_export(self.array, self.kind);
    }
}

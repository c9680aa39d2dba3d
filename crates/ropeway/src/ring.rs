//! All slots of one field of a packed pool as one array.

use std::sync::Arc;

use crate::attachment::Attachment;
use crate::field::Field;

/// All slots of one field as one stretch of memory.
#[derive(Clone)]
pub struct Ring {
    pub(crate) at: Arc<Attachment>,
    pub(crate) base: u64,
    /// The field as it is in one slot.
    pub field: Field,
    /// Number of slots.
    pub slots: usize,
}

impl Ring {
    /// The first byte of slot 0.
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.memory.at(self.base)
    }

    /// Bytes of all slots together.
    pub fn len(&self) -> usize {
        self.field.bytes() as usize * self.slots
    }

    /// Never: a field of a ring has bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The lengths of the first axis nearest to the present one with which slots leave no gap.
pub(crate) fn nearest(field: &Field) -> String {
    let Some((&first, rest)) = field.shape.split_first() else { return "it has no axis to change".into() };
    let row = rest.iter().product::<u64>() * u64::from(field.itemsize);
    let fits = |n: &u64| *n > 0 && (n * row).is_multiple_of(64);
    let below = (0..first).rev().find(fits);
    let above = (first + 1..first + 65).find(fits);
    let sizes: Vec<_> = below.into_iter().chain(above).map(|n| n.to_string()).collect();
    format!("e.g. a first axis of {}", sizes.join(" or "))
}

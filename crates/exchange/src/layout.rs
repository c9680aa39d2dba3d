//! Where the elements of an array lie, checked once.

use std::ops::{Deref, DerefMut};

use crate::{Result, refuse};

/// The most axes that an array may have.
pub const MAX_NDIM: usize = 64;

/// A shape and strides (in elements) that have been checked, and the bytes between which they stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Elements along each axis.
    pub shape: Vec<i64>,
    /// Elements from one to the next along each axis.
    pub strides: Vec<i64>,
    /// Bytes from the lowest byte of any element to the first element.
    pub before: usize,
    /// Bytes from the lowest to behind the highest byte of any element.
    pub span: usize,
}

impl Layout {
    /// Checks shape and strides (none means C order) of elements of `itemsize` bytes.
    ///
    /// # Errors
    ///
    /// More than [`MAX_NDIM`] axes, a negative length, or more than `isize::MAX` bytes, be it of
    /// elements or from the lowest to the highest.
    pub fn new(shape: &[i64], strides: Option<&[i64]>, itemsize: usize) -> Result<Layout> {
        if shape.len() > MAX_NDIM || strides.is_some_and(|s| s.len() != shape.len()) {
            return refuse(format!("it has {} axes; at most {MAX_NDIM} are taken", shape.len()));
        }
        if let Some(length) = shape.iter().find(|&&n| n < 0) {
            return refuse(format!("its shape {shape:?} has a negative length, {length}"));
        }
        let item = itemsize as i64;
        let full = shape.iter().filter(|&&n| n != 0).try_fold(item, |all, &n| all.checked_mul(n));
        if full.is_none() {
            return refuse(format!(
                "its shape {shape:?} of {itemsize}-byte elements is more than there can be"
            ));
        }
        let mut strides = strides.map_or_else(|| compact(shape), <[i64]>::to_vec);
        if shape.contains(&0) {
            return Ok(Layout { shape: shape.to_vec(), strides: compact(shape), before: 0, span: 0 });
        }
        let Some((low, high)) = reach(shape, &strides, item) else {
            return refuse(format!(
                "its strides {strides:?} over shape {shape:?} reach further than memory does"
            ));
        };
        normalize(shape, &mut strides);
        Ok(Layout { shape: shape.to_vec(), strides, before: low as usize, span: (low + high) as usize })
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product::<i64>() as usize
    }

    /// True for an array without elements.
    pub fn is_empty(&self) -> bool {
        self.span == 0
    }

    /// True if the elements lie in C order without gaps.
    pub fn is_compact(&self) -> bool {
        self.strides == compact(&self.shape)
    }
}

/// Bytes that elements reach below the first, and from the first to behind the last.
fn reach(shape: &[i64], strides: &[i64], item: i64) -> Option<(i64, i64)> {
    let (mut low, mut high) = (0i64, item);
    for (&n, &stride) in shape.iter().zip(strides).filter(|(n, _)| **n > 1) {
        let far = (n - 1).checked_mul(stride)?.checked_mul(item)?;
        if far < 0 {
            low = low.checked_add(far.checked_neg()?)?;
        } else {
            high = high.checked_add(far)?;
        }
    }
    low.checked_add(high).map(|_| (low, high))
}

/// Strides of C order; an axis without elements counts as one of length 1.
pub(crate) fn compact(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis].max(1);
    }
    strides
}

/// Gives axes of length 1 the strides that they would have in C order.
pub(crate) fn normalize(shape: &[i64], strides: &mut [i64]) {
    let mut step = 1i64;
    for (&n, stride) in shape.iter().zip(strides).rev() {
        if n == 1 {
            *stride = step;
        }
        step = stride.saturating_mul(n);
    }
}

/// Axes that are kept without asking for memory.
const FEW: usize = 8;

/// A number for each axis. It doesn't move while it isn't changed or moved itself.
#[derive(Clone, Debug)]
pub struct Axes {
    len: usize,
    few: [i64; FEW],
    many: Vec<i64>,
}

impl FromIterator<i64> for Axes {
    fn from_iter<I: IntoIterator<Item = i64>>(numbers: I) -> Axes {
        let mut axes = Axes { len: 0, few: [0; FEW], many: Vec::new() };
        for number in numbers {
            if axes.len < FEW {
                axes.few[axes.len] = number;
            } else {
                if axes.len == FEW {
                    axes.many = axes.few.to_vec();
                }
                axes.many.push(number);
            }
            axes.len += 1;
        }
        axes
    }
}

impl Deref for Axes {
    type Target = [i64];

    fn deref(&self) -> &[i64] {
        if self.len > FEW { &self.many } else { &self.few[..self.len] }
    }
}

impl DerefMut for Axes {
    fn deref_mut(&mut self) -> &mut [i64] {
        if self.len > FEW { &mut self.many } else { &mut self.few[..self.len] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_numbers_in_order_however_many() {
        for n in [0, 1, 7, 8, 9, 64] {
            let mut axes: Axes = (0..n).collect();
            assert_eq!(*axes, (0..n).collect::<Vec<_>>());
            if let Some(last) = axes.last_mut() {
                *last = -1;
                assert_eq!(axes.iter().filter(|&&n| n == -1).count(), 1);
            }
        }
    }
}

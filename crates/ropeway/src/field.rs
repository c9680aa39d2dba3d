#![allow(unsafe_code)]
//! The arrays of a slot: name, dtype, shape, and where they lie.

use crate::error::{Error, Result};

/// Every array begins at a multiple of this many bytes.
pub const ALIGNMENT: u64 = 64;
/// Arrays of a page or more begin at a page.
pub const PAGE: u64 = 4096;

/// Name, dtype and shape of one array.
///
/// The dtype is an opaque text to the core; only its size matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The array's name, unique in its slot.
    pub name: String,
    /// The dtype, in the words of whoever reads it (`"<f4"`).
    pub dtype: String,
    /// Bytes of one element.
    pub itemsize: u32,
    /// Elements along each axis, C order.
    pub shape: Vec<u64>,
}

impl Field {
    /// Describes an array; refuses sizes that no array can have.
    pub fn new(name: &str, dtype: &str, itemsize: u32, shape: &[u64]) -> Result<Field> {
        let field = Field { name: name.into(), dtype: dtype.into(), itemsize, shape: shape.into() };
        if name.is_empty() {
            return Err(Error::Invalid(
                "the name of an array must have at least a letter, found \"\"".into(),
            ));
        }
        if field.shape.len() > 64 {
            return Err(Error::Invalid(format!(
                "array {name:?}: at most 64 dimensions are supported, found {}",
                shape.len()
            )));
        }
        match field.checked_bytes() {
            Some(_) => Ok(field),
            None => Err(Error::Invalid(format!(
                "array {name:?}: shape {shape:?} of {itemsize}-byte elements is larger than 2^63 - 1 bytes"
            ))),
        }
    }

    /// Bytes of the array.
    pub fn bytes(&self) -> u64 {
        self.checked_bytes().expect("a Field's size was checked when it was made")
    }

    fn checked_bytes(&self) -> Option<u64> {
        let empty = self.shape.contains(&0);
        let bytes = self
            .shape
            .iter()
            .filter(|&&n| n != 0)
            .try_fold(u64::from(self.itemsize), |all, &n| all.checked_mul(n))
            .filter(|&all| all <= i64::MAX as u64)?;
        Some(if empty { 0 } else { bytes })
    }
}

/// A Rust number that can be an element of an array: any bits are a value of it.
///
/// # Safety
/// The type has no padding, no invalid bits, and `DTYPE` describes it.
pub unsafe trait Element: Copy + 'static {
    /// The dtype text of the element.
    const DTYPE: &'static str;
}

macro_rules! elements {
    ($($rust:ty => $text:literal),*) => {
        $(
            // SAFETY: a primitive number has neither padding nor invalid bits; the text is NumPy's for it.
            unsafe impl Element for $rust { const DTYPE: &'static str = $text; }
        )*
    };
}
#[cfg(target_endian = "little")]
elements!(u8 => "|u1", i8 => "|i1", u16 => "<u2", i16 => "<i2", u32 => "<u4", i32 => "<i4",
          u64 => "<u8", i64 => "<i8", f32 => "<f4", f64 => "<f8");

/// Rounds up to a multiple of a power of two.
pub(crate) fn round_up(n: u64, multiple: u64) -> Option<u64> {
    n.checked_add(multiple - 1).map(|n| n & !(multiple - 1))
}

/// The alignment of an array of that many bytes.
pub(crate) fn alignment(bytes: u64) -> u64 {
    if bytes >= PAGE { PAGE } else { ALIGNMENT }
}

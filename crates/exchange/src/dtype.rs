//! Element types: DLPack's codes and our texts, row by row.
//!
//! A text is what NumPy calls the type (`<f4`), or its name in ml_dtypes (`bfloat16`). What DLPack
//! or Arrow can't say is refused with a sentence that says what works instead.

use crate::abi::DLDataType;
use crate::{Result, refuse};

/// Text, code, bits, Arrow's format (where it has one).
type Row = (&'static str, u8, u8, Option<&'static str>);

const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;
const COMPLEX: u8 = 5;
const BOOL: u8 = 6;

const ROWS: [Row; 23] = [
    ("|b1", BOOL, 8, None),
    ("|i1", INT, 8, Some("c")),
    ("<i2", INT, 16, Some("s")),
    ("<i4", INT, 32, Some("i")),
    ("<i8", INT, 64, Some("l")),
    ("|u1", UINT, 8, Some("C")),
    ("<u2", UINT, 16, Some("S")),
    ("<u4", UINT, 32, Some("I")),
    ("<u8", UINT, 64, Some("L")),
    ("<f2", FLOAT, 16, Some("e")),
    ("<f4", FLOAT, 32, Some("f")),
    ("<f8", FLOAT, 64, Some("g")),
    ("<c8", COMPLEX, 64, None),
    ("<c16", COMPLEX, 128, None),
    ("bfloat16", BFLOAT, 16, None),
    ("float8_e3m4", 7, 8, None),
    ("float8_e4m3", 8, 8, None),
    ("float8_e4m3b11fnuz", 9, 8, None),
    ("float8_e4m3fn", 10, 8, None),
    ("float8_e4m3fnuz", 11, 8, None),
    ("float8_e5m2", 12, 8, None),
    ("float8_e5m2fnuz", 13, 8, None),
    ("float8_e8m0fnu", 14, 8, None),
];

/// All texts that DLPack has a code for.
pub fn texts() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|row| row.0)
}

/// DLPack's code for a type.
///
/// # Errors
///
/// A sentence that says why there is none, and what works instead.
pub fn code(text: &str) -> Result<DLDataType> {
    match ROWS.iter().find(|row| row.0 == text) {
        Some(&(_, code, bits, _)) => Ok(DLDataType { code, bits, lanes: 1 }),
        None => refuse(why_not(text, "DLPack")),
    }
}

/// Our text for a type of DLPack.
///
/// # Errors
///
/// For vectors, sub-byte elements, and codes that this version doesn't know.
pub fn text(dtype: DLDataType) -> Result<&'static str> {
    let DLDataType { code, bits, lanes } = dtype;
    if lanes != 1 {
        return refuse(format!("its elements are vectors of {lanes} numbers; only single numbers are taken"));
    }
    match ROWS.iter().find(|row| (row.1, row.2) == (code, bits)) {
        Some(row) => Ok(row.0),
        None => refuse(format!("its element type (code {code}, {bits} bits) isn't one that ropeway knows")),
    }
}

/// Arrow's format for a type.
///
/// # Errors
///
/// A sentence that says why there is none, and what works instead.
pub fn arrow_format(text: &str) -> Result<&'static str> {
    match ROWS.iter().find(|row| row.0 == text) {
        Some((_, _, _, Some(format))) => Ok(format),
        Some(("|b1", ..)) => refuse(
            "Arrow keeps eight bools in a byte, this array one: export x.view('uint8'), or convert \
             a copy, e.g. pyarrow.array(numpy.asarray(x))",
        ),
        Some(_) => refuse(format!("Arrow has no type for dtype {text}: export x.view('uint8') or DLPack")),
        None => refuse(why_not(text, "Arrow")),
    }
}

/// Our text for a format of Arrow.
///
/// # Errors
///
/// For anything but numbers of a fixed size.
pub fn from_arrow(format: &str) -> Result<&'static str> {
    match ROWS.iter().find(|row| row.3 == Some(format)) {
        Some(row) => Ok(row.0),
        None if format == "b" => refuse("Arrow's bools are bits: cast to uint8 first"),
        None => refuse(format!("Arrow's type {format:?} isn't one of numbers of a fixed size")),
    }
}

/// True for floats that NumPy knows from ml_dtypes only.
pub fn is_small_float(dtype: DLDataType) -> bool {
    dtype.code == BFLOAT || (7..=14).contains(&dtype.code)
}

/// Bytes of one element.
pub fn itemsize(dtype: DLDataType) -> usize {
    usize::from(dtype.bits) * usize::from(dtype.lanes) / 8
}

fn why_not(text: &str, protocol: &str) -> String {
    let (why, instead) = match text.as_bytes() {
        [b'{' | b'[', ..] => {
            ("structured elements", "export its fields one by one as arrays of their own, or x.view('uint8')")
        }
        [b'>', ..] => (
            "elements of a byte order other than the machine's",
            "convert it, x.astype(x.dtype.newbyteorder('='))",
        ),
        [_, b'M' | b'm', ..] => ("dates and durations", "export x.view('int64')"),
        [_, b'S' | b'U' | b'V', ..] => ("text and raw bytes", "export numpy.asarray(x).view('uint8')"),
        [_, b'f' | b'c', ..] => ("numbers of this size", "convert it, x.astype('float64') or 'complex128'"),
        _ => ("such elements", "export x.view('uint8')"),
    };
    format!("{protocol} can't say {why}, dtype {text}: {instead}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_texts_are_inverse() {
        for name in texts() {
            assert_eq!(text(code(name).unwrap()).unwrap(), name);
        }
    }

    #[test]
    fn arrow_formats_are_inverse() {
        for name in texts() {
            if let Ok(format) = arrow_format(name) {
                assert_eq!(from_arrow(format).unwrap(), name);
            }
        }
    }

    #[test]
    fn a_refusal_says_what_works_instead() {
        for (text, instead) in [
            (">f4", "newbyteorder"),
            ("<M8[ns]", "int64"),
            ("<m8", "int64"),
            ("|S5", "uint8"),
            ("<U3", "uint8"),
            ("{\"names\":[]}", "fields"),
            ("<f16", "float64"),
            ("int4", "uint8"),
        ] {
            let Refusal(why) = code(text).unwrap_err();
            assert!(why.contains(instead) && why.contains(text), "{why}");
        }
        assert!(code(">i2").unwrap_err().0.contains("byte order"));
    }

    use crate::Refusal;

    #[test]
    fn vectors_and_unknown_codes_are_refused() {
        assert!(text(DLDataType { code: FLOAT, bits: 32, lanes: 4 }).is_err());
        assert!(text(DLDataType { code: FLOAT, bits: 32, lanes: 0 }).is_err());
        assert!(text(DLDataType { code: INT, bits: 4, lanes: 1 }).is_err());
        assert!(text(DLDataType { code: 99, bits: 8, lanes: 1 }).is_err());
    }
}

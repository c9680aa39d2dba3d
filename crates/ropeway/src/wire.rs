//! Plain bytes for what is written once and read by others: numbers, strings, fields.
//!
//! The reader takes bytes that anybody may have written: each read is checked, nothing is trusted.

use crate::error::{Error, Result};
use crate::field::Field;

/// Appends values to a buffer.
#[derive(Default)]
pub(crate) struct Writer(pub Vec<u8>);

impl Writer {
    pub fn number(&mut self, n: u64) -> &mut Writer {
        self.0.extend_from_slice(&n.to_le_bytes());
        self
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Writer {
        self.number(bytes.len() as u64).0.extend_from_slice(bytes);
        self
    }

    pub fn text(&mut self, text: &str) -> &mut Writer {
        self.bytes(text.as_bytes())
    }

    pub fn field(&mut self, field: &Field) -> &mut Writer {
        self.text(&field.name).text(&field.dtype).number(field.itemsize.into());
        self.number(field.shape.len() as u64);
        for &n in &field.shape {
            self.number(n);
        }
        self
    }
}

/// Reads values back, refusing whatever doesn't fit.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8], what: &'static str) -> Reader<'a> {
        Reader { rest: bytes, what }
    }

    pub fn broken(&self, why: &str) -> Error {
        Error::Incompatible(format!("{}: {why}", self.what))
    }

    pub fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        if n > self.rest.len() {
            return Err(self.broken(&format!("{n} more bytes expected, {} found", self.rest.len())));
        }
        let (taken, rest) = self.rest.split_at(n);
        self.rest = rest;
        Ok(taken)
    }

    pub fn number(&mut self) -> Result<u64> {
        let bytes = self.take(8)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("8 bytes were taken")))
    }

    /// A count of things that follow, each of at least `size` bytes.
    pub fn count(&mut self, size: usize) -> Result<usize> {
        let n = self.number()?;
        match usize::try_from(n) {
            Ok(n) if n.checked_mul(size).is_some_and(|all| all <= self.rest.len()) => Ok(n),
            _ => Err(self.broken(&format!("{n} items can't follow in {} bytes", self.rest.len()))),
        }
    }

    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let n = self.count(1)?;
        self.take(n)
    }

    pub fn text(&mut self) -> Result<String> {
        let bytes = self.bytes()?;
        String::from_utf8(bytes.to_vec()).map_err(|_| self.broken("a text isn't UTF-8"))
    }

    pub fn field(&mut self) -> Result<Field> {
        let (name, dtype) = (self.text()?, self.text()?);
        let itemsize = u32::try_from(self.number()?).map_err(|_| self.broken("an itemsize is too large"))?;
        let shape = (0..self.count(8)?).map(|_| self.number()).collect::<Result<Vec<_>>>()?;
        Field::new(&name, &dtype, itemsize, &shape).map_err(|e| self.broken(&e.to_string()))
    }

    pub fn end(self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.broken("bytes follow behind the end")) }
    }
}

/// FNV-1a over bytes: notices accidents, not attackers.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_field_reads_back(
            name in "(?s).+", dtype: String, itemsize in 0u32..64, shape in prop::collection::vec(0u64..9, 0..5)
        ) {
            let field = Field::new(&name, &dtype, itemsize, &shape).unwrap();
            let mut writer = Writer::default();
            writer.field(&field);
            let mut reader = Reader::new(&writer.0, "test");
            prop_assert_eq!(reader.field().unwrap(), field);
            reader.end().unwrap();
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes, "test");
            while reader.field().is_ok() {}
        }
    }
}

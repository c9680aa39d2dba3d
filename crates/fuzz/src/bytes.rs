//! An input, read as numbers; what isn't there reads as 0.

/// What is left of an input.
pub(crate) struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut all = [0; N];
        let taken = self.take(N);
        all[..taken.len()].copy_from_slice(taken);
        all
    }

    pub fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}

/// The checksum of handles and configurations (FNV-1a), so that a changed input isn't refused for it.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &b| (sum ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

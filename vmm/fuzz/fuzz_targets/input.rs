//! The fuzzer's bytes as a supply of choices. A supply that has run out gives
//! zeroes, so that any input is a whole story.

/// What is left of the input.
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let n = N.min(self.0.len());
        out[..n].copy_from_slice(&self.0[..n]);
        self.0 = &self.0[n..];
        out
    }

    pub fn byte(&mut self) -> u8 {
        self.bytes::<1>()[0]
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    /// A guest address: most lie near the start of memory, where the rings are,
    /// some at its edges, some anywhere.
    pub fn address(&mut self, memory_end: u64) -> u64 {
        match self.byte() {
            0..=199 => u64::from(self.u16()),
            200..=229 => memory_end
                .wrapping_sub(8)
                .wrapping_add(u64::from(self.byte() % 16)),
            _ => u64::from_le_bytes(self.bytes()),
        }
    }
}

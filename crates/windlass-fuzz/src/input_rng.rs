//! A small generator of random numbers (xorshift), so that a seed stands for an input.

/// A seeded generator.
pub(crate) struct InputRng(u64);

impl InputRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `limit`; 0 if the limit is 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() >> 11).unwrap_or_default() % limit.max(1)
    }

    /// Returns a hash of bytes (FNV-1a).
    pub(crate) fn hash(bytes: &[u8]) -> u64 {
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}

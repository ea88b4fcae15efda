//! Chance from a seed: the same seed makes the same choices.

/// A stream of choices.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The choices of a seed, for one purpose among several.
    pub fn new(seed: u64, purpose: u64) -> Self {
        let mut chance = Self(seed ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        chance.number();
        chance
    }

    /// The next number (splitmix64).
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit.max(1)
    }
}

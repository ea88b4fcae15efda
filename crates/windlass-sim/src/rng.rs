//! A seeded pseudo-random number generator.

/// A small seeded generator (SplitMix64). Not for cryptographic use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimRng {
    state: u64,
}

const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

impl SimRng {
    /// Creates the generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Creates the generator of a seed for one purpose. Generators for different purposes are independent.
    pub fn for_purpose(seed: u64, purpose: &str) -> Self {
        let mut rng = Self::new(mix_bits(seed));
        rng.mix_in(purpose.as_bytes());
        rng
    }

    /// Mixes `bytes` into the state, so that later draws depend on them.
    pub fn mix_in(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.state = mix_bits(self.state ^ u64::from_le_bytes(word)).wrapping_add(GOLDEN_GAMMA);
        }
        self.state = mix_bits(self.state ^ bytes.len() as u64);
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN_GAMMA);
        mix_bits(self.state)
    }

    /// Returns a number below `limit`, or 0 if `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        // Takes the upper half of the product: nearly uniform, and without a division.
        let wide = u128::from(self.next_u64()) * u128::from(limit);
        (wide >> 64) as u64
    }

    /// Returns true with a probability of `percent` in 100.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns an index into a list of this length, which must not be empty.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns one of the elements.
    ///
    /// # Panics
    /// Panics if `from` is empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }
}

fn mix_bits(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::SimRng;

    #[test]
    fn a_seed_decides_every_draw() {
        let draws = |seed| {
            let mut rng = SimRng::new(seed);
            (0..100).map(|_| rng.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
    }

    #[test]
    fn purposes_do_not_disturb_each_other() {
        let draw = |purpose| SimRng::for_purpose(7, purpose).next_u64();
        assert_eq!(draw("latency"), draw("latency"));
        assert_ne!(draw("latency"), draw("model"));
        assert_ne!(draw("a"), draw("a\0"));
    }

    #[test]
    fn draws_stay_in_their_bounds_and_reach_them() {
        let mut rng = SimRng::new(1);
        let draws: Vec<u64> = (0..1000).map(|_| rng.below(5)).collect();
        for value in 0..5 {
            assert!(draws.contains(&value));
        }
        assert!(draws.iter().all(|draw| *draw < 5));
        assert_eq!(rng.below(0), 0);
        assert!(!rng.chance(0) && rng.chance(100));
    }
}

//! Numbers that look random and are decided by a seed.

/// A small generator of numbers that a seed decides (SplitMix64). Not for secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: u64,
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Rng {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The generator of a seed for one purpose. Draws for one purpose do not move those for another.
    pub fn for_purpose(seed: u64, purpose: &str) -> Self {
        let mut rng = Self::new(mixed(seed));
        rng.stir(purpose.as_bytes());
        rng
    }

    /// Makes what follows depend on `bytes` too.
    pub fn stir(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.state = mixed(self.state ^ u64::from_le_bytes(word)).wrapping_add(STEP);
        }
        self.state = mixed(self.state ^ bytes.len() as u64);
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mixed(self.state)
    }

    /// A number below `limit`; 0 where that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        // The upper half of the product: even enough, and without division.
        let wide = u128::from(self.draw()) * u128::from(limit);
        (wide >> 64) as u64
    }

    /// Yes, in so many of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A place in a list of this length, which must not be empty.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// One of these.
    ///
    /// # Panics
    /// Where there are none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }
}

fn mixed(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn a_seed_decides_every_draw() {
        let draws = |seed| {
            let mut rng = Rng::new(seed);
            (0..100).map(|_| rng.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
    }

    #[test]
    fn purposes_do_not_disturb_each_other() {
        let draw = |purpose| Rng::for_purpose(7, purpose).draw();
        assert_eq!(draw("latency"), draw("latency"));
        assert_ne!(draw("latency"), draw("model"));
        assert_ne!(draw("a"), draw("a\0"));
    }

    #[test]
    fn draws_stay_in_their_bounds_and_reach_them() {
        let mut rng = Rng::new(1);
        let draws: Vec<u64> = (0..1000).map(|_| rng.below(5)).collect();
        for value in 0..5 {
            assert!(draws.contains(&value));
        }
        assert!(draws.iter().all(|draw| *draw < 5));
        assert_eq!(rng.below(0), 0);
        assert!(!rng.chance(0) && rng.chance(100));
    }
}

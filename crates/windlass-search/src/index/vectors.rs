//! The vectors of a segment, and how the nearest are found.
//!
//! A small index is scanned whole, a byte for each number. A large one is scanned by signs first, a bit for each
//! number, which finds some thousands that may be near; those are then compared by their bytes. What is on disk is the
//! same either way, and nothing has to be learnt from it, so files come and go as they like.

use std::sync::OnceLock;

use rusqlite::{Connection, OptionalExtension};

use crate::embed::{Quantised, dot};

/// An index with fewer chunks than this is scanned whole.
pub(super) const LARGE: usize = 20_000;
/// How many chunks the scan by signs leaves to be compared by their bytes: so many for each that is wanted, and not
/// fewer than this.
const LEFT_FOR_EACH: usize = 40;
const LEFT: usize = 4000;

/// A byte for each number, and what the bytes of a chunk are multiplied with.
pub(super) struct Vectors {
    scales: Vec<f32>,
    values: Vec<i8>,
    dimensions: usize,
    signs: OnceLock<Signs>,
}

/// A bit for each number, and how long the vector is beside its signs.
struct Signs {
    bits: Vec<u8>,
    factors: Vec<f32>,
}

/// What a question's vector gives with every eight signs.
pub(super) struct SignTable {
    sums: Vec<[i16; 256]>,
    scale: f32,
}

impl Vectors {
    /// Reads those of a segment. `None` where there are none of this size.
    pub(super) fn read(
        db: &Connection,
        segment: i64,
        count: usize,
        dimensions: usize,
    ) -> rusqlite::Result<Option<Self>> {
        let parse = |row: &rusqlite::Row<'_>| {
            let blob = row.get_ref(0)?.as_blob()?;
            let Some((scales, values)) = blob.split_at_checked(count * 4) else { return Ok(None) };
            if values.len() != count * dimensions {
                return Ok(None);
            }
            let scales = scales.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
            let values = values.iter().map(|byte| byte.cast_signed()).collect();
            Ok(Some(Self { scales, values, dimensions, signs: OnceLock::new() }))
        };
        let found = db
            .prepare_cached("SELECT data FROM vectors WHERE segment = ?1")?
            .query_row([segment], parse)
            .optional()?;
        Ok(found.flatten())
    }

    pub(super) fn scale(&self, at: usize) -> f32 {
        self.scales[at]
    }

    pub(super) fn values(&self, at: usize) -> &[i8] {
        &self.values[at * self.dimensions..][..self.dimensions]
    }

    /// How near a chunk is, from -1 to 1.
    pub(super) fn nearness(&self, at: usize, wanted: &Quantised) -> f32 {
        dot(self.values(at), &wanted.values) as f32 * wanted.scale * self.scales[at]
    }

    /// How near two chunks are.
    pub(super) fn between(&self, at: usize, other: &Self, other_at: usize) -> f32 {
        dot(self.values(at), other.values(other_at)) as f32 * self.scales[at] * other.scales[other_at]
    }

    /// Calls `take` with about how near every chunk is, by its signs.
    pub(super) fn by_signs(&self, table: &SignTable, mut take: impl FnMut(usize, f32)) {
        let signs = self.signs.get_or_init(|| self.signs());
        let groups = self.dimensions.div_ceil(8);
        for (at, (bits, factor)) in signs.bits.chunks_exact(groups).zip(&signs.factors).enumerate() {
            // Blocks of a fixed size are unrolled, and nothing in them has to be checked.
            let (blocks, rest) = bits.as_chunks::<8>();
            let (tables, rest_tables) = table.sums.as_chunks::<8>();
            let mut sum = 0;
            for (bits, sums) in blocks.iter().zip(tables) {
                for at in 0..8 {
                    sum += i32::from(sums[at][usize::from(bits[at])]);
                }
            }
            for (bits, sums) in rest.iter().zip(rest_tables) {
                sum += i32::from(sums[usize::from(*bits)]);
            }
            take(at, sum as f32 * table.scale * factor);
        }
    }

    fn signs(&self) -> Signs {
        let groups = self.dimensions.div_ceil(8);
        let mut bits = Vec::with_capacity(self.scales.len() * groups);
        let mut factors = Vec::with_capacity(self.scales.len());
        for values in self.values.chunks_exact(self.dimensions.max(1)) {
            for eight in values.chunks(8) {
                bits.push(eight.iter().rev().fold(0, |bits, value| bits << 1 | u8::from(*value > 0)));
            }
            // A vector of length one is its signs times this, as near as one number for all of them can say.
            let whole: u32 = values.iter().map(|value| u32::from(value.unsigned_abs())).sum();
            let squares: u32 = values.iter().map(|value| u32::from(value.unsigned_abs()).pow(2)).sum();
            factors.push((squares as f32).sqrt() / whole.max(1) as f32);
        }
        Signs { bits, factors }
    }

    /// How many bytes it holds in memory, about.
    pub(super) fn bytes(&self) -> usize {
        let signs = self.signs.get().map_or(0, |signs| signs.bits.len() + signs.factors.len() * 4);
        self.values.len() + self.scales.len() * 4 + signs
    }
}

impl SignTable {
    pub(super) fn of(wanted: &Quantised) -> Self {
        let sums = wanted
            .values
            .chunks(8)
            .map(|eight| {
                std::array::from_fn(|bits| {
                    let signed = eight.iter().enumerate().map(|(at, value)| {
                        let value = i16::from(*value);
                        if bits >> at & 1 == 1 { value } else { -value }
                    });
                    signed.sum()
                })
            })
            .collect();
        Self { sums, scale: wanted.scale }
    }
}

/// How many chunks are compared by their bytes to find so many.
pub(super) fn left_for(most: usize) -> usize {
    LEFT.max(most * LEFT_FOR_EACH)
}

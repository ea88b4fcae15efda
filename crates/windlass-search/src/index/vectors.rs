//! The quantised vectors of a segment, and the search for nearest neighbours.
//!
//! A small index is scanned exhaustively with one byte per dimension (scalar quantisation). A large index is
//! scanned with one sign bit per dimension (binary quantisation) for some thousands of candidates, which are
//! then rescored with their bytes. The format on disk is the same in both cases and needs no training, so files
//! can be added and removed freely.

use std::sync::OnceLock;

use rusqlite::{Connection, OptionalExtension};

use crate::embed::{QuantisedVector, dot_product};

/// Minimum number of chunks for the sign scan; a smaller index is scanned exhaustively.
pub(super) const SIGN_SCAN_MIN_CHUNKS: usize = 20_000;
/// Number of candidates that the sign scan keeps per requested result, and the minimum number of candidates.
const CANDIDATES_PER_RESULT: usize = 40;
const MIN_CANDIDATES: usize = 4000;

/// The vectors of a segment: one byte per dimension, and a scale per chunk.
pub(super) struct SegmentVectors {
    scales: Vec<f32>,
    values: Vec<i8>,
    dimensions: usize,
    signs: OnceLock<SignBits>,
}

/// The sign bits of the vectors, and per chunk the factor that scales a dot product with its signs.
struct SignBits {
    bits: Vec<u8>,
    factors: Vec<f32>,
}

/// A lookup table of the query's partial dot products with every pattern of eight sign bits.
pub(super) struct SignLookupTable {
    sums: Vec<[i16; 256]>,
    scale: f32,
}

impl SegmentVectors {
    /// Loads the vectors of a segment; `None` if it has no vectors of this dimension.
    pub(super) fn load(
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

    /// Returns the cosine similarity of a chunk and the query, -1 to 1.
    pub(super) fn similarity(&self, at: usize, wanted: &QuantisedVector) -> f32 {
        dot_product(self.values(at), &wanted.values) as f32 * wanted.scale * self.scales[at]
    }

    /// Returns the cosine similarity of two chunks.
    pub(super) fn similarity_between(&self, at: usize, other: &Self, other_at: usize) -> f32 {
        dot_product(self.values(at), other.values(other_at)) as f32 * self.scales[at] * other.scales[other_at]
    }

    /// Calls `take` with every chunk and its approximate similarity, computed from its sign bits.
    pub(super) fn scan_signs(&self, table: &SignLookupTable, mut take: impl FnMut(usize, f32)) {
        let signs = self.signs.get_or_init(|| self.compute_signs());
        let groups = self.dimensions.div_ceil(8);
        for (at, (bits, factor)) in signs.bits.chunks_exact(groups).zip(&signs.factors).enumerate() {
            // The compiler unrolls blocks of a fixed size and omits their bounds checks.
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

    fn compute_signs(&self) -> SignBits {
        let groups = self.dimensions.div_ceil(8);
        let mut bits = Vec::with_capacity(self.scales.len() * groups);
        let mut factors = Vec::with_capacity(self.scales.len());
        for values in self.values.chunks_exact(self.dimensions.max(1)) {
            for eight in values.chunks(8) {
                bits.push(eight.iter().rev().fold(0, |bits, value| bits << 1 | u8::from(*value > 0)));
            }
            // Scaled by ‖v‖ / ‖v‖₁, the signs have a dot product of 1 with the unit vector (as in RaBitQ).
            let whole: u32 = values.iter().map(|value| u32::from(value.unsigned_abs())).sum();
            let squares: u32 = values.iter().map(|value| u32::from(value.unsigned_abs()).pow(2)).sum();
            factors.push((squares as f32).sqrt() / whole.max(1) as f32);
        }
        SignBits { bits, factors }
    }

    /// Returns the approximate number of bytes held in memory.
    pub(super) fn memory_bytes(&self) -> usize {
        let signs = self.signs.get().map_or(0, |signs| signs.bits.len() + signs.factors.len() * 4);
        self.values.len() + self.scales.len() * 4 + signs
    }
}

impl SignLookupTable {
    pub(super) fn for_query(wanted: &QuantisedVector) -> Self {
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

/// Returns the number of candidates to rescore for `most` results.
pub(super) fn candidate_count(most: usize) -> usize {
    MIN_CANDIDATES.max(most * CANDIDATES_PER_RESULT)
}

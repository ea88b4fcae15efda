//! Score fusion: several rankings become one.

use std::collections::BTreeMap;

use super::rank::RankedChunk;

/// A ranking with its weight in the fusion.
pub(super) struct WeightedRanking<'a> {
    pub(super) ranking: &'a [RankedChunk],
    pub(super) weight: f32,
}

/// Number of top entries of a ranking whose scores are min-max normalised to 0..1. Later entries keep their
/// order, with a score of almost 0.
const NORMALISED_HEAD: usize = 100;
const TAIL_SCORE: f32 = 1e-4;

/// Fuses rankings by the weighted sum of their min-max normalised scores, because BM25 scores and vector
/// similarities have different scales. A chunk scores 0 in a ranking that does not contain it. The maximum score
/// is 1.
pub(super) fn fuse_rankings(shares: &[WeightedRanking<'_>]) -> Vec<RankedChunk> {
    let whole: f32 = shares.iter().filter(|share| !share.ranking.is_empty()).map(|share| share.weight).sum();
    let mut sums: BTreeMap<usize, f32> = BTreeMap::new();
    for share in shares {
        let head = &share.ranking[..share.ranking.len().min(NORMALISED_HEAD)];
        let (Some(first), Some(last)) = (head.first(), head.last()) else { continue };
        // A short ranking is complete: its last entry still ranks above every chunk that is absent from it.
        let floor = if share.ranking.len() < NORMALISED_HEAD { 0.0 } else { last.score };
        let spread = first.score - floor;
        for (at, ranked) in share.ranking.iter().enumerate() {
            let tail = TAIL_SCORE / (1.0 + at as f32);
            // A single entry, or entries of equal score, get the maximum.
            let part = if spread > 0.0 { ((ranked.score - floor) / spread).max(tail) } else { 1.0 };
            *sums.entry(ranked.chunk_ordinal).or_default() +=
                part * share.weight / whole.max(f32::MIN_POSITIVE);
        }
    }
    let mut fused: Vec<RankedChunk> =
        sums.into_iter().map(|(slot, score)| RankedChunk { chunk_ordinal: slot, score }).collect();
    fused.sort_by(|left, right| {
        right.score.total_cmp(&left.score).then(left.chunk_ordinal.cmp(&right.chunk_ordinal))
    });
    fused
}

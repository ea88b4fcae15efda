//! Several lists become one.

use std::collections::BTreeMap;

use super::rank::Ranked;

/// One list, and how much it counts.
pub(super) struct Share<'a> {
    pub(super) list: &'a [Ranked],
    pub(super) weight: f32,
}

/// The best so many of each list are spread over 0 to 1. What comes after them keeps its order, and next to no weight.
const SPREAD: usize = 100;
const TAIL: f32 = 1e-4;

/// Puts lists together. Each is first spread over 0 to 1, because the scores of words and of vectors are not of one
/// kind; what is not in a list has 0 from it. The best possible result has 1.
pub(super) fn fuse(shares: &[Share<'_>]) -> Vec<Ranked> {
    let whole: f32 = shares.iter().filter(|share| !share.list.is_empty()).map(|share| share.weight).sum();
    let mut sums: BTreeMap<usize, f32> = BTreeMap::new();
    for share in shares {
        let head = &share.list[..share.list.len().min(SPREAD)];
        let (Some(first), Some(last)) = (head.first(), head.last()) else { continue };
        // A list that ends early is whole: what it has last is still better than what it does not have.
        let floor = if share.list.len() < SPREAD { 0.0 } else { last.score };
        let spread = first.score - floor;
        for (at, ranked) in share.list.iter().enumerate() {
            let tail = TAIL / (1.0 + at as f32);
            // One result alone, or several that are equal, are the best that this list has.
            let part = if spread > 0.0 { ((ranked.score - floor) / spread).max(tail) } else { 1.0 };
            *sums.entry(ranked.slot).or_default() += part * share.weight / whole.max(f32::MIN_POSITIVE);
        }
    }
    let mut fused: Vec<Ranked> = sums.into_iter().map(|(slot, score)| Ranked { slot, score }).collect();
    fused.sort_by(|left, right| right.score.total_cmp(&left.score).then(left.slot.cmp(&right.slot)));
    fused
}

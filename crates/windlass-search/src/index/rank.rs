//! Ranking of chunks: by BM25 over the posting lists, and by the similarity of their vectors to the query's.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use rusqlite::Connection;

use super::codec;
use super::phrase::MatchedPhrase;
use super::snapshot::IndexSnapshot;
use super::vectors::{SIGN_SCAN_MIN_CHUNKS, SignLookupTable, candidate_count};
use crate::embed::QuantisedVector;

/// Parameters of BM25 at their usual values: saturation of the term frequency, and length normalisation.
const BM25_K1: f32 = 1.2;
const BM25_B: f32 = 0.75;

/// A chunk, identified by its ordinal over all segments, with its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RankedChunk {
    pub(super) chunk_ordinal: usize,
    pub(super) score: f32,
}

/// A term of the query with its weight.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct QueryTerm {
    pub(super) term: String,
    pub(super) weight: f32,
}

/// The ids of the files that a search may return; `None` allows all files.
pub(super) type AllowedFiles = Option<BTreeSet<u32>>;

/// Returns the inverse document frequency of a term that occurs in `frequency` chunks.
pub(super) fn inverse_document_frequency(snapshot: &IndexSnapshot, frequency: u32) -> f32 {
    let (total, frequency) = (snapshot.chunk_count as f32, frequency as f32);
    (1.0 + ((total - frequency).max(0.0) + 0.5) / (frequency + 0.5)).ln()
}

/// Returns the top chunks by BM25. Only the posting lists of the query terms are read, so other chunks cost
/// nothing.
pub(super) fn rank_by_words(
    db: &Connection,
    snapshot: &IndexSnapshot,
    wanted: &[QueryTerm],
    phrases: &[MatchedPhrase],
    allowed: &AllowedFiles,
    most: usize,
) -> rusqlite::Result<Vec<RankedChunk>> {
    let mut lists = Vec::with_capacity(wanted.len());
    for wanted in wanted {
        let frequency = snapshot.document_frequency(db, &wanted.term)?;
        if frequency > 0 {
            lists.push((wanted, inverse_document_frequency(snapshot, frequency)));
        }
    }
    let mut best = TopKHeap::new(most);
    let mut scores: Vec<f32> = Vec::new();
    let mut statement = db.prepare_cached("SELECT data FROM postings WHERE segment = ?1 AND term = ?2")?;
    for (at, segment) in snapshot.segments.iter().enumerate() {
        scores.clear();
        scores.resize(segment.chunk_ids.len(), 0.0);
        for (wanted, rarity) in &lists {
            let mut rows = statement.query((segment.id, &wanted.term))?;
            let Some(row) = rows.next()? else { continue };
            let factor = wanted.weight * rarity * (BM25_K1 + 1.0);
            for (chunk, times) in codec::decode_postings(row.get_ref(0)?.as_blob()?) {
                let chunk = chunk as usize;
                let (Some(score), Some(length)) = (scores.get_mut(chunk), segment.chunk_lengths.get(chunk))
                else {
                    break;
                };
                let times = times as f32;
                let norm = BM25_K1 * (1.0 - BM25_B + BM25_B * *length as f32 / snapshot.average_length);
                *score += factor * times / (times + norm);
            }
        }
        for phrase in phrases {
            let factor =
                phrase.weight * inverse_document_frequency(snapshot, phrase.chunk_count) * (BM25_K1 + 1.0);
            for (chunk, times) in &phrase.matches[at] {
                let chunk = *chunk as usize;
                let (Some(score), Some(length)) = (scores.get_mut(chunk), segment.chunk_lengths.get(chunk))
                else {
                    break;
                };
                let norm = BM25_K1 * (1.0 - BM25_B + BM25_B * *length as f32 / snapshot.average_length);
                *score += factor * *times as f32 / (*times as f32 + norm);
            }
        }
        for (chunk, score) in scores.iter().enumerate() {
            if *score > best.threshold() && is_allowed(snapshot, at, chunk, allowed) {
                best.push(snapshot.segment_starts[at] + chunk, *score);
            }
        }
    }
    Ok(best.into_sorted())
}

/// Returns the nearest neighbours of a query vector: by an exact scan in a small index, by a sign scan in a
/// large one.
pub(super) fn rank_by_vector(
    db: &Connection,
    snapshot: &IndexSnapshot,
    wanted: &QuantisedVector,
    allowed: &AllowedFiles,
    most: usize,
) -> rusqlite::Result<Vec<RankedChunk>> {
    if wanted.scale == 0.0 {
        return Ok(Vec::new());
    }
    if snapshot.chunk_count >= SIGN_SCAN_MIN_CHUNKS {
        return scan_by_signs(db, snapshot, wanted, allowed, most);
    }
    scan_exact(db, snapshot, wanted, allowed, most)
}

/// Scans all quantised vectors.
fn scan_exact(
    db: &Connection,
    snapshot: &IndexSnapshot,
    wanted: &QuantisedVector,
    allowed: &AllowedFiles,
    most: usize,
) -> rusqlite::Result<Vec<RankedChunk>> {
    let mut best = TopKHeap::new(most);
    for (at, segment) in snapshot.segments.iter().enumerate() {
        let Some(vectors) = segment.load_vectors(db, wanted.values.len())? else { continue };
        for chunk in 0..segment.chunk_ids.len() {
            let score = vectors.similarity(chunk, wanted);
            if score > best.threshold() && is_allowed(snapshot, at, chunk, allowed) {
                best.push(snapshot.segment_starts[at] + chunk, score);
            }
        }
    }
    Ok(best.into_sorted())
}

/// Scans the sign bits of all vectors, and rescores the best candidates with their quantised vectors.
fn scan_by_signs(
    db: &Connection,
    snapshot: &IndexSnapshot,
    wanted: &QuantisedVector,
    allowed: &AllowedFiles,
    most: usize,
) -> rusqlite::Result<Vec<RankedChunk>> {
    let table = SignLookupTable::for_query(wanted);
    let mut near = UnorderedTopK::new(candidate_count(most));
    for (at, segment) in snapshot.segments.iter().enumerate() {
        let Some(vectors) = segment.load_vectors(db, wanted.values.len())? else { continue };
        vectors.scan_signs(&table, |chunk, score| {
            if score > near.threshold && is_allowed(snapshot, at, chunk, allowed) {
                near.push(snapshot.segment_starts[at] + chunk, score);
            }
        });
    }
    let mut best = TopKHeap::new(most);
    for RankedChunk { chunk_ordinal: slot, .. } in near.into_candidates() {
        let (segment, at) = snapshot.locate_chunk(slot);
        let Some(vectors) = segment.load_vectors(db, wanted.values.len())? else { continue };
        let score = vectors.similarity(at, wanted);
        if best.would_accept(slot, score) {
            best.push(slot, score);
        }
    }
    Ok(best.into_sorted())
}

fn is_allowed(snapshot: &IndexSnapshot, segment: usize, chunk: usize, allowed: &AllowedFiles) -> bool {
    let dead = &snapshot.deleted[segment];
    (dead.is_empty() || !u32::try_from(chunk).is_ok_and(|chunk| dead.contains(&chunk)))
        && allowed
            .as_ref()
            .is_none_or(|allowed| allowed.contains(&snapshot.segments[segment].file_ids[chunk]))
}

/// The top candidates in no order. It collects twice its capacity before it discards the worse half, which is
/// several times faster than maintaining a heap of some thousands of entries.
struct UnorderedTopK {
    capacity: usize,
    threshold: f32,
    candidates: Vec<RankedChunk>,
}

impl UnorderedTopK {
    fn new(most: usize) -> Self {
        Self { capacity: most, threshold: f32::NEG_INFINITY, candidates: Vec::with_capacity(most * 2) }
    }

    fn push(&mut self, slot: usize, score: f32) {
        self.candidates.push(RankedChunk { chunk_ordinal: slot, score });
        if self.candidates.len() >= self.capacity * 2 {
            self.prune();
        }
    }

    fn prune(&mut self) {
        if self.candidates.len() > self.capacity {
            let better = |left: &RankedChunk, right: &RankedChunk| {
                right.score.total_cmp(&left.score).then(left.chunk_ordinal.cmp(&right.chunk_ordinal))
            };
            let (_, worst, _) = self.candidates.select_nth_unstable_by(self.capacity - 1, better);
            self.threshold = worst.score;
            self.candidates.truncate(self.capacity);
        }
    }

    fn into_candidates(mut self) -> Vec<RankedChunk> {
        self.prune();
        self.candidates
    }
}

/// A bounded heap of the top chunks. Ties are resolved in favour of the lower ordinal.
struct TopKHeap {
    capacity: usize,
    heap: BinaryHeap<Reverse<TopKCandidate>>,
}

#[derive(PartialEq)]
struct TopKCandidate(RankedChunk);

impl Eq for TopKCandidate {}

impl Ord for TopKCandidate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.score.total_cmp(&other.0.score).then_with(|| other.0.chunk_ordinal.cmp(&self.0.chunk_ordinal))
    }
}

impl PartialOrd for TopKCandidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl TopKHeap {
    fn new(most: usize) -> Self {
        Self { capacity: most.max(1), heap: BinaryHeap::new() }
    }

    /// Returns the score that a chunk must exceed to enter the heap.
    fn threshold(&self) -> f32 {
        match self.heap.peek() {
            Some(Reverse(worst)) if self.heap.len() >= self.capacity => worst.0.score,
            _ => 0.0,
        }
    }

    /// Returns true if the chunk would enter the heap; independent of the order in which chunks arrive.
    fn would_accept(&self, slot: usize, score: f32) -> bool {
        let candidate = TopKCandidate(RankedChunk { chunk_ordinal: slot, score });
        match self.heap.peek() {
            Some(Reverse(worst)) if self.heap.len() >= self.capacity => candidate > *worst,
            _ => score > 0.0,
        }
    }

    fn push(&mut self, slot: usize, score: f32) {
        if self.heap.len() >= self.capacity {
            self.heap.pop();
        }
        self.heap.push(Reverse(TopKCandidate(RankedChunk { chunk_ordinal: slot, score })));
    }

    fn into_sorted(self) -> Vec<RankedChunk> {
        self.heap.into_sorted_vec().into_iter().map(|Reverse(candidate)| candidate.0).collect()
    }
}

#[cfg(test)]
#[path = "rank_tests.rs"]
mod tests;

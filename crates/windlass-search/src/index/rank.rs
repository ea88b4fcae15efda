//! Chunks in the order of how well they fit: by their words (BM25), and by their vectors.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use rusqlite::Connection;

use super::codec;
use super::snapshot::Snapshot;
use super::vectors::{LARGE, SignTable, left_for};
use crate::embed::Quantised;

/// How soon more of the same word stops to count, and how much long chunks are held against. The usual values.
const K1: f32 = 1.2;
const B: f32 = 0.75;

/// A chunk, counted through all segments, and how well it fits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ranked {
    pub(super) slot: usize,
    pub(super) score: f32,
}

/// A word that is looked for, and how much it counts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    pub(super) term: String,
    pub(super) weight: f32,
}

/// Which chunks may answer. `None` means all.
pub(super) type Allowed = Option<BTreeSet<u32>>;

pub(super) fn rarity(snapshot: &Snapshot, frequency: u32) -> f32 {
    let (total, frequency) = (snapshot.total as f32, frequency as f32);
    (1.0 + ((total - frequency).max(0.0) + 0.5) / (frequency + 0.5)).ln()
}

/// The best chunks by their words. Only the lists of the words are read: what has none of them costs nothing.
pub(super) fn by_words(
    db: &Connection,
    snapshot: &Snapshot,
    wanted: &[Wanted],
    allowed: &Allowed,
    most: usize,
) -> rusqlite::Result<Vec<Ranked>> {
    let mut lists = Vec::with_capacity(wanted.len());
    for wanted in wanted {
        let frequency = snapshot.frequency(db, &wanted.term)?;
        if frequency > 0 {
            lists.push((wanted, rarity(snapshot, frequency)));
        }
    }
    let mut best = Best::new(most);
    let mut scores: Vec<f32> = Vec::new();
    let mut statement = db.prepare_cached("SELECT data FROM postings WHERE segment = ?1 AND term = ?2")?;
    for (at, segment) in snapshot.segments.iter().enumerate() {
        scores.clear();
        scores.resize(segment.ids.len(), 0.0);
        for (wanted, rarity) in &lists {
            let mut rows = statement.query((segment.id, &wanted.term))?;
            let Some(row) = rows.next()? else { continue };
            let factor = wanted.weight * rarity * (K1 + 1.0);
            for (chunk, times) in codec::occurrences(row.get_ref(0)?.as_blob()?) {
                let chunk = chunk as usize;
                let (Some(score), Some(length)) = (scores.get_mut(chunk), segment.lengths.get(chunk)) else {
                    break;
                };
                let times = times as f32;
                let norm = K1 * (1.0 - B + B * *length as f32 / snapshot.average);
                *score += factor * times / (times + norm);
            }
        }
        for (chunk, score) in scores.iter().enumerate() {
            if *score > best.floor() && is_allowed(snapshot, at, chunk, allowed) {
                best.add(snapshot.starts[at] + chunk, *score);
            }
        }
    }
    Ok(best.in_order())
}

/// The best chunks by their vectors. In a small index all are looked at.
pub(super) fn by_vector(
    db: &Connection,
    snapshot: &Snapshot,
    wanted: &Quantised,
    allowed: &Allowed,
    most: usize,
) -> rusqlite::Result<Vec<Ranked>> {
    if wanted.scale == 0.0 {
        return Ok(Vec::new());
    }
    if snapshot.total >= LARGE {
        return by_signs(db, snapshot, wanted, allowed, most);
    }
    by_bytes(db, snapshot, wanted, allowed, most)
}

fn by_bytes(
    db: &Connection,
    snapshot: &Snapshot,
    wanted: &Quantised,
    allowed: &Allowed,
    most: usize,
) -> rusqlite::Result<Vec<Ranked>> {
    let mut best = Best::new(most);
    for (at, segment) in snapshot.segments.iter().enumerate() {
        let Some(vectors) = segment.vectors(db, wanted.values.len())? else { continue };
        for chunk in 0..segment.ids.len() {
            let score = vectors.nearness(chunk, wanted);
            if score > best.floor() && is_allowed(snapshot, at, chunk, allowed) {
                best.add(snapshot.starts[at] + chunk, score);
            }
        }
    }
    Ok(best.in_order())
}

/// The same in a large index: the signs of all, and then the bytes of those that may be near.
fn by_signs(
    db: &Connection,
    snapshot: &Snapshot,
    wanted: &Quantised,
    allowed: &Allowed,
    most: usize,
) -> rusqlite::Result<Vec<Ranked>> {
    let table = SignTable::of(wanted);
    let mut near = Near::new(left_for(most));
    for (at, segment) in snapshot.segments.iter().enumerate() {
        let Some(vectors) = segment.vectors(db, wanted.values.len())? else { continue };
        vectors.by_signs(&table, |chunk, score| {
            if score > near.floor && is_allowed(snapshot, at, chunk, allowed) {
                near.add(snapshot.starts[at] + chunk, score);
            }
        });
    }
    let mut best = Best::new(most);
    for Ranked { slot, .. } in near.best() {
        let (segment, at) = snapshot.locate(slot);
        let Some(vectors) = segment.vectors(db, wanted.values.len())? else { continue };
        let score = vectors.nearness(at, wanted);
        if best.takes(slot, score) {
            best.add(slot, score);
        }
    }
    Ok(best.in_order())
}

fn is_allowed(snapshot: &Snapshot, segment: usize, chunk: usize, allowed: &Allowed) -> bool {
    let dead = &snapshot.dead[segment];
    (dead.is_empty() || !u32::try_from(chunk).is_ok_and(|chunk| dead.contains(&chunk)))
        && allowed.as_ref().is_none_or(|allowed| allowed.contains(&snapshot.segments[segment].files[chunk]))
}

/// Some thousands of the best, in no order. Twice as many are gathered before the worse half goes, which takes a fraction
/// of the time that keeping them in order does.
struct Near {
    most: usize,
    floor: f32,
    kept: Vec<Ranked>,
}

impl Near {
    fn new(most: usize) -> Self {
        Self { most, floor: f32::NEG_INFINITY, kept: Vec::with_capacity(most * 2) }
    }

    fn add(&mut self, slot: usize, score: f32) {
        self.kept.push(Ranked { slot, score });
        if self.kept.len() >= self.most * 2 {
            self.cut();
        }
    }

    fn cut(&mut self) {
        if self.kept.len() > self.most {
            let better = |left: &Ranked, right: &Ranked| {
                right.score.total_cmp(&left.score).then(left.slot.cmp(&right.slot))
            };
            let (_, worst, _) = self.kept.select_nth_unstable_by(self.most - 1, better);
            self.floor = worst.score;
            self.kept.truncate(self.most);
        }
    }

    fn best(mut self) -> Vec<Ranked> {
        self.cut();
        self.kept
    }
}

/// The best so far. Of equals, the first is better.
struct Best {
    most: usize,
    heap: BinaryHeap<Reverse<Candidate>>,
}

#[derive(PartialEq)]
struct Candidate(Ranked);

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.score.total_cmp(&other.0.score).then_with(|| other.0.slot.cmp(&self.0.slot))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Best {
    fn new(most: usize) -> Self {
        Self { most: most.max(1), heap: BinaryHeap::new() }
    }

    /// What a chunk must have more of to be among the best.
    fn floor(&self) -> f32 {
        match self.heap.peek() {
            Some(Reverse(worst)) if self.heap.len() >= self.most => worst.0.score,
            _ => 0.0,
        }
    }

    /// Whether a chunk is among the best so far, whatever the order in which they come.
    fn takes(&self, slot: usize, score: f32) -> bool {
        let candidate = Candidate(Ranked { slot, score });
        match self.heap.peek() {
            Some(Reverse(worst)) if self.heap.len() >= self.most => candidate > *worst,
            _ => score > 0.0,
        }
    }

    fn add(&mut self, slot: usize, score: f32) {
        if self.heap.len() >= self.most {
            self.heap.pop();
        }
        self.heap.push(Reverse(Candidate(Ranked { slot, score })));
    }

    fn in_order(self) -> Vec<Ranked> {
        self.heap.into_sorted_vec().into_iter().map(|Reverse(candidate)| candidate.0).collect()
    }
}

#[cfg(test)]
#[path = "rank_tests.rs"]
mod tests;

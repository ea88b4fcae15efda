//! Query expansion: the choice of terms, spelling correction and pseudo-relevance feedback.

use std::collections::{BTreeMap, HashMap};

use rusqlite::Connection;

use super::rank::{QueryTerm, RankedChunk, inverse_document_frequency};
use super::snapshot::IndexSnapshot;
use crate::text::{TermKind, TextAnalyser};

/// Number of top chunks that pseudo-relevance feedback reads, and number of terms that it takes from them.
const FEEDBACK_CHUNKS: usize = 20;
const FEEDBACK_TERMS: usize = 20;
/// Maximum number of terms that are ranked by; of more, those with the greatest weight times rarity.
const MAX_QUERY_TERMS: usize = 256;
/// Maximum number of misspelt terms of a query that are corrected.
const MAX_CORRECTIONS: usize = 8;
/// Maximum number of index terms that a misspelt term is compared with.
const MAX_SPELLING_CANDIDATES: usize = 200_000;

/// Returns the terms that a query is ranked by: all that the index contains, or the most telling ones of a long query.
pub(super) fn choose_terms(
    db: &Connection,
    snapshot: &IndexSnapshot,
    wanted: Vec<QueryTerm>,
) -> rusqlite::Result<Vec<QueryTerm>> {
    if wanted.len() <= MAX_QUERY_TERMS {
        return Ok(wanted);
    }
    let mut weighed = Vec::with_capacity(wanted.len());
    for want in wanted {
        let frequency = snapshot.document_frequency(db, &want.term)?;
        if frequency > 0 {
            weighed.push((want.weight * inverse_document_frequency(snapshot, frequency), want));
        }
    }
    weighed.sort_by(|left, right| right.0.total_cmp(&left.0).then_with(|| left.1.term.cmp(&right.1.term)));
    weighed.truncate(MAX_QUERY_TERMS);
    Ok(weighed.into_iter().map(|(_, want)| want).collect())
}

/// Replaces terms that the index does not contain by similar terms that it contains.
pub(super) fn correct_spelling(
    db: &Connection,
    snapshot: &IndexSnapshot,
    wanted: Vec<QueryTerm>,
) -> rusqlite::Result<Vec<QueryTerm>> {
    let mut corrected = Vec::with_capacity(wanted.len());
    let mut corrections = 0;
    for want in wanted {
        let length = want.term.chars().count();
        let is_word = want.term.chars().all(char::is_alphabetic);
        if length < 4
            || !is_word
            || corrections >= MAX_CORRECTIONS
            || snapshot.document_frequency(db, &want.term)? > 0
        {
            corrected.push(want);
            continue;
        }
        corrections += 1;
        let near = find_similar_terms(db, &want.term, if length >= 8 { 2 } else { 1 })?;
        if near.is_empty() {
            corrected.push(want);
        } else {
            corrected.extend(near.into_iter().map(|term| QueryTerm { term, weight: want.weight * 0.7 }));
        }
    }
    Ok(corrected)
}

/// Returns up to three index terms of the smallest edit distance, among those with the same first letter.
fn find_similar_terms(db: &Connection, word: &str, most: usize) -> rusqlite::Result<Vec<String>> {
    let first: String = word.chars().take(1).collect();
    let chars: Vec<char> = word.chars().collect();
    let (mut found, mut least): (Vec<String>, usize) = (Vec::new(), most);
    let mut rows_of_letters = EditDistanceBuffer::default();
    let mut statement =
        db.prepare_cached("SELECT term FROM terms WHERE term >= ?1 ORDER BY term LIMIT ?2")?;
    let mut rows = statement.query((&first, i64::try_from(MAX_SPELLING_CANDIDATES).unwrap_or(i64::MAX)))?;
    while let Some(row) = rows.next()? {
        let other = row.get_ref(0)?.as_str()?;
        if !other.starts_with(&first) {
            break;
        }
        // A character is at most four bytes, so the byte length rules out most terms cheaply.
        if other.len() + least < chars.len() || other.len() > 4 * (chars.len() + least) {
            continue;
        }
        let Some(distance) = rows_of_letters.bounded_distance(&chars, other, least) else { continue };
        if distance < least {
            (least, found) = (distance, Vec::new());
        }
        if found.len() < 3 {
            found.push(other.to_owned());
        }
    }
    Ok(found)
}

/// Buffers of the edit distance computation, reused between terms.
#[derive(Default)]
struct EditDistanceBuffer {
    right_chars: Vec<char>,
    rows: [Vec<usize>; 3],
}

impl EditDistanceBuffer {
    /// Returns the Damerau–Levenshtein distance (insertions, deletions, substitutions, adjacent transpositions);
    /// `None` if it exceeds `most`.
    fn bounded_distance(&mut self, left: &[char], right: &str, most: usize) -> Option<usize> {
        self.right_chars.clear();
        self.right_chars.extend(right.chars());
        let right = &self.right_chars;
        if left.len().abs_diff(right.len()) > most {
            return None;
        }
        let [before, last, row] = &mut self.rows;
        last.clear();
        last.extend(0..=right.len());
        for at in 1..=left.len() {
            row.clear();
            row.push(at);
            let mut nearest = at;
            for other in 1..=right.len() {
                let same = usize::from(left[at - 1] != right[other - 1]);
                let mut least = (last[other - 1] + same).min(last[other] + 1).min(row[other - 1] + 1);
                if at > 1 && other > 1 && left[at - 1] == right[other - 2] && left[at - 2] == right[other - 1]
                {
                    least = least.min(before[other - 2] + 1);
                }
                nearest = nearest.min(least);
                row.push(least);
            }
            if nearest > most {
                return None;
            }
            std::mem::swap(before, last);
            std::mem::swap(last, row);
        }
        last.last().copied().filter(|distance| *distance <= most)
    }
}

/// Adds the most frequent terms of the top chunks to the query (pseudo-relevance feedback, RM3): the query and the
/// feedback terms each get half of the weight.
pub(super) fn expand_with_feedback(
    db: &Connection,
    snapshot: &IndexSnapshot,
    wanted: &[QueryTerm],
    best: &[RankedChunk],
    analyser: &mut TextAnalyser,
) -> rusqlite::Result<Vec<QueryTerm>> {
    let best = &best[..best.len().min(FEEDBACK_CHUNKS)];
    let whole: f32 = best.iter().map(|ranked| ranked.score).sum();
    let mut shares: HashMap<String, f32> = HashMap::new();
    for ranked in best {
        let (segment, at) = snapshot.locate_chunk(ranked.chunk_ordinal);
        let text: String = db
            .prepare_cached("SELECT text FROM chunks WHERE id = ?1")?
            .query_row([segment.chunk_ids[at]], |row| row.get(0))?;
        let share = ranked.score / whole.max(f32::MIN_POSITIVE) / segment.chunk_lengths[at].max(1) as f32;
        analyser.analyse(&text, &mut |term, kind| {
            if kind == TermKind::Word {
                match shares.get_mut(term) {
                    Some(sum) => *sum += share,
                    None => _ = shares.insert(term.to_owned(), share),
                }
            }
        });
    }
    let mut shares: Vec<(String, f32)> = shares.into_iter().collect();
    shares.sort_by(|left, right| right.1.total_cmp(&left.1).then_with(|| left.0.cmp(&right.0)));
    let mut chosen = Vec::with_capacity(FEEDBACK_TERMS);
    for (term, share) in shares {
        if chosen.len() >= FEEDBACK_TERMS {
            break;
        }
        // A term that occurs in more than a tenth of all chunks does not discriminate.
        if (snapshot.document_frequency(db, &term)? as usize) * 10 <= snapshot.chunk_count {
            chosen.push((term, share));
        }
    }
    Ok(blend_weights(wanted, &chosen))
}

fn blend_weights(wanted: &[QueryTerm], chosen: &[(String, f32)]) -> Vec<QueryTerm> {
    let asked: f32 = wanted.iter().map(|want| want.weight).sum();
    let offered: f32 = chosen.iter().map(|(_, share)| share).sum();
    let mut weights: BTreeMap<&str, f32> = BTreeMap::new();
    for want in wanted {
        *weights.entry(&want.term).or_default() += 0.5 * want.weight / asked.max(f32::MIN_POSITIVE);
    }
    for (term, share) in chosen {
        *weights.entry(term).or_default() += 0.5 * share / offered.max(f32::MIN_POSITIVE);
    }
    weights.into_iter().map(|(term, weight)| QueryTerm { term: term.to_owned(), weight }).collect()
}

//! Phrases of a query: terms at fixed distances, such as the parts of a version number, and their matches.

use rusqlite::Connection;

use super::codec::PositionReader;
use super::snapshot::IndexSnapshot;

/// Terms that a query has next to each other, each with its distance from the first one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct QueryPhrase {
    pub(super) terms: Vec<(String, u32)>,
    pub(super) weight: f32,
    pub(super) kind: PhraseKind,
}

/// The reason why the terms of a phrase belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PhraseKind {
    /// They are neighbours.
    Neighbours,
    /// They are one word with punctuation inside, such as `3.11.2`, or stand in quotation marks.
    Exact,
}

/// A phrase with the chunks that contain it: for each segment, pairs of the chunk's position in the segment and the
/// number of occurrences.
pub(super) struct MatchedPhrase {
    pub(super) weight: f32,
    pub(super) chunk_count: u32,
    pub(super) matches: Vec<Vec<(u32, u32)>>,
}

/// Maximum number of postings that are read for a phrase of neighbours. Such frequent words mean little together, and
/// reading their positions would take longer than the rest of the search.
const MAX_NEIGHBOUR_POSTINGS: u32 = 50_000;

/// Returns the phrases that occur in the index, with their matches.
pub(super) fn match_phrases(
    db: &Connection,
    snapshot: &IndexSnapshot,
    phrases: &[QueryPhrase],
) -> rusqlite::Result<Vec<MatchedPhrase>> {
    let mut found = Vec::new();
    for phrase in phrases {
        let (mut postings, mut rarest) = (0u32, u32::MAX);
        for (term, _) in &phrase.terms {
            let frequency = snapshot.document_frequency(db, term)?;
            postings = postings.saturating_add(frequency);
            rarest = rarest.min(frequency);
        }
        let is_too_frequent = phrase.kind == PhraseKind::Neighbours && postings > MAX_NEIGHBOUR_POSTINGS;
        if rarest == 0 || is_too_frequent {
            continue;
        }
        let matches = snapshot
            .segments
            .iter()
            .map(|segment| match_in_segment(db, segment.id, &phrase.terms))
            .collect::<rusqlite::Result<Vec<_>>>()?;
        let chunk_count = u32::try_from(matches.iter().map(Vec::len).sum::<usize>()).unwrap_or(u32::MAX);
        if chunk_count > 0 {
            found.push(MatchedPhrase { weight: phrase.weight, chunk_count, matches });
        }
    }
    Ok(found)
}

fn match_in_segment(
    db: &Connection,
    segment: i64,
    terms: &[(String, u32)],
) -> rusqlite::Result<Vec<(u32, u32)>> {
    let mut select =
        db.prepare_cached("SELECT data, positions FROM postings WHERE segment = ?1 AND term = ?2")?;
    let mut lists: Vec<(Vec<u8>, Vec<u8>)> = Vec::with_capacity(terms.len());
    for (term, _) in terms {
        let mut rows = select.query((segment, term))?;
        let Some(row) = rows.next()? else { return Ok(Vec::new()) };
        lists.push((row.get(0)?, row.get(1)?));
    }
    let mut readers: Vec<PositionReader<'_>> =
        lists.iter().map(|(postings, positions)| PositionReader::new(postings, positions)).collect();
    let mut positions: Vec<Vec<u32>> = vec![Vec::new(); terms.len()];
    let mut chunks: Vec<Option<u32>> = readers
        .iter_mut()
        .zip(&mut positions)
        .map(|(reader, positions)| reader.next_chunk(positions))
        .collect();
    let mut found = Vec::new();
    // The readers advance to the next chunk that all of them have.
    while let Some(target) =
        chunks.iter().copied().collect::<Option<Vec<u32>>>().and_then(|all| all.into_iter().max())
    {
        let mut is_common = true;
        for at in 0..readers.len() {
            while chunks[at].is_some_and(|chunk| chunk < target) {
                chunks[at] = readers[at].next_chunk(&mut positions[at]);
            }
            is_common &= chunks[at] == Some(target);
        }
        if is_common {
            let times = count_occurrences(terms, &positions);
            if times > 0 {
                found.push((target, times));
            }
            chunks[0] = readers[0].next_chunk(&mut positions[0]);
        }
    }
    Ok(found)
}

fn count_occurrences(terms: &[(String, u32)], positions: &[Vec<u32>]) -> u32 {
    let Some((first, rest)) = positions.split_first() else { return 0 };
    let is_match = |start: &&u32| {
        rest.iter()
            .zip(&terms[1..])
            .all(|(positions, (_, offset))| positions.binary_search(&(**start + offset)).is_ok())
    };
    u32::try_from(first.iter().filter(is_match).count()).unwrap_or(u32::MAX)
}

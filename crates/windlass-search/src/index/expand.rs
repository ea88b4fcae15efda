//! From a question to the words that are looked for: its own, those that it may have misspelt, and those that the best
//! answers have in common.

use std::collections::{BTreeMap, HashMap};

use rusqlite::Connection;

use super::rank::{Ranked, Wanted};
use super::snapshot::Snapshot;
use crate::text::{Analyser, Term};

/// How many of the best chunks are looked at for more words, and how many words are taken from them.
const FEEDBACK_CHUNKS: usize = 20;
const FEEDBACK_WORDS: usize = 20;
/// A question has at most this many words; the rest is left out.
const MOST_WORDS: usize = 256;
/// A misspelt word is compared with at most this many others.
const MOST_COMPARED: usize = 200_000;

/// The words of a question. Those that every text has count only where there are no others.
pub(super) fn words_of(question: &str, analyser: &mut Analyser) -> Vec<Wanted> {
    let (mut words, mut stops): (BTreeMap<String, f32>, BTreeMap<String, f32>) = Default::default();
    let mut count = 0;
    analyser.analyse(question, &mut |term, kind| {
        count += 1;
        if count <= MOST_WORDS {
            let into = if kind == Term::Stop { &mut stops } else { &mut words };
            *into.entry(term.to_owned()).or_default() += 1.0;
        }
    });
    let chosen = if words.is_empty() { stops } else { words };
    chosen.into_iter().map(|(term, weight)| Wanted { term, weight }).collect()
}

/// Puts known words in the place of those that nobody has written, if they are nearly the same.
pub(super) fn correct(
    db: &Connection,
    snapshot: &Snapshot,
    wanted: Vec<Wanted>,
) -> rusqlite::Result<Vec<Wanted>> {
    let mut corrected = Vec::with_capacity(wanted.len());
    for want in wanted {
        let length = want.term.chars().count();
        let is_word = want.term.chars().all(char::is_alphabetic);
        if length < 4 || !is_word || snapshot.frequency(db, &want.term)? > 0 {
            corrected.push(want);
            continue;
        }
        let near = near_words(db, &want.term, if length >= 8 { 2 } else { 1 })?;
        if near.is_empty() {
            corrected.push(want);
        } else {
            corrected.extend(near.into_iter().map(|term| Wanted { term, weight: want.weight * 0.7 }));
        }
    }
    Ok(corrected)
}

/// Up to three words that are nearest, of those that begin alike.
fn near_words(db: &Connection, word: &str, most: usize) -> rusqlite::Result<Vec<String>> {
    let first: String = word.chars().take(1).collect();
    let chars: Vec<char> = word.chars().collect();
    let (mut found, mut least): (Vec<String>, usize) = (Vec::new(), most);
    let mut rows_of_letters = Letters::default();
    let mut statement =
        db.prepare_cached("SELECT term FROM terms WHERE term >= ?1 ORDER BY term LIMIT ?2")?;
    let mut rows = statement.query((&first, i64::try_from(MOST_COMPARED).unwrap_or(i64::MAX)))?;
    while let Some(row) = rows.next()? {
        let other = row.get_ref(0)?.as_str()?;
        if !other.starts_with(&first) {
            break;
        }
        // Letters are four bytes at most, so this says of most words at once that they are too long or too short.
        if other.len() + least < chars.len() || other.len() > 4 * (chars.len() + least) {
            continue;
        }
        let Some(distance) = rows_of_letters.distance(&chars, other, least) else { continue };
        if distance < least {
            (least, found) = (distance, Vec::new());
        }
        if found.len() < 3 {
            found.push(other.to_owned());
        }
    }
    Ok(found)
}

/// Room for comparing letters, kept from word to word.
#[derive(Default)]
struct Letters {
    right: Vec<char>,
    rows: [Vec<usize>; 3],
}

impl Letters {
    /// How many letters were left out, added, changed, or swapped with their neighbour; `None` where it is more than
    /// so many.
    fn distance(&mut self, left: &[char], right: &str, most: usize) -> Option<usize> {
        self.right.clear();
        self.right.extend(right.chars());
        let right = &self.right;
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

/// The question and the words that its best answers have in common, each side with half of the weight.
pub(super) fn with_feedback(
    db: &Connection,
    snapshot: &Snapshot,
    wanted: &[Wanted],
    best: &[Ranked],
    analyser: &mut Analyser,
) -> rusqlite::Result<Vec<Wanted>> {
    let best = &best[..best.len().min(FEEDBACK_CHUNKS)];
    let whole: f32 = best.iter().map(|ranked| ranked.score).sum();
    let mut shares: HashMap<String, f32> = HashMap::new();
    for ranked in best {
        let (segment, at) = snapshot.locate(ranked.slot);
        let text: String = db
            .prepare_cached("SELECT text FROM chunks WHERE id = ?1")?
            .query_row([segment.ids[at]], |row| row.get(0))?;
        let share = ranked.score / whole.max(f32::MIN_POSITIVE) / segment.lengths[at].max(1) as f32;
        analyser.analyse(&text, &mut |term, kind| {
            if kind == Term::Word {
                match shares.get_mut(term) {
                    Some(sum) => *sum += share,
                    None => _ = shares.insert(term.to_owned(), share),
                }
            }
        });
    }
    let mut shares: Vec<(String, f32)> = shares.into_iter().collect();
    shares.sort_by(|left, right| right.1.total_cmp(&left.1).then_with(|| left.0.cmp(&right.0)));
    let mut chosen = Vec::with_capacity(FEEDBACK_WORDS);
    for (term, share) in shares {
        if chosen.len() >= FEEDBACK_WORDS {
            break;
        }
        // A word that one chunk in ten has says little about these.
        if (snapshot.frequency(db, &term)? as usize) * 10 <= snapshot.total {
            chosen.push((term, share));
        }
    }
    Ok(blend(wanted, &chosen))
}

fn blend(wanted: &[Wanted], chosen: &[(String, f32)]) -> Vec<Wanted> {
    let asked: f32 = wanted.iter().map(|want| want.weight).sum();
    let offered: f32 = chosen.iter().map(|(_, share)| share).sum();
    let mut weights: BTreeMap<&str, f32> = BTreeMap::new();
    for want in wanted {
        *weights.entry(&want.term).or_default() += 0.5 * want.weight / asked.max(f32::MIN_POSITIVE);
    }
    for (term, share) in chosen {
        *weights.entry(term).or_default() += 0.5 * share / offered.max(f32::MIN_POSITIVE);
    }
    weights.into_iter().map(|(term, weight)| Wanted { term: term.to_owned(), weight }).collect()
}

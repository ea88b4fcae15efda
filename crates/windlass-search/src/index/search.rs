//! One search, from the question to the hits.

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension};
use serde::{Deserialize, Serialize};

use super::fuse::{Share, fuse};
use super::rank::{Allowed, Ranked, Wanted, by_vector, by_words, rarity};
use super::snapshot::Snapshot;
use super::{Index, Inner, expand};
use crate::embed::{Purpose, Quantised, quantise};
use crate::text::{Analyser, Term};
use crate::{Attributes, Embedder, Filter, Place, SearchError};

/// How many results there are at most, as in the hosted tool.
const MOST_RESULTS: usize = 50;
/// How many results each list gives at least before they are put together.
const DEPTH: usize = 100;
/// How many of the best chunks by words the question's vector is moved towards, and how far.
const NEAR_CHUNKS: usize = 3;
const NEAR_WEIGHT: f32 = 0.5;
/// How much the plain words count beside the words of the best answers.
const PLAIN: f32 = 2.0;
const FEEDBACK: f32 = 1.0;
/// How many chunks that are most like a chunk have a say in its score, and how much of one.
const NEIGHBOURS: usize = 3;
const NEIGHBOUR_WEIGHT: f32 = 0.1;

/// A search that is put together. See [`Index::search`].
#[derive(Clone, Debug)]
#[must_use = "nothing is searched before `run`"]
pub struct Search<'a> {
    index: &'a Index,
    questions: Vec<String>,
    most: usize,
    filter: Option<Filter>,
    ranking: Ranking,
    signals: Signals,
}

/// How results are ranked, in the same JSON as the hosted tool's `ranking_options`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ranking {
    /// Which ranker. `auto`, `default-2024-11-15` and whatever the service calls its own mean the one that there is;
    /// `none` leaves out the second look, which is faster: no feedback from the best answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranker: Option<String>,
    /// Results below this are left out, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score_threshold: Option<f32>,
    /// How much words and vectors count beside each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hybrid_search: Option<Weights>,
}

/// How much words and vectors count beside each other. Only their proportion matters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weights {
    /// Vectors.
    pub embedding_weight: f32,
    /// Words.
    pub text_weight: f32,
}

/// Which signals a search uses. For measuring; a search that wants good results uses all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signals {
    /// Words, what the best answers have in common, and vectors.
    #[default]
    All,
    /// Words alone (BM25).
    Words,
    /// Vectors alone.
    Vectors,
}

/// What a search found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Found {
    /// The questions, as they were asked.
    pub questions: Vec<String>,
    /// The best first.
    pub hits: Vec<Hit>,
}

/// A chunk that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hit {
    /// The file's id for clients.
    pub file: String,
    /// The file's name.
    pub name: String,
    /// Its path, or the name that it was put under.
    pub path: String,
    /// Where in the file.
    pub place: Place,
    /// The text.
    pub text: String,
    /// How well it fits, 0 to 1. It is near 1 where a chunk leads every list and has every word that was asked for.
    pub score: f32,
    /// The file's attributes.
    pub attributes: Attributes,
}

impl Index {
    /// Looks for chunks that answer a question.
    pub fn search(&self, question: impl Into<String>) -> Search<'_> {
        Search {
            index: self,
            questions: vec![question.into()],
            most: 10,
            filter: None,
            ranking: Ranking::default(),
            signals: Signals::All,
        }
    }
}

impl Search<'_> {
    /// One more way to ask. Results of all are put together.
    pub fn also(mut self, question: impl Into<String>) -> Self {
        self.questions.push(question.into());
        self
    }

    /// How many results, 1 to 50. 10 unless said otherwise.
    pub fn max_results(mut self, most: usize) -> Self {
        self.most = most;
        self
    }

    /// Which files may answer. It is looked at before anything is ranked, so there are as many results as files allow.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = Some(filter);
        self
    }

    /// How results are ranked.
    pub fn ranking(mut self, ranking: Ranking) -> Self {
        self.ranking = ranking;
        self
    }

    /// Leaves out results below this, 0 to 1.
    pub fn threshold(mut self, score: f32) -> Self {
        self.ranking.score_threshold = Some(score);
        self
    }

    /// Which signals are used.
    pub fn signals(mut self, signals: Signals) -> Self {
        self.signals = signals;
        self
    }

    /// Searches. It blocks for a few milliseconds; in async code, call it where blocking is allowed.
    pub fn run(self) -> Result<Found, SearchError> {
        if !(1..=MOST_RESULTS).contains(&self.most) {
            return Err(SearchError::Invalid(format!(
                "there are 1 to {MOST_RESULTS} results, not {}",
                self.most
            )));
        }
        let hits = self.best(self.most)?;
        Ok(Found { questions: self.questions, hits })
    }

    /// As many results as are wanted, beyond what the tool gives: for measuring.
    #[doc(hidden)]
    pub fn best(&self, most: usize) -> Result<Vec<Hit>, SearchError> {
        let threshold = self.ranking.score_threshold.unwrap_or(0.0);
        if !(0.0..=1.0).contains(&threshold) {
            return Err(SearchError::Invalid(format!("`score_threshold` is 0 to 1, not {threshold}")));
        }
        let inner = &*self.index.inner;
        let vectors = self.question_vectors(inner)?;
        inner.read(|db| {
            let snapshot = inner.snapshot(db)?;
            let look = Look {
                db,
                snapshot: &snapshot,
                allowed: self.allowed(db, &snapshot)?,
                depth: DEPTH.max(most),
                vector_weight: inner
                    .embedder
                    .as_ref()
                    .map_or(0.0, |embedder| embedder.weight().clamp(0.0, 1.0)),
            };
            let mut analyser = inner.analysers.take();
            let mut lists = Vec::new();
            for (question, vector) in self.questions.iter().zip(&vectors) {
                lists.push(self.rank(&look, question, vector.as_deref(), &mut analyser)?);
            }
            inner.analysers.put(analyser);
            let ranked = match lists.as_slice() {
                [one] => one.clone(),
                several => together(several),
            };
            let mut hits = Vec::with_capacity(most);
            for ranked in ranked.into_iter().take(most).take_while(|ranked| ranked.score >= threshold) {
                hits.extend(hit(db, &snapshot, ranked)?);
            }
            Ok(hits)
        })
    }

    /// Vectors are made before the file is looked at, because that may take long.
    fn question_vectors(&self, inner: &Inner) -> Result<Vec<Option<Vec<f32>>>, SearchError> {
        let none = vec![None; self.questions.len()];
        let wanted = self.signals != Signals::Words
            && self.ranking.hybrid_search.is_none_or(|weights| weights.embedding_weight > 0.0);
        let Some(embedder) = inner.embedder.as_deref().filter(|_| wanted) else { return Ok(none) };
        let texts: Vec<&str> = self.questions.iter().map(String::as_str).collect();
        let vectors = embedder.embed(&texts, Purpose::Query)?;
        let is_known = |vector: &Vec<f32>| {
            vector.len() == Embedder::dimensions(embedder) && vector.iter().any(|value| *value != 0.0)
        };
        let mut found: Vec<Option<Vec<f32>>> =
            vectors.into_iter().map(|vector| Some(vector).filter(is_known)).collect();
        found.resize(self.questions.len(), None);
        Ok(found)
    }

    fn allowed(&self, db: &Connection, snapshot: &Snapshot) -> rusqlite::Result<Allowed> {
        if self.filter.is_none() && snapshot.stores.iter().all(|store| **store == *self.index.store) {
            return Ok(None);
        }
        let passes =
            |attributes: &Attributes| self.filter.as_ref().is_none_or(|filter| filter.passes(attributes));
        let files = snapshot.files(db)?;
        let allowed = files
            .iter()
            .filter(|(_, facts)| facts.store == *self.index.store && passes(&facts.attributes))
            .map(|(id, _)| *id)
            .collect::<BTreeSet<u32>>();
        Ok(Some(allowed))
    }

    fn rank(
        &self,
        look: &Look<'_>,
        question: &str,
        vector: Option<&[f32]>,
        analyser: &mut Analyser,
    ) -> rusqlite::Result<Vec<Ranked>> {
        if self.signals == Signals::Vectors {
            let near = match vector {
                Some(vector) => look.by_vector(&quantise(vector))?,
                None => Vec::new(),
            };
            return Ok(fuse(&[Share { list: &near, weight: 1.0 }]));
        }
        let asked = expand::words_of(question, analyser);
        let wanted = expand::correct(look.db, look.snapshot, asked)?;
        let words = look.by_words(&wanted)?;
        if self.signals == Signals::Words {
            return Ok(fuse(&[Share { list: &words, weight: 1.0 }]));
        }
        let second_look = self.ranking.ranker.as_deref() != Some("none");
        let feedback = if second_look && !words.is_empty() {
            let more = expand::with_feedback(look.db, look.snapshot, &wanted, &words, analyser)?;
            look.by_words(&more)?
        } else {
            Vec::new()
        };
        let near = match vector {
            Some(vector) => look.by_vector(&look.towards(vector, if second_look { &words } else { &[] })?)?,
            None => Vec::new(),
        };
        let (text, meaning) = match self.ranking.hybrid_search {
            Some(weights) => (weights.text_weight.max(0.0), weights.embedding_weight.max(0.0)),
            None => (1.0 - look.vector_weight, look.vector_weight),
        };
        let part = |share: f32| text * share / (PLAIN + FEEDBACK);
        let shares = [
            Share { list: &words, weight: part(PLAIN) },
            Share { list: &feedback, weight: part(FEEDBACK) },
            Share { list: &near, weight: meaning },
        ];
        let mut fused = fuse(&shares);
        if second_look
            && meaning > 0.0
            && let Some(vector) = vector
        {
            look.heed_neighbours(&mut fused, vector.len())?;
        }
        let sure = look.sureness(&wanted, &words, &near, analyser)?;
        fused.iter_mut().for_each(|ranked| ranked.score *= sure);
        Ok(fused)
    }
}

/// What every part of a search looks at.
struct Look<'a> {
    db: &'a Connection,
    snapshot: &'a Snapshot,
    allowed: Allowed,
    depth: usize,
    /// How much vectors count beside words, unless the search says.
    vector_weight: f32,
}

impl Look<'_> {
    fn by_words(&self, wanted: &[Wanted]) -> rusqlite::Result<Vec<Ranked>> {
        by_words(self.db, self.snapshot, wanted, &self.allowed, self.depth)
    }

    fn by_vector(&self, wanted: &Quantised) -> rusqlite::Result<Vec<Ranked>> {
        by_vector(self.db, self.snapshot, wanted, &self.allowed, self.depth)
    }

    /// The question's vector, moved towards what the best chunks by words have in common.
    fn towards(&self, vector: &[f32], best: &[Ranked]) -> rusqlite::Result<Quantised> {
        let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
        let mut sum: Vec<f32> = vector.iter().map(|value| value / length).collect();
        let best = &best[..best.len().min(NEAR_CHUNKS)];
        for ranked in best {
            let (segment, at) = self.snapshot.locate(ranked.slot);
            let Some(vectors) = segment.vectors(self.db, vector.len())? else { continue };
            let weight = NEAR_WEIGHT / best.len() as f32 * vectors.scale(at);
            for (sum, value) in sum.iter_mut().zip(vectors.values(at)) {
                *sum += f32::from(*value) * weight;
            }
        }
        Ok(quantise(&sum))
    }

    /// Moves the score of each of the best chunks towards those of the chunks that are most like it: what is like good
    /// answers is a better answer than what only looks good.
    fn heed_neighbours(&self, ranked: &mut [Ranked], dimensions: usize) -> rusqlite::Result<()> {
        let head = ranked.len().min(DEPTH);
        let mut places = Vec::with_capacity(head);
        for ranked in &ranked[..head] {
            let (segment, at) = self.snapshot.locate(ranked.slot);
            places.push((segment.vectors(self.db, dimensions)?, at, segment.files[at], ranked.score));
        }
        let mut nearest = vec![[(0.0f32, 0.0f32); NEIGHBOURS]; head];
        let mut offer = |to: usize, nearness: f32, score: f32| {
            let nearest = &mut nearest[to];
            if let Some(place) = nearest.iter().position(|(known, _)| nearness > *known) {
                nearest[place..].rotate_right(1);
                nearest[place] = (nearness, score);
            }
        };
        for (this, (vectors, at, file, score)) in places.iter().enumerate() {
            let Some(vectors) = vectors else { continue };
            for (more, (others, other_at, other_file, other_score)) in places[this + 1..].iter().enumerate() {
                // Pieces of one file are alike whatever they say.
                let Some(others) = others.filter(|_| other_file != file) else { continue };
                let nearness = vectors.between(*at, others, *other_at);
                offer(this, nearness, *other_score);
                offer(this + 1 + more, nearness, *score);
            }
        }
        for (ranked, nearest) in ranked.iter_mut().zip(nearest) {
            let whole: f32 = nearest.iter().map(|(nearness, _)| nearness).sum();
            if whole > 0.0 {
                let around = nearest.iter().map(|(nearness, score)| nearness * score).sum::<f32>() / whole;
                ranked.score += NEIGHBOUR_WEIGHT * (around - ranked.score);
            }
        }
        ranked.sort_by(|left, right| right.score.total_cmp(&left.score).then(left.slot.cmp(&right.slot)));
        Ok(())
    }

    /// How sure one can be that the best result answers at all: how much of the question it has, or how near it is.
    /// Lists are compared within themselves, so without this the best of nothing would have 1.
    fn sureness(
        &self,
        wanted: &[Wanted],
        words: &[Ranked],
        near: &[Ranked],
        analyser: &mut Analyser,
    ) -> rusqlite::Result<f32> {
        let nearness = near.first().map_or(0.0, |ranked| ranked.score);
        let Some(best) = words.first() else { return Ok(nearness.clamp(0.0, 1.0)) };
        let (segment, at) = self.snapshot.locate(best.slot);
        let text: Option<String> = self
            .db
            .prepare_cached(
                "SELECT name || ' ' || place || ' ' || text FROM chunks JOIN files ON files.id = file WHERE chunks.id = ?1",
            )?
            .query_row([segment.ids[at]], |row| row.get(0))
            .optional()?;
        let mut there = BTreeSet::new();
        analyser.analyse(&text.unwrap_or_default(), &mut |term, _: Term| _ = there.insert(term.to_owned()));
        let (mut has, mut whole) = (0.0, 0.0);
        for want in wanted {
            let weight = want.weight * rarity(self.snapshot, self.snapshot.frequency(self.db, &want.term)?);
            whole += weight;
            if there.contains(&want.term) {
                has += weight;
            }
        }
        Ok((has / f32::max(whole, f32::MIN_POSITIVE)).max(nearness).clamp(0.0, 1.0))
    }
}

/// Results of several questions: each chunk has its best.
fn together(lists: &[Vec<Ranked>]) -> Vec<Ranked> {
    let mut best: std::collections::BTreeMap<usize, f32> = std::collections::BTreeMap::new();
    for ranked in lists.iter().flatten() {
        let score = best.entry(ranked.slot).or_default();
        *score = score.max(ranked.score);
    }
    let mut all: Vec<Ranked> = best.into_iter().map(|(slot, score)| Ranked { slot, score }).collect();
    all.sort_by(|left, right| right.score.total_cmp(&left.score).then(left.slot.cmp(&right.slot)));
    all
}

fn hit(db: &Connection, snapshot: &Snapshot, ranked: Ranked) -> rusqlite::Result<Option<Hit>> {
    let (segment, at) = snapshot.locate(ranked.slot);
    db.prepare_cached(
        "SELECT public, name, path, place, text, attributes FROM chunks JOIN files ON files.id = file WHERE chunks.id = ?1",
    )?
    .query_row([segment.ids[at]], |row| {
        let place: String = row.get(3)?;
        let attributes: String = row.get(5)?;
        Ok(Hit {
            file: row.get(0)?,
            name: row.get(1)?,
            path: row.get(2)?,
            place: serde_json::from_str(&place).unwrap_or_default(),
            text: row.get(4)?,
            score: ranked.score,
            attributes: serde_json::from_str(&attributes).unwrap_or_default(),
        })
    })
    .optional()
}

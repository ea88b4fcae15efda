//! A search, from its queries to the hits.
//!
//! Each query is ranked by BM25 with phrases. Where the words leave doubt, it is also ranked by BM25 with
//! pseudo-relevance feedback and by vector similarity. The rankings are fused, smoothed over similar chunks and scaled
//! by a confidence.

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension};
use serde::{Deserialize, Serialize};

use super::fuse::{WeightedRanking, fuse_rankings};
use super::phrase::{MatchedPhrase, match_phrases};
use super::query::{analyse_query, find_question};
use super::rank::{
    AllowedFiles, QueryTerm, RankedChunk, inverse_document_frequency, rank_by_vector, rank_by_words,
};
use super::snapshot::IndexSnapshot;
use super::{Index, IndexInner, expand};
use crate::embed::{EmbeddingPurpose, QuantisedVector, quantise};
use crate::text::{TermKind, TextAnalyser, compose_text};
use crate::{AttributeFilter, ChunkLocation, Embedder, FileAttributes, SearchError};

/// Maximum number of results, as in the hosted tool.
const MAX_RESULTS: usize = 50;
/// Minimum number of candidates that each ranking contributes to the fusion.
const CANDIDATES_PER_RANKING: usize = 100;
/// Number of top BM25 chunks whose mean vector is added to the query's vector, and the weight of that mean.
const VECTOR_FEEDBACK_CHUNKS: usize = 3;
const VECTOR_FEEDBACK_WEIGHT: f32 = 0.5;
/// Relative weights of the query terms and of the feedback terms in the BM25 part of the fusion.
const QUERY_TERMS_WEIGHT: f32 = 2.0;
const FEEDBACK_TERMS_WEIGHT: f32 = 1.0;
/// Share of the query that the best chunk by words lacks, from which on feedback and vectors have their full weight.
const FULL_NEED: f32 = 0.35;
/// Number of similar chunks that smooth a chunk's score, and the weight of their mean score.
const SMOOTHING_NEIGHBOURS: usize = 3;
const SMOOTHING_WEIGHT: f32 = 0.1;

/// A search under construction. See [`Index::search`].
#[derive(Clone, Debug)]
#[must_use = "nothing is searched before `run`"]
pub struct SearchRequest<'a> {
    index: &'a Index,
    queries: Vec<String>,
    max_results: usize,
    filter: Option<AttributeFilter>,
    ranking: RankingOptions,
    signals: SearchSignals,
}

/// The ranking options, in the same JSON format as the hosted tool's `ranking_options`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankingOptions {
    /// Name of the ranker. `none` disables pseudo-relevance feedback and smoothing, which is faster; `auto`,
    /// `default-2024-11-15` and every other name select the full ranking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranker: Option<String>,
    /// Minimum score, 0 to 1; results below it are omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score_threshold: Option<f32>,
    /// Weights of BM25 and vectors; the embedder's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hybrid_search: Option<HybridWeights>,
}

/// The weights of vectors and BM25 in the fusion. Only their ratio matters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HybridWeights {
    /// Weight of the vector similarity.
    pub embedding_weight: f32,
    /// Weight of BM25.
    pub text_weight: f32,
}

/// The signals that a search ranks by. Single signals serve to measure them; use [`SearchSignals::Hybrid`]
/// otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SearchSignals {
    /// BM25, pseudo-relevance feedback and vectors.
    #[default]
    Hybrid,
    /// BM25 only.
    Bm25Only,
    /// Vectors only.
    VectorsOnly,
}

/// The results of a search.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SearchResults {
    /// The queries of the search, unchanged.
    pub queries: Vec<String>,
    /// The hits, best first.
    pub hits: Vec<SearchHit>,
}

/// A chunk that a search returned.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SearchHit {
    /// Client-visible id of the file.
    pub file_id: String,
    /// Name of the file.
    pub file_name: String,
    /// Path of the file, or the name of the document.
    pub path: String,
    /// Location of the chunk in the file.
    pub location: ChunkLocation,
    /// Text of the chunk.
    pub text: String,
    /// Score, 0 to 1. It is near 1 if the chunk leads every ranking and contains every query term.
    pub score: f32,
    /// Attributes of the file.
    pub attributes: FileAttributes,
}

impl Index {
    /// Creates a search for a query in the selected store.
    pub fn search(&self, question: impl Into<String>) -> SearchRequest<'_> {
        SearchRequest {
            index: self,
            queries: vec![question.into()],
            max_results: 10,
            filter: None,
            ranking: RankingOptions::default(),
            signals: SearchSignals::Hybrid,
        }
    }
}

impl SearchRequest<'_> {
    /// Adds another query. A chunk gets its best score over all queries.
    pub fn add_query(mut self, question: impl Into<String>) -> Self {
        self.queries.push(question.into());
        self
    }

    /// Sets the maximum number of results, 1 to 50; 10 by default.
    pub fn max_results(mut self, most: usize) -> Self {
        self.max_results = most;
        self
    }

    /// Sets the filter that selects the files to search. It applies before ranking, so it does not reduce the
    /// number of results below what the matching files allow.
    pub fn filter(mut self, filter: AttributeFilter) -> Self {
        self.filter = Some(filter);
        self
    }

    /// Sets the ranking options.
    pub fn ranking(mut self, ranking: RankingOptions) -> Self {
        self.ranking = ranking;
        self
    }

    /// Sets the minimum score, 0 to 1; results below it are omitted.
    pub fn score_threshold(mut self, score: f32) -> Self {
        self.ranking.score_threshold = Some(score);
        self
    }

    /// Sets the signals to rank by.
    pub fn signals(mut self, signals: SearchSignals) -> Self {
        self.signals = signals;
        self
    }

    /// Runs the search and returns its results.
    ///
    /// Blocks the thread for a few milliseconds; async code must call it where blocking is allowed.
    ///
    /// # Errors
    ///
    /// Returns an error if an option is out of range, the embedder fails or the index cannot be read.
    pub fn run(self) -> Result<SearchResults, SearchError> {
        if !(1..=MAX_RESULTS).contains(&self.max_results) {
            return Err(SearchError::InvalidArgument(format!(
                "there are 1 to {MAX_RESULTS} results, not {}",
                self.max_results
            )));
        }
        let hits = self.top_hits(self.max_results)?;
        Ok(SearchResults { queries: self.queries, hits })
    }

    /// Returns the top `most` hits, without the limit of [`SearchRequest::run`]; for measurements.
    #[doc(hidden)]
    pub fn top_hits(&self, most: usize) -> Result<Vec<SearchHit>, SearchError> {
        let threshold = self.ranking.score_threshold.unwrap_or(0.0);
        if !(0.0..=1.0).contains(&threshold) {
            return Err(SearchError::InvalidArgument(format!(
                "`score_threshold` is 0 to 1, not {threshold}"
            )));
        }
        let inner = &*self.index.inner;
        let vectors = self.embed_queries(inner)?;
        inner.read_transaction(|db| {
            let snapshot = inner.current_snapshot(db)?;
            let look = SearchContext {
                db,
                snapshot: &snapshot,
                allowed_files: self.allowed_files(db, &snapshot)?,
                candidates_per_ranking: CANDIDATES_PER_RANKING.max(most),
                vector_weight: inner
                    .embedder
                    .as_ref()
                    .map_or(0.0, |embedder| embedder.fusion_weight().clamp(0.0, 1.0)),
            };
            let mut analyser = inner.analyser_pool.acquire();
            let mut lists = Vec::new();
            for (question, vector) in self.queries.iter().zip(&vectors) {
                lists.push(self.rank_query(&look, question, vector.as_deref(), &mut analyser)?);
            }
            inner.analyser_pool.release(analyser);
            let ranked = match lists.as_slice() {
                [one] => one.clone(),
                several => merge_by_best_score(several),
            };
            let mut hits = Vec::with_capacity(most);
            for ranked in ranked.into_iter().take(most).take_while(|ranked| ranked.score >= threshold) {
                hits.extend(load_hit(db, &snapshot, ranked)?);
            }
            Ok(hits)
        })
    }

    /// Embeds the queries, before the read transaction starts because embedding may take long. A query without a
    /// usable vector gets `None`.
    fn embed_queries(&self, inner: &IndexInner) -> Result<Vec<Option<Vec<f32>>>, SearchError> {
        let none = vec![None; self.queries.len()];
        let wanted = self.signals != SearchSignals::Bm25Only
            && self.ranking.hybrid_search.is_none_or(|weights| weights.embedding_weight > 0.0);
        let Some(embedder) = inner.embedder.as_deref().filter(|_| wanted) else { return Ok(none) };
        // The context of a long query would outweigh its question.
        let texts: Vec<_> =
            self.queries.iter().map(|query| compose_text(&query[find_question(query)])).collect();
        let texts: Vec<&str> = texts.iter().map(|text| &**text).collect();
        let vectors = embedder.embed(&texts, EmbeddingPurpose::Query)?;
        let is_known = |vector: &Vec<f32>| {
            vector.len() == Embedder::dimensions(embedder) && vector.iter().any(|value| *value != 0.0)
        };
        let mut found: Vec<Option<Vec<f32>>> =
            vectors.into_iter().map(|vector| Some(vector).filter(is_known)).collect();
        found.resize(self.queries.len(), None);
        Ok(found)
    }

    /// Returns the files of the selected store that match the filter; `None` if every file qualifies.
    fn allowed_files(&self, db: &Connection, snapshot: &IndexSnapshot) -> rusqlite::Result<AllowedFiles> {
        if self.filter.is_none() && snapshot.stores.iter().all(|store| **store == *self.index.store) {
            return Ok(None);
        }
        let passes = |attributes: &FileAttributes| {
            self.filter.as_ref().is_none_or(|filter| filter.matches(attributes))
        };
        let files = snapshot.load_files(db)?;
        let allowed = files
            .iter()
            .filter(|(_, facts)| facts.store == *self.index.store && passes(&facts.attributes))
            .map(|(id, _)| *id)
            .collect::<BTreeSet<u32>>();
        Ok(Some(allowed))
    }

    /// Ranks the chunks for one query.
    fn rank_query(
        &self,
        look: &SearchContext<'_>,
        question: &str,
        vector: Option<&[f32]>,
        analyser: &mut TextAnalyser,
    ) -> rusqlite::Result<Vec<RankedChunk>> {
        if self.signals == SearchSignals::VectorsOnly {
            let near = match vector {
                Some(vector) => look.rank_by_vector(&quantise(vector))?,
                None => Vec::new(),
            };
            return Ok(fuse_rankings(&[WeightedRanking { ranking: &near, weight: 1.0 }]));
        }
        let asked = analyse_query(question, analyser);
        let wanted = expand::choose_terms(look.db, look.snapshot, asked.terms)?;
        let wanted = expand::correct_spelling(look.db, look.snapshot, wanted)?;
        let phrases = match_phrases(look.db, look.snapshot, &asked.phrases)?;
        let words = look.rank_by_words(&wanted, &phrases)?;
        if self.signals == SearchSignals::Bm25Only {
            return Ok(fuse_rankings(&[WeightedRanking { ranking: &words, weight: 1.0 }]));
        }
        let coverage = look.measure_coverage(&wanted, &words, analyser)?;
        let trust = self.trust_expansion(look, coverage, vector.is_some());
        let second_look = self.ranking.ranker.as_deref() != Some("none");
        let feedback = if second_look && trust.feedback > 0.0 && !words.is_empty() {
            let more = expand::expand_with_feedback(look.db, look.snapshot, &wanted, &words, analyser)?;
            look.rank_by_words(&more, &phrases)?
        } else {
            Vec::new()
        };
        let near = match vector {
            Some(vector) if trust.vectors > 0.0 => look
                .rank_by_vector(&look.shift_query_vector(vector, if second_look { &words } else { &[] })?)?,
            _ => Vec::new(),
        };
        let part = |share: f32| trust.text * share / (QUERY_TERMS_WEIGHT + trust.feedback);
        let shares = [
            WeightedRanking { ranking: &words, weight: part(QUERY_TERMS_WEIGHT) },
            WeightedRanking { ranking: &feedback, weight: part(trust.feedback) },
            WeightedRanking { ranking: &near, weight: trust.vectors },
        ];
        let mut fused = fuse_rankings(&shares);
        if second_look
            && trust.smoothing > 0.0
            && let Some(vector) = vector
        {
            look.smooth_scores(&mut fused, vector.len(), trust.smoothing)?;
        }
        let nearness = near.first().map_or(0.0, |ranked| ranked.score);
        let sure = coverage.max(nearness).clamp(0.0, 1.0);
        fused.iter_mut().for_each(|ranked| ranked.score *= sure);
        Ok(fused)
    }

    /// Decides how much vectors and feedback take part in one query.
    ///
    /// They find what the query's words miss. Where the best chunk has all the words, they can only displace it, so
    /// their weight grows with the share of the query that the best chunk lacks. Feedback without vectors is not used:
    /// nothing then tells whether the chunks that it learns from are about the query.
    fn trust_expansion(&self, look: &SearchContext<'_>, coverage: f32, has_vector: bool) -> ExpansionTrust {
        let (text, vectors) = match self.ranking.hybrid_search {
            Some(weights) => (weights.text_weight.max(0.0), weights.embedding_weight.max(0.0)),
            None => (1.0 - look.vector_weight, look.vector_weight),
        };
        if !has_vector {
            return ExpansionTrust { text: 1.0, feedback: 0.0, vectors: 0.0, smoothing: 0.0 };
        }
        let need = ((1.0 - coverage) / FULL_NEED).clamp(0.0, 1.0);
        // A sentence model has half of the weight and is trusted in every query; the weights of the caller are obeyed.
        let least = (vectors * 2.0).min(1.0);
        let share = if self.ranking.hybrid_search.is_some() { 1.0 } else { least + (1.0 - least) * need };
        ExpansionTrust {
            text: text + vectors * (1.0 - share),
            feedback: FEEDBACK_TERMS_WEIGHT * need,
            vectors: vectors * share,
            smoothing: SMOOTHING_WEIGHT * share * need,
        }
    }
}

/// The weights of the rankings of one query.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ExpansionTrust {
    /// Weight of words, those of the feedback included.
    text: f32,
    /// Weight of the feedback's terms relative to `QUERY_TERMS_WEIGHT`.
    feedback: f32,
    vectors: f32,
    smoothing: f32,
}

/// The data that all steps of a search share.
struct SearchContext<'a> {
    db: &'a Connection,
    snapshot: &'a IndexSnapshot,
    allowed_files: AllowedFiles,
    candidates_per_ranking: usize,
    /// Weight of vectors, unless the ranking options set one; the weight of BM25 is 1 minus it.
    vector_weight: f32,
}

impl SearchContext<'_> {
    fn rank_by_words(
        &self,
        wanted: &[QueryTerm],
        phrases: &[MatchedPhrase],
    ) -> rusqlite::Result<Vec<RankedChunk>> {
        rank_by_words(
            self.db,
            self.snapshot,
            wanted,
            phrases,
            &self.allowed_files,
            self.candidates_per_ranking,
        )
    }

    fn rank_by_vector(&self, wanted: &QuantisedVector) -> rusqlite::Result<Vec<RankedChunk>> {
        rank_by_vector(self.db, self.snapshot, wanted, &self.allowed_files, self.candidates_per_ranking)
    }

    /// Returns the query's vector plus the weighted mean vector of the top BM25 chunks (Rocchio feedback),
    /// quantised.
    fn shift_query_vector(&self, vector: &[f32], best: &[RankedChunk]) -> rusqlite::Result<QuantisedVector> {
        let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
        let mut sum: Vec<f32> = vector.iter().map(|value| value / length).collect();
        let best = &best[..best.len().min(VECTOR_FEEDBACK_CHUNKS)];
        for ranked in best {
            let (segment, at) = self.snapshot.locate_chunk(ranked.chunk_ordinal);
            let Some(vectors) = segment.load_vectors(self.db, vector.len())? else { continue };
            let weight = VECTOR_FEEDBACK_WEIGHT / best.len() as f32 * vectors.scale(at);
            for (sum, value) in sum.iter_mut().zip(vectors.values(at)) {
                *sum += f32::from(*value) * weight;
            }
        }
        Ok(quantise(&sum))
    }

    /// Smooths the top 100: score ← (1 - weight)·score + weight·m, where m is the similarity-weighted mean score of the
    /// 3 most similar chunks from other files. A chunk similar to other good results is more likely relevant.
    fn smooth_scores(
        &self,
        ranked: &mut [RankedChunk],
        dimensions: usize,
        weight: f32,
    ) -> rusqlite::Result<()> {
        let head = ranked.len().min(CANDIDATES_PER_RANKING);
        let mut places = Vec::with_capacity(head);
        for ranked in &ranked[..head] {
            let (segment, at) = self.snapshot.locate_chunk(ranked.chunk_ordinal);
            places.push((segment.load_vectors(self.db, dimensions)?, at, segment.file_ids[at], ranked.score));
        }
        let mut nearest = vec![[(0.0f32, 0.0f32); SMOOTHING_NEIGHBOURS]; head];
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
                // Chunks of the same file are similar regardless of their relevance.
                let Some(others) = others.filter(|_| other_file != file) else { continue };
                let nearness = vectors.similarity_between(*at, others, *other_at);
                offer(this, nearness, *other_score);
                offer(this + 1 + more, nearness, *score);
            }
        }
        for (ranked, nearest) in ranked.iter_mut().zip(nearest) {
            let whole: f32 = nearest.iter().map(|(nearness, _)| nearness).sum();
            if whole > 0.0 {
                let around = nearest.iter().map(|(nearness, score)| nearness * score).sum::<f32>() / whole;
                ranked.score += weight * (around - ranked.score);
            }
        }
        ranked.sort_by(|left, right| {
            right.score.total_cmp(&left.score).then(left.chunk_ordinal.cmp(&right.chunk_ordinal))
        });
        Ok(())
    }

    /// Returns the IDF-weighted share of the query terms that the top BM25 chunk contains, 0 to 1.
    ///
    /// Fused scores are relative to each ranking, so without this factor the best of irrelevant results would
    /// score 1.
    fn measure_coverage(
        &self,
        wanted: &[QueryTerm],
        words: &[RankedChunk],
        analyser: &mut TextAnalyser,
    ) -> rusqlite::Result<f32> {
        let Some(best) = words.first() else { return Ok(0.0) };
        let (segment, at) = self.snapshot.locate_chunk(best.chunk_ordinal);
        let text: Option<String> = self
            .db
            .prepare_cached(
                "SELECT name || ' ' || coalesce(json_extract(location, '$.heading'), '') || ' ' || text
                 FROM chunks JOIN files ON files.id = file WHERE chunks.id = ?1",
            )?
            .query_row([segment.chunk_ids[at]], |row| row.get(0))
            .optional()?;
        let mut there = BTreeSet::new();
        analyser
            .analyse(&text.unwrap_or_default(), &mut |term, _: TermKind| _ = there.insert(term.to_owned()));
        let (mut has, mut whole) = (0.0, 0.0);
        for want in wanted {
            let weight = want.weight
                * inverse_document_frequency(
                    self.snapshot,
                    self.snapshot.document_frequency(self.db, &want.term)?,
                );
            whole += weight;
            if there.contains(&want.term) {
                has += weight;
            }
        }
        Ok((has / f32::max(whole, f32::MIN_POSITIVE)).clamp(0.0, 1.0))
    }
}

/// Merges the rankings of several queries: each chunk keeps its best score.
fn merge_by_best_score(lists: &[Vec<RankedChunk>]) -> Vec<RankedChunk> {
    let mut best: std::collections::BTreeMap<usize, f32> = std::collections::BTreeMap::new();
    for ranked in lists.iter().flatten() {
        let score = best.entry(ranked.chunk_ordinal).or_default();
        *score = score.max(ranked.score);
    }
    let mut all: Vec<RankedChunk> =
        best.into_iter().map(|(slot, score)| RankedChunk { chunk_ordinal: slot, score }).collect();
    all.sort_by(|left, right| {
        right.score.total_cmp(&left.score).then(left.chunk_ordinal.cmp(&right.chunk_ordinal))
    });
    all
}

/// Loads the text and file of a ranked chunk; `None` if it was deleted.
fn load_hit(
    db: &Connection,
    snapshot: &IndexSnapshot,
    ranked: RankedChunk,
) -> rusqlite::Result<Option<SearchHit>> {
    let (segment, at) = snapshot.locate_chunk(ranked.chunk_ordinal);
    db.prepare_cached(
        "SELECT file_id, name, path, location, text, attributes FROM chunks JOIN files ON files.id = file WHERE chunks.id = ?1",
    )?
    .query_row([segment.chunk_ids[at]], |row| {
        let location: String = row.get(3)?;
        let attributes: String = row.get(5)?;
        Ok(SearchHit {
            file_id: row.get(0)?,
            file_name: row.get(1)?,
            path: row.get(2)?,
            location: serde_json::from_str(&location).unwrap_or_default(),
            text: row.get(4)?,
            score: ranked.score,
            attributes: serde_json::from_str(&attributes).unwrap_or_default(),
        })
    })
    .optional()
}

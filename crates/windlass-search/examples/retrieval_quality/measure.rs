//! Measures the retrieval quality of an index on a collection with relevance judgements.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use serde_json::Value;
use windlass_search::{DocumentFormat, IndexDocument, IndexOptions, SearchSignals};

/// Number of resamples of a bootstrap interval.
const RESAMPLES: usize = 2000;

/// The retrieval quality of one ranking: a value from 0 to 1 for each query.
#[derive(Clone, Debug, Default)]
pub(crate) struct RetrievalQuality {
    /// nDCG@10: graded relevance of the top ten, discounted by rank.
    pub(crate) ndcg_at_10: Vec<f64>,
    /// Recall@100: share of the relevant documents among the top hundred.
    pub(crate) recall_at_100: Vec<f64>,
}

/// The mean difference of two rankings on the same queries, with its 95 % bootstrap interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairedDifference {
    pub(crate) mean: f64,
    pub(crate) lower: f64,
    pub(crate) upper: f64,
}

/// Measures BM25, vectors and hybrid search, in this order, on a collection in the BEIR layout.
pub(crate) fn measure_quality(
    folder: &Path,
    options: IndexOptions,
) -> Result<[RetrievalQuality; 3], Box<dyn Error>> {
    let collection = BeirCollection::load(folder)?;
    let kept = tempfile::tempdir()?;
    let index = options.open(kept.path().join("quality.index"))?;
    index.put_documents(collection.documents)?;
    let mut columns = <[RetrievalQuality; 3]>::default();
    for (column, signals) in
        columns.iter_mut().zip([SearchSignals::Bm25Only, SearchSignals::VectorsOnly, SearchSignals::Hybrid])
    {
        for (question, judged) in &collection.queries {
            // Judgements apply to documents, and a long document has several chunks.
            let mut seen = Vec::new();
            for hit in index.search(question.as_str()).signals(signals).top_hits(200)? {
                if !seen.contains(&hit.path) {
                    seen.push(hit.path);
                }
            }
            column.ndcg_at_10.push(ndcg_at_10(&seen, judged));
            column.recall_at_100.push(recall_at_100(&seen, judged));
        }
    }
    Ok(columns)
}

/// Returns the mean of some values.
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Compares two rankings query by query: the mean of the differences `new - old` and the interval that 95 % of the
/// resampled means fall into.
pub(crate) fn compare_paired(new: &[f64], old: &[f64]) -> PairedDifference {
    let differences: Vec<f64> = new.iter().zip(old).map(|(new, old)| new - old).collect();
    // A fixed seed, so that the same rankings give the same interval.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 11).unwrap_or(0) % differences.len().max(1)
    };
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let sum: f64 = (0..differences.len()).map(|_| differences[draw()]).sum();
            sum / differences.len().max(1) as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    let at = |share: f64| means[((RESAMPLES - 1) as f64 * share).round() as usize];
    PairedDifference { mean: mean(&differences), lower: at(0.025), upper: at(0.975) }
}

/// Relevance grades by document id.
type RelevanceJudgements = BTreeMap<String, f64>;

/// The documents of a collection, and its queries with their relevance judgements.
struct BeirCollection {
    documents: Vec<IndexDocument>,
    queries: Vec<(String, RelevanceJudgements)>,
}

impl BeirCollection {
    fn load(folder: &Path) -> Result<Self, Box<dyn Error>> {
        let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
        let mut documents = Vec::new();
        for line in std::fs::read_to_string(folder.join("corpus.jsonl"))?.lines() {
            let value: Value = serde_json::from_str(line)?;
            let (title, body) = (text(&value, "title"), text(&value, "text"));
            let whole = if body.starts_with(&title) { body } else { format!("{title}\n{body}") };
            documents.push(IndexDocument::new(text(&value, "_id"), whole).format(DocumentFormat::Text));
        }
        let mut judged: BTreeMap<String, RelevanceJudgements> = BTreeMap::new();
        for line in std::fs::read_to_string(folder.join("qrels/test.tsv"))?.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            if let [question, document, grade] = fields[..]
                && let Ok(grade) = grade.parse::<f64>()
            {
                judged.entry(question.to_owned()).or_default().insert(document.to_owned(), grade);
            }
        }
        let mut questions = Vec::new();
        for line in std::fs::read_to_string(folder.join("queries.jsonl"))?.lines() {
            let value: Value = serde_json::from_str(line)?;
            if let Some(judged) = judged.remove(&text(&value, "_id"))
                && judged.values().any(|grade| *grade > 0.0)
            {
                questions.push((text(&value, "text"), judged));
            }
        }
        Ok(Self { documents, queries: questions })
    }
}

fn ndcg_at_10(found: &[String], judged: &RelevanceJudgements) -> f64 {
    let sum = |grades: &mut dyn Iterator<Item = f64>| -> f64 {
        grades.take(10).enumerate().map(|(at, grade)| grade / (at as f64 + 2.0).log2()).sum()
    };
    let mut best: Vec<f64> = judged.values().copied().collect();
    best.sort_by(|left, right| right.total_cmp(left));
    let got = sum(&mut found.iter().map(|document| judged.get(document).copied().unwrap_or(0.0)));
    got / sum(&mut best.into_iter()).max(f64::MIN_POSITIVE)
}

fn recall_at_100(found: &[String], judged: &RelevanceJudgements) -> f64 {
    let relevant: Vec<&String> =
        judged.iter().filter(|(_, grade)| **grade > 0.0).map(|(name, _)| name).collect();
    let hits = found.iter().take(100).filter(|document| relevant.contains(document)).count();
    hits as f64 / relevant.len().max(1) as f64
}

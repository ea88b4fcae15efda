//! Measures an index on a collection that people have judged.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use serde_json::Value;
use windlass_search::{Document, IndexOptions, Kind, Signals};

/// How well something finds, from 0 to 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// nDCG@10: how good the first ten are, in their order.
    pub(crate) gain: f64,
    /// Recall@100: how much of what is relevant is among the first hundred.
    pub(crate) recall: f64,
}

/// Words alone, vectors alone, and both, on a collection in BEIR's layout.
pub(crate) fn measure(folder: &Path, options: IndexOptions) -> Result<[Measured; 3], Box<dyn Error>> {
    let collection = Collection::read(folder)?;
    let kept = tempfile::tempdir()?;
    let index = options.open(kept.path().join("quality.index"))?;
    index.put(collection.documents)?;
    let mut columns = [Measured { gain: 0.0, recall: 0.0 }; 3];
    let count = collection.questions.len().max(1) as f64;
    for (column, signals) in columns.iter_mut().zip([Signals::Words, Signals::Vectors, Signals::All]) {
        for (question, judged) in &collection.questions {
            // Judgements are about documents; a long one is several chunks.
            let mut seen = Vec::new();
            for hit in index.search(question.as_str()).signals(signals).best(200)? {
                if !seen.contains(&hit.path) {
                    seen.push(hit.path);
                }
            }
            column.gain += gain_at_10(&seen, judged) / count;
            column.recall += recall_at_100(&seen, judged) / count;
        }
    }
    Ok(columns)
}

/// What people said of each document.
type Judged = BTreeMap<String, f64>;

struct Collection {
    documents: Vec<Document>,
    questions: Vec<(String, Judged)>,
}

impl Collection {
    fn read(folder: &Path) -> Result<Self, Box<dyn Error>> {
        let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
        let mut documents = Vec::new();
        for line in std::fs::read_to_string(folder.join("corpus.jsonl"))?.lines() {
            let value: Value = serde_json::from_str(line)?;
            let (title, body) = (text(&value, "title"), text(&value, "text"));
            let whole = if body.starts_with(&title) { body } else { format!("{title}\n{body}") };
            documents.push(Document::new(text(&value, "_id"), whole).kind(Kind::Text));
        }
        let mut judged: BTreeMap<String, Judged> = BTreeMap::new();
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
        Ok(Self { documents, questions })
    }
}

fn gain_at_10(found: &[String], judged: &Judged) -> f64 {
    let sum = |grades: &mut dyn Iterator<Item = f64>| -> f64 {
        grades.take(10).enumerate().map(|(at, grade)| grade / (at as f64 + 2.0).log2()).sum()
    };
    let mut best: Vec<f64> = judged.values().copied().collect();
    best.sort_by(|left, right| right.total_cmp(left));
    let got = sum(&mut found.iter().map(|document| judged.get(document).copied().unwrap_or(0.0)));
    got / sum(&mut best.into_iter()).max(f64::MIN_POSITIVE)
}

fn recall_at_100(found: &[String], judged: &Judged) -> f64 {
    let relevant: Vec<&String> =
        judged.iter().filter(|(_, grade)| **grade > 0.0).map(|(name, _)| name).collect();
    let hits = found.iter().take(100).filter(|document| relevant.contains(document)).count();
    hits as f64 / relevant.len().max(1) as f64
}

//! How well an index finds what people judged to be relevant, for collections in BEIR's layout (`corpus.jsonl`,
//! `queries.jsonl`, `qrels/test.tsv`). Give one or more folders:
//!
//! ```sh
//! cargo run --release -p windlass-search --example retrieval_quality -- path/to/cranfield
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};

use serde_json::Value;
use windlass_search::{Document, Index, Kind, Signals};

fn main() -> Result<(), Box<dyn Error>> {
    let folders: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if folders.is_empty() {
        println!("usage: retrieval_quality FOLDER...");
        return Ok(());
    }
    println!("{:<18} {:>15} {:>15} {:>15}", "nDCG@10 / R@100", "BM25", "vectors", "fused");
    for folder in folders {
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let collection = Collection::read(&folder)?;
        let kept = tempfile::tempdir()?;
        let index = Index::open(kept.path().join("quality.index"))?;
        index.put(collection.documents)?;
        let mut columns = Vec::new();
        for signals in [Signals::Words, Signals::Vectors, Signals::All] {
            let (mut gain, mut recall) = (0.0, 0.0);
            for (question, judged) in &collection.questions {
                // Judgements are about documents; a long one is several chunks.
                let mut seen = Vec::new();
                for hit in index.search(question.as_str()).signals(signals).best(200)? {
                    if !seen.contains(&hit.path) {
                        seen.push(hit.path);
                    }
                }
                gain += gain_at_10(&seen, judged);
                recall += recall_at_100(&seen, judged);
            }
            let count = collection.questions.len().max(1) as f64;
            columns.push(format!("{:.3} / {:.3}", gain / count, recall / count));
        }
        println!("{:<18} {:>15} {:>15} {:>15}", name, columns[0], columns[1], columns[2]);
    }
    Ok(())
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

//! Measures retrieval quality against relevance judgements, for collections in the BEIR layout (`corpus.jsonl`,
//! `queries.jsonl`, `qrels/test.tsv`). Pass one or more folders:
//!
//! ```sh
//! cargo run --release -p windlass-search --example retrieval_quality -- path/to/cranfield
//! cargo run --release -p windlass-search --features model --example retrieval_quality -- --model minilm path/to/cranfield
//! ```
//!
//! `--model` takes `minilm`, which is downloaded, or the folder of a sentence model.

mod measure;

use std::error::Error;
use std::path::PathBuf;

use windlass_search::{Index, IndexOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let mut options = Index::options();
    if words.first().is_some_and(|word| word.as_os_str() == "--model") && words.len() > 1 {
        options = with_model(options, &words[1])?;
        words.drain(..2);
    }
    if words.is_empty() {
        println!("usage: retrieval_quality [--model minilm|FOLDER] FOLDER...");
        return Ok(());
    }
    println!(
        "{:<26} {:>15} {:>15} {:>15}   fused - words, 95 %",
        "nDCG@10 / R@100", "words", "vectors", "fused"
    );
    for folder in words {
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let columns = measure::measure_quality(&folder, options.clone())?;
        let by = measure::compare_paired(&columns[2].ndcg_at_10, &columns[0].ndcg_at_10);
        let columns = columns.map(|one| {
            format!("{:.3} / {:.3}", measure::mean(&one.ndcg_at_10), measure::mean(&one.recall_at_100))
        });
        println!(
            "{:<26} {:>15} {:>15} {:>15}   {:+.3} [{:+.3}, {:+.3}]",
            name, columns[0], columns[1], columns[2], by.mean, by.lower, by.upper
        );
    }
    Ok(())
}

#[cfg(feature = "model")]
fn with_model(options: IndexOptions, which: &std::path::Path) -> Result<IndexOptions, Box<dyn Error>> {
    use windlass_search::SentenceModel;

    let model = match which.to_str() {
        Some("minilm") => SentenceModel::fetch_minilm(&mut |_, _| {})?,
        _ => SentenceModel::open(which)?,
    };
    Ok(options.embedder(model))
}

#[cfg(not(feature = "model"))]
fn with_model(_: IndexOptions, _: &std::path::Path) -> Result<IndexOptions, Box<dyn Error>> {
    Err("sentence models need `--features model`".into())
}

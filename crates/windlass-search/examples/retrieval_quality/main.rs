//! How well an index finds what people judged to be relevant, for collections in BEIR's layout (`corpus.jsonl`,
//! `queries.jsonl`, `qrels/test.tsv`). Give one or more folders:
//!
//! ```sh
//! cargo run --release -p windlass-search --example retrieval_quality -- path/to/cranfield
//! ```

mod measure;

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let folders: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if folders.is_empty() {
        println!("usage: retrieval_quality FOLDER...");
        return Ok(());
    }
    println!("{:<18} {:>15} {:>15} {:>15}", "nDCG@10 / R@100", "BM25", "vectors", "fused");
    for folder in folders {
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let columns = measure::measure(&folder)?.map(|one| format!("{:.3} / {:.3}", one.gain, one.recall));
        println!("{:<18} {:>15} {:>15} {:>15}", name, columns[0], columns[1], columns[2]);
    }
    Ok(())
}

//! The text of real PDF files, compared with `pdftotext`: the share of its words that the index has, too.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use windlass_search::{ChunkingOptions, Index, IndexDocument};

/// Returns the words of a text with their counts; characters of scripts without spaces count one by one.
fn count_words(text: &str) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    let mut word = String::new();
    for c in text.to_lowercase().chars().chain([' ']) {
        let is_ideograph =
            matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}');
        if c.is_alphanumeric() && !is_ideograph {
            match c {
                'ﬁ' => word.push_str("fi"),
                'ﬂ' => word.push_str("fl"),
                'ﬀ' => word.push_str("ff"),
                'ﬃ' => word.push_str("ffi"),
                'ﬄ' => word.push_str("ffl"),
                _ => word.push(c),
            }
            continue;
        }
        if !word.is_empty() {
            *counts.entry(std::mem::take(&mut word)).or_default() += 1;
        }
        if is_ideograph {
            *counts.entry(c.to_string()).or_default() += 1;
        }
    }
    counts
}

/// Returns the share of the words of `expected` that `found` has.
fn recall(expected: &HashMap<String, usize>, found: &HashMap<String, usize>) -> f64 {
    let shared: usize =
        expected.iter().map(|(word, count)| (*count).min(found.get(word).copied().unwrap_or(0))).sum();
    shared as f64 / expected.values().sum::<usize>().max(1) as f64
}

/// Returns the text that the index extracts from a file, or the reason why it does not.
fn extract(path: &Path) -> Result<String, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let chunking = ChunkingOptions { max_tokens: 4096, overlap_tokens: 0 };
    let index = Index::options()
        .chunking(chunking)
        .without_vectors()
        .open(folder.path().join("pdf.index"))
        .expect("opens");
    let bytes = std::fs::read(path).expect("reads");
    let report = index.put_documents([IndexDocument::new("x.pdf", bytes)]).expect("put");
    let files = index.list_files().expect("lists");
    match index.file_chunks(&files[0].id) {
        Ok(chunks) if report.added == 1 => Ok(chunks.join("\n")),
        _ => Err(report.to_string()),
    }
}

/// Measures a folder of PDF files: one line per file, and the mean.
fn measure_folder(folder: &Path) -> f64 {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("lists")
        .map(|entry| entry.expect("reads").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "pdf"))
        .collect();
    files.sort();
    let mut sum = 0.0;
    let mut measured = 0;
    for path in &files {
        let output = Command::new("pdftotext").arg(path).arg("-").output().expect("runs");
        let expected = count_words(&String::from_utf8_lossy(&output.stdout));
        if expected.values().sum::<usize>() < 50 {
            println!("{}: pdftotext finds no text", path.display());
            continue;
        }
        let found = match extract(path) {
            Ok(text) => recall(&expected, &count_words(&text)),
            Err(report) => {
                println!("{}: {report}", path.display());
                0.0
            }
        };
        println!("{}: {found:.4}", path.display());
        sum += found;
        measured += 1;
    }
    assert!(measured > 0, "{} has no PDF files", folder.display());
    println!("mean of {measured} files: {:.4}", sum / f64::from(measured));
    sum / f64::from(measured)
}

#[test]
fn real_manuals_have_the_words_that_pdftotext_finds() {
    let has_tool = Command::new("pdftotext").arg("-v").output().is_ok();
    for (variable, least) in [("WINDLASS_PDF_MANUALS", 0.99), ("WINDLASS_PDF_NASTY", 0.95)] {
        match std::env::var_os(variable).map(PathBuf::from) {
            Some(folder) if has_tool => {
                let mean = measure_folder(&folder);
                assert!(mean >= least, "{variable}: {mean:.4} is below {least}");
            }
            folder => {
                let why =
                    if folder.is_none() { "the variable is not set" } else { "`pdftotext` is not installed" };
                let _ = writeln!(std::io::stderr(), "not shown: PDF recall of {variable}, because {why}");
            }
        }
    }
}

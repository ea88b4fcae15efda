//! Checks that the links and paths in the documentation exist.

#![allow(clippy::expect_used)]

use std::path::{Path, PathBuf};

#[test]
fn links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = Vec::new();
    for folder in ["", "docs", "docs/decisions", "docs/guide"] {
        let entries = std::fs::read_dir(root.join(folder)).expect("the folder is there");
        let paths = entries.map(|entry| entry.expect("can be read").path());
        pages.extend(paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    assert!(pages.len() > 8, "the pages are found: {pages:?}");
    let mut broken = Vec::new();
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("can be read");
        let beside = page.parent().expect("is in a folder").to_owned();
        for target in file_links(&text) {
            if !beside.join(target).exists() {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
        for path in crate_paths(&text) {
            if !root.join(path).exists() {
                broken.push(format!("{}: `{path}`", page.display()));
            }
        }
        if page.ends_with("ARCHITECTURE.md") {
            broken.extend(
                missing_mapped_files(&text, &root)
                    .into_iter()
                    .map(|path| format!("the code map: {}", path.display())),
            );
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Returns the targets of `[…](target)` that are files of the repository.
fn file_links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("://"))
}

/// Returns the crate paths in backticks. Paths with `*` or `vN` are patterns and are skipped.
fn crate_paths(text: &str) -> impl Iterator<Item = &str> {
    backticked_words(text)
        .filter(|word| word.starts_with("crates/") && !word.contains(['*', ' ', ':']) && !word.contains("vN"))
}

/// Returns the files that the code map names and that do not exist.
fn missing_mapped_files(text: &str, root: &Path) -> Vec<PathBuf> {
    let mut missing = Vec::new();
    let mut source = None;
    for line in text.lines() {
        if line.starts_with('#') {
            source = line
                .strip_prefix("### `")
                .and_then(|rest| rest.split_once('`'))
                .map(|(path, _)| root.join(path).join("src"));
        }
        let (Some(source), Some((files, _))) =
            (&source, line.strip_prefix("| ").and_then(|row| row.split_once(" | ")))
        else {
            continue;
        };
        missing.extend(backticked_words(files).map(|file| source.join(file)).filter(|path| !path.exists()));
    }
    missing
}

fn backticked_words(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

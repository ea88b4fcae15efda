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

/// The code map of the state machine and of the driver names every file.
#[test]
fn every_file_is_in_the_code_map() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("can be read");
    let mut absent = Vec::new();
    for name in ["crates/windlass-core", "crates/windlass"] {
        let (_, section) = text.split_once(&format!("### `{name}`")).expect("the crate is in the map");
        let section = section.split("\n### ").next().unwrap_or_default();
        let source = root.join(name).join("src");
        let mut folders = vec![source.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("the folder is there") {
                let path = entry.expect("can be read").path();
                let file =
                    path.strip_prefix(&source).expect("is in the folder").to_string_lossy().into_owned();
                if path.is_dir() {
                    folders.extend((!file.ends_with("tests")).then_some(path));
                } else if file.ends_with(".rs") && !file.ends_with("_tests.rs") && !is_mapped(&file, section)
                {
                    absent.push(format!("{name}: {file}"));
                }
            }
        }
    }
    assert!(absent.is_empty(), "the code map lacks {absent:#?}");
}

/// Largest number of files that the walk of one call leads through, and of lines in the driver's folder.
const MAX_WALK_FILES: usize = 30;
const MAX_DRIVER_LINES: usize = 2_050;

/// The walk of one call lists every file that its steps name, and is as short as it says.
#[test]
fn the_walk_of_one_call_is_short_and_lists_its_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("can be read");
    let (_, walk) = text.split_once("## The path of one call").expect("the walk is there");
    let walk = walk.split("\n## ").next().unwrap_or_default();
    let (steps, list) = walk.split_once("A reader of this walk opens ").expect("the list is there");
    let (count, list) = list.split_once(" files. ").expect("the list has a count");
    let (list, _) = list.split_once("Before them come ").expect("the list ends");
    let (of_core, of_windlass) = list.split_once("In `windlass`:").expect("the list has two parts");
    let core_files = listed_files(of_core, &root.join("crates/windlass-core/src"));
    let files = listed_files(of_windlass, &root.join("crates/windlass/src"));
    assert_eq!(count.parse(), Ok(core_files.len() + files.len()), "{core_files:?} {files:?}");
    assert!(core_files.len() + files.len() <= MAX_WALK_FILES, "{core_files:?} {files:?}");
    let is_listed = |file: &&str| {
        let listed = core_files.iter().chain(&files);
        !file.ends_with(".rs") || listed.into_iter().any(|path| path == file)
    };
    let absent: Vec<&str> = backticked_words(steps).filter(|file| !is_listed(file)).collect();
    assert!(absent.is_empty(), "the list lacks {absent:?}");

    let mut lines = 0;
    for entry in std::fs::read_dir(root.join("crates/windlass/src/drive")).expect("the folder is there") {
        let file = std::fs::read_to_string(entry.expect("can be read").path()).expect("can be read");
        lines += file.lines().count();
    }
    assert!(lines <= MAX_DRIVER_LINES, "the driver has {lines} lines");
    assert!(walk.contains("(`drive/`) has at most 2,050 lines"), "the page says the limit");
}

/// Returns the files of a list such as "of `run/` `next.rs`, `apply.rs`; `event.rs`". Each of them must exist.
fn listed_files(list: &str, source: &Path) -> Vec<String> {
    let mut files = Vec::new();
    for part in list.split(';') {
        let mut folder = "";
        for word in backticked_words(part) {
            match word.ends_with('/') {
                true => folder = word,
                false => files.extend(word.ends_with(".rs").then(|| format!("{folder}{word}"))),
            }
        }
    }
    for file in &files {
        assert!(source.join(file).exists(), "{file} is listed");
    }
    files
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
    let is_crate = |word: &&str| word.starts_with("crates/") || word.starts_with("engines/");
    backticked_words(text)
        .filter(is_crate)
        .filter(|word| !word.contains(['*', ' ', ':']) && !word.contains("vN"))
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

/// Returns true if a section of the code map names a file: by its path, or by its name in the row of its folder. A folder
/// stands for its `mod.rs`.
fn is_mapped(file: &str, section: &str) -> bool {
    let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
    section.lines().any(|line| {
        let Some((files, _)) = line.strip_prefix("| ").and_then(|row| row.split_once(" | ")) else {
            return false;
        };
        let is_row_of =
            |folder: &str| backticked_words(files).any(|word| word.trim_end_matches('/') == folder);
        let is_folder_named = backticked_words(files).any(|word| word.starts_with(&format!("{folder}/")));
        backticked_words(files).any(|word| word == file)
            || (is_row_of(folder) && (name == "mod.rs" || backticked_words(line).any(|word| word == name)))
            || (name == "mod.rs" && is_folder_named)
    })
}

fn backticked_words(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

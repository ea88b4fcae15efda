//! Prepares the Markdown pages for doc tests.
//!
//! A Rust block without `fn main` becomes the body of an asynchronous `main` that returns a boxed error. An HTML
//! comment that begins with `<!-- sample` and ends right above a block holds lines that are put in front of it; lines
//! after a line `---` in the comment are put behind it. The page on local models needs the feature `engine`.

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const MAIN: &str = "#[tokio::main(flavor = \"current_thread\")] \
    async fn main() -> Result<(), Box<dyn std::error::Error>> {";

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../..");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut pages = vec![root.join("README.md")];
    for folder in ["docs", "docs/guide"] {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
        for entry in fs::read_dir(root.join(folder))? {
            let path = entry?.path();
            let needs_engine = path.ends_with("guide/local-models.md");
            let is_built = !needs_engine || env::var_os("CARGO_FEATURE_ENGINE").is_some();
            if path.extension().is_some_and(|extension| extension == "md") && is_built {
                pages.push(path);
            }
        }
    }
    pages.sort();
    let mut declarations = String::new();
    for (index, page) in pages.iter().enumerate() {
        println!("cargo::rerun-if-changed={}", page.display());
        let prepared = prepare_page(&fs::read_to_string(page)?);
        let file = out.join(format!("page_{index}.md"));
        fs::write(&file, prepared)?;
        writeln!(declarations, "#[doc = include_str!({file:?})]\npub mod {} {{}}", module_name(&root, page))?;
    }
    fs::write(out.join("pages.rs"), declarations)?;
    Ok(())
}

/// Returns a module name that tells a failing doc test's page, such as `docs_guide_tools`.
fn module_name(root: &Path, page: &Path) -> String {
    let name = page.strip_prefix(root).unwrap_or(page).with_extension("");
    name.to_string_lossy().to_lowercase().replace(|letter: char| !letter.is_ascii_alphanumeric(), "_")
}

/// Adds the hidden lines of every Rust block of a page.
fn prepare_page(page: &str) -> String {
    let mut prepared = String::new();
    let mut before: Vec<&str> = Vec::new();
    let mut after: Vec<&str> = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with("<!-- sample") {
            let mut target = &mut before;
            for hidden in lines.by_ref().take_while(|hidden| !hidden.trim_end().ends_with("-->")) {
                if hidden.trim() == "---" {
                    target = &mut after;
                } else {
                    target.push(hidden);
                }
            }
        } else if is_rust_fence(line) {
            let block: Vec<&str> =
                lines.by_ref().take_while(|line| !line.trim_start().starts_with("```")).collect();
            write_block(&mut prepared, line, &before, &block, &after);
            before.clear();
            after.clear();
        } else {
            // Prose and blocks in other languages are not documentation of this crate.
            prepared.push('\n');
        }
    }
    prepared
}

fn is_rust_fence(line: &str) -> bool {
    line.trim_start()
        .strip_prefix("```")
        .is_some_and(|language| language.split(',').any(|word| word == "rust"))
}

fn write_block(prepared: &mut String, fence: &str, before: &[&str], block: &[&str], after: &[&str]) {
    let has_main = before.iter().chain(block).any(|line| line.contains("fn main("));
    let mut lines = vec![fence.to_owned()];
    if !has_main {
        lines.push(format!("# {MAIN}"));
    }
    lines.extend(before.iter().map(|line| format!("# {line}")));
    lines.extend(block.iter().map(|line| (*line).to_owned()));
    lines.extend(after.iter().map(|line| format!("# {line}")));
    if !has_main {
        lines.push("# Ok(()) }".to_owned());
    }
    lines.push("```".to_owned());
    for line in lines {
        prepared.push_str(&line);
        prepared.push('\n');
    }
}

//! The pages as a whole: links, the table of contents of the book, and the files for language models.
//!
//! `docs` checks them, and `docs --write` writes `llms.txt` anew. `docs --full FILE` writes all pages to one file.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

/// The table of contents of the book, which `book.toml` names.
const SUMMARY: &str = "docs/SUMMARY.md";
/// The list of pages for language models.
const LLMS: &str = "llms.txt";
/// The page with the measured figures.
const BENCHMARKS: &str = "docs/benchmarks.md";
/// The text in a line of the README after which the name of a measured case follows.
const MEASURED_CASE: &str = "| CPU time of a run with ";
/// Pages outside the book whose links are checked, too.
const ROOT_PAGES: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];

/// A page of the book, from a line of the table of contents.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BookPage {
    pub(crate) title: String,
    /// Path within the repository.
    pub(crate) path: String,
}

/// Checks links, table of contents and `llms.txt`; prints every problem.
pub(crate) fn check(root: &Path) -> ExitCode {
    match find_problems(root) {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        Ok(problems) => {
            problems.iter().for_each(|problem| eprintln!("{problem}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("the pages cannot be read: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes `llms.txt`.
pub(crate) fn write(root: &Path) -> ExitCode {
    let written = read_summary(root).and_then(|pages| fs::write(root.join(LLMS), render_llms(root, &pages)?));
    report(written)
}

/// Writes all pages to one file, for `llms-full.txt`.
pub(crate) fn write_full(root: &Path, file: &Path) -> ExitCode {
    let written = read_summary(root).and_then(|pages| fs::write(file, render_full(root, &pages)?));
    report(written)
}

fn report(written: std::io::Result<()>) -> ExitCode {
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the file cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}

fn find_problems(root: &Path) -> std::io::Result<Vec<String>> {
    let pages = read_summary(root)?;
    let mut problems = Vec::new();
    let mut listed = BTreeSet::new();
    for page in &pages {
        if !listed.insert(page.path.clone()) {
            problems.push(format!("{SUMMARY}: {} is listed twice", page.path));
        }
    }
    let mut all = Vec::new();
    collect_pages(root, &root.join("docs"), &mut all)?;
    let mut all: BTreeSet<String> = all.into_iter().filter(|path| path != SUMMARY).collect();
    problems.extend(all.difference(&listed).map(|path| format!("{SUMMARY}: {path} is not listed")));
    problems.extend(listed.difference(&all).map(|path| format!("{SUMMARY}: there is no {path}")));
    for page in all.iter().map(String::as_str).chain(ROOT_PAGES) {
        problems.extend(check_links(root, page)?);
        problems.extend(find_hidden_lines(page, &fs::read_to_string(root.join(page))?));
    }
    for page in fs::read_dir(root.join("crates"))? {
        let page = page?.path().join("README.md");
        if page.exists() {
            all.insert(normalise(page.strip_prefix(root).unwrap_or(&page).to_owned()));
        }
    }
    for page in all.iter().map(String::as_str).chain(["README.md"]) {
        problems.extend(find_unresolved_dependencies(page, &fs::read_to_string(root.join(page))?));
    }
    let (readme, benchmarks) = (
        fs::read_to_string(root.join("README.md"))?,
        fs::read_to_string(root.join(BENCHMARKS)).unwrap_or_default(),
    );
    problems.extend(compare_figures(&readme, &benchmarks));
    let current = fs::read_to_string(root.join(LLMS)).unwrap_or_default();
    if current != render_llms(root, &pages)? {
        problems.push(format!("{LLMS} is not current; `cargo run -p xtask -- docs --write` writes it"));
    }
    Ok(problems)
}

/// Reads the entries of the table of contents.
pub(crate) fn read_summary(root: &Path) -> std::io::Result<Vec<BookPage>> {
    let text = fs::read_to_string(root.join(SUMMARY))?;
    let entries = links_of(&text).into_iter().map(|(title, target)| BookPage {
        title: title.to_owned(),
        path: normalise(Path::new("docs").join(target)),
    });
    Ok(entries.collect())
}

fn collect_pages(root: &Path, folder: &Path, found: &mut Vec<String>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect_pages(root, &path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(normalise(path.strip_prefix(root).unwrap_or(&path).to_owned()));
        }
    }
    Ok(())
}

/// Returns a problem for every relative link of a page without a target.
fn check_links(root: &Path, page: &str) -> std::io::Result<Vec<String>> {
    let text = fs::read_to_string(root.join(page))?;
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    let mut problems = Vec::new();
    for (_, target) in links_of(&text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let path = if path.is_empty() { page.to_owned() } else { normalise(folder.join(path)) };
        if !root.join(&path).exists() {
            problems.push(format!("{page}: the link to {target} has no target"));
        } else if !anchor.is_empty() && path.ends_with(".md") {
            let anchors = anchors_of(&fs::read_to_string(root.join(&path))?);
            if !anchors.contains(anchor) {
                problems.push(format!("{page}: there is no heading #{anchor} in {path}"));
            }
        }
    }
    Ok(problems)
}

/// Returns a problem for every line of a Rust sample that only rustdoc hides: a code host shows it.
fn find_hidden_lines(page: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let mut is_rust = false;
    let mut is_code = false;
    for (index, line) in text.lines().enumerate() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            is_code = !is_code;
            is_rust = is_code && language.split(',').any(|word| word == "rust");
        } else if is_rust && (line.trim() == "#" || line.trim_start().starts_with("# ")) {
            let number = index + 1;
            problems
                .push(format!("{page}:{number}: readers see this line; put it into a `<!-- sample` comment"));
        }
    }
    problems
}

/// Returns a problem for every dependency on one of our crates by its version: no registry has them.
fn find_unresolved_dependencies(page: &str, text: &str) -> Vec<String> {
    let is_ours = |line: &&str| {
        let name = line.split_once('=').map_or("", |(name, _)| name.trim());
        name.starts_with("windlass") && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    };
    let is_by_version = |line: &&str| line.contains("version =") || line.contains("= \"");
    let is_by_place = |line: &&str| line.contains("path =") || line.contains("git =");
    text.lines()
        .filter(|line| is_ours(line) && is_by_version(line) && !is_by_place(line))
        .map(|line| format!("{page}: no registry has the crate of `{line}`; write `path` or `git`"))
        .collect()
}

/// Returns a problem for every figure of the README that the benchmarks do not have in the row of its case.
fn compare_figures(readme: &str, benchmarks: &str) -> Vec<String> {
    let Some(line) = readme.lines().find(|line| line.starts_with(MEASURED_CASE)) else {
        return vec!["README.md: no line has a measured case".to_owned()];
    };
    let mut cells = line[MEASURED_CASE.len()..].split('|').map(str::trim);
    let case = cells.next().unwrap_or_default();
    let Some(row) = benchmarks.lines().find(|row| row.starts_with(&format!("| {case} (CPU ms"))) else {
        return vec![format!("README.md: {BENCHMARKS} has no case `{case}`")];
    };
    let measured: BTreeSet<&str> = row.split([' ', '|', '*']).collect();
    let figures = cells.flat_map(|cell| cell.split(", ")).filter_map(|figure| figure.split_once(" ms"));
    let unknown = figures.filter(|(figure, _)| !measured.contains(figure));
    unknown.map(|(figure, _)| format!("README.md: {BENCHMARKS} has no {figure} ms for `{case}`")).collect()
}

/// Returns the texts and targets of the links in a page, outside code.
fn links_of(text: &str) -> Vec<(&str, &str)> {
    let mut links = Vec::new();
    for line in lines_outside_code(text) {
        let mut rest = line;
        let mut is_code = false;
        while let Some((before, after)) = rest.split_once("](") {
            let Some((target, after)) = after.split_once(')') else { break };
            // A link within code is an example.
            is_code ^= before.matches('`').count() % 2 == 1;
            if !is_code {
                let title = before.rsplit_once('[').map_or(before, |(_, title)| title);
                links.push((title, target));
            }
            rest = after;
        }
    }
    links
}

fn lines_outside_code(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Returns the anchors of a page's headings, as code hosts and the book derive them.
fn anchors_of(text: &str) -> BTreeSet<String> {
    let headings = lines_outside_code(text).filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let kept = |letter: &char| letter.is_alphanumeric() || ['-', '_', ' '].contains(letter);
            let title: String =
                line.trim_start_matches('#').trim().to_lowercase().chars().filter(kept).collect();
            title.replace(' ', "-")
        })
        .collect()
}

/// Returns a path without `.` and `..`, with slashes.
pub(crate) fn normalise(path: PathBuf) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    parts.join("/")
}

/// Lists the pages in the form of llms.txt: a title, a summary, and links.
fn render_llms(root: &Path, pages: &[BookPage]) -> std::io::Result<String> {
    let readme = fs::read_to_string(root.join("README.md"))?;
    let claim = readme.lines().skip(1).find(|line| !line.trim().is_empty()).unwrap_or_default();
    let mut text = format!("# Windlass\n\n> {claim}\n\n## Pages\n\n");
    for BookPage { title, path } in pages {
        text.push_str(&format!("- [{title}]({path})\n"));
    }
    text.push_str("\n## Optional\n\n- [Architecture](ARCHITECTURE.md)\n- [Changelog](CHANGELOG.md)\n- [Contributing](CONTRIBUTING.md)\n");
    Ok(text)
}

fn render_full(root: &Path, pages: &[BookPage]) -> std::io::Result<String> {
    let mut text = fs::read_to_string(root.join("README.md"))?;
    for page in pages {
        text.push_str(&format!(
            "\n\n<!-- {} -->\n\n{}",
            page.path,
            fs::read_to_string(root.join(&page.path))?
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{anchors_of, check_links, compare_figures, find_hidden_lines, find_problems, links_of};

    #[test]
    fn lines_that_only_rustdoc_hides_are_found() {
        let page = "# Title\n```rust,no_run\n#[tool]\n# let hidden = 1;\n#\nlet seen = 2;\n```\n```toml\n# a remark\n```\n";
        let lines: Vec<String> = find_hidden_lines("p.md", page);
        let starts: Vec<&str> = lines.iter().filter_map(|line| line.split(": ").next()).collect();
        assert_eq!(starts, ["p.md:4", "p.md:5"]);
    }

    #[test]
    fn figures_that_were_not_measured_are_found() {
        let readme = |figures: &str| {
            format!("| CPU time of a run with Plain | {figures} | [b](docs/benchmarks.md) |\n")
        };
        let benchmarks = "| Plain (CPU ms a run) | **0.25** | 1.00 (3.94×) | no answer in 30 s |\n";
        assert_eq!(
            compare_figures(&readme("0.25 ms | 1.00 ms (rig), no answer in 30 s (a)"), benchmarks),
            Vec::<String>::new()
        );
        let old = compare_figures(&readme("0.25 ms | 1.10 ms (rig)"), benchmarks);
        assert_eq!(old, ["README.md: docs/benchmarks.md has no 1.10 ms for `Plain`"]);
        assert_eq!(compare_figures(&readme("0.25 ms"), "").len(), 1);
        assert_eq!(compare_figures("", benchmarks).len(), 1);
    }

    #[test]
    fn links_are_found_outside_code() {
        let page = "See [one](a.md) and [two](b.md#x).\n```\n[three](c.md)\n```\n`[four](d.md)` [five](e.md)";
        let targets: Vec<&str> = links_of(page).into_iter().map(|(_, target)| target).collect();
        assert_eq!(targets, ["a.md", "b.md#x", "e.md"]);
        assert!(anchors_of("## `agent.toml` and more\n").contains("agenttoml-and-more"));
    }

    #[test]
    fn what_is_missing_is_named() -> std::io::Result<()> {
        let root = std::env::temp_dir().join(format!("xtask-docs-{}", std::process::id()));
        std::fs::create_dir_all(root.join("docs/guide"))?;
        std::fs::create_dir_all(root.join("crates/windlass-x"))?;
        let page =
            "```toml\nwindlass-x = { version = \"0.1\" }\nwindlass = { path = \"../windlass\" }\n```\n";
        std::fs::write(root.join("crates/windlass-x/README.md"), page)?;
        for page in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
            std::fs::write(root.join(page), "# Title\n\nA claim.\n")?;
        }
        std::fs::write(root.join("docs/SUMMARY.md"), "- [One](guide/one.md)\n- [Gone](gone.md)\n")?;
        std::fs::write(
            root.join("docs/guide/one.md"),
            "# One\n[up](../two.md#here) [bad](no.md) [bad](#nowhere)\n```rust\n# hidden();\n```\n",
        )?;
        std::fs::write(root.join("docs/two.md"), "## Here\n")?;
        assert_eq!(
            check_links(&root, "docs/guide/one.md")?,
            [
                "docs/guide/one.md: the link to no.md has no target",
                "docs/guide/one.md: there is no heading #nowhere in docs/guide/one.md"
            ]
        );
        // The missing page cannot be read for the list, so that problem comes first.
        std::fs::write(root.join("docs/gone.md"), "")?;
        std::fs::write(root.join("docs/SUMMARY.md"), "- [One](guide/one.md)\n")?;
        let problems = find_problems(&root)?;
        assert!(problems.contains(&"docs/SUMMARY.md: docs/gone.md is not listed".to_owned()), "{problems:?}");
        assert!(
            problems.iter().any(|problem| problem.starts_with("llms.txt is not current")),
            "{problems:?}"
        );
        assert!(problems.iter().any(|problem| problem.starts_with("docs/guide/one.md:4: ")), "{problems:?}");
        let by_version = |problem: &&String| problem.contains("no registry has the crate of `windlass-x");
        assert_eq!(problems.iter().filter(by_version).count(), 1, "{problems:?}");
        std::fs::remove_dir_all(root)
    }
}

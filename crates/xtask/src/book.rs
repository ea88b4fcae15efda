//! The built book: links to files beside the pages, such as examples and tests, lead to copies within the book.
//!
//! mdBook copies only the folder of the pages, so such a link of the repository would lead out of the book.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::docs::{self, normalise};

/// Folder of the copies within the book.
const SOURCE_FOLDER: &str = "source";

/// Completes the book in a folder: copies the files that its pages link to, and rewrites the links. Prints every link that
/// leads nowhere.
pub(crate) fn complete(root: &Path, book: &Path) -> ExitCode {
    match complete_pages(root, book) {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        Ok(problems) => {
            problems.iter().for_each(|problem| eprintln!("{problem}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("the book cannot be completed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn complete_pages(root: &Path, book: &Path) -> io::Result<BTreeSet<String>> {
    // mdBook copies the first page to the root, where its links would lead nowhere.
    if let Some(first) = docs::read_summary(root)?.first() {
        let path = first.path.trim_start_matches("docs/").replace("README.md", "index.md");
        let target = path.replace(".md", ".html");
        if target != "index.html" {
            let title = &first.title;
            let redirect = format!(
                "<!doctype html><title>{title}</title><meta http-equiv=\"refresh\" content=\"0; url={target}\"><a href=\"{target}\">{title}</a>\n"
            );
            fs::write(book.join("index.html"), redirect)?;
        }
    }
    let mut pages = Vec::new();
    collect_html(book, &mut pages)?;
    let mut problems = BTreeSet::new();
    for page in pages {
        let text = fs::read_to_string(&page)?;
        let place = page.strip_prefix(book).unwrap_or(&page).to_owned();
        let (completed, sources, dead) =
            rewrite_links(&text, &place, |path| root.join(path).exists(), |path| book.join(path).exists());
        problems.extend(dead.into_iter().map(|link| format!("{}: {link} leads nowhere", place.display())));
        for source in sources {
            copy_source(root, book, &source)?;
        }
        if completed != text {
            fs::write(&page, completed)?;
        }
    }
    Ok(problems)
}

fn collect_html(folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if !path.ends_with(SOURCE_FOLDER) {
                collect_html(&path, found)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "html") {
            found.push(path);
        }
    }
    Ok(())
}

/// Returns a page with links into the copies, the paths of the repository that it links to, and the links that lead nowhere.
fn rewrite_links(
    text: &str,
    place: &Path,
    is_in_repository: impl Fn(&str) -> bool,
    is_in_book: impl Fn(&str) -> bool,
) -> (String, BTreeSet<String>, Vec<String>) {
    const ATTRIBUTE: &str = " href=\"";
    let folder = place.parent().unwrap_or(Path::new(""));
    let up = "../".repeat(folder.components().count());
    let (mut completed, mut sources, mut dead) =
        (String::with_capacity(text.len()), BTreeSet::new(), Vec::new());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(ATTRIBUTE) {
        completed.push_str(before);
        completed.push_str(ATTRIBUTE);
        let (link, after) = after.split_once('"').unwrap_or((after, ""));
        let (path, anchor) = link.split_once('#').map_or((link, ""), |(path, anchor)| (path, anchor));
        let in_repository = normalise(Path::new("docs").join(folder).join(path));
        // mdBook takes every Markdown file for a page of the book.
        let as_markdown = in_repository.strip_suffix(".html").map(|path| format!("{path}.md"));
        let in_repository = match as_markdown {
            Some(path) if !path.starts_with("docs/") && is_in_repository(&path) => path,
            _ => in_repository,
        };
        match in_repository.strip_prefix("docs/") {
            _ if path.is_empty() || path.contains(':') => completed.push_str(link),
            Some(in_book) if is_in_book(in_book) => completed.push_str(link),
            _ if !in_repository.starts_with("docs") && is_in_repository(&in_repository) => {
                completed.push_str(&format!("{up}{SOURCE_FOLDER}/{in_repository}"));
                if !anchor.is_empty() {
                    completed.push_str(&format!("#{anchor}"));
                }
                sources.insert(in_repository);
            }
            _ => {
                completed.push_str(link);
                dead.push(link.to_owned());
            }
        }
        completed.push('"');
        rest = after;
    }
    completed.push_str(rest);
    (completed, sources, dead)
}

/// Copies a file, or the files of a folder with a list of them.
fn copy_source(root: &Path, book: &Path, source: &str) -> io::Result<()> {
    let (from, to) = (root.join(source), book.join(SOURCE_FOLDER).join(source));
    if !from.is_dir() {
        fs::create_dir_all(to.parent().unwrap_or(book))?;
        return fs::copy(from, to).map(drop);
    }
    fs::create_dir_all(&to)?;
    let mut list = String::new();
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_file() {
            fs::copy(&path, to.join(&name))?;
            list.push_str(&format!("<li><a href=\"{name}\">{name}</a></li>"));
        }
    }
    fs::write(to.join("index.html"), format!("<!doctype html><title>{source}</title><ul>{list}</ul>"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::rewrite_links;

    #[test]
    fn links_out_of_the_book_lead_to_copies() {
        let page = "<a href=\"../../crates/x/a.rs#L3\">a</a> <a href=\"../b.html#c\">b</a> <a href=\"https://x.y/\">x</a> \
                    <a href=\"#top\">top</a> <a href=\"gone.html\">g</a> <a href=\"../../X.html\">X</a> <a href=\"../../crates/no.rs\">n</a>";
        let (text, sources, dead) = rewrite_links(
            page,
            Path::new("guide/one.html"),
            |path| ["crates/x/a.rs", "X.md"].contains(&path),
            |path| path == "b.html",
        );
        assert_eq!(
            text,
            page.replace("../../crates/x/a.rs#L3", "../source/crates/x/a.rs#L3")
                .replace("../../X.html", "../source/X.md")
        );
        assert_eq!(sources.into_iter().collect::<Vec<_>>(), ["X.md", "crates/x/a.rs"]);
        assert_eq!(dead, ["gone.html", "../../crates/no.rs"]);
    }
}

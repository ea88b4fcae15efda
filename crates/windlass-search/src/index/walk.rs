//! What is in a folder: files that may be read, and what cannot be looked at.
//!
//! Links are not followed, so that a folder cannot lead in circles or out of itself. Hidden entries and the folders of
//! build tools are left out without a word.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::{Limits, Report};

/// Folders that hold what tools made.
const MADE_BY_TOOLS: [&str; 4] = ["node_modules", "target", "__pycache__", "venv"];

pub(super) struct Entry {
    pub(super) path: PathBuf,
    pub(super) size: u64,
    pub(super) changed: i64,
}

#[derive(Default)]
pub(super) struct Walked {
    pub(super) files: Vec<Entry>,
    /// What was left out for now: what the index has of these stays.
    pub(super) unseen: Vec<PathBuf>,
}

/// Lists a folder, or the one file that a path is.
pub(super) fn walk(root: &Path, limits: &Limits, report: &mut Report) -> std::io::Result<Walked> {
    let mut walked = Walked::default();
    let facts = fs::metadata(root)?;
    if !facts.is_dir() {
        take(root.to_owned(), &facts, &mut walked, report);
        return Ok(walked);
    }
    fs::read_dir(root)?;
    let mut waiting = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = waiting.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) => {
                report.problem(&folder, format!("the folder cannot be read: {error}"));
                walked.unseen.push(folder);
                continue;
            }
        };
        for entry in entries {
            let path = match entry {
                Ok(entry) => entry.path(),
                Err(error) => {
                    report.problem(&folder, format!("the folder cannot be read to its end: {error}"));
                    walked.unseen.push(folder.clone());
                    break;
                }
            };
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with('.') {
                continue;
            }
            let facts = match fs::symlink_metadata(&path) {
                Ok(facts) => facts,
                Err(error) => {
                    report.problem(&path, format!("it cannot be looked at: {error}"));
                    walked.unseen.push(path);
                    continue;
                }
            };
            if facts.is_symlink() {
                report.problem(&path, "it is a link, and links are not followed; hint: add what it leads to");
            } else if facts.is_dir() {
                if MADE_BY_TOOLS.contains(&name) {
                    continue;
                }
                if depth + 1 >= limits.depth {
                    report.problem(&path, format!("it is more than {} folders deep", limits.depth));
                    walked.unseen.push(path);
                    continue;
                }
                waiting.push((path, depth + 1));
            } else if walked.files.len() >= limits.files {
                report.problem(
                    root,
                    format!("there are more than {} files; the rest was left out", limits.files),
                );
                walked.unseen.push(root.to_owned());
                walked.files.sort_by(|left, right| left.path.cmp(&right.path));
                return Ok(walked);
            } else {
                take(path, &facts, &mut walked, report);
            }
        }
    }
    walked.files.sort_by(|left, right| left.path.cmp(&right.path));
    Ok(walked)
}

fn take(path: PathBuf, facts: &Metadata, walked: &mut Walked, report: &mut Report) {
    if !facts.is_file() {
        report.problem(&path, "it is neither a file nor a folder");
        return;
    }
    walked.files.push(Entry { path, size: facts.len(), changed: changed(facts) });
}

/// When a file was last changed, in nanoseconds since 1970.
fn changed(facts: &Metadata) -> i64 {
    let since = facts.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

/// A path as text. Bytes that are not UTF-8 are spelt out, so that different names stay different.
pub(super) fn text(path: &Path) -> String {
    let mut text = String::new();
    for part in path.as_os_str().as_encoded_bytes().utf8_chunks() {
        text.push_str(part.valid());
        for byte in part.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

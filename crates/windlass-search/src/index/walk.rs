//! Listing of the files in a folder.
//!
//! Symbolic links are not followed, so a folder cannot contain a cycle or lead outside itself. Hidden entries
//! and the folders of build tools are left out, and the report names them.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::{IndexingLimits, IndexingReport};

/// Names of folders that hold the output of build tools.
const TOOL_FOLDERS: [&str; 4] = ["node_modules", "target", "__pycache__", "venv"];
/// Maximum number of entries of a left-out folder that are named one by one; of a larger folder, the folder is named.
const MAX_NAMED_ENTRIES: usize = 16;

/// A file found in a folder, with its size and modification time.
pub(super) struct FoundFile {
    pub(super) path: PathBuf,
    pub(super) size: u64,
    pub(super) modified_at: i64,
}

/// The files of a folder, and the paths that could not be scanned.
#[derive(Default)]
pub(super) struct FolderListing {
    pub(super) files: Vec<FoundFile>,
    /// Paths that could not be scanned; their files stay in the index.
    pub(super) unscanned: Vec<PathBuf>,
}

/// Lists the files of a folder recursively, or the single file that `root` names.
pub(super) fn list_folder(
    root: &Path,
    limits: &IndexingLimits,
    report: &mut IndexingReport,
) -> std::io::Result<FolderListing> {
    let mut walked = FolderListing::default();
    let facts = fs::metadata(root)?;
    if !facts.is_dir() {
        add_file(root.to_owned(), &facts, &mut walked, report);
        return Ok(walked);
    }
    fs::read_dir(root)?;
    let mut waiting = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = waiting.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) => {
                report.add_problem(&folder, format!("the folder cannot be read: {error}"));
                walked.unscanned.push(folder);
                continue;
            }
        };
        for entry in entries {
            let path = match entry {
                Ok(entry) => entry.path(),
                Err(error) => {
                    report.add_problem(&folder, format!("the folder cannot be read to its end: {error}"));
                    walked.unscanned.push(folder.clone());
                    break;
                }
            };
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let facts = match fs::symlink_metadata(&path) {
                Ok(facts) => facts,
                Err(error) => {
                    report.add_problem(&path, format!("its metadata cannot be read: {error}"));
                    walked.unscanned.push(path);
                    continue;
                }
            };
            let is_tool_folder = facts.is_dir() && TOOL_FOLDERS.contains(&name);
            if name.starts_with('.') || is_tool_folder {
                let what = if is_tool_folder { "the output of a build tool" } else { "hidden" };
                report_left_out(&path, &facts, what, report);
                // Somebody may have added it by its own path.
                walked.unscanned.push(path);
                continue;
            }
            if facts.is_symlink() {
                report
                    .add_problem(&path, "it is a symbolic link, which is not followed; hint: add its target");
            } else if facts.is_dir() {
                if depth + 1 >= limits.max_depth {
                    report.add_problem(&path, format!("it is more than {} folders deep", limits.max_depth));
                    walked.unscanned.push(path);
                    continue;
                }
                waiting.push((path, depth + 1));
            } else if walked.files.len() >= limits.max_files {
                report.add_problem(
                    root,
                    format!("there are more than {} files; the rest was left out", limits.max_files),
                );
                walked.unscanned.push(root.to_owned());
                walked.files.sort_by(|left, right| left.path.cmp(&right.path));
                return Ok(walked);
            } else {
                add_file(path, &facts, &mut walked, report);
            }
        }
    }
    walked.files.sort_by(|left, right| left.path.cmp(&right.path));
    Ok(walked)
}

/// Reports a hidden entry or the folder of a build tool: each of its files, or the folder if it has many.
fn report_left_out(path: &Path, facts: &Metadata, what: &str, report: &mut IndexingReport) {
    let reason = format!("it is {what}, and was left out; hint: add it by its own path");
    let mut files = Vec::new();
    let mut waiting = vec![path.to_owned()];
    let mut seen = 0;
    while let Some(folder) = waiting.pop().filter(|_| facts.is_dir()) {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            seen += 1;
            if seen > MAX_NAMED_ENTRIES {
                report.add_problem(path, reason);
                return;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => waiting.push(entry.path()),
                _ => files.push(entry.path()),
            }
        }
    }
    if files.is_empty() {
        report.add_problem(path, reason);
    } else {
        files.sort();
        files.iter().for_each(|file| report.add_problem(file, reason.as_str()));
    }
}

fn add_file(path: PathBuf, facts: &Metadata, walked: &mut FolderListing, report: &mut IndexingReport) {
    if !facts.is_file() {
        report.add_problem(&path, "it is neither a file nor a folder");
        return;
    }
    walked.files.push(FoundFile { path, size: facts.len(), modified_at: modified_nanos(facts) });
}

/// Returns the modification time in nanoseconds since the Unix epoch.
fn modified_nanos(facts: &Metadata) -> i64 {
    let since = facts.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

/// Converts a path to text. Bytes that are not UTF-8 are escaped, so that distinct paths stay distinct.
pub(super) fn path_to_text(path: &Path) -> String {
    let mut text = String::new();
    for part in path.as_os_str().as_encoded_bytes().utf8_chunks() {
        text.push_str(part.valid());
        for byte in part.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

//! The report and the progress of indexing.

use std::fmt;
use std::path::{Path, PathBuf};

/// Maximum number of problems that a report lists; further problems are only counted.
const MAX_LISTED_PROBLEMS: usize = 1000;

/// The result of an update of the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexingReport {
    /// Number of files that are new in the index, and of all documents passed to `Index::put_documents`.
    pub added: usize,
    /// Number of files that were indexed again because they changed.
    pub changed: usize,
    /// Number of files that have not changed.
    pub unchanged: usize,
    /// Number of files that no longer exist and were removed from the index.
    pub removed: usize,
    /// Number of chunks written.
    pub chunks_written: usize,
    /// Number of bytes of the files that were indexed.
    pub bytes_read: u64,
    /// Files and folders that could not be indexed, or only in part.
    pub problems: Vec<IndexingProblem>,
    /// Number of problems that are not listed.
    pub unlisted_problems: usize,
}

/// A file or folder that could not be indexed, or only in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexingProblem {
    /// Path of the file or folder.
    pub path: PathBuf,
    /// Reason, as a sentence fragment.
    pub reason: String,
}

impl fmt::Display for IndexingProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)
    }
}

impl IndexingReport {
    /// Adds a problem, or counts it if the list is full.
    pub(super) fn add_problem(&mut self, path: &Path, why: impl Into<String>) {
        if self.problems.len() < MAX_LISTED_PROBLEMS {
            self.problems.push(IndexingProblem { path: path.to_owned(), reason: why.into() });
        } else {
            self.unlisted_problems += 1;
        }
    }
}

impl fmt::Display for IndexingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { added, changed, unchanged, removed, chunks_written: chunks, .. } = self;
        write!(
            f,
            "{added} files added, {changed} changed, {unchanged} unchanged, {removed} removed; {chunks} chunks written"
        )?;
        let problems = self.problems.len() + self.unlisted_problems;
        if problems > 0 {
            write!(f, "; {problems} problems")?;
        }
        for problem in &self.problems {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}

/// The progress of an update, reported after each file.
#[derive(Clone, Copy, Debug)]
pub struct IndexingProgress<'a> {
    /// Number of files processed.
    pub files_done: usize,
    /// Number of files in total.
    pub total_files: usize,
    /// Number of bytes processed.
    pub bytes_done: u64,
    /// Number of bytes in total.
    pub total_bytes: u64,
    /// Path of the file that was processed last.
    pub path: &'a Path,
}

impl fmt::Display for IndexingProgress<'_> {
    /// Formats a progress bar of one line, such as `[######----]  60 %, 12 of 20 files, 3 of 5 MB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WIDTH: u64 = 30;
        // Each file counts as 512 bytes more, because small files have a fixed cost.
        let (done, all) = (
            self.bytes_done + self.files_done as u64 * 512,
            self.total_bytes + self.total_files as u64 * 512,
        );
        let part = |of: u64| (u128::from(done) * u128::from(of) / u128::from(all.max(1))) as u64;
        let filled = part(WIDTH).min(WIDTH) as usize;
        write!(
            f,
            "[{}{}] {:>3} %, {} of {} files, {} of {} MB",
            "#".repeat(filled),
            "-".repeat(WIDTH as usize - filled),
            part(100).min(100),
            self.files_done,
            self.total_files,
            self.bytes_done >> 20,
            self.total_bytes >> 20
        )
    }
}

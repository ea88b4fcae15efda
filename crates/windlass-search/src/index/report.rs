//! What came of indexing, and how far it is.

use std::fmt;
use std::path::{Path, PathBuf};

/// How many problems a report lists. The rest is counted.
const LISTED: usize = 1000;

/// What came of indexing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Files that were not there before.
    pub added: usize,
    /// Files that were there and are different now.
    pub changed: usize,
    /// Files that are as they were.
    pub unchanged: usize,
    /// Files that are gone from the folder, and now from the index.
    pub removed: usize,
    /// Chunks that were written.
    pub chunks: usize,
    /// Bytes that were read.
    pub bytes: u64,
    /// What could not be indexed, or only in part, and why.
    pub problems: Vec<Problem>,
    /// How many problems there were beyond those that are listed.
    pub more_problems: usize,
}

/// Something that could not be indexed, or only in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Which file or folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)
    }
}

impl Report {
    pub(super) fn problem(&mut self, path: &Path, why: impl Into<String>) {
        if self.problems.len() < LISTED {
            self.problems.push(Problem { path: path.to_owned(), why: why.into() });
        } else {
            self.more_problems += 1;
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { added, changed, unchanged, removed, chunks, .. } = self;
        write!(
            f,
            "{added} files added, {changed} changed, {unchanged} unchanged, {removed} removed; {chunks} chunks written"
        )?;
        let problems = self.problems.len() + self.more_problems;
        if problems > 0 {
            write!(f, "; {problems} problems")?;
        }
        for problem in &self.problems {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}

/// How far the work is, for a progress bar. It is told after each file.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Files that are done.
    pub files: usize,
    /// All files.
    pub of_files: usize,
    /// Bytes that are done.
    pub bytes: u64,
    /// All bytes.
    pub of_bytes: u64,
    /// The file that was done last.
    pub path: &'a Path,
}

impl fmt::Display for Progress<'_> {
    /// A bar of one line, as in `[######----]  60 %, 12 of 20 files, 3 of 5 MB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WIDTH: u64 = 30;
        // Files count as well as bytes: many that are empty take their time too.
        let (done, all) = (self.bytes + self.files as u64 * 512, self.of_bytes + self.of_files as u64 * 512);
        let part = |of: u64| (u128::from(done) * u128::from(of) / u128::from(all.max(1))) as u64;
        let filled = part(WIDTH).min(WIDTH) as usize;
        write!(
            f,
            "[{}{}] {:>3} %, {} of {} files, {} of {} MB",
            "#".repeat(filled),
            "-".repeat(WIDTH as usize - filled),
            part(100).min(100),
            self.files,
            self.of_files,
            self.bytes >> 20,
            self.of_bytes >> 20
        )
    }
}

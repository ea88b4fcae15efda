//! When a person is asked, and how much is read, shown and run.

use std::time::Duration;

/// When a person must decide about a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Approve {
    /// Before every call.
    #[default]
    Always,
    /// Never.
    Never,
    /// Before every call, but not for these: folders for tools that change files, programs for commands,
    /// hosts for pages.
    OutsideOf(Vec<String>),
}

impl Approve {
    /// As [`Approve::OutsideOf`], from anything that is text.
    pub fn outside_of<T: Into<String>>(places: impl IntoIterator<Item = T>) -> Self {
        Self::OutsideOf(places.into_iter().map(Into::into).collect())
    }
}

/// How much the tools read, show and wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The longest file that is read or changed, in bytes.
    pub file_bytes: u64,
    /// How much of a file, of a search or of a page is shown at once, in bytes.
    pub shown_bytes: usize,
    /// How many lines of a file are shown at once.
    pub shown_lines: usize,
    /// How many paths are listed, and how many lines are found, at once.
    pub entries: usize,
    /// How much of each of a command's two outputs is kept, in bytes.
    pub output_bytes: usize,
    /// How long a command may take where the call does not say.
    pub command_time: Duration,
    /// How long a command may take at most.
    pub longest_command: Duration,
    /// How long a page may take, with all that it leads to.
    pub fetch_time: Duration,
    /// How much of a page is read, in bytes.
    pub page_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            file_bytes: 4 * 1024 * 1024,
            shown_bytes: 64 * 1024,
            shown_lines: 2_000,
            entries: 500,
            output_bytes: 32 * 1024,
            command_time: Duration::from_secs(60),
            longest_command: Duration::from_secs(600),
            fetch_time: Duration::from_secs(20),
            page_bytes: 2 * 1024 * 1024,
        }
    }
}

//! Access to the files of a workspace: path resolution, reading, walking and atomic replacement.
//!
//! **Invariant:** no path traversal. Nothing outside the workspace is opened, listed, created or replaced, for any
//! path and any symbolic links, even if links change concurrently. The kernel resolves paths beneath one open
//! directory; paths are never joined and opened by name.

mod hidden_links;
mod open;
mod replace;
mod walk;
mod workspace_path;

pub(crate) use hidden_links::HiddenLinks;
pub(crate) use open::{WorkspaceRoot, read_text_and_mode};
pub(crate) use replace::{CrashEvidence, FilePrecondition, FileReplacement};
pub(crate) use walk::{WalkControl, WalkEntry};
pub(crate) use workspace_path::WorkspacePath;

use windlass::core::canonical::Digest;

/// A short digest of a file's text. A change must name the version that it is based on, so that the model cannot
/// overwrite text that it has not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileVersion(String);

impl FileVersion {
    pub(crate) fn of_text(text: &str) -> Self {
        Self(Digest::of_text(text).short_hex())
    }

    pub(crate) fn matches(&self, told: &str) -> bool {
        self.0 == told.trim()
    }
}

impl std::fmt::Display for FileVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

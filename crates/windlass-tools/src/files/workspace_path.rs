//! Validated paths of the workspace.

use std::path::{Component, Path};

use crate::error::ToolRefusal;

/// Maximum length of a path, in bytes.
const MAX_PATH_BYTES: usize = 4096;

/// A path relative to the workspace, without `..`, root, empty components or control characters. Its existence and
/// its links are checked by the kernel when it is opened.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WorkspacePath(String);

impl WorkspacePath {
    /// Returns the path of the workspace itself.
    pub(crate) fn root() -> Self {
        Self(String::new())
    }

    /// Parses a path from the model. An absolute path is accepted if it begins with the workspace's path.
    ///
    /// # Errors
    ///
    /// Returns a refusal if the path is too long, has control characters or `..`, or is outside the workspace.
    pub(crate) fn parse(text: &str, root: &Path) -> Result<Self, ToolRefusal> {
        let refused = |why| ToolRefusal::InvalidPath { path: printable_path(text), reason: why };
        if text.len() > MAX_PATH_BYTES {
            return Err(refused("is too long"));
        }
        if text.contains(char::is_control) {
            return Err(refused("has control characters"));
        }
        let path = Path::new(text);
        let path = if path.is_absolute() {
            path.strip_prefix(root).map_err(|_| refused("is outside the workspace"))?
        } else {
            path
        };
        let mut parts = Vec::new();
        for part in path.components() {
            match part {
                Component::CurDir => {}
                Component::Normal(part) => parts.push(part.to_str().ok_or_else(|| refused("is not text"))?),
                Component::ParentDir => return Err(refused("has `..` in it")),
                Component::RootDir | Component::Prefix(_) => {
                    return Err(refused("is outside the workspace"));
                }
            }
        }
        Ok(Self(parts.join("/")))
    }

    /// Parses a path as [`WorkspacePath::parse`], and refuses the workspace itself.
    pub(crate) fn parse_named(text: &str, root: &Path) -> Result<Self, ToolRefusal> {
        let place = Self::parse(text, root)?;
        if place.is_root() {
            return Err(ToolRefusal::InvalidPath {
                path: printable_path(text),
                reason: "is the workspace itself, not a file",
            });
        }
        Ok(place)
    }

    /// Appends a name.
    pub(crate) fn join(&self, name: &str) -> Self {
        if self.is_root() { Self(name.to_owned()) } else { Self(format!("{}/{name}", self.0)) }
    }

    pub(crate) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the components of the path.
    pub(crate) fn parts(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/').filter(|part| !part.is_empty())
    }

    /// Returns the path for system calls; the workspace itself is `.`.
    pub(crate) fn as_path(&self) -> &str {
        if self.is_root() { "." } else { &self.0 }
    }

    /// Returns true if the path is `folder` or beneath it.
    pub(crate) fn is_within(&self, folder: &Self) -> bool {
        folder.is_root()
            || self.0.strip_prefix(&folder.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl std::fmt::Display for WorkspacePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_path())
    }
}

/// Returns the model's path for a message, without control characters and at most 200 characters long.
fn printable_path(text: &str) -> String {
    let mut text: String =
        text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(200).collect();
    if text.is_empty() {
        text.push_str("(empty)");
    }
    text
}

//! A path of the workspace, as text that has been looked at.

use std::path::{Component, Path};

use crate::error::Refusal;

/// The longest path that is looked at.
const LONGEST: usize = 4096;

/// A path relative to the workspace: no `..`, no root, no empty parts, no control characters. Whether it is
/// there, and whether links lead out of the workspace, only the kernel can say.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(String);

impl Place {
    /// The workspace itself.
    pub(crate) fn root() -> Self {
        Self(String::new())
    }

    /// Reads a path as a model writes it. Absolute ones are understood where they begin with the workspace.
    pub(crate) fn read(text: &str, root: &Path) -> Result<Self, Refusal> {
        let refused = |why| Refusal::Path { path: shown(text), why };
        if text.len() > LONGEST {
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

    /// As [`Place::read`], for something that has a name in the workspace.
    pub(crate) fn named(text: &str, root: &Path) -> Result<Self, Refusal> {
        let place = Self::read(text, root)?;
        if place.is_root() {
            return Err(Refusal::Path { path: shown(text), why: "is the workspace itself, not a file" });
        }
        Ok(place)
    }

    /// One step further down.
    pub(crate) fn join(&self, name: &str) -> Self {
        if self.is_root() { Self(name.to_owned()) } else { Self(format!("{}/{name}", self.0)) }
    }

    pub(crate) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The parts of the path.
    pub(crate) fn parts(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/').filter(|part| !part.is_empty())
    }

    /// For the kernel, which calls the folder itself `.`.
    pub(crate) fn as_path(&self) -> &str {
        if self.is_root() { "." } else { &self.0 }
    }

    /// Whether this is `folder` or stands in it.
    pub(crate) fn is_within(&self, folder: &Self) -> bool {
        folder.is_root()
            || self.0.strip_prefix(&folder.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Whether it leads into the repository's own data, where files are programs that others run.
    pub(crate) fn is_in_git(&self) -> bool {
        self.parts().any(|part| part.eq_ignore_ascii_case(".git"))
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_path())
    }
}

/// A path as it may be repeated to a model: it wrote it, so it may read it, but not a book of it.
fn shown(text: &str) -> String {
    let mut text: String =
        text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(200).collect();
    if text.is_empty() {
        text.push_str("(empty)");
    }
    text
}

//! The files of a workspace: how a path that a model wrote becomes a file, and how a file is changed.
//!
//! **Invariant:** nothing here opens, lists, creates or replaces anything outside the workspace, whatever the
//! path says and whatever links are there, also where links change while it happens. Paths are resolved by the
//! kernel beneath one open folder, never joined and opened by name.

mod open;
mod place;
mod replace;
mod walk;

pub(crate) use open::{Root, text_of};
pub(crate) use place::Place;
pub(crate) use replace::{Evidence, Expected, Replacement};
pub(crate) use walk::{Found, Walk};

use windlass::core::Digest;

/// What a file held when it was read, in short: whoever changes a file shows it, so that nobody changes what
/// he has not seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version(String);

impl Version {
    pub(crate) fn of(text: &str) -> Self {
        Self(Digest::of(text).short())
    }

    pub(crate) fn is(&self, told: &str) -> bool {
        self.0 == told.trim()
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

//! What the program and its helper say to each other: one line of JSON each.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Need, Network, Uses};

/// What to run, and how.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
    /// The workspace.
    pub(crate) root: PathBuf,
    /// Where in it to run.
    pub(crate) folder: String,
    pub(crate) read: Vec<PathBuf>,
    pub(crate) write: Vec<PathBuf>,
    pub(crate) network: Network,
    pub(crate) need: Need,
    pub(crate) uses: Uses,
}

/// What the helper tells.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// It runs, and is the first of its process group.
    Started { group: i32, confined: Confinement },
    /// It does not run.
    Failed { why: String },
    /// It has ended, and so have its descendants.
    Ended { code: Option<i32>, signal: Option<i32> },
}

/// How far the kernel restricts commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confinement {
    /// Files, TCP connections and signals.
    Full,
    /// Files, and not all of the rest: the kernel is older.
    Partial,
    /// Not at all: no Landlock. Limits, time and the environment still hold.
    None,
}

//! Deployments: builds of the same worker whose tools differ as tools differ between releases.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A build of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerBuild {
    /// The first release.
    Base,
    /// The documentation of a parameter and of the tools has other words.
    Reworded,
    /// All tools have one more parameter, which is optional.
    Extended,
    /// The tool `legacy` is gone.
    Reduced,
}

impl WorkerBuild {
    /// All builds.
    pub const ALL: [Self; 4] = [Self::Base, Self::Reworded, Self::Extended, Self::Reduced];
}

impl fmt::Display for WorkerBuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Base => "base",
            Self::Reworded => "reworded",
            Self::Extended => "extended",
            Self::Reduced => "reduced",
        })
    }
}

impl FromStr for WorkerBuild {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let build = Self::ALL.into_iter().find(|build| build.to_string() == text);
        build.ok_or_else(|| format!("there is no build `{text}`"))
    }
}

/// The arguments of the tools in one of the builds.
pub trait BuildArguments: DeserializeOwned + JsonSchema + Send + Sync + 'static {
    /// Returns the value of the parameter `what`.
    fn into_what(self) -> String;
}

/// The arguments in the first release.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BaseArguments {
    /// The thing to do.
    what: String,
}

/// The arguments with other words in their documentation.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewordedArguments {
    /// Names the operation that is to be carried out. Reworded after a complaint.
    what: String,
}

/// The arguments with one more parameter.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendedArguments {
    /// The thing to do.
    what: String,
    /// A note for the books.
    #[serde(rename = "note")]
    _note: Option<String>,
}

impl BuildArguments for BaseArguments {
    fn into_what(self) -> String {
        self.what
    }
}

impl BuildArguments for RewordedArguments {
    fn into_what(self) -> String {
        self.what
    }
}

impl BuildArguments for ExtendedArguments {
    fn into_what(self) -> String {
        self.what
    }
}

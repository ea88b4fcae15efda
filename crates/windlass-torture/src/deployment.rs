//! Deployments: builds of the same worker whose tools differ as tools differ between releases.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A build of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerBuild {
    /// The first release.
    Base,
    /// The documentation of a parameter and of the tools has other words.
    Reworded,
    /// The tool `legacy` is gone.
    Reduced,
    /// All tools have one more parameter, which is optional.
    Extended,
    /// As `Extended`, and the object in the parameter `target` has one more property, which is optional.
    Deepened,
}

impl WorkerBuild {
    /// All builds.
    pub const ALL: [Self; 5] = [Self::Base, Self::Reworded, Self::Reduced, Self::Extended, Self::Deepened];

    /// The builds that are deployed. The last one knows the tools and the parameters of all others.
    pub const DEPLOYED: &[Self] =
        &[Self::Base, Self::Reworded, Self::Reduced, Self::Extended, Self::Deepened];
}

impl fmt::Display for WorkerBuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Base => "base",
            Self::Reworded => "reworded",
            Self::Reduced => "reduced",
            Self::Extended => "extended",
            Self::Deepened => "deepened",
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

/// The arguments of a call, as all builds understand them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallArguments {
    /// The thing to do.
    pub what: String,
    /// Name of the target.
    pub target: String,
}

impl CallArguments {
    /// Returns the arguments as JSON, without what only some builds know.
    pub fn to_json(&self) -> Value {
        json!({ "what": self.what, "target": { "name": self.target } })
    }

    /// Returns the arguments as the model of a build writes them. A strict schema has it mention every parameter.
    pub fn as_written_for(&self, build: WorkerBuild) -> Value {
        let mut written = self.to_json();
        if matches!(build, WorkerBuild::Extended | WorkerBuild::Deepened) {
            written["note"] = Value::Null;
        }
        if build == WorkerBuild::Deepened {
            written["target"]["note"] = Value::Null;
        }
        written
    }
}

/// Removes the properties that are null, also those of nested objects.
pub fn without_nulls(mut arguments: Value) -> Value {
    if let Some(object) = arguments.as_object_mut() {
        object.retain(|_, value| !value.is_null());
        for value in object.values_mut() {
            *value = without_nulls(value.take());
        }
    }
    arguments
}

/// The arguments of the tools in one of the builds.
pub trait BuildArguments: DeserializeOwned + JsonSchema + Send + Sync + 'static {
    /// Returns what all builds understand of them.
    fn into_call(self) -> CallArguments;
}

/// The target in the first release.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BaseTarget {
    /// Name of the target.
    name: String,
}

/// The target with one more property.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeepenedTarget {
    /// Name of the target.
    name: String,
    /// A note for whoever reads it.
    #[serde(rename = "note")]
    _note: Option<String>,
}

/// The arguments in the first release.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BaseArguments {
    /// The thing to do.
    what: String,
    /// The target.
    target: BaseTarget,
}

/// The arguments with other words in their documentation.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewordedArguments {
    /// Names the operation that is to be carried out. Reworded after a complaint.
    what: String,
    /// Names the target.
    target: BaseTarget,
}

/// The arguments with one more parameter.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendedArguments {
    /// The thing to do.
    what: String,
    /// The target.
    target: BaseTarget,
    /// A note for the books.
    #[serde(rename = "note")]
    _note: Option<String>,
}

/// The arguments with one more parameter, and one more property of another one.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeepenedArguments {
    /// The thing to do.
    what: String,
    /// The target.
    target: DeepenedTarget,
    /// A note for the books.
    #[serde(rename = "note")]
    _note: Option<String>,
}

impl BuildArguments for BaseArguments {
    fn into_call(self) -> CallArguments {
        CallArguments { what: self.what, target: self.target.name }
    }
}

impl BuildArguments for RewordedArguments {
    fn into_call(self) -> CallArguments {
        CallArguments { what: self.what, target: self.target.name }
    }
}

impl BuildArguments for ExtendedArguments {
    fn into_call(self) -> CallArguments {
        CallArguments { what: self.what, target: self.target.name }
    }
}

impl BuildArguments for DeepenedArguments {
    fn into_call(self) -> CallArguments {
        CallArguments { what: self.what, target: self.target.name }
    }
}

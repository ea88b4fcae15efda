//! The build of an agent, which a run records when it starts.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::canonical::Digest;

/// The build of an agent: a digest of everything that a stored run depends on, and the name of the release that it is part
/// of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AgentBuild {
    /// Name of the release, if the application names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// Digest of the agents that the run can reach: their names, tools, schemas, handoffs and output types.
    pub digest: Digest,
}

impl AgentBuild {
    /// Creates the build without a release.
    pub fn new(digest: Digest) -> Self {
        Self { release: None, digest }
    }

    /// Sets the name of the release.
    #[must_use]
    pub fn with_release(mut self, release: Option<String>) -> Self {
        self.release = release;
        self
    }
}

/// Writes the digest, after the release if it has a name.
impl fmt::Display for AgentBuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.release {
            Some(release) => write!(f, "{release}@{}", self.digest),
            None => write!(f, "{}", self.digest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_is_written_with_its_release_and_read_without_one() {
        let digest = Digest::of_text("desk");
        let build = AgentBuild::new(digest).with_release(Some("v2".to_owned()));
        assert_eq!(build.to_string(), format!("v2@{digest}"));
        let text = serde_json::to_string(&build).expect("it is JSON");
        assert_eq!(text, format!("{{\"release\":\"v2\",\"digest\":\"{digest}\"}}"));
        let unnamed: AgentBuild =
            serde_json::from_str(&format!("{{\"digest\":\"{digest}\"}}")).expect("it is a build");
        assert_eq!(unnamed, AgentBuild::new(digest));
    }
}

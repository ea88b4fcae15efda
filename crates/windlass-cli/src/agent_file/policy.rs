//! Whom an agent must ask: what its file says beats what its tools say of themselves.

use serde::Deserialize;
use windlass::Tool;

use crate::problem::Problem;

/// The `[policy]` of an agent's file: names of tools.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Policy {
    /// A person decides before every call.
    #[serde(default)]
    ask: Vec<String>,
    /// Nobody is asked, though the tool would.
    #[serde(default)]
    allow: Vec<String>,
    /// The model is not offered them.
    #[serde(default)]
    deny: Vec<String>,
    /// Folders in which files may be changed unasked.
    #[serde(default)]
    pub(super) write_unasked: Vec<String>,
    /// Programs that may be run unasked.
    #[serde(default)]
    pub(super) run_unasked: Vec<String>,
    /// Hosts whose pages may be fetched unasked.
    #[serde(default)]
    pub(super) fetch_unasked: Vec<String>,
}

impl Policy {
    /// The tools that are left, each with its rule. A name that no tool has is an error: it would be a rule that
    /// somebody believes in and that does nothing.
    pub(super) fn applied_to(&self, tools: Vec<Tool>) -> Result<Vec<Tool>, Problem> {
        let named = self.ask.iter().chain(&self.allow).chain(&self.deny);
        for (place, name) in named.clone().enumerate() {
            if !tools.iter().any(|tool| tool.name() == name) {
                let known: Vec<&str> = tools.iter().map(Tool::name).collect();
                return Err(Problem::new(format!(
                    "the policy speaks of `{name}`, and there is no such tool"
                ))
                .hint(format!("the agent's tools are {}", known.join(", "))));
            }
            if named.clone().skip(place + 1).any(|other| other == name) {
                return Err(Problem::new(format!("the policy speaks of `{name}` twice"))
                    .hint("a tool stands in one of `ask`, `allow` and `deny`"));
            }
        }
        let left = tools.into_iter().filter(|tool| !self.deny.iter().any(|name| name == tool.name()));
        Ok(left
            .map(|tool| {
                if self.ask.iter().any(|name| name == tool.name()) {
                    tool.approve_always()
                } else if self.allow.iter().any(|name| name == tool.name()) {
                    tool.approve_never()
                } else {
                    tool
                }
            })
            .collect())
    }
}

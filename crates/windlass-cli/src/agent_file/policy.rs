//! The approval policy of an agent file. It overrides the policies of the tools themselves.

use serde::Deserialize;
use windlass::tool::Tool;

use crate::cli_error::CliError;

/// The `[policy]` of an agent file: lists of tool names.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ToolPolicySpec {
    /// Tools that require approval for every call.
    #[serde(default)]
    ask: Vec<String>,
    /// Tools that require no approval, regardless of their own policy.
    #[serde(default)]
    allow: Vec<String>,
    /// Tools that are not offered to the model.
    #[serde(default)]
    deny: Vec<String>,
    /// Folders in which files may be changed without approval.
    #[serde(default)]
    pub(super) auto_approve_writes: Vec<String>,
    /// Programs that may be run without approval.
    #[serde(default)]
    pub(super) auto_approve_commands: Vec<String>,
    /// Hosts whose pages may be fetched without approval.
    #[serde(default)]
    pub(super) auto_approve_fetches: Vec<String>,
}

impl ToolPolicySpec {
    /// Applies the policy to the tools and removes the denied ones.
    ///
    /// # Errors
    ///
    /// Fails if the policy names an unknown tool, because such a rule would silently have no effect.
    pub(super) fn apply_to(&self, tools: Vec<Tool>) -> Result<Vec<Tool>, CliError> {
        let named = self.ask.iter().chain(&self.allow).chain(&self.deny);
        for (place, name) in named.clone().enumerate() {
            if !tools.iter().any(|tool| tool.name() == name) {
                let known: Vec<&str> = tools.iter().map(Tool::name).collect();
                return Err(CliError::new(format!("the policy names `{name}`, but there is no such tool"))
                    .with_hint(format!("the agent's tools are {}", known.join(", "))));
            }
            if named.clone().skip(place + 1).any(|other| other == name) {
                return Err(CliError::new(format!("the policy names `{name}` twice"))
                    .with_hint("a tool may appear in only one of `ask`, `allow` and `deny`"));
            }
        }
        let left = tools.into_iter().filter(|tool| !self.deny.iter().any(|name| name == tool.name()));
        Ok(left
            .map(|tool| {
                if self.ask.iter().any(|name| name == tool.name()) {
                    tool.needs_approval()
                } else if self.allow.iter().any(|name| name == tool.name()) {
                    tool.never_needs_approval()
                } else {
                    tool
                }
            })
            .collect())
    }
}

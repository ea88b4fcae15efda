//! The policy of an agent file: rules in place of the tools' own approval rules.

use std::path::Path;

use windlass::core::decision::PendingCall;
use windlass::tool::Tool;
#[cfg(unix)]
use windlass_tools::ToolPolicy;
#[cfg(unix)]
use windlass_tools::tool_policy::PolicyVerdict;

use crate::cli_error::CliError;

/// The policy of an agent file, if it has one.
#[derive(Debug, Default)]
pub(crate) struct AgentPolicy {
    #[cfg(unix)]
    policy: Option<ToolPolicy>,
}

#[cfg(unix)]
impl AgentPolicy {
    /// Parses the section `[policy]` of an agent file.
    ///
    /// # Errors
    ///
    /// Fails with the line of the file if a rule is invalid or an example does not hold.
    pub(super) fn parse(file: &str, text: &str, workspace: &Path) -> Result<Self, CliError> {
        let policy = ToolPolicy::parse_section(file, text).map_err(|error| {
            CliError::new(error.to_string()).with_hint("docs/guide/policy.md describes the rules")
        })?;
        Ok(Self { policy: policy.map(|policy| policy.workspace(workspace)) })
    }

    /// Returns the rules, if the file has a policy.
    pub(crate) fn rules(&self) -> Option<&ToolPolicy> {
        self.policy.as_ref()
    }

    /// Returns true if a rule says whose signatures count.
    pub(crate) fn has_approvers(&self) -> bool {
        self.policy.as_ref().is_some_and(|policy| policy.named_approvers().next().is_some())
    }

    /// Returns true if a rule wants a person to be asked about this call each time, so that no earlier decision covers
    /// it.
    pub(crate) fn asks_each_time(&self, pending: &PendingCall) -> bool {
        self.policy.as_ref().is_some_and(|policy| {
            let PendingCall { agent, tool, arguments, context_sources, .. } = pending;
            let decision = policy.decide_for(agent.as_str(), tool, arguments, *context_sources);
            decision.verdict >= PolicyVerdict::AskEachTime
        })
    }

    /// Puts the tools under the policy.
    ///
    /// # Errors
    ///
    /// Fails if a rule names a tool that is neither among these nor among the other tools of the agent, because such a
    /// rule would silently have no effect.
    pub(super) fn apply_to(&self, tools: Vec<Tool>, other_tools: &[&str]) -> Result<Vec<Tool>, CliError> {
        let Some(policy) = &self.policy else { return Ok(tools) };
        for (name, line) in policy.named_tools() {
            if !tools.iter().any(|tool| tool.name() == name) && !other_tools.contains(&name) {
                let known: Vec<&str> = tools.iter().map(Tool::name).collect();
                return Err(CliError::new(format!(
                    "line {line}: the policy names `{name}`, but there is no such tool"
                ))
                .with_hint(format!("the agent's tools are {}", known.join(", "))));
            }
        }
        Ok(policy.apply_to_all(tools))
    }

    /// Puts tools under the policy whose names were checked before.
    #[cfg(feature = "mcp")]
    pub(super) fn apply_to_other(&self, tools: Vec<Tool>) -> Vec<Tool> {
        match &self.policy {
            Some(policy) => policy.apply_to_all(tools),
            None => tools,
        }
    }
}

#[cfg(not(unix))]
impl AgentPolicy {
    pub(super) fn parse(_file: &str, text: &str, _workspace: &Path) -> Result<Self, CliError> {
        if text.contains("[policy") || text.contains("[[policy") {
            return Err(CliError::new("policies need a Unix system"));
        }
        Ok(Self {})
    }

    pub(super) fn apply_to(&self, tools: Vec<Tool>, _: &[&str]) -> Result<Vec<Tool>, CliError> {
        Ok(tools)
    }

    #[cfg(feature = "mcp")]
    pub(super) fn apply_to_other(&self, tools: Vec<Tool>) -> Vec<Tool> {
        tools
    }

    pub(crate) fn has_approvers(&self) -> bool {
        false
    }

    pub(crate) fn asks_each_time(&self, _: &PendingCall) -> bool {
        false
    }
}

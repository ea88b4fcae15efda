//! The answers to calls of tools that are not available.

use std::panic::{AssertUnwindSafe, catch_unwind};

use windlass_core::{
    failure::RunFailure,
    id::AgentName,
    journal::CallStatus,
    plan::{ModelProtocolError, ToolLookup},
    run::CallResult,
};

use super::OnUnknownTool;
use crate::tool::failure_text;

impl OnUnknownTool {
    /// Returns the lookup of a tool that is not available. `offered` are the names of those that are.
    pub(crate) fn lookup(&self, name: &str, offered: Vec<String>) -> ToolLookup {
        match self {
            Self::FailRun => ToolLookup::UnknownToolFatal { available_tools: offered },
            Self::CustomMessage(text) => {
                // A message that panics is replaced by the default one.
                let message = catch_unwind(AssertUnwindSafe(|| text(name, &offered)));
                let message = message.unwrap_or_else(|_| default_message(name, &offered));
                ToolLookup::UnknownTool { message }
            }
            Self::TellModel => ToolLookup::UnknownTool { message: default_message(name, &offered) },
        }
    }

    /// Returns the result of a call whose tool is not enabled any more: that of a call of an unknown tool.
    pub(crate) fn call_result(
        &self,
        name: &str,
        agent: &AgentName,
        available_tools: Vec<String>,
    ) -> CallResult {
        let status = CallStatus::UnknownTool;
        match self.lookup(name, available_tools) {
            ToolLookup::UnknownTool { message } => CallResult::new(status, message),
            ToolLookup::UnknownToolFatal { available_tools } => {
                let (name, agent) = (name.to_owned(), agent.clone());
                let missing = ModelProtocolError::UnknownTool { name, agent, available_tools };
                let output = failure_text(Some(&missing.to_string()));
                CallResult::failing_run(status, output, RunFailure::ModelProtocolError(missing))
            }
            ToolLookup::Tool(_) | ToolLookup::Handoff { .. } => CallResult::cancelled(),
        }
    }
}

/// Returns the default message about a tool that is not available.
fn default_message(name: &str, offered: &[String]) -> String {
    let there = if offered.is_empty() { "none".to_owned() } else { offered.join(", ") };
    format!("Tool '{name}' not found. The tools are: {there}.")
}

//! Rules of the user for later commands of a run. A rule never covers text for a shell other than its own.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use windlass::core::{
    canonical::canonical_text,
    decision::{DecisionScope, HoldReason, PendingCall},
    id::{AgentName, RunId},
    tool::ToolKey,
};
#[cfg(unix)]
use windlass_tools::tool_policy::is_harmless_program;

/// Names of the built-in tools that run commands.
const COMMAND_TOOLS: [&str; 3] = ["run_command", "run_skill_script", "git_commit"];

#[cfg(not(unix))]
fn is_harmless_program(_: &str) -> bool {
    false
}

/// A rule that approves later commands of one agent in one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandRule {
    run: RunId,
    agent: AgentName,
    tool: ToolKey,
    kind: CommandRuleKind,
}

/// The commands that a rule covers.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CommandRuleKind {
    /// The same arguments, byte for byte in canonical form.
    Exact { arguments: String },
    /// One program, with one pattern for each argument, in the same folder and with the same time limit.
    Pattern { program: String, arguments: Vec<String>, folder: Option<String>, seconds: Option<u64> },
}

/// The arguments of `run_command`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandArguments {
    program: Option<String>,
    args: Option<Vec<String>>,
    shell: Option<String>,
    folder: Option<String>,
    seconds: Option<u64>,
}

/// Returns true for a tool whose standing approval would cover any command.
pub(crate) fn is_command_tool(tool: &ToolKey) -> bool {
    matches!(tool, ToolKey::Bare(name) if COMMAND_TOOLS.contains(&&**name))
}

impl CommandRule {
    /// Creates the rule for exactly this command.
    pub(super) fn exact(run: &RunId, pending: &PendingCall) -> Self {
        let arguments = canonical_arguments(pending);
        Self::new(run, pending, CommandRuleKind::Exact { arguments })
    }

    /// Creates the rule for this program with arguments by a pattern, which is a JSON list of texts.
    ///
    /// # Errors
    ///
    /// Returns the reason why the pattern is not usable.
    pub(super) fn pattern(run: &RunId, pending: &PendingCall, pattern: &str) -> Result<Self, String> {
        let Some(CommandArguments { program: Some(program), args, folder, seconds, .. }) =
            parse_command(pending).filter(|_| Self::can_have_pattern(pending))
        else {
            return Err("this command cannot have a pattern".to_owned());
        };
        let arguments: Vec<String> = serde_json::from_str(pattern)
            .map_err(|error| format!("the pattern must be a JSON list of texts: {error}"))?;
        let has_match = matches_all(&arguments, &args.unwrap_or_default());
        let kind = CommandRuleKind::Pattern { program, arguments, folder, seconds };
        if has_match {
            Ok(Self::new(run, pending, kind))
        } else {
            Err("the pattern does not cover the command that it was made for".to_owned())
        }
    }

    /// Returns true if a pattern can be narrow: the command is a program, not text for a shell, and the program executes
    /// no other one, whatever its arguments are.
    pub(super) fn can_have_pattern(pending: &PendingCall) -> bool {
        let Some(command) = parse_command(pending) else { return false };
        let (Some(program), None) = (&command.program, &command.shell) else { return false };
        is_harmless_program(program) && command.args.is_some_and(|args| !args.is_empty())
    }

    /// Returns the arguments of the command as a pattern that covers only them.
    pub(super) fn proposed_pattern(pending: &PendingCall) -> String {
        let args = parse_command(pending).and_then(|command| command.args).unwrap_or_default();
        serde_json::json!(args).to_string()
    }

    /// Returns true if the rule covers a call.
    pub(super) fn covers(&self, run: &RunId, pending: &PendingCall) -> bool {
        let is_subject = self.run == *run
            && self.agent == pending.agent
            && self.tool == pending.tool
            && pending.reason == HoldReason::Approval
            && pending.max_approval_scope == DecisionScope::ToolForRun;
        is_subject
            && match &self.kind {
                CommandRuleKind::Exact { arguments } => *arguments == canonical_arguments(pending),
                CommandRuleKind::Pattern { program, arguments, folder, seconds } => parse_command(pending)
                    .is_some_and(|command| {
                        command.program.as_ref() == Some(program)
                            && command.shell.is_none()
                            && command.folder == *folder
                            && command.seconds == *seconds
                            && matches_all(arguments, &command.args.unwrap_or_default())
                    }),
            }
    }

    fn new(run: &RunId, pending: &PendingCall, kind: CommandRuleKind) -> Self {
        Self { run: run.clone(), agent: pending.agent.clone(), tool: pending.tool.clone(), kind }
    }
}

impl fmt::Display for CommandRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            CommandRuleKind::Exact { arguments } => write!(f, "exactly this command: {arguments}"),
            CommandRuleKind::Pattern { program, arguments, .. } => {
                write!(f, "{program} with arguments like {}", serde_json::json!(arguments))
            }
        }
    }
}

fn canonical_arguments(pending: &PendingCall) -> String {
    canonical_text(&pending.arguments).map_or_else(|_| pending.arguments.clone(), Cow::into_owned)
}

fn parse_command(pending: &PendingCall) -> Option<CommandArguments> {
    serde_json::from_str(&pending.arguments).ok()
}

/// Returns true if each argument matches the pattern in its place, and there are no others.
fn matches_all(patterns: &[String], arguments: &[String]) -> bool {
    patterns.len() == arguments.len()
        && patterns.iter().zip(arguments).all(|(pattern, argument)| matches_glob(pattern, argument))
}

/// Matches a text against a pattern in which `*` stands for any text. A `*` at the start does not match an option.
fn matches_glob(pattern: &str, text: &str) -> bool {
    if pattern.starts_with('*') && text.starts_with('-') {
        return false;
    }
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = rest.get(at + part.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
#[path = "command_rule_tests.rs"]
mod tests;

//! Policies: rules that allow a tool call, ask a person about it, or deny it.
//!
//! A policy is a list of rules in TOML: the section `[policy]` of an `agent.toml`, or a file of its own. The strictest
//! matching rule decides (deny, then ask each time, then ask, then allow), and a call that no rule matches is asked about. Every decision
//! names its rule. Rules carry examples, which are checked when the policy is loaded.
//!
//! ```
//! use windlass_tools::tool_policy::{PolicyCall, PolicyVerdict, ToolPolicy};
//!
//! let policy = ToolPolicy::parse(
//!     "policy.toml",
//!     r#"
//!     [[rule]]
//!     name = "small payments"
//!     decision = "allow"
//!     tool = "pay"
//!     when = { amount = { at_most = 20 } }
//!     examples = [
//!         { decision = "allow", arguments = { amount = 20 } },
//!         { decision = "ask", arguments = { amount = 20.01 } },
//!     ]
//!     "#,
//! )?;
//! let decision = policy.decide(&PolicyCall::new("clerk", "pay", &serde_json::json!({ "amount": 7 })));
//! assert_eq!(decision.verdict, PolicyVerdict::Allow);
//! assert_eq!(decision.to_string(), "allowed by the rule `small payments` (policy.toml:2)");
//! # Ok::<(), windlass_tools::tool_policy::PolicyError>(())
//! ```

mod apply;
mod approvers;
mod command_pattern;
mod condition;
mod replay;
mod rule;
mod source;
mod spec;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use windlass::core::provenance::ContentSources;

pub(crate) use command_pattern::CommandPattern;
pub use command_pattern::is_harmless_program;
use condition::{LinkReading, PathReading};
pub use replay::{PolicyReplay, RecordedHandling};
use rule::PolicyRule;
pub use source::PolicyToolSource;

/// A policy for tool calls. It is cheap to clone.
#[derive(Clone, Debug)]
pub struct ToolPolicy {
    inner: Arc<PolicyRules>,
}

#[derive(Clone, Debug)]
struct PolicyRules {
    /// The name of the file, for messages.
    source: String,
    default: DefaultVerdict,
    rules: Vec<PolicyRule>,
    /// The folder against which relative paths in arguments are resolved.
    workspace: PathBuf,
}

/// The treatment of a call that no rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum DefaultVerdict {
    #[default]
    Ask,
    Deny,
    /// The tool's own approval rule decides.
    Tool,
}

/// The verdict of a policy. A later variant is stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyVerdict {
    /// The call runs without approval.
    Allow,
    /// The tool's own approval rule decides.
    Tool,
    /// A person is asked, unless a standing approval covers the call.
    Ask,
    /// A person is asked about this call, also under a standing approval.
    AskEachTime,
    /// The call is refused.
    Deny,
}

/// The decision of a policy about one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyDecision {
    /// The verdict.
    pub verdict: PolicyVerdict,
    /// The name of the rule that decided; `None` if no rule matched.
    pub rule: Option<String>,
    /// The file and the line of the rule, or the file of the policy.
    pub place: String,
}

impl fmt::Display for PolicyDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            PolicyVerdict::Allow => "allowed",
            PolicyVerdict::Tool => "left to the tool",
            PolicyVerdict::Ask => "asked about",
            PolicyVerdict::AskEachTime => "asked about each time",
            PolicyVerdict::Deny => "denied",
        };
        match &self.rule {
            Some(rule) => write!(f, "{verdict} by the rule `{rule}` ({})", self.place),
            None => write!(f, "{verdict}, because no rule matches ({})", self.place),
        }
    }
}

/// A call, as a policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct PolicyCall<'a> {
    /// The agent that makes the call.
    pub agent: &'a str,
    /// The name of the tool; for a tool of an MCP server, its name on that server.
    pub tool: &'a str,
    /// The MCP server of the tool; `None` for the application's own tools.
    pub origin: Option<&'a str>,
    /// The arguments.
    pub arguments: &'a Value,
    /// Sources outside the conversation of the text that the model could read when it proposed the call.
    pub context_sources: ContentSources,
    /// The time of the call in minutes since midnight, UTC; `None` if unknown.
    pub minute_of_day: Option<u32>,
}

impl<'a> PolicyCall<'a> {
    /// Creates a call of one of the application's own tools, at an unknown time.
    pub fn new(agent: &'a str, tool: &'a str, arguments: &'a Value) -> Self {
        let context_sources = ContentSources::NONE;
        Self { agent, tool, origin: None, arguments, context_sources, minute_of_day: None }
    }

    /// Sets the sources of the text that the model could read.
    #[must_use]
    pub fn context_sources(mut self, sources: impl Into<ContentSources>) -> Self {
        self.context_sources = sources.into();
        self
    }

    /// Sets the MCP server of the tool.
    #[must_use]
    pub fn origin(mut self, server: &'a str) -> Self {
        self.origin = Some(server);
        self
    }
}

/// An error in a policy, with its place in the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{source_name}:{line}: {message}")]
pub struct PolicyError {
    /// The name of the file.
    pub source_name: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The problem, and the way to correct it.
    pub message: String,
}

impl ToolPolicy {
    /// Parses a policy file. `source_name` is its name in messages.
    ///
    /// # Errors
    ///
    /// Returns an error with its line if the text is no policy, a pattern is invalid, a rule allows more than it
    /// seems to, or an example does not hold.
    pub fn parse(source_name: &str, text: &str) -> Result<Self, PolicyError> {
        spec::parse_file(source_name, text)
    }

    /// Parses the section `[policy]` of a larger file, such as an `agent.toml`; `None` if it has none.
    ///
    /// # Errors
    ///
    /// Returns an error as [`ToolPolicy::parse`] does.
    pub fn parse_section(source_name: &str, text: &str) -> Result<Option<Self>, PolicyError> {
        spec::parse_section(source_name, text)
    }

    /// Reads a policy file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or as [`ToolPolicy::parse`] does.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, PolicyError> {
        let path = path.as_ref();
        let source_name = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&source_name, &text),
            Err(error) => {
                Err(PolicyError { source_name, line: 1, message: format!("cannot be read: {error}") })
            }
        }
    }

    /// Sets the folder against which paths in arguments are resolved. Default: none, so that only relative paths can
    /// be inside a folder of a rule.
    #[must_use]
    pub fn workspace(mut self, folder: impl Into<PathBuf>) -> Self {
        Arc::make_mut(&mut self.inner).workspace = folder.into();
        self
    }

    /// Decides about a call.
    pub fn decide(&self, call: &PolicyCall<'_>) -> PolicyDecision {
        let rules = &self.inner;
        let paths = PathReading { workspace: &rules.workspace, links: LinkReading::Followed };
        let matching = rules.rules.iter().filter(|rule| rule.matches(call, paths));
        // The first of the strictest rules is named.
        let mut strictest: Option<&PolicyRule> = None;
        for rule in matching {
            if strictest.is_none_or(|found| rule.verdict > found.verdict) {
                strictest = Some(rule);
            }
        }
        match strictest {
            Some(rule) => PolicyDecision {
                verdict: rule.verdict,
                rule: Some(rule.name.clone()),
                place: format!("{}:{}", rules.source, rule.line),
            },
            None => PolicyDecision {
                verdict: match rules.default {
                    DefaultVerdict::Ask => PolicyVerdict::Ask,
                    DefaultVerdict::Deny => PolicyVerdict::Deny,
                    DefaultVerdict::Tool => PolicyVerdict::Tool,
                },
                rule: None,
                place: rules.source.clone(),
            },
        }
    }

    /// Returns true if a rule asks about calls each time, also under a standing approval.
    pub(crate) fn asks_each_time(&self) -> bool {
        self.inner.rules.iter().any(|rule| rule.verdict == PolicyVerdict::AskEachTime)
    }

    /// Returns the names of tools in rules that are no patterns, with the lines of their rules, so that an
    /// application can report rules without effect.
    pub fn named_tools(&self) -> impl Iterator<Item = (&str, usize)> {
        let rules = self.inner.rules.iter().filter(|rule| rule.has_own_tools_only());
        rules.flat_map(|rule| rule.literal_tools().map(move |tool| (tool, rule.line)))
    }
}

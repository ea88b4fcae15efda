//! The approvers who decide about the calls that a rule matches.
//!
//! Invariant: a rule with approvers asks each time, so that no standing approval of somebody else covers its calls.

use std::collections::BTreeSet;

use serde_json::Value;
use windlass::core::decision::PendingCall;
use windlass::store::ApproverRules;

use super::apply::tool_name;
use super::condition::{LinkReading, PathReading, SECRET_PLACEHOLDER};
use super::{PolicyCall, ToolPolicy};

impl ToolPolicy {
    /// Returns the names of approvers in rules, with the lines of the rules, so that an application can report names that
    /// nobody has.
    pub fn named_approvers(&self) -> impl Iterator<Item = (&str, usize)> {
        let rules = self.inner.rules.iter();
        rules.flat_map(|rule| rule.approvers.iter().map(move |name| (name.as_str(), rule.line)))
    }
}

/// The approvers that every matching rule names. The time of a call is not known when its journal is read, so that a rule
/// with `hours` matches at any time.
impl ApproverRules for ToolPolicy {
    fn deciders(&self, call: &PendingCall) -> Option<BTreeSet<String>> {
        self.approvers_of(call, LinkReading::Followed)
    }

    fn recorded_deciders(&self, call: &PendingCall) -> Option<BTreeSet<String>> {
        self.approvers_of(call, LinkReading::Ignored)
    }
}

impl ToolPolicy {
    fn approvers_of(&self, call: &PendingCall, links: LinkReading) -> Option<BTreeSet<String>> {
        // Arguments that cannot be read match every rule about them, as a secret does.
        let arguments: Value =
            serde_json::from_str(&call.arguments).unwrap_or_else(|_| Value::from(SECRET_PLACEHOLDER));
        let (name, origin) = tool_name(&call.tool);
        let asked = PolicyCall {
            agent: call.agent.as_str(),
            tool: &name,
            origin: origin.as_deref(),
            arguments: &arguments,
            context_sources: call.context_sources,
            minute_of_day: None,
        };
        let paths = PathReading { workspace: &self.inner.workspace, links };
        let rules = self.inner.rules.iter().filter(|rule| !rule.approvers.is_empty());
        let matching = rules.filter(|rule| rule.matches(&asked, paths));
        let lists = matching.map(|rule| rule.approvers.iter().cloned().collect::<BTreeSet<_>>());
        lists.reduce(|deciders, list| deciders.intersection(&list).cloned().collect())
    }
}

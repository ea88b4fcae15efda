//! One rule of a policy.

use windlass::core::provenance::ContentSources;

use super::command_pattern::CommandPattern;
use super::condition::{ArgumentCondition, ConditionOutcome, HoursRange, PathReading, RuleStrictness};
use super::{PolicyCall, PolicyVerdict};

/// A compiled rule. It matches a call if all its parts match.
#[derive(Clone, Debug)]
pub(super) struct PolicyRule {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) verdict: PolicyVerdict,
    pub(super) agents: Vec<NamePattern>,
    pub(super) tools: Vec<NamePattern>,
    pub(super) origins: Vec<NamePattern>,
    pub(super) commands: Vec<CommandPattern>,
    pub(super) conditions: Vec<(String, ArgumentCondition)>,
    pub(super) hours: Option<HoursRange>,
    /// The rule matches if the model could read text of one of these sources; any text if empty.
    pub(super) context: ContentSources,
    /// Names of the approvers who decide about the calls that the rule matches; any approver if empty.
    pub(super) approvers: Vec<String>,
}

/// A name with `*` for any text and `?` for any character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamePattern(pub(super) String);

impl NamePattern {
    pub(super) fn is_literal(&self) -> bool {
        !self.0.contains(['*', '?'])
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        let (pattern, name): (Vec<char>, Vec<char>) = (self.0.chars().collect(), name.chars().collect());
        let (mut at, mut from) = (0, 0);
        // The last `*`, and the position in the name up to which it matches.
        let mut star: Option<(usize, usize)> = None;
        while from < name.len() {
            match pattern.get(at) {
                Some('*') => {
                    star = Some((at, from));
                    at += 1;
                }
                Some(expected) if *expected == '?' || *expected == name[from] => {
                    at += 1;
                    from += 1;
                }
                _ => match star {
                    Some((place, reached)) => {
                        star = Some((place, reached + 1));
                        (at, from) = (place + 1, reached + 1);
                    }
                    None => return false,
                },
            }
        }
        pattern[at..].iter().all(|rest| *rest == '*')
    }
}

impl PolicyRule {
    /// Returns true if the rule applies to the call. What cannot be evaluated matches rules that ask or deny, and no
    /// rule that allows.
    pub(super) fn matches(&self, call: &PolicyCall<'_>, paths: PathReading<'_>) -> bool {
        let is_strict = self.verdict > PolicyVerdict::Tool;
        let strictness = if is_strict { RuleStrictness::Restricts } else { RuleStrictness::Allows };
        let any = |patterns: &[NamePattern], name: &str| patterns.iter().any(|pattern| pattern.matches(name));
        if !self.agents.is_empty() && !any(&self.agents, call.agent) {
            return false;
        }
        if !self.tools.is_empty() && !any(&self.tools, call.tool) {
            return false;
        }
        let is_origin = match (call.origin, self.origins.as_slice()) {
            // A server may offer a tool of any name, so a rule that allows must name the server.
            (Some(_), []) => is_strict,
            (None, []) => true,
            (Some(origin), origins) => any(origins, origin),
            (None, _) => false,
        };
        if !is_origin {
            return false;
        }
        if !self.context.is_empty() && !self.context.iter().any(|one| call.context_sources.contains(one)) {
            return false;
        }
        let counts = |outcome: ConditionOutcome| match outcome {
            ConditionOutcome::Holds => true,
            ConditionOutcome::Fails => false,
            ConditionOutcome::Unknown => is_strict,
        };
        if !self.commands.is_empty() {
            let outcome = self
                .commands
                .iter()
                .map(|pattern| pattern.check(call.arguments))
                .fold(ConditionOutcome::Fails, ConditionOutcome::or);
            if !counts(outcome) {
                return false;
            }
        }
        self.conditions
            .iter()
            .all(|(argument, condition)| counts(condition.check(call.arguments, argument, paths, strictness)))
            && self.hours.as_ref().is_none_or(|hours| counts(hours.check(call.minute_of_day)))
    }

    /// Returns true if the rule is about the application's own tools.
    pub(super) fn has_own_tools_only(&self) -> bool {
        self.origins.is_empty()
    }

    pub(super) fn literal_tools(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().filter(|tool| tool.is_literal()).map(|tool| tool.0.as_str())
    }
}

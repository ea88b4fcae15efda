//! The TOML form of a policy, its compilation, and the check of its examples.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use regex::RegexBuilder;
use serde::Deserialize;
use serde_json::Value;
use toml::Spanned;
use windlass::core::provenance::{ContentSource, ContentSources};

use super::command_pattern::CommandPattern;
use super::condition::{ArgumentCondition, HoursRange, parse_clock};
use super::rule::{NamePattern, PolicyRule};
use super::{DefaultVerdict, PolicyCall, PolicyError, PolicyRules, PolicyVerdict, ToolPolicy};

/// Maximum size of a compiled regular expression, in bytes.
const MAX_REGEX_BYTES: usize = 1024 * 1024;

/// A larger file with a policy in it.
#[derive(Deserialize)]
struct SectionSpec {
    policy: Option<PolicySpec>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicySpec {
    #[serde(default)]
    default: DefaultVerdict,
    #[serde(default)]
    rule: Vec<Spanned<RuleSpec>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleSpec {
    name: String,
    decision: DecisionSpec,
    #[serde(default)]
    agent: OneOrMany<String>,
    #[serde(default)]
    tool: OneOrMany<String>,
    #[serde(default)]
    origin: OneOrMany<String>,
    #[serde(default)]
    command: Vec<Spanned<CommandSpec>>,
    #[serde(default)]
    when: BTreeMap<String, Spanned<ConditionSpec>>,
    hours: Option<Spanned<String>>,
    context: Option<Spanned<OneOrMany<ContentSource>>>,
    approvers: Option<Spanned<OneOrMany<String>>>,
    #[serde(default)]
    examples: Vec<Spanned<ExampleSpec>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DecisionSpec {
    Allow,
    Ask,
    AskEachTime,
    Deny,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandSpec {
    program: String,
    #[serde(default)]
    args: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionSpec {
    #[serde(default)]
    equals: OneOrMany<Value>,
    at_most: Option<f64>,
    at_least: Option<f64>,
    #[serde(default)]
    inside: OneOrMany<PathBuf>,
    #[serde(default)]
    host: OneOrMany<String>,
    matches: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExampleSpec {
    decision: ExampleDecision,
    arguments: Option<Value>,
    tool: Option<String>,
    agent: Option<String>,
    origin: Option<String>,
    /// The time of day in UTC, as `14:30`.
    time: Option<String>,
    /// Sources of the text that the model could read.
    #[serde(default)]
    context: Vec<ContentSource>,
}

/// The expected verdict of an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ExampleDecision {
    Allow,
    Tool,
    Ask,
    AskEachTime,
    Deny,
}

impl ExampleDecision {
    fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Tool => "tool",
            Self::Ask => "ask",
            Self::AskEachTime => "ask_each_time",
            Self::Deny => "deny",
        }
    }
}

impl From<ExampleDecision> for PolicyVerdict {
    fn from(expected: ExampleDecision) -> Self {
        match expected {
            ExampleDecision::Allow => Self::Allow,
            ExampleDecision::Tool => Self::Tool,
            ExampleDecision::Ask => Self::Ask,
            ExampleDecision::AskEachTime => Self::AskEachTime,
            ExampleDecision::Deny => Self::Deny,
        }
    }
}

/// A value, or a list of values.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    Many(Vec<T>),
    One(T),
}

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl<T> OneOrMany<T> {
    fn into_vec(self) -> Vec<T> {
        match self {
            Self::Many(values) => values,
            Self::One(value) => vec![value],
        }
    }
}

/// The file that is parsed, for errors.
struct SourceText<'a> {
    name: &'a str,
    text: &'a str,
}

impl SourceText<'_> {
    fn line_at(&self, offset: usize) -> usize {
        let before = self.text.get(..offset).unwrap_or(self.text);
        before.matches('\n').count() + 1
    }

    fn error(&self, offset: usize, message: impl Into<String>) -> PolicyError {
        PolicyError { source_name: self.name.to_owned(), line: self.line_at(offset), message: message.into() }
    }

    fn parse<'de, T: Deserialize<'de>>(&'de self) -> Result<T, PolicyError> {
        toml::from_str(self.text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            self.error(offset, error.message().to_owned())
        })
    }
}

pub(super) fn parse_file(name: &str, text: &str) -> Result<ToolPolicy, PolicyError> {
    let source = SourceText { name, text };
    compile(&source, source.parse()?)
}

pub(super) fn parse_section(name: &str, text: &str) -> Result<Option<ToolPolicy>, PolicyError> {
    let source = SourceText { name, text };
    let section: SectionSpec = source.parse()?;
    section.policy.map(|spec| compile(&source, spec)).transpose()
}

fn compile(source: &SourceText<'_>, spec: PolicySpec) -> Result<ToolPolicy, PolicyError> {
    let mut rules: Vec<PolicyRule> = Vec::new();
    let mut examples = Vec::new();
    for rule in spec.rule {
        let offset = rule.span().start;
        let rule = rule.into_inner();
        if rules.iter().any(|other| other.name == rule.name) {
            return Err(source.error(
                offset,
                format!("two rules have the name `{}`: every decision names its rule", rule.name),
            ));
        }
        let (compiled, of_rule) = compile_rule(source, offset, rule)?;
        examples.extend(of_rule.into_iter().map(|example| (rules.len(), example)));
        rules.push(compiled);
    }
    let inner = PolicyRules {
        source: source.name.to_owned(),
        default: spec.default,
        rules,
        // Relative paths of examples and of rules are resolved alike.
        workspace: PathBuf::new(),
    };
    let policy = ToolPolicy { inner: Arc::new(inner) };
    for (rule, example) in &examples {
        check_example(source, &policy, &policy.inner.rules[*rule], example)?;
    }
    Ok(policy)
}

fn compile_rule(
    source: &SourceText<'_>,
    offset: usize,
    rule: RuleSpec,
) -> Result<(PolicyRule, Vec<Spanned<ExampleSpec>>), PolicyError> {
    let name = rule.name;
    let about = |message: String| format!("rule `{name}`: {message}");
    let verdict = match rule.decision {
        DecisionSpec::Allow => PolicyVerdict::Allow,
        DecisionSpec::Ask => PolicyVerdict::Ask,
        DecisionSpec::AskEachTime => PolicyVerdict::AskEachTime,
        DecisionSpec::Deny => PolicyVerdict::Deny,
    };
    let names = |names: OneOrMany<String>| names.into_vec().into_iter().map(NamePattern).collect::<Vec<_>>();
    let tools = names(rule.tool);
    let mut commands = Vec::new();
    for command in &rule.command {
        let CommandSpec { program, args } = command.get_ref();
        let pattern = if verdict == PolicyVerdict::Allow {
            CommandPattern::new(program, args)
        } else {
            CommandPattern::open(program, args)
        };
        commands.push(pattern.map_err(|message| source.error(command.span().start, about(message)))?);
    }
    let mut conditions = Vec::new();
    for (argument, condition) in rule.when {
        let place = condition.span().start;
        let condition = compile_condition(condition.into_inner(), verdict)
            .map_err(|message| source.error(place, about(format!("`{argument}`: {message}"))))?;
        conditions.push((argument, condition));
    }
    let hours = match rule.hours {
        Some(hours) => Some(HoursRange::parse(hours.get_ref()).ok_or_else(|| {
            source.error(
                hours.span().start,
                about(
                    "`hours` must look like 09:00-17:30 or 09:00-17:30+02:00, with two different times"
                        .into(),
                ),
            )
        })?),
        None => None,
    };
    let context = match rule.context {
        Some(context) if verdict == PolicyVerdict::Allow => {
            // Text from outside is a reason to be stricter, and never one to allow.
            let message =
                "`context` is for rules that ask or deny; a rule that allows holds for every context";
            return Err(source.error(context.span().start, about(message.into())));
        }
        Some(context) => {
            let place = context.span().start;
            let sources: ContentSources = context.into_inner().into_vec().into_iter().collect();
            if sources.is_empty() {
                return Err(source.error(place, about("`context` names no source".into())));
            }
            sources
        }
        None => ContentSources::NONE,
    };
    let approvers = match rule.approvers {
        Some(approvers) if verdict != PolicyVerdict::AskEachTime => {
            let message = "`approvers` needs `decision = \"ask_each_time\"`: a standing approval of somebody else would \
                           cover the call";
            return Err(source.error(approvers.span().start, about(message.into())));
        }
        Some(approvers) => {
            let place = approvers.span().start;
            let names = approvers.into_inner().into_vec();
            if names.is_empty() {
                return Err(source
                    .error(place, about("`approvers` names nobody; to refuse the call, deny it".into())));
            }
            names
        }
        None => Vec::new(),
    };
    if tools.is_empty() && !commands.is_empty() {
        // Other tools have no commands, so that such a rule would ask about every call of theirs, or deny it.
        return Err(source.error(offset, about("a rule with `command` must name its tools in `tool`".into())));
    }
    let is_conditional = !commands.is_empty() || !conditions.is_empty() || hours.is_some();
    if verdict == PolicyVerdict::Allow {
        if tools.is_empty() {
            return Err(
                source.error(offset, about("a rule that allows must name its tools in `tool`".into()))
            );
        }
        let runs_commands = tools.iter().any(|tool| tool.matches("run_command"));
        if runs_commands && commands.is_empty() && rule.origin.is_empty() {
            return Err(source.error(
                offset,
                about("a rule that allows `run_command` must list the commands in `command`".into()),
            ));
        }
        let has_allowed =
            rule.examples.iter().any(|example| example.get_ref().decision == ExampleDecision::Allow);
        let has_other =
            rule.examples.iter().any(|example| example.get_ref().decision != ExampleDecision::Allow);
        if is_conditional && !(has_allowed && has_other) {
            return Err(source.error(
                offset,
                about("a rule that allows under conditions needs `examples`: a call that it allows, and one that it does not".into()),
            ));
        }
    }
    let line = source.line_at(offset);
    let compiled = PolicyRule {
        name,
        line,
        verdict,
        agents: names(rule.agent),
        tools,
        origins: names(rule.origin),
        commands,
        conditions,
        hours,
        context,
        approvers,
    };
    Ok((compiled, rule.examples))
}

impl<T> OneOrMany<T> {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Many(values) if values.is_empty())
    }
}

fn compile_condition(spec: ConditionSpec, verdict: PolicyVerdict) -> Result<ArgumentCondition, String> {
    let matches = spec.matches.map(|pattern| {
        // The whole argument must match, so that an allowed part cannot hide the rest.
        RegexBuilder::new(&format!(r"\A(?:{pattern})\z"))
            .size_limit(MAX_REGEX_BYTES)
            // A line break would evade a rule that asks or denies, and an allowed text has none by accident.
            .dot_matches_new_line(verdict > PolicyVerdict::Tool)
            .build()
            .map_err(|error| format!("`matches` is no regular expression: {error}"))
    });
    let condition = ArgumentCondition {
        equals: spec.equals.into_vec(),
        at_most: spec.at_most,
        at_least: spec.at_least,
        inside: spec.inside.into_vec(),
        hosts: spec.host.into_vec().into_iter().map(|host| NamePattern(host.to_ascii_lowercase())).collect(),
        matches: matches.transpose()?,
    };
    let is_empty = condition.equals.is_empty()
        && condition.at_most.is_none()
        && condition.at_least.is_none()
        && condition.inside.is_empty()
        && condition.hosts.is_empty()
        && condition.matches.is_none();
    if is_empty {
        return Err("has no condition: use equals, at_most, at_least, inside, host or matches".to_owned());
    }
    Ok(condition)
}

fn check_example(
    source: &SourceText<'_>,
    policy: &ToolPolicy,
    rule: &PolicyRule,
    example: &Spanned<ExampleSpec>,
) -> Result<(), PolicyError> {
    let offset = example.span().start;
    let example = example.get_ref();
    let wrong = |message: String| source.error(offset, format!("rule `{}`: example: {message}", rule.name));
    let literal = |patterns: &[NamePattern]| {
        patterns.first().filter(|pattern| pattern.is_literal()).map(|pattern| pattern.0.clone())
    };
    let tool = example.tool.clone().or_else(|| literal(&rule.tools));
    let tool = tool.ok_or_else(|| wrong("name its `tool`, because the rule's is a pattern".into()))?;
    let agent = example.agent.clone().or_else(|| literal(&rule.agents)).unwrap_or_else(|| "agent".to_owned());
    let origin = example.origin.clone().or_else(|| literal(&rule.origins));
    let minute_of_day = match &example.time {
        Some(time) => Some(parse_clock(time).ok_or_else(|| wrong("`time` must look like 14:30".into()))?),
        None => None,
    };
    let arguments = example.arguments.clone().unwrap_or_else(|| Value::Object(serde_json::Map::new()));
    let call = PolicyCall {
        agent: &agent,
        tool: &tool,
        origin: origin.as_deref(),
        arguments: &arguments,
        context_sources: example.context.iter().copied().collect(),
        minute_of_day,
    };
    let decision = policy.decide(&call);
    if decision.verdict != PolicyVerdict::from(example.decision) {
        return Err(wrong(format!(
            "expected `{}`, but the call of `{tool}` is {decision}",
            example.decision.name()
        )));
    }
    Ok(())
}

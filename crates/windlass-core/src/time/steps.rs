//! A run told in lines, one for each record.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::decision::{Decision, HoldReason, Reach};
use crate::entry::{Answered, CallEndedLate, Entry, Held, How, ModelFailed, Record, Started};
use crate::id::{AgentName, CallId, Timestamp};
use crate::item::{Item, OutputContent};
use crate::tool::ToolKey;

/// One record, in words.
#[derive(Clone, Debug, PartialEq)]
pub struct StepLine {
    /// The record's number.
    pub seq: u64,
    /// When it was written.
    pub at: Timestamp,
    /// The calls that lead to the agent it belongs to; empty for the run itself.
    pub path: Vec<CallId>,
    /// The agent that was current.
    pub agent: AgentName,
    /// What happened.
    pub text: String,
}

impl fmt::Display for StepLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>4}  ", self.seq)?;
        for call in &self.path {
            write!(f, "{call}/")?;
        }
        write!(f, "{}: {}", self.agent, self.text)
    }
}

/// Tells a run in lines. A journal that does not add up can be told as well, as far as it makes sense.
pub fn steps(records: &[Record]) -> Vec<StepLine> {
    let mut teller = Teller::default();
    records.iter().map(|record| teller.tell(record)).collect()
}

/// What a line needs to know of the records before it.
#[derive(Default)]
struct Teller<'a> {
    agents: BTreeMap<&'a [CallId], AgentName>,
    turns: BTreeMap<&'a [CallId], u32>,
    tools: BTreeMap<(&'a [CallId], &'a CallId), &'a ToolKey>,
}

impl<'a> Teller<'a> {
    fn tell(&mut self, record: &'a Record) -> StepLine {
        let path = record.path.as_slice();
        if let Entry::Started(started) = &record.entry {
            self.agents.insert(path, started.agent.clone());
        }
        let agent = self.agents.get(path).cloned().unwrap_or_else(|| "?".into());
        let text = self.words(path, &record.entry);
        if let Entry::HandedOff(handed) = &record.entry {
            self.agents.insert(path, handed.to.clone());
        }
        StepLine { seq: record.seq, at: record.at, path: record.path.clone(), agent, text }
    }

    fn words(&mut self, path: &'a [CallId], entry: &'a Entry) -> String {
        match entry {
            Entry::Started(started) => began(started),
            Entry::Answered(answer) => {
                let turn = self.next_turn(path);
                for planned in &answer.calls {
                    self.tools.insert((path, &planned.call), &planned.key);
                }
                format!("turn {turn}: {}", answered(answer))
            }
            Entry::AnswerRefused(_) => {
                format!("turn {}: the model's answer cannot be carried out", self.next_turn(path))
            }
            Entry::ModelFailed(failed) => model_failed(failed),
            Entry::Held(held) => format!("{} {}", self.call(path, &held.call), waits(held)),
            Entry::Decided(said) => {
                let words = decision_words(&said.decision, said.reach, said.by.as_deref());
                format!("{} is {words}", self.call(path, &said.call))
            }
            Entry::Revoked(revoked) => {
                format!("the decision for good about `{}` of `{}` is taken back", revoked.tool, revoked.agent)
            }
            Entry::CallStarted(started) => match started.attempt {
                1 => format!("{} starts", self.call(path, &started.call)),
                attempt => format!("{} starts, attempt {attempt}", self.call(path, &started.call)),
            },
            Entry::CallSettled(settled) => {
                let call = self.call(path, &settled.call);
                let end = if settled.ends_run { ", which ends the run" } else { "" };
                format!("{call} {}{end}: {}", settled_how(&settled.how), output(&settled.output))
            }
            Entry::CallEndedLate(CallEndedLate { call, result }) => match result {
                Ok(given) => format!("{} has ended after all: {}", self.call(path, call), output(given)),
                Err(error) => format!("{} has failed after all: {}", self.call(path, call), quoted(error)),
            },
            Entry::HandedOff(handed) => {
                let seen = if handed.history.is_some() { ", which sees a filtered history" } else { "" };
                format!("{} passes control to `{}`{seen}", self.call(path, &handed.call), handed.to)
            }
            Entry::WentOn => "the results are not final".to_owned(),
            Entry::InputAdded(added) => format!("more input: {}", said_in(&added.items)),
            Entry::Finished(finished) => format!("finished: {}", quoted(&finished.output)),
            Entry::Failed(failed) => format!("failed: {}", one_line(&failed.failure.to_string())),
            Entry::Cancelled(cancelled) if cancelled.draining.is_empty() => "cancelled".to_owned(),
            Entry::Cancelled(cancelled) => {
                let draining: Vec<&str> = cancelled.draining.iter().map(CallId::as_str).collect();
                format!("cancelled, with {} still running", draining.join(", "))
            }
        }
    }

    fn next_turn(&mut self, path: &'a [CallId]) -> u32 {
        let turn = self.turns.entry(path).or_default();
        *turn += 1;
        *turn
    }

    fn call(&self, path: &'a [CallId], call: &'a CallId) -> String {
        match self.tools.get(&(path, call)) {
            Some(tool) => format!("call {call} of `{tool}`"),
            None => format!("call {call}"),
        }
    }
}

fn began(started: &Started) -> String {
    let given = said_in(&started.input);
    match &started.origin {
        Some(origin) => format!("began as a fork of run `{}` at record {}: {given}", origin.run, origin.seq),
        None => format!("began: {given}"),
    }
}

fn answered(answered: &Answered) -> String {
    let mut parts = Vec::new();
    let said = said_in(&answered.items);
    if !said.is_empty() {
        parts.push(format!("the model says {said}"));
    }
    if !answered.calls.is_empty() {
        let calls: Vec<String> =
            answered.calls.iter().map(|planned| format!("`{}` ({})", planned.key, planned.call)).collect();
        parts.push(format!("the model calls {}", calls.join(", ")));
    }
    if answered.repeated > 0 {
        parts.push(format!("{} repeated calls are left out", answered.repeated));
    }
    if parts.is_empty() { "the model says nothing".to_owned() } else { parts.join("; ") }
}

fn model_failed(failed: &ModelFailed) -> String {
    let then = match failed.retry_after_ms {
        Some(wait) => format!("it is asked again after {wait} ms"),
        None => "it is not asked again".to_owned(),
    };
    format!("the model failed: {}; {then}", one_line(&failed.error))
}

fn waits(held: &Held) -> String {
    let reason = match &held.reason {
        HoldReason::Approval => "waits for approval".to_owned(),
        HoldReason::InDoubt => "is in doubt".to_owned(),
        HoldReason::Question(question) => format!("asks {}", quoted(&question.text)),
    };
    match held.expires {
        Some(expires) => format!("{reason}, until {}", expires.0),
        None => reason,
    }
}

/// A decision in words that follow `is`.
pub(super) fn decision_words(decision: &Decision, reach: Reach, by: Option<&str>) -> String {
    let mut words = match decision {
        Decision::Approve => "approved".to_owned(),
        Decision::ApproveEdited { arguments } => {
            format!("approved with other arguments, {}", one_line(arguments))
        }
        Decision::Reject { message: None } => "rejected".to_owned(),
        Decision::Reject { message: Some(message) } => format!("rejected with {}", quoted(message)),
        Decision::Happened { output: given } => format!("said to have happened, with {}", output(given)),
        Decision::DidNotHappen => "said not to have happened".to_owned(),
        Decision::Unknown => "said to be unknown to anybody".to_owned(),
        Decision::Answer { value } => format!("answered with {}", one_line(&value.to_string())),
    };
    if reach == Reach::Always {
        words.push_str(", for good");
    }
    if let Some(by) = by {
        words.push_str(&format!(", by {by}"));
    }
    words
}

fn settled_how(how: &How) -> &'static str {
    match how {
        How::Succeeded => "succeeded",
        How::Failed => "failed",
        How::TimedOut => "timed out",
        How::LeftRunning => "timed out and may still be running",
        How::Invalid => "has arguments that cannot be used",
        How::Missing => "found no tool",
        How::Ignored => "was one handoff too many",
        How::Rejected => "was rejected",
        How::Guarded => "was stopped by a guardrail",
        How::Receipt => "has the receipt of an identical call",
        How::Cancelled => "was stopped",
        How::Reconciled => "is known to have happened",
        How::Unknown => "stays in doubt",
    }
}

/// What the messages among the items say.
fn said_in(items: &[Arc<Item>]) -> String {
    let said: Vec<String> = items
        .iter()
        .filter_map(|item| match &**item {
            Item::Message(message) => Some(quoted(&message.text())),
            _ => None,
        })
        .collect();
    said.join(", ")
}

fn output(output: &OutputContent) -> String {
    match output {
        OutputContent::Text(text) => quoted(text),
        OutputContent::Parts(parts) => format!("{} in {} parts", quoted(&output.text()), parts.len()),
    }
}

fn quoted(text: &str) -> String {
    format!("“{}”", one_line(text))
}

/// The beginning of a text, on one line.
pub(super) fn one_line(text: &str) -> String {
    const LONGEST: usize = 80;
    let shown = text.trim_end().chars().take(LONGEST);
    let mut line: String = shown.map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    if text.trim_end().chars().nth(LONGEST).is_some() {
        line.push('…');
    }
    line
}

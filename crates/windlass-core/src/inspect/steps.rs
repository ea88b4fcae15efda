//! Human-readable descriptions of a journal, one line for each record.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::budget::OnBudgetReached;
use crate::decision::{Decision, DecisionScope, HoldReason};
use crate::id::{AgentName, CallId, Timestamp};
use crate::item::{Item, OutputContent};
use crate::journal::{
    BudgetReserved, CallEndedLate, CallHeld, CallStatus, CompactionReason, HistoryCompacted, JournalEntry,
    JournalRecord, ModelRequestFailed, ModelResponded, RunStarted,
};
use crate::tool::ToolKey;

/// A record described in one line.
#[derive(Clone, Debug, PartialEq)]
pub struct StepLine {
    /// The record's sequence number.
    pub seq: u64,
    /// Time at which the record was written.
    pub at: Timestamp,
    /// The calls that lead to the nested agent whose event this is, outermost first; empty for the run itself.
    pub path: Vec<CallId>,
    /// The current agent.
    pub agent: AgentName,
    /// Description of the event.
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

/// Describes each record in one line. Records that cannot be replayed are described as far as possible.
pub fn step_lines(records: &[JournalRecord]) -> Vec<StepLine> {
    let mut teller = StepDescriber::default();
    records.iter().map(|record| teller.describe_record(record)).collect()
}

/// The state that descriptions need from earlier records.
#[derive(Default)]
struct StepDescriber<'a> {
    agents: BTreeMap<&'a [CallId], AgentName>,
    turns: BTreeMap<&'a [CallId], u32>,
    tools: BTreeMap<(&'a [CallId], &'a CallId), &'a ToolKey>,
}

impl<'a> StepDescriber<'a> {
    fn describe_record(&mut self, record: &'a JournalRecord) -> StepLine {
        let path = record.path.as_slice();
        if let JournalEntry::RunStarted(started) = &record.entry {
            self.agents.insert(path, started.agent.clone());
        }
        let agent = self.agents.get(path).cloned().unwrap_or_else(|| "?".into());
        let text = self.describe_entry(path, &record.entry);
        if let JournalEntry::HandoffRecorded(handed) = &record.entry {
            self.agents.insert(path, handed.to.clone());
        }
        StepLine { seq: record.seq, at: record.at, path: record.path.clone(), agent, text }
    }

    fn describe_entry(&mut self, path: &'a [CallId], entry: &'a JournalEntry) -> String {
        match entry {
            JournalEntry::RunStarted(started) => describe_start(started),
            JournalEntry::ModelResponded(answer) => {
                let turn = self.next_turn(path);
                for planned in &answer.calls {
                    self.tools.insert((path, &planned.call), &planned.key);
                }
                format!("turn {turn}: {}", describe_response(answer))
            }
            JournalEntry::ResponseRejected(_) => {
                format!("turn {}: the model's response was rejected", self.next_turn(path))
            }
            JournalEntry::ModelRequestFailed(failed) => describe_model_failure(failed),
            JournalEntry::ModelInputFiltered(_) => "the next request is filtered".to_owned(),
            JournalEntry::HistoryCompacted(compacted) => {
                let HistoryCompacted { tokens_before, tokens_after, .. } = compacted;
                let reason = match compacted.reason {
                    CompactionReason::NearContextWindow => "before the context window is full",
                    CompactionReason::ContextLengthExceeded => "after the context window was exceeded",
                };
                format!(
                    "the history is compacted {reason}: about {tokens_before} tokens become {tokens_after}"
                )
            }
            JournalEntry::BudgetReserved(reserved) => describe_reservation(reserved),
            JournalEntry::BudgetReached(reached) => {
                let then = match reached.reaction {
                    OnBudgetReached::Fail => "the run fails",
                    OnBudgetReached::Finish => "the model gives its last answer",
                    OnBudgetReached::AskPerson => "a person is asked for more",
                };
                format!("{}; {then}", reached.budget)
            }
            JournalEntry::CallHeld(held) => {
                format!("{} {}", self.call_label(path, &held.call), describe_hold(held))
            }
            JournalEntry::DecisionRecorded(said) => {
                let words = describe_decision(&said.decision, said.scope, said.decided_by.as_deref());
                format!("{} is {words}", self.call_label(path, &said.call))
            }
            JournalEntry::DecisionRevoked(revoked) => {
                format!("the standing decision about `{}` of `{}` is revoked", revoked.tool, revoked.agent)
            }
            JournalEntry::CallStarted(started) => match started.attempt {
                1 => format!("{} starts", self.call_label(path, &started.call)),
                attempt => format!("{} starts, attempt {attempt}", self.call_label(path, &started.call)),
            },
            JournalEntry::CallBodyEnded(ended) => {
                format!("{} ends, with its output withheld", self.call_label(path, &ended.call))
            }
            JournalEntry::CallSettled(settled) => {
                let call = self.call_label(path, &settled.call);
                let end = if settled.run_failure.is_some() { ", which ends the run" } else { "" };
                format!(
                    "{call} {}{end}: {}",
                    describe_status(&settled.status),
                    describe_output(&settled.output)
                )
            }
            JournalEntry::CallEndedLate(CallEndedLate { call, status, output }) => {
                let label = self.call_label(path, call);
                let how = if status.is_success() { "ended late" } else { "failed late" };
                match output {
                    Some(output) => format!("{label} {how}: {}", describe_output(output)),
                    None => format!("{label} {how}, with its output withheld"),
                }
            }
            JournalEntry::HandoffRecorded(handed) => {
                let seen =
                    if handed.filtered_history.is_some() { ", which sees a filtered history" } else { "" };
                format!("{} passes control to `{}`{seen}", self.call_label(path, &handed.call), handed.to)
            }
            JournalEntry::TurnContinued => "the results are not final".to_owned(),
            JournalEntry::OutputRejected(_) => "the output does not match its type".to_owned(),
            JournalEntry::InputAdded(added) => format!("more input: {}", spoken_text(&added.items)),
            JournalEntry::RunRestored(_) => {
                "the store was restored from a backup; what the run did since is unknown".to_owned()
            }
            JournalEntry::RunFinished(finished) => format!("finished: {}", quote_line(&finished.output)),
            JournalEntry::RunFailed(failed) => with_draining_calls(
                format!("failed: {}", truncate_to_line(&failed.failure.to_string())),
                &failed.draining_calls,
            ),
            JournalEntry::RunCancelled(cancelled) => {
                with_draining_calls("cancelled".to_owned(), &cancelled.draining_calls)
            }
        }
    }

    fn next_turn(&mut self, path: &'a [CallId]) -> u32 {
        let turn = self.turns.entry(path).or_default();
        *turn += 1;
        *turn
    }

    fn call_label(&self, path: &'a [CallId], call: &'a CallId) -> String {
        match self.tools.get(&(path, call)) {
            Some(tool) => format!("call {call} of `{tool}`"),
            None => format!("call {call}"),
        }
    }
}

fn describe_start(started: &RunStarted) -> String {
    let given = spoken_text(&started.input);
    match &started.origin {
        Some(origin) => {
            format!("started as a fork of run `{}` at record {}: {given}", origin.run, origin.seq)
        }
        None => format!("started: {given}"),
    }
}

fn describe_response(answered: &ModelResponded) -> String {
    let mut parts = Vec::new();
    let said = spoken_text(&answered.items);
    if !said.is_empty() {
        parts.push(format!("the model says {said}"));
    }
    if !answered.calls.is_empty() {
        let calls: Vec<String> =
            answered.calls.iter().map(|planned| format!("`{}` ({})", planned.key, planned.call)).collect();
        let sources = answered.context_sources;
        let after =
            if sources.is_empty() { String::new() } else { format!(", after it could read {sources}") };
        parts.push(format!("the model calls {}{after}", calls.join(", ")));
    }
    if answered.duplicate_calls > 0 {
        parts.push(format!("{} duplicate calls are dropped", answered.duplicate_calls));
    }
    if parts.is_empty() { "the model says nothing".to_owned() } else { parts.join("; ") }
}

fn describe_reservation(reserved: &BudgetReserved) -> String {
    let request = if reserved.is_summary { "a request for a summary" } else { "a request" };
    match reserved.estimate.tokens {
        0 => format!("{request} is reserved in the budget"),
        tokens => format!("{request} of about {tokens} tokens is reserved in the budget"),
    }
}

fn describe_model_failure(failed: &ModelRequestFailed) -> String {
    let then = match failed.retry_after_ms {
        Some(wait) => format!("the request is retried after {wait} ms"),
        None => "the request is not retried".to_owned(),
    };
    format!("the model failed: {}; {then}", truncate_to_line(&failed.error))
}

fn describe_hold(held: &CallHeld) -> String {
    let reason = match &held.reason {
        HoldReason::Approval => "waits for approval".to_owned(),
        HoldReason::InDoubt => "is in doubt".to_owned(),
        HoldReason::Question(question) => format!("asks {}", quote_line(&question.text)),
    };
    match held.expires_at {
        Some(expires) => format!("{reason}, until {}", expires.0),
        None => reason,
    }
}

/// Describes a decision in words that follow "is". Nothing is left out: the description is what an audit shows.
pub(super) fn describe_decision(decision: &Decision, reach: DecisionScope, by: Option<&str>) -> String {
    let mut words = match decision {
        Decision::Approve => "approved".to_owned(),
        Decision::ApproveEdited { arguments } => {
            format!("approved with other arguments, {}", escape_controls(arguments))
        }
        Decision::Reject { message: None } => "rejected".to_owned(),
        Decision::Reject { message: Some(message) } => format!("rejected with {}", quote_whole(message)),
        Decision::ConfirmExecuted { output: given } => {
            format!("confirmed as executed, with {}", quote_whole(&given.text()))
        }
        Decision::ConfirmNotExecuted => "confirmed as not executed".to_owned(),
        Decision::OutcomeUnknown => "marked as having an unknown outcome".to_owned(),
        Decision::Answer { value } => format!("answered with {}", escape_controls(&value.to_string())),
    };
    if reach == DecisionScope::ToolForRun {
        words.push_str(", as a standing decision");
    }
    if let Some(by) = by {
        words.push_str(&format!(", by {}", escape_controls(by)));
    }
    words
}

fn describe_status(how: &CallStatus) -> &'static str {
    match how {
        CallStatus::Succeeded => "succeeded",
        CallStatus::Failed => "failed",
        CallStatus::TimedOut => "timed out",
        CallStatus::TimedOutStillRunning => "timed out and may still be running",
        CallStatus::InvalidArguments => "has invalid arguments",
        CallStatus::UnknownTool => "named an unknown tool",
        CallStatus::SurplusHandoff => "was a surplus handoff",
        CallStatus::Rejected => "was rejected",
        CallStatus::BlockedByGuardrail => "was blocked by a guardrail",
        CallStatus::OutputWithheld => "was executed, with its output withheld",
        CallStatus::Deduplicated => "was deduplicated by the receipt of an identical call",
        CallStatus::Cancelled => "was cancelled",
        CallStatus::Reconciled => "was confirmed as executed",
        CallStatus::OutcomeUnknown => "has an unknown outcome",
    }
}

/// Adds the calls whose bodies still run to the end of a run.
fn with_draining_calls(end: String, draining: &[CallId]) -> String {
    if draining.is_empty() {
        return end;
    }
    let draining: Vec<&str> = draining.iter().map(CallId::as_str).collect();
    format!("{end}, with {} still running", draining.join(", "))
}

/// Returns the quoted texts of the messages among the items.
fn spoken_text(items: &[Arc<Item>]) -> String {
    let said: Vec<String> = items
        .iter()
        .filter_map(|item| match &**item {
            Item::Message(message) => Some(quote_line(&message.text())),
            _ => None,
        })
        .collect();
    said.join(", ")
}

fn describe_output(output: &OutputContent) -> String {
    match output {
        OutputContent::Text(text) => quote_line(text),
        OutputContent::Parts(parts) => format!("{} in {} parts", quote_line(&output.text()), parts.len()),
    }
}

fn quote_whole(text: &str) -> String {
    format!("“{}”", escape_controls(text))
}

/// Escapes control characters, so that the text stays on its line.
fn escape_controls(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\n' | '\r' | '\t' => line.extend(letter.escape_default()),
            letter if letter.is_control() => line.extend(letter.escape_unicode()),
            letter => line.push(letter),
        }
    }
    line
}

fn quote_line(text: &str) -> String {
    format!("“{}”", truncate_to_line(text))
}

/// Returns the start of a text on one line.
pub(super) fn truncate_to_line(text: &str) -> String {
    const MAX_LINE_CHARS: usize = 80;
    let shown = text.trim_end().chars().take(MAX_LINE_CHARS);
    let mut line: String = shown.map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    if text.trim_end().chars().nth(MAX_LINE_CHARS).is_some() {
        line.push('…');
    }
    line
}

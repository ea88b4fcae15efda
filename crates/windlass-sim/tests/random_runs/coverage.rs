//! Coverage of the random worlds: the simulation must reach every listed state.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use windlass::core::{decision::HoldReason, journal::JournalEntry};

use crate::simulated_run::SimReport;

/// The number of worlds that reached each label.
#[derive(Default)]
pub(crate) struct CoverageCounts {
    counts: BTreeMap<String, u64>,
}

/// The labels that must be reached. They consist of the words of the serialised journal.
pub(crate) const PLAIN_LABELS: &[&str] = &[
    "end finished",
    "end failed",
    "end cancelled",
    "crash",
    "many crashes",
    "nested 1",
    "nested 2",
    "nested 3",
    "call_held approval",
    "call_held in_doubt",
    "call_held question",
    "call_held approval in a nested agent",
    "decision approve",
    "decision approve_edited",
    "decision reject",
    "decision confirm_executed",
    "decision confirm_not_executed",
    "decision outcome_unknown",
    "decision answer",
    "second attempt",
    "status succeeded",
    "status failed",
    "status timed_out",
    "status invalid_arguments",
    "status unknown_tool",
    "status surplus_handoff",
    "status rejected",
    "status blocked_by_guardrail",
    "status deduplicated",
    "status cancelled",
    "status reconciled",
    "status outcome_unknown",
    "status output_withheld",
    "call_body_ended",
    "model_input_filtered",
    "ends_run",
    "handoff_recorded",
    "turn_continued",
    "response_rejected",
    "model_request_failed",
    "decision_revoked",
    "input_added",
    "failure max_turns_exceeded",
    "failure loop_detected",
    "failure model_protocol_error",
    "failure model_request_failed",
    "failure model_refused",
    "failure tool_failed",
    "failure invalid_arguments",
    "failure tool_timeout",
    "failure tool_input_guardrail_tripped",
    "failure tool_output_guardrail_tripped",
    "failure input_guardrail_tripped",
    "failure output_guardrail_tripped",
    "failure guardrail_failed",
    "failure hook_failed",
    "failure handoff_failed",
];

/// The labels that attended worlds must reach.
pub(crate) const ATTENDED_LABELS: &[&str] = &[
    "end finished",
    "end failed",
    "end cancelled",
    "many crashes",
    "call_body_ended",
    "call_ended_late",
    "model_input_filtered",
    "handoff_recorded",
    "status output_withheld",
    "status timed_out",
    "status timed_out_still_running",
    "decision approve",
    "decision approve_edited",
    "decision reject",
    "decision confirm_executed",
    "decision confirm_not_executed",
    "decision answer",
    DECISION_BESIDE_BODY,
    NESTED_DECISION_BESIDE_BODY,
    CORRECTION_TO_APPROVAL,
    CORRECTION_TO_REJECTION,
    CORRECTION_TOO_LATE,
];

/// A decision was recorded while a body of the same process ran.
pub(crate) const DECISION_BESIDE_BODY: &str = "decision beside a running call";
/// A decision about a call of a nested agent was recorded while a body of the same process ran.
pub(crate) const NESTED_DECISION_BESIDE_BODY: &str = "decision of a nested call beside a running call";
/// A rejection that a driver could see was replaced by an approval.
pub(crate) const CORRECTION_TO_APPROVAL: &str = "rejection corrected while a driver lives";
/// An approval that a driver could see was replaced by a rejection.
pub(crate) const CORRECTION_TO_REJECTION: &str = "approval corrected while a driver lives";
/// A decision could not be corrected because the driver had taken it.
pub(crate) const CORRECTION_TOO_LATE: &str = "correction of a taken decision";

impl CoverageCounts {
    pub(crate) fn add_report(&mut self, account: &SimReport) {
        let mut labels = vec![format!("end {}", account.ending)];
        labels.extend(account.labels.iter().map(|label| (*label).to_owned()));
        labels.extend((account.process_count > 1).then(|| "crash".to_owned()));
        labels.extend((account.process_count > 3).then(|| "many crashes".to_owned()));
        for record in &account.journal {
            if !record.path.is_empty() {
                labels.push(format!("nested {}", record.path.len()));
            }
            labels.extend(entry_label(&record.entry));
            let is_held =
                matches!(&record.entry, JournalEntry::CallHeld(held) if held.reason == HoldReason::Approval);
            if is_held && !record.path.is_empty() {
                labels.push("call_held approval in a nested agent".to_owned());
            }
        }
        labels.sort_unstable();
        labels.dedup();
        for label in labels {
            *self.counts.entry(label).or_default() += 1;
        }
    }

    /// Panics if a required label was never reached.
    pub(crate) fn assert_complete(&self, required: &[&str]) {
        let missed: Vec<&&str> = required.iter().filter(|label| !self.counts.contains_key(**label)).collect();
        assert!(missed.is_empty(), "the random worlds never reached {missed:?}, only {:#?}", self.counts);
    }
}

fn entry_label(entry: &JournalEntry) -> Option<String> {
    Some(match entry {
        JournalEntry::CallHeld(held) => format!("call_held {}", variant_word(&held.reason)),
        JournalEntry::DecisionRecorded(recorded) => format!("decision {}", variant_word(&recorded.decision)),
        JournalEntry::CallStarted(started) if started.attempt > 1 => "second attempt".to_owned(),
        JournalEntry::CallSettled(settled) if settled.run_failure.is_some() => "ends_run".to_owned(),
        JournalEntry::CallSettled(settled) => format!("status {}", variant_word(&settled.status)),
        JournalEntry::RunFailed(failed) => format!("failure {}", variant_word(&failed.failure)),
        JournalEntry::HandoffRecorded(_)
        | JournalEntry::CallBodyEnded(_)
        | JournalEntry::CallEndedLate(_)
        | JournalEntry::ModelInputFiltered(_)
        | JournalEntry::TurnContinued
        | JournalEntry::HistoryCompacted(_)
        | JournalEntry::OutputRejected(_)
        | JournalEntry::ResponseRejected(_)
        | JournalEntry::ModelRequestFailed(_)
        | JournalEntry::DecisionRevoked(_)
        | JournalEntry::InputAdded(_) => entry_type(entry),
        _ => return None,
    })
}

/// Returns the `type` of an entry in the journal.
fn entry_type(entry: &JournalEntry) -> String {
    match &serde_json::to_value(entry).unwrap_or_default()["type"] {
        Value::String(word) => word.clone(),
        other => panic!("{other} is not the type of an entry"),
    }
}

/// Returns the word of an enum's variant in the journal: a text, or the only field of an object.
fn variant_word(variant: &impl Serialize) -> String {
    match serde_json::to_value(variant).unwrap_or_default() {
        Value::String(word) => word,
        Value::Object(fields) if fields.len() == 1 => fields.into_iter().map(|(word, _)| word).collect(),
        other => panic!("{other} is not a variant"),
    }
}

//! Whether the random worlds are as wild as they should be: a simulation that reaches nothing shows nothing.

use std::collections::BTreeMap;

use windlass::core::{Decision, Entry, Held, HoldReason};

use crate::life::Account;

/// What was reached, and in how many worlds.
#[derive(Default)]
pub(crate) struct Reached {
    counts: BTreeMap<String, u64>,
}

/// What must have been reached.
const ALL: &[&str] = &[
    "end finished",
    "end failed",
    "end cancelled",
    "crash",
    "many crashes",
    "nested 1",
    "nested 2",
    "nested 3",
    "held Approval",
    "held InDoubt",
    "held Question",
    "Answer",
    "held in a nested agent",
    "Approve",
    "ApproveEdited",
    "Reject",
    "Happened",
    "DidNotHappen",
    "Unknown",
    "again",
    "how Succeeded",
    "how Failed",
    "how TimedOut",
    "how Invalid",
    "how Missing",
    "how Ignored",
    "how Rejected",
    "how Guarded",
    "how Receipt",
    "how Cancelled",
    "how Reconciled",
    "how Unknown",
    "ends run",
    "handed off",
    "went on",
    "answer refused",
    "model failed",
    "revoked",
    "input added",
    "failure TurnsExhausted",
    "failure LoopDetected",
    "failure Misbehaviour",
    "failure Model",
    "failure Refused",
    "failure Tool",
    "failure InvalidArguments",
    "failure ToolTimeout",
    "failure EndedByCall",
    "failure ToolInputGuardrail",
    "failure ToolOutputGuardrail",
    "failure InputGuardrail",
    "failure OutputGuardrail",
    "failure GuardrailFailed",
    "failure Hook",
    "failure Handoff",
];

impl Reached {
    pub(crate) fn add(&mut self, account: &Account) {
        let mut labels = vec![format!("end {}", account.end)];
        labels.extend((account.lives > 1).then(|| "crash".to_owned()));
        labels.extend((account.lives > 3).then(|| "many crashes".to_owned()));
        for record in &account.journal {
            if !record.path.is_empty() {
                labels.push(format!("nested {}", record.path.len()));
            }
            labels.extend(label(&record.entry));
            let is_held = matches!(&record.entry, Entry::Held(held) if held.reason == HoldReason::Approval);
            if is_held && !record.path.is_empty() {
                labels.push("held in a nested agent".to_owned());
            }
        }
        labels.sort_unstable();
        labels.dedup();
        for label in labels {
            *self.counts.entry(label).or_default() += 1;
        }
    }

    /// Panics where something was never reached.
    pub(crate) fn check(&self) {
        let missed: Vec<&&str> = ALL.iter().filter(|label| !self.counts.contains_key(**label)).collect();
        assert!(missed.is_empty(), "the random worlds never reached {missed:?}, only {:#?}", self.counts);
    }
}

fn label(entry: &Entry) -> Option<String> {
    Some(match entry {
        Entry::Held(Held { reason: HoldReason::Question(_), .. }) => "held Question".to_owned(),
        Entry::Held(held) => format!("held {:?}", held.reason),
        Entry::Decided(decided) => match &decided.decision {
            Decision::Approve => "Approve".to_owned(),
            Decision::ApproveEdited { .. } => "ApproveEdited".to_owned(),
            Decision::Reject { .. } => "Reject".to_owned(),
            Decision::Happened { .. } => "Happened".to_owned(),
            Decision::DidNotHappen => "DidNotHappen".to_owned(),
            Decision::Unknown => "Unknown".to_owned(),
            Decision::Answer { .. } => "Answer".to_owned(),
        },
        Entry::CallStarted(started) if started.attempt > 1 => "again".to_owned(),
        Entry::CallSettled(settled) if settled.ends_run => "ends run".to_owned(),
        Entry::CallSettled(settled) => format!("how {:?}", settled.how),
        Entry::HandedOff(_) => "handed off".to_owned(),
        Entry::WentOn => "went on".to_owned(),
        Entry::AnswerRefused(_) => "answer refused".to_owned(),
        Entry::ModelFailed(_) => "model failed".to_owned(),
        Entry::Revoked(_) => "revoked".to_owned(),
        Entry::InputAdded(_) => "input added".to_owned(),
        Entry::Failed(failed) => {
            let debug = format!("{:?}", failed.failure);
            let name: String = debug.chars().take_while(char::is_ascii_alphanumeric).collect();
            format!("failure {name}")
        }
        _ => return None,
    })
}

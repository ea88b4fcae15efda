//! The decider's own log, outside the store: every decision before it is posted, and the store's reply to it.

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::files::{RoundFolder, append_line, read_lines};

/// A decision, as far as the outside world can see its effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoggedDecision {
    /// The call may act with its own arguments.
    Approve {
        /// The arguments that were shown.
        arguments: Value,
    },
    /// The call may act with these arguments.
    Edit {
        /// The edited arguments.
        arguments: Value,
    },
    /// The call must not act.
    Reject,
    /// The call acts with this answer.
    Answer {
        /// The answer.
        value: Value,
    },
    /// The call had acted.
    ConfirmExecuted,
    /// The call had not acted.
    ConfirmNotExecuted,
}

impl LoggedDecision {
    /// Returns the arguments with which the decision lets the call act; `None` if it must not.
    pub fn approved_arguments(&self) -> Option<&Value> {
        match self {
            Self::Approve { arguments } | Self::Edit { arguments } => Some(arguments),
            Self::Reject | Self::Answer { .. } | Self::ConfirmExecuted | Self::ConfirmNotExecuted => None,
        }
    }
}

/// The stage of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionStage {
    /// It is about to be posted.
    Posting,
    /// The store has accepted it.
    Accepted,
    /// The store has refused it: the earlier one had been taken.
    Refused,
    /// The store has refused it, although the call neither had started nor was settled.
    RefusedUntaken,
    /// It is unknown whether the store has it.
    Unknown,
}

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionLine {
    /// The outermost run.
    pub run: String,
    /// Path of the call.
    pub call: String,
    /// Number of the hold that is decided.
    pub attempt: u32,
    /// The decision.
    pub decision: LoggedDecision,
    /// The stage of the decision.
    pub stage: DecisionStage,
    /// Reply of the store, for the reader of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<String>,
}

/// The decisions about one call that may stand: the last accepted one, and later ones of unknown fate.
#[derive(Clone, Debug, Default)]
pub struct StandingDecisions {
    /// The last decision that the store accepted.
    pub accepted: Option<LoggedDecision>,
    /// Decisions that were posted later, without a reply.
    pub uncertain: Vec<LoggedDecision>,
    /// Accepted decisions that a later one has corrected.
    pub corrected: Vec<LoggedDecision>,
    /// Number of decisions that were refused although nobody had taken an earlier one.
    pub refused_untaken: u64,
}

impl StandingDecisions {
    /// Returns all decisions that may stand.
    pub fn possible(&self) -> impl Iterator<Item = &LoggedDecision> {
        self.accepted.iter().chain(&self.uncertain)
    }
}

/// Appends a line to the log. It is on disk when this returns.
///
/// # Errors
/// Returns the error of the write.
pub fn log_decision(folder: &RoundFolder, line: &DecisionLine) -> io::Result<()> {
    append_line(&folder.decisions(), line)
}

/// Returns, for each call by run and path, the decisions that may stand: approvals and answers, not calls in doubt.
///
/// # Errors
/// Returns the error of the read.
pub fn load_standing(folder: &RoundFolder) -> io::Result<BTreeMap<(String, String), StandingDecisions>> {
    let mut calls: BTreeMap<(String, String), StandingDecisions> = BTreeMap::new();
    for line in read_lines::<DecisionLine>(&folder.decisions())? {
        if matches!(line.decision, LoggedDecision::ConfirmExecuted | LoggedDecision::ConfirmNotExecuted) {
            continue;
        }
        let standing = calls.entry((line.run, line.call)).or_default();
        match line.stage {
            DecisionStage::Posting => standing.uncertain.push(line.decision),
            DecisionStage::Accepted => {
                standing.corrected.extend(standing.accepted.replace(line.decision));
                standing.uncertain.clear();
            }
            DecisionStage::Refused | DecisionStage::RefusedUntaken => {
                standing.uncertain.retain(|decision| *decision != line.decision);
                standing.refused_untaken += u64::from(line.stage == DecisionStage::RefusedUntaken);
            }
            DecisionStage::Unknown => {}
        }
    }
    Ok(calls)
}

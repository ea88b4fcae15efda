//! The records that the last driver of a run may not have announced to watchers and hooks.
//!
//! A driver announces a record when it is durable. It waits for its watchers and hooks before it records the next step of
//! the same agent, so a later record proves that the earlier ones were announced. A process that dies in between leaves
//! the records of one turn at most, for each agent that is active.

use std::collections::BTreeMap;

use super::{JournalEntry, JournalRecord};
use crate::id::CallId;

/// The step of a driver that records an entry.
enum RecordedStep {
    /// A step of the agent: the work on the calls before it is over, nested agents included.
    Turn { is_announced: bool },
    /// A step of one call: the response that asked for the call was announced before.
    Call { is_announced: bool },
    /// Anybody may have recorded the entry, whatever the driver did.
    Other,
}

fn step_of(entry: &JournalEntry) -> RecordedStep {
    match entry {
        JournalEntry::ModelResponded(_)
        | JournalEntry::HandoffRecorded(_)
        | JournalEntry::HistoryCompacted(_)
        | JournalEntry::OutputRejected(_) => RecordedStep::Turn { is_announced: true },
        JournalEntry::ResponseRejected(_)
        | JournalEntry::ModelRequestFailed(_)
        | JournalEntry::ModelInputFiltered(_)
        | JournalEntry::BudgetReserved(_)
        | JournalEntry::BudgetReached(_)
        | JournalEntry::TurnContinued
        | JournalEntry::RunFinished(_)
        | JournalEntry::RunFailed(_)
        | JournalEntry::RunCancelled(_) => RecordedStep::Turn { is_announced: false },
        JournalEntry::CallHeld(_) | JournalEntry::CallSettled(_) => RecordedStep::Call { is_announced: true },
        // The driver that continues the call announces its start anew.
        JournalEntry::CallStarted(_) | JournalEntry::CallBodyEnded(_) => {
            RecordedStep::Call { is_announced: false }
        }
        JournalEntry::RunStarted(_)
        | JournalEntry::DecisionRecorded(_)
        | JournalEntry::DecisionRevoked(_)
        | JournalEntry::CallEndedLate(_)
        | JournalEntry::InputAdded(_)
        | JournalEntry::RunRestored(_) => RecordedStep::Other,
    }
}

/// Returns the records of a run that its last driver may not have announced if it ended without notice, in their order.
/// `records` are those after a snapshot, or all of them. The cost is that of the last turn of the outermost agent.
pub fn unannounced_records(records: &[JournalRecord]) -> Vec<&JournalRecord> {
    let is_outermost_turn =
        |one: &JournalRecord| one.path.is_empty() && matches!(step_of(&one.entry), RecordedStep::Turn { .. });
    let first = records.iter().rposition(is_outermost_turn).unwrap_or(0);
    let mut open: BTreeMap<&[CallId], Vec<&JournalRecord>> = BTreeMap::new();
    for record in &records[first..] {
        let path = record.path.as_slice();
        let is_announced = match step_of(&record.entry) {
            RecordedStep::Turn { is_announced } => {
                open.retain(|within, _| !within.starts_with(path));
                is_announced
            }
            RecordedStep::Call { is_announced } => {
                if let Some(before) = open.get_mut(path) {
                    before.retain(|one| matches!(step_of(&one.entry), RecordedStep::Call { .. }));
                }
                if let JournalEntry::CallSettled(settled) = &record.entry {
                    let is_inside = |within: &[CallId]| {
                        within.strip_prefix(path).is_some_and(|rest| rest.first() == Some(&settled.call))
                    };
                    open.retain(|within, _| !is_inside(within));
                }
                is_announced
            }
            RecordedStep::Other => false,
        };
        if is_announced {
            open.entry(path).or_default().push(record);
        }
    }
    let mut unannounced: Vec<_> = open.into_values().flatten().collect();
    unannounced.sort_unstable_by_key(|record| record.seq);
    unannounced
}

#[cfg(test)]
#[path = "unannounced_tests.rs"]
mod tests;

//! The settlement of a run that was cancelled or failed: the calls of its last turn, by their fate.

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::{
    decision::HoldReason,
    id::CallId,
    journal::{CallHeld, CallStatus, JournalEntry, JournalRecord, ModelResponded, RunCancelled, RunFailed},
    plan::CallDisposition,
    tool::ToolEffect,
};

use super::{RunRecord, RunSettlement};

/// A call and the calls that lead to it.
type NestedCallKey<'a> = (&'a [CallId], &'a CallId);

/// The calls of the last turn in a journal, including those of nested agents.
#[derive(Default)]
struct LastTurnCalls<'a> {
    effects: BTreeMap<NestedCallKey<'a>, ToolEffect>,
    in_doubt: BTreeSet<NestedCallKey<'a>>,
    settled: BTreeMap<&'a CallId, &'a CallStatus>,
    draining: BTreeSet<&'a CallId>,
}

impl RunSettlement {
    /// Computes the settlement of a run. The records before a snapshot are read only if the last turn is among them.
    pub(crate) fn from_record(record: &RunRecord) -> Self {
        let later = record.records.later_records();
        let has_turn = later
            .iter()
            .any(|record| record.path.is_empty() && matches!(record.entry, JournalEntry::ModelResponded(_)));
        Self::from_records(if has_turn { later } else { record.journal() })
    }

    /// Computes the settlement from a journal, in the model's order. Calls of nested agents are reported as
    /// their outermost call.
    fn from_records(records: &[JournalRecord]) -> Self {
        let answer = |(at, record): (usize, &'_ JournalRecord)| match &record.entry {
            JournalEntry::ModelResponded(_) if record.path.is_empty() => Some(at),
            _ => None,
        };
        let Some(from) = records.iter().enumerate().rev().find_map(answer) else { return Self::default() };
        let mut turn = LastTurnCalls::default();
        for record in &records[from..] {
            turn.read_record(record);
        }
        match &records[from].entry {
            JournalEntry::ModelResponded(answered) => turn.to_settlement(answered),
            _ => Self::default(),
        }
    }
}

impl<'a> LastTurnCalls<'a> {
    fn read_record(&mut self, record: &'a JournalRecord) {
        let path = record.path.as_slice();
        match &record.entry {
            JournalEntry::ModelResponded(answered) => {
                let bodies = answered.calls.iter().filter_map(|planned| match planned.disposition {
                    CallDisposition::Execute { effect, .. } => Some(((path, &planned.call), effect)),
                    _ => None,
                });
                self.effects.extend(bodies);
            }
            JournalEntry::CallStarted(started) => {
                let place = (path, &started.call);
                if self.effects.get(&place) == Some(&ToolEffect::Once) {
                    self.in_doubt.insert(place);
                }
            }
            // A body asks its question before it has any effect.
            JournalEntry::CallHeld(CallHeld { call, reason: HoldReason::Question(_), .. }) => {
                self.in_doubt.remove(&(path, call));
            }
            JournalEntry::CallSettled(settled) => {
                let place = (path, &settled.call);
                match settled.status {
                    CallStatus::Cancelled => {}
                    CallStatus::TimedOutStillRunning => drop(self.in_doubt.insert(place)),
                    _ => drop(self.in_doubt.remove(&place)),
                }
                if path.is_empty() {
                    self.settled.insert(&settled.call, &settled.status);
                }
            }
            JournalEntry::CallEndedLate(late) => drop(self.in_doubt.remove(&(path, &late.call))),
            JournalEntry::RunCancelled(RunCancelled { draining_calls })
            | JournalEntry::RunFailed(RunFailed { draining_calls, .. }) => {
                self.draining.extend(draining_calls.iter().map(|call| path.first().unwrap_or(call)));
            }
            _ => {}
        }
    }

    fn to_settlement(&self, answered: &ModelResponded) -> RunSettlement {
        let in_doubt: BTreeSet<&CallId> =
            self.in_doubt.iter().map(|(path, call)| path.first().unwrap_or(call)).collect();
        let mut settlement = RunSettlement::default();
        for planned in &answered.calls {
            let call = &planned.call;
            let list = match (self.settled.get(call), &planned.disposition) {
                _ if in_doubt.contains(call) => &mut settlement.in_doubt,
                (Some(CallStatus::Cancelled), _) | (None, CallDisposition::Execute { .. }) => {
                    &mut settlement.stopped
                }
                (Some(_), _) => &mut settlement.finished,
                // The call had no body to execute and was not settled.
                (None, _) => continue,
            };
            list.push(call.clone());
            if self.draining.contains(call) {
                settlement.draining.push(call.clone());
            }
        }
        settlement
    }
}

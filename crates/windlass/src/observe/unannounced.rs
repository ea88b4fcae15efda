//! Records that the last driver of a run may not have announced, with the data that announcing them again requires.

use std::collections::BTreeSet;
use std::sync::Arc;

use windlass_core::{
    decision::{AnsweredQuestion, Decision},
    id::{AgentName, CallId},
    idempotency::CallKey,
    item::Item,
    journal::{JournalEntry, JournalRecord, unannounced_records},
    provenance::ContentSources,
    run::ReplayedRun,
    tool::ToolKey,
};

use super::{EventReplay, HookObservation, Observations, RunObserver};
use crate::event::{RunEvent, RunEventKind};
use crate::tool::{CallDetails, RawArguments, Tool, canonicalize_arguments};

/// A record that is announced again.
pub(crate) struct UnannouncedRecord {
    /// Calls that lead to the agent of the record.
    pub(crate) path: Vec<CallId>,
    /// The events of the record, marked as repeated.
    pub(crate) events: Vec<RunEvent>,
    /// The event for hooks, if the record has one.
    pub(crate) for_hooks: Option<UnannouncedHook>,
}

/// A hook event that is announced again.
pub(crate) struct UnannouncedHook {
    /// The agent whose hooks are notified.
    pub(crate) agent: AgentName,
    pub(crate) observation: HookObservation,
    /// The call that ended; absent for a handoff.
    pub(crate) call: Option<RecordedCall>,
}

/// A call as the journal has it, without secrets.
pub(crate) struct RecordedCall {
    pub(crate) call: CallId,
    pub(crate) tool: ToolKey,
    pub(crate) raw_arguments: String,
    /// Arguments that a person edited.
    pub(crate) edited_arguments: Option<String>,
    /// Identity that was recorded with the start.
    pub(crate) key: Option<CallKey>,
    /// Sources of the text that the model could read when it proposed the call.
    pub(crate) context_sources: ContentSources,
}

impl RecordedCall {
    /// Returns the details of the call for its context.
    pub(crate) fn into_details<C>(
        self,
        tool: Arc<Tool<C>>,
        answered_questions: Vec<AnsweredQuestion>,
    ) -> CallDetails<C> {
        let arguments = self.edited_arguments.as_deref().unwrap_or(&self.raw_arguments);
        CallDetails {
            tool,
            arguments: canonicalize_arguments(arguments, |text| text.into())
                .unwrap_or_else(|_| arguments.into()),
            raw_arguments: RawArguments::Text(self.raw_arguments.as_str().into()),
            answered_questions,
            receipt_digest: self.key.as_ref().and_then(|key| key.receipt_digest),
            recorded_key: self.key.map(|key| key.idempotency_key),
            context_sources: self.context_sources,
        }
    }
}

/// Returns the observer of a run that has these records after a snapshot, or from its start, and the records after
/// `announced_up_to` that its last driver may not have announced.
pub(super) fn resume_observer(
    snapshot: Option<&ReplayedRun>,
    records: &[JournalRecord],
    announced_up_to: Option<u64>,
) -> (RunObserver, Vec<UnannouncedRecord>) {
    let is_later = |record: &&JournalRecord| announced_up_to.is_none_or(|known| record.seq > known);
    let open: BTreeSet<u64> =
        unannounced_records(records).into_iter().filter(is_later).map(|record| record.seq).collect();
    // No turn is open at a snapshot, so no event of a later record depends on the records before it.
    let mut replay = EventReplay::after_snapshot(snapshot.cloned());
    let mut unannounced = Vec::new();
    for (place, record) in records.iter().enumerate() {
        match replay.next_observations(record) {
            Ok(observed) if open.contains(&record.seq) => {
                unannounced.push(UnannouncedRecord::new(record, observed, &records[..place]));
            }
            Ok(_) => {}
            // The run was rebuilt from the same records, so they fit.
            Err(error) => tracing::warn!(%error, "the events of a record could not be derived"),
        }
    }
    (replay.into_observer(), unannounced)
}

impl UnannouncedRecord {
    fn new(record: &JournalRecord, observed: Observations, before: &[JournalRecord]) -> Self {
        let Observations { mut events, for_hooks } = observed;
        // Starts are not announced again: a call starts anew, or it has started for the observers of its process.
        events.retain(|event| !matches!(event.kind, RunEventKind::CallStarted { .. }));
        for event in &mut events {
            event.is_repeated = true;
        }
        let for_hooks = for_hooks.and_then(|observation| {
            let call = match (&record.entry, &observation) {
                (
                    JournalEntry::CallSettled(settled),
                    HookObservation::CallEnded { has_started: true, .. },
                ) => Some(&settled.call),
                (_, HookObservation::HandedOff { .. }) => None,
                _ => return None,
            };
            find_origin(before, &record.path, call, observation)
        });
        Self { path: record.path.clone(), events, for_hooks }
    }
}

/// Finds the agent and the call of an observation in the records before it.
fn find_origin(
    before: &[JournalRecord],
    path: &[CallId],
    call: Option<&CallId>,
    observation: HookObservation,
) -> Option<UnannouncedHook> {
    let (mut key, mut approval) = (None, None);
    for record in before.iter().rev().filter(|record| record.path == path) {
        match &record.entry {
            JournalEntry::CallStarted(started) if Some(&started.call) == call => {
                key.get_or_insert_with(|| started.call_key());
            }
            JournalEntry::DecisionRecorded(decided) if Some(&decided.call) == call => {
                if let Decision::Approve | Decision::ApproveEdited { .. } = &decided.decision {
                    approval.get_or_insert(&decided.decision);
                }
            }
            JournalEntry::ModelResponded(responded) => {
                let agent = responded.agent.clone();
                let Some(call) = call else {
                    return Some(UnannouncedHook { agent, observation, call: None });
                };
                let planned = responded.calls.iter().find(|planned| planned.call == *call)?;
                let written = responded.items.iter().find_map(|item| match &**item {
                    Item::Call(written) if written.id == *call => Some(written.arguments.clone()),
                    _ => None,
                })?;
                let edited_arguments = match approval {
                    Some(Decision::ApproveEdited { arguments }) => Some(arguments.clone()),
                    _ => None,
                };
                let call = Some(RecordedCall {
                    call: call.clone(),
                    tool: planned.key.clone(),
                    raw_arguments: written,
                    edited_arguments,
                    key,
                    context_sources: responded.context_sources,
                });
                return Some(UnannouncedHook { agent, observation, call });
            }
            _ => {}
        }
    }
    None
}

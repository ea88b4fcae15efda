//! Observations: the one place in which a record of the journal becomes the events and the hook event that it stands for.
//!
//! Invariant: [`RunObserver::observe`] is a function of the records so far and of the run that they add up to. The events
//! of a live run, of a subscriber and of a replayed journal are therefore the same. Deltas of the model's text, progress
//! and warnings have no record and are not part of it.

mod replay;
pub(crate) mod trace_span;
mod unannounced;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass_core::{
    id::{AgentName, CallId, CallPath, Timestamp},
    item::{Item, OutputContent},
    journal::{
        CallSettled, CallStatus, HandoffRecorded, HistoryCompacted, JournalEntry, JournalRecord,
        ModelResponded,
    },
    plan::CallDisposition,
    run::{BUDGET_CALL, ReplayedRun, Run, RunItem, RunItemKind},
    tool::ToolKey,
};

use self::unannounced::resume_observer;
use crate::event::{EventEmitter, RunEvent, RunEventKind};
use crate::hook::{CallInfo, ModelResponseInfo};
use crate::lock_unpoisoned;
use crate::model::ResponseDetails;
use crate::redaction::SecretRegistry;

pub use self::replay::EventReplay;
pub(crate) use self::unannounced::{RecordedCall, UnannouncedHook, UnannouncedRecord};

/// The events and the hook event of one record.
#[derive(Default)]
pub(crate) struct Observations {
    pub(crate) events: Vec<RunEvent>,
    /// The event for hooks, without the context that they receive.
    pub(crate) for_hooks: Option<HookObservation>,
}

/// The data of a hook event that is derived from a record.
pub(crate) enum HookObservation {
    HandedOff {
        to: AgentName,
        seq: u64,
    },
    CallEnded {
        status: CallStatus,
        output: OutputContent,
        info: Arc<CallInfo>,
        /// True if the call started, or its arguments are invalid: then observers were told of its start.
        has_started: bool,
    },
}

/// Derives the events of a run from its records.
#[derive(Default)]
pub(crate) struct RunObserver {
    /// The open turns of the run and its nested agents, by path.
    turns: BTreeMap<Vec<CallId>, ObservedTurn>,
}

/// The facts about an open turn that the events of later records need.
#[derive(Default)]
struct ObservedTurn {
    /// Calls whose arguments do not fit their tool. Observers see their start and their end with their settlement.
    invalid_calls: Vec<(CallId, ToolKey)>,
    /// The last attempt of each started call, and the time of the first.
    starts: BTreeMap<CallId, (u32, Timestamp)>,
    /// Calls whose output items were observed.
    shown_outputs: BTreeSet<CallId>,
    /// True if a call was cancelled, which happens only if the run ends.
    is_interrupted: bool,
}

impl RunObserver {
    /// Returns the observations of a record. `root` is the outermost run after the record was applied.
    pub(crate) fn observe(&mut self, record: &JournalRecord, root: &Run) -> Observations {
        let JournalRecord { seq, path, entry, .. } = record;
        let mut kinds = Vec::new();
        let for_hooks = self.observe_entry(record, root, &mut kinds);
        let mut events: Vec<_> = kinds
            .into_iter()
            .map(|(kind, is_repeated)| RunEvent { seq: *seq, path: path.clone(), is_repeated, kind })
            .collect();
        // A settlement or a hold may let the agents around it pause.
        if matches!(entry, JournalEntry::CallSettled(_) | JournalEntry::CallHeld(_)) {
            for depth in (0..=path.len()).rev() {
                let within = &path[..depth];
                let outputs = self.take_outputs(within, root);
                let kinds = outputs.into_iter().map(RunEventKind::Item);
                events.extend(kinds.map(|kind| RunEvent {
                    seq: *seq,
                    path: within.to_vec(),
                    is_repeated: false,
                    kind,
                }));
            }
        }
        Observations { events, for_hooks }
    }

    fn observe_entry(
        &mut self,
        record: &JournalRecord,
        root: &Run,
        kinds: &mut Vec<(RunEventKind, bool)>,
    ) -> Option<HookObservation> {
        let JournalRecord { at, path, entry, .. } = record;
        let run = root.at_path(path);
        match entry {
            JournalEntry::RunStarted(started) if path.is_empty() => {
                kinds.push((RunEventKind::AgentUpdated { agent: started.agent.clone() }, false));
                None
            }
            JournalEntry::ModelResponded(responded) => {
                self.turns.insert(path.clone(), ObservedTurn::new(responded));
                kinds.push((RunEventKind::ModelResponded(response_info(responded, *at)), false));
                kinds.extend(response_items(responded).map(|item| (RunEventKind::Item(item), false)));
                None
            }
            JournalEntry::CallHeld(held) => {
                if let Some(mut pending) = run.and_then(|run| run.pending_call(&held.call)) {
                    pending.path = CallPath::new(path, held.call.clone());
                    kinds.push((RunEventKind::CallHeld(Box::new(pending)), false));
                }
                None
            }
            JournalEntry::BudgetReached(reached) => {
                let (budget, reaction) = (reached.budget.clone(), reached.reaction);
                kinds.push((RunEventKind::BudgetReached { budget, reaction }, false));
                if let Some(mut pending) = run.and_then(|run| run.pending_call(&BUDGET_CALL.into())) {
                    pending.path = CallPath::new(path, BUDGET_CALL.into());
                    kinds.push((RunEventKind::CallHeld(Box::new(pending)), false));
                }
                None
            }
            JournalEntry::CallStarted(started) => {
                let start = self.turn(path).starts.entry(started.call.clone()).or_insert((0, *at));
                start.0 = started.attempt;
                let run = run?;
                // One for every start in a process: a retry and a call that goes on with an answer have had theirs.
                if !started.is_retry && !run.has_asked_question(&started.call) {
                    let (call, tool) = (started.call.clone(), run.tool_of_call(&started.call)?.clone());
                    kinds.push((RunEventKind::CallStarted { call, tool }, started.attempt > 1));
                }
                None
            }
            JournalEntry::CallSettled(settled) => Some(self.observe_settlement(record, settled, kinds)),
            JournalEntry::HandoffRecorded(HandoffRecorded { to, .. }) => {
                // The handoff settles the turn, so its other outputs are shown with it.
                let items = run.map(Run::items_before_added_input).unwrap_or_default();
                let is_output = |item: &&RunItem| {
                    matches!(item.kind, RunItemKind::CallOutput | RunItemKind::HandoffOutput)
                };
                let count = items.iter().rev().take_while(is_output).count();
                for item in
                    items[items.len() - count..].iter().filter(|item| item.kind == RunItemKind::CallOutput)
                {
                    if let Item::Output(output) = &*item.item
                        && self.turn(path).shown_outputs.insert(output.call.clone())
                    {
                        kinds.push((RunEventKind::Item(item.clone()), false));
                    }
                }
                if let Some(output) = items.last().filter(|last| last.kind == RunItemKind::HandoffOutput) {
                    kinds.push((RunEventKind::Item(output.clone()), false));
                }
                kinds.push((RunEventKind::AgentUpdated { agent: to.clone() }, false));
                Some(HookObservation::HandedOff { to: to.clone(), seq: record.seq })
            }
            JournalEntry::HistoryCompacted(compacted) => {
                let HistoryCompacted { reason, tokens_before, tokens_after, .. } = *compacted;
                kinds.push((RunEventKind::HistoryCompacted { reason, tokens_before, tokens_after }, false));
                None
            }
            JournalEntry::OutputRejected(rejected) => {
                let (agent, item) = (run?.agent().clone(), rejected.correction.clone());
                let correction = RunItem { agent, item, kind: RunItemKind::Correction };
                kinds.push((RunEventKind::Item(correction), false));
                None
            }
            JournalEntry::RunFinished(_) | JournalEntry::RunFailed(_) | JournalEntry::RunCancelled(_) => {
                self.turns.remove(path);
                None
            }
            JournalEntry::ModelRequestFailed(failed) => {
                if let Some(delay) = failed.retry_after_ms.map(Duration::from_millis) {
                    let error = failed.error.clone();
                    kinds.push((RunEventKind::ModelRetryScheduled { error, delay }, false));
                }
                None
            }
            JournalEntry::RunStarted(_)
            | JournalEntry::RunRestored(_)
            | JournalEntry::ResponseRejected(_)
            | JournalEntry::ModelInputFiltered(_)
            | JournalEntry::BudgetReserved(_)
            | JournalEntry::DecisionRecorded(_)
            | JournalEntry::DecisionRevoked(_)
            | JournalEntry::CallBodyEnded(_)
            | JournalEntry::CallEndedLate(_)
            | JournalEntry::TurnContinued
            | JournalEntry::InputAdded(_) => None,
        }
    }

    fn observe_settlement(
        &mut self,
        record: &JournalRecord,
        settled: &CallSettled,
        kinds: &mut Vec<(RunEventKind, bool)>,
    ) -> HookObservation {
        let CallSettled { call, status, output, is_output_redacted, guardrails, .. } = settled;
        let turn = self.turn(&record.path);
        turn.is_interrupted |= *status == CallStatus::Cancelled;
        let start = turn.starts.get(call).copied();
        let info = Arc::new(CallInfo {
            attempts: start.map_or(0, |(attempts, _)| attempts),
            started_at: start.map(|(_, at)| at),
            settled_at: record.at,
            guardrails: guardrails.clone(),
            is_output_redacted: *is_output_redacted,
            seq: record.seq,
        });
        let invalid = turn.invalid_calls.iter().find(|(one, _)| one == call);
        let invalid = invalid.filter(|_| *status == CallStatus::InvalidArguments);
        let has_started = start.is_some() || invalid.is_some();
        if let Some((_, tool)) = invalid {
            kinds.push((RunEventKind::CallStarted { call: call.clone(), tool: tool.clone() }, false));
        }
        let (status, output) = (status.clone(), output.clone());
        kinds.push((
            RunEventKind::CallSettled {
                call: call.clone(),
                status: status.clone(),
                output: output.clone(),
                info: info.clone(),
            },
            false,
        ));
        HookObservation::CallEnded { status, output, info, has_started }
    }

    /// Returns the outputs of a turn that is complete or paused, in the model's order, without those that were observed
    /// before. A turn that the end of the run interrupts has none.
    fn take_outputs(&mut self, path: &[CallId], root: &Run) -> Vec<RunItem> {
        let Some(run) = root.at_path(path).filter(|run| run.outcome().is_none() && !run.is_failing()) else {
            return Vec::new();
        };
        let Some(turn) = self.turns.get_mut(path).filter(|turn| !turn.is_interrupted) else {
            return Vec::new();
        };
        let outputs = if run.is_between_turns() {
            run.last_turn_outputs().to_vec()
        } else if run.is_paused() {
            run.open_turn_items()
        } else {
            return Vec::new();
        };
        let is_new = |item: &RunItem| match &*item.item {
            Item::Output(output) => turn.shown_outputs.insert(output.call.clone()),
            _ => false,
        };
        outputs.into_iter().filter(is_new).collect()
    }

    fn turn(&mut self, path: &[CallId]) -> &mut ObservedTurn {
        self.turns.entry(path.to_vec()).or_default()
    }
}

impl ObservedTurn {
    fn new(responded: &ModelResponded) -> Self {
        let invalid = responded.calls.iter().filter_map(|planned| match planned.disposition {
            CallDisposition::InvalidArguments { .. } => Some((planned.call.clone(), planned.key.clone())),
            _ => None,
        });
        Self { invalid_calls: invalid.collect(), ..Self::default() }
    }
}

fn response_info(responded: &ModelResponded, at: Timestamp) -> Arc<ModelResponseInfo> {
    let mut details = ResponseDetails::default();
    details.finish_reason.clone_from(&responded.finish_reason);
    Arc::new(ModelResponseInfo {
        details,
        usage: responded.usage,
        model: responded.model.clone(),
        response_id: responded.response_id.clone(),
        request_id: responded.request_id.clone(),
        attempts: responded.attempts,
        requested_at: responded.requested_at.unwrap_or(at),
        responded_at: at,
    })
}

/// Returns the items of a response, in order.
fn response_items(responded: &ModelResponded) -> impl Iterator<Item = RunItem> + '_ {
    let mut calls = responded.calls.iter();
    responded.items.iter().map(move |item| {
        let kind = match &**item {
            Item::Call(_) => match calls.next().map(|call| &call.disposition) {
                Some(CallDisposition::Handoff { .. } | CallDisposition::SurplusHandoff) => {
                    RunItemKind::HandoffCall
                }
                _ => RunItemKind::ToolCall,
            },
            _ => RunItemKind::ModelOutput,
        };
        RunItem { agent: responded.agent.clone(), item: item.clone(), kind }
    })
}

/// The observations of a live run, shared by the drivers of its nested agents.
///
/// Invariant: events are delivered in the order of their records, whichever call waits for which record. The journal
/// acknowledges records in their order, so a durable record makes all before it due.
#[derive(Default)]
pub(crate) struct LiveEvents {
    state: Mutex<LiveState>,
}

#[derive(Default)]
struct LiveState {
    observer: RunObserver,
    /// Events that are not delivered yet, in the order of their records.
    queue: VecDeque<RunEvent>,
}

impl LiveEvents {
    /// Creates the observations of a run that has these records after a snapshot, or from its start. Returns also the
    /// records after `announced_up_to` that its last driver may not have announced.
    pub(crate) fn resume(
        snapshot: Option<&ReplayedRun>,
        records: &[JournalRecord],
        announced_up_to: Option<u64>,
    ) -> (Self, Vec<UnannouncedRecord>) {
        let (observer, unannounced) = resume_observer(snapshot, records, announced_up_to);
        let state = LiveState { observer, queue: VecDeque::new() };
        (Self { state: Mutex::new(state) }, unannounced)
    }

    /// Derives the observations of a record that was applied to `root`. Its events wait for [`LiveEvents::deliver`]. The
    /// state of the live run has secrets, which its events have not.
    pub(crate) fn observe(
        &self,
        record: &JournalRecord,
        root: &Run,
        secrets: &SecretRegistry,
    ) -> Option<HookObservation> {
        let mut state = lock_unpoisoned(&self.state);
        let observed = state.observer.observe(record, root);
        state.queue.extend(observed.events.into_iter().map(|event| secrets.redact_event(event)));
        observed.for_hooks
    }

    /// Delivers the events of the records up to `seq`, which are durable.
    pub(crate) async fn deliver(&self, seq: u64, emitter: &EventEmitter) {
        loop {
            let is_due = lock_unpoisoned(&self.state).queue.front().is_some_and(|event| event.seq <= seq);
            if !is_due {
                return;
            }
            // The event is removed when there is room for it, so that none is lost with a dropped future.
            let Some(room) = emitter.reserve().await else {
                lock_unpoisoned(&self.state).queue.clear();
                return;
            };
            let mut state = lock_unpoisoned(&self.state);
            if let Some(event) = state.queue.pop_front_if(|event| event.seq <= seq) {
                room.send(event);
            }
        }
    }
}

//! The run state machine: its state, its transitions (`apply`) and the actions derived from it (`next`).

mod apply;
mod budget_stage;
mod call_slot;
mod decide;
mod lifecycle;
pub mod model_text;
mod next;
mod outline;
mod replay;
mod restored;
mod snapshot;
mod snapshot_segment;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::budget::BudgetLedger;
use crate::call_map::CallMap;
use crate::canonical::Digest;
use crate::decision::{
    AnsweredQuestion, CorrectableCall, PendingCall, StandingDecision, StandingVerdict, UntakenHold,
};
use crate::failure::RunFailure;
use crate::id::{AgentName, CallId, CallPath, RunId, SessionId};
use crate::idempotency::{CallKey, KeyNonce};
use crate::item::{Item, OutputContent};
use crate::journal::{RunStarted, StartHistory};
use crate::plan::CallDisposition;
use crate::provenance::{ContentSource, ContentSources};
use crate::tool::ToolKey;
use crate::usage::Usage;

pub use apply::{ApplyError, ApplyOutcome, NewReceipt};
use budget_stage::BudgetStage;
pub use budget_stage::{BUDGET_CALL, SUMMARY_REQUEST, budget_question, granted_amount, summary_path};
use call_slot::OpenTurn;
pub use lifecycle::{
    ApprovalRequirement, CallEffect, CallFeatures, CallOutcome, CallProgress, CallReport, CallResult,
    GateVerdict, ReceiptVerdict, ReconcileReport, RunnableCall, StopMode,
};
pub use next::{RunAction, StopRequest, ToolNeed, TurnSchedule};
use outline::OmittedPast;
pub use outline::RunOutline;
pub use replay::{CallReceipt, ReplayError, ReplayedRun};
pub use snapshot::{EncodedSnapshot, SnapshotPosition};
pub use snapshot_segment::{ParsedSegments, RunPast};

/// The state of a run of an agent, derived from its journal.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    id: RunId,
    key_nonce: Option<KeyNonce>,
    session: Option<SessionId>,
    max_turns: Option<u32>,
    agent: AgentName,
    turn: u32,
    input: Vec<Arc<Item>>,
    /// The history at the start, if the run refers to its session for it.
    start_history: Option<Arc<StartHistory>>,
    history: Arc<Vec<Arc<Item>>>,
    /// Number of times that the history was replaced instead of appended to.
    history_replacements: u32,
    /// The sizes of the parts before a snapshot, if they are left out.
    omitted: Option<Box<OmittedPast>>,
    /// Items of the next model request, if an input filter changed them.
    filtered_input: Option<Vec<Arc<Item>>>,
    /// Items of the last answered model request, if an input filter changed them.
    last_filtered_input: Option<Vec<Arc<Item>>>,
    items: Vec<RunItem>,
    /// Sources outside the conversation of everything that the model could read so far.
    context_sources: ContentSources,
    /// Lengths of the history and of the run items before the last response.
    lens_before_response: (usize, usize),
    added_input: Vec<Arc<Item>>,
    call_digests: CallMap<Digest>,
    standing_decisions: BTreeMap<(AgentName, ToolKey), StandingVerdict>,
    /// Sorted; the list is short.
    agents_with_tool_use: Vec<AgentName>,
    usage: Usage,
    /// The response that the run continues.
    previous_response_id: Option<String>,
    last_response_id: Option<String>,
    repeat_counter: RepeatCounter,
    /// Context windows that refused requests have shown, in tokens.
    learned_windows: BTreeMap<AgentName, u64>,
    /// Calls that certainly had no effect: their tool was unknown, or they ended the run or were stopped with it before a
    /// body with effects had started.
    ineffective_calls: BTreeSet<CallId>,
    /// True if a call was held, started or settled, or control passed.
    has_call_activity: bool,
    /// The first call in the model's order that ended the run, by its index, with the failure.
    ended_by_call: Option<(usize, Box<RunFailure>)>,
    /// True if a call was stopped because the run was cancelled. The run ends, whoever drives it.
    has_cancelled_call: bool,
    /// Index of the first run item whose output was withheld.
    withheld_from: Option<usize>,
    /// Number of final outputs that did not match their type, and that the model was asked to correct.
    output_corrections: u32,
    /// The budgets with their reservations, if the run is the outermost and has budgets.
    budget_ledger: Option<Box<BudgetLedger>>,
    budget_stage: BudgetStage,
    /// Number of questions about budgets so far.
    budget_questions: u32,
    /// True if the run comes from a backup, and may have gone on after it.
    is_restored: bool,
    phase: RunPhase,
}

/// The phase of a run.
#[derive(Clone, Debug, PartialEq)]
enum RunPhase {
    /// The model is to be requested.
    AwaitingModel,
    /// Calls of the last response are open.
    CallsOpen(OpenTurn),
    /// All calls except the handoff have settled.
    HandoffPending(OpenTurn),
    /// All calls have settled, and the application's function decides whether their results are final.
    ResultsPending(OpenTurn),
    /// A final output is available and has not been accepted.
    OutputPending(OutputCandidate),
    /// The run has ended.
    Ended(RunEnd),
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum RunEnd {
    /// The run finished with this output.
    Finished(String),
    /// The run failed.
    Failed(RunFailure),
    /// The run was cancelled.
    Cancelled,
}

/// An item that the run produced, with the agent that produced it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunItem {
    /// The agent.
    pub agent: AgentName,
    /// The item.
    pub item: Arc<Item>,
    /// The kind of the item.
    pub kind: RunItemKind,
}

/// The kind of an item that a run produced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunItemKind {
    /// A message or reasoning of the model.
    ModelOutput,
    /// A tool call of the model.
    ToolCall,
    /// A handoff call of the model.
    HandoffCall,
    /// The output of a tool call.
    CallOutput,
    /// The output of a handoff.
    HandoffOutput,
    /// A message that asks the model to correct a final output that does not match its type.
    Correction,
    /// Input that was added after the start of the run.
    AddedInput,
}

/// An output that ends the run if guardrails and output type accept it.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputCandidate {
    /// The agent that produced the output.
    pub agent: AgentName,
    /// The text of the output.
    pub output: String,
    /// The source of the output.
    pub source: OutputCandidateSource,
}

/// The source of a final output.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputCandidateSource {
    /// The model's message.
    Message,
    /// The model's refusal; the output is its text.
    Refusal,
    /// The result of this tool call, selected by the agent's tool-use policy.
    Tool(CallId),
}

/// A settled call of a turn, as the application's tool-use function sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct SettledCall {
    /// The call's id.
    pub call: CallId,
    /// The tool's identity.
    pub tool: ToolKey,
    /// The status that the call settled with.
    pub status: crate::journal::CallStatus,
    /// The output.
    pub output: OutputContent,
}

/// A counter of consecutive turns with identical calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct RepeatCounter {
    last_calls: Vec<Digest>,
    count: u32,
}

impl Run {
    /// Creates a run from its first entry. The entry has its history: [`Run::replay`] refuses one that refers to items
    /// of a session that were not loaded.
    pub fn start(started: RunStarted) -> Self {
        let input = started.input;
        let mut history = started.history.items().unwrap_or_default().to_vec();
        let start_history = started.history.reference().is_some().then(|| Arc::new(started.history.clone()));
        history.extend(input.iter().cloned());
        let mut context_sources = ContentSources::of_items(&history);
        let budget_ledger = match (started.budget, started.session_budget) {
            (None, None) => None,
            (budget, session) => {
                Some(Box::new(BudgetLedger::new(budget.map(|one| *one), session.map(|one| *one))))
            }
        };
        if started.previous_response_id.is_some() {
            // The provider stored a conversation that is not known here.
            context_sources.add(ContentSource::Unknown);
        }
        Self {
            id: started.run,
            key_nonce: started.key_nonce,
            session: started.session,
            max_turns: started.max_turns,
            agent: started.agent,
            turn: 0,
            input,
            start_history,
            lens_before_response: (history.len(), 0),
            history: Arc::new(history),
            history_replacements: 0,
            omitted: None,
            filtered_input: None,
            last_filtered_input: None,
            items: Vec::new(),
            context_sources,
            added_input: Vec::new(),
            call_digests: CallMap::default(),
            standing_decisions: BTreeMap::new(),
            agents_with_tool_use: Vec::new(),
            usage: Usage::default(),
            last_response_id: started.previous_response_id.clone(),
            previous_response_id: started.previous_response_id,
            repeat_counter: RepeatCounter::default(),
            learned_windows: BTreeMap::new(),
            ineffective_calls: BTreeSet::new(),
            has_call_activity: false,
            ended_by_call: None,
            has_cancelled_call: false,
            withheld_from: None,
            output_corrections: 0,
            budget_ledger,
            budget_stage: BudgetStage::Open,
            budget_questions: 0,
            is_restored: false,
            phase: RunPhase::AwaitingModel,
        }
    }

    /// Returns the run's id.
    pub fn id(&self) -> &RunId {
        &self.id
    }

    /// Returns the nonce in the idempotency keys of the run, if it has one.
    pub fn key_nonce(&self) -> Option<&KeyNonce> {
        self.key_nonce.as_ref()
    }

    /// Returns the session that the run belongs to.
    pub fn session(&self) -> Option<&SessionId> {
        self.session.as_ref()
    }

    /// Returns the current agent.
    pub fn agent(&self) -> &AgentName {
        &self.agent
    }

    /// Returns the number of model responses so far.
    pub fn turn(&self) -> u32 {
        self.turn
    }

    /// Returns the conversation for the next model request, before any input filter. In an open turn, calls lack their
    /// outputs.
    pub fn history(&self) -> &[Arc<Item>] {
        &self.history
    }

    /// Returns the conversation as [`Run::history`] does, shared. An entry that is applied while it is held copies the
    /// history.
    pub fn shared_history(&self) -> Arc<Vec<Arc<Item>>> {
        self.history.clone()
    }

    /// Returns the sources outside the conversation of everything that the model could read so far. Sources are only
    /// added, also if a filter or a handoff removes the items that brought them.
    pub fn context_sources(&self) -> ContentSources {
        self.context_sources
    }

    /// Returns the sources outside the conversation of the text that the model could read when it proposed an open call.
    pub fn call_sources(&self, call: &CallId) -> ContentSources {
        let slot = self.open_turn().and_then(|turn| turn.slot(call));
        slot.map_or(self.context_sources, |slot| slot.context_sources)
    }

    /// Returns the input of the run, without the session's history.
    pub fn input(&self) -> &[Arc<Item>] {
        &self.input
    }

    /// Returns the history at the start of the run, if the run refers to its session for it.
    pub fn referenced_history(&self) -> Option<&StartHistory> {
        self.start_history.as_deref()
    }

    /// Returns the items of the last model request that was answered, as an input filter left them; before the first
    /// response, the current history.
    pub fn last_model_input(&self) -> &[Arc<Item>] {
        if let Some(filtered) = &self.last_filtered_input {
            return filtered;
        }
        match self.turn {
            0 => &self.history,
            _ => self.history.get(..self.lens_before_response.0).unwrap_or_default(),
        }
    }

    /// Returns the items of the next model request: the history, or what an input filter recorded for it.
    pub fn next_model_input(&self) -> &[Arc<Item>] {
        self.filtered_input.as_deref().unwrap_or(&self.history)
    }

    /// Returns true if a call was held, started or settled, or control passed. This never happens before the
    /// input guardrails have passed.
    pub fn has_call_activity(&self) -> bool {
        self.has_call_activity
    }

    /// Returns the number of run items that can no longer be removed: all except those of a response that is
    /// still open.
    pub fn settled_item_count(&self) -> usize {
        match self.phase {
            RunPhase::AwaitingModel | RunPhase::ResultsPending(_) | RunPhase::Ended(_) => self.items.len(),
            RunPhase::CallsOpen(_) | RunPhase::HandoffPending(_) | RunPhase::OutputPending(_) => {
                self.lens_before_response.1
            }
        }
    }

    /// Returns the items that the run produced in settled turns, the input that was added to it, and the calls of an open
    /// turn.
    pub fn items(&self) -> &[RunItem] {
        &self.items
    }

    /// Returns the outputs of the open turn so far, in the model's order.
    pub fn open_turn_items(&self) -> Vec<RunItem> {
        match &self.phase {
            RunPhase::CallsOpen(turn) | RunPhase::HandoffPending(turn) => turn.output_items(),
            RunPhase::AwaitingModel
            | RunPhase::ResultsPending(_)
            | RunPhase::OutputPending(_)
            | RunPhase::Ended(_) => Vec::new(),
        }
    }

    /// Returns the outputs of the last turn, in the model's order, if it has settled.
    pub fn last_turn_outputs(&self) -> &[RunItem] {
        let items = self.items_before_added_input();
        let is_output = |item: &&RunItem| item.kind == RunItemKind::CallOutput;
        let count = match self.is_between_turns() {
            true => items.iter().rev().take_while(is_output).count(),
            false => 0,
        };
        &items[items.len() - count..]
    }

    /// Returns the items of the run without the input at their end that was added since.
    pub fn items_before_added_input(&self) -> &[RunItem] {
        let is_added = |item: &&RunItem| item.kind == RunItemKind::AddedInput;
        let added = self.items.iter().rev().take_while(is_added).count();
        &self.items[..self.items.len() - added]
    }

    /// Returns the run items from index `from` that a session stores. If the run failed inside a turn, only the
    /// calls of that turn that took effect, or may have, are included, with their outputs, and the input that was added.
    pub fn session_items(&self, from: usize) -> Vec<Arc<Item>> {
        let settled = self.items.get(from..self.settled_item_count()).unwrap_or_default();
        let is_failed = matches!(self.phase, RunPhase::Ended(RunEnd::Failed(_)));
        let broken_from = match self.withheld_from {
            Some(from) => from,
            None if is_failed && self.has_ineffective_calls() => self.lens_before_response.1,
            None => usize::MAX,
        };
        let keeps = |place: usize, produced: &RunItem| {
            place < broken_from
                // A person has said it, whatever became of the turn.
                || produced.kind == RunItemKind::AddedInput
                || match &*produced.item {
                    Item::Call(call) => {
                        !self.ineffective_calls.contains(&call.id)
                            && produced.kind != RunItemKind::HandoffCall
                    }
                    Item::Output(output) => !self.ineffective_calls.contains(&output.call),
                    _ => false,
                }
        };
        let placed = settled.iter().enumerate().map(|(at, produced)| (from + at, produced));
        let kept = placed.filter(|(place, produced)| keeps(*place, produced));
        sort_outputs_by_call(kept.map(|(_, produced)| produced.item.clone()).collect())
    }

    /// Returns true if the last turn contains calls without effect.
    fn has_ineffective_calls(&self) -> bool {
        self.items[self.lens_before_response.1.min(self.items.len())..].iter().any(
            |produced| match &*produced.item {
                Item::Call(call) => self.ineffective_calls.contains(&call.id),
                _ => false,
            },
        )
    }

    /// Returns the calls of all responses so far, with their digests.
    pub fn call_digests(&self) -> &CallMap<Digest> {
        &self.call_digests
    }

    /// Returns true if `agent` has used a tool, which lifts a forced tool choice.
    pub fn has_used_tools(&self, agent: &AgentName) -> bool {
        self.agents_with_tool_use.binary_search(agent).is_ok()
    }

    /// Returns the number of turns that are left; `None` if they are not limited.
    pub fn turns_left(&self) -> Option<u32> {
        self.max_turns.map(|max_turns| max_turns.saturating_sub(self.turn))
    }

    /// Returns how often the model was asked to correct a final output that does not match its type.
    pub fn output_corrections(&self) -> u32 {
        self.output_corrections
    }

    /// Returns the usage of the run, excluding nested agents.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Returns the provider's id of the response that the run was started to continue.
    pub fn previous_response_id(&self) -> Option<&str> {
        self.previous_response_id.as_deref()
    }

    /// Returns the provider's id of the last response: one of the run's own or, before the first, the response that the
    /// run continues. There is none after a filter changed the history, because the provider stores another one.
    pub fn last_response_id(&self) -> Option<&str> {
        self.last_response_id.as_deref()
    }

    /// Returns the size of the current agent's context window in tokens, if a request that the provider refused has shown
    /// it.
    pub fn learned_window(&self) -> Option<u64> {
        self.learned_windows.get(&self.agent).copied()
    }

    /// Returns the number of consecutive turns with identical calls.
    pub fn repeat_count(&self) -> u32 {
        self.repeat_counter.count
    }

    /// Returns the outcome of the run, or `None` while it is active.
    pub fn outcome(&self) -> Option<&RunEnd> {
        match &self.phase {
            RunPhase::Ended(end) => Some(end),
            RunPhase::AwaitingModel
            | RunPhase::CallsOpen(_)
            | RunPhase::HandoffPending(_)
            | RunPhase::ResultsPending(_)
            | RunPhase::OutputPending(_) => None,
        }
    }

    /// Returns true if the model is to be requested and nothing else is in progress.
    pub fn is_awaiting_model(&self) -> bool {
        matches!(self.phase, RunPhase::AwaitingModel) && self.added_input.is_empty() && !self.is_ending()
    }

    /// Returns true if all calls so far have their outputs in the history.
    pub fn is_between_turns(&self) -> bool {
        !matches!(self.phase, RunPhase::CallsOpen(_) | RunPhase::HandoffPending(_))
    }

    /// Returns the calls that are held for a person, including those of nested agents.
    pub fn pending_calls(&self) -> Vec<PendingCall> {
        let mut found = Vec::new();
        self.collect_pending(&mut Vec::new(), &mut found);
        found
    }

    /// Returns a call of this run, excluding nested agents, if it is held for a person.
    pub fn pending_call(&self, call: &CallId) -> Option<PendingCall> {
        if call.as_str() == BUDGET_CALL {
            return self.pending_budget(&[]);
        }
        let turn = self.open_turn()?;
        turn.slot(call)?.to_pending_call(&[], &turn.agent)
    }

    /// Returns the hold of a call of this run that a person may have seen, if the call has neither started nor settled
    /// since. A driver takes the decision about it in the store before it records the start, the settlement, or the end of a
    /// body that it did not start.
    pub fn untaken_hold(&self, call: &CallId) -> Option<UntakenHold> {
        match self.budget_hold(call) {
            Some(hold) => Some(hold),
            None => self.open_turn()?.slot(call)?.untaken_hold(),
        }
    }

    /// Returns a call of this run, excluding nested agents, whose decision is not taken and can be corrected.
    pub fn correctable_call(&self, call: &CallId) -> Option<CorrectableCall> {
        let turn = self.open_turn()?;
        turn.slot(call)?.correctable_hold(&[], &turn.agent)
    }

    /// Returns the standing decisions of this run, excluding nested agents.
    pub fn standing_decisions(&self) -> Vec<StandingDecision> {
        self.standing_decisions
            .iter()
            .map(|((agent, tool), verdict)| StandingDecision {
                parent_calls: Vec::new(),
                agent: agent.clone(),
                tool: tool.clone(),
                verdict: verdict.clone(),
            })
            .collect()
    }

    /// Returns the settled calls of the turn whose results the application's function evaluates; otherwise
    /// empty.
    pub fn turn_results(&self) -> Vec<SettledCall> {
        match &self.phase {
            RunPhase::ResultsPending(turn) => turn.settled_calls(),
            _ => Vec::new(),
        }
    }

    /// Returns the nested run of an agent that an open call executes.
    pub fn nested_run(&self, call: &CallId) -> Option<&Self> {
        self.open_turn()?.slot(call)?.nested_run.as_deref()
    }

    /// Returns the nested run at a path of calls; this run if the path is empty.
    pub fn at_path(&self, path: &[CallId]) -> Option<&Self> {
        path.iter().try_fold(self, |run, call| run.nested_run(call))
    }

    /// Returns the arguments that a person put in place of the model's, if an open call has such.
    pub fn edited_arguments(&self, call: &CallId) -> Option<Arc<str>> {
        match &self.open_turn()?.slot(call)?.state {
            call_slot::CallSlotState::Approved { edited_arguments, .. }
            | call_slot::CallSlotState::Running { edited_arguments, .. }
            | call_slot::CallSlotState::BodyEnded { edited_arguments, .. }
            | call_slot::CallSlotState::Held { edited_arguments, .. } => edited_arguments.clone(),
            call_slot::CallSlotState::Open
            | call_slot::CallSlotState::OutputKnown { .. }
            | call_slot::CallSlotState::Settled { .. } => None,
        }
    }

    /// Returns the digest of the withheld output of an open call, if its body has ended.
    pub fn withheld_output(&self, call: &CallId) -> Option<Digest> {
        match &self.open_turn()?.slot(call)?.state {
            call_slot::CallSlotState::BodyEnded { output_digest, .. } => Some(*output_digest),
            _ => None,
        }
    }

    /// Returns true if a body that was started for an open call has ended, and its output is withheld. A withheld receipt has
    /// no body of its own.
    pub fn has_withheld_body_result(&self, call: &CallId) -> bool {
        let slot = self.open_turn().and_then(|turn| turn.slot(call));
        slot.is_some_and(|slot| match &slot.state {
            call_slot::CallSlotState::BodyEnded { status, .. } => {
                *status != crate::journal::CallStatus::Deduplicated
            }
            _ => false,
        })
    }

    /// Returns the calls whose output is withheld, including those of nested agents.
    pub fn withheld_calls(&self) -> Vec<CallPath> {
        let mut found = Vec::new();
        self.collect_withheld(&mut Vec::new(), &mut found);
        found
    }

    fn collect_withheld(&self, within: &mut Vec<CallId>, found: &mut Vec<CallPath>) {
        let Some(turn) = self.open_turn() else { return };
        for slot in &turn.slots {
            if matches!(slot.state, call_slot::CallSlotState::BodyEnded { .. }) {
                found.push(CallPath::new(within, slot.planned.call.clone()));
            }
            if let Some(child) = &slot.nested_run {
                within.push(slot.planned.call.clone());
                child.collect_withheld(within, found);
                within.pop();
            }
        }
    }

    /// Returns the calls of the open turn, in the model's order. The flag is true if nothing can be done for the call now:
    /// it has settled, waits for a person, or is a handoff.
    pub fn turn_calls(&self) -> Vec<(CallId, bool)> {
        let slots = self.open_turn().map(|turn| turn.slots.as_slice()).unwrap_or_default();
        slots.iter().map(|slot| (slot.planned.call.clone(), slot.is_idle())).collect()
    }

    /// Returns true if the output of an open call was decided, so that its body does not run.
    pub fn is_output_known(&self, call: &CallId) -> bool {
        let slot = self.open_turn().and_then(|turn| turn.slot(call));
        slot.is_some_and(|slot| matches!(slot.state, call_slot::CallSlotState::OutputKnown { .. }))
    }

    /// Returns true if the body of an open call has started.
    pub fn has_call_started(&self, call: &CallId) -> bool {
        self.open_turn().and_then(|turn| turn.slot(call)).is_some_and(call_slot::CallSlot::has_started)
    }

    /// Returns the need of an open call for its tool, from where it is now to its output.
    pub fn tool_need(&self, call: &CallId) -> ToolNeed {
        match self.call_disposition(call) {
            Some(CallDisposition::Execute { .. }) if !self.is_output_known(call) => {
                ToolNeed::Required { has_edited_arguments: self.edited_arguments(call).is_some() }
            }
            Some(CallDisposition::Execute { .. } | CallDisposition::InvalidArguments { .. }) => {
                ToolNeed::IfPresent
            }
            _ => ToolNeed::None,
        }
    }

    /// Returns the last output or message of the run that is not empty; an empty text if there is none.
    pub fn last_text(&self) -> String {
        let text_of = |produced: &RunItem| match &*produced.item {
            Item::Output(output) => Some(output.content.text().into_owned()),
            Item::Message(message) => Some(message.text()),
            _ => None,
        };
        let texts = self.items().iter().rev().filter_map(text_of);
        texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default()
    }

    /// Returns the number of the attempt that is running or interrupted; `None` if no body of the call is.
    pub fn running_attempt(&self, call: &CallId) -> Option<u32> {
        match self.open_turn()?.slot(call)?.state {
            call_slot::CallSlotState::Running { attempt, .. } => Some(attempt),
            _ => None,
        }
    }

    /// Returns the disposition of an open call.
    pub fn call_disposition(&self, call: &CallId) -> Option<&CallDisposition> {
        Some(&self.open_turn()?.slot(call)?.planned.disposition)
    }

    /// Returns the arguments of an open call as the model wrote them.
    pub fn call_arguments(&self, call: &CallId) -> Option<&str> {
        Some(&self.open_turn()?.slot(call)?.call().arguments)
    }

    /// Returns the identity of the tool that an open call names.
    pub fn tool_of_call(&self, call: &CallId) -> Option<&ToolKey> {
        Some(&self.open_turn()?.slot(call)?.planned.key)
    }

    /// Returns the questions that the body of an open call has asked, with their answers.
    pub fn answered_questions(&self, call: &CallId) -> &[AnsweredQuestion] {
        self.open_turn()
            .and_then(|turn| turn.slot(call))
            .map(|slot| &*slot.answered_questions)
            .unwrap_or_default()
    }

    /// Returns the calls of the open turn that have not settled, in the model's order.
    pub fn unsettled_calls(&self) -> Vec<CallId> {
        self.open_turn()
            .map(|turn| {
                turn.slots
                    .iter()
                    .filter(|slot| !slot.is_settled())
                    .map(|slot| slot.planned.call.clone())
                    .collect()
            })
            .unwrap_or_default()
    }

    /// Returns the identity that was recorded when an open call started; `None` if it has not started, or if it was
    /// started by the run that this one was forked from and its next attempt is an effect of this run.
    pub fn call_key(&self, call: &CallId) -> Option<&CallKey> {
        self.open_turn()?.slot(call)?.next_key(false)
    }

    /// Returns true if the run that this one was forked from started an open call, and this one has not.
    pub fn has_inherited_key(&self, call: &CallId) -> bool {
        self.open_turn().and_then(|turn| turn.slot(call)).is_some_and(|slot| slot.has_inherited_key)
    }

    /// Returns the item of an earlier call, with the agent that made it.
    pub(crate) fn call_item(&self, call: &CallId) -> Option<&RunItem> {
        let is_call = |produced: &&RunItem| matches!(&*produced.item, Item::Call(made) if made.id == *call);
        self.items.iter().rev().find(is_call)
    }

    /// Returns true if the body of an open call has asked a question.
    pub fn has_asked_question(&self, call: &CallId) -> bool {
        let slot = self.open_turn().and_then(|turn| turn.slot(call));
        slot.is_some_and(|slot| !slot.answered_questions.is_empty() || slot.is_asking_question())
    }

    /// Returns the open calls whose bodies have started, in the model's order.
    pub fn calls_in_flight(&self) -> Vec<CallId> {
        let slots = self.open_turn().map(|turn| turn.slots.as_slice()).unwrap_or_default();
        slots.iter().filter(|slot| slot.has_started()).map(|slot| slot.planned.call.clone()).collect()
    }

    /// Returns true if the body of an open call is running.
    pub fn is_call_running(&self, call: &CallId) -> bool {
        let slot = self.open_turn().and_then(|turn| turn.slot(call));
        slot.is_some_and(|slot| matches!(slot.state, call_slot::CallSlotState::Running { .. }))
    }

    /// Returns true if the call has settled; also true for a call that is not open.
    pub fn is_call_settled(&self, call: &CallId) -> bool {
        self.open_turn().and_then(|turn| turn.slot(call)).is_none_or(call_slot::CallSlot::is_settled)
    }

    /// Returns true if an open call, or an agent nested in it, is held for a person.
    pub fn is_call_waiting(&self, call: &CallId) -> bool {
        self.open_turn().and_then(|turn| turn.slot(call)).is_some_and(call_slot::CallSlot::is_waiting)
    }

    /// Returns a short summary of the run for logs and lists.
    pub fn summary(&self) -> Value {
        serde_json::json!({
            "run": self.id.as_str(),
            "agent": self.agent.as_str(),
            "turn": self.turn,
            "pending": self.pending_calls().len(),
            "over": self.outcome().is_some(),
        })
    }

    fn collect_pending(&self, within: &mut Vec<CallId>, found: &mut Vec<PendingCall>) {
        found.extend(self.pending_budget(within));
        let Some(turn) = self.open_turn() else { return };
        for slot in &turn.slots {
            if let Some(pending) = slot.to_pending_call(within, &turn.agent) {
                found.push(pending);
            }
            if let Some(child) = &slot.nested_run {
                within.push(slot.planned.call.clone());
                child.collect_pending(within, found);
                within.pop();
            }
        }
    }

    fn open_turn(&self) -> Option<&OpenTurn> {
        match &self.phase {
            RunPhase::CallsOpen(turn) | RunPhase::HandoffPending(turn) => Some(turn),
            RunPhase::AwaitingModel
            | RunPhase::ResultsPending(_)
            | RunPhase::OutputPending(_)
            | RunPhase::Ended(_) => None,
        }
    }

    fn open_turn_mut(&mut self) -> Option<&mut OpenTurn> {
        match &mut self.phase {
            RunPhase::CallsOpen(turn) | RunPhase::HandoffPending(turn) => Some(turn),
            RunPhase::AwaitingModel
            | RunPhase::ResultsPending(_)
            | RunPhase::OutputPending(_)
            | RunPhase::Ended(_) => None,
        }
    }
}

/// Sorts adjacent outputs into the order of their calls. Run items have the handoff output last; histories have
/// it at its call's position.
fn sort_outputs_by_call(mut items: Vec<Arc<Item>>) -> Vec<Arc<Item>> {
    let mut places: BTreeMap<CallId, usize> = BTreeMap::new();
    for (place, item) in items.iter().enumerate() {
        if let Item::Call(call) = &**item {
            places.insert(call.id.clone(), place);
        }
    }
    let place_of = |item: &Arc<Item>| match &**item {
        Item::Output(output) => places.get(&output.call),
        Item::Handoff(handoff) => places.get(&handoff.call),
        _ => None,
    };
    for together in items.chunk_by_mut(|one, next| place_of(one).is_some() && place_of(next).is_some()) {
        together.sort_by_key(place_of);
    }
    items
}

#[cfg(test)]
#[path = "run_tests.rs"]
pub(crate) mod tests;

//! Applies entries to a run, and refuses entries that do not fit its state.

use std::sync::Arc;

use super::budget_stage::{BUDGET_CALL, BudgetStage};
use super::call_slot::{CallSlot, CallSlotState, OpenTurn, UnrecordedStart};
use super::lifecycle::{CallResult, unchecked_result};
use super::{
    OutputCandidate, OutputCandidateSource, Run, RunEnd, RunItem, RunItemKind, RunPhase, model_text,
};
use crate::budget::ReachedBudget;
use crate::canonical::Digest;
use crate::failure::RunFailure;
use crate::history::has_valid_pairs;
use crate::id::{AgentName, CallId};
use crate::item::{CallOutput, HandoffOutput, Item, OutputContent, OutputStatus, Role};
use crate::journal::{
    CallSettled, CallStarted, CallStatus, FilteredInput, HandoffRecorded, HistoryCompacted, JournalEntry,
    ModelResponded, ToolUsePolicyKind,
};
use crate::plan::{CallDisposition, PlannedCall};
use crate::provenance::ContentSources;
use crate::tool::{ApprovalPolicy, ToolEffect};

/// The reason why an entry about the conversation does not fit a run whose past is left out.
const PAST_LEFT_OUT: &str = "it refers to the conversation before a snapshot, which is not loaded";

/// Side results of applying an entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ApplyOutcome {
    /// The result of an idempotent call, to be stored as a receipt.
    pub receipt: Option<NewReceipt>,
    /// The budget that a person has raised, with the amount.
    pub(super) granted: Option<Box<(ReachedBudget, u64)>>,
}

/// A receipt that a call leaves when it settles.
#[derive(Clone, Debug, PartialEq)]
pub struct NewReceipt {
    /// Digest under which it is stored.
    pub digest: Digest,
    /// The output of the call.
    pub output: OutputContent,
    /// Its generation.
    pub generation: u32,
}

/// The reason why an entry does not fit the state of the run. The run is unchanged.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// The run has ended.
    #[error("the run has ended")]
    RunEnded,
    /// The entry is not allowed in the current state.
    #[error("`{entry}` does not fit here: {reason}")]
    UnexpectedEntry {
        /// The type of the entry.
        entry: &'static str,
        /// The reason why it is not allowed.
        reason: &'static str,
    },
    /// The run has no open call with this id.
    #[error("there is no open call `{0}`")]
    UnknownCall(CallId),
    /// The call is not allowed to start.
    #[error("call `{call}` may not start: {reason}")]
    StartNotAllowed {
        /// The call's id.
        call: CallId,
        /// The reason why it is not allowed.
        reason: &'static str,
    },
    /// The call has already settled.
    #[error("call `{0}` has already settled")]
    AlreadySettled(CallId),
    /// A different decision was already recorded.
    #[error("a different decision about call `{0}` was already recorded")]
    AlreadyDecided(CallId),
    /// The decision's digest is not the digest of the call: it was made about other arguments or another tool.
    #[error("the decision does not cover call `{0}`: it was made about another tool or other arguments")]
    DigestMismatch(CallId),
    /// The decision does not apply to the reason for which the call is held.
    #[error("call `{call}` waits {waiting_for}, which this decision does not answer")]
    DecisionNotApplicable {
        /// The call's id.
        call: CallId,
        /// The hold reason, in words that follow "waits".
        waiting_for: &'static str,
    },
    /// The answer does not satisfy the schema of the question.
    #[error("the answer to call `{call}` does not fit: {problems}")]
    InvalidAnswer {
        /// The call's id.
        call: CallId,
        /// All schema violations, with their paths.
        problems: String,
    },
}

impl Run {
    /// Returns the history for changes. Nobody shares it while an entry is applied, so nothing is copied.
    fn history_mut(&mut self) -> &mut Vec<Arc<Item>> {
        Arc::make_mut(&mut self.history)
    }

    /// Replaces the history.
    fn replace_history(&mut self, history: Vec<Arc<Item>>) {
        self.history = Arc::new(history);
        self.history_replacements += 1;
        if let Some(omitted) = &mut self.omitted {
            omitted.history = 0;
        }
    }

    /// Appends the input that was added during the turn.
    fn take_added_input(&mut self) {
        if !self.added_input.is_empty() {
            let mut added = std::mem::take(&mut self.added_input);
            self.context_sources.add(ContentSources::of_items(&added));
            self.history_mut().append(&mut added);
        }
    }

    /// Applies an entry to the nested run at `path`, or to this run if `path` is empty.
    ///
    /// # Errors
    ///
    /// Returns [`ApplyError`] if the entry does not fit the state of that run; nothing changes.
    pub fn apply_at(&mut self, path: &[CallId], entry: &JournalEntry) -> Result<ApplyOutcome, ApplyError> {
        let mut outcome = self.apply_below(path, entry)?;
        if self.budget_ledger.is_some() || matches!(entry, JournalEntry::BudgetReserved(_)) {
            let agents = self.agents_on_path(path);
            self.note_spending(path, agents, entry, outcome.granted.take().map(|granted| *granted));
        }
        Ok(outcome)
    }

    fn apply_below(&mut self, path: &[CallId], entry: &JournalEntry) -> Result<ApplyOutcome, ApplyError> {
        // The agent whose body was given up on may have ended since, and its call with it.
        if matches!(entry, JournalEntry::CallEndedLate(_)) {
            return Ok(ApplyOutcome::default());
        }
        let Some((call, rest)) = path.split_first() else { return self.apply_entry(entry) };
        let no_such = || ApplyError::UnknownCall(call.clone());
        let is_restored = self.is_restored;
        let slot = self.open_turn_mut().and_then(|turn| turn.slot_mut(call)).ok_or_else(no_such)?;
        match (&mut slot.nested_run, entry) {
            (Some(child), _) => child.apply_below(rest, entry),
            (None, JournalEntry::RunStarted(started)) if rest.is_empty() => {
                slot.start_nested_run(started, is_restored)
            }
            (None, _) => Err(no_such()),
        }
    }

    /// Applies an entry to the run.
    ///
    /// # Errors
    ///
    /// Returns [`ApplyError`] if the entry does not fit the state of the run; nothing changes.
    pub fn apply(&mut self, entry: &JournalEntry) -> Result<ApplyOutcome, ApplyError> {
        self.apply_at(&[], entry)
    }

    fn apply_entry(&mut self, entry: &JournalEntry) -> Result<ApplyOutcome, ApplyError> {
        if self.outcome().is_some() && !matches!(entry, JournalEntry::CallEndedLate(_)) {
            return Err(ApplyError::RunEnded);
        }
        // A run that a call has ended, or whose calls were cancelled, does not go on, whoever drives it; its other calls may
        // still settle.
        if continues_run(entry) && self.is_ending() {
            return Err(ApplyError::RunEnded);
        }
        match entry {
            JournalEntry::RunStarted(_) => {
                return Err(ApplyError::UnexpectedEntry {
                    entry: "run_started",
                    reason: "the run has begun",
                });
            }
            JournalEntry::ModelResponded(answered) => {
                self.apply_model_responded(answered)?;
                self.note_answer();
            }
            JournalEntry::ResponseRejected(refused) => {
                self.require_awaiting_model("response_rejected")?;
                self.turn += 1;
                self.usage.add(&refused.usage);
                self.note_answer();
            }
            JournalEntry::ModelRequestFailed(failed) => {
                self.require_awaiting_model("model_request_failed")?;
                self.usage.add(&failed.usage_or_unknown());
                // The next request is filtered anew.
                self.filtered_input = None;
            }
            JournalEntry::ModelInputFiltered(filtered) => {
                self.require_awaiting_model("model_input_filtered")?;
                let input = self.resolve_items("model_input_filtered", &filtered.input)?;
                self.context_sources.add(ContentSources::of_items(&input));
                self.filtered_input = Some(input);
            }
            JournalEntry::HistoryCompacted(compacted) => self.apply_compaction(compacted)?,
            JournalEntry::BudgetReserved(_) => {
                self.require_awaiting_model("budget_reserved")?;
                if matches!(self.budget_stage, BudgetStage::Asking(_) | BudgetStage::Exhausted(_)) {
                    let reason = "the budget is reached";
                    return Err(ApplyError::UnexpectedEntry { entry: "budget_reserved", reason });
                }
            }
            JournalEntry::BudgetReached(reached) => self.apply_budget_reached(reached)?,
            JournalEntry::CallHeld(held) => {
                self.apply_call_held(held)?;
                self.has_call_activity = true;
            }
            JournalEntry::DecisionRecorded(decided) if decided.call.as_str() == BUDGET_CALL => {
                let granted = self.apply_budget_answer(decided)?.map(Box::new);
                return Ok(ApplyOutcome { granted, ..ApplyOutcome::default() });
            }
            JournalEntry::DecisionRecorded(decided) => self.apply_decision(decided)?,
            JournalEntry::DecisionRevoked(revoked) => {
                self.standing_decisions.remove(&(revoked.agent.clone(), revoked.tool.clone()));
            }
            JournalEntry::CallStarted(started) => {
                self.apply_call_started(started)?;
                self.has_call_activity = true;
            }
            JournalEntry::CallBodyEnded(ended) => {
                let slot = self.open_slot_mut(&ended.call)?;
                let ended = slot.end_body(ended);
                ended.map_err(|reason| ApplyError::UnexpectedEntry { entry: "call_body_ended", reason })?;
                self.has_call_activity = true;
            }
            JournalEntry::CallSettled(settled) => return self.apply_call_settled(settled),
            JournalEntry::CallEndedLate(_) => {}
            JournalEntry::HandoffRecorded(handed) => {
                self.apply_handoff(handed)?;
                self.has_call_activity = true;
            }
            JournalEntry::TurnContinued => match &self.phase {
                RunPhase::ResultsPending(_) => self.phase = RunPhase::AwaitingModel,
                _ => {
                    return Err(ApplyError::UnexpectedEntry {
                        entry: "turn_continued",
                        reason: "nothing is judged",
                    });
                }
            },
            JournalEntry::OutputRejected(rejected) => match &self.phase {
                RunPhase::OutputPending(OutputCandidate {
                    source: OutputCandidateSource::Message, ..
                }) => {
                    let agent = self.agent.clone();
                    self.push_item(&agent, rejected.correction.clone(), RunItemKind::Correction);
                    self.take_added_input();
                    self.output_corrections += 1;
                    self.phase = RunPhase::AwaitingModel;
                }
                _ => {
                    return Err(ApplyError::UnexpectedEntry {
                        entry: "output_rejected",
                        reason: "no output of the model is to be accepted",
                    });
                }
            },
            JournalEntry::InputAdded(added) => {
                self.filtered_input = None;
                if matches!(self.phase, RunPhase::AwaitingModel | RunPhase::ResultsPending(_)) {
                    self.context_sources.add(ContentSources::of_items(&added.items));
                    self.history_mut().extend(added.items.iter().cloned());
                } else {
                    self.added_input.extend(added.items.iter().cloned());
                }
            }
            JournalEntry::RunRestored(_) => self.apply_restored(),
            JournalEntry::RunFinished(finished) => {
                if self.open_turn().is_some() {
                    return Err(ApplyError::UnexpectedEntry {
                        entry: "run_finished",
                        reason: "calls are open",
                    });
                }
                if let Some(message) = &finished.message {
                    self.push_item(&self.agent.clone(), message.clone(), RunItemKind::ModelOutput);
                }
                self.end_run(RunEnd::Finished(finished.output.clone()));
            }
            JournalEntry::RunFailed(failed) => {
                match failed.failure {
                    RunFailure::InputGuardrailTripped { .. }
                    | RunFailure::OutputGuardrailTripped { .. }
                    | RunFailure::GuardrailFailed { .. } => {
                        self.withhold_outputs();
                        self.drop_unused_response();
                    }
                    _ => {}
                }
                self.close_interrupted_turn();
                self.end_run(RunEnd::Failed(failed.failure.clone()));
            }
            JournalEntry::RunCancelled(_) => {
                self.drop_unused_response();
                self.close_interrupted_turn();
                self.end_run(RunEnd::Cancelled);
            }
        }
        Ok(ApplyOutcome::default())
    }

    pub(super) fn require_awaiting_model(&self, entry: &'static str) -> Result<(), ApplyError> {
        match self.phase {
            RunPhase::AwaitingModel => Ok(()),
            _ => Err(ApplyError::UnexpectedEntry { entry, reason: "the model was not asked" }),
        }
    }

    fn apply_model_responded(&mut self, answered: &ModelResponded) -> Result<(), ApplyError> {
        self.require_awaiting_model("model_responded")?;
        let ids = answered.items.iter().filter_map(|item| match &**item {
            Item::Call(call) => Some(&call.id),
            _ => None,
        });
        let fits = ids.eq(answered.calls.iter().map(|planned| &planned.call));
        let out_of_place = |why| Err(ApplyError::UnexpectedEntry { entry: "model_responded", reason: why });
        if !fits {
            return out_of_place("its plan is not of its calls");
        }
        if answered.agent != self.agent {
            return out_of_place("another agent is current");
        }
        let seen = self.call_digests.len();
        if let Err(why) = self.register_calls(&answered.calls) {
            self.call_digests.truncate(seen);
            return out_of_place(why);
        }
        self.turn += 1;
        self.last_filtered_input = self.filtered_input.take();
        let (omitted_history, omitted_items) = self.omitted_lens();
        self.lens_before_response = (omitted_history + self.history.len(), omitted_items + self.items.len());
        if let Some(omitted) = &mut self.omitted {
            omitted.has_filtered_input = false;
        }
        self.usage.add(&answered.usage);
        // A run that continues a stored conversation goes on from the last response that has an id.
        if answered.response_id.is_some() || self.previous_response_id.is_none() {
            self.last_response_id.clone_from(&answered.response_id);
        }
        let mut planned = answered.calls.iter();
        for item in &answered.items {
            let part = match &**item {
                Item::Call(_) => match planned.next().map(|planned| &planned.disposition) {
                    Some(CallDisposition::Handoff { .. } | CallDisposition::SurplusHandoff) => {
                        RunItemKind::HandoffCall
                    }
                    _ => RunItemKind::ToolCall,
                },
                _ => RunItemKind::ModelOutput,
            };
            self.push_item(&answered.agent, item.clone(), part);
        }
        if uses_tools(answered)
            && let Err(place) = self.agents_with_tool_use.binary_search(&answered.agent)
        {
            self.agents_with_tool_use.reserve_exact(1);
            self.agents_with_tool_use.insert(place, answered.agent.clone());
        }
        if answered.calls.is_empty() {
            self.phase = output_candidate(answered).map_or(RunPhase::AwaitingModel, RunPhase::OutputPending);
            return Ok(());
        }
        self.count_repeats(answered);
        self.context_sources.add(answered.context_sources);
        let calls = answered.items.iter().filter(|item| matches!(***item, Item::Call(_)));
        let slots = answered.calls.iter().cloned().zip(calls.cloned());
        let mut turn = OpenTurn::new(
            answered.agent.clone(),
            answered.tool_use_policy.clone(),
            self.context_sources,
            answered.calls.len(),
            slots,
        );
        for slot in &mut turn.slots {
            let standing = self.standing_decisions.get(&(answered.agent.clone(), slot.planned.key.clone()));
            if let Some(verdict) = standing {
                slot.apply_standing_decision(verdict);
            }
        }
        if self.is_restored {
            turn.doubt_repeated_calls();
        }
        let only_handoffs =
            turn.slots.iter().all(|slot| matches!(slot.planned.disposition, CallDisposition::Handoff { .. }));
        self.phase = if only_handoffs { RunPhase::HandoffPending(turn) } else { RunPhase::CallsOpen(turn) };
        Ok(())
    }

    /// Registers the calls of a plan. Fails if the plan would leave a call without exactly one output.
    fn register_calls(&mut self, calls: &[PlannedCall]) -> Result<(), &'static str> {
        let first = self.call_digests.len();
        let mut handoffs = 0;
        self.call_digests.reserve(calls.len());
        for planned in calls {
            let comes_before =
                |after| self.call_digests.find_index(after).is_some_and(|place| place >= first);
            if planned.predecessor.as_ref().is_some_and(|after| !comes_before(after)) {
                return Err("a call is to follow one that does not come before it");
            }
            if self.call_digests.contains(&planned.call) {
                return Err("a call id stands for two calls");
            }
            self.call_digests.insert(planned.call.clone(), planned.digest);
            handoffs += u32::from(matches!(planned.disposition, CallDisposition::Handoff { .. }));
        }
        if handoffs > 1 { Err("control can pass to one agent only") } else { Ok(()) }
    }

    fn count_repeats(&mut self, answered: &ModelResponded) {
        let same = self.repeat_counter.last_calls.len() == answered.calls.len()
            && self
                .repeat_counter
                .last_calls
                .iter()
                .zip(&answered.calls)
                .all(|(last, now)| *last == now.digest);
        if same {
            self.repeat_counter.count += 1;
        } else {
            self.repeat_counter.last_calls.clear();
            self.repeat_counter.last_calls.reserve_exact(answered.calls.len());
            self.repeat_counter.last_calls.extend(answered.calls.iter().map(|call| call.digest));
            self.repeat_counter.count = 1;
        }
    }

    pub(super) fn open_slot_mut(&mut self, call: &CallId) -> Result<&mut CallSlot, ApplyError> {
        let slot = self.open_turn_mut().and_then(|turn| turn.slot_mut(call));
        let slot = slot.ok_or_else(|| ApplyError::UnknownCall(call.clone()))?;
        if slot.is_settled() { Err(ApplyError::AlreadySettled(call.clone())) } else { Ok(slot) }
    }

    fn apply_call_started(&mut self, started: &CallStarted) -> Result<(), ApplyError> {
        let may_not = |why| Err(ApplyError::StartNotAllowed { call: started.call.clone(), reason: why });
        let is_free =
            self.open_turn().and_then(|turn| Some(turn.is_predecessor_settled(turn.slot(&started.call)?)));
        let slot = self.open_slot_mut(&started.call)?;
        if is_free == Some(false) {
            return may_not("the call that it follows has not settled");
        }
        let CallDisposition::Execute { approval_policy: gate, effect, .. } = slot.planned.disposition else {
            return may_not("it has no body");
        };
        if effect != ToolEffect::Idempotent && started.receipt_digest.is_some() {
            return may_not("its tool leaves no receipts");
        }
        let key = started.call_key();
        if slot.key.as_ref().is_some_and(|recorded| **recorded != key) && !slot.can_renew_key(effect) {
            return may_not("an earlier attempt had another idempotency key");
        }
        if slot.unrecorded_start == Some(UnrecordedStart::OtherCall) {
            return may_not("it may repeat a call that was made after the backup");
        }
        let is_unapproved = slot.unrecorded_start.is_some()
            && matches!(gate, ApprovalPolicy::Required | ApprovalPolicy::RequiredEachTime);
        let (attempt, edited) = match &slot.state {
            CallSlotState::Running { .. } if is_unapproved => return may_not("it needs a decision"),
            CallSlotState::Open => match gate {
                ApprovalPolicy::NotRequired | ApprovalPolicy::ByRule | ApprovalPolicy::ByRuleEachTime => {
                    (1, None)
                }
                ApprovalPolicy::Required | ApprovalPolicy::RequiredEachTime => {
                    return may_not("it needs a decision");
                }
            },
            CallSlotState::Approved { edited_arguments: edited, attempt } => (attempt + 1, edited.clone()),
            CallSlotState::Running { attempt, edited_arguments: edited } => (attempt + 1, edited.clone()),
            CallSlotState::Held { .. } => return may_not("it waits for a decision"),
            CallSlotState::OutputKnown { .. } => return may_not("it was decided that it does not run"),
            CallSlotState::BodyEnded { .. } => return may_not("its body has ended"),
            CallSlotState::Settled { .. } => return may_not("it has its output"),
        };
        if attempt != started.attempt {
            return may_not("another attempt is due");
        }
        slot.state = CallSlotState::Running { attempt, edited_arguments: edited };
        slot.held_attempt = None;
        slot.key = Some(Box::new(key));
        slot.has_inherited_key = started.is_inherited;
        slot.unrecorded_start = None;
        Ok(())
    }

    fn apply_call_settled(&mut self, settled: &CallSettled) -> Result<ApplyOutcome, ApplyError> {
        let is_handoff_due = matches!(self.phase, RunPhase::HandoffPending(_));
        let slot = self.open_slot_mut(&settled.call)?;
        let mut applied = ApplyOutcome::default();
        if let Some(why) = slot.settle_refusal(&settled.status) {
            return Err(ApplyError::UnexpectedEntry { entry: "call_settled", reason: why });
        }
        if !is_handoff_due && matches!(slot.planned.disposition, CallDisposition::Handoff { .. }) {
            return Err(ApplyError::UnexpectedEntry {
                entry: "call_settled",
                reason: "the handoff is not due",
            });
        }
        // The digest is that of the arguments with which the body ran.
        if let (
            CallSlotState::Running { edited_arguments, .. }
            | CallSlotState::BodyEnded { edited_arguments, .. },
            CallStatus::Succeeded,
            Some(key),
        ) = (&slot.state, &settled.status, &slot.key)
            && let Some(digest) = key.receipt_digest
        {
            let output = match edited_arguments {
                Some(_) => model_text::without_edit_note(&settled.output),
                None => settled.output.clone(),
            };
            // The journal does not have the secrets of the output, and the receipt says so.
            let output = match settled.is_output_redacted {
                true => model_text::with_secrets_lost(output),
                false => output,
            };
            applied.receipt = Some(NewReceipt { digest, output, generation: key.generation });
        }
        let may_have_taken_effect = slot.may_have_taken_effect();
        self.has_call_activity = true;
        // A call that may have taken effect stays in the history, whatever ended it or the run.
        let has_no_result = settled.run_failure.is_some()
            || matches!(
                settled.status,
                CallStatus::Cancelled | CallStatus::UnknownTool | CallStatus::SurplusHandoff
            );
        if has_no_result && !may_have_taken_effect {
            self.ineffective_calls.insert(settled.call.clone());
        }
        if let Some(failure) = &settled.run_failure {
            self.record_ending_call(&settled.call, failure);
        } else if settled.status == CallStatus::Cancelled {
            self.has_cancelled_call = true;
        }
        if is_handoff_due {
            self.decline_handoff(settled);
        } else if let RunPhase::CallsOpen(turn) = &mut self.phase
            && turn.settle_call(&settled.call, settled.status.clone(), settled.output.clone())
        {
            self.close_settled_turn();
        }
        Ok(applied)
    }

    /// Answers the handoff of a turn instead of passing control, so that the turn closes as one without a handoff does.
    fn decline_handoff(&mut self, settled: &CallSettled) {
        let phase = std::mem::replace(&mut self.phase, RunPhase::AwaitingModel);
        let RunPhase::HandoffPending(mut turn) = phase else { return };
        if let Some(slot) = turn.slot_mut(&settled.call) {
            slot.settle(settled.status.clone(), settled.output.clone());
        }
        self.phase = RunPhase::CallsOpen(turn);
        self.close_settled_turn();
    }

    /// Stores the failure that ends the run. Of several, the first in the model's order counts.
    fn record_ending_call(&mut self, call: &CallId, failure: &RunFailure) {
        let Some(place) = self.open_turn().and_then(|turn| turn.position_of(call)) else { return };
        if self.ended_by_call.as_ref().is_none_or(|(first, _)| place < *first) {
            self.ended_by_call = Some((place, Box::new(failure.clone())));
        }
    }

    /// Closes the turn after all calls except a handoff have settled.
    fn close_settled_turn(&mut self) {
        let RunPhase::CallsOpen(turn) = std::mem::replace(&mut self.phase, RunPhase::AwaitingModel) else {
            return;
        };
        if turn.handoff_slot().is_some() {
            self.phase = RunPhase::HandoffPending(turn);
            return;
        }
        self.commit_outputs(&turn);
        self.phase = match &turn.tool_use_policy {
            ToolUsePolicyKind::RunModelAgain => RunPhase::AwaitingModel,
            ToolUsePolicyKind::StopOnFirstTool => {
                final_call_result(&turn, |_| true).map_or(RunPhase::AwaitingModel, RunPhase::OutputPending)
            }
            ToolUsePolicyKind::StopAtTools(names) => {
                let listed = |name: &str| names.iter().any(|listed| listed == name);
                final_call_result(&turn, listed).map_or(RunPhase::AwaitingModel, RunPhase::OutputPending)
            }
            ToolUsePolicyKind::CustomFunction => RunPhase::ResultsPending(turn),
        };
    }

    /// Returns the lengths of the loaded parts of the history and of the run items before the last response.
    fn loaded_lens_before_response(&self) -> (usize, usize) {
        let (omitted_history, omitted_items) = self.omitted_lens();
        let (history_len, item_count) = self.lens_before_response;
        (history_len.saturating_sub(omitted_history), item_count.saturating_sub(omitted_items))
    }

    /// Appends the turn's outputs to the history in the model's order.
    fn commit_outputs(&mut self, turn: &OpenTurn) {
        for produced in turn.output_items() {
            self.context_sources.add(ContentSources::of_item(&produced.item));
            self.history_mut().push(produced.item.clone());
            self.items.push(produced);
        }
        self.take_added_input();
    }

    fn apply_handoff(&mut self, handed: &HandoffRecorded) -> Result<(), ApplyError> {
        let RunPhase::HandoffPending(turn) = &self.phase else {
            return Err(ApplyError::UnexpectedEntry {
                entry: "handoff_recorded",
                reason: "no handoff is due",
            });
        };
        match turn.handoff_slot() {
            Some((slot, to)) if slot.planned.call == handed.call && *to == handed.to => {}
            _ => {
                return Err(ApplyError::UnexpectedEntry {
                    entry: "handoff_recorded",
                    reason: "another handoff is due",
                });
            }
        }
        let RunPhase::HandoffPending(turn) = std::mem::replace(&mut self.phase, RunPhase::AwaitingModel)
        else {
            return Ok(());
        };
        let handoff = Arc::new(Item::Handoff(HandoffOutput {
            call: handed.call.clone(),
            from: turn.agent.clone(),
            to: handed.to.clone(),
        }));
        for slot in &turn.slots {
            if let CallSlotState::Settled { output, .. } = &slot.state {
                self.context_sources.add(ContentSources::of_item(output));
                self.history_mut().push(output.clone());
                self.items.push(RunItem {
                    agent: turn.agent.clone(),
                    item: output.clone(),
                    kind: RunItemKind::CallOutput,
                });
            } else if slot.planned.call == handed.call {
                self.history_mut().push(handoff.clone());
            }
        }
        self.items.push(RunItem { agent: turn.agent, item: handoff, kind: RunItemKind::HandoffOutput });
        if let Some(history) = &handed.filtered_history {
            self.replace_history(history.clone());
            self.context_sources.add(ContentSources::of_items(history));
            // The provider holds another conversation than the one that goes on.
            self.last_response_id = None;
        }
        self.take_added_input();
        self.agent = handed.to.clone();
        Ok(())
    }

    /// Settles every open call as cancelled, so that the history stays valid when the run ends inside a turn. Calls that were
    /// executed, or may have been, stay in it.
    fn close_interrupted_turn(&mut self) {
        let phase = std::mem::replace(&mut self.phase, RunPhase::AwaitingModel);
        let (RunPhase::CallsOpen(mut turn) | RunPhase::HandoffPending(mut turn)) = phase else { return };
        for slot in turn.slots.iter_mut().filter(|slot| !slot.is_settled()) {
            let is_executed = matches!(
                slot.state,
                CallSlotState::BodyEnded { .. }
                    | CallSlotState::OutputKnown { status: CallStatus::Reconciled, .. }
            );
            if is_executed {
                let CallResult { status, output, .. } = unchecked_result();
                slot.settle(status, output);
                continue;
            }
            if !slot.may_have_taken_effect() {
                self.ineffective_calls.insert(slot.planned.call.clone());
            }
            let output = slot.stopped_output();
            slot.settle(CallStatus::Cancelled, output);
        }
        self.commit_outputs(&turn);
    }

    /// Ends the run. Added input that no turn has consumed is appended to the history.
    fn end_run(&mut self, end: RunEnd) {
        self.take_added_input();
        self.phase = RunPhase::Ended(end);
    }

    /// Removes the last response if it had no effect: its message was not delivered, and none of its calls was
    /// started, decided or held.
    fn drop_unused_response(&mut self) {
        let is_untouched = match &self.phase {
            RunPhase::CallsOpen(turn) | RunPhase::HandoffPending(turn) => {
                turn.slots.iter().all(|slot| matches!(slot.state, CallSlotState::Open))
            }
            RunPhase::OutputPending(candidate) => !matches!(candidate.source, OutputCandidateSource::Tool(_)),
            RunPhase::AwaitingModel | RunPhase::ResultsPending(_) | RunPhase::Ended(_) => false,
        };
        if is_untouched {
            let (history_len, item_count) = self.loaded_lens_before_response();
            self.history_mut().truncate(history_len);
            self.items.truncate(item_count);
            self.phase = RunPhase::AwaitingModel;
        }
    }

    /// Replaces the outputs of the turn after a guardrail blocked a tool output that was to be the run's
    /// output. The turn's other outputs are replaced too, because they may contain the same data.
    fn withhold_outputs(&mut self) {
        let RunPhase::OutputPending(OutputCandidate { source: OutputCandidateSource::Tool(_), .. }) =
            &self.phase
        else {
            return;
        };
        let withheld = |item: &Arc<Item>| match &**item {
            Item::Output(output) => Arc::new(Item::Output(CallOutput {
                content: model_text::OUTPUT_WITHHELD.into(),
                status: OutputStatus::Failed,
                ..output.clone()
            })),
            _ => item.clone(),
        };
        let (history_len, item_count) = self.loaded_lens_before_response();
        for item in &mut self.history_mut()[history_len..] {
            *item = withheld(item);
        }
        for produced in &mut self.items[item_count..] {
            produced.item = withheld(&produced.item);
        }
        self.withheld_from = Some(self.lens_before_response.1);
    }

    /// Replaces the history by its compacted form.
    fn apply_compaction(&mut self, compacted: &HistoryCompacted) -> Result<(), ApplyError> {
        const ENTRY: &str = "history_compacted";
        self.require_awaiting_model(ENTRY)?;
        let refused = |reason| ApplyError::UnexpectedEntry { entry: ENTRY, reason };
        if compacted.agent != self.agent {
            return Err(refused("another agent is current"));
        }
        if self.omitted.is_some() {
            return Err(refused(PAST_LEFT_OUT));
        }
        let history = self.resolve_items(ENTRY, &compacted.history)?;
        if !has_valid_pairs(&history) {
            return Err(refused("it separates a call from its output"));
        }
        if self.turn > 0 {
            // The places of the last request's items are not those of the new history.
            self.last_filtered_input = Some(self.last_model_input().to_vec());
        }
        self.context_sources.add(ContentSources::of_items(&history));
        self.replace_history(history);
        self.filtered_input = None;
        self.usage.add(&compacted.summary_usage.unwrap_or_default());
        // The provider holds another conversation than the one that goes on.
        self.last_response_id = None;
        Ok(())
    }

    /// Returns the items that an entry describes by the history.
    fn resolve_items(
        &self,
        entry: &'static str,
        parts: &[FilteredInput],
    ) -> Result<Vec<Arc<Item>>, ApplyError> {
        let mut items = Vec::new();
        for part in parts {
            match part {
                FilteredInput::History { .. } if self.omitted.is_some() => {
                    return Err(ApplyError::UnexpectedEntry { entry, reason: PAST_LEFT_OUT });
                }
                FilteredInput::History { from, to } => match self.history.get(*from..*to) {
                    Some(kept) => items.extend_from_slice(kept),
                    None => {
                        let reason = "it names items that the history lacks";
                        return Err(ApplyError::UnexpectedEntry { entry, reason });
                    }
                },
                FilteredInput::Item(item) => items.push(item.clone()),
            }
        }
        Ok(items)
    }

    fn push_item(&mut self, agent: &AgentName, item: Arc<Item>, part: RunItemKind) {
        // Tools that the provider ran have their results in the response, before the calls that follow from them.
        self.context_sources.add(ContentSources::of_item(&item));
        self.history_mut().push(item.clone());
        self.items.push(RunItem { agent: agent.clone(), item, kind: part });
    }
}

/// Returns true if the entry leads to another turn or to an output.
fn continues_run(entry: &JournalEntry) -> bool {
    match entry {
        JournalEntry::ModelResponded(_)
        | JournalEntry::ResponseRejected(_)
        | JournalEntry::ModelRequestFailed(_)
        | JournalEntry::ModelInputFiltered(_)
        | JournalEntry::HistoryCompacted(_)
        | JournalEntry::BudgetReserved(_)
        | JournalEntry::BudgetReached(_)
        | JournalEntry::HandoffRecorded(_)
        | JournalEntry::TurnContinued
        | JournalEntry::OutputRejected(_)
        | JournalEntry::RunFinished(_) => true,
        JournalEntry::RunStarted(_)
        | JournalEntry::CallHeld(_)
        | JournalEntry::DecisionRecorded(_)
        | JournalEntry::DecisionRevoked(_)
        | JournalEntry::CallStarted(_)
        | JournalEntry::CallBodyEnded(_)
        | JournalEntry::CallSettled(_)
        | JournalEntry::CallEndedLate(_)
        | JournalEntry::InputAdded(_)
        | JournalEntry::RunRestored(_)
        | JournalEntry::RunFailed(_)
        | JournalEntry::RunCancelled(_) => false,
    }
}

/// Returns true if a response used a tool: it has calls, or the provider ran one of its own tools. A listing of a
/// server's tools is not a use of them.
fn uses_tools(response: &ModelResponded) -> bool {
    let is_hosted_use =
        |item: &Arc<Item>| matches!(&**item, Item::HostedTool(item) if item.kind != "mcp_list_tools");
    !response.calls.is_empty() || response.items.iter().any(is_hosted_use)
}

/// Returns the final output of a response without calls; `None` if the response contains only hosted tools or
/// duplicate calls.
fn output_candidate(answered: &ModelResponded) -> Option<OutputCandidate> {
    let candidate = |output, source| Some(OutputCandidate { agent: answered.agent.clone(), output, source });
    let last = answered.items.iter().rev().find_map(|item| match &**item {
        Item::Message(message) if message.role == Role::Assistant => Some(message),
        _ => None,
    });
    match last {
        Some(message) => match message.refusal() {
            Some(words) => candidate(words.to_owned(), OutputCandidateSource::Refusal),
            None => candidate(message.text(), OutputCandidateSource::Message),
        },
        // Where nothing was said, repeated calls are still to be gone on from, with the outputs that they have.
        None if answered.duplicate_calls > 0 => None,
        None if answered.items.iter().any(|item| matches!(**item, Item::HostedTool(_))) => None,
        None => candidate(String::new(), OutputCandidateSource::Message),
    }
}

fn final_call_result(turn: &OpenTurn, listed: impl Fn(&str) -> bool) -> Option<OutputCandidate> {
    let result = turn
        .settled_calls()
        .into_iter()
        .find(|result| listed(result.tool.name()) || listed(&result.tool.to_string()))?;
    Some(OutputCandidate {
        agent: turn.agent.clone(),
        output: result.output.text().into_owned(),
        source: OutputCandidateSource::Tool(result.call),
    })
}

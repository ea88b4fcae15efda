//! The open calls of a turn, each from its plan to its output.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::{ApplyError, ApplyOutcome, Run, RunItem, RunItemKind, SettledCall, model_text};
use crate::call_map::CallMap;
use crate::canonical::Digest;
use crate::decision::{
    AnsweredQuestion, CorrectableCall, Decision, DecisionScope, HoldReason, PendingCall, UntakenHold,
};
use crate::id::{AgentName, CallId, CallPath, Timestamp};
use crate::idempotency::CallKey;
use crate::item::{CallOutput, Item, OutputContent, OutputStatus, ToolCall};
use crate::journal::{CallBodyEnded, CallStatus, RunStarted, ToolUsePolicyKind};
use crate::plan::{BodyKind, CallDisposition, PlannedCall};
use crate::provenance::{ContentSource, ContentSources};
use crate::tool::{ApprovalPolicy, ToolEffect};

/// The calls of one model response.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OpenTurn {
    pub(super) agent: AgentName,
    pub(super) slots: Vec<CallSlot>,
    pub(super) tool_use_policy: ToolUsePolicyKind,
    slot_index: SlotIndex,
    unsettled_count: usize,
}

/// An index of slots by call. It is derived from the slots, so all indexes compare equal.
#[derive(Debug, Default)]
struct SlotIndex {
    /// Index that was found last; drivers mostly access calls in order.
    last_found: AtomicUsize,
    /// Map of all calls, built on the first access out of order.
    by_call: OnceLock<Box<CallMap<usize>>>,
}

impl Clone for SlotIndex {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for SlotIndex {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl SlotIndex {
    fn position_of(&self, call: &CallId, slots: &[CallSlot]) -> Option<usize> {
        let is_at = |at: usize| slots.get(at).is_some_and(|slot| slot.planned.call == *call);
        let last = self.last_found.load(Ordering::Relaxed);
        let near = [last, last + 1, 0].into_iter().find(|at| is_at(*at));
        let found = near.or_else(|| {
            let all = self.by_call.get_or_init(|| {
                let mut all = CallMap::default();
                all.reserve(slots.len());
                for (at, slot) in slots.iter().enumerate() {
                    all.insert(slot.planned.call.clone(), at);
                }
                Box::new(all)
            });
            all.get(call).copied()
        });
        if let Some(found) = found {
            self.last_found.store(found, Ordering::Relaxed);
        }
        found
    }
}

/// One call of the turn.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CallSlot {
    pub(super) planned: PlannedCall,
    pub(super) item: Arc<Item>,
    pub(super) state: CallSlotState,
    /// The decision about the call.
    pub(super) decision: Option<Box<SlotDecision>>,
    /// Number of the hold that a person may have seen, until the body starts after it.
    pub(super) held_attempt: Option<u32>,
    /// Highest revision among the posted decisions about this hold that were recorded.
    pub(super) posted_revision: u32,
    /// True if the decision is a standing one for the tool. A call whose rule is evaluated every time can be
    /// covered by a standing approval and still be undecided.
    pub(super) has_standing_decision: bool,
    pub(super) nested_run: Option<Box<Run>>,
    /// Sources of the text that the model could read when it proposed the call.
    pub(super) context_sources: ContentSources,
    /// Sources of the text that an agent inside the call could read, once its run has ended.
    pub(super) nested_sources: ContentSources,
    /// Identity of the call, recorded with its start.
    pub(super) key: Option<Box<CallKey>>,
    /// True if the run that this one was forked from started the call, and this one has not.
    pub(super) has_inherited_key: bool,
    /// Questions that the body asked, with their answers.
    pub(super) answered_questions: Vec<AnsweredQuestion>,
    /// The start that the journal lacks, if the run comes from a backup and nobody has approved the call.
    pub(super) unrecorded_start: Option<UnrecordedStart>,
}

/// A start that may have happened between a backup and the loss of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnrecordedStart {
    /// The call itself may have started.
    SameCall,
    /// The run may have made the same call under another id.
    OtherCall,
}

/// A decision about a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SlotDecision {
    pub(super) decision: Decision,
    pub(super) scope: DecisionScope,
    pub(super) decided_by: Option<String>,
    /// State before the decision, which a correction returns to.
    pub(super) state_before: CallSlotState,
}

/// The state of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CallSlotState {
    /// The call is planned.
    Open,
    /// The call is held for a person.
    Held {
        reason: Box<HoldReason>,
        expires_at: Option<Timestamp>,
        last_driver_seen: Option<Timestamp>,
        attempt: u32,
        edited_arguments: Option<Arc<str>>,
    },
    /// The call is approved.
    Approved { edited_arguments: Option<Arc<str>>, attempt: u32 },
    /// The output was determined by a decision; the body does not run.
    OutputKnown { status: CallStatus, output: OutputContent },
    /// The body was started.
    Running { attempt: u32, edited_arguments: Option<Arc<str>> },
    /// The body ended, and its output is withheld.
    BodyEnded { status: CallStatus, output_digest: Digest, edited_arguments: Option<Arc<str>> },
    /// The call has settled.
    Settled { status: CallStatus, output: Arc<Item> },
}

impl OpenTurn {
    /// Creates the turn of a response with calls. `calls` yields each planned call with its item, and `context_sources`
    /// has the sources of the text that the model could read.
    pub(super) fn new(
        agent: AgentName,
        after: ToolUsePolicyKind,
        context_sources: ContentSources,
        count: usize,
        calls: impl Iterator<Item = (PlannedCall, Arc<Item>)>,
    ) -> Self {
        let mut slots = Vec::with_capacity(count);
        slots.extend(calls.map(|(planned, item)| CallSlot {
            planned,
            item,
            state: CallSlotState::Open,
            decision: None,
            held_attempt: None,
            posted_revision: 0,
            has_standing_decision: false,
            nested_run: None,
            context_sources,
            nested_sources: ContentSources::NONE,
            key: None,
            has_inherited_key: false,
            answered_questions: Vec::new(),
            unrecorded_start: None,
        }));
        let unsettled = slots
            .iter()
            .filter(|slot: &&CallSlot| !matches!(slot.planned.disposition, CallDisposition::Handoff { .. }))
            .count();
        Self {
            agent,
            slots,
            tool_use_policy: after,
            slot_index: SlotIndex::default(),
            unsettled_count: unsettled,
        }
    }

    pub(super) fn position_of(&self, call: &CallId) -> Option<usize> {
        self.slot_index.position_of(call, &self.slots)
    }

    pub(super) fn slot(&self, call: &CallId) -> Option<&CallSlot> {
        self.slots.get(self.position_of(call)?)
    }

    pub(super) fn slot_mut(&mut self, call: &CallId) -> Option<&mut CallSlot> {
        let at = self.slot_index.position_of(call, &self.slots)?;
        self.slots.get_mut(at)
    }

    /// Settles a call. Returns true if all calls except a handoff have settled.
    pub(super) fn settle_call(&mut self, call: &CallId, how: CallStatus, output: OutputContent) -> bool {
        if let Some(slot) = self.slot_mut(call) {
            slot.settle(how, output);
            self.unsettled_count -= 1;
        }
        self.unsettled_count == 0
    }

    /// Returns the slot and the target of the turn's open handoff, if it has one.
    pub(super) fn handoff_slot(&self) -> Option<(&CallSlot, &AgentName)> {
        self.slots.iter().find_map(|slot| match &slot.planned.disposition {
            CallDisposition::Handoff { to } if !slot.is_settled() => Some((slot, to)),
            _ => None,
        })
    }

    /// Returns the outputs so far, in the model's order.
    pub(super) fn output_items(&self) -> Vec<RunItem> {
        self.slots
            .iter()
            .filter_map(|slot| match &slot.state {
                CallSlotState::Settled { output, .. } => Some(RunItem {
                    agent: self.agent.clone(),
                    item: output.clone(),
                    kind: RunItemKind::CallOutput,
                }),
                _ => None,
            })
            .collect()
    }

    /// Returns the settled calls that named an existing tool, in the model's order.
    pub(super) fn settled_calls(&self) -> Vec<SettledCall> {
        self.slots
            .iter()
            .filter_map(|slot| {
                let CallSlotState::Settled { status: how, output } = &slot.state else { return None };
                let Item::Output(output) = &**output else { return None };
                match slot.planned.disposition {
                    CallDisposition::Execute { .. } | CallDisposition::InvalidArguments { .. } => {
                        Some(SettledCall {
                            call: slot.planned.call.clone(),
                            tool: slot.planned.key.clone(),
                            status: how.clone(),
                            output: output.content.clone(),
                        })
                    }
                    CallDisposition::UnknownTool { .. }
                    | CallDisposition::Handoff { .. }
                    | CallDisposition::SurplusHandoff => None,
                }
            })
            .collect()
    }

    /// Returns true if a driver can work on the call now: it is not idle, and the call that it follows has settled.
    pub(super) fn can_advance(&self, slot: &CallSlot) -> bool {
        !slot.is_idle() && self.is_predecessor_settled(slot)
    }

    /// Returns true if any call can make progress without a decision.
    pub(super) fn can_any_advance(&self) -> bool {
        self.slots.iter().any(|slot| self.can_advance(slot))
    }

    /// Returns true if `slot` has no predecessor or its predecessor has settled.
    pub(super) fn is_predecessor_settled(&self, slot: &CallSlot) -> bool {
        slot.planned.predecessor.as_ref().and_then(|call| self.slot(call)).is_none_or(CallSlot::is_settled)
    }
}

impl CallSlot {
    pub(super) fn call(&self) -> &ToolCall {
        match &*self.item {
            Item::Call(call) => call,
            // `Run::apply` makes slots from call items alone.
            _ => unreachable!("a slot holds a call"),
        }
    }

    /// Returns the kind of the call's body, if it has one.
    pub(super) fn body_kind(&self) -> Option<BodyKind> {
        match self.planned.disposition {
            CallDisposition::Execute { body, .. } => Some(body),
            CallDisposition::InvalidArguments { .. }
            | CallDisposition::UnknownTool { .. }
            | CallDisposition::Handoff { .. }
            | CallDisposition::SurplusHandoff => None,
        }
    }

    /// Returns true if nothing can be done for the call itself now: it has settled, waits for a person, or is a handoff,
    /// which is an action of the run.
    pub(super) fn is_idle(&self) -> bool {
        self.is_settled()
            || self.is_waiting()
            || matches!(self.planned.disposition, CallDisposition::Handoff { .. })
    }

    pub(super) fn is_settled(&self) -> bool {
        matches!(self.state, CallSlotState::Settled { .. })
    }

    /// Returns true if the body was started and its end is unknown.
    pub(super) fn has_started(&self) -> bool {
        match &self.state {
            CallSlotState::Running { .. } | CallSlotState::BodyEnded { .. } => true,
            CallSlotState::Held { attempt, .. } | CallSlotState::Approved { attempt, .. } => *attempt > 0,
            CallSlotState::Open | CallSlotState::OutputKnown { .. } | CallSlotState::Settled { .. } => false,
        }
    }

    /// Returns the identity that the next attempt has; `None` if it gets a new one.
    ///
    /// A fork keeps the key of the run that it comes from as long as nobody knows whether the body that was started there
    /// took effect. Once that is known, or once the body has asked a question, the next attempt is an effect of the fork.
    pub(super) fn next_key(&self, is_known_not_executed: bool) -> Option<&CallKey> {
        let is_decided = matches!(self.state, CallSlotState::Approved { .. });
        let is_renewed = self.has_inherited_key && (is_decided || is_known_not_executed);
        self.key.as_deref().filter(|_| !is_renewed)
    }

    /// Returns true if the next attempt may have another identity than the recorded one.
    pub(super) fn can_renew_key(&self, effect: ToolEffect) -> bool {
        // What a reconcile function found out is not in the journal; it is asked about such calls only.
        let may_be_reconciled =
            matches!(self.state, CallSlotState::Running { .. }) && effect == ToolEffect::Once;
        self.next_key(may_be_reconciled).is_none()
    }

    /// Returns true if the body waits for an answer.
    pub(super) fn is_asking_question(&self) -> bool {
        matches!(&self.state, CallSlotState::Held { reason, .. } if matches!(**reason, HoldReason::Question(_)))
    }

    /// Returns true if the call, or an agent nested in it, is held for a person.
    pub(super) fn is_waiting(&self) -> bool {
        match &self.state {
            CallSlotState::Held { .. } => true,
            CallSlotState::Running { .. } => self
                .nested_run
                .as_ref()
                .is_some_and(|child| matches!(child.next(), super::RunAction::Pause(_))),
            CallSlotState::Open
            | CallSlotState::Approved { .. }
            | CallSlotState::OutputKnown { .. }
            | CallSlotState::BodyEnded { .. }
            | CallSlotState::Settled { .. } => false,
        }
    }

    /// Returns true if a body of the call may have taken effect, and nobody has said that it did not: one with effects was
    /// started, or an agent that has worked on calls.
    pub(super) fn may_have_taken_effect(&self) -> bool {
        let CallDisposition::Execute { body, effect, .. } = self.planned.disposition else { return false };
        let has_started = match &self.state {
            CallSlotState::Running { .. } => true,
            CallSlotState::BodyEnded { .. } => return true,
            CallSlotState::Held { reason, .. } => **reason == HoldReason::InDoubt,
            CallSlotState::OutputKnown { status, .. } => {
                matches!(status, CallStatus::Reconciled | CallStatus::OutcomeUnknown)
            }
            // Of an approved call that was started, a person said that it did not happen, or its body has only asked.
            CallSlotState::Open | CallSlotState::Approved { .. } | CallSlotState::Settled { .. } => false,
        };
        has_started
            && match body {
                BodyKind::Function => effect != ToolEffect::Pure,
                BodyKind::Agent => self.nested_run.as_ref().is_some_and(|nested| nested.has_call_activity()),
            }
    }

    /// Returns the output of the call if it is stopped now.
    pub(super) fn stopped_output(&self) -> OutputContent {
        match self.may_have_taken_effect() {
            true => model_text::EFFECT_UNKNOWN.into(),
            false => model_text::CANCELLED.into(),
        }
    }

    pub(super) fn settle(&mut self, how: CallStatus, output: OutputContent) {
        let status = if how.is_success() { OutputStatus::Ok } else { OutputStatus::Failed };
        let sources = self.output_sources(&how);
        let call = self.planned.call.clone();
        let output = Item::Output(CallOutput { call, content: output, status, sources });
        self.state = CallSlotState::Settled { status: how, output: Arc::new(output) };
        self.nested_run = None;
    }

    /// Drops the nested run, and keeps the sources of the text that it could read.
    fn close_nested_run(&mut self) {
        if let Some(nested) = self.nested_run.take() {
            self.nested_sources.add(nested.context_sources);
        }
    }

    /// Returns the sources of the text of an output with this status. A text of the runtime or of a person has none.
    fn output_sources(&self, status: &CallStatus) -> ContentSources {
        let CallDisposition::Execute { sources: declared, body, .. } = self.planned.disposition else {
            return ContentSources::NONE;
        };
        let nested = self.nested_run.as_ref().map(|nested| nested.context_sources).unwrap_or_default();
        let read = declared.with(self.nested_sources).with(nested);
        match (status, body) {
            // The text of the agent that answered an identical call is not in this run.
            (CallStatus::Deduplicated, BodyKind::Agent) => read.with(ContentSource::Unknown),
            (CallStatus::Deduplicated | CallStatus::Reconciled | CallStatus::Succeeded, _) => read,
            // The text of an error or of a guardrail may quote what the body read.
            (
                CallStatus::Failed
                | CallStatus::BlockedByGuardrail
                | CallStatus::TimedOut
                | CallStatus::TimedOutStillRunning,
                _,
            ) if self.has_started() => read,
            (
                CallStatus::Failed
                | CallStatus::BlockedByGuardrail
                | CallStatus::TimedOut
                | CallStatus::TimedOutStillRunning
                | CallStatus::Rejected
                | CallStatus::OutcomeUnknown
                | CallStatus::OutputWithheld
                | CallStatus::Cancelled
                | CallStatus::InvalidArguments
                | CallStatus::UnknownTool
                | CallStatus::SurplusHandoff,
                _,
            ) => ContentSources::NONE,
        }
    }

    pub(super) fn to_pending_call(&self, within: &[CallId], agent: &AgentName) -> Option<PendingCall> {
        self.pending_call_in(&self.state, within, agent)
    }

    fn pending_call_in(
        &self,
        state: &CallSlotState,
        within: &[CallId],
        agent: &AgentName,
    ) -> Option<PendingCall> {
        let CallSlotState::Held {
            reason,
            expires_at: expires,
            last_driver_seen,
            edited_arguments: edited,
            attempt,
        } = state
        else {
            return None;
        };
        Some(PendingCall {
            path: CallPath::new(within, self.planned.call.clone()),
            agent: agent.clone(),
            tool: self.planned.key.clone(),
            arguments: edited.as_deref().unwrap_or(&self.call().arguments).to_owned(),
            reason: (**reason).clone(),
            attempt: *attempt,
            digest: self.planned.digest,
            expires_at: *expires,
            max_approval_scope: self.max_approval_scope(),
            last_driver_seen: *last_driver_seen,
            context_sources: self.context_sources,
            posted: None,
        })
    }

    /// Returns the hold of a call that a person has decided about, until the decision is taken: until the body starts or
    /// the output that follows from the decision settles.
    pub(super) fn correctable_hold(&self, within: &[CallId], agent: &AgentName) -> Option<CorrectableCall> {
        let made = self.decision.as_ref().filter(|_| self.is_decision_untaken())?;
        let pending = self.pending_call_in(&made.state_before, within, agent)?;
        Some(CorrectableCall {
            pending,
            decision: made.decision.clone(),
            decided_by: made.decided_by.clone(),
            posted_revision: self.posted_revision,
        })
    }

    /// Returns the hold of a call that has neither started nor settled since.
    pub(super) fn untaken_hold(&self) -> Option<UntakenHold> {
        let is_untaken = match self.state {
            CallSlotState::Open
            | CallSlotState::Held { .. }
            | CallSlotState::Approved { .. }
            | CallSlotState::OutputKnown { .. } => true,
            CallSlotState::Running { .. }
            | CallSlotState::BodyEnded { .. }
            | CallSlotState::Settled { .. } => false,
        };
        let attempt = self.held_attempt.filter(|_| is_untaken)?;
        Some(UntakenHold { attempt, posted_revision: self.posted_revision })
    }

    /// Returns the widest scope that an approval of the call may have.
    pub(super) fn max_approval_scope(&self) -> DecisionScope {
        match self.planned.disposition {
            CallDisposition::Execute { approval_policy: ApprovalPolicy::RequiredEachTime, .. } => {
                DecisionScope::ThisCall
            }
            _ => DecisionScope::ToolForRun,
        }
    }

    /// Starts a nested run inside the call.
    pub(super) fn start_nested_run(
        &mut self,
        started: &RunStarted,
        is_restored: bool,
    ) -> Result<ApplyOutcome, ApplyError> {
        match (&self.planned.disposition, &self.state) {
            (CallDisposition::Execute { body: BodyKind::Agent, .. }, CallSlotState::Running { .. }) => {
                // The parent's model wrote the input of the agent from what it could read.
                let mut nested = Run::start(started.clone());
                nested.context_sources.add(self.context_sources);
                nested.is_restored = is_restored;
                self.nested_run = Some(Box::new(nested));
                Ok(ApplyOutcome::default())
            }
            _ => Err(ApplyError::UnexpectedEntry { entry: "run_started", reason: "the call runs no agent" }),
        }
    }

    /// Returns the reason why the call cannot settle with this status, or `None` if it can.
    pub(super) fn settle_refusal(&self, how: &CallStatus) -> Option<&'static str> {
        if matches!(self.planned.disposition, CallDisposition::Handoff { .. })
            && *how != CallStatus::UnknownTool
        {
            return Some("the call is a handoff");
        }
        match (&self.state, how) {
            (CallSlotState::BodyEnded { .. }, CallStatus::OutputWithheld) => None,
            (CallSlotState::BodyEnded { status, .. }, how) if status == how => None,
            (CallSlotState::BodyEnded { .. }, _) => Some("its body ended otherwise"),
            (_, CallStatus::OutputWithheld) => Some("its body has not ended"),
            (_, CallStatus::Cancelled) => None,
            (CallSlotState::Held { .. }, _) => Some("the call waits for a decision"),
            (CallSlotState::OutputKnown { status: decided, .. }, how) if decided == how => None,
            (CallSlotState::OutputKnown { .. }, _) => Some("it was decided otherwise"),
            (_, CallStatus::Rejected | CallStatus::OutcomeUnknown) => Some("nobody decided so"),
            (CallSlotState::Running { .. }, _) => None,
            (
                _,
                CallStatus::Succeeded
                | CallStatus::Reconciled
                | CallStatus::TimedOut
                | CallStatus::TimedOutStillRunning,
            ) => Some("the call never started"),
            (
                _,
                CallStatus::Failed
                | CallStatus::InvalidArguments
                | CallStatus::UnknownTool
                | CallStatus::SurplusHandoff
                | CallStatus::BlockedByGuardrail
                | CallStatus::Deduplicated,
            ) => None,
        }
    }

    /// Returns true if a result with this status is withheld until the output guardrails have passed it: a body gave it,
    /// in this call or in the one whose result is reused.
    pub(super) fn can_withhold(&self, status: &CallStatus) -> bool {
        status.is_body_result()
            && match &self.state {
                CallSlotState::Running { .. } => true,
                CallSlotState::Open | CallSlotState::Approved { .. } => *status == CallStatus::Deduplicated,
                CallSlotState::OutputKnown { status: known, .. } => known == status,
                CallSlotState::Held { .. }
                | CallSlotState::BodyEnded { .. }
                | CallSlotState::Settled { .. } => false,
            }
    }

    /// Records that the body ended and its output is withheld.
    pub(super) fn end_body(&mut self, ended: &CallBodyEnded) -> Result<(), &'static str> {
        if !self.can_withhold(&ended.status) {
            return Err("no body gave this result");
        }
        let edited_arguments = match &self.state {
            CallSlotState::Running { edited_arguments, .. }
            | CallSlotState::Approved { edited_arguments, .. } => edited_arguments.clone(),
            _ => None,
        };
        self.state = CallSlotState::BodyEnded {
            status: ended.status.clone(),
            output_digest: ended.output_digest,
            edited_arguments,
        };
        self.close_nested_run();
        Ok(())
    }
}

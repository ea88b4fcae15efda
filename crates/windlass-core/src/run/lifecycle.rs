//! The life of a call: from its plan through admission, body and output guardrails to its settlement.
//!
//! Invariant: [`Run::next_effect`] is the only way to a body or to an output. It is a pure function of the call's
//! durable state, which the journal adds up to, and of its [`CallProgress`], which one driver has found out since it
//! began to work on the call. A new driver begins with new progress, so that a fresh, a resumed, a recovered and a
//! live-decided call pass the same gate, and everything that is not durable is asked again.

use std::time::Duration;

use super::Run;
use super::call_slot::{CallSlot, CallSlotState, UnrecordedStart};
use super::model_text;
use crate::decision::{HoldReason, PersonQuestion};
use crate::failure::RunFailure;
use crate::id::CallId;
use crate::idempotency::CallKey;
use crate::item::OutputContent;
use crate::journal::{CallBodyEnded, CallStarted, CallStatus, JournalEntry};
use crate::plan::{BodyKind, CallDisposition};
use crate::tool::{ApprovalPolicy, ToolEffect};

/// The next effect of a call, which its driver carries out and reports with [`CallProgress::report`].
///
/// The order of the variants is the order in the life of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum CallEffect {
    /// Look for a receipt that answers the call, before a person is asked. Report: [`CallReport::ReceiptFound`].
    FindReceipt,
    /// Evaluate the tool's approval rule. Report: [`CallReport::ApprovalRule`].
    EvaluateApprovalRule {
        /// True if a standing approval covers the call, so that only the rule that applies every time counts.
        has_standing_approval: bool,
    },
    /// Record that the call is held for a person. Report: [`CallReport::Held`].
    Hold(HoldReason),
    /// Find out whether an interrupted call took effect. Report: [`CallReport::Reconciled`].
    Reconcile,
    /// Claim the right to execute an idempotent call; wait while an identical call is in flight. Report:
    /// [`CallReport::Receipt`], or [`CallReport::Permit`] with a result if the body of that call outlived its deadline and
    /// still runs.
    ClaimReceipt,
    /// Give the right to execute the call back. Report: [`CallReport::ReceiptReleased`].
    ReleaseReceipt,
    /// Wait for a permit to run a body: for the limits, and for the end of a body with the same conflict key that outlived
    /// its deadline. Report: [`CallReport::Permit`].
    AcquirePermit,
    /// Run the input guardrails before a person is asked. Report: [`CallReport::EarlyInputGuardrails`].
    RunEarlyInputGuardrails,
    /// Run the input guardrails. Report: [`CallReport::InputGuardrails`].
    RunInputGuardrails,
    /// Ask whether the tool is enabled now. Report: [`CallReport::Enabled`].
    CheckEnabled,
    /// Record the start, and wait until it is durable. Report: [`CallReport::Started`].
    Start(RunnableCall),
    /// Announce the start to watchers and hooks. Report: [`CallReport::StartAnnounced`].
    AnnounceStart,
    /// Make the output for invalid arguments. Report: [`CallReport::BodyEnded`].
    ReportInvalidArguments {
        /// All schema violations, with their paths.
        problems: String,
    },
    /// Run the body. Report: [`CallReport::BodyEnded`], [`CallReport::RetryDue`], [`CallReport::QuestionAsked`],
    /// [`CallReport::AgentPaused`] or [`CallReport::Stopped`].
    RunBody(RunnableCall),
    /// Wait before the next attempt. Report: [`CallReport::RetryReady`].
    AwaitRetry(Duration),
    /// Keep the output where only drivers read it, then record the end of the body. Report: [`CallReport::BodyEnded`] with
    /// the same result.
    Withhold(CallResult),
    /// Run the output guardrails on the result: the one at hand or, after a restart, the withheld one. Report:
    /// [`CallReport::OutputGuardrails`].
    RunOutputGuardrails {
        /// The status of the result.
        status: CallStatus,
        /// The output, if it is at hand.
        output: Option<OutputContent>,
    },
    /// Cut the output to the tool's limit. Report: [`CallReport::OutputLimited`].
    LimitOutput(CallResult),
    /// Record the output. Report: none.
    Settle(CallResult),
    /// Announce the settlement to watchers and hooks. Report: [`CallReport::EndAnnounced`].
    AnnounceEnd,
    /// The driver's work on the call is over.
    Done(CallOutcome),
}

/// The result of an effect that is not recorded: it counts for this driver alone.
#[derive(Clone, Debug, PartialEq)]
pub enum CallReport {
    /// A receipt exists or does not.
    ReceiptFound(bool),
    /// The approval rule requires approval, does not, or rejects the call.
    ApprovalRule(ApprovalRequirement),
    /// The call is held. What this driver has found out about it is void, because a decision begins it anew.
    Held,
    /// The reconcile function found out what happened.
    Reconciled(ReconcileReport),
    /// The permit was acquired, or the wait for a body that outlived its deadline ended with this result.
    Permit(GateVerdict),
    /// The input guardrails passed before a person was asked, or one of them produced the result.
    EarlyInputGuardrails(GateVerdict),
    /// The input guardrails passed, or one of them produced the result.
    InputGuardrails(GateVerdict),
    /// The tool is enabled, or the result says that it is not.
    Enabled(GateVerdict),
    /// The claim of the call's receipt was answered.
    Receipt(ReceiptVerdict),
    /// The right to execute the call was given back.
    ReceiptReleased,
    /// The start of this attempt is durable.
    Started {
        /// The number of the attempt.
        attempt: u32,
    },
    /// The start was announced, or a hook failed the call.
    StartAnnounced(GateVerdict),
    /// The body ended with this result.
    BodyEnded(CallResult),
    /// The body failed, and another attempt follows after a delay.
    RetryDue {
        /// The delay.
        delay: Duration,
        /// The result of the call if no other attempt may begin.
        result: Box<CallResult>,
    },
    /// The delay before the next attempt has passed.
    RetryReady,
    /// The body asks a person a question.
    QuestionAsked(PersonQuestion),
    /// The nested agent waits for a person.
    AgentPaused,
    /// The output guardrails ended with this result.
    OutputGuardrails(CallResult),
    /// The output was cut.
    OutputLimited(CallResult),
    /// The settlement was announced.
    EndAnnounced,
    /// The run stops, and the effect was not carried out or did not end in time.
    Stopped(StopMode),
}

/// The answer of an approval rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalRequirement {
    /// A person must approve the call.
    Required,
    /// The call may run.
    NotRequired,
    /// The call may not run, and nobody is asked. The model receives this text.
    Rejected(String),
}

/// The verdict of one check at the gate.
#[derive(Clone, Debug, PartialEq)]
pub enum GateVerdict {
    /// The call may go on.
    Pass,
    /// The call ends with this result, and its body does not run.
    End(CallResult),
}

/// The answer to a claim of a receipt.
#[derive(Clone, Debug, PartialEq)]
pub enum ReceiptVerdict {
    /// The call may run.
    Claimed,
    /// An identical call has completed with this output.
    Completed(OutputContent),
}

/// The outcome of a reconcile function.
#[derive(Clone, Debug, PartialEq)]
pub enum ReconcileReport {
    /// The call was executed with this output.
    Executed(OutputContent),
    /// The call was not executed.
    NotExecuted,
    /// Nobody knows.
    Unknown,
}

/// The way in which a run stops its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// The run ends, so each call gets its output.
    EndRun,
    /// Another driver continues the run, so open calls stay open.
    HandOver,
}

/// The state of a call when a driver's work on it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The call has its output.
    Settled,
    /// The call waits for a person.
    Held,
    /// The call stays open for another driver.
    LeftOpen,
}

/// The result of a call, before it becomes the call's output.
#[derive(Clone, Debug, PartialEq)]
pub struct CallResult {
    /// The status with which the call settles.
    pub status: CallStatus,
    /// The output.
    pub output: OutputContent,
    /// The failure with which the call ends the run, if it does.
    pub run_failure: Option<Box<RunFailure>>,
}

impl CallResult {
    /// Creates a result after which the run continues.
    pub fn new(status: CallStatus, output: impl Into<OutputContent>) -> Self {
        Self { status, output: output.into(), run_failure: None }
    }

    /// Creates a result that ends the run.
    pub fn failing_run(status: CallStatus, output: impl Into<OutputContent>, failure: RunFailure) -> Self {
        Self { status, output: output.into(), run_failure: Some(Box::new(failure)) }
    }

    /// Creates the result of a call that was stopped. [`Run::next_effect`] gives it the output that the call has then: it
    /// says that the effect of the call is unknown if a body may have taken effect.
    pub fn cancelled() -> Self {
        Self::new(CallStatus::Cancelled, model_text::CANCELLED)
    }
}

/// A body that may run. Only the state machine creates values of this type.
#[derive(Clone, Debug, PartialEq)]
pub struct RunnableCall {
    call: CallId,
    attempt: u32,
    body: BodyKind,
    effect: ToolEffect,
    /// Identity that an earlier attempt recorded, and that this one keeps.
    key: Option<CallKey>,
    is_retry: bool,
}

impl RunnableCall {
    fn new(slot: &CallSlot, attempt: u32, body: BodyKind, progress: &CallProgress) -> Self {
        let is_known_not_executed = matches!(progress.reconciled, Some(ReconcileReport::NotExecuted));
        let key = slot.next_key(is_known_not_executed).cloned();
        let effect = match slot.planned.disposition {
            CallDisposition::Execute { effect, .. } => effect,
            _ => ToolEffect::Once,
        };
        Self { call: slot.planned.call.clone(), attempt, body, effect, key, is_retry: progress.is_retry }
    }

    /// Returns the call's id.
    pub fn call(&self) -> &CallId {
        &self.call
    }

    /// Returns the number of the attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the kind of body to execute.
    pub fn body(&self) -> BodyKind {
        self.body
    }

    /// Returns true if a body that was stopped by its deadline may run again: its repetition has no further effect.
    pub fn may_repeat_after_timeout(&self) -> bool {
        match self.effect {
            ToolEffect::Pure | ToolEffect::Idempotent => true,
            ToolEffect::Once => false,
        }
    }

    /// Returns the identity that an earlier attempt recorded; `None` for the first attempt of the run.
    pub fn recorded_key(&self) -> Option<&CallKey> {
        self.key.as_ref()
    }

    /// Returns the entry that records the start. It must be durable before the body starts. `epoch` is the fencing token
    /// of the driver's lease, 0 without a store. `derive_key` is called for the first attempt of the run only: later ones
    /// keep the recorded identity.
    pub fn start_entry(&self, epoch: u64, derive_key: impl FnOnce() -> CallKey) -> JournalEntry {
        let key = self.key.clone().unwrap_or_else(derive_key);
        let started = CallStarted::new(self.call.clone(), self.attempt, key, epoch);
        JournalEntry::CallStarted(CallStarted { is_retry: self.is_retry, ..started })
    }
}

/// The checks that a call's tool and its run have. Absent checks cost nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallFeatures {
    /// The driver has the tool. Without it nothing can be run or checked, and the call gets an output that says so.
    pub has_tool: bool,
    /// The tool has input guardrails.
    pub has_input_guardrails: bool,
    /// The input guardrails also run before a person is asked.
    pub checks_before_approval: bool,
    /// The tool has output guardrails.
    pub has_output_guardrails: bool,
    /// The tool has a rule that says whether it is enabled.
    pub has_enabled_rule: bool,
    /// The number of bodies at once is limited, or the call has a conflict key.
    pub has_permits: bool,
    /// Identical calls share their result.
    pub has_receipts: bool,
    /// The call does not run if a call before it with the same conflict key did not succeed.
    pub follows_success_only: bool,
    /// Watchers or hooks are told of the call.
    pub is_observed: bool,
    /// The tool's approval policy now. It counts if the recorded one says that no approval is required.
    pub approval_policy: ApprovalPolicy,
    /// Longest text of an output in bytes; longer ones are cut.
    pub max_output_bytes: usize,
}

impl CallFeatures {
    /// Returns the features of a call whose tool the driver does not have or need.
    pub fn without_tool() -> Self {
        Self { has_tool: false, ..Self::default() }
    }
}

impl Default for CallFeatures {
    fn default() -> Self {
        Self {
            has_tool: true,
            has_input_guardrails: false,
            checks_before_approval: false,
            has_output_guardrails: false,
            has_enabled_rule: false,
            has_permits: false,
            has_receipts: false,
            follows_success_only: false,
            is_observed: false,
            approval_policy: ApprovalPolicy::NotRequired,
            max_output_bytes: usize::MAX,
        }
    }
}

/// The findings of one driver about a call. They are dropped when the driver's work on the call is over.
#[derive(Clone, Debug, Default)]
pub struct CallProgress {
    features: CallFeatures,
    has_receipt: Option<bool>,
    approval: Option<ApprovalRequirement>,
    early_guardrails_passed: bool,
    reconciled: Option<ReconcileReport>,
    has_permit: bool,
    guardrails_passed: bool,
    is_enabled: bool,
    receipt: Option<ReceiptVerdict>,
    /// Attempt whose start this driver recorded.
    started_attempt: Option<u32>,
    start_announced: bool,
    retry: Option<Duration>,
    is_retry: bool,
    /// Result of the last attempt of this driver, if it failed and another one was due.
    failed_attempt: Option<Box<CallResult>>,
    question: Option<PersonQuestion>,
    result: Option<CallResult>,
    /// Result with which a check before the start ends the call.
    refusal: Option<Box<CallResult>>,
    is_guarded: bool,
    is_limited: bool,
    end_announced: bool,
    is_agent_paused: bool,
    is_held: bool,
    stopped: Option<StopMode>,
}

impl CallProgress {
    /// Creates the progress of a call that a driver begins to work on.
    pub fn new(features: CallFeatures) -> Self {
        Self { features, ..Self::default() }
    }

    /// Creates the progress of a call that a driver begins or continues. The start of a call that asked a question, of an
    /// agent that goes on, or of a body whose output is withheld was announced before, so the call gets its announced end.
    pub fn of_call(run: &Run, call: &CallId, features: CallFeatures) -> Self {
        let start_announced = run.has_asked_question(call)
            || run.nested_run(call).is_some()
            || run.has_withheld_body_result(call);
        Self { start_announced, ..Self::new(features) }
    }

    /// Returns the result at hand: of the body, of a receipt, or of a check that ended the call.
    pub fn result(&self) -> Option<&CallResult> {
        self.result.as_ref().or(self.refusal.as_deref())
    }

    /// Returns true if the driver announced the start of the call.
    pub fn is_start_announced(&self) -> bool {
        self.start_announced
    }

    /// Returns true if the run stops.
    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// Marks the start as announced, by this driver or by an earlier one: the call gets its announced end.
    pub fn assume_start_announced(&mut self) {
        self.start_announced = true;
    }

    /// Takes in the result of an effect.
    pub fn report(&mut self, report: CallReport) {
        match report {
            CallReport::ReceiptFound(found) => self.has_receipt = Some(found),
            CallReport::ApprovalRule(requirement) => self.approval = Some(requirement),
            CallReport::Held => self.is_held = true,
            CallReport::Reconciled(ReconcileReport::Executed(output)) => {
                self.result = Some(CallResult::new(CallStatus::Reconciled, output));
            }
            CallReport::Reconciled(outcome) => self.reconciled = Some(outcome),
            CallReport::Permit(GateVerdict::Pass) => self.has_permit = true,
            CallReport::EarlyInputGuardrails(GateVerdict::Pass) => self.early_guardrails_passed = true,
            CallReport::InputGuardrails(GateVerdict::Pass) => self.guardrails_passed = true,
            CallReport::Enabled(GateVerdict::Pass) => self.is_enabled = true,
            CallReport::StartAnnounced(GateVerdict::Pass) => self.start_announced = true,
            CallReport::StartAnnounced(GateVerdict::End(result)) => {
                self.start_announced = true;
                self.result = Some(result);
            }
            CallReport::Permit(GateVerdict::End(result))
            | CallReport::EarlyInputGuardrails(GateVerdict::End(result))
            | CallReport::InputGuardrails(GateVerdict::End(result))
            | CallReport::Enabled(GateVerdict::End(result)) => {
                self.refusal = Some(Box::new(self.refused_result(result)));
            }
            CallReport::BodyEnded(result) => self.result = Some(result),
            CallReport::Receipt(verdict) => self.receipt = Some(verdict),
            // The receipt on which the call counted is gone: it is asked about after all.
            CallReport::ReceiptReleased => (self.receipt, self.has_receipt) = (None, Some(false)),
            CallReport::Started { attempt } => {
                (self.started_attempt, self.is_retry) = (Some(attempt), false);
            }
            CallReport::RetryDue { delay, result } => {
                (self.retry, self.has_permit) = (Some(delay), false);
                self.failed_attempt = Some(result);
            }
            CallReport::RetryReady => {
                (self.retry, self.is_retry) = (None, true);
                (self.guardrails_passed, self.is_enabled) = (false, false);
            }
            CallReport::QuestionAsked(question) => self.question = Some(question),
            CallReport::AgentPaused => self.is_agent_paused = true,
            CallReport::OutputGuardrails(result) => {
                self.result = Some(result);
                self.is_guarded = true;
            }
            CallReport::OutputLimited(result) => {
                self.result = Some(result);
                self.is_limited = true;
            }
            CallReport::EndAnnounced => self.end_announced = true,
            CallReport::Stopped(mode) => self.stopped = Some(mode),
        }
    }

    /// Returns the result of a call that a check refused. A refused retry does not undo the attempt before it, so the call
    /// has the result of that attempt; a check that ends the run still does.
    fn refused_result(&self, refusal: CallResult) -> CallResult {
        match self.failed_attempt.as_deref().filter(|_| self.is_retry) {
            Some(attempt) => CallResult {
                run_failure: refusal.run_failure.or_else(|| attempt.run_failure.clone()),
                ..attempt.clone()
            },
            None => refusal,
        }
    }

    fn is_started(&self, attempt: u32) -> bool {
        self.started_attempt == Some(attempt)
    }

    /// Returns the result of the call, or its refusal if no earlier driver may have run it.
    fn result_of(&self, slot: &CallSlot) -> Option<&CallResult> {
        let refusal = self.refusal.as_deref().filter(|_| !self.may_have_run_before(slot));
        self.result.as_ref().or(refusal)
    }

    /// Returns true if an earlier driver started the body, and nobody knows whether it took effect.
    fn may_have_run_before(&self, slot: &CallSlot) -> bool {
        let CallSlotState::Running { attempt, .. } = slot.state else { return false };
        // The calls of an agent are recovered one by one, so it goes on. A retry follows a result of this driver.
        if let Some(nested) = &slot.nested_run {
            return nested.has_call_activity();
        }
        matches!(
            slot.planned.disposition,
            CallDisposition::Execute {
                effect: ToolEffect::Once | ToolEffect::Idempotent,
                body: BodyKind::Function,
                ..
            }
        ) && !self.is_started(attempt)
            && !self.is_retry
            && !matches!(self.reconciled, Some(ReconcileReport::NotExecuted))
    }
}

impl Run {
    /// Returns the next effect of an open call. The function is pure: it returns the same effect until an entry is
    /// applied or a result is reported.
    pub fn next_effect(&self, call: &CallId, progress: &CallProgress) -> CallEffect {
        let Some(slot) = self.open_turn().and_then(|turn| turn.slot(call)) else {
            // The call was the last of its turn.
            return after_settlement(progress);
        };
        match self.effect_of_slot(slot, progress) {
            CallEffect::Settle(result) if result.status == CallStatus::Cancelled => {
                CallEffect::Settle(CallResult { output: slot.stopped_output(), ..result })
            }
            effect => effect,
        }
    }

    /// Returns the next effect of a call, with the text of a call that was stopped before a body started.
    fn effect_of_slot(&self, slot: &CallSlot, progress: &CallProgress) -> CallEffect {
        if progress.is_held {
            return CallEffect::Done(CallOutcome::Held);
        }
        match &slot.state {
            CallSlotState::Settled { .. } => after_settlement(progress),
            CallSlotState::Held { .. } => match progress.stopped {
                Some(StopMode::EndRun) => CallEffect::Settle(CallResult::cancelled()),
                Some(StopMode::HandOver) | None => CallEffect::Done(CallOutcome::Held),
            },
            CallSlotState::BodyEnded { status, .. } => withheld_effect(slot, status, progress),
            CallSlotState::Open
            | CallSlotState::Approved { .. }
            | CallSlotState::OutputKnown { .. }
            | CallSlotState::Running { .. } => match (progress.result_of(slot), &slot.state) {
                (Some(result), _) if is_outdated(result, slot, progress) => match progress.stopped {
                    Some(StopMode::EndRun) => CallEffect::Settle(CallResult::cancelled()),
                    Some(StopMode::HandOver) | None => CallEffect::Done(CallOutcome::Held),
                },
                // A decision replaces what a check found meanwhile.
                (result, CallSlotState::OutputKnown { status, output }) => match result {
                    Some(result) if progress.is_guarded || progress.is_limited => {
                        result_effect(result, slot, progress)
                    }
                    _ => result_effect(&CallResult::new(status.clone(), output.clone()), slot, progress),
                },
                (Some(result), _) => result_effect(result, slot, progress),
                (None, _) => self.effect_without_result(slot, progress),
            },
        }
    }

    /// Returns the effect of a call that has no result yet.
    fn effect_without_result(&self, slot: &CallSlot, progress: &CallProgress) -> CallEffect {
        if let CallSlotState::Running { attempt, .. } = &slot.state
            && (progress.is_started(*attempt) || slot.body_kind() == Some(BodyKind::Agent))
            && !progress.is_retry
        {
            return running_effect(slot, *attempt, progress);
        }
        if let Some(mode) = progress.stopped {
            return stopped_effect(mode, slot);
        }
        if progress.refusal.is_some() {
            return refused_start_effect(progress);
        }
        let (body, effect) = match &slot.planned.disposition {
            CallDisposition::Execute { body, effect, .. } => (*body, *effect),
            CallDisposition::InvalidArguments { problems } => {
                return invalid_arguments_effect(problems, progress);
            }
            CallDisposition::UnknownTool { message } => {
                return CallEffect::Settle(CallResult::new(CallStatus::UnknownTool, message.clone()));
            }
            CallDisposition::SurplusHandoff => {
                let output = model_text::SURPLUS_HANDOFF;
                return CallEffect::Settle(CallResult::new(CallStatus::SurplusHandoff, output));
            }
            // A handoff is an action of the run.
            CallDisposition::Handoff { .. } => return CallEffect::Done(CallOutcome::LeftOpen),
        };
        if progress.features.follows_success_only
            && !slot.has_started()
            && self.is_blocked_by_predecessor(&slot.planned.call)
        {
            let output = model_text::PREDECESSOR_FAILED;
            return CallEffect::Settle(CallResult::new(CallStatus::BlockedByGuardrail, output));
        }
        let runnable = |attempt| RunnableCall::new(slot, attempt, body, progress);
        match &slot.state {
            CallSlotState::Open => match approval_effect(slot, progress) {
                Some(asking) => asking,
                None => gate_effect(runnable(1), slot, progress),
            },
            CallSlotState::Approved { attempt, .. } => gate_effect(runnable(attempt + 1), slot, progress),
            // An earlier driver started the body, or this one failed and tries again.
            CallSlotState::Running { attempt, .. }
                if slot.unrecorded_start.is_some() && !progress.is_retry =>
            {
                unrecorded_start_effect(runnable(attempt + 1), slot, progress)
            }
            CallSlotState::Running { attempt, .. } => match (effect, &progress.reconciled) {
                _ if progress.is_retry => gate_effect(runnable(attempt + 1), slot, progress),
                (ToolEffect::Pure | ToolEffect::Idempotent, None) if started_unasked(slot, progress) => {
                    CallEffect::Reconcile
                }
                (ToolEffect::Pure | ToolEffect::Idempotent, Some(ReconcileReport::Unknown))
                    if started_unasked(slot, progress) =>
                {
                    CallEffect::Hold(HoldReason::InDoubt)
                }
                (ToolEffect::Pure | ToolEffect::Idempotent, _)
                | (ToolEffect::Once, Some(ReconcileReport::NotExecuted)) => {
                    gate_effect(runnable(attempt + 1), slot, progress)
                }
                (ToolEffect::Once, Some(_)) => CallEffect::Hold(HoldReason::InDoubt),
                (ToolEffect::Once, None) => CallEffect::Reconcile,
            },
            CallSlotState::Held { .. }
            | CallSlotState::OutputKnown { .. }
            | CallSlotState::BodyEnded { .. }
            | CallSlotState::Settled { .. } => CallEffect::Done(CallOutcome::Held),
        }
    }
}

/// Returns the effect of a call that may not run again and may have run before: whether it did must be found out, because
/// its refusal would say that it did not.
fn refused_start_effect(progress: &CallProgress) -> CallEffect {
    match progress.reconciled {
        None if progress.features.has_tool => CallEffect::Reconcile,
        None | Some(_) => CallEffect::Hold(HoldReason::InDoubt),
    }
}

/// Returns the effect of a call that nobody has approved and that may have started after the backup that its run comes
/// from.
fn unrecorded_start_effect(runnable: RunnableCall, slot: &CallSlot, progress: &CallProgress) -> CallEffect {
    match (slot.unrecorded_start, &progress.reconciled) {
        // Its key says nothing about a call with another id.
        (Some(UnrecordedStart::OtherCall), _) => CallEffect::Hold(HoldReason::InDoubt),
        (_, None) => CallEffect::Reconcile,
        (_, Some(ReconcileReport::NotExecuted)) => match approval_effect(slot, progress) {
            Some(asking) => asking,
            None => gate_effect(runnable, slot, progress),
        },
        (_, Some(_)) => CallEffect::Hold(HoldReason::InDoubt),
    }
}

/// Returns true if the journal says that the call started without an approval and needed none, and its tool says that it
/// does. Whether it may run again is for a person to say.
fn started_unasked(slot: &CallSlot, progress: &CallProgress) -> bool {
    let CallDisposition::Execute { approval_policy, .. } = slot.planned.disposition else { return false };
    approval_policy == ApprovalPolicy::NotRequired
        && progress.features.approval_policy != ApprovalPolicy::NotRequired
        && slot.decision.is_none()
}

/// Returns the effect of a call whose body this driver started, or of an agent that it resumes.
fn running_effect(slot: &CallSlot, attempt: u32, progress: &CallProgress) -> CallEffect {
    let Some(body) = slot.body_kind() else { return CallEffect::Done(CallOutcome::LeftOpen) };
    if progress.is_agent_paused {
        return CallEffect::Done(CallOutcome::Held);
    }
    match (progress.stopped, &progress.question, progress.retry) {
        // The nested run ends in its own journal too.
        (Some(StopMode::EndRun), _, _) if slot.nested_run.is_some() => {
            return CallEffect::RunBody(RunnableCall::new(slot, attempt, body, progress));
        }
        (Some(mode), _, _) => return stopped_effect(mode, slot),
        (None, Some(question), _) => return CallEffect::Hold(HoldReason::Question(question.clone())),
        (None, None, Some(delay)) => return CallEffect::AwaitRetry(delay),
        (None, None, None) => {}
    }
    if progress.features.is_observed && !progress.start_announced {
        return CallEffect::AnnounceStart;
    }
    CallEffect::RunBody(RunnableCall::new(slot, attempt, body, progress))
}

/// Returns the effect that finds out whether a person must approve an undecided call; `None` if nobody must.
fn approval_effect(slot: &CallSlot, progress: &CallProgress) -> Option<CallEffect> {
    let CallDisposition::Execute { approval_policy, .. } = slot.planned.disposition else { return None };
    let approval_policy = match approval_policy {
        // An earlier build, or somebody who can write to the store, recorded it: the tool itself decides.
        ApprovalPolicy::NotRequired => progress.features.approval_policy,
        recorded => recorded,
    };
    let has_rule = match approval_policy {
        ApprovalPolicy::NotRequired => return None,
        ApprovalPolicy::ByRule | ApprovalPolicy::ByRuleEachTime => true,
        ApprovalPolicy::Required | ApprovalPolicy::RequiredEachTime => false,
    };
    // Nothing runs if a receipt answers the call, so nobody is asked.
    match progress.has_receipt {
        None if progress.features.has_receipts => return Some(CallEffect::FindReceipt),
        Some(true) => return None,
        None | Some(false) => {}
    }
    let requirement = match &progress.approval {
        None if has_rule => {
            return Some(CallEffect::EvaluateApprovalRule {
                has_standing_approval: slot.has_standing_decision,
            });
        }
        None => &ApprovalRequirement::Required,
        Some(requirement) => requirement,
    };
    match requirement {
        ApprovalRequirement::NotRequired => None,
        ApprovalRequirement::Rejected(message) => {
            Some(CallEffect::Settle(CallResult::new(CallStatus::BlockedByGuardrail, message.clone())))
        }
        ApprovalRequirement::Required
            if progress.features.checks_before_approval
                && progress.features.has_input_guardrails
                && !progress.early_guardrails_passed =>
        {
            Some(CallEffect::RunEarlyInputGuardrails)
        }
        ApprovalRequirement::Required => Some(CallEffect::Hold(HoldReason::Approval)),
    }
}

/// Returns the next effect of the gate before a body: the waits, then the guardrails, then whether the tool is enabled,
/// then the receipt of an identical call or the start.
fn gate_effect(runnable: RunnableCall, slot: &CallSlot, progress: &CallProgress) -> CallEffect {
    let features = &progress.features;
    match &progress.receipt {
        None if features.has_receipts => return CallEffect::ClaimReceipt,
        // A receipt was to answer the call, so nobody was asked whether it may run.
        Some(ReceiptVerdict::Claimed) if progress.has_receipt == Some(true) => {
            return CallEffect::ReleaseReceipt;
        }
        None | Some(ReceiptVerdict::Claimed | ReceiptVerdict::Completed(_)) => {}
    }
    let runs_body = !matches!(progress.receipt, Some(ReceiptVerdict::Completed(_)));
    let needs_permit = runs_body && runnable.body == BodyKind::Function && features.has_permits;
    if needs_permit && !progress.has_permit {
        return CallEffect::AcquirePermit;
    }
    if features.has_input_guardrails && !progress.guardrails_passed {
        return CallEffect::RunInputGuardrails;
    }
    if features.has_enabled_rule && !progress.is_enabled {
        return CallEffect::CheckEnabled;
    }
    match &progress.receipt {
        Some(ReceiptVerdict::Completed(output)) => {
            result_effect(&CallResult::new(CallStatus::Deduplicated, output.clone()), slot, progress)
        }
        None | Some(ReceiptVerdict::Claimed) => CallEffect::Start(runnable),
    }
}

/// Returns the next effect of a call with invalid arguments: guardrails and observers see it, and no body runs.
fn invalid_arguments_effect(problems: &str, progress: &CallProgress) -> CallEffect {
    let features = &progress.features;
    if !features.has_tool {
        let text = model_text::with_detail(model_text::TOOL_FAILED, Some(problems));
        return CallEffect::Settle(CallResult::new(CallStatus::InvalidArguments, text));
    }
    if features.has_input_guardrails && !progress.guardrails_passed {
        return CallEffect::RunInputGuardrails;
    }
    if features.is_observed && !progress.start_announced {
        return CallEffect::AnnounceStart;
    }
    CallEffect::ReportInvalidArguments { problems: problems.to_owned() }
}

/// Returns the next effect of a call that has a result and no withheld output.
fn result_effect(result: &CallResult, slot: &CallSlot, progress: &CallProgress) -> CallEffect {
    if result.status == CallStatus::Cancelled && progress.stopped == Some(StopMode::HandOver) {
        return CallEffect::Done(CallOutcome::LeftOpen);
    }
    let is_of_body = slot.can_withhold(&result.status);
    let may_be_guarded = is_of_body
        || matches!(result.status, CallStatus::InvalidArguments | CallStatus::TimedOutStillRunning);
    let needs_guardrails = progress.features.has_output_guardrails && may_be_guarded && !progress.is_guarded;
    // The run ends with the call, without its guardrails, so nothing of what they would have checked goes on.
    if needs_guardrails && result.run_failure.is_some() {
        let output = model_text::ERROR_NOT_CHECKED.into();
        return CallEffect::Settle(CallResult { output, ..result.clone() });
    }
    match (needs_guardrails, progress.stopped) {
        (true, _) if is_of_body => CallEffect::Withhold(result.clone()),
        (true, None) => CallEffect::RunOutputGuardrails {
            status: result.status.clone(),
            output: Some(result.output.clone()),
        },
        (true, Some(StopMode::HandOver)) => CallEffect::Done(CallOutcome::LeftOpen),
        (true, Some(StopMode::EndRun)) if result.status == CallStatus::TimedOutStillRunning => {
            CallEffect::Settle(CallResult::new(result.status.clone(), model_text::OUTPUT_NOT_CHECKED))
        }
        (true, Some(StopMode::EndRun)) => CallEffect::Settle(CallResult::cancelled()),
        (false, _) => settle_effect(result, progress),
    }
}

/// Returns the next effect of a call whose output is withheld.
fn withheld_effect(slot: &CallSlot, status: &CallStatus, progress: &CallProgress) -> CallEffect {
    match (progress.is_guarded, &progress.result, progress.stopped) {
        (true, Some(result), _) => settle_effect(result, progress),
        (_, _, Some(StopMode::HandOver)) => CallEffect::Done(CallOutcome::LeftOpen),
        (_, _, Some(StopMode::EndRun)) => CallEffect::Settle(unchecked_result()),
        (_, _, None) if !progress.features.has_tool => CallEffect::Settle(unchecked_result()),
        // A new driver claims the receipt that the output may become, so that identical calls wait for it.
        (_, None, None)
            if *status == CallStatus::Succeeded
                && slot.key.as_ref().is_some_and(|key| key.receipt_digest.is_some())
                && progress.receipt.is_none() =>
        {
            CallEffect::ClaimReceipt
        }
        (_, result, None) => CallEffect::RunOutputGuardrails {
            status: status.clone(),
            output: result.as_ref().map(|result| result.output.clone()),
        },
    }
}

/// Returns the result of a call that was executed and whose output guardrails did not finish.
pub(super) fn unchecked_result() -> CallResult {
    CallResult::new(CallStatus::OutputWithheld, model_text::OUTPUT_NOT_CHECKED)
}

fn settle_effect(result: &CallResult, progress: &CallProgress) -> CallEffect {
    let is_long = result.output.text_len() > progress.features.max_output_bytes;
    if is_long && !progress.is_limited && result.status != CallStatus::Cancelled {
        return CallEffect::LimitOutput(result.clone());
    }
    CallEffect::Settle(result.clone())
}

/// Returns true if a result follows from a decision that another one has replaced since. The call begins anew.
fn is_outdated(result: &CallResult, slot: &CallSlot, progress: &CallProgress) -> bool {
    let is_decided = match &slot.state {
        CallSlotState::OutputKnown { .. } => progress.is_guarded || progress.is_limited,
        _ => matches!(result.status, CallStatus::Rejected | CallStatus::OutcomeUnknown),
    };
    is_decided && slot.settle_refusal(&result.status).is_some()
}

fn after_settlement(progress: &CallProgress) -> CallEffect {
    if progress.features.is_observed && !progress.end_announced {
        CallEffect::AnnounceEnd
    } else {
        CallEffect::Done(CallOutcome::Settled)
    }
}

/// Returns the effect of a call without a result whose run stops.
fn stopped_effect(mode: StopMode, slot: &CallSlot) -> CallEffect {
    match mode {
        StopMode::HandOver => CallEffect::Done(CallOutcome::LeftOpen),
        StopMode::EndRun => match &slot.planned.disposition {
            CallDisposition::Handoff { .. } => CallEffect::Done(CallOutcome::LeftOpen),
            _ => CallEffect::Settle(CallResult::cancelled()),
        },
    }
}

impl CallResult {
    /// Returns the entry that records the end of the body while the output is withheld.
    pub fn body_ended_entry(&self, call: &CallId) -> JournalEntry {
        JournalEntry::CallBodyEnded(CallBodyEnded {
            call: call.clone(),
            status: self.status.clone(),
            output_digest: self.output.digest(),
        })
    }
}

#[cfg(test)]
#[path = "lifecycle_tests.rs"]
mod tests;

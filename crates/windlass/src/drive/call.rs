//! The work on one call: an interpreter of the effects that [`Run::next_effect`](windlass_core::run::Run::next_effect)
//! asks for, up to the call's output.

use std::future::Future;

use futures_util::FutureExt;
use tokio::sync::OwnedSemaphorePermit;
use windlass_core::{
    decision::{AnsweredQuestion, HoldReason},
    id::{CallId, CallPath, Timestamp},
    journal::{CallHeld, CallSettled, CallStatus, GuardrailRecord, JournalEntry},
    plan::BodyKind,
    run::{
        CallEffect, CallFeatures, CallOutcome, CallProgress, CallReport, CallResult, GateVerdict, StopMode,
    },
    tool::ToolEffect,
};

use super::output_text::{invalid_arguments_text, with_edit_note};
use super::prepare::PreparedCall;
use super::receipts::ExecutionClaim;
use super::stop::CallStop;
use super::turn::TurnExecution;
use super::{DriveError, Driver};
use crate::event::RunEventKind;
use crate::tool::{CallDetails, ConflictOrder, ToolContext};

/// A call that a driver is about to work on.
pub(super) enum ResolvedCall<C> {
    /// The call with its tool and its arguments.
    WithTool(PreparedCall<C>),
    /// The call needs no tool: its output is known.
    WithoutTool,
    /// The call cannot run any more and ends with this result.
    Unavailable(CallResult),
}

/// The work on one call, with its tool, arguments and context.
pub(super) struct CallExecution<'a, C> {
    pub(super) call: CallId,
    pub(super) prepared: PreparedCall<C>,
    pub(super) ctx: ToolContext<C>,
    pub(super) turn: &'a TurnExecution<C>,
    /// Position of the call in the model's order.
    pub(super) place: usize,
    permits: Vec<OwnedSemaphorePermit>,
    /// Last attempt that this driver started, and when it started the first.
    started: Option<(u32, Timestamp)>,
    /// Verdicts of the guardrails so far.
    pub(super) guardrails: Vec<GuardrailRecord>,
    /// Claim of an idempotent call; identical calls wait for its receipt.
    pub(super) claim: Option<Box<ExecutionClaim<'a>>>,
}

impl<C> CallExecution<'_, C> {
    /// Returns the number of attempts and the time of the first start by this driver.
    pub(super) fn started(&self) -> (u32, Option<Timestamp>) {
        self.started.map_or((0, None), |(attempts, at)| (attempts, Some(at)))
    }

    /// Returns the stop signal of the call.
    pub(super) fn stop(&self) -> CallStop<'_> {
        CallStop { turn: &self.turn.stop, place: self.place }
    }
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Works on the call at a position in the model's order until it has settled or can make no progress.
    ///
    /// A turn may have many concurrent calls, so the futures of rare steps are boxed.
    pub(super) fn execute_call<'a>(
        &'a self,
        place: usize,
        call: CallId,
        resolved: ResolvedCall<C>,
        turn: &'a TurnExecution<C>,
    ) -> impl Future<Output = (usize, Result<CallOutcome, DriveError>)> + Send + 'a {
        let mut progress = CallProgress::new(self.call_features(&resolved, turn));
        let work = match resolved {
            ResolvedCall::WithTool(prepared) => Some(self.new_execution(place, &call, prepared, turn)),
            ResolvedCall::WithoutTool => None,
            ResolvedCall::Unavailable(result) => {
                progress.report(CallReport::Enabled(GateVerdict::End(result)));
                None
            }
        };
        if work.as_ref().is_some_and(|work| self.is_start_known(work)) {
            progress.assume_start_announced();
        }
        let stop = CallStop { turn: &turn.stop, place };
        if turn.is_closing {
            progress.report(CallReport::Stopped(self.stop_mode()));
        }
        async move {
            let mut work = work;
            // Kept for observers alone.
            let mut settled = None;
            let ended = loop {
                let effect = self.with_run(|run| run.next_effect(&call, &progress));
                let performed = match (effect, &mut work) {
                    (CallEffect::Done(outcome), _) => break Ok(outcome),
                    (CallEffect::Start(runnable), work) => {
                        let started = CallReport::Started { attempt: runnable.attempt() };
                        if let Some(work) = work {
                            let since = work.started.map_or_else(|| self.shared.journal.now(), |(_, at)| at);
                            work.started = Some((runnable.attempt(), since));
                        }
                        match self.record_entry(runnable.start_entry()).await {
                            Ok(()) => Ok(Some(started)),
                            Err(error) => Err(error),
                        }
                    }
                    (CallEffect::RunBody(runnable), Some(work)) if runnable.body() == BodyKind::Function => {
                        Ok(Some(self.run_body(&runnable, work).await))
                    }
                    (CallEffect::Settle(result), work) => {
                        match self.settle_call(&call, result, work.as_mut(), stop).await {
                            Ok(copy) => {
                                settled = copy;
                                Ok(None)
                            }
                            Err(error) => Err(error),
                        }
                    }
                    (CallEffect::AnnounceEnd, work) => {
                        if let Some(settled) = settled.take() {
                            let is_started = progress.is_start_announced();
                            self.announce_end(*settled, work.as_ref(), is_started, stop).boxed().await;
                        }
                        Ok(Some(CallReport::EndAnnounced))
                    }
                    (effect, work) => {
                        self.perform_effect(&call, effect, &mut progress, work.as_mut(), stop).boxed().await
                    }
                };
                match performed {
                    Ok(Some(report)) => progress.report(report),
                    Ok(None) => {}
                    Err(error) => break Err(error),
                }
            };
            (place, ended)
        }
    }

    fn call_features(&self, resolved: &ResolvedCall<C>, turn: &TurnExecution<C>) -> CallFeatures {
        let is_observed = turn.is_observed;
        let ResolvedCall::WithTool(prepared) = resolved else {
            return CallFeatures { is_observed, ..CallFeatures::default() };
        };
        let tool = &prepared.tool;
        CallFeatures {
            has_input_guardrails: !tool.input_guardrails.is_empty(),
            checks_before_approval: self.shared.config.pre_approval_guardrails,
            has_output_guardrails: !tool.output_guardrails.is_empty(),
            has_enabled_rule: tool.enabled.static_value() != Some(true),
            has_permits: tool.concurrency_permits.is_some() || self.shared.body_permits.is_some(),
            has_receipts: prepared.receipt_digest.is_some(),
            follows_success_only: tool.conflict_order != ConflictOrder::Independent
                && tool.effect_of_call(prepared.rule_arguments()) != ToolEffect::Pure,
            is_observed,
            max_output_bytes: tool.max_output_bytes,
        }
    }

    /// Returns true if observers were told of the call's start by an earlier segment of the run: it asked a question, or
    /// it is an agent that goes on.
    fn is_start_known(&self, work: &CallExecution<'_, C>) -> bool {
        self.with_run(|run| run.has_asked_question(&work.call) || run.nested_run(&work.call).is_some())
    }

    /// Returns the way in which a stop of this run ends its calls.
    pub(super) fn stop_mode(&self) -> StopMode {
        if self.shared.cancel.is_detaching() { StopMode::HandOver } else { StopMode::EndRun }
    }

    fn new_execution<'a>(
        &'a self,
        place: usize,
        call: &CallId,
        prepared: PreparedCall<C>,
        turn: &'a TurnExecution<C>,
    ) -> CallExecution<'a, C> {
        let answered_questions = match turn.may_have_answers {
            true => self.with_run(|run| run.answered_questions(call).to_vec()),
            false => Vec::<AnsweredQuestion>::new(),
        };
        let details = CallDetails {
            tool: prepared.tool.clone(),
            arguments: prepared.arguments.clone(),
            raw_arguments: prepared.raw_arguments.clone(),
            answered_questions,
        };
        let ctx = ToolContext::new(turn.context.clone(), call.clone(), details);
        CallExecution {
            call: call.clone(),
            prepared,
            ctx,
            turn,
            place,
            permits: Vec::new(),
            started: None,
            guardrails: Vec::new(),
            claim: None,
        }
    }

    /// Carries out an effect that most calls do not need.
    async fn perform_effect<'a>(
        &'a self,
        call: &CallId,
        effect: CallEffect,
        progress: &mut CallProgress,
        work: Option<&mut CallExecution<'a, C>>,
        stop: CallStop<'_>,
    ) -> Result<Option<CallReport>, DriveError> {
        let stopped = CallReport::Stopped(self.stop_mode());
        // What has no tool has its result, or reports invalid arguments of a tool that is gone.
        let Some(work) = work else {
            return Ok(Some(match effect {
                CallEffect::AnnounceStart => CallReport::StartAnnounced(GateVerdict::Pass),
                CallEffect::ReportInvalidArguments { problems } => {
                    let status = CallStatus::InvalidArguments;
                    CallReport::BodyEnded(CallResult::new(status, invalid_arguments_text(&problems)))
                }
                CallEffect::RunOutputGuardrails { .. } | CallEffect::LimitOutput(_) => stopped,
                other => return Err(self.unexpected_effect(call, &other)),
            }));
        };
        let report = match effect {
            CallEffect::FindReceipt => CallReport::ReceiptFound(self.has_receipt(work)),
            CallEffect::EvaluateApprovalRule { has_standing_approval } => {
                match stop.unless_stopped(self.evaluate_approval(work, has_standing_approval)).await {
                    Some(requirement) => CallReport::ApprovalRule(requirement),
                    None => stopped,
                }
            }
            CallEffect::Hold(reason) => {
                let keeps = self.shared.cancel.is_detaching() || self.shared.cancel.keeps_approvals();
                if matches!(reason, HoldReason::Question(_)) {
                    self.publish_receipt(work, None).await?;
                    if stop.is_stopped() && !keeps {
                        return Ok(Some(stopped));
                    }
                }
                self.hold_call(call, reason).await?;
                CallReport::Held
            }
            CallEffect::Reconcile => match stop.unless_stopped(self.reconcile_call(work)).await {
                Some(outcome) => CallReport::Reconciled(outcome),
                None => stopped,
            },
            CallEffect::ClaimReceipt => match self.claim_receipt(work).await? {
                Some(verdict) => CallReport::Receipt(verdict),
                None => stopped,
            },
            CallEffect::ReleaseReceipt => {
                work.claim = None;
                CallReport::ReceiptReleased
            }
            CallEffect::AcquirePermit => match self.acquire_permits(work).await {
                Some(permits) => {
                    work.permits = permits;
                    CallReport::PermitAcquired
                }
                None => stopped,
            },
            CallEffect::RunEarlyInputGuardrails => match self.run_input_guardrails(work).await {
                Some(verdict) => CallReport::EarlyInputGuardrails(verdict),
                None => stopped,
            },
            CallEffect::RunInputGuardrails => {
                work.guardrails.clear();
                match self.run_input_guardrails(work).await {
                    Some(verdict) => CallReport::InputGuardrails(verdict),
                    None => stopped,
                }
            }
            CallEffect::CheckEnabled => match stop.unless_stopped(self.check_enabled(work)).await {
                Some(verdict) => CallReport::Enabled(verdict?),
                None => stopped,
            },
            CallEffect::AnnounceStart => match self.announce_start(work).await {
                Some(verdict) => CallReport::StartAnnounced(verdict),
                None => {
                    progress.assume_start_announced();
                    stopped
                }
            },
            CallEffect::ReportInvalidArguments { problems } => {
                CallReport::BodyEnded(self.invalid_arguments_result(work, &problems))
            }
            CallEffect::RunBody(_) => self.run_nested_agent(work).await?,
            CallEffect::AwaitRetry(delay) => {
                work.permits.clear();
                match stop.unless_stopped(tokio::time::sleep(delay)).await {
                    Some(()) => CallReport::RetryReady,
                    None => stopped,
                }
            }
            CallEffect::Withhold(result) => {
                self.withhold_output(work, result.clone()).await?;
                CallReport::BodyEnded(result)
            }
            CallEffect::RunOutputGuardrails { status, output } => {
                match self.run_output_guardrails(work, status, output).await? {
                    Some(result) => CallReport::OutputGuardrails(result),
                    None => stopped,
                }
            }
            CallEffect::LimitOutput(result) => {
                CallReport::OutputLimited(self.truncate_to_budget(work, result).await?)
            }
            other @ (CallEffect::Start(_)
            | CallEffect::Settle(_)
            | CallEffect::AnnounceEnd
            | CallEffect::Done(_)) => return Err(self.unexpected_effect(call, &other)),
        };
        Ok(Some(report))
    }

    fn unexpected_effect(&self, call: &CallId, effect: &CallEffect) -> DriveError {
        tracing::error!(run = %self.run_id, %call, ?effect, "an effect cannot be carried out");
        self.invalid_entry_error(&windlass_core::run::ApplyError::UnknownCall(call.clone()))
    }

    async fn hold_call(&self, call: &CallId, reason: HoldReason) -> Result<(), DriveError> {
        let expires_at = match (&reason, self.shared.config.approval_expiry) {
            (HoldReason::Approval, Some(expiry)) => Some(self.shared.journal.now().saturating_add(expiry)),
            _ => None,
        };
        let held = CallHeld { call: call.clone(), reason, expires_at };
        self.record_entry(JournalEntry::CallHeld(held)).await?;
        self.shared.has_held_calls.store(true, std::sync::atomic::Ordering::Relaxed);
        if self.emitter.is_watched()
            && let Some(mut pending) = self.with_run(|run| run.pending_call(call))
        {
            pending.path = CallPath::new(&self.parent_calls, call.clone());
            self.emitter.emit(RunEventKind::CallHeld(Box::new(pending))).await;
        }
        Ok(())
    }

    /// Records the call's output, and returns a copy of it for observers. A failure of the run stops the calls after it.
    fn settle_call<'a>(
        &'a self,
        call: &CallId,
        result: CallResult,
        work: Option<&'a mut CallExecution<'_, C>>,
        stop: CallStop<'_>,
    ) -> impl Future<Output = Result<Option<Box<CallSettled>>, DriveError>> + Send {
        let CallResult { status, output, run_failure } = result;
        let output = match work.as_ref().and_then(|work| work.prepared.edited_arguments.as_deref()) {
            Some(edited) if status != CallStatus::Cancelled => with_edit_note(edited, output),
            Some(_) | None => output,
        };
        let fails_run = run_failure.is_some();
        let was_withheld = self.with_run(|run| run.withheld_output(call).is_some());
        let guardrails = work.as_ref().map(|work| work.guardrails.clone()).unwrap_or_default();
        let settled = CallSettled { call: call.clone(), status, output, guardrails, run_failure };
        let is_observed =
            work.as_ref().map_or_else(|| self.emitter.is_watched(), |work| work.turn.is_observed);
        let copy = is_observed.then(|| Box::new(settled.clone()));
        let written = self.apply_and_enqueue(JournalEntry::CallSettled(settled));
        if fails_run && written.is_ok() {
            stop.turn.stop_after(stop.place);
        }
        async move {
            self.wait_durable(written?).await?;
            if was_withheld {
                self.erase_withheld().boxed().await?;
            }
            if let Some(work) = work
                && work.claim.is_some()
            {
                let expire_after = work.prepared.tool.receipt_policy.expire_after;
                self.publish_receipt(work, expire_after).boxed().await?;
            }
            Ok(copy)
        }
    }
}

//! The work on one call: an interpreter of the effects that [`Run::next_effect`](windlass_core::run::Run::next_effect)
//! asks for, up to the call's output.

use std::future::Future;

use futures_util::FutureExt;
use tokio::sync::OwnedSemaphorePermit;
use windlass_core::provenance::ContentSources;
use windlass_core::{
    decision::{AnsweredQuestion, HoldReason},
    id::CallId,
    idempotency::CallKey,
    journal::{CallHeld, CallSettled, CallStatus, GuardrailRecord, JournalEntry},
    plan::BodyKind,
    run::{
        CallEffect, CallFeatures, CallOutcome, CallProgress, CallReport, CallResult, GateVerdict,
        ReceiptVerdict, ReconcileReport, StopMode,
    },
    tool::ToolKey,
};

use super::Driver;
use super::turn::TurnExecution;
use crate::artefact::READ_OUTPUT_TOOL;
use crate::observe::HookObservation;
use crate::receipts::{ClaimVerdict, ExecutionClaim, ReceiptDestination, ReceiptRequest, RunReceipts};
use crate::run::{DecisionCheck, DriveError};
use crate::tasks::CallStop;
use crate::tool::{
    CallDetails, PreparedCall, ToolContext, failure_text, invalid_arguments_result, with_edit_note,
};

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
    /// Verdicts of the guardrails so far.
    pub(super) guardrails: Vec<GuardrailRecord>,
    /// Claim of an idempotent call; identical calls wait for its receipt.
    pub(super) claim: Option<Box<ExecutionClaim<'a>>>,
}

impl<C> CallExecution<'_, C> {
    /// Returns the call as its receipt is asked for, if it has one.
    fn receipt_request(&self) -> Option<ReceiptRequest<'_>> {
        let (policy, path) = (&self.prepared.tool.receipt_policy, self.ctx.call_path());
        self.ctx.receipt_digest().map(|digest| ReceiptRequest { digest, policy, path })
    }

    /// Returns the place for the receipt of the call, if it is shared beyond the run.
    fn receipt_destination(&self) -> Option<ReceiptDestination> {
        self.claim.as_ref()?.destination(self.prepared.tool.receipt_policy.expire_after)
    }

    /// Ends the claim of the call.
    async fn end_claim(&mut self) -> Result<(), DriveError> {
        match self.claim.take() {
            Some(claim) => Ok(claim.end().await?),
            None => Ok(()),
        }
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
        let recorded_key = self.scope.with_run(|run| run.call_key(&call).cloned());
        let mut progress = CallProgress::new(self.call_features(&resolved, recorded_key.as_ref(), turn));
        let work = match resolved {
            ResolvedCall::WithTool(prepared) => {
                let (answers, context_sources, is_start_known) = self.earlier_segments(&call);
                if is_start_known {
                    progress.assume_start_announced();
                }
                Some(Self::new_execution(
                    place,
                    &call,
                    prepared,
                    (answers, recorded_key, context_sources),
                    turn,
                ))
            }
            ResolvedCall::WithoutTool => None,
            ResolvedCall::Unavailable(result) => {
                progress.report(CallReport::Enabled(GateVerdict::End(result)));
                None
            }
        };
        let stop = CallStop { turn: &turn.stop, place };
        if turn.is_closing {
            progress.report(CallReport::Stopped(self.stop_mode()));
        }
        async move {
            let mut work = work;
            // The settlement, as hooks see it.
            let mut settled = None;
            let ended = loop {
                let effect = self.scope.with_run(|run| run.next_effect(&call, &progress));
                if matches!(effect, CallEffect::Start(_) | CallEffect::Settle(_))
                    && let Some(hold) = self.scope.untaken_hold(&call)
                {
                    match self.scope.take_decision(&call, hold).boxed().await {
                        Ok(DecisionCheck::Current) => {}
                        // Nothing was found out about a call that is closed.
                        Ok(DecisionCheck::Corrected) if turn.is_closing => continue,
                        // The call begins anew with the decision that replaced the one before.
                        Ok(DecisionCheck::Corrected) => break Ok(CallOutcome::Held),
                        Err(error) => break Err(error),
                    }
                }
                let performed = match (effect, &mut work) {
                    (CallEffect::Done(outcome), _) => break Ok(outcome),
                    (CallEffect::Start(runnable), Some(work)) => {
                        let started = CallReport::Started { attempt: runnable.attempt() };
                        let epoch = self.shared.journal.epoch();
                        match self
                            .scope
                            .record_entry(runnable.start_entry(epoch, || work.ctx.call_key()))
                            .await
                        {
                            Ok(()) => Ok(Some(started)),
                            Err(error) => Err(error),
                        }
                    }
                    // The run was cancelled while the start became durable: no body begins any more.
                    (CallEffect::RunBody(_), Some(_))
                        if self.shared.cancel.is_cancelled() && !progress.is_stopped() =>
                    {
                        Ok(Some(CallReport::Stopped(StopMode::EndRun)))
                    }
                    (CallEffect::RunBody(runnable), Some(work)) if runnable.body() == BodyKind::Function => {
                        Ok(Some(self.run_body(&runnable, work).await))
                    }
                    (CallEffect::Settle(result), work) => {
                        match self.settle_call(&call, result, work.as_mut(), stop).await {
                            Ok(observed) => {
                                settled = observed;
                                Ok(None)
                            }
                            Err(error) => Err(error),
                        }
                    }
                    (CallEffect::AnnounceEnd, work) => {
                        if let (Some(settled), Some(work)) = (settled.take(), work) {
                            let is_started = progress.is_start_announced();
                            self.announce_end(*settled, work, is_started, stop).boxed().await;
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

    fn call_features(
        &self,
        resolved: &ResolvedCall<C>,
        recorded_key: Option<&CallKey>,
        turn: &TurnExecution<C>,
    ) -> CallFeatures {
        let ResolvedCall::WithTool(prepared) = resolved else { return CallFeatures::default() };
        let features = prepared.call_features(recorded_key);
        CallFeatures {
            checks_before_approval: self.shared.config.pre_approval_guardrails,
            has_permits: features.has_permits || self.shared.body_permits.is_some(),
            is_observed: turn.has_hooks,
            ..features
        }
    }

    /// Returns the answers to the questions of an open call, and whether hooks were notified of its start before: it asked
    /// a question, or it is an agent that goes on.
    fn earlier_segments(&self, call: &CallId) -> (Vec<AnsweredQuestion>, ContentSources, bool) {
        self.scope.with_run(|run| {
            let is_start_known = run.has_asked_question(call) || run.nested_run(call).is_some();
            (run.answered_questions(call).to_vec(), run.call_sources(call), is_start_known)
        })
    }

    /// Returns the way in which a stop of this run ends its calls.
    pub(super) fn stop_mode(&self) -> StopMode {
        if self.shared.cancel.is_detaching() { StopMode::HandOver } else { StopMode::EndRun }
    }

    fn new_execution<'a>(
        place: usize,
        call: &CallId,
        prepared: PreparedCall<C>,
        (answered_questions, recorded_key, context_sources): (
            Vec<AnsweredQuestion>,
            Option<CallKey>,
            ContentSources,
        ),
        turn: &'a TurnExecution<C>,
    ) -> CallExecution<'a, C> {
        let (receipt_digest, recorded_key) = match recorded_key {
            Some(recorded) => (recorded.receipt_digest, Some(recorded.idempotency_key)),
            None => (prepared.receipt_digest, None),
        };
        let details = CallDetails {
            tool: prepared.tool.clone(),
            arguments: prepared.arguments.clone(),
            raw_arguments: prepared.raw_arguments.clone(),
            answered_questions,
            receipt_digest,
            recorded_key,
            context_sources,
        };
        let ctx = ToolContext::new(turn.context.clone(), call.clone(), details);
        CallExecution {
            call: call.clone(),
            prepared,
            ctx,
            turn,
            place,
            permits: Vec::new(),
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
        // A call without a tool has its result, or reports invalid arguments of a tool that is gone.
        let Some(work) = work else {
            return Ok(Some(match effect {
                CallEffect::AnnounceStart => CallReport::StartAnnounced(GateVerdict::Pass),
                CallEffect::ReportInvalidArguments { problems } => {
                    let status = CallStatus::InvalidArguments;
                    CallReport::BodyEnded(CallResult::new(status, failure_text(Some(&problems))))
                }
                CallEffect::ClaimReceipt => CallReport::Receipt(ReceiptVerdict::Claimed),
                CallEffect::RunOutputGuardrails { .. } | CallEffect::LimitOutput(_) => stopped,
                other => return Err(self.unexpected_effect(call, &other)),
            }));
        };
        let report = match effect {
            CallEffect::FindReceipt => CallReport::ReceiptFound(match work.receipt_request() {
                Some(request) => self.run_receipts().has_receipt(request).await?,
                None => false,
            }),
            CallEffect::EvaluateApprovalRule { has_standing_approval } => {
                match stop
                    .unless_stopped(work.prepared.evaluate_approval(&work.ctx, has_standing_approval))
                    .await
                {
                    Some(requirement) => CallReport::ApprovalRule(requirement),
                    None => stopped,
                }
            }
            CallEffect::Hold(reason) => {
                let keeps = self.shared.cancel.is_detaching() || self.shared.cancel.keeps_approvals();
                if matches!(reason, HoldReason::Question(_)) {
                    work.end_claim().await?;
                    if stop.is_stopped() && !keeps {
                        return Ok(Some(stopped));
                    }
                }
                self.hold_call(call, reason).await?;
                CallReport::Held
            }
            CallEffect::Reconcile => match stop.unless_stopped(work.prepared.reconcile(&work.ctx)).await {
                Some(outcome) => {
                    let has_no_effect = matches!(outcome, ReconcileReport::NotExecuted);
                    if has_no_effect && self.scope.with_run(|run| run.has_inherited_key(call)) {
                        work.ctx.renew_key();
                    }
                    CallReport::Reconciled(outcome)
                }
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
            CallEffect::AcquirePermit => {
                let limits = [&work.prepared.tool.concurrency_permits, &self.shared.body_permits];
                match stop.acquire_permits(limits.map(Option::as_ref)).await {
                    Some(permits) => {
                        work.permits = permits;
                        CallReport::PermitAcquired
                    }
                    None => stopped,
                }
            }
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
                let result = invalid_arguments_result(&work.prepared.tool, &work.ctx, &problems);
                CallReport::BodyEnded(result)
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
                self.withhold_output(work, &result).await?;
                CallReport::BodyEnded(result)
            }
            CallEffect::RunOutputGuardrails { status, output } => {
                match self.run_output_guardrails(work, status, output).await? {
                    Some(result) => CallReport::OutputGuardrails(result),
                    None => stopped,
                }
            }
            CallEffect::LimitOutput(mut result) => {
                let has_reader = work.turn.tools.find_tool(&ToolKey::bare(READ_OUTPUT_TOOL)).is_some();
                let (tool, path) = (&work.prepared.tool, work.ctx.call_path());
                let secrets = &self.shared.recorder.secrets;
                self.shared
                    .artefacts
                    .limit_output(tool, path, &mut result.output, has_reader, secrets)
                    .await?;
                CallReport::OutputLimited(result)
            }
            other @ (CallEffect::Start(_)
            | CallEffect::Settle(_)
            | CallEffect::AnnounceEnd
            | CallEffect::Done(_)) => return Err(self.unexpected_effect(call, &other)),
        };
        Ok(Some(match report {
            // The stop came during the effect, and only now it is known whether the run ends or is handed over.
            CallReport::Stopped(_) => CallReport::Stopped(self.stop_mode()),
            report => report,
        }))
    }

    fn run_receipts(&self) -> RunReceipts<'_> {
        let shared = &*self.shared;
        RunReceipts {
            cache: &shared.recorder.receipt_cache,
            scopes: &shared.key_scopes,
            journal: &shared.journal,
            lease_duration: shared.config.lease_duration,
        }
    }

    /// Claims the execution of an idempotent call. Returns `None` if the call stops first.
    async fn claim_receipt<'a>(
        &'a self,
        work: &mut CallExecution<'a, C>,
    ) -> Result<Option<ReceiptVerdict>, DriveError> {
        let Some(request) = work.receipt_request() else { return Ok(Some(ReceiptVerdict::Claimed)) };
        self.shared.key_scopes.check_tool(work.turn.agent.name(), &work.prepared.tool)?;
        Ok(match self.run_receipts().claim(request, work.stop()).await? {
            Some(ClaimVerdict::Claimed { claim, generation }) => {
                work.ctx.fix_key(generation);
                work.claim = Some(claim);
                Some(ReceiptVerdict::Claimed)
            }
            Some(ClaimVerdict::Completed(output)) => Some(ReceiptVerdict::Completed(output)),
            None => None,
        })
    }

    fn unexpected_effect(&self, call: &CallId, effect: &CallEffect) -> DriveError {
        tracing::error!(run = %self.scope.run_id, %call, ?effect, "an effect cannot be carried out");
        self.scope.invalid_entry_error(&windlass_core::run::ApplyError::UnknownCall(call.clone()))
    }

    async fn hold_call(&self, call: &CallId, reason: HoldReason) -> Result<(), DriveError> {
        let expires_at = match (&reason, self.shared.config.approval_expiry) {
            (HoldReason::Approval, Some(expiry)) => Some(self.shared.journal.now().saturating_add(expiry)),
            _ => None,
        };
        let last_driver_seen = match reason {
            HoldReason::InDoubt => self.shared.journal.previous_driver_seen(),
            _ => None,
        };
        let held = CallHeld { call: call.clone(), reason, expires_at, last_driver_seen };
        self.scope.record_entry(JournalEntry::CallHeld(held)).await?;
        self.shared.has_held_calls.store(true, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    /// Records the call's output, and returns it as hooks see it. A failure of the run stops the calls after it.
    fn settle_call<'a>(
        &'a self,
        call: &CallId,
        result: CallResult,
        work: Option<&'a mut CallExecution<'_, C>>,
        stop: CallStop<'_>,
    ) -> impl Future<Output = Result<Option<Box<HookObservation>>, DriveError>> + Send {
        let CallResult { status, output, run_failure } = result;
        let output = match work.as_ref().and_then(|work| work.prepared.edited_arguments.as_deref()) {
            Some(edited) if status != CallStatus::Cancelled => with_edit_note(edited, output),
            Some(_) | None => output,
        };
        let fails_run = run_failure.is_some();
        let withheld = self.scope.with_run(|run| run.withheld_output(call));
        let withheld = withheld.map(|_| self.scope.call_path(call));
        let guardrails = work.as_ref().map(|work| work.guardrails.clone()).unwrap_or_default();
        let settled = CallSettled { call: call.clone(), status, output, guardrails, run_failure };
        let entry = JournalEntry::CallSettled(settled);
        let receipt_to = work.as_ref().and_then(|work| work.receipt_destination());
        let written = self.scope.enqueue_settlement(entry, receipt_to);
        if fails_run && written.is_ok() {
            stop.turn.stop_after(stop.place);
        }
        async move {
            let observed = self.scope.wait_recorded(written?).await?.map(Box::new);
            if let Some(withheld) = withheld {
                self.shared.withheld.erase(&self.shared.journal, withheld).boxed().await?;
            }
            if let Some(work) = work
                && work.claim.is_some()
            {
                work.end_claim().boxed().await?;
            }
            Ok(observed)
        }
    }
}

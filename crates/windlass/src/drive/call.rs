//! The work on one call: an interpreter of the effects that [`Run::next_effect`](windlass_core::run::Run::next_effect)
//! asks for, up to the call's output.

use std::future::Future;

use futures_util::FutureExt;
use windlass_core::{
    decision::HoldReason,
    id::CallId,
    journal::{CallSettled, CallStatus, GuardrailRecord, JournalEntry},
    plan::BodyKind,
    run::{
        ApplyError, CallEffect, CallFeatures, CallOutcome, CallProgress, CallReport, CallResult, GateVerdict,
        ReceiptVerdict, ReconcileReport, StopMode, ToolNeed,
    },
    tool::ToolKey,
};

use super::Driver;
use super::turn::TurnExecution;
use crate::artefact::READ_OUTPUT_TOOL;
use crate::observe::HookObservation;
use crate::receipts::{
    BodyPermits, ClaimVerdict, ExecutionClaim, ReceiptDestination, ReceiptRequest, RunReceipts,
};
use crate::run::{DecisionCheck, DriveError, ResolvedCall};
use crate::tasks::CallStop;
use crate::tool::{PreparedCall, ToolContext, invalid_arguments_result, with_edit_note};

/// The work on one call, with its tool, arguments and context.
pub(super) struct CallExecution<'a, C> {
    pub(super) call: CallId,
    pub(super) prepared: PreparedCall<C>,
    pub(super) ctx: ToolContext<C>,
    pub(super) turn: &'a TurnExecution<C>,
    /// Position of the call in the model's order.
    pub(super) place: usize,
    permits: BodyPermits,
    /// Verdicts of the guardrails so far.
    pub(super) guardrails: Vec<GuardrailRecord>,
    /// Claim of an idempotent call; identical calls wait for its receipt.
    claim: Option<Box<ExecutionClaim<'a>>>,
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
        self.turn.stop.of_call(self.place)
    }
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Works on the call at a position in the model's order until it has settled or can make no progress.
    pub(super) fn execute_call<'a>(
        &'a self,
        place: usize,
        call: CallId,
        resolved: ResolvedCall<C>,
        turn: &'a TurnExecution<C>,
    ) -> impl Future<Output = (usize, Result<CallOutcome, DriveError>)> + Send + 'a {
        let absent = CallProgress::new(CallFeatures::without_tool());
        let (mut progress, work) = match resolved {
            ResolvedCall::WithTool(prepared) => {
                let (progress, details) = self.scope.with_run(|run| {
                    let features = prepared.call_features(turn.features, run.call_key(&call));
                    (CallProgress::of_call(run, &call, features), prepared.call_details(run, &call))
                });
                let ctx = ToolContext::new(turn.context.clone(), call.clone(), details);
                let (permits, guardrails, claim) = (BodyPermits::default(), Vec::new(), None);
                let call = call.clone();
                let work = CallExecution { call, prepared, ctx, turn, place, permits, guardrails, claim };
                (progress, Some(work))
            }
            ResolvedCall::WithoutTool => (absent, None),
            ResolvedCall::Unavailable(result) => {
                let mut progress = absent;
                progress.report(CallReport::Enabled(GateVerdict::End(result)));
                (progress, None)
            }
        };
        if turn.is_closing {
            progress.report(CallReport::Stopped(StopMode::EndRun));
        }
        self.interpret_effects(call, progress, work, turn, place).map(move |ended| (place, ended))
    }

    /// Carries out the effects of a call. A turn may have many concurrent calls, so the futures of rare steps are boxed.
    async fn interpret_effects<'a>(
        &'a self,
        call: CallId,
        mut progress: CallProgress,
        mut work: Option<CallExecution<'a, C>>,
        turn: &'a TurnExecution<C>,
        place: usize,
    ) -> Result<CallOutcome, DriveError> {
        // The settlement, as hooks see it.
        let mut settled = None;
        loop {
            let mut effect = self.scope.with_run(|run| run.next_effect(&call, &progress));
            // A result without a body is withheld before it settles, and its decision cannot be corrected after that.
            if matches!(effect, CallEffect::Start(_) | CallEffect::Withhold(_) | CallEffect::Settle(_))
                && let Some(hold) = self.scope.untaken_hold(&call)
            {
                match self.scope.take_decision(&call, hold).boxed().await? {
                    // Nothing was found out about a call that is closed.
                    DecisionCheck::Corrected if turn.is_closing => continue,
                    // The call begins anew with the decision that replaced the one before.
                    DecisionCheck::Corrected => return Ok(CallOutcome::Held),
                    // A decision about another call, which covers this one too, may have been recorded meanwhile.
                    DecisionCheck::Current => {
                        effect = self.scope.with_run(|run| run.next_effect(&call, &progress));
                    }
                }
            }
            let report = match (effect, &mut work) {
                (CallEffect::Done(outcome), _) => return Ok(outcome),
                (CallEffect::Start(runnable), Some(work)) => {
                    let entry = runnable.start_entry(self.shared.journal.epoch(), || work.ctx.call_key());
                    self.scope.record_entry(entry).await?;
                    CallReport::Started { attempt: runnable.attempt() }
                }
                // The call was stopped, or the lease was lost, while the start became durable: no body begins any more.
                (CallEffect::RunBody(_), Some(work))
                    if work.stop().is_stopped()
                        && !self.shared.cancel.lets_calls_finish()
                        && !progress.is_stopped() =>
                {
                    CallReport::Stopped(self.stop_mode())
                }
                (CallEffect::RunBody(runnable), Some(work)) if runnable.body() == BodyKind::Function => {
                    self.run_body(&runnable, work).await
                }
                (CallEffect::Settle(result), work) => {
                    settled =
                        self.settle_call(&call, result, work.as_mut(), turn.stop.of_call(place)).await?;
                    continue;
                }
                (CallEffect::AnnounceEnd, work) => {
                    if let (Some(settled), Some(work)) = (settled.take(), work) {
                        self.announce_end(*settled, work, progress.is_start_announced()).boxed().await;
                    }
                    CallReport::EndAnnounced
                }
                // Nobody knows whether a call took effect that cannot run any more.
                (CallEffect::Hold(reason), None) => self.hold_call(&call, reason).await?,
                (effect, Some(work)) => {
                    let performed = self.perform_effect(effect, &mut progress, work).boxed().await?;
                    // Only now it is known whether the run ends or is handed over.
                    performed.unwrap_or_else(|| CallReport::Stopped(self.stop_mode()))
                }
                // A decision that came meanwhile lets a call run that was to be answered without its tool.
                (_, None) if self.scope.with_run(|run| run.tool_need(&call)) != ToolNeed::None => {
                    return Ok(CallOutcome::Held);
                }
                (effect, None) => return Err(self.unexpected_effect(&call, &effect)),
            };
            progress.report(report);
        }
    }

    /// Returns the way in which a stop of this run ends its calls.
    pub(super) fn stop_mode(&self) -> StopMode {
        self.stop_request().stop_mode()
    }

    /// Carries out an effect that most calls do not need. Returns `None` if the call stops first.
    async fn perform_effect<'a>(
        &'a self,
        effect: CallEffect,
        progress: &mut CallProgress,
        work: &mut CallExecution<'a, C>,
    ) -> Result<Option<CallReport>, DriveError> {
        let stop = work.turn.stop.of_call(work.place);
        Ok(match effect {
            CallEffect::FindReceipt => Some(CallReport::ReceiptFound(match work.receipt_request() {
                Some(request) => self.run_receipts().has_receipt(request).await?,
                None => false,
            })),
            CallEffect::EvaluateApprovalRule { has_standing_approval } => {
                let rule = work.prepared.evaluate_approval(&work.ctx, has_standing_approval);
                stop.unless_stopped(rule).await.map(CallReport::ApprovalRule)
            }
            CallEffect::Hold(reason) => {
                if matches!(reason, HoldReason::Question(_)) {
                    work.end_claim().await?;
                    let keeps = self.shared.cancel.is_detaching() || self.shared.cancel.keeps_approvals();
                    if stop.is_stopped() && !keeps {
                        return Ok(None);
                    }
                } else if matches!(reason, HoldReason::Approval) {
                    let showing = work.prepared.prepare_hold(&work.ctx);
                    let _unfinished = stop.within_drain(showing).await;
                }
                Some(self.hold_call(&work.call, reason).await?)
            }
            CallEffect::Reconcile => {
                let reconciled = stop.unless_stopped(work.prepared.reconcile(&work.ctx)).await;
                if matches!(reconciled, Some(ReconcileReport::NotExecuted))
                    && self.scope.with_run(|run| run.has_inherited_key(&work.call))
                {
                    work.ctx.renew_key();
                }
                reconciled.map(CallReport::Reconciled)
            }
            CallEffect::ClaimReceipt => self.claim_receipt(work).await?.map(CallReport::Receipt),
            CallEffect::ReleaseReceipt => {
                work.claim = None;
                Some(CallReport::ReceiptReleased)
            }
            CallEffect::AcquirePermit => {
                let (tool, lasting) = (&work.prepared.tool, self.shared.config.lease_duration);
                let limits = [&tool.concurrency_permits, &self.shared.body_permits].map(Option::as_ref);
                let journal = &self.shared.journal;
                let permits = BodyPermits::acquire(journal, &tool.shared_limits, lasting, limits, stop);
                permits.await?.map(|permits| {
                    work.permits = permits;
                    CallReport::PermitAcquired
                })
            }
            CallEffect::RunEarlyInputGuardrails => {
                self.run_input_guardrails(work).await.map(CallReport::EarlyInputGuardrails)
            }
            CallEffect::RunInputGuardrails => {
                self.run_input_guardrails(work).await.map(CallReport::InputGuardrails)
            }
            CallEffect::CheckEnabled => {
                stop.unless_stopped(self.check_enabled(work)).await.map(CallReport::Enabled)
            }
            CallEffect::AnnounceStart => {
                // A hook that was notified and did not return is notified of the end, too.
                progress.assume_start_announced();
                self.announce_start(work).await.map(CallReport::StartAnnounced)
            }
            CallEffect::ReportInvalidArguments { problems } => {
                let result = invalid_arguments_result(&work.prepared.tool, &work.ctx, &problems);
                Some(CallReport::BodyEnded(result))
            }
            CallEffect::RunBody(_) => Some(self.run_nested_agent(work).await?),
            CallEffect::AwaitRetry(delay) => {
                work.permits = BodyPermits::default();
                stop.unless_stopped(tokio::time::sleep(delay)).await.map(|()| CallReport::RetryReady)
            }
            CallEffect::Withhold(result) => {
                self.withhold_output(work, &result).await?;
                Some(CallReport::BodyEnded(result))
            }
            CallEffect::RunOutputGuardrails { status, output } => {
                self.run_output_guardrails(work, status, output).await?.map(CallReport::OutputGuardrails)
            }
            CallEffect::LimitOutput(mut result) => {
                let has_reader = work.turn.tools.find_tool(&ToolKey::bare(READ_OUTPUT_TOOL)).is_some();
                let (tool, path) = (&work.prepared.tool, work.ctx.call_path());
                let (artefacts, secrets) = (&self.shared.artefacts, &self.shared.recorder.secrets);
                artefacts.limit_output(tool, path, &mut result.output, has_reader, secrets).await?;
                Some(CallReport::OutputLimited(result))
            }
            other @ (CallEffect::Start(_)
            | CallEffect::Settle(_)
            | CallEffect::AnnounceEnd
            | CallEffect::Done(_)) => return Err(self.unexpected_effect(&work.call, &other)),
        })
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
        self.scope.invalid_entry_error(&ApplyError::UnknownCall(call.clone()))
    }

    async fn hold_call(&self, call: &CallId, reason: HoldReason) -> Result<CallReport, DriveError> {
        let held = self.shared.journal.call_held(call, reason, self.shared.config.approval_expiry);
        self.scope.record_entry(JournalEntry::CallHeld(held)).await?;
        self.shared.has_held_calls.store(true, std::sync::atomic::Ordering::Relaxed);
        Ok(CallReport::Held)
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
        // Whoever goes on with the run after a crash ends it in the same way.
        let run_failure = match status {
            CallStatus::Cancelled => run_failure.or_else(|| self.ending_failure.get().map(Box::new)),
            _ => run_failure,
        };
        let withheld = self.scope.with_run(|run| run.withheld_output(call));
        let withheld = withheld.map(|_| self.scope.call_path(call));
        let guardrails = work.as_ref().map(|work| work.guardrails.clone()).unwrap_or_default();
        let settled =
            CallSettled { guardrails, run_failure, ..CallSettled::new(call.clone(), status, output) };
        let receipt_to = work.as_ref().and_then(|work| work.receipt_destination());
        let written = self.scope.enqueue_settlement(JournalEntry::CallSettled(settled), receipt_to);
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

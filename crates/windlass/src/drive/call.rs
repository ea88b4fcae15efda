//! The work on one call: an interpreter of the effects that [`Run::next_effect`](windlass_core::run::Run::next_effect)
//! asks for, from the gate through body and guardrails to the call's output and its announcement.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use windlass_core::{
    decision::HoldReason,
    id::CallId,
    item::OutputContent,
    journal::{CallSettled, CallStatus, GuardrailRecord, JournalEntry},
    plan::BodyKind,
    run::{
        ApplyError, CallEffect, CallFeatures, CallOutcome, CallProgress, CallReport, CallResult, GateVerdict,
        ReceiptVerdict, ReconcileReport, RunnableCall, StopMode, ToolNeed, model_text,
    },
    tool::ToolKey,
};

use super::Driver;
use super::turn::TurnExecution;
use crate::artefact::READ_OUTPUT_TOOL;
use crate::error::truncate_message;
use crate::guardrail::{GuardrailChecks, check_call_input, check_call_output};
use crate::hook::{AfterCall, HookEvent};
use crate::lock_unpoisoned;
use crate::observe::HookObservation;
use crate::receipts::{
    BodyHold, BodyPatience, BodyPermits, ClaimVerdict, ExecutionClaim, ReceiptDestination, ReceiptRequest,
    RunReceipts, WaitVerdict,
};
use crate::run::{DecisionCheck, DriveError, ResolvedCall, panic_failure};
use crate::tasks::{BodyAttempt, BodyExit, BodyFailure, CallStop, blocking_body_warning, record_late_end};
use crate::tool::{
    EndedBody, PreparedCall, ToolContext, failure_text, invalid_arguments_result, with_edit_note,
};

/// The work on one call, with its tool, arguments and context.
pub(super) struct CallExecution<'a, C> {
    pub(super) call: CallId,
    pub(super) prepared: PreparedCall<C>,
    pub(super) ctx: ToolContext<C>,
    pub(super) turn: &'a TurnExecution<C>,
    /// Position of the call in the model's order.
    pub(super) place: usize,
    /// Permits of the next body.
    permits: BodyPermits,
    /// Verdicts of the guardrails so far.
    pub(super) guardrails: Vec<GuardrailRecord>,
    /// Claim of an idempotent call; identical calls wait for its receipt.
    claim: Option<Arc<ExecutionClaim>>,
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

    /// Returns the hold of the next body, which has the permits then.
    fn take_hold(&mut self) -> Option<Arc<BodyHold>> {
        let (permits, key) = (std::mem::take(&mut self.permits), self.prepared.conflict_key.clone());
        BodyHold::new(permits, key, self.claim.clone())
    }

    fn patience(&self) -> BodyPatience<'_> {
        BodyPatience { stop: self.stop(), timeout: self.prepared.tool.timeout }
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
            CallEffect::ClaimReceipt => self.claim_receipt(work).await?,
            CallEffect::ReleaseReceipt => {
                work.claim = None;
                Some(CallReport::ReceiptReleased)
            }
            CallEffect::AcquirePermit => match self.acquire_permits(work).await? {
                WaitVerdict::Granted(permits) => {
                    work.permits = permits;
                    Some(CallReport::Permit(GateVerdict::Pass))
                }
                WaitVerdict::BodyStillRuns => Some(self.refuse_waiting_call(work).await),
                WaitVerdict::Stopped => None,
            },
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
    ) -> Result<Option<CallReport>, DriveError> {
        let claimed = Some(CallReport::Receipt(ReceiptVerdict::Claimed));
        let Some(request) = work.receipt_request() else { return Ok(claimed) };
        self.shared.key_scopes.check_tool(work.turn.agent.name(), &work.prepared.tool)?;
        Ok(match self.run_receipts().claim(request, work.patience()).await? {
            WaitVerdict::Granted(ClaimVerdict::Claimed { claim, generation }) => {
                work.ctx.fix_key(generation);
                work.claim = Some(claim);
                claimed
            }
            WaitVerdict::Granted(ClaimVerdict::Completed(output)) => {
                Some(CallReport::Receipt(ReceiptVerdict::Completed(output)))
            }
            // The body of this call has ended under an earlier driver, and runs beside no other.
            WaitVerdict::BodyStillRuns
                if self.scope.with_run(|run| run.withheld_output(&work.call).is_some()) =>
            {
                claimed
            }
            WaitVerdict::BodyStillRuns => Some(self.refuse_waiting_call(work).await),
            WaitVerdict::Stopped => None,
        })
    }

    /// Acquires what the body of a call needs to begin, and waits while bodies are in the way.
    async fn acquire_permits(
        &self,
        work: &CallExecution<'_, C>,
    ) -> Result<WaitVerdict<BodyPermits>, DriveError> {
        let (tool, patience) = (&work.prepared.tool, work.patience());
        if let Some(key) = &work.prepared.conflict_key {
            match self.shared.late_keys.wait(key, patience).await {
                WaitVerdict::Granted(()) => {}
                WaitVerdict::BodyStillRuns => return Ok(WaitVerdict::BodyStillRuns),
                WaitVerdict::Stopped => return Ok(WaitVerdict::Stopped),
            }
        }
        let limits = [&tool.body_limit, &work.turn.body_limit, &self.shared.body_limit];
        let (journal, lasting) = (&self.shared.journal, self.shared.config.lease_duration);
        let limits = limits.into_iter().flatten();
        Ok(BodyPermits::acquire(journal, &tool.shared_limits, lasting, limits, patience).await?)
    }

    /// Returns the report of a call that does not begin, because a body that outlived its deadline still runs.
    async fn refuse_waiting_call(&self, work: &CallExecution<'_, C>) -> CallReport {
        let path = work.ctx.call_path();
        let message = format!(
            "call `{path}` was not executed: the body of an earlier call exceeded its time limit and still runs"
        );
        self.scope.emit_warning(truncate_message(message)).await;
        let output = model_text::EARLIER_CALL_RUNS;
        CallReport::Permit(GateVerdict::End(CallResult::new(CallStatus::BlockedByGuardrail, output)))
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
        mut work: Option<&'a mut CallExecution<'_, C>>,
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
        if let Some(work) = work.as_mut() {
            // A call that does not run its body any more needs no permit.
            work.permits = BodyPermits::default();
        }
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

    /// Runs the input guardrails in order. Returns `None` if the call stops first. Of verdicts before and after an approval,
    /// the later ones count.
    async fn run_input_guardrails(&self, work: &mut CallExecution<'_, C>) -> Option<GateVerdict> {
        work.guardrails.clear();
        let mut checks = GuardrailChecks::default();
        let verdict = check_call_input(&work.prepared.tool, &work.ctx, work.stop(), &mut checks).await;
        self.keep_verdicts(work, checks).await;
        verdict
    }

    /// Keeps the verdicts of guardrails for the settlement, and warns of one that failed.
    async fn keep_verdicts(&self, work: &mut CallExecution<'_, C>, checks: GuardrailChecks) {
        work.guardrails.extend(checks.verdicts);
        if let Some(message) = checks.warning {
            self.scope.emit_warning(message).await;
        }
    }

    /// Asks whether the tool is enabled now. If it is not, the call ends as the call of an unknown tool does. A rule that
    /// panics fails the run.
    async fn check_enabled(&self, work: &CallExecution<'_, C>) -> GateVerdict {
        let (tool, ctx) = (&work.prepared.tool, work.ctx.run_context());
        let available = async {
            match tool.enabled.evaluate(ctx).await {
                true => None,
                false => Some(work.turn.tools.enabled_names(ctx).await),
            }
        };
        GateVerdict::End(match AssertUnwindSafe(available).catch_unwind().await {
            Ok(None) => return GateVerdict::Pass,
            Ok(Some(available)) => {
                let policy = &self.shared.config.on_unknown_tool;
                policy.call_result(tool.name(), work.turn.agent.name(), available)
            }
            Err(panic) => {
                let status = CallStatus::BlockedByGuardrail;
                CallResult::failing_run(status, model_text::CANCELLED, panic_failure(panic))
            }
        })
    }

    /// Notifies the hooks of the start. Returns `None` if the call stops first. A hook that fails fails the call.
    async fn announce_start(&self, work: &CallExecution<'_, C>) -> Option<GateVerdict> {
        let is_repeated = self.scope.with_run(|run| run.running_attempt(&work.call)) > Some(1);
        let ctx = work.ctx.clone();
        let told = self.scope.notify_hooks(&work.turn.agent, || HookEvent::CallStarted { ctx, is_repeated });
        let Some(told) = told else { return Some(GateVerdict::Pass) };
        match work.stop().unless_stopped(told).await? {
            Ok(()) => Some(GateVerdict::Pass),
            Err(error) => {
                let message = truncate_message(format!("hook `call_started` failed: {error}"));
                self.scope.emit_warning(message).await;
                // A call with invalid arguments has no body that could have failed.
                let has_body = self.scope.with_run(|run| run.has_call_started(&work.call));
                let status = if has_body { CallStatus::Failed } else { CallStatus::InvalidArguments };
                Some(GateVerdict::End(CallResult::new(status, failure_text(None))))
            }
        }
    }

    /// Keeps the output of a body where only drivers read it, then records the end of the body.
    async fn withhold_output(
        &self,
        work: &CallExecution<'_, C>,
        result: &CallResult,
    ) -> Result<(), DriveError> {
        // Secrets are nowhere outside the process.
        let path = work.ctx.call_path();
        let secrets = &self.shared.recorder.secrets;
        let kept = secrets.redact_kept_output(path.parent_calls(), path.call(), result.output.clone());
        let ended = CallResult::new(result.status.clone(), kept);
        let entry = ended.body_ended_entry(&work.call);
        self.shared.withheld.save(&self.shared.journal, path, ended.output).await?;
        self.scope.record_entry(entry).await
    }

    /// Runs the output guardrails in order, each on the output of the previous one. Returns `None` if the call stops and
    /// they do not finish within the drain timeout.
    async fn run_output_guardrails(
        &self,
        work: &mut CallExecution<'_, C>,
        status: CallStatus,
        output: Option<OutputContent>,
    ) -> Result<Option<CallResult>, DriveError> {
        let output = match output {
            Some(output) => output,
            None => {
                let recorded = self.scope.with_run(|run| run.withheld_output(&work.call));
                let kept = self.shared.withheld.load(&self.shared.journal, work.ctx.call_path()).await?;
                match kept.filter(|output| Some(output.digest()) == recorded) {
                    Some(output) => output,
                    None => {
                        let result = CallResult::new(CallStatus::OutputWithheld, model_text::OUTPUT_LOST);
                        return Ok(Some(result));
                    }
                }
            }
        };
        let mut checks = GuardrailChecks::default();
        let result = CallResult::new(status, output);
        let checking = check_call_output(&work.prepared.tool, &work.ctx, result, &mut checks);
        let checked = work.stop().within_drain(checking).await;
        self.keep_verdicts(work, checks).await;
        Ok(checked)
    }

    /// Notifies the hooks of a settlement. They cannot change it.
    async fn announce_end(
        &self,
        observed: HookObservation,
        work: &CallExecution<'_, C>,
        is_start_announced: bool,
    ) {
        let HookObservation::CallEnded { status, output, info, .. } = observed else { return };
        if !is_start_announced && status != CallStatus::Reconciled {
            return;
        }
        let after_call = AfterCall::of_call(&status, work.stop().is_run_ending());
        let ctx = work.ctx.clone();
        let event = HookEvent::CallEnded { ctx, status, output, after_call, info, is_repeated: false };
        self.scope.notify_hooks_after(&work.turn.agent, event, work.stop()).await;
    }

    /// Runs one attempt of a call's body.
    fn run_body<'a>(
        &'a self,
        runnable: &'a RunnableCall,
        work: &'a mut CallExecution<'_, C>,
    ) -> impl Future<Output = CallReport> + Send {
        let (prepared, hold) = (work.prepared.prepared_body.take(), work.take_hold());
        let work = &*work;
        let attempt = BodyAttempt {
            tool: &work.prepared.tool,
            arguments: &work.prepared.arguments,
            ctx: &work.ctx,
            layers: &self.shared.config.call_layers,
            cancel: &self.shared.cancel,
            events: &work.turn.events,
            stop: work.stop(),
            starting_calls: &work.turn.starting_calls,
            hold: hold.clone(),
        }
        .run(prepared);
        async move {
            let ended = match work.ctx.progress() {
                Some(progress) => {
                    let observers = (&work.turn.agent, &work.ctx);
                    self.scope.relay_progress(progress, attempt, observers, work.stop()).boxed().await
                }
                None => attempt.await,
            };
            if let Some(hold) = hold
                && ended.late_body.is_some()
            {
                hold.mark_late(&self.shared.late_keys);
            }
            if let Some(blocked) = ended.blocked {
                let tool = work.prepared.tool.key();
                tracing::warn!(%tool, blocked_ms = blocked.as_millis(), "an async tool body blocked its thread");
                self.scope.emit_warning(blocking_body_warning(tool, blocked)).boxed().await;
            }
            if let Some(running) = ended.late_body {
                if matches!(ended.exit, BodyExit::Failed(BodyFailure::Cancelled)) {
                    lock_unpoisoned(&self.shared.draining_calls).push(work.ctx.call_path().clone());
                }
                let (ctx, tool) = (work.ctx.clone(), work.prepared.tool.clone());
                let mask = self.shared.recorder.secrets.mask();
                record_late_end(running, &self.shared.journal, ctx, tool, mask);
            }
            let failure = match ended.exit {
                BodyExit::Returned(output) => {
                    return CallReport::BodyEnded(CallResult::new(CallStatus::Succeeded, output));
                }
                BodyExit::Failed(failure) => failure,
            };
            let (report, warning) =
                self.ended_body(work).report_attempt(failure, runnable, ended.was_stopped);
            if let Some(warning) = warning {
                self.scope.emit_warning(warning).boxed().await;
            }
            report
        }
    }

    /// Returns a call whose body ended, for its report.
    pub(super) fn ended_body<'a>(&self, work: &'a CallExecution<'_, C>) -> EndedBody<'a, C> {
        let (prepared, ctx) = (&work.prepared, &work.ctx);
        EndedBody { prepared, ctx, stop: work.stop(), stop_mode: self.stop_mode() }
    }
}

//! Execution of one call, from its plan to its output. The order of this file is the order of a call.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use futures_util::future::Either;
use tokio::sync::OwnedSemaphorePermit;
use windlass_core::{
    decision::{AnsweredQuestion, HoldReason},
    failure::RunFailure,
    id::{CallId, CallPath, Timestamp},
    item::OutputContent,
    journal::{CallHeld, CallSettled, CallStatus, JournalEntry},
    plan::BodyKind,
    run::{ApprovalCheck, CallAction, InDoubtCall, InvalidCall, RunnableCall},
    tool::{ToolEffect, ToolKey},
};

use super::body::BodyOutcome;
use super::call_result::{CallResult, custom_failure_text, failure_text, with_edit_note};
use super::execution_claim::ExecutionClaim;
use super::prepare::PreparedCall;
use super::stop::{unless_stopped, wait_unless_stopped};
use super::turn_calls::TurnExecution;
use super::{DriveError, Driver, OutputVisibility};
use crate::artefact::READ_OUTPUT_TOOL;
use crate::error::truncate_message;
use crate::event::RunEventKind;
use crate::hook::{AfterCall, HookEvent};
use crate::tool::{CallDetails, OnFailure, ReconcileOutcome, ToolContext, ToolError};

/// The outcome of the work on a call.
pub(super) enum CallOutcome {
    /// The call has its output.
    Settled,
    /// The call waits for a person.
    Held,
    /// The call stays open for another driver.
    LeftOpen,
    /// The call has its output, and the run fails.
    FailsRun(Box<RunFailure>),
    /// This driver cannot continue the run.
    Aborted(DriveError),
}

/// The execution of one call, with its tool, arguments and context.
pub(super) struct CallExecution<'a, C> {
    pub(super) call: CallId,
    pub(super) prepared: PreparedCall<C>,
    pub(super) ctx: ToolContext<C>,
    pub(super) turn: &'a TurnExecution<C>,
}

/// The permits that a call holds while it runs.
struct AdmittedCall<'a> {
    _permit: Option<OwnedSemaphorePermit>,
    /// Claim of an idempotent call; identical calls wait for its receipt.
    claim: Option<Box<ExecutionClaim<'a>>>,
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Executes the call at a position in the model's order.
    ///
    /// A turn may have many concurrent calls, so the futures of rare steps are boxed.
    pub(super) fn execute_call<'a>(
        &'a self,
        place: usize,
        step: CallAction,
        ready: Option<PreparedCall<C>>,
        turn: &'a TurnExecution<C>,
    ) -> impl Future<Output = (usize, CallOutcome)> + Send + 'a {
        let ended = match (step, ready) {
            (CallAction::Execute(runnable), Some(ready)) => {
                let replies = match runnable.attempt() {
                    1 => Vec::new(),
                    _ => self.with_run(|run| run.answered_questions(runnable.call()).to_vec()),
                };
                let mut work = self.new_execution_with_answers(runnable.call(), ready, replies, turn);
                Either::Left(async move { self.run_call(&runnable, &mut work).await })
            }
            (step, ready) => Either::Right(self.run_other_step(step, ready, turn).boxed()),
        };
        ended.map(move |ended| (place, ended.unwrap_or_else(CallOutcome::Aborted)))
    }

    async fn run_other_step(
        &self,
        step: CallAction,
        ready: Option<PreparedCall<C>>,
        turn: &TurnExecution<C>,
    ) -> Result<CallOutcome, DriveError> {
        match (step, ready) {
            (CallAction::Settle(step), _) => {
                self.settle_call(None, step.settled).await.map(|()| CallOutcome::Settled)
            }
            (CallAction::CheckApproval(step), Some(ready)) => self.check_approval(step, ready, turn).await,
            (CallAction::ReportInvalidArguments(step), Some(ready)) => {
                self.report_invalid_arguments(step, ready, turn).await
            }
            (CallAction::ResolveDoubt(doubt), Some(ready)) => self.resolve_doubt(doubt, ready, turn).await,
            (CallAction::ReportInvalidArguments(step), None) => {
                let settled = CallSettled::new(
                    step.call,
                    CallStatus::InvalidArguments,
                    failure_text(Some(&step.problems)),
                );
                self.settle_call(None, settled).await.map(|()| CallOutcome::Settled)
            }
            (
                step @ (CallAction::CheckApproval(_) | CallAction::Execute(_) | CallAction::ResolveDoubt(_)),
                _,
            ) => {
                Err(self
                    .invalid_entry_error(&windlass_core::run::ApplyError::UnknownCall(step.call().clone())))
            }
        }
    }

    pub(super) fn new_execution<'a>(
        &self,
        call: &CallId,
        ready: PreparedCall<C>,
        turn: &'a TurnExecution<C>,
    ) -> CallExecution<'a, C> {
        self.new_execution_with_answers(call, ready, Vec::new(), turn)
    }

    fn new_execution_with_answers<'a>(
        &self,
        call: &CallId,
        ready: PreparedCall<C>,
        replies: Vec<AnsweredQuestion>,
        turn: &'a TurnExecution<C>,
    ) -> CallExecution<'a, C> {
        let facts = CallDetails {
            tool: ready.tool.clone(),
            arguments: ready.arguments.clone(),
            raw_arguments: ready.raw_arguments.clone(),
            answered_questions: replies,
        };
        let ctx = ToolContext::new(turn.context.clone(), call.clone(), facts);
        CallExecution { call: call.clone(), prepared: ready, ctx, turn }
    }

    /// Decides if the call requires approval, and holds it or runs it.
    async fn check_approval(
        &self,
        step: ApprovalCheck,
        ready: PreparedCall<C>,
        turn: &TurnExecution<C>,
    ) -> Result<CallOutcome, DriveError> {
        let mut work = self.new_execution(step.call(), ready, turn);
        if let Some(given) = self.find_receipt(&work) {
            return self.settle_result(&work, given, StartNotice::NotAnnounced).await;
        }
        if let Some(given) = self.blocked_by_predecessor(&work) {
            return self.settle_result(&work, given, StartNotice::NotAnnounced).await;
        }
        let asks = async {
            match work.prepared.rule_arguments() {
                Some(arguments) if step.must_ask_rule() => {
                    let tool = &work.prepared.tool;
                    tool.each_time_approval.requires_approval(work.ctx.clone(), arguments).await
                        || (!step.has_standing_approval()
                            && tool.approval.requires_approval(work.ctx.clone(), arguments).await)
                }
                _ => true,
            }
        };
        let Some(asks) = unless_stopped(&turn.stop, asks).await else {
            return self.settle_result(&work, CallResult::cancelled(), StartNotice::NotAnnounced).await;
        };
        if let (false, Some(runnable)) = (asks, step.approve_by_rule()) {
            return self.run_call(&runnable, &mut work).await;
        }
        if self.shared.config.pre_approval_guardrails
            && let Some(given) = self.run_input_guardrails(&work).await
        {
            return self.settle_result(&work, *given, StartNotice::NotAnnounced).await;
        }
        let expires = self.shared.config.approval_expiry.map(|expiry| {
            Timestamp(
                self.shared
                    .journal
                    .now()
                    .0
                    .saturating_add(u64::try_from(expiry.as_millis()).unwrap_or(u64::MAX)),
            )
        });
        let held = CallHeld { call: work.call.clone(), reason: HoldReason::Approval, expires_at: expires };
        self.hold_call(held).await
    }

    async fn hold_call(&self, held: CallHeld) -> Result<CallOutcome, DriveError> {
        let call = held.call.clone();
        self.record_entry(JournalEntry::CallHeld(held)).await?;
        if self.emitter.is_watched() {
            let pending = self.with_run(|run| run.pending_call(&call));
            if let Some(mut pending) = pending {
                pending.path = CallPath::new(&self.parent_calls, call);
                self.emitter.emit(RunEventKind::CallHeld(Box::new(pending))).await;
            }
        }
        Ok(CallOutcome::Held)
    }

    /// Runs the guardrails, makes the start of the call durable, and runs its body.
    async fn run_call(
        &self,
        runnable: &RunnableCall,
        work: &mut CallExecution<'_, C>,
    ) -> Result<CallOutcome, DriveError> {
        if runnable.body() == BodyKind::Agent && self.with_run(|run| run.is_call_running(&work.call)) {
            return self.resume_nested_agent(work).boxed().await;
        }
        let admitted = match self.admit_call(runnable, work).await? {
            Ok(admitted) => admitted,
            Err(end) => return Ok(end),
        };
        match runnable.body() {
            BodyKind::Agent => self.start_nested_agent(work).boxed().await,
            BodyKind::Function => match self.run_body(runnable, work).await? {
                BodyOutcome::Completed(given) if admitted.claim.is_none() => {
                    self.finish_call(work, given).await
                }
                ended => self.conclude_call(ended, admitted, work).boxed().await,
            },
        }
    }

    /// Checks everything that may prevent the start of a call; then records and announces the start.
    async fn admit_call<'a>(
        &'a self,
        runnable: &RunnableCall,
        work: &CallExecution<'_, C>,
    ) -> Result<Result<AdmittedCall<'a>, CallOutcome>, DriveError> {
        if let Some(given) = self.blocked_by_predecessor(work) {
            return self.settle_result(work, given, StartNotice::NotAnnounced).boxed().await.map(Err);
        }
        let permit = match &work.prepared.tool.concurrency_permits {
            Some(permits) => match permits.clone().try_acquire_owned() {
                Ok(permit) => Some(permit),
                Err(_) => {
                    match wait_unless_stopped(&work.turn.stop, permits.clone().acquire_owned()).boxed().await
                    {
                        Some(permit) => permit.ok(),
                        None => {
                            let given = CallResult::cancelled();
                            return self
                                .settle_result(work, given, StartNotice::NotAnnounced)
                                .boxed()
                                .await
                                .map(Err);
                        }
                    }
                }
            },
            None => None,
        };
        let right = if work.prepared.tool.effect == ToolEffect::Idempotent {
            match self.claim_execution(work).boxed().await? {
                Ok(right) => right,
                Err(given) => {
                    return self
                        .settle_result(work, *given, StartNotice::NotAnnounced)
                        .boxed()
                        .await
                        .map(Err);
                }
            }
        } else {
            None
        };
        if let Some(given) = self.run_input_guardrails(work).await {
            return self.settle_result(work, *given, StartNotice::NotAnnounced).boxed().await.map(Err);
        }
        self.wait_durable(self.apply_and_enqueue(runnable.start_entry())?).await?;
        // A call that goes on with an answer was told to have started when it asked.
        if work.ctx.answered_questions().is_empty()
            && let Err(given) = self.announce_start(work).await
        {
            return self.settle_result(work, *given, StartNotice::Announced).boxed().await.map(Err);
        }
        Ok(Ok(AdmittedCall { _permit: permit, claim: right }))
    }

    /// Concludes a call that asks a person, or whose receipt identical calls wait for.
    async fn conclude_call(
        &self,
        ended: BodyOutcome,
        admitted: AdmittedCall<'_>,
        work: &CallExecution<'_, C>,
    ) -> Result<CallOutcome, DriveError> {
        match ended {
            BodyOutcome::Completed(given) => {
                let end = self.finish_call(work, given).await?;
                if let Some(right) = admitted.claim {
                    self.publish_result(*right, work.prepared.tool.receipt_policy.expire_after).await?;
                }
                Ok(end)
            }
            BodyOutcome::AsksPerson(question) => {
                if let Some(right) = admitted.claim {
                    self.publish_result(*right, None).await?;
                }
                let cancel = &self.shared.cancel;
                let is_kept = cancel.is_detaching() || cancel.keeps_approvals();
                if work.turn.stop.is_cancelled() && !is_kept {
                    return self.settle_result(work, CallResult::cancelled(), StartNotice::Announced).await;
                }
                self.hold_call(CallHeld::for_question(work.call.clone(), *question)).await
            }
        }
    }

    async fn announce_start(&self, work: &CallExecution<'_, C>) -> Result<(), Box<CallResult>> {
        if self.emitter.is_watched() {
            let tool = work.prepared.tool.key().clone();
            self.emitter.emit(RunEventKind::CallStarted { call: work.call.clone(), tool }).await;
        }
        let told = self.notify_hooks(&work.turn.agent, || HookEvent::CallStarted { ctx: work.ctx.clone() });
        let Some(told) = told else { return Ok(()) };
        match unless_stopped(&work.turn.stop, told).boxed().await {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => {
                let message = truncate_message(format!("hook `call_started` failed: {error}"));
                self.emitter.emit(RunEventKind::Warning { message }).await;
                Err(Box::new(CallResult::new(CallStatus::Failed, failure_text(None))))
            }
            None => Err(Box::new(CallResult::cancelled())),
        }
    }

    /// Turns the body's result into the call's output: runs the output guardrails and truncates it if
    /// necessary.
    pub(super) fn finish_call<'a>(
        &'a self,
        work: &'a CallExecution<'a, C>,
        given: CallResult,
    ) -> impl Future<Output = Result<CallOutcome, DriveError>> + Send {
        let is_plain = given.status == CallStatus::Cancelled
            || given.failure.is_some()
            || (work.prepared.tool.output_guardrails.is_empty() && !is_over_budget(work, &given));
        if is_plain {
            return Either::Left(self.settle_result(work, given, StartNotice::Announced));
        }
        let finishing = async move {
            let mut given = self.run_output_guardrails(work, given).await;
            if is_over_budget(work, &given) {
                given = self.truncate_to_budget(work, given).await?;
            }
            self.settle_result(work, given, StartNotice::Announced).await
        };
        Either::Right(finishing.boxed())
    }

    /// Truncates text to the tool's output limit, adds a note, and stores the full text.
    async fn truncate_to_budget(
        &self,
        work: &CallExecution<'_, C>,
        mut given: CallResult,
    ) -> Result<CallResult, DriveError> {
        let budget = work.prepared.tool.max_output_bytes;
        if let OutputContent::Text(output) = &mut given.output
            && output.len() > budget
        {
            let is_kept = work.prepared.tool.output_visibility == OutputVisibility::Public;
            let (whole, shown) = (output.len(), output.floor_char_boundary(budget));
            let name = work.ctx.call_path().to_string();
            if is_kept {
                self.shared.artefacts.save(&name, output).await?;
            }
            output.truncate(shown);
            let mut note = format!("\n[cut: {shown} of {whole} bytes are shown");
            if is_kept && work.turn.tools.find_tool(&ToolKey::bare(READ_OUTPUT_TOOL)).is_some() {
                note.push_str(&format!(
                    "; `{READ_OUTPUT_TOOL}` reads on with {{\"call\": \"{name}\", \"from\": {shown}}}"
                ));
            }
            output.push_str(&note);
            output.push(']');
        }
        Ok(given)
    }

    /// Settles a call with a result.
    fn settle_result<'a>(
        &'a self,
        work: &'a CallExecution<'a, C>,
        given: CallResult,
        started: StartNotice,
    ) -> impl Future<Output = Result<CallOutcome, DriveError>> + Send {
        let is_left = given.status == CallStatus::Cancelled && self.shared.cancel.is_detaching();
        let ends_run = given.failure.is_some();
        let ends = ends_run || given.status == CallStatus::Cancelled || work.turn.stop.is_cancelled();
        let then = if ends { AfterCall::RunEnds } else { AfterCall::RunContinues };
        let told = match started {
            StartNotice::Announced => Some((work, then)),
            StartNotice::NotAnnounced => None,
        };
        let CallResult { status: how, output, failure } = given;
        let settling = (!is_left).then(|| {
            let output = match &work.prepared.edited_arguments {
                Some(edited) if how != CallStatus::Cancelled => with_edit_note(edited, output),
                Some(_) | None => output,
            };
            self.settle_call(told, CallSettled { call: work.call.clone(), status: how, output, ends_run })
        });
        match settling {
            None => Either::Left(std::future::ready(Ok(CallOutcome::LeftOpen))),
            Some(settling) => {
                let end = failure.map_or(CallOutcome::Settled, CallOutcome::FailsRun);
                Either::Right(settling.map(move |settled| settled.map(|()| end)))
            }
        }
    }

    /// Records a call's output, then notifies watchers and hooks, which cannot change it.
    pub(super) fn settle_call<'a>(
        &'a self,
        told: Option<(&'a CallExecution<'a, C>, AfterCall)>,
        settled: CallSettled,
    ) -> impl Future<Output = Result<(), DriveError>> + Send {
        let told = told.filter(|(work, _)| self.has_hooks(&work.turn.agent));
        let needs_telling = self.emitter.is_watched() || told.is_some();
        let copy = needs_telling.then(|| settled.clone());
        let writing = self.apply_and_enqueue(JournalEntry::CallSettled(settled));
        let telling = copy.map(|copy| self.announce_settled(told, copy).boxed());
        async move {
            self.wait_durable(writing?).await?;
            if let Some(telling) = telling {
                telling.await;
            }
            Ok(())
        }
    }

    async fn announce_settled(&self, told: Option<(&CallExecution<'_, C>, AfterCall)>, settled: CallSettled) {
        let CallSettled { call, status: how, output, .. } = settled;
        if self.emitter.is_watched() {
            let (how, output) = (how.clone(), output.clone());
            self.emitter.emit(RunEventKind::CallSettled { call, status: how, output }).await;
        }
        if let Some((work, then)) = told {
            let ctx = work.ctx.clone();
            let told = self.notify_hooks(&work.turn.agent, || HookEvent::CallEnded {
                ctx,
                status: how,
                output,
                after_call: then,
            });
            let Some(told) = told else { return };
            let stopped = async {
                work.turn.stop.cancelled().await;
                tokio::time::sleep(self.shared.config.drain_timeout).await;
            };
            let message = tokio::select! {
                biased;
                told = told => told.err().map(|error| truncate_message(format!("hook `call_ended` failed: {error}"))),
                () = stopped => Some("hook `call_ended` did not come back".to_owned()),
            };
            if let Some(message) = message {
                self.emitter.emit(RunEventKind::Warning { message }).await;
            }
        }
    }

    /// Reports invalid arguments to the model. Guardrails and hooks see the call; the body does not run.
    async fn report_invalid_arguments(
        &self,
        step: InvalidCall,
        ready: PreparedCall<C>,
        turn: &TurnExecution<C>,
    ) -> Result<CallOutcome, DriveError> {
        let work = self.new_execution(&step.call, ready, turn);
        if let Some(given) = self.run_input_guardrails(&work).await {
            return self.settle_result(&work, *given, StartNotice::NotAnnounced).await;
        }
        if let Err(given) = self.announce_start(&work).await {
            return self.settle_result(&work, *given, StartNotice::Announced).await;
        }
        let tool = &work.prepared.tool;
        let given = match &tool.on_failure {
            OnFailure::HideError | OnFailure::ShowError => {
                CallResult::new(CallStatus::InvalidArguments, failure_text(Some(&step.problems)))
            }
            OnFailure::CustomMessage(say) => CallResult::new(
                CallStatus::InvalidArguments,
                custom_failure_text(say, &work.ctx, &ToolError::visible(&*step.problems)),
            ),
            OnFailure::FailRun => {
                let failure = RunFailure::InvalidArguments {
                    tool: tool.key().to_string(),
                    call: work.call.clone(),
                    problems: step.problems.clone(),
                };
                CallResult::failing_run(
                    CallStatus::InvalidArguments,
                    failure_text(Some(&step.problems)),
                    failure,
                )
            }
        };
        self.finish_call(&work, given).await
    }

    /// Resolves a call that an earlier driver started: by the tool's reconcile function, or else by a person.
    async fn resolve_doubt(
        &self,
        doubt: InDoubtCall,
        ready: PreparedCall<C>,
        turn: &TurnExecution<C>,
    ) -> Result<CallOutcome, DriveError> {
        let mut work = self.new_execution(&doubt.call, ready, turn);
        let known = match &work.prepared.tool.reconcile {
            Some(reconcile) => {
                let asked = AssertUnwindSafe(async { reconcile(work.ctx.clone()).await }).catch_unwind();
                unless_stopped(&turn.stop, asked)
                    .await
                    .and_then(Result::ok)
                    .unwrap_or(ReconcileOutcome::Unknown)
            }
            None => ReconcileOutcome::Unknown,
        };
        match known {
            ReconcileOutcome::Executed(output) => {
                self.settle_result(
                    &work,
                    CallResult::new(CallStatus::Reconciled, output),
                    StartNotice::NotAnnounced,
                )
                .await
            }
            ReconcileOutcome::NotExecuted => self.run_call(&doubt.confirm_not_executed(), &mut work).await,
            ReconcileOutcome::Unknown => {
                self.hold_call(CallHeld { call: work.call, reason: HoldReason::InDoubt, expires_at: None })
                    .await
            }
        }
    }
}

/// The announcement state of a call's start; an announced start requires an announced end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StartNotice {
    Announced,
    NotAnnounced,
}

fn is_over_budget<C>(work: &CallExecution<'_, C>, given: &CallResult) -> bool {
    matches!(&given.output, OutputContent::Text(text) if text.len() > work.prepared.tool.max_output_bytes)
}

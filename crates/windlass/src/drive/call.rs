//! One call, from its plan to its output. The order of this file is the order of a call.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use futures_util::future::Either;
use tokio::sync::OwnedSemaphorePermit;
use windlass_core::{
    BodyKind, CallId, CallPath, CallSettled, Doubt, Effect, Entry, Failure, GateStep, Held, HoldReason, How,
    InvalidStep, OutputContent, Reply, Runnable, Step, Timestamp, ToolKey,
};

use super::body::Ended;
use super::calls::TurnWork;
use super::prepare::Ready;
use super::receipt::Right;
use super::stop::{unless_stopped, waited_for};
use super::told::{Given, failed, said, told_of_edit};
use super::{Driver, Halt, Visibility};
use crate::artefact::READ_ON;
use crate::error::readable;
use crate::event::EventKind;
use crate::hook::{Moment, Then};
use crate::tool::{CallFacts, OnFailure, Reconciled, ToolContext, ToolError};

/// How the work on a call ended.
pub(super) enum CallEnd {
    /// It has its output.
    Settled,
    /// It waits for a person.
    Held,
    /// It is left as it is, for another driver.
    Left,
    /// It has its output, and the run fails.
    Fatal(Box<Failure>),
    /// The run cannot go on here.
    Broken(Halt),
}

/// One call and what it works with.
pub(super) struct CallWork<'a, C> {
    pub(super) call: CallId,
    pub(super) ready: Ready<C>,
    pub(super) ctx: ToolContext<C>,
    pub(super) turn: &'a TurnWork<C>,
}

/// What a call holds while it runs.
struct Admitted<'a> {
    _permit: Option<OwnedSemaphorePermit>,
    /// Others wait for it to share its receipt.
    right: Option<Box<Right<'a>>>,
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Works on the call at a place in the model's order.
    ///
    /// There may be many calls at once, so what most of them never come to has its state on the side.
    pub(super) fn call<'a>(
        &'a self,
        place: usize,
        step: Step,
        ready: Option<Ready<C>>,
        turn: &'a TurnWork<C>,
    ) -> impl Future<Output = (usize, CallEnd)> + Send + 'a {
        let ended = match (step, ready) {
            (Step::Run(runnable), Some(ready)) => {
                let replies = match runnable.attempt() {
                    1 => Vec::new(),
                    _ => self.locked(|run| run.replies(runnable.call()).to_vec()),
                };
                let mut work = self.begin_with(runnable.call(), ready, replies, turn);
                Either::Left(async move { self.run_call(&runnable, &mut work).await })
            }
            (step, ready) => Either::Right(self.rarely(step, ready, turn).boxed()),
        };
        ended.map(move |ended| (place, ended.unwrap_or_else(CallEnd::Broken)))
    }

    async fn rarely(&self, step: Step, ready: Option<Ready<C>>, turn: &TurnWork<C>) -> Result<CallEnd, Halt> {
        match (step, ready) {
            (Step::Settle(step), _) => self.settle(None, step.settled).await.map(|()| CallEnd::Settled),
            (Step::Gate(step), Some(ready)) => self.gate(step, ready, turn).await,
            (Step::Invalid(step), Some(ready)) => self.invalid(step, ready, turn).await,
            (Step::Doubt(doubt), Some(ready)) => self.doubt(doubt, ready, turn).await,
            (Step::Invalid(step), None) => {
                let settled = CallSettled::new(step.call, How::Invalid, failed(Some(&step.problems)));
                self.settle(None, settled).await.map(|()| CallEnd::Settled)
            }
            (step @ (Step::Gate(_) | Step::Run(_) | Step::Doubt(_)), _) => {
                Err(self.broken(&windlass_core::Illegal::NoSuchCall(step.call().clone())))
            }
        }
    }

    pub(super) fn begin<'a>(&self, call: &CallId, ready: Ready<C>, turn: &'a TurnWork<C>) -> CallWork<'a, C> {
        self.begin_with(call, ready, Vec::new(), turn)
    }

    fn begin_with<'a>(
        &self,
        call: &CallId,
        ready: Ready<C>,
        replies: Vec<Reply>,
        turn: &'a TurnWork<C>,
    ) -> CallWork<'a, C> {
        let facts = CallFacts {
            tool: ready.tool.clone(),
            arguments: ready.arguments.clone(),
            raw_arguments: ready.raw.clone(),
            replies,
        };
        let ctx = ToolContext::new(turn.around.clone(), call.clone(), facts);
        CallWork { call: call.clone(), ready, ctx, turn }
    }

    /// Finds out whether a person must decide, and holds the call or runs it.
    async fn gate(&self, step: GateStep, ready: Ready<C>, turn: &TurnWork<C>) -> Result<CallEnd, Halt> {
        let mut work = self.begin(step.call(), ready, turn);
        if let Some(given) = self.receipt(&work) {
            return self.settle_given(&work, given, Started::No).await;
        }
        if let Some(given) = self.broken_off(&work) {
            return self.settle_given(&work, given, Started::No).await;
        }
        let asks = async {
            match work.ready.shown() {
                Some(arguments) if step.asks_rule() => {
                    let tool = &work.ready.tool;
                    tool.each.asks(work.ctx.clone(), arguments).await
                        || (!step.is_covered() && tool.approval.asks(work.ctx.clone(), arguments).await)
                }
                _ => true,
            }
        };
        let Some(asks) = unless_stopped(&turn.stop, asks).await else {
            return self.settle_given(&work, Given::cancelled(), Started::No).await;
        };
        if let (false, Some(runnable)) = (asks, step.free()) {
            return self.run_call(&runnable, &mut work).await;
        }
        if self.shared.config.early_guardrails
            && let Some(given) = self.guard_input(&work).await
        {
            return self.settle_given(&work, *given, Started::No).await;
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
        let held = Held { call: work.call.clone(), reason: HoldReason::Approval, expires };
        self.hold(held).await
    }

    async fn hold(&self, held: Held) -> Result<CallEnd, Halt> {
        let call = held.call.clone();
        self.record(Entry::Held(held)).await?;
        if self.emitter.is_watched() {
            let pending = self.locked(|run| run.pending_call(&call));
            if let Some(mut pending) = pending {
                pending.path = CallPath::new(&self.path, call);
                self.emitter.emit(EventKind::Held(Box::new(pending))).await;
            }
        }
        Ok(CallEnd::Held)
    }

    /// Guards the call, makes its start durable, and runs its body.
    async fn run_call(&self, runnable: &Runnable, work: &mut CallWork<'_, C>) -> Result<CallEnd, Halt> {
        if runnable.body() == BodyKind::Agent && self.locked(|run| run.is_running(&work.call)) {
            return self.resume_agent(work).boxed().await;
        }
        let admitted = match self.admit(runnable, work).await? {
            Ok(admitted) => admitted,
            Err(end) => return Ok(end),
        };
        match runnable.body() {
            BodyKind::Agent => self.start_agent(work).boxed().await,
            BodyKind::Function => match self.run_body(runnable, work).await? {
                Ended::Given(given) if admitted.right.is_none() => self.finish_call(work, given).await,
                ended => self.conclude(ended, admitted, work).boxed().await,
            },
        }
    }

    /// Sees a call through everything that may keep it from starting, and records and tells its start.
    async fn admit<'a>(
        &'a self,
        runnable: &Runnable,
        work: &CallWork<'_, C>,
    ) -> Result<Result<Admitted<'a>, CallEnd>, Halt> {
        if let Some(given) = self.broken_off(work) {
            return self.settle_given(work, given, Started::No).boxed().await.map(Err);
        }
        let permit = match &work.ready.tool.permits {
            Some(permits) => match permits.clone().try_acquire_owned() {
                Ok(permit) => Some(permit),
                Err(_) => match waited_for(&work.turn.stop, permits.clone().acquire_owned()).boxed().await {
                    Some(permit) => permit.ok(),
                    None => {
                        let given = Given::cancelled();
                        return self.settle_given(work, given, Started::No).boxed().await.map(Err);
                    }
                },
            },
            None => None,
        };
        let right = if work.ready.tool.effect == Effect::Idempotent {
            match self.claim(work).boxed().await? {
                Ok(right) => right,
                Err(given) => return self.settle_given(work, *given, Started::No).boxed().await.map(Err),
            }
        } else {
            None
        };
        if let Some(given) = self.guard_input(work).await {
            return self.settle_given(work, *given, Started::No).boxed().await.map(Err);
        }
        self.recorded(self.move_by(runnable.started())?).await?;
        // A call that goes on with an answer was told to have started when it asked.
        if work.ctx.replies().is_empty()
            && let Err(given) = self.tell_start(work).await
        {
            return self.settle_given(work, *given, Started::Yes).boxed().await.map(Err);
        }
        Ok(Ok(Admitted { _permit: permit, right }))
    }

    /// What becomes of a call that asks a person, or that others wait for to share its receipt.
    async fn conclude(
        &self,
        ended: Ended,
        admitted: Admitted<'_>,
        work: &CallWork<'_, C>,
    ) -> Result<CallEnd, Halt> {
        match ended {
            Ended::Given(given) => {
                let end = self.finish_call(work, given).await?;
                if let Some(right) = admitted.right {
                    self.land(*right, work.ready.tool.receipts.expire_after).await?;
                }
                Ok(end)
            }
            Ended::Asks(question) => {
                if let Some(right) = admitted.right {
                    self.land(*right, None).await?;
                }
                let cancel = &self.shared.cancel;
                let is_kept = cancel.hands_over() || cancel.keeps_approvals();
                if work.turn.stop.is_cancelled() && !is_kept {
                    return self.settle_given(work, Given::cancelled(), Started::Yes).await;
                }
                self.hold(Held::for_answer(work.call.clone(), *question)).await
            }
        }
    }

    async fn tell_start(&self, work: &CallWork<'_, C>) -> Result<(), Box<Given>> {
        if self.emitter.is_watched() {
            let tool = work.ready.tool.key().clone();
            self.emitter.emit(EventKind::CallStarted { call: work.call.clone(), tool }).await;
        }
        let told = self.tell(&work.turn.agent, || Moment::CallStarted { ctx: work.ctx.clone() });
        let Some(told) = told else { return Ok(()) };
        match unless_stopped(&work.turn.stop, told).boxed().await {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => {
                let message = readable(format!("hook `call_started` failed: {error}"));
                self.emitter.emit(EventKind::Warning { message }).await;
                Err(Box::new(Given::new(How::Failed, failed(None))))
            }
            None => Err(Box::new(Given::cancelled())),
        }
    }

    /// Makes what the body gave the call's output, guarded and cut where that is due.
    pub(super) fn finish_call<'a>(
        &'a self,
        work: &'a CallWork<'a, C>,
        given: Given,
    ) -> impl Future<Output = Result<CallEnd, Halt>> + Send {
        let is_plain = given.how == How::Cancelled
            || given.failure.is_some()
            || (work.ready.tool.output_guardrails.is_empty() && !is_over_budget(work, &given));
        if is_plain {
            return Either::Left(self.settle_given(work, given, Started::Yes));
        }
        let finishing = async move {
            let mut given = self.guard_output(work, given).await;
            if is_over_budget(work, &given) {
                given = self.within_budget(work, given).await?;
            }
            self.settle_given(work, given, Started::Yes).await
        };
        Either::Right(finishing.boxed())
    }

    /// Cuts text to the tool's budget, says so, and keeps the whole for reading on.
    async fn within_budget(&self, work: &CallWork<'_, C>, mut given: Given) -> Result<Given, Halt> {
        let budget = work.ready.tool.output_budget;
        if let OutputContent::Text(output) = &mut given.output
            && output.len() > budget
        {
            let is_kept = work.ready.tool.output_visibility == Visibility::Open;
            let (whole, shown) = (output.len(), output.floor_char_boundary(budget));
            let name = work.ctx.path().to_string();
            if is_kept {
                self.shared.artefacts.keep(&name, output).await?;
            }
            output.truncate(shown);
            let mut note = format!("\n[cut: {shown} of {whole} bytes are shown");
            if is_kept && work.turn.tools.tool(&ToolKey::bare(READ_ON)).is_some() {
                note.push_str(&format!(
                    "; `{READ_ON}` reads on with {{\"call\": \"{name}\", \"from\": {shown}}}"
                ));
            }
            output.push_str(&note);
            output.push(']');
        }
        Ok(given)
    }

    /// Makes what a call gave its output.
    fn settle_given<'a>(
        &'a self,
        work: &'a CallWork<'a, C>,
        given: Given,
        started: Started,
    ) -> impl Future<Output = Result<CallEnd, Halt>> + Send {
        let is_left = given.how == How::Cancelled && self.shared.cancel.hands_over();
        let ends_run = given.failure.is_some();
        let ends = ends_run || given.how == How::Cancelled || work.turn.stop.is_cancelled();
        let then = if ends { Then::Ends } else { Then::GoesOn };
        let told = match started {
            Started::Yes => Some((work, then)),
            Started::No => None,
        };
        let Given { how, output, failure } = given;
        let settling = (!is_left).then(|| {
            let output = match &work.ready.edited {
                Some(edited) if how != How::Cancelled => told_of_edit(edited, output),
                Some(_) | None => output,
            };
            self.settle(told, CallSettled { call: work.call.clone(), how, output, ends_run })
        });
        match settling {
            None => Either::Left(std::future::ready(Ok(CallEnd::Left))),
            Some(settling) => {
                let end = failure.map_or(CallEnd::Settled, CallEnd::Fatal);
                Either::Right(settling.map(move |settled| settled.map(|()| end)))
            }
        }
    }

    /// Records a call's output, then tells watchers, then hooks: what they do cannot change it.
    pub(super) fn settle<'a>(
        &'a self,
        told: Option<(&'a CallWork<'a, C>, Then)>,
        settled: CallSettled,
    ) -> impl Future<Output = Result<(), Halt>> + Send {
        let told = told.filter(|(work, _)| self.has_hooks(&work.turn.agent));
        let needs_telling = self.emitter.is_watched() || told.is_some();
        let copy = needs_telling.then(|| settled.clone());
        let writing = self.move_by(Entry::CallSettled(settled));
        let telling = copy.map(|copy| self.tell_settled(told, copy).boxed());
        async move {
            self.recorded(writing?).await?;
            if let Some(telling) = telling {
                telling.await;
            }
            Ok(())
        }
    }

    async fn tell_settled(&self, told: Option<(&CallWork<'_, C>, Then)>, settled: CallSettled) {
        let CallSettled { call, how, output, .. } = settled;
        if self.emitter.is_watched() {
            let (how, output) = (how.clone(), output.clone());
            self.emitter.emit(EventKind::CallSettled { call, how, output }).await;
        }
        if let Some((work, then)) = told {
            let ctx = work.ctx.clone();
            let told = self.tell(&work.turn.agent, || Moment::CallEnded { ctx, how, output, then });
            let Some(told) = told else { return };
            let stopped = async {
                work.turn.stop.cancelled().await;
                tokio::time::sleep(self.shared.config.drain).await;
            };
            let message = tokio::select! {
                biased;
                told = told => told.err().map(|error| readable(format!("hook `call_ended` failed: {error}"))),
                () = stopped => Some("hook `call_ended` did not come back".to_owned()),
            };
            if let Some(message) = message {
                self.emitter.emit(EventKind::Warning { message }).await;
            }
        }
    }

    /// Tells the model what is wrong with its arguments. Guards and hooks see the call; no body does.
    async fn invalid(&self, step: InvalidStep, ready: Ready<C>, turn: &TurnWork<C>) -> Result<CallEnd, Halt> {
        let work = self.begin(&step.call, ready, turn);
        if let Some(given) = self.guard_input(&work).await {
            return self.settle_given(&work, *given, Started::No).await;
        }
        if let Err(given) = self.tell_start(&work).await {
            return self.settle_given(&work, *given, Started::Yes).await;
        }
        let tool = &work.ready.tool;
        let given = match &tool.on_failure {
            OnFailure::Hide | OnFailure::Show => Given::new(How::Invalid, failed(Some(&step.problems))),
            OnFailure::Say(say) => {
                Given::new(How::Invalid, said(say, &work.ctx, &ToolError::tell(&*step.problems)))
            }
            OnFailure::Fail => {
                let failure = Failure::InvalidArguments {
                    tool: tool.key().to_string(),
                    call: work.call.clone(),
                    problems: step.problems.clone(),
                };
                Given::fatal(How::Invalid, failed(Some(&step.problems)), failure)
            }
        };
        self.finish_call(&work, given).await
    }

    /// Asks the tool what became of a call that an earlier driver started; if it cannot say, a person must.
    async fn doubt(&self, doubt: Doubt, ready: Ready<C>, turn: &TurnWork<C>) -> Result<CallEnd, Halt> {
        let mut work = self.begin(&doubt.call, ready, turn);
        let known = match &work.ready.tool.reconcile {
            Some(reconcile) => {
                let asked = AssertUnwindSafe(async { reconcile(work.ctx.clone()).await }).catch_unwind();
                unless_stopped(&turn.stop, asked).await.and_then(Result::ok).unwrap_or(Reconciled::Unknown)
            }
            None => Reconciled::Unknown,
        };
        match known {
            Reconciled::Happened(output) => {
                self.settle_given(&work, Given::new(How::Reconciled, output), Started::No).await
            }
            Reconciled::DidNotHappen => self.run_call(&doubt.did_not_happen(), &mut work).await,
            Reconciled::Unknown => {
                self.hold(Held { call: work.call, reason: HoldReason::InDoubt, expires: None }).await
            }
        }
    }
}

/// Whether a call's start was told, so that its end must be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Started {
    Yes,
    No,
}

fn is_over_budget<C>(work: &CallWork<'_, C>, given: &Given) -> bool {
    matches!(&given.output, OutputContent::Text(text) if text.len() > work.ready.tool.output_budget)
}

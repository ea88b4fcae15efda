//! One attempt of a tool body: with a deadline, with panics caught, and with cancellation awaited.
//!
//! Invariant: a finished result is never lost, whatever stops the attempt. A body that blocks its thread holds up no run,
//! sibling call or cancellation on a runtime with more than one thread, unless its author declared it
//! [`BodyPlacement::Inline`].

use std::future::{Future, poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either};
use tokio::task::{JoinError, JoinHandle, unconstrained};
use tokio::time::Instant;
use tracing::{Instrument, Span};
use windlass_core::item::OutputContent;

use super::CallStop;
use super::poll_watch::WatchedBody;
use super::run_waker::MarkedBody;
use crate::error::truncate_message;
use crate::event::EventEmitter;
use crate::guardrail::panic_message;
use crate::lock_unpoisoned;
use crate::observe::trace_span::tool_call_span;
use crate::receipts::BodyHold;
use crate::redaction;
use crate::run::{CallLayer, CancelSignal, NextCall};
use crate::tool::{
    BodyPlacement, BodyResult, BodyStart, PreparedBody, Tool, ToolBody, ToolContext, ToolError,
};

/// One attempt of a call's body.
pub(crate) struct BodyAttempt<'a, C> {
    pub(crate) tool: &'a Tool<C>,
    pub(crate) arguments: &'a str,
    pub(crate) ctx: &'a ToolContext<C>,
    /// Functions of the application around every body.
    pub(crate) layers: &'a [CallLayer<C>],
    pub(crate) cancel: &'a CancelSignal,
    /// The watcher of the run.
    pub(crate) events: &'a Arc<EventEmitter>,
    pub(crate) stop: CallStop<'a>,
    /// True while siblings are still being started. One of them may end the run, and then no unstarted body may run. The
    /// loop that starts the calls polls each of them again.
    pub(crate) starting_calls: &'a AtomicBool,
    /// Given up when the body has ended.
    pub(crate) hold: Option<Arc<BodyHold>>,
}

/// The end of an attempt.
pub(crate) struct AttemptEnd {
    pub(crate) exit: BodyExit,
    /// True if the call was stopped.
    pub(crate) was_stopped: bool,
    /// Longest time for which async bodies of the tool blocked a thread since the last report.
    pub(crate) blocked: Option<Duration>,
    /// The body, if it still runs and nobody waits for it any more.
    pub(crate) late_body: Option<RunningBody>,
}

/// The result of an attempt.
pub(crate) enum BodyExit {
    Returned(OutputContent),
    Failed(BodyFailure),
}

/// The reason why an attempt has no output.
pub(crate) enum BodyFailure {
    Error(ToolError),
    TimedOut,
    /// The body exceeded its deadline and was stopped, and its destructors still run.
    TimedOutCleaningUp,
    /// The body exceeded its deadline, cannot be stopped, and still runs.
    TimedOutStillRunning,
    Cancelled,
}

impl From<BodyResult> for BodyExit {
    fn from(result: BodyResult) -> Self {
        result.map_or_else(|error| Self::Failed(BodyFailure::Error(error)), Self::Returned)
    }
}

/// The way to stop a body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StopMethod {
    /// The task is aborted at its next await.
    Abort,
    /// The body checks its cancellation token; a thread cannot be stopped.
    Cooperative,
    /// A body on a thread, inside call layers.
    CooperativeWithLayers,
}

/// The reason for stopping a body.
#[derive(Clone, Copy)]
enum StopCause {
    CallStopped,
    DeadlineExceeded,
}

impl AttemptEnd {
    fn new(exit: BodyExit, was_stopped: bool) -> Self {
        Self { exit, was_stopped, blocked: None, late_body: None }
    }
}

impl<'a, C: Send + Sync + 'static> BodyAttempt<'a, C> {
    /// Runs the attempt, with the prepared body or with one prepared anew from the arguments.
    pub(crate) fn run(
        self,
        prepared: Option<Box<dyn PreparedBody<C>>>,
    ) -> impl Future<Output = AttemptEnd> + Send + 'a {
        let prepared = match (prepared, &self.tool.body) {
            (Some(prepared), _) => Ok(prepared),
            (None, ToolBody::Function(body)) => body.prepare(self.arguments),
            (None, ToolBody::Agent(_)) => {
                return Either::Left(ready(AttemptEnd::new(BodyExit::Failed(BodyFailure::Cancelled), true)));
            }
        };
        match prepared {
            Ok(prepared) => {
                let started = self.start(prepared);
                Either::Right(self.wait(started))
            }
            Err(problems) => {
                let exit = BodyFailure::Error(ToolError::visible(problems));
                Either::Left(ready(AttemptEnd::new(BodyExit::Failed(exit), false)))
            }
        }
    }

    fn start(&self, prepared: Box<dyn PreparedBody<C>>) -> (RunningBody, StopMethod) {
        let span = tool_call_span(self.ctx);
        let with_layers = |body| {
            let body = self.layers.iter().rev().fold(body, |inner, layer| {
                let (layer, ctx) = (layer.clone(), self.ctx.clone());
                async move { layer(ctx, NextCall(inner)).await }.boxed()
            });
            // Without a subscriber, the body needs no second box.
            if span.is_disabled() { body } else { body.instrument(span.clone()).boxed() }
        };
        let start_async = |body, placement| {
            let watched = WatchedBody::new(self.tool.key(), &self.tool.poll_monitor, self.events);
            RunningBody::start_async(watched, self.cancel, body, placement)
        };
        match prepared.start(self.ctx.clone()) {
            BodyStart::Async(body) => {
                let body = match self.hold.clone() {
                    Some(hold) => async move {
                        let _hold = hold;
                        body.await
                    }
                    .boxed(),
                    None => body,
                };
                // A deadline must hold whatever the body does, so such a body is never inline.
                let placement = self.tool.timeout.map_or(self.tool.placement, |_| BodyPlacement::OwnTask);
                (start_async(with_layers(body), placement), StopMethod::Abort)
            }
            BodyStart::Blocking(body) if self.layers.is_empty() => {
                let running = RunningBody::start_blocking(body, self.hold.clone(), span, Arc::default());
                (running, StopMethod::Cooperative)
            }
            BodyStart::Blocking(body) => {
                let (hold, span, phase) = (self.hold.clone(), span.clone(), Arc::<PhaseCell>::default());
                let of_thread = phase.clone();
                let body = async move {
                    flatten_result(RunningBody::start_blocking(body, hold, span, of_thread).await)
                };
                let mut running = start_async(with_layers(body.boxed()), BodyPlacement::OwnTask);
                // The layers are no part of the body: it begins on its thread.
                running.phase = phase;
                (running, StopMethod::CooperativeWithLayers)
            }
        }
    }

    /// Waits until the body ends, its deadline passes, or the call stops.
    fn wait(
        self,
        (mut running, stopping): (RunningBody, StopMethod),
    ) -> impl Future<Output = AttemptEnd> + Send + 'a {
        let mut over = self.tool.timeout.map(|timeout| Box::pin(tokio::time::sleep(timeout)));
        async move {
            let stop = self.stop;
            let ended = {
                let mut listening = pin!(None);
                poll_fn(|cx| {
                    if running.is_inline_unpolled() {
                        if self.starting_calls.load(Ordering::Relaxed) {
                            return Poll::Pending;
                        }
                        if stop.is_stopped() {
                            return Poll::Ready(Err(StopCause::CallStopped));
                        }
                    }
                    if let Poll::Ready(ended) = Pin::new(&mut running).poll(cx) {
                        return Poll::Ready(Ok(ended));
                    }
                    if stop.poll_stop(listening.as_mut(), cx).is_ready() {
                        return Poll::Ready(Err(StopCause::CallStopped));
                    }
                    match &mut over {
                        Some(over) => over.as_mut().poll(cx).map(|()| Err(StopCause::DeadlineExceeded)),
                        None => Poll::Pending,
                    }
                })
                .await
            };
            // A body that sees the stop before the driver does ends because of it, too.
            let was_stopped = matches!(ended, Err(StopCause::CallStopped)) || self.ctx.is_cancelled();
            let (exit, late_body) = match ended {
                Ok(ended) => (flatten_result(ended).into(), None),
                Err(stopped) => self.stop_body(running, stopping, stopped).boxed().await,
            };
            AttemptEnd { exit, was_stopped, blocked: self.tool.poll_monitor.take_blocking_poll(), late_body }
        }
    }

    /// Stops the body after its deadline or when its turn stops. Returns it if it still runs.
    async fn stop_body(
        &self,
        mut running: RunningBody,
        stopping: StopMethod,
        stopped: StopCause,
    ) -> (BodyExit, Option<RunningBody>) {
        self.ctx.cancel_call();
        running.move_to_task();
        // A run that is handed over lets its bodies finish, if they can in time.
        let may_finish = matches!(stopped, StopCause::CallStopped) && self.cancel.lets_calls_finish();
        if !may_finish && running.prevent_begin() {
            let failure = match stopped {
                StopCause::DeadlineExceeded => BodyFailure::TimedOut,
                StopCause::CallStopped => BodyFailure::Cancelled,
            };
            return (BodyExit::Failed(failure), None);
        }
        if stopping == StopMethod::Abort && !may_finish {
            running.abort();
        }
        let until = match (stopping, stopped) {
            // A deadline holds: it is not made longer by the wait for a body that will not stop.
            (StopMethod::Cooperative | StopMethod::CooperativeWithLayers, StopCause::DeadlineExceeded) => {
                Instant::now()
            }
            (_, StopCause::DeadlineExceeded) => Instant::now() + self.stop.drain_timeout(),
            (_, StopCause::CallStopped) => self.stop.drain_deadline(),
        };
        let ended = tokio::time::timeout_at(until, &mut running).await;
        // The layers around a blocking body stay, so that its late end is recorded.
        if ended.is_err() && stopping != StopMethod::CooperativeWithLayers {
            // It had its time. What another driver goes on with must not go on here too.
            running.abort();
        }
        match (ended, stopping, stopped) {
            // It finished in the moment in which it was stopped.
            (Ok(Ok(result)), _, _) => (result.into(), None),
            (Ok(Err(gone @ BodyJoinError::Panicked(_))), _, _) => (flatten_result(Err(gone)).into(), None),
            (Ok(Err(BodyJoinError::Dropped)), _, StopCause::DeadlineExceeded) => {
                (BodyExit::Failed(BodyFailure::TimedOut), None)
            }
            (Ok(Err(BodyJoinError::Dropped)), _, StopCause::CallStopped) => {
                (BodyExit::Failed(BodyFailure::Cancelled), None)
            }
            (Err(_), _, StopCause::CallStopped) => (BodyExit::Failed(BodyFailure::Cancelled), Some(running)),
            // A body that blocks its thread does not come to the await at which it would be aborted.
            (Err(_), StopMethod::Abort, StopCause::DeadlineExceeded) if !running.is_executing() => {
                (BodyExit::Failed(BodyFailure::TimedOutCleaningUp), Some(running))
            }
            (
                Err(_),
                StopMethod::Abort | StopMethod::Cooperative | StopMethod::CooperativeWithLayers,
                StopCause::DeadlineExceeded,
            ) => (BodyExit::Failed(BodyFailure::TimedOutStillRunning), Some(running)),
        }
    }
}

pub(super) fn flatten_result(ended: Result<BodyResult, BodyJoinError>) -> BodyResult {
    match ended {
        Ok(result) => result,
        Err(BodyJoinError::Panicked(text)) => Err(ToolError::hidden(format!("the body panicked: {text}"))),
        Err(BodyJoinError::Dropped) => Err(ToolError::hidden("the body cancelled itself")),
    }
}

/// Returns an error's text without secrets.
pub(crate) fn redact_error_text<C>(text: &str, tool: &Tool<C>, arguments: &str) -> String {
    truncate_message(redaction::redact_text(text, arguments, &tool.secret_arguments))
}

/// Longest poll at which an inline body stays inline: about ten times the cost of moving it to another thread.
const MAX_INLINE_POLL: Duration = Duration::from_micros(100);

/// A running body. It is aborted when dropped.
pub(crate) struct RunningBody {
    task: BodyTask,
    phase: Arc<PhaseCell>,
}

/// The place where a body runs.
enum BodyTask {
    /// Inline in the task that awaits it.
    Inline(TimedBody),
    /// In a task of its own, or on a blocking thread.
    Spawned(JoinHandle<BodyResult>),
    /// No longer running.
    Finished,
}

/// The phase of a body, shared by the place where it runs and by whoever stops it.
#[derive(Default)]
struct PhaseCell(Mutex<BodyPhase>);

/// The phase of a body.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum BodyPhase {
    /// The body has not begun.
    #[default]
    Waiting,
    /// The body was stopped before it began, and never begins.
    Prevented,
    /// The body executes on a thread, or has ended.
    Executing,
    /// The body waits at an await.
    Suspended,
}

impl PhaseCell {
    /// Lets the body begin or go on. Returns false if it was prevented from beginning.
    fn execute(&self) -> bool {
        let mut phase = lock_unpoisoned(&self.0);
        if *phase == BodyPhase::Prevented {
            return false;
        }
        *phase = BodyPhase::Executing;
        true
    }

    /// Marks the body as waiting at an await.
    fn suspend(&self) {
        *lock_unpoisoned(&self.0) = BodyPhase::Suspended;
    }

    /// Prevents the body from beginning. Returns false if it has begun.
    fn prevent(&self) -> bool {
        let mut phase = lock_unpoisoned(&self.0);
        if *phase == BodyPhase::Waiting {
            *phase = BodyPhase::Prevented;
        }
        *phase == BodyPhase::Prevented
    }

    fn is_executing(&self) -> bool {
        *lock_unpoisoned(&self.0) == BodyPhase::Executing
    }
}

/// The reason why a body has no result.
pub(crate) enum BodyJoinError {
    Panicked(String),
    Dropped,
}

impl RunningBody {
    /// Starts an async body in its place. A body whose run is stopped before its first poll does not begin.
    fn start_async(
        watched: Arc<WatchedBody>,
        cancel: &CancelSignal,
        body: BoxFuture<'static, BodyResult>,
        placement: BodyPlacement,
    ) -> Self {
        let (cancel, phase) = (cancel.clone(), Arc::<PhaseCell>::default());
        let timed = TimedBody { body, watched, cancel, phase: phase.clone(), last_poll: None };
        let task = match placement {
            BodyPlacement::OwnTask => BodyTask::Spawned(tokio::spawn(MarkedBody(timed))),
            BodyPlacement::Inline => BodyTask::Inline(timed),
        };
        Self { task, phase }
    }

    /// Starts a blocking body on its own thread, inside a span. A body that was prevented while it waited for a thread
    /// does not begin.
    fn start_blocking(
        body: Box<dyn FnOnce() -> BodyResult + Send>,
        hold: Option<Arc<BodyHold>>,
        span: Span,
        phase: Arc<PhaseCell>,
    ) -> Self {
        let of_thread = phase.clone();
        let task = tokio::task::spawn_blocking(move || {
            let _hold = hold;
            match of_thread.execute() {
                true => span.in_scope(body),
                false => Err(ToolError::hidden("the call was stopped before its body began")),
            }
        });
        Self { task: BodyTask::Spawned(task), phase }
    }

    /// Prevents the body from beginning. Returns false if it has begun. Layers around a body that does not begin are
    /// aborted when this value is dropped.
    fn prevent_begin(&self) -> bool {
        self.phase.prevent()
    }

    /// Returns true if the body executes on a thread: it is at no await and has not been dropped.
    fn is_executing(&self) -> bool {
        self.phase.is_executing()
    }

    /// Returns true if the body is inline and has not been polled.
    pub(crate) fn is_inline_unpolled(&self) -> bool {
        matches!(&self.task, BodyTask::Inline(TimedBody { last_poll: None, .. }))
    }

    /// Moves an inline body to a task of its own.
    pub(crate) fn move_to_task(&mut self) {
        self.task = match std::mem::replace(&mut self.task, BodyTask::Finished) {
            BodyTask::Inline(timed) => BodyTask::Spawned(tokio::spawn(MarkedBody(timed))),
            there => there,
        };
    }

    /// Aborts the body at its next await. A blocking body continues.
    pub(crate) fn abort(&self) {
        if let BodyTask::Spawned(task) = &self.task {
            task.abort();
        }
    }
}

impl Future for RunningBody {
    type Output = Result<BodyResult, BodyJoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let BodyTask::Inline(timed) = &mut self.task {
            match catch_unwind(AssertUnwindSafe(|| Pin::new(&mut *timed).poll(cx))) {
                Ok(Poll::Ready(result)) => return Poll::Ready(Ok(result)),
                Ok(Poll::Pending) if timed.last_poll.is_some_and(|took| took <= MAX_INLINE_POLL) => {
                    return Poll::Pending;
                }
                Ok(Poll::Pending) => self.move_to_task(),
                Err(panic) => return Poll::Ready(Err(BodyJoinError::Panicked(panic_message(&*panic)))),
            }
        }
        match &mut self.task {
            // The driver yields by itself; the cooperative budget would only make some of these polls useless.
            BodyTask::Spawned(task) => pin!(unconstrained(task)).poll(cx).map_err(BodyJoinError::from),
            BodyTask::Inline(_) | BodyTask::Finished => Poll::Pending,
        }
    }
}

impl Drop for RunningBody {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.task, BodyTask::Finished) {
            // A panic in the destructor of a body does not reach the run.
            BodyTask::Inline(timed) => drop(catch_unwind(AssertUnwindSafe(|| drop(timed)))),
            BodyTask::Spawned(task) => task.abort(),
            BodyTask::Finished => {}
        }
    }
}

impl From<JoinError> for BodyJoinError {
    fn from(error: JoinError) -> Self {
        match error.try_into_panic() {
            Ok(panic) => Self::Panicked(panic_message(&*panic)),
            Err(_) => Self::Dropped,
        }
    }
}

/// A body whose polls are timed.
struct TimedBody {
    body: BoxFuture<'static, BodyResult>,
    watched: Arc<WatchedBody>,
    cancel: CancelSignal,
    phase: Arc<PhaseCell>,
    /// Duration of the last poll.
    last_poll: Option<Duration>,
}

impl Future for TimedBody {
    type Output = BodyResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<BodyResult> {
        // The driver of a run that was stopped prevents and aborts the body, which is not polled again until then.
        if (self.last_poll.is_none() && self.cancel.forbids_bodies()) || !self.phase.execute() {
            return Poll::Pending;
        }
        let start = Instant::now();
        let watched = self.watched.clone();
        let polled = watched.watch_poll(|| self.body.as_mut().poll(cx));
        let took = start.elapsed();
        if polled.is_pending() {
            self.phase.suspend();
        }
        self.last_poll = Some(took);
        self.watched.record_poll(took);
        polled
    }
}

//! Execution of tool bodies: with a deadline, with panics caught, and with cancellation awaited.

use std::future::{Future, poll_fn, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either};
use serde_json::Value;
use windlass_core::{
    decision::PersonQuestion,
    item::OutputContent,
    journal::{CallEndedLate, CallStatus, JournalEntry},
    run::{CallReport, CallResult, RunnableCall},
    tool::ToolEffect,
};

use super::Driver;
use super::call::CallExecution;
use super::output_text::{result_for_error, result_for_timeout};
use crate::error::truncate_message;
use crate::event::RunEventKind;
use crate::hook::HookEvent;
use crate::lock_unpoisoned;
use crate::redaction::{self, OutputVisibility, REDACTED};
use crate::run::NextCall;
use crate::tasks::{BodyJoinError, RunningBody};
use crate::tool::{
    BodyPlacement, BodyResult, BodyStart, PreparedBody, ProgressQueue, Tool, ToolBody, ToolError,
};

/// The end of one attempt of a body.
enum BodyExit {
    Finished(BodyResult),
    TimedOut,
    /// The body exceeded its deadline, cannot be stopped, and still runs.
    TimedOutStillRunning,
    Cancelled,
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Runs one attempt of a call's body.
    pub(super) fn run_body<'a>(
        &'a self,
        runnable: &'a RunnableCall,
        work: &'a mut CallExecution<'_, C>,
    ) -> impl Future<Output = CallReport> + Send {
        let prepared = work.prepared.prepared_body.take();
        let work = &*work;
        async move {
            let attempt = self.run_attempt(prepared, work);
            let (exit, was_stopped) = match work.ctx.progress() {
                Some(progress) => self.relay_progress(progress, attempt, work).boxed().await,
                None => attempt.await,
            };
            let tool = &work.prepared.tool;
            let mut report = match exit {
                BodyExit::Finished(Ok(output)) => {
                    return CallReport::BodyEnded(CallResult::new(CallStatus::Succeeded, output));
                }
                BodyExit::Finished(Err(error)) => {
                    self.handle_body_error(error, runnable.attempt(), work).boxed().await
                }
                BodyExit::TimedOut => match self.retry_of_timeout(runnable.attempt(), work) {
                    Some(delay) => CallReport::RetryDue(delay),
                    None => CallReport::BodyEnded(result_for_timeout(tool, &work.ctx, CallStatus::TimedOut)),
                },
                BodyExit::TimedOutStillRunning => {
                    let status = CallStatus::TimedOutStillRunning;
                    CallReport::BodyEnded(result_for_timeout(tool, &work.ctx, status))
                }
                BodyExit::Cancelled => CallReport::Stopped(self.stop_mode()),
            };
            // A call that was stopped is no failure of the run.
            if let (true, CallReport::BodyEnded(result)) = (was_stopped, &mut report) {
                result.run_failure = None;
            }
            report
        }
    }

    /// Relays the progress reports of a body until it ends. What it reported last comes before its end.
    async fn relay_progress<T>(
        &self,
        progress: &ProgressQueue,
        body: impl Future<Output = T>,
        work: &CallExecution<'_, C>,
    ) -> T {
        let mut body = pin!(body);
        let mut relaying: Option<BoxFuture<'_, ()>> = None;
        let ended = loop {
            tokio::select! {
                biased;
                ended = &mut body => break ended,
                () = async { if let Some(relaying) = &mut relaying { relaying.await } }, if relaying.is_some() => {
                    relaying = None;
                }
                report = progress.next(), if relaying.is_none() => {
                    relaying = Some(self.announce_progress(report, work).boxed());
                }
            }
        };
        let rest = async {
            if let Some(relaying) = relaying {
                relaying.await;
            }
            while let Some(report) = progress.try_next() {
                self.announce_progress(report, work).await;
            }
        };
        if work.stop().within_drain(self.shared.config.drain_timeout, rest).await.is_none() {
            tracing::warn!(call = %work.ctx.call_path(), "the last progress was not taken in time");
        }
        ended
    }

    async fn announce_progress(&self, progress: Value, work: &CallExecution<'_, C>) {
        let told = self.notify_hooks(&work.turn.agent, || HookEvent::CallProgress {
            ctx: work.ctx.clone(),
            progress: progress.clone(),
        });
        if self.emitter.is_watched() {
            let call = work.call.clone();
            self.emitter.emit(RunEventKind::CallProgress { call, progress }).await;
        }
        if let Some(told) = told
            && let Err(error) = told.await
        {
            let message = truncate_message(format!("hook `call_progress` failed: {error}"));
            self.emitter.emit(RunEventKind::Warning { message }).await;
        }
    }

    /// Returns the delay before a timed-out body is tried again: only bodies whose repetition has no further effect are.
    fn retry_of_timeout(&self, attempt: u32, work: &CallExecution<'_, C>) -> Option<Duration> {
        let tool = &work.prepared.tool;
        match tool.effect_of_call(work.prepared.rule_arguments()) {
            ToolEffect::Pure | ToolEffect::Idempotent => {
                tool.retry.and_then(|retry| retry.delay_after(attempt))
            }
            ToolEffect::Once => None,
        }
    }

    /// Handles the error of a body: it asks a person, is tried again, or ends the call.
    async fn handle_body_error(
        &self,
        error: ToolError,
        attempt: u32,
        work: &CallExecution<'_, C>,
    ) -> CallReport {
        let tool = &work.prepared.tool;
        let error = match error.into_question() {
            Ok(PersonQuestion { text, schema }) => {
                let text = redact_error_text(&text, tool, &work.prepared.arguments);
                return CallReport::QuestionAsked(PersonQuestion { text, schema });
            }
            Err(error) => error,
        };
        let error = error.map_message(|text| redact_error_text(text, tool, &work.prepared.arguments));
        if let Some(delay) = tool.retry.and_then(|retry| retry.delay_after(attempt))
            && !work.stop().is_stopped()
        {
            return CallReport::RetryDue(delay);
        }
        let message = format!("call `{}` failed: {error}", work.ctx.call_path());
        self.emitter.emit(RunEventKind::Warning { message }).await;
        CallReport::BodyEnded(result_for_error(tool, &work.ctx, &error))
    }

    /// Runs one attempt of a body, with the prepared body or with one prepared anew from the arguments.
    fn run_attempt<'a>(
        &'a self,
        prepared: Option<Box<dyn PreparedBody<C>>>,
        work: &'a CallExecution<'_, C>,
    ) -> impl Future<Output = (BodyExit, bool)> + Send {
        let prepared = match (prepared, &work.prepared.tool.body) {
            (Some(prepared), _) => Ok(prepared),
            (None, ToolBody::Function(body)) => body.prepare(&work.prepared.arguments),
            (None, ToolBody::Agent(_)) => return Either::Left(ready((BodyExit::Cancelled, true))),
        };
        match prepared {
            Ok(prepared) => Either::Right(self.wait_for_body(self.start_body(prepared, work), work)),
            Err(problems) => {
                Either::Left(ready((BodyExit::Finished(Err(ToolError::visible(problems))), false)))
            }
        }
    }

    /// Waits until a body ends, its deadline passes, or the call stops. A finished result is never lost. The flag is true
    /// if the call was stopped.
    fn wait_for_body<'a>(
        &'a self,
        (mut running, stopping): (RunningBody, StopMethod),
        work: &'a CallExecution<'_, C>,
    ) -> impl Future<Output = (BodyExit, bool)> + Send {
        let mut over = work.prepared.tool.timeout.map(|timeout| Box::pin(tokio::time::sleep(timeout)));
        async move {
            let stop = work.stop();
            let ended = {
                let mut listening = pin!(None);
                poll_fn(|cx| {
                    if running.is_inline_unpolled() {
                        if work.turn.is_starting_calls() {
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
            let was_stopped = matches!(ended, Err(StopCause::CallStopped)) || work.ctx.is_cancelled();
            let exit = match ended {
                Ok(ended) => BodyExit::Finished(flatten_result(ended)),
                Err(stopped) => self.stop_body(running, stopping, stopped, work).boxed().await,
            };
            if let Some(blocked) = work.prepared.tool.poll_monitor.take_blocking_poll() {
                self.warn_of_blocking_body(blocked, work).boxed().await;
            }
            (exit, was_stopped)
        }
    }

    /// Warns that an async body blocked the thread that polled it.
    async fn warn_of_blocking_body(&self, blocked: Duration, work: &CallExecution<'_, C>) {
        let tool = work.prepared.tool.key();
        let message = format!(
            "the async body of tool `{tool}` blocked its thread for {} ms; hint: write a blocking body as a plain `fn`, \
             which runs on a thread of its own",
            blocked.as_millis()
        );
        tracing::warn!(tool = %tool, blocked_ms = blocked.as_millis(), "an async tool body blocked its thread");
        self.emitter.emit(RunEventKind::Warning { message }).await;
    }

    fn start_body(
        &self,
        prepared: Box<dyn PreparedBody<C>>,
        work: &CallExecution<'_, C>,
    ) -> (RunningBody, StopMethod) {
        let layers = &self.shared.config.call_layers;
        let with_layers = |body| {
            layers.iter().rev().fold(body, |inner, layer| {
                let (layer, ctx) = (layer.clone(), work.ctx.clone());
                async move { layer(ctx, NextCall(inner)).await }.boxed()
            })
        };
        let tool = &work.prepared.tool;
        match prepared.start(work.ctx.clone()) {
            BodyStart::Async(body) => {
                let body = with_layers(body);
                // A deadline must hold whatever the body does, so such a body is never inline.
                let placement = tool.timeout.map_or(tool.placement, |_| BodyPlacement::OwnTask);
                (
                    RunningBody::start_async(&tool.poll_monitor, &self.shared.cancel, body, placement),
                    StopMethod::Abort,
                )
            }
            BodyStart::Blocking(body) if layers.is_empty() => {
                (RunningBody::start_blocking(body), StopMethod::Cooperative)
            }
            BodyStart::Blocking(body) => {
                let body = async move { flatten_result(RunningBody::start_blocking(body).await) }.boxed();
                let running = RunningBody::start_async(
                    &tool.poll_monitor,
                    &self.shared.cancel,
                    with_layers(body),
                    BodyPlacement::OwnTask,
                );
                (running, StopMethod::CooperativeWithLayers)
            }
        }
    }

    /// Stops a body after its deadline or when its turn stops. A finished result is never lost.
    async fn stop_body(
        &self,
        mut running: RunningBody,
        stopping: StopMethod,
        stopped: StopCause,
        work: &CallExecution<'_, C>,
    ) -> BodyExit {
        work.ctx.cancel_call();
        running.move_to_task();
        // A run that is handed over lets its bodies finish, if they can in time.
        let cancel = &self.shared.cancel;
        let may_finish =
            matches!(stopped, StopCause::CallStopped) && cancel.is_detaching() && !cancel.is_lease_lost();
        if stopping == StopMethod::Abort && !may_finish {
            running.abort();
        }
        let wait = match (stopping, stopped) {
            // A deadline holds: it is not made longer by the wait for a body that will not stop.
            (StopMethod::Cooperative | StopMethod::CooperativeWithLayers, StopCause::DeadlineExceeded) => {
                Duration::ZERO
            }
            _ => self.shared.config.drain_timeout,
        };
        let ended = tokio::time::timeout(wait, &mut running).await;
        // The layers around a blocking body stay, so that its late end is recorded.
        if ended.is_err() && stopping != StopMethod::CooperativeWithLayers {
            // It had its time. What another driver goes on with must not go on here too.
            running.abort();
        }
        match (ended, stopping, stopped) {
            // It finished in the moment in which it was stopped.
            (Ok(Ok(result)), _, _) => BodyExit::Finished(result),
            (Ok(Err(gone @ BodyJoinError::Panicked(_))), _, _) => {
                BodyExit::Finished(flatten_result(Err(gone)))
            }
            (Ok(Err(BodyJoinError::Dropped)), _, StopCause::DeadlineExceeded) => BodyExit::TimedOut,
            (Ok(Err(BodyJoinError::Dropped)), _, StopCause::CallStopped) => BodyExit::Cancelled,
            (Err(_), _, stopped) => {
                self.record_late_end(running, work);
                match (stopping, stopped) {
                    (_, StopCause::CallStopped) => {
                        lock_unpoisoned(&self.shared.draining_calls).push(work.call.clone());
                        BodyExit::Cancelled
                    }
                    (StopMethod::Abort, StopCause::DeadlineExceeded) => BodyExit::TimedOut,
                    (
                        StopMethod::Cooperative | StopMethod::CooperativeWithLayers,
                        StopCause::DeadlineExceeded,
                    ) => BodyExit::TimedOutStillRunning,
                }
            }
        }
    }

    /// Records the end of a body that the driver no longer waits for.
    fn record_late_end(&self, running: RunningBody, work: &CallExecution<'_, C>) {
        let journal = Arc::downgrade(&self.shared.journal);
        let (path, call) = (self.parent_calls.clone(), work.call.clone());
        let name = work.ctx.call_path().to_string();
        let (tool, arguments) = (work.prepared.tool.clone(), work.prepared.arguments.clone());
        tokio::spawn(async move {
            let ended = running.await;
            // That it was dropped does not tell how far it had come, so it is no end to record.
            let was_dropped = matches!(ended, Err(BodyJoinError::Dropped));
            let result = redact_late_result(flatten_result(ended), &tool, &arguments);
            match &result {
                Ok(_) => tracing::warn!(call = %name, "a body that was given up on has ended"),
                Err(error) => tracing::warn!(call = %name, %error, "a body that was given up on has failed"),
            }
            let (status, output) = match result {
                Ok(output) => (CallStatus::Succeeded, output),
                Err(error) => (CallStatus::Failed, error.into()),
            };
            // Nobody sees what the output guardrails have not.
            let output = tool.output_guardrails.is_empty().then_some(output);
            if let Some(journal) = journal.upgrade().filter(|_| !was_dropped) {
                let written = journal
                    .append(&path, JournalEntry::CallEndedLate(CallEndedLate { call, status, output }))
                    .await;
                if let Err(error) = written {
                    tracing::warn!(call = %name, %error, "its end could not be recorded");
                }
            }
        });
    }
}

/// Resolves after the timeout; never, if there is none.
pub(super) async fn sleep_or_pending(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => tokio::time::sleep(timeout).await,
        None => std::future::pending().await,
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

fn flatten_result(ended: Result<BodyResult, BodyJoinError>) -> BodyResult {
    match ended {
        Ok(result) => result,
        Err(BodyJoinError::Panicked(text)) => Err(ToolError::hidden(format!("the body panicked: {text}"))),
        Err(BodyJoinError::Dropped) => Err(ToolError::hidden("the body cancelled itself")),
    }
}

/// Returns an error's text without secrets.
fn redact_error_text<C>(text: &str, tool: &Tool<C>, arguments: &str) -> String {
    truncate_message(redaction::redact_text(text, arguments, &tool.secret_arguments))
}

/// Returns the result of a late end without secrets, and truncated like the call's output.
fn redact_late_result<C>(
    result: BodyResult,
    tool: &Tool<C>,
    arguments: &str,
) -> Result<OutputContent, String> {
    match result {
        Ok(_) if tool.output_visibility == OutputVisibility::Secret => Ok(REDACTED.into()),
        Ok(OutputContent::Text(mut text)) => {
            text.truncate(text.floor_char_boundary(tool.max_output_bytes));
            Ok(text.into())
        }
        Ok(parts) => Ok(parts),
        Err(error) => Err(redact_error_text(error.message(), tool, arguments)),
    }
}

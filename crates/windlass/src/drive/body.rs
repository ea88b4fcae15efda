//! The effect of a body: an attempt, its progress, and the report of its end.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use windlass_core::{
    decision::PersonQuestion,
    journal::CallStatus,
    run::{CallReport, CallResult, RunnableCall},
    tool::ToolEffect,
};

use super::Driver;
use super::call::CallExecution;
use crate::error::truncate_message;
use crate::event::RunEventKind;
use crate::hook::HookEvent;
use crate::lock_unpoisoned;
use crate::tasks::{AttemptEnd, BodyAttempt, BodyExit, record_late_end, redact_error_text};
use crate::tool::{ProgressQueue, ToolError, result_for_error, result_for_timeout};

impl<C: Send + Sync + 'static> Driver<C> {
    /// Runs one attempt of a call's body.
    pub(super) fn run_body<'a>(
        &'a self,
        runnable: &'a RunnableCall,
        work: &'a mut CallExecution<'_, C>,
    ) -> impl Future<Output = CallReport> + Send {
        let prepared = work.prepared.prepared_body.take();
        let work = &*work;
        let attempt = BodyAttempt {
            tool: &work.prepared.tool,
            arguments: &work.prepared.arguments,
            ctx: &work.ctx,
            layers: &self.shared.config.call_layers,
            cancel: &self.shared.cancel,
            drain_timeout: self.shared.config.drain_timeout,
            stop: work.stop(),
            starting_calls: &work.turn.starting_calls,
        }
        .run(prepared);
        async move {
            let ended = match work.ctx.progress() {
                Some(progress) => self.relay_progress(progress, attempt, work).boxed().await,
                None => attempt.await,
            };
            let AttemptEnd { exit, was_stopped, blocked, late_body } = ended;
            if let Some(blocked) = blocked {
                self.warn_of_blocking_body(blocked, work).boxed().await;
            }
            if let Some(running) = late_body {
                if matches!(exit, BodyExit::Cancelled) {
                    lock_unpoisoned(&self.shared.draining_calls).push(work.call.clone());
                }
                record_late_end(running, &self.shared.journal, work.ctx.clone(), work.prepared.tool.clone());
            }
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
}

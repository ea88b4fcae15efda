//! Running a body: within its time, with its panics caught and its end waited for.

use std::future::{Future, poll_fn, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::Either;
use windlass_core::{CallEndedLate, Entry, How, OutputContent, Question, Runnable};

use super::call::CallWork;
use super::running::{Deadline, Gone, Running};
use super::secret::{self, SECRET, Visibility};
use super::stop::{poll_stop, unless_stopped};
use super::told::{Given, given_for_error, given_for_timeout};
use super::{Driver, Halt, lock};
use crate::error::readable;
use crate::event::EventKind;
use crate::run::NextCall;
use crate::tool::{BodyResult, Prepared, Start, Tool, ToolBody, ToolError};

/// What came of running a body.
pub(super) enum Ended {
    Given(Given),
    /// It needs a person's answer.
    Asks(Box<Question>),
}

/// How a body ended.
enum BodyEnd {
    Done(BodyResult),
    TimedOut,
    /// It is past its time, cannot be stopped, and goes on.
    LeftRunning,
    Cancelled,
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Runs the body of a call, as often as its tool's retries allow.
    pub(super) fn run_body<'a>(
        &'a self,
        runnable: &'a Runnable,
        work: &'a mut CallWork<'_, C>,
    ) -> impl Future<Output = Result<Ended, Halt>> + Send {
        let mut attempt = runnable.attempt();
        let mut prepared = work.ready.prepared.take();
        let work = &*work;
        async move {
            loop {
                let tool = &work.ready.tool;
                let failing = match self.run_once(prepared.take(), work).await {
                    BodyEnd::Done(Ok(output)) => {
                        return Ok(Ended::Given(Given::new(How::Succeeded, output)));
                    }
                    BodyEnd::Done(Err(error)) => self.failed_body(error, attempt, runnable, work).boxed(),
                    BodyEnd::TimedOut => {
                        return Ok(Ended::Given(given_for_timeout(tool, &work.ctx, How::TimedOut)));
                    }
                    BodyEnd::LeftRunning => {
                        return Ok(Ended::Given(given_for_timeout(tool, &work.ctx, How::LeftRunning)));
                    }
                    BodyEnd::Cancelled => return Ok(Ended::Given(Given::cancelled())),
                };
                if let Some(ended) = failing.await? {
                    return Ok(ended);
                }
                attempt += 1;
            }
        }
    }

    /// What the error of a body means; none where another attempt is due, which is recorded then.
    async fn failed_body(
        &self,
        error: ToolError,
        attempt: u32,
        runnable: &Runnable,
        work: &CallWork<'_, C>,
    ) -> Result<Option<Ended>, Halt> {
        let tool = &work.ready.tool;
        let error = match error.asked() {
            Ok(Question { text, schema }) => {
                let text = told(&text, tool, &work.ready.arguments);
                return Ok(Some(Ended::Asks(Box::new(Question { text, schema }))));
            }
            Err(error) => error,
        };
        let error = error.map(|text| told(text, tool, &work.ready.arguments));
        let Some(wait) = tool.retry.and_then(|retry| retry.wait_after(attempt)) else {
            let message = format!("call `{}` failed: {error}", work.ctx.path());
            self.emitter.emit(EventKind::Warning { message }).await;
            return Ok(Some(Ended::Given(given_for_error(tool, &work.ctx, &error))));
        };
        if unless_stopped(&work.turn.stop, tokio::time::sleep(wait)).await.is_none() {
            return Ok(Some(Ended::Given(Given::cancelled())));
        }
        self.record(runnable.again(attempt + 1)).await?;
        Ok(None)
    }

    /// Runs a body once, with what was made of its arguments when they were planned, or anew.
    fn run_once<'a>(
        &'a self,
        prepared: Option<Box<dyn Prepared<C>>>,
        work: &'a CallWork<'_, C>,
    ) -> impl Future<Output = BodyEnd> + Send {
        let prepared = match (prepared, &work.ready.tool.body) {
            (Some(prepared), _) => Ok(prepared),
            (None, ToolBody::Function(body)) => body.prepare(&work.ready.arguments),
            (None, ToolBody::Agent(_)) => return Either::Left(ready(BodyEnd::Cancelled)),
        };
        match prepared {
            Ok(prepared) => Either::Right(self.wait(self.start(prepared, work), work)),
            Err(problems) => Either::Left(ready(BodyEnd::Done(Err(ToolError::tell(problems))))),
        }
    }

    /// Waits for a body: until it ends, its time is over, or the turn stops. What has ended is never lost.
    fn wait<'a>(
        &'a self,
        (mut running, stopping): (Running, Stopping),
        work: &'a CallWork<'_, C>,
    ) -> impl Future<Output = BodyEnd> + Send {
        let mut over = work.ready.tool.timeout.map(|timeout| Box::pin(tokio::time::sleep(timeout)));
        async move {
            let stop = &work.turn.stop;
            let ended = {
                let mut listening = pin!(None);
                poll_fn(|cx| {
                    if running.is_new_here() {
                        if work.turn.is_beginning() {
                            return Poll::Pending;
                        }
                        if stop.is_cancelled() {
                            return Poll::Ready(Err(Stopped::ByRun));
                        }
                    }
                    if let Poll::Ready(ended) = Pin::new(&mut running).poll(cx) {
                        return Poll::Ready(Ok(ended));
                    }
                    if poll_stop(stop, listening.as_mut(), cx).is_ready() {
                        return Poll::Ready(Err(Stopped::ByRun));
                    }
                    match &mut over {
                        Some(over) => over.as_mut().poll(cx).map(|()| Err(Stopped::ByDeadline)),
                        None => Poll::Pending,
                    }
                })
                .await
            };
            match ended {
                Ok(ended) => BodyEnd::Done(flat(ended)),
                Err(stopped) => self.stop_body(running, stopping, stopped, work).boxed().await,
            }
        }
    }

    fn start(&self, prepared: Box<dyn Prepared<C>>, work: &CallWork<'_, C>) -> (Running, Stopping) {
        match prepared.start(work.ctx.clone()) {
            Start::Async(body) => {
                let body = self.shared.config.call_layers.iter().rev().fold(body, |inner, layer| {
                    let (layer, ctx) = (layer.clone(), work.ctx.clone());
                    async move { layer(ctx, NextCall(inner)).await }.boxed()
                });
                let tool = &work.ready.tool;
                let deadline = tool.timeout.map_or(Deadline::None, |_| Deadline::Some);
                (Running::on(&tool.pace, body, deadline), Stopping::ByDropping)
            }
            Start::Blocking(body) => (Running::blocking(body), Stopping::ByAsking),
        }
    }

    /// Stops a body that is past its time, or whose turn has stopped. What has ended is never lost.
    async fn stop_body(
        &self,
        mut running: Running,
        stopping: Stopping,
        stopped: Stopped,
        work: &CallWork<'_, C>,
    ) -> BodyEnd {
        work.ctx.stop();
        running.move_out();
        // A run that is handed over lets its bodies finish, if they can in time.
        let cancel = &self.shared.cancel;
        let may_finish = matches!(stopped, Stopped::ByRun) && cancel.hands_over() && !cancel.is_lost();
        if stopping == Stopping::ByDropping && !may_finish {
            running.abort();
        }
        let wait = match (stopping, stopped) {
            // A deadline holds: it is not made longer by the wait for a body that will not stop.
            (Stopping::ByAsking, Stopped::ByDeadline) => Duration::ZERO,
            _ => self.shared.config.drain,
        };
        let ended = tokio::time::timeout(wait, &mut running).await;
        if ended.is_err() {
            // It had its time. What another driver goes on with must not go on here too.
            running.abort();
        }
        match (ended, stopping, stopped) {
            // It finished in the moment in which it was stopped.
            (Ok(Ok(result)), _, _) => BodyEnd::Done(result),
            (Ok(Err(gone @ Gone::Panicked(_))), _, _) => BodyEnd::Done(flat(Err(gone))),
            (Ok(Err(Gone::Dropped)), _, Stopped::ByDeadline) => BodyEnd::TimedOut,
            (Ok(Err(Gone::Dropped)), _, Stopped::ByRun) => BodyEnd::Cancelled,
            (Err(_), _, stopped) => {
                self.watch_late(running, work);
                match (stopping, stopped) {
                    (_, Stopped::ByRun) => {
                        lock(&self.shared.draining).push(work.call.clone());
                        BodyEnd::Cancelled
                    }
                    (Stopping::ByDropping, Stopped::ByDeadline) => BodyEnd::TimedOut,
                    (Stopping::ByAsking, Stopped::ByDeadline) => BodyEnd::LeftRunning,
                }
            }
        }
    }

    /// Records what becomes of a body that nobody waits for any more.
    fn watch_late(&self, running: Running, work: &CallWork<'_, C>) {
        let journal = Arc::downgrade(&self.shared.journal);
        let (path, call) = (self.path.clone(), work.call.clone());
        let name = work.ctx.path().to_string();
        let (tool, arguments) = (work.ready.tool.clone(), work.ready.arguments.clone());
        tokio::spawn(async move {
            let ended = running.await;
            // That it was dropped does not tell how far it had come, so it is no end to record.
            let was_dropped = matches!(ended, Err(Gone::Dropped));
            let result = written(flat(ended), &tool, &arguments);
            match &result {
                Ok(_) => tracing::warn!(call = %name, "a body that was given up on has ended"),
                Err(error) => tracing::warn!(call = %name, %error, "a body that was given up on has failed"),
            }
            if let Some(journal) = journal.upgrade().filter(|_| !was_dropped) {
                let written =
                    journal.append(&path, Entry::CallEndedLate(CallEndedLate { call, result })).await;
                if let Err(error) = written {
                    tracing::warn!(call = %name, %error, "its end could not be recorded");
                }
            }
        });
    }
}

/// Resolves when the time of a body is over; never, where it may take as long as it likes.
pub(super) async fn deadline(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => tokio::time::sleep(timeout).await,
        None => std::future::pending().await,
    }
}

/// How a body is stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stopping {
    ByDropping,
    ByAsking,
}

/// What stopped a body.
#[derive(Clone, Copy)]
enum Stopped {
    ByRun,
    ByDeadline,
}

fn flat(ended: Result<BodyResult, Gone>) -> BodyResult {
    match ended {
        Ok(result) => result,
        Err(Gone::Panicked(text)) => Err(ToolError::hidden(format!("the body panicked: {text}"))),
        Err(Gone::Dropped) => Err(ToolError::hidden("the body cancelled itself")),
    }
}

/// An error's text, as anybody may see it.
fn told<C>(text: &str, tool: &Tool<C>, arguments: &str) -> String {
    readable(secret::scrubbed(text, arguments, &tool.secret_arguments))
}

/// What may be written of a body's late end: no secrets, and no more than its call would have told.
fn written<C>(result: BodyResult, tool: &Tool<C>, arguments: &str) -> Result<OutputContent, String> {
    match result {
        Ok(_) if tool.output_visibility == Visibility::Secret => Ok(SECRET.into()),
        Ok(OutputContent::Text(mut text)) => {
            text.truncate(text.floor_char_boundary(tool.output_budget));
            Ok(text.into())
        }
        Ok(parts) => Ok(parts),
        Err(error) => Err(told(error.message(), tool, arguments)),
    }
}

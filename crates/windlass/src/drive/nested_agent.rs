//! A nested agent: a driver of its own inside a call, on the same run and the same journal.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use windlass_core::{
    id::{AgentName, CallId, RunId},
    journal::{CallStatus, JournalEntry, RunStarted},
    run::{CallReport, CallResult, RunEnd},
};

use super::Driver;
use super::call::CallExecution;
use crate::agent::{Agent, AgentGraph, AgentTool, HandoffTarget, NestedAgentResult};
use crate::error::{RunError, truncate_message};
use crate::guardrail::panic_message;
use crate::run::{DriveError, RunExit, RunScope};
use crate::tool::{ToolBody, ToolError, result_for_error, result_for_timeout};

impl<C: Send + Sync + 'static> Driver<C> {
    /// Runs the agent of a call: from its start, or from where an earlier driver left it.
    pub(super) async fn run_nested_agent(
        &self,
        work: &CallExecution<'_, C>,
    ) -> Result<CallReport, DriveError> {
        let tool = work.prepared.tool.clone();
        let ToolBody::Agent(nested) = &tool.body else {
            return Ok(CallReport::BodyEnded(CallResult::cancelled()));
        };
        let path: Arc<[CallId]> = self.scope.parent_calls.iter().chain([&work.call]).cloned().collect();
        let agent = self.resolve_nested_agent(nested)?;
        if self.scope.with_run(|run| run.nested_run(&work.call).is_none()) {
            let input = match nested.build_input(&work.prepared.arguments) {
                Ok(input) => input,
                Err(error) => {
                    let result = result_for_error(&tool, &work.ctx, &error);
                    return Ok(CallReport::BodyEnded(result));
                }
            };
            let started = RunStarted {
                run: RunId::new(format!("{}/{}", self.shared.run_id, work.ctx.call_path())),
                agent: agent.name().clone(),
                history: Default::default(),
                input,
                max_turns: nested.max_turns,
                session: None,
                previous_response_id: None,
                origin: None,
            };
            let entry = JournalEntry::RunStarted(started.into());
            let recorded = self.shared.recorder.enqueue(&path, entry, self.scope.is_observed, None)?;
            self.scope.wait_recorded(recorded).await?;
        }
        self.drive_nested_agent(path, agent, work).await
    }

    pub(super) fn resolve_nested_agent(&self, nested: &AgentTool<C>) -> Result<Agent<C>, DriveError> {
        match &nested.target {
            HandoffTarget::Agent(agent) => Ok(agent.clone()),
            HandoffTarget::ByName(name) => Ok(self.find_agent(name)?),
        }
    }

    /// Creates the driver of a nested run.
    pub(super) fn nested_driver(
        &self,
        path: Arc<[CallId]>,
        agent: &Agent<C>,
        stop: CancellationToken,
    ) -> Result<Self, DriveError> {
        let run_id =
            self.shared.recorder.with_root(|run| run.at_path(&path).map(|nested| nested.id().clone()));
        let graph = AgentGraph::new(agent, &self.shared.config.known_agents)?;
        let emitter = self.scope.emitter.for_nested_agent(&path);
        let scope = RunScope {
            app: self.scope.app.clone(),
            run_id: run_id.unwrap_or_else(|| self.scope.run_id.clone()),
            parent_calls: path,
            recorder: self.shared.recorder.clone(),
            is_observed: emitter.is_watched() || !self.scope.hooks.is_empty() || graph.has_hooks(),
            emitter,
            hooks: self.scope.hooks.clone(),
            stop,
            drain_timeout: self.shared.config.drain_timeout,
        };
        Ok(Self::new(self.shared.clone(), graph, scope))
    }

    /// Boxes the future of the drive loop, because nested agents make it recursive.
    fn drive_boxed(&mut self) -> BoxFuture<'_, Result<RunExit, RunError>> {
        self.drive().boxed()
    }

    async fn drive_nested_agent(
        &self,
        path: Arc<[CallId]>,
        agent: Agent<C>,
        work: &CallExecution<'_, C>,
    ) -> Result<CallReport, DriveError> {
        let stop = work.turn.stop.token().child_token();
        let mut driver = self.nested_driver(path, &agent, stop.clone())?;
        let call_stop = work.stop();
        let (driven, is_late) = {
            let mut driving = AssertUnwindSafe(driver.drive_boxed()).catch_unwind();
            tokio::select! {
                biased;
                driven = &mut driving => (driven, false),
                () = call_stop.stopped() => {
                    stop.cancel();
                    (driving.await, false)
                }
                () = sleep_or_pending(work.prepared.tool.timeout) => {
                    stop.cancel();
                    (driving.await, true)
                }
            }
        };
        driver.at_end.run_callbacks(driven.as_ref().map_or(RunExit::Ended, RunExit::of_driver)).await;
        let end = match driven {
            Ok(end) => end?,
            // The agent is this call's body, and a body's panic is its call's failure.
            Err(panic) => {
                let message = format!("agent `{}` panicked: {}", agent.name(), panic_message(&*panic));
                return Ok(self.nested_failure(work, message).await);
            }
        };
        let (outcome, last_text, last_agent) =
            driver.scope.with_run(|run| (run.outcome().cloned(), run.last_text(), run.agent().clone()));
        Ok(match (end, outcome) {
            (RunExit::Detached, _) => CallReport::Stopped(self.stop_mode()),
            (RunExit::Paused, _) | (RunExit::Ended, None) => CallReport::AgentPaused,
            (RunExit::Ended, Some(RunEnd::Finished(output))) => {
                // An earlier text has not passed the output guardrails of the agent.
                let is_guarded = driver.find_agent(&last_agent)?.has_output_guardrails();
                let output = if output.is_empty() && !is_guarded { last_text } else { output };
                self.nested_output(work, &driver, last_agent, output).await
            }
            (RunExit::Ended, Some(RunEnd::Failed(failure))) => {
                self.nested_failure(work, format!("agent `{}` failed: {failure}", agent.name())).await
            }
            (RunExit::Ended, Some(RunEnd::Cancelled)) if is_late => {
                let result = result_for_timeout(&work.prepared.tool, &work.ctx, CallStatus::TimedOut);
                CallReport::BodyEnded(result)
            }
            (RunExit::Ended, Some(RunEnd::Cancelled)) => CallReport::BodyEnded(CallResult::cancelled()),
        })
    }

    /// Returns the output of a call whose agent finished.
    async fn nested_output(
        &self,
        work: &CallExecution<'_, C>,
        driver: &Self,
        agent: AgentName,
        output: String,
    ) -> CallReport {
        let extracted = match &work.prepared.tool.body {
            ToolBody::Agent(nested) if nested.has_output_function() => {
                let items = driver.scope.with_run(|run| run.items().to_vec());
                nested.extract_output(NestedAgentResult { agent, output, items })
            }
            ToolBody::Agent(_) | ToolBody::Function(_) => Ok(output.into()),
        };
        match extracted {
            Ok(output) => CallReport::BodyEnded(CallResult::new(CallStatus::Succeeded, output)),
            Err(error) => {
                let message = truncate_message(format!("call `{}` failed: {error}", work.ctx.call_path()));
                self.scope.emit_warning(message).await;
                CallReport::BodyEnded(result_for_error(&work.prepared.tool, &work.ctx, &error))
            }
        }
    }

    async fn nested_failure(&self, work: &CallExecution<'_, C>, message: String) -> CallReport {
        let message = truncate_message(message);
        self.scope.emit_warning(message.clone()).await;
        let mut result = result_for_error(&work.prepared.tool, &work.ctx, &ToolError::hidden(message));
        // A call that was stopped is no failure of the run.
        if work.stop().is_stopped() {
            result.run_failure = None;
        }
        CallReport::BodyEnded(result)
    }
}

/// Resolves after the timeout; never, if there is none.
async fn sleep_or_pending(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => tokio::time::sleep(timeout).await,
        None => std::future::pending().await,
    }
}

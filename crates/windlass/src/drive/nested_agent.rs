//! A nested agent: a driver of its own inside a call, on the same run and the same journal.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use windlass_core::{
    id::{CallId, RunId},
    journal::{JournalEntry, RunStarted},
    run::{CallReport, CallResult},
};

use super::Driver;
use super::call::CallExecution;
use crate::agent::{Agent, AgentGraph};
use crate::error::RunError;
use crate::guardrail::panic_message;
use crate::observe::trace_span::in_nested_agent_spans;
use crate::run::{DriveError, RunExit, budgets_with};
use crate::tasks::{EndingFailure, sleep_or_pending};
use crate::tool::{EndedAgent, ToolBody, result_for_error, tool_timeout_failure};

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
        let agent = self.graph.target_agent(&nested.target)?.clone();
        if self.scope.with_run(|run| run.nested_run(&work.call).is_none()) {
            let input = match nested.build_input(&work.prepared.arguments) {
                Ok(input) => input,
                Err(error) => {
                    let result = result_for_error(&tool, &work.ctx, &error);
                    return Ok(CallReport::BodyEnded(result));
                }
            };
            let id = RunId::new(format!("{}/{}", self.shared.run_id, work.ctx.call_path()));
            let max_turns = nested.max_turns.for_agents(std::iter::once(&agent));
            let started = RunStarted { input, max_turns, ..RunStarted::new(id, agent.name().clone()) };
            let entry = JournalEntry::RunStarted(started.into());
            let recorded = self.shared.recorder.enqueue(&path, entry, self.scope.is_observed, None)?;
            self.scope.wait_recorded(recorded).await?;
        }
        self.drive_nested_agent(path, agent, work).await
    }

    /// Creates the driver of a nested run.
    pub(super) fn nested_driver(
        &self,
        path: Arc<[CallId]>,
        agent: &Agent<C>,
        stop: CancellationToken,
    ) -> Result<Self, DriveError> {
        let graph = AgentGraph::new(agent, &self.shared.config.known_agents)?;
        let scope = self.scope.nested_scope(path, &graph, stop);
        let ending_failure = EndingFailure::nested_in(&self.ending_failure);
        let caller = self.current_agent()?;
        let callers = budgets_with(&self.caller_budgets, caller.name(), caller.inner.budget.as_ref());
        let caller_budgets = callers.into();
        Ok(Self { ending_failure, caller_budgets, ..Self::new(self.shared.clone(), graph, scope) })
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
        let timeout = tool_timeout_failure(&work.prepared.tool, &work.ctx);
        let ending_failure = driver.ending_failure.clone();
        let driven = {
            let driving = in_nested_agent_spans(&work.ctx, agent.name(), driver.drive_boxed());
            let mut driving = AssertUnwindSafe(driving).catch_unwind();
            tokio::select! {
                biased;
                // A call that stops requests no further model. An agent that has ended by then keeps its result.
                () = call_stop.stopped() => {
                    call_stop.drain_deadline();
                    stop.cancel();
                    driving.await
                }
                driven = &mut driving => driven,
                () = sleep_or_pending(work.prepared.tool.timeout) => {
                    ending_failure.set(&timeout);
                    stop.cancel();
                    driving.await
                }
            }
        };
        driver.at_end.run_callbacks(driven.as_ref().map_or(RunExit::Ended, RunExit::of_driver)).await;
        let ended = self.ended_body(work);
        let (report, warning) = match driven {
            Ok(exit) => {
                let (exit, last_agent) = (exit?, driver.current_agent()?);
                let is_guarded = last_agent.has_output_guardrails();
                driver.scope.with_run(|run| {
                    ended.report_agent(EndedAgent { run, exit, timeout: &timeout, is_guarded })
                })
            }
            Err(panic) => ended.report_agent_failure(format!("panicked: {}", panic_message(&*panic))),
        };
        if let Some(warning) = warning {
            self.scope.emit_warning(warning).await;
        }
        Ok(report)
    }
}

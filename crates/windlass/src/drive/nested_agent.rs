//! A nested agent: a driver of its own inside a call, on the same journal.

use std::collections::{BTreeSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::{
    id::{CallPath, RunId},
    journal::{CallStatus, JournalEntry, RunStarted},
    run::{Run, RunEnd},
};

use super::body::sleep_or_pending;
use super::call_execution::{CallExecution, CallOutcome};
use super::call_result::{CallResult, result_for_error, result_for_timeout};
use super::startup::leave_reason;
use super::{DriveEnd, DriveError, Driver};
use crate::agent::{Agent, AgentGraph, AgentTool, HandoffTarget};
use crate::error::{RunError, truncate_message};
use crate::event::RunEventKind;
use crate::guardrail::panic_message;
use crate::run::{ExitCallbacks, RunExit};
use crate::tool::{ToolBody, ToolError};

impl<C: Send + Sync + 'static> Driver<C> {
    /// Starts the run of a nested agent.
    pub(super) async fn start_nested_agent(
        &self,
        work: &CallExecution<'_, C>,
    ) -> Result<CallOutcome, DriveError> {
        let tool = work.prepared.tool.clone();
        let ToolBody::Agent(nested) = &tool.body else {
            return self.finish_call(work, CallResult::cancelled()).await;
        };
        let input = match nested.parse_input(&work.prepared.arguments) {
            Ok(input) => input,
            Err(problem) => {
                let given = result_for_error(&tool, &work.ctx, &ToolError::visible(problem));
                return self.finish_call(work, given).await;
            }
        };
        let path = CallPath::new(&self.parent_calls, work.call.clone());
        let agent = self.resolve_nested_agent(nested)?;
        let started = RunStarted {
            run: RunId::new(format!("{}/{path}", self.run_id)),
            agent: agent.name().clone(),
            history: Vec::new(),
            input,
            max_turns: nested.max_turns,
            session: None,
            origin: None,
        };
        let run = Run::start(started.clone());
        self.shared
            .journal
            .append(&self.path_to_call(work), JournalEntry::RunStarted(started.into()))
            .await?;
        self.drive_nested_agent(run, nested, work).await
    }

    /// Resumes the run of a nested agent.
    pub(super) async fn resume_nested_agent(
        &self,
        work: &CallExecution<'_, C>,
    ) -> Result<CallOutcome, DriveError> {
        let tool = work.prepared.tool.clone();
        let ToolBody::Agent(nested) = &tool.body else {
            return self.finish_call(work, CallResult::cancelled()).await;
        };
        match self.with_run(|run| run.take_nested_run(&work.call)) {
            Some(run) => self.drive_nested_agent(run, nested, work).await,
            None => self.start_nested_agent(work).await,
        }
    }

    pub(super) fn resolve_nested_agent(&self, nested: &AgentTool<C>) -> Result<Agent<C>, DriveError> {
        match &nested.target {
            HandoffTarget::Agent(agent) => Ok(agent.clone()),
            HandoffTarget::ByName(name) => Ok(self.find_agent(name)?),
        }
    }

    fn path_to_call(&self, work: &CallExecution<'_, C>) -> Arc<[windlass_core::id::CallId]> {
        self.parent_calls.iter().cloned().chain([work.call.clone()]).collect()
    }

    /// Boxes the future of the drive loop, because nested agents make it recursive.
    fn drive_boxed(&mut self) -> BoxFuture<'_, Result<DriveEnd, RunError>> {
        self.drive().boxed()
    }

    async fn drive_nested_agent(
        &self,
        run: Run,
        nested: &AgentTool<C>,
        work: &CallExecution<'_, C>,
    ) -> Result<CallOutcome, DriveError> {
        let path = self.path_to_call(work);
        let agent = self.resolve_nested_agent(nested)?;
        let stop = work.turn.stop.child_token();
        let mut driver = Self {
            shared: self.shared.clone(),
            graph: Arc::new(AgentGraph::new(&agent, &self.shared.config.known_agents)?),
            emitter: self.emitter.for_nested_agent(&path),
            parent_calls: path,
            run_id: run.id().clone(),
            run: Mutex::new(run),
            stop: stop.clone(),
            hooks: Vec::new(),
            session: None,
            saved_item_count: 0,
            announced_agent: None,
            tools: None,
            prepared_calls: VecDeque::new(),
            concurrent_guardrails: Mutex::default(),
            has_run_guardrails: false,
            model_error: None,
            shown_outputs: BTreeSet::new(),
            has_worked: false,
            at_end: ExitCallbacks::default(),
        };
        let (driven, is_late) = {
            let mut driving = AssertUnwindSafe(driver.drive_boxed()).catch_unwind();
            tokio::select! {
                biased;
                driven = &mut driving => (driven, false),
                () = sleep_or_pending(work.prepared.tool.timeout) => {
                    stop.cancel();
                    (driving.await, true)
                }
            }
        };
        driver.at_end.run_callbacks(driven.as_ref().map_or(RunExit::Ended, leave_reason)).await;
        let stop = match driven {
            Ok(stop) => stop?,
            // The agent is this call's body, and a body's panic is its call's failure.
            Err(panic) => {
                let message = format!("agent `{}` panicked: {}", agent.name(), panic_message(&*panic));
                return self.fail_nested_agent(work, message).await;
            }
        };
        let run = driver.run.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        match (stop, run.outcome().cloned()) {
            (DriveEnd::Detached, _) => {
                self.with_run(|outer| outer.restore_nested_run(&work.call, run));
                Ok(CallOutcome::LeftOpen)
            }
            (DriveEnd::Paused, _) | (DriveEnd::Ended, None) => {
                self.with_run(|outer| outer.restore_nested_run(&work.call, run));
                Ok(CallOutcome::Held)
            }
            (DriveEnd::Ended, Some(RunEnd::Finished(output))) => {
                let output = if output.is_empty() { last_output_text(&run) } else { output };
                self.finish_call(work, CallResult::new(CallStatus::Succeeded, output)).await
            }
            (DriveEnd::Ended, Some(RunEnd::Failed(failure))) => {
                self.fail_nested_agent(work, format!("agent `{}` failed: {failure}", agent.name())).await
            }
            (DriveEnd::Ended, Some(RunEnd::Cancelled)) if is_late => {
                let given = result_for_timeout(&work.prepared.tool, &work.ctx, CallStatus::TimedOut);
                self.finish_call(work, given).await
            }
            (DriveEnd::Ended, Some(RunEnd::Cancelled)) if self.shared.cancel.is_detaching() => {
                self.with_run(|outer| outer.restore_nested_run(&work.call, run));
                Ok(CallOutcome::LeftOpen)
            }
            (DriveEnd::Ended, Some(RunEnd::Cancelled)) => {
                self.finish_call(work, CallResult::cancelled()).await
            }
        }
    }

    async fn fail_nested_agent(
        &self,
        work: &CallExecution<'_, C>,
        message: String,
    ) -> Result<CallOutcome, DriveError> {
        let message = truncate_message(message);
        self.emitter.emit(RunEventKind::Warning { message: message.clone() }).await;
        let given = result_for_error(&work.prepared.tool, &work.ctx, &ToolError::hidden(message));
        self.finish_call(work, given).await
    }
}

/// Returns the last non-empty output or message of a nested agent that ended with an empty output.
fn last_output_text(run: &Run) -> String {
    use windlass_core::item::Item;
    run.items()
        .iter()
        .rev()
        .find_map(|produced| match &*produced.item {
            Item::Output(output) => Some(output.content.text().into_owned()).filter(|text| !text.is_empty()),
            Item::Message(message) => Some(message.text()).filter(|text| !text.is_empty()),
            _ => None,
        })
        .unwrap_or_default()
}

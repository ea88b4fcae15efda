//! Announcements after a crash: events and hook events that the process before may not have delivered.

use std::sync::Arc;

use windlass_core::{id::CallId, run::ApplyError, tool::ToolKey};

use super::Driver;
use crate::agent::Agent;
use crate::error::{ConfigError, truncate_message};
use crate::hook::{AfterCall, HookEvent};
use crate::observe::{HookObservation, RecordedCall, UnannouncedHook, UnannouncedRecord};
use crate::run::DriveError;
use crate::tasks::{CallStop, TurnStop};
use crate::tool::{Tool, ToolBody, ToolContext};

impl<C: Send + Sync + 'static> Driver<C> {
    /// Announces records that the last driver of the run may not have announced, marked as repeated: to watchers, then to
    /// hooks. A hook that cannot be notified leads to a warning.
    pub(super) async fn announce_again(&self, records: Vec<UnannouncedRecord>) {
        for UnannouncedRecord { path, events, for_hooks } in records {
            for event in events {
                if let Some(room) = self.scope.emitter.reserve().await {
                    room.send(event);
                }
            }
            let Some(hook) = for_hooks else { continue };
            if let Err(error) = self.notify_hooks_again(&path, hook).await {
                let reason = match error {
                    DriveError::RunFailed(failure) => failure.to_string(),
                    DriveError::Cancelled => "the run was cancelled".to_owned(),
                    DriveError::Aborted(error) => error.to_string(),
                };
                let message = truncate_message(format!("a hook could not be notified again: {reason}"));
                self.scope.emit_warning(message).await;
            }
        }
        // A watcher may cancel on what it was just shown.
        self.scope.emitter.wait_until_handled().await;
    }

    async fn notify_hooks_again(&self, path: &[CallId], again: UnannouncedHook) -> Result<(), DriveError> {
        let nested = self.nested_driver_at(path).await?;
        let driver = nested.as_ref().unwrap_or(self);
        let agent = driver.find_agent(&again.agent)?;
        if !driver.scope.has_hooks(&agent) {
            return Ok(());
        }
        let stop = TurnStop::new(&driver.scope.stop, driver.scope.drain.clone());
        let event = match (again.observation, again.call) {
            (HookObservation::CallEnded { status, output, info, .. }, Some(call)) => {
                let is_ending = driver.scope.with_run(|run| run.is_failing() || run.outcome().is_some());
                let after_call = AfterCall::of_call(&status, is_ending);
                let ctx = driver.context_of_recorded_call(call, &agent, &stop).await?;
                HookEvent::CallEnded { ctx, status, output, after_call, info, is_repeated: true }
            }
            (HookObservation::HandedOff { to, seq }, _) => HookEvent::HandedOff {
                ctx: driver.scope.run_context(agent.name()),
                to,
                seq,
                is_repeated: true,
            },
            (HookObservation::CallEnded { .. }, None) => return Ok(()),
        };
        driver.scope.notify_hooks_after(&agent, event, CallStop { turn: &stop, place: 0 }).await;
        Ok(())
    }

    async fn context_of_recorded_call(
        &self,
        call: RecordedCall,
        agent: &Agent<C>,
        stop: &TurnStop,
    ) -> Result<ToolContext<C>, DriveError> {
        let tool = self.find_tool_of(agent, &call.tool, &call.call).await?;
        let answers = self.scope.with_run(|run| run.answered_questions(&call.call).to_vec());
        let (id, details) = (call.call.clone(), call.into_details(tool, answers));
        Ok(ToolContext::new(self.turn_context(agent, stop).into(), id, details))
    }

    /// Returns the tool of a call, from the agent's own tools if it is there.
    async fn find_tool_of(
        &self,
        agent: &Agent<C>,
        key: &ToolKey,
        call: &CallId,
    ) -> Result<Arc<Tool<C>>, DriveError> {
        if let Some(tool) = agent.inner.tools.iter().find(|tool| tool.key() == key) {
            return Ok(tool.clone());
        }
        let tools = self.resolve_tools(agent).await?;
        let removed = || ConfigError::ToolRemoved {
            tool: key.to_string(),
            agent: agent.name().clone(),
            call: self.scope.call_path(call),
        };
        Ok(tools.find_tool(key).ok_or_else(removed)?)
    }

    /// Returns the driver of the nested agent at a path; `None` for the outermost run.
    async fn nested_driver_at(&self, path: &[CallId]) -> Result<Option<Self>, DriveError> {
        let mut nested: Option<Self> = None;
        for (depth, call) in path.iter().enumerate() {
            let outer = nested.as_ref().unwrap_or(self);
            let (name, key) =
                outer.scope.with_run(|run| (run.agent().clone(), run.tool_of_call(call).cloned()));
            let unknown = || outer.scope.invalid_entry_error(&ApplyError::UnknownCall(call.clone()));
            let tool = outer.find_tool_of(&outer.find_agent(&name)?, &key.ok_or_else(unknown)?, call).await?;
            let ToolBody::Agent(target) = &tool.body else { return Err(unknown()) };
            let agent = outer.graph.target_agent(&target.target)?;
            nested =
                Some(outer.nested_driver(path[..=depth].into(), agent, outer.scope.stop.child_token())?);
        }
        Ok(nested)
    }
}

//! An agent inside a call: a driver of its own, on the same journal.

use std::collections::{BTreeSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::{CallPath, End, Entry, How, Run, RunId, Started};

use super::begin::leaving;
use super::body::deadline;
use super::call::{CallEnd, CallWork};
use super::told::{Given, given_for_error, given_for_timeout};
use super::{Driver, Halt, Stop};
use crate::agent::{Agent, AgentTool, Graph, Target};
use crate::error::{RunError, readable};
use crate::event::EventKind;
use crate::guardrail::panic_text;
use crate::run::{AtEnd, Leaving};
use crate::tool::{ToolBody, ToolError};

impl<C: Send + Sync + 'static> Driver<C> {
    /// Begins the run of an agent inside a call.
    pub(super) async fn start_agent(&self, work: &CallWork<'_, C>) -> Result<CallEnd, Halt> {
        let tool = work.ready.tool.clone();
        let ToolBody::Agent(nested) = &tool.body else {
            return self.finish_call(work, Given::cancelled()).await;
        };
        let input = match nested.input(&work.ready.arguments) {
            Ok(input) => input,
            Err(problem) => {
                let given = given_for_error(&tool, &work.ctx, &ToolError::tell(problem));
                return self.finish_call(work, given).await;
            }
        };
        let path = CallPath::new(&self.path, work.call.clone());
        let agent = self.nested_agent(nested)?;
        let started = Started {
            run: RunId::new(format!("{}/{path}", self.run_id)),
            agent: agent.name().clone(),
            history: Vec::new(),
            input,
            max_turns: nested.max_turns,
            session: None,
            origin: None,
        };
        let run = Run::start(started.clone());
        self.shared.journal.append(&self.path_of(work), Entry::Started(started.into())).await?;
        self.drive_agent(run, nested, work).await
    }

    /// Goes on with the run of an agent inside a call.
    pub(super) async fn resume_agent(&self, work: &CallWork<'_, C>) -> Result<CallEnd, Halt> {
        let tool = work.ready.tool.clone();
        let ToolBody::Agent(nested) = &tool.body else {
            return self.finish_call(work, Given::cancelled()).await;
        };
        match self.locked(|run| run.take_child(&work.call)) {
            Some(run) => self.drive_agent(run, nested, work).await,
            None => self.start_agent(work).await,
        }
    }

    pub(super) fn nested_agent(&self, nested: &AgentTool<C>) -> Result<Agent<C>, Halt> {
        match &nested.target {
            Target::Agent(agent) => Ok(agent.clone()),
            Target::Named(name) => Ok(self.agent(name)?),
        }
    }

    fn path_of(&self, work: &CallWork<'_, C>) -> Arc<[windlass_core::CallId]> {
        self.path.iter().cloned().chain([work.call.clone()]).collect()
    }

    /// An agent may call agents, and those may call agents: somewhere the future needs a known size.
    fn drive_inside(&mut self) -> BoxFuture<'_, Result<Stop, RunError>> {
        self.drive().boxed()
    }

    async fn drive_agent(
        &self,
        run: Run,
        nested: &AgentTool<C>,
        work: &CallWork<'_, C>,
    ) -> Result<CallEnd, Halt> {
        let path = self.path_of(work);
        let agent = self.nested_agent(nested)?;
        let stop = work.turn.stop.child_token();
        let mut driver = Self {
            shared: self.shared.clone(),
            graph: Arc::new(Graph::new(&agent, &self.shared.config.agents)?),
            emitter: self.emitter.within(&path),
            path,
            run_id: run.id().clone(),
            run: Mutex::new(run),
            stop: stop.clone(),
            hooks: Vec::new(),
            session: None,
            saved: 0,
            greeted: None,
            tools: None,
            ready: VecDeque::new(),
            overlap: Mutex::default(),
            guarded: false,
            model_error: None,
            shown: BTreeSet::new(),
            at_end: AtEnd::default(),
        };
        let (driven, is_late) = {
            let mut driving = AssertUnwindSafe(driver.drive_inside()).catch_unwind();
            tokio::select! {
                biased;
                driven = &mut driving => (driven, false),
                () = deadline(work.ready.tool.timeout) => {
                    stop.cancel();
                    (driving.await, true)
                }
            }
        };
        driver.at_end.run(driven.as_ref().map_or(Leaving::Over, leaving)).await;
        let stop = match driven {
            Ok(stop) => stop?,
            // The agent is this call's body, and a body's panic is its call's failure.
            Err(panic) => {
                let message = format!("agent `{}` panicked: {}", agent.name(), panic_text(&*panic));
                return self.agent_failed(work, message).await;
            }
        };
        let run = driver.run.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        match (stop, run.end().cloned()) {
            (Stop::Left, _) => {
                self.locked(|outer| outer.park_child(&work.call, run));
                Ok(CallEnd::Left)
            }
            (Stop::Paused, _) | (Stop::Over, None) => {
                self.locked(|outer| outer.park_child(&work.call, run));
                Ok(CallEnd::Held)
            }
            (Stop::Over, Some(End::Finished(output))) => {
                let output = if output.is_empty() { last_words(&run) } else { output };
                self.finish_call(work, Given::new(How::Succeeded, output)).await
            }
            (Stop::Over, Some(End::Failed(failure))) => {
                self.agent_failed(work, format!("agent `{}` failed: {failure}", agent.name())).await
            }
            (Stop::Over, Some(End::Cancelled)) if is_late => {
                let given = given_for_timeout(&work.ready.tool, &work.ctx, How::TimedOut);
                self.finish_call(work, given).await
            }
            (Stop::Over, Some(End::Cancelled)) if self.shared.cancel.hands_over() => {
                self.locked(|outer| outer.park_child(&work.call, run));
                Ok(CallEnd::Left)
            }
            (Stop::Over, Some(End::Cancelled)) => self.finish_call(work, Given::cancelled()).await,
        }
    }

    async fn agent_failed(&self, work: &CallWork<'_, C>, message: String) -> Result<CallEnd, Halt> {
        let message = readable(message);
        self.emitter.emit(EventKind::Warning { message: message.clone() }).await;
        let given = given_for_error(&work.ready.tool, &work.ctx, &ToolError::hidden(message));
        self.finish_call(work, given).await
    }
}

/// An agent that ended without a word may still have done something: its last output says what.
fn last_words(run: &Run) -> String {
    use windlass_core::Item;
    run.produced()
        .iter()
        .rev()
        .find_map(|produced| match &*produced.item {
            Item::Output(output) => Some(output.content.text().into_owned()).filter(|text| !text.is_empty()),
            Item::Message(message) => Some(message.text()).filter(|text| !text.is_empty()),
            _ => None,
        })
        .unwrap_or_default()
}

//! One turn's question to the model: who asks, with which tools, and what is made of the answer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use windlass_core::{
    AfterTools, AnswerRefused, Answered, Entry, Failure, Item, Misbehaviour, ModelFailed, Part, Plan,
    Produced, Usage, plan,
};

use super::guard::Overlap;
use super::stop::unless_stopped;
use super::{Driver, Halt};
use crate::agent::{Agent, ForcedChoice, ToolUse, Toolset};
use crate::error::{ConfigError, readable};
use crate::event::EventKind;
use crate::hook::Moment;
use crate::model::{
    Answer, Deltas, ModelError, ModelRequest, ModelSettings, NextModel, OutputShape, RetryAdvice, SharedModel,
};
use crate::run::{ModelInput, ModelRetry};

/// Everything a model is asked with, but the conversation.
struct Question {
    model: SharedModel,
    settings: ModelSettings,
    instructions: Option<Arc<str>>,
    shape: Option<OutputShape>,
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Asks the model for a turn and records its answer, planned.
    pub(super) async fn ask_model(&mut self, turn: u32) -> Result<(), Halt> {
        let name = self.run().agent().clone();
        let agent = self.agent(&name)?;
        self.guard_and_greet(&agent).await?;
        let ctx = self.context(&name);
        let tools = match agent.known_toolset() {
            Some(tools) => tools?,
            None => self.unless_stopped(agent.toolset(&ctx, &self.graph)).boxed().await??,
        };
        if !self.tools.as_ref().is_some_and(|known| Arc::ptr_eq(known, &tools)) {
            for message in tools.warnings.iter().cloned() {
                self.emitter.emit(EventKind::Warning { message }).await;
            }
        }
        let question = self.question(&agent).await?;
        if self.has_hooks(&agent) {
            let ctx = ctx.clone();
            self.tell_or_fail(&agent, || Moment::ModelAsked { ctx, turn }).boxed().await?;
        }
        let answer = self.answer(&agent, turn, &question, &tools).boxed().await?;
        let usage = answer.usage.unwrap_or_else(Usage::unknown);
        let items = answer.items.clone();
        let planned = self.take_answer(answer.items, &agent, &tools).await;
        match planned {
            Ok(Plan { items, calls, repeated }) => {
                let after = match &agent.inner.tool_use {
                    ToolUse::RunAgain => AfterTools::RunAgain,
                    ToolUse::StopOnFirst => AfterTools::StopOnFirst,
                    ToolUse::StopAt(names) => AfterTools::StopAt(names.clone()),
                    ToolUse::Judge(_) => AfterTools::Ask,
                };
                let Answer { response_id, request_id, model, .. } = answer;
                self.tools = Some(tools);
                self.shown.clear();
                let agent = name;
                let answered =
                    Answered { agent, items, calls, repeated, after, usage, response_id, request_id, model };
                self.record(Entry::Answered(answered.into())).await?;
                // What a watcher was shown it may still stop, before any of it takes effect.
                self.emitter.settled().await;
                self.check_loop().await
            }
            // It was paid for, whatever came in between.
            Err(halt @ (Halt::Failure(_) | Halt::Cancelled)) => {
                let refused = AnswerRefused { agent: name, items, usage };
                self.record(Entry::AnswerRefused(refused)).await?;
                Err(halt)
            }
            Err(halt @ Halt::Error(_)) => Err(halt),
        }
    }

    /// Plans an answer, and tells watchers and hooks of it.
    pub(super) async fn take_answer(
        &mut self,
        items: Vec<Arc<Item>>,
        agent: &Agent<C>,
        tools: &Arc<Toolset<C>>,
    ) -> Result<Plan, Halt> {
        let told: Option<Arc<[_]>> = self.has_hooks(agent).then(|| items.as_slice().into());
        let planned = self.plan(items, agent, tools).await?;
        let is_readable = planned.as_ref().err().is_none_or(Misbehaviour::answer_was_readable);
        if let (Ok(plan), true) = (&planned, self.emitter.is_watched()) {
            self.show_answer(agent, plan).boxed().await;
        }
        if let (true, Some(items)) = (is_readable, told) {
            let ctx = self.context(agent.name());
            self.tell_or_fail(agent, || Moment::ModelAnswered { ctx, items }).boxed().await?;
        }
        planned.map_err(|misbehaviour| Failure::Misbehaviour(misbehaviour).into())
    }

    async fn guard_and_greet(&mut self, agent: &Agent<C>) -> Result<(), Halt> {
        let is_first = self.run().turn() == 0 && !self.guarded;
        if is_first {
            self.guarded = true;
            self.guard_first(agent).boxed().await?;
        }
        if self.greeted.as_ref() != Some(agent.name()) {
            self.greeted = Some(agent.name().clone());
            let ctx = self.context(agent.name());
            self.tell_or_fail(agent, || Moment::AgentStarted { ctx }).boxed().await?;
        }
        if is_first {
            self.guard_beside(agent)?;
        }
        Ok(())
    }

    async fn question(&mut self, agent: &Agent<C>) -> Result<Question, Halt> {
        let config = &self.shared.config;
        let model = config.model.clone().or_else(|| agent.inner.model.clone());
        let model = model.ok_or_else(|| ConfigError::NoModel { agent: agent.name().clone() })?;
        let mut settings = match &config.settings {
            Some(over) => agent.inner.settings.overridden_by(over),
            None => agent.inner.settings.clone(),
        };
        let is_lifted = agent.inner.forced_choice == ForcedChoice::Lifted;
        if is_lifted && self.locked(|run| run.has_used_tools(agent.name())) {
            settings.tool_choice = None;
        }
        let shape = match &agent.inner.output {
            Some(output) => Some(
                output
                    .shape
                    .clone()
                    .map_err(|why| ConfigError::OutputNotStrict { agent: agent.name().clone(), why })?,
            ),
            None => None,
        };
        let ctx = self.context(agent.name());
        let instructions = self.unless_stopped(agent.inner.instructions.text(&ctx)).await?;
        Ok(Question { model, settings, instructions, shape })
    }

    /// Asks until there is an answer, or asking again is of no use.
    async fn answer(
        &mut self,
        agent: &Agent<C>,
        turn: u32,
        question: &Question,
        tools: &Toolset<C>,
    ) -> Result<Answer, Halt> {
        let retry = self.shared.config.model_retry;
        let mut attempt = 1;
        loop {
            let error = match self.ask_once(agent, turn, question, tools).await? {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let chance = spread(self.run().id().as_str(), turn, attempt);
            let wait = wait_before(&retry, attempt, error.advice(), chance);
            self.record(Entry::ModelFailed(ModelFailed {
                agent: agent.name().clone(),
                error: readable(error.to_string()),
                retry_after_ms: wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
                usage: error.usage().copied(),
            }))
            .await?;
            let Some(wait) = wait else {
                let message = readable(error.to_string());
                self.model_error = Some(Box::new(error));
                return Err(Failure::Model { message }.into());
            };
            self.emitter
                .emit(EventKind::Warning { message: readable(format!("the model failed: {error}")) })
                .await;
            attempt += 1;
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Err(Halt::Cancelled),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn ask_once(
        &mut self,
        agent: &Agent<C>,
        turn: u32,
        question: &Question,
        tools: &Toolset<C>,
    ) -> Result<Result<Answer, ModelError>, Halt> {
        let ctx = self.context(agent.name());
        let run = &*self.run.get_mut().unwrap_or_else(PoisonError::into_inner);
        let filtered = match &self.shared.config.input_filter {
            Some(filter) => {
                let items = run.history().to_vec();
                let input = ModelInput { instructions: question.instructions.clone(), items };
                Some(unless_stopped(&self.stop, filter(ctx, input)).await.ok_or(Halt::Cancelled)?)
            }
            None => None,
        };
        let (instructions, input) = match &filtered {
            Some(filtered) => (filtered.instructions.as_deref(), filtered.items.as_slice()),
            None => (question.instructions.as_deref(), run.history()),
        };
        let filled = self.shared.artefacts.filled(input).await?;
        let input = filled.as_deref().unwrap_or(input);
        let request = ModelRequest {
            agent: agent.name(),
            turn,
            instructions,
            input,
            tools: &tools.offered,
            handoffs: &tools.offered_handoffs,
            settings: &question.settings,
            output: question.shape.as_ref(),
            previous_response: run.last_response_id(),
        };
        let deltas = Deltas::new(self.emitter.clone());
        let asking =
            NextModel::new(&self.shared.config.model_layers, &question.model).answer(request, &deltas);
        let was_asked = AtomicBool::new(false);
        let asking = async {
            was_asked.store(true, Ordering::Relaxed);
            asking.await
        };
        let overlap = self.overlap.get_mut().unwrap_or_else(PoisonError::into_inner);
        let halt = tokio::select! {
            biased;
            () = self.stop.cancelled() => Halt::Cancelled,
            failure = Overlap::trips(overlap.as_mut()) => failure.into(),
            answer = asking => return Ok(answer),
        };
        if was_asked.into_inner() {
            // What it costs to be asked and not listened to, nobody says.
            let error = "the run went on without its answer".to_owned();
            let failed =
                ModelFailed { agent: agent.name().clone(), error, retry_after_ms: None, usage: None };
            self.record(Entry::ModelFailed(failed)).await?;
        }
        Err(halt)
    }

    async fn plan(
        &mut self,
        items: Vec<Arc<Item>>,
        agent: &Agent<C>,
        tools: &Arc<Toolset<C>>,
    ) -> Result<Result<Plan, Misbehaviour>, Halt> {
        let mut lookups = self.look_up(&items, agent, tools).await?;
        let mut ready = VecDeque::with_capacity(lookups.len());
        let run = self.run();
        let planned = plan(items, agent.name(), run.seen(), |call| {
            let (lookup, found) = lookups.pop_front().unwrap_or_else(|| super::prepare::nothing(call));
            if let Some(found) = found {
                ready.push_back((call.id.clone(), found));
            }
            lookup
        });
        self.ready = ready;
        Ok(planned)
    }

    async fn show_answer(&self, agent: &Agent<C>, plan: &Plan) {
        use windlass_core::Work;
        let mut calls = plan.calls.iter();
        for item in &plan.items {
            let part = match &**item {
                Item::Call(_) => match calls.next().map(|call| &call.work) {
                    Some(Work::Handoff { .. } | Work::Ignored) => Part::HandoffCall,
                    _ => Part::Call,
                },
                _ => Part::Said,
            };
            let produced = Produced { agent: agent.name().clone(), item: item.clone(), part };
            self.emitter.emit(EventKind::Item(produced)).await;
        }
    }

    async fn check_loop(&mut self) -> Result<(), Halt> {
        let policy = self.shared.config.loops;
        let times = self.run().repeats();
        if times >= policy.stop {
            return Err(Failure::LoopDetected { times }.into());
        }
        if times >= policy.warn {
            let message = format!("the model has made the same calls {times} times in a row");
            self.emitter.emit(EventKind::Warning { message }).await;
        }
        Ok(())
    }
}

/// How long to wait before asking again; none where it is of no use, or where the provider wants more patience
/// than the run has. `chance` (0 to 1) spreads runs that fail at the same moment: the usual wait is shortened by
/// up to a half, and the provider's own is lengthened by up to a quarter, because earlier than that is in vain.
fn wait_before(retry: &ModelRetry, attempt: u32, advice: RetryAdvice, chance: f64) -> Option<Duration> {
    if attempt >= retry.attempts {
        return None;
    }
    match advice {
        RetryAdvice::Never => None,
        RetryAdvice::Safe => {
            let usual = retry.base.saturating_mul(1 << (attempt - 1).min(16)).min(retry.longest);
            Some(usual.mul_f64(1.0 - chance / 2.0))
        }
        RetryAdvice::After(wait) if wait > retry.longest => None,
        RetryAdvice::After(wait) => Some(wait.mul_f64(1.0 + chance / 4.0).min(retry.longest)),
    }
}

/// A number from 0 to 1 that differs between runs, turns and attempts, and is the same whenever a run is
/// simulated again.
fn spread(run: &str, turn: u32, attempt: u32) -> f64 {
    // FNV-1a, with a last mixing step because short inputs leave its upper bits alike.
    let bytes = run.bytes().chain(turn.to_le_bytes()).chain(attempt.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    f64::from((mixed >> 32) as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;

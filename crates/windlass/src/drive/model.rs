//! The model request of one turn, and the acceptance of its response.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use windlass_core::{
    failure::RunFailure,
    history::keep_pairs,
    id::Timestamp,
    item::Item,
    journal::{
        FilteredInput, JournalEntry, ModelInputFiltered, ModelRequestFailed, ModelResponded,
        ResponseRejected, ToolUsePolicyKind,
    },
    plan::{ModelProtocolError, ResponsePlan, plan_response},
    run::{RunItem, RunItemKind},
    usage::Usage,
};

use super::call_unless_stopped;
use super::input_guardrails::ConcurrentGuardrails;
use super::{DriveError, Driver};
use crate::agent::{Agent, ResolvedToolset, ToolChoiceReset, ToolUsePolicy};
use crate::error::{ConfigError, truncate_message};
use crate::event::RunEventKind;
use crate::hook::{HookEvent, ModelResponseInfo};
use crate::model::{
    DeltaSink, ModelError, ModelRequest, ModelResponse, ModelSettings, NextModel, OutputSchema, RetryAdvice,
    SharedModel,
};
use crate::run::{ModelInput, ModelRetryPolicy};

/// The parts of a model request, without the conversation.
struct ModelRequestParts {
    model: SharedModel,
    settings: ModelSettings,
    instructions: Option<Arc<str>>,
    output_schema: Option<OutputSchema>,
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Requests the model's response for a turn and records it with its plan.
    pub(super) async fn request_model(&mut self, turn: u32) -> Result<(), DriveError> {
        let name = self.with_run(|run| run.agent().clone());
        let agent = self.find_agent(&name)?;
        self.run_guardrails_and_announce(&agent).await?;
        let ctx = self.run_context(&name);
        let tools = match agent.cached_toolset() {
            Some(tools) => tools?,
            None => self.unless_stopped(agent.resolve_toolset(&ctx, &self.graph)).boxed().await??,
        };
        if !self.tools.as_ref().is_some_and(|known| Arc::ptr_eq(known, &tools)) {
            for message in tools.warnings.iter().cloned() {
                self.emitter.emit(RunEventKind::Warning { message }).await;
            }
        }
        let question = self.request_parts(&agent).await?;
        if self.has_hooks(&agent) {
            let ctx = ctx.clone();
            self.notify_hooks_or_fail(&agent, || HookEvent::ModelRequestStarted { ctx, turn })
                .boxed()
                .await?;
        }
        let requested_at = self.shared.journal.now();
        let (answer, attempts) = self.request_with_retries(&agent, turn, &question, &tools).boxed().await?;
        let usage = answer.usage.unwrap_or_else(Usage::of_unknown_request);
        let items = answer.items.clone();
        let times = (requested_at, self.shared.journal.now());
        let planned = self.accept_response(&answer, attempts, times, &agent, &tools).await;
        match planned {
            Ok(ResponsePlan { items, calls, duplicate_calls: repeated }) => {
                let after = match &agent.inner.tool_use_policy {
                    ToolUsePolicy::RunModelAgain => ToolUsePolicyKind::RunModelAgain,
                    ToolUsePolicy::StopOnFirstTool => ToolUsePolicyKind::StopOnFirstTool,
                    ToolUsePolicy::StopAtTools(names) => ToolUsePolicyKind::StopAtTools(names.clone()),
                    ToolUsePolicy::CustomFunction(_) => ToolUsePolicyKind::CustomFunction,
                };
                let ModelResponse { response_id, request_id, model, .. } = answer;
                self.tools = Some(tools);
                self.shown_outputs.clear();
                let agent = name;
                let answered = ModelResponded {
                    agent,
                    items,
                    calls,
                    duplicate_calls: repeated,
                    tool_use_policy: after,
                    usage,
                    response_id,
                    request_id,
                    model,
                };
                self.record_entry(JournalEntry::ModelResponded(answered.into())).await?;
                // What a watcher was shown it may still stop, before any of it takes effect.
                self.emitter.wait_until_handled().await;
                self.check_repeated_calls().await
            }
            // It was paid for, whatever came in between.
            Err(halt @ (DriveError::RunFailed(_) | DriveError::Cancelled)) => {
                let refused = ResponseRejected { agent: name, items, usage };
                self.record_entry(JournalEntry::ResponseRejected(refused)).await?;
                Err(halt)
            }
            Err(halt @ DriveError::Aborted(_)) => Err(halt),
        }
    }

    /// Plans a response, and notifies watchers and hooks of it.
    pub(super) async fn accept_response(
        &mut self,
        answer: &ModelResponse,
        attempts: u32,
        (requested_at, responded_at): (Timestamp, Timestamp),
        agent: &Agent<C>,
        tools: &Arc<ResolvedToolset<C>>,
    ) -> Result<ResponsePlan, DriveError> {
        let is_observed = self.has_hooks(agent) || self.emitter.is_watched();
        let info = is_observed.then(|| {
            Arc::new(ModelResponseInfo {
                usage: answer.usage.unwrap_or_else(Usage::of_unknown_request),
                model: answer.model.clone(),
                response_id: answer.response_id.clone(),
                request_id: answer.request_id.clone(),
                attempts,
                requested_at,
                responded_at,
            })
        });
        let planned = self.plan_calls(answer.items.clone(), agent, tools).await?;
        let is_readable = planned.as_ref().err().is_none_or(ModelProtocolError::is_response_readable);
        if let (Ok(plan), Some(info), true) = (&planned, &info, self.emitter.is_watched()) {
            self.emitter.emit(RunEventKind::ModelResponded(info.clone())).await;
            self.emit_response(agent, plan).boxed().await;
        }
        if let (true, Some(info), true) = (is_readable, info, self.has_hooks(agent)) {
            let ctx = self.run_context(agent.name());
            let items: Arc<[_]> = answer.items.as_slice().into();
            self.notify_hooks_or_fail(agent, || HookEvent::ModelResponded { ctx, items, info })
                .boxed()
                .await?;
        }
        planned.map_err(|misbehaviour| RunFailure::ModelProtocolError(misbehaviour).into())
    }

    async fn run_guardrails_and_announce(&mut self, agent: &Agent<C>) -> Result<(), DriveError> {
        let is_first = self.with_run(|run| run.turn()) == 0 && !self.has_run_guardrails;
        if is_first {
            self.has_run_guardrails = true;
            self.run_blocking_guardrails(agent).boxed().await?;
        }
        if self.announced_agent.as_ref() != Some(agent.name()) {
            self.announced_agent = Some(agent.name().clone());
            let ctx = self.run_context(agent.name());
            self.notify_hooks_or_fail(agent, || HookEvent::AgentStarted { ctx }).boxed().await?;
        }
        if is_first {
            self.start_concurrent_guardrails(agent)?;
        }
        Ok(())
    }

    async fn request_parts(&mut self, agent: &Agent<C>) -> Result<ModelRequestParts, DriveError> {
        let config = &self.shared.config;
        let model = config.model.clone().or_else(|| agent.inner.model.clone());
        let model = model.ok_or_else(|| ConfigError::NoModel { agent: agent.name().clone() })?;
        let mut settings = match &config.model_settings {
            Some(over) => agent.inner.model_settings.with_overrides(over),
            None => agent.inner.model_settings.clone(),
        };
        let is_lifted = agent.inner.tool_choice_reset == ToolChoiceReset::AfterToolUse;
        if is_lifted && self.with_run(|run| run.has_used_tools(agent.name())) {
            settings.tool_choice = None;
        }
        let shape =
            match &agent.inner.output_type {
                Some(output) => Some(output.schema.clone().map_err(|why| ConfigError::OutputNotStrict {
                    agent: agent.name().clone(),
                    reason: why,
                })?),
                None => None,
            };
        let ctx = self.run_context(agent.name());
        let instructions = self.unless_stopped(agent.inner.instructions.resolve_text(&ctx)).await?;
        Ok(ModelRequestParts { model, settings, instructions, output_schema: shape })
    }

    /// Requests the model until it responds or no retry is left.
    async fn request_with_retries(
        &mut self,
        agent: &Agent<C>,
        turn: u32,
        question: &ModelRequestParts,
        tools: &ResolvedToolset<C>,
    ) -> Result<(ModelResponse, u32), DriveError> {
        let retry = self.shared.config.model_retry;
        let mut attempt = 1;
        loop {
            let error = match self.request_once(agent, turn, question, tools).await? {
                Ok(answer) => return Ok((answer, attempt)),
                Err(error) => error,
            };
            let chance = jitter_fraction(self.run_id.as_str(), turn, attempt);
            let wait = retry_delay(&retry, attempt, error.retry_advice(), chance);
            self.record_entry(JournalEntry::ModelRequestFailed(ModelRequestFailed {
                agent: agent.name().clone(),
                error: truncate_message(error.to_string()),
                retry_after_ms: wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
                usage: error.usage().copied(),
            }))
            .await?;
            let Some(wait) = wait else {
                let message = truncate_message(error.to_string());
                self.model_error = Some(Box::new(error));
                return Err(RunFailure::ModelRequestFailed { message }.into());
            };
            self.emitter
                .emit(RunEventKind::Warning {
                    message: truncate_message(format!("the model failed: {error}")),
                })
                .await;
            attempt += 1;
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Err(DriveError::Cancelled),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn request_once(
        &mut self,
        agent: &Agent<C>,
        turn: u32,
        question: &ModelRequestParts,
        tools: &ResolvedToolset<C>,
    ) -> Result<Result<ModelResponse, ModelError>, DriveError> {
        let ctx = self.run_context(agent.name());
        let (history, last_response_id) =
            self.with_run(|run| (run.shared_history(), run.last_response_id().map(str::to_owned)));
        let filtered = match &self.shared.config.input_filter {
            Some(filter) => {
                let items = history.to_vec();
                let input = ModelInput { instructions: question.instructions.clone(), items };
                let filtered = call_unless_stopped(&self.stop, async { filter(ctx, input).await }).await?;
                Some(self.record_filtered_input(agent, question, &history, filtered).boxed().await?)
            }
            None => None,
        };
        let (instructions, input) = match &filtered {
            Some(filtered) => (filtered.instructions.as_deref(), filtered.items.as_slice()),
            None => (question.instructions.as_deref(), history.as_slice()),
        };
        let filled = self.shared.artefacts.inline_media(input).await?;
        let input = filled.as_deref().unwrap_or(input);
        let request = ModelRequest {
            agent: agent.name(),
            turn,
            instructions,
            input,
            tools: &tools.definitions,
            handoffs: &tools.handoff_definitions,
            settings: &question.settings,
            output_schema: question.output_schema.as_ref(),
            previous_response_id: last_response_id.as_deref(),
        };
        let deltas = DeltaSink::new(self.emitter.clone());
        let asking =
            NextModel::new(&self.shared.config.model_layers, &question.model).respond(request, &deltas);
        let was_asked = AtomicBool::new(false);
        let asking = async {
            was_asked.store(true, Ordering::Relaxed);
            asking.await
        };
        let overlap = self.concurrent_guardrails.get_mut().unwrap_or_else(PoisonError::into_inner);
        let halt = tokio::select! {
            biased;
            () = self.stop.cancelled() => DriveError::Cancelled,
            failure = ConcurrentGuardrails::wait_for_trip(overlap.as_mut()) => failure.into(),
            answer = asking => return Ok(answer),
        };
        if was_asked.into_inner() {
            // What it costs to be asked and not listened to, nobody says.
            let error = "the run went on without its answer".to_owned();
            let failed =
                ModelRequestFailed { agent: agent.name().clone(), error, retry_after_ms: None, usage: None };
            self.record_entry(JournalEntry::ModelRequestFailed(failed)).await?;
        }
        Err(halt)
    }

    /// Records what an input filter made of the next request. Calls without outputs and outputs without calls are left
    /// out, because no provider accepts them.
    async fn record_filtered_input(
        &self,
        agent: &Agent<C>,
        question: &ModelRequestParts,
        history: &[Arc<Item>],
        filtered: ModelInput,
    ) -> Result<ModelInput, DriveError> {
        let ModelInput { instructions, items } = filtered;
        let paired = keep_pairs(items);
        if !paired.removed.is_empty() {
            let message = format!("the input filter left {}", paired.describe_removed());
            self.emitter.emit(RunEventKind::Warning { message }).await;
        }
        let is_same = instructions.as_deref() == question.instructions.as_deref();
        let input = FilteredInput::from_items(history, &paired.items);
        let is_whole = input == FilteredInput::from_items(history, history);
        if !is_same || !is_whole {
            let entry = JournalEntry::ModelInputFiltered(ModelInputFiltered {
                agent: agent.name().clone(),
                instructions: (!is_same).then(|| instructions.as_deref().unwrap_or_default().to_owned()),
                input,
            });
            self.record_entry(entry).await?;
        }
        Ok(ModelInput { instructions, items: paired.items })
    }

    async fn plan_calls(
        &mut self,
        items: Vec<Arc<Item>>,
        agent: &Agent<C>,
        tools: &Arc<ResolvedToolset<C>>,
    ) -> Result<Result<ResponsePlan, ModelProtocolError>, DriveError> {
        let mut lookups = self.look_up_tools(&items, agent, tools).await?;
        let mut ready = VecDeque::with_capacity(lookups.len());
        let planned = self.with_run(|run| {
            plan_response(items, agent.name(), run.call_digests(), |call| {
                let (lookup, found) =
                    lookups.pop_front().unwrap_or_else(|| super::prepare::unknown_tool(call));
                if let Some(found) = found {
                    ready.push_back((call.id.clone(), found));
                }
                lookup
            })
        });
        self.prepared_calls = ready;
        Ok(planned)
    }

    async fn emit_response(&self, agent: &Agent<C>, plan: &ResponsePlan) {
        use windlass_core::plan::CallDisposition;
        let mut calls = plan.calls.iter();
        for item in &plan.items {
            let part = match &**item {
                Item::Call(_) => match calls.next().map(|call| &call.disposition) {
                    Some(CallDisposition::Handoff { .. } | CallDisposition::SurplusHandoff) => {
                        RunItemKind::HandoffCall
                    }
                    _ => RunItemKind::ToolCall,
                },
                _ => RunItemKind::ModelOutput,
            };
            let produced = RunItem { agent: agent.name().clone(), item: item.clone(), kind: part };
            self.emitter.emit(RunEventKind::Item(produced)).await;
        }
    }

    async fn check_repeated_calls(&mut self) -> Result<(), DriveError> {
        let policy = self.shared.config.loop_policy;
        let times = self.with_run(|run| run.repeat_count());
        if times >= policy.fail_after {
            return Err(RunFailure::LoopDetected { repetitions: times }.into());
        }
        if times >= policy.warn_after {
            let message = format!("the model has made the same calls {times} times in a row");
            self.emitter.emit(RunEventKind::Warning { message }).await;
        }
        Ok(())
    }
}

/// Returns the delay before a retry, or `None` if a retry is useless or the provider asks for a longer delay
/// than the policy allows. `chance` (0 to 1) is jitter: it shortens the policy's own delay by up to a half, and
/// lengthens the provider's delay by up to a quarter, because an earlier retry would fail.
fn retry_delay(retry: &ModelRetryPolicy, attempt: u32, advice: RetryAdvice, chance: f64) -> Option<Duration> {
    if attempt >= retry.max_attempts {
        return None;
    }
    match advice {
        RetryAdvice::Never => None,
        RetryAdvice::Safe => {
            let usual = retry.base_delay.saturating_mul(1 << (attempt - 1).min(16)).min(retry.max_delay);
            Some(usual.mul_f64(1.0 - chance / 2.0))
        }
        RetryAdvice::After(wait) if wait > retry.max_delay => None,
        RetryAdvice::After(wait) => Some(wait.mul_f64(1.0 + chance / 4.0).min(retry.max_delay)),
    }
}

/// Returns a number from 0 to 1 that differs between runs, turns and attempts, and is the same in every
/// simulation of a run.
fn jitter_fraction(run: &str, turn: u32, attempt: u32) -> f64 {
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

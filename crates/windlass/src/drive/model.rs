//! The model request of one turn, and the acceptance of its response.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use windlass_core::{
    failure::RunFailure,
    history::keep_pairs,
    id::Timestamp,
    item::{Item, ToolCall},
    journal::{
        FilteredInput, JournalEntry, ModelInputFiltered, ModelRequestFailed, ModelResponded,
        ResponseRejected, ToolUsePolicyKind,
    },
    plan::{ModelProtocolError, ResponsePlan, ToolLookup, plan_response},
    usage::Usage,
};

use super::Driver;
use crate::agent::{Agent, ResolvedToolset, ToolChoiceReset, ToolUsePolicy, ToolsetEntry};
use crate::error::{ConfigError, truncate_message};
use crate::event::RunEventKind;
use crate::guardrail::{ConcurrentGuardrails, GuardrailTiming};
use crate::hook::{HookEvent, ModelResponseInfo};
use crate::model::{
    DeltaSink, ModelError, ModelRequest, ModelResponse, ModelSettings, NextModel, OutputSchema, SharedModel,
};
use crate::run::{DriveError, ModelInput, application_panicked, call_unless_stopped, jitter_fraction};
use crate::tool::{PreparedCall, RawArguments, read_arguments};

/// The parts of a model request, without the conversation.
struct ModelRequestParts {
    model: SharedModel,
    settings: ModelSettings,
    instructions: Option<Arc<str>>,
    output_schema: Option<OutputSchema>,
}

/// The request that a response answers, as it is recorded with it.
pub(super) struct AnsweredRequest {
    pub(super) attempts: u32,
    /// Time of the first request; absent if the response came from elsewhere.
    pub(super) requested_at: Option<Timestamp>,
    pub(super) policy: ToolUsePolicyKind,
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Requests the model's response for a turn and records it with its plan.
    pub(super) async fn request_model(&mut self, turn: u32) -> Result<(), DriveError> {
        let name = self.scope.with_run(|run| run.agent().clone());
        let agent = self.find_agent(&name)?;
        self.run_guardrails_and_announce(&agent).await?;
        let ctx = self.scope.run_context(&name);
        let tools = match agent.cached_toolset() {
            Some(tools) => tools?,
            None => self.scope.unless_stopped(agent.resolve_toolset(&ctx, &self.graph)).boxed().await??,
        };
        if !self.tools.as_ref().is_some_and(|known| Arc::ptr_eq(known, &tools)) {
            for tool in tools.tools() {
                self.shared.key_scopes.check_tool(&name, tool)?;
            }
            for message in tools.warnings.iter().cloned() {
                self.scope.emit_warning(message).await;
            }
        }
        let question = self.request_parts(&agent).await?;
        if self.scope.has_hooks(&agent) {
            let ctx = ctx.clone();
            self.scope
                .notify_hooks_or_fail(&agent, || HookEvent::ModelRequestStarted { ctx, turn })
                .boxed()
                .await?;
        }
        let requested_at = self.shared.journal.now();
        let (response, attempts) = self.request_with_retries(&agent, turn, &question, &tools).boxed().await?;
        let policy = match &agent.inner.tool_use_policy {
            ToolUsePolicy::RunModelAgain => ToolUsePolicyKind::RunModelAgain,
            ToolUsePolicy::StopOnFirstTool => ToolUsePolicyKind::StopOnFirstTool,
            ToolUsePolicy::StopAtTools(names) => ToolUsePolicyKind::StopAtTools(names.clone()),
            ToolUsePolicy::CustomFunction(_) => ToolUsePolicyKind::CustomFunction,
        };
        let request = AnsweredRequest { attempts, requested_at: Some(requested_at), policy };
        self.accept_response(response, request, &agent, tools).await?;
        self.check_repeated_calls().await
    }

    /// Plans and records a response, and notifies watchers and hooks of it.
    pub(super) async fn accept_response(
        &mut self,
        response: ModelResponse,
        request: AnsweredRequest,
        agent: &Agent<C>,
        tools: Arc<ResolvedToolset<C>>,
    ) -> Result<(), DriveError> {
        let usage = response.usage.unwrap_or_else(Usage::of_unknown_request);
        let AnsweredRequest { attempts, requested_at, policy } = request;
        let name = agent.name().clone();
        let planned = match self.plan_calls(response.items.clone(), agent, &tools).await {
            Ok(planned) => self.admit_response(planned, &response, attempts, requested_at, agent).await,
            Err(error) => Err(error),
        };
        let ModelResponse { items, response_id, request_id, model, .. } = response;
        match planned {
            Ok(ResponsePlan { items, calls, duplicate_calls, context_sources }) => {
                self.tools = Some(tools);
                let responded = ModelResponded {
                    agent: name,
                    items,
                    calls,
                    duplicate_calls,
                    context_sources,
                    tool_use_policy: policy,
                    usage,
                    response_id,
                    request_id,
                    model,
                    attempts,
                    requested_at,
                };
                self.scope.record_entry(JournalEntry::ModelResponded(responded.into())).await?;
                // A watcher may stop the calls that it was shown, before any of them takes effect.
                self.scope.emitter.wait_until_handled().await;
                Ok(())
            }
            // The response was paid for, although none of its calls runs.
            Err(error @ (DriveError::RunFailed(_) | DriveError::Cancelled)) => {
                let rejected = ResponseRejected { agent: name, items, usage };
                self.scope.record_entry(JournalEntry::ResponseRejected(rejected)).await?;
                Err(error)
            }
            Err(error @ DriveError::Aborted(_)) => Err(error),
        }
    }

    /// Notifies the hooks of a response before it is recorded: a hook that fails prevents that.
    async fn admit_response(
        &self,
        planned: Result<ResponsePlan, ModelProtocolError>,
        response: &ModelResponse,
        attempts: u32,
        requested_at: Option<Timestamp>,
        agent: &Agent<C>,
    ) -> Result<ResponsePlan, DriveError> {
        let is_readable = planned.as_ref().err().is_none_or(ModelProtocolError::is_response_readable);
        if is_readable && self.scope.has_hooks(agent) {
            let (ctx, now) = (self.scope.run_context(agent.name()), self.shared.journal.now());
            let info = ModelResponseInfo {
                usage: response.usage.unwrap_or_else(Usage::of_unknown_request),
                model: response.model.clone(),
                response_id: response.response_id.clone(),
                request_id: response.request_id.clone(),
                attempts,
                requested_at: requested_at.unwrap_or(now),
                responded_at: now,
            };
            let (items, info) = (response.items.as_slice().into(), info.into());
            self.scope
                .notify_hooks_or_fail(agent, || HookEvent::ModelResponded { ctx, items, info })
                .boxed()
                .await?;
        }
        planned.map_err(|error| RunFailure::ModelProtocolError(error).into())
    }

    async fn run_guardrails_and_announce(&mut self, agent: &Agent<C>) -> Result<(), DriveError> {
        let is_first = self.scope.with_run(|run| run.turn()) == 0 && !self.has_run_guardrails;
        if is_first {
            self.has_run_guardrails = true;
            if let Some(mut first) = self.guardrails_with_timing(agent, GuardrailTiming::Blocking) {
                self.scope.unless_stopped(first.wait_settled()).boxed().await??;
            }
        }
        if self.announced_agent.as_ref() != Some(agent.name()) {
            self.announced_agent = Some(agent.name().clone());
            let ctx = self.scope.run_context(agent.name());
            self.scope.notify_hooks_or_fail(agent, || HookEvent::AgentStarted { ctx }).boxed().await?;
        }
        if is_first {
            self.start_concurrent_guardrails(agent)?;
        }
        Ok(())
    }

    /// Starts the guardrails that run concurrently with the model.
    fn start_concurrent_guardrails(&mut self, agent: &Agent<C>) -> Result<(), DriveError> {
        let mut overlap = self.guardrails_with_timing(agent, GuardrailTiming::Concurrent);
        let begun = overlap.as_mut().map_or(Ok(()), |overlap| overlap.poll_once());
        self.concurrent_guardrails = Mutex::new(overlap);
        begun.map_err(DriveError::from)
    }

    /// Waits until the concurrent guardrails have settled. No call takes effect before.
    pub(super) async fn wait_for_guardrails(&mut self) -> Result<(), DriveError> {
        if !self.has_run_guardrails && !self.scope.with_run(|run| run.has_call_activity()) {
            // An earlier driver ended before they did, and nobody knows what they would have said.
            self.has_run_guardrails = true;
            let name = self.scope.with_run(|run| run.agent().clone());
            let agent = self.find_agent(&name)?;
            self.start_concurrent_guardrails(&agent)?;
        }
        let overlap = self.concurrent_guardrails.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(overlap) = overlap else { return Ok(()) };
        let stop = self.scope.stop.clone();
        tokio::select! {
            biased;
            settled = overlap.wait_settled() => settled.map_err(DriveError::from),
            () = stop.cancelled() => Err(DriveError::Cancelled),
        }
    }

    /// Returns the guardrails of the agent and of the run with this timing, if any.
    fn guardrails_with_timing(
        &self,
        agent: &Agent<C>,
        timing: GuardrailTiming,
    ) -> Option<Box<ConcurrentGuardrails>> {
        let of_run = self.shared.config.input_guardrails.iter().filter(|_| self.scope.is_outermost());
        let guardrails = agent.inner.input_guardrails.iter().chain(of_run).filter(|one| one.timing == timing);
        let guardrails: Vec<_> = guardrails.cloned().collect();
        if guardrails.is_empty() {
            return None;
        }
        let input = self.scope.with_run(|run| run.last_model_input().into());
        ConcurrentGuardrails::new(guardrails, &self.scope.run_context(agent.name()), input)
    }

    async fn request_parts(&mut self, agent: &Agent<C>) -> Result<ModelRequestParts, DriveError> {
        let config = &self.shared.config;
        let model = config.model.clone().or_else(|| agent.inner.model.clone());
        let model = model.ok_or_else(|| ConfigError::NoModel { agent: agent.name().clone() })?;
        let mut settings = match &config.model_settings {
            Some(over) => agent.inner.model_settings.with_overrides(over),
            None => agent.inner.model_settings.clone(),
        };
        self.scope.with_run(|run| {
            if let (Some(given), Some(_)) = (run.previous_response_id(), run.last_response_id()) {
                settings.previous_response_id = Some(given.to_owned());
            }
        });
        let is_lifted = agent.inner.tool_choice_reset == ToolChoiceReset::AfterToolUse;
        if is_lifted && self.scope.with_run(|run| run.has_used_tools(agent.name())) {
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
        let ctx = self.scope.run_context(agent.name());
        let instructions = self.scope.unless_stopped(agent.inner.instructions.resolve_text(&ctx)).await?;
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
            let chance = jitter_fraction(self.scope.run_id.as_str(), turn, attempt);
            let wait = retry.delay_after(attempt, error.retry_advice(), chance);
            self.scope
                .record_entry(JournalEntry::ModelRequestFailed(ModelRequestFailed {
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
            self.scope
                .emitter
                .emit(RunEventKind::Warning {
                    message: truncate_message(format!("the model failed: {error}")),
                })
                .await;
            attempt += 1;
            tokio::select! {
                biased;
                () = self.scope.stop.cancelled() => return Err(DriveError::Cancelled),
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
        let ctx = self.scope.run_context(agent.name());
        let (history, last_response_id) =
            self.scope.with_run(|run| (run.shared_history(), run.last_response_id().map(str::to_owned)));
        let filtered = match &self.shared.config.input_filter {
            Some(filter) => {
                let items = history.to_vec();
                let input = ModelInput { instructions: question.instructions.clone(), items };
                let filtered =
                    call_unless_stopped(&self.scope.stop, async { filter(ctx, input).await }).await?;
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
        let deltas = DeltaSink::new(self.scope.emitter.clone());
        let asking =
            NextModel::new(&self.shared.config.model_layers, &question.model).respond(request, &deltas);
        let was_asked = AtomicBool::new(false);
        let asking = async {
            was_asked.store(true, Ordering::Relaxed);
            asking.await
        };
        let asking = AssertUnwindSafe(asking).catch_unwind();
        let overlap = self.concurrent_guardrails.get_mut().unwrap_or_else(PoisonError::into_inner);
        let halt = tokio::select! {
            biased;
            () = self.scope.stop.cancelled() => DriveError::Cancelled,
            failure = ConcurrentGuardrails::wait_for_trip(overlap.as_mut()) => failure.into(),
            answer = asking => return answer.map_err(application_panicked),
        };
        if was_asked.into_inner() {
            // A request dropped mid-flight may still be billed; its usage is recorded as unknown.
            let error = "the run went on without its answer".to_owned();
            let failed =
                ModelRequestFailed { agent: agent.name().clone(), error, retry_after_ms: None, usage: None };
            self.scope.record_entry(JournalEntry::ModelRequestFailed(failed)).await?;
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
        let items = self.keep_pairs_and_warn("the input filter", items).await;
        let is_same = instructions.as_deref() == question.instructions.as_deref();
        let is_whole = items.len() == history.len()
            && items.iter().zip(history).all(|(item, kept)| Arc::ptr_eq(item, kept));
        if !is_same || !is_whole {
            let entry = JournalEntry::ModelInputFiltered(ModelInputFiltered {
                agent: agent.name().clone(),
                instructions: (!is_same).then(|| instructions.as_deref().unwrap_or_default().to_owned()),
                input: FilteredInput::from_items(history, &items),
            });
            self.scope.record_entry(entry).await?;
        }
        Ok(ModelInput { instructions, items })
    }

    /// Returns what a function of the application left of a conversation, without halves of pairs, and warns of them.
    pub(super) async fn keep_pairs_and_warn(&self, whose: &str, items: Vec<Arc<Item>>) -> Vec<Arc<Item>> {
        let paired = keep_pairs(items);
        if !paired.removed.is_empty() {
            let message = format!("{whose} left {}", paired.describe_removed());
            self.scope.emit_warning(message).await;
        }
        paired.items
    }

    async fn plan_calls(
        &mut self,
        items: Vec<Arc<Item>>,
        agent: &Agent<C>,
        tools: &Arc<ResolvedToolset<C>>,
    ) -> Result<Result<ResponsePlan, ModelProtocolError>, DriveError> {
        let mut lookups = self.look_up_tools(&items, agent, tools).await?;
        let mut ready = VecDeque::with_capacity(lookups.len());
        let planned = self.scope.with_run(|run| {
            plan_response(items, agent.name(), run, |call| {
                let (lookup, found) = lookups.pop_front().unwrap_or_else(|| unknown_tool(call));
                if let Some(found) = found {
                    ready.push_back((call.id.clone(), found));
                }
                lookup
            })
        });
        self.prepared_calls = ready;
        Ok(planned)
    }

    async fn check_repeated_calls(&mut self) -> Result<(), DriveError> {
        let policy = self.shared.config.loop_policy;
        let times = self.scope.with_run(|run| run.repeat_count());
        if times >= policy.fail_after {
            return Err(RunFailure::LoopDetected { repetitions: times }.into());
        }
        if times >= policy.warn_after {
            let message = format!("the model has made the same calls {times} times in a row");
            self.scope.emit_warning(message).await;
        }
        Ok(())
    }

    /// Looks up the tools of all calls of a response, before any of them runs.
    pub(super) async fn look_up_tools(
        &self,
        items: &[Arc<Item>],
        agent: &Agent<C>,
        tools: &ResolvedToolset<C>,
    ) -> Result<VecDeque<(ToolLookup, Option<PreparedCall<C>>)>, DriveError> {
        let mut lookups = VecDeque::with_capacity(items.len());
        let ctx = self.scope.run_context(agent.name());
        for item in items {
            let Item::Call(call) = &**item else { continue };
            let found = match tools.find_entry(call) {
                // It may have been switched off while the model thought.
                ToolsetEntry::Tool(tool)
                    if tool.enabled.static_value() != Some(true)
                        && !self.scope.unless_stopped(tool.enabled.evaluate(&ctx)).boxed().await? =>
                {
                    ToolsetEntry::NotFound
                }
                ToolsetEntry::Handoff(handoff)
                    if !handoff.is_static()
                        && !self.scope.unless_stopped(handoff.enabled.evaluate(&ctx)).boxed().await? =>
                {
                    ToolsetEntry::NotFound
                }
                found => found,
            };
            lookups.push_back(match found {
                ToolsetEntry::Tool(tool) => {
                    let path = || self.scope.call_path(&call.id);
                    self.shared.recorder.secrets.mark_call(&tool, call, path);
                    let raw = RawArguments::InItem(item.clone());
                    let (found, ready) = read_arguments(&tool, agent.name(), &call.arguments, raw);
                    (ToolLookup::Tool(found), Some(ready))
                }
                ToolsetEntry::Handoff(handoff) => {
                    (ToolLookup::Handoff { to: handoff.target_name().clone() }, None)
                }
                ToolsetEntry::NotFound => {
                    let path = || self.scope.call_path(&call.id);
                    self.shared.recorder.secrets.mark_unknown_call(tools.tools(), call, path);
                    let available = self.scope.unless_stopped(tools.enabled_names(&ctx)).boxed().await?;
                    (self.shared.config.on_unknown_tool.lookup(&call.name, available), None)
                }
            });
        }
        Ok(lookups)
    }
}

/// Returns the lookup of an unknown tool.
fn unknown_tool<C>(call: &ToolCall) -> (ToolLookup, Option<PreparedCall<C>>) {
    (ToolLookup::UnknownTool { message: format!("Tool '{}' not found.", call.name) }, None)
}

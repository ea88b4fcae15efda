//! The model request of one turn, and the acceptance of its response.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt;
use windlass_core::{
    failure::RunFailure,
    id::Timestamp,
    item::{Item, ToolCall},
    journal::{
        JournalEntry, ModelResponded, RequestedModel, ResponseRejected, RunFinished, ToolUsePolicyKind,
    },
    plan::{ModelProtocolError, ResponsePlan, ToolLookup, plan_response},
    usage::Usage,
};

use super::Driver;
use crate::agent::{Agent, ResolvedToolset, ToolsetEntry};
use crate::error::truncate_message;
use crate::hook::{HookEvent, ModelResponseInfo};
use crate::model::ModelResponse;
use crate::run::{DriveError, ModelAnswer, ModelRequester, budgets_with};
use crate::tool::{PreparedCall, PreparedCalls, RawArguments, read_arguments};

/// The request that a response answers, as it is recorded with it.
struct AnsweredRequest {
    attempts: u32,
    /// Time of the first request; absent if the response came from elsewhere.
    requested_at: Option<Timestamp>,
    requested: RequestedModel,
    policy: ToolUsePolicyKind,
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Requests the model's response for a turn and records it with its plan.
    pub(super) async fn request_model(&mut self, turn: u32) -> Result<(), DriveError> {
        let agent = self.current_agent()?;
        self.run_guardrails_and_announce(&agent).await?;
        let tools = match agent.cached_toolset() {
            _ if self.scope.with_run(|run| run.is_finishing()) => Arc::new(ResolvedToolset::default()),
            Some(tools) => tools?,
            None => self.resolve_tools(&agent).boxed().await?,
        };
        if !self.tools.as_ref().is_some_and(|known| Arc::ptr_eq(known, &tools)) {
            for tool in tools.tools() {
                self.shared.key_scopes.check_tool(agent.name(), tool)?;
            }
            for message in tools.warnings.iter().cloned() {
                self.scope.emit_warning(message).await;
            }
        }
        if !tools.deferred_names.is_empty() {
            self.scope.with_run(|run| self.loaded_tools.observe(run, &tools));
        }
        let search_of_run = self.shared.config.model_settings.as_ref().and_then(|over| over.tool_search);
        let search = search_of_run.or(agent.inner.model_settings.tool_search).unwrap_or_default();
        let selected = self.loaded_tools.select(&tools, search);
        let requester = ModelRequester {
            scope: &self.scope,
            config: &self.shared.config,
            artefacts: &self.shared.artefacts,
            agent: &agent,
            tools: &tools,
            offered: &selected.offered,
            searched_by_provider: &selected.searched_by_provider,
            turn,
            budget: &self.shared.budget,
            agent_budgets: budgets_with(&self.caller_budgets, agent.name(), agent.inner.budget.as_ref()),
        };
        let parts = requester.request_parts().await?;
        if self.scope.has_hooks(&agent) {
            let event = HookEvent::ModelRequestStarted { ctx: self.scope.run_context(agent.name()), turn };
            self.scope.notify_hooks_or_fail(&agent, || event).boxed().await?;
        }
        let requested_at = self.shared.journal.now();
        let (guardrails, gauge) = (&mut self.input_guardrails, &mut self.context_gauge);
        let answer = requester.request_with_retries(&parts, guardrails, gauge).boxed().await?;
        let (response, attempts, reserved) = match answer {
            ModelAnswer::Responded { response, attempts, reserved } => (response, attempts, reserved),
            ModelAnswer::BudgetReached => {
                self.shared.has_held_calls.store(true, Ordering::Relaxed);
                return Ok(());
            }
            ModelAnswer::ProviderAway(error) => {
                self.model_error = Some(Box::new(error));
                self.shared.cancel.detach();
                return Err(DriveError::Cancelled);
            }
            ModelAnswer::Failed(error) => {
                let message = truncate_message(error.to_string());
                self.model_error = Some(Box::new(error));
                return Err(RunFailure::ModelRequestFailed { message }.into());
            }
        };
        let policy = agent.inner.tool_use_policy.kind();
        let requested = parts.requested_model();
        let request = AnsweredRequest { attempts, requested_at: Some(requested_at), requested, policy };
        self.accept_response(response, request, &agent, tools).await?;
        drop(reserved);
        self.check_repeated_calls().await
    }

    /// Returns true if this run has a given response. Nested agents request their own models.
    pub(super) fn has_given_response(&self) -> bool {
        self.scope.is_outermost() && self.shared.config.given_response.is_some()
    }

    /// Plans the given response, or ends the run if its calls have settled.
    pub(super) async fn take_given_response(&mut self) -> Result<(), DriveError> {
        let shared = self.shared.clone();
        let given = shared.config.given_response.as_ref();
        let answer = given.and_then(|given| given.response.clone()).unwrap_or_default();
        let has_calls = answer.items.iter().any(|item| matches!(&**item, Item::Call(_)));
        let tools = given
            .map(|given| given.tools.clone())
            .filter(|_| has_calls && self.scope.with_run(|run| run.turn()) == 0);
        let Some(tools) = tools else {
            let finished = RunFinished { output: String::new(), message: None };
            return self.scope.record_entry(JournalEntry::RunFinished(finished)).await;
        };
        let agent = self.current_agent()?;
        let policy = ToolUsePolicyKind::RunModelAgain;
        let request =
            AnsweredRequest { attempts: 1, requested_at: None, requested: RequestedModel::default(), policy };
        self.accept_response(answer, request, &agent, tools).await
    }

    /// Plans and records a response, and notifies watchers and hooks of it.
    async fn accept_response(
        &mut self,
        response: ModelResponse,
        request: AnsweredRequest,
        agent: &Agent<C>,
        tools: Arc<ResolvedToolset<C>>,
    ) -> Result<(), DriveError> {
        let usage = response.usage.unwrap_or_else(Usage::of_unknown_request);
        let AnsweredRequest { attempts, requested_at, requested, policy } = request;
        let name = agent.name().clone();
        let planned = match self.plan_calls(response.items.clone(), agent, &tools).await {
            Ok(planned) => self.admit_response(planned, &response, attempts, requested_at, agent).await,
            Err(error) => Err(error),
        };
        let ModelResponse { items, response_id, request_id, model, details, .. } = response;
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
                    requested,
                    attempts,
                    requested_at,
                    finish_reason: details.finish_reason.filter(|reason| !reason.is_ordinary()),
                    active_ms: 0,
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
            let info = ModelResponseInfo::of_response(response, attempts, requested_at, now).into();
            let items = response.items.as_slice().into();
            self.scope
                .notify_hooks_or_fail(agent, || HookEvent::ModelResponded { ctx, items, info })
                .boxed()
                .await?;
        }
        planned.map_err(|error| RunFailure::ModelProtocolError(error).into())
    }

    async fn run_guardrails_and_announce(&mut self, agent: &Agent<C>) -> Result<(), DriveError> {
        let shared = self.shared.clone();
        let of_run = &shared.config.input_guardrails;
        let is_first = self.input_guardrails.run_blocking(&self.scope, agent, of_run).await?;
        if self.announced_agent.as_ref() != Some(agent.name()) {
            self.announced_agent = Some(agent.name().clone());
            let ctx = self.scope.run_context(agent.name());
            self.scope.notify_hooks_or_fail(agent, || HookEvent::AgentStarted { ctx }).boxed().await?;
        }
        if is_first {
            self.input_guardrails.start_concurrent(&self.scope, agent, of_run)?;
        }
        Ok(())
    }

    /// Waits until the concurrent guardrails have settled. No call takes effect before.
    pub(super) async fn wait_for_guardrails(&mut self) -> Result<(), DriveError> {
        if self.input_guardrails.must_begin_again(&self.scope) {
            let (agent, of_run) = (self.current_agent()?, &self.shared.config.input_guardrails);
            self.input_guardrails.start_concurrent(&self.scope, &agent, of_run)?;
        }
        self.input_guardrails.wait_settled(&self.scope).await
    }

    async fn plan_calls(
        &mut self,
        items: Vec<Arc<Item>>,
        agent: &Agent<C>,
        tools: &Arc<ResolvedToolset<C>>,
    ) -> Result<Result<ResponsePlan, ModelProtocolError>, DriveError> {
        let mut lookups = self.look_up_tools(&items, agent, tools).await?;
        let mut ready = PreparedCalls::with_capacity(lookups.len());
        let planned = self.scope.with_run(|run| {
            plan_response(items, agent.name(), run, |call| {
                let (lookup, found) = lookups.pop_front().unwrap_or_else(|| unknown_tool(call));
                if let Some(found) = found {
                    ready.push(call.id.clone(), found);
                }
                lookup
            })
        });
        self.prepared_calls = ready;
        Ok(planned)
    }

    async fn check_repeated_calls(&mut self) -> Result<(), DriveError> {
        let repetitions = self.scope.with_run(|run| run.repeat_count());
        if let Some(warning) = self.shared.config.loop_policy.check(repetitions)? {
            self.scope.emit_warning(warning).await;
        }
        Ok(())
    }

    /// Looks up the tools of all calls of a response, before any of them runs.
    async fn look_up_tools(
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
                found if found.is_always_enabled() => found,
                // It may have been switched off while the model thought.
                _ => self.scope.unless_stopped(tools.find_enabled_entry(call, &ctx)).boxed().await?,
            };
            let path = || self.scope.call_path(&call.id);
            lookups.push_back(match found {
                ToolsetEntry::Tool(tool) => {
                    self.shared.recorder.secrets.mark_call(&tool, call, path);
                    let raw = RawArguments::InItem(item.clone());
                    let (found, ready) = read_arguments(&tool, agent.name(), &call.arguments, raw);
                    (ToolLookup::Tool(found), Some(ready))
                }
                ToolsetEntry::Handoff(handoff) => {
                    (ToolLookup::Handoff { to: handoff.target_name().clone() }, None)
                }
                ToolsetEntry::NotFound => {
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

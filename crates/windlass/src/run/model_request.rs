//! One request to a model: its parts, the filter of its input, its retries, and the guardrails that run beside it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use tracing::Instrument;
use windlass_core::{
    budget::SpendingBudget,
    history::keep_pairs,
    id::{AgentName, SessionId},
    item::Item,
    journal::{FilteredInput, JournalEntry, ModelInputFiltered, ModelRequestFailed},
    usage::Usage,
};

use super::budget_control::{BudgetControl, BudgetReservation, ReservedRequest};
use super::model_retry::jitter_fraction;
use super::{DriveError, ModelInput, RunConfig, RunScope, application_panicked, call_unless_stopped};
use crate::agent::{Agent, ResolvedToolset, ToolChoiceReset};
use crate::artefact::RunArtefacts;
use crate::context::ContextGauge;
use crate::error::{ConfigError, truncate_message};
use crate::guardrail::{ConcurrentGuardrails, RunInputGuardrails};
use crate::model::{
    DeltaSink, ModelError, ModelErrorKind, ModelRequest, ModelResponse, ModelSettings, NextModel,
    OutputSchema, SharedModel, ToolDefinition,
};
use crate::observe::trace_span::model_request_span;

/// Instructions for the last answer of a run whose budget is reached.
const LAST_ANSWER: &str =
    "The budget of this run is reached. Give your final answer now, from what you know. There are no tools.";
/// Maximum number of compactions after refused requests of one turn.
const MAX_OVERFLOWS: u32 = 3;

/// The parts of a model request, without the conversation.
pub(crate) struct ModelRequestParts {
    pub(crate) model: SharedModel,
    pub(crate) settings: ModelSettings,
    pub(crate) instructions: Option<Arc<str>>,
    output_schema: Option<OutputSchema>,
}

/// The request of one turn to the model of its agent.
pub(crate) struct ModelRequester<'a, C> {
    pub(crate) scope: &'a RunScope<C>,
    pub(crate) config: &'a RunConfig<C>,
    pub(crate) artefacts: &'a RunArtefacts,
    pub(crate) agent: &'a Agent<C>,
    pub(crate) tools: &'a ResolvedToolset<C>,
    /// The definitions that the model is offered: without deferred tools that the run has not loaded.
    pub(crate) offered: &'a [ToolDefinition],
    /// The definitions of deferred tools that the provider searches itself.
    pub(crate) searched_by_provider: &'a [ToolDefinition],
    pub(crate) turn: u32,
    pub(crate) budget: &'a Arc<BudgetControl>,
    /// The budgets of the agent and of those that called it.
    pub(crate) agent_budgets: Vec<(AgentName, SpendingBudget)>,
}

/// The answer to a model request that was repeated while it could be.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every answer is a response, which a box would cost an allocation"
)]
pub(crate) enum ModelAnswer {
    /// The model responded.
    Responded {
        response: ModelResponse,
        /// Number of requests, failed ones included.
        attempts: u32,
        /// The reservation of the request, which ends when the response is recorded.
        reserved: Option<ReservedRequest>,
    },
    /// No retry is left after this error, and the run fails.
    Failed(ModelError),
    /// No retry is left after this error, and the run is left for a later driver.
    ProviderAway(ModelError),
    /// A budget does not allow a request.
    BudgetReached,
}

impl<C: Send + Sync + 'static> ModelRequester<'_, C> {
    /// Returns the parts of the request: the model, its settings and the agent's instructions.
    pub(crate) async fn request_parts(&self) -> Result<ModelRequestParts, DriveError> {
        let (agent, config) = (self.agent, self.config);
        let model = config.model.clone().or_else(|| agent.inner.model.clone());
        let model = model.ok_or_else(|| ConfigError::NoModel { agent: agent.name().clone() })?;
        let mut settings = match &config.model_settings {
            Some(over) => agent.inner.model_settings.with_overrides(over),
            None => agent.inner.model_settings.clone(),
        };
        let is_lifted = self.scope.with_run(|run| {
            if let (Some(given), Some(_)) = (run.previous_response_id(), run.last_response_id()) {
                settings.previous_response_id = Some(given.to_owned());
            }
            agent.inner.tool_choice_reset == ToolChoiceReset::AfterToolUse && run.has_used_tools(agent.name())
        });
        let is_finishing = self.scope.with_run(|run| run.is_finishing());
        if is_lifted || is_finishing {
            settings.tool_choice = None;
        }
        let schema = agent.inner.output_type.as_ref().map(|output| output.schema.clone()).transpose();
        let output_schema =
            schema.map_err(|reason| ConfigError::OutputNotStrict { agent: agent.name().clone(), reason })?;
        let ctx = self.scope.run_context(agent.name());
        let instructions = self.scope.unless_stopped(agent.inner.instructions.resolve_text(&ctx)).await?;
        let instructions = match (instructions, is_finishing) {
            (instructions, false) => instructions,
            (Some(text), true) => Some(format!("{text}\n\n{LAST_ANSWER}").into()),
            (None, true) => Some(LAST_ANSWER.into()),
        };
        Ok(ModelRequestParts { model, settings, instructions, output_schema })
    }

    /// Requests the model until it responds or no retry is left. Each request that fails is recorded.
    pub(crate) async fn request_with_retries(
        &self,
        parts: &ModelRequestParts,
        guardrails: &mut RunInputGuardrails,
        gauge: &mut ContextGauge,
    ) -> Result<ModelAnswer, DriveError> {
        let (mut attempts, mut overflows) = (1, 0);
        loop {
            let reserved = match self.reserve_budget(parts, gauge).boxed().await? {
                BudgetReservation::NotNeeded => None,
                BudgetReservation::Reserved(reserved) => Some(reserved),
                BudgetReservation::Reached => return Ok(ModelAnswer::BudgetReached),
            };
            let estimate = self.compact_near_window(parts, gauge).await?;
            let error = match self.request_once(parts, guardrails).await? {
                Ok(mut response) => {
                    let ModelResponse { usage, model, .. } = &mut response;
                    gauge.observe(estimate.unwrap_or(0), usage.as_ref());
                    self.budget.note_model(model.as_deref());
                    if let Some(usage) = usage {
                        self.config.prices.complete_usage(usage, model.as_deref());
                    }
                    let attempts = attempts + overflows;
                    return Ok(ModelAnswer::Responded { response, attempts, reserved });
                }
                Err(error) => error,
            };
            if error.kind() == ModelErrorKind::ContextLengthExceeded
                && overflows < MAX_OVERFLOWS
                && self.compact_after_overflow(parts, &error, gauge).boxed().await?
            {
                overflows += 1;
                continue;
            }
            let chance = jitter_fraction(self.scope.run_id.as_str(), self.turn, attempts);
            let policy = &self.config.model_retry;
            let wait = policy.delay_after(attempts, error.retry_advice(), chance);
            let left = policy.delay_of_left_run(error.retry_advice()).filter(|_| wait.is_none());
            let delay = wait.or(left);
            let failed = ModelRequestFailed {
                agent: self.agent.name().clone(),
                error: truncate_message(error.to_string()),
                retry_after_ms: delay.map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
                usage: known_usage(&error),
                active_ms: 0,
            };
            self.scope.record_entry(JournalEntry::ModelRequestFailed(failed)).await?;
            let wait = match (wait, left) {
                (Some(wait), _) => wait,
                (None, Some(_)) => return Ok(ModelAnswer::ProviderAway(error)),
                (None, None) => return Ok(ModelAnswer::Failed(error)),
            };
            attempts += 1;
            self.scope.unless_stopped(tokio::time::sleep(wait)).await?;
        }
    }

    async fn request_once(
        &self,
        parts: &ModelRequestParts,
        guardrails: &mut RunInputGuardrails,
    ) -> Result<Result<ModelResponse, ModelError>, DriveError> {
        let (history, last_response_id, session) = self.scope.with_run(|run| {
            let last_response_id = run.last_response_id().map(str::to_owned);
            (run.shared_history(), last_response_id, run.session().cloned())
        });
        let filtered = self.filter_input(parts, &history).await?;
        let (instructions, input) = match &filtered {
            Some(filtered) => (filtered.instructions.as_deref(), filtered.items.as_slice()),
            None => (parts.instructions.as_deref(), history.as_slice()),
        };
        let filled = self.artefacts.inline_media(input).await?;
        let request = ModelRequest {
            agent: self.agent.name(),
            turn: self.turn,
            instructions,
            input: filled.as_deref().unwrap_or(input),
            tools: self.offered,
            deferred_tools: self.searched_by_provider,
            handoffs: &self.tools.handoff_definitions,
            settings: &parts.settings,
            output_schema: parts.output_schema.as_ref(),
            previous_response_id: last_response_id.as_deref(),
            conversation_id: Some(session.as_ref().map_or(self.scope.run_id.as_str(), SessionId::as_str)),
        };
        let last_record = || self.scope.recorder.journal.last_sequence();
        let deltas = DeltaSink::new(self.scope.emitter.for_model_request(last_record).await);
        let was_asked = AtomicBool::new(false);
        // A layer or a model may panic before it returns its future.
        let asking = async {
            was_asked.store(true, Ordering::Relaxed);
            NextModel::new(&self.config.model_layers, &parts.model).respond(request, &deltas).await
        };
        let span = model_request_span(self.agent.name(), self.turn);
        let asking = AssertUnwindSafe(asking.instrument(span)).catch_unwind();
        let halt = tokio::select! {
            biased;
            () = self.scope.stop.cancelled() => DriveError::Cancelled,
            failure = ConcurrentGuardrails::wait_for_trip(guardrails.concurrent()) => failure.into(),
            answer = asking => return answer.map_err(application_panicked),
        };
        if was_asked.into_inner() {
            // A request dropped mid-flight may still be billed; its usage is recorded as unknown.
            let (agent, error) = (self.agent.name().clone(), "the run went on without its answer".to_owned());
            let failed = ModelRequestFailed { agent, error, retry_after_ms: None, usage: None, active_ms: 0 };
            self.scope.record_entry(JournalEntry::ModelRequestFailed(failed)).await?;
        }
        Err(halt)
    }

    /// Returns the input that the application's filter makes of the history, if there is a filter, and records it. Calls
    /// without outputs and outputs without calls are left out, because no provider accepts them.
    async fn filter_input(
        &self,
        parts: &ModelRequestParts,
        history: &[Arc<Item>],
    ) -> Result<Option<ModelInput>, DriveError> {
        let Some(filter) = &self.config.input_filter else { return Ok(None) };
        let ctx = self.scope.run_context(self.agent.name());
        let input = ModelInput { instructions: parts.instructions.clone(), items: history.to_vec() };
        let filtered = call_unless_stopped(&self.scope.stop, async { filter(ctx, input).await }).boxed();
        let ModelInput { instructions, items } = filtered.await?;
        let items = self.scope.keep_pairs_and_warn("the input filter", items).await;
        let is_same = instructions.as_deref() == parts.instructions.as_deref();
        let is_whole = items.len() == history.len()
            && items.iter().zip(history).all(|(item, kept)| Arc::ptr_eq(item, kept));
        if !is_same || !is_whole {
            let entry = JournalEntry::ModelInputFiltered(ModelInputFiltered {
                agent: self.agent.name().clone(),
                instructions: (!is_same).then(|| instructions.as_deref().unwrap_or_default().to_owned()),
                input: FilteredInput::from_items(history, &items),
            });
            self.scope.record_entry(entry).boxed().await?;
        }
        Ok(Some(ModelInput { instructions, items }))
    }
}

/// Returns the usage of a failed request, if it is known: the provider has reported it, or nothing was sent.
pub(crate) fn known_usage(error: &ModelError) -> Option<Usage> {
    let is_unsent = error.kind() == ModelErrorKind::Unreachable;
    error.usage().copied().or_else(|| is_unsent.then(Usage::of_unsent_request))
}

impl<C: Send + Sync + 'static> RunScope<C> {
    /// Returns what a function of the application left of a conversation, with whole pairs in their order, and warns of those
    /// that it broke.
    pub(crate) async fn keep_pairs_and_warn(&self, whose: &str, items: Vec<Arc<Item>>) -> Vec<Arc<Item>> {
        let paired = keep_pairs(items);
        if !paired.repairs.is_empty() {
            let message = format!("{whose} left {}", paired.describe_repairs());
            self.emit_warning(message).await;
        }
        paired.items
    }
}

//! Fallback to other models after declared kinds of failure.

use windlass::core::usage::Usage;
use windlass::model::{
    DeltaSink, Model, ModelError, ModelErrorKind, ModelRequest, ModelResponse, ModelSettings, SharedModel,
    ToolDefinition,
};

/// The kinds of failure after which the next model is used, unless the policy sets its own.
const DEFAULT_FALLBACK_KINDS: [ModelErrorKind; 7] = [
    ModelErrorKind::RateLimited,
    ModelErrorKind::QuotaExceeded,
    ModelErrorKind::Overloaded,
    ModelErrorKind::ServerError,
    ModelErrorKind::Unreachable,
    ModelErrorKind::TimedOut,
    ModelErrorKind::ConnectionLost,
];

/// A model with fallbacks.
///
/// The models are tried in order, each once; the next one is used only after a failure of a declared kind. The
/// run's retry policy applies to the whole sequence. The usage of failed requests is added to the usage of the
/// response, every fallback emits a warning event, and the journal records the name of the model that responded.
///
/// ```
/// use windlass::model::ModelErrorKind;
/// use windlass_models::{FallbackModel, OpenAi};
///
/// # fn main() -> Result<(), windlass_models::SetupError> {
/// let local = OpenAi::at("http://localhost:8000/v1").chat("qwen3")?;
/// let remote = OpenAi::new("sk-…").responses("gpt-5.2")?;
/// let model = FallbackModel::new(local)
///     .then(remote)
///     .on_errors([ModelErrorKind::Unreachable, ModelErrorKind::Overloaded]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct FallbackModel {
    models: Vec<SharedModel>,
    fallback_kinds: Vec<ModelErrorKind>,
}

impl FallbackModel {
    /// Creates a fallback sequence that starts with `model`.
    pub fn new(model: impl Into<SharedModel>) -> Self {
        Self { models: vec![model.into()], fallback_kinds: DEFAULT_FALLBACK_KINDS.to_vec() }
    }

    /// Appends a model.
    #[must_use]
    pub fn then(mut self, model: impl Into<SharedModel>) -> Self {
        self.models.push(model.into());
        self
    }

    /// Sets the kinds of failure after which the next model is used. Default: rate limits, quotas, overload,
    /// server errors, timeouts, and connections that fail or break.
    #[must_use]
    pub fn on_errors(mut self, kinds: impl IntoIterator<Item = ModelErrorKind>) -> Self {
        self.fallback_kinds = kinds.into_iter().collect();
        self
    }
}

impl Model for FallbackModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let mut lost: Option<Usage> = None;
        let mut models = self.models.iter().peekable();
        loop {
            let Some(model) = models.next() else {
                return Err(
                    ModelError::new("the fallback has no model").with_kind(ModelErrorKind::NotConfigured)
                );
            };
            let error = match model.respond(request, deltas).await {
                Ok(mut answer) => {
                    if let Some(mut usage) = lost {
                        usage.add(&answer.usage.unwrap_or_else(Usage::of_unknown_request));
                        answer.usage = Some(usage);
                    }
                    return Ok(answer);
                }
                Err(error) => error,
            };
            let cost = error.usage().copied().unwrap_or_else(Usage::of_unknown_request);
            lost.get_or_insert_default().add(&cost);
            if models.peek().is_none() || !self.fallback_kinds.contains(&error.kind()) {
                return Err(error.with_usage(lost));
            }
            deltas.discard_deltas().await;
            deltas.emit_warning(format!("{error}; falling back to the next model")).await;
        }
    }

    fn check_tool_support(&self, tool: &ToolDefinition) -> Result<(), String> {
        self.models.iter().try_for_each(|model| model.check_tool_support(tool))
    }

    /// Returns the smallest window that is known, because any of the models may get the request.
    fn context_window(&self) -> Option<u64> {
        self.models.iter().filter_map(SharedModel::context_window).min()
    }

    /// Returns the largest maximum of output tokens, because any of the models may get the request.
    fn max_output_tokens(&self, settings: &ModelSettings) -> Option<u64> {
        self.models.iter().filter_map(|model| model.max_output_tokens(settings)).max()
    }

    /// Returns the name of the first model, which gets every request first.
    fn name(&self) -> Option<&str> {
        self.models.first().and_then(SharedModel::name)
    }

    fn provider(&self) -> Option<&str> {
        self.models.first().and_then(SharedModel::provider)
    }

    fn has_stored_conversation(&self, last_response_id: Option<&str>) -> bool {
        self.models.iter().any(|model| model.has_stored_conversation(last_response_id))
    }
}

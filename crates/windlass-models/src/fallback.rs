//! Another model where the first cannot answer, as a declared policy.

use windlass::Usage;
use windlass::model::{
    Answer, Deltas, Model, ModelError, ModelErrorKind, ModelRequest, OfferedTool, SharedModel,
};

/// The failures that another model may mend, unless a policy names its own.
const USUAL: [ModelErrorKind; 7] = [
    ModelErrorKind::RateLimited,
    ModelErrorKind::QuotaExceeded,
    ModelErrorKind::Overloaded,
    ModelErrorKind::Server,
    ModelErrorKind::Unreachable,
    ModelErrorKind::TimedOut,
    ModelErrorKind::CutShort,
];

/// A model, and those that stand in for it.
///
/// Each is asked once, in order, where the one before failed in a way that is declared; what is said of retries on
/// the run counts for all of them together. The requests that failed are in the usage of the answer, watchers are
/// warned, and the journal has the name of the model that answered.
///
/// ```
/// use windlass::model::ModelErrorKind;
/// use windlass_models::{Fallback, OpenAi};
///
/// # fn main() -> Result<(), windlass_models::SetupError> {
/// let here = OpenAi::at("http://localhost:8000/v1").chat("qwen3")?;
/// let there = OpenAi::new("sk-…").responses("gpt-5.2")?;
/// let model = Fallback::from(here).then(there).on([ModelErrorKind::Unreachable, ModelErrorKind::Overloaded]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Fallback {
    models: Vec<SharedModel>,
    kinds: Vec<ModelErrorKind>,
}

impl Fallback {
    /// Asks this model first.
    pub fn from(model: impl Into<SharedModel>) -> Self {
        Self { models: vec![model.into()], kinds: USUAL.to_vec() }
    }

    /// And then this one.
    #[must_use]
    pub fn then(mut self, model: impl Into<SharedModel>) -> Self {
        self.models.push(model.into());
        self
    }

    /// Only after failures of these kinds. Unless this is said: limits, quotas, overload, failures of the server,
    /// and connections that fail or end.
    #[must_use]
    pub fn on(mut self, kinds: impl IntoIterator<Item = ModelErrorKind>) -> Self {
        self.kinds = kinds.into_iter().collect();
        self
    }
}

impl Model for Fallback {
    async fn answer<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a Deltas,
    ) -> Result<Answer, ModelError> {
        let mut lost: Option<Usage> = None;
        let mut models = self.models.iter().peekable();
        loop {
            let Some(model) = models.next() else {
                return Err(ModelError::new("there is no model to ask").of_kind(ModelErrorKind::Setup));
            };
            let error = match model.answer(request, deltas).await {
                Ok(mut answer) => {
                    if let Some(mut usage) = lost {
                        usage.add(&answer.usage.unwrap_or_else(Usage::unknown));
                        answer.usage = Some(usage);
                    }
                    return Ok(answer);
                }
                Err(error) => error,
            };
            let cost = error.usage().copied().unwrap_or_else(Usage::unknown);
            lost.get_or_insert_default().add(&cost);
            if models.peek().is_none() || !self.kinds.contains(&error.kind()) {
                return Err(error.at_cost(lost));
            }
            deltas.warning(format!("{error}; another model is asked")).await;
        }
    }

    fn supports(&self, tool: &OfferedTool) -> Result<(), String> {
        self.models.iter().try_for_each(|model| model.supports(tool))
    }
}

//! A seeded model: it returns the same response to the same conversation, in every process.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use windlass::core::{item::Item, usage::Usage};
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse, RetryAdvice};

use crate::rng::SimRng;
use crate::sim::Sim;

/// A function that computes the items of a response.
type ReplyFn = dyn Fn(&ModelRequest<'_>, &mut SimRng) -> Result<Vec<Item>, ModelError> + Send + Sync;

/// A model whose responses depend only on the seed, the agent and the conversation, so a run that resumes after
/// a crash meets the same model. Latency and transient failures are drawn anew for each request.
#[derive(Clone)]
pub struct SimModel {
    sim: Sim,
    reply_fn: Arc<ReplyFn>,
    max_latency: Duration,
    failure_percent: u64,
}

impl SimModel {
    /// Creates a model that responds with the result of `reply`. The generator passed to `reply` depends on the
    /// seed, the agent and the conversation.
    pub fn new(
        sim: &Sim,
        reply: impl Fn(&ModelRequest<'_>, &mut SimRng) -> Result<Vec<Item>, ModelError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            sim: sim.clone(),
            reply_fn: Arc::new(reply),
            max_latency: Duration::from_millis(50),
            failure_percent: 0,
        }
    }

    /// Creates a model with one scripted response per turn.
    pub fn scripted(sim: &Sim, turns: impl IntoIterator<Item = Vec<Item>>) -> Self {
        let turns: Vec<Vec<Item>> = turns.into_iter().collect();
        Self::new(sim, move |request, _| {
            let turn = turns.get(request.turn.saturating_sub(1) as usize).cloned();
            turn.ok_or_else(|| ModelError::new(format!("the script has no turn {}", request.turn)))
        })
    }

    /// Sets the maximum latency.
    #[must_use]
    pub fn max_latency(mut self, longest: Duration) -> Self {
        self.max_latency = longest;
        self
    }

    /// Sets the percentage of requests that fail with a retryable error.
    #[must_use]
    pub fn failure_percent(mut self, percent: u64) -> Self {
        self.failure_percent = percent;
        self
    }

    fn rng_for_request(&self, request: &ModelRequest<'_>) -> SimRng {
        let mut rng = SimRng::for_purpose(self.sim.seed(), "model");
        rng.mix_in(request.agent.as_str().as_bytes());
        // The maps in items are ordered, so equal items serialise equally.
        rng.mix_in(serde_json::to_string(request.input).unwrap_or_default().as_bytes());
        rng
    }
}

impl Model for SimModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        self.sim.random_delay(self.max_latency).await;
        if self.sim.chance(self.failure_percent) {
            return Err(
                ModelError::new("the simulated provider is busy").with_retry_advice(RetryAdvice::Safe)
            );
        }
        let mut rng = self.rng_for_request(&request);
        let items = (self.reply_fn)(&request, &mut rng)?;
        if deltas.is_watched() {
            for item in &items {
                if let Item::Message(message) = item {
                    deltas.emit_text(message.text()).await;
                    self.sim.random_delay(self.max_latency / 10).await;
                }
            }
        }
        let usage = rng.chance(90).then(|| Usage::of_tokens(rng.below(1000), rng.below(100)));
        Ok(ModelResponse {
            items: items.into_iter().map(Arc::new).collect(),
            usage,
            ..ModelResponse::default()
        })
    }
}

impl fmt::Debug for SimModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimModel({})", self.sim.seed())
    }
}

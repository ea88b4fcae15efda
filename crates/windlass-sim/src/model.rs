//! A model that a seed decides: the same conversation gets the same answer, in whichever process it is asked.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use windlass::core::{Item, Usage};
use windlass::model::{Answer, Deltas, Model, ModelError, ModelRequest, RetryAdvice};

use crate::rng::Rng;
use crate::sim::Sim;

type Reply = dyn Fn(&ModelRequest<'_>, &mut Rng) -> Result<Vec<Item>, ModelError> + Send + Sync;

/// A model whose answers depend on the seed and on what it is asked, and on nothing else. So a run that is
/// resumed after a crash meets the model that it knew. How long it thinks, and whether it fails first, the
/// machine draws anew each time.
#[derive(Clone)]
pub struct SimModel {
    sim: Sim,
    reply: Arc<Reply>,
    longest: Duration,
    failing: u64,
}

impl SimModel {
    /// A model that answers what `reply` makes of the request. The draws that it is given depend on the seed,
    /// the agent and the conversation.
    pub fn new(
        sim: &Sim,
        reply: impl Fn(&ModelRequest<'_>, &mut Rng) -> Result<Vec<Item>, ModelError> + Send + Sync + 'static,
    ) -> Self {
        Self { sim: sim.clone(), reply: Arc::new(reply), longest: Duration::from_millis(50), failing: 0 }
    }

    /// A model that gives the first of these answers in a run's first turn, the second in its second, and so
    /// on.
    pub fn script(sim: &Sim, turns: impl IntoIterator<Item = Vec<Item>>) -> Self {
        let turns: Vec<Vec<Item>> = turns.into_iter().collect();
        Self::new(sim, move |request, _| {
            let turn = turns.get(request.turn.saturating_sub(1) as usize).cloned();
            turn.ok_or_else(|| ModelError::new(format!("the script has no turn {}", request.turn)))
        })
    }

    /// How long it thinks at most.
    #[must_use]
    pub fn longest(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }

    /// In how many of a hundred requests it fails in a way that asking again mends.
    #[must_use]
    pub fn failing(mut self, percent: u64) -> Self {
        self.failing = percent;
        self
    }

    fn rng_of(&self, request: &ModelRequest<'_>) -> Rng {
        let mut rng = Rng::for_purpose(self.sim.seed(), "model");
        rng.stir(request.agent.as_str().as_bytes());
        // Items print alike wherever they are, because their maps are in order.
        rng.stir(serde_json::to_string(request.input).unwrap_or_default().as_bytes());
        rng
    }
}

impl Model for SimModel {
    async fn answer<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a Deltas,
    ) -> Result<Answer, ModelError> {
        self.sim.dawdle(self.longest).await;
        if self.sim.chance(self.failing) {
            return Err(ModelError::new("the simulated provider is busy").retry(RetryAdvice::Safe));
        }
        let mut rng = self.rng_of(&request);
        let items = (self.reply)(&request, &mut rng)?;
        if deltas.wanted() {
            for item in &items {
                if let Item::Message(message) = item {
                    deltas.text(message.text()).await;
                    self.sim.dawdle(self.longest / 10).await;
                }
            }
        }
        let usage = rng.chance(90).then(|| Usage::tokens(rng.below(1000), rng.below(100)));
        Ok(Answer { items: items.into_iter().map(Arc::new).collect(), usage, ..Answer::default() })
    }
}

impl fmt::Debug for SimModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimModel({})", self.sim.seed())
    }
}

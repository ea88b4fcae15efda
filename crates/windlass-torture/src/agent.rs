//! The tested agents: models that follow an order, and the tools of one build.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass::agent::Agent;
use windlass::core::item::Item;
use windlass::core::usage::Usage;
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse, SharedModel};
use windlass_sim::SimRng;

use crate::deployment::WorkerBuild;
use crate::order::{HELPER, RunOrder, agent_name};
use crate::outside::OutsideWorld;
use crate::tools::{ToolDeployment, TortureContext, build_tools};

const AGENT_TOOLS: &[&str] = &[
    "once",
    "asked",
    "guarded",
    "key",
    "store_key",
    "expiring_key",
    "look",
    "gated",
    "gated_key",
    "question",
    "legacy",
];
const HELPER_TOOLS: &[&str] = &["once", "asked", "key", "gated", "question", "store_key", "expiring_key"];

/// Creates the agent with a tool whose receipts are the session's, or without one, as one build has it. The model belongs to the run.
pub fn torture_agent(has_session_key: bool, deployment: ToolDeployment) -> Agent<TortureContext> {
    let helper = Agent::new(HELPER).tools(build_tools(deployment, HELPER_TOOLS));
    let mut tools = build_tools(deployment, AGENT_TOOLS);
    if has_session_key {
        tools.extend(build_tools(deployment, &["session_key"]));
    }
    tools.push(helper.as_tool(HELPER, "Asks the helper."));
    Agent::new(agent_name(has_session_key)).tools(tools)
}

/// Creates the model of a run, which follows its order.
pub fn order_model(
    order: &RunOrder,
    (world, actor): (&OutsideWorld, &str),
    build: WorkerBuild,
) -> SharedModel {
    SharedModel::new(OrderModel {
        order: order.clone(),
        world: world.clone(),
        actor: actor.to_owned(),
        build,
    })
}

/// A model whose responses depend only on the order, the agent and the turn.
struct OrderModel {
    order: RunOrder,
    world: OutsideWorld,
    actor: String,
    build: WorkerBuild,
}

impl Model for OrderModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let agent = request.agent.as_str();
        if agent == self.order.agent_name() {
            let noted = self.world.note_turn(&self.order.run, request.turn, &self.actor);
            noted.map_err(|error| ModelError::new(error.to_string()))?;
        }
        // Most of a run's time passes in model requests, and so do most of its crashes.
        let purpose = format!("delay {agent} {}", request.turn);
        let delay = SimRng::for_purpose(self.order.seed, &purpose).below(15_000);
        tokio::time::sleep(Duration::from_micros(delay)).await;
        let calls = self.order.calls_of_turn(agent, request.turn);
        let items = if calls.is_empty() {
            let text = if agent == HELPER { "helped".to_owned() } else { self.order.final_message() };
            vec![Arc::new(Item::assistant(text))]
        } else {
            let items = calls.into_iter().map(|call| {
                let arguments = match (call.tool, self.build) {
                    (HELPER, _) => json!({ "input": call.arguments.what }),
                    (_, build) => call.arguments.as_written_for(build),
                };
                Arc::new(Item::call(call.id, call.tool, arguments.to_string()))
            });
            items.collect()
        };
        Ok(ModelResponse { items, usage: Some(Usage::of_tokens(1, 1)), ..ModelResponse::default() })
    }
}

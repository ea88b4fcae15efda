//! The agent that is tortured: its model and its tools, all decided by the seed.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use windlass::core::{Item, OutputContent, Usage};
use windlass::model::{Answer, Deltas, Model, ModelError, ModelRequest};
use windlass::tool::Reconciled;
use windlass::{Agent, Effect, Tool, ToolContext, ToolError};

use crate::chance::Chance;
use crate::death::Death;
use crate::ledger::{Deed, Ledger};

/// What the tools work with.
pub struct World {
    /// The outside world.
    pub ledger: Ledger,
    /// When this process dies.
    pub death: Death,
}

impl World {
    /// The name under which a call stands in the ledger.
    pub fn name_of(ctx: &ToolContext<Self>) -> String {
        format!("{}:{}", ctx.run().run_id(), ctx.path())
    }
}

/// How many turns a run has.
const TURNS: u32 = 4;

/// The agent of a seed. Its model says the same in the same turn, whatever process asks.
pub fn agent(seed: u64) -> Agent<World> {
    let helper = Agent::new("helper")
        .model(Scripted { seed: seed ^ 0xabcd, turns: 2, tools: &["once", "asked", "key"] })
        .tools(vec![once(), asked(), key()]);
    Agent::new("tortured")
        .model(Scripted { seed, turns: TURNS, tools: &["once", "asked", "key", "look", "gated", "helper"] })
        .tools(vec![once(), asked(), key(), look(), gated(), helper.as_tool("helper", "Asks the helper.")])
}

/// A model that reads its answer off the seed and the turn.
struct Scripted {
    seed: u64,
    turns: u32,
    tools: &'static [&'static str],
}

impl Model for Scripted {
    async fn answer<'a>(&'a self, request: ModelRequest<'a>, _: &'a Deltas) -> Result<Answer, ModelError> {
        let mut chance = Chance::new(self.seed, u64::from(request.turn));
        let items = if request.turn > self.turns {
            vec![Arc::new(Item::assistant("done"))]
        } else {
            (0..1 + chance.below(3))
                .map(|place| {
                    let tool =
                        self.tools[usize::try_from(chance.below(self.tools.len() as u64)).unwrap_or(0)];
                    let id = format!("t{}c{place}", request.turn);
                    let arguments = match tool {
                        "helper" => json!({ "input": "help" }),
                        _ => json!({ "what": format!("{}-{}", request.agent, chance.below(1000)) }),
                    };
                    Arc::new(Item::call(id, tool, arguments.to_string()))
                })
                .collect()
        };
        Ok(Answer { items, usage: Some(Usage::tokens(1, 1)), ..Answer::default() })
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct What {
    #[serde(rename = "what")]
    _what: String,
}

/// Does something in the outside world, with moments to die before, after, and in the middle of its work.
async fn act(ctx: ToolContext<World>) -> Result<String, ToolError> {
    let world = ctx.app().clone();
    world.death.moment().await;
    let call = World::name_of(&ctx);
    let deed = Deed { tool: ctx.tool().name().to_owned(), call: call.clone(), key: ctx.idempotency_key() };
    tokio::task::spawn_blocking({
        let world = world.clone();
        move || world.ledger.does(&deed)
    })
    .await??;
    world.death.moment().await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    world.death.moment().await;
    Ok(format!("did {call}"))
}

fn tool(name: &str, effect: Effect) -> Tool<World> {
    Tool::function(name, "Does something.", |ctx, _: What| act(ctx)).effect(effect)
}

/// Must not happen twice, and can find out by itself whether it did.
fn once() -> Tool<World> {
    tool("once", Effect::Once).reconcile(|ctx: ToolContext<World>| async move {
        match ctx.app().ledger.has(&World::name_of(&ctx)) {
            Ok(true) => Reconciled::Happened(OutputContent::from(format!("did {}", World::name_of(&ctx)))),
            Ok(false) => Reconciled::DidNotHappen,
            Err(_) => Reconciled::Unknown,
        }
    })
}

/// Must not happen twice, and somebody must be asked whether it did.
fn asked() -> Tool<World> {
    tool("asked", Effect::Once)
}

/// May be sent twice with one key.
fn key() -> Tool<World> {
    tool("key", Effect::Idempotent)
}

/// Changes nothing.
fn look() -> Tool<World> {
    Tool::function("look", "Looks.", |ctx: ToolContext<World>, _: What| async move {
        ctx.app().death.moment().await;
        Ok::<_, ToolError>("seen")
    })
    .effect(Effect::Pure)
}

/// Must not happen twice, and not without a person's word.
fn gated() -> Tool<World> {
    tool("gated", Effect::Once).approve_always()
}

//! The tested agent: its model and its tools, all decided by the seed.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use windlass::core::{
    item::{Item, OutputContent},
    usage::Usage,
};
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse};
use windlass::tool::ReconcileOutcome;
use windlass::{
    agent::Agent,
    core::tool::ToolEffect,
    tool::{Tool, ToolContext, ToolError},
};
use windlass_sim::SimRng;

use crate::crash_plan::CrashPlan;
use crate::effect_ledger::{EffectLedger, LedgerEntry};

/// The context of the tools.
pub struct TortureContext {
    /// Ledger of the outside world.
    pub ledger: EffectLedger,
    /// Plan that decides where this process ends.
    pub crash_plan: CrashPlan,
}

impl TortureContext {
    /// Returns the name of a call in the ledger.
    pub fn call_name(ctx: &ToolContext<Self>) -> String {
        format!("{}:{}", ctx.run_context().run_id(), ctx.call_path())
    }
}

/// Number of turns of a run.
const TURN_COUNT: u32 = 4;

/// Creates the agent of a seed. Its model returns the same response in the same turn, in every process.
pub fn seeded_agent(seed: u64) -> Agent<TortureContext> {
    let helper = Agent::new("helper")
        .model(SeededModel { seed: seed ^ 0xabcd, turns: 2, tools: &["once", "asked", "key"] })
        .tools(vec![reconciled_tool(), in_doubt_tool(), idempotent_tool()]);
    Agent::new("tortured")
        .model(SeededModel {
            seed,
            turns: TURN_COUNT,
            tools: &["once", "asked", "key", "look", "gated", "helper"],
        })
        .tools(vec![
            reconciled_tool(),
            in_doubt_tool(),
            idempotent_tool(),
            pure_tool(),
            gated_tool(),
            helper.as_tool("helper", "Asks the helper."),
        ])
}

/// A model whose responses depend only on the seed and the turn.
struct SeededModel {
    seed: u64,
    turns: u32,
    tools: &'static [&'static str],
}

impl Model for SeededModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let mut rng = SimRng::for_purpose(self.seed, &format!("turn {}", request.turn));
        let items = if request.turn > self.turns {
            vec![Arc::new(Item::assistant("done"))]
        } else {
            (0..1 + rng.below(3))
                .map(|place| {
                    let tool = *rng.pick(self.tools);
                    let id = format!("t{}c{place}", request.turn);
                    let arguments = match tool {
                        "helper" => json!({ "input": "help" }),
                        _ => json!({ "what": format!("{}-{}", request.agent, rng.below(1000)) }),
                    };
                    Arc::new(Item::call(id, tool, arguments.to_string()))
                })
                .collect()
        };
        Ok(ModelResponse { items, usage: Some(Usage::of_tokens(1, 1)), ..ModelResponse::default() })
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TortureArgs {
    #[serde(rename = "what")]
    _what: String,
}

/// Appends an effect to the ledger, with crash points before, after and during the work.
async fn append_effect(ctx: ToolContext<TortureContext>) -> Result<String, ToolError> {
    let world = ctx.app().clone();
    world.crash_plan.crash_point().await;
    let call = TortureContext::call_name(&ctx);
    let deed = LedgerEntry {
        tool: ctx.tool_key().name().to_owned(),
        call: call.clone(),
        key: ctx.idempotency_key(),
    };
    tokio::task::spawn_blocking({
        let world = world.clone();
        move || world.ledger.append_entry(&deed)
    })
    .await??;
    world.crash_plan.crash_point().await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    world.crash_plan.crash_point().await;
    Ok(format!("did {call}"))
}

fn effect_tool(name: &str, effect: ToolEffect) -> Tool<TortureContext> {
    Tool::function(name, "Does something.", |ctx, _: TortureArgs| append_effect(ctx)).effect(effect)
}

/// Creates an at-most-once tool with a reconcile function.
fn reconciled_tool() -> Tool<TortureContext> {
    effect_tool("once", ToolEffect::Once).reconcile(|ctx: ToolContext<TortureContext>| async move {
        match ctx.app().ledger.contains_call(&TortureContext::call_name(&ctx)) {
            Ok(true) => ReconcileOutcome::Executed(OutputContent::from(format!(
                "did {}",
                TortureContext::call_name(&ctx)
            ))),
            Ok(false) => ReconcileOutcome::NotExecuted,
            Err(_) => ReconcileOutcome::Unknown,
        }
    })
}

/// Creates an at-most-once tool whose calls in doubt need a person.
fn in_doubt_tool() -> Tool<TortureContext> {
    effect_tool("asked", ToolEffect::Once)
}

/// Creates an idempotent tool.
fn idempotent_tool() -> Tool<TortureContext> {
    effect_tool("key", ToolEffect::Idempotent)
}

/// Creates a tool without side effects.
fn pure_tool() -> Tool<TortureContext> {
    Tool::function("look", "Looks.", |ctx: ToolContext<TortureContext>, _: TortureArgs| async move {
        ctx.app().crash_plan.crash_point().await;
        Ok::<_, ToolError>("seen")
    })
    .effect(ToolEffect::Pure)
}

/// Creates an at-most-once tool that requires approval.
fn gated_tool() -> Tool<TortureContext> {
    effect_tool("gated", ToolEffect::Once).needs_approval()
}

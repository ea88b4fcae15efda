//! The work that is measured.

pub mod durable;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::core::{Item, Usage};
use windlass::model::{Answer, Deltas, Model, ModelError, ModelRequest};
use windlass::{Agent, Effect, Outcome, Paused, Tool, ToolContext, ToolError};

/// A model that reads the turn off the length of the history, so that it costs the same in every turn.
struct Counting {
    turns: u32,
    calls: u32,
    gated_last: bool,
}

impl Model for Counting {
    async fn answer<'a>(&'a self, request: ModelRequest<'a>, _: &'a Deltas) -> Result<Answer, ModelError> {
        let turn = request.turn - 1;
        let items = if turn < self.turns {
            (0..self.calls)
                .map(|call| {
                    let number = turn * self.calls + call;
                    Arc::new(Item::call(format!("call_{number}"), "noop", format!("{{\"x\":{number}}}")))
                })
                .collect()
        } else if turn == self.turns && self.gated_last {
            vec![Arc::new(Item::call("gated", "gated", "{\"x\":0}"))]
        } else {
            vec![Arc::new(Item::assistant("done"))]
        };
        Ok(Answer { items, usage: Some(Usage::tokens(10, 5)), response_id: None })
    }
}

#[derive(Deserialize, JsonSchema)]
struct Number {
    #[serde(rename = "x")]
    _x: i64,
}

fn tool(name: &str) -> Tool {
    Tool::function(name, "Does nothing.", |_: ToolContext, _: Number| async { Ok::<_, ToolError>("ok") })
        .effect(Effect::Pure)
}

fn agent(turns: u32, calls: u32, gated_last: bool) -> Agent {
    Agent::new("bench")
        .instructions("You are a benchmark.")
        .model(Counting { turns, calls, gated_last })
        .tools((tool("noop"), tool("gated").approve_always()))
}

/// One run of so many turns, with one call in each.
pub async fn turns(turns: u32) -> Result<u32, String> {
    finish(agent(turns, 1, false), turns).await
}

/// One turn with so many calls.
pub async fn calls(calls: u32) -> Result<u32, String> {
    finish(agent(1, calls, false), calls).await
}

async fn finish(agent: Agent, calls: u32) -> Result<u32, String> {
    let outcome = agent.run("go").unlimited_turns().await.map_err(|error| error.to_string())?;
    if outcome.text() == "done" { Ok(calls) } else { Err("the run did not finish".to_owned()) }
}

/// A run that pauses after so many turns, is written as text, read back, approved and finished.
pub async fn resume(turns: u32) -> Result<u32, String> {
    let agent = agent(turns, 1, true);
    let outcome = agent.run("go").unlimited_turns().await.map_err(|error| error.to_string())?;
    let Outcome::Paused(paused) = outcome else { return Err("the run did not pause".to_owned()) };
    let mut paused = Paused::from_text(&paused.to_text()).map_err(|error| error.to_string())?;
    paused.approve("gated").map_err(|error| error.to_string())?;
    let outcome = agent.resume(paused).unlimited_turns().await.map_err(|error| error.to_string())?;
    if outcome.text() == "done" { Ok(turns + 1) } else { Err("the run did not finish".to_owned()) }
}

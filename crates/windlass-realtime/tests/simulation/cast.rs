//! The participants of the simulation: a server whose responses the seed determines, and agents whose tools and
//! guardrails it determines too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use windlass::guardrail::{GuardrailVerdict, OutputGuardrail};
use windlass::prelude::*;
use windlass_realtime::testing::{LoopbackReply, LoopbackServer};
use windlass_sim::{Sim, SimWorld};

/// Creates a server whose messages begin with the instructions that it has.
pub(crate) fn random_server(sim: &Sim, calls: &Arc<AtomicU64>) -> LoopbackServer {
    let has_restarting_ids = sim.chance(50);
    // A model that calls a tool in every response.
    let is_looping = sim.chance(15);
    let (sim, calls) = (sim.clone(), calls.clone());
    let server = LoopbackServer::with_reply_function(move |said| {
        let instructions = said.session["instructions"].as_str().unwrap_or_default();
        let mut reply = match sim.draw(|rng| rng.below(4)) {
            0 => LoopbackReply::default(),
            length => {
                let words = "word ".repeat(usize::try_from(length * length).unwrap_or(1) * 2);
                LoopbackReply::message(format!("{instructions} {words}"))
            }
        };
        if is_looping {
            let id = format!("call_{}", calls.fetch_add(1, Ordering::Relaxed));
            reply = reply.and_call(&id, "quick", "{}");
        }
        for _ in 0..sim.draw(|rng| rng.below(3)) {
            let name = sim.draw(|rng| {
                *rng.pick(&[
                    "quick",
                    "slow",
                    "gated",
                    "fails",
                    "transfer_to_back",
                    "transfer_to_front",
                    "transfer_to_shaky",
                ])
            });
            let id = format!("call_{}", calls.fetch_add(1, Ordering::Relaxed));
            reply = reply.and_call(&id, name, "{}");
        }
        if sim.chance(60) {
            reply = reply.with_speed(u32::try_from(1 + sim.draw(|rng| rng.below(8))).unwrap_or(1));
        }
        reply.with_delay(Duration::from_millis(sim.draw(|rng| rng.below(400))))
    });
    if has_restarting_ids { server.with_restarting_ids() } else { server }
}

/// Creates an agent whose instructions name it, so that the configuration of each message shows.
pub(crate) fn named_agent(name: &str) -> Agent {
    Agent::new(name).instructions(format!("I am {name}."))
}

pub(crate) fn random_agents(sim: &Sim, world: &SimWorld) -> Agent {
    let tool = |name: &'static str, longest: u64, fails: u64| {
        let (sim, world) = (sim.clone(), world.clone());
        let schema =
            json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
        Tool::dynamic(name, "Does something.", schema, move |ctx, _| {
            let (sim, world) = (sim.clone(), world.clone());
            async move {
                sim.random_delay(Duration::from_millis(longest)).await;
                world.record_effect(&ctx);
                sim.random_delay(Duration::from_millis(longest)).await;
                match sim.chance(fails) {
                    true => Err(ToolError::visible("no luck")),
                    false => Ok(format!("{name} is done")),
                }
            }
        })
    };
    let guard = {
        let sim = sim.clone();
        OutputGuardrail::new("guard", move |_, _| {
            let sim = sim.clone();
            async move {
                sim.random_delay(Duration::from_millis(600)).await;
                match sim.draw(|rng| rng.below(12)) {
                    0 => Ok(GuardrailVerdict::Tripwire),
                    1 => Err("the guardrail fails".into()),
                    _ => Ok(GuardrailVerdict::Pass),
                }
            }
        })
    };
    let set = |agent: Agent| {
        agent
            .tools((
                tool("quick", 0, 0),
                tool("slow", 3000, 0),
                tool("gated", 500, 0).needs_approval(),
                tool("fails", 200, 50),
            ))
            .output_guardrail(guard.clone())
    };
    let back = set(named_agent("back")).handoff(windlass::agent::Handoff::to_named("front"));
    set(named_agent("front")).handoff(&back).handoff(flaky_agent(sim))
}

/// Creates an agent that sometimes cannot be resolved.
pub(crate) fn flaky_agent(sim: &Sim) -> Agent {
    let sim = sim.clone();
    Agent::new("shaky").dynamic_instructions(move |_| {
        let sim = sim.clone();
        async move {
            sim.random_delay(Duration::from_millis(500)).await;
            assert!(!sim.chance(50), "not today");
            "I am shaky.".to_owned()
        }
    })
}

//! Simulated seeds: each is a run whose process crashes somewhere and that another goes on with, audited in the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use windlass::core::Item;
use windlass::{Agent, Tool, ToolError};
use windlass_sim::{Begin, Fault, Sim, SimModel, SimStore, World, check_record};

/// Simulates so many seeds on one thread, and says how many a second that is.
pub fn run(seeds: usize) -> Result<usize, String> {
    let began = Instant::now();
    for seed in 0..seeds as u64 {
        one(seed)?;
    }
    println!("{seeds} seeds, {:.0} a second", seeds as f64 / began.elapsed().as_secs_f64());
    Ok(seeds)
}

fn one(seed: u64) -> Result<(), String> {
    let (sim, world) = (Sim::new(seed), World::new());
    let store = Arc::new(SimStore::new(&sim).longest(Duration::from_millis(20)));
    let fault = sim.draw(|rng| *rng.pick(&[Fault::CrashBefore, Fault::CrashAfter]));
    store.at(sim.draw(|rng| rng.below(6)), fault);
    let outcome = sim.survive(&store, "run", |begin| match begin {
        Begin::Fresh => agent(&sim, &world).run("My order never came."),
        Begin::Recovered { run, store } => agent(&sim, &world).recover(run, store),
    });
    let outcome = outcome.map_err(|error| format!("seed {seed}: {error}"))?;
    check_record(outcome.record()).map_err(|broken| format!("seed {seed}: {broken}"))
}

fn agent(sim: &Sim, world: &World) -> Agent {
    let (of_tool, world) = (sim.clone(), world.clone());
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let refund = Tool::dynamic("refund", "Gives the money back.", schema, move |ctx, _| {
        let (sim, world) = (of_tool.clone(), world.clone());
        async move {
            sim.dawdle(Duration::from_secs(2)).await;
            world.effect(&ctx);
            Ok::<_, ToolError>("refunded")
        }
    });
    let model = SimModel::script(
        sim,
        [vec![Item::call("c1", "refund", "{}")], vec![Item::assistant("You have your money back.")]],
    );
    Agent::new("desk").model(model).tools(refund)
}

//! Simulated seeds: in each, a run's process crashes at a random point, another process recovers the run, and the
//! final record is audited.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use windlass::core::item::Item;
use windlass::{
    agent::Agent,
    tool::{Tool, ToolError},
};
use windlass_sim::{RunStart, Sim, SimModel, SimStore, SimWorld, WriteFault, check_record};

/// Simulates `seeds` seeds on one thread and prints the seeds per second.
pub fn run_seeds(seeds: usize) -> Result<usize, String> {
    let began = Instant::now();
    for seed in 0..seeds as u64 {
        simulate_seed(seed)?;
    }
    println!("{seeds} seeds, {:.0} a second", seeds as f64 / began.elapsed().as_secs_f64());
    Ok(seeds)
}

fn simulate_seed(seed: u64) -> Result<(), String> {
    let (sim, world) = (Sim::new(seed), SimWorld::new());
    let store = Arc::new(SimStore::new(&sim).max_latency(Duration::from_millis(20)));
    let fault = sim.draw(|rng| *rng.pick(&[WriteFault::CrashBefore, WriteFault::CrashAfter]));
    store.inject_fault(sim.draw(|rng| rng.below(6)), fault);
    let outcome = sim.run_through_crashes(&store, "run", |begin| match begin {
        RunStart::Fresh => refund_agent(&sim, &world).run("My order never came."),
        RunStart::Recovered { run, store } => refund_agent(&sim, &world).recover(run, store),
    });
    let outcome = outcome.map_err(|error| format!("seed {seed}: {error}"))?;
    check_record(outcome.record()).map_err(|broken| format!("seed {seed}: {broken}"))
}

fn refund_agent(sim: &Sim, world: &SimWorld) -> Agent {
    let (of_tool, world) = (sim.clone(), world.clone());
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let refund = Tool::dynamic("refund", "Gives the money back.", schema, move |ctx, _| {
        let (sim, world) = (of_tool.clone(), world.clone());
        async move {
            sim.random_delay(Duration::from_secs(2)).await;
            world.record_effect(&ctx);
            Ok::<_, ToolError>("refunded")
        }
    });
    let model = SimModel::scripted(
        sim,
        [vec![Item::call("c1", "refund", "{}")], vec![Item::assistant("You have your money back.")]],
    );
    Agent::new("desk").model(model).tools(refund)
}

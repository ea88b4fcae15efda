//! Two processes compete for one run: a process that loses its lease stops before the other may start.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass::core::decision::HoldReason;
use windlass::error::StoreErrorKind;
use windlass::prelude::*;
use windlass::{core::item::Item, error::RunError};
use windlass_sim::{SeedList, Sim, SimModel, SimStore, SimWorld, check_journal, check_record, check_seeds};

const RUN_ID: &str = "run";

/// Creates an agent with a slow at-most-once tool.
fn paying_agent(sim: &Sim, world: &SimWorld) -> Agent {
    let (tool_sim, world) = (sim.clone(), world.clone());
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let pay = Tool::dynamic("pay", "Pays.", schema, move |ctx, _| {
        let (sim, world) = (tool_sim.clone(), world.clone());
        async move {
            sim.random_delay(Duration::from_secs(120)).await;
            world.record_effect(&ctx);
            sim.random_delay(Duration::from_secs(20)).await;
            Ok::<_, ToolError>("paid")
        }
    });
    let calls = vec![Item::call("a", "pay", "{}"), Item::call("b", "pay", "{}")];
    let model = SimModel::scripted(sim, [calls, vec![Item::assistant("done")]]);
    Agent::new("till").model(model).tools(pay)
}

/// Recovers the run as soon as its lease is abandoned, and resolves calls in doubt truthfully. Returns true if
/// the run ended.
async fn take_over(sim: &Sim, world: &SimWorld, store: Arc<SimStore>) -> bool {
    let agent = paying_agent(sim, world);
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let is_begun = !store.durable_records_from(&RUN_ID.into(), 0).is_empty();
        let run =
            if is_begun { agent.recover(RUN_ID, store.clone()) } else { agent.run("go").run_id(RUN_ID) };
        let mut outcome = run.store(store.clone()).await;
        loop {
            let mut paused = match outcome {
                Ok(RunResult::Paused(paused)) => paused,
                Ok(ended) => {
                    check_record(ended.record()).expect("the journal is whole");
                    return true;
                }
                // The other process still holds the lease, or has renewed it.
                Err(RunError::Store(error)) if error.kind() == StoreErrorKind::LeaseHeld => break,
                Err(RunError::Store(error)) if error.kind() == StoreErrorKind::AlreadyExists => break,
                Err(error) => panic!("the run cannot be taken over: {error}"),
            };
            for pending in paused.pending_calls() {
                assert_eq!(pending.reason, HoldReason::InDoubt);
                let said = match world.count_by_call(pending.path.clone()) {
                    0 => paused.confirm_not_executed(pending.path.clone()),
                    _ => paused.confirm_executed(pending.path.clone(), "it was paid"),
                };
                said.expect("a person may say what happened");
            }
            outcome = agent.resume(paused).store(store.clone()).await;
        }
    }
    false
}

#[test]
fn a_driver_that_cannot_reach_its_store_stops_before_another_goes_on() {
    check_seeds(&SeedList::from_zero(300), |seed| {
        let (sim, world) = (Sim::new(seed), SimWorld::new());
        let ours = Arc::new(SimStore::new(&sim).max_latency(Duration::from_millis(20)));
        let theirs = Arc::new(ours.for_other_process().max_latency(Duration::from_millis(20)));
        let taken_over = sim.run_process(async {
            let (first, cut) = (paying_agent(&sim, &world).run("go"), ours.clone());
            let first = tokio::spawn(first.run_id(RUN_ID).store(ours.clone()));
            let (at, lasts) = sim.draw(|rng| (rng.below(40_000), rng.below(90_000)));
            let is_silent = sim.chance(50);
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(at)).await;
                if is_silent {
                    cut.set_reachable(false)
                } else {
                    cut.set_failure_percent(100)
                }
                tokio::time::sleep(Duration::from_millis(lasts)).await;
                cut.set_reachable(true);
                cut.set_failure_percent(0);
            });
            let taken_over = take_over(&sim, &world, theirs.clone()).await;
            // Later actions of the first process must have no effect.
            let _ended = tokio::time::timeout(Duration::from_secs(3600), first).await;
            taken_over
        });
        assert_eq!(taken_over.completed(), Some(true), "nobody came to an end with the run");
        check_journal(&theirs.durable_records(&RUN_ID.into()).expect("the journal can be read"))
            .expect("it is whole");
        for call in ["a", "b"] {
            assert!(
                world.count_by_call(call) <= 1,
                "call {call} was paid {} times",
                world.count_by_call(call)
            );
        }
    });
}

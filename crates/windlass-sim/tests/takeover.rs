//! Two processes and one run: whoever loses its lease stops before the other may begin.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass::core::HoldReason;
use windlass::error::StoreErrorKind;
use windlass::prelude::*;
use windlass::{Item, RunError};
use windlass_sim::{Seeds, Sim, SimModel, SimStore, World, check, check_journal, check_record};

const RUN: &str = "run";

/// A till whose tool must not happen twice and takes its time.
fn till(sim: &Sim, world: &World) -> Agent {
    let (tool_sim, world) = (sim.clone(), world.clone());
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let pay = Tool::dynamic("pay", "Pays.", schema, move |ctx, _| {
        let (sim, world) = (tool_sim.clone(), world.clone());
        async move {
            sim.dawdle(Duration::from_secs(120)).await;
            world.effect(&ctx);
            sim.dawdle(Duration::from_secs(20)).await;
            Ok::<_, ToolError>("paid")
        }
    });
    let calls = vec![Item::call("a", "pay", "{}"), Item::call("b", "pay", "{}")];
    let model = SimModel::script(sim, [calls, vec![Item::assistant("done")]]);
    Agent::new("till").model(model).tools(pay)
}

/// Goes on with the run as soon as nobody owns it, and lets an honest person say what happened.
async fn take_over(sim: &Sim, world: &World, store: Arc<SimStore>) -> bool {
    let agent = till(sim, world);
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let is_begun = !store.durable_from(&RUN.into(), 0).is_empty();
        let run = if is_begun { agent.recover(RUN, store.clone()) } else { agent.run("go").run_id(RUN) };
        let mut outcome = run.store(store.clone()).await;
        loop {
            let mut paused = match outcome {
                Ok(Outcome::Paused(paused)) => paused,
                Ok(ended) => {
                    check_record(ended.record()).expect("the journal is whole");
                    return true;
                }
                // The other one still owns it, or has been there once more.
                Err(RunError::Store(error)) if error.kind() == StoreErrorKind::Leased => break,
                Err(RunError::Store(error)) if error.kind() == StoreErrorKind::Exists => break,
                Err(error) => panic!("the run cannot be taken over: {error}"),
            };
            for pending in paused.pending() {
                assert_eq!(pending.reason, HoldReason::InDoubt);
                let said = match world.by_call(pending.path.clone()) {
                    0 => paused.it_did_not_happen(pending.path.clone()),
                    _ => paused.it_happened(pending.path.clone(), "it was paid"),
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
    check(&Seeds::first(300), |seed| {
        let (sim, world) = (Sim::new(seed), World::new());
        let ours = Arc::new(SimStore::new(&sim).longest(Duration::from_millis(20)));
        let theirs = Arc::new(ours.for_another().longest(Duration::from_millis(20)));
        let taken_over = sim.live(async {
            let (first, cut) = (till(&sim, &world).run("go"), ours.clone());
            let first = tokio::spawn(first.run_id(RUN).store(ours.clone()).into_future());
            let (at, lasts) = sim.draw(|rng| (rng.below(40_000), rng.below(90_000)));
            let is_silent = sim.chance(50);
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(at)).await;
                if is_silent {
                    cut.set_reachable(false)
                } else {
                    cut.set_failing(100)
                }
                tokio::time::sleep(Duration::from_millis(lasts)).await;
                cut.set_reachable(true);
                cut.set_failing(0);
            });
            let taken_over = take_over(&sim, &world, theirs.clone()).await;
            // Whatever the first one still does, it does it to nobody's harm.
            let _ended = tokio::time::timeout(Duration::from_secs(3600), first).await;
            taken_over
        });
        assert_eq!(taken_over.ended(), Some(true), "nobody came to an end with the run");
        check_journal(&theirs.durable(&RUN.into()).expect("the journal can be read")).expect("it is whole");
        for call in ["a", "b"] {
            assert!(world.by_call(call) <= 1, "call {call} was paid {} times", world.by_call(call));
        }
    });
}

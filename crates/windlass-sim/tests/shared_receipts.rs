//! Several runs on one store share the results of an idempotent tool: one body at a time for each key, and none
//! after one has succeeded.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use windlass::core::{Entry, How, RunId};
use windlass::prelude::*;
use windlass::tool::{Receipts, Scope};
use windlass::{Effect, Item};
use windlass_sim::{Rng, Seeds, Sim, SimModel, SimStore, World, check};

const RUNS: u64 = 4;

/// What is known of each key: bodies under way, bodies that have succeeded, and what must not be. A panic in a body
/// would only be its call's failure.
#[derive(Default)]
struct Keys {
    under_way: BTreeSet<String>,
    succeeded: BTreeSet<String>,
    wrong: Vec<String>,
}

impl Keys {
    fn begin(&mut self, key: &str) {
        if !self.under_way.insert(key.to_owned()) {
            self.wrong.push(format!("two bodies run for {key}"));
        }
        if self.succeeded.contains(key) {
            self.wrong.push(format!("a body runs for {key}, which has a receipt"));
        }
    }
}

fn agent(sim: &Sim, world: &World, keys: &Arc<Mutex<Keys>>) -> Agent {
    let (tool_sim, world, keys) = (sim.clone(), world.clone(), keys.clone());
    let schema = json!({
        "type": "object",
        "properties": { "n": { "type": "integer" } },
        "required": ["n"],
        "additionalProperties": false,
    });
    let order = Tool::dynamic("order", "Orders.", schema, move |ctx: ToolContext, _| {
        let (sim, world, keys) = (tool_sim.clone(), world.clone(), keys.clone());
        async move {
            let key = ctx.idempotency_key();
            keys.lock().expect("nobody panics with it").begin(&key);
            sim.dawdle(Duration::from_secs(40)).await;
            let fails = sim.chance(30);
            if !fails {
                world.effect(&ctx);
            }
            let mut keys = keys.lock().expect("nobody panics with it");
            keys.under_way.remove(&key);
            if fails {
                return Err(ToolError::tell("it did not work"));
            }
            keys.succeeded.insert(key);
            Ok("ordered")
        }
    });
    let order =
        order.effect(Effect::Idempotent).receipts(Receipts { scope: Scope::Store, ..Receipts::default() });
    let model = SimModel::new(sim, |request, rng| {
        let call = |at: u64, rng: &mut Rng| {
            Item::call(format!("c{}{at}", request.turn), "order", json!({ "n": rng.below(2) }).to_string())
        };
        Ok(match request.turn {
            1 | 2 => (0..1 + rng.below(3)).map(|at| call(at, rng)).collect(),
            _ => vec![Item::assistant("done")],
        })
    });
    Agent::new("desk").model(model).tools(order)
}

#[test]
fn runs_on_one_store_share_receipts() {
    check(&Seeds::first(300), |seed| {
        let (sim, world, keys) = (Sim::new(seed), World::new(), Arc::new(Mutex::new(Keys::default())));
        let store = Arc::new(SimStore::new(&sim).longest(Duration::from_millis(20)));
        let agent = agent(&sim, &world, &keys);
        let lived = sim.live(async {
            let begin = |at: u64| {
                let run = agent.run(format!("go {at}")).run_id(format!("run-{at}")).store(store.clone());
                let sim = sim.clone();
                tokio::spawn(async move {
                    sim.dawdle(Duration::from_secs(20)).await;
                    run.await
                })
            };
            for run in (0..RUNS).map(begin).collect::<Vec<_>>() {
                run.await.expect("a run does not panic").expect("a run comes to its end");
            }
        });
        assert_eq!(lived.ended(), Some(()));
        let wrong = &keys.lock().expect("nobody panics with it").wrong;
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert_eq!(world.total(), world.distinct(), "a target that honours keys was asked twice");
        let records = (0..RUNS).flat_map(|at| store.durable_from(&RunId::from(format!("run-{at}")), 0));
        let failed = records.filter(|record| match &record.entry {
            Entry::CallSettled(settled) => {
                !matches!(settled.how, How::Succeeded | How::Receipt | How::Failed)
            }
            _ => false,
        });
        assert_eq!(failed.count(), 0, "a call settled in another way than it should");
    });
}

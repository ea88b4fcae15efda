//! Several runs on one store share the receipts of an idempotent tool: at most one body runs per key, and none
//! after a success.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use windlass::core::{
    id::RunId,
    journal::{CallStatus, JournalEntry},
};
use windlass::prelude::*;
use windlass::tool::{ReceiptPolicy, ReceiptScope};
use windlass::{core::item::Item, core::tool::ToolEffect};
use windlass_sim::{SeedList, Sim, SimModel, SimRng, SimStore, SimWorld, check_seeds};

const RUN_COUNT: u64 = 4;

/// Tracks the running and succeeded bodies of each key. It collects violations, because a panic in a body would
/// only fail its call.
#[derive(Default)]
struct KeyTracker {
    running: BTreeSet<String>,
    succeeded: BTreeSet<String>,
    violations: Vec<String>,
}

impl KeyTracker {
    fn begin_body(&mut self, key: &str) {
        if !self.running.insert(key.to_owned()) {
            self.violations.push(format!("two bodies run for {key}"));
        }
        if self.succeeded.contains(key) {
            self.violations.push(format!("a body runs for {key}, which has a receipt"));
        }
    }
}

fn ordering_agent(sim: &Sim, world: &SimWorld, keys: &Arc<Mutex<KeyTracker>>) -> Agent {
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
            keys.lock().expect("nobody panics with it").begin_body(&key);
            sim.random_delay(Duration::from_secs(40)).await;
            let fails = sim.chance(30);
            if !fails {
                world.record_effect(&ctx);
            }
            let mut keys = keys.lock().expect("nobody panics with it");
            keys.running.remove(&key);
            if fails {
                return Err(ToolError::visible("it did not work"));
            }
            keys.succeeded.insert(key);
            Ok("ordered")
        }
    });
    let order = order
        .effect(ToolEffect::Idempotent)
        .receipt_policy(ReceiptPolicy { scope: ReceiptScope::Store, ..ReceiptPolicy::default() });
    let model = SimModel::new(sim, |request, rng| {
        let call = |at: u64, rng: &mut SimRng| {
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
    check_seeds(&SeedList::from_zero(300), |seed| {
        let (sim, world, keys) =
            (Sim::new(seed), SimWorld::new(), Arc::new(Mutex::new(KeyTracker::default())));
        let store = Arc::new(SimStore::new(&sim).max_latency(Duration::from_millis(20)));
        let agent = ordering_agent(&sim, &world, &keys);
        let lived = sim.run_process(async {
            let begin = |at: u64| {
                let run = agent.run(format!("go {at}")).run_id(format!("run-{at}")).store(store.clone());
                let sim = sim.clone();
                tokio::spawn(async move {
                    sim.random_delay(Duration::from_secs(20)).await;
                    run.await
                })
            };
            for run in (0..RUN_COUNT).map(begin).collect::<Vec<_>>() {
                run.await.expect("a run does not panic").expect("a run comes to its end");
            }
        });
        assert_eq!(lived.completed(), Some(()));
        let wrong = &keys.lock().expect("nobody panics with it").violations;
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert_eq!(
            world.total_count(),
            world.distinct_key_count(),
            "a target that honours keys was asked twice"
        );
        let records =
            (0..RUN_COUNT).flat_map(|at| store.durable_records_from(&RunId::from(format!("run-{at}")), 0));
        let failed = records.filter(|record| match &record.entry {
            JournalEntry::CallSettled(settled) => !matches!(
                settled.status,
                CallStatus::Succeeded | CallStatus::Deduplicated | CallStatus::Failed
            ),
            _ => false,
        });
        assert_eq!(failed.count(), 0, "a call settled in another way than it should");
    });
}

//! Whatever happens to a run, its history is whole: S50.

use std::collections::{BTreeMap, BTreeSet};
use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use windlass::core::{CallId, HoldReason, Record, Run};
use windlass::model::{Answer, Deltas, Model, ModelError, ModelRequest};
use windlass::prelude::*;
use windlass::run::Approvals;
use windlass::{Effect, Item, MemoryStore, OnFailure, RunError, Usage};

use crate::support::*;

/// Chance, the same for the same seed.
#[derive(Clone)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

const TOOLS: [&str; 8] = ["quick", "wait", "pure", "charge", "gated", "fails", "inside", "none"];

/// A model that makes calls for some turns, and then is done. What it answers depends on the seed and the turn
/// alone, so that a run which lost an answer is given the same again.
struct Restless {
    seed: u64,
    turns: u32,
    tools: &'static [&'static str],
}

impl Model for Restless {
    async fn answer<'a>(&'a self, request: ModelRequest<'a>, _: &'a Deltas) -> Result<Answer, ModelError> {
        check(request.input);
        let turn = request.turn;
        let mut dice = Dice(self.seed ^ (u64::from(turn) << 32));
        dice.roll(2);
        tokio::time::sleep(Duration::from_millis(dice.roll(4))).await;
        let mut items = Vec::new();
        if turn > self.turns {
            items.push(Arc::new(Item::assistant("done")));
        } else {
            for at in 0..=dice.roll(4) {
                let tool = self.tools[usize::try_from(dice.roll(self.tools.len() as u64)).expect("few")];
                let arguments = json!({ "input": "go", "n": dice.roll(3), "ms": dice.roll(6) });
                let arguments = if tool == "inside" { json!({ "input": "go" }) } else { arguments };
                items.push(Arc::new(Item::call(format!("{turn}-{at}"), tool, arguments.to_string())));
            }
        }
        Ok(Answer { items, usage: Some(Usage::tokens(1, 1)), ..Answer::default() })
    }
}

/// What a model is shown is whole.
fn check(input: &[Arc<Item>]) {
    let mut open = BTreeSet::new();
    for item in input {
        match &**item {
            Item::Call(call) => assert!(open.insert(&call.id), "call `{}` twice", call.id),
            Item::Output(output) => {
                assert!(open.remove(&output.call), "output of `{}` without a call", output.call);
            }
            _ => {}
        }
    }
    assert_eq!(open, BTreeSet::new(), "calls without an output");
}

/// How often the body of each call that must not happen twice was begun.
type Effects = Arc<Mutex<BTreeMap<String, usize>>>;

fn counted(name: &'static str, effects: &Effects) -> Tool {
    let effects = effects.clone();
    tool(name, move |ctx, arguments| {
        *effects.lock().expect("no body panics").entry(ctx.path().to_string()).or_default() += 1;
        async move {
            tokio::time::sleep(Duration::from_millis(arguments["ms"].as_u64().unwrap_or(0))).await;
            if name == "fails" { Err(ToolError::tell("no")) } else { Ok(format!("{name} done")) }
        }
    })
}

fn cast(seed: u64, effects: &Effects) -> Agent {
    let none = Effects::default();
    let inside = Agent::new("inside")
        .model(Restless { seed: seed ^ 0xabcd, turns: 2, tools: &TOOLS[..6] })
        .tools(tools(effects, &none, seed))
        .as_tool("inside", "An agent.");
    Agent::new("top")
        .model(Restless { seed, turns: 3, tools: &TOOLS })
        .tools(tools(effects, &none, seed).into_iter().chain([inside]).collect::<Vec<_>>())
}

fn tools(effects: &Effects, free: &Effects, seed: u64) -> Vec<Tool> {
    let fails = counted("fails", effects);
    vec![
        counted("quick", effects).timeout(Duration::from_millis(3)),
        counted("wait", effects),
        counted("pure", free).effect(Effect::Pure),
        counted("charge", free).effect(Effect::Idempotent),
        counted("gated", effects).approve_always(),
        if seed.is_multiple_of(5) { fails.on_failure(OnFailure::Fail) } else { fails },
    ]
}

/// All states that the journal of a run has been through are whole, in the run and in the agents inside it.
fn check_journal(records: &[Record]) {
    let paths: BTreeSet<&[CallId]> = records.iter().map(|record| record.path.as_slice()).collect();
    for path in paths {
        let own: Vec<Record> = records
            .iter()
            .filter(|record| record.path.starts_with(path))
            .enumerate()
            .map(|(at, record)| Record {
                seq: at as u64,
                path: record.path[path.len()..].to_vec(),
                ..record.clone()
            })
            .collect();
        for length in 1..=own.len() {
            assert_whole(&Run::replay(&own[..length]).expect("the journal adds up").run);
        }
    }
}

/// One life of a run: it is driven, lost, cancelled, decided about and driven on, until it ends.
async fn live(seed: u64) -> &'static str {
    let mut dice = Dice(seed);
    let effects = Effects::default();
    let agent = cast(seed, &effects);
    let mut again: BTreeMap<String, usize> = BTreeMap::new();
    let mut paused: Option<Paused> = None;
    for _ in 0..40 {
        let store = Arc::new(MemoryStore::default());
        let run = match paused.take() {
            Some(paused) => agent.resume(paused),
            None => agent.run("go").run_id("run"),
        };
        let run = run.store(store.clone()).concurrency(usize::try_from(1 + dice.roll(4)).expect("few"));
        let cancel = run.cancel_handle();
        let fate = dice.roll(6);
        let moment = Duration::from_millis(dice.roll(25));
        let ended = tokio::select! {
            biased;
            outcome = run.into_future() => Some(outcome),
            () = async {
                tokio::time::sleep(moment).await;
                match fate {
                    0 | 1 => return,
                    2 => cancel.now(),
                    3 => cancel.now_with(Approvals::Keep),
                    4 => cancel.after_turn(),
                    _ => {}
                }
                std::future::pending::<()>().await;
            } => None,
        };
        let (records, end) = match ended {
            // It was lost. What the store has is what there is.
            None => (stored(&*store, "run").await, None),
            Some(Ok(Outcome::Paused(waits))) => (waits.record().journal().to_vec(), None),
            Some(Ok(outcome)) => {
                let name = if matches!(outcome, Outcome::Finished(_)) { "finished" } else { "cancelled" };
                (outcome.record().journal().to_vec(), Some(name))
            }
            Some(Err(RunError::Failed(failed))) => (failed.record.journal().to_vec(), Some("failed")),
            Some(Err(error)) => panic!("seed {seed}: {error}"),
        };
        check_journal(&records);
        if let Some(end) = end {
            for (call, times) in &*effects.lock().expect("no body panics") {
                let allowed = 1 + again.get(call).copied().unwrap_or(0);
                assert!(*times <= allowed, "seed {seed}: `{call}` ran {times} times");
            }
            return end;
        }
        let mut waits = Paused::from_records(records).expect("the journal adds up");
        for pending in waits.pending() {
            let call = pending.path.clone();
            match (&pending.reason, dice.roll(4)) {
                (_, 0) => Ok(()),
                (HoldReason::InDoubt, 1) => waits.it_happened(call, "it did"),
                (HoldReason::InDoubt, 2) => {
                    *again.entry(call.to_string()).or_default() += 1;
                    waits.it_did_not_happen(call)
                }
                (HoldReason::InDoubt, _) => waits.nobody_knows(call),
                (_, 1) => waits.reject(call),
                (_, _) => waits.approve(call),
            }
            .expect("it waits");
        }
        paused = Some(through_text(&waits));
    }
    "undecided"
}

#[tokio::test(start_paused = true)]
async fn s50_every_call_has_its_output_whatever_happens_to_the_run() {
    let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 0..400 {
        *ends.entry(within(live(seed)).await).or_default() += 1;
    }
    // The lives are of all kinds, or else they show little.
    for end in ["finished", "cancelled", "failed"] {
        assert!(ends.get(end).is_some_and(|times| *times > 20), "{ends:?}");
    }
}

/// The session of runs that were cancelled, lost and failed is whole, too, whoever looks at it and when.
#[tokio::test(start_paused = true)]
async fn s50_a_session_is_whole_whatever_happens_to_its_runs() {
    for seed in 0..100 {
        let effects = Effects::default();
        let mut dice = Dice(seed);
        let session = Session::in_memory("s");
        for turn in 0..4 {
            // Call ids are a model's own, and the next run's may be the same: history tells them apart by place.
            let agent = cast(seed * 31 + turn, &effects);
            let run = agent.run("go").session(&session);
            let cancel = run.cancel_handle();
            let moment = Duration::from_millis(dice.roll(25));
            let is_lost = dice.roll(2) == 0;
            let _end = tokio::select! {
                outcome = run.into_future() => Some(outcome),
                () = async {
                    tokio::time::sleep(moment).await;
                    if !is_lost {
                        cancel.now();
                        std::future::pending::<()>().await;
                    }
                } => None,
            };
            check(&session.items().await.expect("memory can be read"));
        }
        assert!(!session.items().await.expect("memory can be read").is_empty());
    }
}

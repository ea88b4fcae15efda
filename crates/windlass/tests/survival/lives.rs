//! Random schedules of crashes, cancellations and decisions: every history stays complete: S50.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use windlass::core::{decision::HoldReason, id::CallId, journal::JournalRecord, run::Run};
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse};
use windlass::prelude::*;
use windlass::run::PendingApprovals;
use windlass::{
    core::item::Item, core::tool::ToolEffect, core::usage::Usage, error::RunError, store::MemoryStore,
    tool::OnFailure,
};

use crate::support::*;

/// A seeded pseudo-random generator.
#[derive(Clone)]
struct SeededDice(u64);

impl SeededDice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

const TOOL_NAMES: [&str; 8] = ["quick", "wait", "pure", "charge", "gated", "fails", "inside", "none"];

/// A model that makes random calls for some turns, and then finishes. Its responses depend only on the seed and
/// the turn, so a run that lost a response receives the same one again.
struct RandomCallModel {
    seed: u64,
    turns: u32,
    tools: &'static [&'static str],
}

impl Model for RandomCallModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        assert_history_complete(request.input);
        let turn = request.turn;
        let mut dice = SeededDice(self.seed ^ (u64::from(turn) << 32));
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
        Ok(ModelResponse { items, usage: Some(Usage::of_tokens(1, 1)), ..ModelResponse::default() })
    }
}

/// Asserts that every call in the input has exactly one output.
fn assert_history_complete(input: &[Arc<Item>]) {
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

/// Number of body executions of each at-most-once call.
type BodyCounts = Arc<Mutex<BTreeMap<String, usize>>>;

fn counting_tool(name: &'static str, effects: &BodyCounts) -> Tool {
    let effects = effects.clone();
    any_object_tool(name, move |ctx, arguments| {
        *effects.lock().expect("no body panics").entry(ctx.call_path().to_string()).or_default() += 1;
        async move {
            tokio::time::sleep(Duration::from_millis(arguments["ms"].as_u64().unwrap_or(0))).await;
            if name == "fails" { Err(ToolError::visible("no")) } else { Ok(format!("{name} done")) }
        }
    })
}

fn random_agent(seed: u64, effects: &BodyCounts) -> Agent {
    let none = BodyCounts::default();
    let inside = Agent::new("inside")
        .model(RandomCallModel { seed: seed ^ 0xabcd, turns: 2, tools: &TOOL_NAMES[..6] })
        .tools(random_tools(effects, &none, seed))
        .as_tool("inside", "An agent.");
    Agent::new("top")
        .model(RandomCallModel { seed, turns: 3, tools: &TOOL_NAMES })
        .tools(random_tools(effects, &none, seed).into_iter().chain([inside]).collect::<Vec<_>>())
}

fn random_tools(effects: &BodyCounts, free: &BodyCounts, seed: u64) -> Vec<Tool> {
    let fails = counting_tool("fails", effects);
    vec![
        counting_tool("quick", effects).timeout(Duration::from_millis(3)),
        counting_tool("wait", effects),
        counting_tool("pure", free).effect(ToolEffect::Pure),
        counting_tool("charge", free).effect(ToolEffect::Idempotent),
        counting_tool("gated", effects).needs_approval(),
        if seed.is_multiple_of(5) { fails.on_failure(OnFailure::FailRun) } else { fails },
    ]
}

/// Asserts that every state of the journal is complete, in the run and in its nested agents.
fn check_journal(records: &[JournalRecord]) {
    let paths: BTreeSet<&[CallId]> = records.iter().map(|record| record.path.as_slice()).collect();
    for path in paths {
        let own: Vec<JournalRecord> = records
            .iter()
            .filter(|record| record.path.starts_with(path))
            .enumerate()
            .map(|(at, record)| JournalRecord {
                seq: at as u64,
                path: record.path[path.len()..].to_vec(),
                ..record.clone()
            })
            .collect();
        for length in 1..=own.len() {
            assert_outputs_complete(&Run::replay(&own[..length]).expect("the journal adds up").run);
        }
    }
}

/// Drives, loses, cancels, decides and resumes one run until it ends. Returns its ending.
async fn drive_to_end(seed: u64) -> &'static str {
    let mut dice = SeededDice(seed);
    let effects = BodyCounts::default();
    let agent = random_agent(seed, &effects);
    let mut again: BTreeMap<String, usize> = BTreeMap::new();
    let mut paused: Option<PausedRun> = None;
    for _ in 0..40 {
        let store = Arc::new(MemoryStore::default());
        let run = match paused.take() {
            Some(paused) => agent.resume(paused),
            None => agent.run("go").run_id("run"),
        };
        let run =
            run.store(store.clone()).max_concurrent_calls(usize::try_from(1 + dice.roll(4)).expect("few"));
        let cancel = run.cancel_handle();
        let fate = dice.roll(6);
        let moment = Duration::from_millis(dice.roll(25));
        let ended = tokio::select! {
            biased;
            outcome = run => Some(outcome),
            () = async {
                tokio::time::sleep(moment).await;
                match fate {
                    0 | 1 => return,
                    2 => cancel.cancel(),
                    3 => cancel.cancel_with(PendingApprovals::Keep),
                    4 => cancel.cancel_after_turn(),
                    _ => {}
                }
                std::future::pending::<()>().await;
            } => None,
        };
        let (records, end) = match ended {
            // The driver was lost, so only the stored records remain.
            None => (stored_records(&*store, "run").await, None),
            Some(Ok(RunResult::Paused(waits))) => (waits.record().journal().to_vec(), None),
            Some(Ok(outcome)) => {
                let name = if matches!(outcome, RunResult::Finished(_)) { "finished" } else { "cancelled" };
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
        let mut waits = PausedRun::from_records(records).expect("the journal adds up");
        for pending in waits.pending_calls() {
            let call = pending.path.clone();
            match (&pending.reason, dice.roll(4)) {
                (_, 0) => Ok(()),
                (HoldReason::InDoubt, 1) => waits.confirm_executed(call, "it did"),
                (HoldReason::InDoubt, 2) => {
                    *again.entry(call.to_string()).or_default() += 1;
                    waits.confirm_not_executed(call)
                }
                (HoldReason::InDoubt, _) => waits.mark_outcome_unknown(call),
                (_, 1) => waits.reject(call),
                (_, _) => waits.approve(call),
            }
            .expect("it waits");
        }
        paused = Some(round_trip(&waits));
    }
    "undecided"
}

async fn s50_every_call_has_its_output_whatever_happens_to_the_run() {
    let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 0..400 {
        *ends.entry(with_timeout(drive_to_end(seed)).await).or_default() += 1;
    }
    // The test is only meaningful if the seeds reach all endings.
    for end in ["finished", "cancelled", "failed"] {
        assert!(ends.contains_key(end), "{ends:?}");
    }
}

/// The session of cancelled, lost and failed runs is complete at every point.
async fn s50_a_session_is_whole_whatever_happens_to_its_runs() {
    for seed in 0..100 {
        let effects = BodyCounts::default();
        let mut dice = SeededDice(seed);
        let session = Session::in_memory("s");
        for turn in 0..4 {
            // The next run may reuse call ids; the history distinguishes them by position.
            let agent = random_agent(seed * 31 + turn, &effects);
            let run = agent.run("go").session(&session);
            let cancel = run.cancel_handle();
            let moment = Duration::from_millis(dice.roll(25));
            let is_lost = dice.roll(2) == 0;
            let _end = tokio::select! {
                outcome = run => Some(outcome),
                () = async {
                    tokio::time::sleep(moment).await;
                    if !is_lost {
                        cancel.cancel();
                        std::future::pending::<()>().await;
                    }
                } => None,
            };
            assert_history_complete(&session.items().await.expect("memory can be read"));
        }
        assert!(!session.items().await.expect("memory can be read").is_empty());
    }
}

on_both_runtimes! {
    paused_clock:
        s50_every_call_has_its_output_whatever_happens_to_the_run,
        s50_a_session_is_whole_whatever_happens_to_its_runs;
}

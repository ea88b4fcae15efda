//! Large numbers of calls, turns and runs: S10. These tests check correctness; the benchmarks count
//! instructions to show that the cost per call stays constant.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse};
use windlass::prelude::*;
use windlass::{core::item::Item, core::usage::Usage};

use crate::support::*;

/// A model that makes `width` calls in each of `turns` turns, and then finishes.
struct BusyModel {
    calls_per_turn: usize,
    turns: u32,
}

impl Model for BusyModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let turn = request.turn;
        let calls = 2 * self.calls_per_turn * (turn as usize - 1);
        assert_eq!(request.input.len(), calls + 1, "every call so far stands there with its output");
        let items = if turn > self.turns {
            vec![Arc::new(Item::assistant("done"))]
        } else {
            let call = |at| {
                Item::call(format!("{turn}-{at}"), "count", json!({ "turn": turn, "at": at }).to_string())
            };
            (0..self.calls_per_turn).map(|at| Arc::new(call(at))).collect()
        };
        Ok(ModelResponse { items, usage: Some(Usage::of_tokens(1, 1)), ..ModelResponse::default() })
    }
}

fn counting_tool(bodies: &Arc<AtomicUsize>) -> Tool {
    let bodies = bodies.clone();
    any_object_tool("count", move |ctx, _| {
        bodies.fetch_add(1, Ordering::SeqCst);
        async move { Ok(ctx.call_id().to_owned()) }
    })
}

async fn check_volume(width: usize, turns: u32, tool: impl Fn(&Arc<AtomicUsize>) -> Tool) {
    let bodies = Arc::default();
    let agent = Agent::new("busy").model(BusyModel { calls_per_turn: width, turns }).tools(tool(&bodies));
    let outcome = with_timeout(async { agent.run("go").unlimited_turns().await }).await.expect("it finishes");
    assert_eq!(outcome.output_text().expect("the run finished"), "done");
    assert_eq!(bodies.load(Ordering::SeqCst), width * turns as usize);
    let history = outcome.record().history();
    let outputs: Vec<String> = history
        .iter()
        .filter_map(|item| match &**item {
            Item::Output(output) => Some(format!("{} {}", output.call, output.content.text())),
            _ => None,
        })
        .collect();
    let order = (1..=turns).flat_map(|turn| (0..width).map(move |at| format!("{turn}-{at} {turn}-{at}")));
    assert_eq!(outputs, order.collect::<Vec<_>>());
    assert_outputs_complete(outcome.record().state());
    let text = outcome.record().to_text();
    assert_eq!(
        windlass::core::journal::decode_journal(&text).expect("can be read"),
        outcome.record().journal()
    );
}

async fn s10_ten_thousand_calls_in_one_turn() {
    check_volume(10_000, 1, counting_tool).await;
}

async fn s10_two_thousand_turns_of_one_call() {
    check_volume(1, 2_000, counting_tool).await;
}

async fn s10_ten_thousand_calls_that_conflict() {
    let one_by_one = |bodies: &Arc<AtomicUsize>| {
        counting_tool(bodies).conflict_key(|_: &serde_json::Value| "all".to_owned())
    };
    check_volume(10_000, 1, one_by_one).await;
}

async fn s10_ten_thousand_calls_are_cancelled() {
    let begun = Arc::new(AtomicUsize::default());
    let noted = begun.clone();
    let agent = Agent::new("busy").model(BusyModel { calls_per_turn: 10_000, turns: 1 }).tools(
        any_object_tool("count", move |_, _| {
            noted.fetch_add(1, Ordering::SeqCst);
            std::future::pending()
        }),
    );
    let run = agent.run("go");
    let cancel = run.cancel_handle();
    let (outcome, ()) = with_timeout(async {
        tokio::join!(run, async {
            wait_until(|| begun.load(Ordering::SeqCst) > 1_000).await;
            cancel.cancel();
        })
    })
    .await;
    let Ok(RunResult::Cancelled(cancelled)) = outcome else { panic!("it was cancelled: {outcome:?}") };
    let all = cancelled.settlement.in_doubt.len() + cancelled.settlement.stopped.len();
    assert_eq!(all, 10_000);
    assert_outputs_complete(cancelled.record.state());
}

async fn s10_ten_thousand_runs_at_once() {
    let bodies = Arc::default();
    let agent =
        Agent::new("busy").model(BusyModel { calls_per_turn: 1, turns: 1 }).tools(counting_tool(&bodies));
    let runs = (0..10_000).map(|_| {
        let run = agent.run("go");
        async move { run.await.map(|outcome| outcome.output_text().expect("the run finished").to_owned()) }
    });
    let ends: Vec<String> =
        with_timeout(futures_util::future::join_all(runs)).await.into_iter().flatten().collect();
    assert_eq!(ends, vec!["done"; 10_000]);
    assert_eq!(bodies.load(Ordering::SeqCst), 10_000);
}

on_both_runtimes! {
    real_clock:
        s10_ten_thousand_calls_are_cancelled,
        s10_ten_thousand_calls_in_one_turn,
        s10_two_thousand_turns_of_one_call,
        s10_ten_thousand_calls_that_conflict,
        s10_ten_thousand_runs_at_once;
}

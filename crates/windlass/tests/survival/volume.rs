//! Many calls: S10. That the cost of a call stays flat is shown by counting instructions, elsewhere; here, that
//! nothing breaks.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use windlass::model::{Answer, Deltas, Model, ModelError, ModelRequest};
use windlass::prelude::*;
use windlass::{Item, Usage};

use crate::support::*;

/// Makes `width` calls in each of `turns` turns, and then is done.
struct Busy {
    width: usize,
    turns: u32,
}

impl Model for Busy {
    async fn answer<'a>(&'a self, request: ModelRequest<'a>, _: &'a Deltas) -> Result<Answer, ModelError> {
        let turn = request.turn;
        let calls = 2 * self.width * (turn as usize - 1);
        assert_eq!(request.input.len(), calls + 1, "every call so far stands there with its output");
        let items = if turn > self.turns {
            vec![Arc::new(Item::assistant("done"))]
        } else {
            let call = |at| {
                Item::call(format!("{turn}-{at}"), "count", json!({ "turn": turn, "at": at }).to_string())
            };
            (0..self.width).map(|at| Arc::new(call(at))).collect()
        };
        Ok(Answer { items, usage: Some(Usage::tokens(1, 1)), ..Answer::default() })
    }
}

fn counter(bodies: &Arc<AtomicUsize>) -> Tool {
    let bodies = bodies.clone();
    tool("count", move |ctx, _| {
        bodies.fetch_add(1, Ordering::SeqCst);
        async move { Ok(ctx.call_id().to_owned()) }
    })
}

async fn check(width: usize, turns: u32, tool: impl Fn(&Arc<AtomicUsize>) -> Tool) {
    let bodies = Arc::default();
    let agent = Agent::new("busy").model(Busy { width, turns }).tools(tool(&bodies));
    let outcome = within(async { agent.run("go").unlimited_turns().await }).await.expect("it finishes");
    assert_eq!(outcome.text(), "done");
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
    assert_whole(outcome.record().state());
    let text = outcome.record().to_text();
    assert_eq!(windlass::core::from_text(&text).expect("can be read"), outcome.record().journal());
}

#[tokio::test]
async fn s10_ten_thousand_calls_in_one_turn() {
    check(10_000, 1, counter).await;
}

#[tokio::test]
async fn s10_two_thousand_turns_of_one_call() {
    check(1, 2_000, counter).await;
}

#[tokio::test]
async fn s10_ten_thousand_calls_that_conflict() {
    let one_by_one =
        |bodies: &Arc<AtomicUsize>| counter(bodies).conflict(|_: &serde_json::Value| "all".to_owned());
    check(10_000, 1, one_by_one).await;
}

#[tokio::test]
async fn s10_ten_thousand_calls_are_cancelled() {
    let agent = Agent::new("busy")
        .model(Busy { width: 10_000, turns: 1 })
        .tools(tool("count", |_, _| std::future::pending()));
    let run = agent.run("go");
    let cancel = run.cancel_handle();
    let (outcome, ()) = within(async {
        tokio::join!(run.into_future(), async {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            cancel.now();
        })
    })
    .await;
    let Ok(Outcome::Cancelled(cancelled)) = outcome else { panic!("it was cancelled: {outcome:?}") };
    let all = cancelled.settlement.in_doubt.len() + cancelled.settlement.stopped.len();
    assert_eq!(all, 10_000);
    assert_whole(cancelled.record.state());
}

#[tokio::test]
async fn s10_ten_thousand_runs_at_once() {
    let bodies = Arc::default();
    let agent = Agent::new("busy").model(Busy { width: 1, turns: 1 }).tools(counter(&bodies));
    let runs = (0..10_000).map(|_| {
        let run = agent.run("go");
        async move { run.await.map(|outcome| outcome.text().to_owned()) }
    });
    let ends: Vec<String> =
        within(futures_util::future::join_all(runs)).await.into_iter().flatten().collect();
    assert_eq!(ends, vec!["done"; 10_000]);
    assert_eq!(bodies.load(Ordering::SeqCst), 10_000);
}

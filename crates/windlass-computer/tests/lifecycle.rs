//! Whose computer it is, how long it is there, and what a crash leaves.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

#[path = "support/paper.rs"]
mod paper;
mod support;

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use paper::{Paper, Stack, agent, call, checked, click, output, pictures};
use serde_json::json;
use windlass::model::{Reply, ScriptedModel};
use windlass::store::{MemoryStore, Store};
use windlass::{Agent, EventKind, Outcome};
use windlass_computer::{Browser, BrowserOptions, ComputerTool, InDoubt, OnPause};

#[tokio::test]
async fn a_run_disposes_of_the_computer_that_it_made() {
    let stack = Stack::default();
    let tool = ComputerTool::made_by(stack.clone());
    let (ends, _) =
        agent(&tool, [call("c1", json!([click(1, 1)])), call("c2", json!([click(2, 2)])), Reply::text("ok")]);
    ends.run("go").await.expect("the run ends");
    assert_eq!(stack.counts(), (1, 1), "one for the whole run");
    let (fails, _) = agent(&tool, [call("c1", json!([click(1, 1)]))]);
    fails.run("go").await.expect_err("the script is over");
    assert_eq!(stack.counts(), (2, 2));
    let (idle, _) = agent(&tool, [Reply::text("ok")]);
    idle.run("go").await.expect("the run ends");
    assert_eq!(stack.counts(), (2, 2), "a run that does not use it makes none");

    // Two runs at once have two.
    let (first, _) = agent(&tool, [call("c1", json!([click(1, 1)])), Reply::text("ok")]);
    let (second, _) = agent(&tool, [call("c1", json!([click(1, 1)])), Reply::text("ok")]);
    let (first, second) = tokio::join!(first.run("go").into_future(), second.run("go").into_future());
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(stack.counts(), (4, 4));

    // One that is cancelled in the middle of an action.
    let hanging = Stack { paper: Paper { hangs: true, ..Paper::default() }, ..Stack::default() };
    let (hangs, _) = agent(&ComputerTool::made_by(hanging.clone()), [call("c1", json!([click(1, 1)]))]);
    let run = hangs.run("go");
    let cancel = run.cancel_handle();
    let (outcome, ()) = tokio::join!(run.into_future(), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        cancel.now();
    });
    let Outcome::Cancelled(cancelled) = outcome.expect("the run settles") else { panic!("cancelled") };
    assert_eq!(cancelled.settlement.in_doubt.len(), 1, "the click may have happened");
    assert_eq!(hanging.counts(), (1, 1));
}

#[tokio::test]
async fn a_computer_is_disposed_of_where_something_breaks_or_nobody_waits_any_more() {
    // The computer panics: that is the call's failure, and the run goes on with it.
    let stack = Stack::default();
    let breaks = json!([{ "type": "type", "text": "panic" }]);
    let tool = ComputerTool::made_by(stack.clone());
    let (panics, _) = agent(&tool, [call("c1", breaks), call("c2", json!([click(1, 1)])), Reply::text("ok")]);
    let outcome = panics.run("go").await.expect("the run ends");
    assert_eq!(outcome.text(), "ok");
    assert_eq!((stack.counts(), stack.paper.lines().len()), ((1, 1), 1));

    // Whoever drove the run is gone in the middle of an action.
    let stack = Stack { paper: Paper { hangs: true, ..Paper::default() }, ..Stack::default() };
    let (hangs, _) = agent(&ComputerTool::made_by(stack.clone()), [call("c1", json!([click(1, 1)]))]);
    let driving = tokio::spawn(hangs.run("go").into_future());
    assert!(support::soon(async || !stack.paper.lines().is_empty()).await, "it is in the middle");
    driving.abort();
    assert!(driving.await.expect_err("it was dropped").is_cancelled());
    assert!(support::soon(async || stack.counts() == (1, 1)).await, "{:?}", stack.counts());
}

#[tokio::test]
async fn without_a_browser_the_operator_is_told_what_to_install_and_the_model_is_not() {
    let options = BrowserOptions { program: Some("/nowhere/chromium".into()), ..BrowserOptions::default() };
    let tool = ComputerTool::made_by(Browser::provider(options));
    let (agent, _) = agent(&tool, [call("c1", json!([click(1, 1)])), Reply::text("no browser")]);
    let mut stream = agent.run("go").stream();
    let mut warnings = Vec::new();
    while let Some(event) = stream.next().await {
        if let EventKind::Warning { message } = event.kind {
            warnings.push(message);
        }
    }
    let outcome = stream.outcome().await.expect("the run ends");
    assert!(warnings.join("\n").contains("apt-get install chromium"), "{warnings:?}");
    assert!(!output(&outcome, "c1").text().contains("/nowhere"));
}

#[tokio::test]
async fn a_paused_run_keeps_its_computer_or_gets_a_new_one() {
    for (on_pause, while_paused, at_end) in [
        (OnPause::Dispose, (1, 1), (2, 2)),
        (OnPause::KeepFor(Duration::from_secs(60)), (1, 0), (1, 1)),
        (OnPause::KeepFor(Duration::ZERO), (1, 1), (2, 2)),
    ] {
        let stack = Stack::default();
        let tool = ComputerTool::made_by(stack.clone()).on_pause(on_pause);
        let (agent, _) = agent(&tool, [call("c1", json!([click(1, 1)])), checked("c2"), Reply::text("ok")]);
        let mut paused = agent.run("go").await.expect("the run pauses").paused().expect("it waits");
        support::soon(async || stack.counts() == while_paused).await;
        assert_eq!(stack.counts(), while_paused, "{on_pause:?}");
        paused.approve("c2").expect("a person approves");
        agent.resume(paused).await.expect("the run ends");
        assert_eq!(stack.counts(), at_end, "{on_pause:?}");
        assert_eq!(stack.paper.lines().len(), 2);
    }
}

/// The process ended after the start of a call was written: that is what its journal says.
async fn crashed_in_the_middle(tool: &ComputerTool, paper: &Paper) -> (Agent, ScriptedModel, Arc<dyn Store>) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let (agent, model) = agent(tool, [call("c1", json!([click(7, 7)])), Reply::text("done")]);
    let run = agent.run("go").store(store.clone()).run_id("crash").drain(Duration::from_millis(20));
    let handle = run.cancel_handle();
    // Handing over leaves a call that does not end as started, as a crash would.
    let (outcome, ()) = tokio::join!(run.into_future(), async {
        support::soon(async || !paper.lines().is_empty()).await;
        handle.hand_over();
    });
    assert!(matches!(outcome, Ok(Outcome::HandedOver(_))), "{outcome:?}");
    (agent, model, store)
}

#[tokio::test]
async fn a_click_that_was_interrupted_is_never_clicked_again_blindly() {
    let paper = Paper { hangs: true, ..Paper::default() };
    let tool = ComputerTool::given(Arc::new(paper.clone()));
    let (agent, _, store) = crashed_in_the_middle(&tool, &paper).await;
    let recovered = agent.recover("crash", store).await.expect("it is recovered");
    let mut paused = recovered.paused().expect("a person must say");
    assert_eq!(paper.lines().len(), 1, "nobody clicked again");
    paused.it_happened("c1", "it was clicked").expect("a person says so");
    assert_eq!(agent.resume(paused).await.expect("the run ends").text(), "done");
    assert_eq!(paper.lines().len(), 1);
}

#[tokio::test]
async fn or_the_model_is_shown_the_screen_and_told_that_nobody_knows() {
    let paper = Paper { hangs: true, ..Paper::default() };
    let tool = ComputerTool::given(Arc::new(paper.clone())).in_doubt(InDoubt::ShowModel);
    let (agent, model, store) = crashed_in_the_middle(&tool, &paper).await;
    let outcome = agent.recover("crash", store).await.expect("the run ends");
    assert_eq!(outcome.text(), "done");
    assert_eq!(paper.lines().len(), 1, "nobody clicked again");
    assert!(output(&outcome, "c1").text().contains("is not done again"));
    assert_eq!(pictures(&model.requests()[1].input), 1);
}

#[tokio::test]
async fn the_limit_outlasts_the_process() {
    let paper = Paper::default();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    // Another process has another tool, which knows nothing but what the store does.
    let tool = || ComputerTool::given(Arc::new(paper.clone())).limit(3);
    let (first, _) = agent(&tool(), [call("c1", json!([click(1, 1), click(2, 2)])), checked("c2")]);
    let mut paused =
        first.run("go").store(store.clone()).await.expect("the run pauses").paused().expect("it waits");
    paused.approve("c2").expect("a person approves");
    let (second, _) = agent(&tool(), [call("c3", json!([click(3, 3)])), Reply::text("done")]);
    let outcome = second.resume(paused).store(store).await.expect("the run ends");
    assert_eq!(paper.lines().len(), 3);
    assert!(output(&outcome, "c3").text().contains("may take 3 actions and has taken 3"));
}

//! Lifecycle of a run's computer: creation, sharing, disposal, and the state after a crash.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

#[path = "support/paper.rs"]
mod paper;
mod support;

use std::sync::Arc;
use std::time::Duration;

use paper::{
    RecordingComputer, RecordingComputerProvider, agent_with_tool, call_with_safety_check, click_action,
    computer_call, image_count, output_of,
};
use serde_json::json;
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::store::{MemoryStore, Store};
use windlass::{agent::Agent, event::RunEventKind, run::RunResult};
use windlass_computer::{Browser, BrowserOptions, ComputerTool, InDoubtPolicy, PausePolicy};

#[tokio::test]
async fn a_run_disposes_of_the_computer_that_it_made() {
    let stack = RecordingComputerProvider::default();
    let tool = ComputerTool::with_provider(stack.clone());
    let (ends, _) = agent_with_tool(
        &tool,
        [
            computer_call("c1", json!([click_action(1, 1)])),
            computer_call("c2", json!([click_action(2, 2)])),
            ScriptedResponse::text("ok"),
        ],
    );
    ends.run("go").await.expect("the run ends");
    assert_eq!(stack.counts(), (1, 1), "one for the whole run");
    let (fails, _) = agent_with_tool(&tool, [computer_call("c1", json!([click_action(1, 1)]))]);
    fails.run("go").await.expect_err("the script is over");
    assert_eq!(stack.counts(), (2, 2));
    let (idle, _) = agent_with_tool(&tool, [ScriptedResponse::text("ok")]);
    idle.run("go").await.expect("the run ends");
    assert_eq!(stack.counts(), (2, 2), "a run that does not use it makes none");

    // Two concurrent runs have two computers.
    let (first, _) = agent_with_tool(
        &tool,
        [computer_call("c1", json!([click_action(1, 1)])), ScriptedResponse::text("ok")],
    );
    let (second, _) = agent_with_tool(
        &tool,
        [computer_call("c1", json!([click_action(1, 1)])), ScriptedResponse::text("ok")],
    );
    let (first, second) = tokio::join!(first.run("go"), second.run("go"));
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(stack.counts(), (4, 4));

    // A run that is cancelled in the middle of an action.
    let hanging = RecordingComputerProvider {
        computer: RecordingComputer { hangs: true, ..RecordingComputer::default() },
        ..RecordingComputerProvider::default()
    };
    let (hangs, _) = agent_with_tool(
        &ComputerTool::with_provider(hanging.clone()),
        [computer_call("c1", json!([click_action(1, 1)]))],
    );
    let run = hangs.run("go");
    let cancel = run.cancel_handle();
    let (outcome, ()) = tokio::join!(run, async {
        let begun = support::poll_until(async || !hanging.computer.operations().is_empty());
        assert!(begun.await, "it is in the middle");
        cancel.cancel();
    });
    let RunResult::Cancelled(cancelled) = outcome.expect("the run settles") else { panic!("cancelled") };
    assert_eq!(cancelled.settlement.in_doubt.len(), 1, "the click may have happened");
    assert_eq!(hanging.counts(), (1, 1));
}

#[tokio::test]
async fn a_computer_is_disposed_of_where_something_breaks_or_nobody_waits_any_more() {
    // A panic of the computer fails the computer_call, and the run continues.
    let stack = RecordingComputerProvider::default();
    let breaks = json!([{ "type": "type", "text": "panic" }]);
    let tool = ComputerTool::with_provider(stack.clone());
    let (panics, _) = agent_with_tool(
        &tool,
        [
            computer_call("c1", breaks),
            computer_call("c2", json!([click_action(1, 1)])),
            ScriptedResponse::text("ok"),
        ],
    );
    let outcome = panics.run("go").await.expect("the run ends");
    assert_eq!(outcome.output_text().expect("the run finished"), "ok");
    assert_eq!((stack.counts(), stack.computer.operations().len()), ((1, 1), 1));

    // The driver is dropped in the middle of an action.
    let stack = RecordingComputerProvider {
        computer: RecordingComputer { hangs: true, ..RecordingComputer::default() },
        ..RecordingComputerProvider::default()
    };
    let (hangs, _) = agent_with_tool(
        &ComputerTool::with_provider(stack.clone()),
        [computer_call("c1", json!([click_action(1, 1)]))],
    );
    let driving = tokio::spawn(hangs.run("go"));
    assert!(
        support::poll_until(async || !stack.computer.operations().is_empty()).await,
        "it is in the middle"
    );
    driving.abort();
    assert!(driving.await.expect_err("it was dropped").is_cancelled());
    assert!(support::poll_until(async || stack.counts() == (1, 1)).await, "{:?}", stack.counts());
}

#[tokio::test]
async fn without_a_browser_the_operator_is_told_what_to_install_and_the_model_is_not() {
    let options = BrowserOptions { program: Some("/nowhere/chromium".into()), ..BrowserOptions::default() };
    let tool = ComputerTool::with_provider(Browser::provider(options));
    let (agent_with_tool, _) = agent_with_tool(
        &tool,
        [computer_call("c1", json!([click_action(1, 1)])), ScriptedResponse::text("no browser")],
    );
    let mut stream = agent_with_tool.run("go").stream();
    let mut warnings = Vec::new();
    while let Some(event) = stream.next().await {
        if let RunEventKind::Warning { message } = event.kind {
            warnings.push(message);
        }
    }
    let outcome = stream.result().await.expect("the run ends");
    assert!(warnings.join("\n").contains("apt-get install chromium"), "{warnings:?}");
    assert!(!output_of(&outcome, "c1").text().contains("/nowhere"));
}

#[tokio::test]
async fn a_paused_run_keeps_its_computer_or_gets_a_new_one() {
    for (on_pause, while_paused, at_end, clicks) in [
        (PausePolicy::default(), (1, 0), (1, 1), 2),
        (PausePolicy::KeepFor(Duration::from_secs(60)), (1, 0), (1, 1), 2),
        // A computer that is gone takes with it the screen that the click was approved for.
        (PausePolicy::Dispose, (1, 1), (2, 2), 1),
        (PausePolicy::KeepFor(Duration::ZERO), (1, 1), (2, 2), 1),
    ] {
        let stack = RecordingComputerProvider::default();
        let tool = ComputerTool::with_provider(stack.clone()).on_pause(on_pause);
        let (agent_with_tool, _) = agent_with_tool(
            &tool,
            [
                computer_call("c1", json!([click_action(1, 1)])),
                call_with_safety_check("c2"),
                ScriptedResponse::text("ok"),
            ],
        );
        let mut paused =
            agent_with_tool.run("go").await.expect("the run pauses").into_paused().expect("it waits");
        support::poll_until(async || stack.counts() == while_paused).await;
        assert_eq!(stack.counts(), while_paused, "{on_pause:?}");
        // A call that waits for weeks does not hold the computer and its pictures.
        let is_kept = while_paused.1 == 0;
        let holds =
            || stack.last.lock().expect("no panic").as_ref().is_some_and(|last| last.strong_count() > 0);
        assert!(support::poll_until(async || holds() == is_kept).await, "{on_pause:?}");
        paused.approve("c2").expect("a person approves");
        let outcome = agent_with_tool.resume(paused).await.expect("the run ends");
        assert_eq!(stack.counts(), at_end, "{on_pause:?}");
        assert_eq!(stack.computer.operations().len(), clicks, "{on_pause:?}");
        let told = output_of(&outcome, "c2").text().into_owned();
        assert_eq!(told.contains("replaced by a new one"), clicks == 1, "{told}");
    }
}

/// Returns the journal of a run whose process ended after the start of a call was written.
async fn journal_of_crashed_run(
    tool: &ComputerTool,
    paper: &RecordingComputer,
) -> (Agent, ScriptedModel, Arc<dyn Store>) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let (agent_with_tool, model) = agent_with_tool(
        tool,
        [computer_call("c1", json!([click_action(7, 7)])), ScriptedResponse::text("done")],
    );
    let run = agent_with_tool
        .run("go")
        .store(store.clone())
        .run_id("crash")
        .drain_timeout(Duration::from_millis(20));
    let handle = run.cancel_handle();
    // Detaching from the run leaves its unfinished call as started, as a crash would.
    let (outcome, ()) = tokio::join!(run, async {
        support::poll_until(async || !paper.operations().is_empty()).await;
        handle.detach();
    });
    assert!(matches!(outcome, Ok(RunResult::Detached(_))), "{outcome:?}");
    (agent_with_tool, model, store)
}

#[tokio::test]
async fn a_click_that_was_interrupted_is_never_clicked_again_blindly() {
    let paper = RecordingComputer { hangs: true, ..RecordingComputer::default() };
    let tool = ComputerTool::with_computer(Arc::new(paper.clone()));
    let (agent_with_tool, _, store) = journal_of_crashed_run(&tool, &paper).await;
    let recovered = agent_with_tool.recover("crash", store).await.expect("it is recovered");
    let mut paused = recovered.into_paused().expect("a person must say");
    assert_eq!(paper.operations().len(), 1, "nobody clicked again");
    paused.confirm_executed("c1", "it was clicked").expect("a person says so");
    assert_eq!(
        agent_with_tool.resume(paused).await.expect("the run ends").output_text().expect("the run finished"),
        "done"
    );
    assert_eq!(paper.operations().len(), 1);
}

#[tokio::test]
async fn or_the_model_is_shown_the_screen_and_told_that_nobody_knows() {
    let paper = RecordingComputer { hangs: true, ..RecordingComputer::default() };
    let tool =
        ComputerTool::with_computer(Arc::new(paper.clone())).in_doubt_policy(InDoubtPolicy::ShowScreen);
    // The notice of the computer is `a note`.
    let tool = tool.secret("word", "note");
    let (agent_with_tool, model, store) = journal_of_crashed_run(&tool, &paper).await;
    let outcome = agent_with_tool.recover("crash", store).await.expect("the run ends");
    let told = output_of(&outcome, "c1").text().into_owned();
    assert!(told.contains("a [secret]") && !told.contains("note"), "{told}");
    assert_eq!(outcome.output_text().expect("the run finished"), "done");
    assert_eq!(paper.operations().len(), 1, "nobody clicked again");
    assert!(output_of(&outcome, "c1").text().contains("is not done again"));
    assert_eq!(image_count(&model.requests()[1].input), 1);
}

#[tokio::test]
async fn the_limit_outlasts_the_process() {
    let paper = RecordingComputer::default();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    // Another process has another tool, which knows only the contents of the store.
    let tool = || ComputerTool::with_computer(Arc::new(paper.clone())).max_actions(3);
    let (first, _) = agent_with_tool(
        &tool(),
        [computer_call("c1", json!([click_action(1, 1), click_action(2, 2)])), call_with_safety_check("c2")],
    );
    let mut paused =
        first.run("go").store(store.clone()).await.expect("the run pauses").into_paused().expect("it waits");
    paused.approve("c2").expect("a person approves");
    let (second, _) = agent_with_tool(
        &tool(),
        [
            computer_call("c3", json!([click_action(3, 3)])),
            computer_call("c4", json!([click_action(4, 4)])),
            ScriptedResponse::text("done"),
        ],
    );
    let outcome = second.resume(paused).store(store).await.expect("the run ends");
    let approved = output_of(&outcome, "c2").text().into_owned();
    assert!(approved.contains("the screen of another process"), "it is not clicked blindly: {approved}");
    assert_eq!(paper.operations().len(), 3);
    assert!(output_of(&outcome, "c4").text().contains("may take 3 actions and has taken 3"));
}

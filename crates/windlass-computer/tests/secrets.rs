//! Secrets that are typed reach the page and nothing else.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

#[path = "support/paper.rs"]
mod paper;
mod support;

use std::sync::{Arc, Mutex};

use paper::{
    RecordingComputer, agent_with_tool, call_with_safety_check, click_action, computer_call, output_of,
};
use serde_json::json;
use support::{TestPageServer, start_browser};
use windlass::model::ScriptedResponse;
use windlass::store::{MemoryStore, Store};
use windlass_computer::{
    ActionVerdict, BrowserOptions, Computer, ComputerAction, ComputerSecret, ComputerTool, ScreenRecording,
};

const PASSWORD: &str = "correct horse";

#[tokio::test]
async fn a_secret_is_typed_by_its_name_and_written_down_nowhere() {
    let pages = TestPageServer::serve().await;
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    browser.navigate(&pages.url("form.html")).await.expect("the page opens");
    let browser = Arc::new(browser);
    let judged: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = judged.clone();
    let tool = ComputerTool::with_computer(browser.clone())
        .secret("password", ComputerSecret::new(PASSWORD).only_on(["127.0.0.1"]))
        .secret("other", ComputerSecret::new("elsewhere").only_on(["example.org"]))
        .review_actions(move |proposed| {
            if let ComputerAction::TypeText { text } = &proposed.action {
                seen.lock().expect("no panic").push(text.clone());
            }
            async { ActionVerdict::Allow }
        });
    let typed = |text: &str| json!([click_action(100, 55), { "type": "type", "text": text }]);
    let replies = [
        computer_call("c1", typed("me:{{secret:password}}!")),
        computer_call("c2", typed("{{secret:other}}")),
        computer_call("c3", typed("{{secret:nothing}}")),
        // The page echoes its input.
        computer_call("c4", json!([{ "type": "keypress", "keys": ["F9"] }])),
        computer_call("c5", json!([click_action(100, 205)])),
        ScriptedResponse::text("done"),
    ];
    browser
        .evaluate(
            r#"onkeydown = event => { if (event.key === "F9") alert(document.forms[0].name.value) }; 1"#,
        )
        .await
        .expect("it is wired");
    let (agent_with_tool, model) = agent_with_tool(&tool, replies);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let outcome = agent_with_tool.run("Sign in").store(store.clone()).await.expect("the run ends");
    assert_eq!(judged.lock().expect("no panic")[0], "me:{{secret:password}}!");
    assert_eq!(browser.evaluate("1").await.ok(), None, "the page shows its dialog");
    browser.answer_dialog(windlass_computer::DialogAnswer::Accept, None).await.expect("it is answered");
    let there = browser.evaluate("document.forms[0].elements.name.value").await.expect("a value");
    assert_eq!(there, format!("me:{PASSWORD}!"), "the page has it, and only what may be typed there");
    let elsewhere = output_of(&outcome, "c2").text().into_owned();
    assert!(elsewhere.contains("the secret `other` is not typed here"), "{elsewhere}");
    let unknown = output_of(&outcome, "c3").text().into_owned();
    assert!(unknown.contains("no secret `nothing`") && unknown.contains("{{secret:password}}"), "{unknown}");
    let said = output_of(&outcome, "c4").text().into_owned();
    assert!(said.contains("me:[secret]!"), "{said}");
    let film = ScreenRecording::from_journal(outcome.record().journal(), Some(&*store))
        .await
        .expect("the store answers");
    let asked =
        format!("{:?}", model.requests().iter().map(|request| request.input.clone()).collect::<Vec<_>>());
    for kept in [
        outcome.record().to_text(),
        film.to_html("Film"),
        asked,
        format!("{:?}", ComputerSecret::new(PASSWORD)),
    ] {
        assert!(!kept.contains(PASSWORD), "it is written down");
    }
    browser.close().await;
}

#[tokio::test]
async fn what_the_model_types_itself_can_be_left_out_of_the_journal() {
    let paper = RecordingComputer::default();
    let tool = ComputerTool::with_computer(Arc::new(paper.clone())).redact_typed_text();
    let anthropic = ScriptedResponse::call("c2", "computer", json!({ "action": "type", "text": PASSWORD }));
    let ours = computer_call("c1", json!([click_action(1, 1), { "type": "type", "text": PASSWORD }]));
    let (agent_with_tool, _) = agent_with_tool(
        &tool,
        [ours, anthropic, call_with_safety_check("c3"), ScriptedResponse::text("done")],
    );
    let mut paused =
        agent_with_tool.run("go").await.expect("the run pauses").into_paused().expect("it waits");
    assert_eq!(
        paper.operations(),
        ["click (1, 1) 1".to_owned(), format!("type {PASSWORD}"), format!("type {PASSWORD}")]
    );
    let text = paused.to_text();
    assert!(!text.contains(PASSWORD) && text.contains("[secret]"), "{text}");
    assert!(text.contains(r#"\"type\":\"click\""#), "what else was done is there");
    paused.approve("c3").expect("a person approves");
    agent_with_tool.resume(paused).await.expect("the run ends");
}

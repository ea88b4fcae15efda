//! What is typed and must not last: it reaches the page, and nothing else.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

#[path = "support/paper.rs"]
mod paper;
mod support;

use std::sync::{Arc, Mutex};

use paper::{Paper, agent, call, checked, click, output};
use serde_json::json;
use support::{Pages, browser};
use windlass::model::Reply;
use windlass::store::{MemoryStore, Store};
use windlass_computer::{Action, BrowserOptions, Computer, ComputerTool, Film, Judged, Secret};

const PASSWORD: &str = "correct horse";

#[tokio::test]
async fn a_secret_is_typed_by_its_name_and_written_down_nowhere() {
    let pages = Pages::serve().await;
    let Some(browser) = browser(BrowserOptions::default()).await else { return };
    browser.navigate(&pages.url("form.html")).await.expect("the page opens");
    let browser = Arc::new(browser);
    let judged: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = judged.clone();
    let tool = ComputerTool::given(browser.clone())
        .secret("password", Secret::new(PASSWORD).only_on(["127.0.0.1"]))
        .secret("other", Secret::new("elsewhere").only_on(["example.org"]))
        .judge(move |proposed| {
            if let Action::Type { text } = &proposed.action {
                seen.lock().expect("no panic").push(text.clone());
            }
            async { Judged::Allow }
        });
    let typed = |text: &str| json!([click(100, 55), { "type": "type", "text": text }]);
    let replies = [
        call("c1", typed("me:{{secret:password}}!")),
        call("c2", typed("{{secret:other}}")),
        call("c3", typed("{{secret:nothing}}")),
        // The page says what it was told.
        call("c4", json!([{ "type": "keypress", "keys": ["F9"] }])),
        call("c5", json!([click(100, 205)])),
        Reply::text("done"),
    ];
    browser
        .evaluate(
            r#"onkeydown = event => { if (event.key === "F9") alert(document.forms[0].name.value) }; 1"#,
        )
        .await
        .expect("it is wired");
    let (agent, model) = agent(&tool, replies);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let outcome = agent.run("Sign in").store(store.clone()).await.expect("the run ends");
    assert_eq!(judged.lock().expect("no panic")[0], "me:{{secret:password}}!");
    assert_eq!(browser.evaluate("1").await.ok(), None, "the page shows its dialog");
    browser.answer_dialog(windlass_computer::Answer::Accept, None).await.expect("it is answered");
    let there = browser.evaluate("document.forms[0].elements.name.value").await.expect("a value");
    assert_eq!(there, format!("me:{PASSWORD}!"), "the page has it, and only what may be typed there");
    let elsewhere = output(&outcome, "c2").text().into_owned();
    assert!(elsewhere.contains("the secret `other` is not typed here"), "{elsewhere}");
    let unknown = output(&outcome, "c3").text().into_owned();
    assert!(unknown.contains("no secret `nothing`") && unknown.contains("{{secret:password}}"), "{unknown}");
    let said = output(&outcome, "c4").text().into_owned();
    assert!(said.contains("me:[secret]!"), "{said}");
    let film = Film::of(outcome.record().journal(), Some(&*store)).await.expect("the store answers");
    let asked =
        format!("{:?}", model.requests().iter().map(|request| request.input.clone()).collect::<Vec<_>>());
    for kept in
        [outcome.record().to_text(), film.to_html("Film"), asked, format!("{:?}", Secret::new(PASSWORD))]
    {
        assert!(!kept.contains(PASSWORD), "it is written down");
    }
    browser.close().await;
}

#[tokio::test]
async fn what_the_model_types_itself_can_be_left_out_of_the_journal() {
    let paper = Paper::default();
    let tool = ComputerTool::given(Arc::new(paper.clone())).secret_typing();
    let anthropic = Reply::call("c2", "computer", json!({ "action": "type", "text": PASSWORD }));
    let ours = call("c1", json!([click(1, 1), { "type": "type", "text": PASSWORD }]));
    let (agent, _) = agent(&tool, [ours, anthropic, checked("c3"), Reply::text("done")]);
    let mut paused = agent.run("go").await.expect("the run pauses").paused().expect("it waits");
    assert_eq!(
        paper.lines(),
        ["click (1, 1) 1".to_owned(), format!("type {PASSWORD}"), format!("type {PASSWORD}")]
    );
    let text = paused.to_text();
    assert!(!text.contains(PASSWORD) && text.contains("[secret]"), "{text}");
    assert!(text.contains(r#"\"type\":\"click\""#), "what else was done is there");
    paused.approve("c3").expect("a person approves");
    agent.resume(paused).await.expect("the run ends");
}

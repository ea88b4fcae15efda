//! Every action that a provider can request, in a real Chromium, verified by the page's own record of events.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

#[path = "support/paper.rs"]
mod paper;
mod support;

use std::sync::Arc;

use paper::{agent_with_tool, output_of};
use serde_json::{Value, json};
use support::{TestPageServer, recorded_value, start_browser};
use windlass::core::item::OutputContent;
use windlass::model::ScriptedResponse;
use windlass_computer::{Browser, BrowserOptions, Computer, ComputerTool};

/// Runs these calls on a page, each with one action in Anthropic's format or a list in OpenAI's.
async fn run_calls(
    page: &str,
    wired: &str,
    calls: &[Value],
) -> Option<(TestPageServer, Arc<Browser>, windlass::run::RunResult)> {
    let pages = TestPageServer::serve().await;
    let browser = Arc::new(start_browser(BrowserOptions::default()).await?);
    browser.navigate(&pages.url(page)).await.expect("the page opens");
    browser.evaluate(wired).await.expect("the page is wired");
    let calls = calls.iter().enumerate();
    let replies =
        calls.map(|(at, arguments)| ScriptedResponse::call(&format!("c{at}"), "computer", arguments.clone()));
    let (agent, _) = agent_with_tool(
        &ComputerTool::with_computer(browser.clone()),
        replies.chain([ScriptedResponse::text("done")]),
    );
    let outcome = agent.run("go").max_turns(30).await.expect("the run ends");
    Some((pages, browser, outcome))
}

#[tokio::test]
async fn everything_that_anthropic_asks_for() {
    let wired = "said.held = 0; let down = 0; onkeydown = event => { if (event.key === 'a') said.pressed = \
                 (said.pressed || 0) + 1; if (event.key === 'Shift') down = event.timeStamp; }; onkeyup = event => { \
                 if (event.key === 'Shift') said.held = event.timeStamp - down; }; const text = \
                 document.createElement('p'); text.textContent = 'one two three'; text.style = \
                 'position:absolute;left:40px;top:560px;margin:0'; document.body.append(text); \
                 addEventListener('mousemove', event => said.at = [event.clientX, event.clientY]); 1";
    let calls = [
        // A drag in separate steps.
        json!({ "action": "mouse_move", "coordinate": [60, 60] }),
        json!({ "action": "left_mouse_down" }),
        json!({ "action": "mouse_move", "coordinate": [440, 80] }),
        json!({ "action": "left_mouse_up" }),
        json!({ "action": "left_click_drag", "start_coordinate": [60, 320], "coordinate": [260, 420] }),
        json!({ "action": "triple_click", "coordinate": [60, 568] }),
        json!({ "action": "key", "text": "a", "repeat": 3 }),
        json!({ "action": "hold_key", "text": "shift", "duration": 1 }),
        json!({ "action": "right_click", "coordinate": [650, 420] }),
        json!({ "action": "double_click", "coordinate": [650, 420] }),
        json!({ "action": "left_click", "coordinate": [650, 420], "text": "ctrl" }),
        json!({ "action": "cursor_position" }),
        json!({ "action": "zoom", "region": [40, 300, 340, 500] }),
        json!({ "action": "wait", "duration": 0.01 }),
        json!({ "action": "scroll", "coordinate": [900, 600], "scroll_direction": "down", "scroll_amount": 5 }),
        json!({ "action": "screenshot" }),
    ];
    let Some((_, browser, outcome)) = run_calls("play.html", wired, &calls).await else { return };
    let pictured = |at: usize| matches!(output_of(&outcome, &format!("c{at}")), OutputContent::Parts(_));
    assert!((0..calls.len()).all(pictured), "each has its picture");
    assert_eq!(recorded_value(&browser, "dropped").await, true);
    assert!(browser.evaluate("ink()").await.expect("a number").as_u64() > Some(300));
    assert_eq!(browser.evaluate("getSelection().toString().trim()").await.expect("a text"), "one two three");
    assert_eq!(recorded_value(&browser, "pressed").await, 3);
    assert!(
        recorded_value(&browser, "held").await.as_f64() >= Some(900.0),
        "{:?}",
        recorded_value(&browser, "held").await
    );
    assert_eq!(recorded_value(&browser, "menu").await, true);
    assert_eq!(recorded_value(&browser, "double").await, true);
    assert_eq!(recorded_value(&browser, "ctrl").await, true);
    assert!(output_of(&outcome, "c11").text().contains("X=650,Y=420"));
    let scrolled =
        support::poll_until(async || browser.evaluate("scrollY").await.expect("a number") == 500).await;
    assert!(scrolled, "{:?}", browser.evaluate("scrollY").await);
    browser.close().await;
}

#[tokio::test]
async fn everything_that_openai_asks_for() {
    let wired = "addEventListener('auxclick', event => said.button = event.button); \
                 addEventListener('mousemove', event => said.at = [event.clientX, event.clientY]); 1";
    // One call with all actions: generally available OpenAI models send lists.
    let all = json!({ "actions": [
        { "type": "screenshot" },
        { "type": "move", "x": 500, "y": 600 },
        { "type": "drag", "path": [{ "x": 60, "y": 60 }, { "x": 300, "y": 70 }, { "x": 440, "y": 80 }] },
        { "type": "click", "x": 650, "y": 420, "button": "left", "keys": ["CTRL"] },
        { "type": "double_click", "x": 650, "y": 420 },
        { "type": "click", "x": 650, "y": 420, "button": "right" },
        { "type": "click", "x": 900, "y": 600, "button": "wheel" },
        { "type": "wait" },
        { "type": "scroll", "x": 900, "y": 600, "scroll_x": 0, "scroll_y": 300 },
    ] });
    let Some((_, browser, outcome)) = run_calls("play.html", wired, &[all]).await else { return };
    assert!(matches!(output_of(&outcome, "c0"), OutputContent::Parts(_)), "{:?}", output_of(&outcome, "c0"));
    assert_eq!(recorded_value(&browser, "dropped").await, true);
    assert_eq!(recorded_value(&browser, "double").await, true);
    assert_eq!(recorded_value(&browser, "menu").await, true);
    assert_eq!(recorded_value(&browser, "button").await, 1, "the wheel is a button");
    let scrolled =
        support::poll_until(async || browser.evaluate("scrollY").await.expect("a number") == 300).await;
    assert!(scrolled, "{:?}", browser.evaluate("scrollY").await);
    browser.close().await;

    let fill = json!({ "actions": [
        { "type": "click", "x": 100, "y": 55, "button": "left" },
        { "type": "type", "text": "Ada" },
        { "type": "keypress", "keys": ["SHIFT", "TAB"] },
        { "type": "keypress", "keys": ["TAB"] },
        { "type": "keypress", "keys": ["ENTER"] },
    ] });
    let Some((pages, browser, _)) = run_calls("form.html", "1", &[fill]).await else { return };
    assert_eq!(pages.submissions(), ["name=Ada&note="]);
    browser.close().await;
}

//! The wire formats of both providers, from their action items to the next request with the screenshot. A
//! real browser executes what a provider would send.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::sync::Arc;

use serde_json::{Value, json};
use support::{TestPageServer, start_browser};
use windlass::{agent::Agent, run::RunResult, tool::Tool};
use windlass_computer::{Browser, BrowserOptions, Computer, ComputerTool};
use windlass_models::testing::{FakeProvider, FakeReply};
use windlass_models::{ComputerVersion, StreamingMode};

async fn open_form() -> Option<(TestPageServer, Arc<Browser>, ComputerTool)> {
    let pages = TestPageServer::serve().await;
    let browser = Arc::new(start_browser(BrowserOptions::default()).await?);
    browser.navigate(&pages.url("form.html")).await.expect("the page opens");
    let tool = ComputerTool::with_computer(browser.clone());
    Some((pages, browser, tool))
}

fn computer_call(id: &str, actions: &Value, checks: &Value) -> Value {
    json!({
        "type": "computer_call", "id": format!("cu_{id}"), "call_id": id, "status": "completed",
        "actions": actions, "pending_safety_checks": checks,
    })
}

fn image_data(url: &Value) -> &str {
    url.as_str().and_then(|url| url.strip_prefix("data:image/png;base64,")).expect("the picture as data")
}

#[tokio::test]
async fn openai_sends_actions_and_gets_the_screenshot() {
    let Some((pages, start_browser, tool)) = open_form().await else { return };
    let fill = json!([
        { "type": "click", "button": "left", "x": 100, "y": 55 },
        { "type": "type", "text": "Ada" },
        { "type": "keypress", "keys": ["ENTER"] },
    ]);
    let checks = json!([{ "id": "sc_1", "code": "malicious_instructions", "message": "look out" }]);
    let look = json!([{ "type": "screenshot" }]);
    let outside = json!([{ "type": "click", "button": "left", "x": 5000, "y": 55 }]);
    let provider = FakeProvider::start([
        FakeReply::item(computer_call("c1", &look, &json!([]))),
        FakeReply::item(computer_call("c2", &outside, &json!([]))),
        FakeReply::item(computer_call("c3", &fill, &checks)),
        FakeReply::text("Sent."),
    ])
    .await
    .expect("a provider");
    let model = provider.openai().responses("any").expect("a model").streaming(StreamingMode::Never);
    let tool: Tool = tool.screen_tool();
    let agent = Agent::new("clerk").model(model).tools(tool);
    let mut paused =
        agent.run("Fill it in").await.expect("the run pauses").into_paused().expect("a check waits");
    assert!(pages.submissions().is_empty());
    paused.approve("c3").expect("a person acknowledges");
    let outcome = agent.resume(paused).await.expect("the run ends");
    assert_eq!(outcome.output_text().expect("the run finished"), "Sent.");
    assert_eq!(pages.submissions(), ["name=Ada&note="]);

    let requests = provider.requests();
    assert_eq!(requests[0].body["tools"], json!([{ "type": "computer" }]));
    let input = requests[3].body["input"].as_array().expect("items");
    assert_eq!(input[1], computer_call("c1", &look, &json!([])), "calls go back as they came");
    assert_eq!((&input[2]["type"], &input[2]["call_id"]), (&json!("computer_call_output"), &json!("c1")));
    assert_eq!(input[2]["output"]["type"], "computer_screenshot");
    assert!(image_data(&input[2]["output"]["image_url"]).len() > 1000, "a real picture");
    // OpenAI requires a screenshot in the output, so a refusal is sent beside one.
    let refused = input[5]["content"].as_str().expect("a message");
    assert!(refused.contains("c2") && refused.contains("outside of the display"), "{refused}");
    let last = input.last().expect("an output");
    assert_eq!(last["acknowledged_safety_checks"], checks);
    let shown = start_browser.screenshot().await.expect("a picture");
    assert_eq!(
        image_data(&last["output"]["image_url"]),
        shown.as_base64(),
        "the picture is of what is there now"
    );
    start_browser.close().await;
}

#[tokio::test]
async fn anthropic_sends_actions_and_gets_the_screenshot() {
    let Some((pages, start_browser, tool)) = open_form().await else { return };
    let provider = FakeProvider::start([
        FakeReply::call("t1", "computer", r#"{"action":"left_click","coordinate":[100,55]}"#),
        FakeReply::call("t2", "computer", r#"{"action":"type","text":"Grace"}"#),
        FakeReply::call("t3", "computer", r#"{"action":"key","text":"Return"}"#),
        FakeReply::text("Sent."),
    ])
    .await
    .expect("a provider");
    let anthropic = provider.anthropic().computer_tool(ComputerVersion::V20250124);
    let model = anthropic.messages("any").expect("a model").streaming(StreamingMode::Never);
    let screen: Tool = tool.screen_tool();
    let agent = Agent::new("clerk").model(model).tools(screen);
    let outcome = agent.run("Fill it in").await.expect("the run ends");
    assert!(matches!(outcome, RunResult::Finished(_)));
    assert_eq!(pages.submissions(), ["name=Grace&note="]);

    let requests = provider.requests();
    assert_eq!(requests[0].headers["anthropic-beta"], "computer-use-2025-01-24");
    assert_eq!(
        requests[0].body["tools"],
        json!([{ "type": "computer_20250124", "name": "computer", "display_width_px": 1280, "display_height_px": 800 }])
    );
    let messages = requests[3].body["messages"].as_array().expect("messages");
    let called = json!({
        "type": "tool_use", "id": "t1", "name": "computer",
        "input": { "action": "left_click", "coordinate": [100, 55] },
    });
    assert_eq!(messages[1]["content"], json!([called]), "calls go back as they came");
    let result = &messages[6]["content"][0];
    assert_eq!((&result["type"], &result["tool_use_id"]), (&json!("tool_result"), &json!("t3")));
    let picture = &result["content"][0];
    assert_eq!((&picture["type"], &picture["source"]["media_type"]), (&json!("image"), &json!("image/png")));
    let shown = start_browser.screenshot().await.expect("a picture");
    assert_eq!(picture["source"]["data"], shown.as_base64(), "the picture is of what is there now");
    start_browser.close().await;

    // A model without a configured version of the computer tool fails before any request.
    let plain = provider.anthropic().messages("any").expect("a model");
    let screen: Tool = tool.screen_tool();
    let refused = Agent::new("clerk").model(plain).tools(screen).run("go").await.expect_err("it cannot");
    assert!(refused.to_string().contains("Anthropic::computer"), "{refused}");
}

#[tokio::test]
async fn anthropics_toolset_has_a_tool_for_each_action() {
    let Some((pages, start_browser, tool)) = open_form().await else { return };
    let member = |id: &str, name: &str, input: Value| json!({ "type": "tool_use", "id": id, "name": name, "toolset_name": "computer", "input": input });
    let click = member("t1", "left_click", json!({ "coordinate": [100, 55] }));
    let blocks = [
        click.clone(),
        member("t2", "type", json!({ "text": "Edith" })),
        member("t3", "key", json!({ "text": "Return" })),
        member("t4", "screenshot", json!({})),
    ];
    let mut body = json!({
        "id": "m1", "type": "message", "role": "assistant", "model": "any", "stop_reason": "tool_use",
        "usage": { "input_tokens": 1, "output_tokens": 1 },
    });
    body["content"] = json!(blocks);
    let provider = FakeProvider::start([FakeReply::json_body(body.to_string()), FakeReply::text("Sent.")])
        .await
        .expect("a provider");
    let anthropic = provider.anthropic().computer_tool(ComputerVersion::V20260801);
    let model = anthropic.messages("any").expect("a model").streaming(StreamingMode::Never);
    let screen: Tool = tool.screen_tool();
    let outcome =
        Agent::new("clerk").model(model).tools(screen).run("Fill it in").await.expect("the run ends");
    assert!(matches!(outcome, RunResult::Finished(_)));
    assert_eq!(pages.submissions(), ["name=Edith&note="]);

    let requests = provider.requests();
    assert!(!requests[0].headers.contains_key("anthropic-beta"), "it is no beta");
    assert_eq!(requests[0].body["tools"], json!([{ "type": "computer_toolset_20260801" }]));
    let messages = requests[1].body["messages"].as_array().expect("messages");
    assert_eq!(messages[1]["content"], json!(blocks), "calls go back as they came");
    let results = messages[2]["content"].as_array().expect("results");
    let ids: Vec<_> = results.iter().map(|result| result["tool_use_id"].clone()).collect();
    assert_eq!(ids, ["t1", "t2", "t3", "t4"]);
    assert!(results.iter().all(|result| result["content"][0]["type"] == "image"), "each has its picture");
    start_browser.close().await;
}

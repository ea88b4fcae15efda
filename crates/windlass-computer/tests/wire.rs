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

/// A page that has all that the browser toolset can be used for: fields, a list, a file, a place to hover, a long way down.
const APPLICATION: &str = "<title>Apply</title><form action=/sent method=post><label>Name <input name=name></label>\
    <label>Country <select name=country><option>France<option>Germany</select></label>\
    <label><input type=checkbox name=agree value=yes> I agree</label>\
    <input type=file id=cv aria-label=CV onchange=\"chosen.value = this.files[0].name\"><input type=hidden id=chosen name=cv>\
    <a href='#' onclick='return false' onmouseover=\"seen.value += 'hover '\" ondblclick=\"seen.value += 'double '\">Watch</a>\
    <input type=hidden id=seen name=seen><div style='height:3000px'></div>\
    <button onmouseover=\"seen.value += scrollY > 1000 ? 'below' : 'above'\">Send it</button></form>";

#[tokio::test]
async fn anthropics_browser_toolset_uses_elements_by_reference() {
    let pages = TestPageServer::serve().await;
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("cv.txt"), "a life").expect("a file");
    let url = pages.add("apply", APPLICATION);
    let uploads = windlass_computer::UploadPolicy::From(folder.path().to_owned());
    let Some(browser) = start_browser(BrowserOptions { uploads, ..BrowserOptions::default() }).await else {
        return;
    };
    let browser = Arc::new(browser);
    // References are given in the order of the page.
    let by_ref = |reference: &str| json!({ "type": "ref", "ref": reference });
    let steps = [
        ("navigate", json!({ "url": url })),
        ("read_page", json!({ "filter": "interactive" })),
        ("find", json!({ "query": "the country list" })),
        ("form_input", json!({ "target": by_ref("e0"), "value": "Ada" })),
        ("form_input", json!({ "target": by_ref("e1"), "value": "Germany" })),
        ("form_input", json!({ "target": by_ref("e2"), "value": true })),
        ("file_upload", json!({ "target": by_ref("e3"), "paths": ["cv.txt"] })),
        ("hover", json!({ "target": by_ref("e4") })),
        ("double_click", json!({ "target": by_ref("e4"), "modifiers": "shift" })),
        ("new_tab", json!({})),
        ("get_page_text", json!({ "tab_id": "0" })),
        ("close_tab", json!({ "tab_id": "tab_1" })),
        ("list_tabs", json!({})),
        ("scroll_to", json!({ "target": by_ref("e5") })),
        ("read_page", json!({ "ref": "e5", "depth": 1 })),
        ("left_click", json!({ "target": by_ref("e5") })),
        ("left_click", json!({ "target": by_ref("e77") })),
        ("navigate", json!({ "url": "back" })),
        ("left_click", json!({ "target": { "type": "coordinate", "x": 5000, "y": 5 } })),
        ("javascript_exec", json!({ "text": "1" })),
    ];
    let reply = |(at, (name, input)): (usize, &(&str, Value))| {
        let block = json!({
            "type": "tool_use", "id": format!("t{at}"), "name": name, "toolset_name": "browser", "input": input,
        });
        let body = json!({
            "id": format!("m{at}"), "type": "message", "role": "assistant", "model": "any",
            "stop_reason": "tool_use", "usage": { "input_tokens": 1, "output_tokens": 1 }, "content": [block],
        });
        FakeReply::json_body(body.to_string())
    };
    let replies = steps.iter().enumerate().map(reply).chain([FakeReply::text("Sent.")]);
    let provider = FakeProvider::start(replies).await.expect("a provider");
    let anthropic = provider.anthropic().computer_tool(ComputerVersion::Browser20260801);
    let model = anthropic.messages("any").expect("a model").streaming(StreamingMode::Never);
    let screen: Tool = ComputerTool::with_computer(browser.clone()).screen_tool();
    let outcome = Agent::new("clerk").model(model).tools(screen).run("Apply").max_turns(40).await;
    assert!(matches!(outcome.expect("the run ends"), RunResult::Finished(_)));

    let requests = provider.requests();
    assert!(!requests[0].headers.contains_key("anthropic-beta"), "it is no beta");
    let off = json!({ "enabled": false });
    let configs = json!({ "javascript_exec": off, "read_console": off, "read_network": off });
    let offered = json!([{ "type": "browser_toolset_20260801", "configs": configs }]);
    assert_eq!(requests[0].body["tools"], offered);
    let messages = requests.last().expect("a request").body["messages"].as_array().expect("messages").clone();
    let mut results = Vec::new();
    for (at, (name, input)) in steps.iter().enumerate() {
        let call = &messages[1 + 2 * at]["content"][0];
        let sent = (&call["name"], &call["toolset_name"], &call["input"]);
        assert_eq!(sent, (&json!(name), &json!("browser"), input), "calls go back as they came");
        let result = &messages[2 + 2 * at]["content"][0];
        assert_eq!(result["tool_use_id"], format!("t{at}"));
        results.push((name, result["content"].to_string(), result["is_error"] == true));
    }
    for (at, part) in [
        (1, "[e0] text \\\"Name\\\""),
        (2, "[e1] select"),
        (9, "* 1: about:blank"),
        (10, "I agree"),
        (12, "* 0: http"),
        (14, "Send it"),
        (16, "read the page again"),
        (18, "outside of the display"),
        (19, "javascript_exec"),
    ] {
        assert!(
            results[at].1.contains(part),
            "{part}: {:?}",
            results[at].1.chars().take(600).collect::<String>()
        );
    }
    for (name, text, is_error) in &results[..16] {
        assert!(
            !is_error && !text.contains("failed"),
            "{name}: {}",
            text.chars().take(600).collect::<String>()
        );
    }
    let sent = "name=Ada&country=Germany&agree=yes&cv=cv.txt&seen=hover+double+below";
    assert_eq!(pages.submissions(), [sent]);
    browser.close().await;
}

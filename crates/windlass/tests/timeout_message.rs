//! The text that the model receives for a timeout.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::time::Duration;

use windlass::prelude::*;
use windlass::tool::OnTimeout;

/// Waits for ever.
#[tool(effect = pure, timeout = "2s", on_timeout = |ctx, timeout| format!("{} took over {} s.", ctx.call_id(), timeout.timeout.as_secs()))]
async fn wait() -> String {
    std::future::pending().await
}

/// Returns the output that the model received for a call of `tool`.
async fn told(tool: Tool) -> String {
    let call = ScriptedResponse::call("c1", "wait", json!({}));
    let model = ScriptedModel::new([call, ScriptedResponse::text("bye")]);
    let agent = Agent::new("clerk").model(model.clone()).tool(tool);
    agent.run("go").await.expect("it ends");
    model.requests()[1].input_text().last().cloned().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_function_makes_the_text_of_a_timeout() {
    assert_eq!(told(wait()).await, "output c1 c1 took over 2 s.");
}

#[tokio::test(start_paused = true)]
async fn a_function_that_panics_gives_the_default_text() {
    let tool = wait().on_timeout(OnTimeout::custom_message(|_, _| panic!("a test")));
    assert_eq!(told(tool).await, "output c1 Tool 'wait' timed out after 2 seconds.");
}

#[tokio::test]
async fn the_model_is_told_that_a_body_which_cannot_be_stopped_may_still_take_effect() {
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = std::sync::Mutex::new(blocked);
    let schema = json!({ "type": "object" });
    let tool: Tool = Tool::dynamic_blocking("wait", "Waits.", schema, move |_: ToolContext, _| {
        let _dropped = blocked.lock().expect("nobody panics with it").recv();
        Ok::<_, String>("late")
    });
    // Long enough for the body to begin.
    let tool =
        tool.timeout(Duration::from_millis(500)).on_timeout(OnTimeout::custom_message(|_, timeout| {
            format!("Too slow, still running: {}.", timeout.is_still_running)
        }));
    let text = told(tool).await;
    drop(release);
    assert_eq!(
        text,
        "output c1 Too slow, still running: true. It could not be stopped and may still take effect."
    );
}

#[tokio::test(start_paused = true)]
async fn an_agent_inside_a_call_has_the_text_too() {
    let inner =
        Agent::new("inner").model(ScriptedModel::new([ScriptedResponse::call("i1", "wait", json!({}))]));
    let inner = inner.tool(wait().timeout(Duration::from_secs(600)));
    let tool = inner
        .as_tool("wait", "Waits.")
        .timeout(Duration::from_secs(1))
        .on_timeout(OnTimeout::custom_message(|_, _| "It thinks too long.".to_owned()));
    let call = ScriptedResponse::call("c1", "wait", json!({ "input": "go" }));
    let model = ScriptedModel::new([call, ScriptedResponse::text("bye")]);
    Agent::new("clerk").model(model.clone()).tool(tool).run("go").await.expect("it ends");
    let text = model.requests()[1].input_text().last().cloned().unwrap_or_default();
    assert_eq!(text, "output c1 It thinks too long.");
}

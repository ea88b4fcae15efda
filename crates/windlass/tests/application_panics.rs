//! A panic in a function of the application fails its run; it never reaches the task that awaits the run.

use windlass::agent::{Handoff, ToolUsePolicy};
use windlass::core::failure::RunFailure;
use windlass::error::RunError;
use windlass::prelude::*;
use windlass::run::OnUnknownTool;

/// Looks something up.
#[tool(effect = pure)]
async fn look() -> &'static str {
    "seen"
}

fn calling(tool: &str) -> ScriptedModel {
    ScriptedModel::new([ScriptedResponse::call("c1", tool, json!({})), ScriptedResponse::text("bye")])
}

fn watch(model: ScriptedModel) -> Agent {
    Agent::new("watch").model(model)
}

fn expect_panic(result: Result<RunResult, RunError>, function: &str) {
    let failure = result.as_ref().err().and_then(RunError::failure);
    let expected = RunFailure::ApplicationPanicked { message: "a test panics here".to_owned() };
    assert_eq!(failure, Some(&expected), "{function}: {result:?}");
}

#[expect(clippy::panic, reason = "the panic is what is tested")]
fn fails<T>() -> T {
    panic!("a test panics here")
}

#[tokio::test]
async fn a_panic_in_an_application_function_fails_the_run() {
    let agent = watch(calling("look")).tool(look).dynamic_instructions(|_| async { fails() });
    expect_panic(agent.run("go").await, "instructions");

    let agent = watch(calling("look")).tool(look().enabled_if(|_| fails()));
    expect_panic(agent.run("go").await, "enablement rule");

    let policy = ToolUsePolicy::custom_function(|_, _| async { fails() });
    expect_panic(watch(calling("look")).tool(look).tool_use_policy(policy).run("go").await, "final output");

    let run = watch(calling("look")).tool(look).run("go").input_filter(|_, _| async { fails() });
    expect_panic(run.await, "input filter");

    let handoff = Handoff::to(watch(calling("look"))).tool_name("move").on_handoff(|_| async { fails() });
    let desk = Agent::new("desk").model(calling("move")).handoff(handoff);
    expect_panic(desk.run("go").await, "handoff callback");
}

#[tokio::test]
async fn a_panic_in_the_message_about_an_unknown_tool_gives_the_default_message() {
    let model = calling("nothing");
    let policy = OnUnknownTool::custom_message(|_, _| fails());
    let result = watch(model.clone()).tool(look).run("go").on_unknown_tool(policy).await;
    assert_eq!(result.as_ref().ok().and_then(|result| result.output_text().ok()), Some("bye"), "{result:?}");
    let lines = model.requests()[1].input_text();
    assert_eq!(
        lines.last().map(String::as_str),
        Some("output c1 Tool 'nothing' not found. The tools are: look.")
    );
}

//! A panic in a function of the application fails its run; it never reaches the task that awaits the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::BoxFuture;
use windlass::agent::{Handoff, ToolUsePolicy};
use windlass::context::ContextPolicy;
use windlass::core::failure::RunFailure;
use windlass::core::item::Item;
use windlass::error::RunError;
use windlass::model::{DeltaSink, Model, ModelError, ModelLayer, ModelRequest, ModelResponse, NextModel};
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

/// A model that panics.
struct PanickingModel;

impl Model for PanickingModel {
    async fn respond<'a>(
        &'a self,
        _: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        fails()
    }
}

/// A layer that panics before it returns its future.
struct PanickingLayer;

impl ModelLayer for PanickingLayer {
    fn respond<'a>(
        &'a self,
        _: ModelRequest<'a>,
        _: &'a DeltaSink,
        _: NextModel<'a>,
    ) -> BoxFuture<'a, Result<ModelResponse, ModelError>> {
        fails()
    }
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

    let run = watch(calling("look")).tool(look).run("go").on_failure(|_, _| async { fails() }).max_turns(1);
    expect_panic(run.await, "failure handler");

    let handoff = Handoff::to(watch(calling("look"))).tool_name("move").enabled_if(|_| fails());
    expect_panic(Agent::new("desk").model(calling("move")).handoff(handoff).run("go").await, "handoff rule");

    let handoff = Handoff::to(watch(calling("look"))).tool_name("move").filter_history(|_| fails());
    expect_panic(
        Agent::new("desk").model(calling("move")).handoff(handoff).run("go").await,
        "history filter",
    );

    expect_panic(Agent::new("watch").model(PanickingModel).run("go").await, "model");

    let run = watch(calling("look")).tool(look).run("go").model_layer(PanickingLayer);
    expect_panic(run.await, "model layer");

    let handoff = Handoff::to(watch(calling("look"))).tool_name("move").on_handoff(|_| async { fails() });
    let desk = Agent::new("desk").model(calling("move")).handoff(handoff);
    expect_panic(desk.run("go").await, "handoff callback");
}

/// A rule of another tool panics while the names of the available tools are listed.
#[tokio::test]
async fn a_panic_in_a_rule_beside_a_disabled_tool_fails_the_run() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let off = look().enabled_if(move |_| counted.fetch_add(1, Ordering::SeqCst) < 2);
    let beside =
        Tool::dynamic("beside", "Stands by.", json!({ "type": "object" }), |_: ToolContext, _| async {
            Ok::<_, String>("done")
        });
    let beside = beside.enabled_if(move |_| if asked.load(Ordering::SeqCst) < 3 { true } else { fails() });
    expect_panic(watch(calling("look")).tools((off, beside)).run("go").await, "rule of another tool");
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

#[tokio::test]
async fn an_item_whose_pin_function_panics_stays() {
    let model = ScriptedModel::new([ScriptedResponse::text("bye")]);
    let said: Vec<Item> =
        (0..30).map(|number| Item::assistant(format!("{number} {}", "word ".repeat(50)))).collect();
    let input: Vec<Item> = said.into_iter().chain([Item::user("go")]).collect();
    let policy = ContextPolicy::with_window(500).keep_newest(1).pin_items(|_| fails());
    let result = watch(model.clone()).run(input).context_policy(policy).await;
    assert_eq!(result.as_ref().ok().and_then(|result| result.output_text().ok()), Some("bye"), "{result:?}");
    assert_eq!(model.requests()[0].input_text().len(), 31, "nothing was removed");
}

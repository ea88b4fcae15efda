//! Agents as tools with structured input and output.

use std::sync::{Arc, Mutex};

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::prelude::*;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Search {
    topic: String,
    pages: u32,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Findings {
    facts: Vec<String>,
}

fn reader(replies: impl IntoIterator<Item = ScriptedResponse>) -> (Agent, ScriptedModel) {
    let model = ScriptedModel::new(replies);
    (Agent::new("reader").model(model.clone()), model)
}

/// Creates an agent that calls `read_up` once with these arguments.
fn host(arguments: serde_json::Value, tool: Tool) -> (Agent, ScriptedModel) {
    let calls = ScriptedResponse::call("c1", "read_up", arguments);
    let model = ScriptedModel::new([calls, ScriptedResponse::text("bye")]);
    (Agent::new("host").model(model.clone()).tool(tool), model)
}

fn read_up(reader: &Agent) -> Tool {
    reader
        .as_tool("read_up", "Reads up on a topic.")
        .agent_input(|search: &Search| format!("Read {} pages about {}.", search.pages, search.topic))
}

/// Returns the output of the call as the model of the host received it.
fn output_of_call(model: &ScriptedModel) -> String {
    model.requests()[1].input_text().last().cloned().unwrap_or_default()
}

#[tokio::test]
async fn the_input_of_an_agent_is_built_from_typed_arguments() {
    let (reader, inner) = reader([ScriptedResponse::text("They haul.")]);
    let tool = read_up(&reader);
    let offered = tool.to_definition().expect("it can be offered");
    assert_eq!(offered.parameters["required"], json!(["pages", "topic"]));
    assert!(offered.is_strict);
    let (host, model) = host(json!({ "topic": "windlasses", "pages": 3 }), tool);
    host.run("go").await.expect("it ends");
    assert_eq!(inner.requests()[0].input_text(), ["user: Read 3 pages about windlasses."]);
    assert_eq!(output_of_call(&model), "output c1 They haul.");
}

#[tokio::test]
async fn arguments_that_do_not_fit_the_type_are_told_with_their_path() {
    let (reader, inner) = reader([]);
    let (host, model) = host(json!({ "topic": "windlasses", "pages": "three" }), read_up(&reader));
    host.run("go").await.expect("it ends");
    assert!(inner.requests().is_empty(), "the agent does not run");
    let told = output_of_call(&model);
    assert!(told.contains("`pages`"), "{told}");
}

#[tokio::test]
async fn rules_of_an_agent_tool_see_the_typed_arguments() {
    let (reader, _) = reader([ScriptedResponse::text("They haul.")]);
    let seen: Arc<Mutex<Vec<u32>>> = Arc::default();
    let noted = seen.clone();
    let tool = read_up(&reader).needs_approval_if(move |search: &Search| {
        noted.lock().expect("nobody panics with it").push(search.pages);
        search.pages > 2
    });
    let (host, _) = host(json!({ "topic": "windlasses", "pages": 3 }), tool);
    let result = host.run("go").await.expect("it waits");
    assert!(matches!(result, RunResult::Paused(_)), "{result:?}");
    assert_eq!(*seen.lock().expect("nobody panics with it"), [3]);
}

#[tokio::test]
async fn a_function_makes_the_output_of_the_call() {
    let (reader, _) = reader([ScriptedResponse::text(r#"{ "facts": ["it hauls", "it holds"] }"#)]);
    let reader = reader.output_type::<Findings>();
    let tool = read_up(&reader).agent_output(|result| {
        let findings: Findings = result.parse_output()?;
        Ok::<_, serde_json::Error>(json!({ "count": findings.facts.len(), "by": result.agent.as_str() }))
    });
    let (host, model) = host(json!({ "topic": "windlasses", "pages": 3 }), tool);
    host.run("go").await.expect("it ends");
    assert_eq!(output_of_call(&model), r#"output c1 {"by":"reader","count":2}"#);
}

#[tokio::test]
async fn an_input_or_output_function_that_fails_is_that_calls_failure() {
    let arguments = || json!({ "topic": "windlasses", "pages": 3 });
    let (first, inner) = reader([ScriptedResponse::text("They haul.")]);
    let tool = first.as_tool("read_up", "Reads.").agent_input(|_: &Search| -> String { panic!("a test") });
    let (outer, model) = host(arguments(), tool);
    outer.run("go").await.expect("it ends");
    assert!(inner.requests().is_empty());
    assert!(output_of_call(&model).starts_with("output c1 An error occurred"), "{}", output_of_call(&model));

    let panics = |_: &windlass::agent::NestedAgentResult| -> Result<String, String> { panic!("a test") };
    let (outer, model) = host(arguments(), read_up(&first).agent_output(panics));
    outer.run("go").await.expect("it ends");
    assert!(output_of_call(&model).starts_with("output c1 An error occurred"), "{}", output_of_call(&model));
}

//! Models of tests: responses that a function computes, a model that calls every tool, recorded schemas.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use windlass::prelude::*;

/// A size.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum BoxSize {
    Small,
    Large,
}

/// A parcel.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Parcel {
    size: BoxSize,
    #[schemars(range(min = 3))]
    grams: u32,
    #[schemars(length(min = 2))]
    labels: Vec<String>,
}

/// Sends a parcel.
#[tool]
async fn send_parcel(parcel: Parcel, note: Option<String>) -> String {
    assert!(parcel.grams >= 3 && parcel.labels.len() >= 2 && note.is_none());
    json!(parcel).to_string()
}

/// Counts stock.
#[tool(effect = pure)]
async fn count_stock(shelf: String) -> Result<usize, ToolError> {
    Ok(shelf.len())
}

#[tokio::test]
async fn a_model_calls_every_tool_with_arguments_that_its_schema_accepts() {
    let model = ScriptedModel::calling_every_tool();
    let agent = Agent::new("stock").model(model.clone()).tools((send_parcel, count_stock));
    let result = agent.run("Try everything.").await.expect("it runs");
    let text = result.output_text().expect("it finishes");
    assert!(
        text.contains(r#"output every-send_parcel {"grams":3,"labels":["a","a"],"size":"small"}"#),
        "{text}"
    );
    assert!(text.contains("output every-count_stock 1"), "{text}");
    assert_eq!(model.requests().len(), 2);
}

#[tokio::test]
async fn a_function_computes_the_responses_and_may_inspect_the_model() {
    let model = ScriptedModel::from_fn(|request| match request.input_text().last() {
        Some(last) if last.starts_with("output ") => ScriptedResponse::text(format!("it was {last}")),
        _ => ScriptedResponse::call("c1", "count_stock", json!({ "shelf": "rope" })),
    });
    // Scripted responses come before those of the function.
    model.push(ScriptedResponse::text("First."));
    let agent = Agent::new("stock").model(model.clone()).tool(count_stock);
    assert_eq!(agent.run("Go.").await.expect("it runs").output_text().expect("a text"), "First.");
    let result = agent.run("Go.").await.expect("it runs");
    assert_eq!(result.output_text().expect("a text"), "it was output c1 4");
}

#[tokio::test]
async fn requests_are_recorded_with_their_schemas() {
    let model = ScriptedModel::new([ScriptedResponse::text("Fine.")]);
    let agent = Agent::new("stock").model(model.clone()).tool(count_stock);
    agent.run("Go.").await.expect("it runs");
    let requests = model.requests();
    let definition = &requests[0].tool_definitions[0];
    assert_eq!(definition.parameters["properties"]["shelf"]["type"], "string");
    assert_eq!(&*definition.description, "Counts stock.");
}

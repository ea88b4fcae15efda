//! Schemas without a strict form: maps make their tool non-strict, other problems are found when the agent is built.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::agent::Handoff;
use windlass::error::{ConfigError, RunError};
use windlass::event::RunEventKind;
use windlass::prelude::*;
use windlass::store::{MemoryStore, Store};

/// Counts words.
#[tool(effect = pure)]
async fn count(words: BTreeMap<String, u32>) -> u32 {
    words.values().sum()
}

/// Takes anything.
#[tool(effect = pure)]
async fn swallow(anything: serde_json::Value) -> String {
    anything.to_string()
}

async fn warnings_of(agent: &Agent) -> Vec<String> {
    let mut stream = agent.run("go").stream();
    let mut warnings = Vec::new();
    while let Some(event) = stream.next().await {
        if let RunEventKind::Warning { message } = event.kind {
            warnings.push(message);
        }
    }
    stream.result().await.expect("it ends");
    warnings
}

fn counting_model() -> ScriptedModel {
    let call = ScriptedResponse::call("c1", "count", json!({ "words": { "a": 1, "b": 2 } }));
    ScriptedModel::new([call, ScriptedResponse::text("bye")])
}

#[tokio::test]
async fn a_map_makes_its_tool_non_strict_with_a_warning() {
    let model = counting_model();
    let agent = Agent::new("counter").model(model.clone()).tool(count);
    agent.check().expect("a map is no error");
    let warnings = warnings_of(&agent).await;
    let [warning] = warnings.as_slice() else { panic!("one warning, not one per turn: {warnings:?}") };
    assert!(warning.contains("tool `count`") && warning.contains("`#/properties/words`"), "{warning}");
    assert_eq!(model.requests()[1].input_text().last().map(String::as_str), Some("output c1 3"));

    let agent = Agent::new("counter").model(counting_model()).tool(count().non_strict());
    assert_eq!(warnings_of(&agent).await, [""; 0], "who says so is not warned");
}

#[tokio::test]
async fn other_problems_are_found_before_anything_is_recorded() {
    let store = Arc::new(MemoryStore::default());
    let model = ScriptedModel::new([ScriptedResponse::text("bye")]);
    let agent = Agent::new("glutton").model(model.clone()).tools((count, swallow));
    let error = agent.run("go").run_id("r").store(store.clone()).await.expect_err("it cannot be offered");
    let RunError::Config(ConfigError::ToolNotStrict { tool, .. }) = &error else { panic!("{error}") };
    assert_eq!(tool, "swallow");
    assert!(error.to_string().contains("`#/properties/anything`"), "{error}");
    assert!(model.requests().is_empty());
    let stored = store.load_journal(&"r".into(), 0).await;
    assert!(stored.map_or(true, |lines| lines.is_empty()), "nothing is recorded");

    let behind = Agent::new("door").model(model.clone()).handoff(&agent);
    let around = Agent::new("host").model(model).tool(agent.as_tool("eat", "Eats."));
    for agent in [agent, behind, around] {
        let error = agent.check().expect_err("it is found without a run");
        assert!(matches!(&error, ConfigError::ToolNotStrict { tool, .. } if tool == "swallow"), "{error}");
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Anything {
    #[expect(dead_code, reason = "only its schema is used")]
    value: serde_json::Value,
}

#[tokio::test]
async fn handoffs_and_outputs_are_checked_too() {
    let target: Agent = Agent::new("target");
    let anything = json!({ "type": "object", "properties": { "x": {} } });
    let error = Agent::new("a").handoff(Handoff::to(&target).parameters(anything)).check();
    let Err(ConfigError::HandoffNotStrict { handoff, reason }) = &error else { panic!("{error:?}") };
    assert_eq!(
        (handoff.as_str(), reason.violations[0].path.as_str()),
        ("transfer_to_target", "#/properties/x")
    );
    let error = Agent::<()>::new("a").output_type::<Anything>().check();
    assert!(matches!(error, Err(ConfigError::OutputNotStrict { .. })), "{error:?}");

    let map = json!({ "type": "object", "properties": { "x": { "type": "object" } }, "required": ["x"] });
    let model = ScriptedModel::new([ScriptedResponse::text("bye")]);
    let agent = Agent::new("a").model(model).handoff(Handoff::to(&target).parameters(map));
    let warnings = warnings_of(&agent).await;
    assert!(warnings.len() == 1 && warnings[0].contains("handoff `transfer_to_target`"), "{warnings:?}");
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Counts {
    words: BTreeMap<String, u32>,
}

#[tokio::test]
async fn a_map_makes_the_output_type_non_strict_with_a_warning() {
    let wrong = ScriptedResponse::text(r#"{"words":{"a":"many"}}"#);
    let right = ScriptedResponse::text(r#"{"words":{"a":1,"b":2}}"#);
    let model = ScriptedModel::new([wrong, right]);
    let agent = Agent::new("counter").model(model.clone()).output_type::<Counts>();
    agent.check().expect("a map is no error");
    let mut stream = agent.run("go").stream();
    let mut warnings = Vec::new();
    while let Some(event) = stream.next().await {
        if let RunEventKind::Warning { message } = event.kind {
            warnings.push(message);
        }
    }
    let counts: Counts = stream.result().await.expect("it ends").output_as().expect("it fits");
    assert_eq!(counts.words.values().sum::<u32>(), 3, "the type is checked all the same");
    // The other one is about the output that did not fit.
    warnings.retain(|warning| !warning.contains("is not valid"));
    let [warning] = warnings.as_slice() else { panic!("one warning, not one per turn: {warnings:?}") };
    assert!(warning.contains("output type") && warning.contains("`#/properties/words`"), "{warning}");
}

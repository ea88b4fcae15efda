//! Providers that number the calls of each response: `call_1` is another call in every response.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use windlass::core::{journal::JournalEntry, plan::ModelProtocolError};
use windlass::event::RunEventKind;
use windlass::model::SharedModel;
use windlass::prelude::*;
use windlass_models::testing::{FakeProvider, FakeReply};
use windlass_models::{CallIdScope, StreamingMode};

use crate::support::{ALL_ADAPTERS, AdapterUnderTest, BOTH_MODES};

fn model(
    adapter: AdapterUnderTest,
    provider: &FakeProvider,
    mode: StreamingMode,
    scope: CallIdScope,
) -> SharedModel {
    let (openai, anthropic) = (provider.openai(), provider.anthropic());
    match adapter {
        AdapterUnderTest::Responses => {
            openai.responses("fake-1").expect("a model").streaming(mode).call_id_scope(scope).into()
        }
        AdapterUnderTest::Chat => {
            openai.chat("fake-1").expect("a model").streaming(mode).call_id_scope(scope).into()
        }
        AdapterUnderTest::Messages => {
            anthropic.messages("fake-1").expect("a model").streaming(mode).call_id_scope(scope).into()
        }
    }
}

/// Returns an agent with a tool that notes the cities it is asked about.
fn weather_agent(model: SharedModel) -> (Agent, Arc<Mutex<Vec<String>>>) {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = asked.clone();
    let schema = serde_json::json!({
        "type": "object",
        "properties": { "city": { "type": "string" } },
        "required": ["city"],
        "additionalProperties": false,
    });
    let tool = Tool::dynamic("weather", "Returns the weather.", schema, move |_, arguments: Value| {
        let noted = noted.clone();
        async move {
            let city = arguments["city"].as_str().unwrap_or_default().to_owned();
            noted.lock().expect("no panic").push(city.clone());
            Ok::<_, ToolError>(format!("sun in {city}"))
        }
    });
    (Agent::new("host").model(model).tool(tool), asked)
}

fn weather_call(id: &str, city: &str) -> FakeReply {
    FakeReply::call(id, "weather", &format!("{{\"city\":\"{city}\"}}"))
}

/// Returns the ids of the calls and of the outputs in a request, in order.
fn ids_in(body: &Value) -> (Vec<String>, Vec<String>) {
    let (mut calls, mut outputs) = (Vec::new(), Vec::new());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let items = body["input"].as_array().or(body["messages"].as_array()).expect("items");
    for item in items {
        match item["type"].as_str() {
            Some("function_call") => calls.push(text(&item["call_id"])),
            Some("function_call_output") => outputs.push(text(&item["call_id"])),
            _ => {}
        }
        calls.extend(item["tool_calls"].as_array().into_iter().flatten().map(|call| text(&call["id"])));
        if item["role"] == "tool" {
            outputs.push(text(&item["tool_call_id"]));
        }
        for block in item["content"].as_array().into_iter().flatten() {
            match block["type"].as_str() {
                Some("tool_use") => calls.push(text(&block["id"])),
                Some("tool_result") => outputs.push(text(&block["tool_use_id"])),
                _ => {}
            }
        }
    }
    (calls, outputs)
}

#[tokio::test]
async fn a_declared_provider_receives_its_own_ids() {
    for (adapter, mode) in ALL_ADAPTERS.into_iter().flat_map(|one| BOTH_MODES.map(|mode| (one, mode))) {
        let replies = [
            weather_call("call_1", "Oslo"),
            weather_call("call_1", "Rome").and_call("call_2", "weather", "{\"city\":\"Bern\"}"),
            // The same call again is another call, because the id says nothing across responses.
            weather_call("call_1", "Rome"),
            FakeReply::text("Done."),
        ];
        let provider = FakeProvider::start(replies).await.expect("a provider");
        let (agent, asked) = weather_agent(model(adapter, &provider, mode, CallIdScope::Response));
        let result = agent.run("go").await.expect("the run finishes");
        assert_eq!(result.output_text().expect("an output"), "Done.");
        let mut asked = asked.lock().expect("no panic").clone();
        asked[1..3].sort();
        assert_eq!(asked, ["Oslo", "Bern", "Rome", "Rome"], "{adapter:?}");
        let requests = provider.requests();
        let (calls, outputs) = ids_in(&requests.last().expect("a request").body);
        assert_eq!(calls, ["call_1", "call_1", "call_2", "call_1"], "{adapter:?} {mode:?}");
        assert_eq!(outputs, calls, "{adapter:?} {mode:?}");
        let ids: Vec<String> = result
            .record()
            .journal()
            .iter()
            .filter_map(|record| match &record.entry {
                JournalEntry::CallSettled(settled) => Some(settled.call.to_string()),
                _ => None,
            })
            .collect();
        assert_eq!(ids.len(), 4);
        for id in ["call_1-r1", "call_1-r2", "call_2-r2", "call_1-r3"] {
            assert!(ids.iter().any(|one| one == id), "{id} of {ids:?}");
        }
    }
}

#[tokio::test]
async fn a_provider_that_evidently_counts_does_not_end_the_run() {
    for (adapter, mode) in ALL_ADAPTERS.into_iter().flat_map(|one| BOTH_MODES.map(|mode| (one, mode))) {
        let replies = [
            weather_call("call_0", "Oslo"),
            weather_call("call_0", "Rome"),
            // Now it is known that the ids are numbers, so this is another call.
            weather_call("call_0", "Rome"),
            FakeReply::text("Done."),
        ];
        let provider = FakeProvider::start(replies).await.expect("a provider");
        let (agent, asked) = weather_agent(model(adapter, &provider, mode, CallIdScope::Conversation));
        let result = agent.run("go").await.expect("the run finishes");
        assert_eq!(result.output_text().expect("an output"), "Done.");
        assert_eq!(*asked.lock().expect("no panic"), ["Oslo", "Rome", "Rome"], "{adapter:?}");
        // Unique ids are valid for every provider.
        let (calls, outputs) = ids_in(&provider.requests().last().expect("a request").body);
        assert_eq!(calls, ["call_0", "call_0-r2", "call_0-r3"], "{adapter:?} {mode:?}");
        assert_eq!(outputs, calls);
    }
}

#[tokio::test]
async fn the_same_call_is_answered_once_and_another_under_its_id_is_an_error() {
    for adapter in ALL_ADAPTERS {
        // The provider repeats a call, and does not count.
        for id in ["call_1", "call_9XcQ"] {
            let replies = [weather_call(id, "Oslo"), weather_call(id, "Oslo"), FakeReply::text("Done.")];
            let provider = FakeProvider::start(replies).await.expect("a provider");
            let shared = model(adapter, &provider, StreamingMode::Never, CallIdScope::Conversation);
            let (agent, asked) = weather_agent(shared);
            agent.run("go").await.expect("the run finishes");
            assert_eq!(*asked.lock().expect("no panic"), ["Oslo"], "{adapter:?}");
        }
        let replies = [weather_call("call_9XcQ", "Oslo"), weather_call("call_9XcQ", "Rome")];
        let provider = FakeProvider::start(replies).await.expect("a provider");
        let shared = model(adapter, &provider, StreamingMode::Never, CallIdScope::Conversation);
        let (agent, asked) = weather_agent(shared);
        let error = agent.run("go").await.expect_err("the id stands for two calls");
        let reused =
            ModelProtocolError::ReusedCallId { call: "call_9XcQ".into(), name: "weather".to_owned() };
        assert!(error.to_string().contains(&reused.to_string()), "{error}");
        assert_eq!(*asked.lock().expect("no panic"), ["Oslo"], "{adapter:?}");
    }
}

/// A call without an id is another call in every response: a status that is polled is read each time.
#[tokio::test]
async fn calls_without_ids_are_never_repetitions() {
    for (adapter, mode) in ALL_ADAPTERS.into_iter().flat_map(|one| BOTH_MODES.map(|mode| (one, mode))) {
        let replies = [
            weather_call("", "Oslo"),
            weather_call("", "Oslo"),
            weather_call("", "Rome"),
            FakeReply::text("Done."),
        ];
        let provider = FakeProvider::start(replies).await.expect("a provider");
        let (agent, asked) = weather_agent(model(adapter, &provider, mode, CallIdScope::Conversation));
        let result = agent.run("go").await.expect("the run finishes");
        assert_eq!(result.output_text().expect("an output"), "Done.");
        assert_eq!(*asked.lock().expect("no panic"), ["Oslo", "Oslo", "Rome"], "{adapter:?} {mode:?}");
        let (calls, outputs) = ids_in(&provider.requests().last().expect("a request").body);
        assert_eq!((calls.len(), &calls), (3, &outputs), "{adapter:?} {mode:?}");
    }
}

/// The deltas of a call have the id of its item.
#[tokio::test]
async fn deltas_have_the_unique_ids() {
    for adapter in ALL_ADAPTERS {
        let replies = [weather_call("call_1", "Oslo"), FakeReply::text("Done.")];
        let provider = FakeProvider::start(replies).await.expect("a provider");
        let shared = model(adapter, &provider, StreamingMode::Always, CallIdScope::Response);
        let (agent, _) = weather_agent(shared);
        let mut stream = agent.run("go").stream();
        let mut seen = Vec::new();
        while let Some(event) = stream.next().await {
            if let RunEventKind::ArgumentsDelta { call, .. } = event.kind {
                seen.push(call.to_string());
            }
        }
        assert!(!seen.is_empty() && seen.iter().all(|call| call == "call_1-r1"), "{adapter:?}: {seen:?}");
    }
}

//! Deferred tools that the provider searches itself.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::agent::SEARCH_TOOL;
use windlass::core::decision::{Decision, DecisionScope};
use windlass::core::item::Item;
use windlass::core::tool::ToolEffect;
use windlass::model::{ModelErrorKind, ModelSettings, ToolSearchPlace};
use windlass::prelude::*;
use windlass::store::MemoryStore;
use windlass_models::testing::{FakeProvider, FakeReply};

use crate::support::{PROVIDERS, TestRequest, function_tool, hosted_tool, send_to};

fn provider_search() -> ModelSettings {
    ModelSettings { tool_search: Some(ToolSearchPlace::Provider), ..ModelSettings::default() }
}

fn tool(name: &str) -> Tool {
    let schema = json!({ "type": "object", "properties": { "invoice": { "type": "string" } } });
    let body = |_: ToolContext, _: Value| async { Ok::<_, String>("done") };
    Tool::dynamic(name, "Works on an invoice.", schema, body).non_strict().effect(ToolEffect::Pure)
}

fn agent(model: impl Into<windlass::model::SharedModel>) -> Agent {
    Agent::new("desk")
        .model(model)
        .model_settings(provider_search())
        .tool(tool("greet"))
        .tool(tool("refund").needs_approval().deferred())
        .tool(tool("remind").deferred())
}

/// A search of Anthropic's that found `refund`, and a call of it.
fn messages_search() -> FakeReply {
    let content = json!([
        { "type": "server_tool_use", "id": "srvtoolu_1", "name": "tool_search_tool_bm25", "input": { "query": "pay back" } },
        { "type": "tool_search_tool_result", "tool_use_id": "srvtoolu_1", "content": {
            "type": "tool_search_tool_search_result",
            "tool_references": [{ "type": "tool_reference", "tool_name": "refund" }],
        }},
        { "type": "tool_use", "id": "toolu_1", "name": "refund", "input": { "invoice": "7" } },
    ]);
    let body = json!({ "id": "m1", "type": "message", "role": "assistant", "stop_reason": "tool_use",
        "content": content, "usage": { "input_tokens": 3, "output_tokens": 1 } });
    FakeReply::json_body(body.to_string())
}

/// The same search of OpenAI's. A function that was deferred has its own name as its namespace.
fn responses_search() -> FakeReply {
    let function = json!({ "type": "function", "name": "refund", "defer_loading": true, "parameters": {} });
    let output = json!([
        { "type": "tool_search_call", "id": "tsc_1", "call_id": null, "execution": "server", "status": "completed",
          "arguments": { "paths": ["refund"] } },
        { "type": "tool_search_output", "id": "tso_1", "call_id": null, "execution": "server",
          "status": "completed", "tools": [function] },
        { "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "refund", "namespace": "refund",
          "arguments": "{\"invoice\":\"7\"}", "status": "completed" },
    ]);
    FakeReply::json_body(
        json!({ "id": "resp_1", "object": "response", "status": "completed", "output": output }).to_string(),
    )
}

#[tokio::test]
async fn the_provider_gets_every_definition_and_its_own_search() {
    let request = |settings: ModelSettings, tools| TestRequest {
        tools,
        deferred_tools: vec![function_tool("refund"), function_tool("remind")],
        settings,
        ..TestRequest::from_items([Item::user("Refund it.")])
    };
    for provider in PROVIDERS {
        let tools = vec![function_tool("greet")];
        let sent = send_to(provider, &request(provider_search(), tools)).await;
        let search = match (provider.0, provider.2) {
            (_, "responses") => json!({ "type": "tool_search" }),
            ("anthropic", _) => {
                json!({ "type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25" })
            }
            _ => {
                let error = sent.expect_err("it has no search");
                assert_eq!(error.kind(), ModelErrorKind::InvalidRequest, "{}", provider.0);
                assert!(error.to_string().contains("`tool_search`"), "{}: {error}", provider.0);
                // The search of this library needs nothing of the provider.
                let local =
                    ModelSettings { tool_search: Some(ToolSearchPlace::Local), ..ModelSettings::default() };
                let request =
                    TestRequest { settings: local, ..TestRequest::from_items([Item::user("Refund it.")]) };
                send_to(provider, &request).await.expect("an answer");
                continue;
            }
        };
        let tools = sent.expect("an answer").body["tools"].as_array().expect("tools").clone();
        assert_eq!(tools.len(), 4, "{}: {tools:?}", provider.0);
        assert_eq!((&tools[0]["name"], tools[0].get("defer_loading")), (&json!("greet"), None));
        assert_eq!(tools[1], search, "{}", provider.0);
        for (tool, name) in tools[2..].iter().zip(["refund", "remind"]) {
            assert_eq!(
                (&tool["name"], &tool["defer_loading"]),
                (&json!(name), &json!(true)),
                "{}",
                provider.0
            );
            assert_eq!(tool.get("cache_control"), None, "a deferred tool is not part of the prompt");
        }
    }
    // A search that the application chose stays the only one.
    let regex = json!({ "type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex" });
    let anthropic = ("anthropic", "ANTHROPIC_BASE_URL", "messages");
    let sent = send_to(anthropic, &request(provider_search(), vec![hosted_tool(regex.clone())])).await;
    let tools = sent.expect("an answer").body["tools"].clone();
    assert_eq!((&tools[0], tools.as_array().map(Vec::len)), (&regex, Some(3)));
}

#[tokio::test]
async fn what_the_provider_found_survives_a_resume() {
    for api in ["messages", "responses"] {
        let (search, last, call) = match api {
            "messages" => (messages_search(), FakeReply::text("Refunded."), "toolu_1"),
            _ => (responses_search(), FakeReply::text("Refunded."), "call_1"),
        };
        let server = FakeProvider::start([search, last]).await.expect("a server");
        let model = || -> windlass::model::SharedModel {
            match api {
                "messages" => server.anthropic().messages("claude-opus-4-5").expect("a model").into(),
                _ => server.openai().responses("gpt-5.4").expect("a model").into(),
            }
        };
        let store = Arc::new(MemoryStore::default());
        let paused = agent(model()).run("Refund invoice 7.").run_id("run-1").store(store.clone()).await;
        let paused = paused.expect("it pauses");
        assert!(paused.is_paused(), "{api}");
        drop(paused);
        let approve = Decision::Approve;
        windlass::store::post_decision(
            &*store,
            &"run-1".into(),
            call,
            approve,
            DecisionScope::ThisCall,
            "dee",
        )
        .await
        .expect("posted");
        let done = agent(model()).recover("run-1", store).await.expect("it ends");
        assert_eq!(done.output_text().expect("text"), "Refunded.");
        let requests = server.requests();
        assert_eq!(
            requests[0].body["tools"], requests[1].body["tools"],
            "{api}: the prompt begins as before"
        );
        let sent = requests[1].body.to_string();
        assert!(!sent.contains(SEARCH_TOOL), "{api}: the search of this library is not offered");
        match api {
            "messages" => {
                let said = &requests[1].body["messages"][1]["content"];
                assert_eq!(said[0]["type"], "server_tool_use");
                assert_eq!(said[1]["content"]["tool_references"][0]["tool_name"], "refund");
                assert_eq!(said[2]["name"], "refund");
            }
            _ => {
                let input = &requests[1].body["input"];
                assert_eq!(input[1]["type"], "tool_search_call");
                assert_eq!(input[2]["tools"][0]["name"], "refund");
                assert_eq!((&input[3]["name"], &input[3]["namespace"]), (&json!("refund"), &json!("refund")));
                assert_eq!((&input[4]["call_id"], &input[4]["output"]), (&json!("call_1"), &json!("done")));
            }
        }
    }
}

/// A model without a search of its own is offered what an earlier provider has found.
#[tokio::test]
async fn another_model_has_the_tools_that_a_provider_found() {
    for (api, search, call) in
        [("messages", messages_search(), "toolu_1"), ("responses", responses_search(), "call_1")]
    {
        let server = FakeProvider::start([search]).await.expect("a server");
        let first: windlass::model::SharedModel = match api {
            "messages" => server.anthropic().messages("claude-opus-4-5").expect("a model").into(),
            _ => server.openai().responses("gpt-5.4").expect("a model").into(),
        };
        let store = Arc::new(MemoryStore::default());
        let paused = agent(first).run("Refund invoice 7.").run_id("run-1").store(store.clone()).await;
        assert!(paused.expect("it pauses").is_paused());
        let approve = Decision::Approve;
        windlass::store::post_decision(
            &*store,
            &"run-1".into(),
            call,
            approve,
            DecisionScope::ThisCall,
            "dee",
        )
        .await
        .expect("posted");
        let second = ScriptedModel::new([ScriptedResponse::text("Refunded.")]);
        let local = agent(second.clone()).model_settings(ModelSettings::default());
        local.recover("run-1", store).await.expect("it ends").output_text().expect("text");
        let offered = second.requests()[0].tools.clone();
        assert_eq!(offered, ["greet", SEARCH_TOOL, "refund"], "{api}");
    }
}

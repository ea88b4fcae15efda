//! Extra fields remove nothing, and conversations that the provider stores are continued. `tests/providers` has the table
//! of all settings.

use serde_json::{Value, json};
use windlass::model::{ModelErrorKind, ModelSettings, OutputSchema, ToolChoice};
use windlass_models::StreamingMode;
use windlass_models::testing::{FakeProvider, FakeReply};

use crate::support::{AdapterTestRequest, AdapterUnderTest, function_tool};

async fn sent_body(adapter: AdapterUnderTest, request: &AdapterTestRequest) -> Value {
    let provider = FakeProvider::start([FakeReply::text("ok")]).await.expect("a provider");
    request.send(&adapter.model(&provider, StreamingMode::Never)).await.expect("an answer");
    provider.requests().remove(0).body
}

fn extra(value: &Value) -> ModelSettings {
    ModelSettings { extra: value.as_object().cloned().unwrap_or_default(), ..ModelSettings::default() }
}

#[tokio::test]
async fn extra_fields_are_merged_with_what_the_library_wrote() {
    let mut asked = AdapterTestRequest::from_text("x");
    asked.tools = vec![function_tool("weather")];
    asked.output = Some(OutputSchema {
        name: "Report".to_owned(),
        schema: json!({ "type": "object" }),
        is_strict: true,
    });
    let search = json!({ "type": "web_search_20250305", "name": "web_search" });
    for (adapter, given, expected) in [
        (
            AdapterUnderTest::Responses,
            json!({
                "text": { "verbosity": "low" }, "reasoning": { "summary": "auto" }, "include": ["a"],
                "tools": [{ "type": "web_search" }], "temperature": 0.5, "user": "u1",
            }),
            json!({
                "text": {
                    "verbosity": "low",
                    "format": { "type": "json_schema", "name": "Report", "schema": { "type": "object" }, "strict": true },
                },
                "reasoning": { "effort": "low", "summary": "auto" },
                "include": ["reasoning.encrypted_content", "a"],
                "temperature": 0.5, "user": "u1",
            }),
        ),
        (
            AdapterUnderTest::Messages,
            json!({ "tools": [search], "output_config": { "task": "t" }, "temperature": 0.5 }),
            json!({
                "tool_choice": { "type": "any" },
                "output_config": {
                    "effort": "low", "format": { "type": "json_schema", "schema": { "type": "object" } }, "task": "t",
                },
                "temperature": 0.5,
            }),
        ),
        (
            AdapterUnderTest::Chat,
            json!({ "response_format": { "json_schema": { "description": "d" } }, "tools": [search] }),
            json!({
                "response_format": { "type": "json_schema", "json_schema": {
                    "name": "Report", "schema": { "type": "object" }, "strict": true, "description": "d",
                }},
            }),
        ),
    ] {
        asked.settings = ModelSettings {
            tool_choice: Some(ToolChoice::Required),
            temperature: Some(0.1),
            reasoning_effort: Some("low".to_owned()),
            store: (adapter != AdapterUnderTest::Messages).then_some(false),
            ..extra(&given)
        };
        let body = sent_body(adapter, &asked).await;
        for (field, value) in expected.as_object().expect("an object") {
            assert_eq!(&body[field], value, "{adapter:?}: {field}");
        }
        let tools = body["tools"].as_array().expect("tools");
        assert_eq!(tools.len(), 2, "{adapter:?}: the function and the extra tool: {tools:?}");
        assert!(tools[0].to_string().contains("weather"), "{adapter:?}: {tools:?}");
    }
}

#[tokio::test]
async fn only_an_explicit_word_removes_what_the_library_wrote() {
    for (adapter, field) in [
        (AdapterUnderTest::Responses, "input"),
        (AdapterUnderTest::Chat, "messages"),
        (AdapterUnderTest::Messages, "messages"),
    ] {
        for value in [json!(null), json!("text")] {
            let provider = FakeProvider::start([FakeReply::text("ok")]).await.expect("a provider");
            let model = adapter.model(&provider, StreamingMode::Never);
            let mut asked = AdapterTestRequest::from_text("x");
            asked.settings = extra(&json!({ field: value }));
            let error = asked.send(&model).await.expect_err("it would remove the conversation");
            assert_eq!(error.kind(), ModelErrorKind::InvalidRequest);
            let said = error.to_string();
            assert!(said.contains(field) && said.contains("replaced_fields"), "{said}");
            assert_eq!(provider.requests().len(), 0, "nothing was sent");

            asked.settings.replaced_fields = vec![field.to_owned()];
            asked.send(&model).await.expect("that is the word");
            assert_eq!(provider.requests()[0].body[field], value);
        }
        let mut asked = AdapterTestRequest::from_text("x");
        asked.settings.temperature = Some(0.5);
        asked.settings.replaced_fields = vec!["temperature".to_owned()];
        assert_eq!(sent_body(adapter, &asked).await.get("temperature"), None, "a field can be left out");
    }
}

#[tokio::test]
async fn a_run_can_continue_a_response_or_a_conversation_that_the_provider_stores() {
    for (settings, first, second) in [
        (
            ModelSettings { previous_response_id: Some("resp_old".to_owned()), ..ModelSettings::default() },
            json!(["resp_old", null]),
            json!(["resp_1", null]),
        ),
        (
            ModelSettings { conversation: Some("conv_1".to_owned()), ..ModelSettings::default() },
            json!([null, "conv_1"]),
            json!([null, "conv_1"]),
        ),
    ] {
        let replies = [FakeReply::call("c1", "weather", "{}"), FakeReply::text("Rain.")];
        let provider = FakeProvider::start(replies).await.expect("a provider");
        let weather: windlass::tool::Tool =
            windlass::tool::Tool::dynamic("weather", "", json!({ "type": "object" }), |_, _: Value| async {
                Ok::<_, String>("rain")
            })
            .non_strict();
        let agent = windlass::agent::Agent::new("host")
            .model(provider.openai().responses("fake-1").expect("a model"))
            .tool(weather);
        agent.run("And now?").model_settings(settings).await.expect("it ends");
        let requests = provider.requests();
        let held = |at: usize| {
            let body = &requests[at].body;
            json!([body["previous_response_id"], body["conversation"]])
        };
        assert_eq!((held(0), held(1)), (first, second));
        assert_eq!(
            requests[1].body["input"],
            json!([{ "type": "function_call_output", "call_id": "c1", "output": "rain" }]),
            "only what is new"
        );
    }
}

/// The API requires a maximum that is larger than the budget of the reasoning.
#[tokio::test]
async fn the_maximum_exceeds_the_budget_of_the_reasoning() {
    let mut asked = AdapterTestRequest::from_text("x");
    asked.settings = ModelSettings { thinking_budget: Some(16_000), ..ModelSettings::default() };
    assert_eq!(sent_body(AdapterUnderTest::Messages, &asked).await["max_tokens"], 24_192);
    asked.settings.max_tokens = Some(16_001);
    assert_eq!(sent_body(AdapterUnderTest::Messages, &asked).await["max_tokens"], 16_001);
    asked.settings.max_tokens = Some(16_000);
    let provider = FakeProvider::start([]).await.expect("a provider");
    let model = AdapterUnderTest::Messages.model(&provider, StreamingMode::Never);
    let error = asked.send(&model).await.expect_err("nothing is left for the answer");
    assert_eq!(error.kind(), ModelErrorKind::InvalidRequest);
    assert!(error.to_string().contains("`max_tokens` above `thinking_budget`"), "{error}");
    assert!(provider.requests().is_empty());
}

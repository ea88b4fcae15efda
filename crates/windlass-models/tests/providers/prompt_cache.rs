//! Prompt caching: prompts that begin as before, cache points that a provider finds again, and the key of a conversation.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use windlass::core::id::AgentName;
use windlass::core::item::{CallKind, CallOutput, Item, OutputStatus, ToolCall};
use windlass::model::{ModelRequest, ModelSettings, PromptCaching};
use windlass::prelude::*;
use windlass_models::protocol::{ChatProtocol, ModelProtocol, ProtocolRequest, ResponsesProtocol};
use windlass_models::testing::{FakeProvider, FakeReply};

use crate::support::{PROVIDERS, TestRequest, function_tool, plain_answer, registry_at};

/// A turn of the model with this many calls, and their outputs. No provider looks 20 blocks back for an entry.
const CALLS_OF_A_TURN: usize = 30;

/// Returns a conversation of this many turns.
fn conversation(turns: usize) -> Vec<Arc<Item>> {
    let mut items = vec![Item::user("Compare the weather of all cities.")];
    for turn in 0..turns {
        items.push(Item::assistant(format!("Round {turn}.")));
        let id = |call: usize| format!("call_{turn}_{call}");
        items.extend((0..CALLS_OF_A_TURN).map(|call| {
            Item::Call(ToolCall {
                id: id(call).into(),
                name: "weather".to_owned(),
                namespace: None,
                arguments: json!({ "city": format!("c{call}") }).to_string(),
                item_id: None,
                kind: CallKind::Function,
                provider_data: None,
            })
        }));
        items.extend((0..CALLS_OF_A_TURN).map(|call| {
            Item::Output(CallOutput {
                call: id(call).into(),
                content: format!("rain {turn} {call}").into(),
                status: OutputStatus::Ok,
                sources: Default::default(),
            })
        }));
    }
    items.into_iter().map(Arc::new).collect()
}

fn request(turns: usize, settings: ModelSettings) -> TestRequest {
    let tools = vec![function_tool("weather"), function_tool("time")];
    TestRequest { input: conversation(turns), tools, settings, ..TestRequest::default() }
}

/// Sends a request to a model of a provider, and returns the body that the server received.
async fn sent_body(
    (provider, variable, api): (&str, &str, &str),
    model: &str,
    request: &TestRequest,
) -> Value {
    let server = FakeProvider::start([plain_answer(api)]).await.expect("a server");
    let model = registry_at(&server, variable).model(&format!("{provider}:{model}")).expect("a model");
    request.send(&model).await.expect("an answer");
    server.requests().remove(0).body
}

/// The name of a model that has cache points, if the provider has such models.
fn model_with_points(provider: &str) -> Option<&'static str> {
    match provider {
        "anthropic" | "bedrock-anthropic" => Some("claude-opus-4-5"),
        "bedrock" => Some("eu.anthropic.claude-opus-4-5-20251101-v1:0"),
        "openrouter" => Some("anthropic/claude-opus-4.5"),
        _ => None,
    }
}

/// The blocks of a prompt in the provider's order, each with a mark if the prompt is cached up to it.
fn blocks(body: &Value) -> Vec<(String, bool)> {
    let mut blocks: Vec<(String, bool)> = Vec::new();
    let mut push = |place: &str, block: &Value| {
        if block.get("cachePoint").is_some() {
            blocks.last_mut().expect("a block before the point").1 = true;
            return;
        }
        let mut block = block.clone();
        let has_point = block.as_object_mut().is_some_and(|fields| fields.remove("cache_control").is_some());
        blocks.push((format!("{place} {block}"), has_point));
    };
    let list = |value: &Value| match value {
        Value::Array(values) => values.clone(),
        Value::Null => Vec::new(),
        // A text is the same as a list with one part.
        Value::String(text) => vec![json!({ "type": "text", "text": text })],
        other => vec![other.clone()],
    };
    for tool in list(&body["tools"]).iter().chain(&list(&body["toolConfig"]["tools"])) {
        push("tool", tool);
    }
    for field in ["system", "instructions", "systemInstruction"] {
        list(&body[field]).iter().for_each(|block| push(field, block));
    }
    for message in ["messages", "input", "contents"].iter().flat_map(|field| list(&body[*field])) {
        let role = message["role"].as_str().unwrap_or_default().to_owned();
        let parts = ["content", "parts"].iter().flat_map(|field| list(&message[*field])).collect::<Vec<_>>();
        if parts.is_empty() || message.get("tool_calls").is_some() {
            push(&role, &message);
        }
        parts.iter().for_each(|part| push(&role, part));
    }
    blocks
}

#[tokio::test]
async fn a_prompt_begins_as_the_one_before() {
    for provider in PROVIDERS {
        let model = model_with_points(provider.0).unwrap_or("m1");
        let mut before: Vec<String> = Vec::new();
        for turns in 0..4 {
            let body = sent_body(provider, model, &request(turns, ModelSettings::default())).await;
            let now: Vec<String> = blocks(&body).into_iter().map(|(block, _)| block).collect();
            assert!(
                now.len() > before.len() && now.starts_with(&before),
                "{} after {turns} turns",
                provider.0
            );
            before = now;
        }
    }
}

/// A provider that caches what has a point, and looks for entries only where a request has points.
#[tokio::test]
async fn each_request_reads_all_of_the_one_before_from_the_cache() {
    for provider in PROVIDERS {
        let Some(model) = model_with_points(provider.0) else { continue };
        let mut entries: BTreeSet<Vec<String>> = BTreeSet::new();
        let mut length_before = 0;
        for turns in 0..5 {
            let body = sent_body(provider, model, &request(turns, ModelSettings::default())).await;
            let blocks = blocks(&body);
            let prefix =
                |end: usize| blocks[..=end].iter().map(|(block, _)| block.clone()).collect::<Vec<_>>();
            let points: Vec<usize> =
                blocks.iter().enumerate().filter(|(_, block)| block.1).map(|(place, _)| place).collect();
            assert!(points.len() <= 4, "{}: {points:?}", provider.0);
            let hit = points.iter().filter(|end| entries.contains(&prefix(**end))).max();
            assert_eq!(hit.map_or(0, |end| end + 1), length_before, "{} after {turns} turns", provider.0);
            entries.extend(points.iter().map(|end| prefix(*end)));
            length_before = blocks.len();
        }
    }
}

/// The number of cache points anywhere in a body.
fn count_points(value: &Value) -> usize {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| {
                usize::from(key == "cache_control" || key == "cachePoint") + count_points(value)
            })
            .sum(),
        Value::Array(values) => values.iter().map(count_points).sum(),
        _ => 0,
    }
}

#[tokio::test]
async fn points_are_where_the_provider_wants_them() {
    let ephemeral = json!({ "type": "ephemeral" });
    let anthropic = ("anthropic", "ANTHROPIC_BASE_URL", "messages");
    let body = sent_body(anthropic, "claude-opus-4-5", &request(2, ModelSettings::default())).await;
    assert_eq!(body["tools"][1]["cache_control"], ephemeral, "after the last tool");
    assert_eq!(body["system"], json!([{ "type": "text", "text": "Be brief.", "cache_control": ephemeral }]));
    let last = |turn: usize| body["messages"][turn]["content"].as_array().expect("blocks").last().cloned();
    assert_eq!(last(4).expect("a block")["cache_control"], ephemeral, "at the end");
    assert_eq!(last(2).expect("a block")["cache_control"], ephemeral, "at the end of the request before");
    assert_eq!(count_points(&body), 4);

    let bedrock = ("bedrock", "BEDROCK_BASE_URL", "converse");
    let point = json!({ "cachePoint": { "type": "default" } });
    let body =
        sent_body(bedrock, "anthropic.claude-sonnet-4-5-v1:0", &request(1, ModelSettings::default())).await;
    assert_eq!(body["toolConfig"]["tools"][2], point);
    assert_eq!(body["system"], json!([{ "text": "Be brief." }, point]));
    assert_eq!(body["messages"][0]["content"][1], point);
    assert_eq!(body["messages"][2]["content"][CALLS_OF_A_TURN], point);
    let nova = sent_body(bedrock, "amazon.nova-lite-v1:0", &request(1, ModelSettings::default())).await;
    assert_eq!(count_points(&nova["toolConfig"]), 0, "Amazon's models cache no tools");
    assert_eq!(count_points(&nova), 3);
    // A model that may not support points gets them only if the settings ask for them.
    let old = "anthropic.claude-3-haiku-20240307-v1:0";
    assert_eq!(count_points(&sent_body(bedrock, old, &request(1, ModelSettings::default())).await), 0);
    let asked = ModelSettings { prompt_cache: Some(PromptCaching::Automatic), ..ModelSettings::default() };
    assert_eq!(count_points(&sent_body(bedrock, "my-profile", &request(1, asked)).await), 4);

    let openrouter = ("openrouter", "OPENROUTER_BASE_URL", "chat");
    let body =
        sent_body(openrouter, "anthropic/claude-opus-4.5", &request(0, ModelSettings::default())).await;
    assert_eq!(body["messages"][0]["content"][0]["cache_control"], ephemeral, "the instructions");
    assert_eq!(body["messages"][1]["content"][0]["cache_control"], ephemeral, "the conversation");
    let other = sent_body(openrouter, "openai/gpt-5.2", &request(0, ModelSettings::default())).await;
    assert_eq!(count_points(&other), 0);
    assert_eq!(other["messages"][1]["content"], "Compare the weather of all cities.");
}

#[tokio::test]
async fn points_can_be_left_out_set_by_hand_and_kept_longer() {
    let provider = ("anthropic", "ANTHROPIC_BASE_URL", "messages");
    let send = |request: TestRequest| async move { sent_body(provider, "claude-opus-4-5", &request).await };
    let off = ModelSettings { prompt_cache: Some(PromptCaching::Off), ..ModelSettings::default() };
    let body = send(request(2, off)).await;
    assert_eq!((count_points(&body), &body["system"]), (0, &json!("Be brief.")));

    let by_hand = json!({ "extra": { "cache_control": { "type": "ephemeral" } } });
    let body = send(request(2, serde_json::from_value(by_hand).expect("settings"))).await;
    assert_eq!(count_points(&body), 1, "the points of the application replace ours");

    let hour = ModelSettings { prompt_cache_retention: Some("1h".to_owned()), ..ModelSettings::default() };
    let body = send(request(2, hour.clone())).await;
    assert_eq!(body["system"][0]["cache_control"], json!({ "type": "ephemeral", "ttl": "1h" }));

    // A single question is not worth an entry in the cache, unless the settings ask for one.
    let question = |settings| TestRequest { settings, ..TestRequest::from_items([Item::user("Hello")]) };
    assert_eq!(count_points(&send(question(ModelSettings::default())).await), 0);
    assert_eq!(count_points(&send(question(hour.clone())).await), 2);

    let server = FakeProvider::start([]).await.expect("a server");
    let model = server.anthropic().messages("claude-opus-4-5").expect("a model").into();
    let both = ModelSettings { prompt_cache: Some(PromptCaching::Off), ..hour };
    let error = question(both).send(&model).await.expect_err("a contradiction");
    assert!(error.to_string().contains("`prompt_cache_retention` contradicts `prompt_cache`"), "{error}");
}

#[test]
fn requests_of_a_conversation_have_one_key() {
    let key = |host: &str, agent: &str, id: Option<&str>, settings: &ModelSettings| {
        let (agent, input) = (AgentName::from(agent), [Arc::new(Item::user("Hello"))]);
        let request = ModelRequest {
            agent: &agent,
            turn: 1,
            instructions: None,
            input: &input,
            tools: &[],
            deferred_tools: &[],
            handoffs: &[],
            settings,
            output_schema: None,
            previous_response_id: None,
            conversation_id: id,
        };
        let request = ProtocolRequest { request, model: "m1", host, is_streamed: false, origin: "o" };
        let bodies = [
            ResponsesProtocol::default().encode(&request).expect("a request").body,
            ChatProtocol::default().encode(&request).expect("a request").body,
        ];
        let [one, other] = bodies
            .map(|body| serde_json::from_slice::<Value>(&body).expect("JSON")["prompt_cache_key"].clone());
        assert_eq!(one, other);
        one
    };
    let (openai, plain) = ("api.openai.com", ModelSettings::default());
    let own = key(openai, "host", Some("ann@example.org"), &plain);
    assert_eq!(own, key(openai, "host", Some("ann@example.org"), &plain));
    let text = own.as_str().expect("a key");
    assert!(text.len() == 16 && !text.contains("ann"), "{text}: the provider learns nothing of the session");
    assert_ne!(own, key(openai, "host", Some("bob@example.org"), &plain));
    assert_ne!(own, key(openai, "clerk", Some("ann@example.org"), &plain));
    assert_eq!(own, key("lab.openai.azure.com", "host", Some("ann@example.org"), &plain));
    assert_eq!(key("notopenai.com", "host", Some("s1"), &plain), Value::Null, "others may refuse the field");
    assert_eq!(key(openai, "host", None, &plain), Value::Null);
    let off = ModelSettings { prompt_cache: Some(PromptCaching::Off), ..ModelSettings::default() };
    assert_eq!(key(openai, "host", Some("s1"), &off), Value::Null);
    let named = ModelSettings { prompt_cache_key: Some("mine".to_owned()), ..ModelSettings::default() };
    assert_eq!(key(openai, "host", Some("s1"), &named), "mine");
}

/// Current weather for a city.
#[tool(effect = pure)]
async fn weather(city: String) -> String {
    format!("rain in {city}")
}

#[tokio::test]
async fn the_hit_rate_is_in_the_usage_and_in_the_events() {
    let provider = FakeProvider::start([
        FakeReply::text("I look.").and_call("toolu_1", "weather", r#"{"city":"Oslo"}"#).usage(1000, 0, 9, 0),
        FakeReply::text("Rain.").usage(1200, 1000, 5, 0),
    ])
    .await
    .expect("a server");
    let model = provider.anthropic().messages("claude-opus-4-5").expect("a model");
    let mut stream = Agent::new("guide").model(model).tool(weather).run("Oslo?").stream();
    let mut rates = Vec::new();
    while let Some(event) = stream.next().await {
        if let RunEventKind::ModelResponded(info) = event.kind {
            rates.push(info.usage.cache_hit_rate());
        }
    }
    assert_eq!(rates, [Some(0.0), Some(1000.0 / 1200.0)]);
    let result = stream.result().await.expect("it ends");
    assert_eq!(result.record().usage().cache_hit_rate(), Some(1000.0 / 2200.0));
}

//! Every setting at every provider: the fields that it becomes, or the refusal.

use serde_json::{Map, Value, json};
use windlass::core::item::Item;
use windlass::model::{ModelErrorKind, ModelSettings};

use crate::support::{PROVIDERS, TestRequest, function_tool, send_to};

/// The fields that a setting becomes in each API, `null` if the API refuses it; and the providers with Chat Completions
/// that differ.
struct SettingRow {
    setting: Value,
    responses: Value,
    chat: Value,
    messages: Value,
    gemini: Value,
    converse: Value,
    differing: Vec<(&'static [&'static str], Value)>,
}

fn row(setting: Value, [responses, chat, messages, gemini, converse]: [Value; 5]) -> SettingRow {
    SettingRow { setting, responses, chat, messages, gemini, converse, differing: Vec::new() }
}

impl SettingRow {
    fn but(mut self, providers: &'static [&'static str], fields: Value) -> Self {
        self.differing.push((providers, fields));
        self
    }
}

/// Value in place of a field that differs only in its cache points.
const POINT: &str = "other cache points";

/// Returns a value without cache points.
fn without_points(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(name, _)| *name != "cache_control");
            fields.map(|(name, value)| (name.clone(), without_points(value))).collect()
        }
        Value::Array(values) => {
            values.iter().filter(|value| value.get("cachePoint").is_none()).map(without_points).collect()
        }
        other => other.clone(),
    }
}

/// Returns a field without cache points. Instructions with a point are a list with one text.
fn comparable_field(value: &Value) -> Value {
    match value {
        Value::String(text) => json!([{ "type": "text", "text": text }]),
        value => without_points(value),
    }
}

fn same(name: &str, value: Value) -> Value {
    json!({ name: value })
}

fn table() -> Vec<SettingRow> {
    let none = || Value::Null;
    let config = |name: &str, value: Value| json!({ "generationConfig": { name: value } });
    let inference = |name: &str, value: Value| json!({ "inferenceConfig": { name: value } });
    let all = |name: &str, value: Value, camel: &str| {
        let [field, gemini, converse] =
            [same(name, value.clone()), config(camel, value.clone()), inference(camel, value.clone())];
        row(same(name, value), [field.clone(), field.clone(), field, gemini, converse])
    };
    let openai = |name: &str, value: Value| {
        let field = same(name, value);
        row(field.clone(), [field.clone(), field, none(), none(), none()])
    };
    let chat_only = |name: &str, value: Value, gemini: Value| {
        let field = same(name, value);
        row(field.clone(), [none(), field, none(), gemini, none()])
    };
    let responses_only = |name: &str, value: Value| {
        let field = same(name, value);
        row(field.clone(), [field, none(), none(), none(), none()])
    };
    vec![
        all("temperature", json!(0.5), "temperature"),
        all("top_p", json!(0.9), "topP"),
        row(
            json!({ "max_tokens": 100 }),
            [
                json!({ "max_output_tokens": 100 }),
                json!({ "max_tokens": 100 }),
                json!({ "max_tokens": 100 }),
                config("maxOutputTokens", json!(100)),
                inference("maxTokens", json!(100)),
            ],
        )
        .but(&["groq", "xai"], json!({ "max_completion_tokens": 100 })),
        row(
            json!({ "tool_choice": "required" }),
            [
                json!({ "tool_choice": "required" }),
                json!({ "tool_choice": "required" }),
                json!({ "tool_choice": { "type": "any" } }),
                json!({ "toolConfig": { "functionCallingConfig": { "mode": "ANY" } } }),
                Value::Null,
            ],
        ),
        row(
            json!({ "parallel_tool_calls": false }),
            [
                json!({ "parallel_tool_calls": false }),
                json!({ "parallel_tool_calls": false }),
                json!({ "tool_choice": { "type": "auto", "disable_parallel_tool_use": true } }),
                none(),
                none(),
            ],
        )
        .but(&["deepseek", "together"], none()),
        row(
            json!({ "stop": ["END"] }),
            [
                none(),
                json!({ "stop": ["END"] }),
                json!({ "stop_sequences": ["END"] }),
                config("stopSequences", json!(["END"])),
                inference("stopSequences", json!(["END"])),
            ],
        ),
        chat_only("seed", json!(7), config("seed", json!(7)))
            .but(&["mistral"], json!({ "random_seed": 7 }))
            .but(&["deepseek"], none()),
        chat_only("frequency_penalty", json!(0.1), config("frequencyPenalty", json!(0.1))),
        chat_only("presence_penalty", json!(0.2), config("presencePenalty", json!(0.2))),
        row(
            json!({ "reasoning_effort": "low" }),
            [
                json!({ "reasoning": { "effort": "low" } }),
                json!({ "reasoning_effort": "low" }),
                json!({ "output_config": { "effort": "low" } }),
                config("thinkingConfig", json!({ "thinkingLevel": "low" })),
                json!({ "outputConfig": { "effort": "low" } }),
            ],
        )
        .but(&["deepseek"], none()),
        row(
            json!({ "reasoning_summary": "auto" }),
            [
                json!({ "reasoning": { "summary": "auto" } }),
                none(),
                none(),
                config("thinkingConfig", json!({ "includeThoughts": true })),
                none(),
            ],
        ),
        row(
            json!({ "thinking_budget": 1024 }),
            [
                none(),
                none(),
                json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 }, "max_tokens": 9216 }),
                config("thinkingConfig", json!({ "thinkingBudget": 1024 })),
                none(),
            ],
        ),
        row(
            json!({ "verbosity": "low" }),
            [
                json!({ "text": { "verbosity": "low" } }),
                json!({ "verbosity": "low" }),
                none(),
                none(),
                none(),
            ],
        )
        .but(&["mistral", "groq", "deepseek", "xai", "together", "fireworks"], none()),
        row(
            json!({ "top_logprobs": 2 }),
            [
                json!({ "top_logprobs": 2, "include": ["message.output_text.logprobs"] }),
                json!({ "top_logprobs": 2, "logprobs": true }),
                none(),
                json!({ "generationConfig": { "responseLogprobs": true, "logprobs": 2 } }),
                none(),
            ],
        )
        .but(&["together"], none()),
        row(
            json!({ "service_tier": "flex" }),
            [
                json!({ "service_tier": "flex" }),
                json!({ "service_tier": "flex" }),
                json!({ "service_tier": "flex" }),
                none(),
                json!({ "serviceTier": { "type": "flex" } }),
            ],
        )
        .but(&["deepseek", "xai", "together"], none()),
        row(
            json!({ "metadata": { "a": "b" } }),
            [
                json!({ "metadata": { "a": "b" } }),
                json!({ "metadata": { "a": "b" } }),
                none(),
                none(),
                json!({ "requestMetadata": { "a": "b" } }),
            ],
        )
        .but(&["vertex"], json!({ "labels": { "a": "b" } }))
        .but(&["deepseek", "xai", "together"], none()),
        row(
            json!({ "safety_identifier": "u1" }),
            [
                json!({ "safety_identifier": "u1" }),
                json!({ "safety_identifier": "u1" }),
                json!({ "metadata": { "user_id": "u1" } }),
                none(),
                none(),
            ],
        )
        .but(&["mistral", "groq", "openrouter", "deepseek", "xai", "together", "fireworks"], none()),
        openai("prompt_cache_key", json!("k"))
            .but(&["groq", "openrouter", "deepseek", "xai", "together"], none()),
        row(
            json!({ "prompt_cache_retention": "1h" }),
            [
                json!({ "prompt_cache_retention": "1h" }),
                json!({ "prompt_cache_retention": "1h" }),
                // The cache points, which the test of prompt caching shows.
                json!({ "tools": POINT, "system": POINT, "messages": POINT }),
                none(),
                json!({ "toolConfig": POINT, "system": POINT, "messages": POINT }),
            ],
        )
        .but(&["mistral", "groq", "openrouter", "deepseek", "xai", "together", "fireworks"], none()),
        openai("store", json!(true))
            .but(&["mistral", "openrouter", "deepseek", "xai", "together", "fireworks"], none()),
        row(
            json!({ "prompt_cache": "off" }),
            [
                json!({}),
                json!({}),
                json!({ "tools": POINT, "system": POINT, "messages": POINT }),
                json!({}),
                json!({}),
            ],
        ),
        row(json!({ "tool_search": "provider" }), [json!({}), none(), json!({}), none(), none()])
            .but(&["bedrock-anthropic"], none()),
        responses_only("truncation", json!("auto")),
        responses_only("include", json!(["x"])),
        responses_only("max_tool_calls", json!(3)),
        responses_only("previous_response_id", json!("resp_1")),
        responses_only("conversation", json!("conv_1")),
    ]
}

/// Returns the fields in which a body differs from that of a request without settings.
fn changed_fields(body: &Value, plain: &Value) -> Value {
    let fields = body.as_object().expect("an object").iter();
    let changed = fields.filter(|(name, value)| plain.get(*name) != Some(value));
    let changed: Map<String, Value> = changed
        .map(|(name, value)| match plain.get(name).map(comparable_field) {
            Some(plain) if plain == comparable_field(value) => (name.clone(), POINT.into()),
            _ => (name.clone(), value.clone()),
        })
        .collect();
    changed.into()
}

#[tokio::test]
async fn every_setting_has_its_fields_or_its_refusal() {
    let mut seen = std::collections::BTreeSet::new();
    let request = |settings: ModelSettings| TestRequest {
        tools: vec![function_tool("weather")],
        settings,
        ..TestRequest::from_items([Item::user("Hello")])
    };
    for provider in PROVIDERS {
        let plain = send_to(provider, &request(ModelSettings::default())).await.expect("an answer").body;
        for row in table() {
            let settings: ModelSettings = serde_json::from_value(row.setting.clone()).expect("a setting");
            let names = settings.setting_names();
            seen.extend(names.clone());
            let differing = row.differing.iter().find(|(names, _)| names.contains(&provider.0));
            let mut expected = match (differing, provider.2) {
                (Some((_, fields)), _) => fields,
                (None, "responses") => &row.responses,
                (None, "chat") => &row.chat,
                (None, "messages") => &row.messages,
                (None, "gemini") => &row.gemini,
                (None, _) => &row.converse,
            }
            .clone();
            if provider.0 == "bedrock" && row.setting.get("tool_choice").is_some() {
                let mut tools = plain["toolConfig"].clone();
                tools["toolChoice"] = json!({ "any": {} });
                expected = json!({ "toolConfig": tools });
            }
            let what = format!("{} {}", provider.0, row.setting);
            match (send_to(provider, &request(settings)).await, expected) {
                (Err(error), Value::Null) => {
                    assert_eq!(error.kind(), ModelErrorKind::InvalidRequest, "{what}");
                    assert!(error.to_string().contains(names[0]), "{what}: {error}");
                }
                (Ok(sent), expected) => {
                    let mut changed = changed_fields(&sent.body, &plain);
                    // A conversation that the provider stores is sent without its instructions or its earlier items.
                    if names[0] == "conversation" || names[0] == "previous_response_id" {
                        changed.as_object_mut().expect("an object").retain(|name, _| name == names[0]);
                    }
                    assert_eq!(changed, expected, "{what}");
                }
                (Err(error), expected) => panic!("{what}: {error}; expected {expected}"),
            }
        }
    }
    // A setting that is added later does not compile here, and needs a row.
    let ModelSettings {
        tool_choice: _,
        parallel_tool_calls: _,
        max_tool_calls: _,
        temperature: _,
        top_p: _,
        frequency_penalty: _,
        presence_penalty: _,
        seed: _,
        stop: _,
        max_tokens: _,
        // It is about the answer, and is not sent.
        on_length_limit: _,
        reasoning_effort: _,
        reasoning_summary: _,
        thinking_budget: _,
        verbosity: _,
        top_logprobs: _,
        service_tier: _,
        metadata: _,
        safety_identifier: _,
        prompt_cache_key: _,
        prompt_cache_retention: _,
        prompt_cache: _,
        tool_search: _,
        truncation: _,
        store: _,
        include: _,
        previous_response_id: _,
        conversation: _,
        extra: _,
        replaced_fields: _,
    } = ModelSettings::default();
    assert_eq!(seen.len(), 27, "{seen:?}");
}

/// OpenAI and Azure have another field than the servers that the table asks, by their hosts.
#[test]
fn the_limit_of_output_tokens_has_the_field_of_the_host() {
    use std::sync::Arc;
    use windlass::core::id::AgentName;
    use windlass::model::ModelRequest;
    use windlass_models::protocol::{ChatProtocol, ModelProtocol, ProtocolRequest};
    let settings = ModelSettings { max_tokens: Some(100), ..ModelSettings::default() };
    let (agent, input) = (AgentName::from("host"), [Arc::new(Item::user("Hello"))]);
    for (host, field, other) in [
        ("api.openai.com", "max_completion_tokens", "max_tokens"),
        ("lab.openai.azure.com", "max_completion_tokens", "max_tokens"),
        ("notopenai.com", "max_tokens", "max_completion_tokens"),
        ("127.0.0.1", "max_tokens", "max_completion_tokens"),
    ] {
        let request = ModelRequest {
            agent: &agent,
            turn: 1,
            instructions: None,
            input: &input,
            tools: &[],
            deferred_tools: &[],
            handoffs: &[],
            settings: &settings,
            output_schema: None,
            previous_response_id: None,
            conversation_id: None,
        };
        let request = ProtocolRequest { request, model: "m1", host, is_streamed: false, origin: "o" };
        let body = ChatProtocol::default().encode(&request).expect("a request").body;
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!((&body[field], body.get(other)), (&json!(100), None), "{host}: {body}");
    }
}

use serde_json::json;

use super::{LengthLimitPolicy, ModelSettings, ToolChoice};

/// Settings in which every field has a value.
fn full_settings() -> serde_json::Value {
    json!({
        "tool_choice": "weather", "parallel_tool_calls": false, "max_tool_calls": 3, "temperature": 0.5,
        "top_p": 0.9, "frequency_penalty": 0.1, "presence_penalty": 0.2, "seed": 7, "stop": ["END"],
        "max_tokens": 100, "on_length_limit": "keep_text", "reasoning_effort": "low",
        "reasoning_summary": "auto", "thinking_budget": 1024, "verbosity": "low", "top_logprobs": 2,
        "service_tier": "flex", "metadata": { "a": "b" }, "safety_identifier": "u1",
        "prompt_cache_key": "k", "prompt_cache_retention": "24h", "truncation": "auto", "store": false,
        "include": ["x"], "previous_response_id": "resp_1", "conversation": "conv_1",
        "extra": { "text": { "a": 1 } }, "replaced_fields": ["tools"],
    })
}

#[test]
fn settings_are_written_and_read_and_unknown_ones_are_refused() {
    let settings: ModelSettings = serde_json::from_value(full_settings()).expect("settings");
    assert_eq!(settings.tool_choice, Some(ToolChoice::Tool("weather".to_owned())));
    assert_eq!(settings.on_length_limit, Some(LengthLimitPolicy::KeepText));
    assert_eq!(serde_json::to_value(&settings).expect("JSON"), full_settings());
    assert_eq!(serde_json::to_value(ModelSettings::default()).expect("JSON"), json!({}));
    let refused = serde_json::from_value::<ModelSettings>(json!({ "temprature": 1 })).expect_err("a typo");
    assert!(refused.to_string().contains("temprature"), "{refused}");
}

#[test]
fn every_setting_can_be_overridden_and_none_is_lost() {
    let full: ModelSettings = serde_json::from_value(full_settings()).expect("settings");
    let empty = ModelSettings::default();
    assert_eq!(empty.with_overrides(&full), full);
    assert_eq!(full.with_overrides(&empty), full);
    let over = ModelSettings {
        extra: json!({ "text": { "b": 2 }, "user": "u" }).as_object().cloned().unwrap_or_default(),
        ..ModelSettings::default()
    };
    let merged = full.with_overrides(&over).extra;
    assert_eq!(serde_json::Value::from(merged), json!({ "text": { "a": 1, "b": 2 }, "user": "u" }));
}

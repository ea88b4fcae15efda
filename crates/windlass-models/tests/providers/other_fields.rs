//! The fields of a response that no part of it has a place for.

use serde_json::{Value, json};
use windlass::core::item::Item;
use windlass::model::ModelSettings;
use windlass_models::testing::{FakeProvider, FakeReply};

use crate::support::{TestRequest, registry_at};

/// Sends a request to a provider that gives this answer, and returns the other fields.
async fn other_fields((provider, variable): (&str, &str), answer: FakeReply) -> Value {
    let server = FakeProvider::start([answer]).await.expect("a server");
    let model = registry_at(&server, variable).model(&format!("{provider}:m1")).expect("a model");
    let request =
        TestRequest { settings: ModelSettings::default(), ..TestRequest::from_items([Item::user("Hello.")]) };
    Value::Object(request.send(&model).await.expect("an answer").details.other)
}

#[tokio::test]
async fn whatever_else_a_response_has_is_kept() {
    let chat = json!({ "id": "c1", "object": "chat.completion", "created": 1, "system_fingerprint": "fp_1",
        "provider": "Azure", "citations": ["https://a.example"], "prompt_filter_results": [{ "prompt_index": 0 }],
        "choices": [{ "index": 0, "finish_reason": "stop", "content_filter_results": { "hate": { "filtered": false } },
            "message": { "role": "assistant", "content": "ok" } }] });
    let kept =
        other_fields(("openrouter", "OPENROUTER_BASE_URL"), FakeReply::json_body(chat.to_string())).await;
    let expected = json!({ "system_fingerprint": "fp_1", "provider": "Azure", "citations": ["https://a.example"],
        "prompt_filter_results": [{ "prompt_index": 0 }], "content_filter_results": { "hate": { "filtered": false } } });
    assert_eq!(kept, expected);

    let responses = json!({ "id": "r1", "object": "response", "created_at": 1, "status": "completed",
        "instructions": "Be brief.", "tools": [], "temperature": 1.0, "text": { "format": { "type": "text" } },
        "reasoning": { "effort": null }, "content_filters": [{ "blocked": false }], "error": null,
        "output": [{ "type": "message", "role": "assistant", "id": "m1", "status": "completed",
            "content": [{ "type": "output_text", "text": "ok", "annotations": [] }] }] });
    let kept = other_fields(("openai", "OPENAI_BASE_URL"), FakeReply::json_body(responses.to_string())).await;
    assert_eq!(
        kept,
        json!({ "content_filters": [{ "blocked": false }] }),
        "nothing that repeats the request"
    );

    let messages = json!({ "id": "m1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "content": [{ "type": "text", "text": "ok" }], "container": { "id": "box" },
        "usage": { "input_tokens": 3, "output_tokens": 1 } });
    let kept =
        other_fields(("anthropic", "ANTHROPIC_BASE_URL"), FakeReply::json_body(messages.to_string())).await;
    assert_eq!(kept, json!({ "container": { "id": "box" } }));

    let gemini = json!({ "candidates": [{ "index": 0, "content": { "role": "model", "parts": [{ "text": "ok" }] },
            "finishReason": "STOP", "safetyRatings": [{ "category": "HARM", "probability": "LOW" }] }],
        "promptFeedback": { "safetyRatings": [] }, "createTime": "2025-01-01T00:00:00Z" });
    let kept = other_fields(("gemini", "GEMINI_BASE_URL"), FakeReply::json_body(gemini.to_string())).await;
    let expected = json!({ "safetyRatings": [{ "category": "HARM", "probability": "LOW" }],
        "promptFeedback": { "safetyRatings": [] }, "createTime": "2025-01-01T00:00:00Z" });
    assert_eq!(kept, expected);

    let converse = json!({ "output": { "message": { "role": "assistant", "content": [{ "text": "ok" }] } },
        "stopReason": "end_turn", "usage": { "inputTokens": 3, "outputTokens": 1, "totalTokens": 4 },
        "metrics": { "latencyMs": 7 }, "trace": { "guardrail": {} } });
    let kept =
        other_fields(("bedrock", "BEDROCK_BASE_URL"), FakeReply::json_body(converse.to_string())).await;
    assert_eq!(kept, json!({ "metrics": { "latencyMs": 7 }, "trace": { "guardrail": {} } }));
}

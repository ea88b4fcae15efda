//! Data that only its provider can read: it goes back with its item on every path, and never to another provider.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::core::item::Item;
use windlass::model::SharedModel;
use windlass_models::StreamingMode;
use windlass_models::testing::{FakeProvider, FakeReply};

use crate::support::{ALL_ADAPTERS, AdapterTestRequest, AdapterUnderTest, send_once};

/// A message of Chat Completions with everything that gateways add to reasoning and calls.
fn signed_message() -> Value {
    json!({
        "role": "assistant",
        "content": null,
        "reasoning": "Look.",
        "reasoning_details": [
            { "type": "reasoning.text", "text": "Look.", "signature": "sig-1", "index": 0 },
            { "type": "reasoning.encrypted", "data": "c2VhbA==", "index": 1 },
        ],
        "thinking_blocks": [{ "type": "thinking", "thinking": "Look.", "signature": "sig-2" }],
        "provider_specific_fields": { "trace": "t" },
        "tool_calls": [{
            "id": "c1",
            "type": "function",
            "function": {
                "name": "weather", "arguments": "{}", "provider_specific_fields": { "thought_signature": "sig-4" },
            },
            "extra_content": { "google": { "thought_signature": "sig-3" } },
            "provider_specific_fields": { "thought_signature": "sig-4" },
        }],
    })
}

/// The same message as the pieces of a stream.
fn signed_events() -> String {
    let deltas = [
        json!({ "role": "assistant", "reasoning": "Lo", "reasoning_details": [{ "type": "reasoning.text", "text": "Lo", "index": 0 }],
            "thinking_blocks": [{ "type": "thinking", "thinking": "Lo", "signature": "" }] }),
        json!({ "reasoning": "ok.", "reasoning_details": [{ "type": "reasoning.text", "text": "ok.", "signature": null, "index": 0 }],
            "thinking_blocks": [{ "type": "thinking", "thinking": "ok.", "signature": "" }] }),
        json!({ "reasoning_details": [{ "type": "reasoning.text", "signature": "sig-1", "index": 0 }],
            "thinking_blocks": [{ "type": "thinking", "thinking": "", "signature": "sig-2" }] }),
        json!({ "reasoning_details": [{ "type": "reasoning.encrypted", "data": "c2VhbA==", "index": 1 }],
            "provider_specific_fields": { "trace": "t" } }),
        json!({ "tool_calls": [{ "index": 0, "id": "c1", "type": "function",
            "function": { "name": "weather", "arguments": "{", "provider_specific_fields": { "thought_signature": "sig-4" } },
            "extra_content": { "google": { "thought_signature": "sig-3" } },
            "provider_specific_fields": { "thought_signature": "sig-4" } }] }),
        json!({ "tool_calls": [{ "index": 0, "function": { "arguments": "}" } }] }),
    ];
    let mut text = String::new();
    for delta in deltas {
        text += &format!("data: {}\n\n", json!({ "choices": [{ "index": 0, "delta": delta }] }));
    }
    text + "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n"
}

#[tokio::test]
async fn signed_reasoning_and_signed_calls_go_back_as_they_came() {
    let plain =
        json!({ "choices": [{ "index": 0, "message": signed_message(), "finish_reason": "tool_calls" }] });
    for (streaming, reply) in [
        (StreamingMode::Never, FakeReply::json_body(plain.to_string())),
        (StreamingMode::Always, FakeReply::event_body(signed_events())),
    ] {
        let provider = FakeProvider::start([reply, FakeReply::text("Done.")]).await.expect("one");
        let model = AdapterUnderTest::Chat.model(&provider, streaming);
        let answer = AdapterTestRequest::from_text("Go.").send(&model).await.expect("an answer");
        // The journal keeps items as JSON.
        let kept = serde_json::to_string(&answer.items).expect("JSON");
        let input: Vec<Arc<Item>> = serde_json::from_str(&kept).expect("items");
        let next = AdapterTestRequest { input, ..AdapterTestRequest::default() };
        next.send(&model).await.expect("an answer");
        assert_eq!(provider.requests()[1].body["messages"], json!([signed_message()]), "{streaming:?}");
    }
}

#[tokio::test]
async fn a_signature_stays_with_its_call_when_the_reasoning_is_gone() {
    let plain =
        json!({ "choices": [{ "index": 0, "message": signed_message(), "finish_reason": "tool_calls" }] });
    let provider = FakeProvider::start([FakeReply::json_body(plain.to_string()), FakeReply::text("Done.")])
        .await
        .expect("one");
    let model = AdapterUnderTest::Chat.model(&provider, StreamingMode::Never);
    let answer = AdapterTestRequest::from_text("Go.").send(&model).await.expect("an answer");
    let calls = answer.items.into_iter().filter(|item| matches!(**item, Item::Call(_))).collect();
    let next = AdapterTestRequest { input: calls, ..AdapterTestRequest::default() };
    next.send(&model).await.expect("an answer");
    assert_eq!(
        provider.requests()[1].body["messages"][0]["tool_calls"],
        signed_message()["tool_calls"],
        "a turn that lost its other items has its signatures"
    );
}

#[tokio::test]
async fn no_other_provider_receives_what_only_one_can_read() {
    let secrets = ["sealed", "signed", "sig-", "c2VhbA==", "srv-raw", "caller"];
    for adapter in ALL_ADAPTERS {
        let hosted = json!({ "type": "server_tool_use", "id": "srv-raw", "name": "web_search", "input": {} });
        let reply = match adapter {
            AdapterUnderTest::Chat => FakeReply::json_body(
                json!({ "choices": [{ "message": signed_message(), "finish_reason": "tool_calls" }] }).to_string(),
            ),
            AdapterUnderTest::Responses => FakeReply::reasoning("rs_1", "Look.").and_item(json!({
                "type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": "{}",
                "caller": { "type": "program", "caller_id": "p" },
            })),
            AdapterUnderTest::Messages => FakeReply::reasoning("rs_1", "Look.").and_item(hosted).and_item(json!({
                "type": "tool_use", "id": "c1", "name": "weather", "input": {}, "caller": { "type": "direct" },
            })),
        };
        let answer = send_once(adapter, StreamingMode::Never, reply).await.expect("an answer");
        let sent = async |model: SharedModel, provider: &FakeProvider| {
            let next = AdapterTestRequest { input: answer.items.clone(), ..AdapterTestRequest::default() };
            next.send(&model).await.expect("an answer");
            provider.requests().pop().expect("a request").body.to_string()
        };
        let replies = || [FakeReply::text("a"), FakeReply::text("b")];
        let provider = FakeProvider::start(replies()).await.expect("one");
        let own = sent(adapter.model(&provider, StreamingMode::Never), &provider).await;
        assert!(
            secrets.iter().any(|secret| own.contains(secret)),
            "{adapter:?}: its own provider does: {own}"
        );
        let other: SharedModel = match adapter {
            AdapterUnderTest::Responses => {
                provider.openai().provider_id("b").responses("fake-1").expect("it").into()
            }
            AdapterUnderTest::Chat => provider.openai().provider_id("b").chat("fake-1").expect("it").into(),
            AdapterUnderTest::Messages => {
                provider.anthropic().provider_id("b").messages("fake-1").expect("it").into()
            }
        };
        let others = sent(other, &provider).await;
        assert!(others.contains("weather"), "the call itself does go: {others}");
        for secret in secrets {
            assert!(!others.contains(secret), "{adapter:?}: {secret} in {others}");
        }
    }
}

#[tokio::test]
async fn fields_that_say_nothing_make_no_item() {
    let silent = json!({ "refusal": null, "citations": [null], "more": {} });
    let call = json!({ "id": "c1", "type": "function", "provider_specific_fields": silent,
        "function": { "name": "weather", "arguments": "{}", "provider_specific_fields": silent } });
    let message = json!({ "role": "assistant", "content": null, "tool_calls": [call],
        "provider_specific_fields": silent, "extra_content": {} });
    let choice = json!({ "index": 0, "finish_reason": "tool_calls" });
    let choice_with = |part: &str| {
        let mut choice = choice.clone();
        choice[part] = message.clone();
        json!({ "choices": [choice] })
    };
    let events = format!("data: {}\n\ndata: [DONE]\n\n", choice_with("delta"));
    for (streaming, reply) in [
        (StreamingMode::Never, FakeReply::json_body(choice_with("message").to_string())),
        (StreamingMode::Always, FakeReply::event_body(events)),
    ] {
        let answer = send_once(AdapterUnderTest::Chat, streaming, reply).await.expect("an answer");
        let [Item::Call(call)] = &answer.items.iter().map(|item| &**item).collect::<Vec<_>>()[..] else {
            panic!("{streaming:?}: {:?}", answer.items)
        };
        assert_eq!(call.provider_data, None, "{streaming:?}");
    }
}

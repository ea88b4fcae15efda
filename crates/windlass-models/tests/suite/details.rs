//! What a response says beside its items, responses that end early, and turns that the provider pauses.

use serde_json::{Value, json};
use windlass::agent::Agent;
use windlass::core::item::Item;
use windlass::model::{
    FinishReason, LengthLimitPolicy, ModelErrorKind, ModelSettings, RateLimitBudget, describe_item,
};
use windlass_models::StreamingMode;
use windlass_models::testing::{FakeProvider, FakeReply, FakeStopReason};

use crate::support::{ALL_ADAPTERS, AdapterTestRequest, AdapterUnderTest, BOTH_MODES, send_once};

fn lines(items: &[std::sync::Arc<Item>]) -> Vec<String> {
    items.iter().map(|item| describe_item(item)).collect()
}

#[tokio::test]
async fn a_text_that_reached_the_limit_is_kept_where_the_settings_say_so() {
    for adapter in ALL_ADAPTERS {
        for streaming in BOTH_MODES {
            let cut = || FakeReply::text("Half of i").stop(FakeStopReason::MaxTokens).usage(7, 0, 3, 0);
            let error = send_once(adapter, streaming, cut()).await.expect_err("the default");
            assert_eq!(error.kind(), ModelErrorKind::Incomplete);
            let partial = error.partial_response().expect("what there was");
            assert_eq!(lines(&partial.items), ["assistant: Half of i"], "{adapter:?}, {streaming:?}");
            assert!(error.to_string().contains("on_length_limit"), "{error}");

            let provider =
                FakeProvider::start([cut(), cut().and_call("c1", "weather", "{}")]).await.expect("one");
            let model = adapter.model(&provider, streaming);
            let mut asked = AdapterTestRequest::from_text("x");
            asked.settings.on_length_limit = Some(LengthLimitPolicy::KeepText);
            let answer = asked.send(&model).await.expect("the text");
            assert_eq!(lines(&answer.items), ["assistant: Half of i"]);
            assert_eq!(answer.details.finish_reason, Some(FinishReason::LengthLimit));
            assert_eq!(answer.usage.map(|usage| usage.output_tokens), Some(3));
            let error = asked.send(&model).await.expect_err("a call may be cut");
            assert_eq!(error.kind(), ModelErrorKind::Incomplete, "{adapter:?}, {streaming:?}: {error}");
        }
    }
    let provider = FakeProvider::start([FakeReply::text("Half of i").stop(FakeStopReason::MaxTokens)])
        .await
        .expect("one");
    let agent = Agent::new("host").model(provider.openai().responses("fake-1").expect("a model"));
    let settings =
        ModelSettings { on_length_limit: Some(LengthLimitPolicy::KeepText), ..ModelSettings::default() };
    let outcome = agent.run("x").model_settings(settings).await.expect("it ends");
    assert_eq!(outcome.output_text().expect("it finished"), "Half of i");
}

#[tokio::test]
async fn reasons_are_kept() {
    for adapter in ALL_ADAPTERS {
        for streaming in BOTH_MODES {
            for (reply, reason) in [
                (FakeReply::text("Done."), FinishReason::Complete),
                (FakeReply::call("c1", "weather", "{}"), FinishReason::ToolCalls),
            ] {
                let answer = send_once(adapter, streaming, reply).await.expect("an answer");
                assert_eq!(answer.details.finish_reason, Some(reason), "{adapter:?}, {streaming:?}");
            }
        }
    }
}

#[tokio::test]
async fn chat_details_are_kept() {
    let token = |text: &str| json!({ "token": text, "logprob": -0.5, "top_logprobs": [] });
    let usage = json!({ "prompt_tokens": 1, "completion_tokens": 2, "cost": 0.00125 });
    let plain = json!({
        "id": "1", "service_tier": "flex", "usage": usage,
        "choices": [
            { "index": 0, "message": { "content": "Hello" }, "finish_reason": "stop",
              "logprobs": { "content": [token("Hel"), token("lo")] } },
            { "index": 1, "message": { "content": "Hi." }, "finish_reason": "stop" },
        ],
    });
    let chunk = |value: Value| format!("data: {value}\n\n");
    let streamed = [
        json!({ "id": "1", "service_tier": "flex", "choices": [
            { "index": 0, "delta": { "content": "Hel" }, "logprobs": { "content": [token("Hel")] } },
            { "index": 1, "delta": { "content": "H" } },
        ] }),
        json!({ "choices": [
            { "index": 0, "delta": { "content": "lo" }, "logprobs": { "content": [token("lo")] } },
            { "index": 1, "delta": { "content": "i." } },
        ] }),
        json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }], "usage": usage }),
    ];
    let streamed: String = streamed.into_iter().map(chunk).collect();
    for (streaming, reply) in [
        (StreamingMode::Never, FakeReply::json_body(plain.to_string())),
        (StreamingMode::Always, FakeReply::event_body(streamed)),
    ] {
        let reply = reply
            .header("x-ratelimit-limit-requests", "60")
            .header("x-ratelimit-remaining-requests", "59")
            .header("x-ratelimit-reset-requests", "1s");
        let answer = send_once(AdapterUnderTest::Chat, streaming, reply).await.expect("an answer");
        let details = &answer.details;
        assert_eq!(details.logprobs, [token("Hel"), token("lo")], "{streaming:?}");
        assert_eq!(details.service_tier.as_deref(), Some("flex"));
        assert_eq!(details.alternatives, ["Hi."]);
        assert_eq!(answer.usage.map(|usage| usage.cost_nanos), Some(1_250_000));
        let budget = RateLimitBudget { limit: Some(60), remaining: Some(59), reset: Some("1s".to_owned()) };
        assert_eq!(details.rate_limits.get("requests"), Some(&budget));
    }
}

#[tokio::test]
async fn details_of_the_other_protocols_are_kept() {
    let token = json!({ "token": "Hi", "logprob": -0.1, "top_logprobs": [] });
    let responses = json!({
        "id": "resp_1", "status": "completed", "service_tier": "priority",
        "output": [{ "type": "message", "id": "msg_1", "content": [
            { "type": "output_text", "text": "Hi", "annotations": [], "logprobs": [token] },
        ] }],
    });
    let answer = send_once(
        AdapterUnderTest::Responses,
        StreamingMode::Never,
        FakeReply::json_body(responses.to_string()).header("x-litellm-response-cost", "0.5"),
    )
    .await
    .expect("an answer");
    assert_eq!(answer.details.logprobs, [token]);
    assert_eq!(answer.details.service_tier.as_deref(), Some("priority"));

    let messages = json!({
        "type": "message", "id": "m1", "content": [{ "type": "text", "text": "1, 2" }],
        "stop_reason": "stop_sequence", "stop_sequence": "3",
        "usage": { "input_tokens": 1, "output_tokens": 2, "service_tier": "standard" },
    });
    let reply = FakeReply::json_body(messages.to_string())
        .header("anthropic-ratelimit-input-tokens-limit", "1000")
        .header("anthropic-ratelimit-input-tokens-remaining", "990")
        .header("anthropic-ratelimit-input-tokens-reset", "2026-01-01T00:00:00Z")
        .header("x-litellm-response-cost", "0.5");
    let answer = send_once(AdapterUnderTest::Messages, StreamingMode::Never, reply).await.expect("an answer");
    let details = &answer.details;
    assert_eq!(details.finish_reason, Some(FinishReason::StopSequence));
    assert_eq!(
        (details.stop_sequence.as_deref(), details.service_tier.as_deref()),
        (Some("3"), Some("standard"))
    );
    let reset = Some("2026-01-01T00:00:00Z".to_owned());
    let budget = RateLimitBudget { limit: Some(1000), remaining: Some(990), reset };
    assert_eq!(details.rate_limits.get("input-tokens"), Some(&budget));
    assert_eq!(answer.usage.map(|usage| usage.cost()), Some(0.5), "a gateway says so in a header");
}

/// A response of the Messages API with these blocks, plain or as a stream.
fn messages_reply(streaming: StreamingMode, blocks: &[Value], stop: &str) -> FakeReply {
    let usage = json!({ "input_tokens": 10, "output_tokens": 5 });
    if streaming == StreamingMode::Never {
        let body =
            json!({ "type": "message", "id": "m", "content": blocks, "stop_reason": stop, "usage": usage });
        return FakeReply::json_body(body.to_string());
    }
    let mut events = vec![json!({ "type": "message_start", "message": { "id": "m", "usage": usage } })];
    for (index, block) in blocks.iter().enumerate() {
        events.push(json!({ "type": "content_block_start", "index": index, "content_block": block }));
    }
    events.push(json!({ "type": "message_delta", "delta": { "stop_reason": stop } }));
    events.push(json!({ "type": "message_stop" }));
    FakeReply::event_body(events.iter().map(|event| format!("data: {event}\n\n")).collect::<String>())
}

#[tokio::test]
async fn a_turn_that_the_provider_paused_is_continued() {
    for streaming in BOTH_MODES {
        let search =
            json!({ "type": "server_tool_use", "id": "s1", "name": "web_search", "input": { "query": "x" } });
        let text = |text: &str| json!({ "type": "text", "text": text });
        let provider = FakeProvider::start([
            messages_reply(streaming, &[text("I search."), search.clone()], "pause_turn"),
            messages_reply(streaming, std::slice::from_ref(&search), "pause_turn"),
            messages_reply(streaming, &[text("It rains.")], "end_turn"),
        ])
        .await
        .expect("one");
        let model = provider.anthropic().messages("fake-1").expect("a model").streaming(streaming);
        let outcome = Agent::new("host").model(model).run("Weather?").await.expect("it ends");
        assert_eq!(outcome.output_text().expect("it finished"), "It rains.");
        let usage = outcome.record().usage();
        assert_eq!((usage.requests, usage.input_tokens, usage.output_tokens), (3, 30, 15));
        let requests = provider.requests();
        assert_eq!(
            requests[2].body["messages"][1],
            json!({ "role": "assistant", "content": [text("I search."), search, search] }),
            "it receives what it said so far"
        );
    }
}

#[tokio::test]
async fn a_provider_that_pauses_for_ever_is_given_up() {
    let reply =
        || messages_reply(StreamingMode::Never, &[json!({ "type": "text", "text": "a" })], "pause_turn");
    let provider = FakeProvider::start((0..50).map(|_| reply())).await.expect("one");
    let model = AdapterUnderTest::Messages.model(&provider, StreamingMode::Never);
    let error = AdapterTestRequest::from_text("x").send(&model).await.expect_err("it never ends");
    assert_eq!(error.kind(), ModelErrorKind::Incomplete);
    assert_eq!(provider.requests().len(), 17, "the first request and sixteen more");
    assert_eq!(error.usage().map(|usage| usage.requests), Some(16));
}

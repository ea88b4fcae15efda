//! Streams that stall, break or end too early.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::agent::Agent;
use windlass::event::RunEventKind;
use windlass::model::{ModelErrorKind, RetryAdvice};
use windlass_models::StreamingMode;
use windlass_models::testing::{FakeProvider, FakeReply, FakeStopReason};

use crate::support::{
    ALL_ADAPTERS, AdapterTestRequest, AdapterUnderTest, BOTH_MODES, send_once, send_once_with_short_timeouts,
};

fn sample_reply() -> FakeReply {
    FakeReply::text("Good morning to you.").and_call("c1", "weather", r#"{"city":"Oslo"}"#)
}

/// Returns byte offsets into a body of unknown length; an offset beyond the end means the end.
fn byte_offsets() -> impl Iterator<Item = usize> {
    (0..12).chain((12..6000).step_by(41))
}

#[tokio::test]
async fn a_connection_that_breaks_anywhere_is_an_error_that_may_be_asked_again() {
    for adapter in ALL_ADAPTERS {
        for streaming in BOTH_MODES {
            let whole = send_once(adapter, streaming, sample_reply()).await.expect("an answer");
            let mut broken = 0;
            for place in byte_offsets() {
                match send_once(adapter, streaming, sample_reply().reset_at(place)).await {
                    // A stream may break after its last event; the response is complete then.
                    Ok(answer) => assert_eq!(answer, whole, "{adapter:?}, {streaming:?} at {place}"),
                    Err(error) => {
                        broken += 1;
                        assert_eq!(
                            error.kind(),
                            ModelErrorKind::ConnectionLost,
                            "{adapter:?}, {streaming:?} at {place}: {error}"
                        );
                        assert_eq!(error.retry_advice(), RetryAdvice::Safe);
                    }
                }
            }
            assert!(broken > 12, "{adapter:?}, {streaming:?}: only {broken} broke");
        }
    }
}

#[tokio::test]
async fn a_stream_that_ends_without_its_last_event_is_an_error() {
    for adapter in ALL_ADAPTERS {
        let whole = send_once(adapter, StreamingMode::Always, sample_reply()).await.expect("an answer");
        let mut broken = 0;
        for place in byte_offsets() {
            match send_once(adapter, StreamingMode::Always, sample_reply().end_at(place)).await {
                Ok(answer) => assert_eq!(answer.items, whole.items, "{adapter:?} at {place}"),
                Err(error) => {
                    broken += 1;
                    assert_eq!(
                        error.kind(),
                        ModelErrorKind::ConnectionLost,
                        "{adapter:?} at {place}: {error}"
                    );
                }
            }
        }
        assert!(broken > 12, "{adapter:?}: only {broken} broke");
    }
}

#[tokio::test]
async fn a_plain_answer_that_is_cut_may_be_asked_again() {
    for adapter in ALL_ADAPTERS {
        for place in [0, 1, 50, 200] {
            let error = send_once(adapter, StreamingMode::Never, sample_reply().end_at(place))
                .await
                .expect_err("half of it");
            assert_eq!(error.kind(), ModelErrorKind::ConnectionLost, "{adapter:?} at {place}: {error}");
            assert_eq!(error.retry_advice(), RetryAdvice::Safe);
        }
    }
}

#[tokio::test]
async fn a_stall_is_noticed() {
    for adapter in ALL_ADAPTERS {
        for streaming in BOTH_MODES {
            for place in [0, 100, 500] {
                let error = send_once_with_short_timeouts(adapter, streaming, sample_reply().stall_at(place))
                    .await
                    .expect_err("a stall");
                assert_eq!(
                    error.kind(),
                    ModelErrorKind::TimedOut,
                    "{adapter:?}, {streaming:?} at {place}: {error}"
                );
                assert_eq!(error.retry_advice(), RetryAdvice::Safe);
            }
        }
    }
}

#[tokio::test]
async fn s25_comments_that_keep_a_connection_alive_do_not_reset_the_idle_timeout() {
    for adapter in ALL_ADAPTERS {
        for place in [0, 300] {
            let reply = sample_reply().keep_alive_at(place, Duration::from_millis(10));
            let error = send_once_with_short_timeouts(adapter, StreamingMode::Always, reply)
                .await
                .expect_err("nothing comes");
            assert_eq!(error.kind(), ModelErrorKind::TimedOut, "{adapter:?} at {place}: {error}");
        }
    }
}

#[tokio::test]
async fn endings_mean_what_they_say() {
    for adapter in ALL_ADAPTERS {
        for streaming in BOTH_MODES {
            let cut = sample_reply().stop(FakeStopReason::MaxTokens).usage(7, 0, 3, 0);
            let error = send_once(adapter, streaming, cut).await.expect_err("it is incomplete");
            assert_eq!(error.kind(), ModelErrorKind::Incomplete, "{adapter:?}, {streaming:?}: {error}");
            assert_eq!(error.retry_advice(), RetryAdvice::Never);
            assert_eq!(error.usage().map(|usage| (usage.input_tokens, usage.output_tokens)), Some((7, 3)));

            let failed =
                FakeStopReason::Failed { code: "server_error".to_owned(), message: "it broke".to_owned() };
            let error =
                send_once(adapter, streaming, sample_reply().stop(failed)).await.expect_err("it failed");
            assert_eq!(error.kind(), ModelErrorKind::ServerError, "{adapter:?}, {streaming:?}: {error}");
            assert!(error.to_string().contains("it broke"), "{error}");
            assert_eq!(error.retry_advice(), RetryAdvice::Safe);
        }
    }
}

#[tokio::test]
async fn rubbish_is_an_error() {
    let rubbish = [
        "data: {\"type\":\"response.completed\n\n",
        "data: \u{0}\u{1}\n\n",
        "data: [1,2\n\n",
        "data: <html>\n\n",
    ];
    for adapter in ALL_ADAPTERS {
        for text in rubbish {
            let error = send_once(adapter, StreamingMode::Always, FakeReply::event_body(text))
                .await
                .expect_err("rubbish");
            assert_eq!(error.kind(), ModelErrorKind::InvalidResponse, "{adapter:?} {text:?}: {error}");
        }
        for text in ["null", "[]", "<html>gateway</html>", "{\"hello\":1}", "{]"] {
            let error = send_once(adapter, StreamingMode::Never, FakeReply::json_body(text))
                .await
                .expect_err("rubbish");
            assert_eq!(error.kind(), ModelErrorKind::InvalidResponse, "{adapter:?} {text:?}: {error}");
        }
        let error =
            send_once(adapter, StreamingMode::Always, FakeReply::event_body("data: \u{ff}\n\n".as_bytes()))
                .await;
        assert!(error.is_err());
        let error = send_once(
            adapter,
            StreamingMode::Always,
            FakeReply::event_body(vec![b'd', b'a', b't', b'a', b':', 0xff, b'\n', b'\n']),
        )
        .await
        .expect_err("not text");
        assert_eq!(error.kind(), ModelErrorKind::InvalidResponse, "{adapter:?}: {error}");
    }
}

#[tokio::test]
async fn a_connection_is_used_again_and_one_that_was_closed_is_not_missed() {
    for adapter in ALL_ADAPTERS {
        for streaming in BOTH_MODES {
            let provider = FakeProvider::start((0..5).map(|_| sample_reply())).await.expect("a provider");
            let model = adapter.model(&provider, streaming);
            for _ in 0..5 {
                AdapterTestRequest::from_text("x").send(&model).await.expect("an answer");
            }
            assert_eq!(provider.connections(), 1, "{adapter:?}, {streaming:?}");

            provider.push(sample_reply().reset_at(10));
            provider.push(sample_reply());
            AdapterTestRequest::from_text("x").send(&model).await.expect_err("it breaks");
            AdapterTestRequest::from_text("x").send(&model).await.expect("another connection");
            assert_eq!(provider.connections(), 2, "{adapter:?}, {streaming:?}");
        }
    }
}

/// Returns a streamed response in which deltas without text precede and follow those with text.
fn reply_with_empty_deltas(adapter: AdapterUnderTest) -> FakeReply {
    let events = match adapter {
        AdapterUnderTest::Responses => vec![
            json!({ "type": "response.output_item.added", "output_index": 1, "item": { "type": "function_call", "call_id": "c1" } }),
            json!({ "type": "response.reasoning_summary_text.delta", "delta": "" }),
            json!({ "type": "response.reasoning_summary_text.delta", "delta": "Hm." }),
            json!({ "type": "response.output_text.delta", "delta": "" }),
            json!({ "type": "response.output_text.delta", "delta": "Hello." }),
            json!({ "type": "response.function_call_arguments.delta", "output_index": 1, "delta": "" }),
            json!({ "type": "response.function_call_arguments.delta", "output_index": 1, "delta": "{}" }),
            json!({ "type": "response.completed", "response": { "status": "completed", "output": [] } }),
        ],
        AdapterUnderTest::Chat => {
            let chunk = |delta: Value| json!({ "choices": [{ "delta": delta }] });
            vec![
                chunk(json!({ "reasoning_content": "", "content": "" })),
                chunk(json!({ "reasoning_content": "Hm." })),
                chunk(json!({ "content": "Hello." })),
                chunk(
                    json!({ "tool_calls": [{ "index": 0, "id": "c1", "function": { "name": "weather", "arguments": "" } }] }),
                ),
                chunk(json!({ "tool_calls": [{ "index": 0, "function": { "arguments": "{}" } }] })),
                json!({ "choices": [{ "delta": {}, "finish_reason": "tool_calls" }] }),
            ]
        }
        AdapterUnderTest::Messages => {
            let start = |index: u32, block: Value| json!({ "type": "content_block_start", "index": index, "content_block": block });
            let delta = |index: u32, delta: Value| json!({ "type": "content_block_delta", "index": index, "delta": delta });
            vec![
                start(0, json!({ "type": "thinking", "thinking": "", "signature": "" })),
                delta(0, json!({ "type": "thinking_delta", "thinking": "" })),
                delta(0, json!({ "type": "thinking_delta", "thinking": "Hm." })),
                start(1, json!({ "type": "text", "text": "" })),
                delta(1, json!({ "type": "text_delta", "text": "" })),
                delta(1, json!({ "type": "text_delta", "text": "Hello." })),
                start(2, json!({ "type": "tool_use", "id": "c1", "name": "weather", "input": {} })),
                delta(2, json!({ "type": "input_json_delta", "partial_json": "" })),
                delta(2, json!({ "type": "input_json_delta", "partial_json": "{}" })),
                json!({ "type": "message_stop" }),
            ]
        }
    };
    FakeReply::event_body(events.iter().map(|event| format!("data: {event}\n\n")).collect::<String>())
}

#[tokio::test]
async fn deltas_without_text_are_not_published() {
    for adapter in ALL_ADAPTERS {
        let provider = FakeProvider::start([reply_with_empty_deltas(adapter)]).await.expect("a provider");
        let agent = Agent::new("host").model(adapter.model(&provider, StreamingMode::WhenWatched));
        let mut stream = agent.run("Good morning.").max_turns(1).stream();
        let mut deltas = Vec::new();
        while let Some(event) = stream.next().await {
            match event.kind {
                RunEventKind::ReasoningDelta { delta } => deltas.push(format!("reasoning: {delta}")),
                RunEventKind::TextDelta { delta } => deltas.push(format!("text: {delta}")),
                RunEventKind::ArgumentsDelta { call, delta } => deltas.push(format!("{call}: {delta}")),
                _ => {}
            }
        }
        assert_eq!(deltas, ["reasoning: Hm.", "text: Hello.", "c1: {}"], "{adapter:?}");
    }
}

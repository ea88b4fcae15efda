//! Bedrock: Converse, the Messages API, event streams and signatures.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::core::item::{CallOutput, Item, OutputStatus};
use windlass::core::usage::Usage;
use windlass::model::{
    FinishReason, ModelError, ModelErrorKind, ModelResponse, ModelSettings, PromptCaching, describe_item,
};
use windlass_models::testing::{FakeProvider, FakeReply, ReceivedRequest, encode_amazon_event};
use windlass_models::{Bedrock, Cassette, StreamingMode};

use crate::support::{TestRequest, function_tool};

const EVENT_STREAM: &str = "application/vnd.amazon.eventstream";

fn stream(events: &[(&str, Value)]) -> FakeReply {
    let bytes: Vec<u8> = events
        .iter()
        .flat_map(|(name, payload)| encode_amazon_event(name, payload.to_string().as_bytes()))
        .collect();
    FakeReply::raw_body(EVENT_STREAM, bytes).in_chunks_of(11)
}

fn converse_replies() -> [(StreamingMode, FakeReply); 2] {
    let usage = json!({ "inputTokens": 30, "outputTokens": 9, "totalTokens": 79, "cacheReadInputTokens": 40, "cacheWriteInputTokens": 0 });
    let plain = json!({
        "output": { "message": { "role": "assistant", "content": [
            { "reasoningContent": { "reasoningText": { "text": "It rains.", "signature": "sig" } } },
            { "text": "I look." },
            { "toolUse": { "toolUseId": "t1", "name": "weather", "input": { "city": "Tromsø" } } },
            { "toolUse": { "toolUseId": "t2", "name": "weather", "input": {} } },
        ]}},
        "stopReason": "tool_use", "usage": usage,
    });
    let delta = |index: u64, delta: Value| {
        ("contentBlockDelta", json!({ "contentBlockIndex": index, "delta": delta, "p": "abc" }))
    };
    let start = |index: u64, id: &str| {
        (
            "contentBlockStart",
            json!({ "contentBlockIndex": index, "start": { "toolUse": { "toolUseId": id, "name": "weather" } } }),
        )
    };
    let stop = |index: u64| ("contentBlockStop", json!({ "contentBlockIndex": index }));
    let events = [
        ("messageStart", json!({ "role": "assistant" })),
        delta(0, json!({ "reasoningContent": { "text": "It " } })),
        delta(0, json!({ "reasoningContent": { "text": "rains." } })),
        delta(0, json!({ "reasoningContent": { "signature": "sig" } })),
        stop(0),
        delta(1, json!({ "text": "I " })),
        delta(1, json!({ "text": "look." })),
        stop(1),
        start(2, "t1"),
        delta(2, json!({ "toolUse": { "input": "{\"city\":" } })),
        delta(2, json!({ "toolUse": { "input": "\"Tromsø\"}" } })),
        stop(2),
        start(3, "t2"),
        stop(3),
        ("messageStop", json!({ "stopReason": "tool_use" })),
        ("metadata", json!({ "usage": usage, "metrics": { "latencyMs": 3 } })),
    ];
    [
        (StreamingMode::Never, FakeReply::json_body(plain.to_string())),
        (StreamingMode::Always, stream(&events)),
    ]
}

async fn converse(
    mode: StreamingMode,
    reply: FakeReply,
    request: &TestRequest,
) -> (Result<ModelResponse, ModelError>, ReceivedRequest) {
    let server = FakeProvider::start([reply]).await.expect("a server");
    let bedrock = Bedrock::at(&server.root_url()).key("k");
    let model = bedrock.converse("eu.amazon.nova-lite-v1:0").expect("a model").streaming(mode);
    let answer = request.send(&model.into()).await;
    (answer, server.requests().remove(0))
}

/// Settings without cache points, which have a test of their own.
fn without_cache() -> ModelSettings {
    ModelSettings { prompt_cache: Some(PromptCaching::Off), ..ModelSettings::default() }
}

#[tokio::test]
async fn converse_is_the_same_plain_and_streamed() {
    let request = TestRequest {
        tools: vec![function_tool("weather")],
        settings: without_cache(),
        ..TestRequest::from_items([Item::user("Hello")])
    };
    for (mode, reply) in converse_replies() {
        let (answer, sent) = converse(mode, reply, &request).await;
        let answer = answer.expect("an answer");
        let method = if mode == StreamingMode::Never { "converse" } else { "converse-stream" };
        assert_eq!(sent.path, format!("/model/eu.amazon.nova-lite-v1%3A0/{method}"));
        let said: Vec<String> = answer.items.iter().skip(1).map(|item| describe_item(item)).collect();
        let calls = ["assistant: I look.", "call t1 weather {\"city\":\"Tromsø\"}", "call t2 weather {}"];
        assert_eq!(said, calls, "{mode:?}");
        assert_eq!(answer.usage, Some(Usage { cached_tokens: 40, ..Usage::of_tokens(70, 9) }));
        assert_eq!(answer.details.finish_reason, Some(FinishReason::ToolCalls));

        let mut input = request.input.clone();
        input.extend(answer.items);
        for call in ["t1", "t2"] {
            input.push(Arc::new(Item::Output(CallOutput {
                call: call.into(),
                content: "rain".into(),
                status: if call == "t1" { OutputStatus::Ok } else { OutputStatus::Failed },
                sources: Default::default(),
            })));
        }
        let tools = vec![function_tool("weather")];
        let next = TestRequest { input, tools, settings: without_cache(), ..TestRequest::default() };
        let done = json!({ "output": { "message": { "role": "assistant", "content": [{ "text": "Rain." }] } }, "stopReason": "end_turn" });
        let (_, sent) = converse(StreamingMode::Never, FakeReply::json_body(done.to_string()), &next).await;
        assert_eq!(
            sent.body["messages"],
            json!([
                { "role": "user", "content": [{ "text": "Hello" }] },
                { "role": "assistant", "content": [
                    { "reasoningContent": { "reasoningText": { "text": "It rains.", "signature": "sig" } } },
                    { "text": "I look." },
                    { "toolUse": { "toolUseId": "t1", "name": "weather", "input": { "city": "Tromsø" } } },
                    { "toolUse": { "toolUseId": "t2", "name": "weather", "input": {} } },
                ]},
                { "role": "user", "content": [
                    { "toolResult": { "toolUseId": "t1", "content": [{ "text": "rain" }] } },
                    { "toolResult": { "toolUseId": "t2", "content": [{ "text": "rain" }], "status": "error" } },
                ]},
            ]),
            "{mode:?}"
        );
        assert_eq!(sent.body["system"], json!([{ "text": "Be brief." }]));
    }
}

/// The framing of the stream is binary, which JSON cannot hold as text.
#[tokio::test]
async fn a_cassette_keeps_the_bytes_of_a_stream() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("weather.json");
    let [_, (mode, reply)] = converse_replies();
    let server = FakeProvider::start([reply]).await.expect("a server");
    let request = TestRequest {
        tools: vec![function_tool("weather")],
        ..TestRequest::from_items([Item::user("Hello")])
    };
    let ask = async |cassette: Cassette| {
        let bedrock = Bedrock::at(&server.root_url()).key("k").cassette(cassette);
        let model = bedrock.converse("eu.amazon.nova-lite-v1:0").expect("a model").streaming(mode);
        request.send(&model.into()).await
    };
    let recorded = ask(Cassette::open(&file).expect("a cassette")).await.expect("an answer");
    let cassette = Cassette::play(&file).expect("it was recorded");
    assert_eq!(ask(cassette.clone()).await.expect("it is played").items, recorded.items);
    assert_eq!((recorded.items.len(), cassette.unplayed(), server.requests().len()), (4, 0, 1));
}

#[tokio::test]
async fn a_stream_that_breaks_off_or_reports_a_failure_is_no_answer() {
    let request = TestRequest::from_items([Item::user("Hello")]);
    let [_, (mode, whole)] = converse_replies();
    let (answer, _) = converse(mode, whole.end_at(300), &request).await;
    assert_eq!(answer.expect_err("it is cut").kind(), ModelErrorKind::ConnectionLost);
    let (answer, _) = converse(mode, stream(&[("messageStart", json!({}))]), &request).await;
    assert_eq!(answer.expect_err("it is cut").kind(), ModelErrorKind::ConnectionLost);
    let (answer, _) = converse(mode, FakeReply::raw_body(EVENT_STREAM, vec![0; 64]), &request).await;
    assert_eq!(answer.expect_err("it is damaged").kind(), ModelErrorKind::InvalidResponse);
    let too_long = json!({ "message": "Input is too long for requested model." }).to_string();
    let (answer, _) = converse(mode, FakeReply::json_body(too_long).with_status(400), &request).await;
    assert_eq!(answer.expect_err("it is refused").kind(), ModelErrorKind::ContextLengthExceeded);
}

/// The stream is untrusted: blocks of another shape are replaced, and nothing panics.
#[tokio::test]
async fn blocks_of_another_shape_do_not_end_the_run() {
    let request = TestRequest::from_items([Item::user("Hello")]);
    for (start, delta) in [
        (json!("x"), json!({ "text": "Hello." })),
        (json!(7), json!({ "text": "Hello." })),
        (json!({ "text": { "a": 1 } }), json!({ "text": "Hello." })),
        (json!({ "reasoningContent": "x" }), json!({ "reasoningContent": { "text": "Hello." } })),
        (
            json!({ "reasoningContent": { "reasoningText": [] } }),
            json!({ "reasoningContent": { "signature": "s" } }),
        ),
    ] {
        let events = [
            ("contentBlockStart", json!({ "contentBlockIndex": 0, "start": start })),
            ("contentBlockDelta", json!({ "contentBlockIndex": 0, "delta": delta })),
            ("messageStop", json!({ "stopReason": "end_turn" })),
            ("metadata", json!({})),
        ];
        let (answer, _) = converse(StreamingMode::Always, stream(&events), &request).await;
        assert_eq!(answer.expect("an answer").items.len(), 1, "{start}");
    }
}

#[tokio::test]
async fn the_messages_api_of_bedrock_wraps_its_events() {
    let message = json!({ "id": "m1", "type": "message", "role": "assistant", "content": [], "usage": { "input_tokens": 3, "output_tokens": 0 } });
    let events = [
        json!({ "type": "message_start", "message": message }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
        json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": "Good morning." } }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": { "output_tokens": 4 } }),
        json!({ "type": "message_stop" }),
    ];
    let wrapped: Vec<(&str, Value)> = events
        .iter()
        .map(|event| {
            (
                "chunk",
                json!({ "bytes": data_encoding::BASE64.encode(event.to_string().as_bytes()), "p": "ab" }),
            )
        })
        .collect();
    let server = FakeProvider::start([stream(&wrapped)]).await.expect("a server");
    let bedrock = Bedrock::at(&server.root_url()).key("k");
    let model = bedrock.messages("anthropic.claude-x").expect("a model").streaming(StreamingMode::Always);
    let answer = TestRequest::from_items([Item::user("Hello")]).send(&model.into()).await.expect("an answer");
    assert_eq!(describe_item(&answer.items[0]), "assistant: Good morning.");
    assert_eq!(answer.usage, Some(Usage::of_tokens(3, 4)));
    let sent = server.requests().remove(0);
    assert_eq!(sent.path, "/model/anthropic.claude-x/invoke-with-response-stream");
    assert_eq!(sent.body["anthropic_version"], "bedrock-2023-05-31");
    assert_eq!((sent.body.get("model"), sent.body.get("stream")), (None, None));
}

/// The signature was made by botocore 1.44.3 from the same request: see `tests/official/sdks.py`.
#[cfg(feature = "sigv4")]
#[tokio::test]
async fn a_signature_is_that_of_the_official_client() {
    use std::time::{Duration, SystemTime};
    use windlass_models::net::{Bytes, http};
    use windlass_models::{AwsCredentials, RequestSigner, SigV4Signer};
    let credentials =
        AwsCredentials::new("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY").session_token("tok");
    let signer = SigV4Signer::new("eu-central-1", credentials)
        .with_clock(|| SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000));
    let uri = "https://bedrock-runtime.eu-central-1.amazonaws.com/model/eu.amazon.nova-lite-v1%3A0/converse";
    let mut request = http::Request::post(uri)
        .header("content-type", "application/json")
        .body(Bytes::from_static(br#"{"messages":[]}"#))
        .expect("a request");
    signer.sign(&mut request).await.expect("it is signed");
    let header = |name: &str| request.headers()[name].to_str().expect("text").to_owned();
    assert_eq!(header("x-amz-date"), "20260921T141320Z");
    assert_eq!(header("x-amz-security-token"), "tok");
    assert_eq!(
        header("authorization"),
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260921/eu-central-1/bedrock/aws4_request, \
         SignedHeaders=content-type;host;x-amz-date;x-amz-security-token, Signature=3c831c4aef095d2e8fd636604a229287b355f7792f5c3eb587d703c81dda019c"
    );
}

/// A run may take longer than the session of its credentials.
#[cfg(feature = "sigv4")]
#[tokio::test(start_paused = true)]
async fn credentials_are_fetched_again_before_they_expire() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;
    use windlass_models::net::{Bytes, http};
    use windlass_models::{AwsCredentials, RequestSigner, SigV4Signer};
    let fetched = Arc::new(AtomicU32::new(0));
    let signer = SigV4Signer::renewing("eu-central-1", move || {
        let number = fetched.fetch_add(1, Ordering::Relaxed);
        async move {
            let credentials = AwsCredentials::new(&format!("KEY{number}"), "secret");
            Ok(credentials.session_token(format!("session{number}")).valid_for(Duration::from_secs(3_600)))
        }
    });
    let mut seen = Vec::new();
    for wait in [0, 1_000, 2_500, 100] {
        tokio::time::advance(Duration::from_secs(wait)).await;
        let mut request =
            http::Request::post("https://bedrock.example/").body(Bytes::new()).expect("a request");
        signer.sign(&mut request).await.expect("it is signed");
        let header = |name: &str| request.headers()[name].to_str().expect("text").to_owned();
        let session = header("x-amz-security-token");
        let key = session.replace("session", "KEY");
        assert!(
            header("authorization").contains(&format!("Credential={key}/")),
            "{}",
            header("authorization")
        );
        seen.push(session);
    }
    assert_eq!(seen, ["session0", "session0", "session0", "session1"]);
}

/// The provider refuses a conversation with calls if no tool is defined: the last answer of a budget, and the first of an
/// agent without tools after a handoff, are such requests.
#[tokio::test]
async fn a_conversation_with_calls_defines_their_tools_though_none_is_offered() {
    let output = |call: &str| {
        let (status, sources) = (OutputStatus::Ok, Default::default());
        Item::Output(CallOutput { call: call.into(), content: "rain".into(), status, sources })
    };
    let call = |id: &str| Item::call(id, "weather", "{}");
    let input = [Item::user("Hello"), call("t1"), output("t1"), call("t2"), output("t2")];
    let request = TestRequest { settings: without_cache(), ..TestRequest::from_items(input) };
    let done = json!({ "output": { "message": { "role": "assistant", "content": [{ "text": "Rain." }] } }, "stopReason": "end_turn" });
    let (answer, sent) =
        converse(StreamingMode::Never, FakeReply::json_body(done.to_string()), &request).await;
    answer.expect("an answer");
    let tools = json!({ "tools": [{ "toolSpec": { "name": "weather", "inputSchema": { "json": { "type": "object" } } } }] });
    assert_eq!(sent.body["toolConfig"], tools);

    let server = FakeProvider::start([FakeReply::text("Rain.")]).await.expect("a server");
    let model = server.anthropic().messages("m").expect("a model").streaming(StreamingMode::Never);
    request.send(&model.into()).await.expect("an answer");
    let sent = server.requests().remove(0);
    assert_eq!(sent.body["tools"], json!([{ "name": "weather", "input_schema": { "type": "object" } }]));
    assert_eq!(sent.body["tool_choice"], json!({ "type": "none" }));
}

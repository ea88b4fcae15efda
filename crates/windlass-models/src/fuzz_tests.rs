//! Property tests for the decoders: malformed input never panics, and valid input decodes the same however it is
//! split.

use std::sync::Arc;

use proptest::prelude::*;
use windlass::core::id::AgentName;
use windlass::model::{ModelRequest, ModelResponse, ModelSettings};

use crate::anthropic::MessagesDecoder;
use crate::bedrock::{ConverseDecoder, EventStreamDecoder, encode_event};
use crate::gemini::GeminiDecoder;
use crate::openai::{ChatDecoder, ResponsesDecoder};
use crate::protocol::{
    DeltaBuffer, ResponseDecoder, ResponseError, StreamProgress, finish_stream, push_event,
};
use crate::sse::SseDecoder;
use crate::testing::{BodyDelivery, FakeReply, render_body};
use crate::wire::{ItemOrigin, RequestBase, WireProtocol};

const PROTOCOL_PATHS: [&str; 3] = ["/v1/responses", "/v1/chat/completions", "/v1/messages"];

/// Decodes a body with the protocol of `path`: plain, or as a stream cut at `cuts`.
fn decode(path: &str, body: &[u8], cuts: Option<&[usize]>) -> Result<ModelResponse, ResponseError> {
    with_base(cuts.is_some(), |base| match path {
        "/v1/responses" => decode_with(ResponsesDecoder::new(base(WireProtocol::Responses)), body, cuts),
        "/v1/chat/completions" => decode_with(ChatDecoder::new(base(WireProtocol::Chat)), body, cuts),
        "gemini" => decode_with(GeminiDecoder::new(base(WireProtocol::Gemini)), body, cuts),
        "converse" => decode_with(ConverseDecoder::new(base(WireProtocol::Converse)), body, cuts),
        _ => decode_with(MessagesDecoder::new(base(WireProtocol::Messages)), body, cuts),
    })
}

/// Calls a function with what decoders need to know about their request.
fn with_base<T>(
    is_streamed: bool,
    use_base: impl for<'a> Fn(&dyn Fn(WireProtocol) -> RequestBase<'a>) -> T,
) -> T {
    let (agent, settings) = (AgentName::from("host"), ModelSettings::default());
    let request = ModelRequest {
        agent: &agent,
        turn: 1,
        instructions: None,
        input: &[],
        tools: &[],
        deferred_tools: &[],
        handoffs: &[],
        settings: &settings,
        output_schema: None,
        previous_response_id: None,
        conversation_id: None,
    };
    use_base(&|protocol| RequestBase {
        host: "localhost",
        request,
        model: "fake-1",
        is_streamed,
        origin: ItemOrigin { protocol, name: "test:host" },
    })
}

fn decode_with(
    mut decoder: impl ResponseDecoder,
    body: &[u8],
    cuts: Option<&[usize]>,
) -> Result<ModelResponse, ResponseError> {
    let Some(cuts) = cuts else {
        return decoder.decode_body(std::str::from_utf8(body).map_err(ResponseError::invalid)?);
    };
    let mut events = SseDecoder::new(1 << 20);
    let mut deltas = DeltaBuffer::collecting();
    let mut from = 0;
    for to in cuts.iter().copied().chain([body.len()]) {
        let to = to.clamp(from, body.len());
        events.feed(&body[from..to]);
        from = to;
        while let Some(event) = events.next().map_err(ResponseError::invalid)? {
            if push_event(&mut decoder, event, &mut deltas)? == StreamProgress::Complete {
                return finish_stream(&mut decoder);
            }
        }
    }
    finish_stream(&mut decoder)
}

fn arbitrary_reply() -> impl Strategy<Value = FakeReply> {
    let text = "[ -~äöü日🚢\n\t]{0,40}";
    let said = prop_oneof![
        text.prop_map(|text| (0, text, String::new())),
        ("[a-z_]{1,12}", text).prop_map(|(name, value)| (1, name, value)),
        text.prop_map(|text| (2, text, String::new())),
    ];
    (prop::collection::vec(said, 1..5), 1..30_usize).prop_map(|(said, piece)| {
        // Chat Completions has one text and one reasoning text, and puts them before the calls.
        let find = |kind| said.iter().find(move |said| said.0 == kind).map(|said| said.1.as_str());
        let mut reply = FakeReply::empty();
        if let Some(thought) = find(2) {
            reply = reply.and_reasoning("rs_1", thought);
        }
        if let Some(text) = find(0) {
            reply = reply.and_text(text);
        }
        for (index, (_, name, value)) in said.iter().filter(|said| said.0 == 1).enumerate() {
            let arguments = serde_json::json!({ "value": value, "index": index }).to_string();
            reply = reply.and_call(&format!("c{index}"), name, &arguments);
        }
        reply.in_deltas_of(piece)
    })
}

proptest! {
    #[test]
    fn streamed_and_plain_agree_however_it_is_cut(reply in arbitrary_reply(), mut cuts in prop::collection::vec(0..6000_usize, 0..40)) {
        cuts.sort_unstable();
        for path in PROTOCOL_PATHS {
            let plain = decode(path, &render_body(&reply, path, BodyDelivery::Plain), None).expect("it can be read");
            let events = render_body(&reply, path, BodyDelivery::Streamed);
            let streamed = decode(path, &events, Some(&cuts)).expect("it can be read");
            prop_assert_eq!(&streamed, &plain, "{}", path);
        }
    }

    #[test]
    fn half_of_a_stream_is_no_answer(reply in arbitrary_reply(), share in 0.0..1.0_f64) {
        for path in PROTOCOL_PATHS {
            let events = render_body(&reply, path, BodyDelivery::Streamed);
            let whole = decode(path, &events, Some(&[])).expect("it can be read");
            let end = (events.len() as f64 * share) as usize;
            match decode(path, &events[..end], Some(&[])) {
                Err(ResponseError::Truncated) => {}
                // The cut-off part came after the final event.
                Ok(response) => prop_assert_eq!(response.items, whole.items),
                Err(error) => prop_assert!(false, "{}: {:?}", path, error),
            }
        }
    }

    #[test]
    fn rubbish_makes_nothing_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for path in PROTOCOL_PATHS {
            let _ = decode(path, &bytes, None);
            let _ = decode(path, &bytes, Some(&[17, 60]));
        }
    }

    #[test]
    fn what_is_changed_on_the_way_makes_nothing_panic(
        reply in arbitrary_reply(),
        changes in prop::collection::vec((0..6000_usize, any::<u8>()), 1..6),
    ) {
        for path in PROTOCOL_PATHS {
            for delivery in [BodyDelivery::Plain, BodyDelivery::Streamed] {
                let mut bytes = render_body(&reply, path, delivery);
                for (at, byte) in &changes {
                    let length = bytes.len().max(1);
                    if let Some(place) = bytes.get_mut(at % length) {
                        *place = *byte;
                    }
                }
                let is_streamed = delivery == BodyDelivery::Streamed;
                let _ = decode(path, &bytes, is_streamed.then_some(&[]));
            }
        }
    }

    #[test]
    fn any_json_in_any_event_makes_nothing_panic(kind in "[a-z_.]{0,30}", delta in "[ -~]{0,20}", index in any::<u64>()) {
        let delta = serde_json::Value::from(delta);
        for path in PROTOCOL_PATHS {
            for event in [
                serde_json::json!({ "type": kind, "delta": delta, "index": index, "output_index": index }),
                serde_json::json!({ "type": "content_block_delta", "delta": { "text": delta }, "index": index }),
                serde_json::json!({ "type": "response.function_call_arguments.delta", "delta": delta, "output_index": index }),
                serde_json::json!({ "choices": [{ "delta": { "tool_calls": [{ "index": index, "function": { "arguments": delta } }] } }] }),
            ] {
                let _ = decode(path, format!("data: {event}\n\n").as_bytes(), Some(&[]));
            }
        }
    }
}

#[test]
fn an_answer_is_shared_and_not_copied() {
    let reply = FakeReply::text("Hello.");
    let answer =
        decode(PROTOCOL_PATHS[0], &render_body(&reply, PROTOCOL_PATHS[0], BodyDelivery::Streamed), Some(&[]))
            .expect("it can be read");
    assert_eq!(answer.items.iter().map(Arc::strong_count).max(), Some(1));
}

/// The loop over a corpus of answers, with a budget of time and memory for each input.
#[cfg(target_os = "linux")]
mod fuzz_loop {
    use windlass_fuzz::FuzzTarget;

    use super::*;
    use windlass_net::GzipReader;

    const WORDS: [&str; 14] = [
        "data: ",
        "event: ",
        "\n\n",
        "[DONE]",
        "\"type\":",
        "\"delta\":",
        "\"index\":",
        "\"output_index\":",
        "\"usage\":{\"input_tokens\":",
        "\"tool_calls\":[",
        "\"id\":",
        "\"arguments\":",
        "\"retry\":",
        ":",
    ];

    fn target(name: &str) -> FuzzTarget {
        FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), name).words(WORDS)
    }

    fn replies(path: &str, delivery: BodyDelivery) -> Vec<Vec<u8>> {
        let reply = FakeReply::empty()
            .and_reasoning("rs_1", "Let me see.")
            .and_text("Hällo, wörld")
            .and_call("c1", "pay", r#"{"cents":1,"to":"a"}"#)
            .and_call("c2", "look", "{}")
            .in_deltas_of(3);
        vec![
            render_body(&reply, path, delivery),
            render_body(&FakeReply::empty().and_text("x"), path, delivery),
        ]
    }

    fn decode_mutated(name: &str, test: &str, path: &'static str) {
        target(name)
            .seeds(replies(path, BodyDelivery::Streamed))
            .seeds(replies(path, BodyDelivery::Plain))
            .run(module_path!(), test, |input| {
                let _ = decode(path, input, None);
                let _ = decode(path, input, Some(&[1, 17, 60, 61]));
            });
    }

    #[test]
    fn responses_answers() {
        decode_mutated("responses", "responses_answers", PROTOCOL_PATHS[0]);
    }

    #[test]
    fn chat_answers() {
        decode_mutated("chat", "chat_answers", PROTOCOL_PATHS[1]);
    }

    #[test]
    fn messages_answers() {
        decode_mutated("messages", "messages_answers", PROTOCOL_PATHS[2]);
    }

    const GEMINI: [&str; 4] = [
        r#"{"candidates":[{"content":{"parts":[{"text":"Let me see.","thought":true},{"text":"Hi","thoughtSignature":"c2ln"}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":2,"thoughtsTokenCount":1},"modelVersion":"m","responseId":"r1"}"#,
        r#"{"candidates":[{"content":{"parts":[{"functionCall":{"name":"pay","args":{"cents":1}},"thoughtSignature":"c2ln"},{"inlineData":{"mimeType":"image/png","data":"AAAA"}},{"executableCode":{"language":"PYTHON","code":"1"}}]},"finishReason":"MAX_TOKENS","groundingMetadata":{"webSearchQueries":["x"],"groundingChunks":[{"web":{"uri":"https://a","title":"t"}}]},"logprobsResult":{"chosenCandidates":[]}}]}"#,
        r#"{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":18446744073709551615,"toolUsePromptTokenCount":1}}"#,
        r#"{"error":{"code":429,"message":"later","status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":"3.5s"}]}}"#,
    ];

    #[test]
    fn gemini_answers() {
        let events = GEMINI.map(|part| format!("data: {part}\n\n"));
        target("gemini").seeds(GEMINI).seeds([events.concat()]).run(
            module_path!(),
            "gemini_answers",
            |input| {
                let _ = decode("gemini", input, None);
                let _ = decode("gemini", input, Some(&[1, 17, 60, 61]));
            },
        );
    }

    /// The events of a streamed answer of Converse, each with its type.
    const CONVERSE: [(&str, &str); 9] = [
        ("messageStart", r#"{"role":"assistant"}"#),
        ("contentBlockDelta", r#"{"contentBlockIndex":0,"delta":{"text":"Hällo"}}"#),
        (
            "contentBlockDelta",
            r#"{"contentBlockIndex":1,"delta":{"reasoningContent":{"text":"Hm","signature":"s","redactedContent":"AA=="}}}"#,
        ),
        (
            "contentBlockStart",
            r#"{"contentBlockIndex":2,"start":{"toolUse":{"toolUseId":"c1","name":"pay"}}}"#,
        ),
        ("contentBlockDelta", r#"{"contentBlockIndex":2,"delta":{"toolUse":{"input":"{\"cents\":1}"}}}"#),
        ("contentBlockDelta", r#"{"contentBlockIndex":9999,"delta":{"text":"far"}}"#),
        ("contentBlockStop", r#"{"contentBlockIndex":2}"#),
        ("messageStop", r#"{"stopReason":"tool_use"}"#),
        (
            "metadata",
            r#"{"usage":{"inputTokens":18446744073709551615,"outputTokens":2,"cacheReadInputTokens":1},"serviceTier":{"type":"flex"}}"#,
        ),
    ];

    #[test]
    fn converse_answers() {
        let plain = r#"{"output":{"message":{"role":"assistant","content":[{"text":"Hi"},{"toolUse":{"toolUseId":"c1","name":"pay","input":{"cents":1}}},{"reasoningContent":{"reasoningText":{"text":"Hm","signature":"s"}}},{"citationsContent":{"content":[]}}]}},"stopReason":"end_turn","usage":{"inputTokens":1,"outputTokens":2}}"#;
        let events = CONVERSE.map(|(name, data)| format!("event: {name}\ndata: {data}\n\n"));
        target("converse").seeds([plain]).seeds([events.concat()]).run(
            module_path!(),
            "converse_answers",
            |input| {
                let _ = decode("converse", input, None);
                let _ = decode("converse", input, Some(&[1, 17, 60, 61]));
            },
        );
    }

    /// Corrects the checksums of the messages in an input, without which almost every mutation is refused at once. Returns
    /// false if a length leads out of the input.
    fn correct_checksums(mut bytes: &mut [u8]) -> bool {
        while bytes.len() >= 16 {
            let length = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
            let is_inside = (16..=bytes.len()).contains(&length);
            let (message, rest) = bytes.split_at_mut(if is_inside { length } else { 16 });
            let checksum = |bytes: &[u8]| {
                let mut crc = flate2::Crc::new();
                crc.update(bytes);
                crc.sum().to_be_bytes()
            };
            let prelude = checksum(&message[..8]);
            message[8..12].copy_from_slice(&prelude);
            if !is_inside {
                return false;
            }
            let whole = checksum(&message[..length - 4]);
            message[length - 4..].copy_from_slice(&whole);
            bytes = rest;
        }
        true
    }

    /// The binary framing of Bedrock, with the decoder of Converse behind it.
    #[test]
    fn bedrock_streams() {
        let frame = |kind: (&str, &str), name: &str, data: &str| {
            encode_event(
                &[(":message-type", kind.0), (kind.1, name), (":content-type", "application/json")],
                data.as_bytes(),
            )
        };
        let event = ("event", ":event-type");
        let converse = CONVERSE.map(|(name, data)| frame(event, name, data)).concat();
        let message = r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}"#;
        let chunk = format!(r#"{{"bytes":"{}"}}"#, data_encoding::BASE64.encode(message.as_bytes()));
        let refused =
            frame(("exception", ":exception-type"), "throttlingException", r#"{"message":"later"}"#);
        let broken = frame(("error", ":error-code"), "internalServerException", "");
        target("bedrock_stream")
            .seeds([converse, frame(event, "chunk", &chunk), refused, broken])
            .words([":event-type", ":message-type", "\u{7}", "chunk", "messageStop", "\0\0\0\u{10}"])
            .run(module_path!(), "bedrock_streams", |input| {
                let mut corrected = input.to_vec();
                let _ = correct_checksums(&mut corrected);
                for bytes in [input, &corrected] {
                    decode_frames(bytes, 4096);
                }
            });
    }

    fn decode_frames(bytes: &[u8], limit: usize) {
        with_base(true, |base| {
            let mut converse = ConverseDecoder::new(base(WireProtocol::Converse));
            let mut frames = EventStreamDecoder::new(limit);
            let mut deltas = DeltaBuffer::collecting();
            for piece in bytes.chunks(113) {
                frames.feed(piece);
                loop {
                    match frames.next_event() {
                        Ok(Some(event)) => {
                            assert!(event.data.len() <= limit, "an event is longer than its limit");
                            if converse.decode_event(event, &mut deltas).is_err() {
                                return;
                            }
                        }
                        Ok(None) => break,
                        Err(_) => return,
                    }
                }
            }
            let _ = finish_stream(&mut converse);
        });
    }

    /// Mutations get past the checksums: without the correction, this test finds no event behind a changed byte.
    #[test]
    fn corrected_messages_reach_the_decoder() {
        let mut bytes = encode_event(&[(":message-type", "event"), (":event-type", "messageStart")], b"{}");
        let last = bytes.len() - 5;
        bytes[last] = b' ';
        let is_event = |bytes: &[u8]| {
            let mut frames = EventStreamDecoder::new(4096);
            frames.feed(bytes);
            matches!(frames.next_event(), Ok(Some(_)))
        };
        assert!(!is_event(&bytes));
        assert!(correct_checksums(&mut bytes) && is_event(&bytes));
    }

    #[test]
    fn events_are_bounded() {
        let seeds = ["data: a\ndata: b\n\n", "\u{feff}event: x\r\nid: 1\rretry: 7\n:c\n\n"];
        target("sse").seeds(seeds).run(module_path!(), "events_are_bounded", |input| {
            let mut events = SseDecoder::new(512);
            for piece in input.chunks(7) {
                events.feed(piece);
                while let Ok(Some(event)) = events.next() {
                    assert!(event.data.len() <= 512, "an event is longer than its limit");
                }
            }
            let _ = events.finish();
        });
    }

    #[test]
    fn gzip_is_bounded() {
        let compress = |bytes: &[u8]| {
            let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            std::io::Write::write_all(&mut packed, bytes).expect("it is memory");
            packed.finish().expect("it is memory")
        };
        let seeds = [compress(b"data: hello\n\n"), compress(&[b'a'; 100_000])];
        target("gzip").seeds(seeds).run(module_path!(), "gzip_is_bounded", |input| {
            let mut gzip = GzipReader::new();
            for piece in input.chunks(64) {
                if gzip.decode(piece).is_err() {
                    return;
                }
            }
        });
    }
}

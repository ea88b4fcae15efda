//! Property tests for the decoders: malformed input never panics, and valid input decodes the same however it is
//! split.

use std::sync::Arc;

use proptest::prelude::*;
use windlass::core::id::AgentName;
use windlass::model::{ModelRequest, ModelResponse, ModelSettings};

use crate::anthropic::MessagesDecoder;
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
    let base = |protocol| RequestBase {
        host: "localhost",
        request,
        model: "fake-1",
        is_streamed: cuts.is_some(),
        origin: ItemOrigin { protocol, name: "test:host" },
    };
    match path {
        "/v1/responses" => decode_with(ResponsesDecoder::new(base(WireProtocol::Responses)), body, cuts),
        "/v1/chat/completions" => decode_with(ChatDecoder::new(base(WireProtocol::Chat)), body, cuts),
        _ => decode_with(MessagesDecoder::new(base(WireProtocol::Messages)), body, cuts),
    }
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

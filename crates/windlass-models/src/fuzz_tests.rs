//! Every protocol, fed with what nobody should send, and with every way of sending what somebody should.

use std::sync::Arc;

use proptest::prelude::*;
use windlass::core::AgentName;
use windlass::model::{Answer, ModelRequest, ModelSettings};

use crate::error::Fault;
use crate::exchange::{Assemble, Progress, Protocol};
use crate::sse::SseDecoder;
use crate::testing::{FakeReply, rendered};

const PATHS: [&str; 3] = ["/v1/responses", "/v1/chat/completions", "/v1/messages"];

/// Reads with the protocol of this path, as the exchange does.
fn read(path: &str, body: &[u8], cuts: Option<&[usize]>) -> Result<Option<Answer>, Fault> {
    let (agent, settings) = (AgentName::from("host"), ModelSettings::default());
    let request = ModelRequest {
        agent: &agent,
        turn: 1,
        instructions: None,
        input: &[],
        tools: &[],
        handoffs: &[],
        settings: &settings,
        output: None,
        previous_response: None,
    };
    match path {
        "/v1/responses" => read_with(&crate::openai::responses_reading(request), body, cuts),
        "/v1/chat/completions" => read_with(&crate::openai::chat_reading(request), body, cuts),
        _ => read_with(&crate::anthropic::reading(request), body, cuts),
    }
}

fn read_with(protocol: &impl Protocol, body: &[u8], cuts: Option<&[usize]>) -> Result<Option<Answer>, Fault> {
    let Some(cuts) = cuts else { return protocol.read(body).map(Some) };
    let mut stream = protocol.stream();
    let mut decoder = SseDecoder::new(1 << 20);
    let mut pieces = Vec::new();
    let mut from = 0;
    for to in cuts.iter().copied().chain([body.len()]) {
        let to = to.clamp(from, body.len());
        decoder.feed(&body[from..to]);
        from = to;
        while let Some(event) = decoder.next().map_err(|error| Fault::Unreadable(error.to_string()))? {
            if stream.take(event, Some(&mut pieces))? == Progress::Done {
                return stream.finish();
            }
        }
    }
    stream.finish()
}

fn reply() -> impl Strategy<Value = FakeReply> {
    let text = "[ -~äöü日🚢\n\t]{0,40}";
    let said = prop_oneof![
        text.prop_map(|text| (0, text, String::new())),
        ("[a-z_]{1,12}", text).prop_map(|(name, value)| (1, name, value)),
        text.prop_map(|text| (2, text, String::new())),
    ];
    (prop::collection::vec(said, 1..5), 1..30_usize).prop_map(|(said, piece)| {
        // One protocol has room for one text and one thought, and puts them first.
        let find = |kind| said.iter().find(move |said| said.0 == kind).map(|said| said.1.as_str());
        let mut reply = FakeReply::nothing();
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
        reply.in_pieces_of(piece)
    })
}

proptest! {
    #[test]
    fn streamed_and_plain_agree_however_it_is_cut(reply in reply(), mut cuts in prop::collection::vec(0..6000_usize, 0..40)) {
        cuts.sort_unstable();
        for path in PATHS {
            let plain = read(path, &rendered(&reply, path, false), None).expect("it can be read");
            let events = rendered(&reply, path, true);
            let streamed = read(path, &events, Some(&cuts)).expect("it can be read");
            prop_assert!(plain.is_some());
            prop_assert_eq!(&streamed, &plain, "{}", path);
        }
    }

    #[test]
    fn half_of_a_stream_is_no_answer(reply in reply(), share in 0.0..1.0_f64) {
        for path in PATHS {
            let events = rendered(&reply, path, true);
            let whole = read(path, &events, Some(&[])).expect("it can be read");
            let end = (events.len() as f64 * share) as usize;
            match read(path, &events[..end], Some(&[])) {
                Ok(None) => {}
                // What came after its end was of no account.
                Ok(some) => prop_assert_eq!(some.map(|answer| answer.items), whole.map(|answer| answer.items)),
                Err(fault) => prop_assert!(false, "{}: {:?}", path, fault),
            }
        }
    }

    #[test]
    fn rubbish_makes_nothing_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for path in PATHS {
            let _ = read(path, &bytes, None);
            let _ = read(path, &bytes, Some(&[17, 60]));
        }
    }

    #[test]
    fn what_is_changed_on_the_way_makes_nothing_panic(
        reply in reply(),
        changes in prop::collection::vec((0..6000_usize, any::<u8>()), 1..6),
    ) {
        for path in PATHS {
            for is_streamed in [false, true] {
                let mut bytes = rendered(&reply, path, is_streamed);
                for (at, byte) in &changes {
                    let length = bytes.len().max(1);
                    if let Some(place) = bytes.get_mut(at % length) {
                        *place = *byte;
                    }
                }
                let _ = read(path, &bytes, is_streamed.then_some(&[]));
            }
        }
    }

    #[test]
    fn any_json_in_any_event_makes_nothing_panic(kind in "[a-z_.]{0,30}", delta in "[ -~]{0,20}", index in any::<u64>()) {
        let delta = serde_json::Value::from(delta);
        for path in PATHS {
            for event in [
                serde_json::json!({ "type": kind, "delta": delta, "index": index, "output_index": index }),
                serde_json::json!({ "type": "content_block_delta", "delta": { "text": delta }, "index": index }),
                serde_json::json!({ "type": "response.function_call_arguments.delta", "delta": delta, "output_index": index }),
                serde_json::json!({ "choices": [{ "delta": { "tool_calls": [{ "index": index, "function": { "arguments": delta } }] } }] }),
            ] {
                let _ = read(path, format!("data: {event}\n\n").as_bytes(), Some(&[]));
            }
        }
    }
}

#[test]
fn an_answer_is_shared_and_not_copied() {
    let reply = FakeReply::text("Hello.");
    let answer = read(PATHS[0], &rendered(&reply, PATHS[0], true), Some(&[])).expect("it can be read");
    let answer = answer.expect("it is whole");
    assert_eq!(answer.items.iter().map(Arc::strong_count).max(), Some(1));
}

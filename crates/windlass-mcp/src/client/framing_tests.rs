use rmcp::model::{JsonRpcMessage, NumberOrString};
use serde_json::{Value, json};

use super::*;

fn decoded(bytes: &[u8]) -> Value {
    decode_message(bytes)
        .map(|message| serde_json::to_value(message).expect("messages are written"))
        .unwrap_or_default()
}

fn text_result(id: u32, text: &str) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#)
        .into_bytes()
}

#[test]
fn broken_text_is_replaced_and_the_rest_survives() {
    let text_of = |message: Value| message["result"]["content"][0]["text"].clone();
    assert_eq!(text_of(decoded(&text_result(1, r"a\ud800b"))), "a\u{fffd}b");
    assert_eq!(text_of(decoded(&text_result(1, r"a\udc00\ud83d\ude00"))), "a\u{fffd}\u{1f600}");
    assert_eq!(text_of(decoded(&text_result(1, r"\ud800\ud800\udc00"))), "\u{fffd}\u{10000}");
    assert_eq!(text_of(decoded(&text_result(1, "a\u{1}\tb"))), "a\u{1}\tb");
    let mut invalid = text_result(1, "a#b");
    let at = invalid.iter().position(|byte| *byte == b'#').expect("it is there");
    invalid[at] = 0xFF;
    assert_eq!(text_of(decoded(&invalid)), "a\u{fffd}b");
    let numbers = br#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"a":NaN,"b":-Infinity,"c":"NaN"}}}"#;
    assert_eq!(decoded(numbers)["result"]["structuredContent"], json!({ "a": null, "b": null, "c": "NaN" }));
}

#[test]
fn an_unreadable_response_becomes_an_error_of_its_request() {
    let deep = format!(r#"{{"result":{}{},"jsonrpc":"2.0","id":"x,}}"}}"#, "[".repeat(500), "]".repeat(500));
    for (bytes, id) in [
        (deep.as_bytes(), NumberOrString::String("x,}".into())),
        (br#"{"jsonrpc":"2.0","id":7,"result":{"content":[}}"#.as_slice(), NumberOrString::Number(7)),
        (br#"{"jsonrpc":"2.0","id":8}"#.as_slice(), NumberOrString::Number(8)),
    ] {
        let Some(JsonRpcMessage::Error(error)) = decode_message(bytes) else { panic!("an error is due") };
        assert_eq!(error.id, Some(id));
        assert!(unreadable_reason(&error.error).is_some());
    }
}

#[test]
fn lines_that_are_no_responses_are_ignored() {
    for line in ["", "starting up", "[1,2]", r#"{"id":3,"method":"broken","params":}"#, r#"{"level":"info"}"#]
    {
        assert!(decode_message(line.as_bytes()).is_none(), "{line}");
    }
}

#[test]
fn the_scanner_finds_an_id_in_pieces() {
    let message = br#"{"result":{"id":1,"text":"\"id\":2,"},"jsonrpc":"2.0","id": 33 }"#;
    for size in [1, 2, 7, message.len()] {
        let mut scanner = MessageScanner::default();
        message.chunks(size).for_each(|piece| scanner.feed(piece));
        assert_eq!(scanner.response_id(), Some(NumberOrString::Number(33)), "{size}");
    }
}

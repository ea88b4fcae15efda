use super::{EventStreamDecoder, encode_event};
use crate::protocol::ResponseError;

const EVENT: [(&str, &str); 3] =
    [(":message-type", "event"), (":event-type", "messageStop"), (":content-type", "application/json")];

fn events(bytes: &[u8], chunk: usize) -> Result<Vec<(String, String)>, ResponseError> {
    let mut decoder = EventStreamDecoder::new(10_000);
    let mut found = Vec::new();
    for part in bytes.chunks(chunk) {
        decoder.feed(part);
        while let Some(event) = decoder.next_event()? {
            found.push((event.name.unwrap_or_default().to_owned(), event.data.to_owned()));
        }
    }
    Ok(found)
}

#[test]
fn events_are_read_in_chunks_of_any_size() {
    let bytes = [
        encode_event(&EVENT, b"{\"a\":1}"),
        encode_event(&EVENT, b""),
        encode_event(&EVENT, "{\"ö\":2}".as_bytes()),
    ]
    .concat();
    let expected: Vec<(String, String)> = ["{\"a\":1}", "", "{\"ö\":2}"]
        .into_iter()
        .map(|data| ("messageStop".to_owned(), data.to_owned()))
        .collect();
    for chunk in [1, 2, 3, 7, 16, 1_000] {
        assert_eq!(events(&bytes, chunk).expect("they are valid"), expected, "chunks of {chunk}");
    }
}

#[test]
fn every_changed_byte_is_found() {
    let bytes = encode_event(&EVENT, b"{\"a\":1}");
    for place in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[place] ^= 0x41;
        let read = events(&changed, 1_000);
        assert!(!matches!(&read, Ok(found) if !found.is_empty()), "byte {place}: {read:?}");
    }
}

#[test]
fn exceptions_are_failures_of_the_provider() {
    let headers = [(":message-type", "exception"), (":exception-type", "throttlingException")];
    let bytes = encode_event(&headers, br#"{"message":"Too many requests"}"#);
    let Err(ResponseError::ReportedByProvider(error)) = events(&bytes, 5) else { panic!("it is a failure") };
    assert_eq!((error.code.as_str(), error.message.as_str()), ("rate_limit_error", "Too many requests"));
}

#[test]
fn a_length_above_the_limit_is_refused_at_once() {
    let mut decoder = EventStreamDecoder::new(100);
    decoder.feed(&encode_event(&EVENT, &[b'x'; 200])[..12]);
    assert!(decoder.next_event().is_err());
}

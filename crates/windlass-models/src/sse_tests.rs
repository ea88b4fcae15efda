use proptest::prelude::*;

use super::{SseDecoder, SseError};

/// Decodes bytes that are fed in chunks that end at `cuts`; returns the name and data of each event.
fn decode(bytes: &[u8], cuts: &[usize]) -> Result<Vec<(Option<String>, String)>, SseError> {
    let mut decoder = SseDecoder::new(1 << 20);
    let mut events = Vec::new();
    let mut from = 0;
    for to in cuts.iter().copied().chain([bytes.len()]) {
        let to = to.clamp(from, bytes.len());
        decoder.feed(&bytes[from..to]);
        from = to;
        while let Some(event) = decoder.next()? {
            events.push((event.name.map(str::to_owned), event.data.to_owned()));
        }
    }
    Ok(events)
}

fn event_data(events: &[(Option<String>, String)]) -> Vec<&str> {
    events.iter().map(|event| event.1.as_str()).collect()
}

#[test]
fn the_rules_of_the_format() {
    let cases: [(&str, &[&str]); 14] = [
        ("data: a\n\n", &["a"]),
        ("data:a\n\n", &["a"]),
        ("data:  a\n\n", &[" a"]),
        ("data: a\r\n\r\ndata: b\r\r", &["a", "b"]),
        ("\u{feff}data: a\n\n", &["a"]),
        ("data: a\ndata: b\n\n", &["a\nb"]),
        ("data: a\ndata:\ndata: c\n\n", &["a\n\nc"]),
        ("data\n\n", &[""]),
        (": comment\n\ndata: a\n\n", &["a"]),
        ("data: a\n: comment\ndata: b\n\n", &["a\nb"]),
        ("event: x\n\ndata: a\n\n", &["a"]),
        ("id: 1\nretry: 5\nother: x\ndata: a\n\n", &["a"]),
        ("data: {\"a\": \"b: c\"}\n\n", &["{\"a\": \"b: c\"}"]),
        ("data: not finished", &[]),
    ];
    for (text, wanted) in cases {
        let events = decode(text.as_bytes(), &[]).expect("it can be read");
        assert_eq!(event_data(&events), wanted, "{text:?}");
    }
    let events = decode(b"event: x\n\ndata: a\n\nevent: y\ndata: b\n\n", &[]).expect("it can be read");
    assert_eq!(events, [(None, "a".to_owned()), (Some("y".to_owned()), "b".to_owned())]);
}

#[test]
fn every_place_is_as_good_to_cut_as_any() {
    let text = "\u{feff}event: größe\r\ndata: 日本\r\ndata: 🚢\r\n\r\n: x\n\ndata: b\n\ndata: c\r\r";
    let bytes = text.as_bytes();
    let whole = decode(bytes, &[]).expect("it can be read");
    assert_eq!(event_data(&whole), ["日本\n🚢", "b", "c"]);
    for first in 0..=bytes.len() {
        for second in first..=bytes.len() {
            assert_eq!(decode(bytes, &[first, second]).as_ref(), Ok(&whole), "cut at {first} and {second}");
        }
    }
}

#[test]
fn what_is_too_long_is_an_error_and_takes_no_room() {
    let mut decoder = SseDecoder::new(100);
    decoder.feed(b"data: ");
    assert_eq!(decoder.next(), Ok(None));
    let mut fed = 0;
    let error = loop {
        decoder.feed(&[b'x'; 64]);
        fed += 64;
        if let Err(error) = decoder.next() {
            break error;
        }
    };
    assert_eq!(error, SseError::TooLong { limit: 100 });
    assert!(fed <= 192, "{fed}");

    let mut decoder = SseDecoder::new(100);
    for _ in 0..100_000 {
        decoder.feed(b": only a comment\n\ndata: short\n\n");
        while decoder.next().expect("it can be read").is_some() {}
    }
    assert!(decoder.buffer.capacity() < 64 * 1024, "{}", decoder.buffer.capacity());
}

#[test]
fn an_event_without_its_empty_line_is_there_at_the_end() {
    let mut decoder = SseDecoder::new(100);
    decoder.feed(b"data: a\n\ndata: b");
    assert_eq!(decoder.next().expect("it can be read").map(|event| event.data), Some("a"));
    assert_eq!(decoder.next(), Ok(None));
    assert_eq!(decoder.finish().expect("it can be read").map(|event| event.data), Some("b"));
    assert_eq!(decoder.finish(), Ok(None));
}

fn arbitrary_line() -> impl Strategy<Value = String> {
    prop_oneof![
        "data: [a-zA-Zäöü日🚢\"{}:, ]{0,20}",
        "event: [a-z.]{0,8}",
        Just(": comment".to_owned()),
        Just(String::new()),
        Just("data".to_owned()),
    ]
}

proptest! {
    #[test]
    fn cuts_change_nothing(
        lines in prop::collection::vec((arbitrary_line(), prop_oneof![Just("\n"), Just("\r\n"), Just("\r")]), 0..20),
        mut cuts in prop::collection::vec(0..400_usize, 0..30),
    ) {
        let text: String = lines.into_iter().flat_map(|(line, end)| [line, end.to_owned()]).collect();
        cuts.sort_unstable();
        let bytes = text.as_bytes();
        prop_assert_eq!(decode(bytes, &cuts), decode(bytes, &[]));
    }

    #[test]
    fn nothing_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), mut cuts in prop::collection::vec(0..400_usize, 0..10)) {
        cuts.sort_unstable();
        prop_assert_eq!(decode(&bytes, &cuts), decode(&bytes, &[]));
    }
}

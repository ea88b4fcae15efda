use super::*;

fn events(bytes: &[u8], size: usize) -> Vec<Sse> {
    let mut parser = EventParser::new(None);
    bytes.chunks(size).flat_map(|piece| parser.feed(piece)).collect()
}

#[test]
fn events_are_parsed_in_pieces() {
    let text = b": hello\r\nevent: endpoint\r\ndata: /messages?id=1\r\n\r\nid: 7\nretry: 3000\ndata: a\ndata:b\n\ndata\n\n";
    for size in [1, 3, text.len()] {
        let found = events(text, size);
        assert_eq!(found[0], Sse::default().event("endpoint").data("/messages?id=1"), "{size}");
        assert_eq!(found[1], Sse::default().id("7").retry(3000).data("a\nb"), "{size}");
        assert_eq!(found[2].data.as_deref(), Some(""), "{size}");
        assert_eq!(found.len(), 3, "{size}");
    }
}

#[test]
fn an_event_that_is_too_large_becomes_an_error_of_its_request() {
    let mut parser = EventParser::new(None);
    let mut found =
        parser.feed(b"data: {\"jsonrpc\":\"2.0\",\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"");
    let piece = vec![b'x'; 1024 * 1024];
    for _ in 0..20 {
        found.extend(parser.feed(&piece));
        assert!(parser.line.len() <= MAX_MESSAGE_BYTES + piece.len(), "it is not kept");
    }
    found.extend(parser.feed(b"\"}]},\"id\":5}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":6,\"result\":{}}\n\n"));
    let texts: Vec<&str> = found.iter().filter_map(|event| event.data.as_deref()).collect();
    assert_eq!(texts.len(), 2);
    assert!(texts[0].contains("\"id\":5") && texts[0].contains("are accepted"), "{}", texts[0]);
    assert!(texts[1].contains("\"id\":6"), "{}", texts[1]);
}

#[test]
fn broken_text_in_an_event_is_replaced() {
    let found = events(b"data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"a\\ud800\xFFb\"}]}}\n\n", 1000);
    assert!(found[0].data.as_deref().unwrap_or_default().contains("a\u{fffd}\u{fffd}b"), "{found:?}");
}

use futures_util::stream;
use serde_json::json;

use super::*;

fn delta(seq: u64, text: &str) -> LiveEvent {
    LiveEvent::Delta { seq, text: text.to_owned() }
}

fn response(seq: u64, text: &str) -> FeedRecord {
    let item = json!({ "type": "message", "content": [{ "text": text }] });
    FeedRecord { seq, json: json!({ "model_responded": { "items": [item], "calls": [] } }).to_string() }
}

fn end(seq: u64, kind: &str) -> FeedRecord {
    FeedRecord { seq, json: json!({ kind: { "failure": "blocked" } }).to_string() }
}

/// Reads everything with a buffer for two deltas.
async fn read_all(events: Vec<LiveEvent>, records: Vec<FeedRecord>, is_joined: bool) -> Vec<TextPiece> {
    let (sender, live) = broadcast::channel(2);
    for event in events {
        sender.send(event).unwrap();
    }
    let mut reader = TextReader::from_parts(live, stream::iter(records.into_iter().map(Ok)).boxed());
    if is_joined {
        reader.note_missed_deltas();
    }
    let mut pieces = Vec::new();
    while let Some(piece) = reader.next().await.unwrap() {
        pieces.push(piece);
    }
    pieces
}

fn text_of(pieces: &[TextPiece]) -> String {
    let texts = pieces.iter().map(|piece| match piece {
        TextPiece::Delta(text) => text.as_str(),
        TextPiece::MessageEnd(_) => "|",
        TextPiece::Record(_) => "",
        TextPiece::End(_) => ".",
    });
    texts.collect()
}

#[tokio::test]
async fn a_reader_that_missed_deltas_gets_the_whole_message() {
    let records = vec![response(3, "one two three"), end(4, "run_finished")];
    let slow = vec![delta(1, "one "), delta(1, "two "), delta(1, "three"), LiveEvent::Responded { seq: 3 }];
    assert_eq!(text_of(&read_all(slow, records.clone(), false).await), "one two three|.");
    let late = vec![delta(1, "three"), LiveEvent::Responded { seq: 3 }];
    assert_eq!(text_of(&read_all(late, records, true).await), "one two three|.");
}

#[tokio::test]
async fn deltas_of_the_next_response_wait_for_the_record_of_the_last() {
    let records = vec![response(3, "one"), response(6, "two three"), end(7, "run_finished")];
    let next = vec![LiveEvent::Responded { seq: 3 }, delta(3, "two ")];
    assert_eq!(text_of(&read_all(next, records, false).await), "one|two three|.");
}

#[tokio::test]
async fn the_text_of_a_repeated_request_is_followed_by_the_whole_message() {
    let records = vec![response(3, "another"), end(4, "run_finished")];
    let repeated = vec![delta(1, "half"), LiveEvent::Restarted];
    assert_eq!(text_of(&read_all(repeated, records, false).await), "half\n\nanother|.");
}

#[tokio::test]
async fn a_final_message_that_was_not_streamed_follows_only_if_the_run_finishes() {
    let failed = read_all(Vec::new(), vec![response(3, "blocked"), end(4, "run_failed")], false).await;
    assert_eq!(text_of(&failed), ".");
    let finished = read_all(Vec::new(), vec![response(3, "fine"), end(4, "run_finished")], false).await;
    assert_eq!(text_of(&finished), "fine|.");
}

#[tokio::test]
async fn tokens_that_a_provider_invents_saturate() {
    let many = |seq| {
        let usage = json!({ "input_tokens": u64::MAX, "output_tokens": 7 });
        let entry = json!({ "model_responded": { "items": [], "calls": [], "usage": usage } });
        FeedRecord { seq, json: entry.to_string() }
    };
    let pieces = read_all(Vec::new(), vec![many(0), many(1), end(2, "run_finished")], false).await;
    let Some(TextPiece::End(end)) = pieces.last() else { panic!("{pieces:?}") };
    assert_eq!((end.input_tokens, end.output_tokens, end.total_tokens()), (u64::MAX, 14, u64::MAX));
}

use std::sync::Arc;

use super::*;
use crate::id::Timestamp;
use crate::item::Item;
use crate::journal::{JournalEntry, RunFinished, RunStarted};

fn sample_journal() -> Vec<JournalRecord> {
    let started = RunStarted {
        run: "run-1".into(),
        agent: "desk".into(),
        history: Default::default(),
        input: vec![Arc::new(Item::user("two\nlines"))],
        max_turns: Some(3),
        session: None,
        previous_response_id: None,
        key_nonce: None,
        origin: None,
        build: None,
        budget: None,
        session_budget: None,
    };
    let finished = RunFinished { output: "done".into(), message: None };
    [
        JournalEntry::RunStarted(started.into()),
        JournalEntry::TurnContinued,
        JournalEntry::RunFinished(finished),
    ]
    .into_iter()
    .enumerate()
    .map(|(seq, entry)| JournalRecord { seq: seq as u64, at: Timestamp(7), path: vec![], entry })
    .collect()
}

#[test]
fn a_saved_run_reads_back() {
    let records = sample_journal();
    assert_eq!(decode_journal(&encode_journal(&records)).expect("it was just written"), records);
}

#[test]
fn a_text_has_one_hash_and_no_numbers() {
    let text = encode_journal(&sample_journal());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5);
    assert_eq!((lines[0], lines[2]), ("windlass 1", r#"{"at":7,"turn_continued":{}}"#));
    let mut chain = HashChain::default();
    let head = sample_journal().iter().map(|record| chain.append(record).hash).last().expect("records");
    assert_eq!(lines[4], format!("head {head}"));
}

#[test]
fn a_changed_text_is_refused() {
    let text = encode_journal(&sample_journal());
    let changed = text.replacen("turn_continued", "turn_continue", 1);
    assert!(matches!(decode_journal(&changed), Err(JournalFormatError::HeadMismatch)));
    let lines: Vec<&str> = text.lines().collect();
    let missing = [lines[0], lines[1], lines[3], lines[4]].join("\n");
    assert!(matches!(decode_journal(&missing), Err(JournalFormatError::HeadMismatch)));
    for upto in 1..lines.len() {
        let cut_off = lines[..upto].join("\n");
        assert!(matches!(decode_journal(&cut_off), Err(JournalFormatError::MissingHead)), "{upto}");
    }
}

#[test]
fn an_unknown_event_is_refused_by_its_name() {
    let error = decode_record(4, r#"{"at":7,"later":1,"run_paused":{}}"#).expect_err("it is unknown");
    let JournalFormatError::MalformedRecord { seq: 4, reason } = error else { panic!("{error}") };
    assert!(reason.contains("run_paused"), "{reason}");
    let extra = decode_record(4, r#"{"later":[1,{}],"at":7,"turn_continued":{"more":2}}"#)
        .expect("fields are ignored");
    assert_eq!((extra.seq, extra.entry), (4, JournalEntry::TurnContinued));
    let second = decode_record(4, r#"{"at":7,"turn_continued":{},"run_finished":{"output":"x"}}"#);
    assert!(second.expect_err("a record has one event").to_string().contains("run_finished"));
}

#[test]
fn other_texts_are_refused() {
    assert!(matches!(decode_journal(""), Err(JournalFormatError::MissingHeader)));
    assert!(matches!(decode_journal("{\"windlass\":1}"), Err(JournalFormatError::MissingHeader)));
    for almost in
        ["windlass", "windlass1", "windlass 0", "windlass 01", "windlass +1", "windlass 1 ", "Windlass 1"]
    {
        assert!(matches!(decode_journal(almost), Err(JournalFormatError::MissingHeader)), "{almost}");
    }
    assert!(matches!(
        decode_journal("windlass 99\n"),
        Err(JournalFormatError::UnsupportedVersion { version: 99 })
    ));
    assert!(matches!(decode_journal("windlass 1\nxyz"), Err(JournalFormatError::MissingHead)));
    let too_new = decode_journal("windlass 99\n").expect_err("it is newer").to_string();
    assert!(too_new.contains("99"), "{too_new}");
}

use std::sync::Arc;

use super::*;
use crate::id::Timestamp;
use crate::item::Item;
use crate::journal::{JournalEntry, RunFinished, RunStarted};

fn sample_journal() -> Vec<JournalRecord> {
    let started = RunStarted {
        run: "run-1".into(),
        agent: "desk".into(),
        history: vec![],
        input: vec![Arc::new(Item::user("two\nlines"))],
        max_turns: Some(3),
        session: None,
        origin: None,
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
fn the_first_changed_record_is_named() {
    let text = encode_journal(&sample_journal());
    let changed = text.replacen("turn_continued", "turn_continue", 1);
    assert!(matches!(decode_journal(&changed), Err(JournalFormatError::HashMismatch { seq: 1 })));
    let lines: Vec<&str> = text.lines().collect();
    let missing = [lines[0], lines[1], lines[3]].join("\n");
    assert!(matches!(decode_journal(&missing), Err(JournalFormatError::HashMismatch { seq: 1 })));
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
    assert!(matches!(
        decode_journal("windlass 1\nxyz"),
        Err(JournalFormatError::MalformedRecord { seq: 0, .. })
    ));
    let too_new = decode_journal("windlass 99\n").expect_err("it is newer").to_string();
    assert!(too_new.contains("99"), "{too_new}");
}

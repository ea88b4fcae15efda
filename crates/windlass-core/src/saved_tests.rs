use std::sync::Arc;

use super::*;
use crate::entry::{Entry, Finished, Started};
use crate::id::Timestamp;
use crate::item::Item;

fn journal() -> Vec<Record> {
    let started = Started {
        run: "run-1".into(),
        agent: "desk".into(),
        history: vec![],
        input: vec![Arc::new(Item::user("two\nlines"))],
        max_turns: Some(3),
        session: None,
        origin: None,
    };
    let finished = Finished { output: "done".into(), message: None };
    [Entry::Started(started.into()), Entry::WentOn, Entry::Finished(finished)]
        .into_iter()
        .enumerate()
        .map(|(seq, entry)| Record { seq: seq as u64, at: Timestamp(7), path: vec![], entry })
        .collect()
}

#[test]
fn a_saved_run_reads_back() {
    let records = journal();
    assert_eq!(from_text(&to_text(&records)).expect("it was just written"), records);
}

#[test]
fn the_first_changed_record_is_named() {
    let text = to_text(&journal());
    let changed = text.replacen("went_on", "went_off", 1);
    assert!(matches!(from_text(&changed), Err(SavedError::Changed { seq: 1 })));
    let lines: Vec<&str> = text.lines().collect();
    let missing = [lines[0], lines[1], lines[3]].join("\n");
    assert!(matches!(from_text(&missing), Err(SavedError::Changed { seq: 1 })));
}

#[test]
fn other_texts_are_refused() {
    assert!(matches!(from_text(""), Err(SavedError::NotASavedRun)));
    assert!(matches!(from_text("{\"windlass\":1}"), Err(SavedError::NotASavedRun)));
    for almost in
        ["windlass", "windlass1", "windlass 0", "windlass 01", "windlass +1", "windlass 1 ", "Windlass 1"]
    {
        assert!(matches!(from_text(almost), Err(SavedError::NotASavedRun)), "{almost}");
    }
    assert!(matches!(from_text("windlass 99\n"), Err(SavedError::TooNew { found: 99 })));
    assert!(matches!(from_text("windlass 1\nxyz"), Err(SavedError::Unreadable { seq: 0, .. })));
    let too_new = from_text("windlass 99\n").expect_err("it is newer").to_string();
    assert!(too_new.contains("99"), "{too_new}");
}

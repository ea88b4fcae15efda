use super::*;
use crate::id::RunId;
use crate::journal::{
    JournalEntry, JournalFormatError, JournalRecord, RunStarted, decode_journal, encode_journal,
};
use crate::run::{ReplayError, Run};

fn items() -> Vec<Arc<Item>> {
    vec![Arc::new(Item::user("Hello.")), Arc::new(Item::assistant("Good morning."))]
}

fn started_with(history: StartHistory) -> JournalRecord {
    let mut started = RunStarted::new(RunId::from("r"), "host".into());
    started.history = history;
    started.input = vec![Arc::new(Item::user("Well?"))];
    let entry = JournalEntry::RunStarted(started.into());
    JournalRecord { seq: 0, at: crate::id::Timestamp(1), path: Vec::new(), entry }
}

fn referenced() -> StartHistory {
    let ranges = ItemRange::from_positions([3, 4]);
    StartHistory::referenced("ann".into(), 7, ranges, items())
}

#[test]
fn positions_become_ranges() {
    let ranges = ItemRange::from_positions([0, 1, 5, 6, 2]);
    assert_eq!(serde_json::to_string(&ranges).expect("it is plain"), "[[0,2],[5,7],[2,3]]");
}

#[test]
fn a_record_has_the_reference_and_not_the_items() {
    let text = serde_json::to_string(&started_with(referenced())).expect("it is plain");
    assert!(!text.contains("Good morning"), "{text}");
    let mut read: JournalRecord = serde_json::from_str(&text).expect("it was just written");
    let missing = HistoryError::Missing { session: "ann".into(), items: 2 };
    assert_eq!(Run::replay([&read]), Err(ReplayError::History(missing)));
    let JournalEntry::RunStarted(started) = &mut read.entry else { panic!("it is the start") };
    let changed = vec![Arc::new(Item::user("Hello!")), Arc::new(Item::assistant("Good morning."))];
    let mismatch = HistoryError::Mismatch { session: "ann".into() };
    assert_eq!(started.history.resolve(changed), Err(mismatch));
    started.history.resolve(items()).expect("these are the items");
    assert_eq!(read, started_with(referenced()));
    let run = Run::replay([&read]).expect("the history is there").run;
    assert_eq!(run.history().len(), 3);
}

#[test]
fn a_text_has_the_items_and_the_same_hashes() {
    let records = [started_with(referenced())];
    let text = encode_journal(&records);
    assert!(text.contains("Good morning"), "{text}");
    assert_eq!(decode_journal(&text).expect("it was just written"), records);
    let changed = text.replace("Good morning", "Good evening");
    let error = decode_journal(&changed).expect_err("the model saw something else");
    assert!(matches!(error, JournalFormatError::Replay(ReplayError::History(_))), "{error}");
    let without: String =
        text.lines().filter(|line| !line.starts_with("history")).collect::<Vec<_>>().join("\n");
    assert_eq!(without.lines().count(), 3);
    let error = decode_journal(&without).expect_err("the history is needed");
    assert!(error.to_string().contains("session `ann`"), "{error}");
}

#[test]
fn an_inline_history_is_written_as_items() {
    let record = started_with(items().into());
    let text = serde_json::to_string(&record).expect("it is plain");
    assert!(text.contains("Good morning"), "{text}");
    assert_eq!(serde_json::from_str::<JournalRecord>(&text).expect("it was just written"), record);
    let none = serde_json::to_string(&started_with(StartHistory::default())).expect("it is plain");
    assert!(!none.contains("history"), "{none}");
}

use crate::golden::{GOLDEN_FILES, golden_records};
use crate::inspect;
use crate::journal::{JournalEntry, JournalRecord};
use crate::run::{ParsedSnapshot, ReplayedRun, Run};

#[test]
fn a_run_goes_on_from_a_snapshot_as_from_its_whole_journal() {
    let mut taken = 0;
    for (name, _) in GOLDEN_FILES {
        let records = golden_records(name);
        let whole = Run::replay(&records).expect("it adds up");
        for until in 1..=records.len() {
            let prefix = Run::replay(&records[..until]).expect("a prefix adds up");
            let Some(snapshot) = prefix.to_snapshot() else { continue };
            taken += 1;
            let history = prefix.run.referenced_history();
            let items = history.map(|history| history.items().expect("they are there")).unwrap_or_default();
            let parsed = ParsedSnapshot::parse(&snapshot).expect("it can be read");
            let mut replay = parsed.restore(items.to_vec()).expect("it can be restored");
            assert_eq!(replay, prefix, "{name} after {until} records");
            for record in &records[until..] {
                replay.apply_record(record).expect("the rest fits");
            }
            assert_eq!(replay, whole, "{name} from {until} records on");
        }
    }
    assert!(taken > 20, "only {taken} snapshots could be taken");
}

#[test]
fn none_is_taken_while_calls_are_open_or_the_run_is_over() {
    for (name, _) in GOLDEN_FILES {
        let records = golden_records(name);
        for until in 1..=records.len() {
            let replay = Run::replay(&records[..until]).expect("a prefix adds up");
            let run = &replay.run;
            if !run.is_between_turns() || run.outcome().is_some() {
                assert_eq!(replay.to_snapshot(), None, "{name} after {until} records");
            }
        }
    }
}

#[test]
fn what_another_version_wrote_is_not_read() {
    let records = golden_records("finished");
    let replay = Run::replay(&records[..1]).expect("it adds up");
    let snapshot = replay.to_snapshot().expect("nothing is open");
    let items = replay.run.referenced_history().expect("it has a session").items().expect("they are there");
    let restore = |text: &str| ParsedSnapshot::parse(text)?.restore(items.to_vec());
    assert_eq!(restore(&snapshot), Some(replay.clone()));
    // The items of the session are not copied, and nothing is restored without them.
    assert!(!snapshot.contains("Good morning"), "{snapshot}");
    assert_eq!(ReplayedRun::from_snapshot(&snapshot), None);
    assert_eq!(ParsedSnapshot::parse(&snapshot).and_then(|parsed| parsed.restore(Vec::new())), None);
    // A change of the serialised form requires a new snapshot version.
    assert_eq!(snapshot, include_str!("../../tests/golden/snapshot-5.json").trim_end());
    for other in [
        snapshot.replace("snapshot 5", "snapshot 4"),
        snapshot.replace("\"history\":[[0,3]]", "\"history\":[[0,9]]"),
        snapshot.replace("\"input\":[2]", "\"input\":[7]"),
        snapshot.replace("\"last_filtered_input\":null", "\"last_filtered_input\":[7]"),
        snapshot.replace("\"item_kinds\":\"\"", "\"item_kinds\":\"s\""),
        snapshot[..snapshot.len() / 2].to_owned(),
        String::new(),
    ] {
        assert_ne!(other, snapshot);
        assert_eq!(restore(&other), None, "{other}");
    }
}

#[test]
fn an_item_is_written_once() {
    let records = golden_records("finished");
    let boundary = |until: &usize| {
        Run::replay(&records[..*until])
            .is_ok_and(|replay| replay.run.turn() > 0 && replay.to_snapshot().is_some())
    };
    let until = (1..records.len()).find(boundary).expect("a turn settles");
    let replay = Run::replay(&records[..until]).expect("it adds up");
    let snapshot = replay.to_snapshot().expect("nothing is open");
    let said = inspect::step_lines(&records[..until]);
    assert!(!said.is_empty());
    let output = replay.run.items().last().expect("the turn had outputs");
    let text = serde_json::to_string(&output.item).expect("items can be written");
    assert_eq!(snapshot.matches(&text).count(), 1, "{text}");
}

#[test]
fn none_is_taken_between_a_filtered_request_and_its_answer() {
    let records = golden_records("items");
    let is_filtered = |record: &&JournalRecord| matches!(record.entry, JournalEntry::ModelInputFiltered(_));
    let at = records.iter().find(is_filtered).expect("a request was filtered").seq as usize;
    let snapshot_after =
        |until: usize| Run::replay(&records[..until]).expect("a prefix adds up").to_snapshot();
    assert!(snapshot_after(at).is_some(), "before the filter nothing is in progress");
    assert_eq!(snapshot_after(at + 1), None);
    let snapshot = snapshot_after(at + 2).expect("the model has answered");
    let replay = ReplayedRun::from_snapshot(&snapshot).expect("it can be read");
    assert_eq!(replay.run.last_model_input().len(), 4, "what the model was asked is kept");
}

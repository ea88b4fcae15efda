use std::sync::Arc;

use crate::golden::{GOLDEN_FILES, golden_records};
use crate::inspect;
use crate::item::Item;
use crate::journal::{JournalEntry, JournalRecord};
use crate::run::{EncodedSnapshot, ParsedSegments, ReplayedRun, Run, RunOutline, RunPast};

/// Returns the items of the session that a run refers to.
fn session_items(replay: &ReplayedRun) -> Vec<Arc<Item>> {
    let history = replay.run.referenced_history();
    history.map(|history| history.items().expect("they are there").to_vec()).unwrap_or_default()
}

/// Returns the past of a run, from the segments of its snapshot.
fn parse_past(head: &str, segments: &[String], session: &[Arc<Item>]) -> Option<RunPast> {
    ParsedSegments::parse(RunOutline::parse(head)?.position(), segments)?.resolve(session.to_vec())
}

/// Restores the whole run from a snapshot.
fn restore(head: &str, segments: &[String], session: &[Arc<Item>]) -> Option<ReplayedRun> {
    RunOutline::parse(head)?.complete(parse_past(head, segments, session)?)
}

/// Replays a prefix of records.
fn replay_prefix(records: &[JournalRecord], until: usize) -> ReplayedRun {
    Run::replay(&records[..until]).expect("a prefix adds up")
}

#[test]
fn a_run_goes_on_from_a_snapshot_as_from_its_whole_journal() {
    let mut taken = 0;
    for (name, _) in GOLDEN_FILES {
        let records = golden_records(name);
        let whole = Run::replay(&records).expect("it adds up");
        for until in 1..=records.len() {
            let prefix = replay_prefix(&records, until);
            let Some(snapshot) = prefix.to_snapshot(None) else { continue };
            taken += 1;
            let restored = restore(&snapshot.head, &[snapshot.segment], &session_items(&prefix));
            let mut replay = restored.expect("it can be restored");
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
fn segments_that_were_written_one_after_the_other_add_up_to_the_run() {
    let mut longest = 0;
    for (name, _) in GOLDEN_FILES {
        let records = golden_records(name);
        let mut segments = Vec::new();
        let mut position = None;
        for until in 1..=records.len() {
            let prefix = replay_prefix(&records, until);
            let Some(snapshot) = prefix.to_snapshot(position.as_ref()) else { continue };
            segments.push(snapshot.segment);
            position = Some(snapshot.position);
            let restored = restore(&snapshot.head, &segments, &session_items(&prefix));
            assert_eq!(restored.as_ref(), Some(&prefix), "{name} after {until} records");
        }
        longest = longest.max(segments.len());
    }
    assert!(longest > 3, "only {longest} segments");
}

#[test]
fn an_outline_decides_as_the_whole_run_does_and_becomes_it() {
    let (mut flat, mut needing_past) = (0, 0);
    for (name, _) in GOLDEN_FILES {
        let records = golden_records(name);
        for from in 1..=records.len() {
            let prefix = replay_prefix(&records, from);
            let Some(snapshot) = prefix.to_snapshot(None) else { continue };
            let mut outline = RunOutline::parse(&snapshot.head).expect("it can be read");
            let past = parse_past(&snapshot.head, &[snapshot.segment], &session_items(&prefix));
            assert_eq!(past.as_ref(), Some(&RunPast::from_replay(&prefix)), "{name} after {from} records");
            for (until, record) in records.iter().enumerate().skip(from) {
                let before = outline.clone();
                let whole = replay_prefix(&records, until + 1);
                if outline.apply_record(record).is_err() {
                    assert_eq!(outline, before, "a record that does not fit changes nothing");
                    needing_past += 1;
                    break;
                }
                flat += 1;
                let run = &outline.replay().run;
                assert_eq!(run.pending_calls(), whole.run.pending_calls(), "{name} {from}..{until}");
                assert_eq!(run.outcome(), whole.run.outcome(), "{name} {from}..{until}");
                assert_eq!(run.standing_decisions(), whole.run.standing_decisions());
                assert_eq!(run.unsettled_calls(), whole.run.unsettled_calls());
                let past = past.clone().expect("it was read");
                assert_eq!(outline.complete(past).as_ref(), Some(&whole), "{name} {from}..{until}");
            }
        }
    }
    // Only a record about the conversation, such as a compaction, needs the past.
    assert!(flat > 100 && needing_past > 0, "{flat} and {needing_past}");
}

#[test]
fn none_is_taken_while_calls_are_open_or_the_run_is_over() {
    for (name, _) in GOLDEN_FILES {
        let records = golden_records(name);
        for until in 1..=records.len() {
            let replay = replay_prefix(&records, until);
            let run = &replay.run;
            if !run.is_between_turns() || run.outcome().is_some() {
                assert_eq!(replay.to_snapshot(None), None, "{name} after {until} records");
            }
        }
    }
}

#[test]
fn what_another_version_wrote_is_not_read() {
    let records = golden_records("finished");
    let replay = replay_prefix(&records, 1);
    let EncodedSnapshot { head, segment, .. } = replay.to_snapshot(None).expect("nothing is open");
    let items = session_items(&replay);
    assert_eq!(restore(&head, std::slice::from_ref(&segment), &items), Some(replay));
    // The items of the session are not copied, and nothing is restored without them.
    assert!(!segment.contains("Good morning"), "{segment}");
    assert_eq!(restore(&head, std::slice::from_ref(&segment), &[]), None);
    // A change of the serialised form requires a new snapshot version.
    let golden = include_str!("../../tests/golden/snapshot-6.txt").trim_end();
    assert_eq!(format!("{head}\n{segment}"), golden);
    for other in [
        head.replace("snapshot 6", "snapshot 5"),
        head.replace("\"history_len\":3", "\"history_len\":4"),
        head.replace("\"has_filtered_input\":false", "\"has_filtered_input\":true"),
        head[..head.len() / 2].to_owned(),
        String::new(),
    ] {
        assert_ne!(other, head);
        assert_eq!(restore(&other, std::slice::from_ref(&segment), &items), None, "{other}");
    }
}

#[test]
fn segments_that_are_not_those_of_the_head_are_refused() {
    let records = golden_records("finished");
    let prefix = replay_prefix(&records, 1);
    let first = prefix.to_snapshot(None).expect("nothing is open");
    let later = (2..=records.len())
        .rev()
        .find_map(|until| replay_prefix(&records, until).to_snapshot(Some(&first.position)))
        .expect("a later turn settles");
    let items = session_items(&prefix);
    let good = vec![first.segment, later.segment];
    assert!(restore(&later.head, &good, &items).is_some());
    let changed = |place: usize, from: &str, to: &str| {
        let mut segments = good.clone();
        segments[place] = segments[place].replace(from, to);
        assert_ne!(segments, good);
        segments
    };
    for forged in [
        changed(0, "\"input\":[[2,3]]", "\"input\":[[1,3]]"),
        changed(1, "\"replaces_history\":false", "\"replaces_history\":true"),
        vec![good[0].clone()],
        vec![good[1].clone(), good[0].clone()],
        vec![good[0].clone(), good[1].clone(), good[1].clone()],
        Vec::new(),
    ] {
        assert_eq!(restore(&later.head, &forged, &items), None, "{forged:?}");
    }
}

#[test]
fn an_item_is_written_once() {
    let records = golden_records("finished");
    let boundary = |until: &usize| {
        let replay = replay_prefix(&records, *until);
        replay.run.turn() > 0 && replay.to_snapshot(None).is_some()
    };
    let until = (1..records.len()).find(boundary).expect("a turn settles");
    let replay = replay_prefix(&records, until);
    let EncodedSnapshot { head, segment, position } = replay.to_snapshot(None).expect("nothing is open");
    let said = inspect::step_lines(&records[..until]);
    assert!(!said.is_empty());
    let output = replay.run.items().last().expect("the turn had outputs");
    let text = serde_json::to_string(&output.item).expect("items can be written");
    assert_eq!(segment.matches(&text).count(), 1, "{text}");
    assert_eq!(head.matches(&text).count(), 0, "{head}");
    let next = replay.to_snapshot(Some(&position)).expect("nothing is open");
    assert_eq!(next.segment.matches(&text).count(), 0, "a later segment has only later items");
}

#[test]
fn none_is_taken_between_a_filtered_request_and_its_answer() {
    let records = golden_records("items");
    let is_filtered = |record: &&JournalRecord| matches!(record.entry, JournalEntry::ModelInputFiltered(_));
    let at = records.iter().find(is_filtered).expect("a request was filtered").seq as usize;
    let snapshot_after = |until: usize| replay_prefix(&records, until).to_snapshot(None);
    assert!(snapshot_after(at).is_some(), "before the filter nothing is in progress");
    assert_eq!(snapshot_after(at + 1), None);
    let snapshot = snapshot_after(at + 2).expect("the model has answered");
    let replay = restore(&snapshot.head, &[snapshot.segment], &[]).expect("it can be read");
    assert_eq!(replay.run.last_model_input().len(), 4, "what the model was asked is kept");
}

//! The journal in a folder: one file for each session, and one writer at a time.

use std::io::Write;

use windlass::core::id::RunId;
use windlass::error::StoreErrorKind;
use windlass_realtime::{FolderJournal, RealtimeEntry, RealtimeJournal};

fn opened(agent: &str) -> RealtimeEntry {
    RealtimeEntry::Opened { format: 2, agent: agent.into() }
}

#[tokio::test]
async fn two_sessions_never_share_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let journal = FolderJournal::new(folder.path());
    let names = ["a/b", "a_b", "a.b", "a_2fb", "A_B", "a", "A", "ä", "..", "a b", "talk-1"];
    for name in names {
        journal.append(&RunId::from(name), 0, vec![opened(name)]).await.expect("is written");
    }
    for name in names {
        let entries = journal.load(&RunId::from(name)).await.expect("is read");
        assert_eq!(entries, [opened(name)], "`{name}`");
    }
    let files: Vec<String> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .map(|file| file.expect("a file").file_name().to_string_lossy().to_lowercase())
        .collect();
    let unique: std::collections::BTreeSet<&String> = files.iter().collect();
    assert_eq!((files.len(), unique.len()), (names.len(), names.len()), "{files:?}");
    assert!(files.contains(&"talk-1.jsonl".to_owned()), "{files:?}");
}

/// A writer that knows the end of the file notices another writer and a torn line.
#[tokio::test]
async fn a_known_end_hides_no_other_writer() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, other) = (FolderJournal::new(folder.path()), FolderJournal::new(folder.path()));
    let talk = RunId::from("talk");
    for at in 0..3 {
        one.append(&talk, at, vec![opened("one")]).await.expect("is written");
    }
    other.append(&talk, 3, vec![opened("other")]).await.expect("is written");
    let stale = one.append(&talk, 3, vec![opened("one")]).await.expect_err("another writer was here");
    assert_eq!(stale.kind(), StoreErrorKind::Stale);
    let path = folder.path().join("talk.jsonl");
    let mut file = std::fs::File::options().append(true).open(path).expect("is there");
    file.write_all(b"{\"type\":\"op").expect("is written");
    other.append(&talk, 4, vec![opened("other"), RealtimeEntry::Closed]).await.expect("is written");
    let entries = one.load(&talk).await.expect("is read");
    let whole = [
        opened("one"),
        opened("one"),
        opened("one"),
        opened("other"),
        opened("other"),
        RealtimeEntry::Closed,
    ];
    assert_eq!(entries, whole);
}

/// A process that dies in the middle of a line may have written a part of a letter.
#[tokio::test]
async fn a_line_that_is_torn_inside_a_letter_is_left_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let talk = RunId::from("talk");
    let known = FolderJournal::new(folder.path());
    known.append(&talk, 0, vec![opened("grün")]).await.expect("is written");
    let path = folder.path().join("talk.jsonl");
    let mut file = std::fs::File::options().append(true).open(path).expect("is there");
    let torn = "{\"type\":\"opened\",\"agent\":\"grü".as_bytes();
    file.write_all(&torn[..torn.len() - 1]).expect("is written");
    let fresh = FolderJournal::new(folder.path());
    assert_eq!(fresh.load(&talk).await.expect("is read"), [opened("grün")]);
    fresh.append(&talk, 1, vec![opened("two")]).await.expect("is written");
    assert_eq!(fresh.load(&talk).await.expect("is read"), [opened("grün"), opened("two")]);
}

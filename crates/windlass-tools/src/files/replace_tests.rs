use std::fs;
use std::path::Path;

use super::{CrashEvidence, FilePrecondition, FileReplacement};
use crate::files::{FileVersion, WorkspacePath, WorkspaceRoot};

fn with_replacement<T>(
    expected: FilePrecondition<'_>,
    run: impl FnOnce(&Path, &WorkspaceRoot, &FileReplacement<'_>) -> T,
) -> T {
    let folder = tempfile::tempdir().expect("a folder");
    let root = WorkspaceRoot::open(folder.path()).expect("opens");
    let place = WorkspacePath::parse_named("sub/a.txt", root.path()).expect("a place");
    fs::create_dir(folder.path().join("sub")).expect("made");
    let replacement = FileReplacement {
        path: &place,
        precondition: expected,
        call_key: "wl-1",
        max_bytes: 1000,
        tool_name: "write_file",
    };
    run(&folder.path().join("sub"), &root, &replacement)
}

#[test]
fn before_it_happened_it_did_not() {
    with_replacement(FilePrecondition::Absent, |folder, root, change| {
        assert_eq!(change.collect_evidence(root, None).expect("can be told"), CrashEvidence::DidNotHappen);
        fs::write(folder.join(".windlass-wl-1.part"), "half of").expect("written");
        assert_eq!(change.collect_evidence(root, None).expect("can be told"), CrashEvidence::DidNotHappen);
        assert_eq!(fs::read_dir(folder).expect("a folder").count(), 0, "what a crash left is gone");
        change.write(root, "new\n").expect("written");
        assert_eq!(change.collect_evidence(root, None).expect("can be told"), CrashEvidence::Happened);
    });
}

#[test]
fn a_file_that_somebody_else_replaced_says_nothing() {
    let version = FileVersion::of_text("old\n").to_string();
    with_replacement(FilePrecondition::Version(&version), |folder, root, change| {
        fs::write(folder.join("a.txt"), "old\n").expect("written");
        assert_eq!(change.collect_evidence(root, None).expect("can be told"), CrashEvidence::DidNotHappen);
        change.write(root, "new\n").expect("written");
        assert_eq!(change.collect_evidence(root, None).expect("can be told"), CrashEvidence::Happened);
        fs::remove_file(folder.join("a.txt")).expect("removed");
        fs::write(folder.join("a.txt"), "theirs\n").expect("written");
        assert_eq!(change.collect_evidence(root, None).expect("can be told"), CrashEvidence::Unknown);
        // Text equal to the call's own counts as evidence.
        assert_eq!(
            change.collect_evidence(root, Some("theirs\n")).expect("can be told"),
            CrashEvidence::Happened
        );
    });
}

#[test]
fn a_name_that_was_taken_meanwhile_is_not_taken_over() {
    with_replacement(FilePrecondition::Absent, |folder, root, change| {
        fs::write(folder.join("a.txt"), "theirs\n").expect("written");
        assert!(change.write(root, "new\n").is_err());
        assert!(
            super::rename_noreplace(
                std::os::fd::AsFd::as_fd(
                    &root
                        .open_folder(&WorkspacePath::parse("sub", root.path()).expect("a place"))
                        .expect("opens")
                ),
                "missing",
                "a.txt"
            )
            .is_err()
        );
        assert_eq!(fs::read_to_string(folder.join("a.txt")).expect("is there"), "theirs\n");
    });
}

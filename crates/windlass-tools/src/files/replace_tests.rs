use std::fs;
use std::path::Path;

use super::{Evidence, Expected, Replacement};
use crate::files::{Place, Root, Version};

fn with<T>(expected: Expected<'_>, run: impl FnOnce(&Path, &Root, &Replacement<'_>) -> T) -> T {
    let folder = tempfile::tempdir().expect("a folder");
    let root = Root::open(folder.path()).expect("opens");
    let place = Place::named("sub/a.txt", root.path()).expect("a place");
    fs::create_dir(folder.path().join("sub")).expect("made");
    let replacement = Replacement { place: &place, expected, key: "wl-1", limit: 1000, tool: "write_file" };
    run(&folder.path().join("sub"), &root, &replacement)
}

#[test]
fn before_it_happened_it_did_not() {
    with(Expected::Nothing, |folder, root, change| {
        assert_eq!(change.evidence(root, None).expect("can be told"), Evidence::DidNotHappen);
        fs::write(folder.join(".windlass-wl-1.part"), "half of").expect("written");
        assert_eq!(change.evidence(root, None).expect("can be told"), Evidence::DidNotHappen);
        assert_eq!(fs::read_dir(folder).expect("a folder").count(), 0, "what a crash left is gone");
        change.put(root, "new\n").expect("written");
        assert_eq!(change.evidence(root, None).expect("can be told"), Evidence::Happened);
    });
}

#[test]
fn a_file_that_somebody_else_replaced_says_nothing() {
    let version = Version::of("old\n").to_string();
    with(Expected::Version(&version), |folder, root, change| {
        fs::write(folder.join("a.txt"), "old\n").expect("written");
        assert_eq!(change.evidence(root, None).expect("can be told"), Evidence::DidNotHappen);
        change.put(root, "new\n").expect("written");
        assert_eq!(change.evidence(root, None).expect("can be told"), Evidence::Happened);
        fs::remove_file(folder.join("a.txt")).expect("removed");
        fs::write(folder.join("a.txt"), "theirs\n").expect("written");
        assert_eq!(change.evidence(root, None).expect("can be told"), Evidence::Unknown);
        // Unless it holds what this call would have written.
        assert_eq!(change.evidence(root, Some("theirs\n")).expect("can be told"), Evidence::Happened);
    });
}

#[test]
fn a_name_that_was_taken_meanwhile_is_not_taken_over() {
    with(Expected::Nothing, |folder, root, change| {
        fs::write(folder.join("a.txt"), "theirs\n").expect("written");
        assert!(change.put(root, "new\n").is_err());
        assert!(
            super::rename_to_nothing(
                std::os::fd::AsFd::as_fd(
                    &root.open_folder(&Place::read("sub", root.path()).expect("a place")).expect("opens")
                ),
                "missing",
                "a.txt"
            )
            .is_err()
        );
        assert_eq!(fs::read_to_string(folder.join("a.txt")).expect("is there"), "theirs\n");
    });
}

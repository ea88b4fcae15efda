//! A project created by `windlass new`: built, tested and run for real.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::path::Path;
use std::process::Command;

use support::windlass_command;

#[test]
fn a_new_project_builds_passes_its_tests_and_runs() {
    let folder = tempfile::tempdir().expect("there is room");
    let clone = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let clone = clone.canonicalize().expect("this is a clone");
    let made = windlass_command(folder.path(), &["new", "my-agent", "--path"])
        .arg(&clone)
        .output()
        .expect("it runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let project = folder.path().join("my-agent");
    // The lock file of this workspace, so that the test downloads nothing.
    std::fs::copy(clone.join("Cargo.lock"), project.join("Cargo.lock")).expect("there is a lock file");
    let cargo = |words: &[&str]| {
        let output = Command::new(env!("CARGO"))
            .args(words)
            .current_dir(&project)
            // Kept between test runs, so that only the first one builds everything.
            .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("new"))
            .output()
            .expect("cargo runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
        said
    };
    assert!(cargo(&["test", "--offline"]).contains("2 passed"));
    assert_eq!(cargo(&["run", "--quiet", "--offline"]), "Rope was running out. I ordered 20.\n");
    // A real model is a feature away.
    cargo(&["check", "--quiet", "--offline", "--features", "models"]);
}

#[test]
fn a_source_that_does_not_resolve_is_not_written() {
    let folder = tempfile::tempdir().expect("there is room");
    let refused = |words: &[&str]| {
        let made = windlass_command(folder.path(), words).output().expect("it runs");
        assert_eq!(made.status.code(), Some(5), "{words:?}: {}", String::from_utf8_lossy(&made.stderr));
        assert!(!folder.path().join("my-agent").exists(), "nothing is written: {words:?}");
    };
    refused(&["new", "my-agent", "--path", "."]);
    refused(&["new", "my-agent", "--git", "file:///nowhere/at/all"]);
    let repository = folder.path().join("repository");
    let git = |words: &[&str]| {
        let ran = Command::new("git").args(words).current_dir(&repository).output().expect("there is git");
        assert!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
    };
    std::fs::create_dir(&repository).expect("there is room");
    git(&["init", "--quiet"]);
    let author = ["-c", "user.name=ann", "-c", "user.email=ann@example.test"];
    git(&[&author[..], &["commit", "--quiet", "--allow-empty", "-m", "start"]].concat());
    let url = format!("file://{}", repository.display());
    let made =
        windlass_command(folder.path(), &["new", "my-agent", "--git", &url]).output().expect("it runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let manifest =
        std::fs::read_to_string(folder.path().join("my-agent/Cargo.toml")).expect("it was written");
    assert!(manifest.contains(&format!("windlass = {{ git = \"{url}\" }}")), "{manifest}");
    assert!(
        manifest.contains(&format!("windlass-models = {{ git = \"{url}\", optional = true }}")),
        "{manifest}"
    );
}

#[test]
fn a_name_that_is_none_or_is_taken_is_refused() {
    let folder = tempfile::tempdir().expect("there is room");
    for name in ["7up", "a b", "windlass"] {
        let made = windlass_command(folder.path(), &["new", name]).output().expect("it runs");
        assert_eq!(made.status.code(), Some(2), "{name}");
    }
    std::fs::create_dir(folder.path().join("taken")).expect("there is room");
    let made = windlass_command(folder.path(), &["new", "taken"]).output().expect("it runs");
    assert_eq!(made.status.code(), Some(2));
}

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

/// The current folder may be somebody else's repository, whose configuration names programs that git runs.
#[test]
fn a_repository_in_the_current_folder_runs_nothing() {
    let folder = tempfile::tempdir().expect("there is room");
    let folder = folder.path().canonicalize().expect("a path");
    let made = Command::new("git").args(["init", "--quiet", "--bare", "."]).current_dir(&folder).output();
    let made = made.expect("git runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let marker = folder.join("ran");
    let mut config = std::fs::read_to_string(folder.join("config")).expect("it is there");
    config.push_str(&format!(
        "[protocol \"ext\"]\n\tallow = always\n[url \"ext::touch {}\"]\n\tinsteadOf = file:///nowhere/x\n",
        marker.display()
    ));
    std::fs::write(folder.join("config"), config).expect("written");
    // The attack works on git itself.
    let run = |marker: &Path| {
        let ran = marker.exists();
        let _ = std::fs::remove_file(marker);
        ran
    };
    let listed = Command::new("git").args(["ls-remote", "file:///nowhere/x"]).current_dir(&folder).output();
    listed.expect("git runs");
    assert!(run(&marker), "git obeys the configuration of the folder");
    let made = windlass_command(&folder, &["new", "my-agent", "--git", "file:///nowhere/x"]).output();
    assert_eq!(made.expect("it runs").status.code(), Some(5));
    assert!(!run(&marker), "a program of the folder was run");
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
    let (url, _) = make_repository(&folder.path().join("repository"));
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

/// Makes a Git repository with two commits. Returns its URL and its first revision.
fn make_repository(folder: &Path) -> (String, String) {
    let git = |words: &[&str]| {
        let author = ["-c", "user.name=ann", "-c", "user.email=ann@example.test"];
        let ran = Command::new("git").args(author).args(words).current_dir(folder).output();
        let ran = ran.expect("there is git");
        assert!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).expect("it is text").trim().to_owned()
    };
    std::fs::create_dir(folder).expect("there is room");
    git(&["init", "--quiet"]);
    git(&["commit", "--quiet", "--allow-empty", "-m", "start"]);
    let first = git(&["rev-parse", "HEAD"]);
    git(&["commit", "--quiet", "--allow-empty", "-m", "go on"]);
    (format!("file://{}", folder.display()), first)
}

#[test]
fn a_command_that_was_installed_from_a_repository_names_it_and_its_revision() {
    let folder = tempfile::tempdir().expect("there is room");
    let (url, revision) = make_repository(&folder.path().join("repository"));
    // As `cargo install --git` leaves it.
    let bin = folder.path().join("installed/bin");
    std::fs::create_dir_all(&bin).expect("there is room");
    std::fs::copy(env!("CARGO_BIN_EXE_windlass"), bin.join("windlass")).expect("there is room");
    let record = |revision: &str| {
        let package = concat!("windlass-cli ", env!("CARGO_PKG_VERSION"));
        let text = format!("[v1]\n\"{package} (git+{url}?branch=main#{revision})\" = [\"windlass\"]\n");
        std::fs::write(folder.path().join("installed/.crates.toml"), text).expect("there is room");
    };
    let create = |name: &str| {
        let run = Command::new(bin.join("windlass")).args(["new", name]).current_dir(folder.path()).output();
        run.expect("it runs")
    };
    record(&revision);
    let made = create("my-agent");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let manifest =
        std::fs::read_to_string(folder.path().join("my-agent/Cargo.toml")).expect("it was written");
    let expected = format!("windlass = {{ git = \"{url}\", rev = \"{revision}\" }}");
    assert!(manifest.contains(&expected), "{manifest}");
    // A revision that the repository does not have is not written.
    record(&"0".repeat(40));
    let made = create("other");
    assert_eq!(made.status.code(), Some(5), "{}", String::from_utf8_lossy(&made.stderr));
    assert!(!folder.path().join("other").exists());
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

//! Attacks on the user's decisions by somebody who can write to the store, or hand over a file, and has no key; and on
//! the key itself by the tools of an agent.

#![cfg(unix)]
#![expect(clippy::expect_used, clippy::panic, reason = "a failed precondition fails the test")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::{CommandOutput, TestProject, windlass_command};

const TOOLS: &str = "tools = [\"shell\", \"files\"]";

/// Creates a project whose model makes these calls, one after the other, and then says a text.
fn project_with_calls(calls: &[(&str, &str, Value)]) -> TestProject {
    let project = TestProject::new(TOOLS, "");
    let mut answers: Vec<String> = calls
        .iter()
        .map(|(id, tool, arguments)| {
            json!({ "call": [{ "id": id, "tool": tool, "arguments": arguments }] }).to_string()
        })
        .collect();
    answers.push(json!({ "text": "Done." }).to_string());
    let agent = format!("name = \"helper\"\nmodel = \"scripted:answers.jsonl\"\n{TOOLS}\n");
    std::fs::write(project.file("agent.toml"), agent).expect("it can be written");
    std::fs::write(project.file("answers.jsonl"), answers.join("\n")).expect("it can be written");
    project
}

fn touch(name: &str) -> Value {
    json!({ "program": "touch", "args": [name] })
}

/// Returns the only file in a folder whose name ends like this.
fn only_file(folder: &Path, ending: &str) -> PathBuf {
    let files = std::fs::read_dir(folder).expect("the folder is there").flatten().map(|entry| entry.path());
    let found: Vec<PathBuf> = files.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    let [only] = found.as_slice() else { panic!("one file: {found:?}") };
    only.clone()
}

fn key_file(project: &TestProject) -> PathBuf {
    only_file(&project.state().join("windlass/keys"), ".keys")
}

fn store_file(project: &TestProject) -> PathBuf {
    let projects = project.state().join("windlass/projects");
    let folder = only_file(&projects, "");
    folder.join("windlass.db")
}

/// Runs the command on the project's store file as somebody does who can write to it and does not have the key.
fn run_as_attacker(project: &TestProject, words: &[&str]) -> CommandOutput {
    let mut command = windlass_command(&project.folder(), words);
    command.env("WINDLASS_STORE", store_file(project));
    CommandOutput::from_output(command.output().expect("it runs"))
}

#[test]
fn the_key_is_private_and_outside_the_workspace() {
    let project = project_with_calls(&[("c1", "run_command", touch("made"))]);
    project.run_windlass(&["run", ".", "Go.", "--run-id", "one"]);
    let key = key_file(&project);
    let mode = |path: &Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&key), mode(key.parent().expect("a folder"))), (0o600, 0o700));
    let shown = project.run_windlass(&["key", "show", "--json"]).json_lines().remove(0);
    let secret = std::fs::read_to_string(&key).expect("it can be read");
    let secret = secret.lines().nth(1).expect("a key");
    assert_eq!(secret.len(), 64);
    assert!(!shown.to_string().contains(secret), "the secret is not shown");
    // A key that others can read is refused.
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
    let refused = project.run_windlass(&["runs"]);
    assert!(refused.stderr.contains("other users can read or change the keys"), "{}", refused.stderr);
}

#[test]
fn a_decision_without_the_key_is_refused_and_named() {
    let project = project_with_calls(&[("c1", "run_command", touch("made"))]);
    project.run_windlass(&["run", ".", "Go.", "--run-id", "one"]);
    let digest = project.digest_of("one");
    let posted = run_as_attacker(&project, &["approve", "--digest", &digest, "--by", "ann"]);
    assert_eq!(posted.code, Some(0), "{}", posted.stderr);
    let resumed = project.run_windlass(&["resume", "one"]);
    assert_eq!(resumed.code, Some(3), "it still waits: {}", resumed.stderr);
    assert!(resumed.stderr.contains("a posted decision is forged and was refused"), "{}", resumed.stderr);
    assert!(resumed.stderr.contains("ann"), "{}", resumed.stderr);
    assert!(!project.file("made").exists());
    let verified = project.run_windlass(&["verify", "one"]);
    assert_eq!(verified.code, Some(6), "{}", verified.stdout);
    assert!(verified.stderr.contains("an approval of call `c1` of run `one`"), "{}", verified.stderr);

    // The same attack on a store without keys.
    let resumed = run_as_attacker(&project, &["resume", "one"]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    assert!(project.file("made").exists(), "the attack works without the key");
    // That run has a decision without a MAC now.
    let verified = project.run_windlass(&["verify", "one"]);
    assert_eq!(verified.code, Some(6), "{}", verified.stdout);
    assert!(verified.stderr.contains("is forged"), "{}", verified.stderr);
}

#[test]
fn a_decision_of_the_user_is_authentic_also_after_the_key_was_rotated() {
    let project = project_with_calls(&[("c1", "run_command", touch("made"))]);
    project.run_windlass(&["run", ".", "Go.", "--run-id", "one"]);
    let digest = project.digest_of("one");
    assert_eq!(project.run_windlass(&["approve", "--digest", &digest]).code, Some(0));
    let rotated = project.run_windlass(&["key", "rotate", "--json"]).json_lines().remove(0);
    assert_eq!(rotated["earlier"].as_array().map(Vec::len), Some(1));
    assert_eq!(key_file(&project).metadata().expect("it is there").permissions().mode() & 0o777, 0o600);
    assert_eq!(project.run_windlass(&["resume", "one"]).code, Some(0));
    let verified = project.run_windlass(&["verify", "one", "--json"]).json_lines().remove(0);
    assert_eq!(verified["authenticity"], "every decision and snapshot is authentic");
    assert_eq!(verified["decisions"][0]["verified_by"], rotated["current"]);
}

/// A named store has no key, so that a command that could write to it could approve the next one.
#[test]
fn a_store_in_the_workspace_is_refused_for_tools_that_work_there() {
    let project = project_with_calls(&[("c1", "run_command", touch("made"))]);
    std::fs::create_dir(project.file("data")).expect("it can be made");
    std::os::unix::fs::symlink(project.folder(), project.state().with_file_name("link"))
        .expect("it is linked");
    for store in ["runs.db", "data/runs.db", "../link/runs.db"] {
        for words in [
            &["run", ".", "Go.", "--run-id", "one", "--yes", "--store", store][..],
            &["chat", ".", "--store", store],
        ] {
            let refused = project.run_windlass(words);
            assert_eq!(refused.code, Some(2), "{store}: {}", refused.stderr);
            assert!(
                refused.stderr.contains("in the folder in which the agent's tools work"),
                "{}",
                refused.stderr
            );
        }
    }
    assert!(!project.file("made").exists());
    let outside = project.state().with_file_name("outside.db");
    let store = outside.to_str().expect("text");
    let ran = project.run_windlass(&["run", ".", "Go.", "--run-id", "one", "--yes", "--store", store]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(project.file("made").exists());
}

#[test]
fn a_fleet_names_its_key() {
    let project = project_with_calls(&[("c1", "run_command", touch("made"))]);
    let outside = project.state().with_file_name("fleet");
    std::fs::create_dir(&outside).expect("it can be made");
    let (store, key) = (outside.join("runs.db"), outside.join("fleet.keys"));
    std::fs::write(&key, format!("windlass keys 1\n{}\n", "ab".repeat(32))).expect("it can be written");
    let run = |words: &[&str]| {
        let mut command = windlass_command(&project.folder(), words);
        command.env("WINDLASS_STORE", &store).env("WINDLASS_KEY_FILE", &key);
        CommandOutput::from_output(command.output().expect("it runs"))
    };
    assert_eq!(run(&["run", ".", "Go.", "--run-id", "one", "--yes"]).code, Some(0));
    let verified = run(&["verify", "one"]);
    assert!(verified.stdout.contains("every decision and snapshot is authentic"), "{}", verified.stdout);
    let missing = run(&["--key-file", "nowhere.keys", "runs"]);
    assert!(missing.stderr.contains("cannot be read"), "{}", missing.stderr);
    std::fs::write(&key, format!("windlass keys 1\n{}\n", "cd".repeat(32))).expect("it can be written");
    let other = run(&["verify", "one"]);
    assert_eq!(other.code, Some(6));
    assert!(other.stderr.contains("is not in the keyring"), "{}", other.stderr);
}

#[test]
fn a_key_in_the_workspace_is_refused() {
    let project = project_with_calls(&[("c1", "run_command", touch("made"))]);
    let mut command = windlass_command(&project.folder(), &["run", ".", "Go."]);
    let ran = command.env("XDG_STATE_HOME", project.file("state")).output().expect("it runs");
    let told = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(2), "{told}");
    assert!(told.contains("in the folder in which the agent's tools work"), "{told}");
}

#[test]
fn an_approved_command_reaches_neither_the_store_nor_the_key_nor_the_command() {
    let project = project_with_calls(&[("pay", "run_command", touch("paid"))]);
    project.run_windlass(&["run", ".", "Go.", "--run-id", "victim"]);
    let digest = project.digest_of("victim");
    // What a `make test` of the workspace could do.
    let (key, store) = (key_file(&project), store_file(&project));
    let script = format!(
        "cat '{key}' && echo KEY-READ\ncat '{store}' && echo STORE-READ\necho x >> '{store}' && echo STORE-WRITTEN\n\
         XDG_STATE_HOME='{state}' '{windlass}' approve --digest {digest} && echo APPROVED\ntrue\n",
        key = key.display(),
        store = store.display(),
        state = project.state().display(),
        windlass = env!("CARGO_BIN_EXE_windlass"),
    );
    std::fs::write(project.file("test.sh"), script).expect("it can be written");
    let attack = json!({ "program": "sh", "args": ["test.sh"] });
    let answers = [
        json!({ "call": [{ "id": "t1", "tool": "run_command", "arguments": attack }] }).to_string(),
        json!({ "call": [{ "id": "t2", "tool": "read_file", "arguments": { "path": key } }] }).to_string(),
        json!({ "text": "Done." }).to_string(),
    ];
    std::fs::write(project.file("answers.jsonl"), answers.join("\n")).expect("it can be written");
    let before = std::fs::metadata(&store).expect("it is there").len();
    let ran = project.run_windlass(&["run", ".", "Test.", "--run-id", "attacker", "--yes"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let journal = project.run_windlass(&["export", "attacker"]).stdout;
    assert!(journal.contains("\"t1\"") && journal.contains("\"t2\""), "{journal}");
    let secret = std::fs::read_to_string(&key).expect("the user can read it");
    let secret = secret.lines().nth(1).expect("a key");
    for reached in ["KEY-READ", "STORE-READ", "STORE-WRITTEN", "APPROVED", secret] {
        let outputs = journal.lines().filter(|line| line.contains("call_settled"));
        assert!(
            outputs.clone().count() == 2 && outputs.clone().all(|line| !line.contains(reached)),
            "{reached}: {journal}"
        );
    }
    assert!(std::fs::metadata(&store).expect("it is there").len() >= before);
    let shown = project.run_windlass(&["show", "victim", "--json"]).json_lines().remove(0);
    assert_eq!(shown["pending"][0]["call"], "pay", "it still waits: {shown}");
    assert!(!project.file("paid").exists());
}

/// Exports a run with an approval that no driver has taken, under a name.
fn export_decided(project: &TestProject) -> PathBuf {
    project.run_windlass(&["run", ".", "Go.", "--run-id", "one"]);
    let path = project.file("one.windlass");
    let exported = project.run_windlass(&["export", "one", "--output", "one.windlass"]);
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    path
}

/// Approves the pending call in a text, as somebody does who has no key.
fn approve_in_text(text: &str) -> String {
    let mut paused = windlass::run::PausedRun::from_text(text).expect("it can be read");
    paused.decide_as("ann");
    paused.approve("c1").expect("it waits");
    paused.to_text()
}

#[test]
fn decisions_of_a_file_that_cannot_be_verified_need_a_yes() {
    let project = project_with_calls(&[("c1", "run_command", touch("made"))]);
    let path = export_decided(&project);
    let authentic = std::fs::read_to_string(&path).expect("it was exported");
    assert!(project.run_windlass(&["verify", "one.windlass"]).stdout.contains("is authentic"));
    std::fs::write(&path, approve_in_text(&authentic)).expect("it can be written");
    let verified = project.run_windlass(&["verify", "one.windlass"]);
    assert_eq!(verified.code, Some(0));
    assert!(verified.stdout.contains("cannot be authenticated: it has no MAC"), "{}", verified.stdout);
    let refused = project.run_windlass(&["resume", "one.windlass"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("cannot be verified: it has no MAC"), "{}", refused.stderr);
    assert!(!project.file("made").exists());
    // The MAC of the authentic file does not make the forged one authentic.
    let mac = authentic.lines().last().expect("a line");
    assert!(mac.starts_with("mac "), "{mac}");
    std::fs::write(&path, approve_in_text(&authentic) + mac + "\n").expect("it can be written");
    let forged = project.run_windlass(&["resume", "one.windlass", "--trust-text"]);
    assert_eq!(forged.code, Some(6), "{}", forged.stderr);
    assert_eq!(project.run_windlass(&["verify", "one.windlass"]).code, Some(6));
    assert!(!project.file("made").exists());
    std::fs::write(&path, approve_in_text(&authentic)).expect("it can be written");
    let trusted = project.run_windlass(&["resume", "one.windlass", "--trust-text"]);
    assert_eq!(trusted.code, Some(0), "{}", trusted.stderr);
    assert!(project.file("made").exists());
}

#[test]
fn a_file_of_the_user_goes_on_without_a_question() {
    let project = project_with_calls(&[("c1", "run_command", touch("made"))]);
    let path = export_decided(&project);
    std::fs::remove_dir_all(project.state().join("windlass/projects")).expect("the store is lost");
    let resumed = project.run_windlass(&["resume", &path.to_string_lossy()]);
    assert_eq!(resumed.code, Some(3), "it waits as before: {}", resumed.stderr);
    assert_eq!(project.run_windlass(&["show", "one", "--json"]).json_lines()[0]["pending"][0]["call"], "c1");
}

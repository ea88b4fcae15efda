//! The command without a terminal: output for scripts and pipes.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::io::Write;
use std::process::Stdio;

use support::{CommandOutput, TestProject, windlass_command};

const ORDER_SCRIPT: &str = r#"
[[answer]]
text = "I will write it."
[[answer.call]]
id = "w1"
tool = "write_file"
arguments = { path = "order.txt", content = "rope\n" }

[[answer]]
text = "Done."
"#;

fn order_project() -> TestProject {
    TestProject::new("tools = [\"files\"]", ORDER_SCRIPT)
}

/// Creates a project whose tools work in a folder of their own, so that stores can be beside it.
fn order_project_with_stores() -> TestProject {
    let project = TestProject::new("tools = [\"files\"]\nworkspace = \"work\"", ORDER_SCRIPT);
    std::fs::create_dir(project.file("work")).expect("it can be made");
    project
}

#[test]
fn a_pipe_gets_the_answer_alone_and_no_colours() {
    let ran = order_project().run_windlass(&["run", ".", "Order rope.", "--yes"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "Done.\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains("✓ write_file"), "{}", ran.stderr);
    assert!(!ran.stderr.contains('\x1b'), "{}", ran.stderr);
}

#[test]
fn colours_come_when_they_are_asked_for() {
    let ran = order_project().run_windlass(&["run", ".", "Order rope.", "--yes", "--color", "always"]);
    assert!(ran.stderr.contains("\x1b[32m✓\x1b[0m"), "{}", ran.stderr);
}

#[test]
fn the_question_may_come_from_a_pipe() {
    let project = order_project();
    let mut child = windlass_command(&project.folder(), &["run", ".", "--yes", "--run-id", "piped"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = child.stdin.take().expect("there is a pipe");
    input.write_all(b"Order rope.\n").expect("it reads");
    drop(input);
    let ran = CommandOutput::from_output(child.wait_with_output().expect("it ends"));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "Done.\n"), "{}", ran.stderr);
    assert!(project.run_windlass(&["show", "piped"]).stdout.contains("› Order rope."));
}

#[test]
fn machines_get_an_object_a_line() {
    let project = order_project();
    let ran = project.run_windlass(&["run", ".", "Order rope.", "--json", "--run-id", "one"]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    let json_lines = ran.json_lines();
    let kinds: Vec<&str> = json_lines.iter().filter_map(|object| object["type"].as_str()).collect();
    assert_eq!(kinds.first(), Some(&"run"));
    assert!(kinds.contains(&"call_held"), "{kinds:?}");
    let end = json_lines.last().expect("there is an end");
    assert_eq!((end["type"].as_str(), end["status"].as_str()), (Some("end"), Some("paused")));
    assert_eq!(end["pending"][0]["tool"], "write_file");
    assert_eq!(end["pending"][0]["arguments"]["path"], "order.txt");
    assert!(ran.stderr.is_empty(), "{}", ran.stderr);
}

#[test]
fn a_run_waits_until_somebody_decides_from_elsewhere() {
    let project = order_project();
    let ran = project.run_windlass(&["run", ".", "Order rope.", "--run-id", "one"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("run one waits for a person"), "{}", ran.stderr);
    let ran = project.run_windlass(&["runs", "--status", "paused", "--json"]);
    assert_eq!(ran.json_lines()[0]["pending"][0]["call"], "w1");
    let digest = project.digest_of("one");
    let ran = project.run_windlass(&["approve", "one", "--by", "bo", "--digest", &digest]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "✓ bo approved call w1 of run one\n"),
        "{}",
        ran.stderr
    );
    let ran = project.run_windlass(&["approve", "one", "--by", "cy", "--digest", &digest]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "bo has already approved call w1\n"),
        "{}",
        ran.stderr
    );
    let ran = project.run_windlass(&["show", "one"]);
    assert!(ran.stdout.contains("bo posted an approval just now; it is not taken yet"), "{}", ran.stdout);
    assert!(project.run_windlass(&["runs"]).stdout.contains("decided"));
    // Nothing has started, so the decision can be corrected.
    let ran = project.run_windlass(&["reject", "one", "w1", "--by", "cy", "--digest", &digest]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "✓ cy rejected call w1 of run one\n  this replaces the decision of bo: an approval\n"),
        "{}",
        ran.stderr
    );
    let ran = project.run_windlass(&["show", "one", "--json"]);
    let posted = &ran.json_lines()[0]["pending"][0]["posted"];
    assert_eq!(posted["decided_by"], "cy", "{posted}");
    assert!(posted["decision"]["reject"].is_object(), "{posted}");
    assert!(posted["posted_at"].as_u64().is_some_and(|at| at > 0), "{posted}");
    let ran = project.run_windlass(&["approve", "one", "--by", "bo", "--digest", &digest]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let ran = project.run_windlass(&["resume", "one"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "Done.\n"), "{}", ran.stderr);
    let ran = project.run_windlass(&["reject", "one", "w1", "--digest", &digest]);
    assert_eq!(ran.code, Some(1), "the decision is taken: {}", ran.stderr);
    assert!(ran.stderr.contains("error: bo has already approved call w1"), "{}", ran.stderr);
    assert!(project.run_windlass(&["verify", "one"]).stdout.contains("by bo"));
    assert_eq!(std::fs::read_to_string(project.file("order.txt")).expect("it was made"), "rope\n");
}

#[test]
fn a_rejection_reaches_the_model_and_nothing_is_written() {
    let project = order_project();
    project.run_windlass(&["run", ".", "Order rope.", "--run-id", "one"]);
    let digest = project.digest_of("one");
    let ran = project.run_windlass(&["reject", "--because", "not today", "--resume", "--digest", &digest]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(project.run_windlass(&["show"]).stdout.contains("not today"));
    assert!(!project.file("order.txt").exists());
}

#[test]
fn a_run_that_waits_can_be_cancelled_and_is_over_then() {
    let project = order_project();
    project.run_windlass(&["run", ".", "Order rope.", "--run-id", "one"]);
    let ran = project.run_windlass(&["cancel", "one"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "run one is cancelled\n"), "{}", ran.stderr);
    let ran = project.run_windlass(&["resume", "one"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("hint:"), "{}", ran.stderr);
}

#[test]
fn a_fork_goes_another_way_and_the_first_run_stays() {
    let project = order_project();
    project.run_windlass(&["run", ".", "Order rope.", "--run-id", "one", "--yes"]);
    let held = project.run_windlass(&["show", "one", "--json"]);
    let steps = held.json_lines()[0]["steps"].as_array().expect("there are steps").clone();
    let held = steps.iter().find(|step| step["entry"]["type"] == "call_held").expect("it was asked about");
    let at = held["seq"].to_string();
    let ran =
        project.run_windlass(&["fork", "one", "--at", &at, "--reject", "w1", "--id", "two", "--resume"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let ran = project.run_windlass(&["diff", "one", "two"]);
    assert!(ran.stdout.contains("is approved") && ran.stdout.contains("is rejected"), "{}", ran.stdout);
    assert_eq!(project.run_windlass(&["verify"]).code, Some(0));
}

#[test]
fn a_fork_inside_a_call_finds_out_how_it_ended() {
    let project = order_project();
    project.run_windlass(&["run", ".", "Order rope.", "--run-id", "one", "--yes"]);
    let held = project.run_windlass(&["show", "one", "--json"]);
    let steps = held.json_lines()[0]["steps"].as_array().expect("there are steps").clone();
    let started = steps.iter().find(|step| step["entry"]["type"] == "call_started").expect("it ran");
    let at = started["seq"].to_string();
    let ran = project.run_windlass(&["fork", "one", "--at", &at, "--id", "two", "--resume"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("had happened already, not done again"), "{}", ran.stderr);
}

#[test]
fn an_export_that_was_changed_is_found_out() {
    let project = order_project();
    project.run_windlass(&["run", ".", "Order rope.", "--run-id", "one", "--yes"]);
    project.run_windlass(&["export", "one", "-o", "run.windlass"]);
    assert_eq!(project.run_windlass(&["verify", "run.windlass"]).code, Some(0));
    let path = project.file("run.windlass");
    let text = std::fs::read_to_string(&path).expect("it was written");
    std::fs::write(&path, text.replace("rope", "gold")).expect("it can be written");
    let ran = project.run_windlass(&["verify", "run.windlass"]);
    assert_eq!(ran.code, Some(6), "{}", ran.stderr);
    assert!(ran.stderr.contains("is not what was written"), "{}", ran.stderr);
}

#[test]
fn sessions_are_listed_shown_and_taken_back() {
    let project = TestProject::new("", "[[answer]]\ntext = \"Hello, Ann.\"\n[[answer]]\ntext = \"Ann.\"\n");
    project.run_windlass(&["run", ".", "I am Ann.", "--session", "ann"]);
    assert_eq!(project.run_windlass(&["run", ".", "Who am I?", "--session", "ann"]).stdout, "Ann.\n");
    assert!(project.run_windlass(&["sessions"]).stdout.starts_with("ann  4 items"));
    assert!(project.run_windlass(&["sessions", "ann"]).stdout.contains("‹ Hello, Ann."));
    assert_eq!(project.run_windlass(&["sessions", "ann", "--rewind", "1"]).code, Some(0));
    assert!(project.run_windlass(&["sessions"]).stdout.starts_with("ann  2 items"));
    assert_eq!(project.run_windlass(&["sessions", "bo"]).code, Some(5));
}

/// Checks that the session has the approved call with its output, and the answer after it.
fn assert_session_has_the_order(project: &TestProject, path: &str) {
    let shown = project.run_windlass(&["sessions", "ann", "--json"]);
    let items = shown.json_lines();
    let kinds: Vec<&str> = items.iter().filter_map(|item| item["type"].as_str()).collect();
    assert_eq!(kinds, ["message", "message", "call", "output", "message"], "{path}: {}", shown.stdout);
    assert_eq!(items[3]["call"], "w1", "{path}");
}

#[test]
fn a_session_knows_of_the_approved_call_on_every_path() {
    let run = ["run", ".", "Order rope.", "--session", "ann", "--run-id", "one"];
    let project = order_project();
    assert_eq!(project.run_windlass(&[&run[..], &["--yes"]].concat()).code, Some(0));
    assert_session_has_the_order(&project, "run --yes");

    let project = order_project();
    project.run_windlass(&run);
    let ran = project.run_windlass(&["resume", "one", "--yes"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_session_has_the_order(&project, "resume --yes");

    let project = order_project();
    project.run_windlass(&run);
    let digest = project.digest_of("one");
    assert_eq!(project.run_windlass(&["approve", "one", "--digest", &digest]).code, Some(0));
    let ran = project.run_windlass(&["resume", "one"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_session_has_the_order(&project, "approve, then resume");
    assert_eq!(project.run_windlass(&["verify", "one"]).code, Some(0));
    // An export of a run that refers to its session can be verified without the store.
    project.run_windlass(&["run", ".", "And again?", "--session", "ann", "--run-id", "two", "--yes"]);
    let exported = project.run_windlass(&["export", "two", "--output", "two.windlass"]);
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    let text = std::fs::read_to_string(project.file("two.windlass")).expect("it was written");
    assert!(text.contains("\nhistory {"), "{text}");
    let ran = project.run_windlass(&["verify", "two.windlass"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

#[test]
fn a_chat_in_a_pipe_answers_line_by_line() {
    let project = TestProject::new("", "[[answer]]\ntext = \"One.\"\n[[answer]]\ntext = \"Two.\"\n");
    let mut child = windlass_command(&project.folder(), &["chat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = child.stdin.take().expect("there is a pipe");
    input.write_all(b"first\nsecond\n").expect("it reads");
    drop(input);
    let ran = CommandOutput::from_output(child.wait_with_output().expect("it ends"));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "One.\nTwo.\n"), "{}", ran.stderr);
}

#[test]
fn tools_say_what_they_do_and_whether_they_ask() {
    let project = TestProject::new(
        "tools = [\"files\"]\n[[policy.rule]]\nname = \"reads\"\ndecision = \"allow\"\ntool = \"read_*\"\n",
        ORDER_SCRIPT,
    );
    let ran = project.run_windlass(&["tools", "--json"]);
    let tools = ran.json_lines();
    let of = |name: &str| tools.iter().find(|tool| tool["tool"] == name);
    assert_eq!(of("read_file").expect("it is there")["effect"], "pure");
    assert_eq!(of("read_file").expect("it is there")["approval_policy"], "by_rule");
    assert_eq!(of("write_file").expect("it is there")["approval_policy"], "by_rule_each_time");
}

#[test]
fn a_policy_is_tested_on_recorded_runs_and_its_errors_name_their_line() {
    let project = TestProject::new("tools = [\"files\"]\n", ORDER_SCRIPT);
    let ran = project.run_windlass(&["run", ".", "Go."]);
    assert!(ran.code.is_some(), "{}", ran.stderr);
    let ran = project.run_windlass(&["policy", "test"]);
    assert!(ran.stderr.contains("has no policy"), "{}", ran.stderr);
    let file = project.file("all.toml");
    std::fs::write(&file, "[[rule]]\nname = 'nothing'\ndecision = 'deny'\n").expect("written");
    let file = file.display().to_string();
    let ran = project.run_windlass(&["policy", "test", ".", "--file", &file, "--json"]);
    let lines = ran.json_lines();
    let (last, calls) = lines.split_last().expect("it says something");
    assert_eq!(
        (last["type"].as_str(), last["changed"].as_u64()),
        (Some("policy_test"), last["calls"].as_u64())
    );
    assert!(
        !calls.is_empty() && calls.iter().all(|call| call["rule"] == "nothing" && call["verdict"] == "deny")
    );
    std::fs::write(&file, "\n[[rule]]\nname = 'x'\ndecision = 'perhaps'\n").expect("written");
    let ran = project.run_windlass(&["policy", "test", ".", "--file", &file]);
    assert!(ran.stderr.contains("all.toml:4: "), "{}", ran.stderr);
}

#[test]
fn a_policy_about_a_tool_that_is_not_there_is_an_error() {
    let project = TestProject::new(
        "tools = [\"read\"]\n[[policy.rule]]\nname = \"w\"\ndecision = \"ask\"\ntool = \"write_file\"\n",
        ORDER_SCRIPT,
    );
    let ran = project.run_windlass(&["run", ".", "Go."]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("there is no such tool"), "{}", ran.stderr);
}

#[test]
fn what_is_wrong_is_said_with_a_hint() {
    let project = TestProject::new("tols = [\"read\"]", ORDER_SCRIPT);
    for (words, code) in [
        (&["run", ".", "Go."][..], 1),
        (&["run", "nowhere", "Go."][..], 5),
        (&["show"][..], 5),
        (&["doctor"][..], 1),
    ] {
        let ran = project.run_windlass(words);
        assert_eq!(ran.code, Some(code), "{words:?}: {}", ran.stderr);
        assert!((ran.stderr + &ran.stdout).contains("hint:"), "{words:?}");
    }
    let ran = project.run_windlass(&["show", "--json"]);
    assert_eq!(ran.json_lines()[0]["type"], "error");
}

#[test]
fn every_command_has_help_with_an_example_a_row_in_the_guide_and_is_completed() {
    let project = order_project();
    let bash = project.run_windlass(&["completions", "bash"]).stdout;
    for shell in ["zsh", "fish"] {
        assert!(project.run_windlass(&["completions", shell]).stdout.contains("windlass"));
    }
    let help = project.run_windlass(&["--help"]).stdout;
    let commands =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // A longer description is continued on lines that are indented further.
    let commands = commands.filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')));
    let commands: Vec<&str> = commands.filter_map(|line| line.split(' ').next()).collect();
    assert!(["demo", "init", "models"].iter().all(|name| commands.contains(name)), "{commands:?}");

    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/command.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let listed: Vec<&str> =
        cells.flat_map(|cell| cell.split('`')).filter_map(|text| text.split(' ').next()).collect();
    for name in commands {
        let ran = project.run_windlass(&[name, "--help"]);
        assert_eq!(ran.code, Some(0), "{name}");
        assert!(ran.stdout.contains("Examples:"), "{name}: {}", ran.stdout);
        assert!(bash.contains(&format!("windlass,{name})")), "{name} is not completed");
        assert!(listed.contains(&name), "{name} is not in the tables of docs/guide/command.md");
    }
}

#[test]
fn a_backup_has_the_runs_and_replaces_no_file() {
    let project = order_project_with_stores();
    project.run_windlass(&["run", ".", "Order rope.", "--run-id", "one", "--yes"]);
    let ran = project.run_windlass(&["backup", "copy.db"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.starts_with("copy.db has a copy of the store, "), "{}", ran.stdout);
    let ran = project.run_windlass(&["verify", "one", "--store", "copy.db"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let ran = project.run_windlass(&["backup", "copy.db"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("exists already; a backup does not replace a file"), "{}", ran.stderr);
    let ran = project.run_windlass(&["run", ".", "Order rope.", "--yes", "--store", "copy.db"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("is a backup"), "{}", ran.stderr);
}

#[test]
fn a_restored_store_asks_about_the_calls_of_its_open_runs() {
    let project = order_project_with_stores();
    let ran = project.run_windlass(&["run", ".", "Order rope.", "--run-id", "one", "--store", "old.db"]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    project.run_windlass(&["backup", "copy.db", "--store", "old.db"]);
    let ran = project.run_windlass(&["restore", "copy.db", "--store", "old.db"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("a restore does not replace a store"), "{}", ran.stderr);
    let ran = project.run_windlass(&["restore", "copy.db", "--store", "new.db"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(ran.stdout, "new.db is restored; 1 runs were open at the time of the backup\n");
    let ran = project.run_windlass(&["show", "one", "--store", "new.db"]);
    assert!(ran.stdout.contains("the store was restored from a backup"), "{}", ran.stdout);
    let ran = project.run_windlass(&["restore", "--json", "--store", "new.db"]);
    assert_eq!(
        (ran.code, &ran.json_lines()[0]["open_runs"]),
        (Some(0), &serde_json::json!(["one"])),
        "{}",
        ran.stderr
    );
}

#[test]
fn an_encrypted_store_is_read_with_its_keys_alone() {
    let project = order_project_with_stores();
    let keys = project.state().join("encryption.keys");
    std::fs::create_dir_all(project.state()).expect("made");
    let text = format!("windlass encryption keys 1\n{}\n", "5a".repeat(32));
    std::fs::write(&keys, text).expect("written");
    let keys = keys.to_str().expect("a path");
    let ran = project.run_windlass(&[
        "run",
        ".",
        "Order rope.",
        "--run-id",
        "one",
        "--yes",
        "--store",
        "sealed.db",
        "--encryption-key-file",
        keys,
    ]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "Done.\n"), "{}", ran.stderr);
    let bytes = std::fs::read(project.file("sealed.db")).expect("it is there");
    assert!(!String::from_utf8_lossy(&bytes).contains("Order rope."));
    let show = ["show", "one", "--store", "sealed.db"];
    assert_ne!(project.run_windlass(&show).code, Some(0), "it cannot be read without the keys");
    let ran = project.run_windlass(&[&show[..], &["--encryption-key-file", keys]].concat());
    assert!(ran.stdout.contains("› Order rope."), "{}", ran.stdout);
    // The tools of the agent must not read the keys.
    std::fs::copy(keys, project.file("work/near.keys")).expect("copied");
    let ran = project.run_windlass(&[
        "run",
        ".",
        "Order rope.",
        "--yes",
        "--encryption-key-file",
        "work/near.keys",
    ]);
    assert!(ran.stderr.contains("in the folder in which the agent's tools work"), "{}", ran.stderr);
}

#[test]
fn a_migration_copies_the_runs_and_can_be_repeated() {
    let project = order_project_with_stores();
    project.run_windlass(&["run", ".", "Order rope.", "--run-id", "one", "--yes", "--store", "old.db"]);
    let ran = project.run_windlass(&["migrate", "old.db", "new.db"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.starts_with("new.db has 1 runs more, 0 were there; "), "{}", ran.stdout);
    let ran = project.run_windlass(&["verify", "one", "--store", "new.db"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let ran = project.run_windlass(&["migrate", "old.db", "new.db"]);
    assert!(ran.stdout.starts_with("new.db has 0 runs more, 1 were there; "), "{}", ran.stdout);
    let ran = project.run_windlass(&["migrate", "missing.db", "new.db"]);
    assert_ne!(ran.code, Some(0), "{}", ran.stdout);
}

#[test]
fn runs_are_forgotten_by_name_or_by_age_and_status() {
    let project = order_project();
    for run in ["one", "two", "three"] {
        project.run_windlass(&["run", ".", "Order rope.", "--run-id", run, "--yes"]);
    }
    let ran = project.run_windlass(&["forget", "one", "missing"]);
    assert_ne!(ran.code, Some(0), "{}", ran.stdout);
    assert_eq!(project.run_windlass(&["verify", "one"]).code, Some(0), "nothing is forgotten by halves");
    let ran = project.run_windlass(&["forget", "one"]);
    assert_eq!((ran.code, ran.stdout.trim()), (Some(0), "run one is forgotten"), "{}", ran.stderr);
    assert_ne!(project.run_windlass(&["verify", "one"]).code, Some(0));
    let ran = project.run_windlass(&["forget", "--older-than", "1d"]);
    assert_eq!((ran.code, ran.stdout.trim()), (Some(0), "no run is that old"), "{}", ran.stderr);
    let ran = project.run_windlass(&["forget", "--older-than", "0m", "--status", "failed"]);
    assert_eq!((ran.code, ran.stdout.trim()), (Some(0), "no run is that old"), "{}", ran.stderr);
    let ran = project.run_windlass(&["forget", "--older-than", "0m"]);
    assert_eq!(ran.stdout.lines().count(), 2, "{} {}", ran.stdout, ran.stderr);
    assert_eq!(project.run_windlass(&["runs", "--json"]).stdout.lines().count(), 0);
    let ran = project.run_windlass(&["forget", "--older-than", "soon"]);
    assert!(ran.stderr.contains("write an age like 45m, 12h or 30d"), "{}", ran.stderr);
    assert_eq!(project.run_windlass(&["forget"]).code, Some(2), "it asks for a run or an age");
}

#[test]
fn a_copy_beside_its_original_is_noticed() {
    let project = order_project_with_stores();
    project.run_windlass(&["run", ".", "Order rope.", "--run-id", "one", "--yes", "--store", "old.db"]);
    let ran = project.run_windlass(&["runs", "--store", "old.db"]);
    assert!(!ran.stderr.contains("warning:"), "{}", ran.stderr);
    std::fs::copy(project.file("old.db"), project.file("copy.db")).expect("copied");
    let ran = project.run_windlass(&["runs", "--store", "copy.db"]);
    assert!(ran.stderr.contains("warning: copy.db: the file is a copy of `"), "{}", ran.stderr);
}

/// Returns the words behind `windlass` in the texts of the source files and of the guide: `windlass show RUN` gives `show`.
fn named_commands(folder: &std::path::Path, found: &mut std::collections::BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("it is there") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            named_commands(&path, found);
            continue;
        }
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for named in text
            .split('`')
            .filter_map(|piece| piece.strip_prefix("windlass ").or_else(|| piece.strip_prefix("{windlass} ")))
        {
            let mut words = named.split(' ').peekable();
            // The option for a folder comes before the command, with its value.
            while words.next_if(|word| *word == "-C").is_some() {
                words.next();
            }
            let word = words.find(|word| !word.starts_with('-')).unwrap_or_default();
            let is_word = !word.is_empty() && word.bytes().all(|letter| letter.is_ascii_lowercase());
            found.extend(is_word.then(|| word.to_owned()));
        }
    }
}

#[test]
fn every_command_that_a_hint_or_a_page_names_exists() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = std::collections::BTreeSet::new();
    named_commands(&root.join("src"), &mut named);
    named_commands(&root.join("../../docs/guide"), &mut named);
    assert!(named.contains("init") && named.contains("resume"), "{named:?}");
    let project = order_project();
    // The first lines of files that the command writes, and a command of an optional feature.
    for word in ["keys", "mac", "signature", "serve"] {
        named.remove(word);
    }
    for word in named {
        let ran = project.run_windlass(&[&word, "--help"]);
        assert_eq!(ran.code, Some(0), "`windlass {word}` is named in a hint or on a page: {}", ran.stderr);
    }
}

#[test]
fn an_agent_is_named_beside_the_project_folder() {
    let project = TestProject::new("", "[[answer]]\ntext = \"One.\"\n[[answer]]\ntext = \"Two.\"\n");
    let place = project.folder().parent().expect("it is in a folder").to_owned();
    for words in [["-C", "work", "run", ".", "Go."], ["-C", "work", "run", "agent.toml", "Go."]] {
        let ran = windlass_command(&place, &words).output().expect("it runs");
        assert!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
    }
}

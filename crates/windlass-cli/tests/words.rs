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
    let mut child = windlass_command(project.folder(), &["run", ".", "--yes", "--run-id", "piped"])
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
    let ran = project.run_windlass(&["approve", "one", "--by", "bo"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let ran = project.run_windlass(&["reject", "one", "w1"]);
    assert_eq!(ran.code, Some(1), "what was decided stays decided: {}", ran.stderr);
    let ran = project.run_windlass(&["resume", "one"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "Done.\n"), "{}", ran.stderr);
    assert!(project.run_windlass(&["verify", "one"]).stdout.contains("by bo"));
    assert_eq!(std::fs::read_to_string(project.file("order.txt")).expect("it was made"), "rope\n");
}

#[test]
fn a_rejection_reaches_the_model_and_nothing_is_written() {
    let project = order_project();
    project.run_windlass(&["run", ".", "Order rope.", "--run-id", "one"]);
    let ran = project.run_windlass(&["reject", "--because", "not today", "--resume"]);
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

#[test]
fn a_chat_in_a_pipe_answers_line_by_line() {
    let project = TestProject::new("", "[[answer]]\ntext = \"One.\"\n[[answer]]\ntext = \"Two.\"\n");
    let mut child = windlass_command(project.folder(), &["chat"])
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
        "tools = [\"files\"]\n[policy]\nallow = [\"write_file\"]\ndeny = [\"patch_file\"]",
        ORDER_SCRIPT,
    );
    let ran = project.run_windlass(&["tools", "--json"]);
    let tools = ran.json_lines();
    let of = |name: &str| tools.iter().find(|tool| tool["tool"] == name);
    assert_eq!(of("read_file").expect("it is there")["effect"], "pure");
    assert_eq!(of("write_file").expect("it is there")["approval_policy"], "not_required");
    assert!(of("patch_file").is_none());
}

#[test]
fn a_policy_about_a_tool_that_is_not_there_is_an_error() {
    let project = TestProject::new("tools = [\"read\"]\n[policy]\nask = [\"write_file\"]", ORDER_SCRIPT);
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
fn every_command_has_help_with_an_example_and_shells_can_complete_it() {
    let project = order_project();
    let bash = project.run_windlass(&["completions", "bash"]).stdout;
    for shell in ["zsh", "fish"] {
        assert!(project.run_windlass(&["completions", shell]).stdout.contains("windlass"));
    }
    let commands = [
        "demo",
        "run",
        "chat",
        "runs",
        "show",
        "resume",
        "approve",
        "reject",
        "answer",
        "settle",
        "cancel",
        "fork",
        "diff",
        "export",
        "verify",
        "sessions",
        "tools",
        "doctor",
        "new",
        "completions",
    ];
    for name in commands {
        let ran = project.run_windlass(&[name, "--help"]);
        assert_eq!(ran.code, Some(0), "{name}");
        assert!(ran.stdout.contains("Examples:"), "{name}: {}", ran.stdout);
        assert!(bash.contains(&format!("windlass,{name})")), "{name} is not completed");
    }
}

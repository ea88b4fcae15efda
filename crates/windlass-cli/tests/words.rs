//! The command without a terminal: what scripts and pipes get.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

mod support;

use std::io::Write;
use std::process::Stdio;

use support::{Project, Ran, command};

const ORDER: &str = r#"
[[answer]]
text = "I will write it."
[[answer.call]]
id = "w1"
tool = "write_file"
arguments = { path = "order.txt", content = "rope\n" }

[[answer]]
text = "Done."
"#;

fn project() -> Project {
    Project::new("tools = [\"files\"]", ORDER)
}

#[test]
fn a_pipe_gets_the_answer_alone_and_no_colours() {
    let ran = project().windlass(&["run", ".", "Order rope.", "--yes"]);
    assert_eq!((ran.code, ran.said.as_str()), (Some(0), "Done.\n"), "{}", ran.noted);
    assert!(ran.noted.contains("✓ write_file"), "{}", ran.noted);
    assert!(!ran.noted.contains('\x1b'), "{}", ran.noted);
}

#[test]
fn colours_come_when_they_are_asked_for() {
    let ran = project().windlass(&["run", ".", "Order rope.", "--yes", "--color", "always"]);
    assert!(ran.noted.contains("\x1b[32m✓\x1b[0m"), "{}", ran.noted);
}

#[test]
fn the_question_may_come_from_a_pipe() {
    let project = project();
    let mut child = command(project.folder(), &["run", ".", "--yes", "--run-id", "piped"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = child.stdin.take().expect("there is a pipe");
    input.write_all(b"Order rope.\n").expect("it reads");
    drop(input);
    let ran = Ran::of(child.wait_with_output().expect("it ends"));
    assert_eq!((ran.code, ran.said.as_str()), (Some(0), "Done.\n"), "{}", ran.noted);
    assert!(project.windlass(&["show", "piped"]).said.contains("› Order rope."));
}

#[test]
fn machines_get_an_object_a_line() {
    let project = project();
    let ran = project.windlass(&["run", ".", "Order rope.", "--json", "--run-id", "one"]);
    assert_eq!(ran.code, Some(3), "{}", ran.noted);
    let objects = ran.objects();
    let kinds: Vec<&str> = objects.iter().filter_map(|object| object["type"].as_str()).collect();
    assert_eq!(kinds.first(), Some(&"run"));
    assert!(kinds.contains(&"held"), "{kinds:?}");
    let end = objects.last().expect("there is an end");
    assert_eq!((end["type"].as_str(), end["status"].as_str()), (Some("end"), Some("paused")));
    assert_eq!(end["pending"][0]["tool"], "write_file");
    assert_eq!(end["pending"][0]["arguments"]["path"], "order.txt");
    assert!(ran.noted.is_empty(), "{}", ran.noted);
}

#[test]
fn a_run_waits_until_somebody_decides_from_elsewhere() {
    let project = project();
    let ran = project.windlass(&["run", ".", "Order rope.", "--run-id", "one"]);
    assert_eq!((ran.code, ran.said.as_str()), (Some(3), ""), "{}", ran.noted);
    assert!(ran.noted.contains("run one waits for a person"), "{}", ran.noted);
    let ran = project.windlass(&["runs", "--status", "paused", "--json"]);
    assert_eq!(ran.objects()[0]["pending"][0]["call"], "w1");
    let ran = project.windlass(&["approve", "one", "--by", "bo"]);
    assert_eq!(ran.code, Some(0), "{}", ran.noted);
    let ran = project.windlass(&["reject", "one", "w1"]);
    assert_eq!(ran.code, Some(1), "what was decided stays decided: {}", ran.noted);
    let ran = project.windlass(&["resume", "one"]);
    assert_eq!((ran.code, ran.said.as_str()), (Some(0), "Done.\n"), "{}", ran.noted);
    assert!(project.windlass(&["verify", "one"]).said.contains("by bo"));
    assert_eq!(std::fs::read_to_string(project.file("order.txt")).expect("it was made"), "rope\n");
}

#[test]
fn a_rejection_reaches_the_model_and_nothing_is_written() {
    let project = project();
    project.windlass(&["run", ".", "Order rope.", "--run-id", "one"]);
    let ran = project.windlass(&["reject", "--because", "not today", "--resume"]);
    assert_eq!(ran.code, Some(0), "{}", ran.noted);
    assert!(project.windlass(&["show"]).said.contains("not today"));
    assert!(!project.file("order.txt").exists());
}

#[test]
fn a_run_that_waits_can_be_cancelled_and_is_over_then() {
    let project = project();
    project.windlass(&["run", ".", "Order rope.", "--run-id", "one"]);
    let ran = project.windlass(&["cancel", "one"]);
    assert_eq!((ran.code, ran.said.as_str()), (Some(0), "run one is cancelled\n"), "{}", ran.noted);
    let ran = project.windlass(&["resume", "one"]);
    assert_eq!(ran.code, Some(2), "{}", ran.noted);
    assert!(ran.noted.contains("hint:"), "{}", ran.noted);
}

#[test]
fn a_fork_goes_another_way_and_the_first_run_stays() {
    let project = project();
    project.windlass(&["run", ".", "Order rope.", "--run-id", "one", "--yes"]);
    let held = project.windlass(&["show", "one", "--json"]);
    let steps = held.objects()[0]["steps"].as_array().expect("there are steps").clone();
    let held = steps.iter().find(|step| step["entry"]["type"] == "held").expect("it was asked about");
    let at = held["seq"].to_string();
    let ran = project.windlass(&["fork", "one", "--at", &at, "--reject", "w1", "--id", "two", "--resume"]);
    assert_eq!(ran.code, Some(0), "{}", ran.noted);
    let ran = project.windlass(&["diff", "one", "two"]);
    assert!(ran.said.contains("is approved") && ran.said.contains("is rejected"), "{}", ran.said);
    assert_eq!(project.windlass(&["verify"]).code, Some(0));
}

#[test]
fn a_fork_inside_a_call_finds_out_how_it_ended() {
    let project = project();
    project.windlass(&["run", ".", "Order rope.", "--run-id", "one", "--yes"]);
    let held = project.windlass(&["show", "one", "--json"]);
    let steps = held.objects()[0]["steps"].as_array().expect("there are steps").clone();
    let started = steps.iter().find(|step| step["entry"]["type"] == "call_started").expect("it ran");
    let at = started["seq"].to_string();
    let ran = project.windlass(&["fork", "one", "--at", &at, "--id", "two", "--resume"]);
    assert_eq!(ran.code, Some(0), "{}", ran.noted);
    assert!(ran.noted.contains("had happened already, not done again"), "{}", ran.noted);
}

#[test]
fn an_export_that_was_changed_is_found_out() {
    let project = project();
    project.windlass(&["run", ".", "Order rope.", "--run-id", "one", "--yes"]);
    project.windlass(&["export", "one", "-o", "run.windlass"]);
    assert_eq!(project.windlass(&["verify", "run.windlass"]).code, Some(0));
    let path = project.file("run.windlass");
    let text = std::fs::read_to_string(&path).expect("it was written");
    std::fs::write(&path, text.replace("rope", "gold")).expect("it can be written");
    let ran = project.windlass(&["verify", "run.windlass"]);
    assert_eq!(ran.code, Some(6), "{}", ran.noted);
    assert!(ran.noted.contains("is not what was written"), "{}", ran.noted);
}

#[test]
fn sessions_are_listed_shown_and_taken_back() {
    let project = Project::new("", "[[answer]]\ntext = \"Hello, Ann.\"\n[[answer]]\ntext = \"Ann.\"\n");
    project.windlass(&["run", ".", "I am Ann.", "--session", "ann"]);
    assert_eq!(project.windlass(&["run", ".", "Who am I?", "--session", "ann"]).said, "Ann.\n");
    assert!(project.windlass(&["sessions"]).said.starts_with("ann  4 items"));
    assert!(project.windlass(&["sessions", "ann"]).said.contains("‹ Hello, Ann."));
    assert_eq!(project.windlass(&["sessions", "ann", "--rewind", "1"]).code, Some(0));
    assert!(project.windlass(&["sessions"]).said.starts_with("ann  2 items"));
    assert_eq!(project.windlass(&["sessions", "bo"]).code, Some(5));
}

#[test]
fn a_chat_in_a_pipe_answers_line_by_line() {
    let project = Project::new("", "[[answer]]\ntext = \"One.\"\n[[answer]]\ntext = \"Two.\"\n");
    let mut child = command(project.folder(), &["chat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = child.stdin.take().expect("there is a pipe");
    input.write_all(b"first\nsecond\n").expect("it reads");
    drop(input);
    let ran = Ran::of(child.wait_with_output().expect("it ends"));
    assert_eq!((ran.code, ran.said.as_str()), (Some(0), "One.\nTwo.\n"), "{}", ran.noted);
}

#[test]
fn tools_say_what_they_do_and_whether_they_ask() {
    let project = Project::new(
        "tools = [\"files\"]\n[policy]\nallow = [\"write_file\"]\ndeny = [\"patch_file\"]",
        ORDER,
    );
    let ran = project.windlass(&["tools", "--json"]);
    let tools = ran.objects();
    let of = |name: &str| tools.iter().find(|tool| tool["tool"] == name);
    assert_eq!(of("read_file").expect("it is there")["effect"], "pure");
    assert_eq!(of("write_file").expect("it is there")["asks"], "unasked");
    assert!(of("patch_file").is_none());
}

#[test]
fn a_policy_about_a_tool_that_is_not_there_is_an_error() {
    let project = Project::new("tools = [\"read\"]\n[policy]\nask = [\"write_file\"]", ORDER);
    let ran = project.windlass(&["run", ".", "Go."]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.noted.contains("there is no such tool"), "{}", ran.noted);
}

#[test]
fn what_is_wrong_is_said_with_a_hint() {
    let project = Project::new("tols = [\"read\"]", ORDER);
    for (words, code) in [
        (&["run", ".", "Go."][..], 1),
        (&["run", "nowhere", "Go."][..], 5),
        (&["show"][..], 5),
        (&["doctor"][..], 1),
    ] {
        let ran = project.windlass(words);
        assert_eq!(ran.code, Some(code), "{words:?}: {}", ran.noted);
        assert!((ran.noted + &ran.said).contains("hint:"), "{words:?}");
    }
    let ran = project.windlass(&["show", "--json"]);
    assert_eq!(ran.objects()[0]["type"], "error");
}

#[test]
fn every_command_has_help_with_an_example_and_shells_can_complete_it() {
    let project = project();
    let bash = project.windlass(&["completions", "bash"]).said;
    for shell in ["zsh", "fish"] {
        assert!(project.windlass(&["completions", shell]).said.contains("windlass"));
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
        let ran = project.windlass(&[name, "--help"]);
        assert_eq!(ran.code, Some(0), "{name}");
        assert!(ran.said.contains("Examples:"), "{name}: {}", ran.said);
        assert!(bash.contains(&format!("windlass,{name})")), "{name} is not completed");
    }
}

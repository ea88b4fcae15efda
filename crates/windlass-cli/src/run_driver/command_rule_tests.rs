//! Tests of the rules for later commands.

#![allow(clippy::expect_used)]

use serde_json::{Value, json};
use windlass::core::canonical::Digest;
use windlass::core::id::CallPath;

use super::*;

fn pending_command(arguments: &Value) -> PendingCall {
    PendingCall {
        path: CallPath::from("c1"),
        agent: "helper".into(),
        tool: ToolKey::bare("run_command"),
        arguments: arguments.to_string(),
        reason: HoldReason::Approval,
        attempt: 0,
        digest: Digest::of_text("call"),
        expires_at: None,
        max_approval_scope: DecisionScope::ToolForRun,
        last_driver_seen: None,
        context_sources: Default::default(),
        posted: None,
    }
}

#[test]
fn an_exact_rule_covers_the_same_command_alone() {
    let run = RunId::from("one");
    let status = pending_command(&json!({ "program": "git", "args": ["status"] }));
    let rule = CommandRule::exact(&run, &status);
    assert!(rule.covers(&run, &pending_command(&json!({ "args": ["status"], "program": "git" }))));
    for other in [
        json!({ "program": "git", "args": ["status", "-s"] }),
        json!({ "program": "git", "args": ["-c", "alias.status=!sh", "status"] }),
        json!({ "program": "git", "args": ["status"], "folder": "sub" }),
        json!({ "shell": "git status" }),
    ] {
        assert!(!rule.covers(&run, &pending_command(&other)), "{other}");
    }
    assert!(!rule.covers(&RunId::from("two"), &status), "a rule is about one run");
    let other_agent = PendingCall { agent: "other".into(), ..status.clone() };
    assert!(!rule.covers(&run, &other_agent), "a rule is about one agent");
    let each_time = PendingCall { max_approval_scope: DecisionScope::ThisCall, ..status };
    assert!(!rule.covers(&run, &each_time), "some calls are asked about each time");
}

#[test]
fn a_pattern_covers_one_program_and_a_fixed_number_of_arguments() {
    let run = RunId::from("one");
    let list = pending_command(&json!({ "program": "ls", "args": ["-l", "src/a.rs"] }));
    let rule = CommandRule::pattern(&run, &list, r#"["-l", "src/*.rs"]"#).expect("it covers the command");
    assert!(rule.covers(&run, &pending_command(&json!({ "program": "ls", "args": ["-l", "src/b.rs"] }))));
    for other in [
        json!({ "program": "ls", "args": ["-l", "src/b.rs", "/etc/passwd"] }),
        json!({ "program": "ls", "args": ["-l", "/etc/b.rs"] }),
        json!({ "program": "cat", "args": ["-l", "src/b.rs"] }),
        json!({ "program": "ls", "args": ["-l", "src/b.rs"], "folder": ".." }),
        json!({ "shell": "ls -l src/b.rs" }),
        json!({ "program": "ls", "shell": "sh", "args": ["-l", "src/b.rs"] }),
    ] {
        assert!(!rule.covers(&run, &pending_command(&other)), "{other}");
    }
    let any = CommandRule::pattern(&run, &list, r#"["-l", "*"]"#).expect("it covers the command");
    let option = pending_command(&json!({ "program": "ls", "args": ["-l", "--color=always"] }));
    assert!(!any.covers(&run, &option), "a star is no option");
}

#[test]
fn no_pattern_is_offered_for_text_or_for_programs_that_run_others() {
    let run = RunId::from("one");
    for command in [
        json!({ "shell": "make test" }),
        json!({ "program": "sh", "args": ["-c", "make test"] }),
        json!({ "program": "/usr/bin/env", "args": ["make"] }),
        json!({ "program": "git", "args": ["status"] }),
        json!({ "program": "find", "args": ["."] }),
        json!({ "program": "make", "args": ["test"] }),
        json!({ "program": "timeout", "args": ["5", "ls"] }),
        json!({ "program": "nice", "args": ["ls"] }),
        json!({ "program": "python3.12", "args": ["a.py"] }),
        json!({ "program": "vim", "args": ["a.txt"] }),
        json!({ "program": "tar", "args": ["-tf", "a.tar"] }),
        json!({ "program": "rsync", "args": ["a", "b"] }),
        json!({ "program": "file", "args": ["a"] }),
        json!({ "program": "./ls", "args": ["a"] }),
    ] {
        let pending = pending_command(&command);
        assert!(!CommandRule::can_have_pattern(&pending), "{command}");
        assert!(CommandRule::pattern(&run, &pending, r#"["*"]"#).is_err(), "{command}");
    }
}

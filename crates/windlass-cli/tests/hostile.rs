//! Attacks of a model on the person who approves its calls. Each case is an attack that once worked, and asserts what
//! the person sees on the screen.

#![cfg(unix)]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod pty_screen;
mod support;

use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;
use pty_screen::{PtyScreen, foreign_character};
use serde_json::{Value, json};
use support::{TestProject, windlass_command};

/// Creates a project whose model makes these calls, one after the other, and then says a text.
fn project_with_calls(more: &str, calls: &[(&str, &str, Value)], text: &str) -> TestProject {
    let mut answers: Vec<String> = calls
        .iter()
        .map(|(id, tool, arguments)| {
            json!({ "call": [{ "id": id, "tool": tool, "arguments": arguments }] }).to_string()
        })
        .collect();
    answers.push(json!({ "text": text }).to_string());
    let project = TestProject::new(more, "");
    let agent = format!("name = \"helper\"\nmodel = \"scripted:answers.jsonl\"\n{more}\n");
    std::fs::write(project.file("agent.toml"), agent).expect("it can be written");
    std::fs::write(project.file("answers.jsonl"), answers.join("\n")).expect("it can be written");
    project
}

const SHELL: &str = "tools = [\"shell\", \"files\", \"ask_person\"]";

fn command(words: &[&str]) -> Value {
    json!({ "program": words[0], "args": words[1..] })
}

#[test]
fn an_argument_cannot_overwrite_the_command_that_is_shown() {
    // The value moves the cursor up, erases the line, and prints a harmless one.
    let attack = "touch stolen\r\u{1b}[2K\u{9b}G  │ shell  \"ls\"\u{1b}[8m";
    let call = json!({ "shell": attack });
    let project = project_with_calls(SHELL, &[("c1", "run_command", call)], "Done.");
    let mut screen = PtyScreen::start(project.folder(), 40, 100, &["run", ".", "Go."]);
    screen.wait_for_question("Allow it?");
    let shown = screen.screen_text();
    let literal = r#"│ shell  "touch stolen\r\u{1b}[2K\u{9b}G  │ shell  \"ls\"\u{1b}[8m""#;
    assert!(shown.contains(literal), "{shown}");
    screen.type_keys("l\n");
    screen.wait_for_exit();
}

#[test]
fn the_text_of_a_question_is_no_control_sequence() {
    let project = project_with_calls(
        "tools = [\"ask_person\"]",
        &[("c1", "ask_person", json!({ "question": "Who?\n\u{1b}[2J\u{1b}]52;c;cm0=\u{7}\u{9b}2J" }))],
        "Done.",
    );
    let mut screen = PtyScreen::start(project.folder(), 40, 100, &["run", ".", "Go."]);
    screen.wait_for("Your answer");
    let shown = screen.screen_text();
    assert!(shown.contains("ask_person asks: Who?"), "{shown}");
    assert!(shown.contains(r"  │ \u{1b}[2J\u{1b}]52;c;cm0=\u{7}\u{9b}2J"), "{shown}");
    screen.type_keys("\n");
    screen.wait_for_exit();
}

#[test]
fn names_of_tools_and_ids_of_calls_are_escaped_everywhere() {
    let id = "c1\u{1b}[31m\u{202e}";
    let project = project_with_calls(
        SHELL,
        &[(id, "run_command", command(&["true"])), ("c2", "no\u{1b}[2Ktool\u{200b}", json!({}))],
        "All \u{1b}[2Jdone\u{202e}.",
    );
    let ran = project.run_windlass(&["run", ".", "Go\u{1b}[2K.", "--run-id", "one"]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    let digest = project.digest_of("one");
    for words in [
        &["show", "one"][..],
        &["show", "one", "--journal"],
        &["show", "one", "--json"],
        &["runs"],
        &["runs", "--json"],
        &["approve", "--digest", &digest, "--by", "bo\u{1b}[2K"],
        &["resume", "one", "--yes"],
        &["show", "one"],
        &["show", "one", "--json"],
        &["verify", "one"],
        &["diff", "one", "one"],
        &["reject", "one", id],
    ] {
        let ran = project.run_windlass(words);
        let all = format!("{}{}", ran.stdout, ran.stderr);
        // The answer of a run is data: a pipe gets it exactly.
        let all = all.replace("All \u{1b}[2Jdone\u{202e}.\n", "");
        let raw = all.chars().find(|letter| {
            (letter.is_control() && *letter != '\n') || ['\u{202e}', '\u{200b}'].contains(letter)
        });
        assert_eq!(raw, None, "{words:?}: {all:?}");
    }
}

#[test]
fn an_answer_of_the_model_cannot_draw_a_prompt() {
    let text = "Fine.\u{1b}[2J\u{1b}[H  Allow it? [y]es › \u{202e}\u{200b}";
    let project = project_with_calls("", &[], text);
    let mut screen = PtyScreen::start(project.folder(), 40, 100, &["run", ".", "Go."]);
    screen.wait_for("Fine.");
    let (_, shown) = screen.wait_for_exit();
    assert!(shown.contains(r"Fine.\u{1b}[2J\u{1b}[H  Allow it? [y]es › \u{202e}\u{200b}"), "{shown}");
}

#[test]
fn a_call_that_does_not_fit_is_displayed_page_by_page_before_it_can_be_approved() {
    let lines: Vec<String> = (1..=60).map(|number| format!("line {number}")).collect();
    let script = format!("{}\nrm -rf everything", lines.join("\n"));
    let project = project_with_calls(SHELL, &[("c1", "run_command", json!({ "shell": script }))], "Done.");
    let mut screen = PtyScreen::start(project.folder(), 20, 80, &["run", ".", "Go.", "--run-id", "one"]);
    screen.wait_for("45 more lines: [Enter] next page");
    assert!(!screen.screen_text().contains("rm -rf everything"), "{}", screen.screen_text());
    screen.type_keys("y\n");
    screen.wait_for("press Enter for the next page.\n  45 more lines");
    assert!(!screen.screen_text().contains("Allow it?"), "{}", screen.screen_text());
    for (seen, prompt) in
        [("line 30\\n", "28 more lines"), ("line 45\\n", "11 more lines"), ("rm -rf everything", "Allow it?")]
    {
        screen.type_keys("\n");
        screen.wait_for(prompt);
        assert!(screen.screen_text().contains(seen), "{}", screen.screen_text());
    }
    screen.type_keys("n\n");
    screen.wait_for("Why?");
    screen.type_keys("\n");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
}

/// Pages of the old size would scroll past in a window that has become smaller.
#[test]
fn a_window_that_becomes_smaller_is_shown_every_line() {
    let lines: Vec<String> = (1..=60).map(|number| format!("line {number}.")).collect();
    let script = lines.join("\n");
    let project = project_with_calls(SHELL, &[("c1", "run_command", json!({ "shell": script }))], "Done.");
    let mut screen = PtyScreen::start(project.folder(), 40, 80, &["run", ".", "Go.", "--run-id", "one"]);
    screen.wait_for("more lines: [Enter] next page");
    screen.resize(12, 50);
    let mut shown = String::new();
    let prompts = ["52 more", "43 more", "34 more", "25 more", "16 more", "7 more", "Allow it?"];
    for prompt in prompts {
        screen.type_keys("\n");
        screen.wait_for(prompt);
        shown.push_str(&screen.screen_text());
    }
    let unseen: Vec<&String> = lines.iter().filter(|line| !shown.contains(*line)).collect();
    assert_eq!(unseen, Vec::<&String>::new(), "{shown}");
    screen.type_keys("l\n");
    screen.wait_for_exit();
}

#[test]
fn a_window_without_room_for_a_page_shows_nothing_and_approves_nothing() {
    let project = project_with_calls(SHELL, &[("c1", "run_command", command(&["touch", "made"]))], "Done.");
    let mut screen = PtyScreen::start(project.folder(), 5, 80, &["run", ".", "Go.", "--run-id", "one"]);
    screen.wait_for("too small to display");
    screen.wait_for_question("3 more lines");
    screen.type_keys("y\n");
    screen.wait_for("when all of it was displayed");
    screen.wait_for_question("3 more lines");
    screen.resize(40, 80);
    screen.type_keys("\n");
    screen.wait_for_question("Allow it?");
    assert!(screen.screen_text().contains(r#"│ args     ["made"]"#), "{}", screen.screen_text());
    screen.type_keys("l\n");
    let (status, shown) = screen.wait_for_exit();
    assert_eq!(status.code(), Some(3), "{shown}");
    assert!(!project.file("made").exists());
}

#[test]
fn a_long_line_is_wrapped_and_not_cut() {
    let words = format!("echo {}; rm -rf everything", "harmless ".repeat(30));
    let project = project_with_calls(SHELL, &[("c1", "run_command", json!({ "shell": words }))], "Done.");
    let mut screen = PtyScreen::start(project.folder(), 40, 60, &["run", ".", "Go.", "--run-id", "one"]);
    screen.wait_for_question("Allow it?");
    let shown = screen.screen_text();
    let joined: String =
        shown.lines().filter_map(|line| line.trim_start().strip_prefix(['│', '┊'])).collect();
    let joined = joined.replace(' ', "");
    assert!(joined.contains(&words.replace(' ', "")), "{shown}");
    screen.type_keys("l\n");
    screen.wait_for_exit();
    // A pipe gets it on one line.
    let ran = project.run_windlass(&["show", "one"]);
    assert!(ran.stdout.contains(&format!("shell  \"{words}\"")), "{}", ran.stdout);
}

#[test]
fn every_line_of_a_diff_is_displayed_with_what_hides_in_it() {
    let lines: Vec<String> = (1..=100).map(|number| format!("line {number}")).collect();
    let content = format!("{}\r\nlast\u{202e}\u{200b}\tline\n", lines.join("\n"));
    let project = project_with_calls(
        SHELL,
        &[("c1", "write_file", json!({ "path": "notes.txt", "content": content }))],
        "Done.",
    );
    project.run_windlass(&["run", ".", "Go.", "--run-id", "one"]);
    let shown = project.run_windlass(&["show", "one"]).stdout;
    for number in 1..=99 {
        assert!(shown.contains(&format!("│ +line {number}\n")), "{shown}");
    }
    assert!(shown.contains("│ +line 100\\u{d}\n"), "{shown}");
    assert!(shown.contains("│ +last\\u{202e}\\u{200b}→   line\n"), "{shown}");
}

#[test]
fn an_edited_decision_is_verified_in_full() {
    let project = project_with_calls(SHELL, &[("c1", "run_command", command(&["true"]))], "Done.");
    project.run_windlass(&["run", ".", "Go.", "--run-id", "one"]);
    let edited = json!({ "program": "true", "args": ["x".repeat(300), "the end"] }).to_string();
    // Whoever has seen the call has not seen the edited one.
    let digest = project.digest_of("one");
    let ran = project.run_windlass(&["approve", "--digest", &digest, "--arguments", &edited, "--resume"]);
    assert_eq!(ran.code, Some(5), "{}", ran.stderr);
    let shown = project.run_windlass(&["show", "one", "--arguments", &edited]);
    assert!(shown.stdout.contains("the end"), "{}", shown.stdout);
    let (_, digest) = shown.stdout.split_once("  digest ").expect("a digest");
    let digest = digest.lines().next().expect("a line").to_owned();
    let ran = project.run_windlass(&["approve", "--digest", &digest]);
    assert_eq!(ran.code, Some(5), "the digest is of the edited call: {}", ran.stderr);
    let ran = project.run_windlass(&["approve", "--digest", &digest, "--arguments", &edited, "--resume"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let journal = project.run_windlass(&["show", "one", "--json"]).json_lines().remove(0);
    assert!(journal["steps"].to_string().contains(&format!("\"displayed\":\"{digest}\"")), "{journal}");
    let verified = project.run_windlass(&["verify", "one"]).stdout;
    assert!(verified.contains(&format!("{}\",\"the end\"]", "x".repeat(300))), "{verified}");
    assert!(project.run_windlass(&["show", "one"]).stdout.contains("\"the end\"]"));
}

#[test]
fn an_approval_never_picks_a_call_by_itself() {
    let project = project_with_calls(SHELL, &[("c1", "run_command", command(&["touch", "small"]))], "Done.");
    project.run_windlass(&["run", ".", "Go.", "--run-id", "small"]);
    let seen = project.digest_of("small");
    // Another run arrives after the person looked.
    let answers = [
        json!({ "call": [{ "id": "c1", "tool": "run_command", "arguments": command(&["touch", "large"]) }] }),
        json!({ "text": "Done." }),
    ];
    std::fs::write(project.file("answers.jsonl"), answers.map(|answer| answer.to_string()).join("\n"))
        .expect("it can be written");
    project.run_windlass(&["run", ".", "Go.", "--run-id", "large"]);
    let ran = project.run_windlass(&["approve"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("several calls wait for a person"), "{}", ran.stderr);
    let ran = project.run_windlass(&["approve", "large"]);
    assert_eq!(ran.code, Some(2), "nobody saw the call: {}", ran.stderr);
    assert!(ran.stderr.contains("--digest"), "{}", ran.stderr);
    let ran = project.run_windlass(&["approve", "large", "--digest", &seen]);
    assert_eq!(ran.code, Some(5), "the digest is of another call: {}", ran.stderr);
    let ran = project.run_windlass(&["approve", "--digest", &seen[..20], "--by", "bo"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("bo approved call c1 of run small"), "{}", ran.stdout);
}

#[test]
fn a_file_that_changed_after_it_was_shown_makes_the_digest_void() {
    let project = project_with_calls(
        SHELL,
        &[("c1", "write_file", json!({ "path": "notes.txt", "content": "new\n" }))],
        "Done.",
    );
    project.run_windlass(&["run", ".", "Go.", "--run-id", "one"]);
    let digest = project.digest_of("one");
    std::fs::write(project.file("notes.txt"), "somebody was here\n").expect("it can be written");
    let ran = project.run_windlass(&["approve", "--digest", &digest]);
    assert_eq!(ran.code, Some(5), "{}", ran.stderr);
    assert!(ran.stderr.contains("no pending call has this digest"), "{}", ran.stderr);
}

#[test]
fn an_approval_in_a_terminal_shows_the_call_and_asks() {
    let project = project_with_calls(SHELL, &[("c1", "run_command", command(&["touch", "made"]))], "Done.");
    project.run_windlass(&["run", ".", "Go.", "--run-id", "one"]);
    let mut screen = PtyScreen::start(project.folder(), 40, 80, &["approve", "one"]);
    screen.wait_for("Approve it?");
    assert!(screen.screen_text().contains(r#"│ args     ["made"]"#), "{}", screen.screen_text());
    screen.type_keys("n\n");
    let (status, shown) = screen.wait_for_exit();
    assert_eq!(status.code(), Some(3), "{shown}");
    let mut screen = PtyScreen::start(project.folder(), 40, 80, &["approve", "one", "--resume"]);
    screen.wait_for("Approve it?");
    screen.type_keys("y\n");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert!(project.file("made").exists());
}

#[test]
fn a_fork_does_not_approve_a_call_that_nobody_saw() {
    let project = project_with_calls(SHELL, &[("c1", "run_command", command(&["touch", "made"]))], "Done.");
    project.run_windlass(&["run", ".", "Go.", "--run-id", "one"]);
    let ran = project.run_windlass(&["fork", "one", "--approve", "c1", "--id", "two", "--resume"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(!project.file("made").exists());
    let words = ["fork", "one", "--approve", "c1", "--id", "two", "--resume"];
    let mut screen = PtyScreen::start(project.folder(), 40, 80, &words);
    screen.wait_for("Approve it?");
    assert!(screen.screen_text().contains(r#"│ args     ["made"]"#), "{}", screen.screen_text());
    screen.type_keys("y\n");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert!(project.file("made").exists());
}

#[test]
fn a_decision_records_the_digest_of_what_was_displayed() {
    let project = project_with_calls(SHELL, &[("c1", "run_command", command(&["true"]))], "Done.");
    let mut screen = PtyScreen::start(project.folder(), 40, 80, &["run", ".", "Go.", "--run-id", "one"]);
    screen.wait_for_question("Allow it?");
    let digest = project.digest_of("one");
    screen.type_keys("y\n");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    let shown = project.run_windlass(&["show", "one", "--json"]);
    let steps = shown.json_lines()[0]["steps"].as_array().expect("there are steps").clone();
    let decided =
        steps.iter().find(|step| step["entry"]["type"] == "decision_recorded").expect("it was decided");
    assert_eq!(decided["entry"]["displayed"], digest.as_str());
    assert_eq!(decided["entry"]["decided_by"], "ann");
}

#[test]
fn an_argument_that_the_tool_would_ignore_is_refused_and_nobody_is_asked() {
    let call = json!({ "program": "touch", "args": ["stolen"], "dry_run": true });
    let project = project_with_calls(SHELL, &[("c1", "run_command", call)], "Done.");
    let ran = project.run_windlass(&["run", ".", "Go.", "--run-id", "one"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "Done.\n"), "{}", ran.stderr);
    let shown = project.run_windlass(&["show", "one"]).stdout;
    assert!(shown.contains("`dry_run` is not a known field"), "{shown}");
    assert!(!project.file("stolen").exists());
}

#[test]
fn a_patch_that_would_be_refused_is_not_asked_about() {
    let project = project_with_calls(
        SHELL,
        &[("c1", "write_file", json!({ "path": "../outside.txt", "content": "x" }))],
        "Done.",
    );
    let mut screen = PtyScreen::start(project.folder(), 40, 100, &["run", ".", "Go."]);
    screen.wait_for("Done.");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert!(!shown.contains("Allow it?"), "{shown}");
    assert!(shown.contains("is not asked about: it would be refused"), "{shown}");
}

#[test]
fn a_call_that_would_be_refused_is_displayed_whole_and_cannot_be_approved() {
    let project = project_with_calls(
        SHELL,
        &[("c1", "write_file", json!({ "path": "notes.txt", "content": "EVIL" }))],
        "Done.",
    );
    project.run_windlass(&["run", ".", "Go.", "--run-id", "one"]);
    let creating = project.digest_of("one");
    // The file may be gone again when the run resumes.
    std::fs::write(project.file("notes.txt"), "mine\n").expect("it can be written");
    let shown = project.run_windlass(&["show", "one"]).stdout;
    assert!(shown.contains("would be refused"), "{shown}");
    assert!(shown.contains(r#"│ content  "EVIL""#), "{shown}");
    let refused = project.digest_of("one");
    assert_ne!(refused, creating);
    for words in
        [&["approve", "--digest", &refused][..], &["approve", "one", "c1", "--digest", &refused, "--resume"]]
    {
        let ran = project.run_windlass(words);
        assert_eq!(ran.code, Some(2), "{words:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("cannot be approved: it would be refused"), "{}", ran.stderr);
    }
    let edited = r#"{"path":"notes.txt","content":"other"}"#;
    let screen = PtyScreen::start(project.folder(), 40, 100, &["approve", "one", "--arguments", edited]);
    let (status, shown) = screen.wait_for_exit();
    assert_eq!(status.code(), Some(2), "{shown}");
    let ran = project.run_windlass(&["reject", "--digest", &refused]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(std::fs::read_to_string(project.file("notes.txt")).expect("it is there"), "mine\n");
}

#[test]
fn always_never_covers_another_command() {
    let project = project_with_calls(
        SHELL,
        &[
            ("c1", "run_command", command(&["touch", "one"])),
            ("c2", "run_command", command(&["touch", "one"])),
            ("c3", "run_command", json!({ "shell": "touch two" })),
        ],
        "Done.",
    );
    let mut screen = PtyScreen::start(project.folder(), 60, 100, &["run", ".", "Go.", "--run-id", "one"]);
    screen.wait_for_question("Allow it?");
    screen.type_keys("a\n");
    screen.wait_for_question("Number, or Enter to go back");
    screen.type_keys("1\n");
    screen.wait_for("is approved by your rule: exactly this command");
    screen.wait_for(r#"shell  "touch two""#);
    screen.wait_for_question("Allow it?");
    screen.type_keys("l\n");
    let (status, shown) = screen.wait_for_exit();
    assert_eq!(status.code(), Some(3), "{shown}");
    assert!(project.file("one").exists() && !project.file("two").exists(), "{shown}");
    let digest = project.digest_of("one");
    let ran = project.run_windlass(&["approve", "--always", "--digest", &digest]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("would approve every later command"), "{}", ran.stderr);
}

#[test]
fn an_edit_begins_with_the_arguments_and_is_displayed_before_it_is_approved() {
    let project = project_with_calls(SHELL, &[("c1", "run_command", command(&["touch", "one"]))], "Done.");
    // The editor replaces a word, so it fails unless the arguments are in the file.
    let editor = [("EDITOR", "sed -i s/one/two/")];
    let mut screen = PtyScreen::start_with(project.folder(), 40, 80, &["run", ".", "Go."], &editor);
    screen.wait_for_question("Allow it?");
    screen.type_keys("e\n");
    screen.wait_for_question("Allow it with these arguments?");
    assert!(screen.screen_text().contains(r#"│ args     ["two"]"#), "{}", screen.screen_text());
    screen.type_keys("y\n");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert!(project.file("two").exists() && !project.file("one").exists(), "{shown}");
}

#[test]
fn an_edit_that_the_tool_would_refuse_is_not_approved() {
    let project = project_with_calls(SHELL, &[("c1", "run_command", command(&["touch", "one"]))], "Done.");
    let editor = [("EDITOR", "sed -i s/program/programme/")];
    let mut screen = PtyScreen::start_with(project.folder(), 40, 80, &["run", ".", "Go."], &editor);
    screen.wait_for_question("Allow it?");
    screen.type_keys("e\n");
    screen.wait_for("[b]ack");
    assert!(screen.screen_text().contains("`programme` is not a known field"), "{}", screen.screen_text());
    screen.type_keys("b\n");
    screen.wait_for_question("Allow it?");
    screen.type_keys("l\n");
    let (status, shown) = screen.wait_for_exit();
    assert_eq!(status.code(), Some(3), "{shown}");
    assert!(!project.file("one").exists());
}

#[test]
fn commands_are_confined_unless_the_agent_file_says_otherwise() {
    let allow = "[[policy.rule]]\nname = \"t\"\ndecision = \"allow\"\ntool = \"run_command\"\n\
                 command = [{ program = \"true\" }]\nexamples = [\n\
                 { decision = \"allow\", arguments = { program = \"true\" } }, { decision = \"ask\" }]\n";
    for key in ["", "unconfined_commands = \"ask\"\n", "unconfined_commands = \"refuse\"\n"] {
        let settings = format!("{SHELL}\n{key}{allow}");
        let project = project_with_calls(&settings, &[("c1", "run_command", command(&["true"]))], "Done.");
        let ran = project.run_windlass(&["run", ".", "Go.", "--run-id", "one"]);
        let shown = project.run_windlass(&["show", "one"]).stdout;
        // Where nothing can be confined, the command waits or is refused.
        let is_unconfined = shown.contains("\"confined\":\"none\"");
        assert!(!is_unconfined && [Some(0), Some(3)].contains(&ran.code), "{key}: {} {shown}", ran.stderr);
    }
    let project = project_with_calls(&format!("{SHELL}\nunconfined_commands = \"yes\"\n"), &[], "Done.");
    let ran = project.run_windlass(&["run", ".", "Go."]);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("unconfined_commands"),
        "{:?} {}",
        ran.code,
        ran.stderr
    );
}

#[test]
fn the_store_is_outside_the_workspace_and_private() {
    let project = project_with_calls(SHELL, &[("c1", "run_command", command(&["true"]))], "Done.");
    project.run_windlass(&["run", ".", "Go.", "--run-id", "one"]);
    let names: Vec<String> = std::fs::read_dir(project.folder())
        .expect("the folder is there")
        .map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned())
        .collect();
    assert!(names.iter().all(|name| !name.contains("windlass")), "{names:?}");
    let mode = |path: &std::path::Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
    let projects = project.state().join("windlass/projects");
    assert_eq!(mode(&projects), 0o700);
    let folders: Vec<_> = std::fs::read_dir(projects).expect("it is there").flatten().collect();
    let [folder] = folders.as_slice() else { panic!("one project has one store: {folders:?}") };
    assert_eq!(mode(&folder.path()), 0o700);
    for file in std::fs::read_dir(folder.path()).expect("it is there").flatten() {
        assert_eq!(mode(&file.path()), 0o600, "{file:?}");
    }
    // Two projects have two stores, though their folders have one name.
    let other = project_with_calls(SHELL, &[], "Done.");
    let mut command = windlass_command(&other.folder(), &["runs"]);
    let ran = command.env("XDG_STATE_HOME", project.state()).output().expect("it runs");
    assert_eq!(ran.status.code(), Some(5));
}

#[test]
fn a_file_that_is_no_store_is_named_as_such() {
    let project = project_with_calls(SHELL, &[], "Done.");
    let ran = project.run_windlass(&["runs", "--store", "agent.toml"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("`agent.toml` is not a store of Windlass"), "{}", ran.stderr);
}

#[test]
fn a_chat_in_a_pipe_says_that_a_call_waits() {
    let project = project_with_calls(SHELL, &[("c1", "run_command", command(&["true"]))], "Done.");
    let mut child = windlass_command(&project.folder(), &["chat"])
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    let mut input = child.stdin.take().expect("there is a pipe");
    std::io::Write::write_all(&mut input, b"Go.\n").expect("it reads");
    drop(input);
    assert_eq!(child.wait().expect("it ends").code(), Some(3));
}

#[test]
fn a_hint_works_from_the_folder_where_it_is_read() {
    let project = project_with_calls(SHELL, &[("c1", "run_command", command(&["true"]))], "Done.");
    let above = project.folder().parent().expect("it is in a folder").join("elsewhere");
    std::fs::create_dir(&above).expect("it can be made");
    std::os::unix::fs::symlink(project.folder(), above.join("My Agent")).expect("it can be made");
    let absolute = project.folder().to_string_lossy().into_owned();
    for (agent, run) in [(absolute.as_str(), "one"), ("My Agent", "two")] {
        let ran =
            windlass_command(&above, &["run", agent, "Go.", "--run-id", run]).output().expect("it runs");
        let hint = String::from_utf8_lossy(&ran.stderr).into_owned();
        let start = hint.find("`windlass -C ").expect("the hint names the folder") + "`windlass ".len();
        let command = hint[start..].split('`').next().expect("it ends");
        // A shell splits the command into its words.
        let split = format!("printf '%s\\n' {command}");
        let split = std::process::Command::new("sh").args(["-c", &split]).output().expect("a shell");
        let words = String::from_utf8_lossy(&split.stdout).into_owned();
        let ran = windlass_command(&above, &words.lines().collect::<Vec<_>>()).output().expect("it runs");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(3), "`{command}` waits again: {said}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(16) })]

    /// Whatever strings a model sends, in every place, no hidden character reaches the terminal, and the screen has
    /// every argument as a literal and nothing else.
    #[test]
    fn nothing_that_a_model_sends_reaches_the_terminal_raw(
        values in prop::collection::vec(hostile_text(), 1..4),
        id in hostile_text(),
        unknown in hostile_text(),
    ) {
        let words: Vec<String> = values.iter().map(|value| value.replace('\0', "")).collect();
        let mut refused = command(&["true"]);
        refused[&unknown] = json!(unknown);
        let (tool, id) = (format!("t{unknown}"), format!("x{id}"));
        // Two calls are refused and shown on a line each; the third one is displayed and waits.
        let calls = [
            ("c1", "run_command", refused),
            ("c2", tool.as_str(), json!({})),
            (id.as_str(), "run_command", json!({ "program": "true", "args": words })),
        ];
        let project = project_with_calls(SHELL, &calls, "Done.");
        let mut screen = PtyScreen::start(project.folder(), 200, 100, &["run", ".", "Go.", "--run-id", "one"]);
        screen.wait_for_question("Allow it?");
        let rows = screen.screen_rows();
        let shown = rows.join("\n");
        let title = rows.iter().position(|row| row == "  helper would like to call run_command:");
        let title = title.unwrap_or_else(|| panic!("there is no call: {shown}"));
        let (before, call) = rows.split_at(title);
        prop_assert_eq!(&before[0], "helper scripted:answers.jsonl · run one", "{}", shown);
        prop_assert_eq!(&before[title - 1], "", "{}", shown);
        prop_assert!(before[title - 2].starts_with("  ? run_command  "), "{}", shown);
        prop_assert!(before[title - 2].ends_with("  waits for a person"), "{}", shown);
        // Each refused call has a line, and its error below it.
        let is_line_of_call = |row: &&String| row.starts_with("  ✗ ");
        prop_assert_eq!(before.iter().filter(is_line_of_call).count(), 2, "{}", shown);
        prop_assert!(before[1..title - 2].iter().all(|row| row.starts_with("  ✗ ") || row.starts_with("    ")), "{}", shown);
        let (prompt, body) = call[1..].split_last().expect("a prompt");
        prop_assert_eq!(prompt, "  Allow it? [y]es [n]o [a]lways in this run [e]dit [l]ater ›", "{}", shown);
        let mut lines: Vec<String> = Vec::new();
        for row in body {
            if let Some(line) = row.strip_prefix("  │ ") {
                lines.push(line.replace(' ', ""));
            } else if let (Some(line), Some(last)) = (row.strip_prefix("  ┊ "), lines.last_mut()) {
                last.push_str(&line.replace(' ', ""));
            } else {
                prop_assert!(false, "a line without a bar: {}", shown);
            }
        }
        let literal = windlass_text::escape_json(&json!(words).to_string()).replace(' ', "");
        prop_assert_eq!(lines, [format!("args{literal}"), r#"program"true""#.to_owned()], "{}", shown);

        let written = screen.written();
        screen.type_keys("l\n");
        let (_, shown) = screen.wait_for_exit();
        // The id is in the list of the calls that wait, which is cut off at the end of a line.
        let listed = shown.lines().skip_while(|line| !line.starts_with("? run one waits")).nth(1);
        let listed = listed.unwrap_or_else(|| panic!("there is no list: {shown}"));
        // The text of a path of calls encodes the slash between them.
        let path = id.replace('%', "%25").replace('/', "%2F");
        let expected = windlass_text::SafeText::from_line(&format!("{path}  run_command"));
        let (listed, expected) = (listed.trim_start().trim_end_matches('…').trim_end(), expected.as_str());
        prop_assert!(expected.starts_with(listed) || listed.starts_with(expected), "{}\n{}", shown, expected);
        prop_assert_eq!(foreign_character(&written), None);
        for words in [&["show", "one"][..], &["runs"], &["verify", "one"]] {
            let screen = PtyScreen::start(project.folder(), 200, 100, words);
            let written = screen.written();
            screen.wait_for_exit();
            prop_assert_eq!(foreign_character(&written), None, "{:?}", words);
        }
    }
}

#[test]
fn hidden_characters_of_an_output_are_found() {
    let find = |text: &str| foreign_character(&text.as_bytes().to_vec().into());
    for own in ["plain → text\r\n", "\u{1b}[1;32m✓\u{1b}[0m", "\u{1b}[3A\r\u{1b}[J\u{1b}[K", "\u{1b}[?2004h"]
    {
        assert_eq!(find(own), None, "{own:?}");
    }
    for foreign in [
        "\u{1b}[2;2H",
        "\u{1b}]52;c;x\u{7}",
        "\u{1b}[?1049h",
        "\u{9b}2J",
        "a\u{202e}b",
        "a\u{200b}b",
        "a\tb",
        "\u{1b}",
    ] {
        assert!(find(foreign).is_some(), "{foreign:?}");
    }
}

fn hostile_text() -> impl Strategy<Value = String> {
    let hostile = prop::sample::select(windlass_text::testing::HOSTILE_CHARACTERS);
    prop::collection::vec(prop_oneof![3 => hostile, 1 => prop::char::range('!', '~')], 0..40)
        .prop_map(|letters| letters.into_iter().collect())
}

/// A file tells the model to run a command that was approved for good before: the mark is on the screen, and the policy
/// asks again.
#[test]
fn a_call_after_a_file_is_marked_and_a_policy_asks_about_it_again() {
    const POLICY: &str = "tools = [\"shell\", \"files\"]\n[policy]\ndefault = \"tool\"\n[[policy.rule]]\nname = \"after files\"\ndecision = \"ask_each_time\"\ntool = \"run_command\"\ncontext = \"file\"\n";
    let touch = || command(&["touch", "one"]);
    let project = project_with_calls(
        POLICY,
        &[
            ("c1", "run_command", touch()),
            ("c2", "run_command", touch()),
            ("c3", "read_file", json!({ "path": "answers.jsonl" })),
            ("c4", "run_command", touch()),
        ],
        "Done.",
    );
    let mut screen = PtyScreen::start(project.folder(), 60, 100, &["run", ".", "Go.", "--run-id", "one"]);
    screen.wait_for_question("Allow it?");
    assert!(!screen.screen_text().contains("The model could read"), "{}", screen.screen_text());
    screen.type_keys("a\n");
    screen.wait_for_question("Number, or Enter to go back");
    screen.type_keys("1\n");
    screen.wait_for("is approved by your rule: exactly this command");
    // The rule of the person covered the second command, and does not cover the one after the file.
    screen.wait_for("The model could read text from files and a command before this call.");
    screen.wait_for_question("Allow it?");
    screen.type_keys("l\n");
    let (status, shown) = screen.wait_for_exit();
    assert_eq!(status.code(), Some(3), "{shown}");
    let shown = project.run_windlass(&["show", "one"]).stdout;
    assert!(
        shown.contains("The model could read text from files and a command before this call."),
        "{shown}"
    );
    let journal = project.run_windlass(&["show", "one", "--journal"]).stdout;
    assert!(journal.contains("after it could read files and a command"), "{journal}");
}

//! The command on a real terminal: what a person sees, and what their keys do.

#![cfg(unix)]
#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

mod screen;
mod support;

use screen::Screen;
use support::{Project, golden};

const NOTES: &str = r#"
[[answer]]
text = "I will write that down."
[[answer.call]]
id = "w1"
tool = "write_file"
arguments = { path = "notes.txt", content = "Buy rope.\nBuy tar.\n" }

[[answer]]
text = "It is in notes.txt."
"#;

/// A command that runs until the test lets it end, and then something to decide about.
const GATED: &str = r#"
[[answer]]
[[answer.call]]
id = "r1"
tool = "run_command"
arguments = { program = "sh", args = ["-c", "while [ ! -e go ]; do sleep 0.02; done; echo gone"] }

[[answer]]
[[answer.call]]
id = "w1"
tool = "write_file"
arguments = { path = "notes.txt", content = "Buy rope.\n" }

[[answer]]
text = "That is all."
"#;

const GATED_AGENT: &str =
    "tools = [\"files\", \"shell\"]\n[policy]\nallow = [\"run_command\"]\n[limits]\nlease = \"1s\"";

#[test]
fn the_demo_asks_is_killed_and_goes_on() {
    let folder = tempfile::tempdir().expect("there is room");
    let mut screen = Screen::start(folder.path(), 80, 100, &["demo"]);
    screen.wait_for("Allow it?");
    screen.press("y\n");
    screen.wait_for("Press Enter to resume the run.");
    screen.press("\n");
    let (status, shown) = screen.end();
    assert!(status.success(), "{shown}");
    assert!(shown.contains("each exactly once"), "{shown}");
    let ledger = std::fs::read_to_string(folder.path().join("windlass-demo/bank/ledger.csv"));
    assert_eq!(ledger.expect("the bank has a book").lines().count(), 3);
    // The two small payments end in either order.
    let order = |line: &str| line.contains("40 euros to") || line.contains("Harbour Office  ");
    assert!(shown.lines().any(order), "{shown}");
}

#[test]
fn a_person_who_says_no_in_the_demo_pays_nothing_more() {
    let folder = tempfile::tempdir().expect("there is room");
    let mut screen = Screen::start(folder.path(), 80, 100, &["demo"]);
    screen.wait_for("Allow it?");
    screen.press("n\n");
    screen.wait_for("Why?");
    screen.press("too much rope\n");
    let (status, shown) = screen.end();
    assert!(status.success(), "{shown}");
    assert!(shown.contains("you said no"), "{shown}");
    let ledger = std::fs::read_to_string(folder.path().join("windlass-demo/bank/ledger.csv"));
    assert!(!ledger.expect("the bank has a book").contains("R-1931"));
}

#[test]
fn a_chat_shows_the_change_and_makes_it_after_a_yes() {
    let project = Project::new("tools = [\"files\"]", NOTES);
    let mut screen = Screen::start(project.folder(), 40, 80, &["chat", ".", "--session", "ann"]);
    screen.wait_for("›");
    screen.press("Remember rope and tar.\n");
    screen.wait_for("Allow it?");
    assert!(!project.file("notes.txt").exists());
    screen.press("y\n");
    screen.wait_for("It is in notes.txt.\n\n›");
    screen.press("/quit\n");
    let (status, shown) = screen.end();
    assert!(status.success(), "{shown}");
    assert_eq!(
        std::fs::read_to_string(project.file("notes.txt")).expect("it was made"),
        "Buy rope.\nBuy tar.\n"
    );
    golden("chat.txt", &shown);
}

#[test]
fn what_was_typed_before_the_question_does_not_answer_it() {
    let project = Project::new(GATED_AGENT, GATED);
    let mut screen = Screen::start(project.folder(), 40, 80, &["run", ".", "Go."]);
    screen.wait_for("run_command");
    screen.press("y\n");
    screen.wait_for("\ny");
    std::fs::write(project.file("go"), "").expect("it can be written");
    screen.wait_for("Allow it?");
    screen.press("n\n");
    screen.wait_for("Why?");
    screen.press("\n");
    let (status, shown) = screen.end();
    assert!(status.success(), "{shown}");
    assert!(!project.file("notes.txt").exists(), "{shown}");
}

#[test]
fn ctrl_c_stops_the_run_and_says_what_became_of_it() {
    let project = Project::new(GATED_AGENT, &GATED.replace("while", "touch began; while"));
    let mut screen = Screen::start(project.folder(), 40, 80, &["run", ".", "Go.", "--run-id", "stopped"]);
    screen.wait_for("run_command");
    // Before the command has begun there is nothing that could be in doubt.
    while !project.file("began").exists() {
        std::thread::yield_now();
    }
    screen.press("\x03");
    let (status, shown) = screen.end();
    assert_eq!(status.code(), Some(4), "{shown}");
    assert!(shown.contains("run stopped was cancelled; calls: 1 in doubt"), "{shown}");
    assert!(project.windlass(&["show", "stopped"]).said.contains("cancelled"));
}

#[test]
fn ctrl_c_at_the_prompt_of_a_chat_leaves_when_it_comes_twice() {
    let project = Project::new("", NOTES);
    let mut screen = Screen::start(project.folder(), 40, 80, &["chat"]);
    screen.wait_for("›");
    screen.press("\x03");
    screen.wait_for("Ctrl-C again leaves");
    screen.press("\x03");
    let (status, shown) = screen.end();
    assert!(status.success(), "{shown}");
    assert!(shown.contains("goes on with this conversation"), "{shown}");
}

#[test]
fn a_run_whose_process_was_killed_asks_what_happened_and_goes_on() {
    let project = Project::new(GATED_AGENT, GATED);
    let mut screen = Screen::start(project.folder(), 40, 80, &["run", ".", "Go.", "--run-id", "killed"]);
    screen.wait_for("run_command");
    // The start is durable before anybody is shown it.
    screen.kill();
    let mut screen = Screen::start(project.folder(), 40, 80, &["resume"]);
    screen.wait_for("Say what you know");
    screen.press("h\n");
    screen.wait_for("What did it give?");
    screen.press("it was done by hand\n");
    screen.wait_for("Allow it?");
    screen.press("n\n");
    screen.wait_for("Why?");
    screen.press("\n");
    let (status, shown) = screen.end();
    assert!(status.success(), "{shown}");
    let journal = project.windlass(&["show", "killed", "--journal"]).said;
    assert_eq!(journal.matches("call r1 of `run_command` starts").count(), 1, "{journal}");
    assert!(journal.contains("by ann"), "{journal}");
    golden("resume.txt", &shown);
}

#[test]
fn a_decision_from_elsewhere_ends_the_question() {
    let project = Project::new("tools = [\"files\"]", NOTES);
    let mut screen = Screen::start(project.folder(), 40, 80, &["run", ".", "Remember.", "--run-id", "one"]);
    screen.wait_for("Allow it?");
    assert_eq!(project.windlass(&["approve", "one", "--by", "bo"]).code, Some(0));
    let (status, shown) = screen.end();
    assert!(status.success(), "{shown}");
    assert!(shown.contains("bo decided about it meanwhile, elsewhere"), "{shown}");
    assert!(project.file("notes.txt").exists());
}

#[test]
fn a_process_that_is_told_to_end_leaves_the_run_for_another() {
    let project = Project::new(GATED_AGENT, GATED);
    let mut screen = Screen::start(project.folder(), 40, 80, &["run", ".", "Go.", "--run-id", "left"]);
    screen.wait_for("run_command");
    let process = screen.process().to_string();
    let told = std::process::Command::new("kill").args(["-TERM", &process]).status().expect("there is kill");
    assert!(told.success());
    let (status, shown) = screen.end();
    assert_eq!(status.code(), Some(4), "{shown}");
    assert!(shown.contains("`windlass resume left` goes on with it"), "{shown}");
    let ran = project.windlass(&["resume", "left"]);
    assert_eq!(ran.code, Some(3), "what had started is in doubt: {}", ran.noted);
    let ran = project.windlass(&["settle", "left", "--happened", "done by hand"]);
    assert_eq!(ran.code, Some(0), "{}", ran.noted);
    let ran = project.windlass(&["resume", "left", "--yes"]);
    assert_eq!((ran.code, ran.said.as_str()), (Some(0), "That is all.\n"), "{}", ran.noted);
}

#[test]
fn a_narrow_terminal_is_not_overrun() {
    let project = Project::new("tools = [\"files\"]", NOTES);
    let mut screen =
        Screen::start(project.folder(), 60, 32, &["run", ".", "Remember.", "--run-id", "narrow"]);
    screen.wait_for("ater");
    screen.press("y\n");
    let (status, shown) = screen.end();
    assert!(status.success(), "{shown}");
    golden("narrow.txt", &shown);
}

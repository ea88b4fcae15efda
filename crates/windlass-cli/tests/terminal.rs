//! The command on a real terminal: its screen, and its reaction to keys.

#![cfg(unix)]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod pty_screen;
mod support;

use pty_screen::PtyScreen;
use support::{TestProject, assert_golden};

const NOTES_SCRIPT: &str = r#"
[[answer]]
text = "I will write that down."
[[answer.call]]
id = "w1"
tool = "write_file"
arguments = { path = "notes.txt", content = "Buy rope.\nBuy tar.\n" }

[[answer]]
text = "It is in notes.txt."
"#;

/// A command that runs until the test lets it end, followed by a call that requires approval.
const GATED_SCRIPT: &str = r#"
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

const GATED_AGENT: &str = r#"tools = ["files", "shell"]
[limits]
lease = "1s"
[[policy.rule]]
name = "the gate"
decision = "allow"
tool = "run_command"
command = [
    { program = "sh", args = ["-c", "while [ ! -e go ]; do sleep 0.02; done; echo gone"] },
    { program = "sh", args = ["-c", "touch began; while [ ! -e go ]; do sleep 0.02; done; echo gone"] },
]
examples = [
    { decision = "allow", arguments = { program = "sh", args = ["-c", "while [ ! -e go ]; do sleep 0.02; done; echo gone"] } },
    { decision = "ask", arguments = { program = "sh", args = ["-c", "id"] } },
]
"#;

/// A temporary folder for the demo.
struct DemoPlace(tempfile::TempDir);

impl DemoPlace {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("there is room");
        std::fs::create_dir(place.path().join("work")).expect("it can be made");
        Self(place)
    }

    fn folder(&self) -> std::path::PathBuf {
        self.0.path().join("work")
    }
}

#[test]
fn the_demo_asks_is_killed_and_goes_on() {
    let place = DemoPlace::new();
    let mut screen = PtyScreen::start(place.folder(), 80, 100, &["demo"]);
    screen.wait_for_question("Allow it?");
    screen.type_keys("y\n");
    screen.wait_for("Press Enter to resume the run.");
    screen.type_keys("\n");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert!(shown.contains("each exactly once"), "{shown}");
    let ledger = std::fs::read_to_string(place.folder().join("windlass-demo/bank/ledger.csv"));
    assert_eq!(ledger.expect("the bank has a book").lines().count(), 3);
    // The two small payments finish in either order.
    let order = |line: &str| line.contains("40 euros to") || line.contains("Harbour Office  ");
    assert!(shown.lines().any(order), "{shown}");
}

#[test]
fn the_demo_fits_a_small_window_and_a_dumb_terminal() {
    for (rows, columns, term) in [(200, 40, "xterm-256color"), (80, 100, "dumb")] {
        let place = DemoPlace::new();
        let mut screen = PtyScreen::start_with(place.folder(), rows, columns, &["demo"], &[("TERM", term)]);
        screen.wait_for_question("Allow it?");
        screen.type_keys("y\n");
        screen.wait_for("Press Enter to resume the run.");
        screen.type_keys("\n");
        let (status, shown) = screen.wait_for_exit();
        assert!(status.success(), "{shown}");
        // No line but a command to copy is broken by the edge of the window.
        let rows: Vec<&str> = shown.lines().collect();
        let evidence = match columns {
            40 => vec!["  ✓ three invoices, three payments:", "  each exactly once"],
            _ => vec!["  ✓ three invoices, three payments: each exactly once"],
        };
        assert!(rows.windows(evidence.len()).any(|found| found == evidence), "{term}: {shown}");
    }
}

#[test]
fn a_person_who_says_no_in_the_demo_pays_nothing_more() {
    let place = DemoPlace::new();
    let mut screen = PtyScreen::start(place.folder(), 80, 100, &["demo"]);
    screen.wait_for_question("Allow it?");
    screen.type_keys("n\n");
    screen.wait_for("Why?");
    screen.type_keys("too much rope\n");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert!(shown.contains("invoice R-1931 was not paid, as you decided"), "{shown}");
    assert!(!shown.contains("All three invoices are paid"), "{shown}");
    assert!(place.folder().join("windlass-demo/inbox/ropeworks.txt").exists());
    let ledger = std::fs::read_to_string(place.folder().join("windlass-demo/bank/ledger.csv"));
    assert!(!ledger.expect("the bank has a book").contains("R-1931"));
}

#[test]
fn a_demo_that_waits_says_how_to_go_on_and_that_works() {
    let place = DemoPlace::new();
    let mut screen = PtyScreen::start(place.folder(), 80, 100, &["demo"]);
    screen.wait_for_question("Allow it?");
    screen.type_keys("l\n");
    let (status, shown) = screen.wait_for_exit();
    assert_eq!(status.code(), Some(3), "{shown}");
    assert!(shown.contains("`windlass -C windlass-demo resume invoices`"), "{shown}");
    assert!(!shown.contains("All three invoices are paid"), "{shown}");
    let mut screen =
        PtyScreen::start(place.folder(), 80, 100, &["-C", "windlass-demo", "resume", "invoices"]);
    screen.wait_for_question("Allow it?");
    screen.type_keys("l\n");
    let (status, shown) = screen.wait_for_exit();
    assert_eq!(status.code(), Some(3), "{shown}");
}

#[test]
fn a_payment_that_was_changed_in_the_demo_is_reported_as_it_was() {
    let place = DemoPlace::new();
    let editor = [("EDITOR", "sed -i s/480/48/")];
    let mut screen = PtyScreen::start_with(place.folder(), 80, 100, &["demo"], &editor);
    screen.wait_for_question("Allow it?");
    screen.type_keys("e\n");
    screen.wait_for_question("Allow it with these arguments?");
    screen.type_keys("y\n");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert!(!shown.contains("All three invoices are paid"), "{shown}");
    assert!(!shown.contains("was not paid, as you decided"), "{shown}");
    assert!(shown.contains("48 euros went to Ropeworks"), "{shown}");
}

/// The amount stays large, so that the payment is interrupted.
#[test]
fn the_demo_tells_the_truth_about_a_large_payment_that_was_changed() {
    for (change, told) in [
        ("s/Ropeworks/Mallory/", "has taken the money: 480 euros to Mallory"),
        ("s/R-1931/H-204/", "three calls, three payments: each exactly once"),
    ] {
        let place = DemoPlace::new();
        let editor = format!("sed -i {change}");
        let mut screen =
            PtyScreen::start_with(place.folder(), 80, 200, &["demo"], &[("EDITOR", editor.as_str())]);
        screen.wait_for_question("Allow it?");
        screen.type_keys("e\n");
        screen.wait_for_question("Allow it with these arguments?");
        screen.type_keys("y\n");
        screen.wait_for("Press Enter to resume the run.");
        screen.type_keys("\n");
        let (status, shown) = screen.wait_for_exit();
        assert!(status.success(), "{shown}");
        assert!(shown.contains(told), "{shown}");
        assert!(!shown.contains("please report this"), "{shown}");
        assert!(!shown.contains("All three invoices are paid"), "{shown}");
    }
}

#[test]
fn a_chat_shows_the_change_and_makes_it_after_a_yes() {
    let project = TestProject::new("tools = [\"files\"]", NOTES_SCRIPT);
    let mut screen = PtyScreen::start(project.folder(), 40, 80, &["chat", ".", "--session", "ann"]);
    screen.wait_for("›");
    screen.type_keys("Remember rope and tar.\n");
    screen.wait_for_question("Allow it?");
    assert!(!project.file("notes.txt").exists());
    screen.type_keys("y\n");
    screen.wait_for("It is in notes.txt.");
    screen.wait_for_prompt();
    screen.type_keys("/quit\n");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert_eq!(
        std::fs::read_to_string(project.file("notes.txt")).expect("it was made"),
        "Buy rope.\nBuy tar.\n"
    );
    assert_golden("chat.txt", &shown);
    let session = project.run_windlass(&["sessions", "ann", "--json"]).stdout;
    assert!(session.contains("\"type\":\"output\""), "the next run knows of the approved call: {session}");
}

#[test]
fn a_session_knows_of_a_call_that_was_approved_at_the_prompt() {
    let project = TestProject::new("tools = [\"files\"]", NOTES_SCRIPT);
    let words = ["run", ".", "Remember rope and tar.", "--session", "ann"];
    let mut screen = PtyScreen::start(project.folder(), 40, 80, &words);
    screen.wait_for_question("Allow it?");
    screen.type_keys("y\n");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    let session = project.run_windlass(&["sessions", "ann", "--json"]).stdout;
    assert!(session.contains("\"type\":\"output\""), "{session}");
}

#[test]
fn what_was_typed_before_the_question_does_not_answer_it() {
    let project = TestProject::new(GATED_AGENT, GATED_SCRIPT);
    let mut screen = PtyScreen::start(project.folder(), 40, 80, &["run", ".", "Go."]);
    screen.wait_for("run_command");
    screen.type_keys("y\n");
    screen.wait_for("\ny");
    std::fs::write(project.file("go"), "").expect("it can be written");
    screen.wait_for_question("Allow it?");
    screen.type_keys("n\n");
    screen.wait_for("Why?");
    screen.type_keys("\n");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert!(!project.file("notes.txt").exists(), "{shown}");
}

#[test]
fn ctrl_c_stops_the_run_and_says_what_became_of_it() {
    let project = TestProject::new(GATED_AGENT, &GATED_SCRIPT.replace("while", "touch began; while"));
    let mut screen = PtyScreen::start(project.folder(), 40, 80, &["run", ".", "Go.", "--run-id", "stopped"]);
    screen.wait_for("run_command");
    // Before the command has started, no call could be in doubt.
    while !project.file("began").exists() {
        std::thread::yield_now();
    }
    screen.type_keys("\x03");
    let (status, shown) = screen.wait_for_exit();
    assert_eq!(status.code(), Some(4), "{shown}");
    assert!(shown.contains("run stopped was cancelled; calls: 1 in doubt"), "{shown}");
    assert!(project.run_windlass(&["show", "stopped"]).stdout.contains("cancelled"));
}

#[test]
fn ctrl_c_at_the_prompt_of_a_chat_leaves_when_it_comes_twice() {
    let project = TestProject::new("", NOTES_SCRIPT);
    let mut screen = PtyScreen::start(project.folder(), 40, 80, &["chat"]);
    screen.wait_for("›");
    screen.type_keys("\x03");
    screen.wait_for("press Ctrl-C again");
    screen.type_keys("\x03");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert!(shown.contains("continues this conversation"), "{shown}");
}

#[test]
fn a_run_whose_process_was_killed_asks_what_happened_and_goes_on() {
    let project = TestProject::new(GATED_AGENT, GATED_SCRIPT);
    let mut screen = PtyScreen::start(project.folder(), 40, 80, &["run", ".", "Go.", "--run-id", "killed"]);
    screen.wait_for("run_command");
    // The start of a call is durable before it is shown.
    screen.kill();
    let mut screen = PtyScreen::start(project.folder(), 40, 80, &["resume"]);
    screen.wait_for("Say what you know");
    screen.type_keys("h\n");
    screen.wait_for("What was its output?");
    screen.type_keys("it was done by hand\n");
    screen.wait_for_question("Allow it?");
    screen.type_keys("n\n");
    screen.wait_for("Why?");
    screen.type_keys("\n");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    let journal = project.run_windlass(&["show", "killed", "--journal"]).stdout;
    assert_eq!(journal.matches("call r1 of `run_command` starts").count(), 1, "{journal}");
    assert!(journal.contains("by ann"), "{journal}");
    assert_golden("resume.txt", &shown);
}

#[test]
fn a_decision_from_elsewhere_ends_the_question() {
    let project = TestProject::new("tools = [\"files\"]", NOTES_SCRIPT);
    let mut screen =
        PtyScreen::start(project.folder(), 40, 80, &["run", ".", "Remember.", "--run-id", "one"]);
    screen.wait_for_question("Allow it?");
    let digest = project.digest_of("one");
    assert_eq!(project.run_windlass(&["approve", "one", "--by", "bo", "--digest", &digest]).code, Some(0));
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert!(shown.contains("bo decided this call elsewhere"), "{shown}");
    assert!(project.file("notes.txt").exists());
}

#[test]
fn a_process_that_is_told_to_end_leaves_the_run_for_another() {
    let project = TestProject::new(GATED_AGENT, GATED_SCRIPT);
    let mut screen = PtyScreen::start(project.folder(), 40, 80, &["run", ".", "Go.", "--run-id", "left"]);
    screen.wait_for("run_command");
    let process = screen.process_id().to_string();
    let told = std::process::Command::new("kill").args(["-TERM", &process]).status().expect("there is kill");
    assert!(told.success());
    let (status, shown) = screen.wait_for_exit();
    assert_eq!(status.code(), Some(4), "{shown}");
    assert!(shown.contains("`windlass resume left` resumes it"), "{shown}");
    let ran = project.run_windlass(&["resume", "left"]);
    assert_eq!(ran.code, Some(3), "what had started is in doubt: {}", ran.stderr);
    let digest = project.digest_of("left");
    let ran = project.run_windlass(&["settle", "left", "--happened", "done by hand", "--digest", &digest]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let ran = project.run_windlass(&["resume", "left", "--yes"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "That is all.\n"), "{}", ran.stderr);
}

#[test]
fn a_narrow_terminal_is_not_overrun() {
    let project = TestProject::new("tools = [\"files\"]", NOTES_SCRIPT);
    let mut screen =
        PtyScreen::start(project.folder(), 60, 32, &["run", ".", "Remember.", "--run-id", "narrow"]);
    screen.wait_for("ater");
    screen.type_keys("y\n");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert_golden("narrow.txt", &shown);
}

//! Conversations on a real terminal: the line editor, the rendered answers, and the commands.

#![cfg(unix)]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod pty_screen;
mod support;

use std::io::Write;

use pty_screen::PtyScreen;
use support::{TestProject, assert_golden, windlass_command};

const THREE_ANSWERS: &str = r#"
[[answer]]
text = "One."
[[answer]]
text = "Two."
[[answer]]
text = "Three."
"#;

const MARKDOWN_SCRIPT: &str = r##"
[[answer]]
text = """
# Ropes

A **windlass** hauls a load turn by turn, and its `pawl` never lets it slip back, whatever the weather does.

- first, a long item of a list that does not fit one line of this terminal
- [x] second

| rope | metres |
| --- | --- |
| hemp | 220 |
| steel | 40 |

```rust
let load = 480;
```

See [the manual](https://example.test/ropes).
"""
"##;

/// Returns the items of the only session, as its export has them.
fn session_export(project: &TestProject, session: &str) -> String {
    project.run_windlass(&["sessions", session, "--json"]).stdout
}

/// Starts a chat in a session and waits for its prompt.
fn start_chat(project: &TestProject, columns: u16) -> PtyScreen {
    let mut screen = PtyScreen::start(project.folder(), 40, columns, &["chat", "--session", "s"]);
    screen.wait_for_prompt();
    screen
}

#[test]
fn a_line_is_edited_with_keys_and_the_history_is_kept() {
    let project = TestProject::new("", THREE_ANSWERS);
    let mut screen = start_chat(&project, 80);
    // Left, left, a letter in the middle, and the start and the end of the line.
    screen.wait_for_prompt();
    screen.type_keys("hllo\x1b[D\x1b[D\x1b[De\x01say \x05!\r");
    screen.wait_for("One.");
    screen.wait_for("tokens in");
    screen.wait_for_prompt();
    screen.type_keys("\x04");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert!(shown.contains("› say hello!"), "{shown}");
    assert!(!shown.contains("^["), "{shown}");
    // Another process has the message in its history.
    let mut screen = start_chat(&project, 80);
    screen.wait_for_prompt();
    screen.type_keys("\x1b[A");
    screen.wait_for("› say hello!");
    screen.type_keys(" again\r");
    screen.wait_for("Two.");
    screen.wait_for_prompt();
    screen.type_keys("/quit\r");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    let export = session_export(&project, "s");
    assert!(export.contains("\"say hello!\"") && export.contains("\"say hello! again\""), "{export}");
}

#[test]
fn pasted_lines_are_one_message() {
    let project = TestProject::new("", THREE_ANSWERS);
    let mut screen = start_chat(&project, 80);
    screen.type_keys("\x1b[200~first line\rsecond \x1b[31mline\rthird line\x1b[201~");
    screen.wait_for("third line");
    assert!(!screen.screen_text().contains("One."), "nothing is sent before Enter");
    screen.type_keys("\r");
    screen.wait_for("One.");
    screen.wait_for("tokens in");
    // A backslash at the end of a line and Alt-Enter begin another line too.
    screen.wait_for_prompt();
    screen.type_keys("fourth\\\rfifth\x1b\rsixth\r");
    screen.wait_for("Two.");
    screen.wait_for_prompt();
    screen.type_keys("/quit\r");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    let export = session_export(&project, "s");
    assert!(export.contains("first line\\nsecond line\\nthird line"), "{export}");
    assert!(export.contains("fourth\\nfifth\\nsixth"), "{export}");
    assert!(!shown.contains("Three."), "{shown}");
}

#[test]
fn commands_and_files_are_completed() {
    let project = TestProject::new("", THREE_ANSWERS);
    std::fs::write(project.file("harbour-log.txt"), "").expect("it can be written");
    let mut screen = start_chat(&project, 80);
    screen.type_keys("/mod\t");
    screen.wait_for("/model");
    screen.type_keys("scr\t\r");
    screen.wait_for("the next message goes to scripted:answers.toml");
    screen.wait_for_prompt();
    screen.type_keys("read harb\t please\r");
    screen.wait_for("One.");
    screen.wait_for_prompt();
    screen.type_keys("/quit\r");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert!(session_export(&project, "s").contains("read harbour-log.txt please"));
}

#[test]
fn answers_are_rendered_and_wrapped_between_words() {
    let project = TestProject::new("", MARKDOWN_SCRIPT);
    let mut screen = start_chat(&project, 44);
    screen.wait_for_prompt();
    screen.type_keys("ropes?\r");
    screen.wait_for("tokens in");
    screen.wait_for_prompt();
    screen.type_keys("/quit\r");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert_golden("chat-markdown.txt", &shown);
}

#[test]
fn commands_change_the_model_the_session_and_the_history() {
    let project = TestProject::new("tools = [\"files\"]", THREE_ANSWERS);
    let other = THREE_ANSWERS.replace("Two.", "Another model's two.");
    std::fs::write(project.file("other.toml"), other).expect("it can be written");
    let mut screen = start_chat(&project, 90);
    screen.wait_for_prompt();
    screen.type_keys("hello\r");
    screen.wait_for("scripted:answers.toml · 0 tokens in, 0 out");
    screen.wait_for_prompt();
    screen.type_keys("/model scripted:other.toml\r");
    screen.wait_for("the next message goes to scripted:other.toml");
    screen.wait_for_prompt();
    screen.type_keys("and now?\r");
    screen.wait_for("Another model's two.");
    screen.wait_for_prompt();
    screen.type_keys("/undo\r");
    screen.wait_for("2 items were removed from the session");
    screen.wait_for_prompt();
    screen.type_keys("/sessions\r");
    screen.wait_for("* s  2 items");
    screen.wait_for_prompt();
    screen.type_keys("/tools\r");
    screen.wait_for("patch_file");
    screen.wait_for_prompt();
    screen.type_keys("/model nonsense\r");
    screen.wait_for("error:");
    screen.wait_for_prompt();
    screen.type_keys("/modle\r");
    screen.wait_for("did you mean /model?");
    screen.wait_for_prompt();
    screen.type_keys("/session t\r");
    screen.wait_for("session t");
    screen.wait_for_prompt();
    screen.type_keys("/sessions\r");
    screen.wait_for("  s  2 items");
    screen.wait_for_prompt();
    screen.type_keys("/help\r");
    screen.wait_for("Alt-Enter");
    screen.wait_for_prompt();
    screen.type_keys("/quit\r");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert!(shown.contains("chat --session t` continues"), "{shown}");
}

#[test]
fn the_path_of_an_image_sends_the_image() {
    let project = TestProject::new("", THREE_ANSWERS);
    std::fs::write(project.file("the chart.png"), b"\x89PNG\r\n\x1a\n0000").expect("it can be written");
    let mut screen = start_chat(&project, 80);
    screen.wait_for_prompt();
    screen.type_keys("what is in 'the chart.png'?\r");
    screen.wait_for("attached the chart.png (1 kB)");
    screen.wait_for("One.");
    screen.wait_for_prompt();
    screen.type_keys("/quit\r");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    let export = session_export(&project, "s");
    assert!(export.contains("image/png"), "{export}");
}

#[test]
fn arguments_are_edited_on_a_line_that_has_them_and_checked_at_once() {
    let script = r#"
[[answer]]
[[answer.call]]
id = "w1"
tool = "write_file"
arguments = { path = "notes.txt", content = "Buy rope" }
[[answer]]
text = "Done."
"#;
    let project = TestProject::new("tools = [\"files\"]", script);
    let mut screen = PtyScreen::start(project.folder(), 40, 100, &["run", ".", "Note it.", "--run-id", "r"]);
    screen.wait_for_question("Allow it?");
    screen.type_keys("e\n");
    screen.wait_for("Enter takes the arguments");
    screen.wait_for("{\"content\":\"Buy rope\"");
    // Without its last brace it is no JSON, and the line stays open.
    screen.type_keys("\x7f\r");
    screen.wait_for("must be");
    assert!(!screen.screen_text().contains("with these arguments?"), "{}", screen.screen_text());
    screen.type_keys("}\x01");
    screen.type_keys(&"\x1b[C".repeat("{\"content\":\"Buy ".len()));
    screen.type_keys("tar and \r");
    screen.wait_for_question("Allow it with these arguments?");
    screen.type_keys("y\n");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert_eq!(
        std::fs::read_to_string(project.file("notes.txt")).expect("it was written"),
        "Buy tar and rope"
    );
}

#[test]
fn a_decision_from_elsewhere_leaves_all_keys_to_the_next_prompt() {
    let script = r#"
[[answer]]
[[answer.call]]
id = "w1"
tool = "write_file"
arguments = { path = "notes.txt", content = "Buy rope" }
[[answer]]
text = "Done."
[[answer]]
text = "Heard you."
"#;
    let project = TestProject::new("tools = [\"files\"]", script);
    let mut screen = start_chat(&project, 80);
    screen.wait_for_prompt();
    screen.type_keys("note it\r");
    screen.wait_for_question("Allow it?");
    let runs = project.run_windlass(&["runs", "--json"]).json_lines();
    let run = runs[0]["run"].as_str().expect("there is one").to_owned();
    let digest = project.digest_of(&run);
    assert_eq!(project.run_windlass(&["approve", &run, "--by", "bo", "--digest", &digest]).code, Some(0));
    screen.wait_for("Done.");
    screen.wait_for("tokens in");
    screen.wait_for_prompt();
    screen.type_keys("abcdefgh\r");
    screen.wait_for("Heard you.");
    screen.wait_for_prompt();
    screen.type_keys("/quit\r");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert!(session_export(&project, "s").contains("\"abcdefgh\""), "{shown}");
}

#[test]
fn a_process_that_is_told_to_end_leaves_the_terminal_as_it_was() {
    let project = TestProject::new("", THREE_ANSWERS);
    let mut screen = start_chat(&project, 80);
    screen.type_keys("half a mess");
    screen.wait_for("half a mess");
    assert!(!screen.is_in_usual_mode(), "the editor reads single keys");
    let process = screen.process_id().to_string();
    let told = std::process::Command::new("kill").args(["-TERM", &process]).status().expect("there is kill");
    assert!(told.success());
    screen.wait_for("continues this conversation");
    assert!(screen.is_in_usual_mode(), "{}", screen.screen_text());
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
}

#[test]
fn a_terminal_that_changes_its_size_is_filled_anew() {
    let script = "[[answer]]\nchunk_delay_ms = 4\ntext = \"\"\"\nThe words of this answer are wrapped at the width that the terminal has when they are written, before and after a change of it.\n\nNarrow now, so that these words are broken into more lines than those before.\n\"\"\"\n";
    let project = TestProject::new("", script);
    let mut screen = start_chat(&project, 70);
    screen.wait_for_prompt();
    screen.type_keys("go\r");
    screen.wait_for("of it.");
    screen.resize(40, 36);
    screen.wait_for("tokens");
    screen.wait_for_prompt();
    screen.type_keys("x\x15/quit\r");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    let tail: Vec<&str> = shown.lines().skip_while(|line| !line.starts_with("Narrow")).take(3).collect();
    assert_eq!(
        tail,
        ["Narrow now, so that these words are", "broken into more lines than those", "before."],
        "{shown}"
    );
}

/// A message that is longer than a line of every window here. Its letters tell where each line begins.
const LONG_MESSAGE: &str =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdefghijklmnopqrstuvw";

/// Waits until the editor shows a message in a window of this many columns, each line full but the last.
fn wait_for_edited(screen: &mut PtyScreen, message: &str, columns: usize) {
    let letters: Vec<char> = format!("› {message}").chars().collect();
    let message = letters.chunks(columns).map(|line| line.iter().collect());
    // The empty row above it shows that nothing of an earlier width was left.
    let rows: Vec<String> = [String::new()].into_iter().chain(message).collect();
    screen.wait_for_last_rows(&rows);
}

#[test]
fn a_line_follows_the_size_of_the_window_while_it_is_edited() {
    let project = TestProject::new("", THREE_ANSWERS);
    let mut screen = start_chat(&project, 70);
    screen.type_keys(LONG_MESSAGE);
    wait_for_edited(&mut screen, LONG_MESSAGE, 70);
    for columns in [50, 90, 33, 60] {
        screen.resize(40, columns);
        wait_for_edited(&mut screen, LONG_MESSAGE, usize::from(columns));
    }
    screen.type_keys("!");
    wait_for_edited(&mut screen, &format!("{LONG_MESSAGE}!"), 60);
    screen.type_keys("\r");
    screen.wait_for("One.");
    screen.wait_for_prompt();
    screen.type_keys("/quit\r");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert!(session_export(&project, "s").contains(&format!("\"{LONG_MESSAGE}!\"")));
}

#[test]
fn a_window_that_changes_while_the_chat_opens_is_followed() {
    let project = TestProject::new("", THREE_ANSWERS);
    let mut screen = start_chat(&project, 80);
    screen.type_keys("/quit\r");
    screen.wait_for_exit();
    // The history is the last file that the chat reads before its editor opens. As a pipe it holds the chat there.
    let projects =
        std::fs::read_dir(project.state().join("windlass/projects")).expect("the chat has a store");
    let folder = projects.map(|entry| entry.expect("it can be read").path()).next().expect("one project");
    let history = folder.join("chat-history");
    std::fs::remove_file(&history).expect("the chat wrote its history");
    let made = std::process::Command::new("mkfifo").arg(&history).status().expect("it runs");
    assert!(made.success());
    let mut screen = PtyScreen::start(project.folder(), 40, 80, &["chat", "--session", "s"]);
    let (opened, opens) = std::sync::mpsc::channel();
    let path = history.clone();
    std::thread::spawn(move || opened.send(std::fs::File::options().write(true).open(path)));
    let pipe = opens.recv_timeout(std::time::Duration::from_secs(120)).expect("the chat reads its history");
    let pipe = pipe.expect("it can be opened");
    std::fs::remove_file(&history).expect("it is there");
    screen.resize(40, 50);
    drop(pipe);
    screen.wait_for_prompt();
    screen.type_keys(LONG_MESSAGE);
    wait_for_edited(&mut screen, LONG_MESSAGE, 50);
    screen.type_keys("\x15/quit\r");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
}

#[test]
fn a_dumb_terminal_and_one_without_colours_show_the_answer() {
    let project = TestProject::new("", MARKDOWN_SCRIPT);
    let dumb = [("TERM", "dumb")];
    let mut screen = PtyScreen::start_with(project.folder(), 40, 60, &["chat", "--session", "d"], &dumb);
    screen.wait_for("›");
    screen.type_keys("ropes?\n");
    screen.wait_for("tokens in");
    screen.wait_for_prompt();
    screen.type_keys("/quit\n");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert_golden("chat-dumb.txt", &shown);
    let plain = [("NO_COLOR", "1")];
    let mut screen = PtyScreen::start_with(project.folder(), 40, 60, &["chat", "--session", "n"], &plain);
    screen.wait_for("›");
    screen.wait_for_prompt();
    screen.type_keys("ropes?\r");
    screen.wait_for("tokens in");
    screen.wait_for_prompt();
    screen.type_keys("/quit\r");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert!(shown.contains("A **windlass** hauls"), "marks stay where nothing else shows them: {shown}");
}

#[test]
fn a_pipe_gets_each_answer_as_it_was_written() {
    let script = "[[answer]]\ntext = \"**One** of a line that is longer than any terminal is wide, so that it would be wrapped there.\"\n[[answer]]\ntext = \"Two.\"\n";
    let project = TestProject::new("", script);
    let mut chat = windlass_command(&project.folder(), &["chat"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    chat.stdin.take().expect("it is piped").write_all(b"first\nsecond\n").expect("it reads");
    let output = chat.wait_with_output().expect("it ends");
    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        said,
        "**One** of a line that is longer than any terminal is wide, so that it would be wrapped there.\nTwo.\n"
    );
}

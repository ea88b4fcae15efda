//! `windlass serve`: a server of its own process. It needs the feature `serve`.

#![cfg(feature = "serve")]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use support::{TestProject, windlass_command};

/// A server that ends with its test.
struct ServeProcess {
    child: Child,
    address: String,
    token: String,
}

impl ServeProcess {
    fn start(project: &TestProject) -> Self {
        let mut command =
            windlass_command(&project.folder(), &["serve", ".", "--listen", "127.0.0.1:0", "--json"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("is piped"))
            .read_line(&mut line)
            .expect("it says its address");
        let said: Value = serde_json::from_str(&line).expect("a line of JSON");
        let text = |name: &str| said[name].as_str().expect("is said").to_owned();
        Self { child, address: text("url").replace("http://", ""), token: text("token") }
    }

    /// Sends a request, and returns the whole response.
    fn send(&self, method: &str, path: &str, token: Option<&str>, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        let authorization =
            token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{authorization}content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.address,
            body.len(),
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        stream.write_all(body.as_bytes()).expect("it reads");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("it answers");
        response
    }
}

impl Drop for ServeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Every process of the machine reaches the loopback interface, the commands of an agent included.
#[test]
fn a_local_process_without_the_printed_token_starts_and_reads_nothing() {
    let project = TestProject::new("", "[[answer]]\ntext = \"Good day.\"\n");
    let server = ServeProcess::start(&project);
    let start = json!({ "agent": "helper", "input": "Hello." }).to_string();
    for token in [None, Some("wrong")] {
        for (method, path, body) in [("GET", "/v1/runs", ""), ("POST", "/v1/runs", start.as_str())] {
            let refused = server.send(method, path, token, body);
            assert!(refused.starts_with("HTTP/1.1 401 "), "{refused}");
        }
    }
    let listed = server.send("GET", "/v1/runs", Some(&server.token), "");
    assert!(listed.contains(r#""runs":[]"#), "{listed}");
}

#[test]
fn a_run_is_started_and_followed_to_its_end() {
    let project = TestProject::new("", "[[answer]]\ntext = \"Good day.\"\n");
    let server = ServeProcess::start(&project);
    let start = json!({ "agent": "helper", "input": "Hello.", "run": "greeting" }).to_string();
    let started = server.send("POST", "/v1/runs", Some(&server.token), &start);
    assert!(started.starts_with("HTTP/1.1 201 "), "{started}");
    let events = server.send("GET", "/v1/runs/greeting/events", Some(&server.token), "");
    assert!(events.contains("run_finished") && events.contains("Good day."), "{events}");
    // The journal is that of the project: another command shows the run.
    let shown = project.run_windlass(&["show", "greeting"]);
    assert!(shown.stdout.contains("Good day."), "{}{}", shown.stdout, shown.stderr);
}

#[test]
fn an_address_that_others_reach_needs_an_access_file() {
    let project = TestProject::new("", "[[answer]]\ntext = \"Good day.\"\n");
    let refused = project.run_windlass(&["serve", ".", "--listen", "0.0.0.0:0"]);
    assert_eq!(refused.code, Some(2), "{}{}", refused.stdout, refused.stderr);
    assert!(refused.stderr.contains("--access"), "{}", refused.stderr);
    assert!(!refused.stdout.contains("token"), "{}", refused.stdout);
}

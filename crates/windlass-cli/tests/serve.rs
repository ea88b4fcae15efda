//! `windlass serve`: a server of its own process. It needs the feature `serve`.

#![cfg(feature = "serve")]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use support::{CommandOutput, TestProject, windlass_command};

/// A server that ends with its test.
struct ServeProcess {
    child: Child,
    address: String,
    token: String,
}

impl ServeProcess {
    fn start(project: &TestProject) -> Self {
        Self::start_as(project, "somebody")
    }

    /// Starts the server of a person.
    fn start_as(project: &TestProject, person: &str) -> Self {
        let mut command =
            windlass_command(&project.folder(), &["serve", ".", "--listen", "127.0.0.1:0", "--json"]);
        command.env("USER", person);
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

impl ServeProcess {
    /// Sends a request as the person of the server, and returns the status and the JSON of the response.
    fn exchange(&self, method: &str, path: &str, body: &Value) -> (String, Value) {
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let response = self.send(method, path, Some(&self.token), &body);
        let (head, body) = response.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).expect("a status").to_owned();
        (status, serde_json::from_str(body).unwrap_or_default())
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

/// The example of the guide: a person approves over HTTP with `curl` and `windlass sign`, and the server never has the key.
#[test]
fn a_decision_over_http_is_signed_by_the_command() {
    let project = TestProject::new("", "");
    let touch = json!({ "program": "touch", "args": ["made"] });
    let call = json!({ "call": [{ "id": "c1", "tool": "run_command", "arguments": touch }] });
    let answers = format!("{call}\n{}\n", json!({ "text": "Done." }));
    std::fs::write(project.file("answers.jsonl"), answers).expect("it can be written");
    let key_file = project.state().join("people").join("ann.key");
    let run_as_ann = |words: &[&str]| {
        let mut command = windlass_command(&project.folder(), words);
        command.env("USER", "ann").env("WINDLASS_APPROVER_KEY", &key_file);
        CommandOutput::from_output(command.output().expect("it runs"))
    };
    let key = run_as_ann(&["key", "approver", "--json"]).json_lines()[0]["key"].clone();
    let agent = format!(
        "name = \"helper\"\nmodel = \"scripted:answers.jsonl\"\ntools = [\"shell\"]\n[approvers]\nann = {key}\n"
    );
    std::fs::write(project.file("agent.toml"), agent).expect("it can be written");
    let server = ServeProcess::start_as(&project, "ann");
    let start = json!({ "agent": "helper", "input": "Go.", "run": "one" });
    assert_eq!(server.exchange("POST", "/v1/runs", &start).0, "201");
    let item = loop {
        let (_, run) = server.exchange("GET", "/v1/runs/one", &Value::Null);
        if run["pending"][0].is_object() {
            break run["pending"][0].clone();
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    let body = json!({
        "call": item["call"], "attempt": item["attempt"], "displayed": item["sheet"]["digest"],
        "decision": { "type": "approve" },
    });
    let (status, refused) = server.exchange("POST", "/v1/runs/one/decisions", &body);
    assert_eq!((status.as_str(), &refused["error"]["code"]), ("403", &json!("not_an_approver")), "{refused}");
    let question = json!({ "decision": body, "key": key });
    let (status, statement) = server.exchange("POST", "/v1/runs/one/statement", &question);
    assert_eq!(status, "200", "{statement}");
    let sign = |statement: &Value, digest: Option<&str>| {
        let path = project.file("statement.json");
        std::fs::write(&path, statement.to_string()).expect("it can be written");
        let mut words = vec!["sign", "statement.json"];
        words.extend(digest.map(|_| "--digest"));
        words.extend(digest);
        run_as_ann(&words)
    };
    let displayed = item["sheet"]["digest"].as_str().expect("a digest");
    // A server that shows one call and states another gets no signature.
    let changed = |name: &str, value: Value| {
        let mut statement = statement.clone();
        statement[name] = value;
        statement
    };
    let harmless = "{\"args\":[],\"program\":\"true\"}";
    for (statement, digest, reason) in [
        (statement.clone(), None, "there is no terminal"),
        (statement.clone(), Some("0000000000000000"), "about another sheet"),
        (changed("arguments", json!(harmless)), Some(displayed), "is not that of the call that it shows"),
        (changed("run", json!("two")), Some(displayed), "the bytes of the statement are not those"),
        (
            changed("recorded_scope", json!("tool_for_run")),
            Some(displayed),
            "the bytes of the statement are not those",
        ),
        (
            changed("recorded_decision", json!("confirm_not_executed")),
            Some(displayed),
            "the bytes of the statement are not",
        ),
        (
            changed("key", json!(format!("ed25519:{}", "00".repeat(32)))),
            Some(displayed),
            "the statement is for the key",
        ),
        (json!({ "message": "00" }), Some(displayed), "this is no statement of a server"),
    ] {
        let refused = sign(&statement, digest);
        assert!(refused.code != Some(0) && refused.stdout.is_empty(), "{reason}: {}", refused.stdout);
        assert!(refused.stderr.contains(reason), "{reason}: {}", refused.stderr);
    }
    let signed = sign(&statement, Some(displayed));
    assert_eq!(signed.code, Some(0), "{}", signed.stderr);
    let signed = signed.json_lines().remove(0);
    let (status, posted) = server.exchange("POST", "/v1/runs/one/decisions", &signed);
    assert_eq!((status.as_str(), &posted["decided_by"]), ("200", &json!("ann")), "{posted}");
    let events = server.send("GET", "/v1/runs/one/events", Some(&server.token), "");
    assert!(events.contains("run_finished"), "{events}");
    assert!(project.file("made").exists());
    let verified = run_as_ann(&["verify", "one"]);
    assert!(verified.stdout.contains("is signed by an approver of the project"), "{}", verified.stdout);
}

//! `windlass serve`: a server of its own process. It needs the feature `serve`.

#![cfg(feature = "serve")]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;
#[cfg(feature = "talk")]
#[path = "talk/process.rs"]
mod talk_process;

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
        Self::start_with(project, person, Stdio::inherit())
    }

    fn start_with(project: &TestProject, person: &str, stderr: Stdio) -> Self {
        let mut command =
            windlass_command(&project.folder(), &["serve", ".", "--listen", "127.0.0.1:0", "--json"]);
        command.env("USER", person);
        let mut child = command.stdout(Stdio::piped()).stderr(stderr).spawn().expect("it runs");
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
fn a_refused_request_is_on_standard_error_in_one_line() {
    let project = TestProject::new("", "[[answer]]\ntext = \"Good day.\"\n");
    let mut server = ServeProcess::start_with(&project, "somebody", Stdio::piped());
    let refused = server.send("GET", "/v1/runs?a=%0a", Some("wrong"), "");
    assert!(refused.starts_with("HTTP/1.1 401 "), "{refused}");
    let mut log = BufReader::new(server.child.stderr.take().expect("is piped")).lines();
    let line = log.find_map(|line| line.ok().filter(|line| line.contains("refused"))).expect("it is logged");
    assert!(line.starts_with("warning: a request is refused ") && line.contains("unauthorized"), "{line}");
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

const PRICES: &str = r#"{ "as_of": "2026-10-01", "source": "the contract", "currency": "EUR",
    "models": [{ "model": "m1", "input": 1.0, "output": 2.0 }] }"#;

#[test]
fn costs_are_reported_by_the_prices_of_the_agent_file() {
    let project = TestProject::new("prices_file = \"prices.json\"\n", "[[answer]]\ntext = \"Good day.\"\n");
    std::fs::write(project.file("prices.json"), PRICES).expect("it can be written");
    let server = ServeProcess::start(&project);
    let (status, costs) = server.exchange("GET", "/v1/costs", &Value::Null);
    let said = [&costs["currency"], &costs["prices_as_of"], &costs["prices_source"]];
    assert_eq!(
        (status.as_str(), said),
        ("200", [&json!("EUR"), &json!("2026-10-01"), &json!("the contract")])
    );
    let page = server.send("GET", "/costs", Some(&server.token), "");
    assert!(page.contains("Prices in EUR of 2026-10-01: the contract."), "{page}");
}

/// Costs in two currencies have no sum.
#[test]
fn agents_with_prices_in_two_currencies_are_not_served_together() {
    let project = TestProject::new("prices_file = \"prices.json\"\n", "[[answer]]\ntext = \"Good day.\"\n");
    std::fs::write(project.file("prices.json"), PRICES).expect("it can be written");
    let agent = "name = \"other\"\nmodel = \"scripted:answers.toml\"\n";
    std::fs::write(project.file("other.toml"), agent).expect("it can be written");
    let refused = project.run_windlass(&["serve", ".", "other.toml", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.code, Some(2), "{}{}", refused.stdout, refused.stderr);
    assert!(
        refused.stderr.contains("`helper` are in EUR, and those of `other` in USD"),
        "{}",
        refused.stderr
    );
}

/// Types a text on the page of a conversation, and waits for an answer.
#[cfg(feature = "talk")]
fn type_on_page(url: &str, typed: &str, answer: &str) {
    use tokio_tungstenite::tungstenite::{Message, client, client::IntoClientRequest, http::HeaderValue};
    let rest = url.strip_prefix("http://").expect("an address");
    let host = rest.split('/').next().expect("a host");
    let mut request = format!("ws://{rest}socket").into_client_request().expect("an address");
    request.headers_mut().insert("origin", HeaderValue::try_from(format!("http://{host}")).expect("valid"));
    let stream = TcpStream::connect(host).expect("it listens");
    let (mut socket, _) = client(request, stream).expect("it opens");
    let message = json!({ "type": "text", "text": typed }).to_string();
    socket.send(Message::text(message)).expect("it takes messages");
    loop {
        let message = socket.read().expect("it goes on");
        let item: Value =
            message.to_text().ok().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        if item["type"] == "item" && item["text"] == answer {
            return;
        }
    }
}

#[cfg(feature = "talk")]
#[test]
fn a_voice_conversation_is_shown_with_its_turns() {
    use std::os::unix::fs::PermissionsExt;
    let project = TestProject::new("", "[[answer]]\ntext = \"Fair winds.\"\n");
    let talk = talk_process::TalkProcess::start(&project, &["--scripted"]);
    let session = talk.greeting["session"].as_str().expect("a session").to_owned();
    type_on_page(talk.url(), "How is the <weather>?", "Fair winds.");
    let server = ServeProcess::start(&project);
    let page = |path: &str| server.send("GET", path, Some(&server.token), "");
    let list = page("/live");
    assert!(list.contains(&format!("href=\"/live/{session}\"")) && list.contains("open</span>"), "{list}");
    assert_eq!(talk.interrupt(), Some(0));
    let shown = page(&format!("/live/{session}"));
    for part in ["How is the &lt;weather&gt;?", "Fair winds.", "ended</span>"] {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    assert!(page("/runs").contains("Live sessions"));
    // Other users of the machine read no conversation.
    let folders = std::fs::read_dir(project.state().join("windlass/projects")).expect("there is a project");
    let folder = folders.map(|folder| folder.expect("is readable").path().join("windlass.db-live")).next();
    let mode =
        std::fs::metadata(folder.expect("one project")).expect("there is a folder").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

/// The journals of conversations are plain text, so an encrypted store has none beside it.
#[cfg(feature = "talk")]
#[test]
fn a_conversation_with_an_encrypted_store_is_not_written_in_plain_text() {
    let project = TestProject::new("", "[[answer]]\ntext = \"Fair winds.\"\n");
    let keys = project.state().join("store.keys");
    let keys = keys.to_str().expect("a path");
    std::fs::create_dir(project.state()).expect("it can be made");
    std::fs::write(keys, format!("windlass encryption keys 1\n{}\n", "ab".repeat(32)))
        .expect("it can be written");
    let talk = talk_process::TalkProcess::start(&project, &["--scripted", "--encryption-key-file", keys]);
    type_on_page(talk.url(), "How is the weather?", "Fair winds.");
    assert_eq!(talk.interrupt(), Some(0));
    let mut folders = vec![project.state()];
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(folder).expect("is readable").map(|entry| entry.expect("is readable").path())
        {
            if entry.is_dir() {
                folders.push(entry);
            } else {
                let bytes = std::fs::read(&entry).expect("is readable");
                let found = bytes.windows(11).any(|part| part == b"Fair winds.");
                assert!(!found, "{}", entry.display());
            }
        }
    }
}

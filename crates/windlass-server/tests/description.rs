//! Requests that schemathesis makes from the description. It needs the program that `WINDLASS_SCHEMATHESIS` names.
#![allow(clippy::unwrap_used)]

mod support;

use std::process::Command;

use serde_json::json;
use support::TestServer;
use windlass::fleet::QueueFilter;
use windlass::session::list_all_sessions;
use windlass::store::RunQuery;
use windlass_server::{AccessPolicy, AccessRole, ServerLimits, TokenDigest};

/// Sends requests from the description, with this token if there is one, and checks the answers.
async fn send_requests(
    program: &std::ffi::OsStr,
    server: &TestServer,
    token: Option<&str>,
    max_examples: u32,
) {
    let folder = tempfile::tempdir().unwrap();
    // A text that is no run, and a change that does not fit the run, are refused with 422, whatever their form.
    let statuses = r#"["2xx", "3xx", "401", "403", "404", "409", "422", "429"]"#;
    let settings = format!("[checks]\npositive_data_acceptance.expected-statuses = {statuses}\n");
    std::fs::write(folder.path().join("schemathesis.toml"), settings).unwrap();
    let mut command = Command::new(program);
    // Whoever is not known cannot read the description.
    let description = server.client_with("anna-token").get("/v1/openapi.json").await.1.to_string();
    std::fs::write(folder.path().join("openapi.json"), description).unwrap();
    command
        .current_dir(folder.path())
        .args(["run", "openapi.json", "--url", &format!("http://{}", server.address)])
        // The streams of events do not end.
        .args([
            "--exclude-path-regex",
            "events$",
            "--phases",
            "examples,coverage,fuzzing,stateful",
            "--seed",
            "1",
        ])
        .args(["--max-examples", &max_examples.to_string(), "--request-timeout", "120", "--no-color"]);
    if let Some(token) = token {
        command.args(["--header", &format!("Authorization: Bearer {token}")]);
    }
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
}

/// Returns everything that a request could have changed.
async fn contents(server: &TestServer) -> (Vec<(String, u64)>, usize, usize, usize) {
    let queue = &server.queue;
    let runs = queue.list_runs(&RunQuery::default()).await.unwrap();
    let mut posted = 0;
    for stored in &runs {
        posted += queue.posted_decisions(&stored.run).await.unwrap().len();
    }
    let queued = queue.list_queued_runs(QueueFilter::Open, None, 1_000).await.unwrap().len();
    let sessions = list_all_sessions(queue.sessions().unwrap()).await.unwrap().len();
    (runs.iter().map(|run| (run.run.to_string(), run.record_count)).collect(), posted, queued, sessions)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_as_described() {
    let Some(program) = std::env::var_os("WINDLASS_SCHEMATHESIS") else {
        eprintln!("not shown: requests from the description need WINDLASS_SCHEMATHESIS");
        return;
    };
    let limits = ServerLimits { requests_per_second: 100_000, ..ServerLimits::default() };
    let server = TestServer::start_with(|server| server.limits(limits)).await;
    let client = server.client();
    client.start_until("r1", "hello", "finished").await;
    client.start_until("waiting", "pay Ropeworks", "paused").await;
    send_requests(&program, &server, None, 15).await;
}

/// Whoever may only read, and whoever is not known, is refused as described, and changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_right_are_refused_as_described_and_change_nothing() {
    let Some(program) = std::env::var_os("WINDLASS_SCHEMATHESIS") else {
        eprintln!("not shown: requests from the description need WINDLASS_SCHEMATHESIS");
        return;
    };
    let server = TestServer::start_with(|server| {
        let access = AccessPolicy::default()
            .with_person("anna", TokenDigest::of_token("anna-token"), [("*", AccessRole::Administer)])
            .with_person("vera", TokenDigest::of_token("vera-token"), [("*", AccessRole::View)]);
        server.access(access).limits(ServerLimits { requests_per_second: 100_000, ..ServerLimits::default() })
    })
    .await;
    let client = server.client_with("anna-token");
    client.start_until("r1", "hello", "finished").await;
    client.start_until("waiting", "pay Ropeworks", "paused").await;
    let start = json!({ "run": "later", "agent": "clerk", "input": "hi", "start_at": 4_000_000_000_000_u64 });
    assert_eq!(client.post("/v1/runs", &start).await.0, 201);
    // The run is listed when its driver has left.
    while client.get("/v1/runs?status=paused").await.1["runs"].as_array().unwrap().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let before = contents(&server).await;
    assert_eq!((before.0.len(), before.1), (2, 0));
    for token in ["vera-token", "wrong-token"] {
        send_requests(&program, &server, Some(token), 5).await;
        assert_eq!(contents(&server).await, before, "{token} has changed something");
    }
}

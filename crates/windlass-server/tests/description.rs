//! Requests that schemathesis makes from the description. It needs the program that `WINDLASS_SCHEMATHESIS` names.
#![allow(clippy::unwrap_used)]

mod support;

use std::process::Command;

use support::TestServer;
use windlass_server::ServerLimits;

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
    let folder = tempfile::tempdir().unwrap();
    // A text that is no run, and a change that does not fit the run, are refused with 422, whatever their form.
    let statuses = r#"["2xx", "3xx", "401", "403", "404", "409", "422", "429"]"#;
    let settings = format!("[checks]\npositive_data_acceptance.expected-statuses = {statuses}\n");
    std::fs::write(folder.path().join("schemathesis.toml"), settings).unwrap();
    let mut command = Command::new(program);
    command
        .current_dir(folder.path())
        .args(["run", &format!("http://{}/v1/openapi.json", server.address)])
        // The streams of events do not end.
        .args(["--exclude-path-regex", "events$", "--phases", "examples,coverage,fuzzing", "--seed", "1"])
        .args(["--max-examples", "15", "--request-timeout", "120", "--no-color"]);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
}

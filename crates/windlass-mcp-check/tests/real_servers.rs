//! Servers from the registries, as anybody installs them. Where they are not here, that is said.
//!
//! `WINDLASS_MCP_SERVERS` is the folder that `.ci/run` puts them in.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

mod common;

use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use common::{outputs, until};
use windlass::core::HoldReason;
use windlass::prelude::*;
use windlass_mcp::{Approve, Config, Era, ServerConfig, ServerState, Servers};

/// A program of the folder, where it is there.
fn installed(path: &str) -> Option<String> {
    let found = std::env::var_os("WINDLASS_MCP_SERVERS")
        .map(|folder| PathBuf::from(folder).join(path))
        .filter(|program| program.exists());
    if found.is_none() {
        let _ = writeln!(
            std::io::stderr(),
            "not shown: {path} is not here; WINDLASS_MCP_SERVERS names the folder that .ci/run fills"
        );
    }
    found.map(|program| program.display().to_string())
}

fn agent(servers: &Servers, model: &ScriptedModel) -> Agent {
    Agent::new("desk").model(model.clone()).tool_source(servers.tools().approve(Approve::Never))
}

/// What the everything server can do, the same over a pipe and over HTTP.
async fn everything(servers: &Servers) {
    let report = servers.report().await;
    let ServerState::Ready { era, tools } = report.servers[0].state else { panic!("{report:?}") };
    assert_eq!(era, Some(Era::Legacy));
    assert!(tools >= 10, "{report:?}");
    let model = ScriptedModel::new([
        Reply::call("c1", "echo", json!({ "message": "hello" }))
            .and_call("c2", "get-sum", json!({ "a": 2, "b": 3 }))
            .and_call("c3", "get-tiny-image", json!({}))
            .and_call("c4", "get-structured-content", json!({ "location": "New York" }))
            .and_call("c5", "echo", json!({ "words": "wrong" })),
        Reply::call("c6", "trigger-long-running-operation", json!({ "duration": 1, "steps": 2 })),
        Reply::text("done"),
    ]);
    let mut stream = agent(servers, &model).run("go").stream();
    let mut steps = 0;
    while let Some(event) = stream.next().await {
        if let EventKind::Progress { .. } = event.kind {
            steps += 1;
        }
    }
    let outcome = stream.outcome().await.expect("the run ends well");
    let said = outputs(&outcome);
    assert_eq!(said["c1"], "Echo: hello");
    assert!(said["c2"].contains('5'), "{said:?}");
    assert!(said["c4"].contains("temperature"), "{said:?}");
    assert!(said["c5"].contains("message"), "what is missing is named: {said:?}");
    assert!(steps >= 1, "the last may come after the result: {said:?}");
    let items = outcome.record().items();
    let written = items.iter().map(|item| serde_json::to_string(&item.item).expect("items are written"));
    assert!(written.into_iter().any(|text| text.contains("data:image/png;base64,")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_everything_server_over_a_pipe() {
    let Some(program) = installed("node_modules/.bin/mcp-server-everything") else { return };
    let servers =
        Servers::connect(Config::new().server(ServerConfig::stdio("everything", program).args(["stdio"])))
            .await;
    everything(&servers).await;
    let model = ScriptedModel::new([
        Reply::call("c1", "trigger-long-running-operation", json!({ "duration": 60, "steps": 60 })),
        Reply::call("c2", "echo", json!({ "message": "again" })),
        Reply::text("done"),
    ]);
    let mut stream = agent(&servers, &model).run("go").stream();
    while let Some(event) = stream.next().await {
        // Killed in the middle of a call, by its number, as anybody could.
        if let EventKind::Progress { .. } = event.kind {
            for process in servers.processes("everything").await.into_iter().take(1) {
                let killed =
                    std::process::Command::new("kill").args(["-KILL", &process.to_string()]).status();
                assert!(killed.is_ok_and(|status| status.success()));
            }
        }
    }
    let said = outputs(&stream.outcome().await.expect("the run ends well"));
    assert!(said["c1"].contains("is not known: find out"), "{said:?}");
    assert_eq!(said["c2"], "Echo: again");
    servers.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_everything_server_over_http() {
    let Some(program) = installed("node_modules/.bin/mcp-server-everything") else { return };
    let free =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let mut child = tokio::process::Command::new(program)
        .arg("streamableHttp")
        .env("PORT", free.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    until(|| std::net::TcpStream::connect(("127.0.0.1", free)).is_ok()).await;
    let server = ServerConfig::http("everything", format!("http://127.0.0.1:{free}/mcp"));
    let servers = Servers::connect(Config::new().server(server)).await;
    everything(&servers).await;
    servers.close().await;
    child.kill().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_everything_server_asks() {
    let Some(program) = installed("node_modules/.bin/mcp-server-everything") else { return };
    let servers =
        Servers::connect(Config::new().server(ServerConfig::stdio("everything", program).args(["stdio"])))
            .await;
    let names: Vec<String> = servers.list().await.iter().map(|tool| tool.name.to_string()).collect();
    let Some(asks) = names.iter().find(|name| name.contains("elicitation")) else {
        let _ =
            writeln!(std::io::stderr(), "not shown: this everything server has nothing that asks: {names:?}");
        return;
    };
    let model = ScriptedModel::new([Reply::call("c1", asks, json!({})), Reply::text("done")]);
    let agent = agent(&servers, &model);
    let Outcome::Paused(paused) = agent.run("go").await.expect("it pauses") else { panic!("it should wait") };
    assert!(matches!(paused.pending()[0].reason, HoldReason::Question(_)));
}

/// A real server is killed while it works on a call: the model is told that nobody knows, and the next call starts it
/// anew.
#[tokio::test(flavor = "multi_thread")]
async fn the_everything_server_is_killed_in_a_call() {
    let Some(program) = installed("node_modules/.bin/mcp-server-everything") else { return };
    let servers =
        Servers::connect(Config::new().server(ServerConfig::stdio("everything", program).args(["stdio"])))
            .await;
    let model = ScriptedModel::new([
        Reply::call("c1", "trigger-long-running-operation", json!({ "duration": 600, "steps": 600 })),
        Reply::call("c2", "echo", json!({ "message": "again" })),
        Reply::text("done"),
    ]);
    let mut stream = agent(&servers, &model).run("go").stream();
    let mut killed = false;
    while let Some(event) = stream.next().await {
        // It says how far it has come, so it is in the middle.
        if matches!(event.kind, EventKind::Progress { .. }) && !killed {
            killed = true;
            let server = servers.processes("everything").await[0];
            let sent = std::process::Command::new("kill").args(["-9", &server.to_string()]).status();
            assert!(sent.expect("it is sent").success());
        }
    }
    let outcome = stream.outcome().await.expect("the run ends well");
    let said = outputs(&outcome);
    assert!(killed && said["c1"].contains("is not known: find out"), "{said:?}");
    assert_eq!(said["c2"], "Echo: again");
    servers.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_filesystem_server_keeps_to_its_folder() {
    let Some(program) = installed("node_modules/.bin/mcp-server-filesystem") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().canonicalize().expect("a path").display().to_string();
    let file = format!("{root}/note.txt");
    let config = ServerConfig::stdio("files", program).args([root]).trusted();
    let servers = Servers::connect(Config::new().server(config)).await;
    let model = ScriptedModel::new([
        Reply::call("c1", "write_file", json!({ "path": file, "content": "kept" })),
        Reply::call("c2", "read_text_file", json!({ "path": file })).and_call(
            "c3",
            "read_text_file",
            json!({ "path": "/etc/passwd" }),
        ),
        Reply::text("done"),
    ]);
    // Trusted: reading asks nobody, and writing does.
    let agent = Agent::new("desk").model(model).tool_source(servers.tools());
    let Outcome::Paused(mut paused) = agent.run("go").await.expect("it pauses") else {
        panic!("it should wait")
    };
    assert!(!std::path::Path::new(&file).exists());
    paused.approve("c1").expect("it waits");
    let outcome = agent.resume(paused).await.expect("the run ends well");
    let said = outputs(&outcome);
    assert_eq!(said["c2"].trim(), "kept");
    assert!(said["c3"].contains("Access denied"), "{said:?}");
    servers.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_server_leads_the_later_life() {
    let Some(program) = installed("python/bin/mcp-server-time") else { return };
    let config = ServerConfig::stdio("time", program).connect_timeout(Duration::from_secs(60));
    let servers = Servers::connect(Config::new().server(config)).await;
    let report = servers.report().await;
    assert_eq!(
        report.servers[0].state,
        ServerState::Ready { era: Some(Era::Modern), tools: 2 },
        "{report:?}"
    );
    let model = ScriptedModel::new([
        Reply::call("c1", "get_current_time", json!({ "timezone": "Europe/Oslo" })).and_call(
            "c2",
            "get_current_time",
            json!({ "timezone": "Nowhere/Land" }),
        ),
        Reply::text("done"),
    ]);
    let outcome = agent(&servers, &model).run("go").await.expect("the run ends well");
    let said = outputs(&outcome);
    assert!(said["c1"].contains("Europe/Oslo"), "{said:?}");
    assert!(said["c2"].contains("Nowhere/Land"), "{said:?}");
    servers.close().await;
}

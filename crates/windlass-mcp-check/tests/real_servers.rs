//! Real MCP servers from the package registries. If a server is not installed, its test prints a note and passes.
//!
//! `WINDLASS_MCP_SERVERS` names the folder in which `.ci/run` installs them.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod common;

use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use common::{call_outputs, wait_until};
use windlass::core::decision::HoldReason;
use windlass::prelude::*;
use windlass_mcp::{
    McpApprovalPolicy, McpConfig, McpConnections, McpServerConfig, McpServerState, ProtocolEra,
};

/// Returns the path of an installed program, or prints a note if it is missing.
fn find_installed(path: &str) -> Option<String> {
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

fn build_agent(servers: &McpConnections, model: &ScriptedModel) -> Agent {
    Agent::new("desk").model(model.clone()).tool_source(servers.tools().approve(McpApprovalPolicy::Never))
}

/// Checks the tools of the everything server, over stdio or HTTP.
async fn check_everything_server(servers: &McpConnections) {
    let report = servers.report().await;
    let McpServerState::Ready { era, tools } = report.servers[0].state else { panic!("{report:?}") };
    assert_eq!(era, Some(ProtocolEra::Legacy));
    assert!(tools >= 10, "{report:?}");
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "echo", json!({ "message": "hello" }))
            .and_call("c2", "get-sum", json!({ "a": 2, "b": 3 }))
            .and_call("c3", "get-tiny-image", json!({}))
            .and_call("c4", "get-structured-content", json!({ "location": "New York" }))
            .and_call("c5", "echo", json!({ "words": "wrong" })),
        ScriptedResponse::call("c6", "trigger-long-running-operation", json!({ "duration": 1, "steps": 2 })),
        ScriptedResponse::text("done"),
    ]);
    let mut stream = build_agent(servers, &model).run("go").stream();
    let mut steps = 0;
    while let Some(event) = stream.next().await {
        if let RunEventKind::CallProgress { .. } = event.kind {
            steps += 1;
        }
    }
    let outcome = stream.result().await.expect("the run ends well");
    let said = call_outputs(&outcome);
    assert_eq!(said["c1"], "Echo: hello");
    assert!(said["c2"].contains('5'), "{said:?}");
    assert!(said["c4"].contains("temperature"), "{said:?}");
    assert!(said["c5"].contains("message"), "what is missing is named: {said:?}");
    assert!(steps >= 1, "the last may come after the result: {said:?}");
    let items = outcome.record().run_items();
    let written = items.iter().map(|item| serde_json::to_string(&item.item).expect("items are written"));
    assert!(written.into_iter().any(|text| text.contains("data:image/png;base64,")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_everything_server_over_a_pipe() {
    let Some(program) = find_installed("node_modules/.bin/mcp-server-everything") else { return };
    let servers = McpConnections::connect(
        McpConfig::new().server(McpServerConfig::stdio("everything", program).args(["stdio"])),
    )
    .await;
    check_everything_server(&servers).await;
    let model = ScriptedModel::new([
        ScriptedResponse::call(
            "c1",
            "trigger-long-running-operation",
            json!({ "duration": 60, "steps": 60 }),
        ),
        ScriptedResponse::call("c2", "echo", json!({ "message": "again" })),
        ScriptedResponse::text("done"),
    ]);
    let mut stream = build_agent(&servers, &model).run("go").stream();
    while let Some(event) = stream.next().await {
        // The server is killed by process id in the middle of a call.
        if let RunEventKind::CallProgress { .. } = event.kind {
            for process in servers.process_ids("everything").await.into_iter().take(1) {
                let killed =
                    std::process::Command::new("kill").args(["-KILL", &process.to_string()]).status();
                assert!(killed.is_ok_and(|status| status.success()));
            }
        }
    }
    let said = call_outputs(&stream.result().await.expect("the run ends well"));
    assert!(said["c1"].contains("is not known: find out"), "{said:?}");
    assert_eq!(said["c2"], "Echo: again");
    servers.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_everything_server_over_http() {
    let Some(program) = find_installed("node_modules/.bin/mcp-server-everything") else { return };
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
    wait_until(|| std::net::TcpStream::connect(("127.0.0.1", free)).is_ok()).await;
    let server = McpServerConfig::http("everything", format!("http://127.0.0.1:{free}/mcp"));
    let servers = McpConnections::connect(McpConfig::new().server(server)).await;
    check_everything_server(&servers).await;
    servers.close().await;
    child.kill().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_everything_server_asks() {
    let Some(program) = find_installed("node_modules/.bin/mcp-server-everything") else { return };
    let servers = McpConnections::connect(
        McpConfig::new().server(McpServerConfig::stdio("everything", program).args(["stdio"])),
    )
    .await;
    let names: Vec<String> = servers.list_tools().await.iter().map(|tool| tool.name.to_string()).collect();
    let Some(asks) = names.iter().find(|name| name.contains("elicitation")) else {
        let _ =
            writeln!(std::io::stderr(), "not shown: this everything server has nothing that asks: {names:?}");
        return;
    };
    let model =
        ScriptedModel::new([ScriptedResponse::call("c1", asks, json!({})), ScriptedResponse::text("done")]);
    let agent = build_agent(&servers, &model);
    let RunResult::Paused(paused) = agent.run("go").await.expect("it pauses") else {
        panic!("it should wait")
    };
    assert!(matches!(paused.pending_calls()[0].reason, HoldReason::Question(_)));
}

/// A real server is killed during a call: the model is told that the effect is unknown, and the next call
/// restarts the server.
#[tokio::test(flavor = "multi_thread")]
async fn the_everything_server_is_killed_in_a_call() {
    let Some(program) = find_installed("node_modules/.bin/mcp-server-everything") else { return };
    let servers = McpConnections::connect(
        McpConfig::new().server(McpServerConfig::stdio("everything", program).args(["stdio"])),
    )
    .await;
    let model = ScriptedModel::new([
        ScriptedResponse::call(
            "c1",
            "trigger-long-running-operation",
            json!({ "duration": 600, "steps": 600 }),
        ),
        ScriptedResponse::call("c2", "echo", json!({ "message": "again" })),
        ScriptedResponse::text("done"),
    ]);
    let mut stream = build_agent(&servers, &model).run("go").stream();
    let mut killed = false;
    while let Some(event) = stream.next().await {
        // Progress shows that the call is running.
        if matches!(event.kind, RunEventKind::CallProgress { .. }) && !killed {
            killed = true;
            let server = servers.process_ids("everything").await[0];
            let sent = std::process::Command::new("kill").args(["-9", &server.to_string()]).status();
            assert!(sent.expect("it is sent").success());
        }
    }
    let outcome = stream.result().await.expect("the run ends well");
    let said = call_outputs(&outcome);
    assert!(killed && said["c1"].contains("is not known: find out"), "{said:?}");
    assert_eq!(said["c2"], "Echo: again");
    servers.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_filesystem_server_keeps_to_its_folder() {
    let Some(program) = find_installed("node_modules/.bin/mcp-server-filesystem") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().canonicalize().expect("a path").display().to_string();
    let file = format!("{root}/note.txt");
    let config = McpServerConfig::stdio("files", program).args([root]).trusted();
    let servers = McpConnections::connect(McpConfig::new().server(config)).await;
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "write_file", json!({ "path": file, "content": "kept" })),
        ScriptedResponse::call("c2", "read_text_file", json!({ "path": file })).and_call(
            "c3",
            "read_text_file",
            json!({ "path": "/etc/passwd" }),
        ),
        ScriptedResponse::text("done"),
    ]);
    // The server is trusted: reading requires no approval, writing does.
    let agent = Agent::new("desk").model(model).tool_source(servers.tools());
    let RunResult::Paused(mut paused) = agent.run("go").await.expect("it pauses") else {
        panic!("it should wait")
    };
    assert!(!std::path::Path::new(&file).exists());
    paused.approve("c1").expect("it waits");
    let outcome = agent.resume(paused).await.expect("the run ends well");
    let said = call_outputs(&outcome);
    assert_eq!(said["c2"].trim(), "kept");
    assert!(said["c3"].contains("Access denied"), "{said:?}");
    servers.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_server_leads_the_later_life() {
    let Some(program) = find_installed("python/bin/mcp-server-time") else { return };
    let config = McpServerConfig::stdio("time", program).connect_timeout(Duration::from_secs(60));
    let servers = McpConnections::connect(McpConfig::new().server(config)).await;
    let report = servers.report().await;
    assert_eq!(
        report.servers[0].state,
        McpServerState::Ready { era: Some(ProtocolEra::Modern), tools: 2 },
        "{report:?}"
    );
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "get_current_time", json!({ "timezone": "Europe/Oslo" })).and_call(
            "c2",
            "get_current_time",
            json!({ "timezone": "Nowhere/Land" }),
        ),
        ScriptedResponse::text("done"),
    ]);
    let outcome = build_agent(&servers, &model).run("go").await.expect("the run ends well");
    let said = call_outputs(&outcome);
    assert!(said["c1"].contains("Europe/Oslo"), "{said:?}");
    assert!(said["c2"].contains("Nowhere/Land"), "{said:?}");
    servers.close().await;
}

/// A server of the registries, and one call of it with a part of the expected output.
struct RealServer {
    name: &'static str,
    program: &'static str,
    args: Vec<String>,
    /// A call without an expectation would need the network.
    call: Option<(&'static str, serde_json::Value, &'static str)>,
}

fn real_servers(folder: &std::path::Path) -> Vec<RealServer> {
    let path = |name: &str| folder.join(name).display().to_string();
    let server = |name, program, args: Vec<String>, call| RealServer { name, program, args, call };
    let entity = json!({ "name": "Ada", "entityType": "person", "observations": ["likes tea"] });
    let thought =
        json!({ "thought": "one", "nextThoughtNeeded": false, "thoughtNumber": 1, "totalThoughts": 1 });
    vec![
        server(
            "everything",
            "node_modules/.bin/mcp-server-everything",
            vec![],
            Some(("echo", json!({ "message": "hello" }), "hello")),
        ),
        server(
            "files",
            "node_modules/.bin/mcp-server-filesystem",
            vec![path("")],
            Some(("list_allowed_directories", json!({}), "Allowed directories")),
        ),
        server(
            "memory",
            "node_modules/.bin/mcp-server-memory",
            vec![],
            Some(("create_entities", json!({ "entities": [entity] }), "likes tea")),
        ),
        server(
            "thinking",
            "node_modules/.bin/mcp-server-sequential-thinking",
            vec![],
            Some(("sequentialthinking", thought, "thoughtNumber")),
        ),
        server("github", "node_modules/.bin/mcp-server-github", vec![], None),
        server("playwright", "node_modules/.bin/playwright-mcp", vec!["--headless".to_owned()], None),
        server(
            "time",
            "python/bin/mcp-server-time",
            vec![],
            Some(("get_current_time", json!({ "timezone": "Europe/Oslo" }), "Europe/Oslo")),
        ),
        server(
            "git",
            "python/bin/mcp-server-git",
            vec!["--repository".to_owned(), path("repository")],
            Some(("git_status", json!({ "repo_path": path("repository") }), "branch")),
        ),
        server(
            "fetch",
            "python/bin/mcp-server-fetch",
            vec![],
            Some(("fetch", json!({ "url": "http://127.0.0.1:1/" }), "127.0.0.1")),
        ),
        server(
            "sqlite",
            "more/bin/mcp-server-sqlite",
            vec!["--db-path".to_owned(), path("test.db")],
            Some(("create_table", json!({ "query": "CREATE TABLE tea (kind TEXT)" }), "created")),
        ),
    ]
}

/// The servers that are installed start at once, each has tools, and each call gets its answer.
#[tokio::test(flavor = "multi_thread")]
async fn all_installed_servers_start_at_once_and_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let repository = folder.path().join("repository");
    let made = tokio::process::Command::new("git").arg("init").arg("--quiet").arg(&repository).status().await;
    if !made.is_ok_and(|status| status.success()) {
        let _ =
            writeln!(std::io::stderr(), "not shown: several servers at once, because git is not installed");
        return;
    }
    let mut config = McpConfig::new();
    let mut calls = Vec::new();
    let mut count = 0;
    for server in real_servers(folder.path()) {
        let Some(program) = find_installed(server.program) else { continue };
        let memory = folder.path().join("memory.jsonl").display().to_string();
        let started = McpServerConfig::stdio(server.name, program)
            .args(server.args)
            .env("MEMORY_FILE_PATH", memory)
            .connect_timeout(Duration::from_secs(300))
            .call_timeout(Duration::from_secs(300));
        config = config.server(started);
        count += 1;
        if let Some((tool, arguments, expected)) = server.call {
            calls.push((server.name, tool, arguments, expected));
        }
    }
    if count == 0 {
        return;
    }
    let servers = McpConnections::connect(config).await;
    let report = servers.report().await;
    assert_eq!(report.unavailable_servers(), Vec::<String>::new());
    assert_eq!(report.servers.len(), count);
    for server in &report.servers {
        assert!(matches!(server.state, McpServerState::Ready { tools: 1.., .. }), "{server:?}");
    }
    let turns =
        calls.iter().map(|(name, tool, arguments, _)| ScriptedResponse::call(name, tool, arguments.clone()));
    let model = ScriptedModel::new(turns.chain([ScriptedResponse::text("done")]));
    let outcome = build_agent(&servers, &model).run("go").max_turns(20).await.expect("the run ends well");
    let said = call_outputs(&outcome);
    for (name, _, _, expected) in &calls {
        assert!(said[*name].contains(expected), "{name}: {said:?}");
    }
    servers.close().await;
}

//! Measures the CPU time of one tool call in the client: over stdio by an agent and by `rmcp` alone, over HTTP by an
//! agent and by the official Python client. The subjects take turns, and the median of the rounds counts.
//!
//! Usage: `cargo build --release -p windlass-mcp-check --bins --example call_cost`, then
//! `WINDLASS_MCP_SERVERS=… target/release/examples/call_cost`. The variable names the folder in which `.ci/run` installs
//! the official client; without it, only stdio is measured.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rmcp::ServiceExt;
use rmcp::model::CallToolRequestParams;
use rmcp::service::{Peer, RoleClient};
use tokio::io::{AsyncBufReadExt, BufReader};
use windlass::prelude::*;
use windlass_mcp::{McpApprovalPolicy, McpConfig, McpConnections, McpServerConfig};

/// Number of calls in one round, and of rounds; the first round warms up.
const CALLS: usize = 500;
const ROUNDS: usize = 9;

type Failure = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let ledger = folder.path().join("ledger").display().to_string();
    let programs = std::env::current_exe()?.with_file_name("..");
    let scripted = programs.join("scripted");
    let mut child = tokio::process::Command::new(&scripted)
        .args(["legacy", &ledger])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let pipes = (child.stdout.take().ok_or("no output")?, child.stdin.take().ok_or("no input")?);
    let alone = ().serve(pipes).await?;
    let server = McpServerConfig::stdio("scripted", scripted.display().to_string()).args(["legacy", &ledger]);
    let over_stdio = McpConnections::connect(McpConfig::new().server(server)).await;

    let mut served = tokio::process::Command::new(programs.join("served"))
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(served.stdout.take().ok_or("no output")?).lines();
    let url = format!("http://{}/mcp", lines.next_line().await?.ok_or("no address")?);
    let server = McpServerConfig::http("served", &url);
    let over_http = McpConnections::connect(McpConfig::new().server(server)).await;
    let python =
        std::env::var_os("WINDLASS_MCP_SERVERS").map(|at| PathBuf::from(at).join("python/bin/python"));

    let mut spent: [Vec<Duration>; 4] = Default::default();
    for round in 0..=ROUNDS {
        let mut of_round = vec![measure_rmcp(alone.peer()).await?, measure_agent(&over_stdio).await?];
        of_round.push(measure_agent(&over_http).await?);
        if let Some(python) = &python {
            of_round.push(measure_python(python, &url).await?);
        }
        if round > 0 {
            spent.iter_mut().zip(of_round).for_each(|(all, one)| all.push(one));
        }
    }
    let [alone, stdio, http, python] = spent.map(median);
    println!("stdio: rmcp alone {alone:?}, an agent {stdio:?}, {:.2} times as much", ratio(stdio, alone));
    println!(
        "HTTP: the official Python client {python:?}, an agent {http:?}, {:.2} of it",
        ratio(http, python)
    );
    over_stdio.close().await;
    over_http.close().await;
    Ok(())
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort();
    all.get(all.len() / 2).copied().unwrap_or_default()
}

fn ratio(one: Duration, other: Duration) -> f64 {
    one.as_secs_f64() / other.as_secs_f64()
}

async fn measure_rmcp(peer: &Peer<RoleClient>) -> Result<Duration, Failure> {
    let arguments = json!({ "text": "hello" }).as_object().cloned().unwrap_or_default();
    let before = cpu_time()?;
    for _ in 0..CALLS {
        peer.call_tool_once(CallToolRequestParams::new("echo").with_arguments(arguments.clone())).await?;
    }
    Ok((cpu_time()? - before) / u32::try_from(CALLS)?)
}

async fn measure_agent(servers: &McpConnections) -> Result<Duration, Failure> {
    let mut calls = ScriptedResponse::call("c0", "echo", json!({ "text": "hello" }));
    for at in 1..CALLS {
        calls = calls.and_call(&format!("c{at}"), "echo", json!({ "text": "hello" }));
    }
    let agent: Agent = Agent::new("desk")
        .model(ScriptedModel::new([calls, ScriptedResponse::text("done")]))
        .tool_source(servers.tools().approve(McpApprovalPolicy::Never));
    let before = cpu_time()?;
    agent.run("go").sequential_calls().await?;
    Ok((cpu_time()? - before) / u32::try_from(CALLS)?)
}

async fn measure_python(python: &Path, url: &str) -> Result<Duration, Failure> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/call_cost.py");
    let output =
        tokio::process::Command::new(python).args([script, url, &CALLS.to_string()]).output().await?;
    let said = String::from_utf8(output.stdout)?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(Duration::from_secs_f64(said.trim().parse()?))
}

/// Returns the CPU time of all threads of this process.
fn cpu_time() -> Result<Duration, Failure> {
    let mut nanoseconds = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        nanoseconds += text.split(' ').next().ok_or("no time")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

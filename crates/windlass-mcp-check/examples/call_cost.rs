//! Measures the CPU time of one tool call over stdio in this process: by an agent, and by `rmcp` alone.
//!
//! Usage: `cargo run --release -p windlass-mcp-check --example call_cost`

use std::time::Duration;

use rmcp::ServiceExt;
use rmcp::model::CallToolRequestParams;
use windlass::prelude::*;
use windlass_mcp::{McpApprovalPolicy, McpConfig, McpConnections, McpServerConfig};

/// Number of calls in one run, and of runs.
const CALLS: usize = 200;
const RUNS: usize = 20;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let ledger = folder.path().join("ledger").display().to_string();
    let program = std::env::current_exe()?.with_file_name("../scripted");
    let alone = measure_rmcp(&program, &ledger).await?;
    let agent = measure_agent(&program, &ledger).await?;
    let ratio = agent.as_secs_f64() / alone.as_secs_f64();
    println!("rmcp alone: {alone:?} of CPU for a call\nan agent: {agent:?}, {ratio:.1} times as much");
    Ok(())
}

async fn measure_rmcp(
    program: &std::path::Path,
    ledger: &str,
) -> Result<Duration, Box<dyn std::error::Error>> {
    let mut child = tokio::process::Command::new(program)
        .args(["legacy", ledger])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let pipes = (child.stdout.take().ok_or("no output")?, child.stdin.take().ok_or("no input")?);
    let client = ().serve(pipes).await?;
    let arguments = json!({ "text": "hello" }).as_object().cloned().unwrap_or_default();
    let call = || CallToolRequestParams::new("echo").with_arguments(arguments.clone());
    client.peer().call_tool_once(call()).await?;
    let before = cpu_time()?;
    for _ in 0..CALLS * RUNS {
        client.peer().call_tool_once(call()).await?;
    }
    Ok((cpu_time()? - before) / u32::try_from(CALLS * RUNS)?)
}

async fn measure_agent(
    program: &std::path::Path,
    ledger: &str,
) -> Result<Duration, Box<dyn std::error::Error>> {
    let server = McpServerConfig::stdio("scripted", program.display().to_string()).args(["legacy", ledger]);
    let servers = McpConnections::connect(McpConfig::new().server(server)).await;
    let tools = || servers.tools().approve(McpApprovalPolicy::Never);
    let mut spent = Duration::ZERO;
    for run in 0..=RUNS {
        let mut calls = ScriptedResponse::call("c0", "echo", json!({ "text": "hello" }));
        for at in 1..CALLS {
            calls = calls.and_call(&format!("c{at}"), "echo", json!({ "text": "hello" }));
        }
        let agent: Agent = Agent::new("desk")
            .model(ScriptedModel::new([calls, ScriptedResponse::text("done")]))
            .tool_source(tools());
        let before = cpu_time()?;
        agent.run("go").sequential_calls().await?;
        // The first run warms up.
        if run > 0 {
            spent += cpu_time()? - before;
        }
    }
    servers.close().await;
    Ok(spent / u32::try_from(CALLS * RUNS)?)
}

/// Returns the CPU time of all threads of this process.
fn cpu_time() -> Result<Duration, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string("/proc/self/schedstat")?;
    let nanoseconds: u64 = text.split(' ').next().ok_or("no time")?.parse()?;
    Ok(Duration::from_nanos(nanoseconds))
}

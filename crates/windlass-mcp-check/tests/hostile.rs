//! A hostile server, drawn from a seed: whatever it says in its handshake and in its list, its good tool is offered, and
//! whatever it answers, each call settles without waiting for its timeout, is made once, and
//! the model is not invited to repeat a call whose effect is unknown.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod common;

use std::time::Duration;

use common::{ERAS, call_outputs};
use windlass::prelude::*;
use windlass_mcp::{McpApprovalPolicy, McpConfig, McpConnections, McpServerConfig};
use windlass_mcp_check::mischief::Mischief;
use windlass_mcp_check::read_lines;

/// Number of calls for each seed.
const CALLS: usize = 40;
/// A call timeout above the limit of the whole test: a call that waited for it would fail the test.
const CALL_TIMEOUT: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread")]
async fn every_call_settles_whatever_the_server_answers() {
    let seeds =
        std::env::var("WINDLASS_HOSTILE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(3u64);
    let mut seen = Vec::new();
    for seed in 0..seeds {
        for era in ERAS {
            let playing = play_seed(era, seed);
            let limit = Duration::from_secs(900);
            seen.extend(tokio::time::timeout(limit, playing).await.expect("no call waits for its timeout"));
        }
    }
    for mischief in Mischief::ALL {
        assert!(seen.contains(&format!("{mischief:?}")), "{mischief:?} was not played");
    }
}

/// Plays one seed and returns the mischief that occurred.
async fn play_seed(era: &str, seed: u64) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = folder.path().join("ledger");
    let server = McpServerConfig::stdio("hostile", env!("CARGO_BIN_EXE_hostile"))
        .args([era.to_owned(), ledger.display().to_string(), seed.to_string()])
        .call_timeout(CALL_TIMEOUT);
    let servers = McpConnections::connect(McpConfig::new().server(server)).await;
    let tools: Vec<String> = servers.list_tools().await.iter().map(|tool| tool.name.to_string()).collect();
    assert!(tools.contains(&"act".to_owned()), "seed {seed}, {era}: {:?}", servers.report().await);
    let turns =
        (0..CALLS).map(|at| ScriptedResponse::call(&format!("c{at}"), "act", json!({ "number": at })));
    let model = ScriptedModel::new(turns.chain([ScriptedResponse::text("done")]));
    let agent =
        Agent::new("desk").model(model).tool_source(servers.tools().approve(McpApprovalPolicy::Never));
    let outcome = agent.run("go").max_turns(100).await.expect("the run survives");
    let outputs = call_outputs(&outcome);
    assert_eq!(outputs.len(), CALLS);
    let lines = read_lines(&ledger);
    assert_eq!(lines.len(), CALLS, "each call is made once: {lines:?}");
    let mut seen = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let mischief = line.rsplit(' ').next().expect("a word").to_owned();
        let output = &outputs[&format!("c{at}")];
        check_output(era, seed, &mischief, output);
        seen.push(mischief);
    }
    servers.close().await;
    seen
}

fn check_output(era: &str, seed: u64, mischief: &str, output: &str) {
    let place = format!("seed {seed}, {era}, {mischief}: {output}");
    let is_readable = match mischief {
        "Deep" | "Oversize" | "Truncated" | "NoResult" | "WrongResult" | "BrokenError" | "Exit" => false,
        "ErrorWithData" => {
            assert!(output.contains("not today") && output.contains("Friday"), "{place}");
            assert!(output.contains("not known") && !output.contains("try again"), "{place}");
            return;
        }
        _ => true,
    };
    if is_readable {
        assert!(output.contains("the ") && output.contains(" end") || output.contains("the end"), "{place}");
        assert!(!output.contains("An error occurred"), "{place}");
    } else {
        assert!(output.contains("is not known"), "{place}");
        assert!(!output.contains("try again"), "{place}");
    }
    if mischief == "UnknownContent" {
        assert!(output.contains("hologram"), "{place}");
    }
}

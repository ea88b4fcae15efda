//! Shared helpers of the MCP tests.

#![allow(dead_code, reason = "each test uses its own part")]

pub(crate) mod http;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use windlass::core::item::Item;
use windlass::prelude::*;
use windlass_mcp::{McpApprovalPolicy, McpConfig, McpConnections, McpServerConfig};
use windlass_mcp_check::read_lines;

pub(crate) const ERAS: [&str; 2] = ["legacy", "modern"];

/// A connection to the fault-injecting server, with its ledger.
pub(crate) struct FaultyServerFixture {
    folder: tempfile::TempDir,
    pub(crate) servers: McpConnections,
}

impl FaultyServerFixture {
    pub(crate) async fn new(era: &str, faults: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = McpConfig::new().server(scripted_server(era, &folder.path().join("ledger"), faults));
        let servers = McpConnections::connect(config).await;
        assert_eq!(servers.report().await.unavailable_servers(), Vec::<String>::new());
        Self { folder, servers }
    }

    pub(crate) fn ledger(&self) -> PathBuf {
        self.folder.path().join("ledger")
    }

    pub(crate) fn ledger_lines(&self, beginning: &str) -> Vec<String> {
        read_lines(&self.ledger()).into_iter().filter(|line| line.starts_with(beginning)).collect()
    }

    pub(crate) fn build_agent(&self, model: &ScriptedModel, approve: McpApprovalPolicy) -> Agent {
        Agent::new("desk").model(model.clone()).tool_source(self.servers.tools().approve(approve))
    }
}

pub(crate) fn scripted_server(era: &str, ledger: &Path, faults: &[&str]) -> McpServerConfig {
    scripted_server_named("scripted", era, ledger, faults)
}

pub(crate) fn scripted_server_named(
    name: &str,
    era: &str,
    ledger: &Path,
    faults: &[&str],
) -> McpServerConfig {
    let ledger = ledger.display().to_string();
    let words = [era, &ledger].into_iter().chain(faults.iter().copied()).map(str::to_owned);
    McpServerConfig::stdio(name, env!("CARGO_BIN_EXE_scripted")).args(words.collect::<Vec<_>>())
}

/// Returns the output text of each call, by call id.
pub(crate) fn call_outputs(outcome: &RunResult) -> BTreeMap<String, String> {
    let items = outcome.record().run_items();
    let outputs = items.iter().filter_map(|produced| match &*produced.item {
        Item::Output(output) => Some((output.call.to_string(), output.content.text().into_owned())),
        _ => None,
    });
    outputs.collect()
}

/// Waits until a condition holds, for at most three minutes.
pub(crate) async fn wait_until(mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < Duration::from_secs(180), "it should have come about by now");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

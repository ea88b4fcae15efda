//! What the tests of MCP share.

#![allow(dead_code, reason = "each test uses its own part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use windlass::Item;
use windlass::prelude::*;
use windlass_mcp::{Approve, Config, ServerConfig, Servers};
use windlass_mcp_check::noted;

pub(crate) const ERAS: [&str; 2] = ["legacy", "modern"];

/// A server of ours that behaves badly, and its ledger.
pub(crate) struct Desk {
    folder: tempfile::TempDir,
    pub(crate) servers: Servers,
}

impl Desk {
    pub(crate) async fn new(era: &str, faults: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = Config::new().server(scripted(era, &folder.path().join("ledger"), faults));
        let servers = Servers::connect(config).await;
        assert_eq!(servers.report().await.missing(), Vec::<String>::new());
        Self { folder, servers }
    }

    pub(crate) fn ledger(&self) -> PathBuf {
        self.folder.path().join("ledger")
    }

    pub(crate) fn noted(&self, beginning: &str) -> Vec<String> {
        noted(&self.ledger()).into_iter().filter(|line| line.starts_with(beginning)).collect()
    }

    pub(crate) fn agent(&self, model: &ScriptedModel, approve: Approve) -> Agent {
        Agent::new("desk").model(model.clone()).tool_source(self.servers.tools().approve(approve))
    }
}

pub(crate) fn scripted(era: &str, ledger: &Path, faults: &[&str]) -> ServerConfig {
    scripted_as("scripted", era, ledger, faults)
}

pub(crate) fn scripted_as(name: &str, era: &str, ledger: &Path, faults: &[&str]) -> ServerConfig {
    let ledger = ledger.display().to_string();
    let words = [era, &ledger].into_iter().chain(faults.iter().copied()).map(str::to_owned);
    ServerConfig::stdio(name, env!("CARGO_BIN_EXE_scripted")).args(words.collect::<Vec<_>>())
}

/// What came of each call, as text.
pub(crate) fn outputs(outcome: &Outcome) -> BTreeMap<String, String> {
    let items = outcome.record().items();
    let outputs = items.iter().filter_map(|produced| match &*produced.item {
        Item::Output(output) => Some((output.call.to_string(), output.content.text().into_owned())),
        _ => None,
    });
    outputs.collect()
}

/// Waits until something is so.
pub(crate) async fn until(mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it should have come about by now");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

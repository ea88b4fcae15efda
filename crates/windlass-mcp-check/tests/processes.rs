//! Server processes and their descendants never outlive the process that started them.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod common;

use std::io::Write;
use std::path::Path;

use common::{FaultyServerFixture, wait_until};
use windlass_mcp::{McpConfig, McpConnections};
use windlass_mcp_check::read_lines;

/// Returns the process ids recorded in a ledger.
fn ledger_process_ids(ledger: &Path) -> Vec<u32> {
    let lines = read_lines(ledger);
    let numbers = lines.iter().filter_map(|line| {
        line.strip_prefix("process ").or_else(|| line.strip_prefix("grandchild "))?.parse().ok()
    });
    numbers.collect()
}

/// Returns true if a process is running; a zombie is not.
fn is_running(process: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(stat) => !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')),
        Err(_) => false,
    }
}

fn has_proc() -> bool {
    let can = Path::new("/proc/self/stat").exists();
    if !can {
        let _ = writeln!(
            std::io::stderr(),
            "not shown: there is no /proc here, so nobody can say which processes run"
        );
    }
    can
}

#[tokio::test]
async fn closing_ends_a_stubborn_server_and_what_it_started() {
    if !has_proc() {
        return;
    }
    let desk = FaultyServerFixture::new("legacy", &["child", "stubborn"]).await;
    let mut all = ledger_process_ids(&desk.ledger());
    all.extend(desk.servers.process_ids("scripted").await);
    assert_eq!(all.len(), 3, "a grandchild, the server and its keeper");
    assert!(all.iter().all(|process| is_running(*process)));
    desk.servers.close().await;
    wait_until(|| !all.iter().any(|process| is_running(*process))).await;
}

#[tokio::test]
async fn dropping_the_last_copy_ends_them_too() {
    if !has_proc() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = folder.path().join("ledger");
    let config = McpConfig::new().server(common::scripted_server("modern", &ledger, &["child", "stubborn"]));
    let servers = McpConnections::connect(config).await;
    let mut all = ledger_process_ids(&ledger);
    all.extend(servers.process_ids("scripted").await);
    assert_eq!(all.len(), 3);
    drop(servers);
    wait_until(|| !all.iter().any(|process| is_running(*process))).await;
}

/// A strict connect closes the opened servers if one is unavailable.
#[tokio::test]
async fn a_strict_connection_that_fails_in_part_leaves_nothing_open() {
    if !has_proc() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = folder.path().join("ledger");
    let config = McpConfig::new()
        .server(common::scripted_server_named("good", "legacy", &ledger, &["child", "stubborn", "tells"]))
        .server(common::scripted_server_named("bad", "legacy", &ledger, &["dead"]));
    let error = McpConnections::connect_strict(config).await.err().expect("one of them is not there");
    assert_eq!(error.server, "bad");
    let all = ledger_process_ids(&ledger);
    assert_eq!(all.len(), 2, "the good server and its child were started: {:?}", read_lines(&ledger));
    wait_until(|| !all.iter().any(|process| is_running(*process))).await;
}

#[tokio::test]
async fn reconnecting_starts_it_anew() {
    if !has_proc() {
        return;
    }
    for era in common::ERAS {
        let desk = FaultyServerFixture::new(era, &[]).await;
        let before = desk.servers.process_ids("scripted").await;
        desk.servers.reconnect("scripted").await.expect("it comes back");
        let after = desk.servers.process_ids("scripted").await;
        assert!(
            after.iter().all(|process| is_running(*process) && !before.contains(process)),
            "{before:?} {after:?}"
        );
        wait_until(|| !before.iter().any(|process| is_running(*process))).await;
        assert_eq!(desk.servers.list_tools().await.len(), 15);
        assert!(desk.servers.reconnect("nobody").await.is_err());
    }
}

#[tokio::test]
async fn they_end_when_their_owner_is_killed() {
    if !has_proc() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = folder.path().join("ledger");
    let mut holder = tokio::process::Command::new(env!("CARGO_BIN_EXE_holder"))
        .args([Path::new(env!("CARGO_BIN_EXE_scripted")), &ledger])
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    wait_until(|| read_lines(&ledger).iter().any(|line| line == "ready")).await;
    let all = ledger_process_ids(&ledger);
    assert_eq!(all.len(), 3, "{:?}", read_lines(&ledger));
    assert!(all.iter().all(|process| is_running(*process)));
    holder.kill().await.expect("it is killed, and cannot do anything about it");
    wait_until(|| !all.iter().any(|process| is_running(*process))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_task_opens_another_may_close() {
    for _ in 0..20 {
        let desk = tokio::spawn(FaultyServerFixture::new("legacy", &[])).await.expect("the task ends");
        let servers = desk.servers.clone();
        let (one, other) = (desk.servers.clone(), desk.servers.clone());
        let closing = [
            tokio::spawn(async move { one.close().await }),
            tokio::spawn(async move { other.close().await }),
        ];
        for closed in closing {
            closed.await.expect("closing twice at once is closing once");
        }
        servers.close().await;
    }
}

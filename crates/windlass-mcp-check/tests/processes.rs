//! Child processes never outlive whoever started them, whatever they do and however that one ends.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

mod common;

use std::io::Write;
use std::path::Path;

use common::{Desk, until};
use windlass_mcp::{Config, Servers};
use windlass_mcp_check::noted;

/// The processes that a ledger names.
fn processes(ledger: &Path) -> Vec<u32> {
    let lines = noted(ledger);
    let numbers = lines.iter().filter_map(|line| {
        line.strip_prefix("process ").or_else(|| line.strip_prefix("grandchild "))?.parse().ok()
    });
    numbers.collect()
}

/// Whether a process runs. One that has ended and was not collected does not.
fn runs(process: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(stat) => !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')),
        Err(_) => false,
    }
}

fn can_look() -> bool {
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
    if !can_look() {
        return;
    }
    let desk = Desk::new("legacy", &["child", "stubborn"]).await;
    let mut all = processes(&desk.ledger());
    all.extend(desk.servers.processes("scripted").await);
    assert_eq!(all.len(), 3, "a grandchild, the server and its keeper");
    assert!(all.iter().all(|process| runs(*process)));
    desk.servers.close().await;
    until(|| !all.iter().any(|process| runs(*process))).await;
}

#[tokio::test]
async fn dropping_the_last_copy_ends_them_too() {
    if !can_look() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = folder.path().join("ledger");
    let config = Config::new().server(common::scripted("modern", &ledger, &["child", "stubborn"]));
    let servers = Servers::connect(config).await;
    let mut all = processes(&ledger);
    all.extend(servers.processes("scripted").await);
    assert_eq!(all.len(), 3);
    drop(servers);
    until(|| !all.iter().any(|process| runs(*process))).await;
}

/// All or nothing: where one server is not there, those that were opened are closed.
#[tokio::test]
async fn a_strict_connection_that_fails_in_part_leaves_nothing_open() {
    if !can_look() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = folder.path().join("ledger");
    let config = Config::new()
        .server(common::scripted_as("good", "legacy", &ledger, &["child", "stubborn", "tells"]))
        .server(common::scripted_as("bad", "legacy", &ledger, &["dead"]));
    let error = Servers::connect_strict(config).await.err().expect("one of them is not there");
    assert_eq!(error.server, "bad");
    let all = processes(&ledger);
    assert_eq!(all.len(), 2, "the good server and its child were started: {:?}", noted(&ledger));
    until(|| !all.iter().any(|process| runs(*process))).await;
}

#[tokio::test]
async fn reconnecting_starts_it_anew() {
    if !can_look() {
        return;
    }
    for era in common::ERAS {
        let desk = Desk::new(era, &[]).await;
        let before = desk.servers.processes("scripted").await;
        desk.servers.reconnect("scripted").await.expect("it comes back");
        let after = desk.servers.processes("scripted").await;
        assert!(
            after.iter().all(|process| runs(*process) && !before.contains(process)),
            "{before:?} {after:?}"
        );
        until(|| !before.iter().any(|process| runs(*process))).await;
        assert_eq!(desk.servers.list().await.len(), 13);
        assert!(desk.servers.reconnect("nobody").await.is_err());
    }
}

#[tokio::test]
async fn they_end_when_their_owner_is_killed() {
    if !can_look() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = folder.path().join("ledger");
    let mut holder = tokio::process::Command::new(env!("CARGO_BIN_EXE_holder"))
        .args([Path::new(env!("CARGO_BIN_EXE_scripted")), &ledger])
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    until(|| noted(&ledger).iter().any(|line| line == "ready")).await;
    let all = processes(&ledger);
    assert_eq!(all.len(), 3, "{:?}", noted(&ledger));
    assert!(all.iter().all(|process| runs(*process)));
    holder.kill().await.expect("it is killed, and cannot do anything about it");
    until(|| !all.iter().any(|process| runs(*process))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_task_opens_another_may_close() {
    for _ in 0..20 {
        let desk = tokio::spawn(Desk::new("legacy", &[])).await.expect("the task ends");
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

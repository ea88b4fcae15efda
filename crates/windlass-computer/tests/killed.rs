//! A real process, killed in the middle of a click: the browser does not outlive it, and nobody clicks again.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

mod support;

use std::io::Write;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use support::{Pages, soon};
use tokio::process::Command;
use windlass::core::HoldReason;
use windlass::model::{Reply, ScriptedModel};
use windlass::store::{SqliteStore, Store};
use windlass::{Agent, Tool};
use windlass_computer::{Browser, BrowserOptions, ComputerError, ComputerTool};

/// What the process under test is told by.
const DATABASE: &str = "WINDLASS_TEST_DATABASE";
/// How long the store believes that a driver lives.
const LEASE: Duration = Duration::from_secs(3);
const PAGE: &str = "WINDLASS_TEST_PAGE";

fn agent(page: &str, replies: impl IntoIterator<Item = Reply>) -> Agent {
    let options = BrowserOptions {
        start: Some(page.to_owned()),
        answer_within: Duration::from_secs(600),
        ..BrowserOptions::default()
    };
    let computer = ComputerTool::made_by(Browser::provider(options)).within(Duration::from_secs(600));
    let tool: Tool = computer.tool();
    Agent::new("clerk").model(ScriptedModel::new(replies)).tools(tool)
}

/// The button makes the page tell the server, and then hangs it: so the process is in the middle of the click until it
/// is killed.
fn click() -> Reply {
    Reply::call("c1", "computer", json!({ "actions": [{ "type": "click", "x": 650, "y": 460 }] }))
}

/// Not a test of its own: what the process that is killed runs.
#[tokio::test]
async fn the_process_that_is_killed() {
    let (Ok(database), Ok(page)) = (std::env::var(DATABASE), std::env::var(PAGE)) else { return };
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(database).expect("a store"));
    let run = agent(&page, [click(), Reply::text("done")]).run("click").store(store).run_id("killed");
    run.lease(LEASE).await.expect("it does not come to this");
}

#[tokio::test]
async fn a_process_that_is_killed_in_a_click_leaves_it_in_doubt_and_no_browser() {
    if let Err(ComputerError::Missing { what, hint }) = Browser::start(BrowserOptions::default()).await {
        let _ = writeln!(std::io::stderr(), "not shown: {what} is not here; {hint}");
        return;
    }
    let pages = Pages::serve().await;
    let folder = tempfile::tempdir().expect("a folder");
    let database = folder.path().join("runs.db");
    let page = pages.url("play.html");
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "the_process_that_is_killed"])
        .env(DATABASE, &database)
        .env(PAGE, &page)
        // Whatever it leaves behind is found by this.
        .env("TMPDIR", folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let clicked = |pages: &Pages| pages.asked().iter().filter(|asked| asked.ends_with("/clicked")).count();
    assert!(soon(async || clicked(&pages) == 1).await, "the click happens: {:?}", pages.asked());
    child.kill().await.expect("it is killed");

    let profile = folder.path().display().to_string();
    let is_gone = soon(async || !commands().iter().any(|command| command.contains(&profile))).await;
    assert!(is_gone, "the browser ends with its process: {:?}", commands());
    let put_away = soon(async || {
        let files = std::fs::read_dir(folder.path()).expect("the folder");
        !files.flatten().any(|file| file.file_name().to_string_lossy().starts_with("windlass-browser-"))
    })
    .await;
    assert!(put_away, "its profile is put away");

    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&database).expect("a store"));
    // Whoever owned the run is dead, which the store knows when the lease is over.
    tokio::time::sleep(LEASE + Duration::from_secs(1)).await;
    let agent = agent(&page, [Reply::text("done")]);
    let recovered = agent.recover("killed", store.clone()).await.expect("it is recovered");
    let mut paused = recovered.paused().expect("a person must say");
    let pending = paused.pending();
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0].reason, HoldReason::InDoubt);
    assert_eq!(clicked(&pages), 1, "nobody clicked again");
    paused.it_happened("c1", "it was clicked").expect("a person says so");
    assert_eq!(agent.resume(paused).store(store).await.expect("the run ends").text(), "done");
    assert_eq!(clicked(&pages), 1);
}

/// The command lines of all processes.
fn commands() -> Vec<String> {
    let folders = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = folders.filter_map(|folder| std::fs::read(folder.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).collect()
}

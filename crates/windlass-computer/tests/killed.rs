//! A real process killed in the middle of a click: its browser exits with it, and the click is not repeated.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::io::Write;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use support::{TestPageServer, poll_until};
use tokio::process::Command;
use windlass::core::decision::HoldReason;
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::store::{SqliteStore, Store};
use windlass::{agent::Agent, tool::Tool};
use windlass_computer::{Browser, BrowserOptions, ComputerError, ComputerTool, PrivateNetworkPolicy};

/// Environment variable with the database path of the child process.
const DATABASE_VARIABLE: &str = "WINDLASS_TEST_DATABASE";
/// Lease duration of the run.
const LEASE: Duration = Duration::from_secs(3);
const PAGE_VARIABLE: &str = "WINDLASS_TEST_PAGE";

fn clicking_agent(page: &str, replies: impl IntoIterator<Item = ScriptedResponse>) -> Agent {
    let options = BrowserOptions {
        start_url: Some(page.to_owned()),
        private_networks: PrivateNetworkPolicy::Allow,
        response_timeout: Duration::from_secs(600),
        ..BrowserOptions::default()
    };
    let computer =
        ComputerTool::with_provider(Browser::provider(options)).action_timeout(Duration::from_secs(600));
    let tool: Tool = computer.screen_tool();
    Agent::new("clerk").model(ScriptedModel::new(replies)).tools(tool)
}

/// Returns a call whose click makes the page report to the server and then hang, so that the process is in
/// the middle of the click until it is killed.
fn click_call() -> ScriptedResponse {
    ScriptedResponse::call("c1", "computer", json!({ "actions": [{ "type": "click", "x": 650, "y": 460 }] }))
}

/// Not a test by itself: the body of the child process that is killed.
#[tokio::test]
async fn the_process_that_is_killed() {
    let (Ok(database), Ok(page)) = (std::env::var(DATABASE_VARIABLE), std::env::var(PAGE_VARIABLE)) else {
        return;
    };
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(database).expect("a store"));
    let run = clicking_agent(&page, [click_call(), ScriptedResponse::text("done")])
        .run("click")
        .store(store)
        .run_id("killed");
    run.lease_duration(LEASE).await.expect("it does not come to this");
}

#[tokio::test]
async fn a_process_that_is_killed_in_a_click_leaves_it_in_doubt_and_no_browser() {
    if let Err(ComputerError::Missing { what, hint }) = Browser::start(BrowserOptions::default()).await {
        let _ = writeln!(std::io::stderr(), "not shown: {what} is not here; {hint}");
        return;
    }
    let pages = TestPageServer::serve().await;
    let folder = tempfile::tempdir().expect("a folder");
    let database = folder.path().join("runs.db");
    let page = pages.url("play.html");
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "the_process_that_is_killed"])
        .env(DATABASE_VARIABLE, &database)
        .env(PAGE_VARIABLE, &page)
        // The browser's profile is created here, so that its leftovers can be found.
        .env("TMPDIR", folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let clicked = |pages: &TestPageServer| {
        pages.requests().iter().filter(|requests| requests.ends_with("/clicked")).count()
    };
    assert!(poll_until(async || clicked(&pages) == 1).await, "the click happens: {:?}", pages.requests());
    child.kill().await.expect("it is killed");

    let profile = folder.path().display().to_string();
    let is_gone =
        poll_until(async || !command_lines().iter().any(|command| command.contains(&profile))).await;
    assert!(is_gone, "the browser ends with its process: {:?}", command_lines());
    let put_away = poll_until(async || {
        let files = std::fs::read_dir(folder.path()).expect("the folder");
        !files.flatten().any(|file| file.file_name().to_string_lossy().starts_with("windlass-browser-"))
    })
    .await;
    assert!(put_away, "its profile is put away");

    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&database).expect("a store"));
    let agent = clicking_agent(&page, [ScriptedResponse::text("done")]);
    // The owner is dead; the store allows a takeover once that is certain.
    let mut recovered = None;
    let is_recovered = poll_until(async || {
        recovered = agent.recover("killed", store.clone()).await.ok();
        recovered.is_some()
    });
    assert!(is_recovered.await, "it is recovered");
    let recovered = recovered.expect("it is recovered");
    let mut paused = recovered.into_paused().expect("a person must say");
    let pending = paused.pending_calls();
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0].reason, HoldReason::InDoubt);
    assert_eq!(clicked(&pages), 1, "nobody clicked again");
    paused.confirm_executed("c1", "it was clicked").expect("a person says so");
    assert_eq!(
        agent
            .resume(paused)
            .store(store)
            .await
            .expect("the run ends")
            .output_text()
            .expect("the run finished"),
        "done"
    );
    assert_eq!(clicked(&pages), 1);
}

/// Returns the command lines of all processes.
fn command_lines() -> Vec<String> {
    let folders = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = folders.filter_map(|folder| std::fs::read(folder.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).collect()
}

//! Processes that are killed in the middle of a session and resumed by others: no effect happens twice, calls
//! in doubt are asked about, undelivered outputs are delivered, and the history is complete.
//!
//! The child processes are this test binary, started again with a role. The server runs in the test itself.

#![cfg(unix)]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use windlass::core::{
    decision::{Decision, DecisionScope},
    item::OutputContent,
};
use windlass::prelude::*;
use windlass::{
    core::tool::ToolEffect,
    store::{SqliteStore, Store},
};
use windlass_realtime::openai::OpenAiRealtime;
use windlass_realtime::testing::{LoopbackReply, LoopbackServer};
use windlass_realtime::{
    FolderJournal, RealtimeEvent, RealtimeItemKind, RealtimeSessionBuilder, ReconnectPolicy,
};

const ROLE_VAR: &str = "WINDLASS_TEST_PART";
const FOLDER_VAR: &str = "WINDLASS_TEST_FOLDER";
const ADDRESS_VAR: &str = "WINDLASS_TEST_ADDRESS";
const CALL_VAR: &str = "WINDLASS_TEST_CALL";

/// Lease duration of a killed process's runs.
const LEASE_DURATION: Duration = Duration::from_secs(2);
/// A timeout that is long enough on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(600);

/// Plays the role of a child process. Does nothing in the test run itself.
#[tokio::test]
async fn a_part_to_play() {
    let Ok(part) = std::env::var(ROLE_VAR) else { return };
    let folder = PathBuf::from(std::env::var_os(FOLDER_VAR).expect("a folder"));
    let call = std::env::var(CALL_VAR).expect("a call");
    match part.as_str() {
        "begin" => run_until_killed(&folder).await,
        "resume" => resume_and_decide(&folder, &call).await,
        "approve" => post_approval(&folder, &call).await,
        other => panic!("no such part: {other}"),
    }
}

fn open_store(folder: &Path) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(folder.join("runs.db")).expect("a store"))
}

fn effect_count(folder: &Path) -> usize {
    effect_keys(folder).len()
}

/// Returns the idempotency keys of the effects so far.
fn effect_keys(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("effects")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Creates a tool that has one effect and then waits for a file before it returns.
fn effect_tool(name: &str, folder: &Path) -> Tool {
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let folder = folder.to_owned();
    Tool::dynamic(name, "Does something.", schema, move |ctx: ToolContext, _| {
        let folder = folder.clone();
        async move {
            let path = folder.join("effects");
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            writeln!(file.expect("a file"), "{}", ctx.idempotency_key()).expect("is written");
            while !folder.join("go").exists() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok::<_, ToolError>("the load is up")
        }
    })
}

fn session_builder(folder: &Path) -> RealtimeSessionBuilder {
    let keyed = effect_tool("keyed", folder).effect(ToolEffect::Idempotent);
    let gated = effect_tool("gated", folder).needs_approval();
    let agent = Agent::new("desk").tools((effect_tool("haul", folder), gated, keyed));
    let address = std::env::var(ADDRESS_VAR).expect("an address");
    RealtimeSessionBuilder::new(agent, OpenAiRealtime::with_url(address))
        .session_id("talk")
        .store(open_store(folder))
        .journal(FolderJournal::new(folder.join("sessions")))
        .lease_duration(LEASE_DURATION)
        .ready_timeout(TEST_TIMEOUT)
        .response_timeouts(TEST_TIMEOUT, TEST_TIMEOUT)
        // The connection may be down for a long time.
        .reconnect_policy(ReconnectPolicy { max_attempts: 1000, ..ReconnectPolicy::default() })
}

fn print_line(text: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n> {text}").and_then(|()| out.flush()).expect("somebody listens");
}

/// Starts the session and runs it until the process is killed.
async fn run_until_killed(folder: &Path) {
    let session = session_builder(folder).connect().await.expect("connects");
    let mut events = session.events();
    session.send_text("Haul").await.expect("is there");
    while let Some(event) = events.next().await {
        print_event(&event);
    }
}

fn print_event(event: &RealtimeEvent) {
    match event {
        RealtimeEvent::CallHeld { pending, .. } => {
            print_line(format!("held {} {:?}", pending.call(), pending.reason))
        }
        RealtimeEvent::CallStarted { call, .. } => print_line(format!("started {call}")),
        RealtimeEvent::CallSettled { call, .. } => print_line(format!("settled {call}")),
        RealtimeEvent::TurnEnded { .. } => print_line("turn ended"),
        RealtimeEvent::Disconnected { .. } => print_line("disconnected"),
        RealtimeEvent::Error(error) => print_line(format!("error {error}")),
        _ => {}
    }
}

/// Resumes the session, decides held calls, and prints the history when the result has been spoken.
async fn resume_and_decide(folder: &Path, call: &str) {
    let session = session_builder(folder).resume().await.expect("resumes");
    let mut events = session.events();
    let is_spoken = |item: &windlass_realtime::RealtimeItem| item.text().starts_with("The result is");
    while let Some(event) = events.next().await {
        print_event(&event);
        match event {
            RealtimeEvent::CallHeld { pending, .. } if pending.call().as_str() == call => {
                let decision = match pending.reason {
                    windlass::core::decision::HoldReason::InDoubt => Decision::ConfirmExecuted {
                        output: OutputContent::Text("it was up already".to_owned()),
                    },
                    _ => Decision::Approve,
                };
                session.decide(call, decision, DecisionScope::ThisCall, None).await.expect("counts");
            }
            RealtimeEvent::TurnEnded { .. } => {
                let history = session.history().await.expect("is there");
                if history.items().iter().any(is_spoken) {
                    break;
                }
            }
            _ => {}
        }
    }
    let report = session.close().await;
    for item in report.history.items() {
        match &item.kind {
            RealtimeItemKind::Call { call, .. } => print_line(format!("item call {call}")),
            RealtimeItemKind::Output { call, text } => print_line(format!("item output {call} {text}")),
            _ => print_line(format!("item {}", item.text())),
        }
    }
    print_line("over");
}

/// Posts a decision to the store, as the CLI would.
async fn post_approval(folder: &Path, call: &str) {
    let store = open_store(folder);
    for run in store.list_runs(&windlass::store::RunQuery::default()).await.expect("is read") {
        let decided = windlass::store::post_decision(
            &*store,
            &run.run,
            call,
            Decision::Approve,
            DecisionScope::ThisCall,
            "ada",
        )
        .await;
        print_line(format!("decided {}", decided.is_ok()));
    }
    print_line("over");
}

/// A child process that runs a session.
struct ChildSession {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    printed_lines: Vec<String>,
}

impl ChildSession {
    fn start(part: &str, folder: &Path, address: &str, call: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "a_part_to_play", "--nocapture"])
            .env(ROLE_VAR, part)
            .env(FOLDER_VAR, folder)
            .env(ADDRESS_VAR, address)
            .env(CALL_VAR, call)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
        Self { child, lines, printed_lines: Vec::new() }
    }

    /// Waits until the process prints a line with this prefix.
    async fn wait_for_line(&mut self, wanted: &str) {
        let listening = async {
            while let Some(line) = self.lines.next_line().await.expect("text") {
                if let Some(said) = line.strip_prefix("> ") {
                    self.printed_lines.push(said.to_owned());
                    if said.starts_with(wanted) {
                        return true;
                    }
                }
            }
            false
        };
        let found = tokio::time::timeout(TEST_TIMEOUT, listening).await;
        assert!(matches!(found, Ok(true)), "it did not say `{wanted}`: {:?}", self.printed_lines);
    }

    /// Kills the process without warning, like the kernel when memory runs out.
    async fn kill(mut self) {
        self.child.kill().await.expect("it is killed");
    }

    fn history_items(&self) -> Vec<&str> {
        self.printed_lines.iter().filter_map(|said| said.strip_prefix("item ")).collect()
    }
}

async fn start_listening(server: &LoopbackServer) -> (String, tokio::task::JoinHandle<()>) {
    let (address, listening) = server.listen().await.expect("listens");
    (format!("ws://{address}/v1/realtime"), listening)
}

/// Returns the call outputs that a server received, by connection.
fn received_outputs(server: &LoopbackServer) -> Vec<(u64, String)> {
    let is_output = |seen: &&windlass_realtime::testing::WireRecord| {
        seen.event["type"] == "conversation.item.create"
            && seen.event["item"]["type"] == "function_call_output"
    };
    let text = |seen: &windlass_realtime::testing::WireRecord| {
        (seen.connection, seen.event["item"]["output"].as_str().unwrap_or_default().to_owned())
    };
    server.wire_log().iter().filter(is_output).map(text).collect()
}

async fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(TEST_TIMEOUT, waiting).await.is_ok(), "it did not come about: {what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_a_tool_it_is_in_doubt_and_asked_and_not_run_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = LoopbackServer::new([LoopbackReply::call("c1", "haul", "{}")]);
    let (address, _listening) = start_listening(&server).await;
    let mut first = ChildSession::start("begin", folder.path(), &address, "c1");
    first.wait_for_line("started c1").await;
    wait_until("the effect", || effect_count(folder.path()) == 1).await;
    first.kill().await;
    let mut second = ChildSession::start("resume", folder.path(), &address, "c1");
    second.wait_for_line("over").await;
    assert!(second.printed_lines.contains(&"held c1 InDoubt".to_owned()), "{:?}", second.printed_lines);
    assert_eq!(effect_count(folder.path()), 1);
    assert_eq!(
        second.history_items(),
        ["Haul", "call c1", "output c1 it was up already", "The result is it was up already"]
    );
    assert_eq!(received_outputs(&server), [(2, "it was up already".to_owned())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_while_a_person_is_asked_it_asks_again_and_runs_once() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("go"), "").expect("is written");
    let server = LoopbackServer::new([LoopbackReply::call("c1", "gated", "{}")]);
    let (address, _listening) = start_listening(&server).await;
    let mut first = ChildSession::start("begin", folder.path(), &address, "c1");
    first.wait_for_line("held c1 Approval").await;
    first.kill().await;
    assert_eq!(effect_count(folder.path()), 0);
    let mut second = ChildSession::start("resume", folder.path(), &address, "c1");
    second.wait_for_line("over").await;
    assert!(second.printed_lines.contains(&"held c1 Approval".to_owned()), "{:?}", second.printed_lines);
    assert_eq!(effect_count(folder.path()), 1);
    assert_eq!(
        second.history_items(),
        ["Haul", "call c1", "output c1 the load is up", "The result is the load is up"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_with_an_output_that_was_not_sent_it_is_sent_and_spoken() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = LoopbackServer::new([LoopbackReply::call("c1", "haul", "{}")]);
    let (address, listening) = start_listening(&server).await;
    let mut first = ChildSession::start("begin", folder.path(), &address, "c1");
    first.wait_for_line("started c1").await;
    // The server goes down, and connections are refused.
    listening.abort();
    let _ = listening.await;
    server.drop_connections();
    first.wait_for_line("disconnected").await;
    std::fs::write(folder.path().join("go"), "").expect("is written");
    first.wait_for_line("settled c1").await;
    let journal = folder.path().join("sessions/talk.jsonl");
    let is_kept = || std::fs::read_to_string(&journal).unwrap_or_default().contains("the load is up");
    wait_until("the output is kept", is_kept).await;
    first.kill().await;
    assert_eq!(received_outputs(&server), []);
    let (address, _listening) = start_listening(&server).await;
    let mut second = ChildSession::start("resume", folder.path(), &address, "c1");
    second.wait_for_line("over").await;
    assert_eq!(effect_count(folder.path()), 1);
    assert_eq!(received_outputs(&server), [(2, "the load is up".to_owned())]);
    assert_eq!(
        second.history_items(),
        ["Haul", "call c1", "output c1 the load is up", "The result is the load is up"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_process_decides_is_seen_by_the_session_that_waits() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("go"), "").expect("is written");
    let server = LoopbackServer::new([LoopbackReply::call("c1", "gated", "{}")]);
    let (address, _listening) = start_listening(&server).await;
    let mut session = ChildSession::start("begin", folder.path(), &address, "c1");
    session.wait_for_line("held c1 Approval").await;
    // The held call is reported before the run is paused in the store; the command succeeds once it is.
    loop {
        let mut other = ChildSession::start("approve", folder.path(), &address, "c1");
        other.wait_for_line("over").await;
        if other.printed_lines.contains(&"decided true".to_owned()) {
            break;
        }
    }
    session.wait_for_line("settled c1").await;
    session.wait_for_line("turn ended").await;
    assert_eq!(effect_count(folder.path()), 1);
    assert_eq!(received_outputs(&server), [(1, "the load is up".to_owned())]);
    session.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_an_idempotent_tool_it_runs_again_under_the_same_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = LoopbackServer::new([LoopbackReply::call("c1", "keyed", "{}")]);
    let (address, _listening) = start_listening(&server).await;
    let mut first = ChildSession::start("begin", folder.path(), &address, "c1");
    first.wait_for_line("started c1").await;
    wait_until("the effect", || effect_count(folder.path()) == 1).await;
    first.kill().await;
    std::fs::write(folder.path().join("go"), "").expect("is written");
    let mut second = ChildSession::start("resume", folder.path(), &address, "c1");
    second.wait_for_line("over").await;
    let keys = effect_keys(folder.path());
    assert_eq!((keys.len(), &keys[0]), (2, &keys[1]));
    assert_eq!(received_outputs(&server), [(2, "the load is up".to_owned())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_decided_while_no_process_lived_counts_and_runs_once() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("go"), "").expect("is written");
    let server = LoopbackServer::new([LoopbackReply::call("c1", "gated", "{}")]);
    let (address, _listening) = start_listening(&server).await;
    let mut first = ChildSession::start("begin", folder.path(), &address, "c1");
    first.wait_for_line("held c1 Approval").await;
    // The event is reported before the entry is on disk.
    let runs = open_store(folder.path());
    let is_kept = async {
        loop {
            for run in runs.list_runs(&windlass::store::RunQuery::default()).await.expect("is read") {
                let paused = windlass::store::load_paused(&*runs, &run.run).await;
                if paused.is_ok_and(|paused| !paused.pending_calls().is_empty()) {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, is_kept).await.expect("the question is kept");
    first.kill().await;
    let mut other = ChildSession::start("approve", folder.path(), &address, "c1");
    other.wait_for_line("over").await;
    assert!(other.printed_lines.contains(&"decided true".to_owned()), "{:?}", other.printed_lines);
    let mut second = ChildSession::start("resume", folder.path(), &address, "nobody");
    second.wait_for_line("over").await;
    assert!(!second.printed_lines.iter().any(|said| said.starts_with("held")), "{:?}", second.printed_lines);
    assert_eq!(effect_count(folder.path()), 1);
}

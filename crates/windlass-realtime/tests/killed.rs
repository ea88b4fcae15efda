//! Real processes that are killed in the middle of a session, and others that go on with it: nothing happens twice, what
//! is in doubt is asked, what was not delivered is, and the history is whole.
//!
//! The processes are this test's own binary, started again with a part to play. The server is in the test itself.

#![cfg(unix)]
#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use windlass::core::{Decision, OutputContent, Reach};
use windlass::prelude::*;
use windlass::{Effect, SqliteStore, Store};
use windlass_realtime::openai::OpenAi;
use windlass_realtime::testing::{Loopback, Reply};
use windlass_realtime::{FolderJournal, LiveEvent, LiveItemKind, Realtime, Reconnect};

const PART: &str = "WINDLASS_TEST_PART";
const FOLDER: &str = "WINDLASS_TEST_FOLDER";
const ADDRESS: &str = "WINDLASS_TEST_ADDRESS";
const CALL: &str = "WINDLASS_TEST_CALL";

/// How long a process that was killed owns its runs.
const LEASE: Duration = Duration::from_secs(2);
/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);

/// What a started process does. In the test run itself, nothing.
#[tokio::test]
async fn a_part_to_play() {
    let Ok(part) = std::env::var(PART) else { return };
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("a folder"));
    let call = std::env::var(CALL).expect("a call");
    match part.as_str() {
        "begin" => begin(&folder).await,
        "resume" => resume(&folder, &call).await,
        "approve" => approve(&folder, &call).await,
        other => panic!("no such part: {other}"),
    }
}

fn store(folder: &Path) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(folder.join("runs.db")).expect("a store"))
}

fn effects(folder: &Path) -> usize {
    keys(folder).len()
}

/// The keys under which something was done to the world.
fn keys(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("effects")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// A tool that does something to the world, once, and then waits for a file before it says so.
fn tool(name: &str, folder: &Path) -> Tool {
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

fn realtime(folder: &Path) -> Realtime {
    let keyed = tool("keyed", folder).effect(Effect::Idempotent);
    let gated = tool("gated", folder).approve_always();
    let agent = Agent::new("desk").tools((tool("haul", folder), gated, keyed));
    let address = std::env::var(ADDRESS).expect("an address");
    Realtime::new(agent, OpenAi::at(address))
        .session_id("talk")
        .store(store(folder))
        .journal(FolderJournal::new(folder.join("sessions")))
        .lease(LEASE)
        // The connection may be gone for long.
        .reconnect(Reconnect { attempts: 1000, ..Reconnect::default() })
}

fn say(text: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n> {text}").and_then(|()| out.flush()).expect("somebody listens");
}

/// Begins the session, and talks until it is killed.
async fn begin(folder: &Path) {
    let session = realtime(folder).connect().await.expect("connects");
    let mut events = session.events();
    session.say("Haul").await.expect("is there");
    while let Some(event) = events.next().await {
        tell(&event);
    }
}

fn tell(event: &LiveEvent) {
    match event {
        LiveEvent::CallHeld { pending } => say(format!("held {} {:?}", pending.call(), pending.reason)),
        LiveEvent::CallStarted { call, .. } => say(format!("started {call}")),
        LiveEvent::CallSettled { call, .. } => say(format!("settled {call}")),
        LiveEvent::TurnEnded { .. } => say("turn ended"),
        LiveEvent::Disconnected { .. } => say("disconnected"),
        LiveEvent::Error(error) => say(format!("error {error}")),
        _ => {}
    }
}

/// Goes on with the session, answers what is asked, and says what was said when the result has been spoken.
async fn resume(folder: &Path, call: &str) {
    let session = realtime(folder).resume().await.expect("resumes");
    let mut events = session.events();
    let is_spoken = |item: &windlass_realtime::LiveItem| item.text().starts_with("The result is");
    while let Some(event) = events.next().await {
        tell(&event);
        match event {
            LiveEvent::CallHeld { pending } if pending.call().as_str() == call => {
                let decision = match pending.reason {
                    windlass::core::HoldReason::InDoubt => {
                        Decision::Happened { output: OutputContent::Text("it was up already".to_owned()) }
                    }
                    _ => Decision::Approve,
                };
                session.decide(call, decision, Reach::Call, None).await.expect("is there").expect("counts");
            }
            LiveEvent::TurnEnded { .. } => {
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
            LiveItemKind::Call { call, .. } => say(format!("item call {call}")),
            LiveItemKind::Output { call, text } => say(format!("item output {call} {text}")),
            _ => say(format!("item {}", item.text())),
        }
    }
    say("over");
}

/// Decides in the store, as a command would.
async fn approve(folder: &Path, call: &str) {
    let store = store(folder);
    for run in store.runs().await.expect("is read") {
        let decided =
            windlass::store::decide(&*store, &run.run, call, Decision::Approve, Reach::Call, "ada").await;
        say(format!("decided {}", decided.is_ok()));
    }
    say("over");
}

/// A process that plays a part.
struct Playing {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    said: Vec<String>,
}

impl Playing {
    fn start(part: &str, folder: &Path, address: &str, call: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "a_part_to_play", "--nocapture"])
            .env(PART, part)
            .env(FOLDER, folder)
            .env(ADDRESS, address)
            .env(CALL, call)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
        Self { child, lines, said: Vec::new() }
    }

    /// Listens until it says this.
    async fn until(&mut self, wanted: &str) {
        let listening = async {
            while let Some(line) = self.lines.next_line().await.expect("text") {
                if let Some(said) = line.strip_prefix("> ") {
                    self.said.push(said.to_owned());
                    if said.starts_with(wanted) {
                        return true;
                    }
                }
            }
            false
        };
        let found = tokio::time::timeout(LONG, listening).await;
        assert!(matches!(found, Ok(true)), "it did not say `{wanted}`: {:?}", self.said);
    }

    /// Ends it as the system does when memory runs out: without a word.
    async fn kill(mut self) {
        self.child.kill().await.expect("it is killed");
    }

    fn items(&self) -> Vec<&str> {
        self.said.iter().filter_map(|said| said.strip_prefix("item ")).collect()
    }
}

async fn listen(server: &Loopback) -> (String, tokio::task::JoinHandle<()>) {
    let (address, listening) = server.listen().await.expect("listens");
    (format!("ws://{address}/v1/realtime"), listening)
}

/// The outputs that a server was told, by connection.
fn outputs(server: &Loopback) -> Vec<(u64, String)> {
    let is_output = |seen: &&windlass_realtime::testing::Seen| {
        seen.event["type"] == "conversation.item.create"
            && seen.event["item"]["type"] == "function_call_output"
    };
    let text = |seen: &windlass_realtime::testing::Seen| {
        (seen.connection, seen.event["item"]["output"].as_str().unwrap_or_default().to_owned())
    };
    server.seen().iter().filter(is_output).map(text).collect()
}

async fn soon(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(LONG, waiting).await.is_ok(), "it did not come about: {what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_a_tool_it_is_in_doubt_and_asked_and_not_run_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Loopback::new([Reply::call("c1", "haul", "{}")]);
    let (address, _listening) = listen(&server).await;
    let mut first = Playing::start("begin", folder.path(), &address, "c1");
    first.until("started c1").await;
    soon("the effect", || effects(folder.path()) == 1).await;
    first.kill().await;
    let mut second = Playing::start("resume", folder.path(), &address, "c1");
    second.until("over").await;
    assert!(second.said.contains(&"held c1 InDoubt".to_owned()), "{:?}", second.said);
    assert_eq!(effects(folder.path()), 1);
    assert_eq!(
        second.items(),
        ["Haul", "call c1", "output c1 it was up already", "The result is it was up already"]
    );
    assert_eq!(outputs(&server), [(2, "it was up already".to_owned())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_while_a_person_is_asked_it_asks_again_and_runs_once() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("go"), "").expect("is written");
    let server = Loopback::new([Reply::call("c1", "gated", "{}")]);
    let (address, _listening) = listen(&server).await;
    let mut first = Playing::start("begin", folder.path(), &address, "c1");
    first.until("held c1 Approval").await;
    first.kill().await;
    assert_eq!(effects(folder.path()), 0);
    let mut second = Playing::start("resume", folder.path(), &address, "c1");
    second.until("over").await;
    assert!(second.said.contains(&"held c1 Approval".to_owned()), "{:?}", second.said);
    assert_eq!(effects(folder.path()), 1);
    assert_eq!(
        second.items(),
        ["Haul", "call c1", "output c1 the load is up", "The result is the load is up"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_with_an_output_that_was_not_sent_it_is_sent_and_spoken() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Loopback::new([Reply::call("c1", "haul", "{}")]);
    let (address, listening) = listen(&server).await;
    let mut first = Playing::start("begin", folder.path(), &address, "c1");
    first.until("started c1").await;
    // The server goes, and nobody is let in any more.
    listening.abort();
    let _ = listening.await;
    server.hang_up();
    first.until("disconnected").await;
    std::fs::write(folder.path().join("go"), "").expect("is written");
    first.until("settled c1").await;
    let journal = folder.path().join("sessions/talk.jsonl");
    let is_kept = || std::fs::read_to_string(&journal).unwrap_or_default().contains("the load is up");
    soon("the output is kept", is_kept).await;
    first.kill().await;
    assert_eq!(outputs(&server), []);
    let (address, _listening) = listen(&server).await;
    let mut second = Playing::start("resume", folder.path(), &address, "c1");
    second.until("over").await;
    assert_eq!(effects(folder.path()), 1);
    assert_eq!(outputs(&server), [(2, "the load is up".to_owned())]);
    assert_eq!(
        second.items(),
        ["Haul", "call c1", "output c1 the load is up", "The result is the load is up"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_process_decides_is_seen_by_the_session_that_waits() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("go"), "").expect("is written");
    let server = Loopback::new([Reply::call("c1", "gated", "{}")]);
    let (address, _listening) = listen(&server).await;
    let mut session = Playing::start("begin", folder.path(), &address, "c1");
    session.until("held c1 Approval").await;
    // The question is told of before the run has come to rest; the command finds it when it has.
    loop {
        let mut other = Playing::start("approve", folder.path(), &address, "c1");
        other.until("over").await;
        if other.said.contains(&"decided true".to_owned()) {
            break;
        }
    }
    session.until("settled c1").await;
    session.until("turn ended").await;
    assert_eq!(effects(folder.path()), 1);
    assert_eq!(outputs(&server), [(1, "the load is up".to_owned())]);
    session.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_an_idempotent_tool_it_runs_again_under_the_same_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Loopback::new([Reply::call("c1", "keyed", "{}")]);
    let (address, _listening) = listen(&server).await;
    let mut first = Playing::start("begin", folder.path(), &address, "c1");
    first.until("started c1").await;
    soon("the effect", || effects(folder.path()) == 1).await;
    first.kill().await;
    std::fs::write(folder.path().join("go"), "").expect("is written");
    let mut second = Playing::start("resume", folder.path(), &address, "c1");
    second.until("over").await;
    let keys = keys(folder.path());
    assert_eq!((keys.len(), &keys[0]), (2, &keys[1]));
    assert_eq!(outputs(&server), [(2, "the load is up".to_owned())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_decided_while_no_process_lived_counts_and_runs_once() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("go"), "").expect("is written");
    let server = Loopback::new([Reply::call("c1", "gated", "{}")]);
    let (address, _listening) = listen(&server).await;
    let mut first = Playing::start("begin", folder.path(), &address, "c1");
    first.until("held c1 Approval").await;
    // It is told before it is on the disk.
    let runs = store(folder.path());
    let is_kept = async {
        loop {
            for run in runs.runs().await.expect("is read") {
                let paused = windlass::store::paused(&*runs, &run.run).await;
                if paused.is_ok_and(|paused| !paused.pending().is_empty()) {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LONG, is_kept).await.expect("the question is kept");
    first.kill().await;
    let mut other = Playing::start("approve", folder.path(), &address, "c1");
    other.until("over").await;
    assert!(other.said.contains(&"decided true".to_owned()), "{:?}", other.said);
    let mut second = Playing::start("resume", folder.path(), &address, "nobody");
    second.until("over").await;
    assert!(!second.said.iter().any(|said| said.starts_with("held")), "{:?}", second.said);
    assert_eq!(effects(folder.path()), 1);
}

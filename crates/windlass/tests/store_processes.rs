//! Real processes on one file: they compete for a run, receipts and a session, are killed while writing, and
//! fill the disk. The processes are this test binary, started again with a part to play.

#![cfg(all(feature = "sqlite", unix))]
#![allow(clippy::expect_used)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use windlass::core::{
    canonical::Digest,
    id::{RunId, SessionId, Timestamp},
    item::Item,
    journal::{HashChain, InputAdded, JournalEntry, JournalLine, JournalRecord, decode_lines},
};
use windlass::prelude::*;
use windlass::session::SessionStore;
use windlass::store::{
    DerivedWrites, Durability, LeaseClaim, LeaseObserver, MemoryStore, ReceiptClaim, ReceiptKey,
    ReceiptWrite, RunQuery, Store, list_all_runs, load_paused,
};
use windlass::{error::StoreErrorKind, store::SqliteStore};

const PART_VARIABLE: &str = "WINDLASS_TEST_PART";
const FILE_VARIABLE: &str = "WINDLASS_TEST_FILE";
const NAME_VARIABLE: &str = "WINDLASS_TEST_NAME";

/// Entry point of a child process. Does nothing in the test run itself.
#[tokio::test]
async fn a_part_to_play() {
    let Ok(part) = std::env::var(PART_VARIABLE) else { return };
    let path = PathBuf::from(std::env::var_os(FILE_VARIABLE).expect("a file"));
    let name = std::env::var(NAME_VARIABLE).expect("a name");
    if part == "open" {
        return open_at_the_same_time(&path, &name);
    }
    let store = SqliteStore::open(&path).expect("opens");
    match part.as_str() {
        "run" => compete_for_run(&store, &name).await,
        "receipt" => compete_for_receipts(&store, &name, &path).await,
        "session" => compete_for_session(&store, &name).await,
        "turns" => add_turns_from_another_store(store, &name).await,
        "hold" => hold_session_until_killed(store).await,
        "append" => append_until_killed(store).await,
        "start" => start_runs_until_killed(store, &name).await,
        "fill" => append_until_full(&store, &name).await,
        "environment" => print_line("path", SqliteStore::from_env().expect("opens").path().display()),
        other => panic!("no such part: {other}"),
    }
}

fn child_command(part: &str, path: &Path, name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["a_part_to_play", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(PART_VARIABLE, part).env(FILE_VARIABLE, path).env(NAME_VARIABLE, name).stdout(Stdio::piped());
    command
}

fn print_line(word: &str, what: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{word}: {what}").and_then(|()| out.flush()).expect("somebody listens");
}

/// Returns the text after `word: `, if the line starts with it.
fn parse_line(line: &str, word: &str) -> Option<String> {
    line.strip_prefix(word)?.strip_prefix(": ").map(str::to_owned)
}

/// Plays a part in several concurrent processes. Returns the lines that each printed after `word`.
fn run_children(part: &str, path: &Path, word: &str, names: &[&str]) -> Vec<Vec<String>> {
    let children: Vec<Child> =
        names.iter().map(|name| child_command(part, path, name).spawn().expect("started")).collect();
    let played = children.into_iter().map(|child| {
        let output = child.wait_with_output().expect("it ends");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success(), "{text}");
        text.lines().filter_map(|line| parse_line(line, word)).collect()
    });
    played.collect()
}

fn current_time() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    Timestamp(u64::try_from(since.as_millis()).expect("not that late"))
}

fn lease_claim(owner: &str, millis: u64) -> LeaseClaim<'_> {
    LeaseClaim { owner, now: current_time(), duration: Duration::from_millis(millis) }
}

/// Returns the next journal line, with a name in it.
fn next_line(before: &[JournalLine], by: &str) -> JournalLine {
    let mut chain = before.last().map_or_else(HashChain::default, |line| HashChain::from_head(line.hash));
    let items = vec![Arc::new(Item::user(by))];
    let entry = JournalEntry::InputAdded(InputAdded { items, order: None });
    chain.append(&JournalRecord { seq: before.len() as u64, at: current_time(), path: Vec::new(), entry })
}

/// Opens new files, each at the same time as the other processes.
fn open_at_the_same_time(path: &Path, name: &str) {
    for round in 0..OPEN_ROUNDS {
        let path = path.with_file_name(format!("{round}.db"));
        fs::write(path.with_extension(name), "").expect("written");
        let is_ready = |name| path.with_extension(name).exists();
        while !OPENERS.into_iter().all(is_ready) {
            std::hint::spin_loop();
        }
        SqliteStore::open(&path).expect("opens");
    }
}

const OPEN_ROUNDS: usize = 25;
const OPENERS: [&str; 3] = ["ann", "bea", "cem"];

#[test]
fn processes_may_make_a_file_at_the_same_time() {
    let folder = tempfile::tempdir().expect("a folder");
    run_children("open", &folder.path().join("store.db"), "", &OPENERS);
}

const CONTESTED_LINES: usize = 150;

/// Acquires the run whenever it is free and appends a few lines; sometimes sleeps until another process has
/// taken over.
async fn compete_for_run(store: &SqliteStore, name: &str) {
    let run = RunId::from("run");
    let (mut kept, mut fenced) = (0, 0);
    let observer = LeaseObserver::new();
    for round in 0.. {
        let lease = match observer.acquire(store, &run, lease_claim(name, 40)).await {
            Ok(lease) => lease,
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::LeaseHeld, "{error}");
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
        };
        let mut lines = Store::load_journal(store, &run, 0).await.expect("read");
        if lines.len() >= CONTESTED_LINES {
            store.release_lease(&lease).await.expect("given back");
            break;
        }
        if round % 4 == 0 {
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        for _ in 0..3 {
            let line = next_line(&lines, name);
            match Store::append_journal(
                store,
                &lease,
                lines.len() as u64,
                vec![line.clone()],
                Durability::Sync,
            )
            .await
            {
                Ok(()) => {
                    kept += 1;
                    lines.push(line);
                }
                Err(error) => {
                    assert_eq!(error.kind(), StoreErrorKind::Fenced, "{error}");
                    fenced += 1;
                    break;
                }
            }
        }
        store.release_lease(&lease).await.expect("given back, or taken over");
        // Gives the other processes a chance.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    print_line("kept", kept);
    print_line("kept", fenced);
}

#[tokio::test]
async fn two_processes_fight_over_a_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    let store = SqliteStore::open(&path).expect("opens");
    let lease = store
        .create_run(&"run".into(), &"agent".into(), lease_claim("parent", 10), Vec::new())
        .await
        .expect("made");
    store.release_lease(&lease).await.expect("given back");
    let said = run_children("run", &path, "kept", &["ann", "bea", "cem"]);
    let numbers: Vec<Vec<usize>> = said
        .iter()
        .map(|said| said.iter().map(|number| number.parse().expect("a number")).collect())
        .collect();
    let lines = Store::load_journal(&store, &"run".into(), 0).await.expect("read");
    let records = decode_lines(&lines).expect("the chain holds");
    let mut by: BTreeMap<String, usize> = BTreeMap::new();
    for record in &records {
        let JournalEntry::InputAdded(added) = &record.entry else { panic!("{record:?}") };
        let Item::Message(message) = &*added.items[0] else { panic!("{added:?}") };
        *by.entry(message.text()).or_default() += 1;
    }
    // Every acknowledged line is there exactly once, and there are no other lines.
    for (name, numbers) in ["ann", "bea", "cem"].into_iter().zip(&numbers) {
        assert_eq!(by.get(name).copied().unwrap_or_default(), numbers[0], "{name}: {numbers:?}, {by:?}");
    }
    assert!(by.len() > 1, "more than one had a turn: {by:?}");
    assert!(numbers.iter().any(|numbers| numbers[1] > 0), "somebody came late and was refused: {numbers:?}");
}

const RECEIPT_COUNT: usize = 12;

/// Makes a call whenever it holds the claim, and records it in a file; otherwise waits for the receipt.
async fn compete_for_receipts(store: &SqliteStore, name: &str, path: &Path) {
    let lease = store
        .create_run(&name.into(), &"agent".into(), lease_claim(name, 0), Vec::new())
        .await
        .expect("made");
    for call in 0..RECEIPT_COUNT {
        let key = ReceiptKey { scope: String::new(), digest: Digest::of_text(&call.to_string()) };
        loop {
            match store.claim_receipt(&key, lease_claim(name, 5_000), None).await.expect("answered") {
                ReceiptClaim::Acquired { .. } => {
                    let ledger = path.with_extension("ledger");
                    let mut ledger =
                        fs::OpenOptions::new().create(true).append(true).open(ledger).expect("opens");
                    writeln!(ledger, "{call}").expect("written");
                    tokio::time::sleep(Duration::from_millis(15)).await;
                    let output = format!("{call} by {name}").into();
                    let receipt =
                        ReceiptWrite { key: key.clone(), owner: name.to_owned(), output, expires_at: None };
                    let writes = DerivedWrites { receipts: vec![receipt], ..DerivedWrites::default() };
                    store
                        .append_with_writes(&lease, 0, Vec::new(), Durability::Sync, writes)
                        .await
                        .expect("kept");
                }
                ReceiptClaim::InProgress { .. } => tokio::time::sleep(Duration::from_millis(2)).await,
                ReceiptClaim::Completed(output) => {
                    print_line("receipt", output.text());
                    break;
                }
            }
        }
    }
}

#[test]
fn two_processes_share_one_body_per_receipt() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    let said = run_children("receipt", &path, "receipt", &["ann", "bea", "cem"]);
    assert_eq!(said[0].len(), RECEIPT_COUNT);
    assert!(said.iter().all(|receipts| *receipts == said[0]), "all have the same receipts: {said:?}");
    let ledger = fs::read_to_string(path.with_extension("ledger")).expect("can be read");
    let made: Vec<usize> = ledger.lines().map(|call| call.parse().expect("a number")).collect();
    assert_eq!(made, (0..RECEIPT_COUNT).collect::<Vec<_>>(), "every call was made once");
}

const BATCH_COUNT: usize = 40;

async fn compete_for_session(store: &SqliteStore, name: &str) {
    for batch in 0..BATCH_COUNT {
        let items = (0..3).map(|one| Arc::new(Item::user(format!("{name} {batch} {one}")))).collect();
        SessionStore::append_items(store, &"session".into(), items).await.expect("kept");
    }
}

#[tokio::test]
async fn two_processes_add_to_a_session_and_lose_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    let names = ["ann", "bea", "cem"];
    run_children("session", &path, "", &names);
    let store = SqliteStore::open(&path).expect("opens");
    let state = SessionStore::load_session(&store, &SessionId::from("session")).await.expect("read");
    assert_eq!(
        (state.items.len(), state.version),
        (3 * BATCH_COUNT * names.len(), (BATCH_COUNT * names.len()) as u64)
    );
    let mut due: BTreeMap<&str, usize> = BTreeMap::new();
    for batch in state.items.chunks(3) {
        let is_next = |name: &&str| {
            let number = due.get(name).copied().unwrap_or_default();
            batch.iter().enumerate().all(|(at, item)| **item == Item::user(format!("{name} {number} {at}")))
        };
        let name = names.into_iter().find(is_next).expect("a whole batch, in its writer's order");
        *due.entry(name).or_default() += 1;
    }
}

const TURN_COUNT: usize = 12;

/// Returns an agent whose every run makes a call that takes a while.
fn slow_agent(name: &str, wait: Duration) -> Agent {
    let tool = Tool::dynamic(
        "wait",
        "Waits.",
        json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        move |_, _| async move {
            tokio::time::sleep(wait).await;
            Ok::<_, ToolError>("waited".to_owned())
        },
    );
    let replies =
        [ScriptedResponse::call("c1", "wait", json!({})), ScriptedResponse::text(format!("done by {name}"))];
    Agent::new("agent").model(ScriptedModel::new(replies)).tools(tool)
}

/// Adds turns to a session of the file, with runs that are in a store of this process.
async fn add_turns_from_another_store(sessions: SqliteStore, name: &str) {
    let sessions = Arc::new(sessions);
    let runs = Arc::new(MemoryStore::default());
    for number in 0..TURN_COUNT {
        let session = Session::new("session", sessions.clone());
        let run = slow_agent(name, Duration::from_millis(5)).run(format!("{name} {number}"));
        run.session(&session).store(runs.clone()).await.expect("it ends");
    }
}

/// One run at a time appends to a session, also where the runs are in other stores of other processes.
#[tokio::test]
async fn runs_of_other_stores_and_processes_add_whole_turns_to_a_session() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    let names = ["ann", "bea"];
    run_children("turns", &path, "", &names);
    let store = SqliteStore::open(&path).expect("opens");
    let state = SessionStore::load_session(&store, &SessionId::from("session")).await.expect("read");
    let texts: Vec<String> = state
        .items
        .iter()
        .map(|item| match &**item {
            Item::Message(message) => message.text(),
            Item::Call(_) => "call".to_owned(),
            Item::Output(_) => "output".to_owned(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(texts.len(), 4 * TURN_COUNT * names.len());
    for turn in texts.chunks(4) {
        let name = turn[0].split(' ').next().unwrap_or_default();
        assert!(names.contains(&name), "{turn:?}");
        assert_eq!(turn[1..], ["call", "output", &format!("done by {name}")], "the runs are not interleaved");
    }
}

/// Holds a session with a run that never ends.
async fn hold_session_until_killed(sessions: SqliteStore) {
    let session = Session::new("session", Arc::new(sessions));
    let run = slow_agent("holder", Duration::from_secs(3_600)).run("hold").session(&session);
    let mut stream = run.stream();
    while let Some(event) = stream.next().await {
        if matches!(event.kind, RunEventKind::CallStarted { .. }) {
            print_line("held", "session");
        }
    }
}

#[tokio::test]
async fn a_session_whose_process_was_killed_is_free_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    let mut child = child_command("hold", &path, "holder").spawn().expect("started");
    let mut lines = BufReader::new(child.stdout.take().expect("its lines")).lines();
    lines
        .find(|line| line.as_ref().is_ok_and(|line| line.starts_with("held")))
        .expect("it holds")
        .expect("read");
    let sessions = Arc::new(SqliteStore::open(&path).expect("opens"));
    let session = Session::new("session", sessions);
    let refused = || {
        let agent = slow_agent("other", Duration::ZERO);
        agent.run("other").session(&session).on_session_busy(windlass::run::OnSessionBusy::Refuse)
    };
    let busy = refused().await.expect_err("another process holds it");
    assert!(
        matches!(&busy, windlass::error::RunError::Session(error) if error.kind() == StoreErrorKind::SessionBusy),
        "{busy}"
    );
    child.kill().expect("killed");
    child.wait().expect("ended");
    refused().await.expect("its owner has died");
}

/// Appends to several runs concurrently, and prints every acknowledged line.
async fn append_until_killed(store: SqliteStore) {
    let store = Arc::new(store);
    let tasks = (0..4).map(|one| {
        let store = store.clone();
        tokio::spawn(async move {
            let run = RunId::from(format!("run-{one}"));
            let lease = match store.acquire_lease(&run, lease_claim("child", 0), None).await {
                Ok(lease) => lease,
                Err(_) => store
                    .create_run(&run, &"agent".into(), lease_claim("child", 0), Vec::new())
                    .await
                    .expect("made"),
            };
            let mut lines = Store::load_journal(&*store, &run, 0).await.expect("read");
            loop {
                let line = next_line(&lines, &"words ".repeat(20));
                let at = lines.len() as u64;
                let durability = if at % 3 == 1 { Durability::Deferred } else { Durability::Sync };
                Store::append_journal(&*store, &lease, at, vec![line.clone()], durability)
                    .await
                    .expect("kept");
                lines.push(line);
                if durability == Durability::Sync {
                    print_line("acknowledged", format!("{run} {}", lines.len()));
                }
            }
        })
    });
    futures_util::future::join_all(tasks).await;
}

/// Starts runs one after another, and prints a line before each.
async fn start_runs_until_killed(store: SqliteStore, name: &str) {
    let store = Arc::new(store);
    for number in 0.. {
        let agent = Agent::new("starter").model(ScriptedModel::new([ScriptedResponse::text("done")]));
        print_line("starting", number);
        let run = agent.run("go").run_id(format!("{name}-{number}")).store(store.clone());
        run.await.expect("it ends");
    }
}

/// A run exists from its first record on: whenever its process is killed, no run is listed that cannot be recovered.
#[tokio::test]
async fn a_killed_process_leaves_no_run_without_a_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    let mut found = 0;
    for round in 0..12 {
        let mut child = child_command("start", &path, &format!("round-{round}")).spawn().expect("started");
        let out: BufReader<ChildStdout> = BufReader::new(child.stdout.take().expect("its output"));
        let mut lines =
            out.lines().map_while(Result::ok).filter(|line| parse_line(line, "starting").is_some());
        for _ in 0..3 + round {
            lines.next().expect("it goes on until it is killed");
        }
        std::thread::sleep(Duration::from_micros(700 * round));
        child.kill().expect("SIGKILL");
        child.wait().expect("it is dead");
        let store = SqliteStore::open(&path).expect("opens");
        let runs = list_all_runs(&store, RunQuery::default()).await.expect("listed");
        for stored in &runs {
            assert!(stored.record_count > 0, "{stored:?}");
            load_paused(&store, &stored.run).await.unwrap_or_else(|error| panic!("{stored:?}: {error}"));
        }
        found = runs.len();
    }
    assert!(found > 30, "{found} runs");
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_killed_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    let mut acknowledged: BTreeMap<RunId, usize> = BTreeMap::new();
    for round in 0..12 {
        let mut child = child_command("append", &path, "child").spawn().expect("started");
        let out: BufReader<ChildStdout> = BufReader::new(child.stdout.take().expect("its output"));
        let mut heard = 0;
        let mut lines = out.lines().map_while(Result::ok);
        let mut note = |line: &str| {
            let said = parse_line(line, "acknowledged")?;
            let (run, count) = said.split_once(' ')?;
            acknowledged.insert(run.into(), count.parse().ok()?);
            Some(())
        };
        while heard < 40 + 7 * round {
            heard += usize::from(note(&lines.next().expect("it goes on until it is killed")).is_some());
        }
        child.kill().expect("SIGKILL");
        child.wait().expect("it is dead");
        // Acknowledgements printed before the kill count too.
        for line in lines {
            note(&line);
        }
        let store = SqliteStore::open(&path).expect("opens");
        for (run, count) in &acknowledged {
            let lines = Store::load_journal(&store, run, 0).await.expect("read");
            let records = decode_lines(&lines).expect("the chain holds");
            assert!(
                records.len() >= *count,
                "round {round}: {run} has {}, and {count} were told",
                records.len()
            );
        }
    }
    assert_eq!(acknowledged.len(), 4);
}

/// Appends until the disk is full: every line with `Sync`, or two of three lines with `Deferred`.
async fn append_until_full(store: &SqliteStore, name: &str) {
    let run = RunId::from("run");
    let lease = store
        .create_run(&run, &"agent".into(), lease_claim("child", 60_000), Vec::new())
        .await
        .expect("made");
    let (mut lines, mut durable) = (Vec::new(), 0);
    let error = loop {
        let line = next_line(&lines, &"words ".repeat(200));
        let durability =
            if name == "later" && lines.len() % 3 > 0 { Durability::Deferred } else { Durability::Sync };
        match Store::append_journal(store, &lease, lines.len() as u64, vec![line.clone()], durability).await {
            Ok(()) => lines.push(line),
            Err(error) => break error,
        }
        if durability == Durability::Sync {
            durable = lines.len();
        }
    };
    print_line("full", durable);
    print_line("full", lines.len());
    print_line("full", &error);
    // A write queued behind it fails for the same reason, and the stored lines stay readable.
    let next = lines.len() as u64 + 1;
    let behind =
        Store::append_journal(store, &lease, next, vec![next_line(&lines, "x")], Durability::Sync).await;
    print_line("full", format!("{:?} {:?}", error.kind(), behind.expect_err("refused").kind()));
    print_line("full", Store::load_journal(store, &run, 0).await.expect("read").len());
}

#[tokio::test]
async fn a_disk_that_is_full_at_once_keeps_what_was_acknowledged() {
    fill_a_disk("now", 2_000).await;
}

/// Here the database file itself grows, too, and not only the write-ahead log.
#[tokio::test]
async fn a_disk_that_is_full_later_keeps_what_was_acknowledged() {
    fill_a_disk("now", 9_000).await;
}

/// Deferred lines are acknowledged before they are on disk; a later write reports their loss.
#[tokio::test]
async fn a_full_disk_and_lines_for_later() {
    for blocks in 2_000..2_006 {
        fill_a_disk("later", blocks).await;
    }
}

/// Limits the file size of the process to `blocks`, as a full disk would.
async fn fill_a_disk(how: &str, blocks: u32) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    let inner = child_command("fill", &path, how);
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"")]);
    limited.arg(inner.get_program()).args(inner.get_args()).stdout(Stdio::piped());
    for (name, value) in inner.get_envs() {
        limited.env(name, value.expect("a value"));
    }
    let output = limited.output().expect("it ends");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}");
    let said: Vec<String> = text.lines().filter_map(|line| parse_line(line, "full")).collect();
    let [durable, answered, error, kinds, read] = said.as_slice() else { panic!("{text}") };
    let number = |text: &String| text.parse::<usize>().expect("a number");
    let (durable, answered, kept) = (number(durable), number(answered), number(read));
    assert!(durable > 20 && durable <= kept && kept <= answered, "{said:?}");
    assert_eq!(kinds, "Disk Disk", "{said:?}");
    let words =
        if kept == answered { "nothing of this was kept, everything before it was" } else { "were kept" };
    for words in ["run `run`", words] {
        assert!(error.contains(words), "`{words}` is not in: {error}");
    }
    // With free space again, the run continues from its last line.
    let store = SqliteStore::open(&path).expect("opens");
    let lines = Store::load_journal(&store, &"run".into(), 0).await.expect("read");
    assert_eq!(decode_lines(&lines).expect("the chain holds").len(), kept);
    let lease = store.acquire_lease(&"run".into(), lease_claim("child", 1_000), None).await.expect("taken");
    Store::append_journal(&store, &lease, kept as u64, vec![next_line(&lines, "more")], Durability::Sync)
        .await
        .expect("kept");
}

#[test]
fn the_environment_names_the_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    let mut child = child_command("environment", &path, "child");
    let run = |child: &mut Command| {
        let output = child.current_dir(folder.path()).output().expect("it ends");
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines().find_map(|line| parse_line(line, "path")).expect("it says so")
    };
    assert_eq!(run(child.env_remove("WINDLASS_STORE")), "windlass.db");
    assert!(folder.path().join("windlass.db").exists());
    let named = folder.path().join("named").join("other.db");
    assert_eq!(run(child.env("WINDLASS_STORE", &named)), named.display().to_string());
    assert!(named.exists());
}

//! Real processes on one file: they fight over a run, a receipt and a session, are killed in the middle of writing,
//! and run out of disk. The processes are this test's own binary, started again with a part to play.

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
    Chain, Digest, Entry, InputAdded, Item, Line, Record, RunId, SessionId, Timestamp, read_lines,
};
use windlass::session::SessionStore;
use windlass::store::{Durability, LeaseClaim, ReceiptClaim, ReceiptKey, Store};
use windlass::{SqliteStore, StoreErrorKind};

const PART: &str = "WINDLASS_TEST_PART";
const FILE: &str = "WINDLASS_TEST_FILE";
const NAME: &str = "WINDLASS_TEST_NAME";

/// What a started process does. In the test run itself, nothing.
#[tokio::test]
async fn a_part_to_play() {
    let Ok(part) = std::env::var(PART) else { return };
    let path = PathBuf::from(std::env::var_os(FILE).expect("a file"));
    let name = std::env::var(NAME).expect("a name");
    if part == "open" {
        return open_at_the_same_time(&path, &name);
    }
    let store = SqliteStore::open(&path).expect("opens");
    match part.as_str() {
        "run" => fight_over_a_run(&store, &name).await,
        "receipt" => fight_over_receipts(&store, &name, &path).await,
        "session" => fight_over_a_session(&store, &name).await,
        "append" => append_until_killed(store).await,
        "fill" => append_until_full(&store, &name).await,
        "environment" => say("path", SqliteStore::from_env().expect("opens").path().display()),
        other => panic!("no such part: {other}"),
    }
}

fn command(part: &str, path: &Path, name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["a_part_to_play", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(PART, part).env(FILE, path).env(NAME, name).stdout(Stdio::piped());
    command
}

fn say(word: &str, what: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{word}: {what}").and_then(|()| out.flush()).expect("somebody listens");
}

/// What a process says after a word.
fn said(line: &str, word: &str) -> Option<String> {
    line.strip_prefix(word)?.strip_prefix(": ").map(str::to_owned)
}

/// Plays a part in several processes at once. Gives what each said after a word.
fn play(part: &str, path: &Path, word: &str, names: &[&str]) -> Vec<Vec<String>> {
    let children: Vec<Child> =
        names.iter().map(|name| command(part, path, name).spawn().expect("started")).collect();
    let played = children.into_iter().map(|child| {
        let output = child.wait_with_output().expect("it ends");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success(), "{text}");
        text.lines().filter_map(|line| said(line, word)).collect()
    });
    played.collect()
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    Timestamp(u64::try_from(since.as_millis()).expect("not that late"))
}

fn claim(owner: &str, millis: u64) -> LeaseClaim<'_> {
    LeaseClaim::lasting(owner, now(), Duration::from_millis(millis))
}

/// The next line of a journal, with a name in it.
fn next_line(before: &[Line], by: &str) -> Line {
    let mut chain = before.last().map_or_else(Chain::default, |line| Chain::at(line.hash));
    let items = vec![Arc::new(Item::user(by))];
    let entry = Entry::InputAdded(InputAdded { items });
    chain.add(&Record { seq: before.len() as u64, at: now(), path: Vec::new(), entry })
}

/// Opens new files, each at the same time as everybody else.
fn open_at_the_same_time(path: &Path, name: &str) {
    for round in 0..ROUNDS {
        let path = path.with_file_name(format!("{round}.db"));
        fs::write(path.with_extension(name), "").expect("written");
        let is_ready = |name| path.with_extension(name).exists();
        while !OPENERS.into_iter().all(is_ready) {
            std::hint::spin_loop();
        }
        SqliteStore::open(&path).expect("opens");
    }
}

const ROUNDS: usize = 25;
const OPENERS: [&str; 3] = ["ann", "bea", "cem"];

#[test]
fn processes_may_make_a_file_at_the_same_time() {
    let folder = tempfile::tempdir().expect("a folder");
    play("open", &folder.path().join("store.db"), "", &OPENERS);
}

const FIGHT: usize = 150;

/// Takes the run whenever it is free, adds a few lines, and sometimes sleeps until somebody else has taken over.
async fn fight_over_a_run(store: &SqliteStore, name: &str) {
    let run = RunId::from("run");
    let (mut kept, mut fenced) = (0, 0);
    for round in 0.. {
        let lease = match store.acquire(&run, claim(name, 40)).await {
            Ok(lease) => lease,
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::Leased, "{error}");
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
        };
        let mut lines = Store::load(store, &run, 0).await.expect("read");
        if lines.len() >= FIGHT {
            store.release(&lease).await.expect("given back");
            break;
        }
        if round % 4 == 0 {
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        for _ in 0..3 {
            let line = next_line(&lines, name);
            match Store::append(store, &lease, lines.len() as u64, vec![line.clone()], Durability::Now).await
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
        store.release(&lease).await.expect("given back, or taken over");
        // The other one should have a chance.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    say("kept", kept);
    say("kept", fenced);
}

#[tokio::test]
async fn two_processes_fight_over_a_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    let store = SqliteStore::open(&path).expect("opens");
    let lease = store.create(&"run".into(), &"agent".into(), claim("parent", 10)).await.expect("made");
    store.release(&lease).await.expect("given back");
    let said = play("run", &path, "kept", &["ann", "bea", "cem"]);
    let numbers: Vec<Vec<usize>> = said
        .iter()
        .map(|said| said.iter().map(|number| number.parse().expect("a number")).collect())
        .collect();
    let lines = Store::load(&store, &"run".into(), 0).await.expect("read");
    let records = read_lines(&lines).expect("the chain holds");
    let mut by: BTreeMap<String, usize> = BTreeMap::new();
    for record in &records {
        let Entry::InputAdded(added) = &record.entry else { panic!("{record:?}") };
        let Item::Message(message) = &*added.items[0] else { panic!("{added:?}") };
        *by.entry(message.text()).or_default() += 1;
    }
    // Everything that somebody was told is kept is there, once, and nothing else.
    for (name, numbers) in ["ann", "bea", "cem"].into_iter().zip(&numbers) {
        assert_eq!(by.get(name).copied().unwrap_or_default(), numbers[0], "{name}: {numbers:?}, {by:?}");
    }
    assert!(by.len() > 1, "more than one had a turn: {by:?}");
    assert!(numbers.iter().any(|numbers| numbers[1] > 0), "somebody came late and was refused: {numbers:?}");
}

const RECEIPTS: usize = 12;

/// Makes a call whenever it has the right to, and writes down that it did; otherwise waits for the receipt.
async fn fight_over_receipts(store: &SqliteStore, name: &str, path: &Path) {
    for call in 0..RECEIPTS {
        let key = ReceiptKey { scope: String::new(), digest: Digest::of(&call.to_string()) };
        loop {
            match store.claim_receipt(&key, claim(name, 5_000)).await.expect("answered") {
                ReceiptClaim::Mine => {
                    let ledger = path.with_extension("ledger");
                    let mut ledger =
                        fs::OpenOptions::new().create(true).append(true).open(ledger).expect("opens");
                    writeln!(ledger, "{call}").expect("written");
                    tokio::time::sleep(Duration::from_millis(15)).await;
                    store
                        .keep_receipt(&key, name, &format!("{call} by {name}").into(), None)
                        .await
                        .expect("kept");
                }
                ReceiptClaim::Busy { .. } => tokio::time::sleep(Duration::from_millis(2)).await,
                ReceiptClaim::Receipt(output) => {
                    say("receipt", output.text());
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
    let said = play("receipt", &path, "receipt", &["ann", "bea", "cem"]);
    assert_eq!(said[0].len(), RECEIPTS);
    assert!(said.iter().all(|receipts| *receipts == said[0]), "all have the same receipts: {said:?}");
    let ledger = fs::read_to_string(path.with_extension("ledger")).expect("can be read");
    let made: Vec<usize> = ledger.lines().map(|call| call.parse().expect("a number")).collect();
    assert_eq!(made, (0..RECEIPTS).collect::<Vec<_>>(), "every call was made once");
}

const BATCHES: usize = 40;

async fn fight_over_a_session(store: &SqliteStore, name: &str) {
    for batch in 0..BATCHES {
        let items = (0..3).map(|one| Arc::new(Item::user(format!("{name} {batch} {one}")))).collect();
        SessionStore::append(store, &"session".into(), items).await.expect("kept");
    }
}

#[tokio::test]
async fn two_processes_add_to_a_session_and_lose_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    let names = ["ann", "bea", "cem"];
    play("session", &path, "", &names);
    let store = SqliteStore::open(&path).expect("opens");
    let state = SessionStore::load(&store, &SessionId::from("session")).await.expect("read");
    assert_eq!(
        (state.items.len(), state.version),
        (3 * BATCHES * names.len(), (BATCHES * names.len()) as u64)
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

/// Appends to several runs at once, and says what was acknowledged.
async fn append_until_killed(store: SqliteStore) {
    let store = Arc::new(store);
    let tasks = (0..4).map(|one| {
        let store = store.clone();
        tokio::spawn(async move {
            let run = RunId::from(format!("run-{one}"));
            let lease = match store.acquire(&run, claim("child", 0)).await {
                Ok(lease) => lease,
                Err(_) => store.create(&run, &"agent".into(), claim("child", 0)).await.expect("made"),
            };
            let mut lines = Store::load(&*store, &run, 0).await.expect("read");
            loop {
                let line = next_line(&lines, &"words ".repeat(20));
                let at = lines.len() as u64;
                let durability = if at % 3 == 1 { Durability::Later } else { Durability::Now };
                Store::append(&*store, &lease, at, vec![line.clone()], durability).await.expect("kept");
                lines.push(line);
                if durability == Durability::Now {
                    say("acknowledged", format!("{run} {}", lines.len()));
                }
            }
        })
    });
    futures_util::future::join_all(tasks).await;
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_killed_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    let mut acknowledged: BTreeMap<RunId, usize> = BTreeMap::new();
    for round in 0..12 {
        let mut child = command("append", &path, "child").spawn().expect("started");
        let out: BufReader<ChildStdout> = BufReader::new(child.stdout.take().expect("its output"));
        let mut heard = 0;
        let mut lines = out.lines().map_while(Result::ok);
        let mut note = |line: &str| {
            let said = said(line, "acknowledged")?;
            let (run, count) = said.split_once(' ')?;
            acknowledged.insert(run.into(), count.parse().ok()?);
            Some(())
        };
        while heard < 40 + 7 * round {
            heard += usize::from(note(&lines.next().expect("it goes on until it is killed")).is_some());
        }
        child.kill().expect("SIGKILL");
        child.wait().expect("it is dead");
        // What it said until it died counts too.
        for line in lines {
            note(&line);
        }
        let store = SqliteStore::open(&path).expect("opens");
        for (run, count) in &acknowledged {
            let lines = Store::load(&store, run, 0).await.expect("read");
            let records = read_lines(&lines).expect("the chain holds");
            assert!(
                records.len() >= *count,
                "round {round}: {run} has {}, and {count} were told",
                records.len()
            );
        }
    }
    assert_eq!(acknowledged.len(), 4);
}

/// Appends until the disk does not take any more: every line for now, or all but every third for later.
async fn append_until_full(store: &SqliteStore, name: &str) {
    let run = RunId::from("run");
    let lease = store.create(&run, &"agent".into(), claim("child", 60_000)).await.expect("made");
    let (mut lines, mut durable) = (Vec::new(), 0);
    let error = loop {
        let line = next_line(&lines, &"words ".repeat(200));
        let durability =
            if name == "later" && lines.len() % 3 > 0 { Durability::Later } else { Durability::Now };
        match Store::append(store, &lease, lines.len() as u64, vec![line.clone()], durability).await {
            Ok(()) => lines.push(line),
            Err(error) => break error,
        }
        if durability == Durability::Now {
            durable = lines.len();
        }
    };
    say("full", durable);
    say("full", lines.len());
    say("full", &error);
    // What was on its way behind it is refused for the same reason, and what is kept can be read.
    let next = lines.len() as u64 + 1;
    let behind = Store::append(store, &lease, next, vec![next_line(&lines, "x")], Durability::Now).await;
    say("full", format!("{:?} {:?}", error.kind(), behind.expect_err("refused").kind()));
    say("full", Store::load(store, &run, 0).await.expect("read").len());
}

#[tokio::test]
async fn a_disk_that_is_full_at_once_keeps_what_was_acknowledged() {
    fill_a_disk("now", 1_000).await;
}

/// Here the file itself has its share of the disk, not only the log beside it.
#[tokio::test]
async fn a_disk_that_is_full_later_keeps_what_was_acknowledged() {
    fill_a_disk("now", 9_000).await;
}

/// Some lines were answered before the disk had them. Whoever comes after them is told.
#[tokio::test]
async fn a_full_disk_and_lines_for_later() {
    for blocks in 1_000..1_006 {
        fill_a_disk("later", blocks).await;
    }
}

/// The kernel stops the process from making files larger than so many blocks, as a full disk would.
async fn fill_a_disk(how: &str, blocks: u32) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    let inner = command("fill", &path, how);
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"")]);
    limited.arg(inner.get_program()).args(inner.get_args()).stdout(Stdio::piped());
    for (name, value) in inner.get_envs() {
        limited.env(name, value.expect("a value"));
    }
    let output = limited.output().expect("it ends");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}");
    let said: Vec<String> = text.lines().filter_map(|line| said(line, "full")).collect();
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
    // With room again, the run goes on where it was.
    let store = SqliteStore::open(&path).expect("opens");
    let lines = Store::load(&store, &"run".into(), 0).await.expect("read");
    assert_eq!(read_lines(&lines).expect("the chain holds").len(), kept);
    let lease = store.acquire(&"run".into(), claim("child", 1_000)).await.expect("taken");
    Store::append(&store, &lease, kept as u64, vec![next_line(&lines, "more")], Durability::Now)
        .await
        .expect("kept");
}

#[test]
fn the_environment_names_the_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    let mut child = command("environment", &path, "child");
    let run = |child: &mut Command| {
        let output = child.current_dir(folder.path()).output().expect("it ends");
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines().find_map(|line| said(line, "path")).expect("it says so")
    };
    assert_eq!(run(child.env_remove("WINDLASS_STORE")), "windlass.db");
    assert!(folder.path().join("windlass.db").exists());
    let named = folder.path().join("named").join("other.db");
    assert_eq!(run(child.env("WINDLASS_STORE", &named)), named.display().to_string());
    assert!(named.exists());
}

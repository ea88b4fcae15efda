//! A run over many windows whose processes are killed with SIGKILL wherever they are: in a request, a summary, a call, or
//! a write of the file. The processes are this test binary, started again.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use windlass::context::ContextPolicy;
use windlass::core::item::Item;
use windlass::core::journal::{JournalEntry, JournalRecord, encode_journal};
use windlass::core::usage::Usage;
use windlass::error::{RunError, StoreErrorKind};
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse};
use windlass::run::RunResult;
use windlass::store::{SqliteStore, verify_run};

use super::{FaultPlan, INPUT, WindowedModel, assert_replays, count_tokens, hash_items, reader};

const FILE_VARIABLE: &str = "WINDLASS_TEST_KILLED_FILE";
const WINDOW: u64 = 8_000;
const DEFAULT_TURNS: u32 = 250;
/// A later process waits for the lease of a dead one.
const LEASE: Duration = Duration::from_millis(300);

fn turns() -> u32 {
    std::env::var("WINDLASS_KILLED_TURNS")
        .ok()
        .map_or(DEFAULT_TURNS, |turns| turns.parse().expect("a number"))
}

fn print_line(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{text}").and_then(|()| out.flush()).expect("the parent listens");
}

/// A model that tells its parent what it sees before it answers.
struct ToldModel(WindowedModel);

impl Model for ToldModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let (turn, seen, items) = (request.turn, hash_items(request.input), request.input.len());
        print_line(&format!("seen {turn} {seen} {items} {}", count_tokens(&request)));
        let response = self.0.respond(request, deltas).await;
        assert!(response.is_ok(), "no request is too long");
        response
    }
}

/// A model that summarises, slowly enough to be killed.
struct SummaryModel;

impl Model for SummaryModel {
    async fn respond<'a>(
        &'a self,
        _: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        print_line("summary");
        tokio::time::sleep(Duration::from_millis(2)).await;
        let items = vec![Arc::new(Item::assistant("Pages were read."))];
        Ok(ModelResponse { items, usage: Some(Usage::of_tokens(500, 5)), ..ModelResponse::default() })
    }
}

/// Entry point of a process. Does nothing in the test run itself.
#[tokio::test]
async fn a_process_that_will_be_killed() {
    let Some(file) = std::env::var_os(FILE_VARIABLE).map(PathBuf::from) else { return };
    let model = WindowedModel {
        window: WINDOW,
        last_turn: turns(),
        reports_usage: true,
        faults: Arc::new(FaultPlan::default()),
        ..WindowedModel::default()
    };
    let agent = reader(Arc::default()).model(ToldModel(model));
    loop {
        let store = Arc::new(SqliteStore::open(&file).expect("a store").with_snapshot_interval(16));
        let is_known = verify_run(&*store, &"run-1".into()).await.is_ok();
        let run = match is_known {
            true => agent.recover("run-1", store),
            false => agent.run(INPUT).run_id("run-1").store(store),
        };
        let policy = ContextPolicy::with_window(WINDOW).summarise_with(SummaryModel).keep_newest(4);
        match run.max_turns(100_000).lease_duration(LEASE).context_policy(policy).await {
            Ok(RunResult::Finished(_)) => return print_line("finished"),
            Err(RunError::Store(error)) if error.kind() == StoreErrorKind::LeaseHeld => {
                tokio::time::sleep(LEASE / 4).await;
            }
            other => panic!("it finishes: {other:?}"),
        }
    }
}

/// The views of the model that the processes have reported.
#[derive(Default)]
struct ReportedViews {
    /// Hash of the last view of each turn.
    seen: BTreeMap<u32, u64>,
    /// Items of the last view of each turn.
    items: BTreeMap<u32, u64>,
    largest: u64,
    deaths: u32,
    deaths_in_summaries: u32,
    has_finished: bool,
}

/// Runs a process, and kills it after so many lines.
fn run_process(file: &Path, lines: u64, told: &mut ReportedViews) {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["killed::a_process_that_will_be_killed", "--exact", "--nocapture", "--test-threads=1"]);
    let mut child = command.env(FILE_VARIABLE, file).stdout(Stdio::piped()).spawn().expect("started");
    let (mut count, mut last_is_summary, mut is_killed) = (0, false, false);
    for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
        let line = line.expect("text");
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["seen", turn, hash, items, tokens] => {
                let turn = turn.parse().expect("a number");
                told.seen.insert(turn, hash.parse().expect("a hash"));
                told.items.insert(turn, items.parse().expect("a number"));
                told.largest = told.largest.max(tokens.parse().expect("a number"));
                last_is_summary = false;
            }
            ["summary"] => last_is_summary = true,
            ["finished"] => told.has_finished = true,
            _ => continue,
        }
        count += 1;
        if count >= lines && !is_killed && !told.has_finished {
            // SIGKILL.
            child.kill().expect("it lives");
            is_killed = true;
            told.deaths += 1;
            told.deaths_in_summaries += u32::from(last_is_summary);
        }
    }
    let status = child.wait().expect("it ended");
    assert!(is_killed || status.success(), "{status}");
}

#[tokio::test]
async fn processes_that_are_killed_keep_the_views_of_a_long_run() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let file = folder.path().join("runs.db");
    let mut told = ReportedViews::default();
    let chances = FaultPlan { state: 7.into(), ..FaultPlan::default() };
    while !told.has_finished {
        run_process(&file, 1 + chances.next_random() % 40, &mut told);
        assert!(told.deaths < turns() * 4, "the run goes on");
    }
    assert!(told.deaths > turns() / 40, "{} deaths", told.deaths);
    assert!(told.largest <= WINDOW, "{} tokens", told.largest);
    let store = SqliteStore::open(&file).expect("a store");
    let records = verify_run(&store, &"run-1".into()).await.expect("the journal is intact").records;
    assert_replays(&records, &told.seen);
    let count = |is_counted: fn(&JournalEntry) -> bool| {
        records.iter().filter(|record| is_counted(&record.entry)).count() as u32
    };
    let settled = count(|entry| matches!(entry, JournalEntry::CallSettled(_)));
    assert_eq!(settled, turns() - 1, "every call has its one output");
    let compactions = count(|entry| matches!(entry, JournalEntry::HistoryCompacted(_)));
    assert!(compactions > turns() / 25, "{compactions} compactions");

    // By counts, a turn at the end costs what one at the start did: items of a request, summaries, bytes of the journal.
    let fifth = |turn: u32| (turn * 5 / turns()).min(4) as usize;
    let (mut items, mut summaries, mut bytes) = ([0; 5], [0; 5], [0; 5]);
    for (turn, count) in &told.items {
        items[fifth(*turn)] += count;
    }
    let mut turn = 0;
    for record in &records {
        // A start that is repeated after a crash is no cost of its turn.
        if !matches!(record.entry, JournalEntry::CallStarted(_)) {
            bytes[fifth(turn)] += encode_journal(std::slice::from_ref::<JournalRecord>(record)).len();
        }
        summaries[fifth(turn)] += usize::from(matches!(record.entry, JournalEntry::HistoryCompacted(_)));
        turn += u32::from(matches!(record.entry, JournalEntry::ModelResponded(_)));
    }
    let shown = format!(
        "{} deaths, {} in summaries, {items:?} items, {summaries:?} compactions, {bytes:?} bytes",
        told.deaths, told.deaths_in_summaries
    );
    assert!(items[4] * 10 <= items[1] * 12, "{shown}");
    assert!(summaries[4] <= summaries[1] + 2, "{shown}");
    assert!(bytes[4] * 10 <= bytes[1] * 12, "{shown}");
    println!("{shown}");
}

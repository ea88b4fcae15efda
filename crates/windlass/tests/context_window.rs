//! Runs that outlast the context window of their model: the history is compacted, and the journal says what the model saw.

#![allow(clippy::expect_used)]

#[cfg(unix)]
#[path = "context_window_runs/killed.rs"]
mod killed;

use std::collections::{BTreeMap, BTreeSet};
use std::future::IntoFuture;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::agent::Agent;
use windlass::context::{ContextPolicy, ContextWindowList, ModelWindow};
use windlass::core::failure::RunFailure;
use windlass::core::inspect::ForkChange;
use windlass::core::item::Item;
use windlass::core::journal::{CompactionReason, JournalEntry, JournalRecord, encode_journal};
use windlass::core::run::ReplayedRun;
use windlass::core::tool::ToolEffect;
use windlass::core::usage::Usage;
use windlass::error::RunError;
use windlass::model::{
    DeltaSink, Model, ModelError, ModelErrorKind, ModelRequest, ModelResponse, ModelSettings, RetryAdvice,
    ScriptedModel, ScriptedResponse, describe_item,
};
use windlass::run::{CancelHandle, ModelRetryPolicy, RunRecord, RunResult};
use windlass::session::Session;
use windlass::store::{MemoryStore, SqliteStore, Store};
use windlass::tool::{Tool, ToolContext};

const WINDOW: u64 = 32_000;
const INPUT: &str = "Read them.";

/// Counts the tokens of a request, in another way than the library estimates them.
fn count_tokens(request: &ModelRequest<'_>) -> u64 {
    let items: usize = request.input.iter().map(|item| describe_item(item).len() + 60).sum();
    let tools: usize = request.tools.iter().map(|tool| tool.parameters.to_string().len() + 40).sum();
    (items + tools + request.instructions.unwrap_or_default().len()) as u64 / 4
}

fn hash_items(items: &[Arc<Item>]) -> u64 {
    let mut hasher = DefaultHasher::new();
    items.iter().for_each(|item| describe_item(item).hash(&mut hasher));
    hasher.finish()
}

/// A model with a window. It calls `read` in every turn until the last, and refuses requests that are too long.
#[derive(Default)]
struct WindowedModel {
    window: u64,
    /// The window that the model tells.
    told_window: Option<u64>,
    /// The name of the model.
    name: Option<&'static str>,
    /// True if a refusal names the window.
    refuses_with_figures: bool,
    /// Output tokens that the model asks for if the settings do not say it. They count towards the window.
    output_tokens: u64,
    last_turn: u32,
    is_stored_by_provider: bool,
    reports_usage: bool,
    overflows: AtomicU64,
    largest: AtomicU64,
    /// Number of requests without the input of the run.
    views_without_input: AtomicU64,
    /// Hash of the input of the last request of each turn.
    seen: Mutex<BTreeMap<u32, u64>>,
    faults: Arc<FaultPlan>,
    /// The run that leaves its process after every fortieth turn.
    handover: Arc<Mutex<Option<CancelHandle>>>,
}

/// The random points at which the process dies.
#[derive(Default)]
struct FaultPlan {
    steps_left: AtomicU64,
    state: AtomicU64,
    died: tokio::sync::Notify,
    deaths: AtomicU64,
}

impl FaultPlan {
    fn next_random(&self) -> u64 {
        let next = |state: u64| {
            Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
        };
        let state = self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or_default();
        state >> 33
    }

    /// Never returns at some steps.
    async fn survive(&self) {
        if self.steps_left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.steps_left.store(1 + self.next_random() % 400, Ordering::Relaxed);
            self.deaths.fetch_add(1, Ordering::Relaxed);
            self.died.notify_one();
            std::future::pending::<()>().await;
        }
    }
}

impl Model for WindowedModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        self.faults.survive().await;
        let tokens = count_tokens(&request);
        self.largest.fetch_max(tokens, Ordering::Relaxed);
        assert_pairs(request.input);
        let has_input = request.input.iter().any(|item| **item == Item::user(INPUT));
        self.views_without_input.fetch_add(u64::from(!has_input), Ordering::Relaxed);
        if tokens.saturating_add(self.output_tokens) > self.window {
            self.overflows.fetch_add(1, Ordering::Relaxed);
            let error =
                ModelError::new("the input is too long").with_kind(ModelErrorKind::ContextLengthExceeded);
            return Err(error.with_context_window(self.refuses_with_figures.then_some(self.window)));
        }
        self.seen.lock().expect("free").insert(request.turn, hash_items(request.input));
        if let (0, Some(run)) = (request.turn % 40, &*self.handover.lock().expect("free")) {
            run.detach_after_turn();
        }
        let item = match request.turn {
            turn if turn >= self.last_turn => Item::assistant("All are read."),
            turn => Item::call(format!("c{turn}"), "read", json!({ "page": turn }).to_string()),
        };
        let usage = self.reports_usage.then(|| Usage::of_tokens(tokens, 20));
        Ok(ModelResponse { items: vec![Arc::new(item)], usage, ..ModelResponse::default() })
    }

    fn context_window(&self) -> Option<u64> {
        self.told_window
    }

    fn max_output_tokens(&self, settings: &ModelSettings) -> Option<u64> {
        settings.max_tokens.or(Some(self.output_tokens)).filter(|tokens| *tokens > 0)
    }

    fn name(&self) -> Option<&str> {
        self.name
    }

    fn has_stored_conversation(&self, _: Option<&str>) -> bool {
        self.is_stored_by_provider
    }
}

fn assert_pairs(items: &[Arc<Item>]) {
    let mut open = BTreeSet::new();
    for item in items {
        match &**item {
            Item::Call(call) => assert!(open.insert(call.id.clone()), "{} is called twice", call.id),
            Item::Output(output) => assert!(open.remove(&output.call), "{} has no call", output.call),
            _ => {}
        }
    }
    assert!(open.is_empty(), "calls without outputs: {open:?}");
}

/// An agent whose tool gives pages of about 200 to 4,000 letters.
fn reader(model: Arc<WindowedModel>) -> Agent {
    let faults = model.faults.clone();
    let read = Tool::dynamic(
        "read",
        "Reads a page.",
        json!({ "type": "object" }),
        move |_: ToolContext, args: Value| {
            let faults = faults.clone();
            async move {
                faults.survive().await;
                let page = args["page"].as_u64().unwrap_or_default();
                let words = 20 + (page * 7_919) % 380;
                Ok::<_, String>(format!("page {page}: {}", "lorem ips ".repeat(words as usize)))
            }
        },
    );
    Agent::new("reader")
        .instructions("Read every page.")
        .model(model)
        .tool(read.non_strict().effect(ToolEffect::Pure))
}

/// Plays the journal again and compares what the model saw in each turn.
fn assert_replays_to_the_same_view(record: &RunRecord, model: &WindowedModel) {
    assert_replays(record.journal(), &model.seen.lock().expect("free"));
}

/// Plays a journal again and compares the view of each turn with its hash.
fn assert_replays(records: &[JournalRecord], seen: &BTreeMap<u32, u64>) {
    let mut replay = ReplayedRun::from_first_record(&records[0]).expect("a start");
    let mut turns = 0;
    for entry in &records[1..] {
        if matches!(entry.entry, JournalEntry::ModelResponded(_)) {
            turns += 1;
            let view = hash_items(replay.run.next_model_input());
            assert_eq!(seen.get(&turns), Some(&view), "turn {turns}");
        }
        replay.apply_record(entry).expect("it fits");
    }
    assert_eq!(turns as usize, seen.len());
}

fn compactions(record: &RunRecord) -> Vec<(CompactionReason, u64, u64)> {
    let compactions = record.journal().iter().filter_map(|record| match &record.entry {
        JournalEntry::HistoryCompacted(compacted) => {
            Some((compacted.reason, compacted.tokens_before, compacted.tokens_after))
        }
        _ => None,
    });
    compactions.collect()
}

/// Drives a run to its end, through deaths at random points.
async fn drive_through_deaths(agent: &Agent, model: &WindowedModel, policy: &ContextPolicy) -> RunRecord {
    let store = Arc::new(MemoryStore::default());
    let first = agent.run(INPUT).max_turns(10_000).run_id("run-1").store(store.clone());
    let mut driver = tokio::spawn(first.context_policy(policy.clone()).into_future());
    loop {
        let result = tokio::select! {
            biased;
            result = &mut driver => result.expect("no panic").expect("it ends"),
            () = model.faults.died.notified() => {
                driver.abort();
                driver.await.expect_err("it is gone");
                let again = agent.recover("run-1", store.clone()).context_policy(policy.clone());
                driver = tokio::spawn(again.into_future());
                continue;
            }
        };
        match result {
            RunResult::Finished(finished) => return finished.record,
            other => panic!("it finishes: {other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_of_thousands_of_turns_fits_into_a_window_of_32k_tokens() {
    let turns: u32 =
        std::env::var("WINDLASS_CONTEXT_TURNS").ok().map_or(1_000, |turns| turns.parse().expect("a number"));
    let faults = FaultPlan { steps_left: 150.into(), state: 42.into(), ..FaultPlan::default() };
    let model = Arc::new(WindowedModel {
        window: WINDOW,
        last_turn: turns,
        reports_usage: true,
        faults: Arc::new(faults),
        ..WindowedModel::default()
    });
    let policy = ContextPolicy::with_window(WINDOW);
    let record = drive_through_deaths(&reader(model.clone()), &model, &policy).await;
    let deaths = model.faults.deaths.load(Ordering::Relaxed);
    assert!(deaths >= u64::from(turns) / 250, "it died {deaths} times");
    assert_eq!(model.overflows.load(Ordering::Relaxed), 0, "no request is too long");
    assert_eq!(model.views_without_input.load(Ordering::Relaxed), 0, "the input is pinned");
    assert_replays_to_the_same_view(&record, &model);
    let calls =
        record.journal().iter().filter(|one| matches!(one.entry, JournalEntry::CallSettled(_))).count();
    assert_eq!(calls, turns as usize - 1, "every call has its one output");
    let done = compactions(&record);
    assert!(done.len() > turns as usize / 50, "{} compactions", done.len());
    assert!(done.iter().all(|(reason, before, after)| {
        *reason == CompactionReason::NearContextWindow && after < before && *after <= WINDOW
    }));
    // The cost of a turn does not grow: the journal of the last turns is as long as that of earlier ones.
    let mut sizes = [0; 5];
    let mut turn = 0;
    for record in record.journal() {
        sizes[(turn * 5 / turns as usize).min(4)] += encode_journal(std::slice::from_ref(record)).len();
        turn += usize::from(matches!(record.entry, JournalEntry::ModelResponded(_)));
    }
    assert!(sizes[4] * 10 <= sizes[1] * 11, "bytes in the journal of each fifth of the run: {sizes:?}");
    println!("{deaths} deaths, {} compactions, largest request {:?}, {sizes:?}", done.len(), model.largest);
}

/// A run that opens from a snapshot has copies of its items, also of its input.
#[tokio::test]
async fn the_input_stays_after_recoveries_from_snapshots() {
    let handover = Arc::new(Mutex::new(None));
    let model = Arc::new(WindowedModel {
        window: 4_000,
        last_turn: 200,
        handover: handover.clone(),
        ..WindowedModel::default()
    });
    let (agent, folder) = (reader(model.clone()), tempfile::tempdir().expect("a folder for the test"));
    let store = SqliteStore::open(folder.path().join("runs.db")).expect("a store").with_snapshot_interval(8);
    let store = Arc::new(store);
    let mut run = agent.run(INPUT).max_turns(1_000).run_id("run-1").store(store.clone());
    let mut detachments = 0;
    let record = loop {
        let run_now = run.context_policy(ContextPolicy::with_window(4_000));
        *handover.lock().expect("free") = Some(run_now.cancel_handle());
        match run_now.await.expect("it goes on") {
            RunResult::Finished(finished) => break finished.record,
            RunResult::Detached(_) => {
                let snapshot = store.load_snapshot(&"run-1".into()).await.expect("it can be asked");
                assert!(snapshot.is_some(), "the next driver opens a snapshot");
                detachments += 1;
            }
            other => panic!("it finishes: {other:?}"),
        }
        run = agent.recover("run-1", store.clone());
    };
    assert_eq!(detachments, 4);
    assert!(!record.journal().is_empty() && model.seen.lock().expect("free").len() == 200);
    assert_eq!(model.views_without_input.load(Ordering::Relaxed), 0, "the input is pinned");
}

#[tokio::test]
async fn the_window_that_a_model_tells_is_respected() {
    let model = Arc::new(WindowedModel {
        window: 4_000,
        told_window: Some(4_000),
        last_turn: 60,
        ..WindowedModel::default()
    });
    let finished = reader(model.clone()).run(INPUT).max_turns(100).await.expect("it ends");
    let RunResult::Finished(finished) = finished else { panic!("it finishes") };
    assert_eq!(model.overflows.load(Ordering::Relaxed), 0, "also without the figures of a provider");
    assert!(!compactions(&finished.record).is_empty());
    assert_replays_to_the_same_view(&finished.record, &model);
}

#[tokio::test]
async fn a_conversation_at_the_provider_is_not_compacted() {
    for is_stored_by_provider in [false, true] {
        let model = Arc::new(WindowedModel {
            window: u64::MAX,
            told_window: Some(4_000),
            last_turn: 60,
            is_stored_by_provider,
            ..WindowedModel::default()
        });
        let finished = reader(model.clone()).run(INPUT).max_turns(100).await.expect("it ends");
        assert_eq!(compactions(finished.record()).is_empty(), is_stored_by_provider);
    }
}

#[tokio::test]
async fn an_overflow_no_longer_ends_the_run() {
    let model = || Arc::new(WindowedModel { window: 4_000, last_turn: 60, ..WindowedModel::default() });
    let unaware = model();
    let finished = reader(unaware.clone()).run(INPUT).max_turns(100).await.expect("it ends");
    let RunResult::Finished(finished) = finished else { panic!("it finishes") };
    let overflows = unaware.overflows.load(Ordering::Relaxed);
    let done = compactions(&finished.record);
    let after_overflow =
        done.iter().filter(|(reason, ..)| *reason == CompactionReason::ContextLengthExceeded).count() as u64;
    assert!(overflows > 0 && after_overflow == overflows, "{overflows} {done:?}");
    assert_replays_to_the_same_view(&finished.record, &unaware);
    let strict = reader(model()).run(INPUT).max_turns(100).context_policy(ContextPolicy::disabled()).await;
    let Err(RunError::Failed(failed)) = &strict else { panic!("it fails: {strict:?}") };
    assert!(matches!(failed.failure, RunFailure::ModelRequestFailed { .. }), "{failed:?}");
}

/// Nothing but the refusals tells the window. The runs are long: without learning they overflow about every twelfth turn.
#[tokio::test]
async fn a_refused_request_shows_the_window() {
    for (refuses_with_figures, reports_usage, most) in
        [(true, true, 1), (true, false, 1), (false, true, 2), (false, false, 2)]
    {
        let handover = Arc::new(Mutex::new(None));
        let model = Arc::new(WindowedModel {
            window: 4_000,
            last_turn: 400,
            refuses_with_figures,
            reports_usage,
            handover: handover.clone(),
            ..WindowedModel::default()
        });
        let (agent, folder) = (reader(model.clone()), tempfile::tempdir().expect("a folder for the test"));
        let store = SqliteStore::open(folder.path().join("runs.db")).expect("a store");
        let store = Arc::new(store.with_snapshot_interval(8));
        let mut run = agent.run(INPUT).max_turns(1_000).run_id("run-1").store(store.clone());
        // A later driver knows the window too: from a snapshot, or from the journal.
        let record = loop {
            *handover.lock().expect("free") = Some(run.cancel_handle());
            match run.await.expect("it goes on") {
                RunResult::Finished(finished) => break finished.record,
                RunResult::Detached(_) => run = agent.recover("run-1", store.clone()),
                other => panic!("it finishes: {other:?}"),
            }
        };
        let overflows = model.overflows.load(Ordering::Relaxed);
        assert!((1..=most).contains(&overflows), "{overflows} with {refuses_with_figures} {reports_usage}");
        assert!(compactions(&record).len() > 10, "{:?}", compactions(&record));
        assert_replays_to_the_same_view(&record, &model);
    }
}

#[tokio::test]
async fn the_window_of_a_listed_name_is_respected() {
    let listed = ModelWindow { model: "reader-1".to_owned(), context_window: 4_000 };
    let list = ContextWindowList { models: vec![listed], ..ContextWindowList::empty() };
    for (name, is_known) in [("reader-1-2025-11-01", true), ("reader-2", false)] {
        let model = Arc::new(WindowedModel {
            window: 4_000,
            last_turn: 60,
            name: Some(name),
            ..WindowedModel::default()
        });
        let policy = ContextPolicy::default().window_list(list.clone());
        reader(model.clone()).run(INPUT).max_turns(100).context_policy(policy).await.expect("it ends");
        assert_eq!(model.overflows.load(Ordering::Relaxed) == 0, is_known, "{name}");
    }
}

/// A provider counts the output that a request asks for, also if the settings leave it to the protocol.
#[tokio::test]
async fn the_window_has_space_for_the_output_that_a_model_asks_for_itself() {
    let model = Arc::new(WindowedModel {
        window: 8_000,
        told_window: Some(8_000),
        output_tokens: 3_500,
        last_turn: 60,
        ..WindowedModel::default()
    });
    let finished = reader(model.clone()).run(INPUT).max_turns(100).await.expect("it ends");
    assert_eq!(model.overflows.load(Ordering::Relaxed), 0);
    assert!(!compactions(finished.record()).is_empty());
}

#[tokio::test]
async fn an_input_that_never_fits_fails_at_once() {
    let model = Arc::new(WindowedModel { window: 400, last_turn: 1, ..WindowedModel::default() });
    let failed = reader(model.clone()).run("x".repeat(4_000)).await;
    assert!(matches!(failed, Err(RunError::Failed(_))), "{failed:?}");
    assert_eq!(model.overflows.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_model_summarises_what_is_removed() {
    for (answers, expected) in [(30, "Pages were read."), (0, "were removed")] {
        let model = Arc::new(WindowedModel { window: 4_000, last_turn: 30, ..WindowedModel::default() });
        let usage = Some(Usage::of_tokens(500, 5));
        let summary = |_| ScriptedResponse::text("Pages were read.").usage(usage);
        let summariser = ScriptedModel::new((0..answers).map(summary));
        let policy = ContextPolicy::with_window(4_000).summarise_with(summariser).keep_newest(2);
        let session = Session::in_memory("s1");
        let run = reader(model.clone()).run(INPUT).max_turns(100).context_policy(policy).session(&session);
        let RunResult::Finished(finished) = run.await.expect("it ends") else { panic!("it finishes") };
        let record = &finished.record;
        let replay = windlass::core::run::Run::replay(record.journal()).expect("it adds up");
        let view: Vec<String> = replay.run.history().iter().map(|item| describe_item(item)).collect();
        assert!(view[0].contains(INPUT), "the input is pinned: {view:?}");
        assert!(view[1].contains(expected), "{view:?}");
        assert!(view.len() < 50, "{} items", view.len());
        assert_eq!(session.items().await.expect("the session").len(), 60, "the session keeps everything");
        let summarised = record.usage().input_tokens;
        assert_eq!(summarised > 0, answers > 0, "the summary was paid for: {:?}", record.usage());
        assert_replays_to_the_same_view(record, &model);
    }
}

/// Nothing brings back what a note stands for, so a passing fault of the summarising model is not its last word.
#[tokio::test]
async fn a_summary_whose_request_fails_is_requested_again() {
    let model = Arc::new(WindowedModel { window: 4_000, last_turn: 30, ..WindowedModel::default() });
    let summaries = (0..10).flat_map(|_| {
        let away = ModelError::new("away").with_kind(ModelErrorKind::Overloaded);
        let summary = ScriptedResponse::text("Pages were read.").usage(Some(Usage::of_tokens(500, 5)));
        [ScriptedResponse::error(away.with_retry_advice(RetryAdvice::Safe)), summary]
    });
    let policy =
        ContextPolicy::with_window(4_000).summarise_with(ScriptedModel::new(summaries)).keep_newest(2);
    let retry = ModelRetryPolicy { base_delay: Duration::from_millis(1), ..ModelRetryPolicy::default() };
    let run = reader(model.clone()).run(INPUT).max_turns(100).context_policy(policy).model_retry(retry);
    let RunResult::Finished(finished) = run.await.expect("it ends") else { panic!("it finishes") };
    let view = finished.record.history();
    assert!(!compactions(&finished.record).is_empty(), "it is compacted");
    assert!(view.iter().any(|item| describe_item(item).contains("Pages were read.")));
    let summaries = finished.record.journal().iter().filter_map(|record| match &record.entry {
        JournalEntry::HistoryCompacted(compacted) => compacted.summary_usage,
        _ => None,
    });
    for usage in summaries {
        assert_eq!((usage.requests, usage.unknown_requests), (2, 1), "a failed request, and its repetition");
    }
}

/// A fork after a compaction continues with the view that the model had, not with the whole conversation.
#[tokio::test]
async fn a_fork_of_a_compacted_run_goes_on_with_the_compacted_view() {
    let model = || {
        let told_window = Some(4_000);
        Arc::new(WindowedModel { window: 4_000, told_window, last_turn: 40, ..WindowedModel::default() })
    };
    let store = Arc::new(MemoryStore::default());
    let run = reader(model()).run(INPUT).max_turns(100).run_id("one").store(store.clone());
    let RunResult::Finished(finished) = run.await.expect("it ends") else { panic!("it finishes") };
    let records = finished.record.journal();
    let is_compaction = |record: &&JournalRecord| matches!(record.entry, JournalEntry::HistoryCompacted(_));
    let place = records.iter().rposition(|record| is_compaction(&record)).expect("it was compacted");
    let mut replay = ReplayedRun::from_first_record(&records[0]).expect("a start");
    records[1..=place].iter().for_each(|record| replay.apply_record(record).map(drop).expect("it fits"));
    let (view, turn) = (hash_items(replay.run.next_model_input()), replay.run.turn() + 1);

    let (origin, fork) = ("one".into(), "fork".into());
    windlass::store::fork_run(&*store, &origin, records[place].seq, fork, ForkChange::Unchanged)
        .await
        .expect("it can be forked");
    let again = model();
    reader(again.clone()).recover("fork", store).max_turns(100).await.expect("it ends");
    assert_eq!(again.seen.lock().expect("free").first_key_value(), Some((&turn, &view)));
}

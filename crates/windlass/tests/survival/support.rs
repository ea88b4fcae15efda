//! Test support: runs one scenario on every surface and returns one result to compare.

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::{Handle, RuntimeFlavor};
use windlass::core::{
    id::{CallId, CallPath},
    journal::{CallSettled, JournalEntry, JournalRecord, decode_journal, decode_lines, encode_journal},
    run::{Run, RunAction, RunEnd},
};
use windlass::guardrail::InputGuardrail;
use windlass::hook::{Hook, HookEvent};
use windlass::model::describe_item;
use windlass::prelude::*;
use windlass::run::CancelHandle;
use windlass::{
    core::failure::RunFailure,
    core::journal::CallStatus,
    core::usage::Usage,
    error::RunError,
    event::{RunEvent, RunEventKind},
    run::RunBuilder,
    store::{MemoryStore, Store},
};

/// The way in which a run is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunSurface {
    /// The caller awaits the run.
    Blocking,
    /// The caller watches the run, event by event.
    Streamed,
    /// The run is nested in a call of another agent.
    Nested,
    /// The first driver is lost right after the first model response, and another driver resumes from the text.
    Resumed,
    /// The same, for a nested run.
    NestedResumed,
}

impl RunSurface {
    pub const ALL: [Self; 5] =
        [Self::Blocking, Self::Streamed, Self::Nested, Self::Resumed, Self::NestedResumed];

    fn is_nested(self) -> bool {
        matches!(self, Self::Nested | Self::NestedResumed)
    }

    fn is_resumed(self) -> bool {
        matches!(self, Self::Resumed | Self::NestedResumed)
    }
}

/// A function that configures every run of a scenario.
type ConfigureRun = Arc<dyn Fn(RunBuilder) -> RunBuilder + Send + Sync>;

/// A scenario: an agent on a surface.
pub struct ScenarioRunner {
    surface: RunSurface,
    agent: Agent,
    /// Model of the outer agent, if the surface is nested.
    outer_model: ScriptedModel,
    configure: ConfigureRun,
}

impl ScenarioRunner {
    pub fn new(surface: RunSurface, agent: Agent) -> Self {
        let outer = ScriptedModel::new([
            ScriptedResponse::call("outer", "inner", json!({ "input": "go" })),
            ScriptedResponse::text("outer done"),
        ]);
        Self { surface, agent, outer_model: outer, configure: Arc::new(|run| run) }
    }

    /// Sets the configuration of every run of this scenario.
    pub fn configure_runs(
        mut self,
        configure: impl Fn(RunBuilder) -> RunBuilder + Send + Sync + 'static,
    ) -> Self {
        self.configure = Arc::new(configure);
        self
    }

    /// Returns the same scenario with another agent, as after a change of the program while a run was paused.
    pub fn with_agent(&self, agent: Agent) -> Self {
        let outer = ScriptedModel::new([ScriptedResponse::text("outer done")]);
        Self { surface: self.surface, agent, outer_model: outer, configure: self.configure.clone() }
    }

    /// Returns the same scenario with every run cancelled before it starts.
    pub fn with_cancelled_runs(&self, act: fn(&CancelHandle)) -> Self {
        let configure = self.configure.clone();
        let configure = move |run: RunBuilder| {
            let run = configure(run);
            act(&run.cancel_handle());
            run
        };
        Self { configure: Arc::new(configure), ..self.with_agent(self.agent.clone()) }
    }

    /// Returns the agent to run: the agent itself, or an outer agent that calls it.
    fn root_agent(&self, agent: &Agent) -> Agent {
        if self.surface.is_nested() {
            let inner = agent.as_tool("inner", "The agent.").agent_max_turns(u32::MAX);
            Agent::new("outer").model(self.outer_model.clone()).tools(inner)
        } else {
            agent.clone()
        }
    }

    /// Returns the path of a call of the agent.
    pub fn call_path(&self, call: &str) -> CallPath {
        CallPath::new(&self.parent_calls(), call.into())
    }

    /// Returns the calls that contain the agent.
    pub fn parent_calls(&self) -> Vec<CallId> {
        if self.surface.is_nested() { vec!["outer".into()] } else { Vec::new() }
    }

    /// Runs the agent from the start until it ends or pauses.
    pub async fn run_to_pause(&self) -> ScenarioRun {
        let run = match self.surface {
            RunSurface::Blocking | RunSurface::Streamed | RunSurface::Nested => {
                self.root_agent(&self.agent).run("go")
            }
            RunSurface::Resumed | RunSurface::NestedResumed => {
                let paused = self.lose_first_driver().await;
                self.root_agent(&self.agent).resume(paused)
            }
        };
        self.drive_run(run).await
    }

    /// Resumes a paused run; on a resumed surface, from its text.
    pub async fn resume_paused(&self, paused: PausedRun) -> ScenarioRun {
        let paused = if self.surface.is_resumed() { round_trip(&paused) } else { paused };
        self.drive_run(self.root_agent(&self.agent).resume(paused)).await
    }

    /// Returns a configured run that has not started.
    pub fn build_run(&self) -> RunBuilder {
        (self.configure)(self.root_agent(&self.agent).run("go"))
    }

    /// Returns a configured run that recovers from a store.
    pub fn build_recovery(&self, run: &str, store: Arc<dyn Store>) -> RunBuilder {
        (self.configure)(self.root_agent(&self.agent).recover(run, store))
    }

    /// Drives a run to its outcome, and watches it on the streamed surface.
    async fn drive_run(&self, run: RunBuilder) -> ScenarioRun {
        let run = (self.configure)(run);
        let (outcome, events) = match self.surface {
            RunSurface::Streamed => watch_run(run).await,
            RunSurface::Blocking | RunSurface::Nested | RunSurface::Resumed | RunSurface::NestedResumed => {
                (with_timeout(run).await, Vec::new())
            }
        };
        ScenarioRun { outcome, events, parent_calls: self.parent_calls() }
    }

    /// Loses the driver right after the first model response, and returns the run read from its text.
    pub async fn lose_first_driver(&self) -> PausedRun {
        let stuck = InputGuardrail::new("stuck", |_, _| std::future::pending());
        let agent = self.agent.clone().input_guardrail(stuck);
        let root = self.root_agent(&agent);
        let store = Arc::new(MemoryStore::default());
        let run = (self.configure)(root.run("go")).run_id("run").store(store.clone());
        let answered = async {
            loop {
                let records = stored_records(&*store, "run").await;
                let is_answer = |record: &&JournalRecord| {
                    record.path == self.parent_calls()
                        && matches!(record.entry, JournalEntry::ModelResponded(_))
                };
                if records.iter().any(|record| is_answer(&record)) {
                    return records;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let records = with_timeout(async {
            tokio::select! {
                outcome = run => panic!("the run should have been stuck: {outcome:?}"),
                records = answered => records,
            }
        });
        PausedRun::from_text(&encode_journal(&records.await)).expect("what was written can be read")
    }
}

/// The outcome of one run of a scenario.
pub struct ScenarioRun {
    pub outcome: Result<RunResult, RunError>,
    pub events: Vec<RunEvent>,
    parent_calls: Vec<CallId>,
}

/// The result of a scenario, independent of the surface.
#[derive(Debug, PartialEq)]
pub struct ScenarioResult {
    pub end: ScenarioEnd,
    /// The items that the run added to the conversation, one line each.
    pub items: Vec<String>,
}

/// The end of a scenario's run.
#[derive(Debug, PartialEq)]
pub enum ScenarioEnd {
    Finished(String),
    Failed(RunFailure),
    Cancelled,
    /// These calls wait for a decision.
    Paused(Vec<String>),
    /// The driver left the run open.
    LeftOpen,
}

impl ScenarioRun {
    /// Returns the journal of the whole run, with nested agents.
    pub fn journal(&self) -> &[JournalRecord] {
        match &self.outcome {
            Ok(outcome) => outcome.record().journal(),
            Err(error) => error.record().unwrap_or_else(|| panic!("no outcome: {error}")).journal(),
        }
    }

    /// Returns the state of the agent's own run, replayed from the journal.
    pub fn replayed_run(&self) -> Run {
        let own = self.journal().iter().filter(|record| record.path.starts_with(&self.parent_calls)).cloned();
        let records: Vec<JournalRecord> = own
            .enumerate()
            .map(|(at, record)| JournalRecord {
                seq: at as u64,
                path: record.path[self.parent_calls.len()..].to_vec(),
                ..record
            })
            .collect();
        Run::replay(&records).expect("the journal adds up").run
    }

    pub fn result(&self) -> ScenarioResult {
        let run = self.replayed_run();
        assert_outputs_complete(&run);
        let end = match (run.outcome().cloned(), run.next()) {
            (Some(RunEnd::Finished(output)), _) => ScenarioEnd::Finished(output),
            (Some(RunEnd::Failed(failure)), _) => ScenarioEnd::Failed(failure),
            (Some(RunEnd::Cancelled), _) => ScenarioEnd::Cancelled,
            // A run that keeps its approvals when it is cancelled pauses with calls that were stopped.
            (None, RunAction::Pause(_) | RunAction::AdvanceCalls) if !run.pending_calls().is_empty() => {
                let pending = run.pending_calls();
                ScenarioEnd::Paused(pending.iter().map(|pending| pending.path.to_string()).collect())
            }
            (None, _) => ScenarioEnd::LeftOpen,
        };
        let mut said: Vec<String> =
            run.items().iter().map(|produced| describe_item(&produced.item)).collect();
        said.extend(run.open_turn_items().iter().map(|produced| describe_item(&produced.item)));
        ScenarioResult { end, items: said }
    }

    /// Returns the entries of the agent's own run, without nested agents.
    pub fn entries(&self) -> Vec<JournalEntry> {
        let own = self.journal().iter().filter(|record| record.path == self.parent_calls);
        own.map(|record| record.entry.clone()).collect()
    }

    /// Returns the status of the agent's calls, in the order in which they settled.
    pub fn call_statuses(&self) -> ConcurrentList<(String, CallStatus)> {
        let settled = self.entries().into_iter().filter_map(|entry| match entry {
            JournalEntry::CallSettled(CallSettled { call, status: how, .. }) => Some((call.to_string(), how)),
            _ => None,
        });
        ConcurrentList(settled.collect())
    }

    /// Returns the agent's started calls, in journal order.
    pub fn started_calls(&self) -> Vec<String> {
        let started = self.entries().into_iter().filter_map(|entry| match entry {
            JournalEntry::CallStarted(started) => Some(started.call.to_string()),
            _ => None,
        });
        started.collect()
    }

    pub fn usage(&self) -> Usage {
        *self.replayed_run().usage()
    }

    pub fn into_paused(self) -> PausedRun {
        match self.outcome {
            Ok(outcome) => outcome.into_paused().expect("the run waits for a person"),
            Err(error) => panic!("no outcome: {error}"),
        }
    }

    pub fn into_error(self) -> RunError {
        self.outcome.expect_err("the run does not come to an outcome")
    }
}

impl fmt::Debug for ScenarioRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.outcome.fmt(f)
    }
}

/// Asserts that every call has exactly one later output, and that every output has a call. Calls of an open
/// turn may lack an output.
pub fn assert_outputs_complete(run: &Run) {
    use windlass::core::item::Item;
    let mut open: Vec<CallId> = Vec::new();
    for item in run.history() {
        match &**item {
            Item::Call(call) => open.push(call.id.clone()),
            Item::Output(windlass::core::item::CallOutput { call, .. })
            | Item::Handoff(windlass::core::item::HandoffOutput { call, .. }) => {
                let at = open.iter().position(|open| open == call);
                open.remove(
                    at.unwrap_or_else(|| panic!("output of `{call}` without a call, or a second one")),
                );
            }
            _ => {}
        }
    }
    assert!(!run.is_between_turns() || open.is_empty(), "calls without an output: {open:?}");
}

/// Returns the paused run after a round trip through its text.
pub fn round_trip(paused: &PausedRun) -> PausedRun {
    let text = paused.to_text();
    let restored = PausedRun::from_text(&text).expect("what was written can be read");
    assert_eq!(decode_journal(&text).expect("can be read"), restored.record().journal());
    restored
}

/// Streams a run to its end and returns its outcome and events.
pub async fn watch_run(run: RunBuilder) -> (Result<RunResult, RunError>, Vec<RunEvent>) {
    with_timeout(async {
        let mut stream = run.stream();
        let mut events = Vec::new();
        while let Some(event) = stream.next().await {
            events.push(event);
        }
        (stream.result().await, events)
    })
    .await
}

/// Returns the stored records of a run.
pub async fn stored_records(store: &dyn Store, run: &str) -> Vec<JournalRecord> {
    let lines = store.load_journal(&run.into(), 0).await.expect("memory can be read");
    decode_lines(&lines).expect("what was written can be read")
}

/// Awaits a future; panics after 60 seconds, so that a hanging test fails.
pub async fn with_timeout<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("this should have ended")
}

/// Polls a condition until it is true.
pub async fn wait_until(mut is_true: impl FnMut() -> bool) {
    with_timeout(async {
        while !is_true() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Drives a run until its store has records of which `is_due` is true, and drops it there, as a lost process does.
pub async fn lose_run<T: fmt::Debug>(
    run: impl IntoFuture<Output = T>,
    store: &dyn Store,
    id: &str,
    is_due: impl Fn(&[JournalRecord]) -> bool,
) {
    let mut run = Box::pin(run.into_future());
    with_timeout(async {
        loop {
            let ended = tokio::time::timeout(Duration::from_millis(1), &mut run).await;
            if let Ok(ended) = ended {
                panic!("the run ended before it was lost: {ended:?}");
            }
            let lines = store.load_journal(&id.into(), 0).await.unwrap_or_default();
            if is_due(&decode_lines(&lines).expect("what was written can be read")) {
                return;
            }
        }
    })
    .await;
}

/// Returns true if a call has started.
pub fn has_start(records: &[JournalRecord], call: &str) -> bool {
    records.iter().any(
        |record| matches!(&record.entry, JournalEntry::CallStarted(started) if started.call.as_str() == call),
    )
}

/// Blocks a thread until the test opens the latch, or for 30 seconds.
#[derive(Clone, Default)]
pub struct ThreadLatch(Arc<(Mutex<bool>, Condvar)>);

impl ThreadLatch {
    pub fn wait(&self) -> Result<(), &'static str> {
        let open = self.0.0.lock().expect("no test panics while it waits");
        let waited = self.0.1.wait_timeout_while(open, Duration::from_secs(30), |open| !*open);
        if *waited.expect("no test panics while it waits").0 { Ok(()) } else { Err("nobody let it go") }
    }

    pub fn open(&self) {
        *self.0.0.lock().expect("no test panics while it waits") = true;
        self.0.1.notify_all();
    }
}

/// Makes rows into tests on two runtimes: one thread with a paused or a real clock, on which the order of events is the
/// same every time, and worker threads, on which bodies end in random order.
macro_rules! on_both_runtimes {
    ($(paused_clock: $($paused:ident),+;)? $(real_clock: $($real:ident),+;)?) => {
        $($(mod $paused {
            #[tokio::test(start_paused = true)]
            async fn on_a_paused_clock() {
                super::$paused().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_worker_threads() {
                crate::support::print_shuffle_seed();
                super::$paused().await;
            }
        })+)?
        $($(mod $real {
            #[tokio::test]
            async fn on_one_thread() {
                super::$real().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_worker_threads() {
                crate::support::print_shuffle_seed();
                super::$real().await;
            }
        })+)?
    };
}

pub(crate) use on_both_runtimes;

/// Returns true if the test runs on worker threads, where concurrent bodies have no order.
pub fn has_worker_threads() -> bool {
    Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread
}

/// Environment variable with the seed of a shuffle to repeat.
const SHUFFLE_SEED_VARIABLE: &str = "WINDLASS_SHUFFLE_SEED";

/// Returns the seed that decides which bodies let others go first: that of the environment, or a new one.
fn shuffle_seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| match std::env::var(SHUFFLE_SEED_VARIABLE) {
        Ok(seed) => seed.parse().expect("the seed is a number"),
        Err(_) => RandomState::new().hash_one(0),
    })
}

/// Prints the seed of the shuffle, which a failing test shows.
pub fn print_shuffle_seed() {
    println!("bodies are shuffled with seed {0}: {SHUFFLE_SEED_VARIABLE}={0} repeats it", shuffle_seed());
}

/// Lets other bodies go first if the test runs on worker threads: the seed, the call and the place in its body decide how
/// often.
async fn shuffle_bodies(call: &CallPath, place: &str) {
    if has_worker_threads() {
        let mut hasher = DefaultHasher::new();
        (shuffle_seed(), call.to_string(), place).hash(&mut hasher);
        match hasher.finish() % 4 {
            0 => {}
            1 => tokio::time::sleep(Duration::from_millis(1)).await,
            times => {
                for _ in 0..times {
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

/// A list of concurrent events: it equals an expected list in any order if the test runs on worker threads.
#[derive(Debug)]
pub struct ConcurrentList<T>(pub Vec<T>);

impl<T> ConcurrentList<T> {
    fn has_same_elements<U>(&self, expected: &[U]) -> bool
    where
        T: PartialEq<U>,
    {
        if self.0.len() != expected.len() {
            return false;
        }
        if !has_worker_threads() {
            return self.0.iter().zip(expected).all(|(one, other)| one == other);
        }
        let mut rest: Vec<&U> = expected.iter().collect();
        self.0.iter().all(|one| match rest.iter().position(|other| *one == **other) {
            Some(place) => {
                rest.swap_remove(place);
                true
            }
            None => false,
        })
    }
}

impl<T: PartialEq<U>, U, const N: usize> PartialEq<[U; N]> for ConcurrentList<T> {
    fn eq(&self, expected: &[U; N]) -> bool {
        self.has_same_elements(expected)
    }
}

impl<T: PartialEq<U>, U> PartialEq<Vec<U>> for ConcurrentList<T> {
    fn eq(&self, expected: &Vec<U>) -> bool {
        self.has_same_elements(expected)
    }
}

impl<T> Deref for ConcurrentList<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T> DerefMut for ConcurrentList<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.0
    }
}

/// A shared log of test events, in order.
#[derive(Clone, Default)]
pub struct TestLog(Arc<Mutex<Vec<String>>>);

impl TestLog {
    pub fn push(&self, line: impl Into<String>) {
        self.0.lock().expect("no test panics while it writes").push(line.into());
    }

    pub fn lines(&self) -> Vec<String> {
        self.0.lock().expect("no test panics while it writes").clone()
    }

    /// Takes the lines. Bodies that run at once write them in any order on worker threads.
    pub fn take(&self) -> ConcurrentList<String> {
        ConcurrentList(self.take_in_order())
    }

    /// Takes the lines where their order is promised on every runtime.
    pub fn take_in_order(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("no test panics while it writes"))
    }

    pub fn count(&self, line: &str) -> usize {
        self.lines().iter().filter(|known| *known == line).count()
    }
}

/// Creates a tool that accepts any object.
pub fn any_object_tool<Fut>(
    name: &str,
    body: impl Fn(ToolContext, Value) -> Fut + Send + Sync + 'static,
) -> Tool
where
    Fut: Future<Output = Result<String, ToolError>> + Send + 'static,
{
    let body = Arc::new(body);
    let shuffled = move |ctx: ToolContext, arguments: Value| {
        let body = body.clone();
        async move {
            let call = ctx.call_path().clone();
            shuffle_bodies(&call, "before").await;
            let result = body(ctx, arguments).await;
            shuffle_bodies(&call, "after").await;
            result
        }
    };
    Tool::dynamic(name, "A tool.", json!({ "type": "object" }), shuffled).non_strict()
}

/// Creates a blocking tool that accepts any object.
pub fn blocking_tool(
    name: &str,
    body: impl Fn(ToolContext, Value) -> Result<String, ToolError> + Send + Sync + 'static,
) -> Tool {
    Tool::dynamic_blocking(name, "A tool.", json!({ "type": "object" }), body).non_strict()
}

/// Creates a tool that logs its name and its call, and returns `done`.
pub fn logging_tool(name: &'static str, log: &TestLog) -> Tool {
    let log = log.clone();
    any_object_tool(name, move |ctx, _| {
        log.push(format!("{name} {}", ctx.call_id()));
        async { Ok("done".to_owned()) }
    })
}

/// Creates a tool that sleeps for `ms` milliseconds and logs its start and end.
pub fn slow_tool(name: &'static str, log: &TestLog) -> Tool {
    let log = log.clone();
    any_object_tool(name, move |ctx, arguments| {
        let log = log.clone();
        async move {
            log.push(format!("start {}", ctx.call_id()));
            tokio::time::sleep(Duration::from_millis(arguments["ms"].as_u64().unwrap_or(0))).await;
            log.push(format!("end {}", ctx.call_id()));
            Ok(format!("{} done", ctx.call_id()))
        }
    })
}

/// Creates a hook that logs the start and the end of every call.
pub fn call_log_hook(log: &TestLog) -> Hook {
    let log = log.clone();
    Hook::new(move |moment: HookEvent| {
        match moment {
            HookEvent::CallStarted { ctx, .. } => log.push(format!("start {}", ctx.call_path())),
            HookEvent::CallEnded { ctx, status: how, .. } => {
                log.push(format!("end {} {how:?}", ctx.call_path()))
            }
            _ => {}
        }
        async { Ok(()) }
    })
}

/// Returns the call starts and ends that watchers received, in order.
pub fn call_event_lines(events: &[RunEvent]) -> ConcurrentList<String> {
    let lines = events.iter().filter_map(|event| {
        let path = |call: &CallId| CallPath::new(&event.path, call.clone());
        match &event.kind {
            RunEventKind::CallStarted { call, .. } => Some(format!("start {}", path(call))),
            RunEventKind::CallSettled { call, status: how, .. } => {
                Some(format!("end {} {how:?}", path(call)))
            }
            _ => None,
        }
    });
    ConcurrentList(lines.collect())
}

/// Creates an agent with a scripted model.
pub fn scripted_agent(replies: impl IntoIterator<Item = ScriptedResponse>) -> Agent {
    Agent::new("agent").model(ScriptedModel::new(replies))
}

pub fn finished_result(output: &str, said: &[&str]) -> ScenarioResult {
    ScenarioResult { end: ScenarioEnd::Finished(output.to_owned()), items: owned_lines(said) }
}

pub fn owned_lines(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

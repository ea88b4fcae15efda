//! One scenario, played on every surface, with one result to compare.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::core::{
    CallId, CallPath, CallSettled, End, Entry, Next, Record, Run, from_text, read_lines, to_text,
};
use windlass::guardrail::InputGuardrail;
use windlass::hook::{Hook, Moment};
use windlass::model::item_line;
use windlass::prelude::*;
use windlass::run::CancelHandle;
use windlass::{Event, EventKind, Failure, How, MemoryStore, RunBuilder, RunError, Store, Usage};

/// Where a run can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surface {
    /// Awaited.
    Blocking,
    /// Watched, event by event.
    Streamed,
    /// Inside a call of another agent.
    Nested,
    /// Its first driver is lost right after the model's first answer, and another goes on from the text.
    Resumed,
    /// The same, for a run inside a call.
    NestedResumed,
}

impl Surface {
    pub const ALL: [Self; 5] =
        [Self::Blocking, Self::Streamed, Self::Nested, Self::Resumed, Self::NestedResumed];

    fn is_nested(self) -> bool {
        matches!(self, Self::Nested | Self::NestedResumed)
    }

    fn is_resumed(self) -> bool {
        matches!(self, Self::Resumed | Self::NestedResumed)
    }
}

type Configure = Arc<dyn Fn(RunBuilder) -> RunBuilder + Send + Sync>;

/// An agent on a surface.
pub struct Stage {
    surface: Surface,
    agent: Agent,
    /// Answers for the agent around, where there is one.
    outer: ScriptedModel,
    configure: Configure,
}

impl Stage {
    pub fn new(surface: Surface, agent: Agent) -> Self {
        let outer = ScriptedModel::new([
            Reply::call("outer", "inner", json!({ "input": "go" })),
            Reply::text("outer done"),
        ]);
        Self { surface, agent, outer, configure: Arc::new(|run| run) }
    }

    /// Sets up every run on this stage.
    pub fn configure(mut self, configure: impl Fn(RunBuilder) -> RunBuilder + Send + Sync + 'static) -> Self {
        self.configure = Arc::new(configure);
        self
    }

    /// The same stage with another agent: what the program may have become while a run was paused.
    pub fn recast(&self, agent: Agent) -> Self {
        let outer = ScriptedModel::new([Reply::text("outer done")]);
        Self { surface: self.surface, agent, outer, configure: self.configure.clone() }
    }

    /// The same stage, on which every run is cancelled before it begins.
    pub fn recast_cancelled(&self, act: fn(&CancelHandle)) -> Self {
        let configure = self.configure.clone();
        let configure = move |run: RunBuilder| {
            let run = configure(run);
            act(&run.cancel_handle());
            run
        };
        Self { configure: Arc::new(configure), ..self.recast(self.agent.clone()) }
    }

    /// What is run: the agent, or one that does nothing but call it.
    fn root(&self, agent: &Agent) -> Agent {
        if self.surface.is_nested() {
            let inner = agent.as_tool("inner", "The agent.").agent_turns(u32::MAX);
            Agent::new("outer").model(self.outer.clone()).tools(inner)
        } else {
            agent.clone()
        }
    }

    /// Where a call of the agent stands.
    pub fn path(&self, call: &str) -> CallPath {
        CallPath::new(&self.within(), call.into())
    }

    /// The calls that lead to the agent.
    pub fn within(&self) -> Vec<CallId> {
        if self.surface.is_nested() { vec!["outer".into()] } else { Vec::new() }
    }

    /// Plays the agent from the beginning until it ends or pauses.
    pub async fn play(&self) -> Act {
        let run = match self.surface {
            Surface::Blocking | Surface::Streamed | Surface::Nested => self.root(&self.agent).run("go"),
            Surface::Resumed | Surface::NestedResumed => {
                let paused = self.lost().await;
                self.root(&self.agent).resume(paused)
            }
        };
        self.follow(run).await
    }

    /// Goes on with a paused run, as this surface does.
    pub async fn go_on(&self, paused: Paused) -> Act {
        let paused = if self.surface.is_resumed() { through_text(&paused) } else { paused };
        self.follow(self.root(&self.agent).resume(paused)).await
    }

    /// A run on this stage, set up and not begun.
    pub fn run(&self) -> RunBuilder {
        (self.configure)(self.root(&self.agent).run("go"))
    }

    /// A run of this stage that a store has.
    pub fn recover(&self, run: &str, store: Arc<dyn Store>) -> RunBuilder {
        (self.configure)(self.root(&self.agent).recover(run, store))
    }

    /// Follows a run to its outcome, watching it where this surface does.
    async fn follow(&self, run: RunBuilder) -> Act {
        let run = (self.configure)(run);
        let (outcome, events) = match self.surface {
            Surface::Streamed => watch(run).await,
            Surface::Blocking | Surface::Nested | Surface::Resumed | Surface::NestedResumed => {
                (within(run.into_future()).await, Vec::new())
            }
        };
        Act { outcome, events, within: self.within() }
    }

    /// A run, read from its text, whose driver was lost when the model had answered and nothing else had happened.
    pub async fn lost(&self) -> Paused {
        let stuck = InputGuardrail::new("stuck", |_, _| std::future::pending());
        let agent = self.agent.clone().input_guardrail(stuck);
        let root = self.root(&agent);
        let store = Arc::new(MemoryStore::default());
        let run = (self.configure)(root.run("go")).run_id("run").store(store.clone());
        let answered = async {
            loop {
                let records = stored(&*store, "run").await;
                let is_answer = |record: &&Record| {
                    record.path == self.within() && matches!(record.entry, Entry::Answered(_))
                };
                if records.iter().any(|record| is_answer(&record)) {
                    return records;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let records = within(async {
            tokio::select! {
                outcome = run.into_future() => panic!("the run should have been stuck: {outcome:?}"),
                records = answered => records,
            }
        });
        Paused::from_text(&to_text(&records.await)).expect("what was written can be read")
    }
}

/// What a stage showed.
pub struct Act {
    pub outcome: Result<Outcome, RunError>,
    pub events: Vec<Event>,
    within: Vec<CallId>,
}

/// What a run came to, the same on every surface.
#[derive(Debug, PartialEq)]
pub struct Played {
    pub end: Ended,
    /// What the run added to the conversation, a line for each item.
    pub said: Vec<String>,
}

#[derive(Debug, PartialEq)]
pub enum Ended {
    Finished(String),
    Failed(Failure),
    Cancelled,
    /// It waits for a person to decide about these calls.
    Paused(Vec<String>),
    /// Its driver left it in the middle.
    Open,
}

impl Act {
    /// The journal of everything.
    pub fn journal(&self) -> &[Record] {
        match &self.outcome {
            Ok(outcome) => outcome.record().journal(),
            Err(error) => error.record().unwrap_or_else(|| panic!("no outcome: {error}")).journal(),
        }
    }

    /// The state of the agent's own run, as its journal adds up to.
    pub fn state(&self) -> Run {
        let own = self.journal().iter().filter(|record| record.path.starts_with(&self.within)).cloned();
        let records: Vec<Record> = own
            .enumerate()
            .map(|(at, record)| Record {
                seq: at as u64,
                path: record.path[self.within.len()..].to_vec(),
                ..record
            })
            .collect();
        Run::replay(&records).expect("the journal adds up").run
    }

    pub fn played(&self) -> Played {
        let run = self.state();
        assert_whole(&run);
        let end = match (run.end().cloned(), run.next()) {
            (Some(End::Finished(output)), _) => Ended::Finished(output),
            (Some(End::Failed(failure)), _) => Ended::Failed(failure),
            (Some(End::Cancelled), _) => Ended::Cancelled,
            (None, Next::Pause(pending)) => {
                Ended::Paused(pending.iter().map(|pending| pending.path.to_string()).collect())
            }
            (None, _) => Ended::Open,
        };
        let mut said: Vec<String> = run.produced().iter().map(|produced| item_line(&produced.item)).collect();
        said.extend(run.produced_in_open_turn().iter().map(|produced| item_line(&produced.item)));
        Played { end, said }
    }

    /// What happened to the agent's own run, agents nested in it left out.
    pub fn entries(&self) -> Vec<Entry> {
        let own = self.journal().iter().filter(|record| record.path == self.within);
        own.map(|record| record.entry.clone()).collect()
    }

    /// How the agent's calls settled, in the order in which they did.
    pub fn hows(&self) -> Vec<(String, How)> {
        let settled = self.entries().into_iter().filter_map(|entry| match entry {
            Entry::CallSettled(CallSettled { call, how, .. }) => Some((call.to_string(), how)),
            _ => None,
        });
        settled.collect()
    }

    /// The calls of the agent whose start is in the journal, in that order.
    pub fn started(&self) -> Vec<String> {
        let started = self.entries().into_iter().filter_map(|entry| match entry {
            Entry::CallStarted(started) => Some(started.call.to_string()),
            _ => None,
        });
        started.collect()
    }

    pub fn usage(&self) -> Usage {
        *self.state().usage()
    }

    pub fn paused(self) -> Paused {
        match self.outcome {
            Ok(outcome) => outcome.paused().expect("the run waits for a person"),
            Err(error) => panic!("no outcome: {error}"),
        }
    }

    pub fn error(self) -> RunError {
        self.outcome.expect_err("the run does not come to an outcome")
    }
}

impl fmt::Debug for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.outcome.fmt(f)
    }
}

/// Every call in the conversation has exactly one output, after it; and no output stands alone. A turn that is
/// still open may lack some.
pub fn assert_whole(run: &Run) {
    use windlass::Item;
    let mut open: Vec<CallId> = Vec::new();
    for item in run.history() {
        match &**item {
            Item::Call(call) => open.push(call.id.clone()),
            Item::Output(windlass::core::Output { call, .. })
            | Item::Handoff(windlass::core::Handoff { call, .. }) => {
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

/// A paused run as another process would have it.
pub fn through_text(paused: &Paused) -> Paused {
    let text = paused.to_text();
    let restored = Paused::from_text(&text).expect("what was written can be read");
    assert_eq!(from_text(&text).expect("can be read"), restored.record().journal());
    restored
}

/// Streams a run to its end, with everything that was seen.
pub async fn watch(run: RunBuilder) -> (Result<Outcome, RunError>, Vec<Event>) {
    within(async {
        let mut stream = run.stream();
        let mut events = Vec::new();
        while let Some(event) = stream.next().await {
            events.push(event);
        }
        (stream.outcome().await, events)
    })
    .await
}

/// The records that a store has of a run.
pub async fn stored(store: &dyn Store, run: &str) -> Vec<Record> {
    let lines = store.load(&run.into(), 0).await.expect("memory can be read");
    read_lines(&lines).expect("what was written can be read")
}

/// Fails a test that would otherwise hang. Nothing is said about how long anything takes.
pub async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("this should have ended")
}

/// Waits for something that no future stands for.
pub async fn until(mut is_true: impl FnMut() -> bool) {
    within(async {
        while !is_true() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Holds a thread until the test lets it go, or until it is clear that the test never will.
#[derive(Clone, Default)]
pub struct Latch(Arc<(Mutex<bool>, Condvar)>);

impl Latch {
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

/// What happened, in order.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub fn push(&self, line: impl Into<String>) {
        self.0.lock().expect("no test panics while it writes").push(line.into());
    }

    pub fn lines(&self) -> Vec<String> {
        self.0.lock().expect("no test panics while it writes").clone()
    }

    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("no test panics while it writes"))
    }

    pub fn count(&self, line: &str) -> usize {
        self.lines().iter().filter(|known| *known == line).count()
    }
}

/// A tool that takes any object.
pub fn tool<Fut>(name: &str, body: impl Fn(ToolContext, Value) -> Fut + Send + Sync + 'static) -> Tool
where
    Fut: Future<Output = Result<String, ToolError>> + Send + 'static,
{
    Tool::dynamic(name, "A tool.", json!({ "type": "object" }), body).non_strict()
}

/// A blocking tool that takes any object.
pub fn blocking_tool(
    name: &str,
    body: impl Fn(ToolContext, Value) -> Result<String, ToolError> + Send + Sync + 'static,
) -> Tool {
    Tool::dynamic_blocking(name, "A tool.", json!({ "type": "object" }), body).non_strict()
}

/// A tool that writes its name and its call into the log, and says `done`.
pub fn effect(name: &'static str, log: &Log) -> Tool {
    let log = log.clone();
    tool(name, move |ctx, _| {
        log.push(format!("{name} {}", ctx.call_id()));
        async { Ok("done".to_owned()) }
    })
}

/// A tool that takes as many milliseconds as `ms` says, and writes down when it starts and ends.
pub fn slow(name: &'static str, log: &Log) -> Tool {
    let log = log.clone();
    tool(name, move |ctx, arguments| {
        let log = log.clone();
        async move {
            log.push(format!("start {}", ctx.call_id()));
            tokio::time::sleep(Duration::from_millis(arguments["ms"].as_u64().unwrap_or(0))).await;
            log.push(format!("end {}", ctx.call_id()));
            Ok(format!("{} done", ctx.call_id()))
        }
    })
}

/// A hook that writes down the start and the end of every call.
pub fn call_log(log: &Log) -> Hook {
    let log = log.clone();
    Hook::new(move |moment: Moment| {
        match moment {
            Moment::CallStarted { ctx } => log.push(format!("start {}", ctx.path())),
            Moment::CallEnded { ctx, how, .. } => log.push(format!("end {} {how:?}", ctx.path())),
            _ => {}
        }
        async { Ok(()) }
    })
}

/// What watchers were told of a call's start and end, in order.
pub fn call_events(events: &[Event]) -> Vec<String> {
    let lines = events.iter().filter_map(|event| {
        let path = |call: &CallId| CallPath::new(&event.path, call.clone());
        match &event.kind {
            EventKind::CallStarted { call, .. } => Some(format!("start {}", path(call))),
            EventKind::CallSettled { call, how, .. } => Some(format!("end {} {how:?}", path(call))),
            _ => None,
        }
    });
    lines.collect()
}

/// An agent with a script.
pub fn agent(replies: impl IntoIterator<Item = Reply>) -> Agent {
    Agent::new("agent").model(ScriptedModel::new(replies))
}

pub fn finished(output: &str, said: &[&str]) -> Played {
    Played { end: Ended::Finished(output.to_owned()), said: lines(said) }
}

pub fn lines(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

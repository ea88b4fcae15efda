//! The workloads of the benchmarks.

pub mod arguments;
pub mod case;
pub mod compare;
#[cfg(feature = "computer")]
pub mod computer;
pub mod durable;
pub mod measure;
pub mod open_stored;
pub mod processes;
#[cfg(feature = "search")]
pub mod search;
pub mod seeds;

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::core::{
    id::Timestamp,
    item::Item,
    journal::{HashChain, InputAdded, JournalEntry, JournalRecord, RunStarted},
    run::Run,
    usage::Usage,
};
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse};
use windlass::{
    agent::Agent,
    core::tool::ToolEffect,
    event::RunEventKind,
    run::{PausedRun, RunResult},
    store::MemoryStore,
    tool::{Tool, ToolContext, ToolError},
};

use crate::measure::ArrivalBarrier;

/// A scripted run: turns with tool calls, then optionally a call that requires approval, and a final response.
#[derive(Clone, Default)]
pub struct BenchScript {
    /// Number of turns with calls.
    pub turns: usize,
    /// Number of calls in each turn.
    pub calls: usize,
    /// The steps after the turns with calls.
    pub ending: ScriptEnding,
    /// The work of each call.
    pub work: ToolWork,
}

/// The steps after the turns with calls.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum ScriptEnding {
    /// The run finishes.
    #[default]
    Finish,
    /// A call requires approval, and then the run finishes.
    Approval,
}

/// The work of a tool call.
#[derive(Clone, Default)]
pub enum ToolWork {
    /// The call returns at once.
    #[default]
    Nothing,
    /// The call sleeps.
    Sleep(Duration),
    /// The call waits until all calls have arrived at the barrier.
    WaitForAll(Arc<ArrivalBarrier>),
    /// The call prints an event to standard output.
    PrintEvent,
}

impl ToolWork {
    async fn run(&self) {
        match self {
            Self::Nothing => {}
            Self::Sleep(time) => tokio::time::sleep(*time).await,
            Self::WaitForAll(gate) => gate.wait().await,
            Self::PrintEvent => println!("{{\"ev\":\"tool\"}}"),
        }
    }
}

/// A stateless model that derives the turn from the length of the history, so that it costs the same in every
/// turn.
struct ScriptedBenchModel(BenchScript);

impl Model for ScriptedBenchModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let BenchScript { turns, calls, ending: then, .. } = &self.0;
        let items = request.input.len() - 1;
        let turn = items / (2 * calls);
        let is_approved = items > 2 * calls * turns;
        let items = if turn < *turns {
            let call = |call| {
                let arguments = format!("{{\"x\":{}}}", turn * calls + call);
                Arc::new(Item::call(format!("call_{turn}_{call}"), "noop", arguments))
            };
            (0..*calls).map(call).collect()
        } else if *then == ScriptEnding::Approval && !is_approved {
            vec![Arc::new(Item::call("gated", "gated", "{\"x\":1}"))]
        } else {
            vec![Arc::new(Item::assistant("done"))]
        };
        Ok(ModelResponse { items, usage: Some(Usage::of_tokens(10, 5)), ..ModelResponse::default() })
    }
}

#[derive(Deserialize, JsonSchema)]
struct NumberArguments {
    #[serde(rename = "x")]
    _x: i64,
}

fn bench_tool(name: &str, body: ToolWork) -> Tool {
    Tool::function(name, "Does nothing.", move |_: ToolContext, _: NumberArguments| {
        let body = body.clone();
        async move {
            body.run().await;
            Ok::<_, ToolError>("ok")
        }
    })
    .effect(ToolEffect::Pure)
}

/// Creates an agent that plays a script.
pub fn bench_agent(script: BenchScript) -> Agent {
    let tools =
        (bench_tool("noop", script.work.clone()), bench_tool("gated", ToolWork::Nothing).needs_approval());
    Agent::new("bench").instructions("You are a benchmark.").model(ScriptedBenchModel(script)).tools(tools)
}

/// Runs an agent to its end.
pub async fn run_to_end(agent: &Agent) -> Result<(), String> {
    ensure_done(agent.run("go").unlimited_turns().await.map_err(|error| error.to_string())?)
}

/// Runs an agent to its end, with a store in memory.
async fn run_stored_to_end(agent: &Agent) -> Result<(), String> {
    let run = agent.run("go").store(Arc::new(MemoryStore::default())).unlimited_turns();
    ensure_done(run.await.map_err(|error| error.to_string())?)
}

fn ensure_done(outcome: RunResult) -> Result<(), String> {
    if outcome.output_text() == Ok("done") { Ok(()) } else { Err("the run did not finish".to_owned()) }
}

/// Executes one run of `turns` turns with one call each.
pub async fn run_turns(turns: usize) -> Result<usize, String> {
    run_to_end(&bench_agent(BenchScript { turns, calls: 1, ..BenchScript::default() })).await?;
    Ok(turns)
}

/// Executes one turn with `calls` calls.
pub async fn run_calls(calls: usize) -> Result<usize, String> {
    run_to_end(&bench_agent(BenchScript { turns: 1, calls, ..BenchScript::default() })).await?;
    Ok(calls)
}

/// Executes `turns` turns with one call each, with a store in memory.
pub async fn run_stored_turns(turns: usize) -> Result<usize, String> {
    run_stored_to_end(&bench_agent(BenchScript { turns, calls: 1, ..BenchScript::default() })).await?;
    Ok(turns)
}

/// Executes one turn with `calls` calls, with a store in memory.
pub async fn run_stored_calls(calls: usize) -> Result<usize, String> {
    run_stored_to_end(&bench_agent(BenchScript { turns: 1, calls, ..BenchScript::default() })).await?;
    Ok(calls)
}

/// Applies `entries` entries to a run and serialises each as a journal line.
pub fn apply_entries(entries: usize) -> Result<usize, String> {
    let mut run = Run::start(RunStarted {
        run: "bench".into(),
        agent: "bench".into(),
        history: Default::default(),
        input: vec![Arc::new(Item::user("go"))],
        max_turns: None,
        session: None,
        previous_response_id: None,
        key_nonce: None,
        origin: None,
        build: None,
        budget: None,
        session_budget: None,
    });
    let mut chain = HashChain::default();
    let item = Arc::new(Item::user("a few words more"));
    for seq in 0..entries as u64 {
        let entry = JournalEntry::InputAdded(InputAdded { items: vec![item.clone()], order: None });
        run.apply(&entry).map_err(|error| error.to_string())?;
        std::hint::black_box(chain.append(&JournalRecord {
            seq,
            at: Timestamp(seq),
            path: Vec::new(),
            entry,
        }));
    }
    Ok(run.history().len() - 1)
}

/// Streams one response of `pieces` deltas and returns the number of delta events received.
pub async fn stream_events(pieces: usize) -> Result<usize, String> {
    let mut stream = Agent::new("bench").model(StreamingBenchModel(pieces)).run("go").stream();
    let mut seen = 0;
    while let Some(event) = stream.next().await {
        seen += usize::from(matches!(event.kind, RunEventKind::TextDelta { .. }));
    }
    ensure_done(stream.result().await.map_err(|error| error.to_string())?)?;
    Ok(seen)
}

/// A model that streams its response in deltas.
struct StreamingBenchModel(usize);

impl Model for StreamingBenchModel {
    async fn respond<'a>(
        &'a self,
        _: ModelRequest<'a>,
        deltas: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        for _ in 0..self.0 {
            deltas.emit_text("word ").await;
        }
        let items = vec![Arc::new(Item::assistant("done"))];
        Ok(ModelResponse { items, usage: Some(Usage::of_tokens(10, 5)), ..ModelResponse::default() })
    }
}

/// Pauses a run after `turns` turns, serialises it, restores it, approves the call and finishes the run.
pub async fn pause_and_resume(turns: usize) -> Result<usize, String> {
    let agent = bench_agent(BenchScript {
        turns,
        calls: 1,
        ending: ScriptEnding::Approval,
        ..BenchScript::default()
    });
    let outcome = agent.run("go").unlimited_turns().await.map_err(|error| error.to_string())?;
    let RunResult::Paused(paused) = outcome else { return Err("the run did not pause".to_owned()) };
    let mut paused = PausedRun::from_text(&paused.to_text()).map_err(|error| error.to_string())?;
    paused.approve("gated").map_err(|error| error.to_string())?;
    ensure_done(agent.resume(paused).unlimited_turns().await.map_err(|error| error.to_string())?)?;
    Ok(turns + 1)
}

/// Pauses a run whose history has `items` items: a call and its output are two of them.
async fn pause_with_items(items: usize) -> Result<(Agent, PausedRun), String> {
    const CALLS_PER_TURN: usize = 5;
    let agent = bench_agent(BenchScript {
        turns: items / (2 * CALLS_PER_TURN),
        calls: CALLS_PER_TURN,
        ending: ScriptEnding::Approval,
        ..BenchScript::default()
    });
    let outcome = agent.run("go").unlimited_turns().await.map_err(|error| error.to_string())?;
    let RunResult::Paused(paused) = outcome else { return Err("the run did not pause".to_owned()) };
    Ok((agent, paused))
}

/// Pauses a run of `items` items and returns the number of its pending calls.
pub async fn pause_items(items: usize) -> Result<usize, String> {
    let (_, paused) = pause_with_items(items).await?;
    Ok(std::hint::black_box(&paused).pending_calls().len())
}

/// Pauses a run of `items` items, writes it as text, reads it and resumes it. Returns the length of the text.
pub async fn cycle_items(items: usize) -> Result<usize, String> {
    let (agent, paused) = pause_with_items(items).await?;
    let text = paused.to_text();
    drop(paused);
    let mut paused = PausedRun::from_text(&text).map_err(|error| error.to_string())?;
    paused.approve("gated").map_err(|error| error.to_string())?;
    ensure_done(agent.resume(paused).unlimited_turns().await.map_err(|error| error.to_string())?)?;
    Ok(text.len())
}

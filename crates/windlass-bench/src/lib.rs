//! The work that is measured.

pub mod arguments;
pub mod case;
pub mod compare;
#[cfg(feature = "computer")]
pub mod computer;
pub mod durable;
pub mod measure;
#[cfg(feature = "search")]
pub mod search;
pub mod seeds;

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::core::{Chain, Entry, InputAdded, Item, Record, Run, Started, Timestamp, Usage};
use windlass::model::{Answer, Deltas, Model, ModelError, ModelRequest};
use windlass::{Agent, Effect, EventKind, Outcome, Paused, Tool, ToolContext, ToolError};

use crate::measure::Gate;

/// A scripted run: so many turns with so many calls each, a call that needs a decision if asked for, and one more
/// answer that ends it.
#[derive(Clone, Default)]
pub struct Script {
    /// Turns that hold calls.
    pub turns: usize,
    /// Calls in each.
    pub calls: usize,
    /// Whether a call that waits for a person comes last.
    pub then: Then,
    /// What each call does.
    pub body: Body,
}

/// What comes after the turns with calls.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Then {
    /// The end.
    #[default]
    End,
    /// A call that a person must approve, and then the end.
    Approval,
}

/// What a call does.
#[derive(Clone, Default)]
pub enum Body {
    /// Nothing.
    #[default]
    Nothing,
    /// It sleeps.
    Sleep(Duration),
    /// It waits for all others.
    Wait(Arc<Gate>),
    /// It says so on the standard output.
    Print,
}

impl Body {
    async fn run(&self) {
        match self {
            Self::Nothing => {}
            Self::Sleep(time) => tokio::time::sleep(*time).await,
            Self::Wait(gate) => gate.wait().await,
            Self::Print => println!("{{\"ev\":\"tool\"}}"),
        }
    }
}

/// A model without a memory: it reads the turn off the length of the history, so that it costs the same in every
/// turn.
struct Scripted(Script);

impl Model for Scripted {
    async fn answer<'a>(&'a self, request: ModelRequest<'a>, _: &'a Deltas) -> Result<Answer, ModelError> {
        let Script { turns, calls, then, .. } = &self.0;
        let items = request.input.len() - 1;
        let turn = items / (2 * calls);
        let is_approved = items > 2 * calls * turns;
        let items = if turn < *turns {
            let call = |call| {
                let arguments = format!("{{\"x\":{}}}", turn * calls + call);
                Arc::new(Item::call(format!("call_{turn}_{call}"), "noop", arguments))
            };
            (0..*calls).map(call).collect()
        } else if *then == Then::Approval && !is_approved {
            vec![Arc::new(Item::call("gated", "gated", "{\"x\":1}"))]
        } else {
            vec![Arc::new(Item::assistant("done"))]
        };
        Ok(Answer { items, usage: Some(Usage::tokens(10, 5)), ..Answer::default() })
    }
}

#[derive(Deserialize, JsonSchema)]
struct Number {
    #[serde(rename = "x")]
    _x: i64,
}

fn tool(name: &str, body: Body) -> Tool {
    Tool::function(name, "Does nothing.", move |_: ToolContext, _: Number| {
        let body = body.clone();
        async move {
            body.run().await;
            Ok::<_, ToolError>("ok")
        }
    })
    .effect(Effect::Pure)
}

/// An agent that plays a script.
pub fn agent(script: Script) -> Agent {
    let tools = (tool("noop", script.body.clone()), tool("gated", Body::Nothing).approve_always());
    Agent::new("bench").instructions("You are a benchmark.").model(Scripted(script)).tools(tools)
}

/// Runs an agent to its end.
pub async fn finish(agent: &Agent) -> Result<(), String> {
    finished(agent.run("go").unlimited_turns().await.map_err(|error| error.to_string())?)
}

fn finished(outcome: Outcome) -> Result<(), String> {
    if outcome.text() == "done" { Ok(()) } else { Err("the run did not finish".to_owned()) }
}

/// One run of so many turns, with one call in each.
pub async fn turns(turns: usize) -> Result<usize, String> {
    finish(&agent(Script { turns, calls: 1, ..Script::default() })).await?;
    Ok(turns)
}

/// One turn with so many calls.
pub async fn calls(calls: usize) -> Result<usize, String> {
    finish(&agent(Script { turns: 1, calls, ..Script::default() })).await?;
    Ok(calls)
}

/// So many entries: each moves a run, and is written as a line of its journal.
pub fn entries(entries: usize) -> Result<usize, String> {
    let mut run = Run::start(Started {
        run: "bench".into(),
        agent: "bench".into(),
        history: Vec::new(),
        input: vec![Arc::new(Item::user("go"))],
        max_turns: None,
        session: None,
        origin: None,
    });
    let mut chain = Chain::default();
    let item = Arc::new(Item::user("a few words more"));
    for seq in 0..entries as u64 {
        let entry = Entry::InputAdded(InputAdded { items: vec![item.clone()] });
        run.apply(&entry).map_err(|error| error.to_string())?;
        std::hint::black_box(chain.add(&Record { seq, at: Timestamp(seq), path: Vec::new(), entry }));
    }
    Ok(run.history().len() - 1)
}

/// One answer that comes in so many pieces, watched.
pub async fn events(pieces: usize) -> Result<usize, String> {
    let mut stream = Agent::new("bench").model(Talking(pieces)).run("go").stream();
    let mut seen = 0;
    while let Some(event) = stream.next().await {
        seen += usize::from(matches!(event.kind, EventKind::TextDelta { .. }));
    }
    finished(stream.outcome().await.map_err(|error| error.to_string())?)?;
    Ok(seen)
}

/// A model that says its answer piece by piece.
struct Talking(usize);

impl Model for Talking {
    async fn answer<'a>(&'a self, _: ModelRequest<'a>, deltas: &'a Deltas) -> Result<Answer, ModelError> {
        for _ in 0..self.0 {
            deltas.text("word ").await;
        }
        let items = vec![Arc::new(Item::assistant("done"))];
        Ok(Answer { items, usage: Some(Usage::tokens(10, 5)), ..Answer::default() })
    }
}

/// A run that pauses after so many turns, is written as text, read back, approved and finished.
pub async fn resume(turns: usize) -> Result<usize, String> {
    let agent = agent(Script { turns, calls: 1, then: Then::Approval, ..Script::default() });
    let outcome = agent.run("go").unlimited_turns().await.map_err(|error| error.to_string())?;
    let Outcome::Paused(paused) = outcome else { return Err("the run did not pause".to_owned()) };
    let mut paused = Paused::from_text(&paused.to_text()).map_err(|error| error.to_string())?;
    paused.approve("gated").map_err(|error| error.to_string())?;
    finished(agent.resume(paused).unlimited_turns().await.map_err(|error| error.to_string())?)?;
    Ok(turns + 1)
}

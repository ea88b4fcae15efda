//! Plays a scenario and says what came of it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use windlass::agent::Agent;
use windlass::core::{CallId, Decision, Item, Part, Pending, Produced, Reach, Run};
use windlass::model::item_line;
use windlass::run::{MissingTool, RunBuilder, RunRecord};
use windlass::{
    DecideError, EventKind, Failure, Outcome, Paused, RestoreError, RunError, Session, StoreError,
};

use crate::guard::log_hook;
use crate::json::{Json, Style};
use crate::mcp::Served;
use crate::world::{Cast, World};

/// Why a scenario cannot be played to its end. None of this is an outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlayError {
    /// Its runtime could not be built, or its MCP servers could not be served.
    #[error("the world could not be built")]
    Runtime(#[from] std::io::Error),
    /// It names an agent that it does not have.
    #[error("there is no agent `{0}`")]
    NoAgent(String),
    /// A paused run could not be read back.
    #[error("a paused run could not be read back")]
    Restore(#[from] RestoreError),
    /// A decision was refused.
    #[error("a decision was refused")]
    Decide(#[from] DecideError),
    /// The session could not be read.
    #[error("the session could not be read")]
    Session(#[from] StoreError),
}

/// Plays a scenario on a runtime of its own. It has one thread, so that bodies begin in the order in which they
/// are started, as the reference's do.
pub fn play_alone(scenario: &Json) -> Result<Value, PlayError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(play(scenario))
}

/// Plays a scenario, and says what came of it.
pub async fn play(scenario: &Json) -> Result<Value, PlayError> {
    let nothing = Json::Null;
    let name = scenario.text_of("name").unwrap_or_default();
    let run = scenario.get("run").unwrap_or(&nothing);
    let world = Arc::new(World::new(scenario.get("context").unwrap_or(&nothing)));
    let served = Served::new(scenario, &world).await?;
    let mut player = Player {
        cast: Cast::new(scenario, served),
        world,
        start: scenario.text_of("start").unwrap_or_default().to_owned(),
        run: run.clone(),
        session: run.switch("session", false).then(|| Session::in_memory("scenario")),
        rounds: Vec::new(),
        events: Vec::new(),
        listed: Vec::new(),
        forgetful: None,
    };
    let inputs: Vec<String> = match scenario.get("input") {
        Some(Json::List(texts)) => texts.iter().filter_map(Json::text).map(str::to_owned).collect(),
        input => vec![input.and_then(Json::text).unwrap_or_default().to_owned()],
    };
    let decisions = scenario.get("decisions").unwrap_or(&nothing).list();
    let ended = match player.all(inputs, decisions).await {
        Ok(outcome) => Ok(outcome),
        Err(Stopped::Failed(error)) => Err(error),
        Err(Stopped::Broken(error)) => return Err(error),
    };
    tokio::time::sleep(Duration::from_millis(scenario.count_of("settle_ms").unwrap_or(20))).await;
    player.cast.served.close().await;
    player.report(name, ended).await
}

/// Why no more runs follow.
enum Stopped {
    /// A run failed, which is an outcome.
    Failed(RunError),
    /// The scenario cannot be played.
    Broken(PlayError),
}

impl From<RunError> for Stopped {
    fn from(error: RunError) -> Self {
        Self::Failed(error)
    }
}

impl From<PlayError> for Stopped {
    fn from(error: PlayError) -> Self {
        Self::Broken(error)
    }
}

struct Player {
    cast: Cast,
    world: Arc<World>,
    start: String,
    run: Json,
    session: Option<Session>,
    rounds: Vec<Value>,
    events: Vec<String>,
    /// Approvals that the reference lists beside those of the run's own calls.
    listed: Vec<Pending>,
    /// The turn in which the reference forgets which of them it has listed.
    forgetful: Option<u32>,
}

impl Player {
    /// One run for each input, with the decisions as they come.
    async fn all(&mut self, inputs: Vec<String>, decisions: &[Json]) -> Result<Option<Outcome>, Stopped> {
        let mut decisions = decisions.iter();
        let mut last = None;
        for input in inputs {
            let agent = self.cast.agents.get(&self.start).cloned();
            let agent = agent.ok_or_else(|| PlayError::NoAgent(self.start.clone()))?;
            self.listed.clear();
            self.forgetful = None;
            let mut outcome = self.once(agent.run_with(input.as_str(), self.world.clone())).await?;
            loop {
                outcome = match outcome {
                    Outcome::Paused(paused) => {
                        let Some(decision) = decisions.next() else {
                            break last = Some(Outcome::Paused(paused));
                        };
                        self.go_on(&agent, paused, decision).await?
                    }
                    outcome => break last = Some(outcome),
                };
            }
        }
        Ok(last)
    }

    /// Goes on with a paused run.
    async fn go_on(
        &mut self,
        agent: &Agent<World>,
        paused: Paused,
        decision: &Json,
    ) -> Result<Outcome, Stopped> {
        self.rounds.push(paused.pending().iter().map(show_pending).collect());
        let before = paused.record().clone();
        let paused = self.decided(paused, decision)?;
        let resumed = self.once(agent.resume_with(paused, self.world.clone())).await?;
        if let Outcome::Paused(paused) = &resumed {
            self.list(before.state(), &before.approvals().collect::<Vec<_>>(), paused.pending());
        }
        Ok(resumed)
    }

    /// When a run that was gone on with waits again, the reference lists more than the run's own approvals: those
    /// inside nested agents too. In a turn in which an agent waited whose own call was not held, it also lists
    /// each once more whenever the run was turned to text.
    fn list(&mut self, before: &Run, held: &[&CallId], now: Vec<Pending>) {
        let (turn, before, open) = (before.turn(), before.pending(), before.unsettled());
        let outer = |one: &Pending| one.path.within().first().cloned();
        if before.iter().filter_map(outer).any(|outer| !held.contains(&&outer)) {
            self.forgetful = Some(turn);
        }
        let forgets = self.run.switch("serialise", true) && self.forgetful == Some(turn);
        for one in now {
            let is_in = |list: &[Pending]| list.iter().any(|known| known.path == one.path);
            let is_listed = match outer(&one) {
                Some(outer) => open.contains(&outer) && (forgets || !is_in(&self.listed)),
                None => forgets && is_in(&before),
            };
            if is_listed {
                self.listed.push(one);
            }
        }
    }

    /// The run with a person's decisions, as another process would find it.
    fn decided(&self, paused: Paused, decision: &Json) -> Result<Paused, PlayError> {
        let paused =
            if self.run.switch("serialise", true) { Paused::from_text(&paused.to_text())? } else { paused };
        Ok(decide(paused, decision)?)
    }

    async fn once(&mut self, run: RunBuilder<World>) -> Result<Outcome, RunError> {
        let mut run = run.hook(log_hook()).agents(self.cast.agents.values().cloned());
        run = run.max_turns(u32::try_from(self.run.count_of("max_turns").unwrap_or(10)).unwrap_or(u32::MAX));
        if let Some(limit) = self.run.count_of("concurrency") {
            run = run.concurrency(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        run = run.missing_tool(match self.run.text_of("tool_not_found") {
            Some("return_error_to_model") => MissingTool::say(|name, _| format!("Tool '{name}' not found.")),
            _ => MissingTool::Fail,
        });
        if self.run.switch("pre_approval_guardrails", false) {
            run = run.early_guardrails();
        }
        if let Some(session) = &self.session {
            run = run.session(session);
        }
        if self.run.switch("stream", false) { self.streamed(run).await } else { run.await }
    }

    async fn streamed(&mut self, run: RunBuilder<World>) -> Result<Outcome, RunError> {
        let mut stream = run.stream();
        let mut seen = Vec::new();
        let mut is_cancelled = false;
        while let Some(event) = stream.next().await {
            if is_cancelled || !event.path.is_empty() {
                continue;
            }
            let Some(name) = event_name(&event.kind) else { continue };
            seen.push(name.clone());
            if self.run.text_of("cancel_on") == Some(&name) {
                match self.run.text_of("cancel_mode") {
                    Some("immediate") => {
                        stream.cancel().now();
                        is_cancelled = true;
                    }
                    _ => stream.cancel().after_turn(),
                }
            }
        }
        let outcome = stream.outcome().await?;
        self.events.extend(seen);
        Ok(outcome)
    }

    async fn report(self, name: &str, ended: Result<Option<Outcome>, RunError>) -> Result<Value, PlayError> {
        let mut report = Map::new();
        report.insert("name".into(), name.into());
        match &ended {
            Ok(Some(outcome)) => self.show_outcome(outcome, &mut report),
            Ok(None) => {
                report.insert("status".into(), "completed".into());
            }
            Err(error) => {
                report.insert("status".into(), "failed".into());
                let kind = error.failure().map_or("UserError", error_kind);
                report.insert("error".into(), json!({ "kind": kind, "message": error.to_string() }));
            }
        }
        report.insert("rounds".into(), self.rounds.into());
        if self.run.switch("stream", false) {
            report.insert("events".into(), self.events.into());
        }
        let mut calls = Vec::new();
        for (agent, model) in &self.cast.models {
            for request in model.requests() {
                calls.push(json!({
                    "agent": agent,
                    "input": request.input_text(),
                    "tools": request.tools,
                    "handoffs": request.handoffs,
                    "tool_choice": request.settings.tool_choice.as_ref().map(|choice| choice.as_str().to_owned()),
                }));
            }
        }
        report.insert("model_calls".into(), calls.into());
        {
            let state = self.world.state();
            report.insert("log".into(), state.log.clone().into());
            report.insert("peak_concurrency".into(), state.peak.into());
            report.insert("context".into(), Json::Object(state.context.clone()).to_value());
        }
        if let Some(session) = &self.session {
            let items = session.items().await?;
            report.insert("session".into(), items.iter().map(|item| Value::from(item_line(item))).collect());
        }
        Ok(Value::Object(report))
    }

    fn show_outcome(&self, outcome: &Outcome, report: &mut Map<String, Value>) {
        let (status, output, pending) = match outcome {
            Outcome::Finished(finished) => ("completed", Value::from(finished.output.as_str()), Vec::new()),
            Outcome::Paused(paused) => {
                ("interrupted", Value::Null, paused.pending().iter().map(show_pending).collect())
            }
            // The reference has no word for a run that was stopped.
            _ => ("completed", Value::Null, Vec::new()),
        };
        let record = outcome.record();
        report.insert("status".into(), status.into());
        report.insert("pending".into(), pending.into());
        report.insert("final_output".into(), output);
        report.insert("last_agent".into(), record.last_agent().as_str().into());
        report.insert("items".into(), self.show_items(record).into());
        let usage = record.usage();
        // The reference counts answered requests only; failed ones are in `unknown` here.
        let requests = usage.requests - usage.unknown;
        report.insert("usage".into(), json!({ "requests": requests, "total_tokens": usage.total_tokens() }));
    }

    fn show_items(&self, record: &RunRecord) -> Vec<Value> {
        let state = self.world.state();
        let mut shown: Vec<Value> = Vec::new();
        for produced in record.items() {
            let mut item = show_item(&produced);
            if let (Part::Output, Some(id)) = (produced.part, item["id"].as_str().map(str::to_owned))
                && let Some((text, value)) = state.values.get(&id)
                && item["output"] == text.as_str()
            {
                item["output"] = value.write(Style::Spaced).into();
            }
            shown.push(item);
        }
        let agent_of = |call: &str| {
            record.items().into_iter().find_map(|produced| match &*produced.item {
                Item::Call(made) if made.id == *call => Some((made.name.clone(), produced.agent.to_string())),
                _ => None,
            })
        };
        for call in record.approvals() {
            let (name, agent) = agent_of(call.as_str()).unwrap_or_default();
            shown.push(json!({ "type": "approval", "name": name, "id": call.as_str(), "agent": agent }));
        }
        shown.extend(self.listed.iter().map(show_pending));
        shown
    }
}

fn decide(mut paused: Paused, decision: &Json) -> Result<Paused, DecideError> {
    let nothing = Json::Null;
    let listed = |key: &str, id: &str| {
        decision.get(key).unwrap_or(&nothing).list().iter().any(|listed| listed.text() == Some(id))
    };
    // Decisions about one call come before those that cover others too.
    for reach in [Reach::Call, Reach::Always] {
        for pending in paused.pending() {
            let id = pending.call().as_str();
            let rejected = decision.get("reject").and_then(|reject| reject.get(id));
            let decided = if listed("approve", id) {
                Some((Decision::Approve, Reach::Call))
            } else if listed("always", id) {
                Some((Decision::Approve, Reach::Always))
            } else if listed("never", id) {
                Some((Decision::Reject { message: None }, Reach::Always))
            } else {
                rejected.map(|message| {
                    (Decision::Reject { message: message.text().map(str::to_owned) }, Reach::Call)
                })
            };
            if let Some((decision, how_far)) = decided.filter(|(_, how_far)| *how_far == reach) {
                paused.decide(pending.path.clone(), decision, how_far)?;
            }
        }
    }
    Ok(paused)
}

fn event_name(kind: &EventKind) -> Option<String> {
    match kind {
        EventKind::Agent { agent } => Some(format!("agent {agent}")),
        EventKind::Item(produced) => match (produced.part, &*produced.item) {
            (Part::Call, _) => Some("tool_called".into()),
            (Part::HandoffCall, _) => Some("handoff_requested".into()),
            (Part::Output, _) => Some("tool_output".into()),
            (Part::Handoff, _) => Some("handoff_occured".into()),
            (Part::Said, Item::Message(_)) => Some("message_output_created".into()),
            (Part::Said, _) => None,
        },
        _ => None,
    }
}

fn show_pending(pending: &Pending) -> Value {
    json!({
        "type": "approval",
        "name": pending.tool.name(),
        "id": pending.call().as_str(),
        "agent": pending.agent.as_str(),
    })
}

fn show_item(produced: &Produced) -> Value {
    let agent = produced.agent.as_str();
    match (&*produced.item, produced.part) {
        (Item::Message(message), _) => json!({ "type": "message", "text": message.text(), "agent": agent }),
        (Item::Call(call), Part::HandoffCall) => {
            json!({ "type": "handoff_call", "name": call.name, "id": call.id.as_str(), "agent": agent })
        }
        (Item::Call(call), _) => {
            json!({ "type": "call", "name": call.name, "id": call.id.as_str(), "agent": agent })
        }
        (Item::Output(output), _) => {
            json!({ "type": "output", "id": output.call.as_str(), "output": output.content.text(), "agent": agent })
        }
        (Item::Handoff(handoff), _) => {
            json!({ "type": "handoff", "from": handoff.from.as_str(), "to": handoff.to.as_str() })
        }
        (item, _) => json!({ "type": format!("{item:?}") }),
    }
}

fn error_kind(failure: &Failure) -> &'static str {
    match failure {
        Failure::TurnsExhausted { .. } | Failure::LoopDetected { .. } => "MaxTurnsExceeded",
        Failure::Misbehaviour(_) | Failure::InvalidArguments { .. } | Failure::InvalidOutput { .. } => {
            "ModelBehaviorError"
        }
        Failure::ToolTimeout { .. } => "ToolTimeoutError",
        Failure::ToolInputGuardrail { .. } => "ToolInputGuardrailTripwireTriggered",
        Failure::ToolOutputGuardrail { .. } => "ToolOutputGuardrailTripwireTriggered",
        Failure::InputGuardrail { .. } => "InputGuardrailTripwireTriggered",
        Failure::OutputGuardrail { .. } => "OutputGuardrailTripwireTriggered",
        Failure::Model { .. } | Failure::GuardrailFailed { .. } => "Boom",
        _ => "UserError",
    }
}

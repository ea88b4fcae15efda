//! Plays a scenario and reports its outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Map, Value, json};
use windlass::agent::Agent;
use windlass::core::{
    decision::{Decision, DecisionScope, PendingCall},
    id::CallId,
    item::Item,
    run::{Run, RunItem, RunItemKind},
};
use windlass::model::describe_item;
use windlass::run::{OnUnknownTool, RunBuilder, RunRecord};
use windlass::{
    core::failure::RunFailure,
    error::{DecisionError, RestoreError, RunError, StoreError},
    event::RunEventKind,
    run::{PausedRun, RunResult},
    session::Session,
    store::{OpenRunError, Store, load_paused},
};

use crate::guardrails::log_hook;
use crate::json::{JsonStyle, OrderedJson};
use crate::mcp::ScenarioServers;
use crate::world::{ScenarioAgents, ScenarioWorld};

/// The reason why a scenario cannot be played. A failed run is an outcome and not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlayError {
    /// The runtime could not be built, or the MCP servers could not be started.
    #[error("the runtime or the MCP servers could not be started")]
    Runtime(#[from] std::io::Error),
    /// The scenario names an unknown agent.
    #[error("unknown agent `{0}`")]
    UnknownAgent(String),
    /// A paused run could not be read back.
    #[error("a paused run could not be read back")]
    Restore(#[from] RestoreError),
    /// A paused run could not be opened in its store.
    #[error("a paused run could not be opened in its store")]
    Open(#[from] OpenRunError),
    /// A decision was refused.
    #[error("a decision was refused")]
    Decide(#[from] DecisionError),
    /// The session could not be read.
    #[error("the session could not be read")]
    Session(#[from] StoreError),
}

/// Plays a scenario on its own runtime. The runtime has one thread, so that bodies start in order, as in the
/// reference.
///
/// # Errors
/// Returns an error if the scenario cannot be played.
pub fn play_on_own_runtime(scenario: &OrderedJson) -> Result<Value, PlayError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(play_scenario(scenario))
}

/// Plays a scenario and returns its outcome.
///
/// # Errors
/// Returns an error if the scenario cannot be played.
pub async fn play_scenario(scenario: &OrderedJson) -> Result<Value, PlayError> {
    play_with_store(scenario, None).await
}

/// Plays a scenario whose runs and session are in a store, and returns its outcome. A paused run is continued from the
/// store instead of from its text.
///
/// # Errors
/// Returns an error if the scenario cannot be played.
pub async fn play_in_store(scenario: &OrderedJson, store: Arc<dyn Store>) -> Result<Value, PlayError> {
    play_with_store(scenario, Some(store)).await
}

/// Number of sessions in stores, so that each scenario has its own.
static SESSION_COUNT: AtomicU64 = AtomicU64::new(0);

fn new_session(store: Option<&Arc<dyn Store>>) -> Option<Session> {
    let Some(store) = store else { return Some(Session::in_memory("scenario")) };
    let number = SESSION_COUNT.fetch_add(1, Ordering::Relaxed);
    Session::in_run_store(format!("scenario-{}-{number}", std::process::id()).into(), store)
}

async fn play_with_store(scenario: &OrderedJson, store: Option<Arc<dyn Store>>) -> Result<Value, PlayError> {
    let nothing = OrderedJson::Null;
    let name = scenario.text_field("name").unwrap_or_default();
    let run = scenario.get("run").unwrap_or(&nothing);
    let world = Arc::new(ScenarioWorld::new(scenario.get("context").unwrap_or(&nothing)));
    let served = ScenarioServers::new(scenario, &world).await?;
    let mut player = ScenarioPlayer {
        scenario_agents: ScenarioAgents::new(scenario, served),
        world,
        start_agent: scenario.text_field("start").unwrap_or_default().to_owned(),
        run_spec: run.clone(),
        session: run.bool_field("session", false).then(|| new_session(store.as_ref())).flatten(),
        store,
        approval_rounds: Vec::new(),
        events: Vec::new(),
        listed_approvals: Vec::new(),
        relisting_turn: None,
    };
    let inputs: Vec<String> = match scenario.get("input") {
        Some(OrderedJson::List(texts)) => {
            texts.iter().filter_map(OrderedJson::as_text).map(str::to_owned).collect()
        }
        input => vec![input.and_then(OrderedJson::as_text).unwrap_or_default().to_owned()],
    };
    let decisions = scenario.get("decisions").unwrap_or(&nothing).list_items();
    let ended = match player.run_all(inputs, decisions).await {
        Ok(outcome) => Ok(outcome),
        Err(PlayStop::RunFailed(error)) => Err(error),
        Err(PlayStop::Unplayable(error)) => return Err(error),
    };
    tokio::time::sleep(Duration::from_millis(scenario.count_field("settle_ms").unwrap_or(20))).await;
    player.scenario_agents.servers.close().await;
    player.build_report(name, ended).await
}

/// The reason why no further runs follow.
enum PlayStop {
    /// A run failed, which is an outcome.
    RunFailed(RunError),
    /// The scenario cannot be played.
    Unplayable(PlayError),
}

impl From<RunError> for PlayStop {
    fn from(error: RunError) -> Self {
        Self::RunFailed(error)
    }
}

impl From<PlayError> for PlayStop {
    fn from(error: PlayError) -> Self {
        Self::Unplayable(error)
    }
}

/// The state of a scenario while it is played.
struct ScenarioPlayer {
    scenario_agents: ScenarioAgents,
    world: Arc<ScenarioWorld>,
    start_agent: String,
    run_spec: OrderedJson,
    session: Option<Session>,
    store: Option<Arc<dyn Store>>,
    approval_rounds: Vec<Value>,
    events: Vec<String>,
    /// Approvals that the reference lists in addition to those of the run's own calls.
    listed_approvals: Vec<PendingCall>,
    /// Turn in which the reference lists known approvals again.
    relisting_turn: Option<u32>,
}

impl ScenarioPlayer {
    /// Plays one run per input, and applies the decisions in order.
    async fn run_all(
        &mut self,
        inputs: Vec<String>,
        decisions: &[OrderedJson],
    ) -> Result<Option<RunResult>, PlayStop> {
        let mut decisions = decisions.iter();
        let mut last = None;
        for input in inputs {
            let agent = self.scenario_agents.agents.get(&self.start_agent).cloned();
            let agent = agent.ok_or_else(|| PlayError::UnknownAgent(self.start_agent.clone()))?;
            self.listed_approvals.clear();
            self.relisting_turn = None;
            let mut outcome =
                self.run_once(agent.run_with_context(input.as_str(), self.world.clone())).await?;
            loop {
                outcome = match outcome {
                    RunResult::Paused(paused) => {
                        let Some(decision) = decisions.next() else {
                            break last = Some(RunResult::Paused(paused));
                        };
                        self.resume_paused(&agent, paused, decision).await?
                    }
                    outcome => break last = Some(outcome),
                };
            }
        }
        Ok(last)
    }

    /// Resumes a paused run.
    async fn resume_paused(
        &mut self,
        agent: &Agent<ScenarioWorld>,
        paused: PausedRun,
        decision: &OrderedJson,
    ) -> Result<RunResult, PlayStop> {
        self.approval_rounds.push(paused.pending_calls().iter().map(show_pending).collect());
        let before = paused.record().clone();
        let paused = self.with_decisions(paused, decision).await?;
        let resumed = self.run_once(agent.resume_with_context(paused, self.world.clone())).await?;
        if let RunResult::Paused(paused) = &resumed {
            self.note_listed_approvals(
                before.state(),
                &before.approval_calls().collect::<Vec<_>>(),
                paused.pending_calls(),
            );
        }
        Ok(resumed)
    }

    /// Notes the approvals that the reference lists when a resumed run pauses again. The reference also lists
    /// the approvals inside nested agents. In a turn in which a nested agent waited and its own call was not
    /// held, it lists each approval again after every serialisation of the run.
    fn note_listed_approvals(&mut self, before: &Run, held: &[&CallId], now: Vec<PendingCall>) {
        let (turn, before, open) = (before.turn(), before.pending_calls(), before.unsettled_calls());
        let outer = |one: &PendingCall| one.path.parent_calls().first().cloned();
        if before.iter().filter_map(outer).any(|outer| !held.contains(&&outer)) {
            self.relisting_turn = Some(turn);
        }
        let forgets = self.run_spec.bool_field("serialise", true) && self.relisting_turn == Some(turn);
        for one in now {
            let is_in = |list: &[PendingCall]| list.iter().any(|known| known.path == one.path);
            let is_listed = match outer(&one) {
                Some(outer) => open.contains(&outer) && (forgets || !is_in(&self.listed_approvals)),
                None => forgets && is_in(&before),
            };
            if is_listed {
                self.listed_approvals.push(one);
            }
        }
    }

    /// Applies a person's decisions to the run, after a round trip through its text or its store.
    async fn with_decisions(
        &self,
        paused: PausedRun,
        decision: &OrderedJson,
    ) -> Result<PausedRun, PlayError> {
        let paused = match &self.store {
            _ if !self.run_spec.bool_field("serialise", true) => paused,
            Some(store) => load_paused(&**store, paused.record().run_id()).await?,
            None => PausedRun::from_text(&paused.to_text())?,
        };
        Ok(apply_decisions(paused, decision)?)
    }

    async fn run_once(&mut self, run: RunBuilder<ScenarioWorld>) -> Result<RunResult, RunError> {
        let mut run = run.hook(log_hook()).known_agents(self.scenario_agents.agents.values().cloned());
        run = run.max_turns(
            u32::try_from(self.run_spec.count_field("max_turns").unwrap_or(10)).unwrap_or(u32::MAX),
        );
        if let Some(drain) = self.run_spec.count_field("drain_ms") {
            run = run.drain_timeout(Duration::from_millis(drain));
        }
        if let Some(limit) = self.run_spec.count_field("concurrency") {
            run = run.max_concurrent_calls(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        run = run.on_unknown_tool(match self.run_spec.text_field("tool_not_found") {
            Some("return_error_to_model") => {
                OnUnknownTool::custom_message(|name, _| format!("Tool '{name}' not found."))
            }
            _ => OnUnknownTool::FailRun,
        });
        if self.run_spec.bool_field("pre_approval_guardrails", false) {
            run = run.pre_approval_guardrails();
        }
        if let Some(store) = &self.store {
            run = run.store(store.clone());
        }
        if let Some(session) = &self.session {
            run = run.session(session);
        }
        if self.run_spec.bool_field("stream", false) { self.run_streamed(run).await } else { run.await }
    }

    async fn run_streamed(&mut self, run: RunBuilder<ScenarioWorld>) -> Result<RunResult, RunError> {
        let mut stream = run.stream();
        let mut seen = Vec::new();
        let mut is_cancelled = false;
        while let Some(event) = stream.next().await {
            if is_cancelled || !event.path.is_empty() {
                continue;
            }
            let Some(name) = event_name(&event.kind) else { continue };
            seen.push(name.clone());
            if self.run_spec.text_field("cancel_on") == Some(&name) {
                match self.run_spec.text_field("cancel_mode") {
                    Some("immediate") => {
                        stream.cancel_handle().cancel();
                        is_cancelled = true;
                    }
                    _ => stream.cancel_handle().cancel_after_turn(),
                }
            }
        }
        let outcome = stream.result().await?;
        self.events.extend(seen);
        Ok(outcome)
    }

    async fn build_report(
        self,
        name: &str,
        ended: Result<Option<RunResult>, RunError>,
    ) -> Result<Value, PlayError> {
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
        report.insert("rounds".into(), self.approval_rounds.into());
        if self.run_spec.bool_field("stream", false) {
            report.insert("events".into(), self.events.into());
        }
        let mut calls = Vec::new();
        for (agent, model) in &self.scenario_agents.models {
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
            let state = self.world.lock_state();
            report.insert("log".into(), state.log.clone().into());
            report.insert("peak_concurrency".into(), state.peak_concurrency.into());
            report.insert("context".into(), OrderedJson::Object(state.context.clone()).to_value());
        }
        if let Some(session) = &self.session {
            let items = session.items().await?;
            report.insert(
                "session".into(),
                items.iter().map(|item| Value::from(describe_item(item))).collect(),
            );
        }
        Ok(Value::Object(report))
    }

    fn show_outcome(&self, outcome: &RunResult, report: &mut Map<String, Value>) {
        let (status, output, pending) = match outcome {
            RunResult::Finished(finished) => ("completed", Value::from(finished.output.as_str()), Vec::new()),
            RunResult::Paused(paused) => {
                ("interrupted", Value::Null, paused.pending_calls().iter().map(show_pending).collect())
            }
            // The reference has no status for a cancelled run.
            _ => ("completed", Value::Null, Vec::new()),
        };
        let record = outcome.record();
        report.insert("status".into(), status.into());
        report.insert("pending".into(), pending.into());
        report.insert("final_output".into(), output);
        report.insert("last_agent".into(), record.last_agent().as_str().into());
        report.insert("items".into(), self.show_items(record).into());
        let usage = record.usage();
        // The reference counts only answered requests; `unknown` contains the failed ones.
        let requests = usage.requests - usage.unknown_requests;
        report.insert("usage".into(), json!({ "requests": requests, "total_tokens": usage.total_tokens() }));
    }

    fn show_items(&self, record: &RunRecord) -> Vec<Value> {
        let state = self.world.lock_state();
        let mut shown: Vec<Value> = Vec::new();
        for produced in record.run_items() {
            let mut item = show_item(&produced);
            if let (RunItemKind::CallOutput, Some(id)) =
                (produced.kind, item["id"].as_str().map(str::to_owned))
                && let Some((text, value)) = state.values.get(&id)
                && item["output"] == text.as_str()
            {
                item["output"] = value.format_as(JsonStyle::SpacedAscii).into();
            }
            shown.push(item);
        }
        let agent_of = |call: &str| {
            record.run_items().into_iter().find_map(|produced| match &*produced.item {
                Item::Call(made) if made.id == *call => Some((made.name.clone(), produced.agent.to_string())),
                _ => None,
            })
        };
        for call in record.approval_calls() {
            let (name, agent) = agent_of(call.as_str()).unwrap_or_default();
            shown.push(json!({ "type": "approval", "name": name, "id": call.as_str(), "agent": agent }));
        }
        shown.extend(self.listed_approvals.iter().map(show_pending));
        shown
    }
}

fn apply_decisions(mut paused: PausedRun, decision: &OrderedJson) -> Result<PausedRun, DecisionError> {
    let nothing = OrderedJson::Null;
    let listed = |key: &str, id: &str| {
        decision.get(key).unwrap_or(&nothing).list_items().iter().any(|listed| listed.as_text() == Some(id))
    };
    // Decisions about one call are applied before standing decisions.
    for reach in [DecisionScope::ThisCall, DecisionScope::ToolForRun] {
        for pending in paused.pending_calls() {
            let id = pending.call().as_str();
            let rejected = decision.get("reject").and_then(|reject| reject.get(id));
            let decided = if listed("approve", id) {
                Some((Decision::Approve, DecisionScope::ThisCall))
            } else if listed("always", id) {
                Some((Decision::Approve, DecisionScope::ToolForRun))
            } else if listed("never", id) {
                Some((Decision::Reject { message: None }, DecisionScope::ToolForRun))
            } else {
                rejected.map(|message| {
                    (
                        Decision::Reject { message: message.as_text().map(str::to_owned) },
                        DecisionScope::ThisCall,
                    )
                })
            };
            if let Some((decision, how_far)) = decided.filter(|(_, how_far)| *how_far == reach) {
                paused.decide(pending.path.clone(), decision, how_far)?;
            }
        }
    }
    Ok(paused)
}

fn event_name(kind: &RunEventKind) -> Option<String> {
    match kind {
        RunEventKind::AgentUpdated { agent } => Some(format!("agent {agent}")),
        RunEventKind::Item(produced) => match (produced.kind, &*produced.item) {
            (RunItemKind::ToolCall, _) => Some("tool_called".into()),
            (RunItemKind::HandoffCall, _) => Some("handoff_requested".into()),
            (RunItemKind::CallOutput, _) => Some("tool_output".into()),
            (RunItemKind::HandoffOutput, _) => Some("handoff_occured".into()),
            (RunItemKind::ModelOutput, Item::Message(_)) => Some("message_output_created".into()),
            (RunItemKind::ModelOutput | RunItemKind::Correction | RunItemKind::AddedInput, _) => None,
        },
        _ => None,
    }
}

fn show_pending(pending: &PendingCall) -> Value {
    json!({
        "type": "approval",
        "name": pending.tool.name(),
        "id": pending.call().as_str(),
        "agent": pending.agent.as_str(),
    })
}

fn show_item(produced: &RunItem) -> Value {
    let agent = produced.agent.as_str();
    match (&*produced.item, produced.kind) {
        (Item::Message(message), _) => json!({ "type": "message", "text": message.text(), "agent": agent }),
        (Item::Call(call), RunItemKind::HandoffCall) => {
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

fn error_kind(failure: &RunFailure) -> &'static str {
    match failure {
        RunFailure::MaxTurnsExceeded { .. } | RunFailure::LoopDetected { .. } => "MaxTurnsExceeded",
        RunFailure::ModelProtocolError(_)
        | RunFailure::InvalidArguments { .. }
        | RunFailure::InvalidOutput { .. } => "ModelBehaviorError",
        RunFailure::ToolTimeout { .. } => "ToolTimeoutError",
        RunFailure::ToolInputGuardrailTripped { .. } => "ToolInputGuardrailTripwireTriggered",
        RunFailure::ToolOutputGuardrailTripped { .. } => "ToolOutputGuardrailTripwireTriggered",
        RunFailure::InputGuardrailTripped { .. } => "InputGuardrailTripwireTriggered",
        RunFailure::OutputGuardrailTripped { .. } => "OutputGuardrailTripwireTriggered",
        RunFailure::ModelRequestFailed { .. } | RunFailure::GuardrailFailed { .. } => "Boom",
        _ => "UserError",
    }
}

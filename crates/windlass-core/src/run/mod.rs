//! The run machine. What it is stands here; how entries move it, in [`apply`]; what it asks for, in [`next`].

mod apply;
mod decide;
mod next;
mod replay;
mod slot;
mod snapshot;
pub mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::calls::CallMap;
use crate::canonical::Digest;
use crate::decision::{Pending, Reply, Standing, StandingVerdict};
use crate::entry::Started;
use crate::failure::Failure;
use crate::id::{AgentName, CallId, RunId, SessionId};
use crate::item::{Item, OutputContent};
use crate::tool::ToolKey;
use crate::usage::Usage;

pub use apply::{Applied, Illegal};
pub use next::{Doubt, GateStep, InvalidStep, Next, Runnable, SettleStep, Step};
pub use replay::{Replay, ReplayError};
use slot::Turn;

/// A run of an agent: its whole state, as its journal adds up to.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    id: RunId,
    session: Option<SessionId>,
    max_turns: Option<u32>,
    /// Calls that began in the run that this one is a fork of, and whose keys that run's name is in.
    inherited: BTreeMap<CallId, RunId>,
    agent: AgentName,
    turn: u32,
    input: Vec<Arc<Item>>,
    history: Vec<Arc<Item>>,
    produced: Vec<Produced>,
    /// How long the history and what was produced were before the last answer.
    before_answer: (usize, usize),
    added_input: Vec<Arc<Item>>,
    seen: CallMap<Digest>,
    standing: BTreeMap<(AgentName, ToolKey), StandingVerdict>,
    /// Sorted: there are few.
    used_tools: Vec<AgentName>,
    usage: Usage,
    last_response_id: Option<String>,
    repeats: Repeats,
    /// Calls that did nothing: they were not there, ended the run, or were cut short by its end.
    undone: BTreeSet<CallId>,
    /// Whether anything came of an answer.
    acted: bool,
    /// The first call in the model's order that ended the run, by its place.
    ended_by: Option<(usize, Box<Failure>)>,
    /// From where on outputs were withheld.
    withheld_from: Option<usize>,
    phase: Phase,
}

/// Where the run stands between two entries.
#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// The model is to be asked.
    Ready,
    /// Calls of the last answer are open.
    Working(Turn),
    /// All calls but the handoff have settled.
    HandingOff(Turn),
    /// All calls have settled, and the application's function says whether their results are final.
    Judging(Turn),
    /// A final output is at hand.
    Concluding(Candidate),
    /// The run has ended.
    Over(End),
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// With an output.
    Finished(String),
    /// With an error.
    Failed(Failure),
    /// It was cancelled.
    Cancelled,
}

/// An item that the run produced, and by whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Produced {
    /// The agent.
    pub agent: AgentName,
    /// The item.
    pub item: Arc<Item>,
    /// Which part it plays.
    pub part: Part,
}

/// The part that an item plays in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The model said or thought it.
    Said,
    /// The model asks for a tool.
    Call,
    /// The model asks to pass control.
    HandoffCall,
    /// What came of a call.
    Output,
    /// Control passed.
    Handoff,
}

/// An output that would end the run, if guards and types agree.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The agent that made it.
    pub agent: AgentName,
    /// The text.
    pub output: String,
    /// Where it came from.
    pub source: CandidateSource,
}

/// Where a final output came from.
#[derive(Clone, Debug, PartialEq)]
pub enum CandidateSource {
    /// The model's message.
    Message,
    /// The model's refusal; the output is its words.
    Refusal,
    /// A tool, by the agent's tool-use behaviour.
    Tool(CallId),
}

/// One result of a turn, as the application's judging function sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnResult {
    /// The call.
    pub call: CallId,
    /// The tool.
    pub tool: ToolKey,
    /// How it settled.
    pub how: crate::entry::How,
    /// The output.
    pub output: OutputContent,
}

/// How often the model has made exactly the same calls in a row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Repeats {
    last: Vec<Digest>,
    times: u32,
}

impl Run {
    /// A run that has just begun.
    pub fn start(started: Started) -> Self {
        let input = started.input;
        let mut history = started.history;
        history.extend(input.iter().cloned());
        Self {
            id: started.run,
            session: started.session,
            max_turns: started.max_turns,
            inherited: started.origin.map(|origin| origin.under_way).unwrap_or_default(),
            agent: started.agent,
            turn: 0,
            input,
            before_answer: (history.len(), 0),
            history,
            produced: Vec::new(),
            added_input: Vec::new(),
            seen: CallMap::default(),
            standing: BTreeMap::new(),
            used_tools: Vec::new(),
            usage: Usage::default(),
            last_response_id: None,
            repeats: Repeats::default(),
            undone: BTreeSet::new(),
            acted: false,
            ended_by: None,
            withheld_from: None,
            phase: Phase::Ready,
        }
    }

    /// The run's id.
    pub fn id(&self) -> &RunId {
        &self.id
    }

    /// The session it belongs to.
    pub fn session(&self) -> Option<&SessionId> {
        self.session.as_ref()
    }

    /// The agent that is current.
    pub fn agent(&self) -> &AgentName {
        &self.agent
    }

    /// How many times the model has answered.
    pub fn turn(&self) -> u32 {
        self.turn
    }

    /// What the model is shown: every call of a settled turn stands with its output.
    pub fn history(&self) -> &[Arc<Item>] {
        &self.history
    }

    /// What the run was given, the session's history left out.
    pub fn input(&self) -> &[Arc<Item>] {
        &self.input
    }

    /// What the model was asked with last, or is to be asked with first.
    pub fn asked_with(&self) -> &[Arc<Item>] {
        match self.turn {
            0 => &self.history,
            _ => self.history.get(..self.before_answer.0).unwrap_or_default(),
        }
    }

    /// Whether anything came of an answer: a call was held, started or settled, or control passed. Nothing does
    /// before the guardrails of the input have passed.
    pub fn has_acted(&self) -> bool {
        self.acted
    }

    /// How many of the produced items are here to stay: all but those of an answer that is still worked on.
    pub fn settled_len(&self) -> usize {
        match self.phase {
            Phase::Ready | Phase::Judging(_) | Phase::Over(_) => self.produced.len(),
            Phase::Working(_) | Phase::HandingOff(_) | Phase::Concluding(_) => self.before_answer.1,
        }
    }

    /// What the run produced in settled turns, and the calls of an open one.
    pub fn produced(&self) -> &[Produced] {
        &self.produced
    }

    /// What the calls of the open turn have produced so far, in the model's order.
    pub fn produced_in_open_turn(&self) -> Vec<Produced> {
        match &self.phase {
            Phase::Working(turn) | Phase::HandingOff(turn) => turn.outputs(),
            Phase::Ready | Phase::Judging(_) | Phase::Concluding(_) | Phase::Over(_) => Vec::new(),
        }
    }

    /// What a session is to keep of the produced items from `from` on. Of a run that failed in the middle of a
    /// turn it keeps the calls that were done, with their outputs, and nothing else of that turn.
    pub fn for_session(&self, from: usize) -> Vec<Arc<Item>> {
        let settled = self.produced.get(from..self.settled_len()).unwrap_or_default();
        let is_failed = matches!(self.phase, Phase::Over(End::Failed(_)));
        let broken_from = match self.withheld_from {
            Some(from) => from,
            None if is_failed && self.turn_was_broken() => self.before_answer.1,
            None => usize::MAX,
        };
        let keeps = |place: usize, produced: &Produced| {
            place < broken_from
                || match &*produced.item {
                    Item::Call(call) => !self.undone.contains(&call.id) && produced.part != Part::HandoffCall,
                    Item::Output(output) => !self.undone.contains(&output.call),
                    _ => false,
                }
        };
        let placed = settled.iter().enumerate().map(|(at, produced)| (from + at, produced));
        let kept = placed.filter(|(place, produced)| keeps(*place, produced));
        in_order_of_calls(kept.map(|(_, produced)| produced.item.clone()).collect())
    }

    /// Whether the last turn has calls that did nothing.
    fn turn_was_broken(&self) -> bool {
        self.produced[self.before_answer.1.min(self.produced.len())..].iter().any(|produced| match &*produced
            .item
        {
            Item::Call(call) => self.undone.contains(&call.id),
            _ => false,
        })
    }

    /// Calls that earlier answers made, with what they asked for.
    pub fn seen(&self) -> &CallMap<Digest> {
        &self.seen
    }

    /// Whether `agent` has used a tool, which lifts a forced tool choice.
    pub fn has_used_tools(&self, agent: &AgentName) -> bool {
        self.used_tools.binary_search(agent).is_ok()
    }

    /// What the run has cost, nested agents not included.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// The provider's id of the last answer.
    pub fn last_response_id(&self) -> Option<&str> {
        self.last_response_id.as_deref()
    }

    /// How many turns in a row have made exactly the same calls.
    pub fn repeats(&self) -> u32 {
        self.repeats.times
    }

    /// How the run ended, once it has.
    pub fn end(&self) -> Option<&End> {
        match &self.phase {
            Phase::Over(end) => Some(end),
            Phase::Ready
            | Phase::Working(_)
            | Phase::HandingOff(_)
            | Phase::Judging(_)
            | Phase::Concluding(_) => None,
        }
    }

    /// Whether the model is to be asked, and nothing else is under way.
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready) && self.added_input.is_empty() && self.ended_by.is_none()
    }

    /// Whether all calls so far have their outputs in the history.
    pub fn is_between_turns(&self) -> bool {
        !matches!(self.phase, Phase::Working(_) | Phase::HandingOff(_))
    }

    /// The calls that wait for a person, nested agents' included.
    pub fn pending(&self) -> Vec<Pending> {
        let mut found = Vec::new();
        self.collect_pending(&mut Vec::new(), &mut found);
        found
    }

    /// A call of this run, not of a nested agent, that waits for a person.
    pub fn pending_call(&self, call: &CallId) -> Option<Pending> {
        let turn = self.open_turn()?;
        turn.slot(call)?.pending(&[], &turn.agent)
    }

    /// Decisions that cover later calls too, nested agents' left out.
    pub fn standing(&self) -> Vec<Standing> {
        self.standing
            .iter()
            .map(|((agent, tool), verdict)| Standing {
                within: Vec::new(),
                agent: agent.clone(),
                tool: tool.clone(),
                verdict: verdict.clone(),
            })
            .collect()
    }

    /// The results of the turn that is being judged.
    pub fn turn_results(&self) -> Vec<TurnResult> {
        match &self.phase {
            Phase::Judging(turn) => turn.results(),
            _ => Vec::new(),
        }
    }

    /// The run of an agent that a call of this run nested, where it is not finished.
    pub fn child(&self, call: &CallId) -> Option<&Self> {
        self.open_turn()?.slot(call)?.child.as_deref()
    }

    /// Takes the nested run out, for its own driver to move on.
    pub fn take_child(&mut self, call: &CallId) -> Option<Self> {
        let turn = self.open_turn_mut()?;
        turn.slot_mut(call)?.child.take().map(|child| *child)
    }

    /// Puts a nested run back, for it is paused.
    pub fn park_child(&mut self, call: &CallId, child: Self) {
        if let Some(slot) = self.open_turn_mut().and_then(|turn| turn.slot_mut(call)) {
            slot.child = Some(Box::new(child));
        }
    }

    /// The arguments of an open call, as the model wrote them.
    pub fn arguments(&self, call: &CallId) -> Option<&str> {
        Some(&self.open_turn()?.slot(call)?.call().arguments)
    }

    /// The tool that an open call asks for.
    pub fn tool_of(&self, call: &CallId) -> Option<&ToolKey> {
        Some(&self.open_turn()?.slot(call)?.planned.key)
    }

    /// What the body of an open call asked so far, with the answers.
    pub fn replies(&self, call: &CallId) -> &[Reply] {
        self.open_turn().and_then(|turn| turn.slot(call)).map(|slot| &*slot.replies).unwrap_or_default()
    }

    /// The calls of the open turn that have no output yet, in the model's order.
    pub fn unsettled(&self) -> Vec<CallId> {
        self.open_turn()
            .map(|turn| {
                turn.slots
                    .iter()
                    .filter(|slot| !slot.is_settled())
                    .map(|slot| slot.planned.call.clone())
                    .collect()
            })
            .unwrap_or_default()
    }

    /// The calls that began in another run, which this one is a fork of, and that run. The world knows such a call
    /// by the other run's name: the keys that the call is made with go on being made of it.
    pub fn inherited(&self) -> &BTreeMap<CallId, RunId> {
        &self.inherited
    }

    /// Whether the body of an open call has asked something.
    pub fn has_asked(&self, call: &CallId) -> bool {
        let slot = self.open_turn().and_then(|turn| turn.slot(call));
        slot.is_some_and(|slot| !slot.replies.is_empty() || slot.asks())
    }

    /// The open calls whose bodies were started, in the model's order.
    pub fn begun(&self) -> Vec<CallId> {
        let slots = self.open_turn().map(|turn| turn.slots.as_slice()).unwrap_or_default();
        slots.iter().filter(|slot| slot.has_begun()).map(|slot| slot.planned.call.clone()).collect()
    }

    /// Whether the body of an open call was started.
    pub fn is_running(&self, call: &CallId) -> bool {
        let slot = self.open_turn().and_then(|turn| turn.slot(call));
        slot.is_some_and(|slot| matches!(slot.state, slot::SlotState::Running { .. }))
    }

    /// Whether an open call has its output.
    pub fn is_settled(&self, call: &CallId) -> bool {
        self.open_turn().and_then(|turn| turn.slot(call)).is_none_or(slot::Slot::is_settled)
    }

    /// Whether an open call waits for a person, itself or an agent nested in it.
    pub fn waits(&self, call: &CallId) -> bool {
        self.open_turn().and_then(|turn| turn.slot(call)).is_some_and(slot::Slot::waits)
    }

    /// A short account of the run for logs and lists.
    pub fn summary(&self) -> Value {
        serde_json::json!({
            "run": self.id.as_str(),
            "agent": self.agent.as_str(),
            "turn": self.turn,
            "pending": self.pending().len(),
            "over": self.end().is_some(),
        })
    }

    fn collect_pending(&self, within: &mut Vec<CallId>, found: &mut Vec<Pending>) {
        let Some(turn) = self.open_turn() else { return };
        for slot in &turn.slots {
            if let Some(pending) = slot.pending(within, &turn.agent) {
                found.push(pending);
            }
            if let Some(child) = &slot.child {
                within.push(slot.planned.call.clone());
                child.collect_pending(within, found);
                within.pop();
            }
        }
    }

    fn open_turn(&self) -> Option<&Turn> {
        match &self.phase {
            Phase::Working(turn) | Phase::HandingOff(turn) => Some(turn),
            Phase::Ready | Phase::Judging(_) | Phase::Concluding(_) | Phase::Over(_) => None,
        }
    }

    fn open_turn_mut(&mut self) -> Option<&mut Turn> {
        match &mut self.phase {
            Phase::Working(turn) | Phase::HandingOff(turn) => Some(turn),
            Phase::Ready | Phase::Judging(_) | Phase::Concluding(_) | Phase::Over(_) => None,
        }
    }
}

/// Puts outputs that stand together into the order of their calls: what a run produced has a handoff last,
/// histories have it in its place.
fn in_order_of_calls(mut items: Vec<Arc<Item>>) -> Vec<Arc<Item>> {
    let mut places: BTreeMap<CallId, usize> = BTreeMap::new();
    for (place, item) in items.iter().enumerate() {
        if let Item::Call(call) = &**item {
            places.insert(call.id.clone(), place);
        }
    }
    let place_of = |item: &Arc<Item>| match &**item {
        Item::Output(output) => places.get(&output.call),
        Item::Handoff(handoff) => places.get(&handoff.call),
        _ => None,
    };
    for together in items.chunk_by_mut(|one, next| place_of(one).is_some() && place_of(next).is_some()) {
        together.sort_by_key(place_of);
    }
    items
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;

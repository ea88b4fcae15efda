//! Snapshots: the serialised state of a run between two turns, so that a long run opens without a full replay.
//!
//! The journal remains the source of truth. A snapshot is readable only by the version of this crate that wrote
//! it; readers that cannot use it replay the journal. Snapshots are taken only while no call is open, so they
//! contain no call states.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{RepeatCounter, ReplayedRun, Run, RunItem, RunItemKind, RunPhase};
use crate::call_map::CallMap;
use crate::canonical::Digest;
use crate::decision::StandingVerdict;
use crate::id::{AgentName, CallId, RunId, SessionId, Timestamp};
use crate::item::{Item, OutputContent};
use crate::tool::ToolKey;
use crate::usage::Usage;

/// Version of the serialised form. Every change of the form must change it, so that an old snapshot is never
/// misread.
const SNAPSHOT_VERSION: &str = concat!("windlass ", env!("CARGO_PKG_VERSION"), " snapshot 1");

#[derive(Serialize, Deserialize)]
struct RunSnapshot {
    version: String,
    next_seq: u64,
    id: RunId,
    session: Option<SessionId>,
    max_turns: Option<u32>,
    inherited_calls: BTreeMap<CallId, RunId>,
    agent: AgentName,
    turn: u32,
    /// Every item once: the history first, then items that occur only elsewhere.
    items: Vec<Arc<Item>>,
    /// Number of leading items that form the history.
    history: usize,
    /// Indices of the input and run items in `items`.
    input: Vec<usize>,
    run_items: Vec<usize>,
    /// Indices of the last model request's items in `items`, if an input filter changed them.
    last_filtered_input: Option<Vec<usize>>,
    /// Kinds of the run items, one letter each.
    item_kinds: String,
    /// Agents of the run items, run-length encoded.
    agents: Vec<(AgentName, usize)>,
    lens_before_response: (usize, usize),
    call_digests: Vec<(CallId, Digest)>,
    standing_decisions: Vec<(AgentName, ToolKey, StandingVerdict)>,
    agents_with_tool_use: BTreeSet<AgentName>,
    usage: Usage,
    usage_with_nested: Usage,
    last_response_id: Option<String>,
    repeat_counter: RepeatCounter,
    ineffective_calls: BTreeSet<CallId>,
    has_call_activity: bool,
    receipts: Vec<(Digest, OutputContent, Timestamp)>,
}

impl ReplayedRun {
    /// Returns the serialised run, or `None` if the run is not between two turns.
    pub fn to_snapshot(&self) -> Option<String> {
        let run = &self.run;
        if !run.is_awaiting_model() || run.withheld_from.is_some() || run.filtered_input.is_some() {
            return None;
        }
        let mut items = SnapshotItems::from_history(&run.history);
        let snapshot = RunSnapshot {
            version: SNAPSHOT_VERSION.to_owned(),
            next_seq: self.next_seq,
            id: run.id.clone(),
            session: run.session.clone(),
            max_turns: run.max_turns,
            inherited_calls: run.inherited_calls.clone(),
            agent: run.agent.clone(),
            turn: run.turn,
            history: run.history.len(),
            input: run.input.iter().map(|item| items.index_of(item)).collect(),
            run_items: run.items.iter().map(|produced| items.index_of(&produced.item)).collect(),
            last_filtered_input: run
                .last_filtered_input
                .as_ref()
                .map(|input| input.iter().map(|item| items.index_of(item)).collect()),
            item_kinds: run.items.iter().map(|produced| kind_letter(produced.kind)).collect(),
            agents: run
                .items
                .chunk_by(|one, next| one.agent == next.agent)
                .map(|together| (together[0].agent.clone(), together.len()))
                .collect(),
            items: items.items,
            lens_before_response: run.lens_before_response,
            call_digests: run.call_digests.iter().map(|(call, digest)| (call.clone(), *digest)).collect(),
            standing_decisions: run
                .standing_decisions
                .iter()
                .map(|((agent, tool), verdict)| (agent.clone(), tool.clone(), verdict.clone()))
                .collect(),
            agents_with_tool_use: run.agents_with_tool_use.iter().cloned().collect(),
            usage: run.usage,
            usage_with_nested: self.usage,
            last_response_id: run.last_response_id.clone(),
            repeat_counter: run.repeat_counter.clone(),
            ineffective_calls: run.ineffective_calls.clone(),
            has_call_activity: run.has_call_activity,
            receipts: self.receipts.iter().map(|(key, (output, at))| (*key, output.clone(), *at)).collect(),
        };
        serde_json::to_string(&snapshot).ok()
    }

    /// Restores a run from a snapshot. Returns `None` if another version of this crate wrote it or it is
    /// inconsistent.
    pub fn from_snapshot(text: &str) -> Option<Self> {
        let kept: RunSnapshot =
            serde_json::from_str(text).ok().filter(|kept: &RunSnapshot| kept.version == SNAPSHOT_VERSION)?;
        let item = |place: &usize| kept.items.get(*place).cloned();
        let input = kept.input.iter().map(item).collect::<Option<Vec<_>>>()?;
        let filtered = match &kept.last_filtered_input {
            Some(places) => Some(places.iter().map(item).collect::<Option<Vec<_>>>()?),
            None => None,
        };
        let agents = kept.agents.iter().flat_map(|(agent, times)| std::iter::repeat_n(agent, *times));
        let (places, parts) = (&kept.run_items, kept.item_kinds.chars());
        if places.len() != parts.clone().count() || places.len() != agents.clone().count() {
            return None;
        }
        let produced = places.iter().zip(parts).zip(agents).map(|((place, part), agent)| {
            Some(RunItem { agent: agent.clone(), item: item(place)?, kind: kind_from_letter(part)? })
        });
        let produced = produced.collect::<Option<Vec<_>>>()?;
        let mut seen = CallMap::default();
        for (call, digest) in kept.call_digests {
            seen.insert(call, digest);
        }
        let mut history = kept.items;
        (history.len() >= kept.history).then(|| history.truncate(kept.history))?;
        let standing =
            kept.standing_decisions.into_iter().map(|(agent, tool, verdict)| ((agent, tool), verdict));
        let receipts = kept.receipts.into_iter().map(|(key, output, at)| (key, (output, at)));
        let run = Run {
            id: kept.id,
            session: kept.session,
            max_turns: kept.max_turns,
            inherited_calls: kept.inherited_calls,
            agent: kept.agent,
            turn: kept.turn,
            input,
            history: Arc::new(history),
            filtered_input: None,
            last_filtered_input: filtered,
            items: produced,
            lens_before_response: kept.lens_before_response,
            added_input: Vec::new(),
            call_digests: seen,
            standing_decisions: standing.collect(),
            agents_with_tool_use: kept.agents_with_tool_use.into_iter().collect(),
            usage: kept.usage,
            last_response_id: kept.last_response_id,
            repeat_counter: kept.repeat_counter,
            ineffective_calls: kept.ineffective_calls,
            has_call_activity: kept.has_call_activity,
            ended_by_call: None,
            withheld_from: None,
            phase: RunPhase::AwaitingModel,
        };
        let (usage, next_seq) = (kept.usage_with_nested, kept.next_seq);
        Some(Self { run, receipts: receipts.collect(), usage, next_seq })
    }
}

/// A list of distinct items, indexed by their address.
struct SnapshotItems {
    items: Vec<Arc<Item>>,
    index_by_pointer: BTreeMap<*const Item, usize>,
}

impl SnapshotItems {
    fn from_history(history: &[Arc<Item>]) -> Self {
        let places = history.iter().enumerate().map(|(place, item)| (Arc::as_ptr(item), place)).collect();
        Self { items: history.to_vec(), index_by_pointer: places }
    }

    fn index_of(&mut self, item: &Arc<Item>) -> usize {
        *self.index_by_pointer.entry(Arc::as_ptr(item)).or_insert_with(|| {
            self.items.push(item.clone());
            self.items.len() - 1
        })
    }
}

fn kind_letter(part: RunItemKind) -> char {
    match part {
        RunItemKind::ModelOutput => 's',
        RunItemKind::ToolCall => 'c',
        RunItemKind::HandoffCall => 'h',
        RunItemKind::CallOutput => 'o',
        RunItemKind::HandoffOutput => 'p',
    }
}

fn kind_from_letter(letter: char) -> Option<RunItemKind> {
    [
        RunItemKind::ModelOutput,
        RunItemKind::ToolCall,
        RunItemKind::HandoffCall,
        RunItemKind::CallOutput,
        RunItemKind::HandoffOutput,
    ]
    .into_iter()
    .find(|part| kind_letter(*part) == letter)
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;

//! Snapshots: the serialised state of a run between two turns, so that a long run opens without a full replay.
//!
//! The journal remains the source of truth. A snapshot is readable only by the version of this crate that wrote
//! it; readers that cannot use it replay the journal. Snapshots are taken only while no call is open, so they
//! contain no call states. Items of the run's session that the run refers to are not copied: a snapshot has the
//! reference, and [`ParsedSnapshot::restore`] needs the items.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::budget_stage::BudgetStage;
use super::{CallReceipt, RepeatCounter, ReplayedRun, Run, RunItem, RunItemKind, RunPhase};
use crate::budget::BudgetLedger;
use crate::call_map::CallMap;
use crate::canonical::Digest;
use crate::decision::StandingVerdict;
use crate::id::{AgentName, CallId, RunId, SessionId, Timestamp};
use crate::item::{Item, OutputContent};
use crate::journal::StartHistory;
use crate::provenance::ContentSources;
use crate::tool::ToolKey;
use crate::usage::Usage;

/// Version of the serialised form. Every change of the form must change it, so that an old snapshot is never
/// misread.
const SNAPSHOT_VERSION: &str = concat!("windlass ", env!("CARGO_PKG_VERSION"), " snapshot 5");

#[derive(Serialize, Deserialize)]
struct RunSnapshot {
    version: String,
    next_seq: u64,
    id: RunId,
    session: Option<SessionId>,
    max_turns: Option<u32>,
    agent: AgentName,
    turn: u32,
    /// The items of the session that the run refers to. They have the first indices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start_history: Option<StartHistory>,
    /// Every other item once. Their indices follow.
    items: Vec<Arc<Item>>,
    /// Indices of the history: from, and to.
    history: Vec<(usize, usize)>,
    /// Indices of the input and run items.
    input: Vec<usize>,
    run_items: Vec<usize>,
    /// Indices of the last model request's items, if an input filter changed them.
    last_filtered_input: Option<Vec<usize>>,
    /// Kinds of the run items, one letter each.
    item_kinds: String,
    /// Agents of the run items, run-length encoded.
    agents: Vec<(AgentName, usize)>,
    context_sources: ContentSources,
    lens_before_response: (usize, usize),
    call_digests: Vec<(CallId, Digest)>,
    standing_decisions: Vec<(AgentName, ToolKey, StandingVerdict)>,
    agents_with_tool_use: BTreeSet<AgentName>,
    usage: Usage,
    usage_with_nested: Usage,
    previous_response_id: Option<String>,
    last_response_id: Option<String>,
    repeat_counter: RepeatCounter,
    ineffective_calls: BTreeSet<CallId>,
    has_call_activity: bool,
    receipts: Vec<(Digest, OutputContent, Timestamp, u32)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    budget_ledger: Option<Box<BudgetLedger>>,
    #[serde(default, skip_serializing_if = "is_zero")]
    budget_questions: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl ReplayedRun {
    /// Returns the serialised run, or `None` if the run is not between two turns.
    pub fn to_snapshot(&self) -> Option<String> {
        let run = &self.run;
        let has_rare_state = run.withheld_from.is_some()
            || run.filtered_input.is_some()
            || run.output_corrections > 0
            || run.budget_stage != BudgetStage::Open;
        if !run.is_awaiting_model() || has_rare_state {
            return None;
        }
        let mut items = SnapshotItems::after(run.start_history.as_deref());
        let snapshot = RunSnapshot {
            version: SNAPSHOT_VERSION.to_owned(),
            next_seq: self.next_seq,
            id: run.id.clone(),
            session: run.session.clone(),
            max_turns: run.max_turns,
            agent: run.agent.clone(),
            turn: run.turn,
            start_history: run.start_history.as_deref().cloned(),
            history: to_ranges(run.history.iter().map(|item| items.index_of(item))),
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
            context_sources: run.context_sources,
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
            previous_response_id: run.previous_response_id.clone(),
            last_response_id: run.last_response_id.clone(),
            repeat_counter: run.repeat_counter.clone(),
            ineffective_calls: run.ineffective_calls.clone(),
            has_call_activity: run.has_call_activity,
            receipts: self
                .receipts
                .iter()
                .map(|(digest, receipt)| {
                    (*digest, receipt.output.clone(), receipt.created_at, receipt.generation)
                })
                .collect(),
            budget_ledger: run.budget_ledger.clone(),
            budget_questions: run.budget_questions,
        };
        serde_json::to_string(&snapshot).ok()
    }

    /// Restores a run from a snapshot that refers to no session. Returns `None` if another version of this crate wrote
    /// it, if it is inconsistent, or if the run refers to its session.
    pub fn from_snapshot(text: &str) -> Option<Self> {
        let parsed = ParsedSnapshot::parse(text)?;
        if parsed.start_history().is_none() { parsed.restore(Vec::new()) } else { None }
    }
}

/// A snapshot whose run has not been restored yet, because it may refer to items of the run's session.
pub struct ParsedSnapshot {
    snapshot: RunSnapshot,
}

impl ParsedSnapshot {
    /// Parses a snapshot. Returns `None` if another version of this crate wrote it.
    pub fn parse(text: &str) -> Option<Self> {
        let snapshot: RunSnapshot = serde_json::from_str(text).ok()?;
        (snapshot.version == SNAPSHOT_VERSION).then_some(Self { snapshot })
    }

    /// Returns the history whose items [`ParsedSnapshot::restore`] needs, if the run refers to its session.
    pub fn start_history(&self) -> Option<&StartHistory> {
        self.snapshot.start_history.as_ref()
    }

    /// Restores the run. Returns `None` if the snapshot is inconsistent, or if `history` has not the items of the
    /// session that the run started with.
    pub fn restore(self, history: Vec<Arc<Item>>) -> Option<ReplayedRun> {
        let kept = self.snapshot;
        let mut start_history = kept.start_history;
        if let Some(start) = &mut start_history {
            start.resolve(history).ok()?;
        }
        let session_items = start_history.as_ref().map_or(Ok(&[][..]), StartHistory::items).ok()?;
        let items: Vec<Arc<Item>> = session_items.iter().chain(&kept.items).cloned().collect();
        let item = |place: &usize| items.get(*place).cloned();
        let input = kept.input.iter().map(item).collect::<Option<Vec<_>>>()?;
        let filtered = match &kept.last_filtered_input {
            Some(places) => Some(places.iter().map(item).collect::<Option<Vec<_>>>()?),
            None => None,
        };
        let mut history = Vec::new();
        for (from, to) in kept.history {
            history.extend_from_slice(items.get(from..to)?);
        }
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
        let standing =
            kept.standing_decisions.into_iter().map(|(agent, tool, verdict)| ((agent, tool), verdict));
        let receipts = kept.receipts.into_iter().map(|(digest, output, created_at, generation)| {
            (digest, CallReceipt { output, created_at, generation })
        });
        let run = Run {
            id: kept.id,
            session: kept.session,
            max_turns: kept.max_turns,
            agent: kept.agent,
            turn: kept.turn,
            input,
            start_history: start_history.map(Arc::new),
            history: Arc::new(history),
            filtered_input: None,
            last_filtered_input: filtered,
            items: produced,
            context_sources: kept.context_sources,
            lens_before_response: kept.lens_before_response,
            added_input: Vec::new(),
            call_digests: seen,
            standing_decisions: standing.collect(),
            agents_with_tool_use: kept.agents_with_tool_use.into_iter().collect(),
            usage: kept.usage,
            previous_response_id: kept.previous_response_id,
            last_response_id: kept.last_response_id,
            repeat_counter: kept.repeat_counter,
            ineffective_calls: kept.ineffective_calls,
            has_call_activity: kept.has_call_activity,
            ended_by_call: None,
            has_cancelled_call: false,
            withheld_from: None,
            output_corrections: 0,
            budget_ledger: kept.budget_ledger,
            budget_stage: BudgetStage::Open,
            budget_questions: kept.budget_questions,
            phase: RunPhase::AwaitingModel,
        };
        let (usage, next_seq) = (kept.usage_with_nested, kept.next_seq);
        Some(ReplayedRun { run, receipts: receipts.collect(), usage, next_seq })
    }
}

/// The distinct items of a run, indexed by their address. Items of the session come first and are not listed.
struct SnapshotItems {
    session_item_count: usize,
    items: Vec<Arc<Item>>,
    index_by_pointer: BTreeMap<*const Item, usize>,
}

impl SnapshotItems {
    fn after(history: Option<&StartHistory>) -> Self {
        let items = history.and_then(|history| history.items().ok()).unwrap_or_default();
        let mut index_by_pointer = BTreeMap::new();
        for (place, item) in items.iter().enumerate() {
            index_by_pointer.entry(Arc::as_ptr(item)).or_insert(place);
        }
        Self { session_item_count: items.len(), items: Vec::new(), index_by_pointer }
    }

    fn index_of(&mut self, item: &Arc<Item>) -> usize {
        *self.index_by_pointer.entry(Arc::as_ptr(item)).or_insert_with(|| {
            self.items.push(item.clone());
            self.session_item_count + self.items.len() - 1
        })
    }
}

/// Returns the ranges of consecutive indices.
fn to_ranges(indices: impl Iterator<Item = usize>) -> Vec<(usize, usize)> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for index in indices {
        match ranges.last_mut() {
            Some((_, to)) if *to == index => *to += 1,
            _ => ranges.push((index, index + 1)),
        }
    }
    ranges
}

fn kind_letter(part: RunItemKind) -> char {
    match part {
        RunItemKind::ModelOutput => 's',
        RunItemKind::ToolCall => 'c',
        RunItemKind::HandoffCall => 'h',
        RunItemKind::CallOutput => 'o',
        RunItemKind::HandoffOutput => 'p',
        RunItemKind::Correction => 'k',
    }
}

fn kind_from_letter(letter: char) -> Option<RunItemKind> {
    [
        RunItemKind::ModelOutput,
        RunItemKind::ToolCall,
        RunItemKind::HandoffCall,
        RunItemKind::CallOutput,
        RunItemKind::HandoffOutput,
        RunItemKind::Correction,
    ]
    .into_iter()
    .find(|part| kind_letter(*part) == letter)
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;

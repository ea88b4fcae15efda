//! Snapshots: the serialised state of a run between two turns, so that a long run opens without a full replay.
//!
//! The journal remains the source of truth. A snapshot is readable only by the version of this crate that wrote
//! it; readers that cannot use it replay the journal. Snapshots are taken only while no call is open, so they
//! contain no call states.
//!
//! A snapshot has a head and segments. The head is small, whatever the length of the run: decisions about open calls
//! need nothing else. Everything that grows with the run is in segments ([`ParsedSegments`](super::ParsedSegments)),
//! each of which has the growth since the snapshot before it and is written once.
//!
//! Invariant: the head has the digest of a hash chain over the segments, so whoever vouches for the head vouches for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::budget_stage::BudgetStage;
use super::snapshot_segment::SnapshotSegment;
use super::{OmittedPast, RepeatCounter, ReplayedRun, Run, RunOutline, RunPhase};
use crate::budget::BudgetLedger;
use crate::call_map::CallMap;
use crate::canonical::Digest;
use crate::decision::StandingVerdict;
use crate::id::{AgentName, RunId, SessionId};
use crate::idempotency::KeyNonce;
use crate::provenance::ContentSources;
use crate::tool::ToolKey;
use crate::usage::Usage;

/// Version of the serialised form. Every change of the form must change it, so that an old snapshot is never
/// misread.
const SNAPSHOT_VERSION: &str = concat!("windlass ", env!("CARGO_PKG_VERSION"), " snapshot 6");

/// The position of a snapshot: the sizes of the parts of the state that its segments have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotPosition {
    pub(super) next_seq: u64,
    pub(super) segment_count: u64,
    /// Hash chain over the segments.
    pub(super) segments_digest: Digest,
    pub(super) history_len: usize,
    pub(super) history_replacements: u32,
    pub(super) item_count: usize,
    pub(super) call_count: usize,
    pub(super) receipt_count: usize,
}

impl SnapshotPosition {
    /// Returns the sequence number of the first record after the snapshot.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Returns the number of segments.
    pub fn segment_count(&self) -> u64 {
        self.segment_count
    }

    /// Returns the position with these segments in place of its own, so that a test can pass any segments to a parser.
    #[doc(hidden)]
    #[must_use]
    pub fn with_segments(self, segments: &[String]) -> Self {
        let (segment_count, segments_digest) = (segments.len() as u64, Self::digest_segments(segments));
        Self { segment_count, segments_digest, ..self }
    }

    /// Returns the position before the first segment.
    fn start() -> Self {
        Self {
            next_seq: 0,
            segment_count: 0,
            segments_digest: Digest::of_text("segments"),
            history_len: 0,
            history_replacements: 0,
            item_count: 0,
            call_count: 0,
            receipt_count: 0,
        }
    }

    /// Returns the digest of the hash chain over segments.
    pub(super) fn digest_segments(segments: &[String]) -> Digest {
        segments.iter().fold(Self::start().segments_digest, |digest, text| digest.chain(text.as_bytes()))
    }
}

/// A snapshot in its serialised form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedSnapshot {
    /// The head.
    pub head: String,
    /// The last of the segments. The others are those of the snapshot before it.
    pub segment: String,
    /// The position, for the next snapshot.
    pub position: SnapshotPosition,
}

#[derive(Serialize, Deserialize)]
struct SnapshotHead {
    version: String,
    position: SnapshotPosition,
    id: RunId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_nonce: Option<KeyNonce>,
    session: Option<SessionId>,
    max_turns: Option<u32>,
    agent: AgentName,
    turn: u32,
    context_sources: ContentSources,
    lens_before_response: (usize, usize),
    has_filtered_input: bool,
    standing_decisions: Vec<(AgentName, ToolKey, StandingVerdict)>,
    agents_with_tool_use: BTreeSet<AgentName>,
    usage: Usage,
    usage_with_nested: Usage,
    previous_response_id: Option<String>,
    last_response_id: Option<String>,
    repeat_counter: RepeatCounter,
    has_call_activity: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    learned_windows: BTreeMap<AgentName, u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    budget_ledger: Option<Box<BudgetLedger>>,
    #[serde(default, skip_serializing_if = "is_zero")]
    budget_questions: u32,
    #[serde(default, skip_serializing_if = "is_false")]
    is_restored: bool,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl ReplayedRun {
    /// Returns the serialised run, or `None` if the run is not between two turns. `previous` is the position of the
    /// snapshot before it, if that is one of the same run: then the segment has only the growth since. Otherwise it has
    /// everything, and is the first.
    pub fn to_snapshot(&self, previous: Option<&SnapshotPosition>) -> Option<EncodedSnapshot> {
        let run = &self.run;
        let has_rare_state = run.withheld_from.is_some()
            || run.filtered_input.is_some()
            || run.output_corrections > 0
            || run.budget_stage != BudgetStage::Open;
        if !run.is_awaiting_model() || has_rare_state || run.omitted.is_some() {
            return None;
        }
        let start = SnapshotPosition::start();
        let previous = previous.unwrap_or(&start);
        let segment = serde_json::to_string(&SnapshotSegment::since(self, previous)?).ok()?;
        let position = SnapshotPosition {
            next_seq: self.next_seq,
            segment_count: previous.segment_count + 1,
            segments_digest: previous.segments_digest.chain(segment.as_bytes()),
            history_len: run.history.len(),
            history_replacements: run.history_replacements,
            item_count: run.items.len(),
            call_count: run.call_digests.len(),
            receipt_count: self.receipt_order.len(),
        };
        let head = SnapshotHead {
            version: SNAPSHOT_VERSION.to_owned(),
            position: position.clone(),
            id: run.id.clone(),
            key_nonce: run.key_nonce.clone(),
            session: run.session.clone(),
            max_turns: run.max_turns,
            agent: run.agent.clone(),
            turn: run.turn,
            context_sources: run.context_sources,
            lens_before_response: run.lens_before_response,
            has_filtered_input: run.last_filtered_input.is_some(),
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
            has_call_activity: run.has_call_activity,
            learned_windows: run.learned_windows.clone(),
            budget_ledger: run.budget_ledger.clone(),
            budget_questions: run.budget_questions,
            is_restored: run.is_restored,
        };
        Some(EncodedSnapshot { head: serde_json::to_string(&head).ok()?, segment, position })
    }
}

impl RunOutline {
    /// Parses the head of a snapshot. Returns `None` if another version of this crate wrote it.
    pub fn parse(head: &str) -> Option<Self> {
        let head: SnapshotHead = serde_json::from_str(head).ok()?;
        if head.version != SNAPSHOT_VERSION {
            return None;
        }
        let standing =
            head.standing_decisions.into_iter().map(|(agent, tool, verdict)| ((agent, tool), verdict));
        let omitted = OmittedPast {
            history: head.position.history_len,
            items: head.position.item_count,
            has_filtered_input: head.has_filtered_input,
        };
        let run = Run {
            id: head.id,
            key_nonce: head.key_nonce,
            session: head.session,
            max_turns: head.max_turns,
            agent: head.agent,
            turn: head.turn,
            input: Vec::new(),
            start_history: None,
            history: Arc::default(),
            history_replacements: head.position.history_replacements,
            omitted: Some(Box::new(omitted)),
            filtered_input: None,
            last_filtered_input: None,
            items: Vec::new(),
            context_sources: head.context_sources,
            lens_before_response: head.lens_before_response,
            added_input: Vec::new(),
            call_digests: CallMap::default(),
            standing_decisions: standing.collect(),
            agents_with_tool_use: head.agents_with_tool_use.into_iter().collect(),
            usage: head.usage,
            previous_response_id: head.previous_response_id,
            last_response_id: head.last_response_id,
            repeat_counter: head.repeat_counter,
            learned_windows: head.learned_windows,
            ineffective_calls: BTreeSet::new(),
            has_call_activity: head.has_call_activity,
            ended_by_call: None,
            has_cancelled_call: false,
            withheld_from: None,
            output_corrections: 0,
            budget_ledger: head.budget_ledger,
            budget_stage: BudgetStage::Open,
            budget_questions: head.budget_questions,
            is_restored: head.is_restored,
            phase: RunPhase::AwaitingModel,
        };
        let replay = ReplayedRun {
            run,
            receipts: Default::default(),
            usage: head.usage_with_nested,
            next_seq: head.position.next_seq,
            receipt_order: Vec::new(),
        };
        Some(Self { replay, position: head.position })
    }
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;

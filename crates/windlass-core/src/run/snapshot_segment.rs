//! The segments of a snapshot: what grows with a run, in parts that are written once.
//!
//! A segment has the growth of the run between two snapshots. Its items are its own, except that the first one refers to
//! the items of the run's session. [`ParsedSegments::resolve`] needs those, and puts the parts together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{CallReceipt, ReplayedRun, RunItem, RunItemKind, SnapshotPosition};
use crate::call_map::CallMap;
use crate::canonical::Digest;
use crate::id::{AgentName, CallId, Timestamp};
use crate::item::{Item, OutputContent};
use crate::journal::StartHistory;

/// Ranges of indices: from, and to.
type IndexRanges = Vec<(usize, usize)>;

#[derive(Serialize, Deserialize)]
pub(super) struct SnapshotSegment {
    /// Only in the first segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<SegmentStart>,
    /// Every item of the segment once. In the first segment the items of the session have the first indices.
    items: Vec<Arc<Item>>,
    /// True if the history was replaced since the segment before.
    replaces_history: bool,
    /// Indices of the history, or of its growth.
    history: IndexRanges,
    /// Indices of the new run items.
    run_items: IndexRanges,
    /// Kinds of the new run items, one letter each.
    item_kinds: String,
    /// Agents of the new run items, run-length encoded.
    agents: Vec<(AgentName, usize)>,
    /// Indices of the last model request's items, if an input filter changed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_filtered_input: Option<IndexRanges>,
    call_digests: Vec<(CallId, Digest)>,
    ineffective_calls: Vec<CallId>,
    receipts: Vec<(Digest, OutputContent, Timestamp, u32)>,
}

/// The part of the state that is known when a run starts.
#[derive(Serialize, Deserialize)]
struct SegmentStart {
    /// The items of the session that the run refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    history: Option<StartHistory>,
    /// Indices of the input.
    input: IndexRanges,
}

impl SnapshotSegment {
    /// Returns the growth of a run since a position. Returns `None` if the position is not one of this run.
    pub(super) fn since(replay: &ReplayedRun, previous: &SnapshotPosition) -> Option<Self> {
        let run = &replay.run;
        let is_first = previous.segment_count == 0;
        let mut items = SegmentItems::after(run.start_history.as_deref().filter(|_| is_first));
        let replaces_history = run.history_replacements != previous.history_replacements;
        let kept_history = if replaces_history { 0 } else { previous.history_len };
        let history = items.ranges_of(run.history.get(kept_history..)?);
        let start = is_first.then(|| SegmentStart {
            history: run.start_history.as_deref().cloned(),
            input: items.ranges_of(&run.input),
        });
        let new_items = run.items.get(previous.item_count..)?;
        let new_calls: Vec<(CallId, Digest)> = run
            .call_digests
            .iter()
            .skip(previous.call_count)
            .map(|(call, digest)| (call.clone(), *digest))
            .collect();
        let receipts = replay.receipt_order.get(previous.receipt_count..)?.iter().map(|digest| {
            let CallReceipt { output, created_at, generation } = replay.receipts.get(digest)?;
            Some((*digest, output.clone(), *created_at, *generation))
        });
        Some(Self {
            start,
            replaces_history,
            history,
            run_items: items.ranges_of(new_items.iter().map(|produced| &produced.item)),
            item_kinds: new_items.iter().map(|produced| kind_letter(produced.kind)).collect(),
            agents: new_items
                .chunk_by(|one, next| one.agent == next.agent)
                .map(|together| (together[0].agent.clone(), together.len()))
                .collect(),
            last_filtered_input: run.last_filtered_input.as_ref().map(|input| items.ranges_of(input)),
            // A call settles in its own turn, so calls of earlier segments have not become ineffective since.
            ineffective_calls: new_calls
                .iter()
                .map(|(call, _)| call)
                .filter(|call| run.ineffective_calls.contains(*call))
                .cloned()
                .collect(),
            call_digests: new_calls,
            receipts: receipts.collect::<Option<_>>()?,
            items: items.items,
        })
    }
}

/// The segments of a snapshot, whose items of the run's session are not resolved yet.
pub struct ParsedSegments {
    segments: Vec<SnapshotSegment>,
    start: SegmentStart,
}

impl ParsedSegments {
    /// Parses the segments of a snapshot. Returns `None` if they are not those that its head stands for.
    pub fn parse(position: &SnapshotPosition, segments: &[String]) -> Option<Self> {
        let is_complete = segments.len() as u64 == position.segment_count
            && SnapshotPosition::digest_segments(segments) == position.segments_digest;
        if !is_complete {
            return None;
        }
        let mut segments = segments
            .iter()
            .map(|text| serde_json::from_str(text).ok())
            .collect::<Option<Vec<SnapshotSegment>>>()?;
        let start = segments.first_mut()?.start.take()?;
        Some(Self { segments, start })
    }

    /// Returns the history whose items [`ParsedSegments::resolve`] needs, if the run refers to its session.
    pub fn start_history(&self) -> Option<&StartHistory> {
        self.start.history.as_ref()
    }

    /// Returns the past of the run. Returns `None` if the segments are inconsistent, or if `history` has not the items of
    /// the session that the run started with.
    pub fn resolve(self, history: Vec<Arc<Item>>) -> Option<RunPast> {
        let mut start_history = self.start.history;
        if let Some(start) = &mut start_history {
            start.resolve(history).ok()?;
        }
        let session_items = start_history.as_ref().map_or(Ok(&[][..]), StartHistory::items).ok()?;
        let mut past = RunPast::default();
        for (place, mut segment) in self.segments.into_iter().enumerate() {
            let mut items = if place == 0 { session_items.to_vec() } else { Vec::new() };
            items.append(&mut segment.items);
            if place == 0 {
                past.input = select_items(&items, &self.start.input)?;
            }
            past.add_segment(segment, &items)?;
        }
        past.start_history = start_history;
        Some(past)
    }
}

/// The state of a run before a snapshot, as far as the head of the snapshot lacks it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunPast {
    pub(super) input: Vec<Arc<Item>>,
    pub(super) start_history: Option<StartHistory>,
    pub(super) history: Vec<Arc<Item>>,
    pub(super) items: Vec<RunItem>,
    pub(super) last_filtered_input: Option<Vec<Arc<Item>>>,
    pub(super) call_digests: CallMap<Digest>,
    pub(super) ineffective_calls: BTreeSet<CallId>,
    pub(super) receipts: BTreeMap<Digest, CallReceipt>,
    pub(super) receipt_order: Vec<Digest>,
}

impl RunPast {
    /// Returns the past of a run that was replayed up to the snapshot.
    pub fn from_replay(replay: &ReplayedRun) -> Self {
        let run = &replay.run;
        Self {
            input: run.input.clone(),
            start_history: run.start_history.as_deref().cloned(),
            history: run.history.to_vec(),
            items: run.items.clone(),
            last_filtered_input: run.last_filtered_input.clone(),
            call_digests: run.call_digests.clone(),
            ineffective_calls: run.ineffective_calls.clone(),
            receipts: replay.receipts.clone(),
            receipt_order: replay.receipt_order.clone(),
        }
    }

    fn add_segment(&mut self, segment: SnapshotSegment, items: &[Arc<Item>]) -> Option<()> {
        if segment.replaces_history {
            self.history.clear();
        }
        self.history.extend(select_items(items, &segment.history)?);
        self.last_filtered_input = match &segment.last_filtered_input {
            Some(ranges) => Some(select_items(items, ranges)?),
            None => None,
        };
        let agents = segment.agents.iter().flat_map(|(agent, times)| std::iter::repeat_n(agent, *times));
        let (produced, kinds) = (select_items(items, &segment.run_items)?, segment.item_kinds.chars());
        if produced.len() != kinds.clone().count() || produced.len() != agents.clone().count() {
            return None;
        }
        for ((item, letter), agent) in produced.into_iter().zip(kinds).zip(agents) {
            self.items.push(RunItem { agent: agent.clone(), item, kind: kind_from_letter(letter)? });
        }
        for (call, digest) in segment.call_digests {
            self.call_digests.insert(call, digest);
        }
        self.ineffective_calls.extend(segment.ineffective_calls);
        for (digest, output, created_at, generation) in segment.receipts {
            self.receipt_order.push(digest);
            self.receipts.insert(digest, CallReceipt { output, created_at, generation });
        }
        Some(())
    }
}

/// Returns the items of ranges of indices. Returns `None` if there is no such item.
fn select_items(items: &[Arc<Item>], ranges: &IndexRanges) -> Option<Vec<Arc<Item>>> {
    let mut selected = Vec::new();
    for (from, to) in ranges {
        selected.extend_from_slice(items.get(*from..*to)?);
    }
    Some(selected)
}

/// The distinct items of a segment, indexed by their address. Items of the session come first and are not listed.
struct SegmentItems {
    session_item_count: usize,
    items: Vec<Arc<Item>>,
    index_by_pointer: BTreeMap<*const Item, usize>,
}

impl SegmentItems {
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

    /// Returns the ranges of consecutive indices of items.
    fn ranges_of<'a>(&mut self, items: impl IntoIterator<Item = &'a Arc<Item>>) -> IndexRanges {
        let mut ranges: IndexRanges = Vec::new();
        for item in items {
            let index = self.index_of(item);
            match ranges.last_mut() {
                Some((_, to)) if *to == index => *to += 1,
                _ => ranges.push((index, index + 1)),
            }
        }
        ranges
    }
}

fn kind_letter(part: RunItemKind) -> char {
    match part {
        RunItemKind::ModelOutput => 's',
        RunItemKind::ToolCall => 'c',
        RunItemKind::HandoffCall => 'h',
        RunItemKind::CallOutput => 'o',
        RunItemKind::HandoffOutput => 'p',
        RunItemKind::Correction => 'k',
        RunItemKind::AddedInput => 'i',
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
        RunItemKind::AddedInput,
    ]
    .into_iter()
    .find(|part| kind_letter(*part) == letter)
}

//! Snapshots: what a journal adds up to between two turns, written down, so that a long run opens without all of it
//! being read again.
//!
//! The journal stays the truth. A snapshot is read by the version of this crate that wrote it and by no other; whoever
//! cannot use one replays the journal. None is made while calls are open, so none of their states are in it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Part, Phase, Produced, Repeats, Replay, Run};
use crate::calls::CallMap;
use crate::canonical::Digest;
use crate::decision::StandingVerdict;
use crate::id::{AgentName, CallId, RunId, SessionId, Timestamp};
use crate::item::{Item, OutputContent};
use crate::tool::ToolKey;
use crate::usage::Usage;

/// The shape of what is written. It grows with every change of it, for a snapshot is never read as what it is not.
const SHAPE: &str = concat!("windlass ", env!("CARGO_PKG_VERSION"), " shape 1");

#[derive(Serialize, Deserialize)]
struct Snapshot {
    shape: String,
    next_seq: u64,
    id: RunId,
    session: Option<SessionId>,
    max_turns: Option<u32>,
    inherited: BTreeMap<CallId, RunId>,
    agent: AgentName,
    turn: u32,
    /// Every item once: the history, and then what stands only elsewhere.
    items: Vec<Arc<Item>>,
    /// How many of them are the history.
    history: usize,
    /// The places of the others among the items.
    input: Vec<usize>,
    produced: Vec<usize>,
    /// The part of every produced item, as a letter.
    parts: String,
    /// Who produced them: an agent, and how many in a row.
    agents: Vec<(AgentName, usize)>,
    before_answer: (usize, usize),
    seen: Vec<(CallId, Digest)>,
    standing: Vec<(AgentName, ToolKey, StandingVerdict)>,
    used_tools: BTreeSet<AgentName>,
    usage: Usage,
    usage_with_nested: Usage,
    last_response_id: Option<String>,
    repeats: Repeats,
    undone: BTreeSet<CallId>,
    acted: bool,
    receipts: Vec<(Digest, OutputContent, Timestamp)>,
}

impl Replay {
    /// The snapshot of a run that stands between two turns; none of one that does not.
    pub fn to_snapshot(&self) -> Option<String> {
        let run = &self.run;
        if !run.is_ready() || run.withheld_from.is_some() {
            return None;
        }
        let mut items = Items::of(&run.history);
        let snapshot = Snapshot {
            shape: SHAPE.to_owned(),
            next_seq: self.next_seq,
            id: run.id.clone(),
            session: run.session.clone(),
            max_turns: run.max_turns,
            inherited: run.inherited.clone(),
            agent: run.agent.clone(),
            turn: run.turn,
            history: run.history.len(),
            input: run.input.iter().map(|item| items.place(item)).collect(),
            produced: run.produced.iter().map(|produced| items.place(&produced.item)).collect(),
            parts: run.produced.iter().map(|produced| letter(produced.part)).collect(),
            agents: run
                .produced
                .chunk_by(|one, next| one.agent == next.agent)
                .map(|together| (together[0].agent.clone(), together.len()))
                .collect(),
            items: items.items,
            before_answer: run.before_answer,
            seen: run.seen.iter().map(|(call, digest)| (call.clone(), *digest)).collect(),
            standing: run
                .standing
                .iter()
                .map(|((agent, tool), verdict)| (agent.clone(), tool.clone(), verdict.clone()))
                .collect(),
            used_tools: run.used_tools.iter().cloned().collect(),
            usage: run.usage,
            usage_with_nested: self.usage,
            last_response_id: run.last_response_id.clone(),
            repeats: run.repeats.clone(),
            undone: run.undone.clone(),
            acted: run.acted,
            receipts: self.receipts.iter().map(|(key, (output, at))| (*key, output.clone(), *at)).collect(),
        };
        serde_json::to_string(&snapshot).ok()
    }

    /// What a snapshot stands for; none where this version of the crate did not write it, or it does not add up.
    pub fn from_snapshot(text: &str) -> Option<Self> {
        let kept: Snapshot = serde_json::from_str(text).ok().filter(|kept: &Snapshot| kept.shape == SHAPE)?;
        let item = |place: &usize| kept.items.get(*place).cloned();
        let input = kept.input.iter().map(item).collect::<Option<Vec<_>>>()?;
        let agents = kept.agents.iter().flat_map(|(agent, times)| std::iter::repeat_n(agent, *times));
        let (places, parts) = (&kept.produced, kept.parts.chars());
        if places.len() != parts.clone().count() || places.len() != agents.clone().count() {
            return None;
        }
        let produced = places.iter().zip(parts).zip(agents).map(|((place, part), agent)| {
            Some(Produced { agent: agent.clone(), item: item(place)?, part: part_of(part)? })
        });
        let produced = produced.collect::<Option<Vec<_>>>()?;
        let mut seen = CallMap::default();
        for (call, digest) in kept.seen {
            seen.insert(call, digest);
        }
        let mut history = kept.items;
        (history.len() >= kept.history).then(|| history.truncate(kept.history))?;
        let standing = kept.standing.into_iter().map(|(agent, tool, verdict)| ((agent, tool), verdict));
        let receipts = kept.receipts.into_iter().map(|(key, output, at)| (key, (output, at)));
        let run = Run {
            id: kept.id,
            session: kept.session,
            max_turns: kept.max_turns,
            inherited: kept.inherited,
            agent: kept.agent,
            turn: kept.turn,
            input,
            history,
            produced,
            before_answer: kept.before_answer,
            added_input: Vec::new(),
            seen,
            standing: standing.collect(),
            used_tools: kept.used_tools.into_iter().collect(),
            usage: kept.usage,
            last_response_id: kept.last_response_id,
            repeats: kept.repeats,
            undone: kept.undone,
            acted: kept.acted,
            ended_by: None,
            withheld_from: None,
            phase: Phase::Ready,
        };
        let (usage, next_seq) = (kept.usage_with_nested, kept.next_seq);
        Some(Self { run, receipts: receipts.collect(), usage, next_seq })
    }
}

/// Items, each once, found by where they lie in memory.
struct Items {
    items: Vec<Arc<Item>>,
    places: BTreeMap<*const Item, usize>,
}

impl Items {
    fn of(history: &[Arc<Item>]) -> Self {
        let places = history.iter().enumerate().map(|(place, item)| (Arc::as_ptr(item), place)).collect();
        Self { items: history.to_vec(), places }
    }

    fn place(&mut self, item: &Arc<Item>) -> usize {
        *self.places.entry(Arc::as_ptr(item)).or_insert_with(|| {
            self.items.push(item.clone());
            self.items.len() - 1
        })
    }
}

fn letter(part: Part) -> char {
    match part {
        Part::Said => 's',
        Part::Call => 'c',
        Part::HandoffCall => 'h',
        Part::Output => 'o',
        Part::Handoff => 'p',
    }
}

fn part_of(letter: char) -> Option<Part> {
    [Part::Said, Part::Call, Part::HandoffCall, Part::Output, Part::Handoff]
        .into_iter()
        .find(|part| self::letter(*part) == letter)
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;

//! Audit: whether a journal is what was written, and who decided what in it.

use std::collections::BTreeMap;
use std::fmt;

use super::steps::decision_words;
use crate::canonical::Digest;
use crate::decision::{Decision, HoldReason, Reach};
use crate::entry::{Decided, Entry, How, Record};
use crate::id::{AgentName, CallId, CallPath, Timestamp};
use crate::plan::Work;
use crate::run::{ReplayError, Run};
use crate::saved::{Chain, Line, SavedError, lines_of};
use crate::tool::{Gate, ToolKey};

/// A journal that is what was written, and adds up.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    /// Its records.
    pub records: Vec<Record>,
    /// The hash of the last line. Lines cut off from the end leave no trace in the others: whoever noted the
    /// head elsewhere finds out.
    pub head: Digest,
    /// What was decided, in order.
    pub decisions: Vec<Ruling>,
}

/// One thing that was decided: about what, by whom, under which rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Ruling {
    /// The record that says so.
    pub seq: u64,
    /// When it was written.
    pub at: Timestamp,
    /// The agent whose call it is.
    pub agent: AgentName,
    /// The tool.
    pub tool: ToolKey,
    /// The call; absent where a decision for good was taken back.
    pub call: Option<CallPath>,
    /// What was decided.
    pub ruled: Ruled,
    /// Why it was decided at all.
    pub rule: Rule,
    /// Who decided, where they said.
    pub by: Option<String>,
}

/// What was decided.
#[derive(Clone, Debug, PartialEq)]
pub enum Ruled {
    /// Somebody said this.
    Said {
        /// What.
        decision: Decision,
        /// How far it reaches.
        reach: Reach,
    },
    /// The call ran without anybody being asked about it.
    Ran,
    /// The call was refused without anybody being asked about it.
    Refused,
    /// A decision for good was taken back.
    Revoked,
}

/// Under which rule something was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The tool asks about every call.
    ToolAlways,
    /// The tool's rule looked at the call.
    ToolRule,
    /// Nothing asked: somebody decided unasked.
    Unasked,
    /// The call was in doubt.
    InDoubt,
    /// The call's body asked.
    Asked,
    /// A decision for good covered it.
    Standing {
        /// The record of that decision.
        seq: u64,
    },
}

impl fmt::Display for Ruling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seq, agent, tool, call, ruled, rule, by, .. } = self;
        match call {
            Some(call) => write!(f, "record {seq}: call {call} of `{tool}` by `{agent}` ")?,
            None => write!(f, "record {seq}: calls of `{tool}` by `{agent}` ")?,
        }
        match ruled {
            Ruled::Said { decision, reach } => {
                write!(f, "is {}", decision_words(decision, *reach, by.as_deref()))?;
            }
            Ruled::Ran => f.write_str("ran without a question")?,
            Ruled::Refused => f.write_str("was refused without a question")?,
            Ruled::Revoked => f.write_str("are asked about again")?,
        }
        match rule {
            Rule::ToolAlways => f.write_str(" (the tool always asks)"),
            Rule::ToolRule => f.write_str(" (the tool's rule)"),
            Rule::Unasked => f.write_str(" (unasked)"),
            Rule::InDoubt => f.write_str(" (it was in doubt)"),
            Rule::Asked => f.write_str(" (its body asked)"),
            Rule::Standing { seq } => write!(f, " (the decision for good of record {seq})"),
        }
    }
}

/// Checks the lines of a journal: that each is what was written, that none is missing before it, and that they
/// add up to a run. The error names the first that is bad.
pub fn verify<'a>(lines: impl IntoIterator<Item = &'a Line>) -> Result<Verified, SavedError> {
    let mut chain = Chain::default();
    let read = lines.into_iter().enumerate().map(|(seq, line)| chain.read(seq as u64, line));
    let (records, error) = until_error(read);
    verified(records, error, chain)
}

/// Checks a saved run, as [`verify`] does.
pub fn verify_text(text: &str) -> Result<Verified, SavedError> {
    let (mut chain, lines) = lines_of(text)?;
    let read = lines.enumerate().map(|(seq, line)| chain.read(seq as u64, &line?));
    let (records, error) = until_error(read);
    verified(records, error, chain)
}

fn until_error(read: impl Iterator<Item = Result<Record, SavedError>>) -> (Vec<Record>, Option<SavedError>) {
    let mut records = Vec::new();
    for record in read {
        match record {
            Ok(record) => records.push(record),
            Err(error) => return (records, Some(error)),
        }
    }
    (records, None)
}

fn verified(records: Vec<Record>, error: Option<SavedError>, chain: Chain) -> Result<Verified, SavedError> {
    // A record that does not fit may stand before the first that was changed.
    match (Run::replay(&records), error) {
        (Err(ReplayError::Empty), Some(error)) | (Ok(_), Some(error)) => Err(error),
        (Err(error), _) => Err(error.into()),
        (Ok(_), None) => {
            let decisions = rulings(&records);
            Ok(Verified { records, head: chain.head(), decisions })
        }
    }
}

/// A call, as far as decisions about it go.
struct Known<'a> {
    agent: &'a AgentName,
    tool: &'a ToolKey,
    gate: Gate,
    waits: Option<&'a HoldReason>,
    /// The decision for good that covers it.
    covered: Option<Standing<'a>>,
    is_ruled: bool,
}

/// A decision for good.
#[derive(Clone, Copy)]
struct Standing<'a> {
    seq: u64,
    by: &'a Option<String>,
}

#[derive(Default)]
struct Clerk<'a> {
    calls: BTreeMap<(&'a [CallId], &'a CallId), Known<'a>>,
    standing: BTreeMap<(&'a [CallId], &'a AgentName, &'a ToolKey), Standing<'a>>,
    rulings: Vec<Ruling>,
}

fn rulings(records: &[Record]) -> Vec<Ruling> {
    let mut clerk = Clerk::default();
    for record in records {
        clerk.read(record);
    }
    clerk.rulings
}

impl<'a> Clerk<'a> {
    fn read(&mut self, record: &'a Record) {
        let path = record.path.as_slice();
        match &record.entry {
            Entry::Answered(answered) => {
                for planned in &answered.calls {
                    let Work::Body { gate, .. } = planned.work else { continue };
                    let (agent, tool) = (&answered.agent, &planned.key);
                    let covered = self.standing.get(&(path, agent, tool)).copied();
                    let known = Known { agent, tool, gate, waits: None, covered, is_ruled: false };
                    self.calls.insert((path, &planned.call), known);
                }
            }
            Entry::Held(held) => {
                if let Some(known) = self.calls.get_mut(&(path, &held.call)) {
                    known.waits = Some(&held.reason);
                }
            }
            Entry::Decided(decided) => self.decided(record, decided),
            Entry::Revoked(revoked) => {
                let standing = self.standing.remove(&(path, &revoked.agent, &revoked.tool));
                let rule = standing.map_or(Rule::Unasked, |standing| Rule::Standing { seq: standing.seq });
                let (agent, tool) = (revoked.agent.clone(), revoked.tool.clone());
                let (seq, at) = (record.seq, record.at);
                self.rulings.push(Ruling {
                    seq,
                    at,
                    agent,
                    tool,
                    call: None,
                    ruled: Ruled::Revoked,
                    rule,
                    by: None,
                });
            }
            Entry::CallStarted(started) => self.unasked(record, &started.call, Ruled::Ran),
            Entry::CallSettled(settled) if settled.how == How::Rejected => {
                self.unasked(record, &settled.call, Ruled::Refused);
            }
            // Nothing is decided any more about a call that has its output.
            Entry::CallSettled(settled) => drop(self.calls.remove(&(path, &settled.call))),
            _ => {}
        }
    }

    fn decided(&mut self, record: &'a Record, decided: &'a Decided) {
        let path = record.path.as_slice();
        let Some(known) = self.calls.get_mut(&(path, &decided.call)) else { return };
        known.is_ruled = true;
        let rule = match (known.waits, known.gate) {
            (Some(HoldReason::InDoubt), _) => Rule::InDoubt,
            (Some(HoldReason::Question(_)), _) => Rule::Asked,
            (Some(HoldReason::Approval) | None, Gate::Closed | Gate::Each) => Rule::ToolAlways,
            (Some(HoldReason::Approval) | None, Gate::Ask | Gate::AskEach) => Rule::ToolRule,
            (Some(HoldReason::Approval) | None, Gate::Open) => Rule::Unasked,
        };
        let ruled = Ruled::Said { decision: decided.decision.clone(), reach: decided.reach };
        let ruling = known.ruling(record, &decided.call, ruled, rule, decided.by.clone());
        self.rulings.push(ruling);
        let (agent, tool) = (known.agent, known.tool);
        if decided.reach == Reach::Always {
            let standing = Standing { seq: record.seq, by: &decided.by };
            self.standing.entry((path, agent, tool)).or_insert(standing);
            for ((within, _), known) in &mut self.calls {
                if *within == path && known.agent == agent && known.tool == tool {
                    known.covered.get_or_insert(standing);
                }
            }
        }
    }

    /// A call ran, or was refused, and nobody was asked about it: a rule must have said so.
    fn unasked(&mut self, record: &'a Record, call: &'a CallId, ruled: Ruled) {
        let path = record.path.as_slice();
        let Some(known) = self.calls.get_mut(&(path, call)) else { return };
        if std::mem::replace(&mut known.is_ruled, true) {
            return;
        }
        let (rule, by) = match (known.covered, known.gate) {
            (Some(standing), _) => (Rule::Standing { seq: standing.seq }, standing.by.clone()),
            (None, Gate::Open) => return,
            (None, Gate::Ask | Gate::Closed | Gate::AskEach | Gate::Each) => (Rule::ToolRule, None),
        };
        let ruling = known.ruling(record, call, ruled, rule, by);
        self.rulings.push(ruling);
    }
}

impl Known<'_> {
    fn ruling(&self, record: &Record, call: &CallId, ruled: Ruled, rule: Rule, by: Option<String>) -> Ruling {
        Ruling {
            seq: record.seq,
            at: record.at,
            agent: self.agent.clone(),
            tool: self.tool.clone(),
            call: Some(CallPath::new(&record.path, call.clone())),
            ruled,
            rule,
            by,
        }
    }
}

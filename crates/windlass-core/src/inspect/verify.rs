//! Verification and audit: checks that a journal is intact, and lists its decisions.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::steps::describe_decision;
use crate::authenticity::{MacKeyId, MacKeyring};
use crate::canonical::Digest;
use crate::decision::{Decision, DecisionScope, HoldReason};
use crate::id::{AgentName, CallId, CallPath, RunId, Timestamp};
use crate::item::Item;
use crate::journal::decode_record;
use crate::journal::format::{EncodedJournal, parse_text};
use crate::journal::{CallStatus, DecisionRecorded, JournalEntry, JournalRecord};
use crate::journal::{HashChain, JournalFormatError, JournalLine, resolve_history};
use crate::plan::CallDisposition;
use crate::run::{ReplayError, Run};
use crate::tool::{ApprovalPolicy, ToolKey};

/// A journal whose hash chain is intact and whose records replay.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifiedJournal {
    /// The records.
    pub records: Vec<JournalRecord>,
    /// Hash of the last line. Truncation at the end is not visible in the remaining lines; it is detected by
    /// comparison with a head hash that was stored elsewhere.
    pub head_hash: Digest,
    /// All decisions, in order.
    pub decisions: Vec<AuditedDecision>,
}

/// An audited decision: its subject, its author and its basis.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditedDecision {
    /// Sequence number of the record.
    pub seq: u64,
    /// Time at which the record was written.
    pub at: Timestamp,
    /// The agent that made the call.
    pub agent: AgentName,
    /// The tool's identity.
    pub tool: ToolKey,
    /// The call; absent if a standing decision was revoked.
    pub call: Option<CallPath>,
    /// The decision or its consequence.
    pub action: AuditedAction,
    /// The basis of the decision.
    pub basis: DecisionBasis,
    /// Name of the person or policy that decided, if known.
    pub decided_by: Option<String>,
    /// The key whose MAC vouches for the decision; absent if it was not verified with keys.
    pub verified_by: Option<MacKeyId>,
}

/// The decision or its consequence.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AuditedAction {
    /// A decision was recorded.
    Decided {
        /// The decision.
        decision: Decision,
        /// The set of calls that the decision covers.
        scope: DecisionScope,
    },
    /// The call was executed without a request for approval.
    ExecutedUnasked,
    /// The call was rejected without a request for approval.
    RejectedUnasked,
    /// A standing decision was revoked.
    Revoked,
}

/// The basis on which a decision was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecisionBasis {
    /// The tool requires approval for every call.
    ApprovalRequired,
    /// The tool's approval rule was evaluated.
    ApprovalRule,
    /// The decision was made although no approval was required.
    Unprompted,
    /// The call was in doubt.
    InDoubt,
    /// The call's body asked a question.
    QuestionAsked,
    /// A standing decision covered the call.
    StandingDecision {
        /// Sequence number of that decision.
        seq: u64,
    },
}

impl fmt::Display for AuditedDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seq, agent, tool, call, action: ruled, basis: rule, decided_by: by, .. } = self;
        match call {
            Some(call) => write!(f, "record {seq}: call {call} of `{tool}` by `{agent}` ")?,
            None => write!(f, "record {seq}: calls of `{tool}` by `{agent}` ")?,
        }
        match ruled {
            AuditedAction::Decided { decision, scope: reach } => {
                write!(f, "is {}", describe_decision(decision, *reach, by.as_deref()))?;
            }
            AuditedAction::ExecutedUnasked => f.write_str("ran without a request for approval")?,
            AuditedAction::RejectedUnasked => f.write_str("was rejected without a request for approval")?,
            AuditedAction::Revoked => f.write_str("are no longer covered")?,
        }
        match rule {
            DecisionBasis::ApprovalRequired => f.write_str(" (the tool requires approval)"),
            DecisionBasis::ApprovalRule => f.write_str(" (the tool's rule)"),
            DecisionBasis::Unprompted => f.write_str(" (no approval was required)"),
            DecisionBasis::InDoubt => f.write_str(" (it was in doubt)"),
            DecisionBasis::QuestionAsked => f.write_str(" (its body asked a question)"),
            DecisionBasis::StandingDecision { seq } => write!(f, " (the standing decision of record {seq})"),
        }
    }
}

/// Verifies the lines of a journal: every hash matches, no line is missing before another, and the records
/// replay.
///
/// # Errors
///
/// Returns [`JournalFormatError`] for the first invalid record, and if the run refers to items of its session.
pub fn verify_lines<'a>(
    lines: impl IntoIterator<Item = &'a JournalLine>,
) -> Result<VerifiedJournal, JournalFormatError> {
    verify_lines_with_history(Vec::new(), lines, None)
}

/// Verifies the lines of a journal like [`verify_lines`]. `history` has the items of the session that the run refers
/// to, if it does; they match their digest. With the id of the run and keys, every decision must have a valid MAC.
///
/// # Errors
///
/// Returns [`JournalFormatError`] for the first invalid record.
pub fn verify_lines_with_history<'a>(
    history: Vec<Arc<Item>>,
    lines: impl IntoIterator<Item = &'a JournalLine>,
    keys: Option<(&RunId, &MacKeyring)>,
) -> Result<VerifiedJournal, JournalFormatError> {
    let mut chain = HashChain::default();
    let read = (0..).zip(lines).map(|(seq, line)| match keys {
        Some((run, keys)) => chain.read_authentic(run, seq, line, Some(keys)),
        None => chain.read_record(seq, line),
    });
    let (records, error) = read_until_error(read);
    let mut verified = check_replay(records, history, error, chain)?;
    if keys.is_some() {
        verified.name_verifying_keys();
    }
    Ok(verified)
}

/// Verifies the text of a journal like [`verify_lines`].
///
/// # Errors
///
/// Returns [`JournalFormatError`] for an invalid header or hash, or for the first invalid record.
pub fn verify_text(text: &str) -> Result<VerifiedJournal, JournalFormatError> {
    let EncodedJournal { chain, history, bodies } = parse_text(text)?;
    let read = bodies.into_iter().enumerate().map(|(seq, body)| decode_record(seq as u64, body));
    let (records, error) = read_until_error(read);
    check_replay(records, history, error, chain)
}

impl VerifiedJournal {
    /// Sets the keys of the decisions, all of which were verified.
    fn name_verifying_keys(&mut self) {
        for audited in &mut self.decisions {
            let record = usize::try_from(audited.seq).ok().and_then(|seq| self.records.get(seq));
            let mac = record.and_then(|record| record.entry.decision_mac()).flatten();
            audited.verified_by = mac.map(|mac| mac.key.clone());
        }
    }
}

fn read_until_error(
    read: impl Iterator<Item = Result<JournalRecord, JournalFormatError>>,
) -> (Vec<JournalRecord>, Option<JournalFormatError>) {
    let mut records = Vec::new();
    for record in read {
        match record {
            Ok(record) => records.push(record),
            Err(error) => return (records, Some(error)),
        }
    }
    (records, None)
}

fn check_replay(
    mut records: Vec<JournalRecord>,
    history: Vec<Arc<Item>>,
    error: Option<JournalFormatError>,
    chain: HashChain,
) -> Result<VerifiedJournal, JournalFormatError> {
    resolve_history(&mut records, history)?;
    // A record that cannot be replayed may precede the first line whose hash does not match.
    match (Run::replay(&records), error) {
        (Err(ReplayError::EmptyJournal), Some(error)) | (Ok(_), Some(error)) => Err(error),
        (Err(error), _) => Err(error.into()),
        (Ok(_), None) => {
            let decisions = audit_records(&records);
            Ok(VerifiedJournal { records, head_hash: chain.head(), decisions })
        }
    }
}

/// The decision-related state of a call.
struct CallUnderAudit<'a> {
    agent: &'a AgentName,
    tool: &'a ToolKey,
    approval_policy: ApprovalPolicy,
    hold_reason: Option<&'a HoldReason>,
    /// The standing decision that covers the call.
    standing_decision: Option<StandingDecisionRef<'a>>,
    is_audited: bool,
}

/// A standing decision.
#[derive(Clone, Copy)]
struct StandingDecisionRef<'a> {
    seq: u64,
    decided_by: &'a Option<String>,
}

#[derive(Default)]
struct DecisionAuditor<'a> {
    calls: BTreeMap<(&'a [CallId], &'a CallId), CallUnderAudit<'a>>,
    standing_decisions: BTreeMap<(&'a [CallId], &'a AgentName, &'a ToolKey), StandingDecisionRef<'a>>,
    decisions: Vec<AuditedDecision>,
}

/// Returns all decisions of a journal, in order.
pub fn audit_records(records: &[JournalRecord]) -> Vec<AuditedDecision> {
    let mut clerk = DecisionAuditor::default();
    for record in records {
        clerk.read_record(record);
    }
    clerk.decisions
}

impl<'a> DecisionAuditor<'a> {
    fn read_record(&mut self, record: &'a JournalRecord) {
        let path = record.path.as_slice();
        match &record.entry {
            JournalEntry::ModelResponded(answered) => {
                for planned in &answered.calls {
                    let CallDisposition::Execute { approval_policy: gate, .. } = planned.disposition else {
                        continue;
                    };
                    let (agent, tool) = (&answered.agent, &planned.key);
                    let covered = self.standing_decisions.get(&(path, agent, tool)).copied();
                    let known = CallUnderAudit {
                        agent,
                        tool,
                        approval_policy: gate,
                        hold_reason: None,
                        standing_decision: covered,
                        is_audited: false,
                    };
                    self.calls.insert((path, &planned.call), known);
                }
            }
            JournalEntry::CallHeld(held) => {
                if let Some(known) = self.calls.get_mut(&(path, &held.call)) {
                    known.hold_reason = Some(&held.reason);
                }
            }
            JournalEntry::DecisionRecorded(decided) => self.record_decision(record, decided),
            JournalEntry::DecisionRevoked(revoked) => {
                let standing = self.standing_decisions.remove(&(path, &revoked.agent, &revoked.tool));
                let rule = standing.map_or(DecisionBasis::Unprompted, |standing| {
                    DecisionBasis::StandingDecision { seq: standing.seq }
                });
                let (agent, tool) = (revoked.agent.clone(), revoked.tool.clone());
                let (seq, at) = (record.seq, record.at);
                self.decisions.push(AuditedDecision {
                    seq,
                    at,
                    agent,
                    tool,
                    call: None,
                    action: AuditedAction::Revoked,
                    basis: rule,
                    decided_by: None,
                    verified_by: None,
                });
            }
            JournalEntry::CallStarted(started) => {
                self.record_unasked(record, &started.call, AuditedAction::ExecutedUnasked)
            }
            JournalEntry::CallSettled(settled) if settled.status == CallStatus::Rejected => {
                self.record_unasked(record, &settled.call, AuditedAction::RejectedUnasked);
            }
            // A settled call receives no further decisions.
            JournalEntry::CallSettled(settled) => drop(self.calls.remove(&(path, &settled.call))),
            _ => {}
        }
    }

    fn record_decision(&mut self, record: &'a JournalRecord, decided: &'a DecisionRecorded) {
        let path = record.path.as_slice();
        let Some(known) = self.calls.get_mut(&(path, &decided.call)) else { return };
        known.is_audited = true;
        let rule = match (known.hold_reason, known.approval_policy) {
            (Some(HoldReason::InDoubt), _) => DecisionBasis::InDoubt,
            (Some(HoldReason::Question(_)), _) => DecisionBasis::QuestionAsked,
            (
                Some(HoldReason::Approval) | None,
                ApprovalPolicy::Required | ApprovalPolicy::RequiredEachTime,
            ) => DecisionBasis::ApprovalRequired,
            (Some(HoldReason::Approval) | None, ApprovalPolicy::ByRule | ApprovalPolicy::ByRuleEachTime) => {
                DecisionBasis::ApprovalRule
            }
            (Some(HoldReason::Approval) | None, ApprovalPolicy::NotRequired) => DecisionBasis::Unprompted,
        };
        let ruled = AuditedAction::Decided { decision: decided.decision.clone(), scope: decided.scope };
        let ruling =
            known.to_audited_decision(record, &decided.call, ruled, rule, decided.decided_by.clone());
        self.decisions.push(ruling);
        let (agent, tool) = (known.agent, known.tool);
        if decided.scope == DecisionScope::ToolForRun {
            let standing = StandingDecisionRef { seq: record.seq, decided_by: &decided.decided_by };
            self.standing_decisions.entry((path, agent, tool)).or_insert(standing);
            for ((within, _), known) in &mut self.calls {
                if *within == path && known.agent == agent && known.tool == tool {
                    known.standing_decision.get_or_insert(standing);
                }
            }
        }
    }

    /// Records that a call was executed or rejected without a request for approval; a rule or a standing
    /// decision was the basis.
    fn record_unasked(&mut self, record: &'a JournalRecord, call: &'a CallId, ruled: AuditedAction) {
        let path = record.path.as_slice();
        let Some(known) = self.calls.get_mut(&(path, call)) else { return };
        if std::mem::replace(&mut known.is_audited, true) {
            return;
        }
        let (rule, by) = match (known.standing_decision, known.approval_policy) {
            (Some(standing), _) => {
                (DecisionBasis::StandingDecision { seq: standing.seq }, standing.decided_by.clone())
            }
            (None, ApprovalPolicy::NotRequired) => return,
            (
                None,
                ApprovalPolicy::ByRule
                | ApprovalPolicy::Required
                | ApprovalPolicy::ByRuleEachTime
                | ApprovalPolicy::RequiredEachTime,
            ) => (DecisionBasis::ApprovalRule, None),
        };
        let ruling = known.to_audited_decision(record, call, ruled, rule, by);
        self.decisions.push(ruling);
    }
}

impl CallUnderAudit<'_> {
    fn to_audited_decision(
        &self,
        record: &JournalRecord,
        call: &CallId,
        ruled: AuditedAction,
        rule: DecisionBasis,
        by: Option<String>,
    ) -> AuditedDecision {
        AuditedDecision {
            seq: record.seq,
            at: record.at,
            agent: self.agent.clone(),
            tool: self.tool.clone(),
            call: Some(CallPath::new(&record.path, call.clone())),
            action: ruled,
            basis: rule,
            decided_by: by,
            verified_by: None,
        }
    }
}

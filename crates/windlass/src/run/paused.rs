//! Paused runs: values that can be stored as text, restored, decided and resumed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use windlass_core::{
    authenticity::{DecisionSignature, MacError, MacKeyId, MacKeyring, SignedDecision},
    canonical::Digest,
    decision::{CorrectableCall, Decision, DecisionScope, PendingCall, PostedNote, StandingDecision},
    history::keep_pairs,
    id::{CallId, CallPath, Timestamp},
    item::{Item, OutputContent},
    journal::{
        DecisionRecorded, DecisionRevoked, InputAdded, JournalEntry, JournalRecord, append_sealed_outputs,
        append_text_mac, decode_journal, open_sealed_outputs, verify_text_mac,
    },
    run::{CallReceipt, ReplayedRun, Run, RunOutline},
    usage::Usage,
};

use super::{IntoInput, JournalRecords, RunRecord};
use crate::error::{DecisionError, RestoreError, StoreError};
use crate::lost_secrets::redact_answer;
use crate::redaction;
use crate::session::Session;
use crate::store::{ApproverPolicy, ApproverSigner, OpenRunError, PostedDecision, Store, TakenDecision};
use crate::tool::canonicalize_arguments;

/// A run that waits for a person.
///
/// It can be stored as text and restored by another process. Decisions may come in any order, and calls without
/// a decision stay pending when the run resumes.
#[derive(Clone)]
pub struct PausedRun {
    record: RunRecord,
    kept: KeptResults,
    decided_by: Option<String>,
    displayed: Option<Digest>,
    signer: DecisionSigner,
    /// Decisions that are posted about the pending calls.
    posted: Vec<PostedDecision>,
    text_authenticity: Option<TextAuthenticity>,
}

/// The origin of the signatures of decisions.
#[derive(Clone, Default)]
enum DecisionSigner {
    /// Decisions are not signed.
    #[default]
    Nobody,
    /// A private key signs them.
    Key(Arc<ApproverSigner>),
    /// The approver has signed elsewhere.
    Elsewhere(DecisionSignature),
}

/// The result of the verification of a run's text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TextAuthenticity {
    /// The text is what a holder of this key wrote.
    Verified {
        /// Id of the key.
        key: MacKeyId,
    },
    /// The text was not verified: it was restored without keys.
    NoKeys,
    /// The text cannot be verified: it has no MAC.
    NoMac,
    /// The text cannot be verified: its MAC was made with a key that is not in the keyring.
    UnknownKey {
        /// Id of the key.
        key: MacKeyId,
    },
}

/// Shows the run without its items and outputs, which may have secrets.
impl std::fmt::Debug for PausedRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PausedRun")
            .field("record", &self.record)
            .field("pending_calls", &self.pending_calls().len())
            .finish_non_exhaustive()
    }
}

/// Results that a later driver needs beside the journal, kept as long as the value lives.
#[derive(Clone, Default)]
pub(crate) struct KeptResults {
    /// Receipts of idempotent calls, by digest.
    pub(crate) receipts: BTreeMap<Digest, CallReceipt>,
    /// Outputs that their output guardrails have not passed yet.
    pub(crate) withheld: BTreeMap<CallPath, OutputContent>,
    /// The run's session, as the application handed it over.
    pub(crate) session: Option<Session>,
    /// Keys that authenticate the text of the run.
    pub(crate) mac_keys: Option<Arc<MacKeyring>>,
    /// The approvers of the store that the run is in.
    pub(crate) approvers: Option<Arc<ApproverPolicy>>,
}

impl PausedRun {
    pub(crate) fn new(record: RunRecord, kept: KeptResults) -> Self {
        Self {
            record,
            kept,
            decided_by: None,
            displayed: None,
            signer: DecisionSigner::Nobody,
            posted: Vec::new(),
            text_authenticity: None,
        }
    }

    /// Restores a run from its text. Restoring it twice creates two independent runs.
    ///
    /// Nothing says who wrote the text: its decisions are those of whoever hands it over. [`PausedRun::from_text_with_keys`]
    /// verifies it.
    pub fn from_text(text: &str) -> Result<Self, RestoreError> {
        let mut paused = Self::from_records(decode_journal(text)?)?;
        paused.kept.withheld = open_sealed_outputs(text)?;
        paused.text_authenticity = Some(TextAuthenticity::NoKeys);
        Ok(paused)
    }

    /// Restores a run from its text as [`PausedRun::from_text`] does, and verifies the MAC of the text.
    /// [`PausedRun::text_authenticity`] has the result: a text without a MAC, or with that of another keyring, can be
    /// restored, and the application decides whether to go on with its decisions.
    ///
    /// # Errors
    ///
    /// Returns [`RestoreError::ForgedText`] if the MAC is of one of the keys and does not match.
    pub fn from_text_with_keys(text: &str, keys: impl Into<Arc<MacKeyring>>) -> Result<Self, RestoreError> {
        let keys = keys.into();
        let mut paused = Self::from_text(text)?;
        let (run, count) = (paused.record.outline().id(), paused.record.records.len() as u64);
        paused.text_authenticity = Some(match verify_text_mac(text, run, count, &keys) {
            Ok(key) => TextAuthenticity::Verified { key },
            Err(MacError::Missing) => TextAuthenticity::NoMac,
            Err(MacError::UnknownKey(key)) => TextAuthenticity::UnknownKey { key },
            Err(reason) => return Err(RestoreError::ForgedText { run: run.clone(), reason }),
        });
        paused.kept.mac_keys = Some(keys);
        Ok(paused)
    }

    /// Returns the result of the verification of the text that the run was restored from; `None` if it was not restored
    /// from a text.
    pub fn text_authenticity(&self) -> Option<&TextAuthenticity> {
        self.text_authenticity.as_ref()
    }

    /// Restores a run from its journal.
    pub fn from_records(records: Vec<JournalRecord>) -> Result<Self, windlass_core::run::ReplayError> {
        let replay = Run::replay(&records)?;
        Ok(Self::from_parts(replay, records.into()))
    }

    /// Creates a paused run from a replayed run and its records.
    pub(crate) fn from_parts(replay: ReplayedRun, records: JournalRecords) -> Self {
        let kept = KeptResults { receipts: replay.receipts, ..KeptResults::default() };
        Self::new(RunRecord { run: replay.run.into(), records, usage: replay.usage }, kept)
    }

    /// Creates a paused run from a run without its past, and its records.
    pub(crate) fn from_outline(outline: RunOutline, records: JournalRecords) -> Self {
        let usage = outline.replay().usage;
        Self::new(RunRecord { run: outline.into(), records, usage }, KeptResults::default())
    }

    /// Encodes the run as text, for another process that resumes it.
    ///
    /// If an output is withheld until its output guardrails have passed it, the text has it in a sealed line: nobody who
    /// reads or searches the text meets it, and the run that is restored from the text has it. The seal is no encryption,
    /// so such a text belongs where other drivers are, and not with people. [`RunRecord::to_text`] is the journal alone.
    ///
    /// If the run has keys ([`PausedRun::set_keys`]), the text ends with a MAC, which covers its decisions, too.
    pub fn to_text(&self) -> String {
        let mut text = self.record.to_text();
        append_sealed_outputs(&mut text, &self.kept.withheld);
        if let Some(keys) = &self.kept.mac_keys {
            append_text_mac(&mut text, self.record.outline().id(), self.record.records.len() as u64, keys);
        }
        text
    }

    /// Sets the keys that authenticate the text of the run. A run that comes from a store with keys has them.
    pub fn set_keys(&mut self, keys: Option<Arc<MacKeyring>>) {
        self.kept.mac_keys = keys;
    }

    /// Returns the pending calls, including those of nested agents. A run that was loaded from a store also says which
    /// decisions are posted about them.
    pub fn pending_calls(&self) -> Vec<PendingCall> {
        let mut pending = self.record.outline().pending_calls();
        for posted in &self.posted {
            let is_it = |one: &&mut PendingCall| one.path == posted.path && one.attempt == posted.attempt;
            if let Some(pending) = pending.iter_mut().find(is_it) {
                pending.posted = Some(Box::new(PostedNote {
                    decision: posted.decision.decision.clone(),
                    decided_by: posted.decision.decided_by.clone(),
                    posted_at: posted.posted_at,
                }));
            }
        }
        pending
    }

    /// Sets the decisions that are posted about the pending calls.
    pub(crate) fn set_posted(&mut self, posted: Vec<PostedDecision>) {
        self.posted = posted;
    }

    /// Returns a call whose decision is recorded, not taken, and can be corrected.
    pub fn correctable_call(&self, path: &CallPath) -> Option<CorrectableCall> {
        let run = self.record.outline().at_path(path.parent_calls())?;
        let mut correctable = run.correctable_call(path.call())?;
        correctable.pending.path = path.clone();
        Some(correctable)
    }

    /// Returns the last recorded decision about a call that cannot be corrected any more.
    pub fn taken_decision(&self, path: &CallPath) -> Option<TakenDecision> {
        let is_open = self.correctable_call(path).is_some()
            || self.record.outline().pending_calls().iter().any(|pending| pending.path == *path);
        if is_open {
            return None;
        }
        let find_decision = |records: &[JournalRecord]| {
            records.iter().rev().find_map(|record| match &record.entry {
                JournalEntry::DecisionRecorded(made)
                    if made.call == *path.call() && record.path == path.parent_calls() =>
                {
                    Some(TakenDecision {
                        call: path.clone(),
                        decision: made.decision.clone(),
                        decided_by: made.decided_by.clone(),
                    })
                }
                _ => None,
            })
        };
        find_decision(self.record.records.later_records()).or_else(|| find_decision(self.record.journal()))
    }

    /// Returns the decisions that apply to later calls too, including those of nested agents.
    pub fn standing_decisions(&self) -> Vec<StandingDecision> {
        let mut found = Vec::new();
        collect_standing(self.record.outline(), &mut Vec::new(), &mut found);
        found
    }

    /// Returns the record of the run so far.
    pub fn record(&self) -> &RunRecord {
        &self.record
    }

    /// Sets the name of the approver for the decisions that follow. It is recorded in the journal.
    pub fn decide_as(&mut self, who: impl Into<String>) {
        self.decided_by = Some(who.into());
    }

    /// Sets the digest of the text that the approver is shown, for the decisions that follow. It is recorded in the
    /// journal beside the digest of the call, so that an audit can tell what a person saw. `None` records no display.
    pub fn display_as(&mut self, displayed: Option<Digest>) {
        self.displayed = displayed;
    }

    /// Returns the approvers of the store that the run was loaded from or driven in. If there are any, a decision other
    /// than a rejection needs the signature of one of them ([`PausedRun::sign_with`]).
    pub fn approvers(&self) -> Option<&Arc<ApproverPolicy>> {
        self.kept.approvers.as_ref()
    }

    pub(crate) fn set_approvers(&mut self, approvers: Option<Arc<ApproverPolicy>>) {
        self.kept.approvers = approvers;
    }

    /// Sets the approver's private key, which signs the decisions that follow. A run of a store with approvers
    /// ([`Store::approvers`]) refuses decisions that no approver has signed.
    pub fn sign_with(&mut self, signer: Option<Arc<ApproverSigner>>) {
        self.signer = signer.map_or(DecisionSigner::Nobody, DecisionSigner::Key);
    }

    /// Sets the signature that an approver has made elsewhere, for the decision that follows: see
    /// [`prepare_decision`](crate::store::prepare_decision).
    pub fn attach_signature(&mut self, signature: DecisionSignature) {
        self.signer = DecisionSigner::Elsewhere(signature);
    }

    /// Approves the call.
    pub fn approve(&mut self, call: impl Into<CallPath>) -> Result<(), DecisionError> {
        self.decide(call, Decision::Approve, DecisionScope::ThisCall)
    }

    /// Approves the call, and every later call of the same tool by the same agent in this run, except calls
    /// that require approval every time.
    ///
    /// # Errors
    ///
    /// Returns an error if all calls of the tool require approval every time
    /// ([`PendingCall::max_approval_scope`](windlass_core::decision::PendingCall::max_approval_scope)).
    pub fn approve_always(&mut self, call: impl Into<CallPath>) -> Result<(), DecisionError> {
        self.decide(call, Decision::Approve, DecisionScope::ToolForRun)
    }

    /// Approves the call with these arguments, a JSON object, in place of the model's. The model is informed.
    pub fn approve_edited(
        &mut self,
        call: impl Into<CallPath>,
        arguments: &str,
    ) -> Result<(), DecisionError> {
        let arguments =
            canonicalize_arguments(arguments, str::to_owned).map_err(DecisionError::InvalidArguments)?;
        self.decide(call, Decision::ApproveEdited { arguments }, DecisionScope::ThisCall)
    }

    /// Rejects the call. The model is informed.
    pub fn reject(&mut self, call: impl Into<CallPath>) -> Result<(), DecisionError> {
        self.decide(call, Decision::Reject { message: None }, DecisionScope::ThisCall)
    }

    /// Rejects the call, and gives the model the reason.
    pub fn reject_because(
        &mut self,
        call: impl Into<CallPath>,
        why: impl Into<String>,
    ) -> Result<(), DecisionError> {
        self.decide(call, Decision::Reject { message: Some(why.into()) }, DecisionScope::ThisCall)
    }

    /// Rejects the call, and every later call of the same tool by the same agent in this run.
    pub fn reject_always(&mut self, call: impl Into<CallPath>) -> Result<(), DecisionError> {
        self.decide(call, Decision::Reject { message: None }, DecisionScope::ToolForRun)
    }

    /// Resolves a call in doubt: it was executed, with this output.
    pub fn confirm_executed(
        &mut self,
        call: impl Into<CallPath>,
        output: impl Into<OutputContent>,
    ) -> Result<(), DecisionError> {
        self.decide(call, Decision::ConfirmExecuted { output: output.into() }, DecisionScope::ThisCall)
    }

    /// Resolves a call in doubt: it was not executed, and may run.
    pub fn confirm_not_executed(&mut self, call: impl Into<CallPath>) -> Result<(), DecisionError> {
        self.decide(call, Decision::ConfirmNotExecuted, DecisionScope::ThisCall)
    }

    /// Resolves a call in doubt: its outcome is unknown, and the model is informed.
    pub fn mark_outcome_unknown(&mut self, call: impl Into<CallPath>) -> Result<(), DecisionError> {
        self.decide(call, Decision::OutcomeUnknown, DecisionScope::ThisCall)
    }

    /// Answers the question of a call, which then continues. The value must match the question's schema.
    pub fn answer_question(
        &mut self,
        call: impl Into<CallPath>,
        value: impl Into<Value>,
    ) -> Result<(), DecisionError> {
        self.decide(call, Decision::Answer { value: value.into() }, DecisionScope::ThisCall)
    }

    /// Revokes a standing decision. Calls that it already approved are not affected.
    pub fn revoke(&mut self, standing: &StandingDecision) -> Result<(), DecisionError> {
        let entry = JournalEntry::DecisionRevoked(DecisionRevoked {
            agent: standing.agent.clone(),
            tool: standing.tool.clone(),
            mac: None,
        });
        self.push_entry(standing.parent_calls.clone(), entry)
    }

    /// Adds input for the next model request. Calls without outputs and outputs without calls are left out of it.
    pub fn add_input(&mut self, input: impl IntoInput) -> Result<(), DecisionError> {
        self.push_input(input.into_input(), None)
    }

    /// Adds the input of an order. The journal records the order's number, so that it is added once.
    pub(crate) fn add_ordered_input(
        &mut self,
        items: Vec<Arc<Item>>,
        order: u64,
    ) -> Result<(), DecisionError> {
        self.push_input(items, Some(order))
    }

    fn push_input(&mut self, items: Vec<Arc<Item>>, order: Option<u64>) -> Result<(), DecisionError> {
        let paired = keep_pairs(items);
        if !paired.repairs.is_empty() {
            tracing::warn!("the added input has {}", paired.describe_repairs());
        }
        let added = InputAdded { items: paired.items, order };
        self.push_entry(Vec::new(), JournalEntry::InputAdded(added))
    }

    /// Records any decision about a pending call. It replaces an earlier decision about the call that is not taken.
    ///
    /// # Errors
    ///
    /// Returns an error if the call is not pending and its decision is taken, its time limit has passed, the decision is not
    /// applicable to it, or the store has approvers and none of them signs it. The run is then unchanged.
    pub fn decide(
        &mut self,
        call: impl Into<CallPath>,
        decision: Decision,
        reach: DecisionScope,
    ) -> Result<(), DecisionError> {
        let path = self.find_pending(call.into())?;
        let digest = self.pending_digest(&path)?;
        let pending = self.pending_calls().into_iter().find(|pending| pending.path == path);
        if pending.as_ref().is_some_and(|pending| pending.is_expired(wall_clock_now())) {
            return Err(DecisionError::Expired(path));
        }
        // The decision replaces the posted one that this run was loaded with.
        let is_replaced = |posted: &&PostedDecision| {
            posted.path == path && pending.as_ref().is_some_and(|pending| pending.attempt == posted.attempt)
        };
        let replaced = self.posted.iter().find(is_replaced);
        let posted_revision = replaced.map_or(0, |replaced| replaced.decision.posted_revision);
        let entry = JournalEntry::DecisionRecorded(DecisionRecorded {
            call: path.call().clone(),
            digest,
            decision,
            scope: reach,
            decided_by: self.decided_by.clone(),
            displayed: self.displayed,
            posted_revision,
            signature: None,
            mac: None,
        });
        self.push_entry(path.parent_calls().to_vec(), entry)
    }

    /// Resolves a call id to the full path of the pending call, if exactly one pending call has that id.
    fn find_pending(&self, path: CallPath) -> Result<CallPath, DecisionError> {
        let pending = self.pending_calls();
        if pending.iter().any(|pending| pending.path == path) {
            return Ok(path);
        }
        let mut matching = pending
            .into_iter()
            .filter(|pending| path.parent_calls().is_empty() && pending.call() == path.call());
        match (matching.next(), matching.next()) {
            (Some(only), None) => Ok(only.path),
            (Some(_), Some(_)) => Err(DecisionError::AmbiguousCall(path)),
            // The call may already have a decision: the core corrects it until it is taken.
            (None, _) => Ok(path),
        }
    }

    /// Returns the digest of the call as it was shown to the approver; the decision is bound to it.
    fn pending_digest(&self, path: &CallPath) -> Result<Digest, DecisionError> {
        let mut run = self.record.outline();
        for call in path.parent_calls() {
            run = run.nested_run(call).ok_or_else(|| DecisionError::NotPending(path.clone()))?;
        }
        run.decision_digest(path.call()).ok_or_else(|| DecisionError::NotPending(path.clone()))
    }

    fn push_entry(&mut self, path: Vec<CallId>, entry: JournalEntry) -> Result<(), DecisionError> {
        let attempt = match &entry {
            JournalEntry::DecisionRecorded(decided) => {
                let run = self.record.outline().at_path(&path);
                run.and_then(|run| run.untaken_hold(&decided.call)).map_or(0, |hold| hold.attempt)
            }
            _ => 0,
        };
        // The run has the edited arguments; its journal has them without the secrets of the call.
        let recorded = self.signed_entry(&path, attempt, self.redact_edit(&path, entry.clone()));
        self.verify_signature(&path, attempt, &recorded)?;
        self.record.run.apply_at(&path, &entry)?;
        let entry = recorded;
        let seq = self.record.records.len() as u64;
        self.record.records.push(JournalRecord { seq, at: wall_clock_now(), path, entry });
        Ok(())
    }

    /// Returns a decision with the signature of the approver, as the journal has it.
    fn signed_entry(&self, path: &[CallId], attempt: u32, entry: JournalEntry) -> JournalEntry {
        let JournalEntry::DecisionRecorded(mut decided) = entry else { return entry };
        let signature = match &self.signer {
            DecisionSigner::Nobody => None,
            DecisionSigner::Key(signer) => {
                let (run, path) = (self.record.outline().id(), CallPath::new(path, decided.call.clone()));
                Some(signer.sign(&SignedDecision { run, path: &path, attempt, decision: &decided }))
            }
            DecisionSigner::Elsewhere(signature) => Some(signature.clone()),
        };
        decided.signature = signature.map(Box::new);
        JournalEntry::DecisionRecorded(decided)
    }

    /// Verifies that a decision counts in the store that the run is in.
    fn verify_signature(
        &self,
        path: &[CallId],
        attempt: u32,
        entry: &JournalEntry,
    ) -> Result<(), DecisionError> {
        let (JournalEntry::DecisionRecorded(decision), Some(approvers)) = (entry, &self.kept.approvers)
        else {
            return Ok(());
        };
        let (run, path) = (self.record.outline().id(), CallPath::new(path, decision.call.clone()));
        let signed = SignedDecision { run, path: &path, attempt, decision };
        let pending = self.record.outline().pending_calls().into_iter().find(|pending| pending.path == path);
        match pending.or_else(|| self.correctable_call(&path).map(|correctable| correctable.pending)) {
            Some(call) => Ok(approvers.verify_about(&signed, &call)?),
            // The core refuses a decision about a call that is not held.
            None => Ok(approvers.verify(&signed)?),
        }
    }

    /// Returns a decision without the secret arguments that a person edited, or gave again.
    fn redact_edit(&self, path: &[CallId], mut entry: JournalEntry) -> JournalEntry {
        redact_answer(&mut entry);
        let JournalEntry::DecisionRecorded(mut decided) = entry else { return entry };
        if let Decision::ApproveEdited { arguments } = &mut decided.decision
            && let Some(recorded) = self.recorded_arguments(path, &decided.call)
            && let Some(redacted) =
                redaction::redact_edit(arguments, &recorded, self.secret_arguments(path, &decided.call))
        {
            *arguments = redacted;
        }
        JournalEntry::DecisionRecorded(decided)
    }

    /// Returns the names of the secret arguments of a held call's tool.
    fn secret_arguments(&self, path: &[CallId], call: &CallId) -> &[String] {
        // A call that waits is of a turn after the snapshot.
        let records = self.record.records.later_records().iter().rev().filter(|record| record.path == path);
        let mut holds = records.filter_map(|record| match &record.entry {
            JournalEntry::CallHeld(held) if held.call == *call => Some(held.secret_arguments.as_slice()),
            _ => None,
        });
        holds.next().unwrap_or_default()
    }

    /// Returns the arguments of a call as the journal has them: with a placeholder for each secret.
    pub(crate) fn recorded_arguments(&self, path: &[CallId], call: &CallId) -> Option<String> {
        // A call that waits is of a turn after the snapshot.
        let records = self.record.records.later_records().iter().rev().filter(|record| record.path == path);
        let mut items = records.flat_map(|record| match &record.entry {
            JournalEntry::ModelResponded(answered) => answered.items.as_slice(),
            _ => &[],
        });
        items.find_map(|item| match &**item {
            Item::Call(made) if made.id == *call => Some(made.arguments.clone()),
            _ => None,
        })
    }

    /// Adds the withheld outputs that the store has of this run.
    pub(crate) async fn with_stored_withheld(mut self, store: &dyn Store) -> Result<Self, StoreError> {
        for call in self.record.outline().withheld_calls() {
            if let Some(output) = store.load_withheld_output(self.record.outline().id(), &call).await? {
                self.kept.withheld.insert(call, output);
            }
        }
        Ok(self)
    }

    /// Returns the whole run, its records, its usage, and the results that are kept beside them.
    pub(crate) fn into_parts(self) -> Result<(Run, JournalRecords, Usage, KeptResults), OpenRunError> {
        let (RunRecord { run, records, usage }, mut kept) = (self.record, self.kept);
        let whole = run.into_whole(&records)?;
        let later = std::mem::replace(&mut kept.receipts, whole.receipts);
        kept.receipts.extend(later);
        Ok((whole.run, records, usage, kept))
    }
}

fn collect_standing(run: &Run, within: &mut Vec<CallId>, found: &mut Vec<StandingDecision>) {
    found.extend(
        run.standing_decisions()
            .into_iter()
            .map(|standing| StandingDecision { parent_calls: within.clone(), ..standing }),
    );
    for call in run.unsettled_calls() {
        if let Some(child) = run.nested_run(&call) {
            within.push(call);
            collect_standing(child, within, found);
            within.pop();
        }
    }
}

/// Returns the wall-clock time. Decisions come from outside the runtime, so that its clock does not apply.
fn wall_clock_now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

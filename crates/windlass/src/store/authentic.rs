//! Authenticity of stored snapshots and posted decisions, for stores with keys or approvers.
//!
//! Invariant: with keys, nothing that was read from a store grants a call unless its MAC was verified. A snapshot that is
//! not authentic is ignored, because the journal suffices; a posted decision that is not authentic is refused and named.

use std::fmt;

use futures_util::FutureExt;
use windlass_core::{
    authenticity::{
        ForgeryReason, MacError, MacKeyId, MacKeyring, MacMessage, MessageMac, SignatureError, SignedDecision,
    },
    canonical::Digest,
    decision::{Decision, PendingCall},
    id::{CallPath, RunId},
};

use super::approvers::held_call;
use super::{PostedDecision, Store, StoredSnapshot, read_run};
use crate::error::StoreError;

/// Start of the first line of a snapshot's body if it has a MAC.
const MAC_PREFIX: &str = "mac ";

/// The decisions that are posted for a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PostedDecisions {
    /// Decisions that are authentic, oldest first; all of them if the store has neither keys nor approvers.
    pub authentic: Vec<PostedDecision>,
    /// Decisions that no holder of a key has posted, or no approver signed.
    pub refused: Vec<RefusedDecision>,
}

/// A posted decision that is not authentic. No driver acts on it.
#[derive(Clone, Debug, PartialEq)]
pub struct RefusedDecision {
    /// The run.
    pub run: RunId,
    /// The decision.
    pub posted: PostedDecision,
    /// The reason why it is not authentic.
    pub reason: ForgeryReason,
}

impl fmt::Display for RefusedDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, posted, reason } = self;
        let by = posted.decision.decided_by.as_deref().unwrap_or("somebody");
        let decision = posted.decision.decision.describe();
        write!(f, "a posted decision is forged and was refused: {decision} of call `{}` ", posted.path)?;
        write!(f, "of run `{run}` in the name of {by:?}: {reason}")
    }
}

/// Finds the call that a posted decision is about, as the journal has it: `None` if the run does not hold it.
pub(crate) type FindHeldCall<'a> =
    &'a (dyn Fn(&CallPath) -> Result<Option<PendingCall>, SignatureError> + Sync);

/// Loads the decisions that are posted for a run, and verifies their MACs if the store has keys, and
/// their signatures if it has approvers. If the approvers have rules, the run is read for the calls: once, and only if a
/// decision other than a rejection is posted.
pub async fn load_posted_decisions(store: &dyn Store, run: &RunId) -> Result<PostedDecisions, StoreError> {
    let posted = store.posted_decisions(run).await?;
    let has_rules = store.approvers().is_some_and(|approvers| approvers.has_rules());
    let is_rejection = |posted: &PostedDecision| matches!(posted.decision.decision, Decision::Reject { .. });
    let opened = match has_rules && !posted.iter().all(is_rejection) {
        true => read_run(store, run).boxed().await.ok(),
        false => None,
    };
    let find = |path: &CallPath| match &opened {
        Some(opened) => Ok(held_call(&opened.replay.run, path)),
        None => Err(SignatureError::UnknownCall),
    };
    Ok(check_all(store, run, posted, &find))
}

/// Loads the posted decisions as [`load_posted_decisions`] does, for somebody who has read the run.
pub(crate) async fn load_posted_about(
    store: &dyn Store,
    run: &RunId,
    find: FindHeldCall<'_>,
) -> Result<PostedDecisions, StoreError> {
    Ok(check_all(store, run, store.posted_decisions(run).await?, find))
}

fn check_all(
    store: &dyn Store,
    run: &RunId,
    posted: Vec<PostedDecision>,
    find: FindHeldCall<'_>,
) -> PostedDecisions {
    let mut found = PostedDecisions::default();
    for posted in posted {
        match check_posted(store, run, posted, find) {
            Ok(posted) => found.authentic.push(posted),
            Err(refused) => found.refused.push(*refused),
        }
    }
    found
}

/// Returns a posted decision if it is authentic.
pub(crate) fn check_posted(
    store: &dyn Store,
    run: &RunId,
    posted: PostedDecision,
    find: FindHeldCall<'_>,
) -> Result<PostedDecision, Box<RefusedDecision>> {
    let verified = match verify_posted_mac(store, run, &posted) {
        Ok(()) => verify_signature(store, run, &posted, find).map_err(ForgeryReason::from),
        Err(reason) => Err(reason.into()),
    };
    match verified {
        Ok(()) => Ok(posted),
        Err(reason) => {
            tracing::warn!(%run, call = %posted.path, %reason, "a posted decision is forged and was refused");
            Err(Box::new(RefusedDecision { run: run.clone(), posted, reason }))
        }
    }
}

/// Verifies the MAC of a posted decision, if the store has keys.
fn verify_posted_mac(store: &dyn Store, run: &RunId, posted: &PostedDecision) -> Result<(), MacError> {
    let Some(keys) = store.mac_keys() else { return Ok(()) };
    let body = posted_digest(posted);
    let PostedDecision { path, attempt, mac, .. } = posted;
    keys.verify(&MacMessage::PostedDecision { run, path, attempt: *attempt, body: &body }, mac.as_ref())
}

/// Verifies the signature of a posted decision, if the store has approvers.
fn verify_signature(
    store: &dyn Store,
    run: &RunId,
    posted: &PostedDecision,
    find: FindHeldCall<'_>,
) -> Result<(), SignatureError> {
    let Some(approvers) = store.approvers() else { return Ok(()) };
    let PostedDecision { path, attempt, decision, .. } = posted;
    let signed = SignedDecision { run, path, attempt: *attempt, decision };
    // The rules are about the call, which only the journal has. A rejection needs no approver who decides about it.
    if !approvers.has_rules() || matches!(decision.decision, Decision::Reject { .. }) {
        return approvers.verify(&signed);
    }
    match find(path)? {
        Some(call) => approvers.verify_about(&signed, &call),
        // No driver takes a decision about a call that is not held.
        None => approvers.verify(&signed),
    }
}

/// Sets the revision and the MAC of a decision that is about to be posted.
pub(super) fn authenticate_posted(
    keys: &MacKeyring,
    run: &RunId,
    mut posted: PostedDecision,
    revision: u32,
) -> PostedDecision {
    posted.decision.posted_revision = revision;
    let body = posted_digest(&posted);
    let PostedDecision { path, attempt, .. } = &posted;
    let message = MacMessage::PostedDecision { run, path, attempt: *attempt, body: &body };
    posted.mac = Some(keys.authenticate(&message));
    posted
}

/// Returns the digest of a posted decision without its MAC.
fn posted_digest(posted: &PostedDecision) -> Digest {
    let unsigned = PostedDecision { mac: None, ..posted.clone() };
    // Decisions contain only text keys and finite numbers, so serialisation cannot fail.
    Digest::of_text(&serde_json::to_string(&unsigned).unwrap_or_default())
}

/// Adds the MAC to a snapshot: a line before its body.
pub(crate) fn authenticate_snapshot(
    keys: Option<&MacKeyring>,
    run: &RunId,
    mut snapshot: StoredSnapshot,
) -> StoredSnapshot {
    if let Some(keys) = keys {
        let MessageMac { key, tag } =
            keys.authenticate(&snapshot_message(run, &snapshot, &Digest::of_text(&snapshot.body)));
        snapshot.body.insert_str(0, &format!("{MAC_PREFIX}{key} {tag}\n"));
    }
    snapshot
}

/// Returns a snapshot without its MAC.
///
/// # Errors
///
/// Returns an error if there are keys and the snapshot is not authentic.
pub(super) fn check_snapshot(
    keys: Option<&MacKeyring>,
    run: &RunId,
    mut snapshot: StoredSnapshot,
) -> Result<(StoredSnapshot, Option<MacKeyId>), MacError> {
    let mac = match snapshot.body.split_once('\n') {
        Some((line, body)) if line.starts_with(MAC_PREFIX) => {
            let mac = parse_mac(&line[MAC_PREFIX.len()..]);
            snapshot.body = body.to_owned();
            mac
        }
        _ => None,
    };
    let Some(keys) = keys else { return Ok((snapshot, None)) };
    keys.verify(&snapshot_message(run, &snapshot, &Digest::of_text(&snapshot.body)), mac.as_ref())?;
    Ok((snapshot, mac.map(|mac| mac.key)))
}

fn snapshot_message<'a>(run: &'a RunId, snapshot: &'a StoredSnapshot, body: &'a Digest) -> MacMessage<'a> {
    let StoredSnapshot { record_count, head_hash, .. } = snapshot;
    MacMessage::Snapshot { run, record_count: *record_count, head: head_hash, body }
}

/// Parses the id of a key and a MAC in hex digits.
fn parse_mac(text: &str) -> Option<MessageMac> {
    let (key, tag) = text.split_once(' ')?;
    Some(MessageMac { key: MacKeyId::new(key), tag: tag.parse().ok()? })
}

/// Returns the decision that is posted about a hold of a call.
pub(super) fn find_posted<'a>(
    posted: &'a [PostedDecision],
    path: &CallPath,
    attempt: u32,
) -> Option<&'a PostedDecision> {
    posted.iter().find(|posted| posted.path == *path && posted.attempt == attempt)
}

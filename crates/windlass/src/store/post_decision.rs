//! Posting decisions about the calls of stored runs, from any process and without a lease.

use std::sync::Arc;

use futures_util::FutureExt;
use windlass_core::{
    authenticity::{ApproverKey, DecisionSignature, SignatureError, SignedDecision},
    canonical::Digest,
    decision::{Decision, DecisionScope, PendingCall},
    id::{CallPath, RunId},
    journal::{DecisionRecorded, JournalEntry},
};

use super::authentic::{PostedDecisions, authenticate_posted, find_posted, load_posted_decisions};
use super::open::{OpenRunError, load_paused};
use super::taken_decision::TakenDecisionWait;
use super::{ApproverSigner, PostedDecision, Store};
use crate::error::{DecisionError, StoreError, StoreErrorKind};
use crate::lost_secrets::is_secret_answer;
use crate::run::PausedRun;

/// An error that prevents posting a decision. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostDecisionError {
    /// The run could not be opened.
    #[error(transparent)]
    Open(#[from] OpenRunError),
    /// The decision is not valid.
    #[error(transparent)]
    Decide(#[from] DecisionError),
    /// An earlier decision about the call is taken: the call has started, or has its output.
    #[error(transparent)]
    AlreadyTaken(#[from] TakenDecision),
    /// The driver has just taken an earlier decision, or the store could not be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store has approvers, and the decision would not count.
    #[error("the decision would not count: {0}")]
    Signature(#[from] SignatureError),
}

impl PostDecisionError {
    /// Returns the error of the store, if the store and not the decision is the reason.
    pub fn store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Open(OpenRunError::Store(error)) | Self::Store(error) => Some(error),
            Self::Open(_) | Self::Decide(_) | Self::AlreadyTaken(_) | Self::Signature(_) => None,
        }
    }

    /// True if the same decision cannot be posted later, however often it is repeated.
    pub fn is_final(&self) -> bool {
        self.store_error().is_none_or(StoreError::is_final)
    }
}

/// A decision that is taken and cannot be corrected any more.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("call `{call}`: the decision of {} is taken and cannot be corrected: it was {}",
    .decided_by.as_deref().unwrap_or("somebody"), .decision.describe())]
pub struct TakenDecision {
    /// The call.
    pub call: CallPath,
    /// The decision.
    pub decision: Decision,
    /// Name of the person or policy that decided, if known.
    pub decided_by: Option<String>,
}

/// Attempts to post a decision while the run's driver writes records.
const MAX_POST_ATTEMPTS: u32 = 16;

/// Posts a decision about a call in the name of `by`. The decision is bound to the digest of the call in the journal. The
/// run's driver picks it up when only decisions are left to wait for; without a driver, the next recovery does.
///
/// A later decision replaces an earlier one until that one is taken: until the start of the call, or the settlement that
/// follows from the decision, is recorded. If a driver is about to record it, this waits for the record; if that driver
/// has died, its lease is ended and the decision is posted.
///
/// # Errors
///
/// Returns [`PostDecisionError::AlreadyTaken`] with the earlier decision if that one is taken.
pub async fn post_decision(
    store: &dyn Store,
    run: &RunId,
    call: impl Into<CallPath>,
    decision: Decision,
    reach: DecisionScope,
    by: impl Into<String>,
) -> Result<(), PostDecisionError> {
    let review = DecisionReview { decided_by: by.into(), displayed: None, attempt: None };
    post_reviewed_decision(store, run, call, decision, reach, review).await
}

/// The decider of a posted decision, and the hold that was displayed.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionReview {
    /// Name of the person or policy that decided.
    pub decided_by: String,
    /// Digest of the displayed text: see [`DecisionRecorded::displayed`].
    pub displayed: Option<Digest>,
    /// Number of the hold that was displayed: see [`windlass_core::decision::PendingCall::attempt`]. A decision about
    /// another hold of the call is refused.
    pub attempt: Option<u32>,
}

/// Posts a decision like [`post_decision`], with the digest of the text and the hold that were displayed.
///
/// # Errors
///
/// Returns [`PostDecisionError::AlreadyTaken`] with the earlier decision if that one is taken.
pub async fn post_reviewed_decision(
    store: &dyn Store,
    run: &RunId,
    call: impl Into<CallPath>,
    decision: Decision,
    reach: DecisionScope,
    review: DecisionReview,
) -> Result<(), PostDecisionError> {
    post_as(store, run, call.into(), decision, reach, review, PostSignature::Nobody).await
}

/// Posts a decision like [`post_reviewed_decision`], with the signature of an approver. The name that decides is the one
/// that the approver has in the store's [`ApproverPolicy`](super::ApproverPolicy).
///
/// # Errors
///
/// Returns [`PostDecisionError::Signature`] if the store has approvers and this is not one of them, or not by this name.
pub async fn post_signed_decision(
    store: &dyn Store,
    run: &RunId,
    call: impl Into<CallPath>,
    decision: Decision,
    reach: DecisionScope,
    review: DecisionReview,
    signer: &Arc<ApproverSigner>,
) -> Result<(), PostDecisionError> {
    post_as(store, run, call.into(), decision, reach, review, PostSignature::Key(signer)).await
}

/// Posts a decision like [`post_signed_decision`], with a signature that the approver has made elsewhere under the message
/// of [`prepare_decision`].
///
/// # Errors
///
/// Returns [`PostDecisionError::Signature`] with the reason if the signature does not count: it is of a stranger, of another
/// call, run, hold, decision, scope, name or display, or of an approver who does not decide about this call.
pub async fn post_decision_with_signature(
    store: &dyn Store,
    run: &RunId,
    call: impl Into<CallPath>,
    decision: Decision,
    reach: DecisionScope,
    review: DecisionReview,
    signature: DecisionSignature,
) -> Result<(), PostDecisionError> {
    post_as(store, run, call.into(), decision, reach, review, PostSignature::Elsewhere(&signature)).await
}

/// The signature of a decision that is posted.
#[derive(Clone, Copy)]
enum PostSignature<'a> {
    Nobody,
    Key(&'a Arc<ApproverSigner>),
    Elsewhere(&'a DecisionSignature),
}

/// A decision as it would be posted, for an approver who signs it elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct UnsignedDecision {
    /// The run.
    pub run: RunId,
    /// The call as it waits.
    pub call: PendingCall,
    /// The decision as the journal would have it, without a signature.
    pub decision: DecisionRecorded,
    /// The domain of the store's approvers: see [`ApproverSigner::with_domain`].
    pub domain: String,
}

impl UnsignedDecision {
    /// Returns the decision with everything that an approver signs.
    pub fn to_sign(&self) -> SignedDecision<'_> {
        let PendingCall { path, attempt, .. } = &self.call;
        SignedDecision { run: &self.run, path, attempt: *attempt, decision: &self.decision }
    }

    /// Returns the exact bytes that the holder of a key signs.
    pub fn message(&self, key: &ApproverKey) -> Vec<u8> {
        self.to_sign().message(&self.domain, key)
    }
}

/// Prepares a decision about a call for an approver who signs it elsewhere. Nothing is posted. The signature goes to
/// [`post_decision_with_signature`], with the same decision, scope and review.
///
/// # Errors
///
/// Returns an error if the decision could not be posted, and [`PostDecisionError::AlreadyTaken`] if one is taken.
pub async fn prepare_decision(
    store: &dyn Store,
    run: &RunId,
    call: impl Into<CallPath>,
    decision: Decision,
    reach: DecisionScope,
    review: DecisionReview,
) -> Result<UnsignedDecision, PostDecisionError> {
    let call = call.into();
    let mut paused = load_paused(store, run).await?;
    // Nobody has signed the decision yet.
    paused.set_approvers(None);
    paused.decide_as(review.decided_by);
    paused.display_as(review.displayed);
    let held = paused.pending_calls();
    let correctable = paused.correctable_call(&call).map(|correctable| correctable.pending);
    let taken = paused.taken_decision(&call);
    let Some(posted) = prepare_post(&mut paused, &call, decision, reach, SecretPassage::Refused)? else {
        return Err(taken.map_or_else(|| DecisionError::NotPending(call).into(), PostDecisionError::from));
    };
    if review.attempt.is_some_and(|attempt| attempt != posted.attempt) {
        return Err(DecisionError::NotPending(posted.path).into());
    }
    let held = held.into_iter().find(|held| held.path == posted.path).or(correctable);
    let Some(call) = held else { return Err(DecisionError::NotPending(posted.path).into()) };
    let domain = store.approvers().map_or_else(String::new, |approvers| approvers.domain().to_owned());
    let decision = DecisionRecorded { posted_revision: 0, ..posted.decision };
    Ok(UnsignedDecision { run: run.clone(), call, decision, domain })
}

async fn post_as(
    store: &dyn Store,
    run: &RunId,
    call: CallPath,
    decision: Decision,
    reach: DecisionScope,
    review: DecisionReview,
    signature: PostSignature<'_>,
) -> Result<(), PostDecisionError> {
    let mut attempts = 0;
    let mut taken_wait = None;
    loop {
        let mut paused = load_paused(store, run).await?;
        paused.decide_as(review.decided_by.clone());
        paused.display_as(review.displayed);
        match signature {
            PostSignature::Nobody => {}
            PostSignature::Key(signer) => paused.sign_with(Some(signer.clone())),
            PostSignature::Elsewhere(signature) => paused.attach_signature(signature.clone()),
        }
        let secrets = SecretPassage::of_store(store);
        let prepared = prepare_post(&mut paused, &call, decision.clone(), reach, secrets)?;
        let Some(posted) = prepared else { return Ok(()) };
        if review.attempt.is_some_and(|attempt| attempt != posted.attempt) {
            return Err(DecisionError::NotPending(posted.path).into());
        }
        let record_count = paused.record().records.len() as u64 - 1;
        let Some(posted) = authenticate_post(store, run, posted).await? else { return Ok(()) };
        attempts += 1;
        match store.post_decision(run, posted, record_count).await {
            // The driver has written in between: the journal tells whether the decision is taken.
            Err(error) if error.kind() == StoreErrorKind::Stale && attempts < MAX_POST_ATTEMPTS => {}
            // A driver is between taking the earlier decision and recording what follows from it, or has died there.
            Err(error) if error.kind() == StoreErrorKind::AlreadyDecided => {
                let wait = taken_wait.get_or_insert_with(TakenDecisionWait::new);
                wait.wait(store, run, error).boxed().await?;
            }
            Err(error) => return Err(error.into()),
            Ok(()) => return Ok(()),
        }
    }
}

/// Adds the MAC to a decision that is about to be posted, if the store has keys. Returns `None` if the same decision is
/// posted already.
async fn authenticate_post(
    store: &dyn Store,
    run: &RunId,
    posted: PostedDecision,
) -> Result<Option<PostedDecision>, StoreError> {
    let Some(keys) = store.mac_keys() else { return Ok(Some(posted)) };
    let PostedDecisions { authentic, refused } = load_posted_decisions(store, run).await?;
    let known = find_posted(&authentic, &posted.path, posted.attempt);
    if known.is_some_and(|known| known.is_repeated_by(&posted)) {
        return Ok(None);
    }
    // A forged decision is replaced, too.
    let forged =
        refused.iter().map(|refused| &refused.posted).find(|forged| forged.answers_same_question(&posted));
    let next = known.or(forged).map_or(0, |known| known.decision.posted_revision).saturating_add(1);
    let revision = next.max(posted.decision.posted_revision);
    Ok(Some(authenticate_posted(keys, run, posted, revision)))
}

/// Error for an edit that would put a secret into the store.
const SECRET_EDIT: &str = "secret arguments cannot be edited through a store; leave them as `[secret]`, or decide where the run is driven";

/// Error for an answer that would put a secret into the store.
const SECRET_ANSWER: &str = "secret arguments cannot be given through a store that is not encrypted, or with a signature; answer where the run is driven";

/// The way of secrets through a store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SecretPassage {
    Refused,
    /// The store seals them.
    Sealed,
}

impl SecretPassage {
    fn of_store(store: &dyn Store) -> Self {
        if store.seals_values() { Self::Sealed } else { Self::Refused }
    }
}

/// Makes the decision on the loaded run, and returns it as one to post; `None` if the same one is taken.
fn prepare_post(
    paused: &mut PausedRun,
    call: &CallPath,
    decision: Decision,
    reach: DecisionScope,
    secrets: SecretPassage,
) -> Result<Option<PostedDecision>, PostDecisionError> {
    let taken = paused.taken_decision(call);
    if taken.as_ref().is_some_and(|taken| taken.decision == decision) {
        return Ok(None);
    }
    let asked = paused.pending_calls();
    let corrected = paused.correctable_call(call);
    let recorded_revision = corrected
        .as_ref()
        .filter(|corrected| corrected.decision != decision)
        .map_or(0, |corrected| corrected.posted_revision);
    let edited = match &decision {
        Decision::ApproveEdited { arguments } => Some(arguments.clone()),
        _ => None,
    };
    let secret_answer = match &decision {
        Decision::Answer { value } if is_secret_answer(value) => Some(decision.clone()),
        _ => None,
    };
    let decided = paused.decide(call.clone(), decision, reach);
    let made = paused.record().records.later_records().last();
    let (Ok(()), Some(made)) = (&decided, made) else {
        return match (decided, taken) {
            (_, Some(taken)) => Err(taken.into()),
            (Err(DecisionError::Signature(reason)), None) => Err(reason.into()),
            (Err(error), None) => Err(error.into()),
            (Ok(()), None) => Err(DecisionError::NotPending(call.clone()).into()),
        };
    };
    let JournalEntry::DecisionRecorded(decided) = &made.entry else {
        return Err(DecisionError::NotPending(call.clone()).into());
    };
    if let (Some(edited), Decision::ApproveEdited { arguments }) = (edited, &decided.decision)
        && *arguments != edited
    {
        // The store would keep the secret, or the driver would run the call with the old one.
        return Err(DecisionError::InvalidArguments(SECRET_EDIT.to_owned()).into());
    }
    if secret_answer.is_some() && (secrets == SecretPassage::Refused || decided.signature.is_some()) {
        return Err(DecisionError::InvalidArguments(SECRET_ANSWER.to_owned()).into());
    }
    let path = CallPath::new(&made.path, decided.call.clone());
    let held = asked.into_iter().find(|pending| pending.path == path);
    let Some(held) = held.or(corrected.map(|corrected| corrected.pending)) else {
        return match taken {
            Some(taken) => Err(taken.into()),
            None => Err(DecisionError::NotPending(path).into()),
        };
    };
    if held.is_expired(made.at) {
        return Err(DecisionError::Expired(path).into());
    }
    let mut decision = DecisionRecorded { posted_revision: recorded_revision, ..decided.clone() };
    if let Some(answer) = secret_answer {
        // The driver gets the secrets themselves, and records placeholders.
        decision.decision = answer;
    }
    Ok(Some(PostedDecision { path, attempt: held.attempt, decision, posted_at: made.at, mac: None }))
}

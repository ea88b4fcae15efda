//! Approvers: people whose decisions count only with their own signature (Ed25519).
//!
//! A MAC says that a process with the store's key wrote a decision. A signature says which person made it: the private
//! key stays with the approver, and neither the driver nor the store has it.
//!
//! Invariant: in a store with approvers, no decision other than a rejection takes effect unless an approver has signed
//! it, for this hold of this call in this run, in his or her own name. If there are rules, it is an approver who decides
//! about this call.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use windlass_core::{
    authenticity::{ApproverKey, DecisionSignature, SignatureError, SignedDecision},
    canonical::Digest,
    decision::{Decision, PendingCall},
    id::{CallPath, RunId},
    journal::{DecisionRecorded, JournalEntry, JournalFormatError, JournalRecord},
    run::{ReplayedRun, Run},
};

const KEY_PREFIX: &str = "ed25519:";

/// The private key of an approver.
pub struct ApproverSigner {
    domain: Arc<str>,
    pair: Ed25519KeyPair,
    key: ApproverKey,
}

/// Shows the public key and not the private one.
impl fmt::Debug for ApproverSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApproverSigner").field("key", &self.key).finish_non_exhaustive()
    }
}

impl ApproverSigner {
    /// Creates the signer from a random seed. Returns `None` if the seed cannot be used.
    pub fn from_seed(seed: &[u8; 32]) -> Option<Self> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).ok()?;
        let public: [u8; 32] = pair.public_key().as_ref().try_into().ok()?;
        let key = ApproverKey::new(format!("{KEY_PREFIX}{}", Digest::from_bytes(public)));
        Some(Self { domain: "".into(), pair, key })
    }

    /// Sets the domain, such as `production`. A signature of one domain does not count in another.
    #[must_use]
    pub fn with_domain(mut self, domain: impl Into<Arc<str>>) -> Self {
        self.domain = domain.into();
        self
    }

    /// Returns the public key, for an [`ApproverPolicy`].
    pub fn key(&self) -> &ApproverKey {
        &self.key
    }

    /// Signs a decision.
    pub fn sign(&self, decision: &SignedDecision<'_>) -> DecisionSignature {
        let signature = self.pair.sign(&decision.message(&self.domain, &self.key));
        let value = signature.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        DecisionSignature { key: self.key.clone(), value }
    }
}

/// Rules that say which approvers decide about a call.
///
/// A rule is evaluated when a decision is made, when it takes effect, and whenever the journal is read.
pub trait ApproverRules: fmt::Debug + Send + Sync {
    /// Returns the names of the approvers who decide about a call now; `None` if every approver does. For an approval with
    /// edited arguments the call has those.
    fn deciders(&self, call: &PendingCall) -> Option<BTreeSet<String>>;

    /// Returns the names of the approvers whose recorded decisions about a call count; `None` if those of every approver do.
    /// It must not depend on anything but the call, because a journal must be the same at every reading, and has everybody
    /// whom [`ApproverRules::deciders`] ever names for the call. Default: the same names.
    fn recorded_deciders(&self, call: &PendingCall) -> Option<BTreeSet<String>> {
        self.deciders(call)
    }
}

/// The time for which rules name the approvers of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuleTime {
    /// The decision is made or takes effect.
    Now,
    /// The decision is in the journal.
    Recorded,
}

/// The approvers whose signatures count, each with a name.
#[derive(Clone, Debug, Default)]
pub struct ApproverPolicy {
    domain: Arc<str>,
    names: BTreeMap<ApproverKey, String>,
    rules: Option<Arc<dyn ApproverRules>>,
}

/// Two policies are equal if they list the same approvers and share their rules.
impl PartialEq for ApproverPolicy {
    fn eq(&self, other: &Self) -> bool {
        let has_same_rules = match (&self.rules, &other.rules) {
            (None, None) => true,
            (Some(own), Some(rules)) => Arc::ptr_eq(own, rules),
            (None, Some(_)) | (Some(_), None) => false,
        };
        self.domain == other.domain && self.names == other.names && has_same_rules
    }
}

impl Eq for ApproverPolicy {}

impl ApproverPolicy {
    /// Creates a policy without approvers: nothing is approved.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an approver. Decisions in this name count if they are signed with the key. Keep former approvers as long as
    /// runs have decisions of theirs.
    #[must_use]
    pub fn approver(mut self, name: impl Into<String>, key: ApproverKey) -> Self {
        self.names.insert(key, name.into());
        self
    }

    /// Sets the domain: see [`ApproverSigner::with_domain`].
    #[must_use]
    pub fn with_domain(mut self, domain: impl Into<Arc<str>>) -> Self {
        self.domain = domain.into();
        self
    }

    /// Sets the rules that say which approvers decide about a call. Without them every approver decides about every call.
    #[must_use]
    pub fn with_rules(mut self, rules: Arc<dyn ApproverRules>) -> Self {
        self.rules = Some(rules);
        self
    }

    /// Returns the domain: see [`ApproverSigner::with_domain`].
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Returns true if there are rules that say which approvers decide about a call.
    pub(super) fn has_rules(&self) -> bool {
        self.rules.is_some()
    }

    /// Returns the names of the approvers who decide about a call, in order and each once.
    pub fn deciders(&self, call: &PendingCall) -> Vec<&str> {
        self.deciders_at(call, RuleTime::Now)
    }

    fn deciders_at(&self, call: &PendingCall, time: RuleTime) -> Vec<&str> {
        let allowed = self.rules.as_ref().and_then(|rules| match time {
            RuleTime::Now => rules.deciders(call),
            RuleTime::Recorded => rules.recorded_deciders(call),
        });
        self.names().filter(|name| allowed.as_ref().is_none_or(|allowed| allowed.contains(*name))).collect()
    }

    /// Returns true if both policies list the same keys by the same names, whatever their rules say.
    pub fn has_same_keys(&self, other: &Self) -> bool {
        self.names == other.names
    }

    /// Returns the name of the approver with this key.
    pub fn name_of(&self, key: &ApproverKey) -> Option<&str> {
        self.names.get(key).map(String::as_str)
    }

    /// Returns the names of the approvers, in order and each once.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.values().map(String::as_str).collect::<BTreeSet<_>>().into_iter()
    }

    /// Verifies that an approver has signed a decision in his or her own name. A rejection needs no signature, because
    /// nothing runs after it; if it has one, that must be valid.
    ///
    /// # Errors
    ///
    /// Returns the reason why the decision does not count.
    pub fn verify(&self, signed: &SignedDecision<'_>) -> Result<(), SignatureError> {
        let DecisionRecorded { decision, decided_by, signature, .. } = signed.decision;
        let Some(DecisionSignature { key, value }) = signature.as_deref() else {
            let is_rejection = matches!(decision, Decision::Reject { .. });
            return if is_rejection { Ok(()) } else { Err(SignatureError::Missing) };
        };
        let name = self.names.get(key).ok_or_else(|| SignatureError::UnknownKey(key.clone()))?;
        if decided_by.as_ref() != Some(name) {
            return Err(SignatureError::OtherName(name.clone()));
        }
        let public = key.as_str().strip_prefix(KEY_PREFIX).and_then(|public| public.parse::<Digest>().ok());
        let is_valid = public.zip(decode_hex(value)).is_some_and(|(public, value)| {
            let public = UnparsedPublicKey::new(&ED25519, public.as_bytes());
            public.verify(&signed.message(&self.domain, key), &value).is_ok()
        });
        if is_valid { Ok(()) } else { Err(SignatureError::Mismatch(name.clone())) }
    }

    /// Verifies a decision that is made or takes effect now, like [`ApproverPolicy::verify`], and that the approver decides
    /// about the call.
    ///
    /// # Errors
    ///
    /// Returns the reason why the decision does not count.
    pub fn verify_about(
        &self,
        signed: &SignedDecision<'_>,
        call: &PendingCall,
    ) -> Result<(), SignatureError> {
        self.verify_at(signed, call, RuleTime::Now)
    }

    fn verify_at(
        &self,
        signed: &SignedDecision<'_>,
        call: &PendingCall,
        time: RuleTime,
    ) -> Result<(), SignatureError> {
        self.verify(signed)?;
        let DecisionRecorded { decision, decided_by, .. } = signed.decision;
        let edited = match decision {
            Decision::Reject { .. } => return Ok(()),
            Decision::ApproveEdited { arguments } => {
                Some(PendingCall { arguments: arguments.clone(), ..call.clone() })
            }
            Decision::Approve
            | Decision::ConfirmExecuted { .. }
            | Decision::ConfirmNotExecuted
            | Decision::OutcomeUnknown
            | Decision::Answer { .. } => None,
        };
        let (name, deciders) =
            (decided_by.clone().unwrap_or_default(), self.deciders_at(edited.as_ref().unwrap_or(call), time));
        if deciders.contains(&name.as_str()) {
            return Ok(());
        }
        let deciders = deciders.into_iter().map(str::to_owned).collect();
        Err(SignatureError::OtherDeciders { name, deciders })
    }

    /// Verifies a recorded decision about a call of a run: with its rules if the run holds the call.
    fn verify_recorded(
        &self,
        signed: &SignedDecision<'_>,
        held: Option<&PendingCall>,
    ) -> Result<(), SignatureError> {
        match held {
            Some(call) => self.verify_at(signed, call, RuleTime::Recorded),
            None => self.verify(signed),
        }
    }

    /// Verifies the decisions of a journal from its first record on.
    ///
    /// # Errors
    ///
    /// Returns [`JournalFormatError::ForgedDecision`] for the first decision that does not count.
    pub fn verify_records(&self, run: &RunId, records: &[JournalRecord]) -> Result<(), JournalFormatError> {
        let Some((first, later)) = records.split_first() else { return Ok(()) };
        // A journal that cannot be replayed grants nothing, and whoever reads it reports that.
        let Ok(mut replay) = Run::replay(std::slice::from_ref(first)) else { return Ok(()) };
        for record in later {
            let forged = |reason: SignatureError| JournalFormatError::forged_decision(record, reason.into());
            let mut is_about_unknown_call = false;
            if let JournalEntry::DecisionRecorded(decision) = &record.entry {
                let path = CallPath::new(&record.path, decision.call.clone());
                let attempt = held_attempt(&replay, &path);
                let held = if self.has_rules() { held_call(&replay.run, &path) } else { None };
                self.verify_recorded(&SignedDecision { run, path: &path, attempt, decision }, held.as_ref())
                    .map_err(forged)?;
                let is_rejection = matches!(decision.decision, Decision::Reject { .. });
                is_about_unknown_call = self.has_rules() && held.is_none() && !is_rejection;
            }
            if replay.apply_record(record).is_err() {
                return Ok(());
            }
            if is_about_unknown_call {
                return Err(forged(SignatureError::UnknownCall));
            }
        }
        Ok(())
    }
}

/// Returns the number of the hold that a decision about a call is about.
fn held_attempt(replay: &ReplayedRun, path: &CallPath) -> u32 {
    let run = replay.run.at_path(path.parent_calls());
    run.and_then(|run| run.untaken_hold(path.call())).map_or(0, |hold| hold.attempt)
}

/// Returns a call of a run that waits, or whose decision can be corrected.
pub(crate) fn held_call(run: &Run, path: &CallPath) -> Option<PendingCall> {
    let pending = run.pending_calls().into_iter().find(|pending| pending.path == *path);
    pending.or_else(|| {
        let run = run.at_path(path.parent_calls())?;
        run.correctable_call(path.call()).map(|correctable| correctable.pending)
    })
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => u8::try_from(digit(*high)? * 16 + digit(*low)?).ok(),
        _ => None,
    });
    pairs.collect()
}

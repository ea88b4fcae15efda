//! Approvers: people whose decisions count only with their own signature (Ed25519).
//!
//! A MAC says that a process with the store's key wrote a decision. A signature says which person made it: the private
//! key stays with the approver, and neither the driver nor the store has it.
//!
//! Invariant: in a store with approvers, no decision other than a rejection takes effect unless an approver has signed
//! it, for this hold of this call in this run, in his or her own name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use windlass_core::{
    authenticity::{ApproverKey, DecisionSignature, SignatureError, SignedDecision},
    canonical::Digest,
    decision::Decision,
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

/// The approvers whose signatures count, each with a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApproverPolicy {
    domain: Arc<str>,
    names: BTreeMap<ApproverKey, String>,
}

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
            if let JournalEntry::DecisionRecorded(decision) = &record.entry {
                let path = CallPath::new(&record.path, decision.call.clone());
                let attempt = held_attempt(&replay, &path);
                self.verify(&SignedDecision { run, path: &path, attempt, decision })
                    .map_err(|reason| JournalFormatError::forged_decision(record, reason.into()))?;
            }
            if replay.apply_record(record).is_err() {
                return Ok(());
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

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => u8::try_from(digit(*high)? * 16 + digit(*low)?).ok(),
        _ => None,
    });
    pairs.collect()
}

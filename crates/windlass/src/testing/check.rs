//! Assertions of the store suites.

use std::fmt::Debug;
use std::time::Duration;

use windlass_core::{
    canonical::Digest,
    id::{AgentName, RunId, Timestamp},
    item::OutputContent,
    journal::{HashChain, JournalEntry, JournalLine, JournalRecord},
};

use crate::error::{StoreError, StoreErrorKind};
use crate::store::{Lease, LeaseClaim, Store, StoredLease};

/// A named check.
#[derive(Clone, Copy)]
pub(super) struct StoreCheck(pub(super) &'static str);

impl StoreCheck {
    /// Asserts that the operation succeeded, and returns its value.
    #[track_caller]
    pub(super) fn expect_ok<T>(self, what: &str, result: Result<T, StoreError>) -> T {
        match result {
            Ok(value) => value,
            Err(error) => panic!("check `{}`: {what} failed: {error} ({:?})", self.0, error.kind()),
        }
    }

    /// Asserts that the operation failed with this kind of error.
    #[track_caller]
    pub(super) fn expect_error<T: Debug>(
        self,
        what: &str,
        result: Result<T, StoreError>,
        kind: StoreErrorKind,
    ) {
        match result {
            Ok(value) => {
                panic!("check `{}`: {what} should be refused ({kind:?}), and gave {value:?}", self.0)
            }
            Err(error) if error.kind() != kind => {
                panic!(
                    "check `{}`: {what} should be refused as {kind:?}, and was as {:?}: {error}",
                    self.0,
                    error.kind()
                )
            }
            Err(_) => {}
        }
    }

    /// Asserts that both values are equal.
    #[track_caller]
    pub(super) fn expect_equal<T: PartialEq + Debug>(self, what: &str, found: T, expected: T) {
        assert!(found == expected, "check `{}`: {what}:\n   found {found:?}\nexpected {expected:?}", self.0);
    }

    /// Creates a run that is leased to `owner` at time 1,000.
    pub(super) async fn create_run<S: Store>(self, store: &S, run: &str, owner: &str) -> Lease {
        let made = store
            .create_run(&RunId::from(run), &AgentName::from("agent"), lease_claim(owner, 1_000), Vec::new())
            .await;
        self.expect_ok("making a run", made)
    }

    /// Takes a run over from its owner, whose lease was observed as it is.
    pub(super) async fn take_over<S: Store>(self, store: &S, lease: &Lease, owner: &str) -> Lease {
        let seen = self.expect_ok("loading the lease", store.load_lease(&lease.run).await);
        let taken = store.acquire_lease(&lease.run, lease_claim(owner, 1_000), seen.as_ref()).await;
        self.expect_ok("taking over", taken)
    }
}

/// Duration of the leases in the suites.
const LEASE_DURATION: Duration = Duration::from_secs(1);

/// Returns a claim at the time `now`.
pub(super) fn lease_claim(owner: &str, now: u64) -> LeaseClaim<'_> {
    LeaseClaim { owner, now: Timestamp(now), duration: LEASE_DURATION }
}

/// Returns the stored lease of a claim that was renewed at `renewed_at`.
pub(super) fn stored_lease(owner: &str, epoch: u64, beat: u64, renewed_at: u64) -> StoredLease {
    let renewed_at = Timestamp(renewed_at);
    StoredLease { owner: owner.to_owned(), epoch, beat, duration: LEASE_DURATION, renewed_at }
}

/// Returns the first lines of a journal.
pub(super) fn journal_lines(count: u64) -> Vec<JournalLine> {
    let mut chain = HashChain::default();
    let record = |seq| JournalRecord {
        seq,
        at: Timestamp(1_000 + seq),
        path: Vec::new(),
        entry: JournalEntry::TurnContinued,
    };
    (0..count).map(|seq| chain.append(&record(seq))).collect()
}

/// Returns an output with several parts.
pub(super) fn rich_output(text: &str) -> OutputContent {
    OutputContent::Parts(vec![
        windlass_core::item::ContentPart::text(text),
        windlass_core::item::ContentPart::text("\u{0}ü\n\"🧵\""),
    ])
}

pub(super) fn sample_digest(text: &str) -> Digest {
    Digest::of_text(text)
}

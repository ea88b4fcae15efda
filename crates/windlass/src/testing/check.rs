//! How a check says what was wrong.

use std::fmt::Debug;

use windlass_core::{AgentName, Chain, Digest, Entry, Line, OutputContent, Record, RunId, Timestamp};

use crate::error::{StoreError, StoreErrorKind};
use crate::store::{Lease, LeaseClaim, Store};

/// One check, by name.
#[derive(Clone, Copy)]
pub(super) struct Check(pub(super) &'static str);

impl Check {
    /// What was asked for must have been done.
    #[track_caller]
    pub(super) fn done<T>(self, what: &str, result: Result<T, StoreError>) -> T {
        match result {
            Ok(value) => value,
            Err(error) => panic!("check `{}`: {what} failed: {error} ({:?})", self.0, error.kind()),
        }
    }

    /// What was asked for must have been refused, for this reason.
    #[track_caller]
    pub(super) fn refused<T: Debug>(self, what: &str, result: Result<T, StoreError>, kind: StoreErrorKind) {
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

    /// Both must be the same.
    #[track_caller]
    pub(super) fn same<T: PartialEq + Debug>(self, what: &str, found: T, expected: T) {
        assert!(found == expected, "check `{}`: {what}:\n   found {found:?}\nexpected {expected:?}", self.0);
    }

    /// A run that `owner` owns from the time 1,000 until 2,000.
    pub(super) async fn run<S: Store>(self, store: &S, run: &str, owner: &str) -> Lease {
        let made = store.create(&RunId::from(run), &AgentName::from("agent"), claim(owner, 1_000)).await;
        self.done("making a run", made)
    }
}

/// A claim from this time on, for a second.
pub(super) fn claim(owner: &str, now: u64) -> LeaseClaim<'_> {
    LeaseClaim { owner, now: Timestamp(now), until: Timestamp(now + 1_000) }
}

/// The first lines of a journal.
pub(super) fn lines(count: u64) -> Vec<Line> {
    let mut chain = Chain::default();
    let record = |seq| Record { seq, at: Timestamp(1_000 + seq), path: Vec::new(), entry: Entry::WentOn };
    (0..count).map(|seq| chain.add(&record(seq))).collect()
}

/// An output with more in it than plain text.
pub(super) fn output(text: &str) -> OutputContent {
    OutputContent::Parts(vec![
        windlass_core::Content::text(text),
        windlass_core::Content::text("\u{0}ü\n\"🧵\""),
    ])
}

pub(super) fn digest(text: &str) -> Digest {
    Digest::of(text)
}

//! The contract of a store for posted decisions.

use std::future::Future;

use windlass_core::{
    decision::{Decision, DecisionScope},
    id::{CallPath, Timestamp},
    journal::DecisionRecorded,
};

use super::check::{StoreCheck, sample_digest};
use crate::error::StoreErrorKind;
use crate::store::{PostedDecision, Store};

pub(super) async fn check_decisions<S, F, Fut>(make: &F)
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    let name = "a decision is corrected until it is taken";
    a_decision_is_corrected_until_it_is_taken(StoreCheck(name), make().await).await;
    let name = "a taken decision is open again if nothing was recorded";
    a_taken_decision_is_open_again_if_nothing_was_recorded(StoreCheck(name), make().await).await;
    decisions_are_in_order(StoreCheck("posted decisions are in order"), make().await).await;
}

pub(super) fn posted_decision(path: &str, shown: &str, decision: Decision, by: &str) -> PostedDecision {
    let path = CallPath::from(path);
    let call = path.call().clone();
    let by = Some(by.to_owned());
    PostedDecision {
        path,
        attempt: 0,
        decision: DecisionRecorded {
            call,
            digest: sample_digest(shown),
            decision,
            scope: DecisionScope::ThisCall,
            decided_by: by,
            displayed: None,
            posted_revision: 0,
            signature: None,
            mac: None,
        },
        posted_at: Timestamp(2_000),
        mac: None,
    }
}

/// Returns a posted decision as the store keeps it.
fn with_revision(mut posted: PostedDecision, revision: u32) -> PostedDecision {
    posted.decision.posted_revision = revision;
    posted
}

async fn a_decision_is_corrected_until_it_is_taken<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let run = &lease.run;
    let call = CallPath::from("c1");
    let yes = posted_decision("c1", "shown", Decision::Approve, "bea");
    check.expect_ok("a decision", store.post_decision(run, yes.clone(), 1).await);
    let again = posted_decision("c1", "shown", Decision::Approve, "cem");
    check.expect_ok("the same by somebody else", store.post_decision(run, again, 1).await);
    let no = posted_decision("c1", "shown", Decision::Reject { message: None }, "cem");
    check.expect_ok("another", store.post_decision(run, no.clone(), 1).await);
    let later = PostedDecision { attempt: 1, ..no.clone() };
    check.expect_ok("one about a later question", store.post_decision(run, later.clone(), 1).await);
    let inner = PostedDecision { path: "outer/c1".into(), ..no.clone() };
    check.expect_ok(
        "one about the call of that name inside another",
        store.post_decision(run, inner.clone(), 1).await,
    );
    let corrected = with_revision(no.clone(), 2);
    let expected = vec![corrected.clone(), with_revision(later, 1), with_revision(inner, 1)];
    let posted = check.expect_ok("reading", store.posted_decisions(run).await);
    check.expect_equal("what was posted", posted, expected.clone());

    let taken = check.expect_ok("taking", store.take_decision(&lease, &call, 0).await);
    check.expect_equal("the decision", taken, Some(corrected.clone()));
    let refused = store.post_decision(run, yes.clone(), 1).await;
    let message = refused.as_ref().err().map(ToString::to_string).unwrap_or_default();
    check.expect_error("a correction of it", refused, StoreErrorKind::AlreadyDecided);
    let names_first = message.contains("cem") && message.contains("a rejection");
    check.expect_equal("that the error names the decision", (names_first, message.clone()), (true, message));
    check.expect_ok("the same once more", store.post_decision(run, no.clone(), 1).await);
    let posted = check.expect_ok("reading", store.posted_decisions(run).await);
    check.expect_equal("what was posted", posted, expected);
    let nothing = check.expect_ok("taking", store.take_decision(&lease, &"c2".into(), 0).await);
    check.expect_equal("a decision that nobody posted", nothing, None);

    let unknown = store.post_decision(&"other".into(), yes, 1).await;
    check.expect_error("a decision for an unknown run", unknown, StoreErrorKind::RunNotFound);
    check.expect_equal(
        "what it has",
        check.expect_ok("reading", store.posted_decisions(&"other".into()).await),
        Vec::new(),
    );
}

async fn a_taken_decision_is_open_again_if_nothing_was_recorded<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let run = &lease.run;
    let call = CallPath::from("c1");
    let yes = posted_decision("c1", "shown", Decision::Approve, "bea");
    let no = posted_decision("c1", "shown", Decision::Reject { message: None }, "cem");
    check.expect_ok("a decision", store.post_decision(run, yes.clone(), 1).await);
    check.expect_ok("taking", store.take_decision(&lease, &call, 0).await);
    check.expect_ok("releasing", store.release_lease(&lease).await);
    let count = check.expect_ok("reading", store.load_journal(run, 0).await).len() as u64;
    let stale = store.post_decision(run, no.clone(), count + 1).await;
    check.expect_error("a correction by a reader of another journal", stale, StoreErrorKind::Stale);
    check.expect_ok("a correction", store.post_decision(run, no.clone(), count).await);
    let next = check.take_over(&store, &lease, "dee").await;
    let fenced = store.take_decision(&lease, &call, 0).await;
    check.expect_error("taking with the old lease", fenced, StoreErrorKind::Fenced);
    let taken = check.expect_ok("taking", store.take_decision(&next, &call, 0).await);
    check.expect_equal("the decision", taken, Some(with_revision(no, 2)));
    let refused = store.post_decision(run, yes, count).await;
    check.expect_error("a correction of it", refused, StoreErrorKind::AlreadyDecided);
}

async fn decisions_are_in_order<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let decisions = [
        posted_decision("z", "1", Decision::ApproveEdited { arguments: "{\"a\":1}".to_owned() }, "bea"),
        posted_decision("a", "2", Decision::Reject { message: Some("too dear".to_owned()) }, "bea"),
        posted_decision("m", "3", Decision::ConfirmExecuted { output: "done".into() }, "bea"),
        posted_decision("b/c/d", "4", Decision::OutcomeUnknown, "bea"),
    ];
    for decision in &decisions {
        check.expect_ok("a decision", store.post_decision(&lease.run, decision.clone(), 1).await);
    }
    check.expect_equal(
        "what was posted",
        check.expect_ok("reading", store.posted_decisions(&lease.run).await),
        decisions.map(|posted| with_revision(posted, 1)).to_vec(),
    );
}

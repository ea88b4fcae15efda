//! The contract of a store for runs, leases, journal lines, posted decisions and artefacts.

use std::future::Future;

use futures_util::future::{join, join_all};
use windlass_core::{
    decision::{Decision, DecisionScope},
    id::{AgentName, CallPath, RunId, Timestamp},
    journal::{DecisionRecorded, JournalLine},
};

use super::check::{StoreCheck, journal_lines, lease_claim, sample_digest};
use crate::error::StoreErrorKind;
use crate::store::{Durability, Lease, PostedDecision, RunStatus, Store, StoredRun, StoredSnapshot};

pub(super) async fn check_runs<S, F, Fut>(make: &F)
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    a_new_run_is_listed(StoreCheck("a new run is listed"), make().await).await;
    a_run_is_made_once(StoreCheck("a run is made once"), make().await).await;
    the_newest_run_is_first(StoreCheck("the newest run is first"), make().await).await;
    a_lease_keeps_others_out(StoreCheck("a lease keeps others out"), make().await).await;
    a_lease_can_be_renewed(StoreCheck("a lease can be renewed"), make().await).await;
    a_released_run_is_free(StoreCheck("a released run is free"), make().await).await;
    one_of_many_takes_over(StoreCheck("one of many takes over"), make().await).await;
    a_late_owner_is_refused(StoreCheck("a late owner is refused"), make().await).await;
    lines_come_back(StoreCheck("lines come back"), make().await).await;
    lines_leave_no_gap(StoreCheck("lines leave no gap"), make().await).await;
    lines_are_all_or_none(StoreCheck("lines are all or none"), make().await).await;
    calls_are_in_order(StoreCheck("lines are in the order of the calls"), make().await).await;
    a_dropped_future_writes(StoreCheck("a dropped future writes all the same"), make().await).await;
    later_lines_can_be_read(StoreCheck("lines for later can be read at once"), make().await).await;
    runs_are_apart(StoreCheck("runs are apart"), make().await).await;
    a_mark_is_listed(StoreCheck("a mark is listed"), make().await).await;
    a_snapshot_is_the_last(StoreCheck("a snapshot is the last that was kept"), make().await).await;
    a_decision_is_posted_once(StoreCheck("a decision is posted once"), make().await).await;
    decisions_are_in_order(StoreCheck("posted decisions are in order"), make().await).await;
    artefacts_are_kept(StoreCheck("artefacts are kept"), make().await).await;
}

async fn append_line<S: Store>(
    store: &S,
    lease: &Lease,
    at: u64,
    lines: Vec<JournalLine>,
) -> Result<(), crate::error::StoreError> {
    store.append_journal(lease, at, lines, Durability::Sync).await
}

async fn a_new_run_is_listed<S: Store>(check: StoreCheck, store: S) {
    check.expect_equal(
        "the runs of an empty store",
        check.expect_ok("listing", store.list_runs().await),
        Vec::new(),
    );
    let lease = check.create_run(&store, "run", "ann").await;
    let expected = Lease { run: "run".into(), owner: "ann".to_owned(), epoch: 1 };
    check.expect_equal("the lease", lease, expected);
    let listed = StoredRun {
        run: "run".into(),
        agent: "agent".into(),
        status: RunStatus::Running,
        record_count: 0,
        owner: Some(("ann".to_owned(), Timestamp(2_000))),
        created_at: Timestamp(1_000),
        updated_at: Timestamp(1_000),
    };
    check.expect_equal("the list", check.expect_ok("listing", store.list_runs().await), vec![listed]);
}

async fn a_run_is_made_once<S: Store>(check: StoreCheck, store: S) {
    let (run, agent) = (RunId::from("run"), AgentName::from("agent"));
    let made = join_all((0..8).map(|_| store.create_run(&run, &agent, lease_claim("ann", 1_000)))).await;
    check.expect_equal("how many of eight made it", made.iter().filter(|made| made.is_ok()).count(), 1);
    for refused in made.into_iter().filter(Result::is_err) {
        check.expect_error("making it again", refused, StoreErrorKind::AlreadyExists);
    }
    let late = store.create_run(&run, &agent, lease_claim("bea", 9_000)).await;
    check.expect_error("making it after its lease ran out", late, StoreErrorKind::AlreadyExists);
}

async fn the_newest_run_is_first<S: Store>(check: StoreCheck, store: S) {
    let agent = AgentName::from("agent");
    for (name, at) in [("b", 2_000), ("old", 1_000), ("a", 2_000), ("new", 3_000)] {
        check.expect_ok("making a run", store.create_run(&name.into(), &agent, lease_claim("ann", at)).await);
    }
    let names: Vec<_> =
        check.expect_ok("listing", store.list_runs().await).into_iter().map(|run| run.run).collect();
    check.expect_equal("the list", names, ["new", "b", "a", "old"].map(RunId::from).to_vec());
}

async fn a_lease_keeps_others_out<S: Store>(check: StoreCheck, store: S) {
    let run = RunId::from("run");
    check.expect_error(
        "taking an unknown run",
        store.acquire_lease(&run, lease_claim("ann", 1_000)).await,
        StoreErrorKind::RunNotFound,
    );
    check.create_run(&store, "run", "ann").await;
    let early = store.acquire_lease(&run, lease_claim("bea", 1_999)).await;
    check.expect_error("taking it while it is owned", early, StoreErrorKind::LeaseHeld);
    let again =
        check.expect_ok("taking one's own", store.acquire_lease(&run, lease_claim("ann", 1_500)).await);
    check.expect_equal("the epoch after taking one's own", again.epoch, 2);
    let taken = check.expect_ok(
        "taking it when the lease has run out",
        store.acquire_lease(&run, lease_claim("bea", 2_500)).await,
    );
    check.expect_equal("the lease", taken, Lease { run, owner: "bea".to_owned(), epoch: 3 });
    let listed = check.expect_ok("listing", store.list_runs().await);
    check.expect_equal(
        "the owner in the list",
        listed[0].owner.clone(),
        Some(("bea".to_owned(), Timestamp(3_500))),
    );
}

async fn a_lease_can_be_renewed<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    check.expect_ok("renewing", store.renew_lease(&lease, Timestamp(5_000)).await);
    let early = store.acquire_lease(&lease.run, lease_claim("bea", 4_999)).await;
    check.expect_error("taking it while it is owned", early, StoreErrorKind::LeaseHeld);
    check.expect_ok(
        "taking it when the lease has run out",
        store.acquire_lease(&lease.run, lease_claim("bea", 5_000)).await,
    );
    let unknown = Lease { run: "other".into(), ..lease };
    check.expect_error(
        "renewing an unknown run",
        store.renew_lease(&unknown, Timestamp(9)).await,
        StoreErrorKind::RunNotFound,
    );
}

async fn a_released_run_is_free<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    check.expect_ok("giving it back", store.release_lease(&lease).await);
    check.expect_ok("giving it back again", store.release_lease(&lease).await);
    check.expect_equal(
        "the owner in the list",
        check.expect_ok("listing", store.list_runs().await)[0].owner.clone(),
        None,
    );
    let taken = check
        .expect_ok("taking it at once", store.acquire_lease(&lease.run, lease_claim("bea", 1_001)).await);
    check.expect_equal("the epoch", taken.epoch, 2);
    check.expect_ok("giving back what was taken over", store.release_lease(&lease).await);
    let third = store.acquire_lease(&lease.run, lease_claim("cem", 1_002)).await;
    check.expect_error("taking what the second owner has", third, StoreErrorKind::LeaseHeld);
    let unknown = Lease { run: "other".into(), ..lease };
    check.expect_ok("giving back an unknown run", store.release_lease(&unknown).await);
}

async fn one_of_many_takes_over<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let owners: Vec<String> = (0..8).map(|one| format!("owner-{one}")).collect();
    let taken =
        join_all(owners.iter().map(|owner| store.acquire_lease(&lease.run, lease_claim(owner, 3_000)))).await;
    check.expect_equal(
        "how many of eight took it over",
        taken.iter().filter(|taken| taken.is_ok()).count(),
        1,
    );
    for refused in taken.into_iter().filter(Result::is_err) {
        check.expect_error("taking it over after somebody else did", refused, StoreErrorKind::LeaseHeld);
    }
}

async fn a_late_owner_is_refused<S: Store>(check: StoreCheck, store: S) {
    let late = check.create_run(&store, "run", "ann").await;
    let lines = journal_lines(3);
    check.expect_ok("a line of the first owner", append_line(&store, &late, 0, lines[..1].to_vec()).await);
    let owner =
        check.expect_ok("taking over", store.acquire_lease(&late.run, lease_claim("bea", 2_000)).await);
    let refused = StoreErrorKind::Fenced;
    check.expect_error("a late line", append_line(&store, &late, 1, lines[1..2].to_vec()).await, refused);
    check.expect_error(
        "a late line out of place",
        append_line(&store, &late, 7, lines[1..2].to_vec()).await,
        refused,
    );
    let later = store.append_journal(&late, 1, lines[1..2].to_vec(), Durability::Deferred).await;
    check.expect_error("a late line for later", later, refused);
    check.expect_error("a late renewal", store.renew_lease(&late, Timestamp(90_000)).await, refused);
    check.expect_error(
        "a late mark",
        store.set_status(&late, RunStatus::Failed, Timestamp(9)).await,
        refused,
    );
    let same_name =
        check.expect_ok("taking over again", store.acquire_lease(&late.run, lease_claim("bea", 2_500)).await);
    check.expect_error(
        "an older lease of the same owner",
        append_line(&store, &owner, 1, lines[1..].to_vec()).await,
        refused,
    );
    check.expect_ok("a line of the new owner", append_line(&store, &same_name, 1, lines[1..].to_vec()).await);
    check.expect_equal(
        "the lines",
        check.expect_ok("loading", store.load_journal(&late.run, 0).await),
        lines,
    );
    let listed = check.expect_ok("listing", store.list_runs().await).remove(0);
    check.expect_equal(
        "the state",
        (listed.status, listed.updated_at),
        (RunStatus::Running, Timestamp(1_000)),
    );
}

async fn lines_come_back<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let lines = journal_lines(50);
    check.expect_ok("one line", append_line(&store, &lease, 0, lines[..1].to_vec()).await);
    check.expect_ok("many lines", append_line(&store, &lease, 1, lines[1..49].to_vec()).await);
    check.expect_ok("no line", append_line(&store, &lease, 49, Vec::new()).await);
    check.expect_ok("one line more", append_line(&store, &lease, 49, lines[49..].to_vec()).await);
    for from in [0, 1, 48, 49, 50, 51, 1_000] {
        let expected = lines.get(from as usize..).unwrap_or_default().to_vec();
        let found = check.expect_ok("loading", store.load_journal(&lease.run, from).await);
        check.expect_equal(&format!("the lines from {from} on"), found, expected);
    }
    let unknown = check.expect_ok("loading an unknown run", store.load_journal(&"other".into(), 0).await);
    check.expect_equal("its lines", unknown, Vec::new());
    check.expect_equal(
        "the count in the list",
        check.expect_ok("listing", store.list_runs().await)[0].record_count,
        50,
    );
    let unknown = Lease { run: "other".into(), ..lease };
    check.expect_error(
        "a line of an unknown run",
        append_line(&store, &unknown, 0, lines).await,
        StoreErrorKind::RunNotFound,
    );
}

/// Snapshots are optional for a store.
async fn a_snapshot_is_the_last<S: Store>(check: StoreCheck, store: S) {
    let late = check.create_run(&store, "run", "ann").await;
    check.expect_ok("lines", append_line(&store, &late, 0, journal_lines(3)).await);
    let snapshot = |records: u64| StoredSnapshot {
        record_count: records,
        head_hash: journal_lines(records)[records as usize - 1].hash,
        body: format!("what {records} records add up to"),
    };
    let none = check.expect_ok("asking before there is one", store.load_snapshot(&late.run).await);
    check.expect_equal("the snapshot", none, None);
    check.expect_ok("a snapshot", store.save_snapshot(&late, snapshot(1)).await);
    check.expect_ok("another", store.save_snapshot(&late, snapshot(2)).await);
    let lease =
        check.expect_ok("taking over", store.acquire_lease(&late.run, lease_claim("bob", 9_000)).await);
    // The write of the old owner may fail or be ignored, and must not affect the new owner.
    store.save_snapshot(&late, snapshot(3)).await.ok();
    match check.expect_ok("asking", store.load_snapshot(&lease.run).await) {
        Some(found) => check.expect_equal("the snapshot", found, snapshot(2)),
        None => check.expect_equal("whether snapshots are wanted", store.snapshot_interval(), None),
    }
    let unknown = check.expect_ok("asking of an unknown run", store.load_snapshot(&"other".into()).await);
    check.expect_equal("its snapshot", unknown, None);
}

async fn lines_leave_no_gap<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let lines = journal_lines(4);
    let stale = StoreErrorKind::Stale;
    check.expect_error(
        "a line before the first",
        append_line(&store, &lease, 1, lines[1..2].to_vec()).await,
        stale,
    );
    check.expect_ok("two lines", append_line(&store, &lease, 0, lines[..2].to_vec()).await);
    check.expect_error("a line again", append_line(&store, &lease, 1, lines[1..2].to_vec()).await, stale);
    check.expect_error("a line too early", append_line(&store, &lease, 3, lines[3..].to_vec()).await, stale);
    check.expect_error(
        "the first line again",
        append_line(&store, &lease, 0, lines[..1].to_vec()).await,
        stale,
    );
    check.expect_ok("the next line", append_line(&store, &lease, 2, lines[2..3].to_vec()).await);
    check.expect_equal(
        "the lines",
        check.expect_ok("loading", store.load_journal(&lease.run, 0).await),
        lines[..3].to_vec(),
    );
}

async fn lines_are_all_or_none<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let lines = journal_lines(20);
    // Of two appends at the same position, exactly one succeeds, completely.
    let (left, right) = (lines[..10].to_vec(), lines[..15].to_vec());
    let both = join_all([
        append_line(&store, &lease, 0, left.clone()),
        append_line(&store, &lease, 0, right.clone()),
    ])
    .await;
    let expected = match (&both[0], &both[1]) {
        (Ok(()), Err(_)) => left,
        (Err(_), Ok(())) => right,
        _ => panic!("check `{}`: of two appends in one place, not one was done: {both:?}", check.0),
    };
    check.expect_equal(
        "the lines",
        check.expect_ok("loading", store.load_journal(&lease.run, 0).await),
        expected,
    );
}

async fn calls_are_in_order<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let lines = journal_lines(200);
    let appends: Vec<_> = (0..)
        .zip(&lines)
        .map(|(at, line)| {
            let durability = if at % 3 == 0 { Durability::Deferred } else { Durability::Sync };
            store.append_journal(&lease, at, vec![line.clone()], durability)
        })
        .collect();
    // Awaited in reverse order of the calls.
    for (at, append) in appends.into_iter().enumerate().rev() {
        check.expect_ok(&format!("line {at}"), append.await);
    }
    check.expect_equal(
        "the lines",
        check.expect_ok("loading", store.load_journal(&lease.run, 0).await),
        lines,
    );
}

async fn a_dropped_future_writes<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let lines = journal_lines(2);
    drop(store.append_journal(&lease, 0, lines[..1].to_vec(), Durability::Sync));
    check.expect_ok("the line after it", append_line(&store, &lease, 1, lines[1..].to_vec()).await);
    check.expect_equal(
        "the lines",
        check.expect_ok("loading", store.load_journal(&lease.run, 0).await),
        lines,
    );
}

async fn later_lines_can_be_read<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let lines = journal_lines(100);
    for (at, line) in (0..).zip(&lines) {
        check.expect_ok(
            "a line for later",
            store.append_journal(&lease, at, vec![line.clone()], Durability::Deferred).await,
        );
        check.expect_equal(
            "how many can be read",
            check.expect_ok("loading", store.load_journal(&lease.run, at).await).len(),
            1,
        );
    }
    check.expect_equal(
        "the lines",
        check.expect_ok("loading", store.load_journal(&lease.run, 0).await),
        lines,
    );
}

async fn runs_are_apart<S: Store>(check: StoreCheck, store: S) {
    let names: Vec<String> = (0..16).map(|one| format!("run-{one}")).collect();
    let lines = journal_lines(20);
    join_all(names.iter().map(async |name| {
        let lease = check.create_run(&store, name, name).await;
        for (at, line) in (0..).zip(&lines) {
            // A rejected request must not affect a concurrent one.
            let wrong = append_line(&store, &lease, at + 5, vec![line.clone()]);
            let right = append_line(&store, &lease, at, vec![line.clone()]);
            let (wrong, right) = join(wrong, right).await;
            check.expect_error("a line out of place", wrong, StoreErrorKind::Stale);
            check.expect_ok("a line in its place", right);
        }
    }))
    .await;
    for name in &names {
        let found = check.expect_ok("loading", store.load_journal(&name.as_str().into(), 0).await);
        check.expect_equal("the lines", found, lines.clone());
    }
}

async fn a_mark_is_listed<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let states =
        [RunStatus::Paused, RunStatus::Finished, RunStatus::Failed, RunStatus::Cancelled, RunStatus::Running];
    for (at, status) in (5_000..).zip(states) {
        check.expect_ok("marking", store.set_status(&lease, status, Timestamp(at)).await);
        let listed = check.expect_ok("listing", store.list_runs().await).remove(0);
        let found = (listed.status, listed.created_at, listed.updated_at);
        check.expect_equal("the state", found, (status, Timestamp(1_000), Timestamp(at)));
    }
}

fn posted_decision(path: &str, shown: &str, decision: Decision, by: &str) -> PostedDecision {
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
        },
    }
}

async fn a_decision_is_posted_once<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let yes = posted_decision("c1", "shown", Decision::Approve, "bea");
    check.expect_ok("a decision", store.post_decision(&lease.run, yes.clone()).await);
    let again = posted_decision("c1", "shown", Decision::Approve, "cem");
    check.expect_ok("the same by somebody else", store.post_decision(&lease.run, again).await);
    let no = posted_decision("c1", "shown", Decision::Reject { message: None }, "bea");
    check.expect_error(
        "another",
        store.post_decision(&lease.run, no.clone()).await,
        StoreErrorKind::AlreadyDecided,
    );
    let later = PostedDecision { attempt: 1, ..no.clone() };
    check.expect_ok("one about a later question", store.post_decision(&lease.run, later.clone()).await);
    let inner = PostedDecision { path: "outer/c1".into(), ..no };
    check.expect_ok(
        "one about the call of that name inside another",
        store.post_decision(&lease.run, inner.clone()).await,
    );
    let expected = vec![yes.clone(), later, inner];
    check.expect_equal(
        "what was posted",
        check.expect_ok("reading", store.posted_decisions(&lease.run).await),
        expected,
    );
    let unknown = store.post_decision(&"other".into(), yes).await;
    check.expect_error("a decision for an unknown run", unknown, StoreErrorKind::RunNotFound);
    check.expect_equal(
        "what it has",
        check.expect_ok("reading", store.posted_decisions(&"other".into()).await),
        Vec::new(),
    );
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
        check.expect_ok("a decision", store.post_decision(&lease.run, decision.clone()).await);
    }
    check.expect_equal(
        "what was posted",
        check.expect_ok("reading", store.posted_decisions(&lease.run).await),
        decisions.to_vec(),
    );
}

async fn artefacts_are_kept<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let long = "a line that is long\n".repeat(10_000);
    check.expect_ok("keeping", store.save_artefact(&lease.run, "c1", "short").await);
    check.expect_ok("keeping again", store.save_artefact(&lease.run, "c1", &long).await);
    check.expect_equal(
        "what was kept",
        check.expect_ok("reading", store.load_artefact(&lease.run, "c1").await),
        Some(long),
    );
    check.expect_equal(
        "what was not",
        check.expect_ok("reading", store.load_artefact(&lease.run, "c2").await),
        None,
    );
    check.expect_equal(
        "another run's",
        check.expect_ok("reading", store.load_artefact(&"other".into(), "c1").await),
        None,
    );
}

//! The contract of a store for runs, journal lines, posted decisions and artefacts.

use std::future::Future;

use futures_util::FutureExt;
use futures_util::future::{join, join_all};
use windlass_core::{
    decision::{Decision, DecisionScope},
    id::{AgentName, CallPath, RunId, SessionId, Timestamp},
    item::Item,
    journal::{
        DecisionRecorded, HashChain, JournalEntry, JournalLine, JournalRecord, RunCancelled, RunFinished,
        RunStarted,
    },
};

use super::check::{StoreCheck, journal_lines, lease_claim, sample_digest, stored_lease};
use crate::error::StoreErrorKind;
use crate::store::{
    Durability, Lease, PostedDecision, RetentionPolicy, RunCursor, RunQuery, RunStatus, Store, StoredRun,
    StoredSnapshot, apply_retention, list_all_runs,
};

pub(super) async fn check_runs<S, F, Fut>(make: &F)
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    a_new_run_is_listed(StoreCheck("a new run is listed"), make().await).await;
    a_run_is_made_once(StoreCheck("a run is made once"), make().await).await;
    a_run_begins_with_its_lines(StoreCheck("a run begins with its first lines"), make().await).await;
    stores_have_ids(StoreCheck("every store has an id of its own"), make().await, make().await).await;
    the_newest_run_is_first(StoreCheck("the newest run is first"), make().await).await;
    lines_come_back(StoreCheck("lines come back"), make().await).await;
    lines_leave_no_gap(StoreCheck("lines leave no gap"), make().await).await;
    lines_are_all_or_none(StoreCheck("lines are all or none"), make().await).await;
    an_append_is_awaited_once(StoreCheck("an append is as durable as asked"), make().await).await;
    a_dropped_append_is_all_or_none(StoreCheck("a dropped append is all or none"), make().await).await;
    later_lines_can_be_read(StoreCheck("lines for later can be read at once"), make().await).await;
    runs_are_apart(StoreCheck("runs are apart"), make().await).await;
    a_mark_is_listed(StoreCheck("a mark is listed"), make().await).await;
    a_snapshot_is_the_last(StoreCheck("a snapshot is the last that was kept"), make().await).await;
    let name = "a decision is corrected until it is taken";
    a_decision_is_corrected_until_it_is_taken(StoreCheck(name), make().await).await;
    let name = "a taken decision is open again if nothing was recorded";
    a_taken_decision_is_open_again_if_nothing_was_recorded(StoreCheck(name), make().await).await;
    decisions_are_in_order(StoreCheck("posted decisions are in order"), make().await).await;
    artefacts_are_kept(StoreCheck("artefacts are kept"), make().await).await;
    artefacts_are_fenced(StoreCheck("artefacts are fenced"), make().await).await;
    artefacts_are_listed_in_pages(StoreCheck("artefacts are listed in pages"), make().await).await;
    an_end_sets_the_status(StoreCheck("the end of a run sets its status"), make().await).await;
    a_reader_reads_the_same(StoreCheck("a blocking reader reads the same lines"), make().await).await;
    runs_are_listed_in_pages(StoreCheck("runs are listed in pages"), make().await).await;
    filters_are_combined(StoreCheck("the filters of a list are combined"), make().await).await;
    a_forgotten_run_is_gone(StoreCheck("a forgotten run is gone"), make().await).await;
    a_driven_run_is_not_forgotten(StoreCheck("a driven run is not forgotten"), make().await).await;
    referenced_media_are_kept(StoreCheck("media that another run shows are kept"), make().await).await;
    old_runs_are_forgotten(StoreCheck("old runs are forgotten by status"), make().await).await;
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
        check.expect_ok("listing", store.list_runs(&RunQuery::default()).await),
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
        lease: Some(stored_lease("ann", 1, 0, 1_000)),
        created_at: Timestamp(1_000),
        updated_at: Timestamp(1_000),
    };
    check.expect_equal(
        "the list",
        check.expect_ok("listing", store.list_runs(&RunQuery::default()).await),
        vec![listed],
    );
}

async fn a_run_is_made_once<S: Store>(check: StoreCheck, store: S) {
    let (run, agent) = (RunId::from("run"), AgentName::from("agent"));
    let made =
        join_all((0..8).map(|_| store.create_run(&run, &agent, lease_claim("ann", 1_000), Vec::new()))).await;
    check.expect_equal("how many of eight made it", made.iter().filter(|made| made.is_ok()).count(), 1);
    for refused in made.into_iter().filter(Result::is_err) {
        check.expect_error("making it again", refused, StoreErrorKind::AlreadyExists);
    }
    let late = store.create_run(&run, &agent, lease_claim("bea", 9_000), Vec::new()).await;
    check.expect_error("making it after its lease ran out", late, StoreErrorKind::AlreadyExists);
}

async fn a_run_begins_with_its_lines<S: Store>(check: StoreCheck, store: S) {
    let (run, agent, lines) = (RunId::from("run"), AgentName::from("agent"), journal_lines(3));
    let made = store.create_run(&run, &agent, lease_claim("ann", 1_000), lines[..2].to_vec()).await;
    let lease = check.expect_ok("making a run with two lines", made);
    let listed = check.expect_ok("listing", store.list_runs(&RunQuery::default()).await);
    check.expect_equal(
        "the records in the list",
        listed.iter().map(|run| run.record_count).collect(),
        vec![2],
    );
    check.expect_ok("adding a third", append_line(&store, &lease, 2, lines[2..].to_vec()).await);
    let again = store.create_run(&run, &agent, lease_claim("bea", 9_000), journal_lines(1)).await;
    check.expect_error("making it again", again, StoreErrorKind::AlreadyExists);
    check.expect_equal("the lines", check.expect_ok("reading", store.load_journal(&run, 0).await), lines);
}

async fn stores_have_ids<S: Store>(check: StoreCheck, one: S, other: S) {
    check.expect_equal("an id that is empty", one.store_id().is_empty(), false);
    check.expect_equal("an id that two stores have", one.store_id() == other.store_id(), false);
}

async fn the_newest_run_is_first<S: Store>(check: StoreCheck, store: S) {
    let agent = AgentName::from("agent");
    for (name, at) in [("b", 2_000), ("old", 1_000), ("a", 2_000), ("new", 3_000)] {
        check.expect_ok(
            "making a run",
            store.create_run(&name.into(), &agent, lease_claim("ann", at), Vec::new()).await,
        );
    }
    let names: Vec<_> = check
        .expect_ok("listing", store.list_runs(&RunQuery::default()).await)
        .into_iter()
        .map(|run| run.run)
        .collect();
    check.expect_equal("the list", names, ["new", "b", "a", "old"].map(RunId::from).to_vec());
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
    for (from, limit) in [(0, 1), (0, 50), (0, 51), (7, 9), (49, 9), (50, 9), (51, 9), (3, 0)] {
        let expected = lines.iter().skip(from as usize).take(limit as usize).cloned().collect();
        let found = check.expect_ok("a page", store.load_journal_page(&lease.run, from, limit).await);
        check.expect_equal(&format!("{limit} lines from {from} on"), found, expected);
    }
    let none = check.expect_ok("a page of no run", store.load_journal_page(&"other".into(), 0, 9).await);
    check.expect_equal("its lines", none, Vec::new());
    let unknown = check.expect_ok("loading an unknown run", store.load_journal(&"other".into(), 0).await);
    check.expect_equal("its lines", unknown, Vec::new());
    check.expect_equal(
        "the count in the list",
        check.expect_ok("listing", store.list_runs(&RunQuery::default()).await)[0].record_count,
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
    let lease = check.take_over(&store, &late, "bob").await;
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

async fn an_append_is_awaited_once<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let lines = journal_lines(200);
    let mut at = 0;
    // Batches of growing size, as a write queue makes them.
    for size in (1..).take_while(|size| size * (size + 1) / 2 < 200_usize) {
        let durability = if size % 3 == 0 { Durability::Deferred } else { Durability::Sync };
        let batch = lines[at..at + size].to_vec();
        let done = store.append_journal(&lease, at as u64, batch, durability).await;
        check.expect_ok(&format!("{size} lines at {at}"), done);
        at += size;
    }
    check.expect_equal(
        "the lines",
        check.expect_ok("loading", store.load_journal(&lease.run, 0).await),
        lines[..at].to_vec(),
    );
}

async fn a_dropped_append_is_all_or_none<S: Store>(check: StoreCheck, store: S) {
    let late = check.create_run(&store, "run", "ann").await;
    let lines = journal_lines(13);
    check.expect_ok("a line", append_line(&store, &late, 0, lines[..1].to_vec()).await);
    // Never polled, and polled once.
    drop(append_line(&store, &late, 1, lines[1..4].to_vec()));
    let begun = append_line(&store, &late, 1, lines[1..7].to_vec());
    let finished = begun.now_or_never();
    let lease = check.take_over(&store, &late, "bea").await;
    let found = check.expect_ok("loading", store.load_journal(&lease.run, 0).await);
    let is_complete = found == lines[..7];
    if !is_complete {
        check.expect_equal("the lines without the dropped append", found, lines[..1].to_vec());
        assert!(!matches!(finished, Some(Ok(()))), "check `{}`: a finished append was lost", check.0);
    }
    let next = if is_complete { 7 } else { 1 };
    let rest = lines[next..].to_vec();
    check.expect_ok("the lines after it", append_line(&store, &lease, next as u64, rest).await);
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
        let listed = check.expect_ok("listing", store.list_runs(&RunQuery::default()).await).remove(0);
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

async fn artefacts_are_kept<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let long: Vec<u8> = (0..200_000_u32).map(|byte| (byte % 251) as u8).chain([0, 0xff, 0xc3]).collect();
    check.expect_ok("keeping", store.save_artefact(&lease, "c1", b"short").await);
    check.expect_ok("keeping again", store.save_artefact(&lease, "c1", &long).await);
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
    let unknown = Lease { run: "other".into(), owner: "ann".to_owned(), epoch: 1 };
    check.expect_error(
        "keeping for no run",
        store.save_artefact(&unknown, "c1", b"lost").await,
        StoreErrorKind::RunNotFound,
    );
}

async fn artefacts_are_fenced<S: Store>(check: StoreCheck, store: S) {
    let old = check.create_run(&store, "run", "ann").await;
    check.expect_ok("keeping", store.save_artefact(&old, "c1", b"of ann").await);
    check.expect_ok("releasing", store.release_lease(&old).await);
    let claim = lease_claim("bea", 2_500);
    let new = check.expect_ok("taking over", store.acquire_lease(&old.run, claim, None).await);
    let late = store.save_artefact(&old, "c1", b"of ann, late").await;
    check.expect_error("keeping with the old lease", late, StoreErrorKind::Fenced);
    check.expect_equal(
        "what was kept",
        check.expect_ok("reading", store.load_artefact(&new.run, "c1").await),
        Some(b"of ann".to_vec()),
    );
    check.expect_ok("keeping with the new lease", store.save_artefact(&new, "c1", b"of bea").await);
}

async fn artefacts_are_listed_in_pages<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let other = check.create_run(&store, "other", "ann").await;
    let names: Vec<String> = (0..25).map(|number| format!("c{number:02}")).collect();
    for name in names.iter().rev() {
        check.expect_ok("keeping", store.save_artefact(&lease, name, b"x").await);
    }
    check.expect_ok("keeping", store.save_artefact(&other, "c99", b"x").await);
    let mut listed: Vec<String> = Vec::new();
    loop {
        let after = listed.last().cloned();
        let page = store.list_artefacts(&lease.run, after.as_deref(), 10).await;
        let page = check.expect_ok("listing", page);
        check.expect_equal("the length of a page", page.len() <= 10, true);
        if page.is_empty() {
            break;
        }
        listed.extend(page);
    }
    check.expect_equal("the names", listed, names);
}

async fn an_end_sets_the_status<S: Store>(check: StoreCheck, store: S) {
    let ends = [
        (JournalEntry::TurnContinued, RunStatus::Running),
        (
            JournalEntry::RunFinished(RunFinished { output: "done".into(), message: None }),
            RunStatus::Finished,
        ),
        (JournalEntry::RunCancelled(RunCancelled { draining_calls: Vec::new() }), RunStatus::Cancelled),
    ];
    for (number, (entry, status)) in ends.into_iter().enumerate() {
        let lease = check.create_run(&store, &format!("run-{number}"), "ann").await;
        check.expect_ok("lines", append_line(&store, &lease, 0, journal_lines(2)).await);
        let mut chain = HashChain::from_head(journal_lines(2)[1].hash);
        let nested = JournalEntry::RunFinished(RunFinished { output: "x".into(), message: None });
        let nested = JournalRecord { seq: 2, at: Timestamp(1_400), path: vec!["c1".into()], entry: nested };
        let end = JournalRecord { seq: 3, at: Timestamp(1_500), path: Vec::new(), entry };
        let lines = vec![chain.append(&nested), chain.append(&end)];
        check.expect_ok("the end", append_line(&store, &lease, 2, lines).await);
        let runs = check.expect_ok("listing", store.list_runs(&RunQuery::default()).await);
        let found = runs.iter().find(|stored| stored.run == lease.run);
        let updated = Timestamp(if status == RunStatus::Running { 1_000 } else { 1_500 });
        check.expect_equal(
            "the run in the list",
            found.map(|stored| (stored.status, stored.updated_at)),
            Some((status, updated)),
        );
    }
}

async fn a_reader_reads_the_same<S: Store>(check: StoreCheck, store: S) {
    let Some(reader) = store.journal_reader() else { return };
    let lease = check.create_run(&store, "run", "ann").await;
    check.expect_ok("lines", append_line(&store, &lease, 0, journal_lines(30)).await);
    for (from, limit) in [(0, 10), (10, 100), (29, 1), (30, 5), (99, 5)] {
        let page = check.expect_ok("a page", store.load_journal_page(&lease.run, from, limit).await);
        let read = check.expect_ok("reading", reader.read_lines(&lease.run, from, limit));
        check.expect_equal("the lines", read, page);
    }
    let unknown = check.expect_ok("reading", reader.read_lines(&"other".into(), 0, 5));
    check.expect_equal("the lines of no run", unknown, Vec::new());
}

/// Creates runs of two agents with all statuses; the run with number `n` is created at time `1,000 + n / 2`.
async fn create_runs<S: Store>(check: StoreCheck, store: &S, count: u64) {
    let statuses = [RunStatus::Paused, RunStatus::Finished, RunStatus::Failed];
    for number in 0..count {
        let run = RunId::from(format!("run-{number:02}"));
        let agent = AgentName::from(if number % 2 == 0 { "even" } else { "odd" });
        let claim = lease_claim("ann", 1_000 + number / 2);
        let mut started = RunStarted::new(run.clone(), agent.clone());
        started.session = (number % 5 == 0).then(|| SessionId::from("fives"));
        let record = JournalRecord {
            seq: 0,
            at: Timestamp(1_000),
            path: Vec::new(),
            entry: JournalEntry::RunStarted(started.into()),
        };
        let line = HashChain::default().append(&record);
        let made = store.create_run(&run, &agent, claim, vec![line]).await;
        let lease = check.expect_ok("making a run", made);
        let status = statuses[(number % 3) as usize];
        check.expect_ok("its status", store.set_status(&lease, status, Timestamp(5_000 + number)).await);
        check.expect_ok("releasing it", store.release_lease(&lease).await);
    }
}

fn run_numbers(runs: Vec<StoredRun>) -> Vec<u64> {
    runs.iter().filter_map(|run| run.run.as_str().strip_prefix("run-")?.parse().ok()).collect()
}

async fn runs_are_listed_in_pages<S: Store>(check: StoreCheck, store: S) {
    create_runs(check, &store, 11).await;
    let newest_first: Vec<u64> = (0..11).rev().collect();
    for limit in [1, 2, 3, 10, 11, 12, 1_000] {
        let mut query = RunQuery { limit, ..RunQuery::default() };
        let mut found = Vec::new();
        loop {
            let page = check.expect_ok("a page", store.list_runs(&query).await);
            assert!(page.len() <= limit as usize, "check `{}`: a page has {} runs", check.0, page.len());
            let Some(last) = page.last() else { break };
            query.after = Some(RunCursor::from(last));
            found.extend(run_numbers(page));
        }
        check.expect_equal(&format!("pages of {limit}"), found, newest_first.clone());
        let query = RunQuery { limit, ..RunQuery::default() };
        let all = check.expect_ok("all pages", list_all_runs(&store, query).await);
        check.expect_equal("all runs", run_numbers(all), newest_first.clone());
    }
    // A cursor is a position: it needs no run of its own.
    let after = Some(RunCursor { created_at: Timestamp(1_002), run: "run-04x".into() });
    let query = RunQuery { after, limit: 2, ..RunQuery::default() };
    let page = check.expect_ok("a page", store.list_runs(&query).await);
    check.expect_equal("the runs after a position", run_numbers(page), vec![4, 3]);
}

async fn filters_are_combined<S: Store>(check: StoreCheck, store: S) {
    create_runs(check, &store, 12).await;
    let any = RunQuery::default();
    let filters = [
        (RunQuery { statuses: vec![RunStatus::Finished], ..any.clone() }, vec![10, 7, 4, 1]),
        (
            RunQuery { statuses: vec![RunStatus::Paused, RunStatus::Failed], limit: 3, ..any.clone() },
            vec![11, 9, 8],
        ),
        (RunQuery { statuses: vec![RunStatus::Cancelled], ..any.clone() }, vec![]),
        (RunQuery { agent: Some("odd".into()), ..any.clone() }, vec![11, 9, 7, 5, 3, 1]),
        (RunQuery { session: Some("fives".into()), ..any.clone() }, vec![10, 5, 0]),
        (RunQuery { session: Some("other".into()), ..any.clone() }, vec![]),
        (
            RunQuery {
                updated_from: Some(Timestamp(5_003)),
                updated_before: Some(Timestamp(5_006)),
                ..any.clone()
            },
            vec![5, 4, 3],
        ),
        (
            RunQuery {
                statuses: vec![RunStatus::Finished],
                agent: Some("even".into()),
                session: Some("fives".into()),
                updated_from: Some(Timestamp(5_001)),
                ..any
            },
            vec![10],
        ),
    ];
    for (query, expected) in filters {
        let found = check.expect_ok("listing", store.list_runs(&query).await);
        check.expect_equal(&format!("the runs of {query:?}"), run_numbers(found), expected);
    }
}

async fn a_forgotten_run_is_gone<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let other = check.create_run(&store, "other", "ann").await;
    for lease in [&lease, &other] {
        check.expect_ok("lines", append_line(&store, lease, 0, journal_lines(5)).await);
        check.expect_ok("an artefact", store.save_artefact(lease, "c1", b"long").await);
        let posted = posted_decision("c1", "shown", Decision::Approve, "bea");
        check.expect_ok("a decision", store.post_decision(&lease.run, posted, 1).await);
        let withheld = store.save_withheld_output(lease, &"c1".into(), &"secret".into()).await;
        check.expect_ok("an output", withheld);
        check.expect_ok("releasing", store.release_lease(lease).await);
    }
    check.expect_ok("forgetting", store.forget_run(&lease.run, None).await);
    let runs = check.expect_ok("listing", store.list_runs(&RunQuery::default()).await);
    check.expect_equal("the runs", runs.len(), 1);
    for (run, is_kept) in [(&lease.run, false), (&other.run, true)] {
        let lines = check.expect_ok("loading", store.load_journal(run, 0).await);
        let artefact = check.expect_ok("loading", store.load_artefact(run, "c1").await);
        let posted = check.expect_ok("loading", store.posted_decisions(run).await);
        let withheld = check.expect_ok("loading", store.load_withheld_output(run, &"c1".into()).await);
        let found = (lines.len() == 5, artefact.is_some(), posted.len() == 1, withheld.is_some());
        check.expect_equal("what is left", found, (is_kept, is_kept, is_kept, is_kept));
    }
    let again = store.forget_run(&lease.run, None).await;
    check.expect_error("forgetting again", again, StoreErrorKind::RunNotFound);
    check.expect_error(
        "a line of it",
        append_line(&store, &lease, 5, journal_lines(6).split_off(5)).await,
        StoreErrorKind::RunNotFound,
    );
    // The id is free again, and nothing of the old run comes back.
    let fresh = check.create_run(&store, "run", "ann").await;
    check.expect_equal(
        "its lines",
        check.expect_ok("loading", store.load_journal(&fresh.run, 0).await),
        Vec::new(),
    );
    check.expect_ok("its first lines", append_line(&store, &fresh, 0, journal_lines(2)).await);
    let posted = check.expect_ok("loading", store.posted_decisions(&fresh.run).await);
    check.expect_equal("its decisions", posted, Vec::new());
}

async fn a_driven_run_is_not_forgotten<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    check.expect_ok("lines", append_line(&store, &lease, 0, journal_lines(2)).await);
    let seen = stored_lease("ann", 1, 0, 1_000);
    check.expect_ok("renewing", store.renew_lease(&lease, Timestamp(1_000)).await);
    for abandoned in [None, Some(&seen)] {
        let held = store.forget_run(&lease.run, abandoned).await;
        check.expect_error("forgetting it", held, StoreErrorKind::LeaseHeld);
    }
    let lines = check.expect_ok("loading", store.load_journal(&lease.run, 0).await);
    check.expect_equal("its lines", lines, journal_lines(2));
    let seen = stored_lease("ann", 1, 1, 1_000);
    check.expect_ok("forgetting an abandoned one", store.forget_run(&lease.run, Some(&seen)).await);
}

async fn referenced_media_are_kept<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let fork = check.create_run(&store, "fork", "ann").await;
    let (shown, unused) = (sample_digest("shown").to_string(), sample_digest("unused").to_string());
    for name in [&shown, &unused] {
        check.expect_ok("media", store.save_artefact(&lease, name, b"AAAA").await);
    }
    let mut started = RunStarted::new("fork".into(), "agent".into());
    started.input = vec![Item::user(format!("windlass-media:run/{shown}")).into()];
    let entry = JournalEntry::RunStarted(started.into());
    let record = JournalRecord { seq: 0, at: Timestamp(1), path: Vec::new(), entry };
    let line = HashChain::default().append(&record);
    check.expect_ok("a line that shows it", append_line(&store, &fork, 0, vec![line]).await);
    check.expect_ok("releasing", store.release_lease(&lease).await);
    check.expect_ok("forgetting", store.forget_run(&lease.run, None).await);
    for (name, is_kept) in [(&shown, true), (&unused, false)] {
        let found = check.expect_ok("loading", store.load_artefact(&lease.run, name).await);
        check.expect_equal("whether it is kept", found.is_some(), is_kept);
    }
}

async fn old_runs_are_forgotten<S: Store>(check: StoreCheck, store: S) {
    create_runs(check, &store, 12).await;
    // A run that somebody drives again.
    check.expect_ok("a lease", store.acquire_lease(&"run-04".into(), lease_claim("bea", 5_000), None).await);
    let policy = RetentionPolicy::ended_runs(std::time::Duration::from_millis(93));
    let forgotten = check.expect_ok("retention", apply_retention(&store, &policy, Timestamp(5_101)).await);
    let forgotten: Vec<String> = forgotten.iter().map(ToString::to_string).collect();
    check.expect_equal(
        "the forgotten runs",
        forgotten,
        ["run-07", "run-05", "run-02", "run-01"].map(String::from).to_vec(),
    );
    let left = check.expect_ok("listing", store.list_runs(&RunQuery::default()).await);
    check.expect_equal("the runs that are left", run_numbers(left), vec![11, 10, 9, 8, 6, 4, 3, 0]);
    let nothing = RetentionPolicy { max_age: std::time::Duration::ZERO, statuses: Vec::new() };
    let forgotten = check.expect_ok("retention", apply_retention(&store, &nothing, Timestamp(90_000)).await);
    check.expect_equal("the runs of no status", forgotten, Vec::new());
}

//! The contract of a store for runs and journal lines.

use std::future::Future;

use futures_util::FutureExt;
use futures_util::future::{join, join_all};
use windlass_core::{
    id::{AgentName, RunId, Timestamp},
    journal::{HashChain, JournalEntry, JournalLine, JournalRecord, RunCancelled, RunFinished},
};

use super::check::{StoreCheck, journal_lines, lease_claim, stored_lease};
use crate::error::StoreErrorKind;
use crate::store::{
    Durability, Lease, RunQuery, RunStatus, SnapshotSegments, Store, StoredRun, StoredSnapshot,
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
    an_end_sets_the_status(StoreCheck("the end of a run sets its status"), make().await).await;
    a_reader_reads_the_same(StoreCheck("a blocking reader reads the same lines"), make().await).await;
}

pub(super) async fn append_line<S: Store>(
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
    let segments = |first: u64, bodies: &[&str]| SnapshotSegments {
        first,
        bodies: bodies.iter().map(|body| (*body).to_owned()).collect(),
    };
    check.expect_ok("a snapshot", store.save_snapshot(&late, snapshot(1), segments(0, &["a"])).await);
    check.expect_ok("another", store.save_snapshot(&late, snapshot(2), segments(1, &["b", "c"])).await);
    let lease = check.take_over(&store, &late, "bob").await;
    // The write of the old owner may fail or be ignored, and must not affect the new owner.
    store.save_snapshot(&late, snapshot(3), segments(0, &["late"])).await.ok();
    match check.expect_ok("asking", store.load_snapshot(&lease.run).await) {
        Some(found) => {
            check.expect_equal("the snapshot", found, snapshot(2));
            segments_are_appended(check, &store, &lease, snapshot(2)).await;
        }
        None => check.expect_equal("whether snapshots are wanted", store.snapshot_interval(), None),
    }
    let unknown = check.expect_ok("asking of an unknown run", store.load_snapshot(&"other".into()).await);
    check.expect_equal("its snapshot", unknown, None);
}

/// Segments are added to those before them, or replace those from their number on. `snapshot` has three: a, b and c.
async fn segments_are_appended<S: Store>(
    check: StoreCheck,
    store: &S,
    lease: &Lease,
    snapshot: StoredSnapshot,
) {
    let save = |first: u64, body: &str| {
        let segments = SnapshotSegments { first, bodies: vec![body.to_owned()] };
        store.save_snapshot(lease, snapshot.clone(), segments)
    };
    let expect_segments = async |count: u64, expected: &[&str]| {
        let found = store.load_snapshot_segments(&lease.run, count).await;
        check.expect_equal("the segments", check.expect_ok("asking for segments", found), to_texts(expected));
    };
    expect_segments(3, &["a", "b", "c"]).await;
    expect_segments(2, &["a", "b"]).await;
    expect_segments(9, &["a", "b", "c"]).await;
    check.expect_error("a segment after a gap", save(4, "e").await, StoreErrorKind::Stale);
    check.expect_ok("the next segment", save(3, "d").await);
    expect_segments(9, &["a", "b", "c", "d"]).await;
    check.expect_ok("a segment in place of others", save(1, "x").await);
    expect_segments(9, &["a", "x"]).await;
    if let Some(reader) = store.journal_reader() {
        let read = check.expect_ok("reading segments", reader.read_segments(&lease.run, 1));
        check.expect_equal("the segments", read, to_texts(&["a"]));
    }
    let ended = store.set_status(lease, RunStatus::Finished, Timestamp(2_000)).await;
    check.expect_ok("the end of the run", ended);
    if check.expect_ok("asking", store.load_snapshot(&lease.run).await).is_none() {
        expect_segments(9, &[]).await;
    }
    let unknown = check.expect_ok("asking", store.load_snapshot_segments(&"other".into(), 9).await);
    check.expect_equal("the segments of no run", unknown, Vec::new());
}

fn to_texts(bodies: &[&str]) -> Vec<String> {
    bodies.iter().map(|body| (*body).to_owned()).collect()
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

//! The contract of stores for a migration from one to the other.

use std::future::Future;
use std::time::Duration;

use windlass_core::{
    decision::{Decision, DecisionScope},
    id::{RunId, SessionId, Timestamp},
    journal::{
        DecisionRecorded, HashChain, JournalEntry, JournalLine, JournalRecord, RunFinished, RunStarted,
    },
};

use super::check::{StoreCheck, lease_claim, rich_output, sample_digest};
use super::run_sessions::{sessions, start_run, user_items};
use crate::error::StoreErrorKind;
use crate::session::{SessionFence, SessionWrite, export_items};
use crate::store::{
    DerivedWrites, Durability, HISTORY_ARTEFACT, Lease, MigrationError, MigrationReport, PostedDecision,
    ReceiptKey, ReceiptWrite, RunQuery, RunStatus, SnapshotSegments, Store, StoredSnapshot, migrate_store,
};

pub(super) async fn check_migration<S, F, Fut>(make: &F)
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    a_store_moves(StoreCheck("a store moves to another"), make().await, make().await).await;
    if make().await.sessions().is_some() {
        sessions_move(StoreCheck("sessions move to another store"), make().await, make().await).await;
    }
    another_run_is_refused(StoreCheck("another run of the same id is refused"), make().await, make().await)
        .await;
}

/// Returns the journal of a run that ends with its last record.
pub(super) fn ended_journal(run: &str, count: u64) -> Vec<JournalLine> {
    let mut chain = HashChain::default();
    let entry = |seq| match seq {
        0 => JournalEntry::RunStarted(RunStarted::new(run.into(), "agent".into()).into()),
        seq if seq + 1 == count => {
            JournalEntry::RunFinished(RunFinished { output: "done".into(), message: None })
        }
        _ => JournalEntry::TurnContinued,
    };
    let record = |seq| JournalRecord { seq, at: Timestamp(1_000 + seq), path: Vec::new(), entry: entry(seq) };
    (0..count).map(|seq| chain.append(&record(seq))).collect()
}

async fn migrate<S: Store>(check: StoreCheck, source: &S, target: &S) -> MigrationReport {
    match migrate_store(source, target).await {
        Ok(report) => report,
        Err(error) => panic!("check `{}`: the migration failed: {error}", check.0),
    }
}

/// Migrates while the driver of a run renews its lease.
async fn migrate_beside<S: Store>(
    check: StoreCheck,
    source: &S,
    target: &S,
    driven: &Lease,
) -> MigrationReport {
    let drive = async {
        for now in 1_001.. {
            tokio::time::sleep(Duration::from_millis(100)).await;
            check.expect_ok("a renewal", source.renew_lease(driven, Timestamp(now)).await);
        }
        std::future::pending().await
    };
    tokio::select! {
        report = migrate(check, source, target) => report,
        report = drive => report,
    }
}

async fn a_store_moves<S: Store>(check: StoreCheck, source: S, target: S) {
    let lines = ended_journal("run", 1_300);
    let agent = "agent".into();
    let lease =
        source.create_run(&"run".into(), &agent, lease_claim("ann", 1_000), lines[..700].to_vec()).await;
    let lease = check.expect_ok("a run", lease);
    let decision = DecisionRecorded {
        call: "c1".into(),
        digest: sample_digest("shown"),
        decision: Decision::Approve,
        scope: DecisionScope::ThisCall,
        decided_by: Some("bea".to_owned()),
        displayed: None,
        posted_revision: 3,
        signature: None,
        mac: None,
    };
    let posted =
        PostedDecision { path: "c1".into(), attempt: 0, decision, posted_at: Timestamp(5), mac: None };
    check.expect_ok("a decision", source.post_decision(&lease.run, posted.clone(), 0).await);
    check.expect_ok("an artefact", source.save_artefact(&lease, "c1", &[0, 1, 0xff]).await);
    check.expect_ok("an output", source.save_withheld_output(&lease, &"c1".into(), &"held".into()).await);
    let key = ReceiptKey { scope: String::new(), digest: sample_digest("call") };
    check.expect_ok("a claim", source.claim_receipt(&key, lease_claim("ann", 1_000), None).await);
    let receipt = ReceiptWrite {
        key: key.clone(),
        owner: "ann".to_owned(),
        output: rich_output("receipt"),
        expires_at: Some(Timestamp(9_000)),
    };
    let writes = DerivedWrites { receipts: vec![receipt], ..DerivedWrites::default() };
    let kept = source.append_with_writes(&lease, 700, Vec::new(), Durability::Sync, writes).await;
    check.expect_ok("a receipt", kept);
    let driven = lease_claim("cem", 1_000);
    let driven = source.create_run(&"driven".into(), &agent, driven, ended_journal("driven", 3)).await;
    let driven = check.expect_ok("a run that is driven", driven);
    check.expect_ok("releasing", source.release_lease(&lease).await);

    let report = migrate_beside(check, &source, &target, &driven).await;
    check.expect_equal("the copied runs", report.copied_runs, vec!["run".into()]);
    check.expect_equal("the driven runs", report.driven_runs, vec!["driven".into()]);
    check.expect_equal("receipts and artefacts", (report.receipts, report.artefacts), (1, 1));

    // The run goes on in the source, and the other driver is gone; the migration is repeated.
    let claim = lease_claim("ann", 5_000);
    let lease = check.expect_ok("a lease", source.acquire_lease(&lease.run, claim, None).await);
    let rest = source.append_journal(&lease, 700, lines[700..].to_vec(), Durability::Sync).await;
    check.expect_ok("the rest", rest);
    check.expect_ok("releasing", source.release_lease(&lease).await);
    let report = migrate(check, &source, &target).await;
    let expected = ["run", "driven"].map(RunId::from).to_vec();
    check.expect_equal("the runs that went on or were left", report.copied_runs, expected);
    check.expect_equal("no run is driven", report.driven_runs, Vec::new());
    let mut report = migrate(check, &source, &target).await;
    report.known_runs.sort();
    let expected = ["driven", "run"].map(RunId::from).to_vec();
    check.expect_equal("the runs that are there", report.known_runs, expected);

    let run = "run".into();
    check.expect_equal("the lines", check.expect_ok("loading", target.load_journal(&run, 0).await), lines);
    let of = async |store: &S| {
        let runs = check.expect_ok("listing", store.list_runs(&RunQuery::default()).await);
        let run = runs.into_iter().find(|stored| stored.run == run);
        run.map(|run| (run.agent, run.status, run.record_count, run.created_at, run.updated_at))
    };
    check.expect_equal("the run in the list", of(&target).await, of(&source).await);
    check.expect_equal("its status", of(&target).await.map(|run| run.1), Some(RunStatus::Finished));
    check.expect_equal(
        "the decisions",
        check.expect_ok("loading", target.posted_decisions(&run).await),
        vec![posted],
    );
    check.expect_equal(
        "the artefact",
        check.expect_ok("loading", target.load_artefact(&run, "c1").await),
        Some(vec![0, 1, 0xff]),
    );
    check.expect_equal(
        "the output",
        check.expect_ok("loading", target.load_withheld_output(&run, &"c1".into()).await),
        Some("held".into()),
    );
    let receipts = check.expect_ok("listing", source.list_receipts(None, 10).await);
    check.expect_equal(
        "the receipts",
        check.expect_ok("listing", target.list_receipts(None, 10).await),
        receipts,
    );
    // A fencing token never goes back.
    let claim = lease_claim("dan", 9_000);
    let before = check.expect_ok("a lease", source.acquire_lease(&run, claim, None).await);
    let after = check.expect_ok("a lease", target.acquire_lease(&run, claim, None).await);
    check.expect_equal("epochs do not go back", after.epoch >= before.epoch, true);
}

/// A session moves with the positions of its runs: of one that refers to its items and goes on after the first migration,
/// and of one whose journal is in another store.
async fn sessions_move<S: Store>(check: StoreCheck, source: S, target: S) {
    let (session, run) = (SessionId::from("s"), RunId::from("run"));
    let write = |run: &str, from, to, text: &str| SessionWrite {
        session: session.clone(),
        run: run.into(),
        from,
        to,
        items: user_items(&[text]),
    };
    check.expect_ok("an item", sessions(&source).append_items(&session, user_items(&["a"])).await);
    let state = check.expect_ok("loading", sessions(&source).load_session(&session).await);
    let lease = check.expect_ok("a run", start_run(&source, "run", state, 1_000).await);
    let snapshot =
        StoredSnapshot { record_count: 1, head_hash: sample_digest("head"), body: "head".to_owned() };
    if source.snapshot_interval().is_some() {
        let segments = SnapshotSegments { first: 0, bodies: vec!["segment".to_owned()] };
        check.expect_ok("a snapshot", source.save_snapshot(&lease, snapshot.clone(), segments).await);
    }
    let fence = SessionFence::Lease(lease.clone());
    check.expect_ok("a turn", sessions(&source).append_run_items(write("run", 0, 1, "b"), fence).await);
    check.expect_ok("releasing", source.release_lease(&lease).await);
    let elsewhere = sessions(&source).append_run_items(write("elsewhere", 0, 2, "c"), SessionFence::Unheld);
    check.expect_ok("a turn of a run in another store", elsewhere.await);
    // Another session, and claims of both that a migration has left behind when it was killed.
    let other = SessionId::from("other");
    check.expect_ok("an item", sessions(&source).append_items(&other, user_items(&["x"])).await);
    for session in [&session, &other] {
        let claim = sessions(&target).claim_session(session, lease_claim("killed", 1_000), None).await;
        check.expect_ok("a claim", claim);
    }

    let report = migrate(check, &source, &target).await;
    check.expect_equal("the copied runs", report.copied_runs, vec![run.clone()]);
    check.expect_equal("the sessions", (report.sessions, report.held_sessions), (2, Vec::new()));
    let moved = check.expect_ok("loading", sessions(&target).load_session(&other).await);
    check.expect_equal("the other session", moved.items, user_items(&["x"]));
    let expect_moved = async |items: &[&str], positions: [u64; 2]| {
        let state = check.expect_ok("loading", sessions(&target).load_session(&session).await);
        check.expect_equal("the items", state.items, user_items(items));
        let listed = sessions(&target).list_run_positions(&session, None, 9).await;
        let expected = [("elsewhere", positions[1]), ("run", positions[0])];
        let expected = expected.map(|(run, position)| (RunId::from(run), position)).to_vec();
        check.expect_equal("the positions", check.expect_ok("listing", listed), expected);
    };
    expect_moved(&["a", "b", "c"], [1, 2]).await;
    let history = target.load_artefact(&run, HISTORY_ARTEFACT).await;
    let history = check.expect_ok("loading the history", history).unwrap_or_default();
    check.expect_equal(
        "the history",
        String::from_utf8_lossy(&history).into_owned(),
        export_items(&user_items(&["a"])),
    );
    if source.snapshot_interval().is_some() && target.snapshot_interval().is_some() {
        let found = check.expect_ok("loading the snapshot", target.load_snapshot(&run).await);
        check.expect_equal("the snapshot", found, Some(snapshot));
        let found = check.expect_ok("loading", target.load_snapshot_segments(&run, 9).await);
        check.expect_equal("its segments", found, vec!["segment".to_owned()]);
    }

    let claim = lease_claim("ann", 5_000);
    let lease = check.expect_ok("a lease", source.acquire_lease(&run, claim, None).await);
    let fence = SessionFence::Lease(lease.clone());
    check.expect_ok("a turn", sessions(&source).append_run_items(write("run", 1, 4, "d"), fence).await);
    check.expect_ok("releasing", source.release_lease(&lease).await);
    migrate(check, &source, &target).await;
    expect_moved(&["a", "b", "c", "d"], [4, 2]).await;
}

async fn another_run_is_refused<S: Store>(check: StoreCheck, source: S, target: S) {
    for (store, count) in [(&source, 5), (&target, 3)] {
        let made = store
            .create_run(
                &"run".into(),
                &"agent".into(),
                lease_claim("ann", 1_000),
                ended_journal("run", count),
            )
            .await;
        let lease = check.expect_ok("a run", made);
        check.expect_ok("releasing", store.release_lease(&lease).await);
    }
    match migrate_store(&source, &target).await {
        Err(MigrationError::DifferentRun { seq: 2, .. }) => {}
        other => panic!("check `{}`: another run is not refused: {other:?}", check.0),
    }
    let missing = target.acquire_lease(&"other".into(), lease_claim("ann", 1_000), None).await;
    check.expect_error("nothing else is there", missing, StoreErrorKind::RunNotFound);
}

//! What every store must do with runs, leases, lines, posted decisions and artefacts.

use std::future::Future;

use futures_util::future::{join, join_all};
use windlass_core::{AgentName, CallPath, Decided, Decision, Line, Reach, RunId, Timestamp};

use super::check::{Check, claim, digest, lines};
use crate::error::StoreErrorKind;
use crate::store::{Durability, Lease, Posted, RunStatus, Snapshot, Store, StoredRun};

pub(super) async fn suite<S, F, Fut>(make: &F)
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    a_new_run_is_listed(Check("a new run is listed"), make().await).await;
    a_run_is_made_once(Check("a run is made once"), make().await).await;
    the_newest_run_is_first(Check("the newest run is first"), make().await).await;
    a_lease_keeps_others_out(Check("a lease keeps others out"), make().await).await;
    a_lease_can_be_renewed(Check("a lease can be renewed"), make().await).await;
    a_released_run_is_free(Check("a released run is free"), make().await).await;
    one_of_many_takes_over(Check("one of many takes over"), make().await).await;
    a_late_owner_is_refused(Check("a late owner is refused"), make().await).await;
    lines_come_back(Check("lines come back"), make().await).await;
    lines_leave_no_gap(Check("lines leave no gap"), make().await).await;
    lines_are_all_or_none(Check("lines are all or none"), make().await).await;
    calls_are_in_order(Check("lines are in the order of the calls"), make().await).await;
    a_dropped_future_writes(Check("a dropped future writes all the same"), make().await).await;
    later_lines_can_be_read(Check("lines for later can be read at once"), make().await).await;
    runs_are_apart(Check("runs are apart"), make().await).await;
    a_mark_is_listed(Check("a mark is listed"), make().await).await;
    a_snapshot_is_the_last(Check("a snapshot is the last that was kept"), make().await).await;
    a_decision_is_posted_once(Check("a decision is posted once"), make().await).await;
    decisions_are_in_order(Check("posted decisions are in order"), make().await).await;
    artefacts_are_kept(Check("artefacts are kept"), make().await).await;
}

async fn append<S: Store>(
    store: &S,
    lease: &Lease,
    at: u64,
    lines: Vec<Line>,
) -> Result<(), crate::StoreError> {
    store.append(lease, at, lines, Durability::Now).await
}

async fn a_new_run_is_listed<S: Store>(check: Check, store: S) {
    check.same("the runs of an empty store", check.done("listing", store.runs().await), Vec::new());
    let lease = check.run(&store, "run", "ann").await;
    let expected = Lease { run: "run".into(), owner: "ann".to_owned(), epoch: 1 };
    check.same("the lease", lease, expected);
    let listed = StoredRun {
        run: "run".into(),
        agent: "agent".into(),
        status: RunStatus::Running,
        records: 0,
        owner: Some(("ann".to_owned(), Timestamp(2_000))),
        created: Timestamp(1_000),
        updated: Timestamp(1_000),
    };
    check.same("the list", check.done("listing", store.runs().await), vec![listed]);
}

async fn a_run_is_made_once<S: Store>(check: Check, store: S) {
    let (run, agent) = (RunId::from("run"), AgentName::from("agent"));
    let made = join_all((0..8).map(|_| store.create(&run, &agent, claim("ann", 1_000)))).await;
    check.same("how many of eight made it", made.iter().filter(|made| made.is_ok()).count(), 1);
    for refused in made.into_iter().filter(Result::is_err) {
        check.refused("making it again", refused, StoreErrorKind::Exists);
    }
    let late = store.create(&run, &agent, claim("bea", 9_000)).await;
    check.refused("making it after its lease ran out", late, StoreErrorKind::Exists);
}

async fn the_newest_run_is_first<S: Store>(check: Check, store: S) {
    let agent = AgentName::from("agent");
    for (name, at) in [("b", 2_000), ("old", 1_000), ("a", 2_000), ("new", 3_000)] {
        check.done("making a run", store.create(&name.into(), &agent, claim("ann", at)).await);
    }
    let names: Vec<_> = check.done("listing", store.runs().await).into_iter().map(|run| run.run).collect();
    check.same("the list", names, ["new", "b", "a", "old"].map(RunId::from).to_vec());
}

async fn a_lease_keeps_others_out<S: Store>(check: Check, store: S) {
    let run = RunId::from("run");
    check.refused(
        "taking an unknown run",
        store.acquire(&run, claim("ann", 1_000)).await,
        StoreErrorKind::NoSuchRun,
    );
    check.run(&store, "run", "ann").await;
    let early = store.acquire(&run, claim("bea", 1_999)).await;
    check.refused("taking it while it is owned", early, StoreErrorKind::Leased);
    let again = check.done("taking one's own", store.acquire(&run, claim("ann", 1_500)).await);
    check.same("the epoch after taking one's own", again.epoch, 2);
    let taken =
        check.done("taking it when the lease has run out", store.acquire(&run, claim("bea", 2_500)).await);
    check.same("the lease", taken, Lease { run, owner: "bea".to_owned(), epoch: 3 });
    let listed = check.done("listing", store.runs().await);
    check.same("the owner in the list", listed[0].owner.clone(), Some(("bea".to_owned(), Timestamp(3_500))));
}

async fn a_lease_can_be_renewed<S: Store>(check: Check, store: S) {
    let lease = check.run(&store, "run", "ann").await;
    check.done("renewing", store.renew(&lease, Timestamp(5_000)).await);
    let early = store.acquire(&lease.run, claim("bea", 4_999)).await;
    check.refused("taking it while it is owned", early, StoreErrorKind::Leased);
    check.done("taking it when the lease has run out", store.acquire(&lease.run, claim("bea", 5_000)).await);
    let unknown = Lease { run: "other".into(), ..lease };
    check.refused(
        "renewing an unknown run",
        store.renew(&unknown, Timestamp(9)).await,
        StoreErrorKind::NoSuchRun,
    );
}

async fn a_released_run_is_free<S: Store>(check: Check, store: S) {
    let lease = check.run(&store, "run", "ann").await;
    check.done("giving it back", store.release(&lease).await);
    check.done("giving it back again", store.release(&lease).await);
    check.same("the owner in the list", check.done("listing", store.runs().await)[0].owner.clone(), None);
    let taken = check.done("taking it at once", store.acquire(&lease.run, claim("bea", 1_001)).await);
    check.same("the epoch", taken.epoch, 2);
    check.done("giving back what was taken over", store.release(&lease).await);
    let third = store.acquire(&lease.run, claim("cem", 1_002)).await;
    check.refused("taking what the second owner has", third, StoreErrorKind::Leased);
    let unknown = Lease { run: "other".into(), ..lease };
    check.done("giving back an unknown run", store.release(&unknown).await);
}

async fn one_of_many_takes_over<S: Store>(check: Check, store: S) {
    let lease = check.run(&store, "run", "ann").await;
    let owners: Vec<String> = (0..8).map(|one| format!("owner-{one}")).collect();
    let taken = join_all(owners.iter().map(|owner| store.acquire(&lease.run, claim(owner, 3_000)))).await;
    check.same("how many of eight took it over", taken.iter().filter(|taken| taken.is_ok()).count(), 1);
    for refused in taken.into_iter().filter(Result::is_err) {
        check.refused("taking it over after somebody else did", refused, StoreErrorKind::Leased);
    }
}

async fn a_late_owner_is_refused<S: Store>(check: Check, store: S) {
    let late = check.run(&store, "run", "ann").await;
    let lines = lines(3);
    check.done("a line of the first owner", append(&store, &late, 0, lines[..1].to_vec()).await);
    let owner = check.done("taking over", store.acquire(&late.run, claim("bea", 2_000)).await);
    let refused = StoreErrorKind::Fenced;
    check.refused("a late line", append(&store, &late, 1, lines[1..2].to_vec()).await, refused);
    check.refused("a late line out of place", append(&store, &late, 7, lines[1..2].to_vec()).await, refused);
    let later = store.append(&late, 1, lines[1..2].to_vec(), Durability::Later).await;
    check.refused("a late line for later", later, refused);
    check.refused("a late renewal", store.renew(&late, Timestamp(90_000)).await, refused);
    check.refused("a late mark", store.mark(&late, RunStatus::Failed, Timestamp(9)).await, refused);
    let same_name = check.done("taking over again", store.acquire(&late.run, claim("bea", 2_500)).await);
    check.refused(
        "an older lease of the same owner",
        append(&store, &owner, 1, lines[1..].to_vec()).await,
        refused,
    );
    check.done("a line of the new owner", append(&store, &same_name, 1, lines[1..].to_vec()).await);
    check.same("the lines", check.done("loading", store.load(&late.run, 0).await), lines);
    let listed = check.done("listing", store.runs().await).remove(0);
    check.same("the state", (listed.status, listed.updated), (RunStatus::Running, Timestamp(1_000)));
}

async fn lines_come_back<S: Store>(check: Check, store: S) {
    let lease = check.run(&store, "run", "ann").await;
    let lines = lines(50);
    check.done("one line", append(&store, &lease, 0, lines[..1].to_vec()).await);
    check.done("many lines", append(&store, &lease, 1, lines[1..49].to_vec()).await);
    check.done("no line", append(&store, &lease, 49, Vec::new()).await);
    check.done("one line more", append(&store, &lease, 49, lines[49..].to_vec()).await);
    for from in [0, 1, 48, 49, 50, 51, 1_000] {
        let expected = lines.get(from as usize..).unwrap_or_default().to_vec();
        let found = check.done("loading", store.load(&lease.run, from).await);
        check.same(&format!("the lines from {from} on"), found, expected);
    }
    let unknown = check.done("loading an unknown run", store.load(&"other".into(), 0).await);
    check.same("its lines", unknown, Vec::new());
    check.same("the count in the list", check.done("listing", store.runs().await)[0].records, 50);
    let unknown = Lease { run: "other".into(), ..lease };
    check.refused(
        "a line of an unknown run",
        append(&store, &unknown, 0, lines).await,
        StoreErrorKind::NoSuchRun,
    );
}

/// A store need not keep any.
async fn a_snapshot_is_the_last<S: Store>(check: Check, store: S) {
    let late = check.run(&store, "run", "ann").await;
    check.done("lines", append(&store, &late, 0, lines(3)).await);
    let snapshot = |records: u64| Snapshot {
        records,
        head: lines(records)[records as usize - 1].hash,
        body: format!("what {records} records add up to"),
    };
    let none = check.done("asking before there is one", store.snapshot(&late.run).await);
    check.same("the snapshot", none, None);
    check.done("a snapshot", store.keep_snapshot(&late, snapshot(1)).await);
    check.done("another", store.keep_snapshot(&late, snapshot(2)).await);
    let lease = check.done("taking over", store.acquire(&late.run, claim("bob", 9_000)).await);
    // Whether a late owner is refused or nothing comes of it: the run's new owner is not harmed.
    store.keep_snapshot(&late, snapshot(3)).await.ok();
    match check.done("asking", store.snapshot(&lease.run).await) {
        Some(found) => check.same("the snapshot", found, snapshot(2)),
        None => check.same("whether snapshots are wanted", store.snapshot_every(), None),
    }
    let unknown = check.done("asking of an unknown run", store.snapshot(&"other".into()).await);
    check.same("its snapshot", unknown, None);
}

async fn lines_leave_no_gap<S: Store>(check: Check, store: S) {
    let lease = check.run(&store, "run", "ann").await;
    let lines = lines(4);
    let stale = StoreErrorKind::Stale;
    check.refused("a line before the first", append(&store, &lease, 1, lines[1..2].to_vec()).await, stale);
    check.done("two lines", append(&store, &lease, 0, lines[..2].to_vec()).await);
    check.refused("a line again", append(&store, &lease, 1, lines[1..2].to_vec()).await, stale);
    check.refused("a line too early", append(&store, &lease, 3, lines[3..].to_vec()).await, stale);
    check.refused("the first line again", append(&store, &lease, 0, lines[..1].to_vec()).await, stale);
    check.done("the next line", append(&store, &lease, 2, lines[2..3].to_vec()).await);
    check.same("the lines", check.done("loading", store.load(&lease.run, 0).await), lines[..3].to_vec());
}

async fn lines_are_all_or_none<S: Store>(check: Check, store: S) {
    let lease = check.run(&store, "run", "ann").await;
    let lines = lines(20);
    // Of two that both have the place, one has all of it.
    let (left, right) = (lines[..10].to_vec(), lines[..15].to_vec());
    let both =
        join_all([append(&store, &lease, 0, left.clone()), append(&store, &lease, 0, right.clone())]).await;
    let expected = match (&both[0], &both[1]) {
        (Ok(()), Err(_)) => left,
        (Err(_), Ok(())) => right,
        _ => panic!("check `{}`: of two appends in one place, not one was done: {both:?}", check.0),
    };
    check.same("the lines", check.done("loading", store.load(&lease.run, 0).await), expected);
}

async fn calls_are_in_order<S: Store>(check: Check, store: S) {
    let lease = check.run(&store, "run", "ann").await;
    let lines = lines(200);
    let appends: Vec<_> = (0..)
        .zip(&lines)
        .map(|(at, line)| {
            let durability = if at % 3 == 0 { Durability::Later } else { Durability::Now };
            store.append(&lease, at, vec![line.clone()], durability)
        })
        .collect();
    // Awaited in another order than they were called in.
    for (at, append) in appends.into_iter().enumerate().rev() {
        check.done(&format!("line {at}"), append.await);
    }
    check.same("the lines", check.done("loading", store.load(&lease.run, 0).await), lines);
}

async fn a_dropped_future_writes<S: Store>(check: Check, store: S) {
    let lease = check.run(&store, "run", "ann").await;
    let lines = lines(2);
    drop(store.append(&lease, 0, lines[..1].to_vec(), Durability::Now));
    check.done("the line after it", append(&store, &lease, 1, lines[1..].to_vec()).await);
    check.same("the lines", check.done("loading", store.load(&lease.run, 0).await), lines);
}

async fn later_lines_can_be_read<S: Store>(check: Check, store: S) {
    let lease = check.run(&store, "run", "ann").await;
    let lines = lines(100);
    for (at, line) in (0..).zip(&lines) {
        check.done("a line for later", store.append(&lease, at, vec![line.clone()], Durability::Later).await);
        check.same("how many can be read", check.done("loading", store.load(&lease.run, at).await).len(), 1);
    }
    check.same("the lines", check.done("loading", store.load(&lease.run, 0).await), lines);
}

async fn runs_are_apart<S: Store>(check: Check, store: S) {
    let names: Vec<String> = (0..16).map(|one| format!("run-{one}")).collect();
    let lines = lines(20);
    join_all(names.iter().map(async |name| {
        let lease = check.run(&store, name, name).await;
        for (at, line) in (0..).zip(&lines) {
            // Requests that are refused do no harm to those that are carried out beside them.
            let wrong = append(&store, &lease, at + 5, vec![line.clone()]);
            let right = append(&store, &lease, at, vec![line.clone()]);
            let (wrong, right) = join(wrong, right).await;
            check.refused("a line out of place", wrong, StoreErrorKind::Stale);
            check.done("a line in its place", right);
        }
    }))
    .await;
    for name in &names {
        let found = check.done("loading", store.load(&name.as_str().into(), 0).await);
        check.same("the lines", found, lines.clone());
    }
}

async fn a_mark_is_listed<S: Store>(check: Check, store: S) {
    let lease = check.run(&store, "run", "ann").await;
    let states =
        [RunStatus::Paused, RunStatus::Finished, RunStatus::Failed, RunStatus::Cancelled, RunStatus::Running];
    for (at, status) in (5_000..).zip(states) {
        check.done("marking", store.mark(&lease, status, Timestamp(at)).await);
        let listed = check.done("listing", store.runs().await).remove(0);
        let found = (listed.status, listed.created, listed.updated);
        check.same("the state", found, (status, Timestamp(1_000), Timestamp(at)));
    }
}

fn posted(path: &str, shown: &str, decision: Decision, by: &str) -> Posted {
    let path = CallPath::from(path);
    let call = path.call().clone();
    let by = Some(by.to_owned());
    Posted {
        path,
        attempt: 0,
        decided: Decided { call, digest: digest(shown), decision, reach: Reach::Call, by },
    }
}

async fn a_decision_is_posted_once<S: Store>(check: Check, store: S) {
    let lease = check.run(&store, "run", "ann").await;
    let yes = posted("c1", "shown", Decision::Approve, "bea");
    check.done("a decision", store.post(&lease.run, yes.clone()).await);
    let again = posted("c1", "shown", Decision::Approve, "cem");
    check.done("the same by somebody else", store.post(&lease.run, again).await);
    let no = posted("c1", "shown", Decision::Reject { message: None }, "bea");
    check.refused("another", store.post(&lease.run, no.clone()).await, StoreErrorKind::Decided);
    let later = Posted { attempt: 1, ..no.clone() };
    check.done("one about a later question", store.post(&lease.run, later.clone()).await);
    let inner = Posted { path: "outer/c1".into(), ..no };
    check.done("one about the call of that name inside another", store.post(&lease.run, inner.clone()).await);
    let expected = vec![yes.clone(), later, inner];
    check.same("what was posted", check.done("reading", store.posted(&lease.run).await), expected);
    let unknown = store.post(&"other".into(), yes).await;
    check.refused("a decision for an unknown run", unknown, StoreErrorKind::NoSuchRun);
    check.same("what it has", check.done("reading", store.posted(&"other".into()).await), Vec::new());
}

async fn decisions_are_in_order<S: Store>(check: Check, store: S) {
    let lease = check.run(&store, "run", "ann").await;
    let decisions = [
        posted("z", "1", Decision::ApproveEdited { arguments: "{\"a\":1}".to_owned() }, "bea"),
        posted("a", "2", Decision::Reject { message: Some("too dear".to_owned()) }, "bea"),
        posted("m", "3", Decision::Happened { output: "done".into() }, "bea"),
        posted("b/c/d", "4", Decision::Unknown, "bea"),
    ];
    for decision in &decisions {
        check.done("a decision", store.post(&lease.run, decision.clone()).await);
    }
    check.same("what was posted", check.done("reading", store.posted(&lease.run).await), decisions.to_vec());
}

async fn artefacts_are_kept<S: Store>(check: Check, store: S) {
    let lease = check.run(&store, "run", "ann").await;
    let long = "a line that is long\n".repeat(10_000);
    check.done("keeping", store.keep_artefact(&lease.run, "c1", "short").await);
    check.done("keeping again", store.keep_artefact(&lease.run, "c1", &long).await);
    check.same("what was kept", check.done("reading", store.artefact(&lease.run, "c1").await), Some(long));
    check.same("what was not", check.done("reading", store.artefact(&lease.run, "c2").await), None);
    check.same("another run's", check.done("reading", store.artefact(&"other".into(), "c1").await), None);
}

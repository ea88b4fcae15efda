//! The contract of a store that keeps runs and their sessions.

use std::future::Future;
use std::sync::Arc;

use windlass_core::{
    id::{AgentName, RunId, SessionId, Timestamp},
    item::Item,
    journal::{HashChain, ItemRange, JournalEntry, JournalLine, JournalRecord, RunStarted, StartHistory},
};

use super::check::{StoreCheck, lease_claim};
use crate::error::{StoreError, StoreErrorKind};
use crate::session::{SessionClaim, SessionFence, SessionState, SessionStore, SessionWrite};
use crate::store::{DerivedWrites, Durability, Lease, RunQuery, RunStatus, Store, StoredLease};

/// Checks a store that keeps sessions; any other store passes.
pub(super) async fn check_run_sessions<S, F, Fut>(make: &F)
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    if make().await.sessions().is_none() {
        return;
    }
    referenced_items_are_kept(StoreCheck("items that a run refers to are kept"), make().await).await;
    a_changed_session_is_stale(StoreCheck("a start on a changed session is stale"), make().await).await;
    one_run_holds_a_session(StoreCheck("one run holds a session"), make().await).await;
    claims_and_runs_exclude_each_other(
        StoreCheck("a claim and a run of the store do not hold a session together"),
        make().await,
    )
    .await;
    run_items_are_added_once(StoreCheck("items of a run are added once, with its lines"), make().await).await;
    a_used_id_begins_anew(StoreCheck("a run with the id of a forgotten one begins anew"), make().await).await;
    positions_are_listed(StoreCheck("the positions of runs are listed in pages"), make().await).await;
    a_status_can_be_deferred(StoreCheck("a run keeps its status until its driver sets it"), make().await)
        .await;
}

pub(super) fn sessions<S: Store>(store: &S) -> &dyn SessionStore {
    match store.sessions() {
        Some(sessions) => sessions,
        None => panic!("the store keeps no sessions any more"),
    }
}

pub(super) fn user_items(texts: &[&str]) -> Vec<Arc<Item>> {
    texts.iter().map(|text| Arc::new(Item::user(*text))).collect()
}

/// Returns the first line of a run that starts with this state of session `s`.
fn start_line(run: &str, state: SessionState) -> JournalLine {
    let mut started = RunStarted::new(RunId::from(run), AgentName::from("agent"));
    started.session = Some("s".into());
    started.history = StartHistory::referenced("s".into(), state.version, state.positions, state.items);
    let entry = JournalEntry::RunStarted(started.into());
    HashChain::default().append(&JournalRecord { seq: 0, at: Timestamp(1_000), path: Vec::new(), entry })
}

pub(super) async fn start_run<S: Store>(
    store: &S,
    run: &str,
    state: SessionState,
    now: u64,
) -> Result<Lease, StoreError> {
    let lines = vec![start_line(run, state)];
    store.create_run(&run.into(), &"agent".into(), lease_claim(run, now), lines).await
}

async fn load<S: Store>(check: StoreCheck, store: &S) -> SessionState {
    check.expect_ok("loading", sessions(store).load_session(&"s".into()).await)
}

async fn referenced_items_are_kept<S: Store>(check: StoreCheck, store: S) {
    let session = SessionId::from("s");
    check.expect_ok("adding", sessions(&store).append_items(&session, user_items(&["a", "b"])).await);
    let first = load(check, &store).await;
    check.expect_equal("the positions", first.positions.clone(), vec![ItemRange { from: 0, to: 2 }]);
    let history = StartHistory::referenced(
        session.clone(),
        first.version,
        first.positions.clone(),
        first.items.clone(),
    );
    let Some(reference) = history.reference().cloned() else { panic!("it was just made") };
    let lease = check.expect_ok("starting", start_run(&store, "one", first.clone(), 1_000).await);
    check.expect_ok("releasing", store.release_lease(&lease).await);
    let replaced = sessions(&store).replace_items(&session, first.version, user_items(&["c", "b"])).await;
    check.expect_ok("replacing", replaced);
    check.expect_ok("adding", sessions(&store).append_items(&session, user_items(&["d"])).await);
    let now = load(check, &store).await;
    check.expect_equal("the items", now.items.clone(), user_items(&["c", "b", "d"]));
    let positions = now.positions.iter().map(ItemRange::len).sum::<u64>();
    check.expect_equal("the number of positions", positions, 3);
    let loaded = check.expect_ok("loading the history", store.load_history(&reference).await);
    check.expect_equal("the history", loaded, Some(first.items));
    check.expect_ok("clearing", sessions(&store).replace_items(&session, now.version, Vec::new()).await);
    let loaded = check.expect_ok("loading the history", store.load_history(&reference).await);
    check.expect_equal("whether the history is there", loaded.is_some(), true);
    check.expect_ok("forgetting", store.forget_run(&"one".into(), None).await);
    let loaded = check.expect_ok("loading the history", store.load_history(&reference).await);
    check.expect_equal("the history that nobody refers to", loaded, None);
    check.expect_ok("adding", sessions(&store).append_items(&session, user_items(&["e"])).await);
    let added = load(check, &store).await;
    let is_new = added.positions.iter().all(|range| range.from >= 4);
    check.expect_equal("whether the position is a new one", is_new, true);
}

async fn a_changed_session_is_stale<S: Store>(check: StoreCheck, store: S) {
    let before = load(check, &store).await;
    check.expect_ok("adding", sessions(&store).append_items(&"s".into(), user_items(&["a"])).await);
    let started = start_run(&store, "one", before, 1_000).await;
    check.expect_error("starting on a session that has changed since", started, StoreErrorKind::Stale);
    let lines = check.expect_ok("loading", store.load_journal(&"one".into(), 0).await);
    check.expect_equal("the lines of a run that did not start", lines.len(), 0);
    let state = load(check, &store).await;
    check.expect_ok("starting on the session as it is", start_run(&store, "one", state, 1_000).await);
}

async fn one_run_holds_a_session<S: Store>(check: StoreCheck, store: S) {
    let session = SessionId::from("s");
    let state = load(check, &store).await;
    let one = check.expect_ok("starting", start_run(&store, "one", state.clone(), 1_000).await);
    let busy = start_run(&store, "two", state.clone(), 1_500).await;
    check.expect_error("starting while another run holds the session", busy, StoreErrorKind::SessionBusy);
    check.expect_ok("holding it again", store.hold_session(&one, &session).await);
    check.expect_ok("releasing", store.release_lease(&one).await);
    let two = check.expect_ok("starting afterwards", start_run(&store, "two", state, 1_500).await);
    let claim = lease_claim("x", 1_600);
    let again = check.expect_ok("acquiring", store.acquire_lease(&"one".into(), claim, None).await);
    let busy = store.hold_session(&again, &session).await;
    check.expect_error("holding what another run holds", busy, StoreErrorKind::SessionBusy);
    let holder = check.expect_ok("reading the holder", store.session_holder(&session).await);
    let Some(seen) = holder else { panic!("the run has an owner") };
    check.expect_equal("the holder", seen.run.clone(), Some(RunId::from("two")));
    check.expect_ok("renewing", store.renew_lease(&two, Timestamp(1_700)).await);
    check.expect_ok("freeing", store.free_session(&session, &seen).await);
    let busy = store.hold_session(&again, &session).await;
    check.expect_error("holding what a live run holds", busy, StoreErrorKind::SessionBusy);
    let seen = check.expect_ok("reading the holder", store.session_holder(&session).await);
    let Some(seen) = seen else { panic!("the run has an owner") };
    check.expect_ok("freeing", store.free_session(&session, &seen).await);
    check.expect_ok("holding what was freed", store.hold_session(&again, &session).await);
    let write = SessionWrite {
        session: session.clone(),
        run: "two".into(),
        from: 0,
        to: 1,
        items: user_items(&["late"]),
    };
    let late = store.append_with_writes(&two, 1, Vec::new(), Durability::Sync, derived(&write)).await;
    check.expect_error("adding to a session that was taken over", late, StoreErrorKind::SessionBusy);
    for fence in [SessionFence::Lease(two), SessionFence::Unheld, SessionFence::Claim("x".to_owned())] {
        let late = sessions(&store).append_run_items(write.clone(), fence).await;
        check.expect_error("adding to a session that was taken over", late, StoreErrorKind::SessionBusy);
    }
    let fenced = sessions(&store).append_run_items(write.clone(), SessionFence::Lease(one.clone())).await;
    check.expect_error("adding with a lease that was taken over", fenced, StoreErrorKind::Fenced);
    let fenced = store.hold_session(&one, &session).await;
    check.expect_error("holding with a lease that was taken over", fenced, StoreErrorKind::Fenced);
    check.expect_equal("the items", load(check, &store).await.items, Vec::new());
}

/// The driver of a run of another store and the driver of a run of this one never hold a session together, and neither
/// appends after the other took over.
async fn claims_and_runs_exclude_each_other<S: Store>(check: StoreCheck, store: S) {
    let session = SessionId::from("s");
    let claim = async |owner: &str, abandoned: Option<&StoredLease>| {
        let claimed = sessions(&store).claim_session(&session, lease_claim(owner, 1_000), abandoned).await;
        check.expect_ok("claiming", claimed)
    };
    if claim("ann", None).await == SessionClaim::ProcessLocal {
        return;
    }
    let state = load(check, &store).await;
    let busy = start_run(&store, "one", state.clone(), 1_000).await;
    check.expect_error("starting while a claim holds the session", busy, StoreErrorKind::SessionBusy);
    let holder = check.expect_ok("reading the holder", store.session_holder(&session).await);
    let Some(ann) = holder else { panic!("the session is claimed") };
    check.expect_equal("the run of a claimant", ann.run.clone(), None);
    check.expect_equal("the claimant", ann.lease.owner.as_str(), "ann");
    check.expect_equal("the renewal", claim("ann", None).await, SessionClaim::Granted);
    check.expect_ok("freeing what was renewed", store.free_session(&session, &ann).await);
    let busy = start_run(&store, "one", state.clone(), 1_000).await;
    check.expect_error("starting while a claim holds the session", busy, StoreErrorKind::SessionBusy);
    let holder = check.expect_ok("reading the holder", store.session_holder(&session).await);
    let Some(ann) = holder else { panic!("the session is claimed") };
    check.expect_ok("freeing", store.free_session(&session, &ann).await);
    let one = check.expect_ok("starting", start_run(&store, "one", state, 1_000).await);
    let of_run = |run: &str, text: &str| SessionWrite {
        session: session.clone(),
        run: run.into(),
        from: 0,
        to: 1,
        items: user_items(&[text]),
    };
    let by = |owner: &str| SessionFence::Claim(owner.to_owned());
    let late = sessions(&store).append_run_items(of_run("elsewhere", "late"), by("ann")).await;
    check.expect_error("adding with a claim that was taken over", late, StoreErrorKind::SessionBusy);
    let SessionClaim::Held(seen) = claim("bea", None).await else { panic!("the run holds the session") };
    check.expect_ok("renewing", store.renew_lease(&one, Timestamp(1_700)).await);
    let held = claim("bea", Some(&seen)).await;
    let SessionClaim::Held(seen) = held else { panic!("the run has renewed its lease") };
    check.expect_equal("the claim", claim("bea", Some(&seen)).await, SessionClaim::Granted);
    let write = of_run("one", "late");
    let late = store.append_with_writes(&one, 1, Vec::new(), Durability::Sync, derived(&write)).await;
    check.expect_error("adding with lines after a claim", late, StoreErrorKind::SessionBusy);
    let late = sessions(&store).append_run_items(write, SessionFence::Lease(one)).await;
    check.expect_error("adding after a claim", late, StoreErrorKind::SessionBusy);
    check.expect_equal("the items", load(check, &store).await.items, Vec::new());
    let added = sessions(&store).append_run_items(of_run("elsewhere", "a"), by("bea")).await;
    check.expect_ok("adding with the claim", added);
    check.expect_equal("the items", load(check, &store).await.items, user_items(&["a"]));
}

/// The items alone, as what an append writes beside its lines.
fn derived(write: &SessionWrite) -> DerivedWrites {
    DerivedWrites { sessions: vec![write.clone()], ..DerivedWrites::default() }
}

async fn run_items_are_added_once<S: Store>(check: StoreCheck, store: S) {
    let state = load(check, &store).await;
    let lease = check.expect_ok("starting", start_run(&store, "one", state, 1_000).await);
    let write =
        SessionWrite { session: "s".into(), run: "one".into(), from: 0, to: 1, items: user_items(&["a"]) };
    let lines = super::check::journal_lines(2).split_off(1);
    let stale = store.append_with_writes(&lease, 7, lines.clone(), Durability::Sync, derived(&write)).await;
    check.expect_error("adding with lines that leave a gap", stale, StoreErrorKind::Stale);
    check.expect_equal("the items", load(check, &store).await.items, Vec::new());
    let added = store.append_with_writes(&lease, 1, lines, Durability::Sync, derived(&write)).await;
    check.expect_ok("adding", added);
    let again = sessions(&store).append_run_items(write, SessionFence::Lease(lease)).await;
    check.expect_ok("adding again", again);
    check.expect_equal("the items", load(check, &store).await.items, user_items(&["a"]));
    let position = sessions(&store).run_position(&"s".into(), &"one".into()).await;
    check.expect_equal("the position of the run", check.expect_ok("reading", position), 1);
}

async fn a_used_id_begins_anew<S: Store>(check: StoreCheck, store: S) {
    let write = |text: &str| SessionWrite {
        session: "s".into(),
        run: "one".into(),
        from: 0,
        to: 1,
        items: user_items(&[text]),
    };
    for text in ["a", "b"] {
        let state = load(check, &store).await;
        let lease = check.expect_ok("starting", start_run(&store, "one", state, 1_000).await);
        let position = sessions(&store).run_position(&"s".into(), &"one".into()).await;
        check.expect_equal("the position of a new run", check.expect_ok("reading", position), 0);
        let added = store.append_with_writes(&lease, 1, Vec::new(), Durability::Sync, derived(&write(text)));
        check.expect_ok("adding", added.await);
        check.expect_ok("releasing", store.release_lease(&lease).await);
        check.expect_ok("forgetting", store.forget_run(&"one".into(), None).await);
    }
    check.expect_equal("the items of both", load(check, &store).await.items, user_items(&["a", "b"]));
}

/// Runs of this store and of others, in the order of the bytes of their ids.
async fn positions_are_listed<S: Store>(check: StoreCheck, store: S) {
    for (run, session, to) in [("b", "s", 2), ("a", "s", 1), ("B", "s", 3), ("é", "s", 4), ("c", "t", 9)] {
        let write = SessionWrite { session: session.into(), run: run.into(), from: 0, to, items: Vec::new() };
        let added = sessions(&store).append_run_items(write, SessionFence::Unheld).await;
        check.expect_ok("adding", added);
    }
    let list = async |after: Option<&str>, limit| {
        let after = after.map(RunId::from);
        let listed = sessions(&store).list_run_positions(&"s".into(), after.as_ref(), limit).await;
        check.expect_ok("listing", listed)
    };
    let expected =
        |of: &[(&str, u64)]| of.iter().map(|(run, to)| (RunId::from(*run), *to)).collect::<Vec<_>>();
    check.expect_equal("all", list(None, 9).await, expected(&[("B", 3), ("a", 1), ("b", 2), ("é", 4)]));
    check.expect_equal("the first page", list(None, 2).await, expected(&[("B", 3), ("a", 1)]));
    check.expect_equal("the next page", list(Some("a"), 2).await, expected(&[("b", 2), ("é", 4)]));
    check.expect_equal("the last page", list(Some("é"), 2).await, Vec::new());
}

async fn a_status_can_be_deferred<S: Store>(check: StoreCheck, store: S) {
    let lines = super::migration::ended_journal("run", 2);
    let claim = lease_claim("ann", 1_000);
    let lease = store.create_run(&"run".into(), &"agent".into(), claim, lines[..1].to_vec()).await;
    let lease = check.expect_ok("a run", lease);
    let writes = DerivedWrites { is_status_deferred: true, ..DerivedWrites::default() };
    let ended = store.append_with_writes(&lease, 1, lines[1..].to_vec(), Durability::Sync, writes).await;
    check.expect_ok("its end", ended);
    let status = async || {
        let runs = check.expect_ok("listing", store.list_runs(&RunQuery::default()).await);
        runs.first().map(|run| (run.status, run.record_count))
    };
    check.expect_equal("its status before", status().await, Some((RunStatus::Running, 2)));
    check.expect_ok("marking", store.set_status(&lease, RunStatus::Finished, Timestamp(9)).await);
    check.expect_equal("its status after", status().await, Some((RunStatus::Finished, 2)));
}

//! The contract of a store for lists of runs, and for forgetting them.

use std::future::Future;

use windlass_core::{
    decision::Decision,
    id::{AgentName, RunId, SessionId, Timestamp},
    item::{ContentPart, Item, MediaSource, Message, Role},
    journal::{HashChain, JournalEntry, JournalRecord, RunStarted},
};

use super::check::{StoreCheck, journal_lines, lease_claim, sample_digest, stored_lease};
use super::decisions::posted_decision;
use super::runs::append_line;
use crate::error::StoreErrorKind;
use crate::store::{
    RetentionPolicy, RunCursor, RunQuery, RunStatus, Store, StoredRun, apply_retention, list_all_runs,
};

pub(super) async fn check_run_lists<S, F, Fut>(make: &F)
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    runs_are_listed_in_pages(StoreCheck("runs are listed in pages"), make().await).await;
    filters_are_combined(StoreCheck("the filters of a list are combined"), make().await).await;
    a_forgotten_run_is_gone(StoreCheck("a forgotten run is gone"), make().await).await;
    a_driven_run_is_not_forgotten(StoreCheck("a driven run is not forgotten"), make().await).await;
    referenced_media_are_kept(StoreCheck("media that another run shows are kept"), make().await).await;
    media_of_sessions_are_kept(StoreCheck("media that a session shows are kept"), make().await).await;
    old_runs_are_forgotten(StoreCheck("old runs are forgotten by status"), make().await).await;
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

/// Returns a message with a picture of the run `run`.
fn item_with_media(name: &str) -> Item {
    let url = Some(format!("artefact:run/{name}"));
    let mut message = Message::new(Role::User, "look");
    message.content.push(ContentPart::Image(MediaSource { url, ..MediaSource::default() }));
    Item::Message(message)
}

async fn referenced_media_are_kept<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let fork = check.create_run(&store, "fork", "ann").await;
    let (shown, unused) = (sample_digest("shown").to_string(), sample_digest("unused").to_string());
    for name in [&shown, &unused] {
        check.expect_ok("media", store.save_artefact(&lease, name, b"AAAA").await);
    }
    let mut started = RunStarted::new("fork".into(), "agent".into());
    started.input = vec![item_with_media(&shown).into()];
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

async fn media_of_sessions_are_kept<S: Store>(check: StoreCheck, store: S) {
    let Some(sessions) = store.sessions() else { return };
    let lease = check.create_run(&store, "run", "ann").await;
    let (shown, unused) = (sample_digest("shown").to_string(), sample_digest("unused").to_string());
    for name in [&shown, &unused] {
        check.expect_ok("media", store.save_artefact(&lease, name, b"AAAA").await);
    }
    let item = item_with_media(&shown);
    check.expect_ok("an item", sessions.append_items(&"s".into(), vec![item.into()]).await);
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

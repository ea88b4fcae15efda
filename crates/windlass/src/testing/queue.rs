//! The contract of a queue of runs.

use std::future::Future;

use futures_util::future::join_all;
use windlass_core::{
    canonical::Digest,
    decision::{Decision, DecisionScope},
    id::{AgentName, CallPath, RunId, Timestamp},
    item::Item,
    journal::DecisionRecorded,
};

use super::check::{StoreCheck, lease_claim, stored_lease};
use super::schedules::{schedules_are_kept, schedules_submit_runs};
use crate::error::StoreErrorKind;
use crate::fleet::{
    AgentOffer, NextStep, PostedOrder, QueueFilter, QueueOrder, QueuedRun, QueuedState, ReadyRunsQuery,
    RunDeparture, RunQueue, RunSubmission, SubmitResult, TakenRun, TakenWork, WorkRequest,
};
use crate::store::{Lease, PostedDecision, RunQuery, RunStatus};

/// Checks the contract of a queue. `make` creates an empty store for each check.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// windlass::testing::run_queue_suite(async || windlass::store::MemoryStore::default()).await;
/// # }
/// ```
///
/// # Panics
///
/// Panics if the queue violates the contract, with the name of the check, the operation and its result.
pub async fn run_queue_suite<Q, F, Fut>(make: F)
where
    Q: RunQueue,
    F: Fn() -> Fut,
    Fut: Future<Output = Q>,
{
    a_run_is_submitted_once(StoreCheck("a run is submitted once"), make().await).await;
    runs_are_taken_fairly(StoreCheck("runs are taken fairly"), make().await).await;
    only_what_can_be_driven_is_taken(StoreCheck("only what can be driven is taken"), make().await).await;
    a_run_is_taken_once(StoreCheck("a run is taken by one of many workers"), make().await).await;
    an_engine_names_the_run(StoreCheck("an engine names the run"), make().await).await;
    a_lost_answer_is_repeated(StoreCheck("a lost answer is repeated"), make().await).await;
    lost_runs_count(StoreCheck("runs that are returned again count"), make().await).await;
    a_workers_beat_is_its_runs_beat(StoreCheck("a worker's beat is its runs' beat"), make().await).await;
    a_retired_worker_is_fenced(StoreCheck("a retired worker is fenced off"), make().await).await;
    one_lost_run_retires_the_worker(StoreCheck("one lost run retires the worker"), make().await).await;
    a_segment_is_left_at_once(StoreCheck("a segment is left in one transaction"), make().await).await;
    a_decision_wakes_a_parked_run(StoreCheck("a decision wakes a parked run"), make().await).await;
    times_wake_runs(StoreCheck("times wake runs"), make().await).await;
    failures_are_bounded(StoreCheck("failures are bounded"), make().await).await;
    orders_reach_their_run(StoreCheck("orders reach their run"), make().await).await;
    orders_end_a_delay(StoreCheck("orders end a delay"), make().await).await;
    a_forgotten_run_leaves_the_queue(StoreCheck("a forgotten run leaves the queue"), make().await).await;
    schedules_are_kept(StoreCheck("schedules are kept"), make().await).await;
    schedules_submit_runs(StoreCheck("schedules submit runs"), make().await).await;
    open_runs_are_listed(StoreCheck("open runs are listed in pages"), make().await).await;
}

fn submission(run: &str) -> RunSubmission {
    RunSubmission::new(run, "agent", format!("go {run}"))
}

async fn submit<Q: RunQueue>(check: StoreCheck, queue: &Q, submission: RunSubmission) {
    check.expect_ok("submitting", queue.submit_run(&submission, Timestamp(1_000)).await);
}

async fn register<Q: RunQueue>(check: StoreCheck, queue: &Q, worker: &str) {
    check.expect_ok("registering", queue.register_worker(lease_claim(worker, 1_000)).await);
}

fn request(worker: &str, now: u64, limit: u32) -> WorkRequest {
    let offer = AgentOffer { agent: AgentName::from("agent"), build: "b1".to_owned() };
    let (worker, now, offers) = (worker.to_owned(), Timestamp(now), vec![offer]);
    WorkRequest { worker, now, held: None, offers, limit, only: None }
}

async fn take<Q: RunQueue>(check: StoreCheck, queue: &Q, worker: &str, now: u64) -> TakenWork {
    check.expect_ok("taking", queue.take_work(&request(worker, now, 100)).await)
}

fn names(work: &TakenWork) -> Vec<&str> {
    work.runs.iter().map(|taken| taken.submission.run.as_str()).collect()
}

fn departure(worker: &str, run: &str, next: NextStep) -> RunDeparture {
    RunDeparture {
        worker: worker.to_owned(),
        run: RunId::from(run),
        lease: None,
        status: None,
        now: Timestamp(5_000),
        signals_seen: 0,
        orders_done: 0,
        next,
    }
}

async fn leave<Q: RunQueue>(check: StoreCheck, queue: &Q, worker: &str, run: &str, next: NextStep) {
    check.expect_ok("leaving", queue.leave_run(&departure(worker, run, next)).await);
}

async fn load<Q: RunQueue>(check: StoreCheck, queue: &Q, run: &str) -> Option<QueuedRun> {
    check.expect_ok("loading a queued run", queue.load_queued_run(&RunId::from(run)).await)
}

async fn state_of<Q: RunQueue>(check: StoreCheck, queue: &Q, run: &str) -> Option<QueuedState> {
    load(check, queue, run).await.map(|queued| queued.state)
}

async fn a_run_is_submitted_once<Q: RunQueue>(check: StoreCheck, queue: Q) {
    check.expect_equal("a run that was not submitted", load(check, &queue, "run").await, None);
    let given = submission("run").tenant("ann").priority(-3).session("talk").max_attempts(7);
    let at = |now| queue.submit_run(&given, Timestamp(now));
    check.expect_equal("the first", check.expect_ok("submitting", at(1).await), SubmitResult::Accepted);
    let again = check.expect_ok("submitting again", at(2_000).await);
    check.expect_equal("the second", again, SubmitResult::AlreadySubmitted);
    let other = given.clone().priority(1);
    check.expect_error(
        "another run of the same id",
        queue.submit_run(&other, Timestamp(1)).await,
        StoreErrorKind::AlreadyExists,
    );
    let expected = QueuedRun {
        submission: given,
        state: QueuedState::Ready,
        attempt: 0,
        reason: None,
        declined_by: Vec::new(),
    };
    check.expect_equal("the queued run", load(check, &queue, "run").await, Some(expected));
    let listed = check.expect_ok("listing", queue.list_runs(&RunQuery::default()).await);
    check.expect_equal("the runs of the store", listed, Vec::new());
}

async fn runs_are_taken_fairly<Q: RunQueue>(check: StoreCheck, queue: Q) {
    register(check, &queue, "w").await;
    for number in 0..6 {
        submit(check, &queue, submission(&format!("ann-{number}")).tenant("ann")).await;
    }
    submit(check, &queue, submission("bea-0").tenant("bea")).await;
    submit(check, &queue, submission("bea-1").tenant("bea").priority(5)).await;
    let mut taken = Vec::new();
    for _ in 0..8 {
        let work = check.expect_ok("taking one", queue.take_work(&request("w", 2_000, 1)).await);
        taken.extend(names(&work).into_iter().map(str::to_owned));
    }
    let expected = ["ann-0", "bea-1", "ann-1", "bea-0", "ann-2", "ann-3", "ann-4", "ann-5"];
    check.expect_equal("the order", taken, expected.map(str::to_owned).to_vec());
    check.expect_equal("what is left", take(check, &queue, "w", 2_000).await.runs, Vec::new());
}

async fn only_what_can_be_driven_is_taken<Q: RunQueue>(check: StoreCheck, queue: Q) {
    register(check, &queue, "w").await;
    submit(check, &queue, RunSubmission::new("other", "another agent", "go")).await;
    submit(check, &queue, submission("run")).await;
    submit(check, &queue, submission("later").start_at(Timestamp(9_000))).await;
    let work = take(check, &queue, "w", 2_000).await;
    let expected = TakenRun { submission: submission("run"), attempt: 1, signals: 0 };
    check.expect_equal("the taken run", work, TakenWork { runs: vec![expected], orders: Vec::new() });
    let taken = QueuedState::Taken { worker: "w".to_owned() };
    check.expect_equal("its state", state_of(check, &queue, "run").await, Some(taken));
    let (build, reason) = ("b1".to_owned(), "it lacks a tool".to_owned());
    leave(check, &queue, "w", "run", NextStep::Decline { build: build.clone(), reason: reason.clone() })
        .await;
    check.expect_equal("taking it again", take(check, &queue, "w", 2_000).await.runs, Vec::new());
    let declined = load(check, &queue, "run").await.map(|queued| queued.declined_by);
    check.expect_equal("the refusal", declined, Some(vec![(build, reason)]));
    let mut newer = request("w", 2_000, 9);
    newer.offers[0].build = "b2".to_owned();
    let work = check.expect_ok("taking with another build", queue.take_work(&newer).await);
    check.expect_equal(
        "the attempt of another build",
        work.runs.iter().map(|taken| (taken.submission.run.as_str(), taken.attempt)).collect::<Vec<_>>(),
        vec![("run", 1)],
    );
    check.expect_equal("after its time", names(&take(check, &queue, "w", 9_000).await), vec!["later"]);
    check.expect_error(
        "taking by an unknown worker",
        queue.take_work(&request("x", 1, 1)).await,
        StoreErrorKind::Fenced,
    );
}

async fn a_run_is_taken_once<Q: RunQueue>(check: StoreCheck, queue: Q) {
    for number in 0..20 {
        submit(check, &queue, submission(&format!("run-{number:02}"))).await;
    }
    let workers: Vec<String> = (0..8).map(|number| format!("w{number}")).collect();
    for worker in &workers {
        register(check, &queue, worker).await;
    }
    let requests: Vec<WorkRequest> = workers.iter().map(|worker| request(worker, 2_000, 3)).collect();
    let mut taken = Vec::new();
    for work in join_all(requests.iter().map(|request| queue.take_work(request))).await {
        let work = check.expect_ok("taking", work);
        taken.extend(names(&work).into_iter().map(str::to_owned));
    }
    // A queue may serve concurrent requests with less than there is, and never twice.
    taken.extend(names(&take(check, &queue, "w0", 2_000).await).into_iter().map(str::to_owned));
    taken.sort();
    let expected: Vec<String> = (0..20).map(|number| format!("run-{number:02}")).collect();
    check.expect_equal("all taken runs", taken, expected);
}

async fn an_engine_names_the_run<Q: RunQueue>(check: StoreCheck, queue: Q) {
    register(check, &queue, "w").await;
    for run in ["one", "two", "three"] {
        submit(check, &queue, submission(run).max_attempts(1)).await;
    }
    submit(check, &queue, submission("later").start_at(Timestamp(5_000))).await;
    submit(check, &queue, RunSubmission::new("other", "another agent", "go")).await;
    let named = |run: &str, now: u64| WorkRequest { only: Some(RunId::from(run)), ..request("w", now, 9) };
    let take_named = async |run: &str, now: u64| {
        check.expect_ok("taking a named run", queue.take_work(&named(run, now)).await)
    };
    let query = |now: u64| {
        let of = |agent: &str| AgentOffer { agent: AgentName::from(agent), build: "b1".to_owned() };
        let (offers, except) = (vec![of("agent"), of("another agent")], Vec::new());
        ReadyRunsQuery { now: Timestamp(now), offers, except, limit: 9 }
    };
    let list = async |query: ReadyRunsQuery| {
        let runs = check.expect_ok("listing ready runs", queue.list_ready_runs(&query).await);
        let mut runs: Vec<String> = runs.iter().map(|run| run.as_str().to_owned()).collect();
        runs.sort();
        runs
    };
    let named_runs = |runs: &[&str]| runs.iter().map(|&run| run.to_owned()).collect::<Vec<_>>();
    let expected = named_runs(&["one", "other", "three", "two"]);
    check.expect_equal("the ready runs", list(query(2_000)).await, expected);
    let limited = list(ReadyRunsQuery { limit: 2, ..query(9_000) }).await;
    check.expect_equal("a bounded list", limited.len(), 2);
    let except = vec!["one".into(), "later".into(), "two".into()];
    let others = list(ReadyRunsQuery { except, ..query(9_000) }).await;
    check.expect_equal("all but some", others, named_runs(&["other", "three"]));
    let offers = query(0).offers[..1].to_vec();
    let own = list(ReadyRunsQuery { offers, ..query(9_000) }).await;
    check.expect_equal("those of one agent", own, named_runs(&["later", "one", "three", "two"]));
    check.expect_equal("the named run", names(&take_named("two", 2_000).await), vec!["two"]);
    check.expect_equal("a run that is taken", names(&take_named("two", 2_000).await), vec![]);
    check.expect_equal("a run whose time has not come", names(&take_named("later", 2_000).await), vec![]);
    check.expect_equal("a run whose time has come", names(&take_named("later", 5_000).await), vec!["later"]);
    check.expect_equal(
        "a run of an agent that is not offered",
        names(&take_named("other", 2_000).await),
        vec![],
    );
    check.expect_equal("a run that was not submitted", names(&take_named("unknown", 2_000).await), vec![]);
    let declined = NextStep::Decline { build: "b1".to_owned(), reason: "no tool".to_owned() };
    leave(check, &queue, "w", "two", declined).await;
    check.expect_equal("a run that the build has declined", names(&take_named("two", 2_000).await), vec![]);
    check.expect_equal(
        "ready runs, without it",
        list(query(2_000)).await,
        named_runs(&["one", "other", "three"]),
    );
    check.expect_equal("another run", names(&take_named("one", 2_000).await), vec!["one"]);
    check.expect_ok("retiring", queue.retire_worker("w", None).await);
    register(check, &queue, "w2").await;
    let again = WorkRequest { worker: "w2".to_owned(), ..named("one", 2_000) };
    let again = check.expect_ok("taking a run whose worker died", queue.take_work(&again).await);
    check.expect_equal("its attempts are used up", names(&again), vec![]);
    let dead = Some(QueuedState::DeadLetter);
    check.expect_equal("its state", state_of(check, &queue, "one").await, dead);
}

async fn a_lost_answer_is_repeated<Q: RunQueue>(check: StoreCheck, queue: Q) {
    register(check, &queue, "w").await;
    for run in ["one", "two"] {
        submit(check, &queue, submission(run)).await;
    }
    let first = take(check, &queue, "w", 2_000).await;
    check.expect_equal("the runs", names(&first), vec!["one", "two"]);
    let having_one = WorkRequest { held: Some(vec!["one".into()]), ..request("w", 2_000, 9) };
    let again = check.expect_ok("taking without an answer", queue.take_work(&having_one).await);
    check.expect_equal("the run that the worker does not have", again.runs, first.runs[1..].to_vec());
    // A worker that is leaving a run does not take it again before it has left.
    leave(check, &queue, "w", "one", NextStep::Ready).await;
    let having_both = WorkRequest { held: Some(vec!["one".into(), "two".into()]), ..request("w", 2_000, 9) };
    let named = WorkRequest { only: Some("one".into()), ..having_both.clone() };
    for request in [&having_both, &named] {
        let none = check.expect_ok("taking a run that is held", queue.take_work(request).await);
        check.expect_equal("the run that is being left", names(&none), vec![]);
    }
    let having_two = WorkRequest { held: Some(vec!["two".into()]), ..having_both };
    let free = check.expect_ok("taking a run that was left", queue.take_work(&having_two).await);
    check.expect_equal("the run that was left", names(&free), vec!["one"]);
}

/// A worker never has more runs than it asks for, whatever was lost.
async fn lost_runs_count<Q: RunQueue>(check: StoreCheck, queue: Q) {
    register(check, &queue, "w").await;
    for number in 0..6 {
        submit(check, &queue, submission(&format!("run-{number}"))).await;
    }
    let ask = async |held: &[&str], limit: u32| {
        let held = Some(held.iter().map(|&run| RunId::from(run)).collect());
        let request = WorkRequest { held, ..request("w", 2_000, limit) };
        let work = check.expect_ok("taking", queue.take_work(&request).await);
        work.runs.into_iter().map(|taken| taken.submission.run.as_str().to_owned()).collect::<Vec<_>>()
    };
    let named = |runs: &[&str]| runs.iter().map(|&run| run.to_owned()).collect::<Vec<_>>();
    let first = named(&["run-0", "run-1", "run-2"]);
    check.expect_equal("the first request", ask(&[], 3).await, first.clone());
    for _ in 0..3 {
        check.expect_equal("the same request, repeated", ask(&[], 3).await, first.clone());
    }
    let four = named(&["run-0", "run-1", "run-2", "run-3"]);
    check.expect_equal("a request with room for one more", ask(&[], 4).await, four);
    let two = named(&["run-2", "run-3"]);
    check.expect_equal("a request for the lost ones", ask(&["run-0", "run-1"], 2).await, two);
    let held = ["run-0", "run-1", "run-2", "run-3"];
    check.expect_equal("a request for new ones", ask(&held, 2).await, named(&["run-4", "run-5"]));
}

async fn a_workers_beat_is_its_runs_beat<Q: RunQueue>(check: StoreCheck, queue: Q) {
    register(check, &queue, "w").await;
    let again = queue.register_worker(lease_claim("w", 1_000)).await;
    check.expect_error("registering again", again, StoreErrorKind::AlreadyExists);
    let workers = check.expect_ok("listing workers", queue.list_workers().await);
    check.expect_equal("the workers", workers, vec![stored_lease("w", 0, 0, 1_000)]);
    submit(check, &queue, submission("run")).await;
    take(check, &queue, "w", 2_000).await;
    let lease = check.create_run(&queue, "run", "w~1").await;
    check.expect_ok("renewing the worker", queue.renew_worker("w", Timestamp(3_000)).await);
    check.expect_ok("renewing the worker", queue.renew_worker("w", Timestamp(4_000)).await);
    let found = check.expect_ok("loading the lease", queue.load_lease(&lease.run).await);
    check.expect_equal("the lease of its run", found, Some(stored_lease("w~1", 1, 2, 4_000)));
    let listed = check.expect_ok("listing", queue.list_runs(&RunQuery::default()).await);
    check.expect_equal(
        "the lease in the list",
        listed[0].lease.clone(),
        Some(stored_lease("w~1", 1, 2, 4_000)),
    );
    let old = stored_lease("w~1", 1, 1, 3_000);
    let early = queue.acquire_lease(&lease.run, lease_claim("bea", 9_000), Some(&old)).await;
    check.expect_error("taking over after a beat of the worker", early, StoreErrorKind::LeaseHeld);
    let early = queue.retire_worker("w", Some(&stored_lease("w", 0, 1, 3_000))).await;
    check.expect_error("retiring it after its beat", early, StoreErrorKind::LeaseHeld);
}

async fn a_retired_worker_is_fenced<Q: RunQueue>(check: StoreCheck, queue: Q) {
    register(check, &queue, "w").await;
    submit(check, &queue, submission("run")).await;
    take(check, &queue, "w", 2_000).await;
    let lease = check.create_run(&queue, "run", "w~1").await;
    let seen = stored_lease("w", 0, 0, 1_000);
    check.expect_ok("retiring", queue.retire_worker("w", Some(&seen)).await);
    check.expect_ok("retiring again", queue.retire_worker("w", Some(&seen)).await);
    check.expect_equal("the workers", check.expect_ok("listing", queue.list_workers().await), Vec::new());
    let fenced = StoreErrorKind::Fenced;
    check.expect_error("a late beat", queue.renew_worker("w", Timestamp(9_000)).await, fenced);
    check.expect_error("a late request", queue.take_work(&request("w", 9_000, 1)).await, fenced);
    let late = queue.leave_run(&departure("w", "run", NextStep::End)).await;
    check.expect_error("a late departure", late, fenced);
    let late = queue.acquire_lease(&lease.run, lease_claim("w~2", 9_000), None).await;
    check.expect_error("a late lease", late, fenced);
    let late = queue.create_run(&"new".into(), &"agent".into(), lease_claim("w~3", 9_000), Vec::new()).await;
    check.expect_error("a late new run", late, fenced);
    let free = check.expect_ok("loading the lease", queue.load_lease(&lease.run).await);
    check.expect_equal("the lease", free, None);
    register(check, &queue, "v").await;
    let work = take(check, &queue, "v", 9_000).await;
    check.expect_equal("the attempt", work.runs.iter().map(|run| run.attempt).collect(), vec![2]);
    let taken = queue.acquire_lease(&lease.run, lease_claim("v~1", 9_000), None).await;
    check.expect_equal("the epoch", check.expect_ok("taking it", taken).epoch, 2);
}

async fn one_lost_run_retires_the_worker<Q: RunQueue>(check: StoreCheck, queue: Q) {
    register(check, &queue, "w").await;
    for run in ["one", "two"] {
        submit(check, &queue, submission(run)).await;
    }
    take(check, &queue, "w", 2_000).await;
    check.create_run(&queue, "one", "w~1").await;
    let two = check.create_run(&queue, "two", "w~2").await;
    let seen = stored_lease("w~1", 1, 0, 1_000);
    let taken = queue.acquire_lease(&"one".into(), lease_claim("ann", 9_000), Some(&seen)).await;
    check.expect_ok("taking one run over", taken);
    let fenced = StoreErrorKind::Fenced;
    check.expect_error("its next beat", queue.renew_worker("w", Timestamp(9_000)).await, fenced);
    check.expect_equal(
        "the lease of the other run",
        check.expect_ok("loading", queue.load_lease(&two.run).await),
        None,
    );
    check.expect_equal("the other run", state_of(check, &queue, "two").await, Some(QueuedState::Ready));
}

async fn a_segment_is_left_at_once<Q: RunQueue>(check: StoreCheck, queue: Q) {
    register(check, &queue, "w").await;
    submit(check, &queue, submission("run")).await;
    take(check, &queue, "w", 2_000).await;
    let lease = check.create_run(&queue, "run", "w~1").await;
    let mut left = departure("w", "run", NextStep::Park { wake_at: None });
    (left.lease, left.status) = (Some(lease.clone()), Some(RunStatus::Paused));
    check.expect_ok("leaving", queue.leave_run(&left).await);
    let listed = check.expect_ok("listing", queue.list_runs(&RunQuery::default()).await).remove(0);
    check.expect_equal(
        "the run",
        (listed.status, listed.lease, listed.updated_at),
        (RunStatus::Paused, None, Timestamp(5_000)),
    );
    let parked = Some(QueuedState::Parked { wake_at: None });
    check.expect_equal("its state", state_of(check, &queue, "run").await, parked);
    check.expect_equal("taking it", take(check, &queue, "w", 99_000).await.runs, Vec::new());
    check.expect_error("leaving twice", queue.leave_run(&left).await, StoreErrorKind::Fenced);
    // A driver that was fenced off leaves the queue, and the run as the next driver has it.
    submit(check, &queue, submission("lost")).await;
    take(check, &queue, "w", 2_000).await;
    let late = check.create_run(&queue, "lost", "ann").await;
    check.take_over(&queue, &late, "bea").await;
    let mut left = departure("w", "lost", NextStep::Wait { until: Timestamp(7_000) });
    (left.lease, left.status) = (Some(late), Some(RunStatus::Failed));
    check.expect_ok("leaving a lost run", queue.leave_run(&left).await);
    let owner = check.expect_ok("loading", queue.load_lease(&"lost".into()).await).map(|lease| lease.owner);
    check.expect_equal("the owner", owner, Some("bea".to_owned()));
    let ended = submission("ended");
    submit(check, &queue, ended).await;
    take(check, &queue, "w", 2_000).await;
    leave(check, &queue, "w", "ended", NextStep::End).await;
    check.expect_equal("its state", state_of(check, &queue, "ended").await, Some(QueuedState::Ended));
}

fn decision() -> PostedDecision {
    PostedDecision {
        path: CallPath::from("c1"),
        attempt: 1,
        decision: DecisionRecorded {
            call: "c1".into(),
            digest: Digest::of_text("call"),
            decision: Decision::Approve,
            scope: DecisionScope::ThisCall,
            decided_by: Some("ann".to_owned()),
            displayed: None,
            posted_revision: 0,
            signature: None,
            mac: None,
        },
        posted_at: Timestamp(6_000),
        mac: None,
    }
}

async fn a_decision_wakes_a_parked_run<Q: RunQueue>(check: StoreCheck, queue: Q) {
    register(check, &queue, "w").await;
    for run in ["parked", "busy"] {
        submit(check, &queue, submission(run)).await;
        let taken = take(check, &queue, "w", 2_000).await;
        check.expect_equal("the signals", taken.runs[0].signals, 0);
        let lease = check.create_run(&queue, run, "ann").await;
        check.expect_ok("giving it back", queue.release_lease(&lease).await);
    }
    leave(check, &queue, "w", "parked", NextStep::Park { wake_at: None }).await;
    for run in ["parked", "busy"] {
        check.expect_ok("deciding", queue.post_decision(&run.into(), decision(), 0).await);
    }
    check.expect_equal("the parked run", state_of(check, &queue, "parked").await, Some(QueuedState::Ready));
    // A decision that came while the driver was on its way out is not missed.
    leave(check, &queue, "w", "busy", NextStep::Park { wake_at: None }).await;
    check.expect_equal("the busy run", state_of(check, &queue, "busy").await, Some(QueuedState::Ready));
    let work = take(check, &queue, "w", 7_000).await;
    check.expect_equal("the signals", work.runs.iter().map(|run| run.signals).collect(), vec![1, 1]);
    let mut seen = departure("w", "busy", NextStep::Park { wake_at: None });
    seen.signals_seen = 1;
    check.expect_ok("leaving", queue.leave_run(&seen).await);
    let parked = Some(QueuedState::Parked { wake_at: None });
    check.expect_equal("a run without news", state_of(check, &queue, "busy").await, parked);
}

async fn times_wake_runs<Q: RunQueue>(check: StoreCheck, queue: Q) {
    register(check, &queue, "w").await;
    submit(check, &queue, submission("expiring")).await;
    take(check, &queue, "w", 2_000).await;
    let until = Timestamp(10_000);
    leave(check, &queue, "w", "expiring", NextStep::Park { wake_at: Some(until) }).await;
    let parked = Some(QueuedState::Parked { wake_at: Some(until) });
    check.expect_equal("its state", state_of(check, &queue, "expiring").await, parked);
    check.expect_equal("too early", take(check, &queue, "w", 9_999).await.runs, Vec::new());
    check.expect_equal("in time", names(&take(check, &queue, "w", 10_000).await), vec!["expiring"]);
    leave(check, &queue, "w", "expiring", NextStep::Wait { until: Timestamp(20_000) }).await;
    let waiting = Some(QueuedState::Waiting { until: Timestamp(20_000) });
    check.expect_equal("its state", state_of(check, &queue, "expiring").await, waiting);
    check.expect_equal("too early", take(check, &queue, "w", 19_999).await.runs, Vec::new());
    let work = take(check, &queue, "w", 20_000).await;
    check.expect_equal("its attempt", work.runs.iter().map(|run| run.attempt).collect(), vec![1]);
}

async fn failures_are_bounded<Q: RunQueue>(check: StoreCheck, queue: Q) {
    register(check, &queue, "w").await;
    submit(check, &queue, submission("run").max_attempts(2)).await;
    let failing = |at| NextStep::Retry { at: Timestamp(at), reason: format!("away at {at}") };
    take(check, &queue, "w", 2_000).await;
    leave(check, &queue, "w", "run", failing(3_000)).await;
    let waiting = load(check, &queue, "run").await.map(|run| (run.state, run.attempt, run.reason));
    let expected = (QueuedState::Waiting { until: Timestamp(3_000) }, 1, Some("away at 3000".to_owned()));
    check.expect_equal("after a failure", waiting, Some(expected));
    take(check, &queue, "w", 3_000).await;
    leave(check, &queue, "w", "run", failing(4_000)).await;
    let dead = load(check, &queue, "run").await.map(|run| (run.state, run.attempt, run.reason));
    let expected = (QueuedState::DeadLetter, 2, Some("away at 4000".to_owned()));
    check.expect_equal("after the last failure", dead, Some(expected));
    check.expect_equal("taking it", take(check, &queue, "w", 99_000).await.runs, Vec::new());
    check.expect_ok("reviving", queue.revive_run(&"run".into()).await);
    // A worker that dies with the run counts, too.
    for worker in ["w", "v"] {
        let work = take(check, &queue, worker, 99_000).await;
        check.expect_equal("the revived run", names(&work), vec!["run"]);
        check.expect_ok("retiring", queue.retire_worker(worker, None).await);
        register(check, &queue, if worker == "w" { "v" } else { "u" }).await;
    }
    check.expect_equal("after two deaths", take(check, &queue, "u", 99_000).await.runs, Vec::new());
    check.expect_equal("its state", state_of(check, &queue, "run").await, Some(QueuedState::DeadLetter));
    submit(check, &queue, submission("odd")).await;
    take(check, &queue, "u", 99_000).await;
    leave(check, &queue, "u", "odd", NextStep::Bury { reason: "it is damaged".to_owned() }).await;
    let buried = load(check, &queue, "odd").await.map(|run| (run.state, run.reason));
    check.expect_equal(
        "a buried run",
        buried,
        Some((QueuedState::DeadLetter, Some("it is damaged".to_owned()))),
    );
    let unknown = queue.revive_run(&"other".into()).await;
    check.expect_error("reviving an unknown run", unknown, StoreErrorKind::RunNotFound);
}

async fn orders_reach_their_run<Q: RunQueue>(check: StoreCheck, queue: Q) {
    register(check, &queue, "w").await;
    register(check, &queue, "v").await;
    let post = |run: &'static str, order: QueueOrder| {
        let queue = &queue;
        async move { queue.post_order(&run.into(), &order).await }
    };
    check.expect_error("an unknown run", post("run", QueueOrder::Cancel).await, StoreErrorKind::RunNotFound);
    submit(check, &queue, submission("run")).await;
    take(check, &queue, "w", 2_000).await;
    let items = vec![std::sync::Arc::new(Item::user("more \u{0} of it"))];
    let input = QueueOrder::AddInput { items };
    let first = check.expect_ok("ordering", post("run", input.clone()).await);
    let second = check.expect_ok("ordering", post("run", QueueOrder::HandOver).await);
    check.expect_equal("later orders have higher numbers", second > first, true);
    let expected = |number, order| PostedOrder { run: "run".into(), number, order };
    let both = vec![expected(first, input), expected(second, QueueOrder::HandOver)];
    check.expect_equal("the orders", take(check, &queue, "w", 4_000).await.orders, both.clone());
    check.expect_equal("those of another worker", take(check, &queue, "v", 4_000).await.orders, Vec::new());
    let mut left = departure("w", "run", NextStep::Park { wake_at: None });
    left.orders_done = first;
    check.expect_ok("leaving", queue.leave_run(&left).await);
    let work = take(check, &queue, "v", 4_000).await;
    check.expect_equal("the run with an open order", names(&work), vec!["run"]);
    check.expect_equal("the open order", work.orders, both[1..].to_vec());
    let mut left = departure("v", "run", NextStep::Wait { until: Timestamp(90_000) });
    left.orders_done = second;
    check.expect_ok("leaving", queue.leave_run(&left).await);
    check.expect_ok("ordering a waiting run", post("run", QueueOrder::Cancel).await);
    let work = take(check, &queue, "v", 5_000).await;
    check.expect_equal("the woken run", names(&work), vec!["run"]);
    check.expect_equal("its orders", work.orders.len(), 1);
    leave(check, &queue, "v", "run", NextStep::End).await;
    check.expect_ok("ordering an ended run", post("run", QueueOrder::Cancel).await);
    check.expect_equal("its state", state_of(check, &queue, "run").await, Some(QueuedState::Ended));
    submit(check, &queue, submission("dead").max_attempts(1)).await;
    take(check, &queue, "v", 5_000).await;
    let failing = NextStep::Retry { at: Timestamp(6_000), reason: "away".to_owned() };
    leave(check, &queue, "v", "dead", failing).await;
    check.expect_ok("handing a dead letter over", post("dead", QueueOrder::HandOver).await);
    check.expect_equal("its state", state_of(check, &queue, "dead").await, Some(QueuedState::DeadLetter));
    check.expect_ok("cancelling a dead letter", post("dead", QueueOrder::Cancel).await);
    let work = take(check, &queue, "v", 7_000).await;
    check.expect_equal("the dead letter that is to end", names(&work), vec!["dead"]);
    check.expect_equal("its orders", work.orders.len(), 2);
}

/// An order that comes while a driver that failed is on its way out wakes the run as it wakes one that waits.
async fn orders_end_a_delay<Q: RunQueue>(check: StoreCheck, queue: Q) {
    register(check, &queue, "w").await;
    let input = || QueueOrder::AddInput { items: vec![std::sync::Arc::new(Item::user("more"))] };
    let retry = || NextStep::Retry { at: Timestamp(90_000), reason: "away".to_owned() };
    let wait = || NextStep::Wait { until: Timestamp(90_000) };
    let waiting = || QueuedState::Waiting { until: Timestamp(90_000) };
    // Takes a new run, and leaves it while an order for it is under way.
    let leave_ordered = async |run: &'static str, attempts: u32, order: QueueOrder, next: NextStep| {
        submit(check, &queue, submission(run).max_attempts(attempts)).await;
        let named = WorkRequest { only: Some(run.into()), ..request("w", 2_000, 1) };
        let work = check.expect_ok("taking", queue.take_work(&named).await);
        check.expect_equal("the run", names(&work), vec![run]);
        let number = check.expect_ok("ordering", queue.post_order(&run.into(), &order).await);
        leave(check, &queue, "w", run, next).await;
        let left = load(check, &queue, run).await;
        (number, left.map(|left| (left.state, left.attempt)))
    };
    let (_, left) = leave_ordered("cancelled", 9, QueueOrder::Cancel, retry()).await;
    check.expect_equal("a failed run that is cancelled", left, Some((QueuedState::Ready, 1)));
    let (_, left) = leave_ordered("busy", 9, input(), wait()).await;
    check.expect_equal("a busy run that gets input", left, Some((QueuedState::Ready, 0)));
    let (_, left) = leave_ordered("last", 1, QueueOrder::Cancel, retry()).await;
    check.expect_equal("a run that is cancelled at its last attempt", left, Some((QueuedState::Ready, 0)));
    let (_, left) = leave_ordered("dead", 1, input(), retry()).await;
    check.expect_equal("a run that gets input at its last attempt", left, Some((QueuedState::DeadLetter, 1)));
    // An order that the segment knew, or has carried out, does not end the delay again and again.
    let (number, _) = leave_ordered("known", 9, QueueOrder::Cancel, retry()).await;
    let work = take(check, &queue, "w", 3_000).await;
    let known = work.runs.iter().find(|taken| taken.submission.run.as_str() == "known");
    let mut left = departure("w", "known", retry());
    left.signals_seen = known.map_or(0, |taken| taken.signals);
    check.expect_ok("leaving", queue.leave_run(&left).await);
    check.expect_equal("a known order", state_of(check, &queue, "known").await, Some(waiting()));
    check.expect_ok("reviving", queue.revive_run(&"known".into()).await);
    take(check, &queue, "w", 3_000).await;
    let mut left = departure("w", "known", wait());
    left.orders_done = number;
    check.expect_ok("leaving", queue.leave_run(&left).await);
    check.expect_equal("a done order", state_of(check, &queue, "known").await, Some(waiting()));
}

async fn a_forgotten_run_leaves_the_queue<Q: RunQueue>(check: StoreCheck, queue: Q) {
    register(check, &queue, "w").await;
    submit(check, &queue, submission("run")).await;
    take(check, &queue, "w", 2_000).await;
    let lease: Lease = check.create_run(&queue, "run", "w~1").await;
    check.expect_ok("ordering", queue.post_order(&lease.run, &QueueOrder::Cancel).await);
    let held = queue.forget_run(&lease.run, None).await;
    check.expect_error("forgetting a run of a worker", held, StoreErrorKind::LeaseHeld);
    let mut left = departure("w", "run", NextStep::End);
    left.lease = Some(lease.clone());
    check.expect_ok("leaving", queue.leave_run(&left).await);
    check.expect_ok("forgetting", queue.forget_run(&lease.run, None).await);
    check.expect_equal("the queued run", load(check, &queue, "run").await, None);
    submit(check, &queue, submission("run")).await;
    let work = take(check, &queue, "w", 2_000).await;
    check.expect_equal("the new run of the same id", (names(&work), work.orders.len()), (vec!["run"], 0));
}

async fn open_runs_are_listed<Q: RunQueue>(check: StoreCheck, queue: Q) {
    register(check, &queue, "w").await;
    for number in 0..7 {
        submit(check, &queue, submission(&format!("run-{number}"))).await;
    }
    take(check, &queue, "w", 2_000).await;
    leave(check, &queue, "w", "run-3", NextStep::End).await;
    let mut listed: Vec<RunId> = Vec::new();
    loop {
        let page =
            check.expect_ok("listing", queue.list_queued_runs(QueueFilter::Open, listed.last(), 2).await);
        if page.is_empty() {
            break;
        }
        listed.extend(page.into_iter().map(|queued| queued.submission.run));
    }
    let expected = ["run-0", "run-1", "run-2", "run-4", "run-5", "run-6"].map(RunId::from).to_vec();
    check.expect_equal("the open runs", listed, expected);
    leave(check, &queue, "w", "run-5", NextStep::Bury { reason: "damaged".to_owned() }).await;
    leave(check, &queue, "w", "run-0", NextStep::Park { wake_at: None }).await;
    for run in ["run-0", "run-4"] {
        check.create_run(&queue, run, "ann").await;
    }
    for (filter, after, limit, expected) in [
        (QueueFilter::DeadLetters, None, 9, &["run-5"][..]),
        (QueueFilter::DeadLetters, Some("run-5"), 9, &[]),
        (QueueFilter::NotStarted, None, 9, &["run-1", "run-2", "run-5", "run-6"]),
        (QueueFilter::NotStarted, Some("run-1"), 2, &["run-2", "run-5"]),
    ] {
        let after = after.map(RunId::from);
        let page = check.expect_ok("listing", queue.list_queued_runs(filter, after.as_ref(), limit).await);
        let listed: Vec<_> = page.iter().map(|queued| queued.submission.run.as_str()).collect();
        check.expect_equal(&format!("{filter:?} after {after:?}"), listed, expected.to_vec());
    }
}

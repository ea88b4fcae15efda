//! Runs that the real server of Temporal dispatches. The service is a process of its own, which is killed.

#![allow(clippy::expect_used)]

mod server;

use std::path::PathBuf;
use std::sync::Arc;

use tempfile::TempDir;
use windlass::core::decision::{Decision, HoldReason};
use windlass::core::id::{RunId, Timestamp};
use windlass::fleet::{DecisionRequest, RunDispatch, RunQueue, RunSubmission};
use windlass::store::{RunStatus, SqliteStore};
use windlass_engine_desk::{ChildProcess, DeskFolder, held_calls, status_of, wait_for};
use windlass_temporal::{TemporalDispatch, TemporalError, TemporalService};

use server::{TestServer, connect};

const FOLDER_VARIABLE: &str = "WINDLASS_DESK_FOLDER";
const ADDRESS_VARIABLE: &str = "WINDLASS_DESK_ADDRESS";
const TASK_QUEUE: &str = "desk";

/// Entry point of the service's process. Does nothing in the test run itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_of_its_own() {
    let Some(folder) = std::env::var_os(FOLDER_VARIABLE) else { return };
    let desk = DeskFolder::new(PathBuf::from(folder));
    let client = connect(&std::env::var(ADDRESS_VARIABLE).expect("it is set")).await;
    let service =
        TemporalService::new(desk.worker(desk.open_store()), TemporalDispatch::new(client, TASK_QUEUE));
    service.serve().await.expect("it serves");
}

/// A server, a service and the folder that they share.
struct TemporalDesk {
    server: TestServer,
    desk: DeskFolder,
    store: Arc<SqliteStore>,
    dispatch: TemporalDispatch,
    service: Option<ChildProcess>,
    _folder: TempDir,
}

impl TemporalDesk {
    async fn start() -> Option<Self> {
        let server = TestServer::start().await?;
        let folder = tempfile::tempdir().expect("a folder");
        let desk = DeskFolder::new(folder.path());
        let store = desk.open_store();
        let dispatch = TemporalDispatch::new(connect(&server.address()).await, TASK_QUEUE);
        let mut started = Self { server, desk, store, dispatch, service: None, _folder: folder };
        started.start_service();
        Some(started)
    }

    fn start_service(&mut self) {
        let variables = [
            (FOLDER_VARIABLE, self.desk.path().display().to_string()),
            (ADDRESS_VARIABLE, self.server.address()),
        ];
        let log = self.desk.path().join("service.log");
        self.service = Some(ChildProcess::start_test("a_service_of_its_own", &variables, &log));
    }

    fn kill_service(&mut self) {
        self.service.take().expect("it runs").kill();
    }

    async fn submit(&self, run: &str, agent: &str) -> RunId {
        let submission = RunSubmission::new(run, agent, "go");
        self.store.submit_run(&submission, Timestamp(0)).await.expect("it is submitted");
        self.dispatch.wake_run(&submission.run, None).await.expect("it is woken");
        submission.run
    }

    async fn wait_for_state(&self, run: &RunId, expected: &str) {
        wait_for(&format!("run {run} is {expected}"), async || {
            let queued = self.store.load_queued_run(run).await.expect("it loads").expect("it was submitted");
            queued.state.name() == expected
        })
        .await;
    }

    fn count(&self, word: &str, run: &RunId, tool: &str) -> usize {
        self.desk.count(&format!("{word} {run} {tool}"))
    }

    /// Counts the workflows that a query of Temporal finds.
    fn count_workflows(&self, query: &str) -> Option<usize> {
        let output = self.server.run_command(&["workflow", "count", "--query", query, "--output", "json"])?;
        let digits: String = output.chars().filter(char::is_ascii_digit).collect();
        digits.parse().ok()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_waits_for_a_decision_and_is_decided_once() {
    let Some(desk) = TemporalDesk::start().await else { return };
    let run = desk.submit("contract", "signer").await;
    desk.wait_for_state(&run, "parked").await;
    let query =
        "WindlassAgent = 'signer' AND WindlassStatus = 'parked' AND ExecutionStatus = 'ContinuedAsNew'";
    wait_for("the workflow has continued as new", async || desk.count_workflows(query) == Some(1)).await;
    let wrong = DecisionRequest::new("nothing", Decision::Approve, "bob");
    let refused = desk.dispatch.decide(&run, wrong).await;
    assert!(matches!(refused, Err(TemporalError::Refused(_))), "a call that does not exist: {refused:?}");

    let approve = DecisionRequest::new("sign", Decision::Approve, "ann");
    desk.dispatch.decide(&run, approve).await.expect("it is decided");
    desk.wait_for_state(&run, "ended").await;
    let reject = DecisionRequest::new("sign", Decision::Reject { message: None }, "bob");
    desk.dispatch.decide(&run, reject).await.expect_err("a contrary decision");
    let counts = (status_of(&*desk.store, &run).await, desk.count("START", &run, "sign"));
    assert_eq!(counts, (RunStatus::Finished, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_service_puts_only_the_once_call_in_doubt() {
    let Some(mut desk) = TemporalDesk::start().await else { return };
    let run = desk.submit("payment", "payer").await;
    desk.desk.wait_until_paying(&*desk.store, &run).await;
    desk.kill_service();
    desk.desk.open_gate();
    desk.start_service();
    desk.wait_for_state(&run, "parked").await;
    assert_eq!(held_calls(&*desk.store, &run).await, [("pay".into(), HoldReason::InDoubt)]);
    let started = ["look", "key", "pay"].map(|tool| desk.count("START", &run, tool));
    assert_eq!(started, [1, 2, 1], "starts of the pure, the idempotent and the once call");

    let happened = Decision::ConfirmExecuted { output: "paid".into() };
    desk.dispatch.decide(&run, DecisionRequest::new("pay", happened, "ann")).await.expect("it is decided");
    desk.wait_for_state(&run, "ended").await;
    assert_eq!(desk.count("START", &run, "pay"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_puts_nothing_in_doubt() {
    let Some(mut desk) = TemporalDesk::start().await else { return };
    let run = desk.submit("payment", "payer").await;
    desk.desk.wait_until_paying(&*desk.store, &run).await;
    desk.server.kill();
    desk.server.resume().await;
    desk.desk.open_gate();
    desk.wait_for_state(&run, "ended").await;
    assert_eq!(status_of(&*desk.store, &run).await, RunStatus::Finished);
    for tool in ["look", "key", "pay"] {
        let counts = (desk.count("START", &run, tool), desk.count("DONE", &run, tool));
        assert_eq!(counts, (1, 1), "{tool}");
    }
    wait_for("the workflow ends", async || {
        desk.count_workflows("WindlassStatus = 'ended' AND ExecutionStatus = 'Completed'") == Some(1)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn timers_and_signals_reach_the_run() {
    let Some(desk) = TemporalDesk::start().await else { return };
    let hasty = desk.submit("hasty", "hasty").await;
    let paying = desk.submit("payment", "payer").await;
    desk.desk.wait_until_paying(&*desk.store, &paying).await;
    desk.dispatch.cancel_run(&paying).await.expect("it is signalled");
    desk.wait_for_state(&paying, "ended").await;
    assert_eq!(status_of(&*desk.store, &paying).await, RunStatus::Cancelled);
    desk.wait_for_state(&hasty, "ended").await;
    assert_eq!(desk.count("START", &hasty, "sign"), 0, "an approval that expired");
}

//! Runs that the real server of Restate dispatches. The service is a process of its own, which is killed.

#![allow(clippy::expect_used)]

mod server;

use std::path::PathBuf;

use tempfile::TempDir;
use windlass::core::decision::{Decision, HoldReason};
use windlass::core::id::RunId;
use windlass::fleet::{DecisionRequest, RunDispatch, RunSubmission};
use windlass::store::RunStatus;
use windlass_engine_desk::{
    ChildProcess, DeskFolder, free_port, held_calls, is_listening, status_of, wait_for,
};
use windlass_restate::{RestateClient, RestateError, RestateService};

use server::TestServer;

const FOLDER_VARIABLE: &str = "WINDLASS_DESK_FOLDER";
const PORT_VARIABLE: &str = "WINDLASS_DESK_PORT";
const INGRESS_VARIABLE: &str = "WINDLASS_DESK_INGRESS";

/// Entry point of the service's process. Does nothing in the test run itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_of_its_own() {
    let Some(folder) = std::env::var_os(FOLDER_VARIABLE) else { return };
    let desk = DeskFolder::new(PathBuf::from(folder));
    let variable = |name| std::env::var(name).expect("it is set");
    let client = RestateClient::new(&variable(INGRESS_VARIABLE)).expect("an address");
    let port: u16 = variable(PORT_VARIABLE).parse().expect("a port");
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.expect("the port is free");
    let service = RestateService::new(desk.worker(desk.open_store()), client);
    service.serve(listener).await.expect("it serves");
}

/// A server, a service and the folder that they share.
struct RestateDesk {
    server: TestServer,
    desk: DeskFolder,
    client: RestateClient,
    port: u16,
    service: Option<ChildProcess>,
    _folder: TempDir,
}

impl RestateDesk {
    /// Starts a server with so many nodes, and a service.
    async fn start(nodes: usize) -> Option<Self> {
        let server = TestServer::start(nodes).await?;
        let folder = tempfile::tempdir().expect("a folder");
        let desk = DeskFolder::new(folder.path());
        let client = RestateClient::new(&server.ingress_address()).expect("an address");
        let mut started = Self { server, desk, client, port: free_port(), service: None, _folder: folder };
        started.start_service().await;
        let service = format!("http://127.0.0.1:{}", started.port);
        RestateService::<()>::register(&started.server.admin_address(), &service)
            .await
            .expect("it is registered");
        Some(started)
    }

    async fn start_service(&mut self) {
        let variables = [
            (FOLDER_VARIABLE, self.desk.path().display().to_string()),
            (PORT_VARIABLE, self.port.to_string()),
            (INGRESS_VARIABLE, self.server.ingress_address()),
        ];
        let log = self.desk.path().join("service.log");
        self.service = Some(ChildProcess::start_test("a_service_of_its_own", &variables, &log));
        wait_for("the service listens", async || is_listening(self.port)).await;
    }

    fn kill_service(&mut self) {
        self.service.take().expect("it runs").kill();
    }

    async fn submit(&self, run: &str, agent: &str) -> RunId {
        let submission = RunSubmission::new(run, agent, "go");
        self.client.submit_run(&submission).await.expect("it is submitted");
        submission.run
    }

    async fn wait_for_state(&self, run: &RunId, expected: &str) {
        wait_for(&format!("run {run} is {expected}"), async || {
            self.client.load_state(run).await.is_ok_and(|state| state.state == expected)
        })
        .await;
    }

    fn count(&self, word: &str, run: &RunId, tool: &str) -> usize {
        self.desk.count(&format!("{word} {run} {tool}"))
    }
}

fn refusal(result: Result<(), RestateError>) -> u16 {
    match result {
        Err(RestateError::Refused { status, .. }) => status,
        other => panic!("it must be refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_waits_for_a_decision_and_is_decided_once() {
    let Some(desk) = RestateDesk::start(1).await else { return };
    let store = desk.desk.open_store();
    let run = desk.submit("report@17/1", "signer").await;
    desk.wait_for_state(&run, "parked").await;
    desk.submit("report@17/1", "signer").await;
    let other = RunSubmission::new(run.clone(), "payer", "go");
    assert_eq!(refusal(desk.client.submit_run(&other).await), 409, "another run of the same id");
    let reject = DecisionRequest::new("sign", Decision::Reject { message: None }, "bob");
    assert_eq!(refusal(desk.client.decide(&RunId::from("unknown"), &reject).await), 404);
    assert_eq!(refusal(desk.client.cancel_run(&RunId::from("unknown")).await), 404);

    let approve = DecisionRequest::new("sign", Decision::Approve, "ann");
    desk.client.decide(&run, &approve).await.expect("it is decided");
    desk.wait_for_state(&run, "ended").await;
    assert_eq!(refusal(desk.client.decide(&run, &reject).await), 409, "a contrary decision");
    assert_eq!((status_of(&*store, &run).await, desk.count("START", &run, "sign")), (RunStatus::Finished, 1));
    desk.client.wake_run(&run, None).await.expect("a needless wake-up has no effect");
}

#[tokio::test(flavor = "multi_thread")]
async fn restate_wakes_a_run_when_its_approval_expires() {
    let Some(desk) = RestateDesk::start(1).await else { return };
    let store = desk.desk.open_store();
    let run = desk.submit("hasty", "hasty").await;
    desk.wait_for_state(&run, "parked").await;
    wait_for("Restate has a timer", async || desk.server.count_segments("scheduled") > 0).await;
    desk.wait_for_state(&run, "ended").await;
    assert_eq!((status_of(&*store, &run).await, desk.count("START", &run, "sign")), (RunStatus::Finished, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_service_puts_only_the_once_call_in_doubt() {
    let Some(mut desk) = RestateDesk::start(1).await else { return };
    let store = desk.desk.open_store();
    let run = desk.submit("payment", "payer").await;
    desk.desk.wait_until_paying(&*store, &run).await;
    desk.kill_service();
    desk.desk.open_gate();
    desk.start_service().await;
    desk.wait_for_state(&run, "parked").await;
    assert_eq!(held_calls(&*store, &run).await, [("pay".into(), HoldReason::InDoubt)]);
    let started = ["look", "key", "pay"].map(|tool| desk.count("START", &run, tool));
    assert_eq!(started, [1, 2, 1], "starts of the pure, the idempotent and the once call");

    let happened = Decision::ConfirmExecuted { output: "paid".into() };
    desk.client.decide(&run, &DecisionRequest::new("pay", happened, "ann")).await.expect("it is decided");
    desk.wait_for_state(&run, "ended").await;
    assert_eq!((status_of(&*store, &run).await, desk.count("START", &run, "pay")), (RunStatus::Finished, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_puts_nothing_in_doubt() {
    let Some(mut desk) = RestateDesk::start(1).await else { return };
    let store = desk.desk.open_store();
    let run = desk.submit("payment", "payer").await;
    desk.desk.wait_until_paying(&*store, &run).await;
    let node = desk.server.kill_leader().await;
    desk.server.resume(node).await;
    // The handler is repeated while the bodies run, and attaches to their segment.
    wait_for("the handler is repeated", async || desk.server.count_segments("running") == 1).await;
    desk.desk.open_gate();
    desk.wait_for_state(&run, "ended").await;
    assert_eq!(status_of(&*store, &run).await, RunStatus::Finished);
    for tool in ["look", "key", "pay"] {
        let counts = (desk.count("START", &run, tool), desk.count("DONE", &run, tool));
        assert_eq!(counts, (1, 1), "{tool}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_of_a_cluster_puts_nothing_in_doubt() {
    let Some(mut desk) = RestateDesk::start(3).await else { return };
    let store = desk.desk.open_store();
    let run = desk.submit("payment", "payer").await;
    desk.desk.wait_until_paying(&*store, &run).await;
    let first = desk.server.segment_starts("running");
    assert_eq!(first.len(), 1, "{first:?}");
    // Another node takes the partition of the run over and repeats the handler.
    let killed = desk.server.kill_leader().await;
    assert_ne!(desk.server.wait_for_leader().await, killed);
    let is_repeated = async || {
        let starts = desk.server.segment_starts("running");
        starts.len() == 1 && starts != first && !starts[0].is_null()
    };
    wait_for("the handler is repeated", is_repeated).await;
    desk.desk.open_gate();
    desk.wait_for_state(&run, "ended").await;
    assert_eq!(status_of(&*store, &run).await, RunStatus::Finished);
    for tool in ["look", "key", "pay"] {
        let counts = (desk.count("START", &run, tool), desk.count("DONE", &run, tool));
        assert_eq!(counts, (1, 1), "{tool}");
    }
    let next = desk.submit("contract", "signer").await;
    desk.wait_for_state(&next, "parked").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_segment_is_cancelled_through_restate() {
    let Some(desk) = RestateDesk::start(1).await else { return };
    let store = desk.desk.open_store();
    let run = desk.submit("payment", "payer").await;
    desk.desk.wait_until_paying(&*store, &run).await;
    desk.client.cancel_run(&run).await.expect("it is ordered");
    desk.wait_for_state(&run, "ended").await;
    assert_eq!(status_of(&*store, &run).await, RunStatus::Cancelled);
    assert_eq!(["key", "pay"].map(|tool| desk.count("DONE", &run, tool)), [0, 0]);
}

//! All connections die without a word, as after a failover that moves an address: nobody closes them, and nothing is answered.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use windlass::core::id::{RunId, Timestamp};
use windlass::fleet::{AgentRegistry, QueuedState, RunQueue, RunSubmission, Worker};
use windlass::prelude::*;
use windlass_postgres::{PostgresOptions, PostgresStore};

use crate::OneCallModel;
use crate::server::TestServer;

/// Longest time that a test waits: far longer than a statement may take, and far shorter than a dead connection lives.
const PATIENCE: Duration = Duration::from_secs(60);

/// Forwards connections to a server. Those that were made before a failover accept packets and pass none on.
async fn start_network(server: &TestServer, failovers: watch::Receiver<u32>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let target = server.host_and_port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(upstream) = TcpStream::connect(&target).await else { return };
            let made_after = *failovers.borrow();
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = upstream.into_split();
            tokio::spawn(forward(from_client, to_server, failovers.clone(), made_after));
            tokio::spawn(forward(from_server, to_client, failovers.clone(), made_after));
        }
    });
    server.address().replace(&server.host_and_port(), &format!("127.0.0.1:{port}"))
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    failovers: watch::Receiver<u32>,
    made_after: u32,
) {
    let mut buffer = vec![0; 65_536];
    while let Ok(count) = from.read(&mut buffer).await {
        if *failovers.borrow() != made_after {
            // Nobody learns that the other end is gone.
            continue_silently(&mut from).await;
            return std::future::pending().await;
        }
        if count == 0 || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

async fn continue_silently(from: &mut OwnedReadHalf) {
    let mut buffer = vec![0; 65_536];
    while let Ok(1..) = from.read(&mut buffer).await {}
}

async fn connect(address: &str, schema: &str) -> PostgresStore {
    let options = PostgresOptions {
        schema: schema.to_owned(),
        max_connections: 4,
        statement_timeout: Duration::from_secs(2),
        ..PostgresOptions::default()
    };
    PostgresStore::connect_with(address, options).await.expect("it connects")
}

fn submission(run: &str) -> RunSubmission {
    RunSubmission::new(run, "desk", "go")
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_go_on_over_new_connections() {
    let Some(server) = TestServer::start() else { return };
    let (failover, failovers) = watch::channel(0);
    let store = connect(&start_network(&server, failovers).await, "failover").await;
    let names: Vec<String> = (0..8).map(|number| format!("run-{number}")).collect();
    let submissions: Vec<RunSubmission> = names.iter().map(|run| submission(run)).collect();
    // The pool is full of connections, and all of them die.
    let submitted = join_all(submissions.iter().map(|one| store.submit_run(one, Timestamp(0)))).await;
    assert!(submitted.iter().all(Result::is_ok), "{submitted:?}");
    failover.send_replace(1);
    let again = join_all(submissions.iter().map(|one| store.submit_run(one, Timestamp(0))));
    let again = tokio::time::timeout(PATIENCE, again).await.expect("nobody waits for a dead connection");
    assert!(again.iter().all(Result::is_ok), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_goes_on_over_new_connections() {
    let Some(server) = TestServer::start() else { return };
    let (failover, failovers) = watch::channel(0);
    let behind: Arc<dyn RunQueue> =
        Arc::new(connect(&start_network(&server, failovers).await, "worker").await);
    let direct: Arc<dyn RunQueue> = Arc::new(connect(&server.address(), "worker").await);
    direct.submit_run(&submission("run"), Timestamp(0)).await.expect("it is submitted");
    let (started, gate) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let body = {
        let (started, gate) = (started.clone(), gate.clone());
        let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        Tool::dynamic("order", "Orders.", schema, move |_: ToolContext, _: Value| {
            let (started, gate) = (started.clone(), gate.clone());
            async move {
                started.notify_one();
                gate.notified().await;
                Ok::<_, ToolError>("ordered")
            }
        })
    };
    let agent = Agent::new("desk").model(OneCallModel).tools(body);
    let worker = Worker::new(behind, AgentRegistry::from(agent)).lease_duration(Duration::from_secs(20));
    let stop = worker.stop_handle();
    let working = tokio::spawn(worker.run());
    started.notified().await;
    failover.send_replace(1);
    gate.notify_one();
    let ended = async {
        loop {
            let queued = direct.load_queued_run(&RunId::from("run")).await.expect("it loads");
            if queued.expect("it was submitted").state == QueuedState::Ended {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("the run ends");
    stop.drain();
    let report = working.await.expect("it lives").expect("it works");
    assert_eq!((report.ended, report.lost, report.busy), (1, 0, 0), "{report:?}");
}

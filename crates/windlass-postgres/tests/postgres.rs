//! The store and the queue in a real PostgreSQL server keep their contracts, also when the server crashes.

#![cfg(unix)]
#![allow(clippy::expect_used)]

mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use windlass::core::id::{AgentName, RunId, Timestamp};
use windlass::core::journal::{HashChain, JournalEntry, JournalRecord};
use windlass::fleet::{AgentRegistry, DeployedAgent, RunQueue, RunSubmission, Worker};
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse};
use windlass::prelude::*;
use windlass::store::{Durability, LeaseClaim, Store, verify_run};
use windlass::testing::{run_queue_suite, run_session_suite, run_store_suite};
use windlass_postgres::{PostgresOptions, PostgresStore};

use crate::server::TestServer;

/// Connects to a store in a schema of its own.
async fn connect(server: &TestServer, schema: &str) -> PostgresStore {
    let options =
        PostgresOptions { schema: schema.to_owned(), max_connections: 4, ..PostgresOptions::default() };
    PostgresStore::connect_with(&server.address(), options).await.expect("it connects")
}

/// Returns a factory of stores, each in a new schema.
struct StoreFactory<'a> {
    server: &'a TestServer,
    name: &'static str,
    next: AtomicU32,
}

impl<'a> StoreFactory<'a> {
    fn new(server: &'a TestServer, name: &'static str) -> Self {
        Self { server, name, next: AtomicU32::new(0) }
    }

    async fn make(&self) -> PostgresStore {
        connect(self.server, &format!("{}_{}", self.name, self.next.fetch_add(1, Ordering::Relaxed))).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_keeps_its_contract() {
    let Some(server) = TestServer::start() else { return };
    let stores = StoreFactory::new(&server, "store");
    run_store_suite(|| stores.make()).await;
    let stores = StoreFactory::new(&server, "sessions");
    run_session_suite(|| stores.make()).await;
    let stores = StoreFactory::new(&server, "queue");
    run_queue_suite(|| stores.make()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_processes_may_create_the_tables() {
    let Some(server) = TestServer::start() else { return };
    let stores = futures_util::future::join_all((0..8).map(|_| connect(&server, "shared"))).await;
    let ids: std::collections::BTreeSet<&str> = stores.iter().map(|store| store.store_id()).collect();
    assert_eq!(ids.len(), 1);
}

/// A model that calls the tool once, and then says `finished`.
#[derive(Clone)]
struct OneCallModel;

impl Model for OneCallModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        use windlass::core::item::Item;
        let has_output = request.input.iter().any(|item| matches!(&**item, Item::Output(_)));
        let item = match has_output {
            true => Item::assistant("finished"),
            false => Item::call("c1", "order", "{}"),
        };
        Ok(ModelResponse { items: vec![Arc::new(item)], ..ModelResponse::default() })
    }
}

fn counting_agent(count: &Arc<AtomicU32>) -> Agent {
    let count = count.clone();
    let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let order = Tool::dynamic("order", "Orders.", schema, move |_: ToolContext, _: Value| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, ToolError>("ordered") }
    });
    Agent::new("desk").model(OneCallModel).tools(order)
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_share_a_database() {
    let Some(server) = TestServer::start() else { return };
    let (first, second) =
        (Arc::new(connect(&server, "fleet").await), Arc::new(connect(&server, "fleet").await));
    for number in 0..20 {
        let submission =
            RunSubmission::new(format!("run-{number}"), "desk", "go").session(format!("s{number}"));
        first.submit_run(&submission, Timestamp(0)).await.expect("it is submitted");
    }
    let count = Arc::new(AtomicU32::new(0));
    let worker = |queue| {
        let registry = AgentRegistry::new().deploy(DeployedAgent::new(counting_agent(&count)));
        Worker::new(queue, registry).concurrency(4).run_until_idle()
    };
    let (one, two) = tokio::join!(worker(first.clone()), worker(second.clone()));
    let (one, two) = (one.expect("it works"), two.expect("it works"));
    assert_eq!((one.ended + two.ended, count.load(Ordering::SeqCst)), (20, 20));
    for number in 0..20 {
        verify_run(&*first, &RunId::from(format!("run-{number}"))).await.expect("its journal is whole");
    }
}

/// Appends while the server crashes again and again: every line is written once, in its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_of_the_server_loses_and_repeats_no_line() {
    let Some(server) = TestServer::start() else { return };
    let store = Arc::new(connect(&server, "crashes").await);
    let mut writers = Vec::new();
    for number in 0..4 {
        let store = store.clone();
        writers.push(tokio::spawn(async move {
            let run = RunId::from(format!("run-{number}"));
            let claim = LeaseClaim { owner: "ann", now: Timestamp(1), duration: Duration::from_secs(30) };
            let agent = AgentName::from("desk");
            let lease = store.create_run(&run, &agent, claim, Vec::new()).await.expect("it is created");
            let mut chain = HashChain::default();
            let mut lines = Vec::new();
            for seq in 0..200 {
                let entry = JournalEntry::TurnContinued;
                let record = JournalRecord { seq, at: Timestamp(seq), path: Vec::new(), entry };
                let line = chain.append(&record);
                lines.push(line.clone());
                store
                    .append_journal(&lease, seq, vec![line], Durability::Sync)
                    .await
                    .expect("the append outlives the crash");
            }
            (run, lines)
        }));
    }
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        tokio::task::block_in_place(|| {
            server.kill();
            server.resume();
        });
    }
    for writer in writers {
        let (run, lines) = writer.await.expect("it writes");
        assert_eq!(store.load_journal(&run, 0).await.expect("it loads"), lines);
    }
}

/// Forwards connections to a server, and loses the server's next answer when it is told to.
async fn start_lossy_proxy(server: &TestServer, loses_answer: Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let target = server.host_and_port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (target, loses_answer) = (target.clone(), loses_answer.clone());
            tokio::spawn(async move {
                let Ok(upstream) = TcpStream::connect(target).await else { return };
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = upstream.into_split();
                let requests = tokio::spawn(async move {
                    tokio::io::copy(&mut from_client, &mut to_server).await.ok();
                });
                let mut buffer = vec![0; 65_536];
                while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
                    if loses_answer.swap(false, Ordering::SeqCst)
                        || to_client.write_all(&buffer[..count]).await.is_err()
                    {
                        break;
                    }
                }
                requests.abort();
            });
        }
    });
    server.address().replace(&server.host_and_port(), &format!("127.0.0.1:{port}"))
}

/// The server has committed the append, and its answer is lost: the line is not written again, and the run goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_append_whose_answer_is_lost_is_written_once() {
    let Some(server) = TestServer::start() else { return };
    let loses_answer = Arc::new(AtomicBool::new(false));
    let address = start_lossy_proxy(&server, loses_answer.clone()).await;
    let store = PostgresStore::connect(&address).await.expect("it connects");
    let (run, agent) = (RunId::from("run"), AgentName::from("desk"));
    let claim = LeaseClaim { owner: "ann", now: Timestamp(1), duration: Duration::from_secs(30) };
    let lease = store.create_run(&run, &agent, claim, Vec::new()).await.expect("it is created");
    let mut chain = HashChain::default();
    let mut lines = Vec::new();
    for seq in 0..4 {
        let entry = JournalEntry::TurnContinued;
        let record = JournalRecord { seq, at: Timestamp(seq), path: Vec::new(), entry };
        lines.push(chain.append(&record));
        loses_answer.store(true, Ordering::SeqCst);
        let line = lines[lines.len() - 1].clone();
        store.append_journal(&lease, seq, vec![line], Durability::Sync).await.expect("it is written");
        assert!(!loses_answer.load(Ordering::SeqCst), "an answer was lost");
    }
    assert_eq!(store.load_journal(&run, 0).await.expect("it loads"), lines);
}

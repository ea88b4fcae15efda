//! The store and the queue in a real PostgreSQL server keep their contracts, also when the server crashes.

#![cfg(unix)]
#![allow(clippy::expect_used)]

mod dead_connections;
#[path = "../../windlass/tests/followed_text/mod.rs"]
mod followed_text;
mod network_cut;
mod pooler;
#[allow(dead_code, reason = "the tests of the command use the rest")]
mod server;
mod snapshots;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use windlass::core::authenticity::{MacKey, MacKeyring};
use windlass::core::canonical::Digest;
use windlass::core::decision::{Decision, DecisionScope};
use windlass::core::id::{AgentName, RunId, Timestamp};
use windlass::core::journal::{HashChain, JournalEntry, JournalRecord};
use windlass::fleet::{
    AgentOffer, AgentRegistry, DeployedAgent, NextStep, QueueFilter, QueueOrder, QueuedState, RunDeparture,
    RunQueue, RunSubmission, WorkRequest, Worker,
};
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse};
use windlass::prelude::*;
use windlass::store::{
    ApproverPolicy, ApproverSigner, DecisionReview, Durability, EncryptedStore, EncryptionKeys, LeaseClaim,
    Store, post_decision, post_signed_decision, verify_run, verify_stored_run,
};
use windlass::testing::{run_queue_suite, run_session_suite, run_store_suite};
use windlass::tool::SharedLimit;
use windlass_postgres::{PostgresOptions, PostgresStore};

use crate::pooler::TestPooler;
use crate::server::TestServer;

/// Connects to a store in a schema of its own.
async fn connect(server: &TestServer, schema: &str) -> PostgresStore {
    connect_to(&server.address(), schema).await
}

async fn connect_to(address: &str, schema: &str) -> PostgresStore {
    let options =
        PostgresOptions { schema: schema.to_owned(), max_connections: 4, ..PostgresOptions::default() };
    PostgresStore::connect_with(address, options).await.expect("it connects")
}

/// A factory of stores, each in a new schema.
struct StoreFactory {
    address: String,
    name: &'static str,
    next: AtomicU32,
}

impl StoreFactory {
    fn new(address: String, name: &'static str) -> Self {
        Self { address, name, next: AtomicU32::new(0) }
    }

    async fn make(&self) -> PostgresStore {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        connect_to(&self.address, &format!("{}_{number}", self.name)).await
    }
}

/// Returns three stores in one schema, each with connections of its own, as processes have.
async fn connect_processes(server: &TestServer, schema: &str) -> [Arc<dyn RunQueue>; 3] {
    let [first, second, third] = [(); 3].map(|()| connect(server, schema));
    [Arc::new(first.await), Arc::new(second.await), Arc::new(third.await)]
}

#[tokio::test(flavor = "multi_thread")]
async fn text_is_followed_from_another_process() {
    let Some(server) = TestServer::start() else { return };
    followed_text::check_a_followed_run(connect_processes(&server, "followed").await).await;
    followed_text::check_a_late_follower(connect_processes(&server, "late").await).await;
    followed_text::check_a_repeated_request(connect_processes(&server, "repeated").await).await;
    followed_text::check_a_lost_driver(connect_processes(&server, "lost").await).await;
    followed_text::check_withheld_text(connect_processes(&server, "withheld").await).await;
}

/// Returns an encrypted store over one in PostgreSQL.
fn encrypted(store: PostgresStore) -> EncryptedStore {
    let keys = EncryptionKeys::from_text(&EncryptionKeys::text_of_secrets(&[[7; 32]])).expect("a key");
    EncryptedStore::new(Arc::new(store), keys)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_store_keeps_the_contract() {
    let Some(server) = TestServer::start() else { return };
    let stores = StoreFactory::new(server.address(), "store");
    run_store_suite(async || encrypted(stores.make().await)).await;
    let stores = StoreFactory::new(server.address(), "sessions");
    run_session_suite(async || encrypted(stores.make().await)).await;
    let stores = StoreFactory::new(server.address(), "queue");
    run_queue_suite(async || encrypted(stores.make().await)).await;
    let sealed = [(); 3].map(|()| connect(&server, "sealed"));
    let [first, second, third] = sealed;
    let stores: [Arc<dyn RunQueue>; 3] = [
        Arc::new(encrypted(first.await)),
        Arc::new(encrypted(second.await)),
        Arc::new(encrypted(third.await)),
    ];
    followed_text::check_a_followed_run(stores).await;
    let dump = server.dump_schema("sealed");
    assert!(dump.contains("COPY sealed.lines"), "the search looks where the values are");
    assert!(!dump.contains(followed_text::ANSWER), "the answer is sealed");
}

/// Three processes with four calls each share two places.
#[tokio::test(flavor = "multi_thread")]
async fn processes_share_the_places_of_a_limit() {
    let Some(server) = TestServer::start() else { return };
    let (running, most, ended) = <(Arc<AtomicU32>, Arc<AtomicU32>, Arc<AtomicU32>)>::default();
    let mut runs = Vec::new();
    for number in 0..3 {
        let store = Arc::new(connect(&server, "limits").await);
        let (running, most, ended) = (running.clone(), most.clone(), ended.clone());
        let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        let tool = Tool::dynamic("call_bank", "Calls.", schema, move |_: ToolContext, _: Value| {
            let (running, most, ended) = (running.clone(), most.clone(), ended.clone());
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await;
                running.fetch_sub(1, Ordering::SeqCst);
                ended.fetch_add(1, Ordering::SeqCst);
                Ok::<_, ToolError>("done")
            }
        });
        let calls = (1..4).fold(ScriptedResponse::call("c0", "call_bank", json!({})), |calls, number| {
            calls.and_call(&format!("c{number}"), "call_bank", json!({}))
        });
        let model = ScriptedModel::new([calls, ScriptedResponse::text("Done.")]);
        let limited = tool.shared_limit(SharedLimit::concurrency("bank", 2));
        let agent = Agent::new("desk").model(model).tool(limited);
        runs.push(tokio::spawn(agent.run("Go.").run_id(format!("run-{number}")).store(store).into_future()));
    }
    for run in runs {
        let outcome = run.await.expect("it lives").expect("it ends");
        assert_eq!(outcome.output_text().expect("finished"), "Done.");
    }
    assert_eq!(ended.load(Ordering::SeqCst), 12);
    assert!(most.load(Ordering::SeqCst) <= 2, "{most:?} at once");
}

/// Checks the contracts of the store, of its sessions and of its queue.
async fn run_suites(address: &str) {
    let stores = StoreFactory::new(address.to_owned(), "store");
    run_store_suite(|| stores.make()).await;
    let stores = StoreFactory::new(address.to_owned(), "sessions");
    run_session_suite(|| stores.make()).await;
    let stores = StoreFactory::new(address.to_owned(), "queue");
    run_queue_suite(|| stores.make()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_keeps_its_contract() {
    let Some(server) = TestServer::start() else { return };
    run_suites(&server.address()).await;
}

/// The pooler gives each transaction another connection to the server, of which it has fewer than clients.
#[tokio::test(flavor = "multi_thread")]
async fn the_store_keeps_its_contract_behind_a_pooler() {
    let Some(server) = TestServer::start() else { return };
    let Some(pooler) = TestPooler::start(&server) else { return };
    run_suites(&pooler.address()).await;
    let address = pooler.address();
    let stores = futures_util::future::join_all((0..4).map(|_| connect_to(&address, "fleet"))).await;
    work_together(stores.into_iter().map(Arc::new).collect(), 40).await;
}

/// A worker of another process is told about work, also after the server has crashed. Nobody polls here.
#[tokio::test(flavor = "multi_thread")]
async fn a_hint_of_another_process_arrives() {
    let Some(server) = TestServer::start() else { return };
    let (worker, client) = (Arc::new(connect(&server, "hints").await), connect(&server, "hints").await);
    for round in 0..2 {
        let waiting = tokio::spawn({
            let worker = worker.clone();
            async move { worker.wait_for_work().await }
        });
        // The worker may not listen yet, or again, when the first runs are submitted.
        let mut number = 0;
        while !waiting.is_finished() {
            number += 1;
            assert!(number < 600, "a hint arrives");
            let submission = RunSubmission::new(format!("run-{round}-{number}"), "desk", "go");
            client.submit_run(&submission, Timestamp(0)).await.expect("it is submitted");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        waiting.await.expect("it ends");
        tokio::task::block_in_place(|| {
            server.kill();
            server.resume();
        });
        // The lost connection is a hint itself; the next round waits for that of the client.
        worker.wait_for_work().await;
    }
}

/// The driver of a run is told about a decision of another process, and that of another run is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_of_another_process_wakes_the_driver() {
    let Some(server) = TestServer::start() else { return };
    let (driver, decider) = (Arc::new(connect(&server, "hints").await), connect(&server, "hints").await);
    let agent = approved_agent(&Arc::default());
    let paused = agent.run("go").run_id("run").store(driver.clone()).await.expect("it pauses");
    assert!(paused.is_paused());
    let run = RunId::from("run");
    let (hint, other) = (driver.wait_for_decision(&run), driver.wait_for_decision(&"other".into()));
    let posting = async {
        // The driver may not listen yet when the first decisions are posted.
        for _ in 0..600 {
            post_decision(&decider, &run, "c1", Decision::Approve, DecisionScope::ThisCall, "ann")
                .await
                .expect("it is posted");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = hint => {}
        () = other => panic!("the hint was about another run"),
        () = posting => panic!("no hint arrived"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_processes_may_create_the_tables() {
    let Some(server) = TestServer::start() else { return };
    let stores = futures_util::future::join_all((0..8).map(|_| connect(&server, "shared"))).await;
    let ids: std::collections::BTreeSet<&str> = stores.iter().map(|store| store.store_id()).collect();
    assert_eq!(ids.len(), 1);
}

/// Many processes of a new version start at once on the tables of an old one: one migrates them, and the others wait.
#[tokio::test(flavor = "multi_thread")]
async fn many_processes_may_migrate_the_tables() {
    let Some(server) = TestServer::start() else { return };
    let id = connect(&server, "shared").await.store_id().to_owned();
    let (client, connection) =
        tokio_postgres::connect(&server.address(), tokio_postgres::NoTls).await.expect("it connects");
    tokio::spawn(connection);
    client
        .batch_execute(
            "DROP TABLE shared.schedules, shared.snapshot_segments, shared.followers, shared.live_deltas;
            ALTER TABLE shared.sessions DROP COLUMN claimant, DROP COLUMN beat, DROP COLUMN lease_ms, DROP COLUMN renewed;
            DROP INDEX shared.runs_by_agent, shared.runs_by_session, shared.queue_open;
            ALTER TABLE shared.store DROP COLUMN place;
            UPDATE shared.store SET version = 1",
        )
        .await
        .expect("the tables are those of version 1");
    let stores = futures_util::future::join_all((0..8).map(|_| connect(&server, "shared"))).await;
    for store in &stores {
        assert_eq!(
            (store.store_id(), store.list_schedules().await.expect("they are listed")),
            (&*id, vec![])
        );
    }
    client.batch_execute("UPDATE shared.store SET version = 99").await.expect("a newer version wrote it");
    let options = PostgresOptions { schema: "shared".to_owned(), ..PostgresOptions::default() };
    let refused = PostgresStore::connect_with(&server.address(), options).await.expect_err("it is newer");
    assert_eq!(refused.kind(), windlass::error::StoreErrorKind::UnsupportedVersion);
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
    Agent::new("desk").model(OneCallModel).tools(order_tool(count))
}

fn approved_agent(count: &Arc<AtomicU32>) -> Agent {
    Agent::new("desk").model(OneCallModel).tools(order_tool(count).needs_approval())
}

fn order_tool(count: &Arc<AtomicU32>) -> Tool {
    let count = count.clone();
    let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    Tool::dynamic("order", "Orders.", schema, move |_: ToolContext, _: Value| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, ToolError>("ordered") }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_share_a_database() {
    let Some(server) = TestServer::start() else { return };
    let (first, second) =
        (Arc::new(connect(&server, "fleet").await), Arc::new(connect(&server, "fleet").await));
    work_together(vec![first, second], 20).await;
}

/// Submits runs, and has one worker for each connection finish them.
async fn work_together(stores: Vec<Arc<PostgresStore>>, runs: u32) {
    let first = stores[0].clone();
    for number in 0..runs {
        let submission =
            RunSubmission::new(format!("run-{number}"), "desk", "go").session(format!("s{number}"));
        first.submit_run(&submission, Timestamp(0)).await.expect("it is submitted");
    }
    let count = Arc::new(AtomicU32::new(0));
    let workers = stores.into_iter().map(|queue| {
        let registry = AgentRegistry::new().deploy(DeployedAgent::new(counting_agent(&count)));
        Worker::new(queue, registry).concurrency(4).run_until_idle()
    });
    let reports = futures_util::future::join_all(workers).await;
    let ended: u64 = reports.into_iter().map(|report| report.expect("it works").ended).sum();
    assert_eq!((ended, count.load(Ordering::SeqCst)), (u64::from(runs), runs));
    for number in 0..runs {
        verify_run(&*first, &RunId::from(format!("run-{number}"))).await.expect("its journal is whole");
    }
}

/// Returns the private key of a person; equal names make equal keys.
fn approver_key(name: &str) -> Arc<ApproverSigner> {
    let seed = *Digest::of_text(name).as_bytes();
    Arc::new(ApproverSigner::from_seed(&seed).expect("a seed of 32 bytes"))
}

/// Somebody with the database and its MAC key is no approver: an approval counts with a signature only.
#[tokio::test(flavor = "multi_thread")]
async fn decisions_count_with_the_signature_of_an_approver_only() {
    let Some(server) = TestServer::start() else { return };
    let keys = || MacKeyring::new(MacKey::from_bytes([7; 32]));
    let attacker = Arc::new(connect(&server, "signed").await.with_keys(keys()));
    let policy = ApproverPolicy::new().approver("ann", approver_key("ann").key().clone());
    let guarded: Arc<dyn Store> =
        Arc::new(connect(&server, "signed").await.with_keys(keys()).with_approvers(policy));
    let count = Arc::new(AtomicU32::new(0));
    let agent = approved_agent(&count);
    for run in ["one", "two"] {
        let result = agent.run("go").run_id(run).store(guarded.clone()).await.expect("it starts");
        assert!(result.is_paused());
        let (decision, scope) = (Decision::Approve, DecisionScope::ThisCall);
        post_decision(&*attacker, &run.into(), "c1", decision, scope, "ann").await.expect("she can write");
    }
    let believed = agent.recover("one", attacker.clone()).await.expect("it goes on");
    assert!(!believed.is_paused() && count.load(Ordering::SeqCst) == 1, "the attack works without approvers");
    let refused = agent.recover("two", guarded.clone()).await.expect("it goes on");
    assert!(refused.is_paused() && count.load(Ordering::SeqCst) == 1);
    let found = verify_stored_run(&*guarded, &"two".into()).await.expect("it can be read");
    assert!(found.has_forgery(), "{found:?}");
    let reasons: Vec<String> = found.posted.refused.iter().map(ToString::to_string).collect();
    assert!(reasons.concat().contains("no approver has signed it"), "{reasons:?}");
    assert!(verify_run(&*guarded, &"one".into()).await.is_err(), "the journal has her forged approval");

    for (key, is_approver) in [("mallory", false), ("ann", true)] {
        let review = DecisionReview { decided_by: "ann".to_owned(), displayed: None, attempt: None };
        let (decision, scope) = (Decision::Approve, DecisionScope::ThisCall);
        let signer = approver_key(key);
        let posted =
            post_signed_decision(&*guarded, &"two".into(), "c1", decision, scope, review, &signer).await;
        assert_eq!(posted.is_ok(), is_approver, "{posted:?}");
    }
    let result = agent.recover("two", guarded.clone()).await.expect("it goes on");
    assert!(!result.is_paused() && count.load(Ordering::SeqCst) == 2);
    verify_run(&*guarded, &"two".into()).await.expect("the journal has her signature");
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

/// Forwards connections to a server. When it is told to, it freezes each connection before its next commit.
async fn start_freezing_proxy(server: &TestServer, freezes: Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let target = server.host_and_port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (target, freezes) = (target.clone(), freezes.clone());
            tokio::spawn(async move {
                let Ok(upstream) = TcpStream::connect(target).await else { return };
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = upstream.into_split();
                tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await.ok() });
                let mut buffer = vec![0; 65_536];
                while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
                    let is_commit = buffer[..count].windows(6).any(|part| part == b"COMMIT");
                    if is_commit && freezes.load(Ordering::SeqCst) {
                        // The sockets stay open, as those of a process that does not run any more.
                        std::future::pending::<()>().await;
                    }
                    if to_server.write_all(&buffer[..count]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    server.address().replace(&server.host_and_port(), &format!("127.0.0.1:{port}"))
}

/// A process freezes inside a transaction, with a lock on the row of a run: the others wait for it only for a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_freezes_in_a_transaction_does_not_hold_up_the_others() {
    let Some(server) = TestServer::start() else { return };
    let freezes = Arc::new(AtomicBool::new(false));
    let address = start_freezing_proxy(&server, freezes.clone()).await;
    let (frozen, other) = (connect_to(&address, "freeze").await, connect(&server, "freeze").await);
    let (run, agent) = (RunId::from("run"), AgentName::from("desk"));
    let claim = LeaseClaim { owner: "ann", now: Timestamp(1), duration: Duration::from_secs(30) };
    let lease = frozen.create_run(&run, &agent, claim, Vec::new()).await.expect("it is created");
    freezes.store(true, Ordering::SeqCst);
    let renewing = tokio::time::timeout(Duration::from_secs(1), frozen.renew_lease(&lease, Timestamp(2)));
    assert!(renewing.await.is_err(), "it is frozen before its commit");
    let renewed =
        tokio::time::timeout(Duration::from_secs(60), other.renew_lease(&lease, Timestamp(3))).await;
    renewed.expect("the lock is gone").expect("it is renewed");
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

/// A dump that is restored is another database: nobody drives its runs before they are in doubt.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_the_database_is_not_driven_before_it_is_restored() {
    let Some(server) = TestServer::start() else { return };
    let store = Arc::new(connect(&server, "windlass").await);
    let model = ScriptedModel::new([ScriptedResponse::call("c1", "pay", json!({}))]);
    let schema = json!({ "type": "object", "properties": {} });
    let pay = Tool::dynamic("pay", "Pays.", schema, |_: ToolContext, _: Value| async {
        Ok::<_, ToolError>("paid")
    });
    let agent = Agent::new("bank").model(model).tool(pay.needs_approval());
    let run = agent.run("Pay.").run_id("run").store(store.clone());
    run.await.expect("it waits").into_paused().expect("it waits");
    store
        .submit_run(&RunSubmission::new("submitted", "bank", "Pay."), Timestamp(1))
        .await
        .expect("submitted");
    drop(store);
    connect(&server, "windlass").await;
    let (client, connection) =
        tokio_postgres::connect(&server.address(), tokio_postgres::NoTls).await.expect("it connects");
    tokio::spawn(connection);
    client.batch_execute("CREATE DATABASE other").await.expect("made");
    let other = server.address().replace("/postgres?", "/other?");
    server.copy_schema("windlass", "postgres", "other");
    let refused = PostgresStore::connect(&other).await.expect_err("it is a copy");
    assert_eq!(refused.kind(), windlass::error::StoreErrorKind::NotRestored);
    let report = PostgresStore::restore(&other, PostgresOptions::default()).await.expect("restored");
    assert_eq!(report.open_runs, [RunId::from("run")]);
    assert_eq!(report.buried_runs, [RunId::from("submitted")]);
    let copy = PostgresStore::connect(&other).await.expect("it connects");
    let records = verify_run(&copy, &RunId::from("run")).await.expect("it is whole").records;
    assert!(matches!(records.last().map(|last| &last.entry), Some(JournalEntry::RunRestored(_))));
    let queued = copy.load_queued_run(&"submitted".into()).await.expect("loaded").expect("it is there");
    assert_eq!(queued.state, QueuedState::DeadLetter);
    // The original is as it was, and its drivers have lower fencing tokens, however many there were.
    let original = connect(&server, "windlass").await;
    let claim = LeaseClaim { owner: "driver", now: Timestamp(1), duration: Duration::from_secs(1) };
    for _ in 0..20 {
        let before = original.acquire_lease(&"run".into(), claim, None).await.expect("a lease");
        let after = copy.acquire_lease(&"run".into(), claim, None).await.expect("a lease");
        assert!(after.epoch > before.epoch + 1_000, "{} after {}", after.epoch, before.epoch);
    }
    let records = verify_run(&original, &RunId::from("run")).await.expect("it is whole").records;
    assert!(!records.iter().any(|record| matches!(record.entry, JournalEntry::RunRestored(_))));
}

/// A worker of `clerk` in the build `b1`.
async fn register_clerk(store: &PostgresStore) -> WorkRequest {
    let claim = LeaseClaim { owner: "w", now: Timestamp(1), duration: Duration::from_secs(3_600) };
    store.register_worker(claim).await.expect("it is registered");
    let offers = vec![AgentOffer { agent: AgentName::from("clerk"), build: "b1".to_owned() }];
    let (worker, now) = ("w".to_owned(), Timestamp(2_000));
    WorkRequest { worker, now, held: Some(Vec::new()), offers, limit: 9, only: None }
}

async fn submit_to(store: &PostgresStore, run: &str, agent: &str) {
    store.submit_run(&RunSubmission::new(run, agent, "go"), Timestamp(1)).await.expect("it is submitted");
}

/// Idle workers do not wait for each other while runs are ready that they cannot drive.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_finds_nothing_takes_no_lock() {
    let Some(server) = TestServer::start() else { return };
    let options = PostgresOptions { statement_timeout: Duration::from_secs(1), ..PostgresOptions::default() };
    let store = PostgresStore::connect_with(&server.address(), options).await.expect("it connects");
    let request = register_clerk(&store).await;
    submit_to(&store, "declined", "clerk").await;
    submit_to(&store, "other", "another").await;
    submit_to(&store, "held", "clerk").await;
    let work = store.take_work(&request).await.expect("taken");
    assert_eq!(work.runs.len(), 2);
    for run in ["declined", "held"] {
        let next = match run {
            "held" => NextStep::Ready,
            _ => NextStep::Decline { build: "b1".to_owned(), reason: "no tool".to_owned() },
        };
        let (worker, run, now) = ("w".to_owned(), RunId::from(run), Timestamp(3_000));
        let (lease, status, signals_seen, orders_done) = (None, None, 0, 0);
        let departure = RunDeparture { worker, run, lease, status, now, signals_seen, orders_done, next };
        store.leave_run(&departure).await.expect("left");
    }
    let (client, connection) =
        tokio_postgres::connect(&server.address(), tokio_postgres::NoTls).await.expect("it connects");
    tokio::spawn(connection);
    client.batch_execute("BEGIN; SELECT 1 FROM windlass.store FOR UPDATE").await.expect("locked");
    let idle = WorkRequest { held: Some(vec!["held".into()]), ..request };
    assert_eq!(store.take_work(&idle).await.expect("it does not wait").runs, []);
    // A run that it can drive makes it wait for its turn.
    submit_to(&store, "new", "clerk").await;
    store.take_work(&idle).await.expect_err("the lock is held");
    client.batch_execute("ROLLBACK").await.expect("unlocked");
    assert_eq!(store.take_work(&idle).await.expect("taken").runs.len(), 1);
}

/// A damaged row does not stand in front of others.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_row_of_the_queue_is_a_dead_letter() {
    let Some(server) = TestServer::start() else { return };
    let store = PostgresStore::connect(&server.address()).await.expect("it connects");
    let request = register_clerk(&store).await;
    for run in ["1-damaged", "2-ordered", "3-whole"] {
        submit_to(&store, run, "clerk").await;
    }
    store.post_order(&"2-ordered".into(), &QueueOrder::HandOver).await.expect("ordered");
    let (client, connection) =
        tokio_postgres::connect(&server.address(), tokio_postgres::NoTls).await.expect("it connects");
    tokio::spawn(connection);
    let damage = "UPDATE windlass.queue SET body = '{' WHERE run = '1-damaged';
        UPDATE windlass.queue_orders SET body = '{'";
    client.batch_execute(damage).await.expect("damaged");
    let one = WorkRequest { limit: 1, ..request };
    let work = store.take_work(&one).await.expect("taken");
    let runs: Vec<&str> = work.runs.iter().map(|taken| taken.submission.run.as_str()).collect();
    assert_eq!((runs, work.orders), (vec!["3-whole"], vec![]));
    let select =
        "SELECT run FROM windlass.queue WHERE state = 'dead' AND reason LIKE '%cannot be read%' ORDER BY run";
    let dead = client.query(select, &[]).await.expect("read");
    let dead: Vec<String> = dead.iter().map(|row| row.get(0)).collect();
    assert_eq!(dead, ["1-damaged", "2-ordered"]);
    let listed = store.list_queued_runs(QueueFilter::Open, None, 9).await.expect("listed");
    let inputs = listed.iter().map(|queued| (queued.submission.run.as_str(), queued.submission.input.len()));
    assert_eq!(inputs.collect::<Vec<_>>(), [("1-damaged", 0), ("2-ordered", 1), ("3-whole", 1)]);
}

/// The search for media that others refer to reads all journals, and may take longer than a statement that holds locks.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_media_is_forgotten_however_long_the_search_takes() {
    let Some(server) = TestServer::start() else { return };
    let statement_timeout = Duration::from_secs(1);
    let options =
        PostgresOptions { schema: "large".to_owned(), statement_timeout, ..PostgresOptions::default() };
    let store = PostgresStore::connect_with(&server.address(), options).await.expect("it connects");
    let claim = LeaseClaim { owner: "driver", now: Timestamp(1), duration: Duration::from_secs(30) };
    let run = RunId::from("run");
    let lease = store.create_run(&run, &"agent".into(), claim, Vec::new()).await.expect("created");
    let medium = Digest::of_text("picture").to_string();
    store.save_artefact(&lease, &medium, b"AAAA").await.expect("saved");
    store.release_lease(&lease).await.expect("released");
    let (client, connection) =
        tokio_postgres::connect(&server.address(), tokio_postgres::NoTls).await.expect("it connects");
    tokio::spawn(connection);
    let slow = "ALTER TABLE large.items RENAME TO fast_items;
        INSERT INTO large.fast_items (session, seq, body) VALUES (1, 0, 'x');
        CREATE VIEW large.items AS SELECT i.* FROM (SELECT pg_sleep(2)) s, large.fast_items i";
    client.batch_execute(slow).await.expect("the items are slow");
    store.forget_run(&run, None).await.expect("forgotten");
    assert_eq!(store.load_artefact(&run, &medium).await.expect("loaded"), None);
}

//! The network between a worker and the database is cut: nothing happens twice, and nothing is lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use windlass::core::id::{RunId, Timestamp};
use windlass::core::journal::JournalEntry;
use windlass::core::tool::ToolEffect;
use windlass::fleet::{AgentRegistry, QueuedState, RunQueue, RunSubmission, Worker};
use windlass::prelude::*;
use windlass::store::{load_paused, verify_run};
use windlass::tool::ReconcileOutcome;

use crate::server::TestServer;
use crate::{OneCallModel, connect, connect_to};

const RUNS: usize = 8;
/// Runs whose effect happens while the network is cut.
const RUNS_DURING_CUT: usize = 4;

/// The state of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NetworkState {
    Connected,
    /// Packets are held up in both directions, and arrive when the network is back.
    Cut,
}

/// Forwards connections to a server while the network is connected.
async fn start_network(server: &TestServer, state: watch::Receiver<NetworkState>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let target = server.host_and_port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (target, mut state) = (target.clone(), state.clone());
            tokio::spawn(async move {
                state.wait_for(|state| *state == NetworkState::Connected).await.ok();
                let Ok(upstream) = TcpStream::connect(target).await else { return };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = upstream.into_split();
                tokio::join!(
                    forward(from_client, to_server, state.clone()),
                    forward(from_server, to_client, state)
                );
            });
        }
    });
    server.address().replace(&server.host_and_port(), &format!("127.0.0.1:{port}"))
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut state: watch::Receiver<NetworkState>) {
    let mut buffer = vec![0; 65_536];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        state.wait_for(|state| *state == NetworkState::Connected).await.ok();
        if to.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
}

/// The world outside: the effects that have happened, by run, and the gate that each effect waits for.
#[derive(Default)]
struct OutsideWorld {
    state: Mutex<WorldState>,
    changed: Notify,
}

#[derive(Default)]
struct WorldState {
    started: BTreeMap<RunId, u32>,
    effects: BTreeMap<RunId, u32>,
    open: Vec<RunId>,
}

impl OutsideWorld {
    fn open_gate(&self, run: RunId) {
        self.state.lock().expect("free").open.push(run);
        self.changed.notify_waiters();
    }

    /// Waits until the state of the world is as expected.
    async fn wait_until(&self, is_expected: impl Fn(&WorldState) -> bool) {
        loop {
            let changed = self.changed.notified();
            if is_expected(&self.state.lock().expect("free")) {
                return;
            }
            changed.await;
        }
    }

    /// The body of the tool: it waits for its gate, and has its effect.
    async fn order(&self, run: RunId) {
        *self.state.lock().expect("free").started.entry(run.clone()).or_default() += 1;
        self.changed.notify_waiters();
        self.wait_until(|state| state.open.contains(&run)).await;
        *self.state.lock().expect("free").effects.entry(run).or_default() += 1;
        self.changed.notify_waiters();
    }

    fn agent(self: &Arc<Self>) -> Agent {
        let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        let (body, ledger) = (self.clone(), self.clone());
        let tool = Tool::dynamic("order", "Orders.", schema, move |ctx: ToolContext, _: Value| {
            let world = body.clone();
            async move {
                world.order(ctx.run_context().run_id().clone()).await;
                Ok::<_, ToolError>("ordered")
            }
        });
        let reconcile = move |ctx: ToolContext| {
            let has_happened =
                ledger.state.lock().expect("free").effects.contains_key(ctx.run_context().run_id());
            async move {
                match has_happened {
                    true => ReconcileOutcome::Executed("ordered".into()),
                    false => ReconcileOutcome::NotExecuted,
                }
            }
        };
        Agent::new("desk").model(OneCallModel).tools(tool.effect(ToolEffect::Once).reconcile(reconcile))
    }
}

fn run_id(number: usize) -> RunId {
    RunId::from(format!("run-{number}"))
}

fn worker(queue: Arc<dyn RunQueue>, world: &Arc<OutsideWorld>) -> Worker {
    let worker = Worker::new(queue, AgentRegistry::from(world.agent()));
    worker.concurrency(RUNS).lease_duration(Duration::from_secs(2)).drain_timeout(Duration::from_secs(1))
}

/// Half of the effects happen while the first worker cannot say so, the others after it has lost its runs. The packets of
/// the first worker arrive late.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_network_repeats_and_loses_nothing() {
    let Some(server) = TestServer::start() else { return };
    let (network, state) = watch::channel(NetworkState::Connected);
    let address = start_network(&server, state).await;
    let behind: Arc<dyn RunQueue> = Arc::new(connect_to(&address, "cut").await);
    let direct: Arc<dyn RunQueue> = Arc::new(connect(&server, "cut").await);
    for number in 0..RUNS {
        let submission = RunSubmission::new(run_id(number), "desk", "go");
        direct.submit_run(&submission, Timestamp(0)).await.expect("it is submitted");
    }
    let world = Arc::new(OutsideWorld::default());
    let first = worker(behind, &world);
    let first_stop = first.stop_handle();
    let first = tokio::spawn(first.run());
    world.wait_until(|state| state.started.len() == RUNS).await;
    network.send_replace(NetworkState::Cut);
    (0..RUNS_DURING_CUT).for_each(|number| world.open_gate(run_id(number)));
    world.wait_until(|state| state.effects.len() == RUNS_DURING_CUT).await;
    // Only a body that another worker has begun is started twice: the first one's is given up before.
    let second = worker(direct.clone(), &world);
    let second_stop = second.stop_handle();
    let second = tokio::spawn(second.run());
    let is_taken_over = |state: &WorldState| {
        (RUNS_DURING_CUT..RUNS).all(|number| state.started.get(&run_id(number)) == Some(&2))
    };
    world.wait_until(is_taken_over).await;
    (0..RUNS).for_each(|number| world.open_gate(run_id(number)));
    for number in 0..RUNS {
        loop {
            let queued = direct.load_queued_run(&run_id(number)).await.expect("it loads").expect("submitted");
            if queued.state == QueuedState::Ended {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    // What the first worker had sent reaches the database now.
    network.send_replace(NetworkState::Connected);
    first_stop.drain();
    first.await.expect("it lives").expect("it works");
    second_stop.drain();
    second.await.expect("it lives").expect("it works");
    let effects = world.state.lock().expect("free").effects.clone();
    let expected: BTreeMap<RunId, u32> = (0..RUNS).map(|number| (run_id(number), 1)).collect();
    assert_eq!(effects, expected, "each effect has happened once");
    for number in 0..RUNS {
        let run = run_id(number);
        verify_run(&*direct, &run).await.expect("its journal is whole");
        let loaded = load_paused(&*direct, &run).await.expect("it opens");
        let journal = loaded.record().journal().to_vec();
        let count = |is_counted: fn(&JournalEntry) -> bool| {
            journal.iter().filter(|record| is_counted(&record.entry)).count()
        };
        assert_eq!(count(|entry| matches!(entry, JournalEntry::CallSettled(_))), 1, "{run}: {journal:?}");
        assert_eq!(count(|entry| matches!(entry, JournalEntry::RunFinished(_))), 1, "{run}: {journal:?}");
    }
}

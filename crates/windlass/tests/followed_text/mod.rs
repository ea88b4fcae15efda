//! Checks of text that other processes follow, for every store that processes share. Each check gets three stores with one
//! content: of the driver, of the follower, and of a second driver.

#![allow(clippy::expect_used)]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use windlass::core::id::{RunId, Timestamp};
use windlass::core::item::Item;
use windlass::event::{RunEvent, RunEventKind};
use windlass::fleet::{AgentRegistry, RunQueue, RunSubmission, Worker, WorkerReport};
use windlass::guardrail::{GuardrailVerdict, OutputGuardrail};
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse, RetryAdvice};
use windlass::prelude::*;
use windlass::store::{EventFeed, Store};

/// Longest time that a check waits for a condition.
const PATIENCE: Duration = Duration::from_secs(300);
/// The answer of the model, as it is written.
pub(crate) const PARTS: [&str; 3] = ["Ivory ", "walnut ", "lanterns."];
/// The whole answer.
pub(crate) const ANSWER: &str = "Ivory walnut lanterns.";

/// A model that writes the parts of its answer when it is told to, one for each permit.
#[derive(Clone)]
pub(crate) struct PacedModel {
    parts: &'static [&'static str],
    permits: Arc<Semaphore>,
    /// Number of requests, and of those with a reader of deltas.
    requests: Arc<AtomicU32>,
    watched: Arc<AtomicU32>,
    /// Number of the request that fails after its first part; 0 for none.
    failing: u32,
}

impl PacedModel {
    pub(crate) fn new(parts: &'static [&'static str]) -> Self {
        let (requests, watched) = <(Arc<AtomicU32>, Arc<AtomicU32>)>::default();
        Self { parts, permits: Arc::new(Semaphore::new(0)), requests, watched, failing: 0 }
    }

    pub(crate) fn allow(&self, parts: usize) {
        self.permits.add_permits(parts);
    }
}

impl Model for PacedModel {
    async fn respond<'a>(
        &'a self,
        _: ModelRequest<'a>,
        deltas: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let number = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
        if deltas.is_watched() {
            self.watched.fetch_add(1, Ordering::SeqCst);
        }
        for (place, part) in self.parts.iter().enumerate() {
            self.permits.acquire().await.expect("it is open").forget();
            if place == 1 && number == self.failing {
                return Err(ModelError::new("the line is cut").with_retry_advice(RetryAdvice::Safe));
            }
            deltas.emit_text(*part).await;
        }
        let item = Arc::new(Item::assistant(self.parts.concat()));
        Ok(ModelResponse { items: vec![item], ..ModelResponse::default() })
    }
}

/// Fails if a condition is not met for a long time.
async fn within<T>(what: &str, waiting: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("too long: {what}"))
}

fn worker(queue: &Arc<dyn RunQueue>, agent: Agent) -> Worker {
    let worker = Worker::new(queue.clone(), AgentRegistry::from(agent));
    worker.poll_interval(Duration::from_millis(10)).lease_duration(Duration::from_secs(1))
}

fn start_worker(queue: &Arc<dyn RunQueue>, agent: Agent) -> tokio::task::JoinHandle<WorkerReport> {
    let worker = worker(queue, agent);
    tokio::spawn(async { worker.run_until_idle().await.expect("it works") })
}

async fn submit(queue: &Arc<dyn RunQueue>) -> RunId {
    let submission = RunSubmission::new("run", "desk", "go");
    queue.submit_run(&submission, Timestamp(0)).await.expect("it is submitted");
    RunId::from("run")
}

fn follow(queue: &Arc<dyn RunQueue>) -> EventFeed {
    let store: Arc<dyn Store> = queue.clone();
    EventFeed::new(store, "run", 0).with_deltas().poll_interval(Duration::from_millis(10))
}

async fn next_event(feed: &mut EventFeed) -> Option<RunEvent> {
    let event = within("the next event", feed.next()).await;
    event.map(|event| event.expect("the journal is read"))
}

/// Reads events until a text delta comes, and returns it.
async fn next_delta(feed: &mut EventFeed) -> String {
    loop {
        match next_event(feed).await.expect("a delta comes first").kind {
            RunEventKind::TextDelta { delta } => return delta,
            RunEventKind::ModelResponded(_) => panic!("the response came before its delta"),
            _ => {}
        }
    }
}

/// Reads the feed to its end, and returns the deltas that are not void and the whole messages.
async fn read_to_end(feed: &mut EventFeed, mut text: String) -> (String, Vec<String>) {
    let mut messages = Vec::new();
    while let Some(event) = next_event(feed).await {
        match event.kind {
            RunEventKind::TextDelta { delta } => text.push_str(&delta),
            RunEventKind::DeltasDiscarded => text.clear(),
            RunEventKind::Item(item) => {
                if let Item::Message(message) = &*item.item {
                    messages.push(message.text());
                }
            }
            _ => {}
        }
    }
    (text, messages)
}

/// Waits until the store has no deltas of the run any more.
async fn wait_until_removed(queue: &Arc<dyn RunQueue>, run: &RunId) {
    let removed = async {
        while !queue.deltas().expect("it has them").load_deltas(run, None).await.expect("loads").is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("the deltas are removed", removed).await;
}

/// A follower sees the text while the model writes it. Without a follower nothing is written.
pub(crate) async fn check_a_followed_run([driver, follower, _]: [Arc<dyn RunQueue>; 3]) {
    let model = PacedModel::new(&PARTS);
    let mut feed = follow(&follower);
    feed.register().await;
    let run = submit(&follower).await;
    let work = start_worker(&driver, Agent::new("desk").model(model.clone()));
    let mut text = String::new();
    for part in PARTS {
        model.allow(1);
        if part == PARTS[2] {
            break;
        }
        let delta = next_delta(&mut feed).await;
        assert_eq!(delta, part, "each part is seen before the next is written");
        text.push_str(&delta);
    }
    let (text, messages) = read_to_end(&mut feed, text).await;
    assert!(ANSWER.starts_with(&text) && text.starts_with("Ivory walnut "), "{text}");
    assert_eq!(messages, [ANSWER]);
    assert_eq!(within("the worker", work).await.expect("it lives").ended, 1);
    wait_until_removed(&driver, &run).await;
    drop(feed);
    let followers = driver.deltas().expect("it has them");
    let gone = async {
        while !followers.list_followers().await.expect("listed").is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("the follower is removed", gone).await;
    // Nobody follows the next run.
    let submission = RunSubmission::new("alone", "desk", "go");
    follower.submit_run(&submission, Timestamp(0)).await.expect("it is submitted");
    model.allow(PARTS.len());
    let work = start_worker(&driver, Agent::new("desk").model(model.clone()));
    assert_eq!(within("the worker", work).await.expect("it lives").ended, 1);
    let counts = (model.requests.load(Ordering::SeqCst), model.watched.load(Ordering::SeqCst));
    assert_eq!(counts, (2, 1), "only the followed request is streamed");
}

/// A follower that comes while a response is written gets it whole with its record.
pub(crate) async fn check_a_late_follower([driver, follower, _]: [Arc<dyn RunQueue>; 3]) {
    let model = PacedModel::new(&PARTS);
    submit(&follower).await;
    let work = start_worker(&driver, Agent::new("desk").model(model.clone()));
    let asked = async {
        while model.requests.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the request", asked).await;
    let mut feed = follow(&follower);
    feed.register().await;
    model.allow(PARTS.len());
    let (text, messages) = read_to_end(&mut feed, String::new()).await;
    assert_eq!((text.as_str(), messages.as_slice()), ("", [ANSWER.to_owned()].as_slice()));
    assert_eq!(within("the worker", work).await.expect("it lives").ended, 1);
}

/// The text of a request that failed is void.
pub(crate) async fn check_a_repeated_request([driver, follower, _]: [Arc<dyn RunQueue>; 3]) {
    let model = PacedModel { failing: 1, ..PacedModel::new(&PARTS) };
    let mut feed = follow(&follower);
    feed.register().await;
    submit(&follower).await;
    let work = start_worker(&driver, Agent::new("desk").model(model.clone()));
    model.allow(1);
    assert_eq!(next_delta(&mut feed).await, PARTS[0]);
    model.allow(1);
    loop {
        match next_event(&mut feed).await.expect("the text is void").kind {
            RunEventKind::DeltasDiscarded => break,
            kind => assert!(!matches!(kind, RunEventKind::TextDelta { .. }), "{kind:?}"),
        }
    }
    model.allow(1);
    assert_eq!(next_delta(&mut feed).await, PARTS[0]);
    model.allow(2);
    let (text, messages) = read_to_end(&mut feed, PARTS[0].to_owned()).await;
    assert!(ANSWER.starts_with(&text), "{text}");
    assert_eq!(messages, [ANSWER]);
    within("the worker", work).await.expect("it lives");
}

/// A driver is lost while its model writes. The text of the next driver replaces its text.
pub(crate) async fn check_a_lost_driver([driver, follower, second]: [Arc<dyn RunQueue>; 3]) {
    let (lost, model) = (PacedModel::new(&["Copper ", "kettles."]), PacedModel::new(&PARTS));
    let mut feed = follow(&follower);
    feed.register().await;
    let run = submit(&follower).await;
    let work = start_worker(&driver, Agent::new("desk").model(lost.clone()));
    lost.allow(1);
    assert_eq!(next_delta(&mut feed).await, "Copper ");
    // A killed process leaves its deltas; a task that is dropped would remove them.
    let left = driver.deltas().expect("it has them").load_deltas(&run, None).await.expect("loads");
    work.abort();
    work.await.expect_err("it was aborted");
    let stored = driver.load_lease(&run).await.expect("loads").expect("it is held");
    let lease = windlass::store::Lease { run: run.clone(), owner: stored.owner, epoch: stored.epoch };
    let publish = async |batch| {
        let deltas = driver.deltas().expect("it has them");
        deltas.publish_deltas(&lease, batch, 0).await
    };
    wait_until_removed(&driver, &run).await;
    for batch in left.clone() {
        publish(batch).await.expect("it still has the lease");
    }
    // It waits for the lease of the first one.
    let worker = worker(&second, Agent::new("desk").model(model.clone()));
    let stop = worker.stop_handle();
    let work = tokio::spawn(worker.run());
    model.allow(1);
    let mut kinds = Vec::new();
    loop {
        match next_event(&mut feed).await.expect("the next driver's text comes").kind {
            RunEventKind::TextDelta { delta } => {
                assert_eq!(delta, PARTS[0], "after {kinds:?}");
                break;
            }
            RunEventKind::DeltasDiscarded => kinds.push("discarded"),
            _ => {}
        }
    }
    assert_eq!(kinds, ["discarded"]);
    // The lost driver lives after all.
    let late = publish(left[0].clone()).await.expect_err("its lease was taken over");
    assert_eq!(late.kind(), windlass::error::StoreErrorKind::Fenced);
    model.allow(2);
    let (text, messages) = read_to_end(&mut feed, PARTS[0].to_owned()).await;
    assert!(ANSWER.starts_with(&text), "{text}");
    assert_eq!(messages, [ANSWER]);
    stop.drain();
    assert_eq!(within("the worker", work).await.expect("it lives").expect("it works").ended, 1);
    wait_until_removed(&driver, &run).await;
}

/// Text that a guardrail may block is not relayed.
pub(crate) async fn check_withheld_text([driver, follower, _]: [Arc<dyn RunQueue>; 3]) {
    let model = PacedModel::new(&PARTS);
    model.allow(PARTS.len());
    let mut feed = follow(&follower);
    feed.register().await;
    let run = submit(&follower).await;
    let blocking = OutputGuardrail::new("no ivory", |_, _| async { Ok(GuardrailVerdict::Tripwire) });
    let agent = Agent::new("desk").model(model.clone()).output_guardrail(blocking);
    let work = start_worker(&driver, agent);
    while let Some(event) = next_event(&mut feed).await {
        assert!(!matches!(event.kind, RunEventKind::TextDelta { .. }), "{event:?}");
    }
    within("the worker", work).await.expect("it lives");
    assert_eq!((model.requests.load(Ordering::SeqCst), model.watched.load(Ordering::SeqCst)), (1, 0));
    let deltas = driver.deltas().expect("it has them").load_deltas(&run, None).await.expect("loads");
    assert_eq!(deltas, []);
}

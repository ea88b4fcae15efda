//! A server whose store fails for a while: nothing is lost from view, and nothing is claimed that is not so.
#![allow(clippy::unwrap_used)]

#[path = "support/faulty_queue.rs"]
mod faulty_queue;
mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use faulty_queue::FaultyQueue;
use support::{PATIENCE, TestServer, clerk};
use windlass::store::{MemoryStore, Store};
use windlass_server::{AgentServer, ServerError};

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_run_that_was_unreadable_at_first_appears_later() {
    let queue = FaultyQueue::new(Arc::new(MemoryStore::default()));
    let outside: Arc<dyn Store> = queue.clone();
    clerk().run("pay Ropeworks").store(outside).run_id("own").await.unwrap();
    queue.fails_reads.store(true, Ordering::SeqCst);
    let server = TestServer::start_on(queue.clone(), |server| server).await;
    let client = server.client();
    // Somebody watches, so that the server does not forget what it has read.
    let _events = client.events("/v1/inbox/events", None).await;
    assert_eq!(client.get("/v1/inbox").await.1["total"], 0);
    queue.fails_reads.store(false, Ordering::SeqCst);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while client.get("/v1/inbox").await.1["total"] != 1 {
        assert!(tokio::time::Instant::now() < deadline, "the call never appeared");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_ends_with_an_error_does_not_say_that_the_run_has_ended() {
    let queue = FaultyQueue::new(Arc::new(MemoryStore::default()));
    let server = TestServer::start_on(queue.clone(), |server| server).await;
    let client = server.client();
    client.start_until("r", "pay Ropeworks", "paused").await;
    queue.fails_pages.store(true, Ordering::SeqCst);
    let mut events = client.events("/v1/runs/r/events?from=1", None).await;
    assert_eq!(events.next().await.unwrap().event.as_deref(), Some("error"));
    assert_eq!(events.next().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_worker_cannot_work_ends_with_the_error() {
    let queue = FaultyQueue::new(Arc::new(MemoryStore::default()));
    queue.fails_workers.store(true, Ordering::SeqCst);
    let server = AgentServer::new(clerk()).store(queue).address("127.0.0.1:0");
    let ended = tokio::time::timeout(PATIENCE, server.serve()).await.expect("it ends");
    assert!(matches!(ended, Err(ServerError::Store(_))), "{ended:?}");
}

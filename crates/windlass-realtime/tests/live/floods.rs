//! A model that always has an event ready starves nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass::prelude::*;
use windlass_realtime::model::{
    CommandSink, ModelEventSource, RealtimeCommand, RealtimeConnection, RealtimeConnectionError,
    RealtimeModel, RealtimeModelEvent,
};
use windlass_realtime::settings::SessionConfiguration;
use windlass_realtime::{RealtimeError, RealtimeEvent, RealtimeSessionBuilder};

/// Number of events of the flood, so that a session that starves ends too.
const FLOOD: u32 = 200_000;
/// Number of events within which a request or a timeout has its turn.
const LIMIT: u32 = 20_000;

/// A model that accepts each configuration and then sends one event after the other.
#[derive(Clone, Default)]
struct FloodingModel {
    sent: Arc<AtomicU32>,
}

impl RealtimeModel for FloodingModel {
    fn connect<'a>(
        &'a self,
        _: &'a SessionConfiguration,
    ) -> BoxFuture<'a, Result<RealtimeConnection, RealtimeConnectionError>> {
        let connection =
            RealtimeConnection { commands: Box::new(self.clone()), events: Box::new(self.clone()) };
        async move { Ok(connection) }.boxed()
    }
}

impl CommandSink for FloodingModel {
    fn send(&mut self, _: RealtimeCommand) -> BoxFuture<'_, Result<(), RealtimeConnectionError>> {
        async { Ok(()) }.boxed()
    }

    fn close(&mut self) -> BoxFuture<'_, Result<(), RealtimeConnectionError>> {
        async { Ok(()) }.boxed()
    }
}

impl ModelEventSource for FloodingModel {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<RealtimeModelEvent, RealtimeConnectionError>>> {
        let sent = self.sent.fetch_add(1, Ordering::Relaxed);
        match sent {
            0 => async { Some(Ok(RealtimeModelEvent::ConfigurationApplied { command: None })) }.boxed(),
            _ if sent < FLOOD => async { Some(Ok(RealtimeModelEvent::AudioCleared)) }.boxed(),
            _ => std::future::pending().boxed(),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_events_starves_neither_requests_nor_timeouts() {
    let model = FloodingModel::default();
    let realtime = RealtimeSessionBuilder::new(Agent::new("guide"), model.clone())
        .response_timeouts(Duration::from_secs(30), Duration::from_secs(1));
    let session = realtime.connect().await.expect("connects");
    let mut events = session.events();
    let before = model.sent.load(Ordering::Relaxed);
    session.send_text("Hi").await.expect("is there");
    let answered = model.sent.load(Ordering::Relaxed) - before;
    assert!(answered < LIMIT, "the request waited for {answered} events");
    let clock = tokio::spawn(async {
        loop {
            tokio::time::advance(Duration::from_millis(100)).await;
        }
    });
    let before = model.sent.load(Ordering::Relaxed);
    let is_late =
        |event: &RealtimeEvent| matches!(event, RealtimeEvent::Error(RealtimeError::ResponseNotStarted));
    while !events.next().await.is_some_and(|event| is_late(&event)) {}
    let waited = model.sent.load(Ordering::Relaxed) - before;
    assert!(waited < LIMIT, "the timeout waited for {waited} events");
    clock.abort();
    session.close().await;
}

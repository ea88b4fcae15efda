//! Server-sent events: the records of a run, and the changes of the inbox.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;

use super::{ApiError, RequestPerson, UrlPath, UrlQuery, find_viewable_run};
use crate::access::{AccessRole, PersonIdentity};
use crate::lock_unpoisoned;
use crate::run_feed::feed_of_run;
use crate::server::ServerState;

/// Time between comments on an idle stream, which tell proxies and clients that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Time after which a client connects again, in milliseconds.
const RETRY: Duration = Duration::from_secs(1);

/// The number of open streams of each person.
pub(crate) type PersonStreams = Arc<Mutex<HashMap<String, usize>>>;

/// The right to keep a stream open. Their number is limited, in all and for each person: nobody takes the streams of all
/// others.
pub(crate) struct StreamPermit {
    _permit: OwnedSemaphorePermit,
    person: String,
    counts: PersonStreams,
}

impl StreamPermit {
    pub(crate) fn acquire(state: &ServerState, person: &PersonIdentity) -> Result<Self, ApiError> {
        let permit = state.stream_slots.clone().try_acquire_owned();
        let permit = permit.map_err(|_| ApiError::too_many_requests())?;
        let mut counts = lock_unpoisoned(&state.person_streams);
        let count = counts.entry(person.name.clone()).or_default();
        if *count >= state.limits.streams_per_person {
            return Err(ApiError::too_many_requests());
        }
        *count += 1;
        Ok(Self { _permit: permit, person: person.name.clone(), counts: state.person_streams.clone() })
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut counts = lock_unpoisoned(&self.counts);
        if let Some(count) = counts.get_mut(&self.person) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.person);
            }
        }
    }
}

/// Makes a response of events, which holds its permit as long as it lives and ends when the server stops.
pub(crate) fn stream_response(
    state: &ServerState,
    permit: StreamPermit,
    events: impl Stream<Item = Event> + Send + 'static,
) -> Response {
    let stop = state.stop.clone();
    let events = events.take_until(async move { stop.cancelled().await }).map(move |event| {
        let _held = &permit;
        Ok::<_, Infallible>(event)
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

/// The first record of a stream of events.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventQuery {
    /// Sequence number of the first record. A `Last-Event-ID` takes precedence.
    #[schemars(range(max = 4_294_967_295_u64))]
    pub(crate) from: Option<u64>,
}

pub(super) async fn run_events(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(run): UrlPath<String>,
    UrlQuery(asked): UrlQuery<EventQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let (id, _) = find_viewable_run(&state, &person, &run, AccessRole::View).await?;
    let from = match headers.get("last-event-id").map(|value| value.to_str().unwrap_or("?")) {
        Some(text) if !text.is_empty() => {
            let last: u64 =
                text.parse().map_err(|_| ApiError::invalid("`Last-Event-ID` is not a sequence number"))?;
            last.saturating_add(1)
        }
        _ => asked.from.unwrap_or(0),
    };
    let from = super::run_detail::parse_seq(Some(from))?;
    let permit = StreamPermit::acquire(&state, &person)?;
    let feed = feed_of_run(state.queue.clone(), id, from).boxed();
    // `end` says that the run has ended. After an error the stream only closes, and the client comes back.
    let records = stream::unfold(Some(feed), |feed| async move {
        let mut feed = feed?;
        Some(match feed.next().await {
            Some(Ok(record)) => {
                let event = Event::default().id(record.seq.to_string()).event("record").data(record.json);
                (event, Some(feed))
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "a stream of events ends: the store has failed");
                (Event::default().event("error").data("{\"code\":\"store_unavailable\"}"), None)
            }
            None => (Event::default().event("end").data("{}"), None),
        })
    });
    let first = Event::default().retry(RETRY).comment("windlass");
    let events = stream::iter([first]).chain(records);
    Ok(stream_response(&state, permit, events))
}

pub(super) async fn inbox_events(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
) -> Result<Response, ApiError> {
    let permit = StreamPermit::acquire(&state, &person)?;
    let mut inbox = state.watch.subscribe();
    inbox.mark_changed();
    state.watch.snapshot().await?;
    let changes = stream::unfold(inbox, move |mut inbox| {
        let person = person.clone();
        async move {
            inbox.changed().await.ok()?;
            let snapshot = inbox.borrow_and_update().clone();
            let visible = |entry: &&Arc<crate::store_watch::PendingEntry>| {
                person.may(AccessRole::View, &entry.root_agent)
            };
            let total = snapshot.entries.iter().filter(visible).count();
            let data = json!({ "version": snapshot.version, "total": total });
            let event = Event::default().event("inbox").data(data.to_string());
            Some((event, inbox))
        }
    });
    let first = Event::default().retry(RETRY).comment("windlass");
    Ok(stream_response(&state, permit, stream::iter([first]).chain(changes)))
}

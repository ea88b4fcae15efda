//! The text of a run as it is written: deltas while the model responds, and the records that settle it.
//!
//! Invariant: no text of a message in the journal is left out. The pieces of a message add up to it; if a model request was
//! repeated after it had begun to write another text, the whole message follows that text after a line break.
//!
//! The deltas of this server's worker come from memory, those of other workers from the store. The latter are a preview
//! without gaps: what they lack comes with the record.
//!
//! A worker publishes no deltas of runs whose text may be redacted or blocked. Their messages come from the records, and
//! the last one when the run has finished, which it does if no output guardrail has blocked the message.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use serde_json::Value;
use tokio::sync::broadcast;
use windlass::core::id::RunId;
use windlass::event::{RunEvent, RunEventKind};
use windlass::fleet::RunQueue;
use windlass::store::{DeltaContent, DeltaFeed, DeltaOrigin, LiveDelta, Store};
use windlass_text::SafeText;

use crate::api::ApiError;
use crate::lock_unpoisoned;
use crate::run_feed::{FeedRecord, feed_of_run};
use crate::server::ServerState;

/// Number of deltas that a slow reader may be behind. It gets the rest with the record.
const MAX_DELTAS: usize = 1024;

/// Time between two looks at the deltas of other workers.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Time between two looks at the place of the run in the queue, while it has no new records.
const QUEUE_LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Text between a part of a message and the whole message, if the part was written by a request that was repeated.
const RESTART_BREAK: &str = "\n\n";

/// The deltas of runs that somebody reads.
#[derive(Default)]
pub(crate) struct LiveText {
    channels: Mutex<HashMap<RunId, broadcast::Sender<LiveEvent>>>,
}

/// An event of a model request, in the order of the driver.
#[derive(Clone, Debug)]
enum LiveEvent {
    /// A part of the text, and the sequence number of the last record before it.
    Delta { seq: u64, text: String },
    /// The request failed and is repeated: the text so far is void.
    Restarted,
    /// The response is recorded with this sequence number. Later deltas are of later responses.
    Responded { seq: u64 },
}

impl LiveText {
    /// Passes on an event of the run's own model requests, if somebody reads the run.
    pub(crate) fn publish(&self, run: &RunId, event: &RunEvent) {
        let seq = event.seq;
        let live = match &event.kind {
            RunEventKind::TextDelta { delta } => LiveEvent::Delta { seq, text: delta.clone() },
            RunEventKind::ModelRetryScheduled { .. } | RunEventKind::DeltasDiscarded => LiveEvent::Restarted,
            RunEventKind::ModelResponded(_) if !event.is_repeated => LiveEvent::Responded { seq },
            _ => return,
        };
        if event.path.is_empty()
            && let Some(channel) = lock_unpoisoned(&self.channels).get(run)
        {
            channel.send(live).ok();
        }
    }

    fn subscribe(&self, run: &RunId) -> broadcast::Receiver<LiveEvent> {
        let mut channels = lock_unpoisoned(&self.channels);
        channels.retain(|_, channel| channel.receiver_count() > 0);
        let channel = channels.entry(run.clone()).or_insert_with(|| broadcast::channel(MAX_DELTAS).0);
        channel.subscribe()
    }
}

/// A piece of a run, for a client that reads text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TextPiece {
    /// A part of the current message.
    Delta(String),
    /// The current message is complete.
    MessageEnd(String),
    /// A record of the journal. The pieces of its messages come before it.
    Record(Box<Value>),
    /// The run ended, with the tokens that it used.
    End(RunEndPiece),
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RunEndPiece {
    /// Error of a run that failed or was cancelled.
    pub(super) error: Option<String>,
    pub(super) is_cancelled: bool,
    /// True if the last text ended at the maximum of output tokens.
    pub(super) is_cut_off: bool,
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
}

impl RunEndPiece {
    /// Returns input plus output tokens.
    pub(super) fn total_tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

/// Reads the text of a run from its start.
pub(super) struct TextReader {
    live: broadcast::Receiver<LiveEvent>,
    records: Pin<Box<dyn Stream<Item = Result<FeedRecord, windlass::error::StoreError>> + Send>>,
    /// Text of the current response so far.
    written: String,
    /// True if deltas of the current response were missed: the record has the rest.
    has_missed_deltas: bool,
    /// Sequence number of the response that is recorded and not read yet. Later deltas wait for it.
    awaited_response: Option<u64>,
    /// Sequence number of the last response that was read.
    last_response: Option<u64>,
    /// Messages that may be final. They follow when the run goes on or has finished, and not if it has failed.
    held: Vec<TextPiece>,
    pieces: std::collections::VecDeque<TextPiece>,
    is_cut_off: bool,
    input_tokens: u64,
    output_tokens: u64,
    elsewhere: DeltasElsewhere,
    /// Sequence number of the next record.
    next_record: u64,
    queue_looks: tokio::time::Interval,
    /// The server and the run, to see whether a worker takes the run.
    queued_in: Option<(Arc<ServerState>, RunId)>,
}

/// The deltas of other workers.
struct DeltasElsewhere {
    feed: Option<DeltaFeed>,
    looks: tokio::time::Interval,
    /// Deltas whose request follows records that are not read yet.
    waiting: Vec<LiveDelta>,
    /// Epoch and number of the response whose text was passed on.
    current: Option<(u64, u64)>,
    /// True if the text that was passed on is of a response that was given up. The record has the other one.
    is_void: bool,
}

impl DeltasElsewhere {
    fn new(feed: Option<DeltaFeed>) -> Self {
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        Self { feed, looks, waiting: Vec::new(), current: None, is_void: false }
    }

    async fn read(&mut self) -> Vec<LiveDelta> {
        match &mut self.feed {
            Some(feed) => {
                self.looks.tick().await;
                feed.read().await
            }
            None => std::future::pending().await,
        }
    }
}

impl TextReader {
    /// Subscribes to a run. It may be called before the run exists, so that no text is missed.
    pub(super) async fn new(state: &Arc<ServerState>, run: &RunId) -> Self {
        Self::from_record(state, run, 0).await
    }

    /// Subscribes to a run from a record on.
    pub(super) async fn from_record(state: &Arc<ServerState>, run: &RunId, from: u64) -> Self {
        let records = feed_of_run(state.queue.clone(), run.clone(), from).boxed();
        let store: Arc<dyn Store> = state.queue.clone();
        let feed = DeltaFeed::new(store, run.clone(), DeltaOrigin::OtherProcesses);
        let mut reader = Self::from_parts(state.live_text.subscribe(run), records);
        if let Some(feed) = &feed {
            feed.register().await;
        }
        reader.elsewhere.feed = feed;
        reader.queued_in = Some((state.clone(), run.clone()));
        reader.next_record = from;
        reader
    }

    fn from_parts(
        live: broadcast::Receiver<LiveEvent>,
        records: Pin<Box<dyn Stream<Item = Result<FeedRecord, windlass::error::StoreError>> + Send>>,
    ) -> Self {
        let first_look = tokio::time::Instant::now() + QUEUE_LOOK_INTERVAL;
        let mut queue_looks = tokio::time::interval_at(first_look, QUEUE_LOOK_INTERVAL);
        queue_looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        Self {
            live,
            records,
            written: String::new(),
            has_missed_deltas: false,
            awaited_response: None,
            last_response: None,
            held: Vec::new(),
            pieces: Default::default(),
            is_cut_off: false,
            input_tokens: 0,
            output_tokens: 0,
            elsewhere: DeltasElsewhere::new(None),
            next_record: 0,
            queue_looks,
            queued_in: None,
        }
    }

    /// Notes that the run was under way before the subscription.
    pub(super) fn note_missed_deltas(&mut self) {
        self.has_missed_deltas = true;
    }

    /// Returns the next piece; `None` after the end.
    pub(super) async fn next(&mut self) -> Result<Option<TextPiece>, ApiError> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Ok(Some(piece));
            }
            tokio::select! {
                biased;
                live = self.live.recv(), if self.awaited_response.is_none() => match live {
                    Ok(event) => self.read_live_event(event),
                    Err(broadcast::error::RecvError::Lagged(_)) => self.has_missed_deltas = true,
                    // The records have everything.
                    Err(broadcast::error::RecvError::Closed) => tokio::task::yield_now().await,
                },
                record = self.records.next() => match record {
                    Some(record) => self.read_record(&record?),
                    None => return Ok(None),
                },
                deltas = self.elsewhere.read() => self.read_deltas_elsewhere(deltas),
                _ = self.queue_looks.tick() => self.look_at_queue().await?,
            }
        }
    }

    /// Ends the pieces if no worker takes the run: no record would ever say so.
    async fn look_at_queue(&mut self) -> Result<(), ApiError> {
        let Some((state, run)) = &self.queued_in else { return Ok(()) };
        // A look that fails is followed by another one.
        let Ok(queued) = state.queue.load_queued_run(run).await else { return Ok(()) };
        if let Some(obstacle) = queued.and_then(|queued| state.catalogue.find_obstacle(&queued)) {
            let error = SafeText::from_words(&obstacle).to_string();
            let end = RunEndPiece { error: Some(error), ..self.end_piece() };
            self.pieces.push_back(TextPiece::End(end));
        }
        Ok(())
    }

    /// Returns the end of a run that has finished.
    fn end_piece(&self) -> RunEndPiece {
        RunEndPiece {
            error: None,
            is_cancelled: false,
            is_cut_off: self.is_cut_off,
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
        }
    }

    fn read_deltas_elsewhere(&mut self, deltas: Vec<LiveDelta>) {
        let waiting = std::mem::take(&mut self.elsewhere.waiting);
        for delta in waiting.into_iter().chain(deltas) {
            let text = match &delta.content {
                DeltaContent::Text(text) => Some(text),
                DeltaContent::Discarded => None,
                _ => continue,
            };
            // A nested agent's, or a delta of a response whose record was read first.
            if !delta.path.is_empty() || self.last_response.is_some_and(|last| delta.base < last) {
                continue;
            }
            if delta.base >= self.next_record {
                self.elsewhere.waiting.push(delta);
                continue;
            }
            let response = Some((delta.epoch, delta.response));
            let is_other = self.elsewhere.current != response || text.is_none();
            self.elsewhere.is_void |= !self.written.is_empty() && is_other;
            self.elsewhere.current = response;
            if let (Some(text), false) = (text, self.elsewhere.is_void) {
                // A later response has begun, so the run goes on.
                self.pieces.extend(self.held.drain(..));
                self.written.push_str(text);
                self.pieces.push_back(TextPiece::Delta(text.clone()));
            }
        }
    }

    fn read_live_event(&mut self, event: LiveEvent) {
        match event {
            LiveEvent::Delta { seq, text } => {
                // This server's worker has taken over a run whose text was another one's.
                let is_taken_over = self.elsewhere.current.take().is_some() && !self.written.is_empty();
                self.has_missed_deltas |= is_taken_over;
                // A delta of a response whose record was read first.
                let is_late = self.last_response.is_some_and(|last| seq < last);
                if !self.has_missed_deltas && !is_late {
                    // A later response has begun, so the run goes on.
                    self.pieces.extend(self.held.drain(..));
                    self.written.push_str(&text);
                    self.pieces.push_back(TextPiece::Delta(text));
                }
            }
            LiveEvent::Restarted => self.has_missed_deltas = true,
            LiveEvent::Responded { seq } => {
                if self.last_response.is_none_or(|last| last < seq) {
                    self.awaited_response = Some(seq);
                } else if self.last_response == Some(seq) {
                    self.has_missed_deltas = false;
                }
            }
        }
    }

    fn read_record(&mut self, record: &FeedRecord) {
        let seq = record.seq;
        self.next_record = seq + 1;
        let record: Value = serde_json::from_str(&record.json).unwrap_or_default();
        self.count_usage(&record);
        if record.get("path").is_some_and(|path| path.as_array().is_some_and(|path| !path.is_empty())) {
            self.pieces.push_back(TextPiece::Record(Box::new(record)));
            return;
        }
        if let Some(responded) = record.get("model_responded") {
            self.pieces.extend(self.held.drain(..));
            let has_calls = responded["calls"].as_array().is_some_and(|calls| !calls.is_empty());
            for item in responded["items"].as_array().into_iter().flatten() {
                if item["type"] == "message" {
                    self.settle_message(item, has_calls);
                }
            }
            self.is_cut_off = responded["finish_reason"] == "length_limit";
            self.written.clear();
            self.last_response = Some(seq);
            self.elsewhere.is_void = false;
            if self.awaited_response.is_some_and(|awaited| awaited <= seq) {
                self.awaited_response = None;
                self.has_missed_deltas = false;
            }
        }
        if record.get("run_finished").is_some() {
            self.pieces.extend(self.held.drain(..));
        }
        self.pieces.push_back(TextPiece::Record(Box::new(record.clone())));
        let error = if let Some(failed) = record.get("run_failed") {
            Some(failed["failure"].to_string())
        } else if record.get("run_cancelled").is_some() {
            Some("the run was cancelled".to_owned())
        } else if record.get("run_finished").is_some() {
            None
        } else {
            return;
        };
        let is_cancelled = record.get("run_cancelled").is_some();
        let end = RunEndPiece { error, is_cancelled, ..self.end_piece() };
        self.pieces.push_back(TextPiece::End(end));
    }

    fn count_usage(&mut self, record: &Value) {
        for kind in ["model_responded", "response_rejected", "model_request_failed"] {
            if let Some(usage) = record.get(kind).and_then(|entry| entry.get("usage")) {
                let count = |kind: &str| usage[kind].as_u64().unwrap_or(0);
                self.input_tokens = self.input_tokens.saturating_add(count("input_tokens"));
                self.output_tokens = self.output_tokens.saturating_add(count("output_tokens"));
            }
        }
    }

    /// Adds the rest of a message that was written in part, or all of it. A message without a written part that may be
    /// final is held.
    fn settle_message(&mut self, item: &Value, has_calls: bool) {
        let parts = item["content"].as_array().into_iter().flatten();
        let text: String = parts.filter_map(|part| part["text"].as_str()).collect();
        if text.is_empty() {
            return;
        }
        let is_held = self.written.is_empty() && !has_calls;
        let rest = if let Some(of_next) = self.written.strip_prefix(text.as_str()) {
            // The response has several messages, and the rest of the deltas is of the next ones.
            self.written = of_next.to_owned();
            String::new()
        } else {
            let written = std::mem::take(&mut self.written);
            match text.strip_prefix(written.as_str()) {
                Some(rest) => rest.to_owned(),
                None => format!("{RESTART_BREAK}{text}"),
            }
        };
        let rest = Some(rest).filter(|rest| !rest.is_empty()).map(TextPiece::Delta);
        let pieces = rest.into_iter().chain([TextPiece::MessageEnd(text)]);
        if is_held { self.held.extend(pieces) } else { self.pieces.extend(pieces) }
    }
}

#[cfg(test)]
#[path = "live_text_tests.rs"]
mod tests;

//! The text of a run as it is written: deltas while the model responds, and the records that settle it.
//!
//! Invariant: the pieces of a message add up to the message in the journal, unless a model request was repeated after it
//! had begun to write.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures_util::{Stream, StreamExt};
use serde_json::Value;
use tokio::sync::broadcast;
use windlass::core::id::RunId;
use windlass::event::{RunEvent, RunEventKind};

use crate::api::ApiError;
use crate::lock_unpoisoned;
use crate::run_feed::{FeedRecord, feed_of_run};
use crate::server::ServerState;

/// Number of deltas that a slow reader may be behind. It gets the rest with the record.
const MAX_DELTAS: usize = 1024;

/// A part of a message, with the number of the record before its response.
#[derive(Clone, Debug)]
struct LiveDelta {
    after_seq: u64,
    text: String,
}

/// The deltas of runs that somebody reads.
#[derive(Default)]
pub(crate) struct LiveText {
    channels: Mutex<HashMap<RunId, broadcast::Sender<LiveDelta>>>,
}

impl LiveText {
    /// Passes on the delta of an event, if somebody reads the run.
    pub(crate) fn publish(&self, run: &RunId, event: &RunEvent) {
        if let RunEventKind::TextDelta { delta } = &event.kind
            && event.path.is_empty()
            && let Some(channel) = lock_unpoisoned(&self.channels).get(run)
        {
            channel.send(LiveDelta { after_seq: event.seq, text: delta.clone() }).ok();
        }
    }

    fn subscribe(&self, run: &RunId) -> broadcast::Receiver<LiveDelta> {
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
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
}

/// Reads the text of a run from its start.
pub(super) struct TextReader {
    deltas: broadcast::Receiver<LiveDelta>,
    /// Number of the last response's record. Deltas of that response may come after it, and are part of it.
    settled_seq: u64,
    records: Pin<Box<dyn Stream<Item = Result<FeedRecord, windlass::error::StoreError>> + Send>>,
    /// Text of the current message so far.
    written: String,
    pieces: std::collections::VecDeque<TextPiece>,
    input_tokens: u64,
    output_tokens: u64,
}

impl TextReader {
    /// Subscribes to a run. It may be called before the run exists.
    pub(super) fn new(state: &Arc<ServerState>, run: &RunId) -> Self {
        Self::from_record(state, run, 0)
    }

    /// Subscribes to a run from a record on.
    pub(super) fn from_record(state: &Arc<ServerState>, run: &RunId, from: u64) -> Self {
        Self {
            deltas: state.live_text.subscribe(run),
            settled_seq: 0,
            records: feed_of_run(state.queue.clone(), run.clone(), from).boxed(),
            written: String::new(),
            pieces: Default::default(),
            input_tokens: 0,
            output_tokens: 0,
        }
    }

    /// Returns the next piece; `None` after the end.
    pub(super) async fn next(&mut self) -> Result<Option<TextPiece>, ApiError> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Ok(Some(piece));
            }
            tokio::select! {
                biased;
                delta = self.deltas.recv() => {
                    if let Ok(LiveDelta { after_seq, text }) = delta {
                        if after_seq < self.settled_seq {
                            continue;
                        }
                        self.written.push_str(&text);
                        return Ok(Some(TextPiece::Delta(text)));
                    }
                    // Lagged or closed: the record has the rest.
                    if matches!(delta, Err(broadcast::error::RecvError::Closed)) {
                        tokio::task::yield_now().await;
                    }
                }
                record = self.records.next() => match record {
                    Some(record) => self.read_record(&record?),
                    None => return Ok(None),
                },
            }
        }
    }

    fn read_record(&mut self, record: &FeedRecord) {
        let record: Value = serde_json::from_str(&record.json).unwrap_or_default();
        if record.get("path").is_some_and(|path| path.as_array().is_some_and(|path| !path.is_empty())) {
            self.count_usage(&record);
            self.pieces.push_back(TextPiece::Record(Box::new(record)));
            return;
        }
        self.count_usage(&record);
        if let Some(responded) = record.get("model_responded") {
            for item in responded["items"].as_array().into_iter().flatten() {
                if item["type"] == "message" {
                    self.settle_message(item);
                }
            }
            self.written.clear();
            self.settled_seq = record["seq"].as_u64().unwrap_or(self.settled_seq);
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
        let (input_tokens, output_tokens) = (self.input_tokens, self.output_tokens);
        self.pieces.push_back(TextPiece::End(RunEndPiece {
            error,
            is_cancelled,
            input_tokens,
            output_tokens,
        }));
    }

    fn count_usage(&mut self, record: &Value) {
        for kind in ["model_responded", "response_rejected", "model_request_failed"] {
            if let Some(usage) = record.get(kind).and_then(|entry| entry.get("usage")) {
                self.input_tokens += usage["input_tokens"].as_u64().unwrap_or(0);
                self.output_tokens += usage["output_tokens"].as_u64().unwrap_or(0);
            }
        }
    }

    /// Adds the rest of a message that was written in part, or all of it.
    fn settle_message(&mut self, item: &Value) {
        let parts = item["content"].as_array().into_iter().flatten();
        let text: String = parts.filter_map(|part| part["text"].as_str()).collect();
        if text.is_empty() {
            return;
        }
        let rest = match text.strip_prefix(self.written.as_str()) {
            Some(rest) => rest.to_owned(),
            None if text.starts_with(self.written.as_str()) => String::new(),
            None => String::new(),
        };
        self.written.clear();
        if !rest.is_empty() {
            self.pieces.push_back(TextPiece::Delta(rest));
        }
        self.pieces.push_back(TextPiece::MessageEnd(text));
    }
}

//! Spans on their way to an exporter of the `opentelemetry` crates, in batches.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{Event, Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter, SpanLinks};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use windlass::core::{
    id::{RunId, Timestamp},
    journal::{JournalFormatError, decode_record},
};
use windlass::error::StoreError;
use windlass::store::Store;

use crate::attributes::SPAN_KIND;
use crate::journal_spans::{JournalSpans, TraceContent};
use crate::run_span::{RunSpan, RunSpanKind, RunSpanStatus};
use crate::{SEMANTIC_CONVENTIONS, trace_id_of_run};

/// Number of spans that wait for their export at most. Further ones are dropped and counted.
const MAX_WAITING_SPANS: usize = 8_192;

/// Number of spans in a batch at most.
const MAX_BATCH: usize = 512;

/// Time that an incomplete batch waits for further spans.
const BATCH_DELAY: Duration = Duration::from_millis(500);

/// Time that the export of a batch may take, with the exporter's own retries, unless a sender is given another.
pub(crate) const DEFAULT_EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Number of records that are read from a store at once.
const PAGE_RECORDS: u32 = 512;

/// Sends spans to an exporter, in batches, from a task of its own.
///
/// A run never waits for it: if more than 8,192 spans wait, further ones are dropped, counted
/// ([`SpanSender::dropped_spans`]) and can be sent later with [`export_run`].
#[derive(Clone, Debug)]
pub struct SpanSender {
    sender: mpsc::Sender<SenderMessage>,
    losses: Arc<SpanLosses>,
    content: TraceContent,
    /// Share of the runs whose traces are sent, from 0 to 1.
    ratio: f64,
}

/// The spans that did not reach the collector.
#[derive(Debug, Default)]
struct SpanLosses {
    count: AtomicU64,
    /// The last error of the exporter.
    last_error: Mutex<Option<String>>,
}

impl SpanLosses {
    fn add(&self, count: usize) {
        self.count.fetch_add(count as u64, Ordering::Relaxed);
    }

    fn add_failed_batch(&self, count: usize, error: String) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        self.add(count);
    }

    fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

enum SenderMessage {
    Span(Box<RunSpan>),
    Flush(oneshot::Sender<()>),
}

impl SpanSender {
    /// Starts a sender. It must be called within a tokio runtime. The export of a batch that takes longer than 10 s is
    /// given up, and its spans are lost.
    pub fn start<E: SpanExporter + 'static>(exporter: E) -> Self {
        Self::start_with_timeout(exporter, DEFAULT_EXPORT_TIMEOUT)
    }

    /// Starts a sender as [`SpanSender::start`] does, with another time that the export of a batch may take.
    pub fn start_with_timeout<E: SpanExporter + 'static>(exporter: E, timeout: Duration) -> Self {
        let (sender, receiver) = mpsc::channel(MAX_WAITING_SPANS);
        let losses = Arc::new(SpanLosses::default());
        tokio::spawn(send_batches(exporter, timeout, receiver, losses.clone()));
        Self { sender, losses, content: TraceContent::LeftOut, ratio: 1.0 }
    }

    /// Sets the content of the conversation in spans.
    #[must_use]
    pub fn content(mut self, content: TraceContent) -> Self {
        self.content = content;
        self
    }

    /// Sets the share of runs whose traces are sent, from 0 to 1. All processes choose the same runs.
    #[must_use]
    pub fn sampling_ratio(mut self, ratio: f64) -> Self {
        self.ratio = ratio;
        self
    }

    /// Returns true if the trace of this run is sent.
    pub fn is_sampled(&self, run: &RunId) -> bool {
        // The lower half of a trace id is uniformly distributed, as the sampler of the specification assumes.
        let bytes = trace_id_of_run(run).to_bytes();
        let mut half = [0; 8];
        half.copy_from_slice(&bytes[8..]);
        let position = (u64::from_be_bytes(half) >> 1) as f64 / (1u64 << 63) as f64;
        position < self.ratio
    }

    /// Returns the spans of a run without records, with this sender's settings.
    pub(crate) fn new_spans(&self) -> JournalSpans {
        JournalSpans::new(self.content)
    }

    /// Sends a span, or drops it if too many wait.
    pub fn send(&self, span: RunSpan) {
        if self.sender.try_send(SenderMessage::Span(Box::new(span))).is_err() {
            self.losses.add(1);
        }
    }

    /// Sends a span, and waits until there is room for it.
    async fn send_all(&self, spans: Vec<RunSpan>) {
        for span in spans {
            if self.sender.send(SenderMessage::Span(Box::new(span))).await.is_err() {
                self.losses.add(1);
            }
        }
    }

    /// Returns the number of spans that were dropped because too many waited, or whose export failed.
    pub fn dropped_spans(&self) -> u64 {
        self.losses.count.load(Ordering::Relaxed)
    }

    /// Waits until the spans that were sent before have been exported, or failed to be.
    pub async fn flush(&self) {
        let (reply, done) = oneshot::channel();
        if self.sender.send(SenderMessage::Flush(reply)).await.is_ok() {
            // An error means that the task has ended, and nothing waits.
            let _ = done.await;
        }
    }
}

async fn send_batches<E: SpanExporter>(
    exporter: E,
    timeout: Duration,
    mut receiver: mpsc::Receiver<SenderMessage>,
    losses: Arc<SpanLosses>,
) {
    let scope = InstrumentationScope::builder("windlass")
        .with_version(env!("CARGO_PKG_VERSION"))
        .with_schema_url(SEMANTIC_CONVENTIONS)
        .build();
    let mut batch = Vec::new();
    let mut is_open = true;
    // The time at which the batch is sent, from its first span on.
    let mut due = None;
    while is_open {
        let mut flush = None;
        let received = match due {
            Some(due) => tokio::time::timeout_at(due, receiver.recv()).await,
            None => Ok(receiver.recv().await),
        };
        match received {
            Ok(Some(SenderMessage::Span(span))) => {
                due.get_or_insert_with(|| Instant::now() + BATCH_DELAY);
                batch.push(span_data(*span, scope.clone()));
                if batch.len() < MAX_BATCH {
                    continue;
                }
            }
            Ok(Some(SenderMessage::Flush(reply))) => flush = Some(reply),
            Ok(None) => is_open = false,
            Err(_) => {}
        }
        let count = batch.len();
        due = None;
        if count > 0
            && let Err(error) = export_batch(&exporter, timeout, std::mem::take(&mut batch)).await
        {
            tracing::warn!(%error, spans = count, "spans could not be exported");
            losses.add_failed_batch(count, error);
        }
        if let Some(reply) = flush {
            // The caller may have given up.
            let _ = reply.send(());
        }
    }
}

/// Exports a batch. An exporter that does not return in time holds up no later batch.
async fn export_batch<E: SpanExporter>(
    exporter: &E,
    timeout: Duration,
    batch: Vec<SpanData>,
) -> Result<(), String> {
    match tokio::time::timeout(timeout, exporter.export(batch)).await {
        Ok(exported) => exported.map_err(|error| error.to_string()),
        Err(_) => Err(format!("the collector did not take the spans within {timeout:?}")),
    }
}

fn span_data(span: RunSpan, instrumentation_scope: InstrumentationScope) -> SpanData {
    let context = |trace, id| SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::NONE);
    let mut attributes = span.attributes;
    attributes.push(KeyValue::new(SPAN_KIND, span.kind.name()));
    let mut events = SpanEvents::default();
    events.events = span
        .events
        .into_iter()
        .map(|event| Event::new(event.name, system_time(event.at), event.attributes, 0))
        .collect();
    let mut links = SpanLinks::default();
    links.links = span
        .links
        .into_iter()
        .map(|link| Link::new(context(link.trace, link.span), link.attributes, 0))
        .collect();
    SpanData {
        span_context: context(span.trace, span.id),
        parent_span_id: span.parent.unwrap_or(SpanId::INVALID),
        parent_span_is_remote: false,
        span_kind: match span.kind {
            RunSpanKind::ModelRequest => SpanKind::Client,
            _ => SpanKind::Internal,
        },
        name: span.name.into(),
        start_time: system_time(span.started_at),
        end_time: system_time(span.ended_at),
        attributes,
        dropped_attributes_count: 0,
        events,
        links,
        status: match span.status {
            RunSpanStatus::Unset => Status::Unset,
            RunSpanStatus::Error(name) => Status::error(name),
        },
        instrumentation_scope,
    }
}

fn system_time(at: Timestamp) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(at.0)).unwrap_or(UNIX_EPOCH)
}

/// An error that prevents the export of a stored run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportRunError {
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store has no such run.
    #[error("the store has no run `{0}`")]
    RunNotFound(RunId),
    /// A record cannot be read.
    #[error("record {seq} of run `{run}` cannot be read")]
    Record {
        /// The run.
        run: RunId,
        /// Number of the record.
        seq: u64,
        /// The cause.
        source: JournalFormatError,
    },
    /// The exporter failed, so that spans did not reach the collector.
    #[error("{spans} spans of run `{run}` were not sent: {cause}")]
    NotSent {
        /// The run.
        run: RunId,
        /// Number of spans.
        spans: u64,
        /// The error of the exporter.
        cause: String,
    },
}

/// Sends the spans of a stored run that are complete, and returns their number. The span of a run that has not ended is
/// not complete.
///
/// # Errors
///
/// Returns an error if the journal cannot be read, or if spans did not reach the collector. Spans of the records before the
/// error have been sent. Lost spans of other runs that use the sender at the same time count, too.
pub async fn export_run(
    store: &dyn Store,
    run: &RunId,
    sender: &SpanSender,
) -> Result<usize, ExportRunError> {
    let mut spans = sender.new_spans();
    let lost_before = sender.dropped_spans();
    let (mut next, mut count) = (0, 0);
    loop {
        let page = store.load_journal_page(run, next, PAGE_RECORDS).await?;
        if page.is_empty() {
            break;
        }
        for line in page {
            let record = decode_record(next, &line.body).map_err(|source| ExportRunError::Record {
                run: run.clone(),
                seq: next,
                source,
            })?;
            let completed = spans.add(&record);
            count += completed.len();
            sender.send_all(completed).await;
            next += 1;
        }
    }
    if next == 0 {
        return Err(ExportRunError::RunNotFound(run.clone()));
    }
    sender.flush().await;
    match sender.dropped_spans().saturating_sub(lost_before) {
        0 => Ok(count),
        spans => {
            let cause = sender.losses.last_error().unwrap_or_else(|| "the sender has ended".to_owned());
            Err(ExportRunError::NotSent { run: run.clone(), spans, cause })
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::error::OTelSdkResult;

    use super::*;

    /// Counts the spans that it exports. The first batch is never taken.
    #[derive(Debug, Default)]
    struct StallingExporter {
        batches: AtomicU64,
        exported: Arc<AtomicU64>,
    }

    impl SpanExporter for StallingExporter {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            if self.batches.fetch_add(1, Ordering::Relaxed) == 0 {
                std::future::pending::<()>().await;
            }
            self.exported.fetch_add(batch.len() as u64, Ordering::Relaxed);
            Ok(())
        }
    }

    fn span() -> RunSpan {
        RunSpan {
            trace: trace_id_of_run(&"r".into()),
            id: SpanId::from_bytes([1; 8]),
            parent: None,
            kind: RunSpanKind::Agent,
            name: "clerk".to_owned(),
            started_at: Timestamp(1),
            ended_at: Timestamp(2),
            attributes: Vec::new(),
            events: Vec::new(),
            links: Vec::new(),
            status: RunSpanStatus::Unset,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_stalls_loses_one_batch_and_holds_up_no_other() {
        let exporter = StallingExporter::default();
        let exported = exporter.exported.clone();
        let sender = SpanSender::start(exporter);
        sender.send(span());
        sender.flush().await;
        assert_eq!((sender.dropped_spans(), exported.load(Ordering::Relaxed)), (1, 0));
        assert!(sender.losses.last_error().unwrap().contains("10s"));
        sender.send(span());
        sender.flush().await;
        assert_eq!((sender.dropped_spans(), exported.load(Ordering::Relaxed)), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn spans_that_keep_coming_do_not_put_off_their_batch() {
        let exporter = StallingExporter { batches: AtomicU64::new(1), ..StallingExporter::default() };
        let exported = exporter.exported.clone();
        let sender = SpanSender::start(exporter);
        for _ in 0..3 {
            sender.send(span());
            tokio::time::sleep(BATCH_DELAY * 4 / 5).await;
        }
        assert_eq!(exported.load(Ordering::Relaxed), 2);
    }
}

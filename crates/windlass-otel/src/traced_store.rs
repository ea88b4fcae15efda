//! Live traces: a store that sends the spans of the runs that are written to it.
//!
//! Invariant: a span is sent once, by the process that writes the record which completes it. Records that are missing in
//! memory, because another process wrote them or because too many waited, are read from the store.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot};
use windlass::core::{
    id::RunId,
    journal::{JournalEntry, JournalLine, JournalRecord, decode_record},
};
use windlass::error::StoreError;
use windlass::session::SessionStore;
use windlass::store::{AppendOrigin, JournalAppend, Store, StoreFuture, StoreWrapper};

use crate::export::SpanSender;
use crate::journal_spans::JournalSpans;

/// Number of appends that wait with their lines for the task which derives spans. The lines of further ones are read from the
/// store.
const MAX_WAITING_APPENDS: usize = 1_024;

/// Number of runs whose open spans are kept in memory. Those of other runs are derived again from the store.
const MAX_OPEN_RUNS: usize = 4_096;

/// Number of records that are read from the store at once.
const PAGE_RECORDS: u32 = 512;

/// A store that sends the spans of its runs while they are written.
///
/// It wraps another store. A run never waits for its spans.
pub struct TracedStore {
    inner: Arc<dyn Store>,
    appends: mpsc::UnboundedSender<TracedAppend>,
    waiting: Arc<AtomicUsize>,
    sender: SpanSender,
}

/// A message to the task that derives spans.
enum TracedAppend {
    /// Lines that were appended to the journal of a run, from `at` to before `end`. If too many appends wait, `lines` is empty.
    Lines { run: RunId, at: u64, end: u64, lines: Vec<JournalLine> },
    /// A request to reply when everything before it is done.
    Flush(oneshot::Sender<()>),
}

impl TracedStore {
    /// Creates a store that wraps `inner` and sends spans with `sender`. It must be called within a tokio runtime.
    pub fn new(inner: Arc<dyn Store>, sender: SpanSender) -> Self {
        let (appends, receiver) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let tracer = RunTracer {
            store: inner.clone(),
            sender: sender.clone(),
            waiting: waiting.clone(),
            runs: BTreeMap::new(),
        };
        tokio::spawn(tracer.follow(receiver));
        Self { inner, appends, waiting, sender }
    }

    /// Waits until the completed spans of everything that was written before have been exported, or failed to be.
    pub async fn flush(&self) {
        let (reply, done) = oneshot::channel();
        if self.appends.send(TracedAppend::Flush(reply)).is_ok() {
            // An error means that the task has ended, and nothing waits.
            let _ = done.await;
        }
        self.sender.flush().await;
    }

    fn trace(&self, run: &RunId, at: u64, lines: Vec<JournalLine>) {
        if lines.is_empty() {
            return;
        }
        let end = at + lines.len() as u64;
        // No append may be forgotten: the last one of a run has no other after it that would show the gap.
        let is_kept = self.waiting.fetch_add(1, Ordering::Relaxed) < MAX_WAITING_APPENDS;
        let lines = if is_kept { lines } else { Vec::new() };
        // An error means that the task has ended, and nothing is traced.
        let _ = self.appends.send(TracedAppend::Lines { run: run.clone(), at, end, lines });
    }
}

impl fmt::Debug for TracedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TracedStore").finish_non_exhaustive()
    }
}

impl StoreWrapper for TracedStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn wrap_append<'a, T: Send + 'a>(
        &'a self,
        append: JournalAppend<'a>,
        operation: impl FnOnce(Vec<JournalLine>) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        async move {
            let JournalAppend { run, at, lines, origin } = append;
            // The spans of a run from another store were sent when it was driven.
            let is_traced = origin == AppendOrigin::Driver && self.sender.is_sampled(run);
            let copy = if is_traced { lines.clone() } else { Vec::new() };
            let result = operation(lines).await?;
            self.trace(run, at, copy);
            Ok(result)
        }
        .boxed()
    }

    fn sessions(&self) -> Option<&dyn SessionStore> {
        self.inner.sessions()
    }
}

/// The task that derives spans from appended records.
struct RunTracer {
    store: Arc<dyn Store>,
    sender: SpanSender,
    waiting: Arc<AtomicUsize>,
    runs: BTreeMap<RunId, TracedRun>,
}

/// A run with open spans.
struct TracedRun {
    spans: JournalSpans,
    /// Number of the next record.
    next: u64,
    has_ended: bool,
}

impl RunTracer {
    async fn follow(mut self, mut appends: mpsc::UnboundedReceiver<TracedAppend>) {
        while let Some(append) = appends.recv().await {
            match append {
                TracedAppend::Lines { run, at, end, lines } => {
                    self.waiting.fetch_sub(1, Ordering::Relaxed);
                    if let Err(error) = self.add_lines(&run, at..end, lines).await {
                        self.runs.remove(&run);
                        tracing::warn!(%error, run = run.as_str(), "a run cannot be traced");
                    }
                }
                TracedAppend::Flush(reply) => {
                    // The caller may have given up.
                    let _ = reply.send(());
                }
            }
        }
    }

    async fn add_lines(
        &mut self,
        run: &RunId,
        Range { start: at, end }: Range<u64>,
        lines: Vec<JournalLine>,
    ) -> Result<(), StoreError> {
        if !self.runs.contains_key(run) {
            if self.runs.len() >= MAX_OPEN_RUNS {
                self.runs.pop_first();
            }
            // Another process sent the spans of the records before.
            let mut traced = TracedRun { spans: self.sender.new_spans(), next: 0, has_ended: false };
            self.read_until(run, &mut traced, at, None).await?;
            self.runs.insert(run.clone(), traced);
        }
        let Some(mut traced) = self.runs.remove(run) else { return Ok(()) };
        let sender = self.sender.clone();
        self.read_until(run, &mut traced, at, Some(&sender)).await?;
        let next = traced.next;
        for (seq, line) in (at..).zip(&lines).skip_while(|(seq, _)| *seq < next) {
            if let Ok(record) = decode_record(seq, &line.body) {
                traced.add(&record, Some(&sender));
            }
        }
        self.read_until(run, &mut traced, end, Some(&sender)).await?;
        if !traced.has_ended {
            self.runs.insert(run.clone(), traced);
        }
        Ok(())
    }

    /// Reads the records before `end` that are missing, and sends their spans if there is a sender.
    async fn read_until(
        &self,
        run: &RunId,
        traced: &mut TracedRun,
        end: u64,
        sender: Option<&SpanSender>,
    ) -> Result<(), StoreError> {
        while traced.next < end {
            let limit = u32::try_from(end - traced.next).unwrap_or(u32::MAX).min(PAGE_RECORDS);
            let page = self.store.load_journal_page(run, traced.next, limit).await?;
            if page.is_empty() {
                return Ok(());
            }
            for line in page {
                if let Ok(record) = decode_record(traced.next, &line.body) {
                    traced.add(&record, sender);
                } else {
                    traced.next += 1;
                }
            }
        }
        Ok(())
    }
}

impl TracedRun {
    fn add(&mut self, record: &JournalRecord, sender: Option<&SpanSender>) {
        self.next = record.seq + 1;
        self.has_ended |= record.path.is_empty() && is_end(record);
        for span in self.spans.add(record) {
            if let Some(sender) = sender {
                sender.send(span);
            }
        }
    }
}

fn is_end(record: &JournalRecord) -> bool {
    matches!(
        record.entry,
        JournalEntry::RunFinished(_) | JournalEntry::RunFailed(_) | JournalEntry::RunCancelled(_)
    )
}

//! The feed of a run: its records from a sequence number on, then the others as they are written.
//!
//! Invariant: a feed has one position, the sequence number of its next record, and reads it from the store. So it has no
//! gap and no duplicate, and a slow reader holds no memory and delays no run.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, stream};
use tokio::sync::Notify;
use windlass::core::{id::RunId, journal::JournalLine};
use windlass::error::StoreError;
use windlass::store::{Store, end_of_run};

use crate::served_queue::ServedQueue;

/// Number of lines that are read at once.
const PAGE_LINES: u32 = 256;
/// Time after which a feed looks by itself, in case a hint was lost.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

/// A record of a run as its journal has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FeedRecord {
    pub(crate) seq: u64,
    /// The record as JSON, with its sequence number.
    pub(crate) json: String,
}

/// Writes a line of a journal as JSON with its sequence number.
pub(crate) fn record_json(seq: u64, body: &str) -> String {
    match body.strip_prefix('{') {
        Some(rest) => format!("{{\"seq\":{seq},{rest}"),
        None => body.to_owned(),
    }
}

/// Returns the records of a run from `from` on. The stream ends after the record that ends the run and those after it that
/// are written by then. The run need not exist yet.
pub(crate) fn feed_of_run(
    queue: Arc<ServedQueue>,
    run: RunId,
    from: u64,
) -> impl Stream<Item = Result<FeedRecord, StoreError>> + Send {
    let signal = queue.signal_of(&run);
    let reader = FeedReader { queue, run, signal, next: from, lines: VecDeque::new(), has_ended: false };
    stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        match reader.next_record().await {
            Ok(Some(record)) => Some((Ok(record), Some(reader))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    })
}

struct FeedReader {
    queue: Arc<ServedQueue>,
    run: RunId,
    signal: Arc<Notify>,
    next: u64,
    lines: VecDeque<JournalLine>,
    has_ended: bool,
}

impl FeedReader {
    async fn next_record(&mut self) -> Result<Option<FeedRecord>, StoreError> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                let seq = self.next;
                self.next += 1;
                return Ok(Some(FeedRecord { seq, json: record_json(seq, &line.body) }));
            }
            // Registered before the look at the store, so that no write is missed.
            let signal = self.signal.clone();
            let mut written = std::pin::pin!(signal.notified());
            written.as_mut().enable();
            let page = self.queue.load_journal_page(&self.run, self.next, PAGE_LINES).await?;
            if !page.is_empty() {
                self.has_ended |= end_of_run(&page).is_some();
                self.lines = page.into();
                continue;
            }
            if self.has_ended || self.is_ended_before().await? {
                return Ok(None);
            }
            tokio::select! {
                () = written => {}
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
        }
    }

    /// Returns true if the run ended before the first record of this feed.
    async fn is_ended_before(&self) -> Result<bool, StoreError> {
        // Only bodies that end late are recorded after the end. The lines from the next record on are not looked at: they
        // may have been written since, and are still to be returned.
        let count = u32::try_from(self.next.min(u64::from(PAGE_LINES))).unwrap_or(PAGE_LINES);
        let from = self.next - u64::from(count);
        let page = self.queue.load_journal_page(&self.run, from, count).await?;
        Ok(end_of_run(&page).is_some())
    }
}

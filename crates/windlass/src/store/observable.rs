//! Subscriptions to the records of stored runs, in the process that writes them.
//!
//! Invariant: a subscription has one position, the sequence number of its next record. It takes the record from the
//! latest lines in memory or, if it is behind them, from the store. So it has no gap and no duplicate, and a slow
//! subscriber holds no memory and delays no run.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, Stream, StreamExt};
use tokio::sync::Notify;
use windlass_core::{
    id::RunId,
    journal::{HashChain, JournalEntry, JournalLine, JournalRecord},
};

use super::open::{OpenRunError, load_history};
use super::{JournalAppend, Store, StoreFuture, StoreWrapper};
use crate::error::StoreError;
use crate::session::SessionStore;

/// Maximum number of lines of a run that are kept in memory for its subscribers.
const MAX_RECENT_LINES: usize = 256;

/// Maximum size of these lines in bytes.
const MAX_RECENT_BYTES: usize = 1 << 20;

/// Number of lines that a subscriber reads from the store at once.
const PAGE_LINES: u32 = 256;

/// A store whose runs can be subscribed to in this process.
///
/// It wraps another store. A subscriber sees the records as they are stored: without secrets, and without outputs
/// that a guardrail withholds.
///
/// ```
/// use std::sync::Arc;
///
/// use windlass::prelude::*;
/// use windlass::store::{MemoryStore, ObservableStore};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Arc::new(ObservableStore::new(Arc::new(MemoryStore::default())));
/// let mut records = store.subscribe("greeting", 0);
/// let agent = Agent::new("host").model(ScriptedModel::new([ScriptedResponse::text("Good morning.")]));
/// agent.run("Hello").store(store).run_id("greeting").await?;
/// let mut count = 0;
/// while let Some(record) = records.next().await {
///     assert_eq!(record?.seq, count);
///     count += 1;
/// }
/// assert_eq!(count, 3);
/// # Ok(()) }
/// ```
pub struct ObservableStore {
    inner: Arc<dyn Store>,
    feeds: Mutex<BTreeMap<RunId, Weak<RunFeed>>>,
}

impl ObservableStore {
    /// Creates an observable store that wraps `inner`.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, feeds: Mutex::default() }
    }

    /// Subscribes to the records of a run from sequence number `from` on: first the stored ones, then the others as the
    /// store takes them. The run need not exist yet.
    ///
    /// Records that other processes write, or that are written past this wrapper, are read from the store with the
    /// next record that is written through it.
    pub fn subscribe(&self, run: impl Into<RunId>, from: u64) -> RecordStream {
        let run = run.into();
        let feed = {
            let mut feeds = lock(&self.feeds);
            feeds.retain(|_, feed| feed.strong_count() > 0);
            let feed = feeds.get(&run).and_then(Weak::upgrade).unwrap_or_default();
            feeds.insert(run.clone(), Arc::downgrade(&feed));
            feed
        };
        let subscription = RecordReader {
            store: self.inner.clone(),
            feed,
            run,
            next: from,
            chain: (from == 0).then(HashChain::default),
            lines: VecDeque::new(),
            is_caught_up: false,
            has_run_ended: false,
        };
        let records = stream::unfold(Some(subscription), |reader| async move {
            let mut reader = reader?;
            match reader.next_record().await {
                Ok(Some(record)) => Some((Ok(record), Some(reader))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        });
        RecordStream { records: records.boxed() }
    }

    fn feed(&self, run: &RunId) -> Option<Arc<RunFeed>> {
        lock(&self.feeds).get(run).and_then(Weak::upgrade)
    }
}

impl fmt::Debug for ObservableStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObservableStore").finish_non_exhaustive()
    }
}

impl StoreWrapper for ObservableStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn wrap_append<'a, T: Send + 'a>(
        &'a self,
        append: JournalAppend<'a>,
        operation: impl FnOnce(Vec<JournalLine>) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        async move {
            let JournalAppend { run, at, lines, .. } = append;
            let end = at + lines.len() as u64;
            let copy = self.feed(run).map(|_| lines.clone()).unwrap_or_default();
            let result = operation(lines).await?;
            // Somebody may have subscribed meanwhile.
            if let Some(feed) = self.feed(run) {
                feed.publish(end, copy);
            }
            Ok(result)
        }
        .boxed()
    }

    fn sessions(&self) -> Option<&dyn SessionStore> {
        self.inner.sessions()
    }
}

/// The records of a run: the stored ones from a sequence number on, then the others as they are stored.
///
/// The stream ends after the record that ends the run and the records after it that are stored by then. It also ends
/// after an error. A paused run does not end it.
pub struct RecordStream {
    records: BoxStream<'static, Result<JournalRecord, OpenRunError>>,
}

impl RecordStream {
    /// Returns the next record, or `None` when the run has ended.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read, or if a line is not the one that was written.
    ///
    /// # Cancel safety
    ///
    /// No record is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Result<JournalRecord, OpenRunError>> {
        self.records.next().await
    }
}

impl Stream for RecordStream {
    type Item = Result<JournalRecord, OpenRunError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.records.poll_next_unpin(cx)
    }
}

impl fmt::Debug for RecordStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordStream").finish_non_exhaustive()
    }
}

/// The latest lines of a run that has subscribers.
#[derive(Default)]
struct RunFeed {
    recent: Mutex<Option<RecentLines>>,
    has_grown: Notify,
}

/// The latest lines of a run, within limits.
#[derive(Default)]
struct RecentLines {
    lines: VecDeque<Arc<JournalLine>>,
    size_in_bytes: usize,
    /// Sequence number after the last line.
    end: u64,
}

/// The place where a subscription finds its next record.
enum NextRecord {
    InMemory(VecDeque<Arc<JournalLine>>),
    InStore,
    NotWritten,
}

impl RunFeed {
    /// Publishes lines that were written. `lines` is empty if they were not copied; then they are in the store alone.
    fn publish(&self, end: u64, lines: Vec<JournalLine>) {
        let mut recent = lock(&self.recent);
        let recent = recent.get_or_insert_default();
        if recent.end + lines.len() as u64 != end {
            *recent = RecentLines::default();
        }
        recent.end = end;
        for line in lines {
            recent.size_in_bytes += line.body.len();
            recent.lines.push_back(Arc::new(line));
        }
        while recent.lines.len() > MAX_RECENT_LINES || recent.size_in_bytes > MAX_RECENT_BYTES {
            let Some(oldest) = recent.lines.pop_front() else { break };
            recent.size_in_bytes -= oldest.body.len();
        }
        self.has_grown.notify_waiters();
    }

    fn find(&self, seq: u64) -> NextRecord {
        let recent = lock(&self.recent);
        let Some(recent) = &*recent else { return NextRecord::InStore };
        let start = recent.end - recent.lines.len() as u64;
        if seq >= recent.end {
            NextRecord::NotWritten
        } else if seq < start {
            NextRecord::InStore
        } else {
            let skipped = usize::try_from(seq - start).unwrap_or(usize::MAX);
            NextRecord::InMemory(recent.lines.iter().skip(skipped).cloned().collect())
        }
    }
}

/// A subscription at its position.
struct RecordReader {
    store: Arc<dyn Store>,
    feed: Arc<RunFeed>,
    run: RunId,
    /// Sequence number of the next record.
    next: u64,
    /// Chain up to the next record; absent until the line before it was read.
    chain: Option<HashChain>,
    /// Lines from the next record on.
    lines: VecDeque<Arc<JournalLine>>,
    /// True if all stored records were read once.
    is_caught_up: bool,
    has_run_ended: bool,
}

impl RecordReader {
    /// Returns the next record, or `None` when the run has ended.
    async fn next_record(&mut self) -> Result<Option<JournalRecord>, OpenRunError> {
        loop {
            if let (Some(chain), Some(line)) = (&mut self.chain, self.lines.pop_front()) {
                let mut record = chain
                    .read_record(self.next, &line)
                    .map_err(|source| OpenRunError::JournalFormat { run: self.run.clone(), source })?;
                if let JournalEntry::RunStarted(started) = &mut record.entry {
                    load_history(&*self.store, &self.run, &mut started.history).await?;
                }
                self.next += 1;
                self.has_run_ended |= ends_run(&record);
                return Ok(Some(record));
            }
            // Registered before the look at the feed, so that no growth is missed.
            let feed = self.feed.clone();
            let mut has_grown = std::pin::pin!(feed.has_grown.notified());
            has_grown.as_mut().enable();
            if self.is_filled().await? {
                continue;
            }
            if self.has_run_ended {
                return Ok(None);
            }
            has_grown.await;
        }
    }

    /// Fills the buffer from memory or the store. Returns false if the next record is not written yet.
    async fn is_filled(&mut self) -> Result<bool, StoreError> {
        if self.chain.is_none() {
            let before = self.store.load_journal_page(&self.run, self.next - 1, 1).await?;
            let Some(before) = before.first() else { return Ok(false) };
            self.chain = Some(HashChain::from_head(before.hash));
        }
        match self.feed.find(self.next) {
            NextRecord::InMemory(lines) => self.lines = lines,
            NextRecord::NotWritten if self.is_caught_up => return Ok(false),
            // Another process may have written more than this one knows of.
            NextRecord::NotWritten | NextRecord::InStore => {
                let page = self.store.load_journal_page(&self.run, self.next, PAGE_LINES).await?;
                self.lines = page.into_iter().map(Arc::new).collect();
                self.is_caught_up |= self.lines.is_empty();
            }
        }
        Ok(!self.lines.is_empty())
    }
}

/// Returns true if the record ends the outermost run.
pub(super) fn ends_run(record: &JournalRecord) -> bool {
    record.path.is_empty()
        && matches!(
            record.entry,
            JournalEntry::RunFinished(_) | JournalEntry::RunFailed(_) | JournalEntry::RunCancelled(_)
        )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

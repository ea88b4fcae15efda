//! The events of a run, followed from any process that shares the store.
//!
//! Invariant: a feed has one position in the journal. It reads each record once, verifies its hash, and delivers all events
//! of a record together, so that the sequence number of an event is an offset to continue from.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::id::RunId;
use windlass_core::journal::{HashChain, JournalEntry};

use super::Store;
use super::observable::ends_run;
use super::open::{OpenRunError, load_history};
use crate::event::{EventReplay, RunEvent};

/// Default time between two looks at the journal.
const DEFAULT_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Number of lines that are read at once.
const PAGE_LINES: u32 = 256;

/// The events of a run, whichever process drives it: first those of the stored records, then the others as they are stored.
///
/// Deltas of the model's text, progress and warnings have no record and are left out. Secrets are placeholders.
///
/// ```
/// use std::sync::Arc;
///
/// use windlass::prelude::*;
/// use windlass::store::{EventFeed, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Arc::new(MemoryStore::default());
/// let agent = Agent::new("host").model(ScriptedModel::new([ScriptedResponse::text("Good morning.")]));
/// agent.run("Hello").store(store.clone()).run_id("greeting").await?;
/// let mut feed = EventFeed::new(store, "greeting", 0);
/// let mut last = 0;
/// while let Some(event) = feed.next().await {
///     last = event?.seq; // a later feed continues from `last + 1`
/// }
/// assert_eq!(last, 1); // the response; the end of a run has no event of its own
/// # Ok(()) }
/// ```
pub struct EventFeed {
    store: Arc<dyn Store>,
    run: RunId,
    poll_interval: Duration,
    /// Sequence number of the first record whose events are delivered.
    from: u64,
    /// Sequence number of the next record to read.
    next: u64,
    chain: HashChain,
    replay: EventReplay,
    events: VecDeque<RunEvent>,
    state: FeedState,
}

/// The state of a feed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FeedState {
    Following,
    /// The record that ends the run was read.
    RunEnded,
    /// An error was returned.
    Failed,
}

impl EventFeed {
    /// Follows a run from the record with the sequence number `from` on. The run need not exist yet.
    pub fn new(store: Arc<dyn Store>, run: impl Into<RunId>, from: u64) -> Self {
        Self {
            store,
            run: run.into(),
            poll_interval: DEFAULT_POLL_INTERVAL,
            from,
            next: 0,
            chain: HashChain::default(),
            replay: EventReplay::default(),
            events: VecDeque::new(),
            state: FeedState::Following,
        }
    }

    /// Sets the time between two looks at the journal when there is nothing new; the default is 200 ms.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval.max(Duration::from_millis(1));
        self
    }

    /// Returns the next event; `None` when the run has ended and all its events were returned. A paused run does not end the
    /// feed.
    ///
    /// # Errors
    ///
    /// Returns an error, and `None` after it, if the store cannot be read, or a line is not the one that was written.
    ///
    /// # Cancel safety
    ///
    /// No event is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Result<RunEvent, OpenRunError>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(Ok(event));
            }
            if self.state == FeedState::Failed {
                return None;
            }
            match self.read_page().await {
                Err(error) => {
                    self.state = FeedState::Failed;
                    return Some(Err(error));
                }
                Ok(0) if self.state == FeedState::RunEnded => return None,
                Ok(0) => tokio::time::sleep(self.poll_interval).await,
                Ok(_) => {}
            }
        }
    }

    /// Reads the next lines, and returns their number.
    async fn read_page(&mut self) -> Result<usize, OpenRunError> {
        let lines = self.store.load_journal_page(&self.run, self.next, PAGE_LINES).await?;
        let count = lines.len();
        for line in lines {
            // The position moves only after the last await, so that a dropped future repeats the line.
            let mut chain = self.chain;
            let mut record = chain
                .read_record(self.next, &line)
                .map_err(|source| OpenRunError::JournalFormat { run: self.run.clone(), source })?;
            if let JournalEntry::RunStarted(started) = &mut record.entry {
                load_history(&*self.store, &self.run, &mut started.history).await?;
            }
            let events = self.replay.next_events(&record);
            let events = events.map_err(|source| OpenRunError::Replay { run: self.run.clone(), source })?;
            if self.next >= self.from {
                self.events.extend(events);
            }
            if ends_run(&record) {
                self.state = FeedState::RunEnded;
            }
            (self.chain, self.next) = (chain, self.next + 1);
        }
        Ok(count)
    }
}

impl fmt::Debug for EventFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventFeed").field("run", &self.run).field("next", &self.next).finish_non_exhaustive()
    }
}

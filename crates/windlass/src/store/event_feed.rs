//! The events of a run, followed from any process that shares the store.
//!
//! Invariant: a feed has one position in the journal. It reads each record once, verifies its hash, and delivers all events
//! of a record together, so that the sequence number of an event is an offset to continue from. Text deltas that were
//! delivered and not discarded are the beginning of the response whose record follows.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::id::{CallId, RunId};
use windlass_core::item::Item;
use windlass_core::journal::{HashChain, JournalEntry, JournalRecord, ModelResponded};

use super::Store;
use super::deltas::{DeltaContent, DeltaFeed, DeltaOrigin, LiveDelta};
use super::observable::ends_run;
use super::open::{OpenRunError, load_history};
use crate::event::{EventReplay, RunEvent, RunEventKind};

/// Default time between two looks at the journal.
const DEFAULT_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Number of lines that are read at once.
const PAGE_LINES: u32 = 256;

/// The events of a run, whichever process drives it: first those of the stored records, then the others as they are stored.
///
/// Progress and warnings have no record and are left out, and so are deltas unless they are asked for
/// ([`EventFeed::with_deltas`]). Secrets are placeholders.
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
    deltas: Option<DeltaFeed>,
    /// Deltas whose request follows records that are not read yet.
    waiting: Vec<LiveDelta>,
    /// The responses whose deltas were delivered and whose record was not read yet, by the path of their agent.
    open_responses: BTreeMap<Vec<CallId>, OpenResponse>,
    /// Sequence number of the last record that ended a model request, by the path of its agent.
    last_answers: BTreeMap<Vec<CallId>, u64>,
    /// Highest epoch of a delta.
    epoch: u64,
}

/// A response whose deltas were delivered.
struct OpenResponse {
    epoch: u64,
    number: u64,
    text: String,
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
            deltas: None,
            waiting: Vec::new(),
            open_responses: BTreeMap::new(),
            last_answers: BTreeMap::new(),
            epoch: 0,
        }
    }

    /// Adds the deltas of model responses, if the store carries them. They are a preview: some may be missing, and the
    /// events of the response's record have the whole response. [`RunEventKind::DeltasDiscarded`] voids those of a response
    /// that failed or was lost with its driver.
    ///
    /// Runs whose agents have secret arguments, secret outputs or output guardrails have no deltas, as in
    /// [`Worker::event_watcher`](crate::fleet::Worker::event_watcher).
    #[must_use]
    pub fn with_deltas(mut self) -> Self {
        self.deltas = DeltaFeed::new(self.store.clone(), self.run.clone(), DeltaOrigin::AnyProcess);
        self
    }

    /// Makes the feed known to drivers, so that a model request which begins afterwards has deltas.
    /// [`EventFeed::next`] does it, too.
    pub async fn register(&self) {
        if let Some(deltas) = &self.deltas {
            deltas.register().await;
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
                Ok(0) if self.state == FeedState::RunEnded => {
                    if let Some(deltas) = self.deltas.take() {
                        deltas.remove_read().await;
                    }
                    return None;
                }
                Ok(0) => {
                    self.read_deltas().await;
                    if self.events.is_empty() {
                        tokio::time::sleep(self.poll_interval).await;
                    }
                }
                Ok(_) => {}
            }
        }
    }

    async fn read_deltas(&mut self) {
        let Some(feed) = &mut self.deltas else { return };
        self.waiting.extend(feed.read().await);
        self.epoch = self.waiting.iter().map(|delta| delta.epoch).fold(self.epoch, u64::max);
        for delta in std::mem::take(&mut self.waiting) {
            let is_answered = self.last_answers.get(&delta.path).is_some_and(|last| *last > delta.base);
            if delta.epoch < self.epoch || is_answered {
                continue;
            }
            if delta.base >= self.next {
                self.waiting.push(delta);
                continue;
            }
            let (epoch, number) = (delta.epoch, delta.response);
            let is_other = |open: &OpenResponse| (open.epoch, open.number) != (epoch, number);
            if self.open_responses.get(&delta.path).is_some_and(is_other) {
                self.discard_deltas(&delta.path);
            }
            if delta.content == DeltaContent::Discarded {
                self.discard_deltas(&delta.path);
                continue;
            }
            let open = self.open_responses.entry(delta.path.clone());
            let open = open.or_insert_with(|| OpenResponse { epoch, number, text: String::new() });
            if let DeltaContent::Text(text) = &delta.content {
                open.text.push_str(text);
            }
            self.push_event(delta.path, delta.content.into_event());
        }
    }

    /// Voids the deltas of the response that an agent's model was writing, if some were delivered.
    fn discard_deltas(&mut self, path: &[CallId]) {
        if self.open_responses.remove(path).is_some() {
            self.push_event(path.to_vec(), RunEventKind::DeltasDiscarded);
        }
    }

    /// Adds an event without a record.
    fn push_event(&mut self, path: Vec<CallId>, kind: RunEventKind) {
        let seq = self.next.saturating_sub(1);
        self.events.push_back(RunEvent { seq, path, is_repeated: false, kind });
    }

    /// Ends the responses that a record answers. Their deltas are void unless they are the beginning of the recorded one.
    fn settle_deltas(&mut self, record: &JournalRecord) {
        match &record.entry {
            JournalEntry::ModelResponded(responded) => {
                let open = self.open_responses.get(&record.path);
                match open.is_some_and(|open| text_of(responded).starts_with(&open.text)) {
                    true => drop(self.open_responses.remove(&record.path)),
                    false => self.discard_deltas(&record.path),
                }
            }
            JournalEntry::ModelRequestFailed(_) | JournalEntry::ResponseRejected(_) => {
                self.discard_deltas(&record.path);
            }
            _ if ends_run(record) => {
                let open: Vec<_> = self.open_responses.keys().cloned().collect();
                open.iter().for_each(|path| self.discard_deltas(path));
            }
            _ => return,
        }
        self.last_answers.insert(record.path.clone(), record.seq);
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
            self.settle_deltas(&record);
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

/// Returns the text of a response.
fn text_of(responded: &ModelResponded) -> String {
    let messages = responded.items.iter().filter_map(|item| match &**item {
        Item::Message(message) => Some(message.text()),
        _ => None,
    });
    messages.collect()
}

impl fmt::Debug for EventFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventFeed").field("run", &self.run).field("next", &self.next).finish_non_exhaustive()
    }
}

//! A watch over the open runs of the store: the calls that wait for a person, and the writes of other processes.
//!
//! Invariant: the journal is the truth. A run is read again when its number of records or its time has changed, or when a
//! decision about it was posted by any process, and for nothing else, so that a thousand runs that wait cost one listing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Mutex, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use windlass::core::{
    decision::{HoldReason, PendingCall},
    id::{AgentName, RunId, Timestamp},
    plan::CallDisposition,
    run::Run,
    tool::ToolEffect,
};
use windlass::error::StoreError;
use windlass::run::PausedRun;
use windlass::store::{RunCursor, RunQuery, RunStatus, Store, StoredRun, load_paused};
use windlass::tool::{CallEvidence, fetch_evidence};

use crate::served_queue::ServedQueue;

/// Time after which writes of other processes are looked for.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Time after the last look, at which the known runs are dropped. Pages and scrapes that come more often read the changes
/// only.
const KEPT_DURATION: Duration = Duration::from_secs(600);
/// Time for which changes are gathered before the runs are listed.
const GATHER_INTERVAL: Duration = Duration::from_millis(60);
/// Number of runs in a page of the listing.
const PAGE_RUNS: u32 = 1_000;
/// Number of new lines that are searched for a hold before the run is read again.
const PAGE_LINES: u32 = 512;

/// A call that waits for a person, with its run.
#[derive(Clone, Debug)]
pub(crate) struct PendingEntry {
    pub(crate) run: RunId,
    /// The agent that the run started with.
    pub(crate) root_agent: AgentName,
    pub(crate) pending: PendingCall,
    pub(crate) effect: Option<ToolEffect>,
    /// What the tool saw when the call was held.
    pub(crate) evidence: Option<CallEvidence>,
    /// Time of the last change of the run's status.
    pub(crate) asked_at: Timestamp,
}

impl PendingEntry {
    /// Makes the entry of a call of a loaded run, with the evidence that its tool has saved.
    pub(crate) async fn load(
        store: &dyn Store,
        paused: &PausedRun,
        root_agent: &AgentName,
        pending: PendingCall,
        asked_at: Timestamp,
    ) -> Result<Self, StoreError> {
        let run = paused.record().run_id();
        let effect = effect_of_call(paused.record().outline(), &pending);
        let evidence = match &pending.reason {
            HoldReason::Question(_) => None,
            _ => fetch_evidence(store, run, &pending.path).await?,
        };
        Ok(Self { run: run.clone(), root_agent: root_agent.clone(), pending, effect, evidence, asked_at })
    }
}

/// All calls that wait for a person, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct InboxSnapshot {
    /// Rises with every change.
    pub(crate) version: u64,
    pub(crate) entries: Vec<Arc<PendingEntry>>,
}

/// The watch over the open runs.
pub(crate) struct StoreWatch {
    queue: Arc<ServedQueue>,
    state: Mutex<WatchState>,
    published: watch::Sender<Arc<InboxSnapshot>>,
}

#[derive(Default)]
struct WatchState {
    runs: BTreeMap<RunId, WatchedRun>,
    looked_at: Option<Instant>,
    seen_changes: u64,
    /// True if calls have changed since the last publication, which a failed listing has prevented.
    is_changed: bool,
}

struct WatchedRun {
    record_count: u64,
    updated_at: Timestamp,
    entries: Vec<Arc<PendingEntry>>,
    /// True if the run could not be read: `entries` are those of an earlier reading.
    is_outdated: bool,
    /// Present while calls wait.
    decisions: Option<DecisionWatch>,
}

/// A task that notes the decisions about a run that any process posts. Dropping it ends the task.
struct DecisionWatch(AbortHandle);

impl DecisionWatch {
    /// Starts the task with a wait that began before the run was read.
    fn start(queue: &Arc<ServedQueue>, run: &RunId, first: BoxFuture<'static, ()>) -> Self {
        let (queue, run, mut hint) = (queue.clone(), run.clone(), first);
        let task = tokio::spawn(async move {
            loop {
                hint.await;
                hint = queue.wait_for_decision(&run);
                queue.note_posted_decision(&run);
            }
        });
        Self(task.abort_handle())
    }
}

impl Drop for DecisionWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl StoreWatch {
    pub(crate) fn new(queue: Arc<ServedQueue>) -> Self {
        Self { queue, state: Mutex::default(), published: watch::channel(Arc::default()).0 }
    }

    /// Returns a receiver of the inbox, which changes as the calls do.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<InboxSnapshot>> {
        self.published.subscribe()
    }

    /// Returns the calls that wait now.
    pub(crate) async fn snapshot(&self) -> Result<Arc<InboxSnapshot>, StoreError> {
        let mut state = self.state.lock().await;
        let changes = *self.queue.changes().borrow();
        let is_fresh = state.seen_changes == changes
            && !self.queue.has_open_writes()
            && state.looked_at.is_some_and(|looked| looked.elapsed() < LOOK_INTERVAL);
        if !is_fresh {
            state.seen_changes = changes;
            self.look(&mut state).await?;
        }
        Ok(self.published.borrow().clone())
    }

    /// Looks at the store until the server stops, as long as somebody watches.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut changes = self.queue.changes();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = changes.changed() => tokio::time::sleep(GATHER_INTERVAL).await,
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
            if self.published.receiver_count() == 0 && !self.queue.has_watchers() {
                self.forget_unused(&mut *self.state.lock().await);
                continue;
            }
            changes.borrow_and_update();
            let mut state = self.state.lock().await;
            state.seen_changes = *changes.borrow();
            let began = Instant::now();
            if let Err(error) = self.look(&mut state).await {
                tracing::warn!(%error, "the open runs cannot be listed");
            }
            drop(state);
            // A large store is looked at less often.
            tokio::time::sleep((began.elapsed() * 2).min(Duration::from_secs(10))).await;
        }
    }

    /// Drops the known runs if nobody has looked for a while. The next look reads everything anew.
    fn forget_unused(&self, state: &mut WatchState) {
        if state.looked_at.is_none_or(|looked| looked.elapsed() >= KEPT_DURATION) {
            self.queue.take_posted_runs();
            if state.looked_at.is_some() {
                *state = WatchState::default();
                self.publish(Vec::new());
            }
        }
    }

    /// Lists the open runs, reads those that have changed, and publishes the calls that wait.
    async fn look(&self, state: &mut WatchState) -> Result<(), StoreError> {
        let posted = self.queue.take_posted_runs();
        let looked = self.look_at_runs(state, &posted).await;
        if looked.is_err() {
            // The runs after the failed page were not read.
            self.queue.put_back_posted_runs(posted);
        }
        looked
    }

    async fn look_at_runs(&self, state: &mut WatchState, posted: &BTreeSet<RunId>) -> Result<(), StoreError> {
        let mut query = RunQuery {
            statuses: vec![RunStatus::Paused, RunStatus::Running],
            limit: PAGE_RUNS,
            ..RunQuery::default()
        };
        let mut open = BTreeSet::new();
        loop {
            let page = self.queue.list_runs(&query).await?;
            for stored in &page {
                open.insert(stored.run.clone());
                let is_changed = self.note_run(state, stored, posted.contains(&stored.run)).await;
                state.is_changed |= is_changed;
            }
            query.after = page.last().map(RunCursor::from);
            if page.len() < PAGE_RUNS as usize {
                break;
            }
        }
        let WatchState { runs, is_changed, .. } = state;
        runs.retain(|run, watched| {
            let is_open = open.contains(run);
            if !is_open {
                self.queue.wake_watchers(run);
                *is_changed |= !watched.entries.is_empty();
            }
            is_open
        });
        state.looked_at = Some(Instant::now());
        if std::mem::take(&mut state.is_changed) {
            let mut entries: Vec<_> = state.runs.values().flat_map(|run| run.entries.clone()).collect();
            entries.sort_by(|one, other| (one.asked_at, &one.run).cmp(&(other.asked_at, &other.run)));
            self.publish(entries);
        }
        Ok(())
    }

    fn publish(&self, entries: Vec<Arc<PendingEntry>>) {
        let version = self.published.borrow().version + 1;
        self.published.send_replace(Arc::new(InboxSnapshot { version, entries }));
    }

    /// Notes a listed run; returns true if its waiting calls have changed.
    async fn note_run(&self, state: &mut WatchState, stored: &StoredRun, is_posted: bool) -> bool {
        let known = state.runs.get(&stored.run);
        if let Some(known) = known.filter(|known| !is_posted && !known.is_outdated) {
            if known.record_count == stored.record_count && known.updated_at == stored.updated_at {
                return false;
            }
            self.queue.wake_watchers(&stored.run);
            let may_be_same = known.entries.is_empty() && stored.status == RunStatus::Running;
            if may_be_same && !self.has_hold(&stored.run, known.record_count).await {
                state.runs.insert(stored.run.clone(), WatchedRun::of(stored, Vec::new(), None));
                return false;
            }
        }
        let (known_entries, decisions) =
            state.runs.remove(&stored.run).map(|known| (known.entries, known.decisions)).unwrap_or_default();
        let had_entries = !known_entries.is_empty();
        // A decision that is posted after the run was read leads to a hint.
        let hint = self.queue.wait_for_decision(&stored.run);
        let watch =
            || Some(decisions.unwrap_or_else(|| DecisionWatch::start(&self.queue, &stored.run, hint)));
        let (watched, is_changed) = match self.read_entries(stored).await {
            Ok(entries) => {
                let has_entries = !entries.is_empty();
                let decisions = if has_entries { watch() } else { None };
                (WatchedRun::of(stored, entries, decisions), had_entries || has_entries)
            }
            Err(error) => {
                tracing::warn!(run = %stored.run, %error, "a run that may wait cannot be read");
                // The calls that are known stay, and the run is read again with the next look.
                let watched = WatchedRun::of(stored, known_entries, watch());
                (WatchedRun { is_outdated: true, ..watched }, false)
            }
        };
        state.runs.insert(stored.run.clone(), watched);
        is_changed
    }

    /// Returns true if a record after the known ones may hold a call.
    async fn has_hold(&self, run: &RunId, from: u64) -> bool {
        match self.queue.load_journal_page(run, from, PAGE_LINES).await {
            Ok(lines) => {
                let is_hold =
                    |body: &str| body.contains("\"call_held\"") || body.contains("\"budget_reached\"");
                lines.len() == PAGE_LINES as usize || lines.iter().any(|line| is_hold(&line.body))
            }
            Err(_) => true,
        }
    }

    async fn read_entries(
        &self,
        stored: &StoredRun,
    ) -> Result<Vec<Arc<PendingEntry>>, windlass::store::OpenRunError> {
        let paused = load_paused(&*self.queue, &stored.run).await?;
        let mut entries = Vec::new();
        for pending in paused.pending_calls() {
            let entry =
                PendingEntry::load(&*self.queue, &paused, &stored.agent, pending, stored.updated_at).await?;
            entries.push(Arc::new(entry));
        }
        Ok(entries)
    }
}

impl WatchedRun {
    fn of(stored: &StoredRun, entries: Vec<Arc<PendingEntry>>, decisions: Option<DecisionWatch>) -> Self {
        let (record_count, updated_at) = (stored.record_count, stored.updated_at);
        Self { record_count, updated_at, entries, is_outdated: false, decisions }
    }
}

/// Returns the declared effect of a pending call.
fn effect_of_call(run: &Run, pending: &PendingCall) -> Option<ToolEffect> {
    match run.at_path(pending.path.parent_calls())?.call_disposition(pending.call())? {
        CallDisposition::Execute { effect, .. } => Some(*effect),
        _ => None,
    }
}

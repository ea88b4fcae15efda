//! The write queue of a run's journal: the ordered way of its entries to the store.
//!
//! An entry gets its sequence number and hash when it is enqueued. The store sees one append at a time: while one is
//! in flight, later entries wait, and the next append has all of them. The queue owns the append in flight, so any
//! driver that waits for an entry makes progress for all, and dropping a waiting driver loses no entry.
//!
//! The queue needs no limit of its own: a driver waits for an entry before it records the next of the same call.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::{
    authenticity::MacKeyring,
    canonical::Digest,
    journal::{HashChain, JournalLine, JournalRecord},
};

use crate::clock::RunClock;
use crate::error::StoreError;
use crate::lock_unpoisoned;
use crate::store::{DerivedWrites, Durability, Lease, RunStatus, Store};

/// The store and the lease that a run's entries are appended with.
pub(crate) struct AppendTarget {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) lease: Lease,
}

/// The write queue of a stored run.
pub(crate) struct WriteQueue {
    target: Arc<AppendTarget>,
    state: Mutex<QueueState>,
    waiters: Arc<WaiterSet>,
    /// Wakes every waiter. The append in flight is polled with it, whoever polls.
    waker: Waker,
    /// Maximum duration of the writes that are left when the queue is dropped.
    drain_limit: Duration,
    /// Keys that authenticate decisions.
    mac_keys: Option<Arc<MacKeyring>>,
    clock: RunClock,
}

/// The lines of a queue, from their enqueuing to their durability.
struct QueueState {
    chain: HashChain,
    /// Sequence number of the next line.
    next: u64,
    /// Lines that the next append writes.
    waiting: Vec<JournalLine>,
    /// Writes that the next append makes beside the lines.
    writes: DerivedWrites,
    /// Strongest durability that a waiting line requires.
    durability: Durability,
    /// Number of lines that the store has acknowledged.
    written: u64,
    in_flight: InFlight,
    /// The status that lists have of the run.
    listed: ListedStatus,
    /// Error of an append. Nothing is written after it.
    failure: Option<StoreError>,
}

/// The status that lists have of a run when its driver begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListedStatus {
    /// The run is listed as running.
    Running,
    /// The run may be listed as paused: the first append lists it as running.
    MaybePaused,
}

/// The append in flight.
enum InFlight {
    None,
    /// A waiter is polling the append.
    BeingPolled,
    Pending(PendingAppend),
}

/// One append to the store.
struct PendingAppend {
    future: BoxFuture<'static, Result<(), StoreError>>,
    /// Number of lines of the journal after it.
    end: u64,
}

impl WriteQueue {
    /// Creates the queue of a journal that ends with `chain` after `next` lines.
    pub(crate) fn new(
        target: Arc<AppendTarget>,
        next: u64,
        chain: HashChain,
        listed: ListedStatus,
        clock: RunClock,
        drain_limit: Duration,
    ) -> Self {
        let waiters = Arc::<WaiterSet>::default();
        let state = QueueState {
            chain,
            next,
            waiting: Vec::new(),
            writes: DerivedWrites::default(),
            durability: Durability::Deferred,
            written: next,
            in_flight: InFlight::None,
            listed,
            failure: None,
        };
        let waker = Waker::from(waiters.clone());
        let mac_keys = target.store.mac_keys().cloned();
        Self { target, state: Mutex::new(state), waiters, waker, drain_limit, mac_keys, clock }
    }

    /// Returns the store and the lease.
    pub(crate) fn target(&self) -> &Arc<AppendTarget> {
        &self.target
    }

    /// Returns the hash of the last enqueued line.
    pub(crate) fn head(&self) -> Digest {
        lock_unpoisoned(&self.state).chain.head()
    }

    /// Enqueues the next record. A decision gets its MAC, if the store has keys. The record is written even if the returned future is dropped; the future resolves
    /// when the record has the required durability, or with the error of the append that should have written it.
    ///
    /// # Errors
    ///
    /// Returns an error if an earlier record could not be written. The record is not enqueued.
    pub(crate) fn enqueue(
        &self,
        record: &mut JournalRecord,
        durability: Durability,
        writes: DerivedWrites,
    ) -> Result<PendingWrite<'_>, StoreError> {
        let mut state = lock_unpoisoned(&self.state);
        if let Some(failure) = &state.failure {
            let message = format!("an earlier record could not be written: {failure}");
            return Err(StoreError::with_kind(failure.kind(), message));
        }
        debug_assert_eq!(record.seq, state.next, "records are enqueued in order");
        let line = state.chain.append_authentic(&self.target.lease.run, record, self.mac_keys.as_deref());
        state.waiting.push(line);
        state.writes.extend(writes);
        state.durability = state.durability.max(durability);
        let seq = state.next;
        state.next += 1;
        Ok(PendingWrite { queue: self, seq, waiter: None })
    }

    /// Waits until all enqueued lines are written.
    pub(crate) async fn flush(&self) -> Result<(), StoreError> {
        let last = lock_unpoisoned(&self.state).next.checked_sub(1);
        match last {
            Some(seq) => PendingWrite { queue: self, seq, waiter: None }.await,
            None => Ok(()),
        }
    }

    fn poll_written(
        &self,
        seq: u64,
        waiter: &mut Option<WaiterId>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), StoreError>> {
        let mut state = lock_unpoisoned(&self.state);
        loop {
            if let Some(result) = state.result_of(seq) {
                return Poll::Ready(result);
            }
            let mut append = match std::mem::replace(&mut state.in_flight, InFlight::BeingPolled) {
                InFlight::None => state.begin_append(&self.target, self.clock),
                InFlight::Pending(append) => append,
                InFlight::BeingPolled => {
                    self.waiters.register(waiter, cx.waker());
                    return Poll::Pending;
                }
            };
            // Stores are foreign code: they are polled without the lock.
            drop(state);
            self.waiters.was_woken.store(false, Ordering::SeqCst);
            let unwinding = PollGuard { queue: self };
            let polled = append.future.poll_unpin(&mut Context::from_waker(&self.waker));
            std::mem::forget(unwinding);
            state = lock_unpoisoned(&self.state);
            match polled {
                Poll::Pending => {
                    state.in_flight = InFlight::Pending(append);
                    self.waiters.register(waiter, cx.waker());
                    drop(state);
                    // A waiter that registered during the poll has missed a wake-up that came before.
                    if self.waiters.was_woken.load(Ordering::SeqCst) {
                        self.waiters.wake_all();
                    }
                    return Poll::Pending;
                }
                Poll::Ready(result) => {
                    state.finish_append(append.end, result);
                    let result = state.result_of(seq);
                    drop(state);
                    if let Some(own) = waiter.take() {
                        self.waiters.remove(own);
                    }
                    self.waiters.wake_all();
                    if let Some(result) = result {
                        return Poll::Ready(result);
                    }
                    state = lock_unpoisoned(&self.state);
                }
            }
        }
    }
}

impl QueueState {
    /// Returns the result of a line's write, if it is known.
    fn result_of(&self, seq: u64) -> Option<Result<(), StoreError>> {
        if self.written > seq {
            return Some(Ok(()));
        }
        self.failure.as_ref().map(|failure| Err(failure.clone()))
    }

    /// Begins the append of all waiting lines.
    fn begin_append(&mut self, target: &Arc<AppendTarget>, clock: RunClock) -> PendingAppend {
        let lines = std::mem::take(&mut self.waiting);
        let durability = std::mem::replace(&mut self.durability, Durability::Deferred);
        let (target, at) = (target.clone(), self.written);
        let writes = std::mem::take(&mut self.writes);
        let listed = std::mem::replace(&mut self.listed, ListedStatus::Running);
        let future = async move {
            let AppendTarget { store, lease } = &*target;
            if listed == ListedStatus::MaybePaused
                && let Err(error) = store.set_status(lease, RunStatus::Running, clock.now()).await
            {
                // The status is informative. A lost lease is an error of the append.
                tracing::debug!(run = %lease.run, %error, "the run could not be listed as running");
            }
            match writes.is_empty() {
                true => store.append_journal(lease, at, lines, durability).await,
                false => store.append_with_writes(lease, at, lines, durability, writes).await,
            }
        }
        .boxed();
        PendingAppend { future, end: self.next }
    }

    fn finish_append(&mut self, end: u64, result: Result<(), StoreError>) {
        self.in_flight = InFlight::None;
        match result {
            Ok(()) => self.written = end,
            Err(error) => self.fail(error),
        }
    }

    fn fail(&mut self, error: StoreError) {
        self.in_flight = InFlight::None;
        (self.waiting, self.writes) = (Vec::new(), DerivedWrites::default());
        self.failure = Some(error);
    }

    /// Takes the writes that are left: the append in flight and the one of the waiting lines.
    fn take_rest(&mut self, target: &Arc<AppendTarget>, clock: RunClock) -> Vec<PendingAppend> {
        let mut rest = Vec::new();
        if let InFlight::Pending(append) = std::mem::replace(&mut self.in_flight, InFlight::None) {
            self.written = append.end;
            rest.push(append);
        }
        if !self.waiting.is_empty() {
            rest.push(self.begin_append(target, clock));
        }
        rest
    }
}

impl Drop for WriteQueue {
    /// Writes the rest in a task. It ends with an error if another driver takes over the run meanwhile.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let rest = state.take_rest(&self.target, self.clock);
        if rest.is_empty() {
            return;
        }
        // Outside a runtime this is the same as a crash: recovery handles missing entries.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (target, limit) = (self.target.clone(), self.drain_limit);
        runtime.spawn(async move {
            let drain = async {
                for append in rest {
                    append.future.await?;
                }
                Ok::<_, StoreError>(())
            };
            match tokio::time::timeout(limit, drain).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(run = %target.lease.run, %error, "the last records of a dropped run are not written");
                }
                Err(_) => {
                    tracing::warn!(run = %target.lease.run, "the store does not take the last records of a dropped run");
                }
            }
        });
    }
}

/// Ends the queue with an error if the store panics while it is polled.
struct PollGuard<'a> {
    queue: &'a WriteQueue,
}

impl Drop for PollGuard<'_> {
    fn drop(&mut self) {
        lock_unpoisoned(&self.queue.state).fail(StoreError::new("the store panicked during an append"));
        self.queue.waiters.wake_all();
    }
}

/// The durability of one enqueued record.
///
/// # Cancel safety
///
/// The record is written even if this future is dropped, polled or not.
#[must_use = "a record is durable only when this future has resolved"]
pub(crate) struct PendingWrite<'a> {
    queue: &'a WriteQueue,
    seq: u64,
    waiter: Option<WaiterId>,
}

impl Future for PendingWrite<'_> {
    type Output = Result<(), StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { queue, seq, waiter } = &mut *self;
        queue.poll_written(*seq, waiter, cx)
    }
}

impl Drop for PendingWrite<'_> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter {
            self.queue.waiters.remove(waiter);
        }
    }
}

/// The number of a waiter within its [`WaiterSet`].
type WaiterId = u64;

/// The wakers of all waiters: one waker for the append in flight.
#[derive(Default)]
struct WaiterSet {
    wakers: Mutex<RegisteredWakers>,
    /// True if the append has called its waker since it was last polled.
    was_woken: AtomicBool,
}

#[derive(Default)]
struct RegisteredWakers {
    by_waiter: Vec<(WaiterId, Waker)>,
    next_id: WaiterId,
}

impl WaiterSet {
    fn register(&self, waiter: &mut Option<WaiterId>, waker: &Waker) {
        let mut wakers = lock_unpoisoned(&self.wakers);
        let registered = waiter.and_then(|id| wakers.by_waiter.iter_mut().find(|(known, _)| *known == id));
        if let Some((_, known)) = registered {
            known.clone_from(waker);
            return;
        }
        let id = wakers.next_id;
        wakers.next_id += 1;
        wakers.by_waiter.push((id, waker.clone()));
        *waiter = Some(id);
    }

    fn remove(&self, waiter: WaiterId) {
        lock_unpoisoned(&self.wakers).by_waiter.retain(|(id, _)| *id != waiter);
    }

    fn wake_all(&self) {
        let wakers = std::mem::take(&mut lock_unpoisoned(&self.wakers).by_waiter);
        // Wakers are foreign code: they are called without the lock.
        for (_, waker) in wakers {
            waker.wake();
        }
    }
}

impl Wake for WaiterSet {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.was_woken.store(true, Ordering::SeqCst);
        self.wake_all();
    }
}

#[cfg(test)]
#[path = "write_queue_tests.rs"]
mod tests;

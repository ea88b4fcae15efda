//! Watchers of a session: each has a queue of its own, bounded, and none of them slows the session down.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use crate::event::LiveEvent;

/// The events of a session, as one watcher sees them. Any number of watchers may be there; each sees everything from
/// when it began to watch.
#[derive(Debug)]
pub struct LiveEvents {
    queue: Arc<Mutex<Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<LiveEvent>,
    limit: usize,
    missed_audio: u64,
    missed_others: u64,
    is_over: bool,
    waker: Option<Waker>,
}

/// Where events go.
#[derive(Debug)]
pub(crate) struct Fanout {
    limit: usize,
    state: Mutex<State>,
    dropped_audio: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    watchers: Vec<Weak<Mutex<Queue>>>,
    /// What happened before anybody watched.
    first: Option<LiveEvents>,
    is_over: bool,
}

impl LiveEvents {
    /// The next event; none when the session has ended and all that came before has been taken.
    pub async fn next(&mut self) -> Option<LiveEvent> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// The next event that is there already.
    pub fn try_next(&mut self) -> Option<LiveEvent> {
        lock(&self.queue).take()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<LiveEvent>> {
        let mut queue = lock(&self.queue);
        if let Some(event) = queue.take() {
            return Poll::Ready(Some(event));
        }
        if queue.is_over {
            return Poll::Ready(None);
        }
        queue.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl futures_util::Stream for LiveEvents {
    type Item = LiveEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<LiveEvent>> {
        self.poll(cx)
    }
}

impl Queue {
    fn take(&mut self) -> Option<LiveEvent> {
        if self.missed_audio + self.missed_others > 0 {
            let (audio, others) = (self.missed_audio, self.missed_others);
            (self.missed_audio, self.missed_others) = (0, 0);
            return Some(LiveEvent::Lagged { audio, others });
        }
        self.events.pop_front()
    }

    /// Puts an event in. Where there is no room, the oldest speech goes first: it is of no use any more.
    fn put(&mut self, event: LiveEvent) -> u64 {
        let mut dropped = 0;
        if self.events.len() >= self.limit {
            match self.events.iter().position(|event| matches!(event, LiveEvent::Audio(_))) {
                Some(place) => {
                    self.events.remove(place);
                    self.missed_audio += 1;
                    dropped = 1;
                }
                None => {
                    self.events.pop_front();
                    self.missed_others += 1;
                }
            }
        }
        self.events.push_back(event);
        self.wake();
        dropped
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Fanout {
    pub(crate) fn new(limit: usize) -> Self {
        let fanout = Self { limit: limit.max(1), state: Mutex::default(), dropped_audio: AtomicU64::new(0) };
        let first = fanout.watch();
        lock(&fanout.state).first = Some(first);
        fanout
    }

    /// A watcher. The first sees what happened before it came.
    pub(crate) fn watch(&self) -> LiveEvents {
        let mut state = lock(&self.state);
        if let Some(first) = state.first.take() {
            return first;
        }
        let queue = Queue { limit: self.limit, is_over: state.is_over, ..Queue::default() };
        let queue = Arc::new(Mutex::new(queue));
        state.watchers.retain(|watcher| watcher.strong_count() > 0);
        state.watchers.push(Arc::downgrade(&queue));
        LiveEvents { queue }
    }

    pub(crate) fn emit(&self, event: &LiveEvent) {
        let state = lock(&self.state);
        if state.is_over {
            return;
        }
        for watcher in state.watchers.iter().filter_map(Weak::upgrade) {
            let dropped = lock(&watcher).put(event.clone());
            self.dropped_audio.fetch_add(dropped, Ordering::Relaxed);
        }
    }

    /// Pieces of speech that watchers were too slow for.
    pub(crate) fn dropped_audio(&self) -> u64 {
        self.dropped_audio.load(Ordering::Relaxed)
    }

    /// Nothing more comes. Everybody who waits is woken, after what is queued.
    pub(crate) fn end(&self, last: &LiveEvent) {
        self.emit(last);
        let mut state = lock(&self.state);
        state.is_over = true;
        for watcher in state.watchers.iter().filter_map(Weak::upgrade) {
            let mut queue = lock(&watcher);
            queue.is_over = true;
            queue.wake();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Event subscribers of a session. Invariant: each has its own bounded queue, and none slows the session down.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};

use crate::event::RealtimeEvent;
use crate::sync::lock;

/// A stream of a session's events for one subscriber. Each subscriber receives every event since its
/// subscription, unless it lags.
#[derive(Debug)]
pub struct RealtimeEvents {
    queue: Arc<Mutex<EventQueue>>,
}

/// The event queue of one subscriber.
#[derive(Debug, Default)]
struct EventQueue {
    events: VecDeque<RealtimeEvent>,
    limit: usize,
    dropped_audio: u64,
    dropped_events: u64,
    is_closed: bool,
    waker: Option<Waker>,
}

/// The publisher of events to all subscribers.
#[derive(Debug)]
pub(crate) struct EventFanout {
    queue_limit: usize,
    state: Mutex<EventFanoutState>,
    dropped_audio: AtomicU64,
}

/// The subscribers.
#[derive(Debug, Default)]
struct EventFanoutState {
    subscribers: Vec<Weak<Mutex<EventQueue>>>,
    /// The queue of events before the first subscription.
    initial_subscriber: Option<RealtimeEvents>,
    is_closed: bool,
}

impl RealtimeEvents {
    /// Returns the next event; `None` when the session has ended and the queue is empty.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no event is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<RealtimeEvent> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    /// Returns the next event if one is queued.
    pub fn try_next(&mut self) -> Option<RealtimeEvent> {
        lock(&self.queue).pop_event()
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<RealtimeEvent>> {
        let mut queue = lock(&self.queue);
        if let Some(event) = queue.pop_event() {
            return Poll::Ready(Some(event));
        }
        if queue.is_closed {
            return Poll::Ready(None);
        }
        queue.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl futures_util::Stream for RealtimeEvents {
    type Item = RealtimeEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<RealtimeEvent>> {
        self.poll_event(cx)
    }
}

impl EventQueue {
    fn pop_event(&mut self) -> Option<RealtimeEvent> {
        if self.dropped_audio + self.dropped_events > 0 {
            let (audio, others) = (self.dropped_audio, self.dropped_events);
            (self.dropped_audio, self.dropped_events) = (0, 0);
            return Some(RealtimeEvent::Lagged { dropped_audio: audio, dropped_events: others });
        }
        self.events.pop_front()
    }

    /// Queues an event. If the queue is full, the oldest audio is dropped first, because it is no longer
    /// useful. Returns the number of dropped audio chunks.
    fn push_event(&mut self, event: RealtimeEvent) -> u64 {
        let mut dropped = 0;
        if self.events.len() >= self.limit {
            match self.events.iter().position(|event| matches!(event, RealtimeEvent::Audio(_))) {
                Some(place) => {
                    self.events.remove(place);
                    self.dropped_audio += 1;
                    dropped = 1;
                }
                None => {
                    self.events.pop_front();
                    self.dropped_events += 1;
                }
            }
        }
        self.events.push_back(event);
        self.wake_subscriber();
        dropped
    }

    fn wake_subscriber(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl EventFanout {
    pub(crate) fn new(limit: usize) -> Self {
        let fanout =
            Self { queue_limit: limit.max(1), state: Mutex::default(), dropped_audio: AtomicU64::new(0) };
        let first = fanout.subscribe();
        lock(&fanout.state).initial_subscriber = Some(first);
        fanout
    }

    /// Creates a subscriber. The first one receives the events from before its subscription.
    pub(crate) fn subscribe(&self) -> RealtimeEvents {
        let mut state = lock(&self.state);
        if let Some(first) = state.initial_subscriber.take() {
            return first;
        }
        let queue =
            EventQueue { limit: self.queue_limit, is_closed: state.is_closed, ..EventQueue::default() };
        let queue = Arc::new(Mutex::new(queue));
        state.subscribers.retain(|watcher| watcher.strong_count() > 0);
        state.subscribers.push(Arc::downgrade(&queue));
        RealtimeEvents { queue }
    }

    pub(crate) fn publish(&self, event: &RealtimeEvent) {
        let state = lock(&self.state);
        if state.is_closed {
            return;
        }
        for watcher in state.subscribers.iter().filter_map(Weak::upgrade) {
            let dropped = lock(&watcher).push_event(event.clone());
            self.dropped_audio.fetch_add(dropped, Ordering::Relaxed);
        }
    }

    /// Returns the number of audio chunks dropped because subscribers were too slow.
    pub(crate) fn dropped_audio(&self) -> u64 {
        self.dropped_audio.load(Ordering::Relaxed)
    }

    /// Publishes the last event and ends all streams after their queued events.
    pub(crate) fn close(&self, last: &RealtimeEvent) {
        self.publish(last);
        let mut state = lock(&self.state);
        state.is_closed = true;
        for watcher in state.subscribers.iter().filter_map(Weak::upgrade) {
            let mut queue = lock(&watcher);
            queue.is_closed = true;
            queue.wake_subscriber();
        }
    }
}

//! Events: a run seen live. They follow the journal, and pieces of text come in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, OptionFuture};
use serde_json::Value;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};
use windlass_core::{AgentName, CallId, How, OutputContent, Pending, Produced, ToolKey};

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The number of the journal record that had last been written. It never goes back, and a watcher that
    /// comes again can ask for what came after it.
    pub seq: u64,
    /// The calls that lead to the nested agent where it happened; empty for the run itself.
    pub path: Vec<CallId>,
    /// What happened.
    pub kind: EventKind,
}

/// What happened in a run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum EventKind {
    /// An agent is current: at the start, after a resume, after a handoff.
    Agent {
        /// Which.
        agent: AgentName,
    },
    /// A piece of the answer's text.
    TextDelta {
        /// The piece.
        delta: String,
    },
    /// A piece of the reasoning that may be shown.
    ReasoningDelta {
        /// The piece.
        delta: String,
    },
    /// A piece of a call's arguments.
    ArgumentsDelta {
        /// Which call.
        call: CallId,
        /// The piece.
        delta: String,
    },
    /// The run produced an item. Calls and messages come as the model wrote them; outputs in the model's
    /// order, when the turn has settled or paused.
    Item(Produced),
    /// A call waits for a person.
    Held(Box<Pending>),
    /// The body of a call starts.
    CallStarted {
        /// Which call.
        call: CallId,
        /// Which tool.
        tool: ToolKey,
    },
    /// A call tells how far it has come.
    Progress {
        /// Which call.
        call: CallId,
        /// Its own words.
        progress: Value,
    },
    /// A call has its output. Exactly one for every call that started, in the order in which they end; one that
    /// the end of the run kept from starting may have none.
    CallSettled {
        /// Which call.
        call: CallId,
        /// How it came about.
        how: How,
        /// What the model is told.
        output: OutputContent,
    },
    /// Something went wrong that the run survives.
    Warning {
        /// What.
        message: String,
    },
}

/// An event on its way, where its watcher is slow.
pub(crate) type Emitting<'a> = OptionFuture<BoxFuture<'a, ()>>;

/// Where events go, if anybody watches.
#[derive(Clone, Debug)]
pub(crate) struct Emitter {
    watcher: Option<Watched>,
    seq: Arc<AtomicU64>,
    path: Arc<[CallId]>,
}

/// Where the body of a call tells how far it has come. A body may outlive its run, and must not keep the stream
/// open then.
#[derive(Clone, Debug)]
pub(crate) struct BodyEmitter {
    watcher: Option<(mpsc::WeakSender<Event>, Arc<AtomicU64>)>,
    seq: Arc<AtomicU64>,
    path: Arc<[CallId]>,
}

/// A watcher, as the run sees it.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    events: mpsc::Sender<Event>,
    sent: Arc<AtomicU64>,
    pace: Arc<Pace>,
}

/// A watcher's side of a run.
#[derive(Debug)]
pub(crate) struct Watcher {
    events: mpsc::Receiver<Event>,
    seen: u64,
    pace: Arc<Pace>,
}

/// How far a watcher has come. Those who wait for it go on in the order in which they came.
#[derive(Debug, Default)]
struct Pace {
    taken: AtomicU64,
    moved: Notify,
}

impl Pace {
    fn reach(&self, taken: u64) {
        if self.taken.swap(taken, Ordering::Relaxed) != taken {
            self.moved.notify_waiters();
        }
    }
}

/// A run and its watcher, with so many events between them at most.
pub(crate) fn watched(buffer: usize) -> (Watched, Watcher) {
    let (sender, receiver) = mpsc::channel(buffer);
    let pace: Arc<Pace> = Arc::default();
    let watched = Watched { events: sender, sent: Arc::default(), pace: pace.clone() };
    (watched, Watcher { events: receiver, seen: 0, pace })
}

impl Watcher {
    /// The next event. Asking for it says that the ones before have been dealt with.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.pace.reach(self.seen);
        let next = self.events.poll_recv(cx);
        if matches!(next, Poll::Ready(Some(_))) {
            self.seen += 1;
        }
        next
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Nobody waits for a watcher that has gone.
        self.pace.reach(u64::MAX);
    }
}

impl Emitter {
    pub(crate) fn new(watcher: Option<Watched>, seq: Arc<AtomicU64>) -> Self {
        Self { watcher, seq, path: [].into() }
    }

    /// The same watcher, told of a nested agent.
    pub(crate) fn within(&self, path: &[CallId]) -> Self {
        Self { watcher: self.watcher.clone(), seq: self.seq.clone(), path: path.into() }
    }

    pub(crate) fn silent() -> Self {
        Self::new(None, Arc::default())
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watcher.as_ref().is_some_and(|watcher| !watcher.events.is_closed())
    }

    /// Waits for a slow watcher; a watcher that has gone costs nothing, and one that keeps up little.
    pub(crate) fn emit(&self, kind: EventKind) -> Emitting<'_> {
        let Some(watcher) = &self.watcher else { return None.into() };
        let waiting = match watcher.events.try_send(self.event(kind)) {
            Ok(()) => {
                watcher.sent.fetch_add(1, Ordering::Relaxed);
                None
            }
            Err(TrySendError::Closed(_)) => None,
            Err(TrySendError::Full(event)) => Some(
                async move {
                    if watcher.events.send(event).await.is_ok() {
                        watcher.sent.fetch_add(1, Ordering::Relaxed);
                    }
                }
                .boxed(),
            ),
        };
        waiting.into()
    }

    /// For the body of a call.
    pub(crate) fn for_body(&self) -> BodyEmitter {
        let watcher = self.watcher.as_ref().map(|watcher| (watcher.events.downgrade(), watcher.sent.clone()));
        BodyEmitter { watcher, seq: self.seq.clone(), path: self.path.clone() }
    }

    /// Waits until the watcher has dealt with all that it was told, or has gone. So a watcher that cancels on
    /// seeing a call keeps that call from starting.
    pub(crate) async fn settled(&self) {
        if let Some(watcher) = &self.watcher {
            let sent = watcher.sent.load(Ordering::Relaxed);
            loop {
                let moved = watcher.pace.moved.notified();
                if watcher.pace.taken.load(Ordering::Relaxed) >= sent {
                    return;
                }
                moved.await;
            }
        }
    }

    fn event(&self, kind: EventKind) -> Event {
        Event { seq: self.seq.load(Ordering::Relaxed), path: self.path.to_vec(), kind }
    }
}

impl BodyEmitter {
    /// A body cannot wait: a slow watcher misses the event.
    pub(crate) fn try_emit(&self, kind: EventKind) {
        let Some((events, sent)) = &self.watcher else { return };
        let event = Event { seq: self.seq.load(Ordering::Relaxed), path: self.path.to_vec(), kind };
        if events.upgrade().is_some_and(|events| events.try_send(event).is_ok()) {
            sent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

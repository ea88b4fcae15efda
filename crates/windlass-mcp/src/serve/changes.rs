//! Who wants to know when what they read has changed.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::ErrorData;
use rmcp::model::ResourceUpdatedNotificationParam;
use rmcp::service::{Peer, RoleServer, SubscriptionSink};

/// How many subscriptions are kept. More are refused.
const MOST: usize = 1024;

/// Tells clients that a resource has changed. Copies are for the same server.
#[derive(Clone, Default)]
pub struct Changes(Arc<Inner>);

#[derive(Default)]
struct Inner {
    subscribers: Mutex<Vec<Subscriber>>,
    next: AtomicU64,
}

#[derive(Clone)]
struct Subscriber {
    /// The session, or the stream, that it belongs to.
    of: u64,
    way: Way,
}

/// How a subscriber is told.
#[derive(Clone)]
enum Way {
    /// Of one resource, in the earlier life of the protocol.
    Session(String, Peer<RoleServer>),
    /// Of all that its stream was opened for, in the later.
    Stream(SubscriptionSink),
}

impl Changes {
    /// What is read at this address has changed. Whoever has subscribed to it is told.
    pub async fn resource(&self, uri: &str) {
        let subscribers = self.lock().clone();
        for subscriber in subscribers {
            // Who is gone hears nothing, and a stream passes on what it was opened for.
            match subscriber.way {
                Way::Session(wanted, peer) if wanted == uri => {
                    let _gone =
                        peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await;
                }
                Way::Session(..) => {}
                Way::Stream(sink) => {
                    let _gone = sink.notify_resource_updated(uri).await;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Subscriber>> {
        self.0.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a session or a stream.
    pub(super) fn number(&self) -> u64 {
        self.0.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn subscribe(&self, of: u64, uri: String, peer: Peer<RoleServer>) -> Result<(), ErrorData> {
        self.unsubscribe(of, &uri);
        self.add(Subscriber { of, way: Way::Session(uri, peer) })
    }

    pub(super) fn unsubscribe(&self, of: u64, uri: &str) {
        let is_it = |way: &Way| matches!(way, Way::Session(wanted, _) if wanted == uri);
        self.lock().retain(|one| one.of != of || !is_it(&one.way));
    }

    /// Tells a stream until what is given back is dropped.
    pub(super) fn listen(&self, sink: SubscriptionSink) -> Result<Listening, ErrorData> {
        let of = self.number();
        self.add(Subscriber { of, way: Way::Stream(sink) })?;
        Ok(Listening { changes: self.clone(), of })
    }

    /// A session, or a stream, is over.
    pub(super) fn leave(&self, of: u64) {
        self.lock().retain(|one| one.of != of);
    }

    fn add(&self, subscriber: Subscriber) -> Result<(), ErrorData> {
        let mut subscribers = self.lock();
        if subscribers.len() >= MOST {
            return Err(ErrorData::internal_error("there are too many subscriptions", None));
        }
        subscribers.push(subscriber);
        Ok(())
    }
}

/// A stream that is open.
pub(super) struct Listening {
    changes: Changes,
    of: u64,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.changes.leave(self.of);
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("subscriptions", &self.lock().len()).finish()
    }
}

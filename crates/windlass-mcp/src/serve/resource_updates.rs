//! Subscriptions of clients to resource updates.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::ErrorData;
use rmcp::model::ResourceUpdatedNotificationParam;
use rmcp::service::{Peer, RoleServer, SubscriptionSink};

/// Maximum number of subscriptions; further ones are refused.
const MAX_SUBSCRIPTIONS: usize = 1024;

/// A notifier of resource updates to subscribed clients. Clones belong to the same server.
#[derive(Clone, Default)]
pub struct ResourceUpdateNotifier(Arc<SubscriptionTable>);

#[derive(Default)]
struct SubscriptionTable {
    subscribers: Mutex<Vec<ResourceSubscriber>>,
    next_owner_id: AtomicU64,
}

#[derive(Clone)]
struct ResourceSubscriber {
    /// The id of the session or stream that owns the subscription.
    owner_id: u64,
    channel: SubscriptionChannel,
}

/// The channel to a subscriber.
#[derive(Clone)]
enum SubscriptionChannel {
    /// A session of the legacy protocol, subscribed to one resource.
    Session(String, Peer<RoleServer>),
    /// A `subscriptions/listen` stream of the modern protocol, which filters by its own subscriptions.
    Stream(SubscriptionSink),
}

impl ResourceUpdateNotifier {
    /// Notifies the subscribers of a resource that its contents have changed.
    pub async fn notify_updated(&self, uri: &str) {
        let subscribers = self.lock().clone();
        for subscriber in subscribers {
            // Errors of disconnected clients are ignored; a stream forwards only the resources it was opened for.
            match subscriber.channel {
                SubscriptionChannel::Session(wanted, peer) if wanted == uri => {
                    let _gone =
                        peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await;
                }
                SubscriptionChannel::Session(..) => {}
                SubscriptionChannel::Stream(sink) => {
                    let _gone = sink.notify_resource_updated(uri).await;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ResourceSubscriber>> {
        self.0.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a new id for a session or stream.
    pub(super) fn next_owner_id(&self) -> u64 {
        self.0.next_owner_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn subscribe(&self, of: u64, uri: String, peer: Peer<RoleServer>) -> Result<(), ErrorData> {
        self.unsubscribe(of, &uri);
        self.add_subscriber(ResourceSubscriber {
            owner_id: of,
            channel: SubscriptionChannel::Session(uri, peer),
        })
    }

    pub(super) fn unsubscribe(&self, of: u64, uri: &str) {
        let is_it = |way: &SubscriptionChannel| matches!(way, SubscriptionChannel::Session(wanted, _) if wanted == uri);
        self.lock().retain(|one| one.owner_id != of || !is_it(&one.channel));
    }

    /// Subscribes a stream until the returned guard is dropped.
    ///
    /// # Errors
    ///
    /// Returns an error if there are too many subscriptions.
    pub(super) fn subscribe_stream(&self, sink: SubscriptionSink) -> Result<SubscriptionGuard, ErrorData> {
        let of = self.next_owner_id();
        self.add_subscriber(ResourceSubscriber { owner_id: of, channel: SubscriptionChannel::Stream(sink) })?;
        Ok(SubscriptionGuard { notifier: self.clone(), owner_id: of })
    }

    /// Removes the subscriptions of a session or stream that has ended.
    pub(super) fn remove_owner(&self, of: u64) {
        self.lock().retain(|one| one.owner_id != of);
    }

    fn add_subscriber(&self, subscriber: ResourceSubscriber) -> Result<(), ErrorData> {
        let mut subscribers = self.lock();
        if subscribers.len() >= MAX_SUBSCRIPTIONS {
            return Err(ErrorData::internal_error("there are too many subscriptions", None));
        }
        subscribers.push(subscriber);
        Ok(())
    }
}

/// A guard that removes a stream's subscription when dropped.
pub(super) struct SubscriptionGuard {
    notifier: ResourceUpdateNotifier,
    owner_id: u64,
}

impl Drop for SubscriptionGuard {
    fn drop(&mut self) {
        self.notifier.remove_owner(self.owner_id);
    }
}

impl fmt::Debug for ResourceUpdateNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResourceUpdateNotifier").field("subscriptions", &self.lock().len()).finish()
    }
}

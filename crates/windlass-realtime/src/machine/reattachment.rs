//! A new connection to a conversation that the provider keeps, such as that of a telephone call. Invariant: an item that
//! the provider has is not sent again, and what the provider says while the connection is lost is neither cut off nor
//! requested again.

use super::RealtimeMachine;
use crate::history::RealtimeItem;
use crate::id::ItemId;
use crate::model::{ConversationLifetime, RealtimeCommandKind};

/// Maximum number of edits that are kept while the connection is lost.
const MAX_DEFERRED_EDITS: usize = 256;

impl RealtimeMachine {
    /// Returns true if the provider has the conversation of this session while the connection is lost.
    pub(super) fn is_conversation_kept(&self) -> bool {
        self.policy.conversation_lifetime == ConversationLifetime::Call && self.ready_result == Some(Ok(()))
    }

    /// Returns true if the provider will have the current agent's configuration while the connection is lost.
    pub(super) fn will_keep_configuration(&self) -> bool {
        let is_known = self.is_configuration_certain() || self.is_configuration_kept;
        self.is_conversation_kept() && is_known && !self.is_configuration_changing()
    }

    /// Keeps an edit of an item that cannot be sent now, for the next connection.
    pub(super) fn defer_edit(&mut self, kind: RealtimeCommandKind) {
        let is_edit =
            matches!(kind, RealtimeCommandKind::DeleteItem { .. } | RealtimeCommandKind::TruncateItem { .. });
        if is_edit && self.is_conversation_kept() && self.deferred_edits.len() < MAX_DEFERRED_EDITS {
            self.deferred_edits.push(kind);
        }
    }

    /// Sends the configuration, and the items that the provider does not have or may not have.
    pub(super) fn reattach_conversation(&mut self) {
        let unsent = self.items_not_at_provider();
        self.unconfirmed_items.clear();
        self.demand_rejected_outputs();
        self.establish_configuration();
        for edit in std::mem::take(&mut self.deferred_edits) {
            self.send_command(edit);
        }
        for (item, after) in unsent {
            self.send_item_again(item, after);
        }
    }

    /// Returns the items that the provider has not confirmed or has rejected, with the preceding item of those that are not
    /// at the end.
    fn items_not_at_provider(&self) -> Vec<(RealtimeItem, Option<ItemId>)> {
        let is_unsent = |item: &RealtimeItem| {
            !self.wire_ids.is_at_provider(&item.id)
                || self.unconfirmed_items.values().any(|unconfirmed| *unconfirmed == item.id)
                || self.is_rejected_output(&item.id)
        };
        let items = self.history.items();
        let tail = items.iter().rposition(|item| !is_unsent(item)).map_or(0, |last| last + 1);
        let unsent = items.iter().enumerate().filter(|(_, item)| is_unsent(item));
        let place = |(place, item): (usize, &RealtimeItem)| {
            let before = place.checked_sub(1).filter(|_| place < tail);
            (item.clone(), before.map(|before| items[before].id.clone()))
        };
        unsent.map(place).collect()
    }

    /// Takes the history of an earlier process for that of the provider, and returns the items that the provider may not have:
    /// the session's own ones since the last item of the model, which has answered the others.
    pub(super) fn adopt_conversation(&mut self) -> Vec<RealtimeItem> {
        let items = self.history.items();
        self.wire_ids.adopt_items(items.iter().map(|item| &item.id));
        let begin = items.iter().rposition(|item| item.response.is_some()).map_or(0, |last| last + 1);
        let own = format!("wl_{}_", self.short_session_id());
        items[begin..].iter().filter(|item| item.id.as_str().starts_with(&own)).cloned().collect()
    }
}

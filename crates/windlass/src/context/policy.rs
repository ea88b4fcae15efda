//! The policy that keeps a conversation within the context window of its model.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use windlass_core::item::{Item, Message, Role};

use super::ContextWindowList;
use crate::model::SharedModel;

/// Default share of the window from which the history is compacted, in percent.
const DEFAULT_COMPACT_ABOVE: u64 = 80;
/// Default share of the window that a compaction aims for, in percent.
const DEFAULT_COMPACT_TO: u64 = 50;
/// Default number of newest items that are kept as they are, if they fit.
const DEFAULT_KEEP_NEWEST: usize = 12;

type PinFunction = Arc<dyn Fn(&Item) -> bool + Send + Sync>;

/// The policy that keeps the conversation of a run within the context window of its model.
///
/// The history is compacted when the next request would come close to the window, and when a provider refuses a request
/// as too long. Old outputs of tools are removed first, then old parts of the conversation, which a model can summarise.
/// System messages, the input of the run and pinned items stay; so do both halves of every call that stays. The journal
/// has an entry for each compaction, and the items of the run and of its session are not affected.
///
/// ```
/// use windlass::context::ContextPolicy;
/// use windlass::prelude::*;
///
/// # fn show(agent: &Agent, small_model: windlass::model::SharedModel) {
/// let policy = ContextPolicy::with_window(32_000).summarise_with(small_model);
/// let run = agent.run("Read all pages.").max_turns(5_000).context_policy(policy);
/// # }
/// ```
#[derive(Clone)]
pub struct ContextPolicy {
    context_window: Option<u64>,
    /// The windows of models that do not know theirs; `None` stands for the shipped list.
    window_list: Option<Arc<ContextWindowList>>,
    compact_above: u64,
    compact_to: u64,
    keep_newest: usize,
    pin: Option<PinFunction>,
    summariser: Option<SharedModel>,
    is_enabled: bool,
}

impl Default for ContextPolicy {
    fn default() -> Self {
        Self {
            context_window: None,
            window_list: None,
            compact_above: DEFAULT_COMPACT_ABOVE,
            compact_to: DEFAULT_COMPACT_TO,
            keep_newest: DEFAULT_KEEP_NEWEST,
            pin: None,
            summariser: None,
            is_enabled: true,
        }
    }
}

impl fmt::Debug for ContextPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextPolicy")
            .field("context_window", &self.context_window)
            .field("compact_above", &self.compact_above)
            .field("compact_to", &self.compact_to)
            .field("keep_newest", &self.keep_newest)
            .field("is_enabled", &self.is_enabled)
            .finish_non_exhaustive()
    }
}

impl ContextPolicy {
    /// Creates a policy for a window of this many tokens. Without a window ([`ContextPolicy::default`]), that of the model
    /// counts, or else that of a [list by the name of the model](Self::window_list). A request that the provider refused
    /// as too long shows the window of a model that is not in the list, or one that is smaller.
    pub fn with_window(tokens: u64) -> Self {
        Self { context_window: Some(tokens), ..Self::default() }
    }

    /// Sets the list of context windows, for models that do not know theirs. The default is the shipped list:
    /// [`ContextWindowList::shipped`].
    #[must_use]
    pub fn window_list(mut self, list: impl Into<Arc<ContextWindowList>>) -> Self {
        self.window_list = Some(list.into());
        self
    }

    /// Creates a policy that never compacts: a request that is too long fails the run.
    pub fn disabled() -> Self {
        Self { is_enabled: false, ..Self::default() }
    }

    /// Sets the share of the window from which the history is compacted, in percent. The default is 80.
    #[must_use]
    pub fn compact_above_percent(mut self, percent: u8) -> Self {
        self.compact_above = u64::from(percent).clamp(1, 100);
        self
    }

    /// Sets the share of the window that a compaction aims for, in percent. The default is 50.
    #[must_use]
    pub fn compact_to_percent(mut self, percent: u8) -> Self {
        self.compact_to = u64::from(percent).clamp(1, 100);
        self
    }

    /// Sets the number of newest items that are kept as they are, if they fit. The default is 12.
    #[must_use]
    pub fn keep_newest(mut self, items: usize) -> Self {
        self.keep_newest = items;
        self
    }

    /// Pins the items for which the function returns true: they are never removed or changed.
    #[must_use]
    pub fn pin_items(mut self, is_pinned: impl Fn(&Item) -> bool + Send + Sync + 'static) -> Self {
        self.pin = Some(Arc::new(is_pinned));
        self
    }

    /// Summarises the removed parts of the conversation with a model. Without one, a note says how many items are missing.
    #[must_use]
    pub fn summarise_with(mut self, model: impl Into<SharedModel>) -> Self {
        self.summariser = Some(model.into());
        self
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    pub(crate) fn newest_kept(&self) -> usize {
        self.keep_newest
    }

    pub(crate) fn summariser(&self) -> Option<&SharedModel> {
        self.summariser.as_ref()
    }

    /// Returns the window: that of the policy, or else that of the model.
    pub(crate) fn window_for(&self, model: &SharedModel) -> Option<u64> {
        self.context_window.or_else(|| self.window_of_model(model))
    }

    /// Returns the window that the model knows, or that the list has for its name.
    pub(crate) fn window_of_model(&self, model: &SharedModel) -> Option<u64> {
        let find = |list: &ContextWindowList| list.find_window(model.name()?);
        model.context_window().or_else(|| match &self.window_list {
            Some(list) => find(list),
            None => find(&ContextWindowList::shipped()),
        })
    }

    /// Returns the tokens above which the history is compacted, with space for the output.
    pub(crate) fn upper_limit(&self, window: u64, max_output: Option<u64>) -> u64 {
        let share = window.saturating_mul(self.compact_above) / 100;
        match max_output {
            // A maximum of more than half of the window is an upper limit, and no plan.
            Some(output) if output < window / 2 => share.min(window - output),
            _ => share,
        }
    }

    /// Returns the tokens that a compaction aims for.
    pub(crate) fn target(&self, window: u64) -> u64 {
        window.saturating_mul(self.compact_to.min(self.compact_above)) / 100
    }

    /// True if the item must stay as it is. An item whose function panics stays.
    pub(crate) fn is_pinned(&self, item: &Item) -> bool {
        let is_chosen = |pin: &PinFunction| catch_unwind(AssertUnwindSafe(|| pin(item))).unwrap_or(true);
        matches!(item, Item::Message(Message { role: Role::System, .. }))
            || self.pin.as_ref().is_some_and(is_chosen)
    }
}

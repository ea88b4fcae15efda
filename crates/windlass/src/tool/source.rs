//! Sources of tools that are known only at run time, such as those of MCP servers.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{RunContext, Tool};

/// A source of tools that the agent queries before every turn.
///
/// A source should return the *same* list while nothing has changed: the agent then resolves its tools once,
/// and a turn costs the same with five tools as with five hundred.
pub trait ToolSource<C>: Send + Sync + 'static {
    /// Returns the tools for a turn.
    ///
    /// # Errors
    ///
    /// An error ends the run before anything of the turn is executed. A source that can work without the failed
    /// part should return a warning instead.
    fn list_tools<'a>(
        &'a self,
        asked: ToolSourceRequest<'a, C>,
    ) -> BoxFuture<'a, Result<SourcedTools<C>, String>>;

    /// Returns true if a tool of the source may have secret arguments or a secret output. Deltas of a model that has such
    /// tools stay in the process ([`Worker::event_watcher`](crate::fleet::Worker::event_watcher)).
    fn may_have_secrets(&self) -> bool {
        true
    }
}

/// A query to a tool source.
pub struct ToolSourceRequest<'a, C> {
    /// The context of the run, with the agent whose turn it is.
    pub ctx: &'a RunContext<C>,
    /// Names that are already taken: those of the agent's own tools and handoffs, and of earlier sources.
    pub taken_names: &'a BTreeSet<Arc<str>>,
}

/// The tools of a source for a turn.
pub struct SourcedTools<C> {
    /// The tools, in the order in which the model sees them.
    pub tools: Arc<[Arc<Tool<C>>]>,
    /// Warnings for the operator about missing tools. They are reported once per list.
    pub warnings: Arc<[String]>,
}

impl<C> Clone for SourcedTools<C> {
    fn clone(&self) -> Self {
        Self { tools: self.tools.clone(), warnings: self.warnings.clone() }
    }
}

impl<C> SourcedTools<C> {
    /// True if both are the same lists, by address.
    pub(crate) fn is_same_list(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.tools, &other.tools) && Arc::ptr_eq(&self.warnings, &other.warnings)
    }
}

impl<C, S: ToolSource<C> + ?Sized> ToolSource<C> for Arc<S> {
    fn list_tools<'a>(
        &'a self,
        asked: ToolSourceRequest<'a, C>,
    ) -> BoxFuture<'a, Result<SourcedTools<C>, String>> {
        (**self).list_tools(asked)
    }

    fn may_have_secrets(&self) -> bool {
        (**self).may_have_secrets()
    }
}

//! Tools whose set is known only while an agent runs, such as those of other programs.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{RunContext, Tool};

/// Where tools come from that an agent does not hold itself. It is asked before every turn.
///
/// It should answer with the *same* list while nothing has changed: then the agent works its tools out once, and
/// a turn costs the same with five tools and with five hundred.
pub trait ToolSource<C>: Send + Sync + 'static {
    /// The tools for a turn. An error ends the run where it is, before anything of the turn has happened; a source
    /// that can do without the part that failed should rather warn.
    fn tools<'a>(&'a self, asked: SourceRequest<'a, C>) -> BoxFuture<'a, Result<SourcedTools<C>, String>>;
}

/// What a source is asked with.
pub struct SourceRequest<'a, C> {
    /// The run, and the agent whose turn it is.
    pub ctx: &'a RunContext<C>,
    /// The names that the model knows other tools by: those of the agent's own tools and handoffs, and of sources
    /// before this one.
    pub taken: &'a BTreeSet<Arc<str>>,
}

/// What a source has for a turn.
pub struct SourcedTools<C> {
    /// The tools, in the order in which the model is offered them.
    pub tools: Arc<[Arc<Tool<C>>]>,
    /// What the operator should know of those that are not there. Told once for each list.
    pub warnings: Arc<[String]>,
}

impl<C> Clone for SourcedTools<C> {
    fn clone(&self) -> Self {
        Self { tools: self.tools.clone(), warnings: self.warnings.clone() }
    }
}

impl<C> SourcedTools<C> {
    /// Whether both are the very same lists.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.tools, &other.tools) && Arc::ptr_eq(&self.warnings, &other.warnings)
    }
}

impl<C, S: ToolSource<C> + ?Sized> ToolSource<C> for Arc<S> {
    fn tools<'a>(&'a self, asked: SourceRequest<'a, C>) -> BoxFuture<'a, Result<SourcedTools<C>, String>> {
        (**self).tools(asked)
    }
}

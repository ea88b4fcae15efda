//! A tool source under a policy, such as the tools of MCP servers.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use windlass::tool::{SourcedTools, Tool, ToolSource, ToolSourceRequest};

use super::ToolPolicy;

/// Maximum number of lists that are kept; different agents may see different lists.
const MAX_LISTS: usize = 8;

/// A tool source whose tools are under a policy.
pub struct PolicyToolSource<C, S> {
    policy: ToolPolicy,
    source: S,
    /// Lists of the source, and the same lists under the policy.
    lists: Mutex<VecDeque<(SourcedTools<C>, SourcedTools<C>)>>,
}

impl ToolPolicy {
    /// Puts a tool source under the policy.
    pub fn apply_to_source<C: Send + Sync + 'static, S: ToolSource<C>>(
        &self,
        source: S,
    ) -> PolicyToolSource<C, S> {
        PolicyToolSource { policy: self.clone(), source, lists: Mutex::default() }
    }
}

impl<C: Send + Sync + 'static, S: ToolSource<C>> PolicyToolSource<C, S> {
    /// Returns the list under the policy; the same one while the source returns the same one.
    fn under_policy(&self, listed: SourcedTools<C>) -> SourcedTools<C> {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |known: &SourcedTools<C>| {
            Arc::ptr_eq(&known.tools, &listed.tools) && Arc::ptr_eq(&known.warnings, &listed.warnings)
        };
        if let Some((_, applied)) = lists.iter().find(|(known, _)| is_same(known)) {
            return applied.clone();
        }
        let tools = listed.tools.iter().map(|tool| Arc::new(self.policy.apply_to(Tool::clone(tool))));
        let applied = SourcedTools { tools: tools.collect(), warnings: listed.warnings.clone() };
        if lists.len() == MAX_LISTS {
            lists.pop_front();
        }
        lists.push_back((listed, applied.clone()));
        applied
    }
}

impl<C: Send + Sync + 'static, S: ToolSource<C>> ToolSource<C> for PolicyToolSource<C, S> {
    fn list_tools<'a>(
        &'a self,
        asked: ToolSourceRequest<'a, C>,
    ) -> Pin<Box<dyn Future<Output = Result<SourcedTools<C>, String>> + Send + 'a>> {
        Box::pin(async move { self.source.list_tools(asked).await.map(|listed| self.under_policy(listed)) })
    }

    fn may_have_secrets(&self) -> bool {
        self.source.may_have_secrets()
    }
}

//! What a user decides about the tools of servers: which there are, and when a person is asked.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use windlass::{Effect, RunContext, Tool, ToolContext};

use crate::client::ToolInfo;
use crate::config::Trust;

/// When a person decides about a call of a server's tool.
pub enum Approve<C = ()> {
    /// Unless the server is trusted and says that the tool changes nothing, or destroys nothing: always. What an
    /// untrusted server says of its tools lifts nothing.
    Hints,
    /// Never.
    Never,
    /// Always.
    Always,
    /// By the tool's name at its server; all others by the second policy.
    PerTool(BTreeMap<String, Self>, Box<Self>),
    /// When the function says so. One that fails asks.
    When(Rule<C>),
}

/// Says whether a person must decide about a call.
pub type Rule<C> =
    Arc<dyn Fn(ToolContext<C>, Arc<ToolInfo>, Value) -> BoxFuture<'static, bool> + Send + Sync>;

impl<C: Send + Sync + 'static> Approve<C> {
    /// When the function says so, given the call's context, the tool and the arguments.
    pub fn when<Fut>(
        rule: impl Fn(ToolContext<C>, Arc<ToolInfo>, Value) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = bool> + Send + 'static,
    {
        Self::When(Arc::new(move |ctx, tool, arguments| rule(ctx, tool, arguments).boxed()))
    }

    /// These tools by these policies, all others always.
    pub fn per_tool<S: Into<String>>(tools: impl IntoIterator<Item = (S, Self)>) -> Self {
        let tools = tools.into_iter().map(|(name, policy)| (name.into(), policy)).collect();
        Self::PerTool(tools, Box::new(Self::Always))
    }

    /// These tools never, all others always.
    pub fn all_but<S: Into<String>>(tools: impl IntoIterator<Item = S>) -> Self {
        Self::per_tool(tools.into_iter().map(|name| (name, Self::Never)))
    }

    pub(crate) fn put_on(&self, tool: Tool<C>, info: &Arc<ToolInfo>, trust: Trust) -> Tool<C> {
        match self {
            Self::Never => tool,
            Self::Always => tool.approve_always(),
            Self::Hints => match trust {
                Trust::Untrusted => tool.approve_always(),
                Trust::Trusted if info.hints.read_only == Some(true) => tool,
                Trust::Trusted if info.hints.destructive == Some(false) => tool,
                Trust::Trusted => tool.approve_always(),
            },
            Self::PerTool(tools, others) => {
                tools.get(&*info.name).unwrap_or(others).put_on(tool, info, trust)
            }
            Self::When(rule) => {
                let (rule, info) = (rule.clone(), info.clone());
                tool.approve_when(move |ctx, arguments: &Value| rule(ctx, info.clone(), arguments.clone()))
            }
        }
    }
}

/// What may happen to a call that a crash interrupted. An untrusted server's word does not make a call repeatable.
pub(crate) fn effect(info: &ToolInfo, trust: Trust) -> Effect {
    match trust {
        Trust::Untrusted => Effect::Once,
        Trust::Trusted if info.hints.read_only == Some(true) => Effect::Pure,
        Trust::Trusted if info.hints.idempotent == Some(true) => Effect::Idempotent,
        Trust::Trusted => Effect::Once,
    }
}

/// Says whether an agent has a tool in a turn. One that fails hides it.
pub(crate) type Filter<C> =
    Arc<dyn for<'a> Fn(&'a RunContext<C>, &'a ToolInfo) -> BoxFuture<'a, Result<bool, String>> + Send + Sync>;

/// Whether a filter lets a tool through; why not, where it failed.
pub(crate) async fn passes<C>(
    filter: &Filter<C>,
    ctx: &RunContext<C>,
    tool: &ToolInfo,
) -> Result<bool, String> {
    let asked = std::panic::catch_unwind(AssertUnwindSafe(|| filter(ctx, tool)));
    let failed = || "it panicked".to_owned();
    match asked {
        Ok(answer) => AssertUnwindSafe(answer).catch_unwind().await.unwrap_or_else(|_| Err(failed())),
        Err(_) => Err(failed()),
    }
}

impl<C> Clone for Approve<C> {
    fn clone(&self) -> Self {
        match self {
            Self::Hints => Self::Hints,
            Self::Never => Self::Never,
            Self::Always => Self::Always,
            Self::PerTool(tools, others) => Self::PerTool(tools.clone(), others.clone()),
            Self::When(rule) => Self::When(rule.clone()),
        }
    }
}

impl<C> fmt::Debug for Approve<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hints => f.write_str("Hints"),
            Self::Never => f.write_str("Never"),
            Self::Always => f.write_str("Always"),
            Self::PerTool(tools, others) => f.debug_tuple("PerTool").field(tools).field(others).finish(),
            Self::When(_) => f.write_str("When"),
        }
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;

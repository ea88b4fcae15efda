//! The user's policies about MCP tools: filters, approvals, and the trust in a server's annotations.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use windlass::{
    core::tool::ToolEffect,
    tool::{RunContext, Tool, ToolContext},
};

use crate::client::McpToolInfo;
use crate::config::ServerTrust;

/// The policy that decides which calls of MCP tools require a person's approval.
pub enum McpApprovalPolicy<C = ()> {
    /// Every call, except calls of a trusted server's tools that it declares read-only or non-destructive.
    /// Hints of an untrusted server have no effect.
    ByHints,
    /// No call.
    Never,
    /// Every call.
    Always,
    /// A policy for each tool name at the server; the second policy applies to all other tools.
    PerTool(BTreeMap<String, Self>, Box<Self>),
    /// The calls for which the function returns true, or panics.
    When(McpApprovalRule<C>),
}

/// A callback that returns true if a call requires a person's approval.
pub type McpApprovalRule<C> =
    Arc<dyn Fn(ToolContext<C>, Arc<McpToolInfo>, Value) -> BoxFuture<'static, bool> + Send + Sync>;

impl<C: Send + Sync + 'static> McpApprovalPolicy<C> {
    /// Creates a policy from a function of the call's context, the tool and the arguments.
    pub fn when<Fut>(
        rule: impl Fn(ToolContext<C>, Arc<McpToolInfo>, Value) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = bool> + Send + 'static,
    {
        Self::When(Arc::new(move |ctx, tool, arguments| rule(ctx, tool, arguments).boxed()))
    }

    /// Creates a policy with one policy for each given tool; all other tools always require approval.
    pub fn per_tool<S: Into<String>>(tools: impl IntoIterator<Item = (S, Self)>) -> Self {
        let tools = tools.into_iter().map(|(name, policy)| (name.into(), policy)).collect();
        Self::PerTool(tools, Box::new(Self::Always))
    }

    /// Creates a policy in which every tool requires approval, except the given ones.
    pub fn always_except<S: Into<String>>(tools: impl IntoIterator<Item = S>) -> Self {
        Self::per_tool(tools.into_iter().map(|name| (name, Self::Never)))
    }

    pub(crate) fn apply_to(&self, tool: Tool<C>, info: &Arc<McpToolInfo>, trust: ServerTrust) -> Tool<C> {
        match self {
            Self::Never => tool,
            Self::Always => tool.needs_approval(),
            Self::ByHints => match trust {
                ServerTrust::Untrusted => tool.needs_approval(),
                ServerTrust::Trusted if info.hints.read_only == Some(true) => tool,
                ServerTrust::Trusted if info.hints.destructive == Some(false) => tool,
                ServerTrust::Trusted => tool.needs_approval(),
            },
            Self::PerTool(tools, others) => {
                tools.get(&*info.name).unwrap_or(others).apply_to(tool, info, trust)
            }
            Self::When(rule) => {
                let (rule, info) = (rule.clone(), info.clone());
                tool.needs_approval_if_async(move |ctx, arguments: &Value| {
                    rule(ctx, info.clone(), arguments.clone())
                })
            }
        }
    }
}

/// Returns the effect of a tool, which decides whether an interrupted call may be repeated. Hints count only
/// if the server is trusted.
pub(crate) fn declared_effect(info: &McpToolInfo, trust: ServerTrust) -> ToolEffect {
    match trust {
        ServerTrust::Untrusted => ToolEffect::Once,
        ServerTrust::Trusted if info.hints.read_only == Some(true) => ToolEffect::Pure,
        ServerTrust::Trusted if info.hints.idempotent == Some(true) => ToolEffect::Idempotent,
        ServerTrust::Trusted => ToolEffect::Once,
    }
}

/// A callback that returns true if a tool is offered in a turn; an error hides the tool.
pub(crate) type McpToolFilter<C> = Arc<
    dyn for<'a> Fn(&'a RunContext<C>, &'a McpToolInfo) -> BoxFuture<'a, Result<bool, String>> + Send + Sync,
>;

/// Evaluates a filter.
///
/// # Errors
///
/// Returns the reason if the filter fails or panics.
pub(crate) async fn evaluate_filter<C>(
    filter: &McpToolFilter<C>,
    ctx: &RunContext<C>,
    tool: &McpToolInfo,
) -> Result<bool, String> {
    let asked = std::panic::catch_unwind(AssertUnwindSafe(|| filter(ctx, tool)));
    let failed = || "it panicked".to_owned();
    match asked {
        Ok(answer) => AssertUnwindSafe(answer).catch_unwind().await.unwrap_or_else(|_| Err(failed())),
        Err(_) => Err(failed()),
    }
}

impl<C> Clone for McpApprovalPolicy<C> {
    fn clone(&self) -> Self {
        match self {
            Self::ByHints => Self::ByHints,
            Self::Never => Self::Never,
            Self::Always => Self::Always,
            Self::PerTool(tools, others) => Self::PerTool(tools.clone(), others.clone()),
            Self::When(rule) => Self::When(rule.clone()),
        }
    }
}

impl<C> fmt::Debug for McpApprovalPolicy<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByHints => f.write_str("ByHints"),
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

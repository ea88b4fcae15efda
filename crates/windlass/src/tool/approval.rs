//! When a person must decide.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::ToolContext;

pub(crate) enum Approval<C> {
    Never,
    Always,
    Rule(Arc<dyn Fn(ToolContext<C>, &dyn Any) -> BoxFuture<'static, bool> + Send + Sync>),
}

impl<C> Approval<C> {
    /// Whether a person must decide about a call. A rule that fails means that one must.
    pub(crate) async fn asks(&self, ctx: ToolContext<C>, arguments: &(dyn Any + Send + Sync)) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::Rule(rule) => {
                let asked = std::panic::catch_unwind(AssertUnwindSafe(|| rule(ctx, arguments)));
                match asked {
                    Ok(answer) => AssertUnwindSafe(answer).catch_unwind().await.unwrap_or(true),
                    Err(_) => true,
                }
            }
        }
    }
}

impl<C> Clone for Approval<C> {
    fn clone(&self) -> Self {
        match self {
            Self::Never => Self::Never,
            Self::Always => Self::Always,
            Self::Rule(rule) => Self::Rule(rule.clone()),
        }
    }
}

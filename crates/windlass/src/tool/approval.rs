//! When a person must decide.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::Gate;

use super::{Tool, ToolContext};

pub(crate) enum Approval<C> {
    Never,
    Always,
    Rule(Arc<dyn Fn(ToolContext<C>, &dyn Any) -> BoxFuture<'static, bool> + Send + Sync>),
}

impl<C: Send + Sync + 'static> Tool<C> {
    /// A person decides before every call. An approval for good covers the calls to come.
    #[must_use]
    pub fn approve_always(mut self) -> Self {
        self.approval = Approval::Always;
        self
    }

    /// Nobody is asked, whatever the tool said before: for a policy that knows better.
    #[must_use]
    pub fn approve_never(mut self) -> Self {
        (self.approval, self.each) = (Approval::Never, Approval::Never);
        self
    }

    /// A person decides before calls whose arguments the rule picks. `A` is the type of the tool's arguments,
    /// or [`serde_json::Value`]. A rule that panics, or is given another type, asks.
    #[must_use]
    pub fn approve_if<A: 'static>(mut self, rule: impl Fn(&A) -> bool + Send + Sync + 'static) -> Self {
        self.approval = Approval::of(rule);
        self
    }

    /// As [`Tool::approve_if`], with the call's context and an async rule.
    #[must_use]
    pub fn approve_when<A, Fut>(
        mut self,
        rule: impl Fn(ToolContext<C>, &A) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        A: 'static,
        Fut: Future<Output = bool> + Send + 'static,
    {
        self.approval = Approval::when(rule);
        self
    }

    /// A person decides before every call, and about each alone: an approval for good is refused. For what must be
    /// looked at every time, such as a payment.
    #[must_use]
    pub fn approve_each(mut self) -> Self {
        self.each = Approval::Always;
        self
    }

    /// A person decides before calls whose arguments the rule picks, each time: an approval for good does not cover
    /// them. It stands beside what else the tool asks about, which such an approval does cover.
    #[must_use]
    pub fn approve_each_if<A: 'static>(mut self, rule: impl Fn(&A) -> bool + Send + Sync + 'static) -> Self {
        self.each = Approval::of(rule);
        self
    }

    /// As [`Tool::approve_each_if`], with the call's context and an async rule.
    #[must_use]
    pub fn approve_each_when<A, Fut>(
        mut self,
        rule: impl Fn(ToolContext<C>, &A) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        A: 'static,
        Fut: Future<Output = bool> + Send + 'static,
    {
        self.each = Approval::when(rule);
        self
    }

    /// Whether it runs unasked, is always asked about, or has a rule that looks at each call; and whether an approval
    /// for good answers that.
    pub fn gate(&self) -> Gate {
        match (&self.each, &self.approval) {
            (Approval::Always, _) => Gate::Each,
            (Approval::Rule(_), _) => Gate::AskEach,
            (Approval::Never, Approval::Never) => Gate::Open,
            (Approval::Never, Approval::Always) => Gate::Closed,
            (Approval::Never, Approval::Rule(_)) => Gate::Ask,
        }
    }
}

impl<C: Send + Sync + 'static> Approval<C> {
    fn of<A: 'static>(rule: impl Fn(&A) -> bool + Send + Sync + 'static) -> Self {
        Self::Rule(Arc::new(move |_, arguments| {
            let asks = arguments.downcast_ref::<A>().is_none_or(&rule);
            std::future::ready(asks).boxed()
        }))
    }

    fn when<A, Fut>(rule: impl Fn(ToolContext<C>, &A) -> Fut + Send + Sync + 'static) -> Self
    where
        A: 'static,
        Fut: Future<Output = bool> + Send + 'static,
    {
        Self::Rule(Arc::new(move |ctx, arguments| match arguments.downcast_ref::<A>() {
            Some(arguments) => rule(ctx, arguments).boxed(),
            None => std::future::ready(true).boxed(),
        }))
    }

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

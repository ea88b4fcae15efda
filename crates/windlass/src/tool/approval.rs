//! Approval rules of tools: the calls that a person must approve.

use std::any::Any;
use std::future::{Future, ready};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::run::ApprovalRequirement;
use windlass_core::tool::ApprovalPolicy;

use super::{Tool, ToolContext};

pub(crate) enum ApprovalRule<C> {
    Never,
    Always,
    ByFunction(ApprovalFunction<C>),
}

/// The treatment of standing approvals of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StandingApprovals {
    /// A standing approval covers later calls that the tool's ordinary rule, or a policy, asks about.
    Honoured,
    /// It would cover too much: each call that needs approval is asked about.
    TooBroad,
}

/// A function that decides whether a call requires approval.
type ApprovalFunction<C> =
    Arc<dyn Fn(ToolContext<C>, &dyn Any) -> BoxFuture<'static, ApprovalRequirement> + Send + Sync>;

impl<C: Send + Sync + 'static> Tool<C> {
    /// Requires approval before every call. A standing approval covers later calls.
    #[must_use]
    pub fn needs_approval(mut self) -> Self {
        self.approval = ApprovalRule::Always;
        self
    }

    /// Removes all approval rules of the tool, for policies that decide otherwise.
    #[must_use]
    pub fn never_needs_approval(mut self) -> Self {
        (self.approval, self.each_time_approval) = (ApprovalRule::Never, ApprovalRule::Never);
        self
    }

    /// Requires approval for calls whose arguments match the rule. `A` is the type of the tool's arguments, or
    /// [`serde_json::Value`]. If the rule panics or gets another type, approval is required.
    #[must_use]
    pub fn needs_approval_if<A: 'static>(
        mut self,
        rule: impl Fn(&A) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.approval = ApprovalRule::from_predicate(rule);
        self
    }

    /// Requires approval as [`Tool::needs_approval_if`] does, with an async rule that receives the call's
    /// context.
    #[must_use]
    pub fn needs_approval_if_async<A, Fut>(
        mut self,
        rule: impl Fn(ToolContext<C>, &A) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        A: 'static,
        Fut: Future<Output = bool> + Send + 'static,
    {
        self.approval = ApprovalRule::from_async_predicate(rule);
        self
    }

    /// Lets a policy decide about approval in place of the tool's own rule; `None` leaves it to the tool's own rule. If
    /// the policy panics, approval is required. Approvals that are required each time stay required. A rejection ends the
    /// call. A call that a standing approval covers is not shown to the policy, unless the tool has a rule of each time.
    #[must_use]
    pub fn needs_approval_unless(
        mut self,
        policy: impl Fn(&ToolContext<C>) -> Option<ApprovalRequirement> + Send + Sync + 'static,
    ) -> Self {
        let own = self.approval.clone();
        self.approval =
            ApprovalRule::ByFunction(Arc::new(move |ctx, arguments| match (policy(&ctx), &own) {
                (Some(requirement), _) => ready(requirement).boxed(),
                (None, ApprovalRule::Never) => ready(requirement_if(false)).boxed(),
                (None, ApprovalRule::Always) => ready(requirement_if(true)).boxed(),
                (None, ApprovalRule::ByFunction(rule)) => rule(ctx, arguments),
            }));
        self
    }

    /// Lets a policy require approval each time, also where the tool's own rules do not: a standing approval does not
    /// cover a call for which the policy returns true. If the policy panics, approval is required.
    #[must_use]
    pub fn also_needs_approval_each_time_if(
        mut self,
        policy: impl Fn(&ToolContext<C>) -> bool + Send + Sync + 'static,
    ) -> Self {
        let own = self.each_time_approval.clone();
        self.each_time_approval =
            ApprovalRule::ByFunction(Arc::new(move |ctx, arguments| match (policy(&ctx), &own) {
                (true, _) | (false, ApprovalRule::Always) => ready(requirement_if(true)).boxed(),
                (false, ApprovalRule::Never) => ready(requirement_if(false)).boxed(),
                (false, ApprovalRule::ByFunction(rule)) => rule(ctx, arguments),
            }));
        self
    }

    /// Declares that an approval of one call says nothing about the next one, whatever rule or policy asks: a standing
    /// approval covers no call. For tools whose arguments are programs, such as commands. A policy can still allow
    /// calls.
    #[must_use]
    pub fn without_standing_approvals(mut self) -> Self {
        self.standing_approvals = StandingApprovals::TooBroad;
        self
    }

    /// Returns true if a standing approval can cover calls of the tool.
    pub fn has_standing_approvals(&self) -> bool {
        self.standing_approvals == StandingApprovals::Honoured
    }

    /// Requires approval before every call, each time: a standing approval is not accepted. For calls such as
    /// payments.
    #[must_use]
    pub fn needs_approval_each_time(mut self) -> Self {
        self.each_time_approval = ApprovalRule::Always;
        self
    }

    /// Requires approval for calls whose arguments match the rule, each time: a standing approval does not
    /// cover them. The other approval rule of the tool remains, and a standing approval covers that.
    #[must_use]
    pub fn needs_approval_each_time_if<A: 'static>(
        mut self,
        rule: impl Fn(&A) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.each_time_approval = ApprovalRule::from_predicate(rule);
        self
    }

    /// Requires approval as [`Tool::needs_approval_each_time_if`] does, with an async rule that receives the
    /// call's context.
    #[must_use]
    pub fn needs_approval_each_time_if_async<A, Fut>(
        mut self,
        rule: impl Fn(ToolContext<C>, &A) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        A: 'static,
        Fut: Future<Output = bool> + Send + 'static,
    {
        self.each_time_approval = ApprovalRule::from_async_predicate(rule);
        self
    }

    /// Returns the approval policy: never, always, or by a rule, and with or without standing approvals.
    pub fn approval_policy(&self) -> ApprovalPolicy {
        match (&self.each_time_approval, &self.approval) {
            (ApprovalRule::Always, _) => ApprovalPolicy::RequiredEachTime,
            (ApprovalRule::ByFunction(_), _) => ApprovalPolicy::ByRuleEachTime,
            (ApprovalRule::Never, ApprovalRule::Always) if !self.has_standing_approvals() => {
                ApprovalPolicy::RequiredEachTime
            }
            (ApprovalRule::Never, ApprovalRule::ByFunction(_)) if !self.has_standing_approvals() => {
                ApprovalPolicy::ByRuleEachTime
            }
            (ApprovalRule::Never, ApprovalRule::Never) => ApprovalPolicy::NotRequired,
            (ApprovalRule::Never, ApprovalRule::Always) => ApprovalPolicy::Required,
            (ApprovalRule::Never, ApprovalRule::ByFunction(_)) => ApprovalPolicy::ByRule,
        }
    }
}

impl<C: Send + Sync + 'static> ApprovalRule<C> {
    fn from_predicate<A: 'static>(rule: impl Fn(&A) -> bool + Send + Sync + 'static) -> Self {
        Self::ByFunction(Arc::new(move |_, arguments| {
            let asks = arguments.downcast_ref::<A>().is_none_or(&rule);
            ready(requirement_if(asks)).boxed()
        }))
    }

    fn from_async_predicate<A, Fut>(rule: impl Fn(ToolContext<C>, &A) -> Fut + Send + Sync + 'static) -> Self
    where
        A: 'static,
        Fut: Future<Output = bool> + Send + 'static,
    {
        Self::from_verdict(move |ctx, arguments: &A| rule(ctx, arguments).map(requirement_if).boxed())
    }

    /// Creates a rule from a function that can also reject the call. For arguments of another type, approval is
    /// required.
    pub(super) fn from_verdict<A: 'static>(
        rule: impl Fn(ToolContext<C>, &A) -> BoxFuture<'static, ApprovalRequirement> + Send + Sync + 'static,
    ) -> Self {
        Self::ByFunction(Arc::new(move |ctx, arguments| match arguments.downcast_ref::<A>() {
            Some(arguments) => rule(ctx, arguments),
            None => ready(ApprovalRequirement::Required).boxed(),
        }))
    }

    /// Evaluates the rule for a call. A rule that panics requires approval.
    pub(crate) async fn evaluate(
        &self,
        ctx: ToolContext<C>,
        arguments: &(dyn Any + Send + Sync),
    ) -> ApprovalRequirement {
        match self {
            Self::Never => ApprovalRequirement::NotRequired,
            Self::Always => ApprovalRequirement::Required,
            Self::ByFunction(rule) => {
                let asked = std::panic::catch_unwind(AssertUnwindSafe(|| rule(ctx, arguments)));
                match asked {
                    Ok(answer) => {
                        let answer = AssertUnwindSafe(answer).catch_unwind().await;
                        answer.unwrap_or(ApprovalRequirement::Required)
                    }
                    Err(_) => ApprovalRequirement::Required,
                }
            }
        }
    }
}

/// Returns the requirement of a rule that requires approval or does not.
fn requirement_if(is_required: bool) -> ApprovalRequirement {
    if is_required { ApprovalRequirement::Required } else { ApprovalRequirement::NotRequired }
}

impl<C> Clone for ApprovalRule<C> {
    fn clone(&self) -> Self {
        match self {
            Self::Never => Self::Never,
            Self::Always => Self::Always,
            Self::ByFunction(rule) => Self::ByFunction(rule.clone()),
        }
    }
}

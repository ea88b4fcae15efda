//! Calls with their tool and their arguments in the form that the body takes.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures_util::FutureExt;
use windlass_core::{
    canonical::Digest,
    id::{AgentName, CallId, CallPath},
    idempotency::CallKey,
    plan::{BodyKind, InvalidArguments, ResolvedTool, call_digest},
    run::{ApprovalRequirement, CallFeatures, ReconcileReport, Run},
    tool::ToolEffect,
};

use super::{
    ConflictOrder, PreparedBody, RawArguments, ReconcileOutcome, Tool, ToolBody, ToolContext,
    canonicalize_arguments,
};
use crate::error::ConfigError;
use crate::redaction;

/// A call with its tool and its arguments.
pub(crate) struct PreparedCall<C> {
    pub(crate) tool: Arc<Tool<C>>,
    /// Canonical arguments, or the model's text if it is not JSON.
    pub(crate) arguments: Arc<str>,
    pub(crate) raw_arguments: RawArguments,
    /// Body with its arguments; absent for nested agents and for invalid arguments.
    pub(crate) prepared_body: Option<Box<dyn PreparedBody<C>>>,
    /// Arguments of a nested agent.
    pub(crate) agent_arguments: Option<Box<dyn Any + Send + Sync>>,
    /// Arguments that a person edited, without secrets.
    pub(crate) edited_arguments: Option<Arc<str>>,
    /// Digest of the receipt that answers identical calls, if the tool has receipts.
    pub(crate) receipt_digest: Option<Digest>,
}

impl<C> PreparedCall<C> {
    /// Returns the checks that the tool has for this call. `recorded_key` is the identity of a call that has started.
    pub(crate) fn call_features(&self, recorded_key: Option<&CallKey>) -> CallFeatures
    where
        C: Send + Sync + 'static,
    {
        let tool = &self.tool;
        CallFeatures {
            has_input_guardrails: !tool.input_guardrails.is_empty(),
            has_output_guardrails: !tool.output_guardrails.is_empty(),
            has_enabled_rule: tool.enabled.static_value() != Some(true),
            has_permits: tool.concurrency_permits.is_some(),
            has_receipts: match recorded_key {
                Some(recorded) => recorded.receipt_digest.is_some(),
                None => self.receipt_digest.is_some(),
            },
            follows_success_only: tool.conflict_order != ConflictOrder::Independent
                && tool.effect_of_call(self.rule_arguments()) != ToolEffect::Pure,
            approval_policy: tool.approval_policy(),
            max_output_bytes: tool.max_output_bytes,
            ..CallFeatures::default()
        }
    }

    /// Evaluates the approval rules of the tool.
    pub(crate) async fn evaluate_approval(
        &self,
        ctx: &ToolContext<C>,
        has_standing_approval: bool,
    ) -> ApprovalRequirement
    where
        C: Send + Sync + 'static,
    {
        let Some(arguments) = self.rule_arguments() else { return ApprovalRequirement::Required };
        match self.tool.each_time_approval.evaluate(ctx.clone(), arguments).await {
            ApprovalRequirement::NotRequired if !has_standing_approval => {
                self.tool.approval.evaluate(ctx.clone(), arguments).await
            }
            requirement => requirement,
        }
    }

    /// Asks the tool's reconcile function whether an interrupted call was executed. A function that panics does not know.
    pub(crate) async fn reconcile(&self, ctx: &ToolContext<C>) -> ReconcileReport {
        let Some(reconcile) = &self.tool.reconcile else { return ReconcileReport::Unknown };
        let asked = AssertUnwindSafe(async { reconcile(ctx.clone()).await }).catch_unwind().await;
        match asked {
            Ok(ReconcileOutcome::Executed(output)) => ReconcileReport::Executed(output),
            Ok(ReconcileOutcome::NotExecuted) => ReconcileReport::NotExecuted,
            Ok(ReconcileOutcome::Unknown) | Err(_) => ReconcileReport::Unknown,
        }
    }

    /// Returns the parsed arguments for approval and effect rules.
    pub(crate) fn rule_arguments(&self) -> Option<&(dyn Any + Send + Sync)> {
        match (&self.prepared_body, &self.agent_arguments) {
            (Some(prepared), _) => Some(prepared.arguments()),
            (None, Some(value)) => Some(&**value),
            (None, None) => None,
        }
    }
}

/// Output for the model if arguments are invalid and contain secrets.
const PROBLEMS_WITHHELD: &str =
    "`arguments` do not fit the tool's schema; what is wrong is not shown, because some are secret";

/// Reads the arguments of a saved call: the planned ones, or those that a person edited.
pub(crate) fn read_saved_arguments<C: Send + Sync + 'static>(
    run: &Run,
    call: &CallId,
    edited: Option<&str>,
    tool: &Arc<Tool<C>>,
    path: CallPath,
) -> Result<PreparedCall<C>, ConfigError> {
    let raw = run.call_arguments(call).unwrap_or_default();
    let (found, mut ready) =
        read_arguments(tool, run.agent(), edited.unwrap_or(raw), RawArguments::Text(raw.into()));
    let name = || tool.key().to_string();
    let arguments = found.arguments.map_err(|unfit| ConfigError::ArgumentsNoLongerValid {
        tool: name(),
        call: path.clone(),
        problems: unfit.problems,
    })?;
    if edited.is_some() {
        ready.edited_arguments = Some(arguments);
    } else if run.call_digests().get(call) != Some(&call_digest(tool.key(), &arguments)) {
        return Err(ConfigError::ArgumentsChanged { tool: name(), call: path });
    }
    Ok(ready)
}

/// Parses and validates a call's arguments for its tool.
pub(crate) fn read_arguments<C: Send + Sync + 'static>(
    tool: &Arc<Tool<C>>,
    agent: &AgentName,
    written: &str,
    raw: RawArguments,
) -> (ResolvedTool, PreparedCall<C>) {
    let frozen = canonicalize_arguments(written, |frozen| Arc::<str>::from(frozen));
    let text: Arc<str> = match &frozen {
        Ok(frozen) => frozen.clone(),
        Err(_) => written.into(),
    };
    // Some providers write nothing for nothing, which is not the same call as `{}`.
    let is_frozen = frozen.is_ok() && !written.trim().is_empty();
    let mut value = None;
    let prepared = frozen.and_then(|frozen| match &tool.body {
        ToolBody::Function(body) => body.prepare(&frozen).map(Some),
        ToolBody::Agent(agent) => {
            value = Some(agent.parse_arguments(&frozen)?);
            Ok(None)
        }
    });
    let shown = match (&prepared, &value) {
        (Ok(Some(prepared)), _) => Some(prepared.arguments()),
        (_, Some(value)) => Some(&**value),
        (_, None) => None,
    };
    let conflict = match (&tool.conflict_rule, shown) {
        // Where the rule fails, calls of its tool keep their order, for they may well conflict.
        (Some(key), Some(arguments)) => {
            let asked = catch_unwind(AssertUnwindSafe(|| key(arguments)));
            asked.unwrap_or_else(|_| Some(tool.key().to_string()))
        }
        _ => None,
    };
    let effect = tool.effect_of_call(shown);
    let (arguments, prepared) = match prepared {
        // What a decision is bound to is written down, so it is of what may be.
        Ok(prepared) => {
            let open = match tool.secret_arguments.as_slice() {
                [] => None,
                fields => redaction::redact_arguments(&text, fields).map(Into::into),
            };
            (Ok(open.unwrap_or_else(|| text.clone())), prepared)
        }
        Err(problems) => {
            // What is wrong with arguments quotes them, which secrets must not be.
            let is_open = tool.secret_arguments.is_empty();
            let problems = if is_open { problems } else { PROBLEMS_WITHHELD.to_owned() };
            let shown = redaction::redact_arguments(&text, &tool.secret_arguments).filter(|_| !is_open);
            let canonical_arguments = is_frozen.then(|| shown.map_or_else(|| text.clone(), Into::into));
            (Err(InvalidArguments { problems, canonical_arguments }), None)
        }
    };
    let has_receipt = arguments.is_ok() && tool.shares_receipts();
    let receipt_digest = has_receipt.then(|| tool.operation_digest(agent, &text));
    let found = ResolvedTool {
        key: tool.key().clone(),
        body: match &tool.body {
            ToolBody::Function(_) => BodyKind::Function,
            ToolBody::Agent(_) => BodyKind::Agent,
        },
        effect,
        approval_policy: tool.approval_policy(),
        conflict_key: conflict,
        sources: tool.content_sources(),
        arguments,
    };
    let ready = PreparedCall {
        tool: tool.clone(),
        arguments: text,
        raw_arguments: raw,
        prepared_body: prepared,
        agent_arguments: value,
        edited_arguments: None,
        receipt_digest,
    };
    (found, ready)
}

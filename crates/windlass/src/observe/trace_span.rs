//! Spans of the `tracing` crate around agents, model requests, tool bodies and guardrails.
//!
//! They are for programs that use `tracing` alone: what a tool body logs is inside the span of its call. The traces of
//! `windlass-otel` are derived from the journal and do not depend on them. Without a subscriber, a span costs a check of
//! one variable.

use std::future::Future;

use tracing::field::{Empty, display};
use tracing::instrument::Instrumented;
use tracing::{Instrument, Span, info_span};
use windlass_core::id::{AgentName, RunId};

use crate::tool::ToolContext;

/// Target of all spans.
const TARGET: &str = "windlass";

/// Puts the driver of a run into the span of its agent. The span is inside the one that is current here, and is given its
/// names by [`record_agent`] when the run is open.
pub(crate) fn in_agent_span<F: Future>(driving: F) -> Instrumented<F> {
    driving.instrument(info_span!(target: TARGET, "invoke_agent", run = Empty, agent = Empty))
}

/// Records the names of a run and its agent in the span of its driver.
pub(crate) fn record_agent(run: &RunId, agent: &AgentName) {
    let span = Span::current();
    if !span.is_disabled() {
        span.record("run", display(run)).record("agent", display(agent));
    }
}

/// Puts the driver of an agent inside a call into the spans of the call and of the agent.
pub(crate) fn in_nested_agent_spans<C, F: Future>(
    ctx: &ToolContext<C>,
    agent: &AgentName,
    driving: F,
) -> Instrumented<Instrumented<F>> {
    let call_span = tool_call_span(ctx);
    let run = || ctx.run_context().run_id();
    let span = info_span!(target: TARGET, parent: &call_span, "invoke_agent", run = %run(), %agent);
    driving.instrument(span).instrument(call_span)
}

/// Creates the span of one request to a model.
pub(crate) fn model_request_span(agent: &AgentName, turn: u32) -> Span {
    info_span!(target: TARGET, "chat", %agent, turn)
}

/// Creates the span of one attempt of a call: around its body, or around the agent inside it.
pub(crate) fn tool_call_span<C>(ctx: &ToolContext<C>) -> Span {
    info_span!(target: TARGET, "execute_tool", tool = %ctx.tool_key(), call = %ctx.call_path())
}

/// Creates the span of one check of a guardrail.
pub(crate) fn guardrail_span<C>(name: &str, ctx: &ToolContext<C>) -> Span {
    info_span!(target: TARGET, "guardrail", name, call = %ctx.call_path())
}

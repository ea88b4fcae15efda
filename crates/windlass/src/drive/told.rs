//! What a call gives, and what the model is told of it where its body does not say.

use std::panic::AssertUnwindSafe;

use windlass_core::{Effect, Failure, How, OutputContent, text};

use super::Driver;
use super::call::CallWork;
use crate::tool::{OnFailure, OnTimeout, Order, Say, Tool, ToolContext, ToolError};

/// What a call gave, on its way to becoming its output.
pub(super) struct Given {
    pub(super) how: How,
    pub(super) output: OutputContent,
    pub(super) failure: Option<Box<Failure>>,
}

impl Given {
    pub(super) fn new(how: How, output: impl Into<OutputContent>) -> Self {
        Self { how, output: output.into(), failure: None }
    }

    pub(super) fn fatal(how: How, output: impl Into<OutputContent>, failure: Failure) -> Self {
        Self { how, output: output.into(), failure: Some(Box::new(failure)) }
    }

    pub(super) fn cancelled() -> Self {
        Self::new(How::Cancelled, text::CANCELLED)
    }
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// What becomes of a step that acts, where one before it was not done.
    pub(super) fn broken_off(&self, work: &CallWork<'_, C>) -> Option<Given> {
        let tool = &work.ready.tool;
        if tool.order == Order::Apart || tool.effect_of(work.ready.shown()) == Effect::Pure {
            return None;
        }
        let is_broken_off = self.locked(|run| run.is_broken_off(&work.call));
        is_broken_off.then(|| Given::new(How::Guarded, text::BROKEN_OFF))
    }
}

/// What the model is told of a failure, with as much as it may know.
pub(super) fn failed(detail: Option<&str>) -> String {
    match detail {
        Some(detail) => format!("{} Error: {}", text::FAILED, shortened(detail)),
        None => text::FAILED.to_owned(),
    }
}

/// The model sees what was really done: it would otherwise reason about arguments that never ran.
pub(super) fn told_of_edit(edited: &str, output: OutputContent) -> OutputContent {
    let note =
        format!("[A person changed the arguments of this call to {} before it ran.]", shortened(edited));
    match output {
        OutputContent::Text(text) => OutputContent::Text(format!("{note}\n{text}")),
        OutputContent::Parts(mut parts) => {
            parts.insert(0, windlass_core::Content::text(note));
            OutputContent::Parts(parts)
        }
    }
}

/// What the model reads need not be megabytes.
pub(super) fn shortened(detail: &str) -> &str {
    const LONGEST: usize = 4096;
    &detail[..detail.floor_char_boundary(LONGEST)]
}

/// What a failure of the body means.
pub(super) fn given_for_error<C: Send + Sync + 'static>(
    tool: &Tool<C>,
    ctx: &ToolContext<C>,
    error: &ToolError,
) -> Given {
    match &tool.on_failure {
        OnFailure::Hide => Given::new(How::Failed, error.output(failed(error.for_model()))),
        OnFailure::Show => Given::new(How::Failed, error.output(failed(Some(error.message())))),
        OnFailure::Say(say) => Given::new(How::Failed, error.output(said(say, ctx, error))),
        OnFailure::Fail => {
            let failure = Failure::Tool {
                tool: tool.key().to_string(),
                call: ctx.path().call().clone(),
                message: error.message().to_owned(),
            };
            Given::fatal(How::Failed, failed(error.for_model()), failure)
        }
    }
}

/// What the application says of a failure. Where that fails too, the model is told what it always is.
pub(super) fn said<C>(say: &Say<C>, ctx: &ToolContext<C>, error: &ToolError) -> String {
    std::panic::catch_unwind(AssertUnwindSafe(|| say(ctx, error))).unwrap_or_else(|_| failed(None))
}

/// What a timeout means.
pub(super) fn given_for_timeout<C: Send + Sync + 'static>(
    tool: &Tool<C>,
    ctx: &ToolContext<C>,
    how: How,
) -> Given {
    let seconds = tool.timeout.unwrap_or_default().as_secs_f64().to_string();
    let mut told = format!("Tool '{}' timed out after {seconds} seconds.", tool.name());
    if how == How::LeftRunning {
        told.push_str(" It could not be stopped and may still take effect.");
    }
    match tool.on_timeout {
        OnTimeout::Tell => Given::new(how, told),
        OnTimeout::Fail => {
            let call = ctx.path().call().clone();
            Given::fatal(how, told, Failure::ToolTimeout { tool: tool.key().to_string(), call, seconds })
        }
    }
}

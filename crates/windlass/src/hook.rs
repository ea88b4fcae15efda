//! Hooks: callbacks for the lifecycle events of a run. The run waits for each callback.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use windlass_core::{
    id::{AgentName, CallId, Timestamp},
    item::{Item, OutputContent},
    journal::{CallStatus, GuardrailRecord},
    usage::Usage,
};

use crate::guardrail::panic_message;
use crate::model::{ModelResponse, ResponseDetails};
use crate::tool::{RunContext, ToolContext};

/// An error of a hook.
pub type HookError = Box<dyn std::error::Error + Send + Sync>;

/// A lifecycle event of a run. Clones are cheap.
#[non_exhaustive]
pub enum HookEvent<C = ()> {
    /// An agent became current and is about to request its model: at the start, after a resume, or after a
    /// handoff.
    AgentStarted {
        /// The context of the run.
        ctx: RunContext<C>,
    },
    /// An agent produced the final output.
    AgentEnded {
        /// The context of the run.
        ctx: RunContext<C>,
        /// The final output.
        output: Arc<str>,
    },
    /// A model request is about to be sent.
    ModelRequestStarted {
        /// The context of the run.
        ctx: RunContext<C>,
        /// Number of the turn, starting at 1.
        turn: u32,
    },
    /// The model responded.
    ModelResponded {
        /// The context of the run.
        ctx: RunContext<C>,
        /// The items of the response.
        items: Arc<[Arc<Item>]>,
        /// The cost, origin and times of the response.
        info: Arc<ModelResponseInfo>,
    },
    /// Control passes to another agent.
    HandedOff {
        /// The context of the run, under the agent that requested the handoff.
        ctx: RunContext<C>,
        /// The agent that receives control.
        to: AgentName,
        /// Sequence number of the record of the handoff.
        seq: u64,
        /// True if the process before this one ended without notice and may have delivered this event.
        is_repeated: bool,
    },
    /// The guardrails of a call have passed and its start is in the journal; its body is about to run.
    CallStarted {
        /// The context of the call.
        ctx: ToolContext<C>,
        /// True if an earlier process had started the call before it ended.
        is_repeated: bool,
    },
    /// The body of a call reported progress. The last report before the end of the body is never lost.
    CallProgress {
        /// The context of the call.
        ctx: ToolContext<C>,
        /// The reported value.
        progress: Value,
    },
    /// A call that started has its output. There is exactly one for every [`HookEvent::CallStarted`] of this process, and
    /// one for a call that an earlier process started and this one found to have been executed.
    ///
    /// A process that ends without notice may have recorded the settlement of a call and not delivered this event. The
    /// next driver of a stored run delivers it again, marked by `is_repeated`, with the same `info.seq` to deduplicate
    /// by, and without secrets. It does so for the calls of a turn that was open then, and for no others.
    CallEnded {
        /// The context of the call.
        ctx: ToolContext<C>,
        /// The status of the call.
        status: CallStatus,
        /// The output that the model sees.
        output: OutputContent,
        /// The consequence for the run.
        after_call: AfterCall,
        /// The attempts, times and guardrail verdicts of the call.
        info: Arc<CallInfo>,
        /// True if the process before this one ended without notice and may have delivered this event.
        is_repeated: bool,
    },
}

/// The cost, origin and times of a model response.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelResponseInfo {
    /// Tokens and requests that the response cost.
    pub usage: Usage,
    /// The model that responded, as the provider names it.
    pub model: Option<String>,
    /// The provider's id of the response.
    pub response_id: Option<String>,
    /// The provider's id of the request, for support enquiries.
    pub request_id: Option<String>,
    /// Number of requests until the model responded.
    pub attempts: u32,
    /// Time at which the first request was sent.
    pub requested_at: Timestamp,
    /// Time at which the response was complete.
    pub responded_at: Timestamp,
    /// Facts about the response beside its items. A hook gets all of them; an event has those of the journal, which is the
    /// finish reason if it is another one than the end of the text or its calls.
    pub details: ResponseDetails,
}

impl ModelResponseInfo {
    pub(crate) fn of_response(
        response: &ModelResponse,
        attempts: u32,
        requested_at: Option<Timestamp>,
        responded_at: Timestamp,
    ) -> Self {
        Self {
            usage: response.usage.unwrap_or_else(Usage::of_unknown_request),
            model: response.model.clone(),
            response_id: response.response_id.clone(),
            request_id: response.request_id.clone(),
            attempts,
            requested_at: requested_at.unwrap_or(responded_at),
            responded_at,
            details: response.details.clone(),
        }
    }
}

/// The attempts, times and guardrail verdicts of a settled call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallInfo {
    /// Number of attempts of the body; 0 if it did not run.
    pub attempts: u32,
    /// Time at which the body started first; absent if it did not run.
    pub started_at: Option<Timestamp>,
    /// Time at which the call settled.
    pub settled_at: Timestamp,
    /// The verdicts of the tool's guardrails, in the order in which they ran.
    pub guardrails: Vec<GuardrailRecord>,
    /// True if the output of this event lacks secrets that the model receives.
    pub is_output_redacted: bool,
    /// Sequence number of the record of the settlement.
    pub seq: u64,
}

/// The consequence of the end of a tool call for its run. Hooks receive it and cannot change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterCall {
    /// The run continues after this call.
    RunContinues,
    /// The run ends: this call or another call of the turn failed it, or the turn was cancelled.
    RunEnds,
}

impl AfterCall {
    /// Returns the consequence of a call with this status in a run that ends or goes on.
    pub(crate) fn of_call(status: &CallStatus, is_run_ending: bool) -> Self {
        match is_run_ending || *status == CallStatus::Cancelled {
            true => Self::RunEnds,
            false => Self::RunContinues,
        }
    }
}

/// A callback for the lifecycle events of a run or an agent.
///
/// An error from an event that precedes an action prevents the action: an error from [`HookEvent::CallStarted`]
/// fails that call, and one from [`HookEvent::ModelRequestStarted`] fails the run. An error from an event that
/// follows an action does not undo it.
pub struct Hook<C = ()> {
    callback: Arc<dyn Fn(HookEvent<C>) -> BoxFuture<'static, Result<(), HookError>> + Send + Sync>,
}

impl<C> Hook<C> {
    /// Creates a hook from an async function.
    pub fn new<Fut>(on: impl Fn(HookEvent<C>) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Result<(), HookError>> + Send + 'static,
    {
        Self { callback: Arc::new(move |moment| on(moment).boxed()) }
    }

    /// Calls the hook and converts a panic to an error.
    pub(crate) async fn notify(&self, moment: HookEvent<C>) -> Result<(), HookError> {
        let told = AssertUnwindSafe(async { (self.callback)(moment).await }).catch_unwind().await;
        told.unwrap_or_else(|panic| Err(format!("it panicked: {}", panic_message(&*panic)).into()))
    }
}

impl<C> Clone for Hook<C> {
    fn clone(&self) -> Self {
        Self { callback: self.callback.clone() }
    }
}

impl<C> fmt::Debug for Hook<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

impl<C> HookEvent<C> {
    /// Returns the calls that lead to the nested agent of the event, outermost first; empty for the outermost run.
    pub fn parent_calls(&self) -> &[CallId] {
        match self {
            Self::AgentStarted { ctx }
            | Self::AgentEnded { ctx, .. }
            | Self::ModelRequestStarted { ctx, .. }
            | Self::ModelResponded { ctx, .. }
            | Self::HandedOff { ctx, .. } => ctx.parent_calls(),
            Self::CallStarted { ctx, .. } | Self::CallProgress { ctx, .. } | Self::CallEnded { ctx, .. } => {
                ctx.run_context().parent_calls()
            }
        }
    }

    /// Returns the name of the event, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::AgentStarted { .. } => "agent_started",
            Self::AgentEnded { .. } => "agent_ended",
            Self::ModelRequestStarted { .. } => "model_request_started",
            Self::ModelResponded { .. } => "model_responded",
            Self::HandedOff { .. } => "handed_off",
            Self::CallStarted { .. } => "call_started",
            Self::CallProgress { .. } => "call_progress",
            Self::CallEnded { .. } => "call_ended",
        }
    }
}

impl<C> Clone for HookEvent<C> {
    fn clone(&self) -> Self {
        match self {
            Self::AgentStarted { ctx } => Self::AgentStarted { ctx: ctx.clone() },
            Self::AgentEnded { ctx, output } => Self::AgentEnded { ctx: ctx.clone(), output: output.clone() },
            Self::ModelRequestStarted { ctx, turn } => {
                Self::ModelRequestStarted { ctx: ctx.clone(), turn: *turn }
            }
            Self::ModelResponded { ctx, items, info } => {
                Self::ModelResponded { ctx: ctx.clone(), items: items.clone(), info: info.clone() }
            }
            Self::HandedOff { ctx, to, seq, is_repeated } => {
                let (seq, is_repeated) = (*seq, *is_repeated);
                Self::HandedOff { ctx: ctx.clone(), to: to.clone(), seq, is_repeated }
            }
            Self::CallStarted { ctx, is_repeated } => {
                Self::CallStarted { ctx: ctx.clone(), is_repeated: *is_repeated }
            }
            Self::CallProgress { ctx, progress } => {
                Self::CallProgress { ctx: ctx.clone(), progress: progress.clone() }
            }
            Self::CallEnded { ctx, status, output, after_call, info, is_repeated } => Self::CallEnded {
                ctx: ctx.clone(),
                status: status.clone(),
                output: output.clone(),
                after_call: *after_call,
                info: info.clone(),
                is_repeated: *is_repeated,
            },
        }
    }
}

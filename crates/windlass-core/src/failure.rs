//! Why a run ended with an error, in a form that can be stored.

use serde::{Deserialize, Serialize};

use crate::id::CallId;
use crate::plan::Misbehaviour;

/// Why a run ended with an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Failure {
    /// It took all its turns.
    #[error("the run used all of its {max_turns} turns without a final answer")]
    TurnsExhausted {
        /// How many it had.
        max_turns: u32,
    },
    /// The model made the same calls again and again.
    #[error("the model made the same calls {times} times in a row")]
    LoopDetected {
        /// How often.
        times: u32,
    },
    /// The model did what no tool can answer.
    #[error("{0}")]
    Misbehaviour(Misbehaviour),
    /// The model could not be reached, or failed.
    #[error("the model failed: {message}")]
    Model {
        /// Its words.
        message: String,
    },
    /// The model declined to answer.
    #[error("the model refused to answer: {message}")]
    Refused {
        /// Its words.
        message: String,
    },
    /// The final answer does not fit the agent's output type.
    #[error("the final answer does not fit the output type: {message}")]
    InvalidOutput {
        /// What does not fit.
        message: String,
    },
    /// A tool failed, and its failures end the run.
    #[error("tool `{tool}` failed: {message}")]
    Tool {
        /// The tool.
        tool: String,
        /// The call.
        call: CallId,
        /// What went wrong.
        message: String,
    },
    /// A tool's arguments could not be used, and its failures end the run.
    #[error("the arguments for tool `{tool}` cannot be used: {problems}")]
    InvalidArguments {
        /// The tool.
        tool: String,
        /// The call.
        call: CallId,
        /// Every problem, by path.
        problems: String,
    },
    /// A tool took too long, and its timeouts end the run.
    #[error("tool `{tool}` timed out after {seconds} seconds")]
    ToolTimeout {
        /// The tool.
        tool: String,
        /// The call.
        call: CallId,
        /// How long it had, as text.
        seconds: String,
    },
    /// A call ended the run, and the driver that knew why was gone before it had said so.
    #[error("call `{call}` of tool `{tool}` ended the run: {message}")]
    EndedByCall {
        /// The tool.
        tool: String,
        /// The call.
        call: CallId,
        /// What the call's output says.
        message: String,
    },
    /// A guardrail of a tool's input ended the run.
    #[error("guardrail `{guardrail}` stopped the run at the input of tool `{tool}`")]
    ToolInputGuardrail {
        /// The guardrail.
        guardrail: String,
        /// The tool.
        tool: String,
        /// The call.
        call: CallId,
    },
    /// A guardrail of a tool's output ended the run.
    #[error("guardrail `{guardrail}` stopped the run at the output of tool `{tool}`")]
    ToolOutputGuardrail {
        /// The guardrail.
        guardrail: String,
        /// The tool.
        tool: String,
        /// The call.
        call: CallId,
    },
    /// A guardrail of the run's input tripped.
    #[error("guardrail `{guardrail}` refused the input")]
    InputGuardrail {
        /// The guardrail.
        guardrail: String,
    },
    /// A guardrail of the run's output tripped.
    #[error("guardrail `{guardrail}` refused the final output")]
    OutputGuardrail {
        /// The guardrail.
        guardrail: String,
    },
    /// A guardrail of the run could not do its work, which counts as a refusal.
    #[error("guardrail `{guardrail}` failed: {message}")]
    GuardrailFailed {
        /// The guardrail.
        guardrail: String,
        /// What went wrong.
        message: String,
    },
    /// A hook that must not fail did.
    #[error("hook `{hook}` failed: {message}")]
    Hook {
        /// Which hook.
        hook: String,
        /// What went wrong.
        message: String,
    },
    /// A handoff could not be carried out.
    #[error("the handoff to `{to}` failed: {message}")]
    Handoff {
        /// The agent that should have gone on.
        to: String,
        /// What went wrong.
        message: String,
    },
}

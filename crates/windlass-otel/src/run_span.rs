//! Spans as values, before they become spans of the `opentelemetry` crates.

use opentelemetry::{KeyValue, SpanId, TraceId};
use windlass::core::{
    canonical::Digest,
    id::{CallId, CallPath, RunId, Timestamp},
};

/// A completed span of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunSpan {
    /// Id of the trace: that of the outermost run.
    pub trace: TraceId,
    /// Id of the span.
    pub id: SpanId,
    /// The span around this one; absent for the outermost run.
    pub parent: Option<SpanId>,
    /// Kind of the span.
    pub kind: RunSpanKind,
    /// Name of the span.
    pub name: String,
    /// Time at which it started.
    pub started_at: Timestamp,
    /// Time at which it ended.
    pub ended_at: Timestamp,
    /// Its attributes.
    pub attributes: Vec<KeyValue>,
    /// Events within the span.
    pub events: Vec<RunSpanEvent>,
    /// Spans of other traces that it continues.
    pub links: Vec<RunSpanLink>,
    /// Its status.
    pub status: RunSpanStatus,
}

/// Kind of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RunSpanKind {
    /// A run, or the run of an agent inside a call.
    Agent,
    /// One model response and its calls.
    Turn,
    /// One request to a model.
    ModelRequest,
    /// The execution of a tool call, all attempts included.
    ToolCall,
    /// The wait of a call for a person.
    PersonWait,
    /// A guardrail of a tool.
    Guardrail,
    /// A handoff to another agent.
    Handoff,
}

impl RunSpanKind {
    /// Returns the name of the kind, as the attribute `windlass.span.kind` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Turn => "turn",
            Self::ModelRequest => "model_request",
            Self::ToolCall => "tool_call",
            Self::PersonWait => "person_wait",
            Self::Guardrail => "guardrail",
            Self::Handoff => "handoff",
        }
    }
}

/// An event within a span.
#[derive(Clone, Debug, PartialEq)]
pub struct RunSpanEvent {
    /// Name of the event.
    pub name: &'static str,
    /// Time of the event.
    pub at: Timestamp,
    /// Its attributes.
    pub attributes: Vec<KeyValue>,
}

/// A link to a span of another trace.
#[derive(Clone, Debug, PartialEq)]
pub struct RunSpanLink {
    /// Id of the other trace.
    pub trace: TraceId,
    /// Id of the span in it.
    pub span: SpanId,
    /// Attributes of the link.
    pub attributes: Vec<KeyValue>,
}

/// Status of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunSpanStatus {
    /// The work succeeded, or its success is not a matter of the span.
    Unset,
    /// The work failed, with this kind of failure. The text of the failure is content, and stays out.
    Error(String),
}

/// Returns the id of the trace of a run. It is a digest of the run's id, so every process finds the same.
pub fn trace_id_of_run(run: &RunId) -> TraceId {
    let digest = Digest::of_parts(&["windlass trace", run.as_str()]);
    TraceId::from_bytes(first_bytes(&digest))
}

/// The place of a span in its run, from which its id is derived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpanPlace<'a> {
    pub(crate) run: &'a RunId,
    pub(crate) kind: RunSpanKind,
    /// The calls that lead to the agent whose span it is.
    pub(crate) path: &'a [CallId],
    /// Number of the turn, from 1; 0 for the span of an agent.
    pub(crate) turn: u64,
    /// The call; empty for spans that belong to no call.
    pub(crate) call: &'a str,
    /// Distinguishes spans of one kind at one place.
    pub(crate) ordinal: u64,
}

impl<'a> SpanPlace<'a> {
    pub(crate) fn of_agent(run: &'a RunId, path: &'a [CallId]) -> Self {
        Self { run, kind: RunSpanKind::Agent, path, turn: 0, call: "", ordinal: 0 }
    }

    pub(crate) fn id(&self) -> SpanId {
        let path = match self.path {
            [] => String::new(),
            [within @ .., last] => CallPath::new(within, last.clone()).to_string(),
        };
        let (turn, ordinal) = (self.turn.to_string(), self.ordinal.to_string());
        let parts = ["windlass span", self.run.as_str(), self.kind.name(), &path, &turn, self.call, &ordinal];
        SpanId::from_bytes(first_bytes(&Digest::of_parts(&parts)))
    }
}

/// Returns the first bytes of a digest. OpenTelemetry forbids ids of zeros only, which a digest never is in practice.
fn first_bytes<const N: usize>(digest: &Digest) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&digest.as_bytes()[..N]);
    bytes
}

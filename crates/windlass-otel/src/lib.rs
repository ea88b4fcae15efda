//! OpenTelemetry traces of Windlass runs.
//!
//! Spans are derived from the journal. [`JournalSpans`] is a pure fold over its records, and the ids of spans are digests
//! of the run and their place in it. So a live trace and the trace of a journal that is exported later are the same, and
//! a run that moves between processes keeps one trace.
//!
//! - [`TracedStore`] wraps a store and sends the spans of its runs while they are written; [`TracedQueue`] does so for the
//!   queue of a worker or a server.
//! - [`export_run`] sends the spans of a stored run.
//! - [`OtlpSettings`] reads the `OTEL_*` variables; [`SpanSender`] takes any other exporter of the `opentelemetry` crates.
//!
//! Names of attributes follow the semantic conventions for generative AI, version 1.42.0 (`SEMANTIC_CONVENTIONS`).
//! Arguments, outputs and messages are left out unless [`TraceContent::Included`] is set.

mod attributes;
mod export;
mod journal_spans;
mod otlp;
mod run_span;
mod traced_queue;
mod traced_store;

pub use export::{ExportRunError, SpanSender, export_run};
pub use journal_spans::{JournalSpans, TraceContent};
pub use otlp::{OtlpSettings, OtlpSettingsError};
pub use run_span::{RunSpan, RunSpanEvent, RunSpanKind, RunSpanLink, RunSpanStatus, trace_id_of_run};
pub use traced_queue::TracedQueue;
pub use traced_store::TracedStore;

/// The version of OpenTelemetry's semantic conventions that names of attributes follow.
pub const SEMANTIC_CONVENTIONS: &str = "https://opentelemetry.io/schemas/1.42.0";

#[cfg(test)]
mod fuzz_tests;

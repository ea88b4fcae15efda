//! `windlass export --otlp`: sends the trace of a stored run to a collector.

use serde_json::json;
use windlass::core::id::RunId;
use windlass::store::Store;
use windlass_otel::{OtlpSettings, export_run};

use crate::cli_error::{CliError, CommandExit};
use crate::terminal::{OutputFormat, Terminal};

/// Sends the spans of a run. The ids of spans follow from the journal: a trace that was sent before stays one trace.
pub(super) async fn send_trace(
    store: &dyn Store,
    run: &RunId,
    address: Option<&str>,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let settings = match address {
        Some(address) => Some(OtlpSettings::new(address)),
        None => OtlpSettings::from_env().map_err(|error| CliError::usage(error.to_string()))?,
    };
    let settings = settings.ok_or_else(|| {
        CliError::usage("no collector is named")
            .with_hint("pass --otlp=http://localhost:4318/v1/traces, or set OTEL_EXPORTER_OTLP_ENDPOINT")
    })?;
    let sender = settings.connect().map_err(|error| CliError::new(error.to_string()))?;
    let count = export_run(store, run, &sender).await.map_err(|error| CliError::new(error.to_string()))?;
    match term.output_format() {
        OutputFormat::Json => term.print_json(&json!({ "type": "trace", "run": run, "spans": count })),
        OutputFormat::Text => term.eprint_line(format!("{count} spans of run {run} were sent")),
    }
    Ok(CommandExit::Success)
}

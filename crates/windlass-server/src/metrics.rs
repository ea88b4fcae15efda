//! Metrics in the text format of Prometheus: counters of what this server has driven, and gauges of its store.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use tokio::time::Instant;
use windlass::core::usage::Usage;
use windlass::event::{RunEvent, RunEventKind};
use windlass::fleet::{QueueFilter, QueuedState, RunQueue};
use windlass::store::{RunCursor, RunQuery, RunStatus, Store};

use crate::access::AccessRole;
use crate::api::{ApiError, RequestPerson};
use crate::lock_unpoisoned;
use crate::server::ServerState;

/// Upper limits of the classes of latencies, in seconds.
const LATENCY_LIMITS: [f64; 9] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];
/// Time for which the gauges of the store are kept: they are counted by listing its runs.
const GAUGE_INTERVAL: Duration = Duration::from_secs(15);
/// Number of runs in a page of a listing.
const PAGE_RUNS: u32 = 1_000;

/// The counters of this process.
#[derive(Default)]
pub(crate) struct ServerMetrics {
    counters: Mutex<MetricCounters>,
    gauges: tokio::sync::Mutex<Option<(Instant, StoreGauges)>>,
}

#[derive(Default)]
struct MetricCounters {
    /// Usage by model.
    models: BTreeMap<String, Usage>,
    /// Settled calls by tool status.
    calls: BTreeMap<String, u64>,
    model_retries: u64,
    budgets_reached: u64,
    model_latency: LatencyHistogram,
    call_latency: LatencyHistogram,
}

#[derive(Default)]
struct LatencyHistogram {
    classes: [u64; LATENCY_LIMITS.len()],
    count: u64,
    sum_ms: u64,
}

impl LatencyHistogram {
    fn observe(&mut self, ms: u64) {
        let seconds = ms as f64 / 1e3;
        for (class, limit) in self.classes.iter_mut().zip(LATENCY_LIMITS) {
            *class += u64::from(seconds <= limit);
        }
        self.count += 1;
        self.sum_ms = self.sum_ms.saturating_add(ms);
    }

    fn write(&self, text: &mut String, name: &str, help: &str) {
        head(text, name, "histogram", help);
        for (count, limit) in self.classes.iter().zip(LATENCY_LIMITS) {
            writeln!(text, "{name}_bucket{{le=\"{limit}\"}} {count}").ok();
        }
        writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {}", self.count).ok();
        writeln!(text, "{name}_sum {}", self.sum_ms as f64 / 1e3).ok();
        writeln!(text, "{name}_count {}", self.count).ok();
    }
}

/// The gauges of the store.
#[derive(Clone, Default)]
struct StoreGauges {
    runs: BTreeMap<&'static str, u64>,
    queue: BTreeMap<&'static str, u64>,
    workers: u64,
}

impl ServerMetrics {
    /// Counts an event of a run that this server drives.
    pub(crate) fn observe(&self, event: &RunEvent) {
        // An earlier driver may have counted it, or a later one counts it again.
        if event.is_repeated {
            return;
        }
        let mut counters = lock_unpoisoned(&self.counters);
        match &event.kind {
            RunEventKind::ModelResponded(info) => {
                let model = info.model.clone().unwrap_or_else(|| crate::spending::UNNAMED_MODEL.to_owned());
                counters.models.entry(model).or_default().add(&info.usage);
                counters.model_latency.observe(info.responded_at.0.saturating_sub(info.requested_at.0));
            }
            RunEventKind::CallSettled { status, info, .. } => {
                let name = serde_json::to_value(status).ok();
                let name = name.as_ref().and_then(|name| name.as_str()).unwrap_or("other").to_owned();
                *counters.calls.entry(name).or_default() += 1;
                if let Some(started) = info.started_at {
                    counters.call_latency.observe(info.settled_at.0.saturating_sub(started.0));
                }
            }
            RunEventKind::ModelRetryScheduled { .. } => {
                counters.model_retries += 1;
                // The request that failed. Its model is not known.
                let failed = counters.models.entry(crate::spending::UNNAMED_MODEL.to_owned()).or_default();
                failed.add(&Usage::of_unknown_request());
            }
            RunEventKind::BudgetReached { .. } => counters.budgets_reached += 1,
            _ => {}
        }
    }

    fn write_counters(&self, text: &mut String) {
        let counters = lock_unpoisoned(&self.counters);
        let MetricCounters { models, calls, model_retries, budgets_reached, .. } = &*counters;
        type Amount = fn(&Usage) -> f64;
        let by_model: [(&str, &str, Amount); 5] = [
            (
                "windlass_model_requests_total",
                "Model requests, failed ones that are repeated included.",
                |usage| usage.requests as f64,
            ),
            (
                "windlass_model_requests_of_unknown_cost_total",
                "Model requests whose cost is unknown.",
                |usage| usage.unpriced_requests() as f64,
            ),
            ("windlass_model_input_tokens_total", "Input tokens.", |usage| usage.input_tokens as f64),
            ("windlass_model_output_tokens_total", "Output tokens.", |usage| usage.output_tokens as f64),
            (
                "windlass_model_cost_total",
                "Cost in currency units, of the requests whose cost is known.",
                |usage| usage.cost(),
            ),
        ];
        for (name, help, amount) in by_model {
            head(text, name, "counter", help);
            for (model, usage) in models {
                writeln!(text, "{name}{{model=\"{}\"}} {}", label(model), amount(usage)).ok();
            }
        }
        head(text, "windlass_calls_total", "counter", "Settled tool calls by status.");
        for (status, count) in calls {
            writeln!(text, "windlass_calls_total{{status=\"{}\"}} {count}", label(status)).ok();
        }
        head(
            text,
            "windlass_model_retries_total",
            "counter",
            "Model requests that failed and were repeated.",
        );
        writeln!(text, "windlass_model_retries_total {model_retries}").ok();
        head(text, "windlass_budgets_reached_total", "counter", "Requests that a budget did not allow.");
        writeln!(text, "windlass_budgets_reached_total {budgets_reached}").ok();
        counters.model_latency.write(
            text,
            "windlass_model_seconds",
            "Time from a request to the model's response.",
        );
        counters.call_latency.write(
            text,
            "windlass_call_seconds",
            "Time from the start of a call to its settlement.",
        );
    }
}

impl StoreGauges {
    async fn read(state: &ServerState) -> Result<Self, ApiError> {
        let mut gauges = Self::default();
        for name in ["running", "paused", "finished", "failed", "cancelled"] {
            gauges.runs.insert(name, 0);
        }
        for name in ["ready", "waiting", "taken", "parked", "dead_letter"] {
            gauges.queue.insert(name, 0);
        }
        let mut query = RunQuery { limit: PAGE_RUNS, ..RunQuery::default() };
        loop {
            let page = state.queue.list_runs(&query).await?;
            for stored in &page {
                let name = match stored.status {
                    RunStatus::Running => "running",
                    RunStatus::Paused => "paused",
                    RunStatus::Finished => "finished",
                    RunStatus::Failed => "failed",
                    RunStatus::Cancelled => "cancelled",
                };
                *gauges.runs.entry(name).or_default() += 1;
            }
            query.after = page.last().map(RunCursor::from);
            if page.len() < PAGE_RUNS as usize {
                break;
            }
        }
        let mut after = None;
        loop {
            let page = state.queue.list_queued_runs(QueueFilter::Open, after.as_ref(), PAGE_RUNS).await?;
            for queued in &page {
                let name = match &queued.state {
                    QueuedState::Ready => "ready",
                    QueuedState::Waiting { .. } => "waiting",
                    QueuedState::Taken { .. } => "taken",
                    QueuedState::Parked { .. } => "parked",
                    QueuedState::DeadLetter => "dead_letter",
                    QueuedState::Ended => continue,
                };
                *gauges.queue.entry(name).or_default() += 1;
            }
            after = page.last().map(|last| last.submission.run.clone());
            if page.len() < PAGE_RUNS as usize {
                break;
            }
        }
        gauges.workers = state.queue.list_workers().await?.len() as u64;
        Ok(gauges)
    }

    fn write(&self, text: &mut String) {
        for (name, help, label, counts) in [
            ("windlass_runs", "Stored runs by state.", "state", &self.runs),
            ("windlass_queue_runs", "Runs in the queue by state.", "state", &self.queue),
        ] {
            head(text, name, "gauge", help);
            for (state, count) in counts {
                writeln!(text, "{name}{{{label}=\"{state}\"}} {count}").ok();
            }
        }
        head(text, "windlass_workers", "gauge", "Registered workers.");
        writeln!(text, "windlass_workers {}", self.workers).ok();
    }
}

/// Answers a scrape. The person may view every agent.
pub(crate) async fn show_metrics(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
) -> Result<impl IntoResponse, ApiError> {
    if !person.may_everywhere(AccessRole::View) {
        return Err(ApiError::forbidden("missing_right", "you lack the right `view` for every agent"));
    }
    let mut kept = state.metrics.gauges.lock().await;
    let gauges = match kept.as_ref().filter(|(read_at, _)| read_at.elapsed() < GAUGE_INTERVAL) {
        Some((_, gauges)) => gauges.clone(),
        None => {
            let gauges = StoreGauges::read(&state).await?;
            *kept = Some((Instant::now(), gauges.clone()));
            gauges
        }
    };
    drop(kept);
    let mut text = String::new();
    gauges.write(&mut text);
    state.metrics.write_counters(&mut text);
    let (waiting, _) = state.inbox_page(&person, 0, 0).await?;
    head(&mut text, "windlass_inbox_calls", "gauge", "Calls that wait for a person.");
    writeln!(text, "windlass_inbox_calls {waiting}").ok();
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text))
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    writeln!(text, "# HELP {name} {help}").ok();
    writeln!(text, "# TYPE {name} {kind}").ok();
}

/// Escapes the value of a label.
fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_request_counts_once_however_often_its_event_is_delivered() {
        let metrics = ServerMetrics::default();
        for is_repeated in [false, true, true] {
            let kind =
                RunEventKind::ModelRetryScheduled { error: "away".to_owned(), delay: Duration::from_secs(1) };
            metrics.observe(&RunEvent { seq: 1, path: Vec::new(), is_repeated, kind });
        }
        let mut text = String::new();
        metrics.write_counters(&mut text);
        for line in [
            "windlass_model_requests_total{model=\"unnamed\"} 1",
            "windlass_model_requests_of_unknown_cost_total{model=\"unnamed\"} 1",
            "windlass_model_retries_total 1",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
    }
}

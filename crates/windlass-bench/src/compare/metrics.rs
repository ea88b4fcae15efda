//! The compared metrics, and the measured rows from which they are computed.

use std::collections::BTreeMap;

use serde_json::Value;

/// A metric: a field of a case's rows, with its unit.
pub(super) struct ComparedMetric {
    pub(super) label: &'static str,
    pub(super) case_id: &'static str,
    row_key: &'static str,
    scale: f64,
    pub(super) direction: MetricDirection,
}

/// The direction in which a metric is better.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MetricDirection {
    LowerIsBetter,
    HigherIsBetter,
}

const fn lower_is_better(
    what: &'static str,
    case: &'static str,
    key: &'static str,
    scale: f64,
) -> ComparedMetric {
    ComparedMetric {
        label: what,
        case_id: case,
        row_key: key,
        scale,
        direction: MetricDirection::LowerIsBetter,
    }
}

const fn higher_is_better(
    what: &'static str,
    case: &'static str,
    key: &'static str,
    scale: f64,
) -> ComparedMetric {
    ComparedMetric {
        label: what,
        case_id: case,
        row_key: key,
        scale,
        direction: MetricDirection::HigherIsBetter,
    }
}

pub(super) const METRICS: [ComparedMetric; 17] = [
    lower_is_better("a turn with one call, run of 10 turns (CPU µs)", "W1.T10", "cpu_us_per_turn", 1.0),
    lower_is_better("a turn with one call, run of 400 turns (CPU µs)", "W1.T400", "cpu_us_per_turn", 1.0),
    lower_is_better("a no-op call of 1,000 in a turn (CPU µs)", "W2.noop.K1000", "cpu_us_per_call", 1.0),
    lower_is_better("a no-op call of 10,000 in a turn (CPU µs)", "W2.noop.K10000", "cpu_us_per_call", 1.0),
    lower_is_better("10,000 calls that sleep 10 ms (wall ms)", "W2.sleep.K10000", "wall_s", 1e3),
    higher_is_better("1,000 runs at once (runs/s)", "W3.R1000", "runs_per_s", 1.0),
    higher_is_better("10,000 runs at once (runs/s)", "W3.R10000", "runs_per_s", 1.0),
    lower_is_better("10,000 runs at once (CPU µs each)", "W3.R10000", "cpu_us_per_run", 1.0),
    lower_is_better("a run in flight, of 10,000 (KiB)", "W3M.R10000", "kb_per_parked_run", 1.0),
    lower_is_better("write, read and resume 1,000 items (CPU ms)", "W4.N1000", "cycle_cpu_s", 1e3),
    lower_is_better("a paused run of 1,000 items (KiB)", "W4.N1000", "bytes", 1.0 / 1024.0),
    lower_is_better("Responses, plain (CPU ms a run)", "W5.responses.plain", "cpu_ms_per_run", 1.0),
    lower_is_better("Responses, 2,000 events (CPU ms a run)", "W5.responses.stream", "cpu_ms_per_run", 1.0),
    lower_is_better("Chat Completions, 2,000 events (CPU ms a run)", "W5.chat.stream", "cpu_ms_per_run", 1.0),
    lower_is_better("process start to first tool (ms)", "W6.cold", "ms_to_tool", 1.0),
    lower_is_better("arguments of 20 fields, checked (CPU µs)", "W7", "us_validate_cpu", 1.0),
    lower_is_better("arguments of 20 fields, read into a struct (CPU µs)", "W7", "us_serde_typed_cpu", 1.0),
];

/// Returns the ids of the cases that the metrics need.
pub(super) fn case_ids() -> Vec<String> {
    let mut cases: Vec<String> = METRICS.iter().map(|figure| figure.case_id.to_owned()).collect();
    cases.dedup();
    cases
}

/// The measured rows by case and peer.
#[derive(Default)]
pub(super) struct MeasuredRows {
    by_case_and_peer: BTreeMap<(String, String), Vec<Value>>,
}

impl MeasuredRows {
    pub(super) fn add(&mut self, row: Value) {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        self.by_case_and_peer.entry((text("case"), text("peer"))).or_default().push(row);
    }

    /// Returns the peers: Windlass first, then the references without a library, then the others by name.
    pub(super) fn peers(&self) -> Vec<String> {
        let rank = |name: &str| match name {
            name if name.starts_with("windlass") => 0,
            name if name.starts_with("rust-ref") => 1,
            _ => 2,
        };
        let mut peers: Vec<String> = self.by_case_and_peer.keys().map(|(_, peer)| peer.clone()).collect();
        peers.sort_by_key(|name| (rank(name), name.clone()));
        peers.dedup();
        peers
    }

    pub(super) fn version(&self, peer: &str) -> Option<&str> {
        let of_peer = self.by_case_and_peer.iter().filter(|((_, name), _)| name == peer);
        of_peer.flat_map(|(_, rows)| rows).find_map(|row| row["version"].as_str())
    }

    /// Returns the median of a metric in its unit.
    pub(super) fn median(&self, figure: &ComparedMetric, peer: &str) -> Option<f64> {
        let rows = self.by_case_and_peer.get(&(figure.case_id.to_owned(), peer.to_owned()))?;
        let mut values: Vec<f64> = rows.iter().filter_map(|row| row[figure.row_key].as_f64()).collect();
        values.sort_by(f64::total_cmp);
        Some(values.get(values.len() / 2)? * figure.scale)
    }

    /// Returns the error because of which a metric is missing, if there is one.
    pub(super) fn error_text(&self, figure: &ComparedMetric, peer: &str) -> Option<&str> {
        let rows = self.by_case_and_peer.get(&(figure.case_id.to_owned(), peer.to_owned()))?;
        rows.iter().find_map(|row| row["error"].as_str())
    }

    /// Returns the factor by which Windlass is better than the peer; above 1 Windlass is ahead.
    pub(super) fn advantage_ratio(&self, figure: &ComparedMetric, peer: &str) -> Option<f64> {
        let (own, other) = (self.median(figure, "windlass")?, self.median(figure, peer)?);
        let ratio = match figure.direction {
            MetricDirection::LowerIsBetter => other / own,
            MetricDirection::HigherIsBetter => own / other,
        };
        ratio.is_finite().then_some(ratio)
    }
}

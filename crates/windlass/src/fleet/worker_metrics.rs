//! Metrics of a worker: its segments, its runs and its errors, for monitoring.

use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::segment::SegmentEnd;
use super::worker::WorkerReport;
use crate::lock_unpoisoned;

/// The metrics of a worker while it works. Clones show the same worker.
#[derive(Clone, Debug, Default)]
pub struct WorkerMetrics {
    values: Arc<Mutex<WorkerSnapshot>>,
}

/// The metrics of a worker at one moment. Counters count from the creation of the worker.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct WorkerSnapshot {
    /// Name under which the worker is registered in the queue; empty before it works. A worker that was retired goes on under
    /// a new name.
    pub name: String,
    /// Number of runs that the worker may drive at a time.
    pub capacity: usize,
    /// Number of runs that it drives.
    pub active: usize,
    /// Segments by their end.
    pub segments: WorkerReport,
    /// Time that the ended segments have taken in total.
    pub segment_time: Duration,
    /// Number of runs that the worker has taken.
    pub taken: u64,
    /// Number of requests for work that failed.
    pub failed_requests: u64,
    /// Number of times that other workers have retired this one, or that it could not renew its lease in time.
    pub retirements: u64,
}

impl WorkerMetrics {
    /// Returns the metrics of this moment.
    pub fn snapshot(&self) -> WorkerSnapshot {
        lock_unpoisoned(&self.values).clone()
    }

    pub(super) fn note_start(&self, name: &str, capacity: usize) {
        let mut values = lock_unpoisoned(&self.values);
        (values.name, values.capacity) = (name.to_owned(), capacity);
    }

    pub(super) fn note_taken(&self, runs: usize) {
        let mut values = lock_unpoisoned(&self.values);
        values.active += runs;
        values.taken += runs as u64;
    }

    pub(super) fn note_segment(&self, end: SegmentEnd, lasted: Duration) {
        let mut values = lock_unpoisoned(&self.values);
        values.active = values.active.saturating_sub(1);
        values.segments.count(end);
        values.segment_time += lasted;
    }

    pub(super) fn note_failed_request(&self) {
        lock_unpoisoned(&self.values).failed_requests += 1;
    }

    pub(super) fn note_retirement(&self) {
        lock_unpoisoned(&self.values).retirements += 1;
    }
}

impl WorkerSnapshot {
    /// Returns the metrics in the text format of Prometheus.
    pub fn to_prometheus(&self) -> String {
        let WorkerReport { ended, parked, left, failed, declined, busy, lost } = self.segments;
        let mut text = String::new();
        let mut add = |name: &str, kind: &str, help: &str, samples: &[(String, f64)]| {
            // Writing to a string cannot fail.
            let _ =
                writeln!(text, "# HELP windlass_worker_{name} {help}\n# TYPE windlass_worker_{name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(text, "windlass_worker_{name}{labels} {value}");
            }
        };
        let one = |value: f64| [(String::new(), value)];
        let ends = [
            ("ended", ended),
            ("parked", parked),
            ("left", left),
            ("failed", failed),
            ("declined", declined),
            ("busy", busy),
            ("lost", lost),
        ];
        let ends = ends.map(|(end, count)| (format!("{{end=\"{end}\"}}"), count as f64));
        add(
            "capacity_runs",
            "gauge",
            "Runs that the worker may drive at a time.",
            &one(self.capacity as f64),
        );
        add("active_runs", "gauge", "Runs that the worker drives.", &one(self.active as f64));
        add("segments_total", "counter", "Segments by their end.", &ends);
        let seconds = self.segment_time.as_secs_f64();
        add("segment_seconds_total", "counter", "Time that ended segments have taken.", &one(seconds));
        add("taken_runs_total", "counter", "Runs that the worker has taken.", &one(self.taken as f64));
        let failed = self.failed_requests as f64;
        add("failed_requests_total", "counter", "Requests for work that failed.", &one(failed));
        let retirements = self.retirements as f64;
        add("retirements_total", "counter", "Times that the worker lost its lease.", &one(retirements));
        text
    }
}

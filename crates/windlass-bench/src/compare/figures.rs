//! The figures that are compared, and the rows that they come from.

use std::collections::BTreeMap;

use serde_json::Value;

/// One figure.
pub(super) struct Figure {
    pub(super) what: &'static str,
    pub(super) case: &'static str,
    key: &'static str,
    scale: f64,
    pub(super) better: Better,
}

/// Which way is better.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Better {
    Less,
    More,
}

const fn less(what: &'static str, case: &'static str, key: &'static str, scale: f64) -> Figure {
    Figure { what, case, key, scale, better: Better::Less }
}

const fn more(what: &'static str, case: &'static str, key: &'static str, scale: f64) -> Figure {
    Figure { what, case, key, scale, better: Better::More }
}

pub(super) const FIGURES: [Figure; 17] = [
    less("a turn with one call, run of 10 turns (CPU µs)", "W1.T10", "cpu_us_per_turn", 1.0),
    less("a turn with one call, run of 400 turns (CPU µs)", "W1.T400", "cpu_us_per_turn", 1.0),
    less("a no-op call of 1,000 in a turn (CPU µs)", "W2.noop.K1000", "cpu_us_per_call", 1.0),
    less("a no-op call of 10,000 in a turn (CPU µs)", "W2.noop.K10000", "cpu_us_per_call", 1.0),
    less("10,000 calls that sleep 10 ms (wall ms)", "W2.sleep.K10000", "wall_s", 1e3),
    more("1,000 runs at once (runs/s)", "W3.R1000", "runs_per_s", 1.0),
    more("10,000 runs at once (runs/s)", "W3.R10000", "runs_per_s", 1.0),
    less("10,000 runs at once (CPU µs each)", "W3.R10000", "cpu_us_per_run", 1.0),
    less("a run in flight, of 10,000 (KiB)", "W3M.R10000", "kb_per_parked_run", 1.0),
    less("write, read and resume 1,000 items (CPU ms)", "W4.N1000", "cycle_cpu_s", 1e3),
    less("a paused run of 1,000 items (KiB)", "W4.N1000", "bytes", 1.0 / 1024.0),
    less("Responses, plain (CPU ms a run)", "W5.responses.plain", "cpu_ms_per_run", 1.0),
    less("Responses, 2,000 events (CPU ms a run)", "W5.responses.stream", "cpu_ms_per_run", 1.0),
    less("Chat Completions, 2,000 events (CPU ms a run)", "W5.chat.stream", "cpu_ms_per_run", 1.0),
    less("process start to first tool (ms)", "W6.cold", "ms_to_tool", 1.0),
    less("arguments of 20 fields, checked (CPU µs)", "W7", "us_validate_cpu", 1.0),
    less("arguments of 20 fields, read into a struct (CPU µs)", "W7", "us_serde_typed_cpu", 1.0),
];

/// The cases that the figures need.
pub(super) fn cases() -> Vec<String> {
    let mut cases: Vec<String> = FIGURES.iter().map(|figure| figure.case.to_owned()).collect();
    cases.dedup();
    cases
}

/// What was measured, by case and peer.
#[derive(Default)]
pub(super) struct Rows {
    rows: BTreeMap<(String, String), Vec<Value>>,
}

impl Rows {
    pub(super) fn add(&mut self, row: Value) {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        self.rows.entry((text("case"), text("peer"))).or_default().push(row);
    }

    /// The peers, Windlass first, then those without a library, then the others by name.
    pub(super) fn peers(&self) -> Vec<String> {
        let rank = |name: &str| match name {
            name if name.starts_with("windlass") => 0,
            name if name.starts_with("rust-ref") => 1,
            _ => 2,
        };
        let mut peers: Vec<String> = self.rows.keys().map(|(_, peer)| peer.clone()).collect();
        peers.sort_by_key(|name| (rank(name), name.clone()));
        peers.dedup();
        peers
    }

    pub(super) fn version(&self, peer: &str) -> Option<&str> {
        let of_peer = self.rows.iter().filter(|((_, name), _)| name == peer);
        of_peer.flat_map(|(_, rows)| rows).find_map(|row| row["version"].as_str())
    }

    /// The median of a figure, in its unit.
    pub(super) fn median(&self, figure: &Figure, peer: &str) -> Option<f64> {
        let rows = self.rows.get(&(figure.case.to_owned(), peer.to_owned()))?;
        let mut values: Vec<f64> = rows.iter().filter_map(|row| row[figure.key].as_f64()).collect();
        values.sort_by(f64::total_cmp);
        Some(values.get(values.len() / 2)? * figure.scale)
    }

    /// Why there is no figure.
    pub(super) fn missing(&self, figure: &Figure, peer: &str) -> Option<&str> {
        let rows = self.rows.get(&(figure.case.to_owned(), peer.to_owned()))?;
        rows.iter().find_map(|row| row["error"].as_str())
    }

    /// How many times better Windlass is: above 1, it is ahead.
    pub(super) fn ratio(&self, figure: &Figure, peer: &str) -> Option<f64> {
        let (own, other) = (self.median(figure, "windlass")?, self.median(figure, peer)?);
        let ratio = match figure.better {
            Better::Less => other / own,
            Better::More => own / other,
        };
        ratio.is_finite().then_some(ratio)
    }
}

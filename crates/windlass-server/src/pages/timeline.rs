//! The timeline of a page of rows: a bar for each model request and each part of a call.
//!
//! The axis is compressed: the width between two moments grows with the square root of the time between them, so that a
//! wait of a day and a call of a millisecond are read side by side. Durations are written beside the bars.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::markup::{duration, line, number};
use super::run_rows::{RowKind, RowTone, RunRow, SpanKind};
use crate::server::wall_clock_now;

/// Width of a lane in the units of its view box.
const LANE_UNITS: f64 = 1_000.0;
/// Smallest width of a bar.
const MIN_BAR: f64 = 4.0;

/// A compressed axis of time.
struct TimeAxis {
    places: BTreeMap<u64, f64>,
}

impl TimeAxis {
    fn new(mut moments: Vec<u64>) -> Self {
        moments.sort_unstable();
        moments.dedup();
        let width = |pair: &[u64]| (pair[1].saturating_sub(pair[0]) as f64 + 4.0).sqrt();
        let total: f64 = moments.windows(2).map(width).sum();
        let mut place = 0.0;
        let mut places = BTreeMap::new();
        for (at, moment) in moments.iter().enumerate() {
            if at > 0 {
                place += width(&moments[at - 1..=at]);
            }
            places.insert(*moment, if total > 0.0 { place / total * LANE_UNITS } else { 0.0 });
        }
        Self { places }
    }

    fn place(&self, moment: u64) -> f64 {
        self.places.range(..=moment).next_back().map_or(0.0, |(_, place)| *place)
    }
}

/// A bar of a lane.
struct LaneBar {
    from: u64,
    to: u64,
    class: &'static str,
}

/// Renders the timeline of rows. `base` is the address of the run; `is_now` says that open bars last until now. Those of an
/// earlier record last until the latest moment that the rows know of.
pub(super) fn timeline(rows: &[RunRow], base: &str, is_now: bool) -> Markup {
    let now = wall_clock_now().0;
    let last = if is_now { now } else { rows.iter().map(latest_moment).max().unwrap_or(now) };
    let bars: Vec<Vec<LaneBar>> = rows.iter().map(|row| bars_of(row, last.max(row.at))).collect();
    let mut moments: Vec<u64> = rows.iter().map(|row| row.at).collect();
    moments.extend(bars.iter().flatten().flat_map(|bar| [bar.from, bar.to]));
    let axis = TimeAxis::new(moments);
    html! {
        ol.timeline aria-label="Timeline" {
            @for (row, bars) in rows.iter().zip(&bars) { (timeline_row(row, bars, &axis, base)) }
        }
        p.legend aria-hidden="true" {
            span.key.model { "model" } span.key.good { "call" } span.key.waiting { "waits for a person" }
            span.key.guard { "guardrails" } span.key.bad { "failed" }
            span.dim { "long times are compressed" }
        }
    }
}

/// Returns the latest moment of a row.
fn latest_moment(row: &RunRow) -> u64 {
    let spans = match &row.kind {
        RowKind::Call(call) => call.spans.as_slice(),
        _ => &[],
    };
    spans.iter().map(|span| span.to.unwrap_or(span.from)).fold(row.at, u64::max)
}

fn bars_of(row: &RunRow, open_end: u64) -> Vec<LaneBar> {
    match &row.kind {
        RowKind::Turn(turn) => vec![LaneBar { from: turn.requested_at, to: row.at, class: "model" }],
        RowKind::Call(call) => {
            let tone = call.tone();
            let mut bars: Vec<LaneBar> = call
                .spans
                .iter()
                .map(|span| LaneBar {
                    from: span.from,
                    to: span.to.unwrap_or(open_end),
                    class: match (span.kind, tone) {
                        (SpanKind::Waiting, _) => "waiting",
                        (SpanKind::Guarded, _) => "guard",
                        (SpanKind::Running, RowTone::Bad) => "bad",
                        (SpanKind::Running, _) if call.is_agent => "agent",
                        (SpanKind::Running, _) => "good",
                    },
                })
                .collect();
            if bars.is_empty() {
                bars.push(LaneBar {
                    from: row.at,
                    to: row.at,
                    class: if tone == RowTone::Bad { "bad" } else { "quiet" },
                });
            }
            bars
        }
        RowKind::ModelFailure { .. } => vec![LaneBar { from: row.at, to: row.at, class: "bad" }],
        RowKind::End { tone, .. } => vec![LaneBar { from: row.at, to: row.at, class: tone.class() }],
        RowKind::Start { .. } | RowKind::Input { .. } | RowKind::Handoff { .. } | RowKind::Note { .. } => {
            Vec::new()
        }
    }
}

fn timeline_row(row: &RunRow, bars: &[LaneBar], axis: &TimeAxis, base: &str) -> Markup {
    let (name, note): (Markup, String) = match &row.kind {
        RowKind::Start { origin, .. } => (
            html! { b { (line(row.agent.as_str())) } " starts" },
            origin.as_ref().map(|(run, seq)| format!("fork of {run} at record {seq}")).unwrap_or_default(),
        ),
        RowKind::Turn(turn) => {
            let spent = duration(row.at.saturating_sub(turn.requested_at));
            let tokens = match turn.usage.unknown_requests {
                0 => format!(
                    "{} in, {} out",
                    number(turn.usage.input_tokens),
                    number(turn.usage.output_tokens)
                ),
                _ => "tokens unknown".to_owned(),
            };
            let tries =
                if turn.attempts > 1 { format!(" · {} requests", turn.attempts) } else { String::new() };
            let model = turn.model.as_deref().unwrap_or("model");
            (html! { span.turn { (turn.number) } (line(model)) }, format!("{spent} · {tokens}{tries}"))
        }
        RowKind::Call(call) => {
            let from = call.spans.first().map(|span| span.from);
            let to = call.spans.last().and_then(|span| span.to);
            let spent = match (from, to) {
                (Some(from), Some(to)) => format!("{} · ", duration(to.saturating_sub(from))),
                _ => String::new(),
            };
            let tries =
                if call.attempts > 1 { format!(" · {} attempts", call.attempts) } else { String::new() };
            let guards = if call.has_guardrail_verdict() { " · guardrail" } else { "" };
            let anchor = format!("#call-{}", row.seq_anchor());
            (
                html! { a href=(anchor) { (line(&call.tool)) } @if call.is_agent { span.dim { " agent" } } },
                format!("{spent}{}{tries}{guards}", call.status_text()),
            )
        }
        RowKind::ModelFailure { error, retry_after_ms } => (
            html! { "request failed" },
            match retry_after_ms {
                Some(ms) => format!("again after {} · {}", duration(*ms), shorten(error)),
                None => shorten(error),
            },
        ),
        RowKind::Input { .. } => (html! { "more input" }, String::new()),
        RowKind::Handoff { to } => (html! { "→ " b { (line(to.as_str())) } }, "handoff".to_owned()),
        RowKind::Note { text } => (html! { (text) }, String::new()),
        RowKind::End { text, .. } => (html! { b { "ends" } }, shorten(text)),
    };
    html! {
        li class={ "row " (row.tone().class()) } data-depth=(row.depth.min(6)) {
            span.name { (name) }
            svg.lane viewBox="0 0 1000 20" preserveAspectRatio="none" aria-hidden="true" focusable="false" {
                @for bar in bars {
                    @let from = axis.place(bar.from);
                    @let width = (axis.place(bar.to) - from).max(MIN_BAR).min((LANE_UNITS - from).max(MIN_BAR));
                    rect class=(bar.class) x=(format!("{:.1}", from.min(LANE_UNITS - MIN_BAR))) y="5" width=(format!("{width:.1}")) height="10" rx="2" {}
                }
            }
            span.note { (line(&note)) }
            a.seq href={ (base) "?at=" (row.seq) } title={ "The run at record " (row.seq) } { (row.seq) }
        }
    }
}

fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(70).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

//! The chart of each peer's ratio to Windlass, for each metric, on a logarithmic scale.

use std::fmt::Write;

use super::metrics::{METRICS, MeasuredRows};
use super::table::format_number;

const LABEL_WIDTH: f64 = 360.0;
const PLOT_WIDTH: f64 = 560.0;
const ROW_HEIGHT: f64 = 26.0;
/// The lowest and highest power of ten on the scale.
const MIN_POWER: f64 = -2.0;
const MAX_POWER: f64 = 4.0;
const COLOURS: [&str; 8] =
    ["#6b7280", "#b45309", "#0f766e", "#7c3aed", "#be123c", "#1d4ed8", "#4d7c0f", "#a21caf"];

/// Renders the chart as SVG. Windlass is ahead right of the line.
pub(super) fn render_chart(rows: &MeasuredRows) -> String {
    let peers: Vec<String> = rows.peers().into_iter().filter(|peer| is_drawn(peer)).collect();
    let shown: Vec<_> = METRICS
        .iter()
        .filter(|figure| peers.iter().any(|peer| rows.advantage_ratio(figure, peer).is_some()))
        .collect();
    let bottom = 40.0 + ROW_HEIGHT * shown.len() as f64;
    let height = bottom + 50.0 + 18.0 * (peers.len() as f64 / 4.0).ceil();
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        LABEL_WIDTH + PLOT_WIDTH + 30.0
    );
    let mut add = |line: String| {
        let _infallible = writeln!(out, "{line}");
    };
    for power in MIN_POWER as i32..=MAX_POWER as i32 {
        let x = x_of_ratio(10f64.powi(power));
        let colour = if power == 0 { "#111827" } else { "#e5e7eb" };
        add(format!("<line x1=\"{x}\" y1=\"24\" x2=\"{x}\" y2=\"{bottom}\" stroke=\"{colour}\"/>"));
        let label = if power == 0 {
            "Windlass".to_owned()
        } else {
            format!("{}×", format_number(10f64.powi(power)))
        };
        add(format!("<text x=\"{x}\" y=\"16\" text-anchor=\"middle\">{label}</text>"));
    }
    for (at, figure) in shown.iter().enumerate() {
        let y = 40.0 + ROW_HEIGHT * at as f64;
        add(format!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            LABEL_WIDTH - 10.0,
            y + 4.0,
            figure.label
        ));
        for (peer, colour) in peers.iter().zip(COLOURS.iter().cycle()) {
            if let Some(ratio) = rows.advantage_ratio(figure, peer) {
                let title = format!("{peer}: {}×", format_number(ratio));
                add(format!(
                    "<circle cx=\"{}\" cy=\"{y}\" r=\"5\" fill=\"{colour}\"><title>{title}</title></circle>",
                    x_of_ratio(ratio)
                ));
            }
        }
    }
    for (at, (peer, colour)) in peers.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let (x, y) = (LABEL_WIDTH + 140.0 * (at % 4) as f64, bottom + 24.0 + 18.0 * (at / 4) as f64);
        add(format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"5\" fill=\"{colour}\"/>"));
        add(format!("<text x=\"{}\" y=\"{}\">{peer}</text>", x + 10.0, y + 4.0));
    }
    out.push_str("</svg>\n");
    out
}

fn is_drawn(peer: &str) -> bool {
    !peer.starts_with("windlass") && !peer.ends_with("-1t")
}

fn x_of_ratio(ratio: f64) -> f64 {
    LABEL_WIDTH
        + PLOT_WIDTH * (ratio.log10().clamp(MIN_POWER, MAX_POWER) - MIN_POWER) / (MAX_POWER - MIN_POWER)
}

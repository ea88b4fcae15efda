//! The chart: how far each peer is from Windlass, figure by figure, on a scale of powers of ten.

use std::fmt::Write;

use super::figures::{FIGURES, Rows};
use super::table::number;

const LEFT: f64 = 360.0;
const WIDTH: f64 = 560.0;
const ROW: f64 = 26.0;
/// The powers of ten that are shown.
const FROM: f64 = -2.0;
const TO: f64 = 4.0;
const COLOURS: [&str; 8] =
    ["#6b7280", "#b45309", "#0f766e", "#7c3aed", "#be123c", "#1d4ed8", "#4d7c0f", "#a21caf"];

/// The chart as SVG. Right of the line Windlass is ahead.
pub(super) fn drawn(rows: &Rows) -> String {
    let peers: Vec<String> = rows.peers().into_iter().filter(|peer| is_drawn(peer)).collect();
    let shown: Vec<_> =
        FIGURES.iter().filter(|figure| peers.iter().any(|peer| rows.ratio(figure, peer).is_some())).collect();
    let bottom = 40.0 + ROW * shown.len() as f64;
    let height = bottom + 50.0 + 18.0 * (peers.len() as f64 / 4.0).ceil();
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        LEFT + WIDTH + 30.0
    );
    let mut add = |line: String| {
        let _infallible = writeln!(out, "{line}");
    };
    for power in FROM as i32..=TO as i32 {
        let x = place(10f64.powi(power));
        let colour = if power == 0 { "#111827" } else { "#e5e7eb" };
        add(format!("<line x1=\"{x}\" y1=\"24\" x2=\"{x}\" y2=\"{bottom}\" stroke=\"{colour}\"/>"));
        let label =
            if power == 0 { "Windlass".to_owned() } else { format!("{}×", number(10f64.powi(power))) };
        add(format!("<text x=\"{x}\" y=\"16\" text-anchor=\"middle\">{label}</text>"));
    }
    for (at, figure) in shown.iter().enumerate() {
        let y = 40.0 + ROW * at as f64;
        add(format!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            LEFT - 10.0,
            y + 4.0,
            figure.what
        ));
        for (peer, colour) in peers.iter().zip(COLOURS.iter().cycle()) {
            if let Some(ratio) = rows.ratio(figure, peer) {
                let title = format!("{peer}: {}×", number(ratio));
                add(format!(
                    "<circle cx=\"{}\" cy=\"{y}\" r=\"5\" fill=\"{colour}\"><title>{title}</title></circle>",
                    place(ratio)
                ));
            }
        }
    }
    for (at, (peer, colour)) in peers.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let (x, y) = (LEFT + 140.0 * (at % 4) as f64, bottom + 24.0 + 18.0 * (at / 4) as f64);
        add(format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"5\" fill=\"{colour}\"/>"));
        add(format!("<text x=\"{}\" y=\"{}\">{peer}</text>", x + 10.0, y + 4.0));
    }
    out.push_str("</svg>\n");
    out
}

fn is_drawn(peer: &str) -> bool {
    !peer.starts_with("windlass") && !peer.ends_with("-1t")
}

fn place(ratio: f64) -> f64 {
    LEFT + WIDTH * (ratio.log10().clamp(FROM, TO) - FROM) / (TO - FROM)
}

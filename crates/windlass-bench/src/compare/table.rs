//! The table of metrics and ratios, written between two marks in the benchmarks page.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use super::chart;
use super::metrics::{ComparedMetric, METRICS, MeasuredRows};

const BEGIN_MARK: &str = "<!-- measured: begin -->";
const END_MARK: &str = "<!-- measured: end -->";

/// Writes `benchmarks.svg`, and the table into `benchmarks.md`. The text around the table is preserved.
pub(super) fn write_docs(
    docs: &Path,
    rows: &MeasuredRows,
    sizes: &BTreeMap<String, u64>,
) -> std::io::Result<()> {
    std::fs::write(docs.join("benchmarks.svg"), chart::render_chart(rows))?;
    let path = docs.join("benchmarks.md");
    let page = std::fs::read_to_string(&path)
        .unwrap_or_else(|_| format!("# Benchmarks\n\n{BEGIN_MARK}\n{END_MARK}\n"));
    let before = page.split(BEGIN_MARK).next().unwrap_or_default();
    let after = page.split(END_MARK).nth(1).unwrap_or("\n");
    std::fs::write(path, format!("{before}{BEGIN_MARK}\n{}{END_MARK}{after}", render_table(rows, sizes)))
}

fn render_table(rows: &MeasuredRows, sizes: &BTreeMap<String, u64>) -> String {
    let peers = rows.peers();
    let mut out = format!("Measured on {}.", describe_machine());
    let versions: Vec<String> = peers
        .iter()
        .filter_map(|peer| Some(format!("{peer} {}", rows.version(peer).filter(|version| *version != "-")?)))
        .collect();
    let _infallible = writeln!(out, " Versions: {}.\n", versions.join(", "));
    let _infallible = writeln!(out, "| | {} |", peers.join(" | "));
    let _infallible = writeln!(out, "| --- |{}", " ---: |".repeat(peers.len()));
    for figure in &METRICS {
        let cells: Vec<String> = peers.iter().map(|peer| render_cell(rows, figure, peer)).collect();
        let _infallible = writeln!(out, "| {} | {} |", figure.label, cells.join(" | "));
    }
    let mib = |peer: &String| {
        sizes.get(peer).map(|bytes| format_number(*bytes as f64 / 1048576.0)).unwrap_or_default()
    };
    let cells: Vec<String> = peers.iter().map(mib).collect();
    let _infallible = writeln!(out, "| installed (MiB) | {} |", cells.join(" | "));
    out
}

fn render_cell(rows: &MeasuredRows, figure: &ComparedMetric, peer: &str) -> String {
    match (rows.median(figure, peer), rows.error_text(figure, peer)) {
        (Some(value), _) if peer == "windlass" => format!("**{}**", format_number(value)),
        (Some(value), _) => match rows.advantage_ratio(figure, peer) {
            Some(ratio) => format!("{} ({}×)", format_number(value), format_number(ratio)),
            None => format_number(value),
        },
        (None, Some(error)) if error.starts_with("no answer") => error.to_owned(),
        (None, Some(_)) => "failed".to_owned(),
        (None, None) => String::new(),
    }
}

/// Formats a number with three significant digits.
pub(super) fn format_number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => {
            let digits = format!("{value:.0}");
            let mut out = String::new();
            for (at, digit) in digits.chars().enumerate() {
                if at > 0 && (digits.len() - at) % 3 == 0 {
                    out.push(',');
                }
                out.push(digit);
            }
            out
        }
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn describe_machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, name)| name);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{} ({cores} cores, Linux {})", model.unwrap_or("an unknown processor"), kernel.trim())
}

//! The costs page: tokens and money by day, model, agent and run, with charts.

use std::collections::BTreeMap;

use maud::{Markup, html};
use windlass::core::usage::{Usage, format_amount};
use windlass::price::PriceList;

use super::markup::{line, number, query_text};
use crate::server::wall_clock_now;
use crate::spending::{MAX_REPORTED_RUNS, SpendingReport, date_of_day, weight};

/// Number of rows of a table.
const SHOWN_ROWS: usize = 50;
/// Height of the chart in the units of its view box.
const CHART_HEIGHT: f64 = 120.0;
/// Width of the chart in the units of its view box.
const CHART_WIDTH: f64 = 900.0;
/// Number of days that fit into the width of the page. More are scrolled.
const MAX_FITTED_DAYS: u64 = 366;
/// Widest and narrowest bar of a day.
const DAY_WIDTHS: (f64, f64) = (2.0, 60.0);
/// Milliseconds of a day.
const DAY_MS: u64 = 86_400_000;

/// Renders the costs of the last days.
pub(super) fn costs(report: &SpendingReport, days: u32, prices: &PriceList) -> Markup {
    let currency = prices.currency.as_str();
    html! {
        div.head { h1 { "Costs" } }
        form.filters method="get" action="/costs" {
            label for="c-days" { "Days" }
            select #c-days name="days" { @for choice in [1, 7, 30, 90, 365] { option value=(choice) selected[choice == days] { (choice) } } }
            button { "Show" }
        }
        section.panel {
            h2 { "Together" }
            p { b { (cost(&report.total, currency)) } " · " (number(report.total.input_tokens)) " tokens in, of which " (number(report.total.cached_tokens))
                " from a cache · " (number(report.total.output_tokens)) " out, of which " (number(report.total.reasoning_tokens)) " for reasoning · "
                (number(report.total.requests)) " requests" }
            @if report.unread_runs > 0 { p.problem role="alert" data-live="costs" { (number(report.unread_runs as u64)) " more runs are being read. Their costs are not in these sums yet." } }
            @if report.omitted_runs > 0 { p.problem role="alert" { "A report has the newest " (number(MAX_REPORTED_RUNS as u64)) " runs. " (number(report.omitted_runs as u64)) " older ones are left out." } }
            p.dim { "Prices in " (prices.currency) " of " (prices.as_of) ": " (prices.source) "." }
        }
        section.panel { h2 { "By day" } @if report.days.is_empty() { p.dim { "No model was asked." } } @else { (day_chart(&report.days, days, currency)) } }
        (table("By model", "model", &report.models, None, currency))
        (table("By agent", "agent", &report.agents, Some("/runs?agent="), currency))
        (table("By run", "run", &report.runs, Some("/runs/"), currency))
    }
}

/// Describes a cost. What is unknown is said to be unknown.
fn cost(usage: &Usage, currency: &str) -> String {
    usage.describe_cost(currency).unwrap_or_else(|| "no cost".to_owned())
}

/// Draws the chosen days up to today, those without a request too.
fn day_chart(days: &BTreeMap<u64, Usage>, chosen: u32, currency: &str) -> Markup {
    let today = wall_clock_now().0 / DAY_MS;
    let last = days.keys().next_back().copied().unwrap_or(today).max(today);
    let asked = last.saturating_sub(u64::from(chosen.saturating_sub(1)));
    let first = days.keys().next().copied().unwrap_or(asked).min(asked);
    let has_cost = days.values().any(|usage| usage.cost_nanos > 0);
    let value = |usage: &Usage| if has_cost { usage.cost_nanos } else { usage.total_tokens() };
    let most = days.values().map(value).max().unwrap_or(0).max(1);
    let day_width = (CHART_WIDTH / (last - first + 1) as f64).clamp(DAY_WIDTHS.0, DAY_WIDTHS.1);
    let width = (last - first + 1) as f64 * day_width;
    let gap = day_width / 8.0;
    let most_text = match has_cost {
        true => format_amount(most, currency),
        false => format!("{} tokens", number(most)),
    };
    let label = format!(
        "{} by day, from {} to {}; the highest bar is {most_text}",
        if has_cost { "Cost" } else { "Tokens" },
        date_of_day(first),
        date_of_day(last)
    );
    html! {
        div.wide tabindex="0" role="region" aria-label="Costs by day" {
            svg.chart.days[last - first < MAX_FITTED_DAYS] viewBox={ "0 0 " (width) " " (CHART_HEIGHT) } width=(width) height=(CHART_HEIGHT) role="img" aria-label=(label) preserveAspectRatio="none" {
                @for (day, usage) in days {
                    @let height = (value(usage) as f64 / most as f64 * (CHART_HEIGHT - 2.0)).max(1.0);
                    rect.bar x=((day - first) as f64 * day_width + gap) y=(CHART_HEIGHT - height) width=(day_width - 2.0 * gap) height=(height) {
                        title { (date_of_day(*day)) ": " (cost(usage, currency)) ", " (number(usage.total_tokens())) " tokens" }
                    }
                }
                line.axis x1="0" x2=(width) y1=(CHART_HEIGHT) y2=(CHART_HEIGHT) {}
            }
        }
        p.dim aria-hidden="true" { (label) }
        table.list {
            thead { tr { th scope="col" { "day" } th.num scope="col" { "tokens" } th scope="col" { "cost" } } }
            tbody { @for (day, usage) in days.iter().rev().take(SHOWN_ROWS) {
                tr { td.mono { (date_of_day(*day)) } td.num { (number(usage.total_tokens())) } td { (cost(usage, currency)) } }
            } }
        }
    }
}

fn table(
    title: &str,
    column: &str,
    sums: &BTreeMap<String, Usage>,
    link: Option<&str>,
    currency: &str,
) -> Markup {
    let mut rows: Vec<(&String, &Usage)> = sums.iter().collect();
    rows.sort_by_key(|(_, usage)| std::cmp::Reverse(weight(usage)));
    let most = rows.iter().map(|(_, usage)| weight(usage)).max().unwrap_or((0, 0));
    let share = |usage: &Usage| match most {
        (0, 0) => 0.0,
        (0, tokens) => usage.total_tokens() as f64 / tokens as f64,
        (nanos, _) => usage.cost_nanos as f64 / nanos as f64,
    };
    html! {
        section.panel {
            h2 { (title) }
            @if rows.is_empty() { p.dim { "Nothing." } } @else {
                div.wide tabindex="0" role="region" aria-label=(title) { table.list {
                    thead { tr { th scope="col" { (column) } th scope="col" { "cost" } th.num scope="col" { "in" } th.num scope="col" { "cached" }
                        th.num scope="col" { "out" } th.num scope="col" { "reasoning" } th.num scope="col" { "audio" } th.num scope="col" { "requests" } th scope="col" { "share" } } }
                    tbody { @for (name, usage) in rows.iter().take(SHOWN_ROWS) {
                        tr {
                            td { @if let Some(link) = link { a href={ (link) (query_text(name)) } { (line(name)) } } @else { (line(name)) } }
                            td { (cost(usage, currency)) }
                            td.num { (number(usage.input_tokens)) }
                            td.num { (number(usage.cached_tokens)) }
                            td.num { (number(usage.output_tokens)) }
                            td.num { (number(usage.reasoning_tokens)) }
                            td.num { (number(usage.audio_input_tokens + usage.audio_output_tokens)) }
                            td.num { (number(usage.requests)) }
                            td { svg.chart width="100" height="10" viewBox="0 0 100 10" aria-hidden="true" { rect.bar x="0" y="1" height="8" width=(format!("{:.1}", share(usage) * 100.0)) {} } }
                        }
                    } }
                } }
                @if rows.len() > SHOWN_ROWS { p.dim { (rows.len() - SHOWN_ROWS) " more" } }
            }
        }
    }
}

//! One run: facts, timeline, conversation, time travel, forks and the journal.

use std::sync::Arc;

use maud::{Markup, html};
use windlass::core::{
    inspect::{run_at, step_lines},
    item::Item,
    journal::{GuardrailOutcome, GuardrailStage, JournalEntry, JournalRecord},
    run::Run,
};
use windlass::price::PriceList;
use windlass_text::format_utc_time;

use super::inbox::{argument_table, card};
use super::markup::{
    duration, item, line, number, output, prose, query_text, status_tone, status_word, time,
};
use super::run_rows::{CallRow, RowBuilder, RowKind, RowTone, RunRow};
use super::timeline::timeline;
use crate::api::{InboxItem, run_status};
use crate::call_sheet::{argument_texts, describe_effect};

/// Number of rows on a page of a run.
const PAGE_ROWS: usize = 80;
/// Number of items of the model's input that are shown; the newest ones.
const SHOWN_ITEMS: usize = 40;

/// A run to render, from the store or from a file.
pub(super) struct RunView<'a> {
    pub(super) id: &'a str,
    /// Address of the page.
    pub(super) base: String,
    pub(super) records: &'a [JournalRecord],
    /// Record after which the run is shown; the last one if absent.
    pub(super) at: Option<u64>,
    pub(super) page: Option<usize>,
    /// The calls that wait now. Empty for a run from a file and for a run that is shown as it was.
    pub(super) pending: &'a [InboxItem],
    pub(super) person: &'a str,
    /// Prices of the requests whose cost the journal does not have.
    pub(super) prices: &'a PriceList,
    pub(super) is_stored: bool,
    pub(super) driver: Option<String>,
    /// The reason for which no worker takes the run, if there is one.
    pub(super) obstacle: Option<String>,
}

impl RunView<'_> {
    /// Returns true if the run has not ended.
    fn is_open(&self) -> bool {
        !self.records.iter().rev().any(|record| {
            let end = &record.entry;
            record.path.is_empty()
                && matches!(
                    end,
                    JournalEntry::RunFinished(_) | JournalEntry::RunFailed(_) | JournalEntry::RunCancelled(_)
                )
        })
    }
}

/// Renders a run that has no record yet.
pub(super) fn queued_run(id: &str, obstacle: Option<&str>) -> Markup {
    html! {
        div.head { h1 { "Run " span.mono { (line(id)) } } span.status.waiting { "queued" } }
        @match obstacle {
            Some(obstacle) => p.problem data-live="queued" data-run=(id) { (line(obstacle)) },
            None => p data-live="queued" data-run=(id) { "No worker has taken it yet." },
        }
        div.do { button data-act="cancel" data-run=(id) { "Cancel the run…" } }
    }
}

/// Renders a run.
pub(super) fn run_page(view: &RunView<'_>) -> Markup {
    let count = view.records.len();
    let last = count.saturating_sub(1) as u64;
    let at = view.at.unwrap_or(last).min(last);
    let shown = &view.records[..count.min(usize::try_from(at).unwrap_or(usize::MAX).saturating_add(1))];
    let state = run_at(view.records, at);
    let rows = RowBuilder::rows_of(shown);
    let pages = rows.len().div_ceil(PAGE_ROWS).max(1);
    let page = view.page.map_or(pages - 1, |page| page.saturating_sub(1).min(pages - 1));
    let window = &rows[page * PAGE_ROWS..rows.len().min((page + 1) * PAGE_ROWS)];
    let status = state.as_ref().map_or("unreadable", run_status);
    html! {
        div.head.run-head {
            h1 { "Run " span.mono { (line(view.id)) } }
            span class={ "status " (status_tone(status)) } { (status_word(status)) }
            @if at < last { span.tag.warn { "as it was at record " (at) " of " (last) } }
            @if !view.is_stored { span.tag { "from a file" } }
        }
        (facts(view, shown, &rows, state.as_ref().ok()))
        @if let Err(error) = &state { p.problem role="alert" { (line(&error.to_string())) } }
        @if let Some(obstacle) = &view.obstacle { p.problem role="alert" { (line(obstacle)) } }
        @for waiting in view.pending { (card(waiting, view.person)) }
        @if pages > 1 { (page_strip(&rows, pages, page, view, at)) }
        div.columns data-live=[(view.is_stored && at == last).then_some("run")] data-run=(view.id) data-records=(count) {
            section.panel aria-labelledby="h-timeline" {
                h2 #h-timeline { "Timeline" }
                (travel(view, at, last))
                (timeline(window, &view.base, view.is_stored && at == last))
            }
            section.panel aria-labelledby="h-talk" {
                h2 #h-talk { "Conversation" }
                div.talk { @for row in window { (talk_row(row)) } }
            }
        }
        @if let Ok(state) = &state { (model_input(view, state, at)) }
        (journal(view, shown, window))
    }
}

fn facts(view: &RunView<'_>, shown: &[JournalRecord], rows: &[RunRow], state: Option<&Run>) -> Markup {
    let turns = rows.iter().filter(|row| matches!(row.kind, RowKind::Turn(_))).count();
    let calls = rows.iter().filter(|row| matches!(row.kind, RowKind::Call(_))).count();
    let failed =
        rows.iter().filter(|row| matches!(row.kind, RowKind::Call(_)) && row.tone() == RowTone::Bad).count();
    let usage = shown.iter().fold(windlass::core::usage::Usage::default(), |mut sum, record| {
        let mut usage = record.entry.model_usage();
        if usage == Default::default() {
            usage.requests = 0;
        }
        if let JournalEntry::ModelResponded(responded) = &record.entry {
            view.prices.complete_usage(&mut usage, responded.model.as_deref());
        }
        sum.add(&usage);
        sum
    });
    let (first, last) = (shown.first().map_or(0, |one| one.at.0), shown.last().map_or(0, |one| one.at.0));
    html! {
        dl.facts {
            @if let Some(state) = state { div { dt { "agent" } dd { (line(state.agent().as_str())) } } }
            div { dt { "began" } dd { (time(first)) } }
            div { dt { "took" } dd { (duration(last.saturating_sub(first))) } }
            div { dt { "turns" } dd { (number(turns as u64)) } }
            div { dt { "calls" } dd { (number(calls as u64)) @if failed > 0 { span.bad { " · " (failed) " failed" } } } }
            div { dt { "tokens" } dd { (number(usage.input_tokens)) " in, " (number(usage.output_tokens)) " out"
                @if usage.unknown_requests > 0 { span.dim { " + " (usage.unknown_requests) " unknown" } } } }
            div { dt { "cost" } dd { (usage.describe_cost(&view.prices.currency).unwrap_or_else(|| "none".to_owned())) } }
            div { dt { "journal" } dd { (number(view.records.len() as u64)) " records" } }
            @if let Some(session) = state.and_then(|state| state.session()) { div { dt { "session" } dd { (line(session.as_str())) } } }
            @if let Some(driver) = &view.driver { div { dt { "driven by" } dd.mono { (line(driver)) } } }
        }
    }
}

/// Renders a strip with a cell for each page, coloured by the worst row on it.
fn page_strip(rows: &[RunRow], pages: usize, page: usize, view: &RunView<'_>, at: u64) -> Markup {
    let step = pages.div_ceil(100);
    html! {
        nav.strip aria-label="Parts of the run" {
            @for part in (0..pages).step_by(step) {
                @let end = rows.len().min((part + step) * PAGE_ROWS);
                @let tone = rows[part * PAGE_ROWS..end].iter().map(RunRow::tone).max().unwrap_or(RowTone::Quiet);
                @let is_current = (part..part + step).contains(&page);
                a class=(tone.class()) aria-current=[is_current.then_some("true")]
                    href={ (view.base) "?at=" (at) "&page=" (part + 1) } title={ "Rows " (part * PAGE_ROWS + 1) " to " (end) } {
                    span.hide { "Part " (part + 1) }
                }
            }
        }
        nav.pager aria-label="Pages" {
            @if page > 0 { a href={ (view.base) "?at=" (at) "&page=" (page) } rel="prev" { "Earlier" } }
            span { "part " (page + 1) " of " (pages) }
            @if page + 1 < pages { a href={ (view.base) "?at=" (at) "&page=" (page + 2) } rel="next" { "Later" } }
        }
    }
}

/// Renders the slider over the records, and what can be done at one.
fn travel(view: &RunView<'_>, at: u64, last: u64) -> Markup {
    html! {
        div.travel {
            label for="travel" { "Record " output #travel-at for="travel" { (at) } " of " (last) }
            input #travel type="range" min="0" max=(last) value=(at) data-base=(view.base);
            div.do {
                @if view.is_stored {
                    button data-act="fork" data-run=(view.id) data-at=(at) { "Fork here…" }
                    a.button href={ "/diff?first=" (query_text(view.id)) } { "Compare…" }
                    a.button href={ "/v1/runs/" (query_text(view.id)) "/export" } download { "Download" }
                    @if view.is_open() {
                        button data-act="cancel" data-run=(view.id) { "Cancel the run…" }
                    }
                }
                @if at < last { a.button href=(view.base) { "Back to now" } }
            }
        }
    }
}

fn model_input(view: &RunView<'_>, state: &Run, at: u64) -> Markup {
    let items = state.next_model_input();
    let hidden = items.len().saturating_sub(SHOWN_ITEMS);
    html! {
        details.panel open[view.at.is_some()] {
            summary { h2 { "What the model is shown at record " (at) } span.dim { " " (number(items.len() as u64)) " items" } }
            @if hidden > 0 {
                p.dim { (number(hidden as u64)) " earlier items are not on this page"
                    @if view.is_stored { ": " a href={ "/v1/runs/" (query_text(view.id)) "/state?at=" (at) } { "all of them as JSON" } } "." }
            }
            div.items { @for one in &items[hidden..] { (item(one)) } }
            p.dim { "The instructions of the agent are not in the journal." }
        }
    }
}

fn journal(view: &RunView<'_>, shown: &[JournalRecord], window: &[RunRow]) -> Markup {
    let first = window.iter().map(|row| row.seq).min().unwrap_or(0);
    let last = window
        .iter()
        .flat_map(|row| match &row.kind {
            RowKind::Call(call) => call.records.last().copied(),
            _ => Some(row.seq),
        })
        .max()
        .unwrap_or(0);
    let lines = step_lines(shown);
    let lines = lines.iter().filter(|step| (first..=last).contains(&step.seq)).take(PAGE_ROWS * 5);
    html! {
        details.panel.journal {
            summary { h2 { "Journal" } span.dim { " records " (first) " to " (last) } }
            div.wide tabindex="0" role="region" aria-label="Journal" { table.list {
                thead { tr { th scope="col" { "#" } th scope="col" { "time" } th scope="col" { "agent" } th scope="col" { "record" } } }
                tbody {
                    @for step in lines {
                        tr id={ "record-" (step.seq) } {
                            td { a href={ (view.base) "?at=" (step.seq) } { (step.seq) } }
                            td.mono { (format_utc_time(step.at.0)) }
                            td { (line(step.agent.as_str())) }
                            td { (line(&step.text)) }
                        }
                    }
                }
            } }
        }
    }
}

impl RunRow {
    /// Returns a text that identifies the row on a page.
    pub(super) fn seq_anchor(&self) -> String {
        match &self.kind {
            RowKind::Call(call) => query_text(&format!("{}-{}", self.seq, call.path)).replace('%', "_"),
            _ => self.seq.to_string(),
        }
    }
}

fn talk_row(row: &RunRow) -> Markup {
    let depth = row.depth.min(6);
    match &row.kind {
        RowKind::Start { input, .. } | RowKind::Input { items: input } => html! {
            @for one in input { (message("user", one, depth)) }
        },
        RowKind::Turn(turn) => html! {
            @for one in &turn.items {
                @match &**one {
                    Item::Message(_) | Item::Reasoning(_) | Item::HostedTool(_) => (message(row.agent.as_str(), one, depth)),
                    _ => {}
                }
            }
        },
        RowKind::Call(call) => call_block(row, call, depth),
        RowKind::Handoff { to } => {
            html! { p.line data-depth=(depth) { "control passes to " b { (line(to.as_str())) } } }
        }
        RowKind::ModelFailure { error, .. } => {
            html! { p.line.bad data-depth=(depth) { "the model failed: " (line(error)) } }
        }
        RowKind::Note { text } => html! { p.line data-depth=(depth) { (text) } },
        RowKind::End { text, tone } => html! {
            div class={ "end " (tone.class()) } data-depth=(depth) { div.who { (line(row.agent.as_str())) " ends" } div.text { (prose(text)) } }
        },
    }
}

fn message(who: &str, one: &Arc<Item>, depth: usize) -> Markup {
    let (who, body) = match &**one {
        Item::Message(message) => (who, prose(&message.text())),
        Item::Reasoning(reasoning) if reasoning.summary.is_empty() => return html! {},
        Item::Reasoning(reasoning) => ("reasoning", prose(&reasoning.summary)),
        other => (who, item(other)),
    };
    html! { div.msg.user[who == "user"].think[who == "reasoning"] data-depth=(depth) { div.who { (line(who)) } div.text { (body) } } }
}

fn call_block(row: &RunRow, call: &CallRow, depth: usize) -> Markup {
    html! {
        details class={ "call " (call.tone().class()) } id={ "call-" (row.seq_anchor()) } data-path=(call.path) data-depth=(depth) {
            summary {
                span.tool { (line(&call.tool)) }
                span.brief { (line(&brief(&call.arguments))) }
                span class={ "status " (call.tone().class()) } { (call.status_text()) }
            }
            h3 { "Arguments" }
            (argument_table(&argument_texts(&call.arguments)))
            @if let Some(given) = &call.output { h3 { "Output" } div.text.out { (output(given)) } }
            ul.notes {
                @if let Some(effect) = call.effect { li { (describe_effect(effect)) } }
                @for (seq, note) in &call.notes { li { (prose(note)) " " span.dim { "record " (seq) } } }
                @for guard in &call.guardrails {
                    li.warn[guard.verdict != GuardrailOutcome::Allowed] { "guardrail " b { (line(&guard.name)) } " "
                        (match guard.stage { GuardrailStage::Input => "before the body", GuardrailStage::Output => "after the body" }) ": "
                        (verdict_text(guard.verdict)) }
                }
            }
            dl.facts.small {
                div { dt { "call" } dd.mono { (line(&call.path)) } }
                @if call.attempts > 0 { div { dt { "attempts" } dd { (call.attempts) } } }
                @if let Some(key) = &call.key { div { dt { "idempotency key" } dd.mono { (line(key)) } } }
                div { dt { "digest" } dd.mono title=(call.digest) { (&call.digest[..16.min(call.digest.len())]) "…" } }
                div { dt { "records" } dd { (call.records.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")) } }
            }
        }
    }
}

fn verdict_text(verdict: GuardrailOutcome) -> &'static str {
    match verdict {
        GuardrailOutcome::Allowed => "passed",
        GuardrailOutcome::Rejected => "rejected",
        GuardrailOutcome::Replaced => "replaced the output",
        GuardrailOutcome::FailedRun => "ended the run",
        GuardrailOutcome::Failed => "failed, which counts as a rejection",
    }
}

fn brief(arguments: &str) -> String {
    let mut short: String = arguments.chars().take(90).collect();
    if short.len() < arguments.len() {
        short.push('…');
    }
    short
}

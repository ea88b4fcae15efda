//! Lists: runs with filters, the fleet, the comparison of two runs, and files.

use maud::{Markup, html};
use windlass::core::inspect::{RunDiff, StepLine};
use windlass::core::usage::Usage;
use windlass::fleet::QueueFilter;

use super::markup::{line, number, query_text, status_tone, status_word, time};
use crate::access::{AccessRole, PersonIdentity};
use crate::agent_catalogue::AgentCatalogue;
use crate::api::{FleetSummary, RunListQuery, RunPage};

/// Renders the list of runs.
pub(super) fn runs(
    asked: &RunListQuery,
    page: &RunPage,
    usages: &[Usage],
    agents: &AgentCatalogue,
    person: &PersonIdentity,
    live_page: Option<&str>,
    currency: &str,
) -> Markup {
    let may = |role| agents.agents().map(|(name, _)| name).filter(move |name| person.may(role, name));
    let status = asked.status.as_deref().unwrap_or_default();
    let agent = asked.agent.as_deref().unwrap_or_default();
    html! {
        div.head {
            h1 { "Runs" }
            @if let Some(page) = live_page { a.button href=(page) { "Live sessions" } }
            button.yes data-act="new-run" { "Start a run…" }
        }
        template #new-run {
            form data-act="start" {
                h2 #dialog-title { "Start a run" }
                label for="new-agent" { "Agent" }
                select #new-agent name="agent" { @for name in may(AccessRole::Run) { option { (name.as_str()) } } }
                label for="new-input" { "Input" }
                textarea #new-input name="input" rows="4" required autofocus {}
                label for="new-id" { "Id " span.dim { "(a new one if empty; the same id starts nothing twice)" } }
                input #new-id name="run" autocomplete="off";
                div.do { button.yes { "Start" } button type="button" data-act="close" { "Close" } }
            }
        }
        form.filters method="get" action="/runs" role="search" {
            label for="f-search" { "Search" }
            input #f-search name="search" type="search" value=(asked.search.as_deref().unwrap_or_default()) placeholder="part of an id or an agent";
            label for="f-status" { "State" }
            select #f-status name="status" {
                @for (value, name) in [("", "any"), ("paused", "waits"), ("running", "running"), ("queued", "queued"), ("finished", "finished"), ("failed", "failed"), ("cancelled", "cancelled")] {
                    option value=(value) selected[status == value] { (name) }
                }
            }
            label for="f-agent" { "Agent" }
            select #f-agent name="agent" {
                option value="" selected[agent.is_empty()] { "any" }
                @for name in may(AccessRole::View) { option value=(name.as_str()) selected[agent == name.as_str()] { (name.as_str()) } }
            }
            button { "Filter" }
        }
        section.panel data-live="runs" {
            @if page.runs.is_empty() && page.next.is_some() { p.dim { "No run matches among those that were looked at. There are older ones." } }
            @else if page.runs.is_empty() { p.dim { "No run matches." } } @else {
                div.wide tabindex="0" role="region" aria-label="Runs" { table.list.runs {
                    thead { tr { th scope="col" { "state" } th scope="col" { "run" } th scope="col" { "agent" } th scope="col" { "began" } th scope="col" { "changed" } th.num scope="col" { "records" } th.num scope="col" { "tokens" } th.num scope="col" { "cost" } } }
                    tbody {
                        @for (run, usage) in page.runs.iter().zip(usages) {
                            tr {
                                td.state { span class={ "status " (status_tone(&run.status)) } { (status_word(&run.status)) } }
                                td.name { a.mono href={ "/runs/" (query_text(&run.run)) } { (line(&run.run)) } }
                                td { (line(&run.agent)) }
                                td.more { @match (run.created_at, run.start_at) {
                                    (Some(created), _) => (time(created)),
                                    (None, Some(start)) => { "from " (time(start)) },
                                    (None, None) => "not yet",
                                } }
                                td { @if let Some(updated) = run.updated_at { (time(updated)) } @else { "–" } }
                                td.num.more { (number(run.records)) }
                                td.num.more { (number(usage.total_tokens())) }
                                td.num { (usage.describe_cost(currency).unwrap_or_else(|| "–".to_owned())) }
                            }
                        }
                    }
                } }
            }
        }
        @if let Some(next) = &page.next {
            nav.pager aria-label="Pages" {
                a rel="next" href={ "/runs?" (next_page_query(asked, next)) } { "Older runs" }
            }
        }
    }
}

/// Writes the query of the next page, with every filter of this one.
fn next_page_query(asked: &RunListQuery, next: &str) -> String {
    let RunListQuery { status, agent, session, search, updated_from, updated_before, after: _, limit } =
        asked;
    let number = |number: Option<u64>| number.map(|number| number.to_string());
    let fields = [
        ("after", Some(next.to_owned())),
        ("status", status.clone()),
        ("agent", agent.clone()),
        ("session", session.clone()),
        ("search", search.clone()),
        ("updated_from", number(*updated_from)),
        ("updated_before", number(*updated_before)),
        ("limit", number(limit.map(u64::from))),
    ];
    let given = fields.iter().filter_map(|(name, value)| {
        let value = value.as_ref().filter(|value| !value.is_empty())?;
        Some(format!("{name}={}", query_text(value)))
    });
    given.collect::<Vec<_>>().join("&")
}

/// Number of runs of the queue on a page.
pub(super) const PAGE_QUEUED: u32 = 200;

/// Renders the workers and a page of the queue.
pub(super) fn fleet(
    fleet: &FleetSummary,
    filter: QueueFilter,
    agents: &AgentCatalogue,
    person: &PersonIdentity,
) -> Markup {
    let state = if filter == QueueFilter::DeadLetters { "dead_letter" } else { "" };
    html! {
        div.head { h1 { "Fleet" } }
        section.panel {
            h2 { "Workers" }
            @if fleet.workers.is_empty() { p.dim { "No worker is registered: no run moves." } }
            ul.plain { @for worker in &fleet.workers { li { b title=(worker.name) { (line(&worker_label(&worker.name))) } " " span.dim { "beat " (worker.beat) ", " (time(worker.renewed_at)) } } } }
        }
        section.panel {
            h2 { "Agents of this server" }
            div.wide tabindex="0" role="region" aria-label="Agents" { table.list {
                thead { tr { th scope="col" { "agent" } th scope="col" { "build" } th scope="col" { "tools" } } }
                tbody { @for (name, agent) in agents.agents().filter(|(name, _)| person.may(AccessRole::View, name)) {
                    tr { td { b { (line(name.as_str())) } } td.mono { (&agent.build[..12.min(agent.build.len())]) }
                        td { @for tool in &agent.tools { span.tag title=(tool.description) { (line(&tool.name)) " · " (tool.effect) } " " } } }
                } }
            } }
        }
        section.panel {
            h2 { "Queue" }
            form.filters method="get" action="/fleet" {
                label for="q-state" { "State" }
                select #q-state name="state" {
                    option value="" selected[state.is_empty()] { "any" }
                    option value="dead_letter" selected[!state.is_empty()] { "dead letters" }
                }
                button { "Filter" }
            }
            @if fleet.queue.is_empty() {
                p.dim { @if fleet.next.is_some() { "There is nothing that you may view on this page." } @else { "Nothing is queued." } }
            } @else {
                div.wide tabindex="0" role="region" aria-label="Queue" { table.list {
                    thead { tr { th scope="col" { "state" } th scope="col" { "run" } th scope="col" { "agent" } th.num scope="col" { "attempts" } th scope="col" { "reason" } } }
                    tbody { @for queued in &fleet.queue {
                        tr {
                            td { span class={ "status " (if queued.queue.state == "dead_letter" { "bad" } else { "quiet" }) } { (queued.queue.state.replace('_', " ")) } }
                            td { a.mono href={ "/runs/" (query_text(&queued.run)) } { (line(&queued.run)) } }
                            td { (line(&queued.agent)) }
                            td.num { (queued.queue.attempt) }
                            td { (line(&queued.queue.reasons().collect::<Vec<_>>().join("; ")))
                                @if queued.queue.state == "dead_letter" { " " button data-act="revive" data-run=(queued.run) { "Revive" } } }
                        }
                    } }
                } }
            }
            @if let Some(next) = &fleet.next {
                nav.pager aria-label="Pages" { a rel="next" href={ "/fleet?after=" (query_text(next)) @if !state.is_empty() { "&state=" (state) } } { "More of the queue" } }
            }
        }
    }
}

/// Returns the name of a worker for people: its process and its machine. The whole name is shown on demand.
fn worker_label(name: &str) -> String {
    let parts = name
        .split_once('@')
        .and_then(|(process, place)| Some((process.split_once('-')?.0, place.split_once('/')?.0)));
    match parts {
        Some((process, machine)) if process.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("process {process} on {machine}")
        }
        _ => name.to_owned(),
    }
}

/// Renders the choice of two runs, and their differences.
pub(super) fn diff(first: &str, second: &str, found: Option<&RunDiff>, problem: Option<&str>) -> Markup {
    html! {
        div.head { h1 { "Compare two runs" } }
        form.filters method="get" action="/diff" {
            label for="d-first" { "First" } input #d-first name="first" value=(first) required;
            label for="d-second" { "Second" } input #d-second name="second" value=(second) required;
            button.yes { "Compare" }
        }
        @if let Some(problem) = problem { p.problem role="alert" { (line(problem)) } }
        @if let Some(diff) = found {
            p { @if diff.is_empty() { "Both runs are the same, in " (diff.common_records) " records." }
                @else { "The first " b { (diff.common_records) } " records are the same." } }
            @if let Some(difference) = &diff.first_difference {
                section.panel {
                    h2 { "Record " (difference.seq) " differs" }
                    div.wide tabindex="0" role="region" aria-label="Fields that differ" { table.list {
                        thead { tr { th scope="col" { "field" } th scope="col" { (line(first)) } th scope="col" { (line(second)) } } }
                        tbody { @for field in &difference.fields {
                            tr { td.mono { (line(&field.field)) }
                                td.del { @if let Some(value) = &field.first { (line(&value.to_string())) } }
                                td.add { @if let Some(value) = &field.second { (line(&value.to_string())) } } }
                        } }
                    } }
                }
            }
            @if !diff.is_empty() {
                div.columns {
                    (steps(first, &diff.first_steps))
                    (steps(second, &diff.second_steps))
                }
            }
        }
    }
}

fn steps(name: &str, steps: &[StepLine]) -> Markup {
    const SHOWN_STEPS: usize = 300;
    html! {
        section.panel {
            h2 { "Then " a.mono href={ "/runs/" (query_text(name)) } { (line(name)) } }
            @if steps.is_empty() { p.dim { "It ends there." } }
            ol.steps { @for step in steps.iter().take(SHOWN_STEPS) { li value=(step.seq) { b { (line(step.agent.as_str())) } " " (line(&step.text)) } } }
            @if steps.len() > SHOWN_STEPS { p.dim { (steps.len() - SHOWN_STEPS) " more" } }
        }
    }
}

/// Renders the page on which a file is opened.
pub(super) fn look(problem: Option<&str>) -> Markup {
    html! {
        div.head { h1 { "Open an exported run" } }
        @if let Some(problem) = problem { p.problem role="alert" { (line(problem)) } }
        section.panel.drop-zone #drop-zone {
            p { "Drop a file from " code { "windlass export" } " or from Download here. It is looked at and not stored." }
            label.button for="file" { "Choose a file" }
            input #file type="file" accept=".windlass,.txt,text/plain";
        }
    }
}

/// Renders the page that asks for a token.
pub(super) fn login(is_wrong: bool) -> Markup {
    html! {
        section.panel.login {
            h1 { "Windlass" }
            @if is_wrong { p.problem role="alert" { "This token is not known." } }
            form method="post" action="/login" {
                label for="token" { "Your token" }
                input #token name="token" type="password" autocomplete="current-password" required autofocus;
                button.yes { "Open" }
            }
            p.dim { "Whoever runs this server gives out tokens: " code { "windlass serve --help" } }
        }
    }
}

/// Renders the page after a login. The script keeps the key of the page, and opens the inbox.
pub(super) fn logged_in(page_key: &str) -> Markup {
    html! {
        section.panel.login data-page-key=(page_key) {
            h1 { "Windlass" }
            p { "You are logged in. " a href="/" { "Open the inbox" } }
        }
    }
}

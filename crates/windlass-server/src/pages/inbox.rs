//! The inbox: the calls that wait for a person, each with everything that it would do.

use maud::{Markup, html};
use serde_json::Value;

use super::forms::{fields, has_exact_numbers};
use super::markup::{duration, line, marked, query_text, time};
use crate::api::InboxItem;
use crate::call_sheet::{ArgumentText, CallSheet, ChangeText, EvidenceText};
use crate::server::wall_clock_now;

/// Number of calls on a page of the inbox.
pub(super) const PAGE_CALLS: usize = 25;

/// Renders the inbox.
pub(super) fn inbox(total: usize, skip: usize, items: &[InboxItem], person: &str) -> Markup {
    html! {
        div.head {
            h1 { "Waiting for a person" }
            p.hint { kbd { "j" } " " kbd { "k" } " move · " kbd { "y" } " approve · " kbd { "e" } " edit · " kbd { "n" } " reject" }
        }
        @if items.is_empty() {
            section.empty {
                h2 { "Nothing waits." }
                p { "Calls that need an approval, questions and calls in doubt appear here, from all runs, as they come." }
                p { a href="/runs" { "Look at the runs" } }
            }
        }
        div #cards data-live="inbox" {
            @for item in items { (card(item, person)) }
        }
        @if total > items.len() {
            nav.pager aria-label="Pages" {
                @if skip > 0 { a href={ "/?skip=" (skip.saturating_sub(PAGE_CALLS)) } { "Earlier" } }
                span { (skip.saturating_add(1)) "–" (skip.saturating_add(items.len())) " of " (total) }
                @if skip.saturating_add(items.len()) < total { a href={ "/?skip=" (skip + PAGE_CALLS) } { "Later" } }
            }
        }
    }
}

/// Renders a call that waits.
pub(super) fn card(item: &InboxItem, person: &str) -> Markup {
    let id = format!("card-{}-{}", item.run, item.call).replace(['/', ' ', '%'], "_");
    let others: Vec<&str> = item.looking.iter().map(String::as_str).filter(|name| *name != person).collect();
    html! {
        article.ask.doubt[item.reason == "in_doubt"].question[item.reason == "question"] id=(id) tabindex="0"
            data-run=(item.run) data-call=(item.call) data-attempt=(item.attempt) data-digest=(item.sheet.digest)
            data-reason=(item.reason) aria-labelledby={ (id) "-title" } {
            div.top {
                h2 id={ (id) "-title" } { (marked(&item.sheet.title)) }
                span.when { "asked " (time(item.asked_at))
                    @if let Some(expires) = item.expires_at {
                        " · expires in " (duration(expires.saturating_sub(wall_clock_now().0)))
                    }
                }
            }
            p.path {
                span.tool { (line(&item.tool)) } " · " (line(&item.run_agent)) " › run "
                a href={ "/runs/" (query_text(&item.run)) } { (line(&item.run)) } " › call " (line(&item.call))
                @if item.agent != item.run_agent { " by " (line(&item.agent)) }
            }
            (sheet_body(&item.sheet, item.effect.as_deref()))
            @if let Some(seen) = item.last_driver_seen { p.note.warn { "Its process was last seen " (time(seen)) "." } }
            @if let Some(posted) = &item.posted {
                p.posted { b { (posted.decided_by.as_deref().unwrap_or("Somebody")) } " posted " (posted.decision) " " (time(posted.posted_at)) ". It can be corrected until it is taken." }
            }
            (actions(item, &id))
            p.looking hidden[others.is_empty()] { (others.join(", ")) " looks at this" }
        }
    }
}

/// Renders the text of a sheet.
pub(super) fn sheet_body(sheet: &CallSheet, effect: Option<&str>) -> Markup {
    html! {
        @for text in &sheet.question { p.asks { (marked(text)) } }
        @if let Some(evidence) = &sheet.evidence { (evidence_figure(evidence)) }
        @if let Some(change) = &sheet.change { (change_text(change)) }
        @if sheet.change.is_none() { (argument_table(&sheet.arguments)) }
        @if sheet.change.is_some() {
            details open { summary { "The arguments, in full" } (argument_table(&sheet.arguments)) }
        }
        ul.notes {
            @for (place, note) in sheet.notes.iter().enumerate() {
                li.warn[place > 0 || effect.is_none()] { (marked(note)) }
            }
        }
    }
}

/// Renders what the tool saw when the call was held.
fn evidence_figure(evidence: &EvidenceText) -> Markup {
    html! {
        figure.evidence {
            figcaption { "What the tool saw when the call was held" }
            @for text in &evidence.lines { p { (marked(text)) } }
            @if let Some(address) = &evidence.picture { img.shot src=(address) alt="picture of what the tool saw"; }
        }
    }
}

/// Renders arguments, each in full.
pub(super) fn argument_table(arguments: &[ArgumentText]) -> Markup {
    html! {
        @if arguments.is_empty() { p.dim { "No arguments." } } @else {
            table.args { tbody {
                @for argument in arguments {
                    tr {
                        th scope="row" { (marked(&argument.name)) }
                        td { @for text in &argument.lines { div { (marked(text)) } } }
                    }
                }
            } }
        }
    }
}

fn change_text(change: &ChangeText) -> Markup {
    html! {
        figure.change.refused[change.is_refused] {
            figcaption { (marked(&change.title)) }
            pre {
                @for text in &change.lines {
                    @let class = match text.chars().next() { Some('+') => "add", Some('-') => "del", Some('@') => "at", _ => "same" };
                    span class=(class) { (marked(text)) "\n" }
                }
            }
        }
    }
}

fn actions(item: &InboxItem, id: &str) -> Markup {
    match item.reason.as_str() {
        "in_doubt" => html! {
            div.do {
                details.drop { summary.button { "It happened…" }
                    form data-act="confirm_executed" {
                        label for={ (id) "-out" } { "Its result, for the model" }
                        textarea id={ (id) "-out" } name="output" rows="2" required {}
                        button.yes { "It happened, with this result" }
                    }
                }
                button data-act="confirm_not_executed" { "It did not: run it" }
                button data-act="outcome_unknown" { "Nobody knows: tell the model" }
            }
        },
        "question" => html! {
            form.answer data-act="answer" {
                @let text = Value::String(String::new());
                @let schema = item.answer_schema.as_ref();
                (fields(&format!("{id}-answer"), "Your answer", schema, if schema.is_some() { &Value::Null } else { &text }))
                div.do {
                    button.yes { "Answer" }
                    button type="button" data-act="reject" { "Reject" }
                }
            }
        },
        _ => html! {
            p.covers { "Approving covers: " (item.sheet.covers) " Digest " code title=(item.sheet.digest) { (&item.sheet.digest[..12.min(item.sheet.digest.len())]) } }
            div.do {
                button.yes data-act="approve" { "Approve" " " kbd { "y" } }
                details.drop.edit { summary.button { "Edit… " kbd { "e" } } (edit_form(item, id)) }
                details.drop.reject { summary.button { "Reject… " kbd { "n" } }
                    form data-act="reject" {
                        label for={ (id) "-why" } { "Reason, for the model" }
                        textarea id={ (id) "-why" } name="message" rows="2" {}
                        button.no { "Reject" }
                    }
                }
                @if let Some(covers) = &item.sheet.covers_always {
                    details.drop { summary.button { "For the run…" }
                        div.body { p { (marked(covers)) }
                            button data-act="approve" data-for-run="1" { "Approve for this run" }
                            button data-act="reject" data-for-run="1" { "Reject for this run" }
                        }
                    }
                }
            }
        },
    }
}

/// Renders a form for the arguments, from the schema of the tool, or from their values if the tool is not known.
fn edit_form(item: &InboxItem, id: &str) -> Markup {
    let arguments: Value = serde_json::from_str(&item.arguments).unwrap_or_default();
    if !has_exact_numbers(&arguments) {
        return html! {
            p.body { "A browser would change a number of these arguments, which is above 2⁵³. Edit them with the command or the API." }
        };
    }
    html! {
        form data-act="edit" {
            (fields(id, "Arguments", item.arguments_schema.as_ref(), &arguments))
            button.yes { "Review the edited call" }
        }
    }
}

//! The inbox: the calls that wait for a person, each with everything that it would do.

use maud::{Markup, html};
use serde_json::Value;
use windlass_text::SafeText;

use super::markup::{duration, line, marked, query_text, time};
use crate::api::InboxItem;
use crate::call_sheet::{ArgumentText, CallSheet, ChangeText};
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
            form.answer data-act="answer" data-kind=(answer_kind(item.answer_schema.as_ref())) {
                label for={ (id) "-answer" } { "Your answer" }
                @match enum_values(item.answer_schema.as_ref()) {
                    Some(values) => select id={ (id) "-answer" } name="value" { @for value in values { option value=(value) { (SafeText::from_line(&value).as_str()) } } },
                    None => textarea id={ (id) "-answer" } name="value" rows="2" required {},
                }
                @if let Some(schema) = &item.answer_schema { p.dim { "It must match " code { (line(&schema.to_string())) } } }
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
    let properties = item.arguments_schema.as_ref().and_then(|schema| schema["properties"].as_object());
    let fields: Vec<(&String, Value)> = match (properties, arguments.as_object()) {
        (Some(properties), _) => properties.iter().map(|(name, schema)| (name, schema.clone())).collect(),
        (None, Some(values)) => values.keys().map(|name| (name, Value::Null)).collect(),
        (None, None) => Vec::new(),
    };
    html! {
        form data-act="edit" {
            @for (place, (name, schema)) in fields.iter().enumerate() {
                @let field = format!("{id}-f{place}");
                @let value = arguments.get(name.as_str()).cloned().unwrap_or(Value::Null);
                label for=(field) { (line(name)) @if let Some(text) = schema["description"].as_str() { span.dim { " " (line(text)) } } }
                (edit_field(&field, name, schema, &value))
            }
            button.yes { "Review the edited call" }
        }
    }
}

fn edit_field(field: &str, name: &str, schema: &Value, value: &Value) -> Markup {
    let kind = schema["type"].as_str().unwrap_or(match value {
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "boolean",
        _ => "json",
    });
    // A field would show a hidden character as nothing: such a value is edited as JSON, where it is an escape.
    let written = value.to_string();
    let safe = SafeText::from_json(&written).to_string();
    let kind = if kind == "string" && (safe != written || !(value.is_string() || value.is_null())) {
        "json"
    } else {
        kind
    };
    match (kind, enum_values(Some(schema))) {
        ("string", Some(values)) => html! {
            select id=(field) name=(name) data-kind="string" {
                @for option in values { option value=(option) selected[value.as_str() == Some(&option)] { (SafeText::from_line(&option).as_str()) } }
            }
        },
        ("string", None) => html! {
            textarea id=(field) name=(name) data-kind="string" rows=(value.as_str().map_or(1, |text| text.lines().count().clamp(1, 8))) { "\n" (value.as_str().unwrap_or_default()) }
        },
        ("integer" | "number", _) => html! {
            input id=(field) name=(name) data-kind="number" type="number" step=(if kind == "integer" { "1" } else { "any" }) value=(value.to_string());
        },
        ("boolean", _) => {
            html! { input id=(field) name=(name) data-kind="boolean" type="checkbox" checked[value == &Value::Bool(true)]; }
        }
        _ => {
            html! { textarea.mono id=(field) name=(name) data-kind="json" rows="2" { "\n" (safe) } }
        }
    }
}

fn enum_values(schema: Option<&Value>) -> Option<Vec<String>> {
    let values = schema?["enum"].as_array()?;
    values.iter().map(|value| value.as_str().map(str::to_owned)).collect()
}

fn answer_kind(schema: Option<&Value>) -> &str {
    match schema.and_then(|schema| schema["type"].as_str()) {
        None | Some("string") => "string",
        Some(_) => "json",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hidden_characters_of_a_choice_are_visible() {
        let schema = json!({ "type": "string", "enum": ["pay", "do not\u{202e} pay"] });
        let shown = edit_field("f", "answer", &schema, &json!("pay")).into_string();
        assert!(shown.contains(r">do not\u{202e} pay</option>"), "{shown}");
        // The value that is chosen stays as it is.
        assert!(shown.contains("value=\"do not\u{202e} pay\""), "{shown}");
    }
}

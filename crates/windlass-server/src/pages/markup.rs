//! Markup that all pages share: the frame, escaped text, times and durations.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use windlass::core::item::{ContentPart, Item, OutputContent};
use windlass_text::{SafeText, StreamEscaper, format_utc_time};

use crate::addresses::picture_address;
pub(super) use crate::addresses::query_text;
use crate::server::wall_clock_now;

/// Number of characters of a text that are shown before the rest is folded.
const FOLD_CHARS: usize = 2_000;

/// The frame of a page.
pub(super) struct PageFrame<'a> {
    pub(super) title: &'a str,
    /// Path of the current entry of the navigation.
    pub(super) current: &'a str,
    pub(super) person: &'a str,
    pub(super) waiting: usize,
}

impl PageFrame<'_> {
    /// Puts the content of a page into the frame.
    pub(super) fn render(&self, content: &Markup) -> Markup {
        let entries = [
            ("/", "Inbox"),
            ("/runs", "Runs"),
            ("/costs", "Costs"),
            ("/fleet", "Fleet"),
            ("/look", "Open a file"),
        ];
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) " · Windlass" }
                    link rel="stylesheet" href="/assets/inspector.css";
                    link rel="icon" href="/assets/icon.svg" type="image/svg+xml";
                    script src="/assets/inspector.js" defer {}
                }
                body {
                    a.skip href="#main" { "Skip to the content" }
                    header {
                        a.brand href="/" {
                            (PreEscaped(ICON))
                            "windlass"
                        }
                        nav aria-label="Main" {
                            @for (path, name) in entries {
                                a href=(path) aria-current=[(path == self.current).then_some("page")] {
                                    (name)
                                    @if path == "/" {
                                        " " span #waiting-count.count hidden[self.waiting == 0] { (self.waiting) }
                                    }
                                }
                            }
                        }
                        span.live #live title="Updates arrive as they happen" { span.dot {} span.word { "live" } }
                        span.person title="You, as decisions record it" { (SafeText::from_line(self.person).as_str()) }
                        button #log-out type="button" data-act="log-out" hidden { "Log out" }
                    }
                    main #main tabindex="-1" { (content) }
                    div #toast role="status" aria-live="polite" {}
                    dialog #dialog aria-labelledby="dialog-title" {}
                }
            }
        }
    }
}

/// The icon: a drum with a pawl.
pub(super) const ICON: &str = r#"<svg class="icon" viewBox="0 0 20 20" width="20" height="20" aria-hidden="true"><circle cx="10" cy="10" r="6.2" fill="none" stroke="currentColor" stroke-width="1.7"/><circle cx="10" cy="10" r="1.7" fill="currentColor"/><path d="M10 3.8V1.2M10 18.8v-2.6M3.8 10H1.2M18.8 10h-2.6M5.6 5.6 3.8 3.8M16.2 16.2l-1.8-1.8M5.6 14.4l-1.8 1.8M16.2 3.8l-1.8 1.8" stroke="currentColor" stroke-width="1.7" stroke-linecap="round"/></svg>"#;

/// Shows a text that is safe already, with its escapes marked.
pub(super) fn marked(text: &str) -> Markup {
    html! {
        @for (place, part) in text.split("\\u{").enumerate() {
            @if place == 0 {
                (part)
            } @else if let Some((code, rest)) = part.split_once('}') {
                span.esc { "\\u{" (code) "}" } (rest)
            } @else {
                "\\u{" (part)
            }
        }
    }
}

/// Shows untrusted text on one line.
pub(super) fn line(text: &str) -> Markup {
    marked(SafeText::from_line(text).as_str())
}

/// Shows untrusted prose. Line breaks stay; a long text is folded, and all of it is there.
pub(super) fn prose(text: &str) -> Markup {
    let mut escaper = StreamEscaper::default();
    let mut escaped = escaper.escape(text);
    escaped.push_str(escaper.finish());
    let cut = escaped.char_indices().nth(FOLD_CHARS).map(|(place, _)| place);
    html! {
        @match cut {
            Some(cut) => {
                (marked(&escaped[..cut]))
                details.fold { summary { "… " (escaped.len() - cut) " more bytes" } div { (marked(&escaped[cut..])) } }
            }
            None => (marked(&escaped))
        }
    }
}

/// Shows the content of an output.
pub(super) fn output(content: &OutputContent) -> Markup {
    match content {
        OutputContent::Text(text) => prose(text),
        OutputContent::Parts(parts) => html! { @for part in parts { (content_part(part)) } },
    }
}

fn content_part(part: &ContentPart) -> Markup {
    match part {
        ContentPart::Text { text } | ContentPart::Refusal { text } => prose(text),
        ContentPart::Image(source) => {
            let url = source.url.as_deref().unwrap_or("without an address");
            html! {
                @match picture_address(source) {
                    Some(address) => img.shot src=(address) alt="picture in the output" loading="lazy";,
                    None => span.dim { "[picture: " (line(url)) "]" },
                }
            }
        }
        ContentPart::File(source) => {
            let name = source.name.as_deref().or(source.url.as_deref()).unwrap_or("unnamed");
            html! { span.dim { "[file: " (line(name)) "]" } }
        }
        _ => html! { span.dim { "[a part of an unknown type]" } },
    }
}

/// Shows an item of a conversation, as the model receives it.
pub(super) fn item(item: &Item) -> Markup {
    let row = |kind: &str, body: Markup| html! { div.item { span.kind { (kind) } div.body { (body) } } };
    match item {
        Item::Message(message) => {
            let role = match message.role {
                windlass::core::item::Role::System => "system",
                windlass::core::item::Role::User => "user",
                windlass::core::item::Role::Assistant => "assistant",
            };
            row(role, html! { @for part in &message.content { (content_part(part)) } })
        }
        Item::Reasoning(reasoning) => row("reasoning", prose(&reasoning.summary)),
        Item::Call(call) => row(
            "call",
            html! { code { (line(call.id.as_str())) " " b { (line(&call.name)) } " " (line(&call.arguments)) } },
        ),
        Item::Output(given) => {
            row("output", html! { code { (line(given.call.as_str())) " " } (output(&given.content)) })
        }
        Item::Handoff(handoff) => {
            row("handoff", html! { (line(handoff.from.as_str())) " → " (line(handoff.to.as_str())) })
        }
        Item::HostedTool(opaque) | Item::Unknown(opaque) => {
            row(SafeText::from_line(&opaque.kind).as_str(), html! { span.dim { "an item of the provider" } })
        }
        _ => row("item", html! {}),
    }
}

/// Shows a time: relative for people, exact on demand. The script keeps it current.
pub(super) fn time(at: u64) -> Markup {
    html! { time data-at=(at) datetime=(format_utc_time(at)) title=(format_utc_time(at)) { (relative_text(at)) } }
}

fn relative_text(at: u64) -> String {
    let now = wall_clock_now().0;
    match now.checked_sub(at) {
        Some(ago) if ago < 5_000 => "just now".to_owned(),
        // Nobody reads tenths of an age.
        Some(ago) if ago < 60_000 => format!("{} s ago", ago / 1_000),
        Some(ago) => format!("{} ago", duration(ago)),
        None => format!("in {}", duration(at - now)),
    }
}

/// Writes a duration in milliseconds briefly.
pub(super) fn duration(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        60_000..3_600_000 => format!("{} min", ms / 60_000),
        3_600_000..172_800_000 => format!("{} h", ms / 3_600_000),
        _ => format!("{} days", ms / 86_400_000),
    }
}

/// Writes a number with separators.
pub(super) fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut written = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            written.push(',');
        }
        written.push(digit);
    }
    written
}

/// Returns the tone of a status of a run.
pub(super) fn status_tone(status: &str) -> &'static str {
    match status {
        "paused" | "queued" => "waiting",
        "running" => "active",
        "finished" => "good",
        "failed" => "bad",
        _ => "quiet",
    }
}

/// Returns the word for a status of a run.
pub(super) fn status_word(status: &str) -> &str {
    match status {
        "paused" => "waits",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_marked_and_markup_is_escaped() {
        assert_eq!(line("a\u{202e}<b>").into_string(), "a<span class=\"esc\">\\u{202e}</span>&lt;b&gt;");
        assert_eq!(prose("one\ntwo").into_string(), "one\ntwo");
        let long = "x".repeat(FOLD_CHARS + 5);
        assert_eq!(prose(&long).into_string().matches('x').count(), FOLD_CHARS + 5);
    }

    #[test]
    fn times_and_numbers_are_written_for_people() {
        assert_eq!((number(1_234_567).as_str(), number(12).as_str()), ("1,234,567", "12"));
        assert_eq!((duration(40).as_str(), duration(1_250).as_str()), ("40 ms", "1.2 s"));
    }
}

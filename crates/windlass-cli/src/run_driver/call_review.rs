//! The text that a person reads before deciding about a call: all of it, and its digest.

use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use windlass::core::{
    canonical::{Digest, with_canonical_text},
    decision::{HoldReason, PendingCall},
    id::RunId,
};
use windlass::tool::CallEvidence;
use windlass_text::SafeText;

use crate::agent_file::{AgentFile, ChangePreview, PreviewStatus};
use crate::terminal::{StyledText, TextStyle, paint, styled};

/// Maximum width of the column of argument names.
const MAX_NAME_WIDTH: usize = 16;

/// A call as it is displayed for a decision. It leaves nothing out: every argument, and every line of a diff.
#[derive(Clone, Debug)]
pub(crate) struct CallReview {
    title: StyledText,
    body: Vec<StyledText>,
    digest: Digest,
    refusal: Option<String>,
}

impl CallReview {
    /// Creates the review of a pending call. `file` is the agent file of the run, for the diff of a change.
    pub(crate) fn new(run: &RunId, pending: &PendingCall, file: Option<&AgentFile>) -> Self {
        let preview = match pending.reason {
            HoldReason::Question(_) => None,
            _ => file.and_then(|file| file.preview_change(pending.tool.name(), &pending.arguments)),
        };
        let refusal = preview.as_ref().and_then(|preview| match &preview.status {
            PreviewStatus::Refused => Some(preview.title.clone()),
            PreviewStatus::Applicable => None,
        });
        let (title, mut body) = title_lines(pending);
        if !pending.context_sources.is_empty() {
            let text =
                format!("The model could read text from {} before this call.", pending.context_sources);
            body.push(paint(TextStyle::Waiting, text));
        }
        body.extend(match preview {
            Some(preview) => diff_lines(&preview),
            None => argument_lines(&pending.arguments),
        });
        let text = |lines: &[StyledText]| {
            lines.iter().map(|line| line.plain().as_str().to_owned() + "\n").collect::<String>()
        };
        let digest = Digest::of_parts(&[
            "windlass review",
            run.as_str(),
            &pending.path.to_string(),
            &pending.attempt.to_string(),
            &pending.digest.to_string(),
            title.plain().as_str(),
            &text(&body),
        ]);
        Self { title, body, digest, refusal }
    }

    /// Adds the evidence that the call's tool saved, and the path of the file that has its picture. The digest covers the
    /// evidence, but not the path, which is another one for every user.
    pub(crate) fn with_evidence(mut self, evidence: &CallEvidence, picture: Option<&Path>) -> Self {
        let lines = SafeText::from_lines(&evidence.summary).into_iter();
        self.body.extend(lines.map(|line| paint(TextStyle::Name, line)));
        if let Some(path) = picture {
            let path = SafeText::from_line(&path.display().to_string());
            self.body.push(styled!["The picture is ", path]);
        }
        self.digest = Digest::of_parts(&[
            "windlass review with evidence",
            &self.digest.to_string(),
            &evidence.digest().to_string(),
        ]);
        self
    }

    /// Returns the digest of the displayed text, of the call and of its run.
    pub(crate) fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns the reason why the call would be refused if it ran now.
    pub(crate) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Returns the lines to display, broken to `width` columns, or unbroken without one. Every line but the first
    /// begins with a bar, and a line that continues the line before it with a dashed one, so that the text of a call
    /// cannot imitate a line.
    pub(crate) fn lines(&self, width: Option<usize>) -> Vec<StyledText> {
        let mut lines = Vec::new();
        let body = self.body.iter().map(|line| (line, "│ "));
        for (line, bar) in std::iter::once((&self.title, "")).chain(body) {
            let room = width.map_or(usize::MAX, |width| width.saturating_sub(5));
            for (place, part) in line.wrap(room).into_iter().enumerate() {
                let bar = paint(TextStyle::Faint, if place == 0 { bar } else { "┊ " });
                lines.push(styled!["  ", bar, part]);
            }
        }
        lines
    }
}

/// Returns the title of a review, and the lines of the body that belong to it.
fn title_lines(pending: &PendingCall) -> (StyledText, Vec<StyledText>) {
    let (agent, tool) = (&pending.agent, &pending.tool);
    let waiting = |text: String| paint(TextStyle::Waiting, text);
    match &pending.reason {
        HoldReason::InDoubt => {
            (waiting(format!("{tool} had started when its process ended. Did it happen?")), Vec::new())
        }
        HoldReason::Question(question) => {
            let mut lines = SafeText::from_lines(&question.text).into_iter();
            let first = lines.next().unwrap_or_default();
            let schema = question.schema.iter().map(|schema| {
                let schema = SafeText::from_json(&schema.to_string());
                paint(TextStyle::Faint, format!("The answer must match {schema}"))
            });
            let rest = lines.map(|line| paint(TextStyle::Waiting, line)).chain(schema).collect();
            (waiting(format!("{tool} asks: {first}")), rest)
        }
        _ => (waiting(format!("{agent} would like to call {tool}:")), Vec::new()),
    }
}

/// Colours the lines of a diff.
fn diff_lines(preview: &ChangePreview) -> Vec<StyledText> {
    let mut shown = vec![StyledText::from(&preview.title)];
    shown.extend(preview.lines.iter().map(|line| {
        let style = match line.chars().next() {
            Some('+') => TextStyle::Success,
            Some('-') => TextStyle::Failure,
            Some('@') => TextStyle::Name,
            _ => TextStyle::Faint,
        };
        // A tab is shown as an arrow, because a diff is full of them.
        let parts: Vec<SafeText> = line.split('\t').map(SafeText::from_line).collect();
        let parts: Vec<&str> = parts.iter().map(SafeText::as_str).collect();
        paint(style, parts.join("→   "))
    }));
    shown
}

/// Formats the arguments, each on one line or more. A string is a literal, so that nothing in it is ambiguous; a
/// line break is shown as `\n` and also breaks the line.
fn argument_lines(arguments: &str) -> Vec<StyledText> {
    let parsed = with_canonical_text(arguments, |canonical| serde_json::from_str::<RawFields>(canonical));
    let Ok(Ok(RawFields(fields))) = parsed else {
        return vec![StyledText::from(SafeText::quote(arguments))];
    };
    let names: Vec<SafeText> = fields.iter().map(|(name, _)| argument_name(name)).collect();
    let name_width = names.iter().map(SafeText::width).max().unwrap_or(0).min(MAX_NAME_WIDTH);
    let mut lines = Vec::new();
    for (name, (_, value)) in names.iter().zip(&fields) {
        for (place, part) in value_lines(value.get()).into_iter().enumerate() {
            let name = if place == 0 { name.pad(name_width) } else { SafeText::default().pad(name_width) };
            lines.push(styled![name, "  ", part]);
        }
    }
    if lines.is_empty() {
        lines.push("no arguments".into());
    }
    lines
}

/// Returns an argument's name: bare if it is an ordinary identifier, and a literal if it is not.
fn argument_name(name: &str) -> SafeText {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    if !name.is_empty() && name.chars().all(is_plain) {
        SafeText::from_line(name)
    } else {
        SafeText::quote(name)
    }
}

/// Formats a JSON value: a string as a literal, anything else as JSON.
fn value_lines(json: &str) -> Vec<SafeText> {
    let Ok(text) = serde_json::from_str::<String>(json) else { return vec![SafeText::from_json(json)] };
    let quote = SafeText::from_line("\"");
    let mut lines = vec![quote.clone()];
    for (place, line) in text.split_inclusive('\n').enumerate() {
        if place > 0 {
            lines.push(SafeText::default());
        }
        if let Some(last) = lines.last_mut() {
            last.push(&SafeText::quote_inner(line));
        }
    }
    if let Some(last) = lines.last_mut() {
        last.push(&quote);
    }
    lines
}

/// The fields of a JSON object in their order, with values as they were written.
struct RawFields(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for RawFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;
        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = RawFields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawFields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(RawFields(fields))
            }
        }
        deserializer.deserialize_map(FieldsVisitor)
    }
}

#[cfg(test)]
#[path = "call_review_tests.rs"]
mod tests;

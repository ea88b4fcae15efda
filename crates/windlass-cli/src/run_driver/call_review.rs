//! The text that a person reads before deciding about a call: all of it, and its digest.

use std::path::Path;

use windlass::core::{
    canonical::{Digest, with_canonical_text},
    decision::{HoldReason, PendingCall},
    id::RunId,
};
use windlass::tool::CallEvidence;
use windlass_text::{ArgumentText, SafeText, format_arguments, format_diff_line, format_utc_time};

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
            _ => file.and_then(|file| file.preview_change(&pending.tool, &pending.arguments)),
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
        // A refused change has no diff, and it may be possible when the call runs.
        let has_diff = preview.as_ref().is_some_and(|preview| preview.status == PreviewStatus::Applicable);
        body.extend(preview.iter().flat_map(diff_lines));
        if !has_diff {
            body.extend(argument_lines(&pending.arguments));
        }
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
            let seen = pending.last_driver_seen.map(|seen| {
                waiting(format!("The driver before this one was last seen at {}.", format_utc_time(seen.0)))
            });
            let title = format!("{tool} had started when its process ended. Did it happen?");
            (waiting(title), seen.into_iter().collect())
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
        paint(style, format_diff_line(line))
    }));
    shown
}

/// Formats the arguments, each on one line or more.
fn argument_lines(arguments: &str) -> Vec<StyledText> {
    let parsed = with_canonical_text(arguments, format_arguments);
    let Ok(Some(arguments)) = parsed else { return vec![StyledText::from(SafeText::quote(arguments))] };
    let widths = arguments.iter().map(|argument| argument.name.width());
    let name_width = widths.max().unwrap_or(0).min(MAX_NAME_WIDTH);
    let mut lines = Vec::new();
    for ArgumentText { name, lines: parts } in &arguments {
        for (place, part) in parts.iter().enumerate() {
            let name = if place == 0 { name.pad(name_width) } else { SafeText::default().pad(name_width) };
            lines.push(styled![name, "  ", part.clone()]);
        }
    }
    if lines.is_empty() {
        lines.push("no arguments".into());
    }
    lines
}

#[cfg(test)]
#[path = "call_review_tests.rs"]
mod tests;

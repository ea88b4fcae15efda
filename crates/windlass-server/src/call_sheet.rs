//! The text that a person reads before deciding about a call: all of it, and its digest.
//!
//! A decision names the digest of the sheet that was displayed. If anything on the sheet has changed since, such as the
//! file that a change applies to, the decision is refused and the new sheet is shown.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use windlass::core::{
    canonical::{Digest, with_canonical_text},
    decision::{DecisionScope, HoldReason, PendingCall},
    id::RunId,
    tool::ToolEffect,
};
use windlass::tool::CallEvidence;
use windlass_text::{SafeText, format_arguments, format_diff_line};

use crate::addresses::picture_address;

/// A preview of the change that a call would make, for the approver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallPreview {
    /// One line that names the change.
    pub title: String,
    /// True if the call would be refused if it ran now.
    pub is_refused: bool,
    /// The lines of the change in unified form: `+`, `-`, `@` or a space, then the text.
    pub lines: Vec<String>,
}

/// A function that previews the change that a call would make; `None` if it makes none that can be shown.
pub type PreviewFunction = Arc<dyn Fn(&RunId, &PendingCall) -> Option<CallPreview> + Send + Sync>;

/// A call as it is displayed for a decision. It leaves nothing out. Every text on it is escaped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct CallSheet {
    /// Sentence that says what is asked.
    pub(crate) title: String,
    /// Further lines of a question.
    pub(crate) question: Vec<String>,
    /// Facts about the call: its effect and its sources.
    pub(crate) notes: Vec<String>,
    /// The arguments, in full.
    pub(crate) arguments: Vec<ArgumentText>,
    /// The change that the call would make, if it can be shown.
    pub(crate) change: Option<ChangeText>,
    /// What the tool saw when the call was held, if it has saved that.
    pub(crate) evidence: Option<EvidenceText>,
    /// The calls that an approval covers.
    pub(crate) covers: String,
    /// The calls that an approval for the run would cover; absent if the tool requires approval every time.
    pub(crate) covers_always: Option<String>,
    /// Digest of the sheet, of the call and of its run.
    pub(crate) digest: String,
}

/// An argument as it is displayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct ArgumentText {
    pub(crate) name: String,
    /// The value as literal text. A line break in it is shown as `\n` and also breaks the line.
    pub(crate) lines: Vec<String>,
}

/// A change as it is displayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct ChangeText {
    pub(crate) title: String,
    pub(crate) is_refused: bool,
    pub(crate) lines: Vec<String>,
}

/// The evidence of a call as it is displayed: the screen that a click would hit, for example.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct EvidenceText {
    /// The sentences of the tool.
    pub(crate) lines: Vec<String>,
    /// Address of the picture, if there is one.
    pub(crate) picture: Option<String>,
    /// Digest of the whole evidence.
    pub(crate) digest: String,
}

impl EvidenceText {
    fn new(evidence: &CallEvidence) -> Self {
        Self {
            lines: SafeText::from_lines(&evidence.summary).iter().map(SafeText::to_string).collect(),
            picture: evidence.picture.as_ref().and_then(picture_address),
            digest: evidence.digest().to_string(),
        }
    }
}

impl CallSheet {
    /// Creates the sheet of a pending call.
    pub(crate) fn new(
        run: &RunId,
        pending: &PendingCall,
        effect: Option<ToolEffect>,
        preview: Option<CallPreview>,
        evidence: Option<&CallEvidence>,
    ) -> Self {
        let line = |text: &str| SafeText::from_line(text).to_string();
        let (title, question) = title_of(pending);
        let mut notes: Vec<String> = effect.map(describe_effect).into_iter().map(str::to_owned).collect();
        if !pending.context_sources.is_empty() {
            let sources = line(&pending.context_sources.to_string());
            notes.push(format!("The model could read text from {sources} before this call."));
        }
        let change = preview.map(|preview| ChangeText {
            title: line(&preview.title),
            is_refused: preview.is_refused,
            lines: preview.lines.iter().map(|text| format_diff_line(text).to_string()).collect(),
        });
        let mut sheet = Self {
            title,
            question,
            notes,
            arguments: argument_texts(&pending.arguments),
            change,
            evidence: evidence.map(EvidenceText::new),
            covers: "This call alone.".to_owned(),
            covers_always: (pending.max_approval_scope == DecisionScope::ToolForRun
                && pending.reason == HoldReason::Approval)
                .then(|| {
                    let (tool, agent) = (line(&pending.tool.to_string()), line(pending.agent.as_str()));
                    format!("Every later call of {tool} by {agent} in this run, whatever its arguments.")
                }),
            digest: String::new(),
        };
        sheet.digest = sheet.compute_digest(run, pending).to_string();
        sheet
    }

    fn compute_digest(&self, run: &RunId, pending: &PendingCall) -> Digest {
        let shown = serde_json::to_string(self).unwrap_or_default();
        Digest::of_parts(&[
            "windlass sheet",
            run.as_str(),
            &pending.path.to_string(),
            &pending.attempt.to_string(),
            &pending.digest.to_string(),
            &shown,
        ])
    }
}

/// Describes the effect of a tool to an approver.
pub(crate) fn describe_effect(effect: ToolEffect) -> &'static str {
    match effect {
        ToolEffect::Pure => "Has no side effects.",
        ToolEffect::Idempotent => "Repeating it with the same key has no further effect.",
        ToolEffect::Once => "Takes effect once: it must not happen twice.",
    }
}

fn title_of(pending: &PendingCall) -> (String, Vec<String>) {
    let agent = SafeText::from_line(pending.agent.as_str());
    let tool = SafeText::from_line(&pending.tool.to_string());
    match &pending.reason {
        HoldReason::InDoubt => {
            (format!("{tool} had started when its process ended. Did it happen?"), Vec::new())
        }
        HoldReason::Question(question) => {
            let mut lines = SafeText::from_lines(&question.text).into_iter().map(|line| line.to_string());
            let first = lines.next().unwrap_or_default();
            (format!("{tool} asks: {first}"), lines.collect())
        }
        _ => (format!("{agent} would like to call {tool}."), Vec::new()),
    }
}

/// Formats the arguments.
pub(crate) fn argument_texts(arguments: &str) -> Vec<ArgumentText> {
    let Ok(Some(formatted)) = with_canonical_text(arguments, format_arguments) else {
        let lines = vec![SafeText::quote(arguments).to_string()];
        return vec![ArgumentText { name: "not an object".to_owned(), lines }];
    };
    let texts = |lines: Vec<SafeText>| lines.iter().map(SafeText::to_string).collect();
    formatted
        .into_iter()
        .map(|argument| ArgumentText { name: argument.name.to_string(), lines: texts(argument.lines) })
        .collect()
}

#[cfg(test)]
mod tests {
    use windlass::core::{id::CallPath, provenance::ContentSources, tool::ToolKey};

    use super::*;

    #[test]
    fn the_digest_covers_what_the_tool_saw() {
        let pending = PendingCall {
            path: CallPath::from("c1"),
            agent: "clerk".into(),
            tool: ToolKey::Bare("click".into()),
            arguments: "{}".to_owned(),
            reason: HoldReason::Approval,
            attempt: 0,
            digest: Digest::of_text("click {}"),
            expires_at: None,
            max_approval_scope: DecisionScope::ThisCall,
            last_driver_seen: None,
            context_sources: ContentSources::default(),
            posted: None,
        };
        let digest = |evidence: Option<CallEvidence>| {
            CallSheet::new(&"r".into(), &pending, None, None, evidence.as_ref()).digest
        };
        let cheap = CallEvidence::new("button \"Pay 40\"");
        // Two screens may have the same sentences.
        let other_page = cheap.clone().with_details(serde_json::json!({ "page": "other" }));
        let digests = [None, Some(cheap), Some(CallEvidence::new("button \"Pay 4000\"")), Some(other_page)];
        let digests: std::collections::BTreeSet<String> = digests.into_iter().map(digest).collect();
        assert_eq!(digests.len(), 4);
    }
}

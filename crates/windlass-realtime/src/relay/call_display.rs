//! The text of a call that a person reads before deciding.

use windlass::core::canonical::{Digest, canonical_json};
use windlass::core::decision::{DecisionScope, HoldReason};
use windlass_text::SafeText;

use crate::event::HeldCall;
use crate::session::HeldCallEvidence;

/// A held call as a client displays it. It leaves nothing out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallDisplay {
    /// The lines to display. A relay escapes hidden characters in them.
    pub lines: Vec<String>,
    /// A picture of what the tool saw, as a `data:` URL. The page that displays it loads nothing else.
    pub picture: Option<String>,
    /// The digest of the displayed text, which the journal records with the decision.
    pub digest: Digest,
    /// True if a decision may also cover later calls of the tool.
    pub offers_standing: bool,
}

impl CallDisplay {
    /// Creates the display of a call: the agent, the tool, and every argument.
    pub fn new(held: &HeldCall) -> Self {
        let HeldCall { run, pending } = held;
        let (agent, tool) = (&pending.agent, &pending.tool);
        let mut lines = match &pending.reason {
            HoldReason::InDoubt => vec![format!("{tool} had started when its process ended. Did it happen?")],
            HoldReason::Question(question) => vec![format!("{tool} asks: {}", question.text)],
            _ => vec![format!("{agent} would like to call {tool}:")],
        };
        if !pending.context_sources.is_empty() {
            lines.push(format!(
                "The model could read text from {} before this call.",
                pending.context_sources
            ));
        }
        match pending.arguments_value() {
            serde_json::Value::Object(fields) if !fields.is_empty() => {
                lines.extend(fields.iter().map(|(name, value)| {
                    format!("{}: {}", SafeText::quote(name), SafeText::from_json(&canonical_json(value)))
                }));
            }
            serde_json::Value::Object(_) => lines.push("no arguments".to_owned()),
            _ => lines.push(SafeText::quote(&pending.arguments).to_string()),
        }
        let digest = Digest::of_parts(&[
            "windlass relay display",
            run.as_str(),
            &pending.path.to_string(),
            &pending.attempt.to_string(),
            &pending.digest.to_string(),
            &lines.join("\n"),
        ]);
        let offers_standing = pending.max_approval_scope == DecisionScope::ToolForRun;
        Self { lines, picture: None, digest, offers_standing }
    }

    /// Adds what the tool saw when its call was held. The digest covers it, also the picture.
    #[must_use]
    pub fn with_evidence(mut self, evidence: &HeldCallEvidence) -> Self {
        let HeldCallEvidence { evidence, picture } = evidence;
        self.lines.extend(evidence.summary.lines().map(str::to_owned));
        self.picture.clone_from(picture);
        let (before, seen) = (self.digest.to_string(), evidence.digest().to_string());
        self.digest = Digest::of_parts(&["windlass relay evidence", &before, &seen]);
        self
    }
}

//! Summaries of removed parts of a conversation.

use std::sync::Arc;

use windlass_core::{
    id::AgentName,
    item::{Item, Message, Role},
    provenance::ContentSources,
    usage::Usage,
};

use super::{estimate_item, estimate_text};
use crate::model::{DeltaSink, ModelError, ModelRequest, ModelSettings, SharedModel, describe_item};

/// Instructions of the summarising model.
const SUMMARY_PROMPT: &str = "Summarise this conversation for yourself, so that you can go on without it. Keep names, \
                   numbers, decisions and what was done.";
/// Heading of a summary in the conversation.
const SUMMARY_HEADING: &str = "[Summary of the conversation so far]";

/// The summary of a conversation, and its cost.
pub(crate) struct ModelSummary {
    pub(crate) text: String,
    pub(crate) usage: Usage,
    /// The model that responded, as its provider names it.
    pub(crate) model: Option<String>,
}

/// Returns an estimate of the tokens of a request for a summary.
pub(crate) fn estimate_summary(items: &[Arc<Item>], max_bytes: usize) -> u64 {
    let transcript: u64 = items.iter().map(|item| estimate_item(item)).sum();
    // No text has more tokens than bytes.
    estimate_text(SUMMARY_PROMPT).saturating_add(transcript.min(u64::try_from(max_bytes).unwrap_or(u64::MAX)))
}

/// Summarises items with a model. At most `max_bytes` of the transcript are sent, its beginning and its end.
pub(crate) async fn summarise(
    model: &SharedModel,
    items: &[Arc<Item>],
    max_bytes: usize,
) -> Result<ModelSummary, ModelError> {
    let transcript: Vec<String> = items.iter().map(|item| describe_item(item)).collect();
    let input = [Arc::new(Item::user(shorten_middle(&transcript.join("\n"), max_bytes)))];
    let (agent, settings) = (AgentName::from("summary"), ModelSettings::default());
    let request = ModelRequest {
        agent: &agent,
        turn: 1,
        instructions: Some(SUMMARY_PROMPT),
        input: &input,
        tools: &[],
        deferred_tools: &[],
        handoffs: &[],
        settings: &settings,
        output_schema: None,
        previous_response_id: None,
        conversation_id: None,
    };
    let answer = model.respond(request, &DeltaSink::discarding()).await?;
    let said = answer.items.iter().filter_map(|item| match &**item {
        Item::Message(message) => Some(message.text()),
        _ => None,
    });
    let text = said.collect::<Vec<_>>().join("\n");
    let usage = answer.usage.unwrap_or_else(Usage::of_unknown_request);
    Ok(ModelSummary { text, usage, model: answer.model })
}

/// Returns the message that stands for the summarised items. It has their sources, because it may repeat their text.
pub(crate) fn summary_item(summary: &str, removed: &[Arc<Item>]) -> Arc<Item> {
    let text = format!("{SUMMARY_HEADING}\n{summary}");
    let sources = ContentSources::of_items(removed);
    Arc::new(Item::Message(Message::new(Role::User, text).with_sources(sources)))
}

/// Returns the message that stands for removed items without a summary.
pub(crate) fn removal_note() -> Arc<Item> {
    let text = "[Earlier parts of this conversation were removed, because they exceed the context window.]";
    Arc::new(Item::Message(Message::new(Role::User, text)))
}

/// Returns the beginning and the end of a text that is too long.
pub(super) fn shorten_middle(text: &str, max_bytes: usize) -> String {
    if text.len() <= max_bytes {
        return text.to_owned();
    }
    let half = max_bytes / 2;
    let head = (0..=half).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let tail = (text.len() - half..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    format!("{}\n[… {} bytes removed …]\n{}", &text[..head], tail - head, &text[tail..])
}

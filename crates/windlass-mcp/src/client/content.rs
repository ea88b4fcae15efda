//! Conversion of a server's `CallToolResult` into the tool output for the model.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde::Serialize;
use serde_json::Value;
use windlass::core::schema::{CompiledSchema, describe_violations};
use windlass::core::{canonical::canonical_json, item::MediaSource};
use windlass::tool::ToolError;
use windlass::tool::{FilePart, ImagePart, TextPart};

/// Maximum number of content blocks of one result that are passed on.
const MAX_OUTPUT_PARTS: usize = 256;

/// Maximum number of bytes of a result that are quoted if it does not match its schema.
const MAX_MISMATCH_BYTES: usize = 4 * 1024;

/// The output of a call: plain text if the result is one text block, parts otherwise.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum McpToolOutput {
    Text(String),
    Parts(Vec<McpOutputPart>),
}

#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum McpOutputPart {
    Text(TextPart),
    Image(ImagePart),
    File(FilePart),
}

/// Converts a result into the tool output for the model.
///
/// # Errors
///
/// Returns an error that the model sees, with the server's text, if the server reports a failure or if the result
/// does not match the tool's output schema.
pub(crate) fn convert_result(
    result: CallToolResult,
    expected: Option<&CompiledSchema>,
) -> Result<McpToolOutput, ToolError> {
    let failed = result.is_error == Some(true);
    let problem = match expected {
        Some(expected) if !failed => schema_mismatch(expected, result.structured_content.as_ref()),
        Some(_) | None => None,
    };
    let mut parts: Vec<McpOutputPart> =
        result.content.into_iter().take(MAX_OUTPUT_PARTS).map(convert_block).collect();
    if let Some(structured) = result.structured_content {
        // Servers should repeat structured content as text; it is added only if they do not.
        let words: String = parts.iter().filter_map(McpOutputPart::as_text).collect();
        if !is_covered_by_text(&structured, &words) {
            parts.push(McpOutputPart::Text(TextPart(structured.to_string())));
        }
    }
    if failed {
        let words: Vec<&str> = parts.iter().filter_map(McpOutputPart::as_text).collect();
        let words = words.join("\n");
        return Err(ToolError::visible(if words.is_empty() { "the tool failed".to_owned() } else { words }));
    }
    if let Some(problem) = problem {
        let words: Vec<&str> = parts.iter().filter_map(McpOutputPart::as_text).collect();
        return Err(ToolError::visible(format!(
            "The call was made, and its result is not what the server says it gives: {problem}. It gave: {}",
            truncate_text(&words.join("\n"))
        )));
    }
    Ok(match parts.as_mut_slice() {
        [] => McpToolOutput::Text(String::new()),
        [McpOutputPart::Text(TextPart(text))] => McpToolOutput::Text(std::mem::take(text)),
        _ => McpToolOutput::Parts(parts),
    })
}

/// Describes how a structured result violates its schema; `None` if it matches.
fn schema_mismatch(expected: &CompiledSchema, given: Option<&Value>) -> Option<String> {
    let Some(given) = given else { return Some("it has no structured part".to_owned()) };
    let problems = expected.validate_text(&canonical_json(given));
    (!problems.is_empty()).then(|| describe_violations(&problems))
}

fn truncate_text(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_MISMATCH_BYTES)]
}

impl McpOutputPart {
    fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(TextPart(text)) => Some(text),
            Self::Image(_) | Self::File(_) => None,
        }
    }
}

/// Returns true if every leaf of a JSON value occurs in the text.
fn is_covered_by_text(value: &Value, words: &str) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(_) | Value::Number(_) => words.contains(&value.to_string()),
        Value::String(text) => words.contains(text.as_str()),
        Value::Array(items) => !words.is_empty() && items.iter().all(|item| is_covered_by_text(item, words)),
        Value::Object(fields) => {
            !words.is_empty() && fields.values().all(|field| is_covered_by_text(field, words))
        }
    }
}

fn convert_block(block: ContentBlock) -> McpOutputPart {
    match block {
        ContentBlock::Text(text) => McpOutputPart::Text(TextPart(text.text)),
        ContentBlock::Image(image) => McpOutputPart::Image(ImagePart::from_url(format!(
            "data:{};base64,{}",
            image.mime_type, image.data
        ))),
        ContentBlock::Audio(audio) => McpOutputPart::File(FilePart(MediaSource {
            data: Some(audio.data),
            media_type: Some(audio.mime_type),
            ..MediaSource::default()
        })),
        ContentBlock::Resource(resource) => match resource.resource {
            ResourceContents::TextResourceContents { text, .. } => McpOutputPart::Text(TextPart(text)),
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                McpOutputPart::File(FilePart(MediaSource {
                    name: Some(uri),
                    data: Some(blob),
                    media_type: mime_type,
                    ..MediaSource::default()
                }))
            }
            other => json_text_part(&other),
        },
        other => json_text_part(&other),
    }
}

fn json_text_part<T: Serialize>(value: &T) -> McpOutputPart {
    McpOutputPart::Text(TextPart(serde_json::to_string(value).unwrap_or_default()))
}

#[cfg(test)]
#[path = "content_tests.rs"]
mod tests;

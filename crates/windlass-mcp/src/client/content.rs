//! Conversion of a server's tool result into the tool output for the model.
//!
//! **Invariant:** nothing is dropped without a word. Content of unknown types is kept as JSON, structured content is
//! kept unless the text is the same JSON, resources keep their URI, and parts above the limit are counted.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde::Serialize;
use serde_json::Value;
use windlass::core::schema::{CompiledSchema, describe_violations};
use windlass::core::{canonical::canonical_json, item::ContentPart, item::MediaSource};
use windlass::tool::ToolError;
use windlass::tool::{FilePart, ImagePart, TextPart};

/// Maximum number of content blocks of one result that are passed on.
const MAX_OUTPUT_PARTS: usize = 1024;

/// Maximum number of bytes of a result that are quoted if it does not match its schema.
const MAX_MISMATCH_BYTES: usize = 4 * 1024;

/// The result of a call as the server sent it.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ServerToolResult {
    content: Vec<ServerContent>,
    structured_content: Option<Value>,
    is_error: bool,
}

/// One content block of a result.
#[derive(Debug, PartialEq)]
enum ServerContent {
    Known(Box<ContentBlock>),
    /// A block that does not match the protocol's schema.
    Unknown(Value),
}

impl From<CallToolResult> for ServerToolResult {
    fn from(result: CallToolResult) -> Self {
        Self {
            content: result.content.into_iter().map(|block| ServerContent::Known(Box::new(block))).collect(),
            structured_content: result.structured_content,
            is_error: result.is_error == Some(true),
        }
    }
}

impl ServerToolResult {
    /// Reads a result whose parts do not all match the protocol's schema. Returns `None` if the value is no result.
    pub(super) fn from_value(mut value: Value) -> Option<Self> {
        let content = match value.get_mut("content").map(Value::take) {
            Some(Value::Array(blocks)) => blocks,
            Some(Value::Null) | None => Vec::new(),
            Some(other) => vec![other],
        };
        let structured_content = value.get_mut("structuredContent").map(Value::take);
        if content.is_empty() && structured_content.is_none() && value.get("content").is_none() {
            return None;
        }
        let content = content.into_iter().map(|block| match serde_json::from_value(block.clone()) {
            Ok(known) => ServerContent::Known(Box::new(known)),
            Err(_) => ServerContent::Unknown(block),
        });
        Some(Self {
            content: content.collect(),
            structured_content,
            is_error: value.get("isError") == Some(&Value::Bool(true)),
        })
    }
}

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
    result: ServerToolResult,
    expected: Option<&CompiledSchema>,
) -> Result<McpToolOutput, ToolError> {
    let failed = result.is_error;
    let problem = match expected {
        Some(expected) if !failed => schema_mismatch(expected, result.structured_content.as_ref()),
        Some(_) | None => None,
    };
    let surplus = result.content.len().saturating_sub(MAX_OUTPUT_PARTS);
    let mut parts: Vec<McpOutputPart> =
        result.content.into_iter().take(MAX_OUTPUT_PARTS).flat_map(convert_content).collect();
    if surplus > 0 {
        parts.push(text_part(format!("[{surplus} more parts of this result were left out]")));
    }
    if let Some(structured) = result.structured_content {
        // Servers should repeat structured content as text; it is added only if they do not.
        let texts: Vec<&str> = parts.iter().filter_map(McpOutputPart::as_text).collect();
        let is_repeated = is_repeated_as_text(&structured, &texts);
        if !is_repeated {
            parts.push(text_part(structured.to_string()));
        }
    }
    if failed {
        let words: Vec<&str> = parts.iter().filter_map(McpOutputPart::as_text).collect();
        let words = words.join("\n");
        let error = ToolError::visible(if words.is_empty() { "the tool failed".to_owned() } else { words });
        return Err(parts
            .into_iter()
            .filter_map(McpOutputPart::into_media)
            .fold(error, ToolError::with_attachments));
    }
    if let Some(problem) = problem {
        let words: Vec<&str> = parts.iter().filter_map(McpOutputPart::as_text).collect();
        return Err(ToolError::effect_unknown(format!(
            "The call was made, but its result does not match the output schema of the tool: {problem}. The result \
             was: {}",
            truncate_text(&words.join("\n"))
        )));
    }
    Ok(match <[McpOutputPart; 1]>::try_from(parts) {
        Ok([McpOutputPart::Text(TextPart(text))]) => McpToolOutput::Text(text),
        Ok(single) => McpToolOutput::Parts(single.into()),
        Err(parts) => McpToolOutput::Parts(parts),
    })
}

/// Returns true if a text is the structured content: as JSON, or as the only field of an object, in which many servers wrap
/// their text.
fn is_repeated_as_text(structured: &Value, texts: &[&str]) -> bool {
    let only_field = match structured {
        Value::Object(fields) if fields.len() == 1 => fields.values().next().and_then(Value::as_str),
        _ => None,
    };
    texts.iter().any(|text| {
        Some(*text) == only_field
            || serde_json::from_str::<Value>(text).is_ok_and(|value| value == *structured)
    })
}

/// Describes how a structured result violates its schema; `None` if it matches.
fn schema_mismatch(expected: &CompiledSchema, given: Option<&Value>) -> Option<String> {
    let Some(given) = given else { return Some("it has no structured part".to_owned()) };
    let problems = expected.validate_text(&canonical_json(given));
    (!problems.is_empty()).then(|| describe_violations(&problems))
}

fn truncate_text(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_MISMATCH_BYTES);
    match text.len() - end {
        0 => text.to_owned(),
        rest => format!("{} [{rest} more bytes]", &text[..end]),
    }
}

impl McpOutputPart {
    fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(TextPart(text)) => Some(text),
            Self::Image(_) | Self::File(_) => None,
        }
    }

    fn into_media(self) -> Option<ContentPart> {
        match self {
            Self::Text(_) => None,
            Self::Image(ImagePart(media)) => Some(ContentPart::Image(media)),
            Self::File(FilePart(media)) => Some(ContentPart::File(media)),
        }
    }
}

fn text_part(text: String) -> McpOutputPart {
    McpOutputPart::Text(TextPart(text))
}

fn convert_content(content: ServerContent) -> Vec<McpOutputPart> {
    match content {
        ServerContent::Known(block) => convert_block(*block),
        ServerContent::Unknown(value) => vec![text_part(value.to_string())],
    }
}

fn convert_block(block: ContentBlock) -> Vec<McpOutputPart> {
    vec![match block {
        ContentBlock::Text(text) => text_part(text.text),
        ContentBlock::Image(image) => McpOutputPart::Image(ImagePart::from_url(format!(
            "data:{};base64,{}",
            image.mime_type, image.data
        ))),
        ContentBlock::Audio(audio) => McpOutputPart::File(FilePart(MediaSource {
            data: Some(audio.data),
            media_type: Some(audio.mime_type),
            ..MediaSource::default()
        })),
        ContentBlock::Resource(resource) => return convert_resource(resource.resource),
        other => text_part(serde_json::to_string(&other).unwrap_or_default()),
    }]
}

/// Converts an embedded resource. The model needs the URI to name the resource in later calls.
pub(super) fn convert_resource(resource: ResourceContents) -> Vec<McpOutputPart> {
    match resource {
        ResourceContents::TextResourceContents { uri, text, .. } => {
            vec![text_part(format!("[resource {uri}]")), text_part(text)]
        }
        ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
            let is_image = mime_type.as_deref().is_some_and(|kind| kind.starts_with("image/"));
            let label = text_part(format!("[resource {uri}]"));
            if let (true, Some(kind)) = (is_image, &mime_type) {
                let image = ImagePart::from_url(format!("data:{kind};base64,{blob}"));
                return vec![label, McpOutputPart::Image(image)];
            }
            let file = MediaSource {
                name: Some(uri),
                data: Some(blob),
                media_type: mime_type,
                ..MediaSource::default()
            };
            vec![label, McpOutputPart::File(FilePart(file))]
        }
        other => vec![text_part(serde_json::to_string(&other).unwrap_or_default())],
    }
}

#[cfg(test)]
#[path = "content_tests.rs"]
mod tests;

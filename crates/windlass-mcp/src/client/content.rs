//! From what a server gives to what a model is told.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde::Serialize;
use serde_json::Value;
use windlass::ToolError;
use windlass::core::schema::{Shape, describe};
use windlass::core::{Media, canonical};
use windlass::tool::{File, Image, Text};

/// How many parts of one result are passed on.
const MOST_PARTS: usize = 256;

/// How much of a result that is not what it should be is told.
const LONGEST_MISFIT: usize = 4 * 1024;

/// What a call gave: text alone is text, and everything else is parts.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Given {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Part {
    Text(Text),
    Image(Image),
    File(File),
}

/// A result for the model; where the server says that the call failed, its words are for the model too. One that does
/// not fit what the server said its results would be is a failure, and the model is told what came.
pub(crate) fn given(result: CallToolResult, expected: Option<&Shape>) -> Result<Given, ToolError> {
    let failed = result.is_error == Some(true);
    let problem = match expected {
        Some(expected) if !failed => misfit(expected, result.structured_content.as_ref()),
        Some(_) | None => None,
    };
    let mut parts: Vec<Part> = result.content.into_iter().take(MOST_PARTS).map(part).collect();
    if let Some(structured) = result.structured_content {
        // Servers should say the same in words. Where they do, once is enough.
        let words: String = parts.iter().filter_map(Part::text).collect();
        if !is_said(&structured, &words) {
            parts.push(Part::Text(Text(structured.to_string())));
        }
    }
    if failed {
        let words: Vec<&str> = parts.iter().filter_map(Part::text).collect();
        let words = words.join("\n");
        return Err(ToolError::tell(if words.is_empty() { "the tool failed".to_owned() } else { words }));
    }
    if let Some(problem) = problem {
        let words: Vec<&str> = parts.iter().filter_map(Part::text).collect();
        return Err(ToolError::tell(format!(
            "The call was made, and its result is not what the server says it gives: {problem}. It gave: {}",
            cut(&words.join("\n"))
        )));
    }
    Ok(match parts.as_mut_slice() {
        [] => Given::Text(String::new()),
        [Part::Text(Text(text))] => Given::Text(std::mem::take(text)),
        _ => Given::Parts(parts),
    })
}

/// What is wrong with a structured result.
fn misfit(expected: &Shape, given: Option<&Value>) -> Option<String> {
    let Some(given) = given else { return Some("it has no structured part".to_owned()) };
    let problems = expected.check(&canonical(given));
    (!problems.is_empty()).then(|| describe(&problems))
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST_MISFIT)]
}

impl Part {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(Text(text)) => Some(text),
            Self::Image(_) | Self::File(_) => None,
        }
    }
}

/// Whether words say all that a value holds.
fn is_said(value: &Value, words: &str) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(_) | Value::Number(_) => words.contains(&value.to_string()),
        Value::String(text) => words.contains(text.as_str()),
        Value::Array(items) => !words.is_empty() && items.iter().all(|item| is_said(item, words)),
        Value::Object(fields) => !words.is_empty() && fields.values().all(|field| is_said(field, words)),
    }
}

fn part(block: ContentBlock) -> Part {
    match block {
        ContentBlock::Text(text) => Part::Text(Text(text.text)),
        ContentBlock::Image(image) => {
            Part::Image(Image::at(format!("data:{};base64,{}", image.mime_type, image.data)))
        }
        ContentBlock::Audio(audio) => Part::File(File(Media {
            data: Some(audio.data),
            media_type: Some(audio.mime_type),
            ..Media::default()
        })),
        ContentBlock::Resource(resource) => match resource.resource {
            ResourceContents::TextResourceContents { text, .. } => Part::Text(Text(text)),
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => Part::File(File(Media {
                name: Some(uri),
                data: Some(blob),
                media_type: mime_type,
                ..Media::default()
            })),
            other => json(&other),
        },
        other => json(&other),
    }
}

fn json<T: Serialize>(value: &T) -> Part {
    Part::Text(Text(serde_json::to_string(value).unwrap_or_default()))
}

#[cfg(test)]
#[path = "content_tests.rs"]
mod tests;

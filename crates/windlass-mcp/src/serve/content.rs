//! Conversion of a run's outcome into the `CallToolResult` for the client.

use rmcp::model::{CallToolResult, ContentBlock, Resource, ResourceContents};
use windlass::core::item::{ContentPart, MediaSource, OutputStatus};
use windlass::{
    artefact::fetch_media,
    core::item::{Item, OutputContent},
    run::RunResult,
    store::Store,
};

use super::SharedMcpServer;
use super::model::CALL_ID;
use super::resource::artefact_uri;

impl<C: Send + Sync + 'static> SharedMcpServer<C> {
    /// Returns the result of the call that a run executed.
    pub(super) async fn call_result(&self, outcome: &RunResult) -> CallToolResult {
        let items = outcome.record().run_items();
        let called = items.iter().find_map(|produced| match &*produced.item {
            Item::Call(call) if call.id.as_str() == CALL_ID => Some(call.name.as_str()),
            _ => None,
        });
        let has_output_schema = self
            .agent
            .tool_list()
            .any(|tool| Some(tool.key().name()) == called && tool.declared_output_schema().is_some());
        call_result(outcome, self.store.as_deref(), has_output_schema).await
    }
}

/// Returns the result of the call that a run executed, with a resource link to the full output if it was
/// truncated.
///
/// The output of a tool with an output schema is also the structured content, if it is JSON.
async fn call_result(
    outcome: &RunResult,
    store: Option<&dyn Store>,
    has_output_schema: bool,
) -> CallToolResult {
    let items = outcome.record().run_items();
    let output = items.iter().rev().find_map(|produced| match &*produced.item {
        Item::Output(output) if output.call.as_str() == CALL_ID => Some(output),
        _ => None,
    });
    let Some(output) = output else { return error_result("The call has no result.") };
    let mut content = match &output.content {
        OutputContent::Text(text) => vec![ContentBlock::text(text)],
        OutputContent::Parts(parts) => {
            let mut blocks = Vec::with_capacity(parts.len());
            for part in parts {
                blocks.push(content_block(part, store).await);
            }
            blocks
        }
    };
    if let Some(store) = store {
        let run = outcome.record().run_id();
        if let Ok(Some(whole)) = store.load_artefact(run, CALL_ID).await {
            let mut link = Resource::new(artefact_uri(run), "the whole output");
            link.mime_type = Some("text/plain".to_owned());
            link.size = u64::try_from(whole.len()).ok();
            content.push(ContentBlock::resource_link(link));
        }
    }
    let structured = match &output.content {
        OutputContent::Text(text) if has_output_schema => serde_json::from_str(text).ok(),
        OutputContent::Text(_) | OutputContent::Parts(_) => None,
    };
    match output.status {
        OutputStatus::Ok => {
            let mut result = CallToolResult::success(content);
            result.structured_content = structured;
            result
        }
        OutputStatus::Failed => CallToolResult::error(content),
    }
}

/// Returns an error result with a text.
pub(super) fn error_result(text: &str) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(text)])
}

async fn content_block(part: &ContentPart, store: Option<&dyn Store>) -> ContentBlock {
    match part {
        ContentPart::Text { text } | ContentPart::Refusal { text } => ContentBlock::text(text),
        ContentPart::Image(media) => match inline_data(media, store).await {
            Some((kind, data)) => ContentBlock::image(data, kind),
            None => json_block(part),
        },
        ContentPart::File(media) => match inline_data(media, store).await {
            Some((kind, data)) if kind.starts_with("audio/") => ContentBlock::audio(data, kind),
            Some((kind, data)) => ContentBlock::resource(embedded_resource(media, kind, data)),
            None => json_block(part),
        },
        other => json_block(other),
    }
}

/// Returns the media type and the base64 bytes of a medium that is inline or in the store.
async fn inline_data(media: &MediaSource, store: Option<&dyn Store>) -> Option<(String, String)> {
    let kind = media.media_type.clone();
    if let Some(data) = &media.data {
        return Some((kind.unwrap_or_else(|| "application/octet-stream".to_owned()), data.clone()));
    }
    let url = media.url.as_deref()?;
    if let Some((kind, data)) = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,")) {
        return Some((kind.to_owned(), data.to_owned()));
    }
    let data = fetch_media(store?, url).await.ok().flatten()?;
    Some((kind?, data))
}

/// Returns a file as an embedded resource.
fn embedded_resource(media: &MediaSource, kind: String, data: String) -> ResourceContents {
    let uri = match media.name.as_deref() {
        Some(name) if name.contains(':') => name.to_owned(),
        Some(name) => format!("file:///{}", name.trim_start_matches('/')),
        None => "file:///output".to_owned(),
    };
    ResourceContents::BlobResourceContents { uri, mime_type: Some(kind), blob: data, meta: None }
}

fn json_block(part: &ContentPart) -> ContentBlock {
    ContentBlock::text(serde_json::to_string(part).unwrap_or_default())
}

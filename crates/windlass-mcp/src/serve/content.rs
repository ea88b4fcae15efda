//! What a call gave, as a client is told it.

use rmcp::model::{CallToolResult, ContentBlock, Resource, ResourceContents};
use windlass::core::{Content, Media, OutputStatus};
use windlass::{Item, Outcome, OutputContent, Store, fetch_media};

use super::model::CALL;
use super::resource::artefact_uri;

/// The result of the call that a run carried out. Where a store keeps more of it than was told, there is a link to it.
pub(super) async fn result(outcome: &Outcome, store: Option<&dyn Store>) -> CallToolResult {
    let items = outcome.record().items();
    let output = items.iter().rev().find_map(|produced| match &*produced.item {
        Item::Output(output) if output.call.as_str() == CALL => Some(output),
        _ => None,
    });
    let Some(output) = output else { return told("The call has no result.") };
    let mut content = match &output.content {
        OutputContent::Text(text) => vec![ContentBlock::text(text)],
        OutputContent::Parts(parts) => {
            let mut blocks = Vec::with_capacity(parts.len());
            for part in parts {
                blocks.push(block(part, store).await);
            }
            blocks
        }
    };
    if let Some(store) = store {
        let run = outcome.record().run_id();
        if let Ok(Some(whole)) = store.artefact(run, CALL).await {
            let mut link = Resource::new(artefact_uri(run, CALL), "the whole output");
            link.mime_type = Some("text/plain".to_owned());
            link.size = u64::try_from(whole.len()).ok();
            content.push(ContentBlock::resource_link(link));
        }
    }
    match output.status {
        OutputStatus::Ok => CallToolResult::success(content),
        OutputStatus::Failed => CallToolResult::error(content),
    }
}

/// A result that says in words that there is none.
pub(super) fn told(text: &str) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(text)])
}

async fn block(part: &Content, store: Option<&dyn Store>) -> ContentBlock {
    match part {
        Content::Text { text } | Content::Refusal { text } => ContentBlock::text(text),
        Content::Image(media) => match inline(media, store).await {
            Some((kind, data)) => ContentBlock::image(data, kind),
            None => json(part),
        },
        Content::File(media) => match inline(media, store).await {
            Some((kind, data)) if kind.starts_with("audio/") => ContentBlock::audio(data, kind),
            Some((kind, data)) => ContentBlock::resource(embedded(media, kind, data)),
            None => json(part),
        },
        other => json(other),
    }
}

/// The media type and the bytes in base64, where they are here.
async fn inline(media: &Media, store: Option<&dyn Store>) -> Option<(String, String)> {
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

/// A file as a resource that travels with the result.
fn embedded(media: &Media, kind: String, data: String) -> ResourceContents {
    let uri = match media.name.as_deref() {
        Some(name) if name.contains(':') => name.to_owned(),
        Some(name) => format!("file:///{}", name.trim_start_matches('/')),
        None => "file:///output".to_owned(),
    };
    ResourceContents::BlobResourceContents { uri, mime_type: Some(kind), blob: data, meta: None }
}

fn json(part: &Content) -> ContentBlock {
    ContentBlock::text(serde_json::to_string(part).unwrap_or_default())
}

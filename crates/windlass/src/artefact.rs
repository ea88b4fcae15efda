//! Artefacts: full outputs that are too long for the model, with a tool that reads them page by page, and media
//! that the journal references without containing their bytes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
use serde::Deserialize;
use windlass_core::{
    canonical::Digest,
    id::{CallPath, RunId},
    item::{ContentPart, Item, MediaSource, OutputContent},
    journal::append_text_media,
    tool::ToolEffect,
};

use crate::error::{StoreError, StoreErrorKind};
use crate::redaction::{OutputVisibility, SecretRegistry};
use crate::store::{Lease, Store};
use crate::tool::{Tool, ToolContext, ToolError};

/// Name of the tool that reads the rest of a truncated output.
pub(crate) const READ_OUTPUT_TOOL: &str = "read_output";

/// Maximum number of bytes that the tool returns per call.
const MAX_PAGE_BYTES: usize = 32 * 1024;

/// Prefix of the URL of a stored media file. The run id and the digest follow.
const MEDIA_URL_PREFIX: &str = "artefact:";

/// Maximum number of media files in the cache.
const MAX_CACHED_MEDIA: usize = 8;

/// Text that the model sees in place of a media file that is no longer stored.
const MISSING_MEDIA_TEXT: &str = "[This picture or file is not kept any more.]";

/// The artefacts of a run: in its store, or in memory while the run is driven.
pub(crate) struct RunArtefacts {
    run: RunId,
    /// The store, and the lease that writes carry.
    target: Option<(Arc<dyn Store>, Lease)>,
    in_memory: Mutex<BTreeMap<String, Arc<[u8]>>>,
    /// True if the conversation may reference stored media.
    may_reference_media: AtomicBool,
    media_cache: Mutex<VecDeque<(String, Arc<str>)>>,
}

impl RunArtefacts {
    pub(crate) fn new(run: RunId, target: Option<(&Arc<dyn Store>, &Lease)>, history: &[Arc<Item>]) -> Self {
        let names_media =
            AtomicBool::new(history.iter().any(|item| media_in_item(item).any(is_stored_media)));
        Self {
            run,
            target: target.map(|(store, lease)| (store.clone(), lease.clone())),
            in_memory: Mutex::default(),
            may_reference_media: names_media,
            media_cache: Mutex::default(),
        }
    }

    pub(crate) async fn save(&self, name: &str, body: &[u8]) -> Result<(), StoreError> {
        match &self.target {
            Some((store, lease)) => store.save_artefact(lease, name, body).await,
            None => {
                self.in_memory
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(name.to_owned(), body.into());
                Ok(())
            }
        }
    }

    pub(crate) async fn load(&self, name: &str) -> Result<Option<Arc<[u8]>>, StoreError> {
        match &self.target {
            Some((store, _)) => Ok(store.load_artefact(&self.run, name).await?.map(Into::into)),
            None => Ok(self.in_memory.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()),
        }
    }
}

impl RunArtefacts {
    /// Saves the bytes of a picture or a file once and returns the source that references them in items.
    /// Without a store the bytes are inlined in the item, because only the journal is persistent.
    pub(crate) async fn save_media(&self, media_type: &str, base64: &str) -> Result<MediaSource, StoreError> {
        let media = MediaSource { media_type: Some(media_type.to_owned()), ..MediaSource::default() };
        let Some((store, lease)) = &self.target else {
            return Ok(MediaSource { data: Some(base64.to_owned()), ..media });
        };
        let name = Digest::of_text(base64).to_string();
        let url = format!("{MEDIA_URL_PREFIX}{}/{name}", self.run);
        store.save_artefact(lease, &name, base64.as_bytes()).await?;
        self.may_reference_media.store(true, Ordering::Relaxed);
        self.cache_media(&url, base64.into());
        Ok(MediaSource { url: Some(url), ..media })
    }

    /// Truncates the text of an output to the limit of its tool, adds a note, and stores the full text unless it is
    /// secret. `has_reader` says whether the agent can read on.
    pub(crate) async fn limit_output<C>(
        &self,
        tool: &Tool<C>,
        call: &CallPath,
        output: &mut OutputContent,
        has_reader: bool,
        secrets: &SecretRegistry,
    ) -> Result<(), StoreError> {
        let whole = output.text_len();
        if whole <= tool.max_output_bytes {
            return Ok(());
        }
        let is_kept = tool.output_visibility == OutputVisibility::Public;
        let name = call.to_string();
        if is_kept {
            let kept = secrets.mask_text(output.text().into_owned());
            self.save(&name, kept.as_bytes()).await?;
        }
        let shown = output.truncate_text(tool.max_output_bytes);
        let mut note = format!("[cut: {shown} of {whole} bytes are shown");
        if is_kept && has_reader {
            note.push_str(&format!(
                "; `{READ_OUTPUT_TOOL}` reads on with {{\"call\": \"{name}\", \"from\": {shown}}}"
            ));
        }
        note.push(']');
        output.push_line(&note);
        Ok(())
    }

    /// Returns the conversation with all stored media inlined, or `None` if it references none.
    pub(crate) async fn inline_media(
        &self,
        items: &[Arc<Item>],
    ) -> Result<Option<Vec<Arc<Item>>>, StoreError> {
        if !self.may_reference_media.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut filled = Vec::with_capacity(items.len());
        for item in items {
            let is_named = media_in_item(item).any(is_stored_media);
            filled.push(if is_named {
                Arc::new(self.inline_item_media((**item).clone()).await?)
            } else {
                item.clone()
            });
        }
        Ok(Some(filled))
    }

    async fn inline_item_media(&self, mut item: Item) -> Result<Item, StoreError> {
        let parts = match &mut item {
            Item::Message(message) => &mut message.content,
            Item::Output(output) => match &mut output.content {
                OutputContent::Parts(parts) => parts,
                OutputContent::Text(_) => return Ok(item),
            },
            _ => return Ok(item),
        };
        for part in parts {
            let (ContentPart::Image(media) | ContentPart::File(media)) = part else { continue };
            let Some(url) = media.url.as_deref().filter(|url| url.starts_with(MEDIA_URL_PREFIX)) else {
                continue;
            };
            match self.fetch_cached_media(url).await? {
                Some(bytes) => {
                    media.data = Some(bytes.to_string());
                    media.url = None;
                }
                None => *part = ContentPart::text(MISSING_MEDIA_TEXT),
            }
        }
        Ok(item)
    }

    async fn fetch_cached_media(&self, url: &str) -> Result<Option<Arc<str>>, StoreError> {
        if let Some(bytes) = self.cached_media(url) {
            return Ok(Some(bytes));
        }
        let Some((store, _)) = &self.target else { return Ok(None) };
        let fetched = fetch_media(&**store, url).await?.map(Arc::<str>::from);
        if let Some(bytes) = &fetched {
            self.cache_media(url, bytes.clone());
        }
        Ok(fetched)
    }

    fn cached_media(&self, url: &str) -> Option<Arc<str>> {
        let at_hand = self.media_cache.lock().unwrap_or_else(PoisonError::into_inner);
        at_hand.iter().find(|(name, _)| name == url).map(|(_, bytes)| bytes.clone())
    }

    fn cache_media(&self, url: &str, bytes: Arc<str>) {
        let mut at_hand = self.media_cache.lock().unwrap_or_else(PoisonError::into_inner);
        at_hand.retain(|(known, _)| known != url);
        at_hand.push_back((url.to_owned(), bytes));
        if at_hand.len() > MAX_CACHED_MEDIA {
            at_hand.pop_front();
        }
    }
}

/// Returns the base64 bytes of a picture or a file that an item of a stored run references. Returns `None` if
/// the URL is not an artefact URL or nothing is stored under it.
pub async fn fetch_media(store: &dyn Store, url: &str) -> Result<Option<String>, StoreError> {
    // A run id may contain a slash; a digest does not.
    let Some((run, name)) = url.strip_prefix(MEDIA_URL_PREFIX).and_then(|rest| rest.rsplit_once('/')) else {
        return Ok(None);
    };
    fetch_text(store, &RunId::new(run), name).await
}

/// Appends stored pictures and files to the text of a run, until the next one does not fit in `max_bytes` together with those
/// before it. [`stored_media_urls`](windlass_core::journal::stored_media_urls) returns their addresses.
///
/// # Errors
///
/// Returns an error of the store.
pub async fn append_run_media(
    store: &dyn Store,
    text: &mut String,
    urls: &[String],
    max_bytes: usize,
) -> Result<(), StoreError> {
    let mut room = max_bytes;
    for url in urls {
        let Some(data) = fetch_media(store, url).await? else { continue };
        if data.len() > room {
            break;
        }
        room -= data.len();
        append_text_media(text, url, &data);
    }
    Ok(())
}

/// Returns an artefact of a stored run as text. Returns `None` if there is no such artefact.
///
/// # Errors
///
/// Returns an error of the kind [`StoreErrorKind::Corrupt`] if the artefact is not UTF-8.
pub async fn fetch_text(store: &dyn Store, run: &RunId, name: &str) -> Result<Option<String>, StoreError> {
    store.load_artefact(run, name).await?.map(|body| decode_text(name, body)).transpose()
}

pub(crate) fn decode_text(name: &str, body: Vec<u8>) -> Result<String, StoreError> {
    String::from_utf8(body).map_err(|error| {
        let message = format!("the artefact `{name}` is not a text");
        StoreError::with_kind(StoreErrorKind::Corrupt, message).with_source(error)
    })
}

fn is_stored_media(media: &MediaSource) -> bool {
    media.url.as_deref().is_some_and(|url| url.starts_with(MEDIA_URL_PREFIX))
}

fn media_in_item(item: &Item) -> impl Iterator<Item = &MediaSource> {
    let parts = match item {
        Item::Message(message) => message.content.as_slice(),
        Item::Output(output) => match &output.content {
            OutputContent::Parts(parts) => parts.as_slice(),
            OutputContent::Text(_) => &[],
        },
        _ => &[],
    };
    parts.iter().filter_map(|part| match part {
        ContentPart::Image(media) | ContentPart::File(media) => Some(media),
        _ => None,
    })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadOutputArguments {
    /// The call whose output to read, as the note under the cut output names it.
    call: String,
    /// The byte to begin with.
    from: usize,
    /// How many bytes to read at most.
    #[serde(default)]
    bytes: Option<usize>,
}

/// Creates the tool that reads the rest of a truncated output. Add it to agents whose tools may return long
/// outputs.
pub fn read_output<C: Send + Sync + 'static>() -> Tool<C> {
    let description = "Reads on in the output of an earlier call that was cut because of its length.";
    Tool::function(
        READ_OUTPUT_TOOL,
        description,
        |ctx: ToolContext<C>, asked: ReadOutputArguments| async move {
            let text = ctx.load_text_artefact(&asked.call).await?;
            let Some(text) = text else {
                return Err(ToolError::visible(format!("no output was kept for call `{}`", asked.call)));
            };
            let from = text.floor_char_boundary(asked.from.min(text.len()));
            let until = text.floor_char_boundary(
                (from + asked.bytes.unwrap_or(MAX_PAGE_BYTES).min(MAX_PAGE_BYTES)).min(text.len()),
            );
            let rest = text.len() - until;
            let note =
                if rest > 0 { format!("\n[{rest} bytes more, from byte {until}]") } else { String::new() };
            Ok::<_, ToolError>(format!("{}{note}", &text[from..until]))
        },
    )
    .effect(ToolEffect::Pure)
    .max_output_bytes(MAX_PAGE_BYTES * 2)
}

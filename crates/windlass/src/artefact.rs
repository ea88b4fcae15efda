//! Artefacts: outputs that are too long for the model, kept whole, and a tool that reads on; pictures that the
//! journal names and does not hold.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
use serde::Deserialize;
use windlass_core::{Content, Digest, Effect, Item, Media, OutputContent, RunId};

use crate::error::StoreError;
use crate::store::Store;
use crate::tool::{Tool, ToolContext, ToolError};

/// The name of the tool that reads on.
pub(crate) const READ_ON: &str = "read_output";

/// How much of an output the tool reads at once, unless it is asked for less.
const PAGE: usize = 32 * 1024;

/// How the address of a kept picture or file begins. Its run and its digest follow.
const ADDRESS: &str = "artefact:";

/// How many pictures and files are at hand without asking the store.
const AT_HAND: usize = 8;

/// What the model is shown in place of a picture or a file that is not kept any more.
const GONE: &str = "[This picture or file is not kept any more.]";

/// The artefacts of a run: in its store, or in memory for as long as the run is driven.
pub(crate) struct Artefacts {
    run: RunId,
    store: Option<Arc<dyn Store>>,
    kept: Mutex<BTreeMap<String, Arc<str>>>,
    /// Whether the conversation may name pictures or files that have to be fetched.
    names_media: AtomicBool,
    at_hand: Mutex<VecDeque<(String, Arc<str>)>>,
}

impl Artefacts {
    pub(crate) fn new(run: RunId, store: Option<Arc<dyn Store>>, history: &[Arc<Item>]) -> Self {
        let names_media = AtomicBool::new(history.iter().any(|item| media_of(item).any(is_kept)));
        Self { run, store, kept: Mutex::default(), names_media, at_hand: Mutex::default() }
    }

    pub(crate) async fn keep(&self, name: &str, text: &str) -> Result<(), StoreError> {
        match &self.store {
            Some(store) => store.keep_artefact(&self.run, name, text).await,
            None => {
                self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), text.into());
                Ok(())
            }
        }
    }

    pub(crate) async fn read(&self, name: &str) -> Result<Option<Arc<str>>, StoreError> {
        match &self.store {
            Some(store) => Ok(store.artefact(&self.run, name).await?.map(Into::into)),
            None => Ok(self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()),
        }
    }
}

impl Artefacts {
    /// Keeps the bytes of a picture or a file once, and gives what stands for them in items. Where there is no
    /// store they travel with the item, for the journal is all that lasts then.
    pub(crate) async fn keep_media(&self, media_type: &str, base64: &str) -> Result<Media, StoreError> {
        let media = Media { media_type: Some(media_type.to_owned()), ..Media::default() };
        let Some(store) = &self.store else {
            return Ok(Media { data: Some(base64.to_owned()), ..media });
        };
        let name = Digest::of(base64).to_string();
        let url = format!("{ADDRESS}{}/{name}", self.run);
        store.keep_artefact(&self.run, &name, base64).await?;
        self.names_media.store(true, Ordering::Relaxed);
        self.remember(&url, base64.into());
        Ok(Media { url: Some(url), ..media })
    }

    /// The conversation with the bytes of what it names; none where it names nothing that is kept.
    pub(crate) async fn filled(&self, items: &[Arc<Item>]) -> Result<Option<Vec<Arc<Item>>>, StoreError> {
        if !self.names_media.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut filled = Vec::with_capacity(items.len());
        for item in items {
            let is_named = media_of(item).any(is_kept);
            filled.push(if is_named { Arc::new(self.fill((**item).clone()).await?) } else { item.clone() });
        }
        Ok(Some(filled))
    }

    async fn fill(&self, mut item: Item) -> Result<Item, StoreError> {
        let parts = match &mut item {
            Item::Message(message) => &mut message.content,
            Item::Output(output) => match &mut output.content {
                OutputContent::Parts(parts) => parts,
                OutputContent::Text(_) => return Ok(item),
            },
            _ => return Ok(item),
        };
        for part in parts {
            let (Content::Image(media) | Content::File(media)) = part else { continue };
            let Some(url) = media.url.as_deref().filter(|url| url.starts_with(ADDRESS)) else { continue };
            match self.fetch(url).await? {
                Some(bytes) => {
                    media.data = Some(bytes.to_string());
                    media.url = None;
                }
                None => *part = Content::text(GONE),
            }
        }
        Ok(item)
    }

    async fn fetch(&self, url: &str) -> Result<Option<Arc<str>>, StoreError> {
        if let Some(bytes) = self.remembered(url) {
            return Ok(Some(bytes));
        }
        let Some(store) = &self.store else { return Ok(None) };
        let fetched = fetch_media(&**store, url).await?.map(Arc::<str>::from);
        if let Some(bytes) = &fetched {
            self.remember(url, bytes.clone());
        }
        Ok(fetched)
    }

    fn remembered(&self, url: &str) -> Option<Arc<str>> {
        let at_hand = self.at_hand.lock().unwrap_or_else(PoisonError::into_inner);
        at_hand.iter().find(|(name, _)| name == url).map(|(_, bytes)| bytes.clone())
    }

    fn remember(&self, url: &str, bytes: Arc<str>) {
        let mut at_hand = self.at_hand.lock().unwrap_or_else(PoisonError::into_inner);
        at_hand.retain(|(known, _)| known != url);
        at_hand.push_back((url.to_owned(), bytes));
        if at_hand.len() > AT_HAND {
            at_hand.pop_front();
        }
    }
}

/// The bytes, in base64, of a picture or a file that an item of a stored run names: for whoever looks at a run
/// afterwards. None where the address is not one of ours, or nothing is kept under it.
pub async fn fetch_media(store: &dyn Store, url: &str) -> Result<Option<String>, StoreError> {
    // A run's id may hold anything, a digest does not.
    let Some((run, name)) = url.strip_prefix(ADDRESS).and_then(|rest| rest.rsplit_once('/')) else {
        return Ok(None);
    };
    store.artefact(&RunId::new(run), name).await
}

fn is_kept(media: &Media) -> bool {
    media.url.as_deref().is_some_and(|url| url.starts_with(ADDRESS))
}

fn media_of(item: &Item) -> impl Iterator<Item = &Media> {
    let parts = match item {
        Item::Message(message) => message.content.as_slice(),
        Item::Output(output) => match &output.content {
            OutputContent::Parts(parts) => parts.as_slice(),
            OutputContent::Text(_) => &[],
        },
        _ => &[],
    };
    parts.iter().filter_map(|part| match part {
        Content::Image(media) | Content::File(media) => Some(media),
        _ => None,
    })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadOn {
    /// The call whose output to read, as the note under the cut output names it.
    call: String,
    /// The byte to begin with.
    from: usize,
    /// How many bytes to read at most.
    #[serde(default)]
    bytes: Option<usize>,
}

/// A tool that reads the rest of an output that was cut. Give it to agents whose tools may say a lot.
pub fn read_output<C: Send + Sync + 'static>() -> Tool<C> {
    let description = "Reads on in the output of an earlier call that was cut because of its length.";
    Tool::function(READ_ON, description, |ctx: ToolContext<C>, asked: ReadOn| async move {
        let text = ctx.artefact(&asked.call).await?;
        let Some(text) = text else {
            return Err(ToolError::tell(format!("no output was kept for call `{}`", asked.call)));
        };
        let from = text.floor_char_boundary(asked.from.min(text.len()));
        let until = text.floor_char_boundary((from + asked.bytes.unwrap_or(PAGE).min(PAGE)).min(text.len()));
        let rest = text.len() - until;
        let note = if rest > 0 { format!("\n[{rest} bytes more, from byte {until}]") } else { String::new() };
        Ok::<_, ToolError>(format!("{}{note}", &text[from..until]))
    })
    .effect(Effect::Pure)
    .output_budget(PAGE * 2)
}

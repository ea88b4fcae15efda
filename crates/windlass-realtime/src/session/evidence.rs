//! What a tool saw when its call was held, for the person who decides.

use std::time::Duration;

use windlass::artefact::fetch_media;
use windlass::core::item::MediaSource;
use windlass::error::StoreError;
use windlass::store::Store;
use windlass::tool::{CallEvidence, fetch_evidence};

use super::handle::RealtimeSession;
use crate::event::HeldCall;

/// Media types of pictures that can be displayed. None of them has a script.
const PICTURE_TYPES: [&str; 4] = ["image/png", "image/jpeg", "image/webp", "image/gif"];
/// Maximum number of base64 letters of a picture.
const MAX_PICTURE_LETTERS: usize = 8 << 20;
/// Longest time that the store may take.
const EVIDENCE_TIMEOUT: Duration = Duration::from_secs(10);

/// The evidence that a tool saved when its call was held.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldCallEvidence {
    /// The evidence.
    pub evidence: CallEvidence,
    /// The picture, if the evidence has one, as a `data:` URL.
    pub picture: Option<String>,
}

impl<C: Send + Sync + 'static> RealtimeSession<C> {
    /// Returns what the tool of a held call saved for its approver, from the store of the session; `None` if it saved
    /// nothing, or the session has no store.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read in time, or if the picture cannot be displayed. Nobody should approve
    /// the call then.
    pub async fn call_evidence(&self, held: &HeldCall) -> Result<Option<HeldCallEvidence>, StoreError> {
        let Some(store) = &self.shared.store else { return Ok(None) };
        let loading = load_evidence(&**store, held);
        let late = |_| Err(StoreError::new(format!("the store did not answer within {EVIDENCE_TIMEOUT:?}")));
        tokio::time::timeout(EVIDENCE_TIMEOUT, loading).await.unwrap_or_else(late)
    }
}

async fn load_evidence(store: &dyn Store, held: &HeldCall) -> Result<Option<HeldCallEvidence>, StoreError> {
    let Some(evidence) = fetch_evidence(store, &held.run, &held.pending.path).await? else { return Ok(None) };
    let picture = match &evidence.picture {
        None => None,
        Some(source) => Some(picture_url(store, source).await?),
    };
    Ok(Some(HeldCallEvidence { evidence, picture }))
}

/// Returns a picture as a `data:` URL.
async fn picture_url(store: &dyn Store, source: &MediaSource) -> Result<String, StoreError> {
    let unreadable = || StoreError::new("the picture of what the tool saw cannot be displayed");
    let data = match (&source.data, &source.url) {
        (Some(data), _) => data.clone(),
        (None, Some(url)) => match url.strip_prefix("data:") {
            Some(rest) => rest.split_once(";base64,").ok_or_else(unreadable)?.1.to_owned(),
            None => fetch_media(store, url).await?.ok_or_else(unreadable)?,
        },
        (None, None) => return Err(unreadable()),
    };
    let is_base64 = data.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
    // The first bytes say the type, whatever the tool said.
    let kind = match data.as_bytes() {
        [b'i', b'V', b'B', b'O', ..] => PICTURE_TYPES[0],
        [b'/', b'9', b'j', ..] => PICTURE_TYPES[1],
        [b'U', b'k', b'l', b'G', ..] => PICTURE_TYPES[2],
        [b'R', b'0', b'l', b'G', ..] => PICTURE_TYPES[3],
        _ => return Err(unreadable()),
    };
    match is_base64 && data.len() <= MAX_PICTURE_LETTERS {
        true => Ok(format!("data:{kind};base64,{data}")),
        false => Err(unreadable()),
    }
}

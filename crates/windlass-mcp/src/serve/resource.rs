//! What a server lets clients read: texts and bytes at addresses, and all addresses of a form.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rmcp::ErrorData;
use rmcp::model::{self, ResourceContents};
use windlass::core::RunId;
use windlass::{Store, ToolError};

/// How the addresses of whole outputs begin. The run and the call follow.
const ARTEFACTS: &str = "windlass://artefact/";

/// Something that clients may read, at one address or at all addresses of a form such as `notes://{day}/text`.
#[derive(Clone)]
pub struct Resource {
    pub(super) uri: String,
    name: String,
    description: Option<String>,
    media_type: Option<String>,
    read: Read,
    pub(super) suggestions: BTreeMap<String, Vec<String>>,
}

/// What is at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Contents {
    /// Text.
    Text(String),
    /// Bytes, in base64.
    Base64(String),
}

type Read = Arc<
    dyn Fn(BTreeMap<String, String>) -> BoxFuture<'static, Result<Option<Contents>, ToolError>> + Send + Sync,
>;

impl Resource {
    /// Something that is read when a client asks for it. The function is given what stands in the places of the
    /// address that are in braces; none means that there is nothing at that address.
    pub fn reading<Fut>(
        uri: impl Into<String>,
        name: impl Into<String>,
        read: impl Fn(BTreeMap<String, String>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<Option<Contents>, ToolError>> + Send + 'static,
    {
        Self {
            uri: uri.into(),
            name: name.into(),
            description: None,
            media_type: None,
            read: Arc::new(move |places| read(places).boxed()),
            suggestions: BTreeMap::new(),
        }
    }

    /// A text that does not change.
    pub fn text(uri: impl Into<String>, name: impl Into<String>, text: impl Into<String>) -> Self {
        Self::fixed(uri, name, Contents::Text(text.into())).media_type("text/plain")
    }

    /// Bytes that do not change, in base64.
    pub fn base64(uri: impl Into<String>, name: impl Into<String>, bytes: impl Into<String>) -> Self {
        Self::fixed(uri, name, Contents::Base64(bytes.into()))
    }

    fn fixed(uri: impl Into<String>, name: impl Into<String>, contents: Contents) -> Self {
        Self::reading(uri, name, move |_| std::future::ready(Ok(Some(contents.clone()))))
    }

    /// What it is.
    #[must_use]
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.description = Some(text.into());
        self
    }

    /// Its media type.
    #[must_use]
    pub fn media_type(mut self, media_type: impl Into<String>) -> Self {
        self.media_type = Some(media_type.into());
        self
    }

    /// What a client may offer a person for a place in braces.
    #[must_use]
    pub fn suggest<S: Into<String>>(mut self, place: &str, values: impl IntoIterator<Item = S>) -> Self {
        self.suggestions.insert(place.to_owned(), values.into_iter().map(Into::into).collect());
        self
    }

    /// Whether it stands for many addresses.
    pub(super) fn is_template(&self) -> bool {
        self.uri.contains('{')
    }

    /// Whether an address is one of its.
    pub(super) fn is_at(&self, uri: &str) -> bool {
        matched(&self.uri, uri).is_some()
    }

    pub(super) fn listed(&self) -> model::Resource {
        let mut listed = model::Resource::new(&*self.uri, &*self.name);
        listed.description = self.description.clone();
        listed.mime_type = self.media_type.clone();
        listed
    }

    pub(super) fn listed_template(&self) -> model::ResourceTemplate {
        let mut listed = model::ResourceTemplate::new(&*self.uri, &*self.name);
        listed.description = self.description.clone();
        listed.mime_type = self.media_type.clone();
        listed
    }

    /// What is at an address, where it is one of this resource's.
    pub(super) async fn at(&self, uri: &str) -> Result<Option<ResourceContents>, ErrorData> {
        let Some(places) = matched(&self.uri, uri) else { return Ok(None) };
        let read = (self.read)(places).await.map_err(|error| {
            tracing::warn!(%uri, %error, "a resource could not be read");
            ErrorData::internal_error(error.for_model().unwrap_or("it cannot be read now").to_owned(), None)
        })?;
        Ok(read.map(|contents| contents.at(uri, self.media_type.clone())))
    }
}

impl Contents {
    fn at(self, uri: &str, mime_type: Option<String>) -> ResourceContents {
        let uri = uri.to_owned();
        match self {
            Self::Text(text) => ResourceContents::TextResourceContents { uri, mime_type, text, meta: None },
            Self::Base64(blob) => ResourceContents::BlobResourceContents { uri, mime_type, blob, meta: None },
        }
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resource").field("uri", &self.uri).field("name", &self.name).finish_non_exhaustive()
    }
}

/// Where the whole output of a call is read that was too long to be told.
pub(super) fn artefact_uri(run: &RunId, call: &str) -> String {
    format!("{ARTEFACTS}{run}/{call}")
}

/// The whole output that stands at such an address.
pub(super) async fn artefact(store: &dyn Store, uri: &str) -> Option<ResourceContents> {
    let (run, call) = uri.strip_prefix(ARTEFACTS)?.rsplit_once('/')?;
    let text = store.artefact(&RunId::new(run), call).await.ok().flatten()?;
    Some(Contents::Text(text).at(uri, Some("text/plain".to_owned())))
}

/// What stands in the places of a form, where an address has that form. A place ends at the next `/`.
fn matched(form: &str, uri: &str) -> Option<BTreeMap<String, String>> {
    let mut places = BTreeMap::new();
    let (mut form, mut uri) = (form, uri);
    while let Some((before, rest)) = form.split_once('{') {
        let (name, after) = rest.split_once('}')?;
        uri = uri.strip_prefix(before)?;
        let next = after.split('{').next().unwrap_or_default();
        let end = if next.is_empty() { uri.len() } else { uri.find(next)? };
        let value = &uri[..end];
        if value.is_empty() || value.contains('/') {
            return None;
        }
        places.insert(name.to_owned(), value.to_owned());
        (form, uri) = (after, &uri[end..]);
    }
    (form == uri).then_some(places)
}

#[cfg(test)]
#[path = "resource_tests.rs"]
mod tests;

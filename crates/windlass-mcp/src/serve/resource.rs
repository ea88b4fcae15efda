//! Resources of a server: texts and bytes at fixed URIs, and at URIs that match a template.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rmcp::ErrorData;
use rmcp::model::{self, ResourceContents};
use windlass::artefact::fetch_text;
use windlass::core::id::RunId;
use windlass::{store::load_paused, tool::ToolError};

use super::SharedMcpServer;
use super::caller::RequestCaller;
use super::model::CALL_ID;

/// The URI prefix of full outputs; the run id and the id of the served call follow.
const ARTEFACT_URI_PREFIX: &str = "windlass://artefact/";

/// A resource that clients can read, at one URI or at all URIs of a template such as `notes://{day}/text`.
#[derive(Clone)]
pub struct McpResource {
    pub(super) uri: String,
    name: String,
    description: Option<String>,
    media_type: Option<String>,
    read_fn: ResourceReadFn,
    pub(super) suggestions: BTreeMap<String, Vec<String>>,
}

/// The contents of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum McpResourceContents {
    /// Text.
    Text(String),
    /// Bytes, in base64.
    Base64(String),
}

type ResourceReadFn = Arc<
    dyn Fn(BTreeMap<String, String>) -> BoxFuture<'static, Result<Option<McpResourceContents>, ToolError>>
        + Send
        + Sync,
>;

impl McpResource {
    /// Creates a resource that a function reads on request. The function receives the values of the template's
    /// variables; it returns `None` if there is nothing at that URI.
    pub fn with_reader<Fut>(
        uri: impl Into<String>,
        name: impl Into<String>,
        read: impl Fn(BTreeMap<String, String>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<Option<McpResourceContents>, ToolError>> + Send + 'static,
    {
        Self {
            uri: uri.into(),
            name: name.into(),
            description: None,
            media_type: None,
            read_fn: Arc::new(move |places| read(places).boxed()),
            suggestions: BTreeMap::new(),
        }
    }

    /// Creates a resource with a fixed text.
    pub fn text(uri: impl Into<String>, name: impl Into<String>, text: impl Into<String>) -> Self {
        Self::fixed(uri, name, McpResourceContents::Text(text.into())).media_type("text/plain")
    }

    /// Creates a resource with fixed bytes, in base64.
    pub fn base64(uri: impl Into<String>, name: impl Into<String>, bytes: impl Into<String>) -> Self {
        Self::fixed(uri, name, McpResourceContents::Base64(bytes.into()))
    }

    fn fixed(uri: impl Into<String>, name: impl Into<String>, contents: McpResourceContents) -> Self {
        Self::with_reader(uri, name, move |_| std::future::ready(Ok(Some(contents.clone()))))
    }

    /// Sets the description.
    #[must_use]
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.description = Some(text.into());
        self
    }

    /// Sets the media type.
    #[must_use]
    pub fn media_type(mut self, media_type: impl Into<String>) -> Self {
        self.media_type = Some(media_type.into());
        self
    }

    /// Sets the values that the server suggests for a template variable (`completion/complete`).
    #[must_use]
    pub fn suggest<S: Into<String>>(mut self, place: &str, values: impl IntoIterator<Item = S>) -> Self {
        self.suggestions.insert(place.to_owned(), values.into_iter().map(Into::into).collect());
        self
    }

    /// Returns true if the URI is a template.
    pub(super) fn is_template(&self) -> bool {
        self.uri.contains('{')
    }

    /// Returns true if a URI belongs to this resource.
    pub(super) fn matches_uri(&self, uri: &str) -> bool {
        match_template(&self.uri, uri).is_some()
    }

    pub(super) fn to_protocol(&self) -> model::Resource {
        let mut listed = model::Resource::new(&*self.uri, &*self.name);
        listed.description = self.description.clone();
        listed.mime_type = self.media_type.clone();
        listed
    }

    pub(super) fn to_protocol_template(&self) -> model::ResourceTemplate {
        let mut listed = model::ResourceTemplate::new(&*self.uri, &*self.name);
        listed.description = self.description.clone();
        listed.mime_type = self.media_type.clone();
        listed
    }

    /// Reads a URI; `None` if it does not belong to this resource or there is nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if the read function fails.
    pub(super) async fn read_at(&self, uri: &str) -> Result<Option<ResourceContents>, ErrorData> {
        let Some(places) = match_template(&self.uri, uri) else { return Ok(None) };
        let read = (self.read_fn)(places).await.map_err(|error| {
            tracing::warn!(%uri, %error, "a resource could not be read");
            ErrorData::internal_error(
                error.model_message().unwrap_or("it cannot be read now").to_owned(),
                None,
            )
        })?;
        Ok(read.map(|contents| contents.into_protocol(uri, self.media_type.clone())))
    }
}

impl McpResourceContents {
    fn into_protocol(self, uri: &str, mime_type: Option<String>) -> ResourceContents {
        let uri = uri.to_owned();
        match self {
            Self::Text(text) => ResourceContents::TextResourceContents { uri, mime_type, text, meta: None },
            Self::Base64(blob) => ResourceContents::BlobResourceContents { uri, mime_type, blob, meta: None },
        }
    }
}

impl fmt::Debug for McpResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpResource")
            .field("uri", &self.uri)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Returns the URI of the full output of a run's call, for outputs that were truncated.
pub(super) fn artefact_uri(run: &RunId) -> String {
    format!("{ARTEFACT_URI_PREFIX}{run}/{CALL_ID}")
}

/// Returns the run whose full output an artefact URI names. No other artefact of a run has a URI.
fn run_of_artefact_uri(uri: &str) -> Option<RunId> {
    let (run, name) = uri.strip_prefix(ARTEFACT_URI_PREFIX)?.rsplit_once('/')?;
    (name == CALL_ID).then(|| RunId::new(run))
}

impl<C: Send + Sync + 'static> SharedMcpServer<C> {
    /// Reads the full output at an artefact URI. Only the full output of a call that this server executed for this
    /// client can be read, because the store may have the runs of other clients and of other programs.
    pub(super) async fn read_full_output(
        &self,
        uri: &str,
        caller: &RequestCaller<C>,
    ) -> Option<ResourceContents> {
        let run = run_of_artefact_uri(uri).filter(|run| caller.owns(run.as_str()))?;
        let store = &**self.store.as_ref()?;
        let is_ours = load_paused(store, &run).await.ok()?.record().last_agent() == self.agent.name();
        let text = fetch_text(store, &run, CALL_ID).await.ok().flatten().filter(|_| is_ours)?;
        Some(McpResourceContents::Text(text).into_protocol(uri, Some("text/plain".to_owned())))
    }
}

/// Matches a URI against a template and returns the values of its variables. A value contains no `/`.
fn match_template(form: &str, uri: &str) -> Option<BTreeMap<String, String>> {
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

//! Requests of a server to the client: roots and sampling, each offered only if the application allows it.

// MCP deprecates roots and sampling, but servers of both protocol eras still use them.
#![expect(deprecated, reason = "servers of both eras use roots and sampling")]

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rmcp::ErrorData;
use rmcp::model::{
    ClientCapabilities, CreateMessageRequestParams, CreateMessageResult, ListRootsResult, Role, Root,
    SamplingMessage, SamplingMessageContentBlock,
};

/// A request of a server for a response of the application's model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SamplingRequest {
    /// The server's configured name.
    pub server: String,
    /// The system prompt that the server wants.
    pub system_prompt: Option<String>,
    /// The messages in order.
    pub messages: Vec<SamplingRequestMessage>,
    /// Maximum number of tokens that the server wants.
    pub max_tokens: u32,
}

/// One message of a sampling request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SamplingRequestMessage {
    /// The author of the message.
    pub author: MessageAuthor,
    /// The text of the message; content that is not text is JSON.
    pub text: String,
}

/// The author of a message that a server writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageAuthor {
    /// The user, or the server in their place.
    User,
    /// The model.
    Assistant,
}

impl From<Role> for MessageAuthor {
    fn from(role: Role) -> Self {
        match role {
            Role::User => Self::User,
            Role::Assistant => Self::Assistant,
        }
    }
}

/// The application's response to a sampling request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplingResponse {
    /// The name of the model.
    pub model: String,
    /// The text of the response.
    pub text: String,
}

pub(crate) type SamplingHandler =
    Arc<dyn Fn(SamplingRequest) -> BoxFuture<'static, Result<SamplingResponse, String>> + Send + Sync>;

/// The application's policy for requests of one server. By default nothing is offered.
#[derive(Clone, Default)]
pub(crate) struct ServerRequestPolicy {
    roots: Vec<Root>,
    sampling: Option<SamplingHandler>,
}

impl ServerRequestPolicy {
    pub(crate) fn add_root(&mut self, folder: &Path) {
        let path = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let root = Root::new(file_uri(&path));
        self.roots.push(match name {
            Some(name) => root.with_name(name),
            None => root,
        });
    }

    pub(crate) fn set_sampling<Fut>(
        &mut self,
        handler: impl Fn(SamplingRequest) -> Fut + Send + Sync + 'static,
    ) where
        Fut: Future<Output = Result<SamplingResponse, String>> + Send + 'static,
    {
        self.sampling = Some(Arc::new(move |request| handler(request).boxed()));
    }

    /// Adds the capabilities that the policy offers.
    pub(super) fn add_capabilities(&self, capabilities: &mut ClientCapabilities) {
        if !self.roots.is_empty() {
            capabilities.roots = Some(Default::default());
        }
        if self.sampling.is_some() {
            capabilities.sampling = Some(Default::default());
        }
    }

    pub(super) fn list_roots(&self) -> ListRootsResult {
        ListRootsResult::new(self.roots.clone())
    }

    /// Answers a sampling request.
    ///
    /// # Errors
    ///
    /// Returns an error for the server if sampling is not offered, or if the application refuses.
    pub(super) async fn create_message(
        &self,
        server: &str,
        params: CreateMessageRequestParams,
    ) -> Result<CreateMessageResult, ErrorData> {
        let Some(handler) = &self.sampling else {
            return Err(ErrorData::invalid_request("sampling is not offered", None));
        };
        let request = SamplingRequest {
            server: server.to_owned(),
            system_prompt: params.system_prompt,
            messages: params.messages.into_iter().map(convert_message).collect(),
            max_tokens: params.max_tokens,
        };
        let response = handler(request).await.map_err(|reason| ErrorData::invalid_request(reason, None))?;
        let block = SamplingMessageContentBlock::text(response.text);
        Ok(CreateMessageResult::new(SamplingMessage::new(Role::Assistant, block), response.model))
    }
}

fn convert_message(message: SamplingMessage) -> SamplingRequestMessage {
    let texts = message.content.iter().map(|block| match block {
        SamplingMessageContentBlock::Text(text) => text.text.clone(),
        other => serde_json::to_string(other).unwrap_or_default(),
    });
    SamplingRequestMessage { author: message.role.into(), text: texts.collect::<Vec<_>>().join("\n") }
}

/// Returns the `file:` URI of an absolute path.
fn file_uri(path: &Path) -> String {
    let mut uri = "file://".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
                uri.push(char::from(*byte));
            }
            other => uri.push_str(&format!("%{other:02X}")),
        }
    }
    uri
}

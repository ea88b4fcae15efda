//! The prompts and resources of a server.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rmcp::model::{
    ContentBlock, ErrorCode, GetPromptRequestParams, GetPromptResponse, PaginatedRequestParams, Prompt,
    ReadResourceRequestParams, ReadResourceResponse, Resource, ResourceContents, ResourceTemplate,
};
use rmcp::service::{Peer, RoleClient, ServiceError};
use serde::Serialize;
use serde_json::Value;

use super::MessageAuthor;
use super::call::error_data_suffix;
use super::connection::{LiveConnection, McpConnectError, McpConnection};

/// Maximum number of pages of a list of prompts or resources.
const MAX_PAGES: usize = 100;

/// An error of a request for a prompt or a resource.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum McpRequestError {
    /// The server cannot be reached.
    #[error(transparent)]
    Connect(#[from] McpConnectError),
    /// The server answered with an error.
    #[error("the server refused: {reason}")]
    Refused {
        /// The server's message.
        reason: String,
    },
    /// The connection failed, or the response is not usable.
    #[error("{reason}")]
    Failed {
        /// The reason.
        reason: String,
    },
    /// The server did not answer within the call timeout.
    #[error("the server did not answer in time")]
    TimedOut,
}

/// A prompt that a server offers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct McpPromptInfo {
    /// The server's configured name.
    pub server: String,
    /// The name of the prompt.
    pub name: String,
    /// The description for people.
    pub description: Option<String>,
    /// The arguments, each with its name and true if it is required.
    pub arguments: Vec<(String, bool)>,
}

/// A message of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FetchedPromptMessage {
    /// The author of the message.
    pub author: MessageAuthor,
    /// The text; content that is not text is JSON.
    pub text: String,
}

/// A resource, or a template of resources, that a server offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct McpResourceInfo {
    /// The server's configured name.
    pub server: String,
    /// The URI, with variables in braces if it is a template.
    pub uri: String,
    /// The name.
    pub name: String,
    /// The description.
    pub description: Option<String>,
    /// The media type.
    pub mime_type: Option<String>,
}

/// The content of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FetchedResource {
    /// The URI.
    pub uri: String,
    /// The media type.
    pub mime_type: Option<String>,
    /// The content.
    pub body: ResourceBody,
}

/// The body of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResourceBody {
    /// A text.
    Text(String),
    /// Bytes, in base64.
    Base64(String),
}

/// The prompts or the resources of several servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct McpCatalogue<T> {
    /// The prompts or resources.
    pub items: Vec<T>,
    /// The servers whose list is missing or incomplete.
    pub unavailable: Vec<McpListProblem>,
}

/// The reason why the list of a server is missing or incomplete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct McpListProblem {
    /// The server's configured name.
    pub server: String,
    /// The reason.
    pub reason: String,
}

/// The prompts or the resources of one server.
pub(crate) struct ServerList<T> {
    items: Vec<T>,
    /// The reason why the list is incomplete.
    problem: Option<String>,
}

impl<T> McpCatalogue<T> {
    /// Collects the lists of servers, by their names.
    pub(crate) fn from_lists(
        lists: impl IntoIterator<Item = (String, Result<ServerList<T>, McpRequestError>)>,
    ) -> Self {
        let mut catalogue = Self { items: Vec::new(), unavailable: Vec::new() };
        for (server, list) in lists {
            let reason = match list {
                Ok(list) => {
                    catalogue.items.extend(list.items);
                    list.problem
                }
                Err(error) => Some(error.to_string()),
            };
            catalogue.unavailable.extend(reason.map(|reason| McpListProblem { server, reason }));
        }
        catalogue
    }
}

impl McpConnection {
    /// Sends a request on the live connection, within the call timeout.
    async fn ask<T>(
        self: &Arc<Self>,
        request: impl AsyncFnOnce(&LiveConnection) -> Result<T, ServiceError>,
    ) -> Result<T, McpRequestError> {
        let live = self.live_connection().await?;
        let answered = tokio::time::timeout(self.config.call_timeout, request(&live)).await;
        match answered {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(ServiceError::McpError(error))) => Err(McpRequestError::Refused {
                reason: format!("{}{}", error.message, error_data_suffix(error.data.as_ref())),
            }),
            Ok(Err(error)) => Err(McpRequestError::Failed { reason: self.describe_error(&live, &error) }),
            Err(_) => Err(McpRequestError::TimedOut),
        }
    }

    /// Returns all pages of a list. `what` names the list in the problem of one that has too many.
    async fn list_pages<T>(
        self: &Arc<Self>,
        what: &str,
        fetch_page: fn(Peer<RoleClient>, PaginatedRequestParams) -> ListPageFuture<T>,
    ) -> Result<ServerList<T>, McpRequestError> {
        let mut list = ServerList { items: Vec::new(), problem: None };
        let mut cursor = None;
        for _ in 0..MAX_PAGES {
            let params = PaginatedRequestParams::default().with_cursor(cursor.take());
            let (items, next) = self.ask(async |live| fetch_page(live.peer.clone(), params).await).await?;
            list.items.extend(items);
            cursor = next;
            if cursor.is_none() {
                return Ok(list);
            }
        }
        list.problem =
            Some(format!("it lists its {what} on more than {MAX_PAGES} pages; the rest is left out"));
        Ok(list)
    }

    /// Returns the prompts that the server offers; none if it does not offer prompts.
    pub(crate) async fn list_prompts(self: &Arc<Self>) -> Result<ServerList<McpPromptInfo>, McpRequestError> {
        if !self.live_connection().await?.offers_prompts() {
            return Ok(ServerList { items: Vec::new(), problem: None });
        }
        let list = self.list_pages("prompts", fetch_prompts).await?;
        let server = self.config.name();
        let named = list.items.into_iter().map(|prompt| {
            let arguments = prompt.arguments.unwrap_or_default().into_iter();
            McpPromptInfo {
                server: server.to_owned(),
                name: prompt.name,
                description: prompt.description,
                arguments: arguments
                    .map(|argument| (argument.name, argument.required == Some(true)))
                    .collect(),
            }
        });
        Ok(ServerList { items: named.collect(), problem: list.problem })
    }

    /// Returns the messages of a prompt.
    pub(crate) async fn get_prompt(
        self: &Arc<Self>,
        name: &str,
        arguments: BTreeMap<String, String>,
    ) -> Result<Vec<FetchedPromptMessage>, McpRequestError> {
        let mut params = GetPromptRequestParams::new(name);
        params.arguments =
            Some(arguments.into_iter().map(|(name, value)| (name, Value::String(value))).collect());
        let answer = self.ask(async |live| live.peer.get_prompt_once(params).await).await?;
        let GetPromptResponse::Complete(prompt) = answer else { return Err(needs_input()) };
        let messages = prompt.messages.into_iter().map(|message| FetchedPromptMessage {
            author: message.role.into(),
            text: match message.content {
                ContentBlock::Text(text) => text.text,
                other => serde_json::to_string(&other).unwrap_or_default(),
            },
        });
        Ok(messages.collect())
    }

    /// Returns the resources and templates that the server offers; none if it does not offer resources. A server that
    /// refuses to list its templates has a problem, unless it does not know the method.
    pub(crate) async fn list_resources(
        self: &Arc<Self>,
    ) -> Result<ServerList<McpResourceInfo>, McpRequestError> {
        if !self.live_connection().await?.offers_resources() {
            return Ok(ServerList { items: Vec::new(), problem: None });
        }
        let server = || self.config.name().to_owned();
        let resources = self.list_pages("resources", fetch_resources).await?;
        let named = resources.items.into_iter().map(|resource| McpResourceInfo {
            server: server(),
            uri: resource.uri,
            name: resource.name,
            description: resource.description,
            mime_type: resource.mime_type,
        });
        let mut list = ServerList { items: named.collect::<Vec<_>>(), problem: resources.problem };
        match self.list_pages("resource templates", fetch_templates).await {
            Ok(templates) => {
                list.items.extend(templates.items.into_iter().map(|template| McpResourceInfo {
                    server: server(),
                    uri: template.uri_template,
                    name: template.name,
                    description: template.description,
                    mime_type: template.mime_type,
                }));
                list.problem = list.problem.or(templates.problem);
            }
            Err(error) => {
                let why = format!("it does not list its resource templates: {error}");
                list.problem.get_or_insert(why);
            }
        }
        Ok(list)
    }

    /// Returns the contents of a resource.
    pub(crate) async fn read_resource(
        self: &Arc<Self>,
        uri: &str,
    ) -> Result<Vec<FetchedResource>, McpRequestError> {
        let params = ReadResourceRequestParams::new(uri);
        let answer = self.ask(async |live| live.peer.read_resource_once(params).await).await?;
        let ReadResourceResponse::Complete(resource) = answer else { return Err(needs_input()) };
        Ok(resource.contents.into_iter().filter_map(convert_contents).collect())
    }
}

/// The future of one page of a list: its items, and the cursor of the next page.
type ListPageFuture<T> = BoxFuture<'static, Result<(Vec<T>, Option<String>), ServiceError>>;

fn fetch_prompts(peer: Peer<RoleClient>, params: PaginatedRequestParams) -> ListPageFuture<Prompt> {
    async move { peer.list_prompts(Some(params)).await.map(|page| (page.prompts, page.next_cursor)) }.boxed()
}

fn fetch_resources(peer: Peer<RoleClient>, params: PaginatedRequestParams) -> ListPageFuture<Resource> {
    async move { peer.list_resources(Some(params)).await.map(|page| (page.resources, page.next_cursor)) }
        .boxed()
}

fn fetch_templates(
    peer: Peer<RoleClient>,
    params: PaginatedRequestParams,
) -> ListPageFuture<ResourceTemplate> {
    async move {
        match peer.list_resource_templates(Some(params)).await {
            Err(ServiceError::McpError(error)) if error.code == ErrorCode::METHOD_NOT_FOUND => {
                Ok((Vec::new(), None))
            }
            page => page.map(|page| (page.resource_templates, page.next_cursor)),
        }
    }
    .boxed()
}

fn needs_input() -> McpRequestError {
    McpRequestError::Failed {
        reason: "the server asks for input, which only a tool call can give".to_owned(),
    }
}

fn convert_contents(contents: ResourceContents) -> Option<FetchedResource> {
    match contents {
        ResourceContents::TextResourceContents { uri, mime_type, text, .. } => {
            Some(FetchedResource { uri, mime_type, body: ResourceBody::Text(text) })
        }
        ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
            Some(FetchedResource { uri, mime_type, body: ResourceBody::Base64(blob) })
        }
        _ => None,
    }
}

//! Authentication of HTTP clients by the application.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper::http::{HeaderMap, Method};

/// The head of an HTTP request, for the application's authentication.
#[derive(Clone, Debug)]
pub struct McpHttpRequest {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) peer_address: SocketAddr,
}

impl McpHttpRequest {
    /// Returns the method, such as `POST`.
    pub fn method(&self) -> &str {
        self.method.as_str()
    }

    /// Returns the path of the URL.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the value of a header, if it is there once and is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (Some(value), None) => value.to_str().ok(),
            _ => None,
        }
    }

    /// Returns the bearer token of the `Authorization` header.
    pub fn bearer_token(&self) -> Option<&str> {
        let (scheme, token) = self.header("authorization")?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    }

    /// Returns the address that the connection comes from.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer_address
    }
}

/// The identity of an authenticated client.
///
/// Sessions, tasks, held calls and idempotency keys belong to the identity that created them; no other client can use
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpClientIdentity {
    name: Arc<str>,
}

impl McpClientIdentity {
    /// Creates the identity of a client. The name is permanent and unique, such as the subject of its token.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into() }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn shared_name(&self) -> Arc<str> {
        self.name.clone()
    }
}

/// The refusal of a request by the application's authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum McpAuthRefusal {
    /// The request has no valid credentials (401). The text is the `WWW-Authenticate` header.
    Unauthenticated {
        /// The challenge, such as `Bearer resource_metadata="https://…"`.
        challenge: String,
    },
    /// The client is known and may not do this (403).
    Forbidden,
}

impl McpAuthRefusal {
    /// Creates the refusal of a request without a valid bearer token.
    pub fn bearer_required() -> Self {
        Self::Unauthenticated { challenge: "Bearer".to_owned() }
    }
}

pub(super) type Authenticator = Arc<
    dyn Fn(McpHttpRequest) -> BoxFuture<'static, Result<McpClientIdentity, McpAuthRefusal>> + Send + Sync,
>;

pub(super) fn new_authenticator<Fut>(
    authenticate: impl Fn(McpHttpRequest) -> Fut + Send + Sync + 'static,
) -> Authenticator
where
    Fut: Future<Output = Result<McpClientIdentity, McpAuthRefusal>> + Send + 'static,
{
    Arc::new(move |request| authenticate(request).boxed())
}

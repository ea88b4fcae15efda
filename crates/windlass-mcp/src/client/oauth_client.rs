//! The HTTP client of OAuth flows, over the network layer.
//!
//! **Invariant:** a server cannot use its OAuth metadata to make this process connect to addresses inside its network. A
//! public server may name public addresses only; loopback and private addresses are admitted only if the server's own URL
//! names one of the same kind. Link-local and reserved addresses are never admitted.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rmcp::transport::auth::{
    OAuthHttpClient, OAuthHttpClientError, OAuthHttpClientFuture, OAuthHttpRedirectPolicy, OAuthHttpRequest,
};
use url::{Host, Url};
use windlass_net::http::header::{AUTHORIZATION, COOKIE, HeaderMap, LOCATION};
use windlass_net::http::{Method, Request, Response, StatusCode};
use windlass_net::{
    AddressGuard, Bytes, DecodedBody, GuardBehindProxy, HttpTransport, ReplaySafety, TransportError,
    TransportOptions, is_public_address,
};

/// Maximum length of a response.
const MAX_BODY_BYTES: usize = 1024 * 1024;
/// Maximum number of redirects.
const MAX_REDIRECTS: usize = 10;
/// Time limit of a request that names none.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The kind of an address that is not public.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LocalAddressKind {
    Loopback,
    Private,
}

/// The client of one server's OAuth flow.
pub(super) struct OAuthNetworkClient {
    transport: Arc<dyn HttpTransport>,
    guard: AddressGuard,
}

impl OAuthNetworkClient {
    /// Creates the client for the server at `url`.
    pub(super) fn new(url: &str, transport: &Arc<dyn HttpTransport>) -> Self {
        let guard = metadata_guard(url);
        // A client of the application that cannot check addresses decides about names itself.
        let guarded = transport.with_address_guard(guard.clone());
        Self { transport: guarded.unwrap_or_else(|| transport.clone()), guard }
    }

    async fn exchange(&self, request: OAuthHttpRequest) -> Result<Response<Vec<u8>>, OAuthHttpClientError> {
        let OAuthHttpRequest { request, redirect_policy, timeout, .. } = request;
        let limit = timeout.unwrap_or(REQUEST_TIMEOUT);
        let mut request = request.map(Bytes::from);
        let following = async {
            for _ in 0..=MAX_REDIRECTS {
                self.check_literal(&request)?;
                let options = TransportOptions::new(ReplaySafety::Unsafe);
                let options = options.connect_timeout(limit).head_timeout(limit);
                let (head, body) = self.transport.send(request.clone(), options).await?.into_parts();
                let target = match redirect_policy {
                    OAuthHttpRedirectPolicy::Follow => redirected(&request, head.status, &head.headers),
                    _ => None,
                };
                let Some(target) = target else {
                    let body = DecodedBody::new(body, &head.headers).read_all(MAX_BODY_BYTES).await?;
                    return Ok(Response::from_parts(head, body));
                };
                request = target;
            }
            Err(OAuthHttpClientError::from("there are too many redirects"))
        };
        tokio::time::timeout(limit, following)
            .await
            .unwrap_or_else(|_| Err(TransportError::TimedOut(limit).into()))
    }

    /// Checks an address that is written as a number, also if a proxy or a client of the application connects to it.
    fn check_literal(&self, request: &Request<Bytes>) -> Result<(), TransportError> {
        let host = request.uri().host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        match host.parse::<IpAddr>() {
            Ok(address) if !self.guard.admits(host, address) => Err(TransportError::AddressRefused(format!(
                "the address {host} is not allowed for the OAuth flow of this server"
            ))),
            _ => Ok(()),
        }
    }
}

impl OAuthHttpClient for OAuthNetworkClient {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        Box::pin(self.exchange(request))
    }
}

/// Returns the request that follows a redirect, or `None` if the response is no redirect. Credentials are not sent to
/// another origin.
pub(super) fn redirected(
    request: &Request<Bytes>,
    status: StatusCode,
    headers: &HeaderMap,
) -> Option<Request<Bytes>> {
    let keeps_method = match status {
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => true,
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND | StatusCode::SEE_OTHER => {
            matches!(*request.method(), Method::GET | Method::HEAD)
        }
        _ => return None,
    };
    let from = Url::parse(&request.uri().to_string()).ok()?;
    let to = from.join(headers.get(LOCATION)?.to_str().ok()?).ok()?;
    let mut next = request.clone();
    *next.uri_mut() = to.as_str().split('#').next()?.parse().ok()?;
    if !keeps_method {
        *next.method_mut() = Method::GET;
        *next.body_mut() = Bytes::new();
    }
    if from.origin() != to.origin() {
        next.headers_mut().remove(AUTHORIZATION);
        next.headers_mut().remove(COOKIE);
    }
    Some(next)
}

/// Returns the guard for the OAuth flow of a server.
pub(super) fn metadata_guard(url: &str) -> AddressGuard {
    let host = Url::parse(url).ok().and_then(|url| url.host().map(|host| host.to_owned()));
    let own_address = match &host {
        Some(Host::Ipv4(address)) => Some(IpAddr::V4(*address)),
        Some(Host::Ipv6(address)) => Some(IpAddr::V6(*address)),
        Some(Host::Domain(_)) | None => None,
    };
    let own_kind = match &host {
        Some(Host::Domain(name)) if is_localhost(name) => Some(LocalAddressKind::Loopback),
        _ => own_address.and_then(local_kind),
    };
    let guard = AddressGuard::new(move |_, address| {
        own_address == Some(address)
            || is_public_address(address)
            || local_kind(address).is_some_and(|kind| own_kind == Some(kind))
    });
    // A proxy resolves names and decides about them, as it does for every other request.
    guard.behind_proxy(GuardBehindProxy::ProxyResolves)
}

fn is_localhost(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

fn local_kind(address: IpAddr) -> Option<LocalAddressKind> {
    let address = address.to_canonical();
    let is_private = match address {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            v4.is_private() || (a == 100 && (64..128).contains(&b))
        }
        IpAddr::V6(v6) => v6.is_unique_local(),
    };
    match (address.is_loopback(), is_private) {
        (true, _) => Some(LocalAddressKind::Loopback),
        (false, true) => Some(LocalAddressKind::Private),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_cannot_point_into_the_network() {
        for (server, address, is_admitted) in [
            ("https://mcp.example/mcp", "93.184.216.34", true),
            ("https://mcp.example/mcp", "127.0.0.1", false),
            ("https://mcp.example/mcp", "10.0.0.9", false),
            ("https://mcp.example/mcp", "169.254.169.254", false),
            ("https://mcp.example/mcp", "fd00::1", false),
            ("https://mcp.example/mcp", "::ffff:10.0.0.9", false),
            ("http://localhost:8000/mcp", "127.0.0.1", true),
            ("http://localhost:8000/mcp", "::1", true),
            ("http://localhost:8000/mcp", "10.0.0.9", false),
            ("http://127.0.0.1:8000/mcp", "127.0.0.1", true),
            ("http://10.0.0.7/mcp", "10.0.0.9", true),
            ("http://10.0.0.7/mcp", "127.0.0.1", false),
            ("http://169.254.1.1/mcp", "169.254.1.1", true),
            ("http://169.254.1.1/mcp", "169.254.169.254", false),
        ] {
            let admitted =
                metadata_guard(server).admits("auth.example", address.parse().expect("an address"));
            assert_eq!(admitted, is_admitted, "{server} {address}");
        }
    }
}

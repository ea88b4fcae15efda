//! Dialling: byte streams over TCP, through a proxy if the settings name one, with TLS on top where the address asks
//! for it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::Uri;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::address::{AddressGuard, GuardBehindProxy, is_numeric_host};
use crate::address_race::connect_to_first;
use crate::ban::{ban_error, check_network_ban, network_ban};
use crate::proxy::{ProxyServer, ProxySettings};
#[cfg(feature = "tls")]
use crate::tls::{self, Alpn, TrustedRoots};
use crate::transport::{BoxFuture, TransportError, error_chain_text};

/// A bidirectional byte stream.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for S {}

/// A dialler: TCP, a proxy, or a pipe in a test.
pub trait StreamDialer: Send + Sync + 'static {
    /// Opens a stream to the server of an address, whose scheme is `ws`, `wss`, `http` or `https`.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no connection.
    fn open_stream<'a>(
        &'a self,
        address: &'a Uri,
    ) -> BoxFuture<'a, Result<Box<dyn ByteStream>, TransportError>>;
}

/// The dialler over TCP, with proxies and TLS. Through a proxy it always opens a tunnel (CONNECT).
#[derive(Clone, Debug)]
pub struct NetworkDialer {
    proxies: ProxySettings,
    guard: Option<AddressGuard>,
    #[cfg(feature = "tls")]
    roots: TrustedRoots,
}

/// The way to the server of an address.
pub(crate) struct ServerRoute {
    pub(crate) proxy: Option<Arc<ProxyServer>>,
    /// True if requests are handed to the proxy with their absolute address. Otherwise it opens a tunnel.
    pub(crate) is_forwarded: bool,
}

/// The use of a proxy for addresses without TLS.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlainAddresses {
    Forwarded,
    Tunnelled,
}

/// The server that an address names.
struct DialTarget<'a> {
    host: &'a str,
    port: u16,
    is_tls: bool,
}

impl Default for NetworkDialer {
    fn default() -> Self {
        Self::new()
    }
}

impl NetworkDialer {
    /// Creates a dialler with the proxies of this process's environment and the certificates that the machine trusts.
    pub fn new() -> Self {
        Self {
            proxies: ProxySettings::from_env(),
            guard: None,
            #[cfg(feature = "tls")]
            roots: TrustedRoots::default(),
        }
    }

    /// Sets the proxies, in place of those of the environment.
    #[must_use]
    pub fn proxies(self, proxies: ProxySettings) -> Self {
        Self { proxies, ..self }
    }

    /// Sets a guard: connections are made only to addresses that it admits.
    #[must_use]
    pub fn address_guard(self, guard: AddressGuard) -> Self {
        Self { guard: Some(guard), ..self }
    }

    /// Sets the trusted certificates, in place of those of the machine.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn trusted_roots(self, roots: TrustedRoots) -> Self {
        Self { roots, ..self }
    }

    /// Returns the way to the server of an address. Every request and every stream asks for it first, so that a ban also
    /// covers connections that are open already.
    pub(crate) fn find_route(
        &self,
        address: &Uri,
        plain: PlainAddresses,
    ) -> Result<ServerRoute, TransportError> {
        let DialTarget { host, is_tls, .. } = DialTarget::parse(address)?;
        check_network_ban(host)?;
        let proxy = self.proxies.find(address, is_tls)?;
        let is_pinned =
            self.guard.as_ref().is_some_and(|guard| guard.proxy_mode() == GuardBehindProxy::PinnedTunnel);
        let is_forwarded = proxy.is_some() && !is_tls && !is_pinned && plain == PlainAddresses::Forwarded;
        Ok(ServerRoute { proxy, is_forwarded })
    }

    /// Opens a stream along a route. Returns true beside it if HTTP/2 was offered and the server chose it.
    pub(crate) async fn open_route(
        &self,
        address: &Uri,
        route: &ServerRoute,
        offer_http2: bool,
    ) -> Result<(Box<dyn ByteStream>, bool), TransportError> {
        let target = DialTarget::parse(address)?;
        let stream: Box<dyn ByteStream> = match &route.proxy {
            None => Box::new(self.connect_directly(&target).await?),
            Some(proxy) => {
                // The address is checked before anybody is connected to.
                let authority = self.check_behind_proxy(&target).await?;
                let mut stream = self.connect_to_proxy(proxy).await?;
                if !route.is_forwarded {
                    proxy.open_tunnel(&mut stream, &authority).await?;
                }
                stream
            }
        };
        if target.is_tls {
            self.start_tls(stream, target.host, offer_http2).await
        } else {
            Ok((stream, false))
        }
    }

    async fn connect_directly(&self, target: &DialTarget<'_>) -> Result<TcpStream, TransportError> {
        match &self.guard {
            None => connect_tcp(target.host, target.port).await,
            Some(guard) => connect_to_addresses(&target.resolve_checked(guard).await?, target.host).await,
        }
    }

    async fn connect_to_proxy(&self, proxy: &ProxyServer) -> Result<Box<dyn ByteStream>, TransportError> {
        let named = |error: TransportError| match error {
            TransportError::Unusable(why) => TransportError::Unusable(format!("the proxy {proxy}: {why}")),
            TransportError::Banned(why) => TransportError::Banned(format!("the proxy {proxy}: {why}")),
            error => TransportError::Unreachable(format!("the proxy {proxy}: {error}")),
        };
        let stream = connect_tcp(&proxy.host, proxy.port).await.map_err(named)?;
        if proxy.is_tls {
            Ok(self.start_tls(Box::new(stream), &proxy.host, false).await.map_err(named)?.0)
        } else {
            Ok(Box::new(stream))
        }
    }

    /// Applies the guard to a target behind a proxy, and returns the authority of a tunnel to it.
    async fn check_behind_proxy(&self, target: &DialTarget<'_>) -> Result<String, TransportError> {
        let by_name = || match target.host.contains(':') {
            true => format!("[{}]:{}", target.host, target.port),
            false => format!("{}:{}", target.host, target.port),
        };
        let Some(guard) = &self.guard else { return Ok(by_name()) };
        if guard.proxy_mode() == GuardBehindProxy::ProxyResolves && !is_numeric_host(target.host) {
            return Ok(by_name());
        }
        let addresses = target.resolve_checked(guard).await?;
        // Many proxies reach IPv4 only.
        let first = addresses.iter().find(|address| address.is_ipv4()).or_else(|| addresses.first());
        first
            .map(SocketAddr::to_string)
            .ok_or_else(|| TransportError::Unreachable("the host has no address".into()))
    }

    /// Performs the TLS handshake.
    #[cfg(feature = "tls")]
    async fn start_tls(
        &self,
        stream: Box<dyn ByteStream>,
        host: &str,
        offer_http2: bool,
    ) -> Result<(Box<dyn ByteStream>, bool), TransportError> {
        let alpn = if offer_http2 { Alpn::Http2OrHttp1 } else { Alpn::Http1 };
        let stream = self.roots.connect(stream, host, alpn).await.map_err(|error| tls_error(host, &error))?;
        let is_http2 = tls::has_chosen_http2(&stream);
        Ok((Box::new(stream), is_http2))
    }

    #[cfg(not(feature = "tls"))]
    async fn start_tls(
        &self,
        _: Box<dyn ByteStream>,
        host: &str,
        _: bool,
    ) -> Result<(Box<dyn ByteStream>, bool), TransportError> {
        let text = format!("TLS to {host} needs the feature `tls`, which is switched off");
        Err(TransportError::Unusable(text))
    }
}

impl StreamDialer for NetworkDialer {
    fn open_stream<'a>(
        &'a self,
        address: &'a Uri,
    ) -> BoxFuture<'a, Result<Box<dyn ByteStream>, TransportError>> {
        Box::pin(async move {
            let route = self.find_route(address, PlainAddresses::Tunnelled)?;
            Ok(self.open_route(address, &route, false).await?.0)
        })
    }
}

impl<'a> DialTarget<'a> {
    fn parse(address: &'a Uri) -> Result<Self, TransportError> {
        let is_tls = match address.scheme_str() {
            Some("http" | "ws") => false,
            Some("https" | "wss") => true,
            _ => {
                let text = format!("`{address}` is not an absolute address with http, https, ws or wss");
                return Err(TransportError::Unusable(text));
            }
        };
        let host = address.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let port = address.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        Ok(Self { host, port, is_tls })
    }

    /// Resolves the host once. All its addresses must pass the guard.
    async fn resolve_checked(&self, guard: &AddressGuard) -> Result<Vec<SocketAddr>, TransportError> {
        let found =
            tokio::net::lookup_host((self.host, self.port)).await.map_err(|error| unreachable(&error))?;
        let addresses: Vec<SocketAddr> = found.collect();
        if addresses.iter().all(|address| guard.admits(self.host, address.ip())) {
            return Ok(addresses);
        }
        Err(TransportError::AddressRefused(format!("the address of {} may not be connected to", self.host)))
    }
}

async fn connect_tcp(host: &str, port: u16) -> Result<TcpStream, TransportError> {
    check_network_ban(host)?;
    let found = tokio::net::lookup_host((host, port)).await.map_err(|error| unreachable(&error))?;
    connect_to_addresses(&found.collect::<Vec<_>>(), host).await
}

/// Connects to the first address that accepts. Under a ban that excepts this machine, all must be loopback addresses:
/// a machine may resolve `localhost` to something else.
async fn connect_to_addresses(addresses: &[SocketAddr], host: &str) -> Result<TcpStream, TransportError> {
    if let Some(ban) = network_ban()
        && !addresses.iter().all(|address| ban.admits_address(address.ip()))
    {
        return Err(ban_error(host));
    }
    let stream =
        connect_to_first(addresses, TcpStream::connect).await.map_err(|error| unreachable(&error))?;
    // Requests are written in one piece and speech in small ones, so Nagle's algorithm would only delay them.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Returns the error of a TLS handshake. A connection that broke may be opened again; a certificate that is not
/// trusted stays so.
#[cfg(feature = "tls")]
fn tls_error(host: &str, error: &io::Error) -> TransportError {
    let text = error_chain_text(error);
    if tls::is_certificate_error(error) {
        return TransportError::Unusable(format!("the certificate of {host} is not trusted: {text}"));
    }
    match error.kind() {
        io::ErrorKind::InvalidData => {
            let hint = if text.contains("InvalidContentType") {
                "; hint: the server does not speak TLS at this port; is its address http:// (or ws://)?"
            } else {
                ""
            };
            TransportError::Unusable(format!("no TLS connection to {host}: {text}{hint}"))
        }
        io::ErrorKind::Other => TransportError::Unusable(text),
        io::ErrorKind::UnexpectedEof => TransportError::Unreachable(format!(
            "{host} closed the connection during the TLS handshake; hint: does it speak TLS at this port?"
        )),
        _ => unreachable(error),
    }
}

fn unreachable(error: &io::Error) -> TransportError {
    TransportError::Unreachable(format!("no connection: {}", error_chain_text(error)))
}

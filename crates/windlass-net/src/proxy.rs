//! Proxies: which address is reached through which proxy, and the tunnels that proxies open.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_util::client::proxy::matcher::Matcher;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::transport::TransportError;

/// Maximum length of a proxy's reply to CONNECT in bytes.
const MAX_CONNECT_REPLY: usize = 16 * 1024;
/// Maximum number of characters of a proxy's status line in an error.
const MAX_SHOWN_STATUS: usize = 200;

/// The proxies of a client.
///
/// Addresses of this machine (`localhost` and loopback addresses) are always reached without a proxy.
///
/// ```
/// use windlass_net::{HttpClient, ProxySettings};
///
/// # fn main() -> Result<(), windlass_net::ProxyAddressError> {
/// let proxies = ProxySettings::everywhere("http://worker:secret@proxy.example:3128")?.except(".example,10.0.0.0/8");
/// let client = HttpClient::new().proxies(proxies);
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct ProxySettings {
    rules: Option<Arc<ProxyRules>>,
}

/// The proxies by scheme, and the exceptions.
#[derive(Clone)]
struct ProxyRules {
    http: Option<ProxyChoice>,
    https: Option<ProxyChoice>,
    /// It intercepts every address but the exceptions.
    exceptions: Arc<Matcher>,
}

/// A proxy, or the error of an address that cannot be used. A malformed address must not turn the proxy off.
type ProxyChoice = Result<Arc<ProxyServer>, ProxyAddressError>;

/// The address of a proxy cannot be used. The text does not contain the address, which may contain a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{source_name} is not the address of an HTTP proxy{reason}; hint: it looks like `http://user:password@host:8080`, with special characters of the password percent-encoded"
)]
pub struct ProxyAddressError {
    source_name: String,
    reason: String,
}

/// One proxy.
pub(crate) struct ProxyServer {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) is_tls: bool,
    pub(crate) authorization: Option<HeaderValue>,
}

impl ProxySettings {
    /// Returns settings without a proxy.
    pub fn none() -> Self {
        Self::default()
    }

    /// Reads the variables `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` of this process, in upper or lower
    /// case.
    pub fn from_env() -> Self {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// Reads the same variables by a function. Upper case takes precedence over lower case.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Self {
        let either = |name: &str| {
            let named =
                |name: String| var(&name).filter(|value| !value.trim().is_empty()).map(|value| (name, value));
            named(name.to_owned()).or_else(|| named(name.to_ascii_lowercase()))
        };
        let proxy_of =
            |name: &str| either(name).map(|(name, value)| ProxyServer::parse(&value, &format!("`{name}`")));
        let all = proxy_of("ALL_PROXY");
        // A web server passes the header `Proxy` of its client to a CGI program as HTTP_PROXY.
        let http = if var("REQUEST_METHOD").is_none() { proxy_of("HTTP_PROXY") } else { None };
        let (http, https) = (http.or_else(|| all.clone()), proxy_of("HTTPS_PROXY").or(all));
        if http.is_none() && https.is_none() {
            return Self::none();
        }
        let exceptions = matcher(&either("NO_PROXY").map(|(_, value)| value).unwrap_or_default());
        Self { rules: Some(Arc::new(ProxyRules { http, https, exceptions })) }
    }

    /// Sets one proxy for all addresses, such as `http://user:password@host:8080`. `https://` means TLS to the proxy.
    ///
    /// # Errors
    ///
    /// Returns an error if the address is malformed, or the proxy is not an HTTP proxy.
    pub fn everywhere(address: &str) -> Result<Self, ProxyAddressError> {
        let proxy = ProxyServer::parse(address, "the setting")?;
        let rules =
            ProxyRules { http: Some(Ok(proxy.clone())), https: Some(Ok(proxy)), exceptions: matcher("") };
        Ok(Self { rules: Some(Arc::new(rules)) })
    }

    /// Sets the addresses that are reached without a proxy, in the form of `NO_PROXY`: host names with their
    /// subdomains, addresses and networks, separated by commas; `*` for all.
    #[must_use]
    pub fn except(self, hosts: &str) -> Self {
        let rules = self.rules.map(|rules| {
            let ProxyRules { http, https, .. } = ProxyRules::clone(&rules);
            Arc::new(ProxyRules { http, https, exceptions: matcher(hosts) })
        });
        Self { rules }
    }

    /// Returns the proxy for an address.
    ///
    /// # Errors
    ///
    /// Returns an error if the address of the proxy cannot be used.
    pub(crate) fn find(
        &self,
        address: &Uri,
        is_tls: bool,
    ) -> Result<Option<Arc<ProxyServer>>, TransportError> {
        let Some(rules) = &self.rules else { return Ok(None) };
        let choice = if is_tls { &rules.https } else { &rules.http };
        let Some(choice) = choice else { return Ok(None) };
        let host = address.host().unwrap_or_default();
        let ip: Result<IpAddr, _> = host.trim_start_matches('[').trim_end_matches(']').parse();
        if host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.is_loopback()) {
            return Ok(None);
        }
        // The matcher does not know the schemes of WebSocket.
        let target = Uri::builder().scheme("http").authority(host).path_and_query("/").build();
        if target.is_ok_and(|target| rules.exceptions.intercept(&target).is_none()) {
            return Ok(None);
        }
        match choice {
            Ok(proxy) => Ok(Some(proxy.clone())),
            Err(error) => Err(TransportError::Unusable(error.to_string())),
        }
    }
}

/// Returns a matcher that intercepts every address but these hosts.
fn matcher(exceptions: &str) -> Arc<Matcher> {
    Arc::new(Matcher::builder().all("http://proxy").no(exceptions).build())
}

impl fmt::Debug for ProxySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(rules) = &self.rules else { return f.write_str("ProxySettings(none)") };
        let shown = |choice: &Option<ProxyChoice>| match choice {
            None => "none".to_owned(),
            Some(Ok(proxy)) => proxy.to_string(),
            Some(Err(error)) => error.to_string(),
        };
        f.debug_struct("ProxySettings")
            .field("http", &shown(&rules.http))
            .field("https", &shown(&rules.https))
            .finish_non_exhaustive()
    }
}

/// Shows the proxy without its user name and password.
impl fmt::Display for ProxyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        write!(f, "{}://{host}:{}", if self.is_tls { "https" } else { "http" }, self.port)
    }
}

impl ProxyServer {
    fn parse(address: &str, source_name: &str) -> ProxyChoice {
        let unusable = |reason: &str| ProxyAddressError {
            source_name: source_name.to_owned(),
            reason: reason.to_owned(),
        };
        if let Some((scheme, _)) = address.trim().split_once("://")
            && !matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https")
        {
            return Err(unusable(&format!(": the scheme `{scheme}` is not supported")));
        }
        // The matcher decodes the user name and the password.
        let target = Uri::from_static("http://target.invalid/");
        let found = Matcher::builder().all(address.trim().to_owned()).build().intercept(&target);
        let found = found.ok_or_else(|| unusable(""))?;
        let uri = found.uri();
        let is_tls = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(unusable(": it names no host"));
        }
        let authorization = found.basic_auth().cloned().map(|mut value| {
            value.set_sensitive(true);
            value
        });
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        Ok(Arc::new(Self { host, port, is_tls, authorization }))
    }

    /// Asks the proxy for a tunnel to `authority` over an open connection.
    pub(crate) async fn open_tunnel(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        authority: &str,
    ) -> Result<(), TransportError> {
        let failed =
            |why: &dyn fmt::Display| TransportError::Unreachable(format!("the proxy {self} failed: {why}"));
        let mut request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n").into_bytes();
        if let Some(authorization) = &self.authorization {
            request.extend_from_slice(b"Proxy-Authorization: ");
            request.extend_from_slice(authorization.as_bytes());
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        stream.write_all(&request).await.map_err(|error| failed(&error))?;
        stream.flush().await.map_err(|error| failed(&error))?;
        let mut reply = Vec::new();
        // The reply is read byte by byte, because the bytes after it belong to the tunnel, or to the page of a refusal.
        while !reply.ends_with(b"\r\n\r\n") {
            if reply.len() >= MAX_CONNECT_REPLY {
                return Err(failed(&"its reply to CONNECT is too long"));
            }
            match stream.read_u8().await {
                Ok(byte) => reply.push(byte),
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                    return Err(failed(&"its reply to CONNECT is incomplete"));
                }
                Err(error) => return Err(failed(&error)),
            }
        }
        let head = String::from_utf8_lossy(&reply);
        let status: String = head.lines().next().unwrap_or_default().chars().take(MAX_SHOWN_STATUS).collect();
        match status.split_ascii_whitespace().nth(1).and_then(|code| code.parse::<u16>().ok()) {
            Some(200..=299) => Ok(()),
            Some(407) => Err(self.login_error()),
            Some(502..=504) | None => Err(failed(&status)),
            Some(_) => Err(TransportError::Unusable(format!(
                "the proxy {self} refused a tunnel to {authority}: {status}"
            ))),
        }
    }

    /// Returns the error for a proxy that does not accept the user name and the password.
    pub(crate) fn login_error(&self) -> TransportError {
        TransportError::Unusable(match &self.authorization {
            Some(_) => format!(
                "the proxy {self} refused the user name and password in its address (407); hint: check them in the \
                 proxy variable or setting"
            ),
            None => format!(
                "the proxy {self} requires a user name and a password (407); hint: write them into its address, as \
                 in `http://user:password@host:8080`"
            ),
        })
    }
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;

//! Proxies by the usual environment variables: `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`.

use std::net::IpAddr;

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_util::client::proxy::matcher::Matcher;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::TransportError;

/// Maximum length of a proxy's reply to CONNECT in bytes.
const MAX_CONNECT_REPLY: usize = 16 * 1024;

/// The rules that assign proxies to addresses.
#[derive(Debug)]
pub(super) struct ProxyRules(Matcher);

/// The proxy for one address.
#[derive(Clone, Debug)]
pub(super) struct ProxyServer {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) is_tls: bool,
    pub(super) authorization: Option<HeaderValue>,
}

impl ProxyRules {
    /// Creates the rules that these variables state. Upper case takes precedence over lower case.
    pub(super) fn from_vars(var: impl Fn(&str) -> Option<String>) -> Self {
        let either = |name: &str| {
            var(name).or_else(|| var(&name.to_ascii_lowercase())).filter(|value| !value.is_empty())
        };
        let mut rules = Matcher::builder();
        if let Some(all) = either("ALL_PROXY") {
            rules = rules.all(all);
        }
        // A web server passes the header `Proxy` of its client to a CGI program as HTTP_PROXY.
        if let (Some(http), None) = (either("HTTP_PROXY"), var("REQUEST_METHOD")) {
            rules = rules.http(http);
        }
        if let Some(https) = either("HTTPS_PROXY") {
            rules = rules.https(https);
        }
        if let Some(no) = either("NO_PROXY") {
            rules = rules.no(no);
        }
        Self(rules.build())
    }

    /// Returns the proxy for an address. Addresses of this machine have none.
    ///
    /// # Errors
    ///
    /// Returns an error if the proxy is not an HTTP proxy.
    pub(super) fn find(&self, address: &Uri) -> Result<Option<ProxyServer>, TransportError> {
        let host = address.host().unwrap_or_default();
        let ip: Result<IpAddr, _> = host.trim_start_matches('[').trim_end_matches(']').parse();
        if host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.is_loopback()) {
            return Ok(None);
        }
        let Some(found) = self.0.intercept(address) else { return Ok(None) };
        let uri = found.uri();
        let (is_tls, usual) = match uri.scheme_str() {
            Some("http") | None => (false, 80),
            Some("https") => (true, 443),
            Some(scheme) => {
                let text =
                    format!("the proxy for {host} has the scheme `{scheme}`; hint: name an HTTP proxy");
                return Err(TransportError::Unusable(text));
            }
        };
        Ok(Some(ProxyServer {
            host: uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: uri.port_u16().unwrap_or(usual),
            is_tls,
            authorization: found.basic_auth().cloned(),
        }))
    }
}

impl ProxyServer {
    /// Asks the proxy for a tunnel to `authority` over an open connection.
    pub(super) async fn open_tunnel(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        authority: &str,
    ) -> Result<(), TransportError> {
        let failed = |why: &dyn std::fmt::Display| {
            TransportError::Unreachable(format!("the proxy {}:{} failed: {why}", self.host, self.port))
        };
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
        // The server of the tunnel sends nothing before the client does, so the reply ends with its empty line.
        while !reply.ends_with(b"\r\n\r\n") {
            if reply.len() > MAX_CONNECT_REPLY
                || stream.read_buf(&mut reply).await.map_err(|e| failed(&e))? == 0
            {
                return Err(failed(&"its reply to CONNECT is incomplete"));
            }
        }
        let head = String::from_utf8_lossy(&reply);
        let status = head.lines().next().unwrap_or_default();
        match status.split_ascii_whitespace().nth(1).and_then(|code| code.parse::<u16>().ok()) {
            Some(200..=299) => Ok(()),
            Some(502..=504) | None => Err(failed(&status)),
            Some(_) => {
                let place = format!("{}:{}", self.host, self.port);
                Err(TransportError::Unusable(format!("the proxy {place} refused {authority}: {status}")))
            }
        }
    }
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;

//! Requests to the server of Restate: one connection each.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::client::RestateError;

/// Maximum length of an answer.
const MAX_ANSWER: usize = 16 << 20;
/// Maximum time for a request and its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerAddress {
    is_encrypted: bool,
    host: String,
    port: u16,
}

impl ServerAddress {
    /// Parses `http://host:port` or `https://host:port`.
    pub(crate) fn parse(text: &str) -> Result<Self, RestateError> {
        let invalid = || RestateError::Address(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let is_encrypted = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(invalid()),
        };
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(invalid());
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(invalid)?.to_owned();
        let port = uri.port_u16().unwrap_or(if is_encrypted { 443 } else { 80 });
        Ok(Self { is_encrypted, host, port })
    }

    /// Posts a JSON body, or none, and returns the body of the answer.
    pub(crate) async fn post(&self, path: &str, body: Option<Vec<u8>>) -> Result<Vec<u8>, RestateError> {
        let exchange = async {
            let stream = TcpStream::connect((self.host.trim_matches(['[', ']']), self.port)).await?;
            stream.set_nodelay(true)?;
            match self.is_encrypted {
                true => exchange(windlass_tls::connect(stream, &self.host).await?, self, path, body).await,
                false => exchange(stream, self, path, body).await,
            }
        };
        match tokio::time::timeout(REQUEST_TIMEOUT, exchange).await {
            Ok(result) => result,
            Err(_) => Err(RestateError::Connection("the server does not answer".to_owned())),
        }
    }
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    address: &ServerAddress,
    path: &str,
    body: Option<Vec<u8>>,
) -> Result<Vec<u8>, RestateError> {
    let failed = |error: &dyn std::fmt::Display| RestateError::Connection(error.to_string());
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| failed(&e))?;
    let connection = tokio::spawn(connection);
    let mut request = Request::post(path).header(HOST, format!("{}:{}", address.host, address.port));
    if body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    let request = request.body(Full::new(Bytes::from(body.unwrap_or_default()))).map_err(|e| failed(&e))?;
    let response = sender.send_request(request).await.map_err(|e| failed(&e))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
    connection.abort();
    let body = body.map_err(|e| failed(&e))?.to_bytes();
    match status.is_success() {
        true => Ok(body.to_vec()),
        false => Err(RestateError::Refused { status: status.as_u16(), message: read_message(&body) }),
    }
}

/// Returns the message of a refusal.
fn read_message(body: &[u8]) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let message = parsed.as_ref().and_then(|value| value.get("message")?.as_str());
    message.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned)
}

/// Escapes a segment of a path.
pub(crate) fn escape_segment(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => escaped.push(byte.into()),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used)]

    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let plain = ServerAddress::parse("http://127.0.0.1:8080").expect("is an address");
        let expected = ServerAddress { is_encrypted: false, host: "127.0.0.1".to_owned(), port: 8080 };
        assert_eq!(plain, expected);
        let encrypted = ServerAddress::parse("https://restate.example/").expect("is an address");
        assert_eq!((encrypted.is_encrypted, encrypted.port), (true, 443));
        for invalid in ["", "127.0.0.1:8080", "ftp://host", "http://host/path", "http://host?query"] {
            assert!(ServerAddress::parse(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn keys_are_escaped() {
        assert_eq!(escape_segment("report@17/ä b"), "report%4017%2F%C3%A4%20b");
        assert_eq!(escape_segment("run-1_a.b~c"), "run-1_a.b~c");
    }
}

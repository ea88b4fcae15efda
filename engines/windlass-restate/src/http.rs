//! Requests to the server of Restate.

use std::time::Duration;

use windlass_net::http::header::CONTENT_TYPE;
use windlass_net::http::{Request, Uri};
use windlass_net::{
    Bytes, DecodedBody, HttpClient, HttpTransport, ReplaySafety, TransportError, TransportOptions,
};

use crate::client::RestateError;

/// Maximum length of an answer.
const MAX_ANSWER: usize = 16 << 20;
/// Maximum time for a request and its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The address of a server, with a client for it.
#[derive(Clone, Debug)]
pub(crate) struct ServerAddress {
    /// The address without a slash at its end.
    base: String,
    client: HttpClient,
}

impl ServerAddress {
    /// Parses `http://host:port` or `https://host:port`.
    pub(crate) fn parse(text: &str) -> Result<Self, RestateError> {
        let invalid = || RestateError::Address(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let has_server = uri.host().is_some_and(|host| !host.is_empty());
        if !matches!(uri.scheme_str(), Some("http" | "https")) || !has_server {
            return Err(invalid());
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(invalid());
        }
        Ok(Self { base: text.trim_end_matches('/').to_owned(), client: HttpClient::new() })
    }

    /// Posts a JSON body, or none, and returns the body of the answer.
    pub(crate) async fn post(&self, path: &str, body: Option<Vec<u8>>) -> Result<Vec<u8>, RestateError> {
        match tokio::time::timeout(REQUEST_TIMEOUT, self.exchange(path, body)).await {
            Ok(result) => result,
            Err(_) => Err(RestateError::Connection("the server does not answer".to_owned())),
        }
    }

    async fn exchange(&self, path: &str, body: Option<Vec<u8>>) -> Result<Vec<u8>, RestateError> {
        let failed = |error: TransportError| RestateError::Connection(error.to_string());
        let mut request = Request::post(format!("{}{path}", self.base));
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request
            .body(Bytes::from(body.unwrap_or_default()))
            .map_err(|error| RestateError::Connection(error.to_string()))?;
        // A handler is repeated by Restate, and never by its client.
        let options = TransportOptions::new(ReplaySafety::Unsafe).head_timeout(REQUEST_TIMEOUT);
        let (head, body) = self.client.send(request, options).await.map_err(failed)?.into_parts();
        let body = DecodedBody::new(body, &head.headers).read_all(MAX_ANSWER).await.map_err(failed)?;
        match head.status.is_success() {
            true => Ok(body),
            false => {
                Err(RestateError::Refused { status: head.status.as_u16(), message: read_message(&body) })
            }
        }
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
        assert_eq!(plain.base, "http://127.0.0.1:8080");
        let encrypted = ServerAddress::parse("https://restate.example/").expect("is an address");
        assert_eq!(encrypted.base, "https://restate.example");
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

//! One request of a page, over the network layer.

use windlass_net::http::{HeaderMap, Request, StatusCode, header};
use windlass_net::{
    Bytes, DecodedBody, HttpTransport, ReplaySafety, TransportError, TransportOptions, is_gzip,
};

use super::timeout_message;
use super::url::PageUrl;

/// An HTTP response, with a bounded body.
pub(super) struct FetchResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
    /// True if the body is complete, false if it was truncated.
    pub(super) is_complete: bool,
}

/// Requests a page. The client's guard checks the address that is connected to.
pub(super) async fn send_get(
    client: &dyn HttpTransport,
    url: &PageUrl,
    max_bytes: usize,
    options: TransportOptions,
) -> Result<FetchResponse, String> {
    let request = Request::get(url.to_string())
        .header(header::USER_AGENT, concat!("windlass/", env!("CARGO_PKG_VERSION")))
        .header(header::ACCEPT, "text/html, text/*;q=0.9, application/json;q=0.9, */*;q=0.1")
        .header(header::ACCEPT_ENCODING, "gzip")
        .body(Bytes::new())
        .map_err(|error| format!("cannot be asked for: {error}"))?;
    let (head, body) = client.send(request, options).await.map_err(describe_failure)?.into_parts();
    let encoding = head.headers.get(header::CONTENT_ENCODING).and_then(|encoding| encoding.to_str().ok());
    let encoding = encoding.unwrap_or_default().trim();
    if !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity") && !is_gzip(&head.headers) {
        return Err("is in a content encoding that was not asked for".to_owned());
    }
    let mut body = DecodedBody::new(body, &head.headers);
    let (body, is_complete) = read_body(&mut body, max_bytes).await.map_err(describe_failure)?;
    Ok(FetchResponse { status: head.status, headers: head.headers, body, is_complete })
}

/// Returns the options of a request within this time.
pub(super) fn page_options(time: std::time::Duration) -> TransportOptions {
    TransportOptions::new(ReplaySafety::Safe).connect_timeout(time).head_timeout(time)
}

fn describe_failure(error: TransportError) -> String {
    match error {
        TransportError::AddressRefused(_) => {
            "is on this machine or in a private network, and these are not open to agents".to_owned()
        }
        TransportError::Unreachable(why) => {
            format!("cannot be reached ({why}): check how it is written, or try later or another page")
        }
        TransportError::TimedOut(time) => timeout_message(time),
        TransportError::Unusable(why) => format!("is not safe to talk to: {why}"),
        TransportError::Banned(why) => format!("is not fetched: {why}"),
        error => format!("answered in a way that is not understood: {error}"),
    }
}

async fn read_body(body: &mut DecodedBody, max_bytes: usize) -> Result<(Vec<u8>, bool), TransportError> {
    let mut bytes = Vec::new();
    while let Some(data) = body.next_chunk().await? {
        let room = max_bytes - bytes.len();
        if data.len() > room {
            bytes.extend_from_slice(&data[..room]);
            return Ok((bytes, false));
        }
        bytes.extend_from_slice(&data);
    }
    Ok((bytes, true))
}

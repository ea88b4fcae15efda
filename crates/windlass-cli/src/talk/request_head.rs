//! The head of an HTTP request, read within limits, and the response of the page's server.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Maximum size of a request's head.
const MAX_HEAD: usize = 8 * 1024;
/// Time to read a request's head, and to write a response.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// The head of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RequestHead {
    pub(super) method: String,
    pub(super) path: String,
    headers: Vec<(String, String)>,
}

impl RequestHead {
    /// Reads the head of a request that has no body; `None` if it is not valid or does not come in time.
    pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Option<Self> {
        tokio::time::timeout(EXCHANGE_TIMEOUT, read_head(stream)).await.ok()?
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, path, version) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() || !["HTTP/1.1", "HTTP/1.0"].contains(&version) || !path.starts_with('/') {
            return None;
        }
        let headers = lines.map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
            is_name.then(|| (name.to_ascii_lowercase(), value.trim().to_owned()))
        });
        let headers = headers.collect::<Option<_>>()?;
        Some(Self { method: method.to_owned(), path: path.to_owned(), headers })
    }

    /// Returns the value of a header; `None` if it is absent or given more than once.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value);
        match (values.next(), values.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        }
    }

    /// Returns true if a header is present, however often.
    pub(super) fn has_header(&self, name: &str) -> bool {
        self.headers.iter().any(|(known, _)| known == name)
    }

    /// Returns true if a header is a list that has this word.
    pub(super) fn lists(&self, name: &str, word: &str) -> bool {
        let listed = self.header(name).unwrap_or_default().split(',');
        listed.into_iter().any(|part| part.trim().eq_ignore_ascii_case(word))
    }
}

async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Option<RequestHead> {
    let mut head = Vec::with_capacity(1024);
    let mut buffer = [0; 1024];
    loop {
        if let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            // Nothing may follow: a client sends no frame before the connection is upgraded.
            let is_whole = end + 4 == head.len();
            return is_whole.then(|| RequestHead::parse(std::str::from_utf8(&head[..end]).ok()?))?;
        }
        if head.len() > MAX_HEAD {
            return None;
        }
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => head.extend_from_slice(&buffer[..count]),
        }
    }
}

/// Writes a response and flushes it. Errors are ignored, because the client has left.
pub(super) async fn write_response(stream: &mut (impl AsyncWrite + Unpin), head: &str, body: &[u8]) {
    let writing = async {
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body).await?;
        stream.flush().await
    };
    let _written = tokio::time::timeout(EXCHANGE_TIMEOUT, writing).await;
}

#[cfg(test)]
#[path = "request_head_tests.rs"]
mod tests;

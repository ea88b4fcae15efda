//! The redirect of an OAuth flow on this machine: a listener on a loopback port that the person's browser comes back to.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::OAuthConfig;

/// Maximum time for one request of the browser.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of the first line of a request.
const MAX_LINE_BYTES: u64 = 16 * 1024;
/// The page that the browser shows at the end.
const DONE_PAGE: &str = "You can close this page.";

impl OAuthConfig {
    /// Creates the settings for a person at this machine: `announce` shows them the authorisation URL, and the browser
    /// comes back to a loopback port.
    ///
    /// # Errors
    ///
    /// Returns an error if no port can be opened.
    pub fn loopback(announce: impl Fn(&str) + Send + Sync + 'static) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let origin = format!("http://{}", listener.local_addr()?);
        let (listener, announce) = (Arc::new(listener), Arc::new(announce));
        Ok(Self::new(format!("{origin}/callback"), move |address| {
            let (listener, announce, origin) = (listener.clone(), announce.clone(), origin.clone());
            async move {
                announce(&address);
                wait_for_browser(&listener, &origin).await
            }
        }))
    }
}

/// Returns the URL that the browser was redirected to.
async fn wait_for_browser(listener: &TcpListener, origin: &str) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("the OAuth redirect cannot be received: {error}");
    let listener =
        tokio::net::TcpListener::from_std(listener.try_clone().map_err(failed)?).map_err(failed)?;
    loop {
        let (mut stream, _) = listener.accept().await.map_err(failed)?;
        let request = async {
            let mut line = String::new();
            let mut reader = BufReader::new(tokio::io::AsyncReadExt::take(&mut stream, MAX_LINE_BYTES));
            reader.read_line(&mut line).await.ok()?;
            let path = line.strip_prefix("GET ")?.split(' ').next()?.to_owned();
            let is_callback =
                path.starts_with("/callback?") && (path.contains("code=") || path.contains("error="));
            let (status, page) = if is_callback { ("200 OK", DONE_PAGE) } else { ("404 Not Found", "") };
            let head = format!("HTTP/1.1 {status}\r\ncontent-type: text/plain\r\nconnection: close\r\n");
            let response = format!("{head}content-length: {}\r\n\r\n{page}", page.len());
            stream.write_all(response.as_bytes()).await.ok()?;
            is_callback.then_some(path)
        };
        if let Ok(Some(path)) = tokio::time::timeout(REQUEST_TIMEOUT, request).await {
            return Ok(format!("{origin}{path}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn the_browser_comes_back_to_a_loopback_port() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        listener.set_nonblocking(true).expect("it can");
        let address = listener.local_addr().expect("an address");
        let browser = async {
            for (path, page) in [("/favicon.ico", ""), ("/callback?code=7&state=8", DONE_PAGE)] {
                let mut stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
                let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
                stream.write_all(request.as_bytes()).await.expect("it is sent");
                let mut response = String::new();
                stream.read_to_string(&mut response).await.expect("a response");
                assert!(response.ends_with(&format!("\r\n\r\n{page}")), "{response}");
            }
        };
        let (url, ()) = tokio::join!(wait_for_browser(&listener, "http://here"), browser);
        assert_eq!(url.as_deref(), Ok("http://here/callback?code=7&state=8"));
    }
}

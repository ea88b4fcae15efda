//! A local web server with the test pages, on a port that the system picks.

#![allow(dead_code, reason = "each test file uses only some helpers")]

pub(crate) mod hostile;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use windlass_computer::{
    Browser, BrowserOptions, Computer, ComputerAction, ComputerError, PrivateNetworkPolicy, ScreenPoint,
};

const FORM: &str = include_str!("../pages/form.html");
const WORKER: &str = include_str!("../pages/worker.js");
const PLAY: &str = include_str!("../pages/play.html");

/// A web server on a loopback port that records its requests and submissions.
#[derive(Clone)]
pub(crate) struct TestPageServer {
    pub(crate) port: u16,
    pub(crate) submissions: Arc<Mutex<Vec<String>>>,
    pub(crate) requests: Arc<Mutex<Vec<String>>>,
    /// Pages that a test has added, by path.
    pub(crate) added: Arc<Mutex<BTreeMap<String, String>>>,
    /// Responses that lead to another page, by path: the status and the header that names the page.
    pub(crate) redirections: Arc<Mutex<BTreeMap<String, (String, String)>>>,
    /// Releases the responses to `/held`.
    pub(crate) released: Arc<tokio::sync::watch::Sender<bool>>,
}

impl TestPageServer {
    pub(crate) async fn serve() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let pages = Self {
            port,
            submissions: Arc::default(),
            requests: Arc::default(),
            added: Arc::default(),
            redirections: Arc::default(),
            released: Arc::new(tokio::sync::watch::Sender::new(false)),
        };
        let serving = pages.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let pages = serving.clone();
                tokio::spawn(async move { pages.respond(stream).await });
            }
        });
        pages
    }

    pub(crate) fn url(&self, page: &str) -> String {
        format!("http://127.0.0.1:{}/{page}", self.port)
    }

    /// Adds a page, or replaces it, and returns its URL.
    pub(crate) fn add(&self, path: &str, body: &str) -> String {
        let page = format!("<!doctype html><meta charset=utf-8><title>{path}</title>{body}");
        self.added.lock().expect("no panic").insert(format!("/{path}"), page);
        self.url(path)
    }

    /// Adds a response that leads to another page, by its status and a header such as `Location: /page`.
    pub(crate) fn redirect(&self, path: &str, status: &str, header: &str) {
        let response = (status.to_owned(), header.to_owned());
        self.redirections.lock().expect("no panic").insert(format!("/{path}"), response);
    }

    /// Returns the URL of a page under another host name of this machine, which is another site.
    pub(crate) fn other_site_url(&self, page: &str) -> String {
        format!("http://localhost:{}/{page}", self.port)
    }

    pub(crate) fn submissions(&self) -> Vec<String> {
        self.submissions.lock().expect("no panic").clone()
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no panic").clone()
    }

    async fn respond(&self, mut stream: TcpStream) {
        let mut request = Vec::new();
        let mut buffer = [0; 4096];
        let (head, length) = loop {
            let Ok(read @ 1..) = stream.read(&mut buffer).await else { return };
            request.extend_from_slice(&buffer[..read]);
            let text = String::from_utf8_lossy(&request).into_owned();
            if let Some(end) = text.find("\r\n\r\n") {
                let length = text.lines().find_map(|line| {
                    line.to_ascii_lowercase()
                        .strip_prefix("content-length:")
                        .map(|rest| rest.trim().parse::<usize>())
                });
                break (end + 4, length.and_then(Result::ok).unwrap_or(0));
            }
        };
        while request.len() < head + length {
            let Ok(read @ 1..) = stream.read(&mut buffer).await else { return };
            request.extend_from_slice(&buffer[..read]);
        }
        let text = String::from_utf8_lossy(&request).into_owned();
        let path = text.split_whitespace().nth(1).unwrap_or_default().to_owned();
        let host = text.lines().find_map(|line| line.strip_prefix("Host: ")).unwrap_or_default().to_owned();
        self.requests.lock().expect("no panic").push(format!("{host}{path}"));
        let page_path = path.split('?').next().unwrap_or_default();
        let added = self.added.lock().expect("no panic").get(page_path).cloned();
        let redirection = self.redirections.lock().expect("no panic").get(page_path).cloned();
        if let Some(wait) = path.strip_prefix("/slow/") {
            let (millis, _) = wait.split_once('/').unwrap_or((wait, ""));
            tokio::time::sleep(std::time::Duration::from_millis(millis.parse().expect("a number"))).await;
        }
        if path.starts_with("/held") {
            let _ = self.released.subscribe().wait_for(|is_released| *is_released).await;
        }
        if path.starts_with("/hanging") {
            return std::future::pending().await;
        }
        let page =
            |body: &str| ("200 OK", "Content-Type: text/html; charset=utf-8".to_owned(), body.to_owned());
        let credentials = text.lines().find_map(|line| line.strip_prefix("Authorization: Basic "));
        let (status, header, body) = match path.as_str() {
            _ if redirection.is_some() => redirection
                .as_ref()
                .map(|(status, header)| (status.as_str(), header.clone(), String::new()))
                .unwrap_or_default(),
            _ if added.is_some() => page(&added.unwrap_or_default()),
            path if path.starts_with("/slow/") || path.starts_with("/held") => {
                page("<title>Slow</title><h1>Here at last</h1>")
            }
            // The user is `ada`, the password `love`.
            "/private" if credentials == Some("YWRhOmxvdmU=") => {
                page("<title>Private</title><h1>Welcome</h1>")
            }
            "/private" => (
                "401 Unauthorized",
                "WWW-Authenticate: Basic realm=\"the vault\"".to_owned(),
                "<title>Refused</title>".into(),
            ),
            "/form.html" => page(FORM),
            "/play.html" => page(PLAY),
            path if path.starts_with("/worker.js") => {
                ("200 OK", "Content-Type: text/javascript".to_owned(), WORKER.to_owned())
            }
            "/sent" => {
                self.submissions.lock().expect("no panic").push(text[head..].to_owned());
                page("<title>Sent</title><h1>Thank you</h1>")
            }
            // Another host name of the same machine.
            "/away" => {
                ("302 Found", format!("Location: http://localhost:{}/form.html", self.port), String::new())
            }
            "/file.txt" => (
                "200 OK",
                "Content-Disposition: attachment; filename=\"report.txt\"".to_owned(),
                "twelve bytes".into(),
            ),
            _ => ("404 Not Found", "Content-Type: text/plain".to_owned(), String::new()),
        };
        let answer = format!(
            "HTTP/1.1 {status}\r\n{header}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.shutdown().await;
    }
}

/// Starts a browser that may visit the test pages, which are on this machine; returns `None` with a message if
/// Chromium is not installed.
pub(crate) async fn start_browser(options: BrowserOptions) -> Option<Browser> {
    start_guarded_browser(BrowserOptions { private_networks: PrivateNetworkPolicy::Allow, ..options }).await
}

/// Starts a browser; returns `None` with a message if Chromium is not installed.
pub(crate) async fn start_guarded_browser(options: BrowserOptions) -> Option<Browser> {
    match Browser::start(options).await {
        Ok(browser) => Some(browser),
        Err(ComputerError::Missing { what, hint }) => {
            let _ = writeln!(std::io::stderr(), "not shown: {what} is not here; {hint}");
            None
        }
        Err(error) => panic!("the browser does not start: {error}"),
    }
}

pub(crate) fn point_at(x: u32, y: u32) -> ScreenPoint {
    ScreenPoint { x, y }
}

pub(crate) fn parse_action(value: serde_json::Value) -> ComputerAction {
    ComputerAction::from_json(&value).expect("an action")
}

/// Polls a condition for up to three minutes; returns whether it became true.
pub(crate) async fn poll_until(mut is_so: impl AsyncFnMut() -> bool) -> bool {
    let until = tokio::time::Instant::now() + std::time::Duration::from_secs(180);
    while tokio::time::Instant::now() < until {
        if is_so().await {
            return true;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    false
}

/// Returns a value that the page recorded in `window.said`.
pub(crate) async fn recorded_value(browser: &Browser, name: &str) -> serde_json::Value {
    browser.evaluate(&format!("window.said.{name} ?? null")).await.expect("the page answers")
}

pub(crate) async fn take_screenshot(browser: &Browser) -> windlass_computer::Screenshot {
    browser.screenshot().await.expect("a picture")
}

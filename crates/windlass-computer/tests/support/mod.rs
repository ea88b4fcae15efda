//! A server of the project's own pages, on a port that the system picks.

#![allow(dead_code, reason = "each test uses what it needs")]

use std::io::Write;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use windlass_computer::{Action, Browser, BrowserOptions, Computer, ComputerError, Point};

const FORM: &str = include_str!("../pages/form.html");
const WORKER: &str = include_str!("../pages/worker.js");
const PLAY: &str = include_str!("../pages/play.html");

/// Pages on a loopback port, and what was sent to them.
#[derive(Clone)]
pub(crate) struct Pages {
    pub(crate) port: u16,
    pub(crate) sent: Arc<Mutex<Vec<String>>>,
    pub(crate) asked: Arc<Mutex<Vec<String>>>,
}

impl Pages {
    pub(crate) async fn serve() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let pages = Self { port, sent: Arc::default(), asked: Arc::default() };
        let serving = pages.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let pages = serving.clone();
                tokio::spawn(async move { pages.answer(stream).await });
            }
        });
        pages
    }

    pub(crate) fn url(&self, page: &str) -> String {
        format!("http://127.0.0.1:{}/{page}", self.port)
    }

    pub(crate) fn sent(&self) -> Vec<String> {
        self.sent.lock().expect("no panic").clone()
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("no panic").clone()
    }

    async fn answer(&self, mut stream: TcpStream) {
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
        self.asked.lock().expect("no panic").push(format!("{host}{path}"));
        let page =
            |body: &str| ("200 OK", "Content-Type: text/html; charset=utf-8".to_owned(), body.to_owned());
        let (status, header, body) = match path.as_str() {
            "/form.html" => page(FORM),
            "/play.html" => page(PLAY),
            path if path.starts_with("/worker.js") => {
                ("200 OK", "Content-Type: text/javascript".to_owned(), WORKER.to_owned())
            }
            "/sent" => {
                self.sent.lock().expect("no panic").push(text[head..].to_owned());
                page("<title>Sent</title><h1>Thank you</h1>")
            }
            // Another host that means the same machine.
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

/// A browser; none where there is none on this machine, which is said.
pub(crate) async fn browser(options: BrowserOptions) -> Option<Browser> {
    match Browser::start(options).await {
        Ok(browser) => Some(browser),
        Err(ComputerError::Missing { what, hint }) => {
            let _ = writeln!(std::io::stderr(), "not shown: {what} is not here; {hint}");
            None
        }
        Err(error) => panic!("the browser does not start: {error}"),
    }
}

pub(crate) fn at(x: u32, y: u32) -> Point {
    Point { x, y }
}

pub(crate) fn action(value: serde_json::Value) -> Action {
    Action::read(&value).expect("an action")
}

/// Waits, for a while, for something to become so.
pub(crate) async fn soon(mut is_so: impl AsyncFnMut() -> bool) -> bool {
    for _ in 0..800 {
        if is_so().await {
            return true;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    false
}

/// What the page said.
pub(crate) async fn said(browser: &Browser, name: &str) -> serde_json::Value {
    browser.evaluate(&format!("window.said.{name} ?? null")).await.expect("the page answers")
}

pub(crate) async fn screenshot(browser: &Browser) -> windlass_computer::Screenshot {
    browser.screenshot().await.expect("a picture")
}

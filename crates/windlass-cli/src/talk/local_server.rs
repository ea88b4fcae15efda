//! The server of the page: on the loopback interface, for this user's browser only.
//!
//! **Invariant:** a request is served only if its path begins with the secret token and its `Host` is this server's, and
//! a socket is opened only for a page of this server (`Origin`). So neither another user's process, nor a page from
//! elsewhere, nor a name that is rebound to the loopback address reaches the conversation.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{Sink, SinkExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use windlass_realtime::RealtimeSession;
use windlass_realtime::relay::{
    BrowserRelay, RelayEnd, RelayMessage, upgraded_websocket, websocket_accept_key,
};

use super::request_head::{RequestHead, write_response};

/// Maximum number of connections at a time.
const MAX_CONNECTIONS: usize = 32;
/// Delay after a failed accept.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Time to tell a second page that another one talks.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(5);

/// The files of the page: name, content type, content.
const PAGE_FILES: [(&str, &str, &str); 4] = [
    ("", "text/html; charset=utf-8", include_str!("page/talk.html")),
    ("talk.css", "text/css; charset=utf-8", include_str!("page/talk.css")),
    ("talk.js", "text/javascript; charset=utf-8", include_str!("page/talk.js")),
    ("audio.js", "text/javascript; charset=utf-8", include_str!("page/audio.js")),
];
/// Name of the page's socket.
const SOCKET_NAME: &str = "socket";

/// A bound server that does not accept connections yet.
pub(crate) struct TalkServer {
    listener: TcpListener,
    access: PageAccess,
}

/// The conditions under which a request is served.
#[derive(Clone)]
struct PageAccess {
    port: u16,
    token: Arc<str>,
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
enum RequestVerdict {
    File { content_type: &'static str, content: &'static str, host: String },
    Socket { accept_key: String },
    Refused { status: &'static str },
}

impl TalkServer {
    /// Binds a port of the loopback interface; a free one if `port` is 0.
    pub(crate) async fn bind(port: u16) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let port = listener.local_addr()?.port();
        // Two of version 4 have 244 random bits.
        let token = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        Ok(Self { listener, access: PageAccess { port, token: token.into() } })
    }

    /// Returns the address of the page, with its token.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/{}/", self.access.port, self.access.token)
    }

    /// Serves the page and its socket for ever. One page talks at a time.
    pub(crate) async fn serve(self, session: RealtimeSession, relay: BrowserRelay) {
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let talking = Arc::new(Semaphore::new(1));
        loop {
            let Ok(permit) = connections.clone().acquire_owned().await else { return };
            let Ok((stream, _)) = self.listener.accept().await else {
                // Too many open files, or a client that left; both pass.
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            };
            let (access, session, relay) = (self.access.clone(), session.clone(), relay.clone());
            let talking = talking.clone();
            tokio::spawn(async move {
                serve_connection(stream, &access, &session, &relay, &talking).await;
                drop(permit);
            });
        }
    }
}

async fn serve_connection(
    mut stream: TcpStream,
    access: &PageAccess,
    session: &RealtimeSession,
    relay: &BrowserRelay,
    talking: &Semaphore,
) {
    // Speech arrives in small chunks that must not be delayed; without the option it only arrives later.
    let _nodelay = stream.set_nodelay(true);
    let verdict = match RequestHead::read(&mut stream).await {
        Some(head) => access.judge(&head),
        None => RequestVerdict::Refused { status: "400 Bad Request" },
    };
    match verdict {
        RequestVerdict::Refused { status } => {
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            write_response(&mut stream, &head, b"").await;
        }
        RequestVerdict::File { content_type, content, host } => {
            let head = file_head(content_type, content.len(), &host);
            write_response(&mut stream, &head, content.as_bytes()).await;
        }
        RequestVerdict::Socket { accept_key } => {
            let head = format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: {accept_key}\r\n\r\n"
            );
            write_response(&mut stream, &head, b"").await;
            let socket = upgraded_websocket(stream).await;
            match talking.try_acquire() {
                Ok(_permit) => {
                    let _end: RelayEnd = relay.serve(socket, session).await;
                }
                Err(_) => refuse_second_page(socket).await,
            }
        }
    }
}

/// Tells a second page that another one talks, and closes its socket.
async fn refuse_second_page(mut socket: impl Sink<RelayMessage> + Unpin) {
    let refusing = async {
        socket.send(RelayMessage::Text(r#"{"type":"busy"}"#.to_owned())).await?;
        socket.close().await
    };
    // A page that takes no message has left.
    let _refused = tokio::time::timeout(REFUSAL_TIMEOUT, refusing).await;
}

/// Returns the head of a response with a file of the page. The policy allows the files and the socket of this server and
/// nothing else, so that text on the page cannot load or run anything.
fn file_head(content_type: &str, length: usize, host: &str) -> String {
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src ws://{host}; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'"
    );
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\
         Cache-Control: no-store\r\nContent-Security-Policy: {policy}\r\nX-Content-Type-Options: nosniff\r\n\
         Referrer-Policy: no-referrer\r\nCross-Origin-Opener-Policy: same-origin\r\n\
         Cross-Origin-Resource-Policy: same-origin\r\nPermissions-Policy: microphone=(self)\r\n\
         X-Frame-Options: DENY\r\n\r\n"
    )
}

impl PageAccess {
    fn judge(&self, head: &RequestHead) -> RequestVerdict {
        let refused = |status| RequestVerdict::Refused { status };
        let hosts = [format!("127.0.0.1:{}", self.port), format!("localhost:{}", self.port)];
        let Some(host) = head.header("host").filter(|host| hosts.iter().any(|known| known == host)) else {
            return refused("403 Forbidden");
        };
        let is_own_origin = head.header("origin").is_some_and(|origin| origin == format!("http://{host}"));
        if head.has_header("origin") && !is_own_origin {
            return refused("403 Forbidden");
        }
        let Some(name) = self.name_after_token(&head.path) else { return refused("404 Not Found") };
        if head.method != "GET" {
            return refused("405 Method Not Allowed");
        }
        if name == SOCKET_NAME {
            let is_upgrade = head.lists("connection", "upgrade") && head.lists("upgrade", "websocket");
            let key = head.header("sec-websocket-key").filter(|_| is_upgrade);
            return match (key, head.header("sec-websocket-version"), is_own_origin) {
                (Some(key), Some("13"), true) => {
                    RequestVerdict::Socket { accept_key: websocket_accept_key(key) }
                }
                (_, _, false) => refused("403 Forbidden"),
                _ => refused("400 Bad Request"),
            };
        }
        match PAGE_FILES.iter().find(|(known, ..)| *known == name) {
            Some((_, content_type, content)) => {
                RequestVerdict::File { content_type, content, host: host.to_owned() }
            }
            None => refused("404 Not Found"),
        }
    }

    /// Returns the name of a file if the path begins with the token. The time of the comparison does not depend on the
    /// place of the first difference.
    fn name_after_token<'a>(&self, path: &'a str) -> Option<&'a str> {
        let (token, name) = path.strip_prefix('/')?.split_once('/')?;
        let known = self.token.as_bytes();
        let difference = token.bytes().zip(known).fold(0, |sum, (given, known)| sum | (given ^ known));
        (token.len() == known.len() && difference == 0).then_some(name)
    }
}

#[cfg(test)]
#[path = "local_server_tests.rs"]
mod tests;

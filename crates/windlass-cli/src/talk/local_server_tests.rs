use super::{PageAccess, RequestHead, RequestVerdict, file_head};

const TOKEN: &str = "0123456789abcdef";

async fn judge(path: &str, headers: &[(&str, &str)]) -> RequestVerdict {
    judge_method("GET", path, headers).await
}

async fn judge_method(method: &str, path: &str, headers: &[(&str, &str)]) -> RequestVerdict {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let text = format!("{method} {path} HTTP/1.1\r\n{headers}\r\n");
    let head = RequestHead::read(&mut text.as_bytes()).await.expect("it is valid");
    PageAccess { port: 4711, token: TOKEN.into() }.judge(&head)
}

const HOST: (&str, &str) = ("Host", "127.0.0.1:4711");
const SOCKET: [(&str, &str); 4] = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Version", "13"),
];

fn socket_headers(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    SOCKET.iter().chain(more).copied().collect()
}

fn status(verdict: RequestVerdict) -> &'static str {
    match verdict {
        RequestVerdict::Refused { status } => status,
        RequestVerdict::File { .. } => "200",
        RequestVerdict::Socket { .. } => "101",
    }
}

#[tokio::test]
async fn only_this_servers_name_and_the_token_reach_the_page() {
    let page = format!("/{TOKEN}/");
    assert_eq!(status(judge(&page, &[HOST]).await), "200");
    assert_eq!(status(judge(&page, &[("Host", "localhost:4711")]).await), "200");
    assert_eq!(status(judge(&format!("/{TOKEN}/talk.js"), &[HOST]).await), "200");
    // A name that is rebound to the loopback address, and no name.
    for host in [("Host", "evil.example:4711"), ("Host", "127.0.0.1"), ("Host", "127.0.0.1:80"), ("X", "y")] {
        assert_eq!(status(judge(&page, &[host]).await), "403 Forbidden", "{host:?}");
    }
    assert_eq!(status(judge(&page, &[HOST, HOST]).await), "403 Forbidden");
    for path in ["/", "/0123456789abcdeX/", "/0123456789abcde/", "/0123456789abcdef0/", "//", "/x/talk.js"] {
        assert_eq!(status(judge(path, &[HOST]).await), "404 Not Found", "{path}");
    }
    assert_eq!(status(judge(&format!("/{TOKEN}/../secret"), &[HOST]).await), "404 Not Found");
    assert_eq!(status(judge_method("POST", &page, &[HOST]).await), "405 Method Not Allowed");
    let evil = ("Origin", "http://evil.example");
    assert_eq!(status(judge(&page, &[HOST, evil]).await), "403 Forbidden");
}

#[tokio::test]
async fn only_a_page_of_this_server_opens_a_socket() {
    let path = format!("/{TOKEN}/socket");
    let own = ("Origin", "http://127.0.0.1:4711");
    let opened = judge(&path, &socket_headers(&[HOST, own])).await;
    assert_eq!(opened, RequestVerdict::Socket { accept_key: "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_owned() });
    for origin in ["http://evil.example", "http://localhost:4711", "https://127.0.0.1:4711", "null"] {
        let headers = socket_headers(&[HOST]).into_iter().chain([("Origin", origin)]).collect::<Vec<_>>();
        assert_eq!(status(judge(&path, &headers).await), "403 Forbidden", "{origin}");
    }
    assert_eq!(status(judge(&path, &socket_headers(&[HOST])).await), "403 Forbidden", "without an origin");
    assert_eq!(status(judge("/x/socket", &socket_headers(&[HOST, own])).await), "404 Not Found");
    assert_eq!(status(judge(&path, &[HOST, own]).await), "400 Bad Request");
}

#[test]
fn the_policy_of_the_page_allows_nothing_from_elsewhere() {
    let head = file_head("text/html", 1, "127.0.0.1:4711");
    let policy =
        head.lines().find_map(|line| line.strip_prefix("Content-Security-Policy: ")).expect("is there");
    let wanted = [
        "default-src 'none'",
        "script-src 'self'",
        "connect-src ws://127.0.0.1:4711",
        "frame-ancestors 'none'",
    ];
    for part in wanted {
        assert!(policy.split("; ").any(|known| known == part), "{policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
}

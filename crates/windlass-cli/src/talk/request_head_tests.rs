use super::{MAX_HEAD, RequestHead};

async fn read(text: &[u8]) -> Option<RequestHead> {
    RequestHead::read(&mut &*text).await
}

#[tokio::test]
async fn a_head_is_read_and_a_repeated_header_has_no_value() {
    let head =
        read(b"GET /a HTTP/1.1\r\nHost: h:1\r\nX: 1\r\nx: 2\r\nConnection: keep-alive, Upgrade\r\n\r\n");
    let head = head.await.expect("it is valid");
    assert_eq!((head.method.as_str(), head.path.as_str(), head.header("host")), ("GET", "/a", Some("h:1")));
    assert_eq!((head.header("x"), head.has_header("x"), head.has_header("y")), (None, true, false));
    assert!(head.lists("connection", "upgrade") && !head.lists("connection", "close"));
}

#[tokio::test]
async fn anything_else_is_refused() {
    let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "a".repeat(MAX_HEAD + 2048));
    let bad: [&[u8]; 8] = [
        b"",
        b"GET / HTTP/1.1\r\n",
        b"GET http://other/ HTTP/1.1\r\n\r\n",
        b"GET / HTTP/2\r\n\r\n",
        b"GET /a b HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\nbody",
        long.as_bytes(),
    ];
    for text in bad {
        assert_eq!(read(text).await, None, "{}", String::from_utf8_lossy(text));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn fuzz_heads_are_refused_or_read() {
    let seeds = [
        "GET /?t=1 HTTP/1.1\r\nHost: 127.0.0.1:1\r\nUpgrade: websocket\r\nConnection: a, Upgrade",
        "GET / HTTP/1.0",
    ];
    let target = windlass_fuzz::FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "request_head").seeds(seeds);
    target.words(["\r\n", "Host:", "Origin: null", " HTTP/1.1"]).run(
        module_path!(),
        "fuzz_heads_are_refused_or_read",
        |input| {
            if let Some(head) = RequestHead::parse(&String::from_utf8_lossy(input)) {
                let _ = (head.header("host"), head.has_header("origin"), head.lists("connection", "upgrade"));
            }
        },
    );
}

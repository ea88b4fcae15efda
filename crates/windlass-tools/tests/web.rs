//! `fetch_url` against a real HTTP server on this machine.

#![cfg(feature = "fetch")]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use windlass::prelude::*;
use windlass_tools::net::testing::TestProxy;
use windlass_tools::net::{
    BoxFuture, Bytes, GuardBehindProxy, HttpClient, HttpTransport, ProxySettings, TransportBody,
    TransportError, TransportOptions, http,
};
use windlass_tools::{BuiltInApprovalPolicy, ToolLimits, WebFetcher};

/// Starts a server that responds by path, and returns its port and a counter of its connections.
async fn start_server() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("has one").port();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let mut request = vec![0; 4096];
                let length = stream.read(&mut request).await.unwrap_or_default();
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                let path = request.split_whitespace().nth(1).unwrap_or_default().to_owned();
                let html = "content-type: text/html; charset=utf-8";
                let answer = match path.as_str() {
                    "/page" => {
                        ok_response(html, "<title>T</title><p>Hello, <b>you</b></p><script>no</script>")
                    }
                    "/json" => ok_response("content-type: application/json", "{\"a\":1}"),
                    "/picture" => ok_response("content-type: image/png", "xx"),
                    "/long" => ok_response("content-type: text/plain", &"long ".repeat(100_000)),
                    "/hop" => redirect_response("/page"),
                    "/round" => redirect_response("round"),
                    "/near" => redirect_response(&format!("http://127.0.0.1:{port}/page")),
                    "/cloud" => redirect_response("http://169.254.169.254/latest/meta-data/"),
                    "/file" => redirect_response("file:///etc/passwd"),
                    "/slow" => {
                        tokio::time::sleep(Duration::from_secs(60)).await;
                        String::new()
                    }
                    _ => {
                        ok_response("content-type: text/plain", "nothing").replace("200 OK", "404 Not Found")
                    }
                };
                stream.write_all(answer.as_bytes()).await.ok();
            });
        }
    });
    (port, asked)
}

fn ok_response(header: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\n{header}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn redirect_response(place: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nlocation: {place}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
}

async fn fetch_url(web: &WebFetcher, url: &str) -> String {
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "fetch_url", json!({ "url": url })),
        ScriptedResponse::text("done"),
    ]);
    let agent = Agent::new("reader").model(model.clone()).tools((web.tool(),));
    assert_eq!(agent.run("Go.").await.expect("it ends").output_text().expect("the run finished"), "done");
    model.requests()[1].input_text().pop().expect("an output")
}

#[tokio::test]
async fn pages_are_told_as_text() {
    let (port, _) = start_server().await;
    let web = WebFetcher::new().approve(BuiltInApprovalPolicy::Never).allow_private_host("localhost");
    let at = |path: &str| format!("http://localhost:{port}{path}");
    let told = fetch_url(&web, &at("/page")).await;
    assert!(told.ends_with(&format!("{}, status 200, text/html\n\nT\nHello, you", at("/page"))), "{told}");
    assert!(fetch_url(&web, &at("/json")).await.ends_with("application/json\n\n{\"a\":1}"));
    assert!(fetch_url(&web, &at("/picture")).await.contains("is image/png, not text"));
    assert!(fetch_url(&web, &at("/none")).await.contains("status 404"));
    assert!(fetch_url(&web, &at("/hop")).await.ends_with("Hello, you"));
    let mut limits = ToolLimits::default();
    (limits.max_page_bytes, limits.fetch_timeout) = (1000, Duration::from_millis(500));
    let short = web.limits(limits);
    let told = fetch_url(&short, &at("/long")).await;
    assert!(told.contains("its beginning") && told.len() < 1200, "{}", told.len());
    assert!(fetch_url(&short, &at("/slow")).await.contains("did not answer within"));
}

#[tokio::test]
async fn what_is_near_is_refused_before_anybody_is_connected_to() {
    let (port, asked) = start_server().await;
    let web = WebFetcher::new().approve(BuiltInApprovalPolicy::Never);
    // Various names and spellings of the loopback address.
    for host in [
        "localhost",
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
    ] {
        let told = fetch_url(&web, &format!("http://{host}:{port}/page")).await;
        assert!(!told.contains("Hello"), "{host}: {told}");
    }
    assert!(fetch_url(&web, "http://169.254.169.254/").await.contains("private network"));
    assert_eq!(asked.load(Ordering::Relaxed), 0, "nobody was asked");
    // A redirect is checked like the first URL.
    let web = web.allow_private_host("localhost");
    for path in ["/near", "/cloud", "/file"] {
        let told = fetch_url(&web, &format!("http://localhost:{port}{path}")).await;
        assert!(told.contains("private network") || told.contains("leads astray"), "{path}: {told}");
    }
    assert!(fetch_url(&web, &format!("http://localhost:{port}/round")).await.contains("redirects again"));
}

#[tokio::test]
async fn a_person_is_asked_about_hosts_that_are_not_named() {
    let (port, asked) = start_server().await;
    let web = WebFetcher::new()
        .allow_private_host("localhost")
        .allow_private_host("127.0.0.1")
        .approve(BuiltInApprovalPolicy::except_for(["localhost"]));
    assert!(fetch_url(&web, &format!("http://LOCALHOST:{port}/page")).await.contains("Hello"));
    let url = format!("http://127.0.0.1:{port}/page");
    let model = ScriptedModel::new([ScriptedResponse::call("c1", "fetch_url", json!({ "url": url }))]);
    let agent = Agent::new("reader").model(model).tools((web.tool(),));
    assert!(agent.run("Go.").await.expect("it pauses").into_paused().is_some());
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

/// A compressed page is read, and one that expands beyond the limit is cut.
#[tokio::test]
async fn compressed_pages_are_read_within_the_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("has one").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap_or_default();
            assert!(String::from_utf8_lossy(&request[..length]).contains("accept-encoding: gzip"));
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            encoder.write_all("hello ".repeat(1_000_000).as_bytes()).expect("memory");
            let body = encoder.finish().expect("memory");
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-encoding: gzip\r\n";
            let head = format!("{head}content-length: {}\r\nconnection: close\r\n\r\n", body.len());
            stream.write_all(head.as_bytes()).await.ok();
            stream.write_all(&body).await.ok();
        }
    });
    let mut limits = ToolLimits::default();
    limits.max_page_bytes = 1000;
    let web = WebFetcher::new().approve(BuiltInApprovalPolicy::Never).allow_private_host("localhost");
    let told = fetch_url(&web.limits(limits), &format!("http://localhost:{port}/")).await;
    assert!(told.contains("its beginning") && told.contains("hello hello") && told.len() < 1200, "{told}");
}

/// Behind a proxy private networks stay closed: the proxy is asked for a tunnel to a checked address only.
#[tokio::test]
async fn a_proxy_opens_no_private_network() {
    let (port, asked) = start_server().await;
    let server = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let proxy = TestProxy::start([("10.0.0.7", server), ("intranet.windlass.test", server)]).await;
    let proxy = proxy.expect("a proxy");
    let client = HttpClient::new().proxies(ProxySettings::everywhere(&proxy.url()).expect("an address"));
    let web = WebFetcher::new().approve(BuiltInApprovalPolicy::Never).http_client(client);
    let told = fetch_url(&web, "http://10.0.0.7/page").await;
    assert!(told.contains("private network"), "{told}");
    let told = fetch_url(&web, "http://intranet.windlass.test/page").await;
    assert!(told.contains("cannot be reached"), "{told}");
    assert_eq!((proxy.requests().len(), asked.load(Ordering::Relaxed)), (0, 0), "nobody was asked");

    // A private host that is permitted is reached through a tunnel to its address.
    let permitted = web.clone().allow_private_host("10.0.0.7");
    assert!(fetch_url(&permitted, "http://10.0.0.7/page").await.ends_with("Hello, you"));
    assert_eq!(proxy.requests(), ["CONNECT 10.0.0.7:80 HTTP/1.1"]);
    // Names are left to the proxy only by an explicit setting, and numbers are checked even then.
    let open = web.behind_proxy(GuardBehindProxy::ProxyResolves);
    assert!(fetch_url(&open, "http://intranet.windlass.test/page").await.ends_with("Hello, you"));
    assert!(fetch_url(&open, "http://10.0.0.7/page").await.contains("private network"));
}

/// A client of the application that cannot check addresses.
#[derive(Debug)]
struct UncheckedClient;

impl HttpTransport for UncheckedClient {
    fn send<'a>(
        &'a self,
        _: http::Request<Bytes>,
        _: TransportOptions,
    ) -> BoxFuture<'a, Result<http::Response<Box<dyn TransportBody>>, TransportError>> {
        Box::pin(async { Err(TransportError::Unreachable("it was used".to_owned())) })
    }
}

#[tokio::test]
async fn a_client_that_cannot_check_addresses_is_not_used() {
    let web = WebFetcher::new().approve(BuiltInApprovalPolicy::Never).http_client(UncheckedClient);
    let told = fetch_url(&web, "http://localhost/page").await;
    assert!(told.contains("cannot check addresses") && !told.contains("it was used"), "{told}");
}

/// The program that the test below starts with its own trusted certificates.
#[tokio::test]
async fn a_program_that_fetches_a_page() {
    let Ok(url) = std::env::var("WINDLASS_TEST_URL") else { return };
    let web = WebFetcher::new().approve(BuiltInApprovalPolicy::Never).allow_private_host("localhost");
    println!("told: {}", fetch_url(&web, &url).await);
}

#[test]
fn a_server_is_trusted_by_its_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let words = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost \
                 -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE";
    let openssl = |words: &str| {
        let mut command = Command::new("openssl");
        command.args(words.split_whitespace()).current_dir(folder.path()).stderr(Stdio::null());
        command
    };
    if !openssl(words).status().is_ok_and(|status| status.success()) {
        let _ = writeln!(
            std::io::stderr(),
            "not shown: openssl is not here, so there is no server to trust or not"
        );
        return;
    }
    let serve = "s_server -accept 127.0.0.1:0 -cert cert.pem -key key.pem -www";
    let mut server = openssl(serve).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let lines = BufReader::new(server.stdout.take().expect("is piped")).lines();
    let address = lines.map_while(Result::ok).find_map(|line| Some(line.strip_prefix("ACCEPT ")?.to_owned()));
    let port = address.and_then(|address| Some(address.rsplit_once(':')?.1.to_owned())).expect("it tells");
    let fetched = |certificates: &str| {
        let output = Command::new(std::env::current_exe().expect("a test"))
            .args(["--exact", "a_program_that_fetches_a_page", "--nocapture"])
            .env("WINDLASS_TEST_URL", format!("https://localhost:{port}/"))
            .env("SSL_CERT_FILE", folder.path().join(certificates))
            .output()
            .expect("runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let trusted = fetched("cert.pem");
    // Another certificate for the same name, whose key the server does not have.
    let other = openssl(&words.replace("cert.pem", "other.pem").replace("key.pem", "other-key.pem")).status();
    assert!(other.is_ok_and(|status| status.success()));
    let stranger = fetched("other.pem");
    server.kill().expect("can be ended");
    server.wait().expect("ends");
    assert!(trusted.contains("status 200, text/html"), "{trusted}");
    assert!(stranger.contains("is not safe to talk to"), "{stranger}");
}

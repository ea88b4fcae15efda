//! Servers for the tests of the client.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use windlass_net::http::{Method, Request, Response};
use windlass_net::testing::{test_acceptor, test_acceptor_with_alpn, test_roots};
use windlass_net::{
    Bytes, DecodedBody, HttpClient, HttpTransport, ProxySettings, ReplaySafety, TransportError,
    TransportOptions,
};

/// A server that answers every request with its method, path and version, and counts connections.
pub(crate) struct EchoServer {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EchoProtocol {
    Http1,
    Http1OverTls,
    Http2,
    /// HTTP/2 only, chosen by ALPN.
    Http2OverTls,
}

impl EchoServer {
    pub(crate) async fn start(protocol: EchoProtocol) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve_echo(stream, protocol));
            }
        });
        Self { address, connections }
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn url(&self, scheme: &str, host: &str, path: &str) -> String {
        format!("{scheme}://{host}:{}{path}", self.address.port())
    }
}

async fn serve_echo(stream: TcpStream, protocol: EchoProtocol) {
    // A client that leaves ends its connection.
    match protocol {
        EchoProtocol::Http1 => serve_http1(stream).await,
        EchoProtocol::Http2 => serve_http2(stream).await,
        EchoProtocol::Http1OverTls => {
            let accepted = test_acceptor().expect("certificates").accept(stream).await;
            if let Ok(stream) = accepted {
                serve_http1(stream).await;
            }
        }
        EchoProtocol::Http2OverTls => {
            let accepted = test_acceptor_with_alpn(&["h2"]).expect("certificates").accept(stream).await;
            if let Ok(stream) = accepted {
                serve_http2(stream).await;
            }
        }
    }
}

async fn serve_http1(stream: impl windlass_net::ByteStream) {
    let serving =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(echo));
    let _ = serving.await;
}

async fn serve_http2(stream: impl windlass_net::ByteStream) {
    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let _ = builder.serve_connection(TokioIo::new(stream), service_fn(echo)).await;
}

async fn echo(request: Request<Incoming>) -> Result<Response<String>, Infallible> {
    let body = format!("{} {} {:?}", request.method(), request.uri().path(), request.version());
    let has_proxy_header = request.headers().keys().any(|name| name.as_str().starts_with("proxy-"));
    let host = request.headers().get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
    let host = host.split(':').next().unwrap_or_default().to_owned();
    let response = Response::builder().header("x-host", host);
    Ok(response.header("x-proxy-header", has_proxy_header.to_string()).body(body).expect("a response"))
}

/// A server that reads requests and answers each as a function says; `None` closes the connection without an answer.
pub(crate) struct ScriptedServer {
    pub(crate) address: SocketAddr,
    pub(crate) requests: Arc<Mutex<Vec<String>>>,
}

impl ScriptedServer {
    /// `answer` receives the number of the connection and of the request on it, both from 1.
    pub(crate) async fn start(
        answer: impl Fn(usize, usize) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (requests.clone(), Arc::new(answer));
        tokio::spawn(async move {
            let mut connection = 0;
            while let Ok((mut stream, _)) = listener.accept().await {
                connection += 1;
                let (log, answer) = (log.clone(), answer.clone());
                tokio::spawn(async move {
                    for number in 1.. {
                        let Some(request) = read_request(&mut stream).await else { return };
                        let first = request.lines().next().unwrap_or_default().to_owned();
                        log.lock().expect("a log").push(first);
                        let Some(answer) = answer(connection, number) else { return };
                        if stream.write_all(&answer).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, requests }
    }

    pub(crate) fn request_count(&self) -> usize {
        self.requests.lock().expect("a log").len()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

/// Reads the head and the body of a request.
pub(crate) async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut heard = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&heard).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.to_ascii_lowercase();
            let length = length.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return Some(text);
            }
        }
        if stream.read_buf(&mut heard).await.ok()? == 0 {
            return None;
        }
    }
}

/// Returns a response with a body.
pub(crate) fn response(headers: &str, body: &[u8]) -> Vec<u8> {
    let mut whole =
        format!("HTTP/1.1 200 OK\r\n{headers}content-length: {}\r\n\r\n", body.len()).into_bytes();
    whole.extend_from_slice(body);
    whole
}

/// Returns a client without proxies that trusts the test servers.
pub(crate) fn direct_client() -> HttpClient {
    HttpClient::new().proxies(ProxySettings::none()).trusted_roots(test_roots().expect("certificates"))
}

/// Returns a client with a proxy for all addresses.
pub(crate) fn proxied_client(proxy: &str) -> HttpClient {
    direct_client().proxies(ProxySettings::everywhere(proxy).expect("an address"))
}

/// Sends a POST request and returns the response with its whole body.
pub(crate) async fn post(
    client: &HttpClient,
    url: &str,
    safety: ReplaySafety,
) -> Result<Response<String>, TransportError> {
    let mut request = Request::new(Bytes::from_static(b"hello"));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = url.parse().expect("an address");
    let (head, body) = client.send(request, TransportOptions::new(safety)).await?.into_parts();
    let body = DecodedBody::new(body, &head.headers).read_all(1024 * 1024).await?;
    Ok(Response::from_parts(head, String::from_utf8_lossy(&body).into_owned()))
}

/// Sends a request that may be repeated, and returns the body.
pub(crate) async fn post_safely(client: &HttpClient, url: &str) -> Result<String, TransportError> {
    Ok(post(client, url, ReplaySafety::Safe).await?.into_body())
}

//! A proxy for tests. It opens tunnels and forwards requests to servers that it knows by name, and requires a user name
//! and a password.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Maximum length of the head of a request.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// The user name, and the password as it is written in an address.
const LOGIN: &str = "worker:pa%20ss%401";
/// The header for it: `worker:pa ss@1` in Base64.
const AUTHORIZATION: &str = "Basic d29ya2VyOnBhIHNzQDE=";
/// The page that comes with a refusal, as real proxies send one.
const REFUSAL_PAGE: &str = "<html><body>Cache access denied.</body></html>";

/// A proxy on a loopback port. It stops when it is dropped.
#[derive(Debug)]
pub struct TestProxy {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    serving: JoinHandle<()>,
}

impl TestProxy {
    /// Starts a proxy that knows these servers, each by a host name without a port.
    pub async fn start<'a>(servers: impl IntoIterator<Item = (&'a str, SocketAddr)>) -> io::Result<Self> {
        let servers: BTreeMap<String, SocketAddr> =
            servers.into_iter().map(|(name, address)| (name.to_owned(), address)).collect();
        let servers = Arc::new(servers);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = requests.clone();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (servers, log) = (servers.clone(), log.clone());
                tokio::spawn(async move {
                    // A client that leaves ends its connection.
                    let _ = serve_client(stream, &servers, &log).await;
                });
            }
        });
        Ok(Self { address, requests, serving })
    }

    /// Returns the address of the proxy with the right user name and password.
    pub fn url(&self) -> String {
        format!("http://{LOGIN}@{}", self.address)
    }

    /// Returns the address of the proxy with this user name and password.
    pub fn url_with_login(&self, login: &str) -> String {
        format!("http://{login}@{}", self.address)
    }

    /// Returns the address of the proxy without a user name.
    pub fn url_without_login(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the host and the port.
    pub fn place(&self) -> String {
        self.address.to_string()
    }

    /// Returns the first lines of the requests that it accepted, such as `CONNECT name:443 HTTP/1.1`.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for TestProxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve_client(
    mut client: TcpStream,
    servers: &BTreeMap<String, SocketAddr>,
    log: &Mutex<Vec<String>>,
) -> io::Result<()> {
    loop {
        let (head, rest) = read_head(&mut client).await?;
        let mut lines = head.split("\r\n");
        let first = lines.next().unwrap_or_default().to_owned();
        let headers: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
        let is_proxy_header = |line: &&&str| line.to_ascii_lowercase().starts_with("proxy-");
        let is_authorised = headers.iter().filter(is_proxy_header).any(|line| line.ends_with(AUTHORIZATION));
        if !is_authorised {
            let length = REFUSAL_PAGE.len();
            let reply = format!(
                "HTTP/1.1 407 Proxy Authentication Required\r\nproxy-authenticate: Basic realm=\"test\"\r\n\
                 content-type: text/html\r\ncontent-length: {length}\r\n\r\n{REFUSAL_PAGE}"
            );
            client.write_all(reply.as_bytes()).await?;
            continue;
        }
        log.lock().unwrap_or_else(PoisonError::into_inner).push(first.clone());
        let mut words = first.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (authority, path) = match target.strip_prefix("http://") {
            Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            None => (target, ""),
        };
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let Some(server) = servers.get(host) else {
            client.write_all(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n").await?;
            continue;
        };
        let mut server = TcpStream::connect(server).await?;
        if method == "CONNECT" {
            client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
        } else {
            let mut forwarded = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
            for line in headers.iter().filter(|line| !is_proxy_header(line)) {
                forwarded.push_str(line);
                forwarded.push_str("\r\n");
            }
            forwarded.push_str("\r\n");
            server.write_all(forwarded.as_bytes()).await?;
        }
        server.write_all(&rest).await?;
        copy_bidirectional(&mut client, &mut server).await?;
        return Ok(());
    }
}

/// Reads the head of a request, and returns it with the bytes that came after it.
async fn read_head(client: &mut TcpStream) -> io::Result<(String, Vec<u8>)> {
    let mut heard = Vec::new();
    loop {
        if let Some(end) = heard.windows(4).position(|end| end == b"\r\n\r\n") {
            let rest = heard.split_off(end + 4);
            heard.truncate(end);
            return Ok((String::from_utf8_lossy(&heard).into_owned(), rest));
        }
        if heard.len() > MAX_HEAD_BYTES || client.read_buf(&mut heard).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

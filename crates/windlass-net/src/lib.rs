//! The network layer of Windlass: dialling, proxies, TLS, and an HTTP client.
//!
//! [`HttpClient`] sends requests over HTTP/1.1 and HTTP/2 and reuses connections. [`NetworkDialer`] opens byte streams
//! for other protocols, such as WebSocket. Both use the same proxies ([`ProxySettings`]), trusted certificates
//! ([`tls::TrustedRoots`]) and address checks ([`AddressGuard`]). An application can hand in its own client with
//! [`HttpTransport`].
//!
//! **Invariant:** a request that may have reached the server is sent again only if its caller declared that safe
//! ([`ReplaySafety`]). No error and no debug output contains the password of a proxy. Under a ban ([`ban_network`]) no
//! connection is opened or used that it covers.

#[cfg(feature = "http")]
mod address;
#[cfg(feature = "http")]
mod address_race;
#[cfg(feature = "http")]
mod ban;
#[cfg(feature = "http")]
mod base_url;
#[cfg(feature = "http")]
mod body;
#[cfg(feature = "http")]
mod client;
#[cfg(feature = "http")]
mod connect;
#[cfg(feature = "http")]
mod dial;
#[cfg(feature = "http")]
mod gzip;
#[cfg(feature = "http")]
mod pool;
#[cfg(feature = "http")]
mod proxy;
#[cfg(feature = "http")]
mod retry_after;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(feature = "http")]
mod transport;

#[cfg(feature = "http")]
pub use address::{AddressGuard, GuardBehindProxy, is_public_address};
#[cfg(feature = "http")]
pub use ban::{NETWORK_BAN_VARIABLE, NetworkBan, ban_network, check_network_ban, network_ban};
#[cfg(feature = "http")]
pub use base_url::{BaseUrl, display_url};
#[cfg(feature = "http")]
pub use body::{DecodedBody, is_gzip};
#[cfg(feature = "http")]
pub use bytes::Bytes;
#[cfg(feature = "http")]
pub use client::{HttpClient, HttpVersionPolicy};
#[cfg(feature = "http")]
pub use dial::{ByteStream, NetworkDialer, StreamDialer};
#[cfg(feature = "http")]
pub use gzip::GzipReader;
#[cfg(feature = "http")]
pub use hyper::http;
#[cfg(feature = "http")]
pub use proxy::{ProxyAddressError, ProxySettings};
#[cfg(feature = "http")]
pub use retry_after::retry_after;
#[cfg(feature = "http")]
pub use transport::{
    BoxFuture, HttpTransport, ReplaySafety, TransportBody, TransportError, TransportOptions,
};

#[cfg(all(test, feature = "http"))]
mod fuzz_tests;

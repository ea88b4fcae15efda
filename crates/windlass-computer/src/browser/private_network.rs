//! The guard against pages of private networks: this machine, local networks, and the metadata services of
//! clouds.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The handling of requests to private networks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrivateNetworkPolicy {
    /// Requests to this machine, to local networks and to link-local addresses (metadata services) are refused,
    /// unless [`AllowedSites`](crate::AllowedSites) lists the host.
    #[default]
    Deny,
    /// Requests to private networks are allowed.
    Allow,
}

/// Time for which the addresses of a host are remembered.
const LOOKUP_LIFETIME: Duration = Duration::from_secs(30);
/// Timeout of a lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of remembered hosts.
const MAX_LOOKUPS: usize = 1024;

/// Returns the rules of Chromium's `--host-resolver-rules` flag for connections that are not intercepted, such as
/// WebSockets. They apply to names and addresses in the URL; a public name that resolves to a private address passes.
/// Addresses of version 6 are compared without brackets, and with them if there is a port.
pub(super) fn resolver_rules() -> String {
    let names = ["localhost", "*.localhost", "*.internal", "*.local"].map(str::to_owned);
    let version_4 = ["127.*", "10.*", "192.168.*", "169.254.*", "0.*"].map(str::to_owned).into_iter();
    let version_4 = version_4
        .chain((16..32).map(|second| format!("172.{second}.*")))
        .chain((64..128).map(|second| format!("100.{second}.*")))
        .chain((18..20).map(|second| format!("198.{second}.*")))
        .chain((224..256).map(|first| format!("{first}.*")));
    // Loopback and embedded addresses of version 4, translated and tunnelled ones, local networks, and groups.
    let version_6 = ["::*", "64:ff9b:*", "2002:*", "fc??:*", "fd??:*", "fe??:*", "ff??:*"];
    let version_6 = version_6.into_iter().flat_map(|address| [address.to_owned(), format!("[{address}")]);
    let hosts = names.into_iter().chain(version_4).chain(version_6);
    hosts.map(|host| format!("MAP {host} ~NOTFOUND")).collect::<Vec<_>>().join(", ")
}

/// The network that a host belongs to, as far as its name or a lookup tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostNetwork {
    Public,
    Private,
    /// The addresses of the host are not known.
    Unknown,
}

/// The addresses of hosts that were looked up.
#[derive(Default)]
pub(super) struct NetworkLookups(Mutex<BTreeMap<String, (HostNetwork, Instant)>>);

impl NetworkLookups {
    /// Returns the network of a host, if its name or an earlier lookup tells.
    pub(super) fn known_network(&self, host: &str) -> HostNetwork {
        match network_of_name(host) {
            HostNetwork::Unknown => {
                let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                match known.get(host) {
                    Some((network, at)) if at.elapsed() < LOOKUP_LIFETIME => *network,
                    _ => HostNetwork::Unknown,
                }
            }
            known => known,
        }
    }

    /// Looks up the addresses of a host. A lookup that fails tells nothing, because the browser asks once more and may
    /// get an address then; it is not remembered.
    pub(super) async fn look_up(&self, host: &str) -> HostNetwork {
        let found = tokio::time::timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host((host, 80))).await;
        let network = match found {
            Ok(Ok(mut addresses)) => match addresses.any(|address| is_private(address.ip())) {
                true => HostNetwork::Private,
                false => HostNetwork::Public,
            },
            Ok(Err(_)) | Err(_) => return HostNetwork::Unknown,
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_LOOKUPS {
            known.clear();
        }
        known.insert(host.to_owned(), (network, Instant::now()));
        network
    }
}

/// Returns the host of an `http`, `https`, `ws` or `wss` URL.
pub(super) fn host_of(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#', '\\']).next()?;
    let place = authority.rsplit('@').next()?;
    let host = match place.strip_prefix('[') {
        Some(address) => address.split(']').next()?,
        None => place.split(':').next()?,
    };
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    (!host.is_empty()).then_some(host)
}

fn network_of_name(host: &str) -> HostNetwork {
    if let Ok(address) = host.parse::<IpAddr>() {
        return if is_private(address) { HostNetwork::Private } else { HostNetwork::Public };
    }
    let is_local = host == "localhost"
        || host.ends_with(".localhost")
        || host.ends_with(".internal")
        || host.ends_with(".local");
    if is_local { HostNetwork::Private } else { HostNetwork::Unknown }
}

/// Returns true if an address is not on the public internet.
pub(super) fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => is_private_v6(address),
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [first, second, ..] = address.octets();
    address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_unspecified()
        || address.is_broadcast()
        || address.is_multicast()
        || first == 0
        // Shared address space of providers, and the range for benchmarks.
        || (first == 100 && (64..128).contains(&second))
        || (first == 198 && (18..20).contains(&second))
        || first >= 240
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    if let Some(mapped) = address.to_ipv4_mapped() {
        return is_private_v4(mapped);
    }
    let segments = address.segments();
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_private_v4(Ipv4Addr::new(a, b, c, d))
    };
    address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || address.is_unique_local()
        || address.is_unicast_link_local()
        // Translated and tunnelled addresses of version 4.
        || (segments[..6] == [0x64, 0xff9b, 0, 0, 0, 0] && embedded(segments[6], segments[7]))
        || (segments[0] == 0x2002 && embedded(segments[1], segments[2]))
        || (segments[..6] == [0; 6] && embedded(segments[6], segments[7]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_recognised_in_every_form() {
        for url in [
            "http://127.0.0.1/",
            "http://localhost:80/x",
            "https://a.localhost",
            "http://169.254.169.254/latest/meta-data",
            "http://10.1.2.3",
            "http://172.31.0.1",
            "http://192.168.1.1:8080",
            "http://100.64.0.1",
            "http://0.0.0.0/",
            "http://[::1]:3000/",
            "http://[::ffff:127.0.0.1]/",
            "http://[fd00::1]/",
            "http://[fe80::1]/",
            "http://[64:ff9b::7f00:1]/",
            "http://user@127.0.0.1/",
            "http://printer.local/",
            "http://metadata.google.internal/",
        ] {
            let host = host_of(url).unwrap_or_default();
            assert_eq!(network_of_name(&host), HostNetwork::Private, "{url} {host}");
        }
        for url in ["https://93.184.216.34/", "https://[2606:2800:220:1::1]/"] {
            let host = host_of(url).unwrap_or_default();
            assert_eq!(network_of_name(&host), HostNetwork::Public, "{url}");
        }
        assert_eq!(network_of_name("example.org"), HostNetwork::Unknown);
    }
}

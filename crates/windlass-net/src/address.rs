//! Addresses: their classification as public or not, and guards that admit only some of them.
//!
//! **Invariant:** a client with a guard connects only to addresses that the guard has admitted. A host name is resolved
//! once, all its addresses are checked, and the connection uses one of exactly these, so that another answer of the name
//! server between the check and the connection (DNS rebinding) has no effect.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

type AddressCheck = dyn Fn(&str, IpAddr) -> bool + Send + Sync;

/// A check of the addresses that a client connects to.
#[derive(Clone)]
pub struct AddressGuard {
    check: Arc<AddressCheck>,
    behind_proxy: GuardBehindProxy,
}

/// The check of addresses if a proxy makes the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuardBehindProxy {
    /// The name is resolved and checked here, and the proxy is asked for a tunnel to the checked address, also for
    /// addresses without TLS. The guard holds as it does without a proxy. A proxy that opens tunnels only to names
    /// refuses such a request.
    #[default]
    PinnedTunnel,
    /// The proxy resolves names and decides about them; only addresses that are written as numbers are checked here.
    ProxyResolves,
}

impl AddressGuard {
    /// Creates a guard. `check` receives the host name and one of its addresses, and returns true to admit it.
    pub fn new(check: impl Fn(&str, IpAddr) -> bool + Send + Sync + 'static) -> Self {
        Self { check: Arc::new(check), behind_proxy: GuardBehindProxy::default() }
    }

    /// Sets the check of addresses behind a proxy.
    #[must_use]
    pub fn behind_proxy(self, behind_proxy: GuardBehindProxy) -> Self {
        Self { behind_proxy, ..self }
    }

    pub(crate) fn proxy_mode(&self) -> GuardBehindProxy {
        self.behind_proxy
    }

    /// Returns true if an address of a host may be connected to.
    pub fn admits(&self, host: &str, address: IpAddr) -> bool {
        (self.check)(host, address)
    }
}

impl fmt::Debug for AddressGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressGuard").field("behind_proxy", &self.behind_proxy).finish_non_exhaustive()
    }
}

/// Returns true if a host is an address that is written as a number, in any spelling that resolvers accept, such as
/// `127.1` or `0x7f000001`.
pub(crate) fn is_numeric_host(host: &str) -> bool {
    if host.contains(':') {
        return true;
    }
    let last = host.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    let digits = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    match digits {
        Some(digits) => digits.bytes().all(|digit| digit.is_ascii_hexdigit()),
        None => !last.is_empty() && last.bytes().all(|digit| digit.is_ascii_digit()),
    }
}

/// Returns true if an address is globally reachable. Unknown ranges count as not public.
pub fn is_public_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !(a == 0
        || a >= 240
        || address.is_private()
        || address.is_loopback()
        // Cloud providers serve instance credentials at a link-local address.
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (b == 18 || b == 19)))
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    let last_two = Ipv4Addr::from((u32::from(parts[6]) << 16) | u32::from(parts[7]));
    match parts {
        // IPv4-mapped and NAT64 addresses.
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => is_public_v4(last_two),
        [0x2002, high, low, ..] => is_public_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low))),
        // Documentation ranges, and Teredo, whose destination is hidden.
        [0x2001, 0xdb8, ..] | [0x2001, 0, ..] | [0x3fff, 0..0x1000, ..] => false,
        // 2000::/3 is the range of global unicast addresses.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::{is_numeric_host, is_public_address};

    #[test]
    fn near_and_odd_addresses_are_not_public() {
        let near = [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "192.0.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "203.0.113.9",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::",
            "100::1",
            "3fff::1",
        ];
        for address in near {
            assert!(!is_public_address(address.parse().expect("an address")), "{address}");
        }
        let far = [
            "1.1.1.1",
            "8.8.8.8",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1111",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
        ];
        for address in far {
            assert!(is_public_address(address.parse().expect("an address")), "{address}");
        }
    }

    #[test]
    fn numbers_are_recognised_in_every_spelling() {
        for host in ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0X7F.1", "1.2.3.4.", "::1", "10.0x1"]
        {
            assert!(is_numeric_host(host), "{host}");
        }
        for host in ["example.org", "localhost", "1password.com", "0xcafe.example", "a.1b", ""] {
            assert!(!is_numeric_host(host), "{host}");
        }
    }
}

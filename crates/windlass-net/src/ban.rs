//! The ban on network connections: a switch of the whole process, for tests that must reach no server.
//!
//! **Invariant:** a ban is only ever tightened. Tests of one process run side by side, so none of them can lift a ban that
//! another has imposed.

use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::transport::TransportError;

/// The variable that imposes a ban on a process and on the processes that it starts.
pub const NETWORK_BAN_VARIABLE: &str = "WINDLASS_NETWORK_BAN";

static IMPOSED_BAN: AtomicU8 = AtomicU8::new(0);
static BAN_OF_ENVIRONMENT: OnceLock<Option<NetworkBan>> = OnceLock::new();

/// A ban on network connections. [`ban_network`] imposes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetworkBan {
    /// Only servers on this machine can be reached: `localhost` and loopback addresses.
    ExceptLoopback,
    /// No server can be reached.
    Everything,
}

impl NetworkBan {
    /// Returns true if a host may be connected to. A name other than `localhost` is not looked up.
    pub fn admits_host(self, host: &str) -> bool {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_loopback = host.eq_ignore_ascii_case("localhost")
            || host.parse().is_ok_and(|address: IpAddr| self.admits_address(address));
        self == Self::ExceptLoopback && is_loopback
    }

    pub(crate) fn admits_address(self, address: IpAddr) -> bool {
        self == Self::ExceptLoopback && address.to_canonical().is_loopback()
    }

    /// Reads the value of the variable. A value that is not understood bans everything.
    fn parse(value: &str) -> Option<Self> {
        match value.trim() {
            "" => None,
            "except-loopback" => Some(Self::ExceptLoopback),
            _ => Some(Self::Everything),
        }
    }
}

/// Bans network connections in this process from now on, for tests that must send no live request.
///
/// Every client of the network layer obeys: models, MCP servers over HTTP, `fetch_url`, live sessions, embeddings, trace
/// collectors and browsers. A request fails with [`TransportError::Banned`] before a name is looked up, and is not
/// retried. Requests on connections that are open already fail too. The ban cannot be lifted, and the stricter of two bans
/// holds. The variable [`NETWORK_BAN_VARIABLE`] (`all` or `except-loopback`) does the same without code.
///
/// The ban does not cover PostgreSQL, processes that tools start, or an [`HttpTransport`](crate::HttpTransport) of the
/// application, which can ask [`network_ban`].
///
/// ```
/// use windlass_net::{NetworkBan, ban_network, network_ban};
///
/// ban_network(NetworkBan::ExceptLoopback);
/// assert!(network_ban() >= Some(NetworkBan::ExceptLoopback));
/// ```
pub fn ban_network(ban: NetworkBan) {
    let strictness = match ban {
        NetworkBan::ExceptLoopback => 1,
        NetworkBan::Everything => 2,
    };
    IMPOSED_BAN.fetch_max(strictness, Ordering::SeqCst);
}

/// Returns the ban of this process: the stricter one of [`ban_network`] and [`NETWORK_BAN_VARIABLE`].
pub fn network_ban() -> Option<NetworkBan> {
    let imposed = match IMPOSED_BAN.load(Ordering::SeqCst) {
        0 => None,
        1 => Some(NetworkBan::ExceptLoopback),
        _ => Some(NetworkBan::Everything),
    };
    let of_environment = BAN_OF_ENVIRONMENT.get_or_init(|| {
        let value = std::env::var_os(NETWORK_BAN_VARIABLE)?;
        NetworkBan::parse(&value.to_string_lossy())
    });
    imposed.max(*of_environment)
}

/// Checks that a host may be connected to.
///
/// # Errors
///
/// Returns [`TransportError::Banned`] if a ban covers the host.
pub fn check_network_ban(host: &str) -> Result<(), TransportError> {
    match network_ban() {
        Some(ban) if !ban.admits_host(host) => Err(ban_error(host)),
        _ => Ok(()),
    }
}

pub(crate) fn ban_error(host: &str) -> TransportError {
    TransportError::Banned(format!(
        "live requests are banned in this process (`ban_network` or {NETWORK_BAN_VARIABLE}), so {host} is not reached; \
         hint: use a scripted model, a cassette or a local server, and see the page on testing"
    ))
}

#[cfg(test)]
mod tests {
    use super::NetworkBan::{Everything, ExceptLoopback};
    use super::*;

    #[test]
    fn only_this_machine_is_excepted() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "::ffff:127.0.0.1"] {
            assert!(ExceptLoopback.admits_host(host), "{host}");
            assert!(!Everything.admits_host(host), "{host}");
        }
        // Names are not looked up, so one that would resolve to this machine is refused; so are other spellings.
        for host in [
            "example.org",
            "localhost.example.org",
            "",
            "0.0.0.0",
            "10.0.0.1",
            "1.1.1.1",
            "2130706433",
            "fe80::1",
        ] {
            assert!(!ExceptLoopback.admits_host(host), "{host}");
        }
    }

    #[test]
    fn a_value_that_is_not_understood_bans_everything() {
        let read = ["", " ", "except-loopback", "all", "exceptloopback", "0"].map(NetworkBan::parse);
        let everything = Some(Everything);
        assert_eq!(read, [None, None, Some(ExceptLoopback), everything, everything, everything]);
    }
}

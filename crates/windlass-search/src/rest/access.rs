//! Access control of the REST server: API key, host and origin.

use hyper::Uri;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN};

/// The requests that a server accepts.
#[derive(Clone)]
pub(super) struct AccessRules {
    api_key: String,
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl AccessRules {
    pub(super) fn new(api_key: String) -> Self {
        Self {
            api_key,
            hosts: ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned).to_vec(),
            origins: Vec::new(),
        }
    }

    pub(super) fn allow_host(&mut self, host: String) {
        self.hosts.push(host.to_ascii_lowercase());
    }

    pub(super) fn allow_origin(&mut self, origin: String) {
        self.origins.push(origin.to_ascii_lowercase());
    }

    /// Checks the headers of a request.
    ///
    /// # Errors
    ///
    /// Returns the status and the reason of the refusal.
    pub(super) fn check_request(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), (u16, &'static str)> {
        self.check_host(headers, uri)?;
        let mut origins = headers.get_all(ORIGIN).iter();
        let is_known = |origin: &str| self.origins.iter().any(|known| known.eq_ignore_ascii_case(origin));
        if !origins.all(|origin| origin.to_str().is_ok_and(is_known)) {
            return Err((403, "requests of web pages of this origin are not accepted"));
        }
        let mut keys = headers.get_all(AUTHORIZATION).iter();
        let key = match (keys.next(), keys.next()) {
            (Some(key), None) => key.as_bytes(),
            _ => return Err((401, "send the API key as `Authorization: Bearer KEY`")),
        };
        let key = match key.split_at_checked(b"bearer ".len()) {
            Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => key,
            _ => return Err((401, "send the API key as `Authorization: Bearer KEY`")),
        };
        if self.api_key.is_empty() || !is_equal(key, self.api_key.as_bytes()) {
            return Err((401, "the API key is not the one of this server"));
        }
        Ok(())
    }

    fn check_host(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), (u16, &'static str)> {
        let refused = (421, "this server does not serve this host");
        let mut hosts = headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return Err(refused) };
        let host = host.to_str().map_err(|_| refused)?;
        // The target of a request to a proxy names its host too.
        let named = uri.authority().map(|authority| authority.as_str());
        for authority in std::iter::once(host).chain(named) {
            let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
            let host = match authority.rsplit_once(':') {
                Some((host, port)) if is_port(port) => host,
                _ => authority,
            };
            if !self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host)) {
                return Err(refused);
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for AccessRules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { api_key: _, hosts, origins } = self;
        f.debug_struct("AccessRules").field("hosts", hosts).field("origins", origins).finish_non_exhaustive()
    }
}

/// Compares two keys in a time that depends on their lengths alone.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let difference = one.iter().zip(other).fold(0, |difference, (a, b)| difference | (a ^ b));
    one.len() == other.len() && std::hint::black_box(difference) == 0
}

//! Minimal URLs of web pages: scheme, host, port and path.

use windlass_net::http::Uri;

/// A validated HTTP or HTTPS URL, without user information and fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageUrl {
    pub(super) scheme: PageUrlScheme,
    host: String,
    port: u16,
    /// The path with its query.
    pub(super) path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageUrlScheme {
    Http,
    Https,
}

impl PageUrlScheme {
    fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl PageUrl {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim().split('#').next().unwrap_or_default();
        let wrong = || "is no address of a page: it must look like `https://example.org/page`".to_owned();
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let scheme = match uri.scheme_str() {
            Some("http") => PageUrlScheme::Http,
            Some("https") => PageUrlScheme::Https,
            Some(_) | None => return Err(wrong()),
        };
        let authority = uri.authority().ok_or_else(wrong)?;
        if authority.as_str().contains('@') {
            return Err("has a user in it: leave that out".into());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(wrong());
        }
        // Text after the host must be a valid port.
        let port = match (authority.port_u16(), authority.as_str().len() > authority.host().len()) {
            (Some(port), _) => port,
            (None, false) => scheme.default_port(),
            (None, true) => return Err(wrong()),
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { scheme, host, port, path })
    }

    /// Resolves the target of a redirect relative to this URL.
    pub(super) fn join(&self, to: &str) -> Result<Self, String> {
        let to = to.trim().split('#').next().unwrap_or_default();
        let scheme = match self.scheme {
            PageUrlScheme::Http => "http",
            PageUrlScheme::Https => "https",
        };
        if to.contains("://") && !to.starts_with(['/', '?']) {
            return Self::parse(to);
        }
        if let Some(rest) = to.strip_prefix("//") {
            return Self::parse(&format!("{scheme}://{rest}"));
        }
        let before = self.path.split('?').next().unwrap_or_default();
        let path = match to.chars().next() {
            Some('/') => to.to_owned(),
            Some('?') => format!("{before}{to}"),
            Some(_) => format!("{}/{to}", before.rsplit_once('/').map_or("", |(folder, _)| folder)),
            None => before.to_owned(),
        };
        Self::parse(&format!("{scheme}://{}{path}", self.authority()))
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Returns the host and a non-default port, as in the `Host` header.
    pub(super) fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == self.scheme.default_port() { host } else { format!("{host}:{}", self.port) }
    }
}

impl std::fmt::Display for PageUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = match self.scheme {
            PageUrlScheme::Http => "http",
            PageUrlScheme::Https => "https",
        };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::PageUrl;

    #[test]
    fn addresses_are_read_and_joined() {
        let url = PageUrl::parse(" https://Example.org:8443/a/b?c=d#e ").expect("an address");
        assert_eq!((url.host(), url.port, url.path.as_str()), ("Example.org", 8443, "/a/b?c=d"));
        for (to, whole) in [
            ("http://other/x", "http://other/x"),
            ("//other/x", "https://other/x"),
            ("/x?y", "https://Example.org:8443/x?y"),
            ("x", "https://Example.org:8443/a/x"),
            ("?z", "https://Example.org:8443/a/b?z"),
        ] {
            assert_eq!(url.join(to).expect("an address").to_string(), whole);
        }
        for wrong in [
            "",
            "example.org",
            "ftp://a/",
            "file:///etc/passwd",
            "http://",
            "http://a@b/",
            "http://a:b/",
            "http://[::1",
        ] {
            assert!(PageUrl::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(PageUrl::parse("http://[::1]:80").expect("an address").to_string(), "http://[::1]/");
    }
}

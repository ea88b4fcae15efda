//! The allow list of sites that a browser may visit, and the policy for third-party requests.

use serde_json::{Value, json};
use url::{Host, Url};

/// The sites that a browser may visit, by navigation, by redirect, in a frame or in a new tab.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AllowedSites {
    /// All `http` and `https` sites. Private networks are excluded unless
    /// [`BrowserOptions::private_networks`](crate::BrowserOptions::private_networks) allows them.
    #[default]
    Any,
    /// These hosts. `example.org` allows this host only, `*.example.org` also its subdomains, and
    /// `example.org:8080` this port only.
    Only(Vec<String>),
}

impl AllowedSites {
    /// Creates an allow list of hosts.
    pub fn only<T: Into<String>>(hosts: impl IntoIterator<Item = T>) -> Self {
        Self::Only(hosts.into_iter().map(Into::into).collect())
    }

    /// Checks that every entry of the list can match a site.
    ///
    /// # Errors
    ///
    /// Names the first entry that matches nothing, and how to write it.
    pub fn validate(&self) -> Result<(), String> {
        let Self::Only(hosts) = self else { return Ok(()) };
        if hosts.is_empty() {
            return Err("the list of sites is empty, so that no page can be visited".to_owned());
        }
        for entry in hosts {
            if SiteEntry::parse(entry).is_none() {
                return Err(format!(
                    "`{entry}` is no host and would match no site; write a host such as `example.org`, \
                     `*.example.org` or `example.org:8080`, without scheme and path"
                ));
            }
        }
        Ok(())
    }

    /// Returns true if the host of the URL is listed by name, so that it may also be in a private network.
    pub(super) fn lists_host_of(&self, url: &str) -> bool {
        matches!(self, Self::Only(_)) && self.refusal_reason(url).is_none()
    }

    /// Returns the reason why a document of this origin is not of an allowed site; `None` if it is.
    pub(crate) fn origin_refusal_reason(&self, origin: &str) -> Option<String> {
        match self {
            Self::Any => None,
            Self::Only(_) if origin.is_empty() || origin == "null" => {
                Some("its page has no site of its own".to_owned())
            }
            Self::Only(_) => self.refusal_reason(&format!("{origin}/")),
        }
    }

    /// Returns the value of Chromium's `--host-resolver-rules` flag that blocks name resolution of all other
    /// hosts, for every kind of request, sockets and workers included. The rules do not distinguish ports.
    pub(super) fn host_resolver_rules(&self) -> Option<String> {
        let Self::Only(hosts) = self else { return None };
        let mut rules = "MAP * ~NOTFOUND".to_owned();
        for SiteEntry { host, subdomains, .. } in hosts.iter().filter_map(|entry| SiteEntry::parse(entry)) {
            rules.push_str(&format!(", EXCLUDE {host}"));
            if subdomains {
                rules.push_str(&format!(", EXCLUDE *.{host}"));
            }
        }
        Some(rules)
    }

    /// Returns the reason why a URL may not be visited; `None` if it may. A URL that cannot be parsed is
    /// refused.
    pub fn refusal_reason(&self, url: &str) -> Option<String> {
        let Ok(parsed) = Url::parse(url) else {
            return Some(format!("`{}` is no address of a web page", truncate_url(url)));
        };
        if matches!(parsed.as_str(), "about:blank" | "about:srcdoc") {
            return None;
        }
        let (true, Some(host), Some(port)) =
            (matches!(parsed.scheme(), "http" | "https"), parsed.host_str(), parsed.port_or_known_default())
        else {
            return Some(format!("`{}` is no address of a web page", truncate_url(url)));
        };
        let Self::Only(hosts) = self else { return None };
        let host = host.trim_end_matches('.');
        let is_listed = hosts
            .iter()
            .any(|entry| SiteEntry::parse(entry).is_some_and(|entry| entry.matches_site(host, port)));
        (!is_listed).then(|| format!("the site `{host}` is not one of those that may be visited"))
    }
}

/// An entry of a list of sites, in the form in which browsers write hosts: international names in Punycode, lower case,
/// addresses in their shortest form, no dot at the end.
#[derive(Debug, PartialEq, Eq)]
struct SiteEntry {
    host: String,
    subdomains: bool,
    port: Option<u16>,
}

impl SiteEntry {
    /// Parses an entry; `None` if it would match nothing.
    fn parse(entry: &str) -> Option<Self> {
        let (entry, subdomains) = entry.strip_prefix("*.").map_or((entry, false), |above| (above, true));
        let (host, port) = match entry.rsplit_once(':') {
            // The colon is a part of an address without a port.
            Some((_, end)) if end.ends_with(']') => (entry, None),
            Some((host, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => {
                (host, Some(port.parse().ok().filter(|port: &u16| *port > 0)?))
            }
            Some(_) => return None,
            None => (entry, None),
        };
        match Host::parse(host).ok()? {
            Host::Domain(name) => {
                let host = name.strip_suffix('.').unwrap_or(&name);
                let is_label = |label: &str| {
                    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
                    !label.is_empty() && label.bytes().all(is_plain)
                };
                host.split('.').all(is_label).then(|| Self { host: host.to_owned(), subdomains, port })
            }
            // An address has no subdomains.
            address => (!subdomains).then(|| Self { host: address.to_string(), subdomains, port }),
        }
    }

    /// Returns true if the entry allows the site, whose host is written as browsers write it.
    fn matches_site(&self, host: &str, port: u16) -> bool {
        let is_below = || {
            let below = host.strip_suffix(self.host.as_str());
            self.subdomains && below.is_some_and(|below| below.ends_with('.'))
        };
        self.port.is_none_or(|wanted| wanted == port) && (host == self.host || is_below())
    }
}

/// The policy for requests from allowed pages to sites that are not on the allow list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThirdPartyPolicy {
    /// Page assets only: GET requests for scripts, style sheets, fonts, images, audio and video. Fetches by
    /// scripts, beacons and forms are blocked. WebSockets are not blocked, and the URL of an image can carry
    /// data out.
    #[default]
    AssetsOnly,
    /// No request and no socket reaches another host, by any means.
    BlockAll,
    /// All requests are allowed. Only visits are restricted to the allow list.
    AllowAll,
}

impl ThirdPartyPolicy {
    /// Returns the patterns of the requests to intercept, for `Fetch.enable`.
    pub(super) fn intercept_patterns(self) -> Value {
        match self {
            Self::AssetsOnly | Self::BlockAll => json!([{ "urlPattern": "*" }]),
            Self::AllowAll => document_patterns(),
        }
    }

    /// Returns the reason why a subresource request of a page is blocked; `None` if it is allowed.
    pub(super) fn refusal_reason(
        self,
        sites: &AllowedSites,
        url: &str,
        kind: &str,
        method: &str,
    ) -> Option<String> {
        // These URLs cause no network request.
        if url.starts_with("data:") || url.starts_with("blob:") {
            return None;
        }
        let why = sites.refusal_reason(url)?;
        let is_asset = matches!(kind, "Stylesheet" | "Image" | "Media" | "Font" | "Script" | "TextTrack");
        match self {
            Self::AllowAll => None,
            Self::AssetsOnly if is_asset && method == "GET" => None,
            Self::AssetsOnly | Self::BlockAll => Some(why),
        }
    }
}

/// Returns the pattern that intercepts visits only, for `Fetch.enable`.
pub(super) fn document_patterns() -> Value {
    json!([{ "urlPattern": "*", "resourceType": "Document" }])
}

fn truncate_url(url: &str) -> &str {
    &url[..url.floor_char_boundary(200)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_may_be_visited() {
        let sites = AllowedSites::only(["example.org", "*.shop.test", "127.0.0.1:8080"]);
        for allowed in [
            "https://example.org",
            "https://EXAMPLE.org/path?x=1#y",
            "http://example.org:8080/",
            "https://shop.test/",
            "https://a.b.shop.test/",
            "http://127.0.0.1:8080/x",
            "about:blank",
        ] {
            assert_eq!(sites.refusal_reason(allowed), None, "{allowed}");
        }
        for refused in [
            "https://evil.test/",
            "https://example.org.evil.test/",
            "https://evil.test/example.org",
            "https://example.org@evil.test/",
            "https://evil.test\\@example.org/",
            "https://notshop.test/",
            "http://127.0.0.1:9090/",
            "http://sub.example.org/",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "data:text/html,x",
            "chrome://settings",
            "",
        ] {
            assert!(sites.refusal_reason(refused).is_some(), "{refused}");
        }
        let rules =
            "MAP * ~NOTFOUND, EXCLUDE example.org, EXCLUDE shop.test, EXCLUDE *.shop.test, EXCLUDE 127.0.0.1";
        assert_eq!(sites.host_resolver_rules().as_deref(), Some(rules));
        assert!(AllowedSites::Any.refusal_reason("file:///etc/passwd").is_some());
        assert_eq!(AllowedSites::Any.refusal_reason("http://anything/"), None);
    }

    #[test]
    fn entries_match_the_form_in_which_browsers_write_hosts() {
        for (entry, url) in [
            ("münchen.de", "https://xn--mnchen-3ya.de/"),
            ("*.münchen.de", "https://www.xn--mnchen-3ya.de/"),
            ("BÜCHER.example", "https://bücher.example/"),
            ("例え.jp:8443", "https://xn--r8jz45g.jp:8443/"),
            ("example.org.", "https://example.org/"),
            ("example.org", "https://example.org./"),
            ("*.example.org.", "https://a.example.org./"),
            ("example.org:0443", "https://example.org/"),
            ("example.org:80", "http://example.org/"),
            ("[::1]:80", "http://[::1]/"),
            ("[0:0:0:0:0:0:0:1]", "http://[::1]:9/"),
            ("[2001:DB8::0]", "http://[2001:db8::]/"),
            ("127.1", "http://127.0.0.1/"),
            ("EXAMPLE.org", "https://ex%61mple.org/"),
            ("a_b.test", "https://a_b.test/"),
        ] {
            let sites = AllowedSites::only([entry]);
            sites.validate().expect(entry);
            assert_eq!(sites.refusal_reason(url), None, "{entry} {url}");
            let host =
                Url::parse(url).expect("a URL").host_str().expect("a host").trim_end_matches('.').to_owned();
            let rules = sites.host_resolver_rules().expect("there are some");
            let is_found = rules.contains(&format!("EXCLUDE {host}"))
                || host
                    .split_once('.')
                    .is_some_and(|(_, above)| rules.contains(&format!("EXCLUDE *.{above}")));
            assert!(is_found, "{entry}: {rules}");
        }
        for entry in [
            "example.org:0",
            "example.org:65536",
            "example.org:99999",
            "example.org:http",
            "example.org:",
            "a..b",
            ".",
            "",
            "*.",
            "*.*.org",
            "*.127.0.0.1",
            "*.[::1]",
            "[::1",
            "::1",
            "[::g]",
            "1.2.3.4.5",
            "xn--a",
            "a%2fb",
            "ex*mple.org",
            "user@example.org",
        ] {
            AllowedSites::only([entry]).validate().expect_err(entry);
            assert_eq!(SiteEntry::parse(entry), None);
        }
        let sites = AllowedSites::only(["example.org"]);
        for refused in [
            "https://example.org\t@evil.test/",
            "https:evil.test",
            "https:///evil.test/@example.org",
            "ws://example.org/",
            "https://example.org:99999/",
        ] {
            assert!(sites.refusal_reason(refused).is_some(), "{refused}");
        }
    }

    #[test]
    fn pages_have_from_elsewhere_what_they_are_made_of() {
        let sites = AllowedSites::only(["example.org"]);
        let cases = [
            // URL, resource type and method; then the expectation for assets, for nothing and for anything.
            ("https://example.org/data", "XHR", "POST", [true, true, true]),
            ("data:image/png;base64,AAAA", "Image", "GET", [true, true, true]),
            ("https://cdn.test/a.js", "Script", "GET", [true, false, true]),
            ("https://cdn.test/a.png", "Image", "GET", [true, false, true]),
            ("https://cdn.test/a.png", "Image", "POST", [false, false, true]),
            ("https://evil.test/", "XHR", "GET", [false, false, true]),
            ("https://evil.test/", "Fetch", "POST", [false, false, true]),
            ("https://evil.test/", "Ping", "POST", [false, false, true]),
            ("https://evil.test/", "EventSource", "GET", [false, false, true]),
            ("https://evil.test/", "Other", "GET", [false, false, true]),
            ("https://evil.test/", "a kind of tomorrow", "GET", [false, false, true]),
        ];
        for (url, kind, method, expected) in cases {
            let may = [ThirdPartyPolicy::AssetsOnly, ThirdPartyPolicy::BlockAll, ThirdPartyPolicy::AllowAll]
                .map(|elsewhere| elsewhere.refusal_reason(&sites, url, kind, method).is_none());
            assert_eq!(may, expected, "{kind} {method} {url}");
        }
    }
}

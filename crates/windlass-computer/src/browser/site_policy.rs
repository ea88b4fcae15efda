//! The allow list of sites that a browser may visit, and the policy for third-party requests.

use serde_json::{Value, json};

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
            let is_host = {
                let entry = entry.strip_prefix("*.").unwrap_or(entry);
                let host = match entry.rsplit_once(':') {
                    Some((host, port)) if is_number(port) => host,
                    _ => entry,
                };
                let is_address = host.starts_with('[') && host.ends_with(']');
                let is_name = !host.is_empty()
                    && !host.starts_with('.')
                    && host.chars().all(|char| char.is_alphanumeric() || matches!(char, '-' | '.' | '_'));
                is_address || is_name
            };
            if !is_host {
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
        for host in hosts {
            let host =
                host.rsplit_once(':').filter(|(_, port)| is_number(port)).map_or(&**host, |(host, _)| host);
            if let Some(above) = host.strip_prefix("*.") {
                rules.push_str(&format!(", EXCLUDE {above}"));
            }
            rules.push_str(&format!(", EXCLUDE {host}"));
        }
        Some(rules)
    }

    /// Returns the reason why a URL may not be visited; `None` if it may. A URL that cannot be parsed is
    /// refused.
    pub fn refusal_reason(&self, url: &str) -> Option<String> {
        let lower = url.trim().to_ascii_lowercase();
        if lower == "about:blank" || lower == "about:srcdoc" {
            return None;
        }
        let Some((scheme, rest)) =
            lower.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"))
        else {
            return Some(format!("`{}` is no address of a web page", truncate_url(url)));
        };
        let Self::Only(hosts) = self else { return None };
        // Browsers treat a backslash as a slash, so it also ends the authority here.
        let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
        let place = authority.rsplit('@').next().unwrap_or_default();
        let default_port = if scheme == "http" { "80" } else { "443" };
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if is_number(port) => (host, port),
            _ => (place, default_port),
        };
        let host = host.trim_end_matches('.');
        let is_listed = hosts.iter().any(|listed| matches_host(&listed.to_ascii_lowercase(), host, port));
        (!is_listed).then(|| format!("the site `{host}` is not one of those that may be visited"))
    }
}

fn matches_host(listed: &str, host: &str, port: &str) -> bool {
    let (listed, is_port) = match listed.rsplit_once(':') {
        Some((listed, wanted)) if is_number(wanted) => (listed, wanted == port),
        _ => (listed, true),
    };
    let is_host = match listed.strip_prefix("*.") {
        Some(above) => host == above || host.strip_suffix(above).is_some_and(|below| below.ends_with('.')),
        None => host == listed,
    };
    is_port && is_host
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit())
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

//! Which sites a browser may go to, and what its pages may have from others.

use serde_json::{Value, json};

/// Which sites a browser may go to: by navigation, by a redirect, in a frame, in a new tab.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sites {
    /// Any that is reached by `http` or `https`.
    #[default]
    Any,
    /// These hosts. `example.org` means that host alone, `*.example.org` what is below it too, and
    /// `example.org:8080` that port alone.
    Only(Vec<String>),
}

impl Sites {
    /// These hosts alone.
    pub fn only<T: Into<String>>(hosts: impl IntoIterator<Item = T>) -> Self {
        Self::Only(hosts.into_iter().map(Into::into).collect())
    }

    /// The flags that keep a browser from so much as finding any other host, whatever asks for it: sockets and workers
    /// too. Ports are not told apart here.
    pub(super) fn host_rules(&self) -> Option<String> {
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

    /// Why an address may not be gone to; none where it may. What is not understood may not.
    pub fn refuses(&self, url: &str) -> Option<String> {
        let lower = url.trim().to_ascii_lowercase();
        if lower == "about:blank" || lower == "about:srcdoc" {
            return None;
        }
        let Some((scheme, rest)) =
            lower.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"))
        else {
            return Some(format!("`{}` is no address of a web page", shortened(url)));
        };
        let Self::Only(hosts) = self else { return None };
        // Browsers read a backslash as a slash, so whoever looks for the end of the host must too.
        let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
        let place = authority.rsplit('@').next().unwrap_or_default();
        let default_port = if scheme == "http" { "80" } else { "443" };
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if is_number(port) => (host, port),
            _ => (place, default_port),
        };
        let host = host.trim_end_matches('.');
        let is_listed = hosts.iter().any(|listed| matches(&listed.to_ascii_lowercase(), host, port));
        (!is_listed).then(|| format!("the site `{host}` is not one of those that may be visited"))
    }
}

fn matches(listed: &str, host: &str, port: &str) -> bool {
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

/// What the pages of listed sites may have from other sites, where sites are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Elsewhere {
    /// What pages are made of: scripts, styles, fonts, pictures, sounds and films, as long as they are only fetched.
    /// Nothing else is asked of other sites: no data by scripts, no beacons, no forms. Sockets are not held back, and a
    /// picture's address can carry something out.
    #[default]
    Assets,
    /// Nothing at all: no request and no socket goes to another host, by whatever way.
    Nothing,
    /// Anything. Only visits are held to the list.
    Anything,
}

impl Elsewhere {
    /// Which requests are looked at, as the browser takes it.
    pub(super) fn patterns(self) -> Value {
        match self {
            Self::Assets | Self::Nothing => json!([{ "urlPattern": "*" }]),
            Self::Anything => json!([{ "urlPattern": "*", "resourceType": "Document" }]),
        }
    }

    /// Why a page's request for one of its parts may not be made; none where it may.
    pub(super) fn refuses(self, sites: &Sites, url: &str, kind: &str, method: &str) -> Option<String> {
        // These do not leave the browser.
        if url.starts_with("data:") || url.starts_with("blob:") {
            return None;
        }
        let why = sites.refuses(url)?;
        let is_asset = matches!(kind, "Stylesheet" | "Image" | "Media" | "Font" | "Script" | "TextTrack");
        match self {
            Self::Anything => None,
            Self::Assets if is_asset && method == "GET" => None,
            Self::Assets | Self::Nothing => Some(why),
        }
    }
}

fn shortened(url: &str) -> &str {
    &url[..url.floor_char_boundary(200)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_may_be_visited() {
        let sites = Sites::only(["example.org", "*.shop.test", "127.0.0.1:8080"]);
        for allowed in [
            "https://example.org",
            "https://EXAMPLE.org/path?x=1#y",
            "http://example.org:8080/",
            "https://shop.test/",
            "https://a.b.shop.test/",
            "http://127.0.0.1:8080/x",
            "about:blank",
        ] {
            assert_eq!(sites.refuses(allowed), None, "{allowed}");
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
            assert!(sites.refuses(refused).is_some(), "{refused}");
        }
        let rules =
            "MAP * ~NOTFOUND, EXCLUDE example.org, EXCLUDE shop.test, EXCLUDE *.shop.test, EXCLUDE 127.0.0.1";
        assert_eq!(sites.host_rules().as_deref(), Some(rules));
        assert!(Sites::Any.refuses("file:///etc/passwd").is_some());
        assert_eq!(Sites::Any.refuses("http://anything/"), None);
    }

    #[test]
    fn pages_have_from_elsewhere_what_they_are_made_of() {
        let sites = Sites::only(["example.org"]);
        let cases = [
            // What is asked for, and whether it may be: with assets, with nothing, with anything.
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
            let may = [Elsewhere::Assets, Elsewhere::Nothing, Elsewhere::Anything]
                .map(|elsewhere| elsewhere.refuses(&sites, url, kind, method).is_none());
            assert_eq!(may, expected, "{kind} {method} {url}");
        }
    }
}

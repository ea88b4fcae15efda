//! Which sites a browser may go to.

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
            Some((host, port)) if !port.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit()) => {
                (host, port)
            }
            _ => (place, default_port),
        };
        let host = host.trim_end_matches('.');
        let is_listed = hosts.iter().any(|listed| matches(&listed.to_ascii_lowercase(), host, port));
        (!is_listed).then(|| format!("the site `{host}` is not one of those that may be visited"))
    }
}

fn matches(listed: &str, host: &str, port: &str) -> bool {
    let (listed, is_port) = match listed.rsplit_once(':') {
        Some((listed, wanted)) if wanted.bytes().all(|digit| digit.is_ascii_digit()) => {
            (listed, wanted == port)
        }
        _ => (listed, true),
    };
    let is_host = match listed.strip_prefix("*.") {
        Some(above) => host == above || host.strip_suffix(above).is_some_and(|below| below.ends_with('.')),
        None => host == listed,
    };
    is_port && is_host
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
        assert!(Sites::Any.refuses("file:///etc/passwd").is_some());
        assert_eq!(Sites::Any.refuses("http://anything/"), None);
    }
}

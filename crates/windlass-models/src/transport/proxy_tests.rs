use super::ProxyRules;
use crate::transport::TransportError;

/// Returns the proxy of an address under these variables.
fn proxy_of(variables: &[(&str, &str)], address: &str) -> Result<Option<String>, TransportError> {
    let rules = ProxyRules::from_vars(|name| {
        variables.iter().find(|variable| variable.0 == name).map(|variable| variable.1.to_owned())
    });
    let found = rules.find(&address.parse().expect("an address"))?;
    Ok(found.map(|proxy| {
        let scheme = if proxy.is_tls { "https" } else { "http" };
        let login = proxy.authorization.map_or("", |value| if value == "Basic dTpw" { "u:p@" } else { "?@" });
        format!("{scheme}://{login}{}:{}", proxy.host, proxy.port)
    }))
}

#[test]
fn the_usual_variables_name_the_proxy() {
    let both = [("HTTPS_PROXY", "http://u:p@one:8080"), ("http_proxy", "two:3128")];
    for (variables, address, expected) in [
        (&both[..], "https://api.example/v1", Some("http://u:p@one:8080")),
        (&both[..], "http://api.example/v1", Some("http://two:3128")),
        (&[("ALL_PROXY", "https://all")], "https://api.example/v1", Some("https://all:443")),
        (&[("ALL_PROXY", "http://all:1")], "http://api.example/v1", Some("http://all:1")),
        (
            &[("HTTPS_PROXY", "http://upper:1"), ("https_proxy", "http://lower:1")],
            "https://a.example",
            Some("http://upper:1"),
        ),
        (&[("HTTPS_PROXY", "")], "https://api.example/v1", None),
        (&[], "https://api.example/v1", None),
        (&[("HTTP_PROXY", "http://evil:1"), ("REQUEST_METHOD", "GET")], "http://api.example", None),
    ] {
        assert_eq!(
            proxy_of(variables, address).expect("a rule").as_deref(),
            expected,
            "{variables:?} {address}"
        );
    }
}

#[test]
fn some_addresses_have_no_proxy() {
    let all = |no: &'static str| [("ALL_PROXY", "http://all:1"), ("NO_PROXY", no)];
    for (no, address, has_proxy) in [
        ("", "http://api.example", true),
        ("api.example", "http://api.example", false),
        ("example", "http://api.example", false),
        (".example", "http://api.example", false),
        ("pi.example", "http://api.example", true),
        ("10.0.0.0/8", "http://10.1.2.3:8000", false),
        ("10.0.0.0/8", "http://11.1.2.3:8000", true),
        ("*", "https://api.example", false),
        ("", "http://127.0.0.1:11434", false),
        ("", "http://[::1]:11434", false),
        ("", "http://LocalHost:11434", false),
    ] {
        let found = proxy_of(&all(no), address).expect("a rule");
        assert_eq!(found.is_some(), has_proxy, "NO_PROXY={no} {address}: {found:?}");
    }
}

#[test]
fn a_proxy_that_is_not_http_is_refused() {
    let refused = proxy_of(&[("ALL_PROXY", "socks5://all:1080")], "https://api.example");
    assert!(matches!(&refused, Err(TransportError::Unusable(why)) if why.contains("socks5")), "{refused:?}");
}

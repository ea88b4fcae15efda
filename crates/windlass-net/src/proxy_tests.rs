use hyper::Uri;

use super::ProxySettings;
use crate::transport::TransportError;

fn settings(variables: &[(&str, &str)]) -> ProxySettings {
    ProxySettings::from_vars(|name| {
        variables.iter().find(|variable| variable.0 == name).map(|variable| variable.1.to_owned())
    })
}

/// Returns the proxy of an address.
fn proxy_of(settings: &ProxySettings, address: &str) -> Result<Option<String>, TransportError> {
    let address: Uri = address.parse().expect("an address");
    let is_tls = matches!(address.scheme_str(), Some("https" | "wss"));
    let found = settings.find(&address, is_tls)?;
    Ok(found.map(|proxy| {
        let login = match &proxy.authorization {
            None => "",
            Some(value) if value == "Basic dTpw" => "u:p@",
            Some(value) if value == "Basic dTphQGI=" => "u:a@b@",
            Some(_) => "?@",
        };
        proxy.to_string().replace("://", &format!("://{login}"))
    }))
}

#[test]
fn the_usual_variables_name_the_proxy() {
    let both = [("HTTPS_PROXY", "http://u:p@one:8080"), ("http_proxy", "two:3128")];
    for (variables, address, expected) in [
        (&both[..], "https://api.example/v1", Some("http://u:p@one:8080")),
        (&both[..], "wss://api.example/v1", Some("http://u:p@one:8080")),
        (&both[..], "http://api.example/v1", Some("http://two:3128")),
        (&both[..], "ws://api.example:81/v1", Some("http://two:3128")),
        (&[("ALL_PROXY", "https://all")], "https://api.example/v1", Some("https://all:443")),
        (&[("ALL_PROXY", "http://all:1")], "http://api.example/v1", Some("http://all:1")),
        (&[("ALL_PROXY", "http://u:a%40b@all:1")], "http://api.example/v1", Some("http://u:a@b@all:1")),
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
            proxy_of(&settings(variables), address).expect("a rule").as_deref(),
            expected,
            "{variables:?} {address}"
        );
    }
}

#[test]
fn some_addresses_have_no_proxy() {
    for (no, address, has_proxy) in [
        ("", "http://api.example", true),
        ("api.example", "http://api.example", false),
        ("api.example", "wss://api.example", false),
        ("example", "http://api.example", false),
        (".example", "http://api.example", false),
        ("other.test, api.example", "https://api.example:8443", false),
        ("pi.example", "http://api.example", true),
        ("10.0.0.0/8", "http://10.1.2.3:8000", false),
        ("10.0.0.0/8", "http://11.1.2.3:8000", true),
        ("fd00::/8", "http://[fd00::1]:8000", false),
        ("*", "https://api.example", false),
        ("", "http://127.0.0.1:11434", false),
        ("", "http://[::1]:11434", false),
        ("", "http://LocalHost:11434", false),
    ] {
        let by_variable = settings(&[("ALL_PROXY", "http://all:1"), ("no_proxy", no)]);
        let by_setting = ProxySettings::everywhere("http://all:1").expect("an address").except(no);
        for settings in [by_variable, by_setting] {
            let found = proxy_of(&settings, address).expect("a rule");
            assert_eq!(found.is_some(), has_proxy, "NO_PROXY={no} {address}: {found:?}");
        }
    }
}

/// A malformed address is an error of each request that needs the proxy; it never means a direct connection.
#[test]
fn an_address_that_is_no_http_proxy_is_an_error_without_its_password() {
    for wrong in
        ["socks5://u:hidden@all:1080", "http://u:hid den@all", "http://", "http://u:hidden@", "ftp://all"]
    {
        let settings = settings(&[("HTTPS_PROXY", wrong), ("NO_PROXY", "free.example")]);
        let refused = proxy_of(&settings, "https://api.example").expect_err(wrong);
        assert!(matches!(&refused, TransportError::Unusable(_)), "{refused:?}");
        let text = format!("{refused} {settings:?} {:?}", ProxySettings::everywhere(wrong));
        assert!(text.contains("`HTTPS_PROXY`") && text.contains("http://user:password@host:8080"), "{text}");
        assert!(!text.contains("hid"), "{text}");
        assert_eq!(proxy_of(&settings, "https://free.example"), Ok(None));
        assert_eq!(proxy_of(&settings, "http://api.example"), Ok(None), "it is for https only");
    }
}

#[test]
fn passwords_are_not_shown() {
    let settings = ProxySettings::everywhere("http://worker:hidden@all:1").expect("an address");
    let text = format!("{settings:?}");
    assert!(text.contains("all:1") && !text.contains("hidden") && !text.contains("worker"), "{text}");
}

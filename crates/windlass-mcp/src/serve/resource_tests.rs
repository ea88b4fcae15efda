use super::*;

fn places(form: &str, uri: &str) -> Option<Vec<(String, String)>> {
    matched(form, uri).map(|places| places.into_iter().collect())
}

#[test]
fn an_address_has_a_form_or_not() {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(places("notes://{day}/text", "notes://today/text"), Some(vec![pair("day", "today")]));
    assert_eq!(places("a://{x}/{y}", "a://1/2"), Some(vec![pair("x", "1"), pair("y", "2")]));
    assert_eq!(places("a://fixed", "a://fixed"), Some(Vec::new()));
    for (form, uri) in [
        ("a://fixed", "a://other"),
        ("a://{x}/text", "a://1"),
        ("a://{x}/text", "a:///text"),
        ("a://{x}", "a://1/2"),
        ("a://{x}/text", "a://1/text/more"),
        ("a://{x", "a://1"),
    ] {
        assert_eq!(places(form, uri), None, "{form} {uri}");
    }
}

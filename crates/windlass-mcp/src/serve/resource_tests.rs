use super::*;

fn template_values(form: &str, uri: &str) -> Option<Vec<(String, String)>> {
    match_template(form, uri).map(|places| places.into_iter().collect())
}

#[test]
fn an_address_has_a_form_or_not() {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(template_values("notes://{day}/text", "notes://today/text"), Some(vec![pair("day", "today")]));
    assert_eq!(template_values("a://{x}/{y}", "a://1/2"), Some(vec![pair("x", "1"), pair("y", "2")]));
    assert_eq!(template_values("a://fixed", "a://fixed"), Some(Vec::new()));
    for (form, uri) in [
        ("a://fixed", "a://other"),
        ("a://{x}/text", "a://1"),
        ("a://{x}/text", "a:///text"),
        ("a://{x}", "a://1/2"),
        ("a://{x}/text", "a://1/text/more"),
        ("a://{x", "a://1"),
    ] {
        assert_eq!(template_values(form, uri), None, "{form} {uri}");
    }
}

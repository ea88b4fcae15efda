use syn::parse_quote;

use super::*;

fn doc_text_of(attrs: &[Attribute]) -> Option<String> {
    doc_comment_text(attrs)
}

#[test]
fn wrapped_lines_are_joined_and_the_rest_stays_apart() {
    let attrs: Vec<Attribute> = parse_quote! {
        /// Current weather
        /// for a city.
        ///
        /// Knows:
        /// - cities,
        ///   large and small
        /// 1. towns
        ///
        /// ```
        /// weather(
        ///     "Rome")
        /// ```
        /// Done.
        #[other]
    };
    let want = "Current weather for a city.\n\nKnows:\n- cities, large and small\n1. towns\n\n```\nweather(\n    \"Rome\")\n```\nDone.";
    assert_eq!(doc_text_of(&attrs).as_deref(), Some(want));
}

#[test]
fn empty_comments_say_nothing() {
    assert_eq!(doc_text_of(&[]), None);
    assert_eq!(doc_text_of(&[parse_quote!(#[doc = "  "]), parse_quote!(#[doc = ""])]), None);
}

#[test]
fn block_comments_are_read_too() {
    assert_eq!(doc_text_of(&[parse_quote!(#[doc = "One.\n Two."])]).as_deref(), Some("One. Two."));
}

#[test]
fn durations_are_read_and_others_refused() {
    let read =
        |text: &str| parse_duration(&LitStr::new(text, Span::call_site())).map_err(|error| error.to_string());
    assert_eq!(read("250ms"), Ok(Duration::from_millis(250)));
    assert_eq!(read("30s"), Ok(Duration::from_secs(30)));
    assert_eq!(read("5m"), Ok(Duration::from_secs(300)));
    assert_eq!(read("1h"), Ok(Duration::from_secs(3600)));
    for wrong in
        ["", "s", "30", "30 s", "-1s", "1.5s", "1d", "99999999999999999999s", "18446744073709551615h"]
    {
        assert!(read(wrong).is_err_and(|message| message.contains("is not a duration")), "{wrong}");
    }
    assert!(read("0s").is_err_and(|message| message.contains("zero")));
}

#[test]
fn names_are_those_that_models_take() {
    let ok = |name: &str| check_name(name, Span::call_site(), "name").is_ok();
    assert!(ok("a") && ok("get_weather-2") && ok(&"x".repeat(64)));
    assert!(!ok("") && !ok("a b") && !ok("wétter") && !ok(&"x".repeat(65)));
}

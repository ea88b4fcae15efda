use proptest::prelude::*;
use serde_json::Value;

use super::*;

/// Returns the reference result, computed by parsing into a value.
fn canonical_through_value(text: &str) -> Result<String, String> {
    serde_json::from_str::<Value>(text).map(|value| canonical_json(&value)).map_err(|error| error.to_string())
}

fn canonical_through_scan(text: &str) -> Result<String, String> {
    canonical_text(text).map(Cow::into_owned).map_err(|error| error.to_string())
}

/// Returns true if the text is handled by the fast path.
fn takes_fast_path(text: &str) -> bool {
    scan_document(text.as_bytes(), &mut CanonicalWriter::default()).is_some()
}

#[test]
fn both_ways_agree_on_what_is_written() {
    for text in [
        "{}",
        " { } ",
        "[]",
        "[ 1 , 2 ]",
        "null",
        "true",
        "false",
        "\"\"",
        "\"x\\n\\u0041\\ud83d\\ude00é\"",
        "{\"b\":1,\"a\":{\"d\":[{\"z\":1,\"y\":2}],\"c\":null}}",
        "{\"a\":1,\"a\":2}",
        "{\"b\":0,\"a\":1,\"b\":2}",
        "{\"\\u0061\":1,\"b\":2}",
        "{\"\u{fb33}\":1,\"\u{1f600}\":2}",
        "{\"é\":1,\"e\":2,\"ez\":3}",
        "0",
        "-0",
        "-0.0",
        "0.0",
        "-1",
        "12.50",
        "-0.50",
        "100.0",
        "1e2",
        "1E+2",
        "0.000001",
        "0.0000010",
        "0.00000999",
        "0.0000001",
        "123456789012345678",
        "1234567890123456789",
        "18446744073709551616",
        "-9223372036854775808",
        "0.1",
        "333333333.33333329",
        "123456789.123456",
        "1234567890.123456",
        "1e400",
        "[\"\\\"\"]",
        "{\"k\":\"a\\\\\"}",
        "\"\u{7f}\"",
    ] {
        assert_eq!(canonical_through_scan(text), canonical_through_value(text), "{text}");
    }
}

#[test]
fn both_ways_agree_on_what_is_wrong() {
    for text in [
        "",
        " ",
        "{",
        "}",
        "[",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "{1:2}",
        "tru",
        "truex",
        "nul",
        "01",
        "-",
        "-01",
        "1.",
        ".5",
        "1.5.5",
        "1e",
        "+1",
        "--1",
        "\"",
        "\"\\",
        "\"\\\"",
        "\"\n\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\é\"",
        "{} x",
        "1 2",
        "[\"a\": 1]",
        "\"\\ud800\"",
        "\u{feff}{}",
    ] {
        assert_eq!(canonical_through_scan(text), canonical_through_value(text), "{text}");
    }
}

#[test]
fn nesting_has_the_limit_of_the_library() {
    for depth in [1, 63, 64, 65, 127, 128, 129, 5_000] {
        let text = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(canonical_through_scan(&text), canonical_through_value(&text), "{depth}");
    }
}

#[test]
fn ordinary_arguments_take_the_short_way() {
    assert!(takes_fast_path(
        r#"{"order":"17","cents":52000,"why":{"rate":-0.25,"notes":[null,true,"né"],"at":249.0}}"#
    ));
    assert!(!takes_fast_path(r#"{"a":1,"a":2}"#), "which of the two counts is for the rule to say");
}

#[test]
fn keys_are_sorted_however_many_there_are() {
    for count in [1, 2, 7, 31, 32, 33, 64, 500] {
        for step in [1, 7, 11, 13] {
            // Key prefixes that are equal, that are short, and that are not ASCII.
            let key = |at: usize| match at % 4 {
                0 => format!("{at}"),
                1 => format!("the same beginning {at}"),
                2 => format!("é{at}"),
                _ => format!("\u{1f600}{at}"),
            };
            let members: Vec<String> =
                (0..count).map(|at| format!("\"{}\" : {at}", key(at * step % 1009))).collect();
            let text = format!("{{ {} }}", members.join(" ,\n"));
            assert!(takes_fast_path(&text), "{text}");
            assert_eq!(canonical_through_scan(&text), canonical_through_value(&text), "{text}");
        }
    }
}

fn arbitrary_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter("finite", |x| x.is_finite()).prop_map(Value::from),
        (-1_000_000i64..1_000_000, 1u32..9)
            .prop_map(|(n, e)| Value::from(n as f64 / f64::from(10u32.pow(e)))),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec(("[a-dé\"\\\\]{0,3}|[ab]{6,10}|[a\u{fb33}\u{1f600}]{1,3}", inner), 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_value_is_written_alike(value in arbitrary_json()) {
        for text in [value.to_string(), serde_json::to_string_pretty(&value).expect("values print")] {
            prop_assert_eq!(canonical_through_scan(&text), canonical_through_value(&text), "{}", text);
        }
    }

    #[test]
    fn decimals_are_written_alike(sign in "-?", whole in "0|[1-9][0-9]{0,17}", rest in "(\\.[0-9]{1,18})?([eE][+-]?[0-9]{1,3})?") {
        let text = format!("{sign}{whole}{rest}");
        prop_assert_eq!(canonical_through_scan(&text), canonical_through_value(&text), "{}", text);
    }

    #[test]
    fn any_text_is_refused_alike(text in "[\\[\\]{}:,\"\\\\a0-9.eE+ nul-]{0,12}") {
        prop_assert_eq!(canonical_through_scan(&text), canonical_through_value(&text), "{}", text);
    }
}

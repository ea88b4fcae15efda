use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

fn canonical_of(text: &str) -> String {
    canonical_json(&serde_json::from_str(text).expect("test input is JSON"))
}

#[test]
fn key_order_white_space_and_number_forms_do_not_matter() {
    let want = r#"{"a":100,"b":[1,"x"]}"#;
    for text in [
        r#"{"b":[1,"x"],"a":100}"#,
        " { \"a\" : 1e2 ,\n\"b\":[1.0,\"x\"] } ",
        r#"{"a":100.0,"b":[1,"\u0078"]}"#,
    ] {
        assert_eq!(canonical_of(text), want, "{text}");
    }
}

#[test]
fn kinds_stay_apart() {
    let forms = ["1", "true", "\"1\"", "null", "[1]", "{\"1\":1}", "0", "\"\"", "[]", "{}"];
    for (at, a) in forms.iter().enumerate() {
        for b in &forms[at + 1..] {
            assert_ne!(canonical_of(a), canonical_of(b));
        }
    }
}

#[test]
fn large_integers_keep_their_digits() {
    assert_ne!(canonical_of("9007199254740993"), canonical_of("9007199254740992"));
    assert_eq!(canonical_of("18446744073709551615"), "18446744073709551615");
    assert_eq!(canonical_of("-9223372036854775808"), "-9223372036854775808");
}

#[test]
fn numbers_follow_rfc_8785() {
    let cases = [
        ("0.0", "0"),
        ("-0.0", "0"),
        ("1e-7", "1e-7"),
        ("0.000001", "0.000001"),
        ("1e21", "1e+21"),
        ("1e20", "100000000000000000000"),
        ("4.5", "4.5"),
        ("333333333.33333329", "333333333.3333333"),
        ("5e-324", "5e-324"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
    ];
    for (text, want) in cases {
        assert_eq!(canonical_of(text), want, "{text}");
    }
}

#[test]
fn keys_sort_by_utf16_units() {
    // U+1F600 is encoded with surrogates, which sort below U+FB33.
    assert_eq!(canonical_of("{\"\u{fb33}\":1,\"\u{1f600}\":2}"), "{\"\u{1f600}\":2,\"\u{fb33}\":1}");
}

#[test]
fn a_digest_reads_back() {
    let digest = Digest::of_text("x");
    assert_eq!(digest.to_string().parse(), Ok(digest));
    assert_eq!(digest.to_string(), "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881");
    assert!("zz".parse::<Digest>().is_err());
    assert!("é".repeat(32).parse::<Digest>().is_err());
    assert_ne!(Digest::of_parts(&["ab", "c"]), Digest::of_parts(&["a", "bc"]));
}

fn arbitrary_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter("finite", |x| x.is_finite()).prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((".{0,6}", inner), 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

proptest! {
    #[test]
    fn canonical_text_is_a_fixed_point(value in arbitrary_json()) {
        let text = canonical_json(&value);
        let again: Value = serde_json::from_str(&text).expect("canonical text is JSON");
        prop_assert_eq!(canonical_json(&again), text);
    }

    #[test]
    fn pretty_printing_changes_nothing(value in arbitrary_json()) {
        let pretty = serde_json::to_string_pretty(&value).expect("values print");
        let again: Value = serde_json::from_str(&pretty).expect("printed values parse");
        prop_assert_eq!(canonical_json(&again), canonical_json(&value));
    }

    #[test]
    fn different_integers_have_different_text(a in any::<i64>(), b in any::<i64>()) {
        prop_assert_eq!(a == b, canonical_json(&json!(a)) == canonical_json(&json!(b)));
    }

    #[test]
    fn integral_doubles_equal_their_integers(a in -(1i64 << 53)..(1i64 << 53)) {
        prop_assert_eq!(canonical_json(&json!(a as f64)), canonical_json(&json!(a)));
    }
}

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{PartialJson, PartialOutput};
use crate::event::{RunEvent, RunEventKind};

fn delta(text: &str) -> RunEvent {
    event(RunEventKind::TextDelta { delta: text.to_owned() })
}

fn event(kind: RunEventKind) -> RunEvent {
    RunEvent { seq: 0, path: Vec::new(), is_repeated: false, kind }
}

/// Returns true if `partial` can grow into `whole`.
fn is_beginning(partial: &Value, whole: &Value) -> bool {
    match (partial, whole) {
        (Value::Object(partial), Value::Object(whole)) => {
            partial.iter().all(|(key, value)| whole.get(key).is_some_and(|whole| is_beginning(value, whole)))
        }
        (Value::Array(partial), Value::Array(whole)) => {
            partial.len() <= whole.len() && partial.iter().zip(whole).all(|(one, all)| is_beginning(one, all))
        }
        (Value::String(partial), Value::String(whole)) => whole.starts_with(partial.as_str()),
        (partial, whole) => partial == whole,
    }
}

#[test]
fn every_beginning_is_a_value_that_grows_into_the_whole() {
    let texts = [
        r#"{"city":"Oslo","days":[{"n":1,"plan":"walk"},{"n":20,"plan":"a \"boat\" \\ trip"}],"ok":true,"x":null}"#,
        r#" { "a" : -1.5e3 , "b" : [ ] , "c" : { } , "d" : [ [ 1 , 2 ] , [ "3" ] ] } "#,
        r#"{"emoji":"\ud83d\ude00 and 😀","tab":"\t\u00e9","key \" }":"[{"}"#,
    ];
    for text in texts {
        let whole: Value = serde_json::from_str(text).expect("JSON");
        let mut partial = PartialJson::default();
        let mut seen = 0;
        for letter in text.chars() {
            partial.push(letter.encode_utf8(&mut [0; 4]));
            if let Some(value) = partial.value() {
                assert!(is_beginning(&value, &whole), "{value} of {whole}");
                seen += 1;
            } else {
                assert_eq!(seen, 0, "a value that was there is gone at {:?}", partial.text);
            }
        }
        assert_eq!(partial.value(), Some(whole));
    }
}

#[test]
fn texts_grow_and_numbers_appear_whole() {
    let mut partial = PartialJson::default();
    partial.push(r#"{"n":12"#);
    assert_eq!(partial.value(), Some(json!({})));
    partial.push("3,");
    assert_eq!(partial.value(), Some(json!({ "n": 123 })));
    partial.push(r#""s":"hel"#);
    assert_eq!(partial.value(), Some(json!({ "n": 123, "s": "hel" })));
}

#[test]
fn text_that_is_no_json_has_no_value() {
    for text in ["", "Hello", "{]", "[1}}", "}", "{\"a\" \"b\""] {
        let mut partial = PartialJson::default();
        partial.push(text);
        assert!(partial.value().is_none_or(|value| value == json!({})), "{text}");
    }
}

#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Itinerary {
    city: String,
}

#[test]
fn responses_are_told_apart() {
    let mut partial = PartialOutput::of::<Itinerary>();
    assert!(partial.observe(&delta(r#"{"city":"Os"#)));
    assert_eq!(partial.value(), Some(json!({ "city": "Os" })));
    let retry = RunEventKind::ModelRetryScheduled { error: "lost".into(), delay: std::time::Duration::ZERO };
    assert!(!partial.observe(&event(retry)));
    assert!(partial.observe(&delta(r#"{"city":"Ber"#)));
    assert_eq!(partial.value(), Some(json!({ "city": "Ber" })), "the attempt before is forgotten");
    let nested = RunEvent { path: vec!["c1".into()], ..delta("gen") };
    assert!(!partial.observe(&nested), "a nested agent writes something else");

    let mut list = PartialOutput::of::<Vec<u32>>();
    assert_eq!(list.value(), None);
    list.observe(&delta(r#"{"response":[1,2,"#));
    assert_eq!(list.value(), Some(json!([1, 2])), "the wrapper is removed");
}

use serde_json::json;

use super::*;

fn differing_keys(expected: &Value, actual: &Value) -> Vec<&'static str> {
    outcome_differences(expected, actual).into_iter().map(|difference| difference.key).collect()
}

#[test]
fn an_outcome_is_the_same_as_itself() {
    let outcome = json!({ "status": "completed", "usage": { "requests": 1 }, "log": ["agent start a"] });
    assert_eq!(outcome_differences(&outcome, &outcome), []);
}

#[test]
fn a_difference_names_its_key_and_both_values() {
    let differs = outcome_differences(&json!({ "status": "completed" }), &json!({ "status": "failed" }));
    let want =
        OutcomeDifference { key: "status", expected: r#""completed""#.into(), actual: r#""failed""#.into() };
    assert_eq!(differs, [want]);
}

#[test]
fn lines_of_different_calls_may_change_places() {
    let log = |lines: &[&str]| json!({ "log": lines });
    let one = log(&["llm end a", "start t c1", "tool start t c2", "done t c1"]);
    assert_eq!(
        differing_keys(&one, &log(&["tool start t c2", "start t c1", "done t c1", "llm end a"])),
        [""; 0]
    );
    assert_eq!(
        differing_keys(&one, &log(&["llm end a", "done t c1", "start t c1", "tool start t c2"])),
        ["log"]
    );
    assert_eq!(
        differing_keys(&log(&["llm start a", "llm end a"]), &log(&["llm end a", "llm start a"])),
        ["log"]
    );
}

#[test]
fn outputs_that_stand_together_are_put_into_the_order_of_the_calls() {
    let session = |lines: &[&str]| json!({ "session": lines });
    let one = session(&["call c1 t {}", "call c2 t {}", "output c1 A", "output c2 B"]);
    assert_eq!(
        differing_keys(&one, &session(&["call c1 t {}", "call c2 t {}", "output c2 B", "output c1 A"])),
        [""; 0]
    );
    assert_eq!(
        differing_keys(&one, &session(&["call c1 t {}", "output c2 B", "call c2 t {}", "output c1 A"])),
        ["session"]
    );

    let items = |order: [&str; 2]| {
        let output = |id: &str| json!({ "type": "output", "id": id });
        let call = |id: &str| json!({ "type": "call", "id": id });
        json!({ "items": [call("c1"), call("c2"), output(order[0]), output(order[1])] })
    };
    assert_eq!(differing_keys(&items(["c1", "c2"]), &items(["c2", "c1"])), [""; 0]);
}

#[test]
fn approvals_count_by_call_wherever_they_stand() {
    let approval = |id: &str, name: &str| json!({ "type": "approval", "id": id, "name": name });
    let one =
        json!({ "items": [approval("c2", "t"), approval("c1", "t")], "pending": [approval("c1", "t")] });
    let two =
        json!({ "items": [approval("c1", "u"), approval("c2", "u")], "pending": [approval("c1", "u")] });
    assert_eq!(differing_keys(&one, &two), [""; 0]);
    assert_eq!(differing_keys(&one, &json!({ "items": [approval("c1", "t")] })), ["approvals", "pending"]);
}

#[test]
fn a_default_failure_message_may_say_more() {
    let said = |more: &str| json!({ "session": [format!("output c1 {FAILURE_PREFIX}{more}")] });
    assert_eq!(differing_keys(&said(" Error: boom"), &said(" Error: at `x`: not a number")), [""; 0]);
    assert_eq!(differing_keys(&said(""), &json!({ "session": ["output c1 An error"] })), ["session"]);
}

#[test]
fn of_an_error_the_kind_counts() {
    let error = |kind: &str, message: &str| json!({ "error": { "kind": kind, "message": message } });
    assert_eq!(differing_keys(&error("Boom", "a"), &error("Boom", "b")), [""; 0]);
    assert_eq!(differing_keys(&error("Boom", "a"), &error("UserError", "a")), ["error"]);
}

#[test]
fn no_session_is_not_an_empty_one() {
    assert_eq!(differing_keys(&json!({}), &json!({ "session": [] })), ["session"]);
}

#[test]
fn numbers_are_compared_by_value() {
    assert_eq!(
        differing_keys(&json!({ "context": { "n": 1 } }), &json!({ "context": { "n": 1.0 } })),
        [""; 0]
    );
    assert_eq!(
        differing_keys(&json!({ "context": { "n": 1 } }), &json!({ "context": { "n": "1" } })),
        ["context"]
    );
}

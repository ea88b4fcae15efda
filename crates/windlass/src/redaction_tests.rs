//! Tests of the redaction of arguments.

#![allow(clippy::expect_used)]

use serde_json::json;

use super::*;

fn names(fields: &[&str]) -> Vec<Arc<str>> {
    fields.iter().copied().map(Arc::from).collect()
}

fn restored(edited: &Value, original: &Value, fields: &[&str]) -> Option<Value> {
    let restored = restore_secrets(&edited.to_string(), &original.to_string(), &names(fields))?;
    Some(serde_json::from_str(&restored).expect("it is JSON"))
}

#[test]
fn the_secrets_of_a_list_stay_with_their_elements() {
    let transfer = |to: &str, pin: &str| json!({ "to": to, "pin": pin });
    let original = json!({ "note": "a", "transfers": [transfer("A", "1111"), transfer("B", "2222")] });
    let edit = |note: &str, transfers: &[Value]| json!({ "note": note, "transfers": transfers });
    let (a, b) = (transfer("A", "[secret]"), transfer("B", "[secret]"));
    let fields = ["transfers.pin"];
    // What is beside the list may change.
    let kept = restored(&edit("b", &[a.clone(), b.clone()]), &original, &fields);
    assert_eq!(kept, Some(edit("b", &[transfer("A", "1111"), transfer("B", "2222")])));
    // A person can give another secret for one element.
    let given = restored(&edit("a", &[transfer("A", "3333"), b.clone()]), &original, &fields);
    assert_eq!(given, Some(edit("a", &[transfer("A", "3333"), transfer("B", "2222")])));
    // Of the elements of a changed list, nobody knows which they were.
    for changed in [
        vec![b.clone()],
        vec![b.clone(), a.clone()],
        vec![a.clone(), transfer("C", "[secret]")],
        vec![a.clone(), a.clone()],
        vec![a.clone(), b.clone(), transfer("C", "3333")],
        vec![a, b.clone(), b],
    ] {
        assert_eq!(restored(&edit("a", &changed), &original, &fields), None, "{changed:?}");
    }
    let all_given = edit("a", &[transfer("B", "4444")]);
    assert_eq!(restored(&all_given, &original, &fields), Some(all_given));
}

#[test]
fn a_secret_goes_back_to_its_own_field_only() {
    let fields = ["pin", "account.pin"];
    let original = json!({ "pin": "1", "account": { "id": 7, "pin": "2" } });
    let kept = json!({ "pin": "[secret]", "account": { "id": 8, "pin": "[secret]" } });
    let expected = json!({ "pin": "1", "account": { "id": 8, "pin": "2" } });
    assert_eq!(restored(&kept, &original, &fields), Some(expected));
    // Another spelling is another field, and a field that the call did not have has no secret.
    for lost in [
        json!({ "PIN": "[secret]" }),
        json!({ "pin": "[secret]", "Account": { "pin": "[secret]" } }),
        json!({ "account": [{ "pin": "[secret]" }] }),
    ] {
        assert_eq!(restored(&lost, &original, &fields), None, "{lost}");
    }
    assert_eq!(restored(&json!({ "pin": "[secret]" }), &json!({ "pin": "[secret]" }), &fields), None);
}

#[test]
fn an_edit_is_redacted_by_the_names_of_the_tool_too() {
    let recorded = r#"{"amount":5}"#;
    let edited = r#"{"amount":5,"CARD":"4111"}"#;
    assert_eq!(redact_edit::<&str>(edited, recorded, &[]), None, "no name is known");
    let redacted = redact_edit(edited, recorded, &["card"]);
    assert_eq!(redacted.as_deref(), Some(r#"{"CARD":"[secret]","amount":5}"#));
    assert_eq!(redact_edit(recorded, recorded, &["card"]), None);
    let kept = r#"{ "amount": 5, "card": "[secret]" }"#;
    assert_eq!(redact_edit(kept, kept, &["card"]), None, "the placeholder is none");
}

#[test]
fn no_part_of_a_secret_stays_where_another_is_its_beginning() {
    let arguments = r#"{"a":"abc","b":"abcdef"}"#;
    let text = redact_text("no abcdef, no abc", arguments, &names(&["a", "b"]));
    assert_eq!(text, "no [secret], no [secret]");
}

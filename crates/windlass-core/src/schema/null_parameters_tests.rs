use serde_json::{Value, json};

use super::without_null_parameters;

fn check_all(schema: &Value, cases: &[(&str, &str)]) {
    for (arguments, want) in cases {
        assert_eq!(without_null_parameters(arguments, schema), *want, "{arguments} under {schema}");
        assert_eq!(without_null_parameters(want, schema), *want, "once is enough: {arguments}");
    }
}

#[test]
fn optional_parameters_that_are_null_are_left_out() {
    let schema = json!({
        "properties": { "a": {}, "b": {}, "é\n": {}, "days": { "default": 3 }, "hours": { "default": 3 } },
        "required": ["b", "hours"],
    });
    check_all(
        &schema,
        &[
            ("{}", "{}"),
            (r#"{"a":1}"#, r#"{"a":1}"#),
            (r#"{"a":null}"#, "{}"),
            // A required parameter has no absence that null could be taken for.
            (r#"{"b":null}"#, "{}"),
            (r#"{"a":null,"b":"x:null","d":null}"#, r#"{"b":"x:null","d":null}"#),
            (r#"{"b":12345678901234567890123,"é\n":null}"#, r#"{"b":12345678901234567890123}"#),
            (r#"{"a":{"a":null},"days":null,"hours":null}"#, r#"{"a":{"a":null},"days":null}"#),
        ],
    );
}

#[test]
fn nulls_of_nested_objects_are_left_out() {
    let schema = json!({
        "$defs": {
            "Address": {
                "type": "object",
                "properties": {
                    "iban": { "type": "string" },
                    "note": { "type": ["string", "null"] },
                    "days": { "type": ["integer", "null"], "default": 3 },
                    "next": { "anyOf": [{ "$ref": "#/$defs/Address" }, { "type": "null" }] },
                    "limit": { "$ref": "#/$defs/Limit" },
                },
                "required": ["iban"],
            },
            "Limit": { "type": ["integer", "null"], "default": 9 },
        },
        "type": "object",
        "properties": {
            "to": { "$ref": "#/$defs/Address" },
            "also": { "allOf": [{ "$ref": "#/$defs/Address" }], "description": "It." },
            "list": { "type": "array", "items": { "$ref": "#/$defs/Address" } },
            "pair": { "prefixItems": [{ "$ref": "#/$defs/Address" }], "items": false },
            "old_pair": { "items": [{ "$ref": "#/$defs/Address" }], "additionalItems": { "$ref": "#/$defs/Address" } },
            "map": { "additionalProperties": { "$ref": "#/$defs/Address" } },
            "numbers": { "patternProperties": { "^[0-9]+$": { "$ref": "#/$defs/Address" } } },
        },
    });
    let (with, without) = (r#"{"iban":"x","note":null}"#, r#"{"iban":"x"}"#);
    for shape in [
        r#"{"to":@}"#,
        r#"{"also":@}"#,
        r#"{"to":{"iban":"y","next":@}}"#,
        r#"{"to":{"iban":"y","next":{"iban":"z","next":@}}}"#,
        r#"{"list":[@,1,null,@]}"#,
        r#"{"pair":[@]}"#,
        r#"{"old_pair":[@,@]}"#,
        r#"{"map":{"note":@,"x":null}}"#,
        r#"{"numbers":{"7":@}}"#,
    ] {
        check_all(&schema, &[(&shape.replace('@', with), &shape.replace('@', without))]);
    }
    check_all(
        &schema,
        &[
            (r#"{"to":{"next":null}}"#, r#"{"to":{}}"#),
            (r#"{"to":{"days":null,"else":null}}"#, r#"{"to":{"days":null,"else":null}}"#),
            // The default of a referenced schema stands for the absent value, too.
            (r#"{"to":{"limit":null}}"#, r#"{"to":{"limit":null}}"#),
            (r#"{"pair":[1,{"note":null}]}"#, r#"{"pair":[1,{"note":null}]}"#),
        ],
    );
}

#[test]
fn no_null_that_may_choose_between_alternatives_is_left_out() {
    let note = json!({ "type": ["string", "null"] });
    let by_name = |name: &str| {
        json!({ "type": "object", "properties": { name: { "properties": { "note": note }, "type": ["object", "null"] } },
            "required": [name] })
    };
    let tagged = |tag: &str, other: &str| json!({ "type": "object", "properties": { "kind": { "const": tag }, other: note }, "required": ["kind"] });
    let schema = json!({ "properties": {
        "by_name": { "oneOf": [by_name("person"), by_name("company")] },
        "tagged": { "oneOf": [tagged("a", "note"), tagged("b", "text")], "properties": { "note": note } },
        "open": { "anyOf": [
            { "type": "object", "properties": { "a": note } },
            { "type": "object", "properties": { "b": note } },
            { "type": "array", "items": { "properties": { "a": note } } },
        ], "properties": { "c": note } },
    }});
    check_all(
        &schema,
        &[
            (r#"{"by_name":{"person":{"note":null}}}"#, r#"{"by_name":{"person":{}}}"#),
            (r#"{"by_name":{"person":null}}"#, r#"{"by_name":{"person":null}}"#),
            (r#"{"by_name":{"company":null}}"#, r#"{"by_name":{"company":null}}"#),
            (r#"{"tagged":{"kind":"a","note":null}}"#, r#"{"tagged":{"kind":"a"}}"#),
            (r#"{"tagged":{"kind":"a","text":null}}"#, r#"{"tagged":{"kind":"a","text":null}}"#),
            (r#"{"tagged":{"kind":"b","text":null}}"#, r#"{"tagged":{"kind":"b"}}"#),
            (r#"{"open":{"a":null}}"#, r#"{"open":{"a":null}}"#),
            (r#"{"open":{"b":null,"c":null}}"#, r#"{"open":{"b":null}}"#),
            (r#"{"open":[{"a":null},null]}"#, r#"{"open":[{},null]}"#),
        ],
    );
}

#[test]
fn a_schema_that_refers_to_itself_is_left() {
    for schema in [
        json!({ "$ref": "#", "properties": { "a": {} } }),
        json!({ "anyOf": [{ "$ref": "#" }, { "$ref": "#" }], "properties": { "a": {} } }),
        json!({ "anyOf": [{ "$ref": "#" }], "allOf": [{ "$ref": "#" }, { "$ref": "#" }], "properties": { "a": {} } }),
        json!({ "properties": { "a": { "$ref": "#/nowhere" }, "b": true } }),
    ] {
        let kept = without_null_parameters(r#"{"a":null,"c":null}"#, &schema);
        assert!(kept.contains(r#""c":null"#), "{kept} under {schema}");
    }
}

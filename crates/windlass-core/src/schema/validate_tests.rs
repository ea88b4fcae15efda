use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::violations::MAX_LISTED;
use super::*;

fn violation_lines(schema: &Value, value: Value) -> Vec<String> {
    validate(schema, &value).iter().map(ToString::to_string).collect()
}

fn order_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "guest": { "type": "string", "minLength": 1, "maxLength": 5 },
            "items": {
                "type": "array",
                "minItems": 1,
                "items": { "$ref": "#/$defs/Line" },
            },
            "kind": { "enum": ["eat in", "take away", null] },
        },
        "required": ["guest", "items"],
        "additionalProperties": false,
        "$defs": {
            "Line": {
                "type": "object",
                "properties": {
                    "sku": { "type": "string" },
                    "qty": { "type": "integer", "minimum": 1, "maximum": 99 },
                    "parts": { "type": "array", "items": { "$ref": "#/$defs/Line" } },
                },
                "required": ["sku", "qty"],
                "additionalProperties": false,
            },
        },
    })
}

#[test]
fn what_fits_has_no_problems() {
    let value = json!({
        "guest": "Ödön",
        "items": [{ "sku": "soup", "qty": 2.0, "parts": [{ "sku": "bread", "qty": 1 }] }],
        "kind": null,
    });
    assert_eq!(validate(&order_schema(), &value), vec![]);
}

#[test]
fn every_problem_is_listed_by_path() {
    let value = json!({
        "guest": "",
        "items": [
            { "sku": "soup", "qty": 1 },
            { "qty": 0, "colour": "red" },
            { "sku": 7, "qty": "many", "parts": [{ "sku": "bread", "qty": 1.5 }] },
        ],
        "kind": "drive in",
    });
    assert_eq!(
        violation_lines(&order_schema(), value),
        [
            "`guest` must have at least 1 character, has 0",
            "`items[1].sku` is missing",
            "`items[1].colour` is not a known field; known are: parts, qty, sku",
            "`items[1].qty` must be at least 1, is 0",
            "`items[2].parts[0].qty` must be an integer, is the number 1.5",
            "`items[2].qty` must be an integer, is the string \"many\"",
            "`items[2].sku` must be a string, is the number 7",
            "`kind` must be one of \"eat in\", \"take away\", null, is the string \"drive in\"",
        ]
    );
}

#[test]
fn the_whole_is_called_arguments() {
    assert_eq!(
        violation_lines(&order_schema(), json!([1, 2])),
        ["`arguments` must be an object, is a list of 2"]
    );
    assert_eq!(
        violation_lines(&json!({ "items": { "type": "null" } }), json!([null, 1])),
        ["`arguments[1]` must be null, is the number 1"]
    );
}

#[test]
fn one_rule_at_a_time() {
    let cases = [
        (json!({ "type": ["string", "null"] }), json!(1), "must be a string or null, is the number 1"),
        (json!({ "type": ["string", "null"] }), json!(null), ""),
        (json!({ "type": "boolean" }), json!("true"), "must be true or false, is the string \"true\""),
        (json!({ "type": "number" }), json!(null), "must be a number, is null"),
        (json!({ "type": "integer" }), json!(1e3), ""),
        (json!({ "type": "integer" }), json!(u64::MAX), ""),
        (json!({ "type": "string", "nullable": true }), json!(null), ""),
        (json!({ "const": 1 }), json!(1.0), ""),
        (json!({ "const": "a" }), json!({}), "must be \"a\", is an object"),
        (json!({ "exclusiveMinimum": 0 }), json!(0), "must be more than 0, is 0"),
        (json!({ "exclusiveMaximum": 0.5 }), json!(0.5), "must be less than 0.5, is 0.5"),
        (
            json!({ "maximum": 9_007_199_254_740_992u64 }),
            json!(9_007_199_254_740_993u64),
            "must be at most 9007199254740992, is 9007199254740993",
        ),
        (json!({ "maxLength": 2 }), json!("ééé"), "must have at most 2 characters, has 3"),
        (json!({ "maxItems": 1 }), json!([1, 2]), "must have at most 1 item, has 2"),
        (json!({ "minProperties": 2 }), json!({ "a": 1 }), "must have at least 2 fields, has 1"),
        (json!({ "pattern": "^a", "format": "email", "not": {} }), json!("b"), ""),
        (json!(true), json!([{}]), ""),
        (json!(false), json!("x"), "must not be given, is the string \"x\""),
        (json!({ "allOf": [{ "minimum": 3 }, { "type": "number" }] }), json!(2), "must be at least 3, is 2"),
        (
            json!({ "$ref": "#/$defs/Gone" }),
            json!(1),
            "cannot be checked: the schema refers to `#/$defs/Gone`, which it does not have",
        ),
        (
            json!({ "oneOf": [{ "type": "number" }, { "type": "integer" }] }),
            json!(1),
            "fits more than one of the allowed forms",
        ),
    ];
    for (schema, value, message) in cases {
        let want: Vec<SchemaViolation> = Some(message)
            .filter(|message| !message.is_empty())
            .map(|message| SchemaViolation { path: "arguments".into(), message: message.into() })
            .into_iter()
            .collect();
        assert_eq!(validate(&schema, &value), want, "{schema} {value}");
    }
}

#[test]
fn lists_can_have_places_and_be_unique() {
    let pair = json!({ "prefixItems": [{ "type": "string" }, { "type": "integer" }], "items": false });
    assert_eq!(
        violation_lines(&pair, json!(["a", "b", 3])),
        [
            "`arguments[1]` must be an integer, is the string \"b\"",
            "`arguments[2]` must not be given, is the number 3",
        ]
    );
    let set = json!({ "uniqueItems": true });
    assert_eq!(
        violation_lines(&set, json!([1, { "a": 1, "b": 2 }, 1.0, { "b": 2, "a": 1 }])),
        ["`arguments[2]` repeats an earlier item", "`arguments[3]` repeats an earlier item",]
    );
}

#[test]
fn maps_are_checked_by_their_values() {
    let map = json!({ "additionalProperties": { "type": "integer" } });
    assert_eq!(
        violation_lines(&map, json!({ "a": 1, "b c": "2", "": null })),
        [
            "`arguments[\"\"]` must be an integer, is null",
            "`arguments[\"b c\"]` must be an integer, is the string \"2\"",
        ]
    );
    let by_pattern = json!({ "patternProperties": { "^\\d+$": {} }, "additionalProperties": false });
    assert_eq!(validate(&by_pattern, &json!({ "17": 1 })), vec![]);
    let none = json!({ "type": "object", "additionalProperties": false });
    assert_eq!(
        violation_lines(&none, json!({ "a": 1 })),
        ["`a` is not a known field; no fields are known here"]
    );
}

#[test]
fn a_union_reports_the_branch_that_was_meant() {
    let shape = |tag: &str, field: &str| {
        json!({
            "type": "object",
            "properties": { "kind": { "const": tag }, field: { "type": "number" } },
            "required": ["kind", field],
            "additionalProperties": false,
        })
    };
    let tagged = json!({ "oneOf": [
        shape("circle", "radius"),
        { "type": "object", "properties": { "kind": { "const": "dot" } }, "required": ["kind"] },
        shape("square", "side"),
        { "type": "null" },
    ] });
    assert_eq!(validate(&tagged, &json!({ "kind": "square", "side": 2 })), vec![]);
    assert_eq!(
        violation_lines(&tagged, json!({ "kind": "square", "side": "2" })),
        ["`side` must be a number, is the string \"2\""]
    );
    assert_eq!(violation_lines(&tagged, json!({ "kind": "circle" })), ["`radius` is missing"]);

    let outside = json!({ "anyOf": [
        { "type": "object", "properties": { "Circle": shape("circle", "radius") }, "required": ["Circle"],
          "additionalProperties": false },
        { "type": "object", "properties": { "Square": shape("square", "side") }, "required": ["Square"],
          "additionalProperties": false },
    ] });
    assert_eq!(
        violation_lines(&outside, json!({ "Circle": { "kind": 1, "r": 2 } })),
        [
            "`Circle.radius` is missing",
            "`Circle.kind` must be \"circle\", is the number 1",
            "`Circle.r` is not a known field; known are: kind, radius",
        ]
    );
}

#[test]
fn a_union_that_nothing_is_near_names_all_it_takes() {
    let units = json!({ "anyOf": [
        { "const": "celsius", "type": "string" },
        { "const": "kelvin", "type": "string" },
        { "enum": ["rankine"] },
        { "type": "null" },
    ] });
    assert_eq!(
        violation_lines(&units, json!("cubits")),
        ["`arguments` must be one of \"celsius\", \"kelvin\", \"rankine\", null, is the string \"cubits\""]
    );
    let either = json!({ "anyOf": [{ "type": "string" }, { "type": "array" }, { "type": "null" }] });
    assert_eq!(
        violation_lines(&either, json!(1)),
        ["`arguments` must be a string, a list or null, is the number 1"]
    );
}

#[test]
fn long_lists_and_long_texts_are_cut() {
    let numbers = json!({ "items": { "type": "integer" } });
    let found = validate(&numbers, &Value::from(vec!["x"; 23]));
    assert_eq!(found.len(), 21);
    assert_eq!(found[20].to_string(), "`arguments` has 3 more problems");
    assert_eq!(
        validate(&numbers, &Value::from(vec!["x"; 21]))[20].to_string(),
        "`arguments` has 1 more problem"
    );

    let long = "ü".repeat(60);
    let want = format!("must be an integer, is the string \"{}…\"", "ü".repeat(40));
    assert_eq!(validate(&json!({ "type": "integer" }), &json!(long))[0].message, want);
}

#[test]
fn names_with_escapes_are_found_and_told() {
    let shape = json!({
        "properties": { "a\nb": { "type": "integer" } },
        "required": ["q\"", "a\nb"],
        "additionalProperties": false,
    });
    assert_eq!(
        violation_lines(&shape, json!({ "a\nb": "x", "\\": 1 })),
        [
            "`arguments[\"q\\\"\"]` is missing",
            "`arguments[\"\\\\\"]` is not a known field; known are: a\nb",
            "`arguments[\"a\\nb\"]` must be an integer, is the string \"x\"",
        ]
    );
}

#[test]
fn of_many_fields_those_that_are_missing_are_told_first() {
    let names: Vec<String> = (0..200).map(|at| format!("f{at:03}")).collect();
    let known: Value = names.iter().map(|name| (name.clone(), json!({ "type": "integer" }))).collect();
    let shape = json!({ "properties": known, "required": names });
    let given = |wrong: usize| -> Value {
        let there = names.iter().enumerate().filter(|(at, _)| ![0, 63, 64, 199].contains(at));
        there
            .map(|(at, name)| (name.clone(), if at <= wrong { json!("x") } else { json!(1) }))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let missing = ["`f000` is missing", "`f063` is missing", "`f064` is missing", "`f199` is missing"];
    assert_eq!(violation_lines(&shape, given(0)), missing);
    let many = violation_lines(&shape, given(30));
    assert_eq!(many[..4], missing);
    assert_eq!(many[4], "`f001` must be an integer, is the string \"x\"");
    assert_eq!((many.len(), many[20].as_str()), (21, "`arguments` has 14 more problems"));
}

#[test]
fn schemas_that_lead_nowhere_end() {
    let circle = json!({ "$ref": "#" });
    assert_eq!(violation_lines(&circle, json!(1)), ["`arguments` is too deep or too large to be checked"]);
    let tree = json!({ "anyOf": [{ "$ref": "#" }, { "$ref": "#" }] });
    assert_eq!(violation_lines(&tree, json!(1)), ["`arguments` is too deep or too large to be checked"]);
}

#[test]
fn problems_are_joined() {
    let problem = |path: &str| SchemaViolation { path: path.into(), message: "is missing".into() };
    assert_eq!(describe_violations(&[problem("a"), problem("b[0]")]), "`a` is missing; `b[0]` is missing");
    assert_eq!(describe_violations(&[]), "");
}

fn arbitrary_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,50}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map("[a-e$]{0,3}", inner, 0..5).prop_map(|fields| json!(fields)),
        ]
    })
}

/// Generates schemas from the supported keywords, with values that may make no sense.
fn arbitrary_schema() -> impl Strategy<Value = Value> {
    let rule = prop_oneof![
        any::<bool>().prop_map(Value::from),
        Just(json!({ "$ref": "#" })),
        arbitrary_value().prop_map(|value| json!({ "const": value })),
        arbitrary_value().prop_map(|value| json!({ "type": value, "enum": value, "minimum": value })),
        prop::sample::select(vec!["null", "string", "integer", "object", "array"])
            .prop_map(|name| json!({ "type": name })),
    ];
    rule.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|list| json!({ "anyOf": list })),
            prop::collection::vec(inner.clone(), 0..4)
                .prop_map(|list| json!({ "oneOf": list, "prefixItems": list })),
            (inner.clone(), inner).prop_map(|(a, b)| json!({
                "properties": { "a": a, "b": b }, "required": ["a"], "additionalProperties": b, "items": a,
            })),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn nothing_breaks_the_check(schema in arbitrary_schema(), value in arbitrary_value()) {
        let found = validate(&schema, &value);
        prop_assert!(found.len() <= MAX_LISTED + 1);
        prop_assert!(found.iter().all(|problem| problem.message.chars().count() < 2_000));
    }

    #[test]
    fn a_constant_takes_its_own_value_only(one in arbitrary_value(), other in arbitrary_value()) {
        let schema = json!({ "const": one });
        prop_assert_eq!(validate(&schema, &one), vec![]);
        prop_assert_eq!(validate(&schema, &other).is_empty(), canonical_json(&one) == canonical_json(&other));
    }
}

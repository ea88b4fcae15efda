use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::validate;
use super::*;

/// Returns the converted schema of an optional field.
fn strict_optional_field(field: Value) -> Value {
    let out =
        to_strict(json!({ "type": "object", "properties": { "it": field } })).expect("has a strict form");
    out["properties"]["it"].clone()
}

fn strict_required_field(field: Value) -> Value {
    let out = to_strict(json!({ "type": "object", "properties": { "it": field }, "required": ["it"] }));
    out.expect("has a strict form")["properties"]["it"].clone()
}

fn strict_refusal(schema: Value) -> Vec<String> {
    to_strict(schema).expect_err("has no strict form").violations.iter().map(ToString::to_string).collect()
}

#[test]
fn objects_are_closed_and_all_is_required() {
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Order",
        "description": "An order.",
        "type": "object",
        "properties": {
            "guest": { "type": "string", "title": "Guest", "description": "Who." },
            "note": { "type": ["string", "null"], "default": null },
            "tip": { "type": "integer", "format": "uint32", "minimum": 0 },
            "tries": { "type": "integer", "format": "uint8", "minimum": 0, "maximum": 255, "default": 3 },
            "items": { "type": "array", "items": { "$ref": "#/$defs/Line" } },
        },
        "required": ["guest", "items"],
        "$defs": {
            "Line": {
                "type": "object",
                "properties": { "sku": { "type": "string" }, "unit": { "$ref": "#/$defs/Unit" } },
                "required": ["sku"],
            },
            "Unit": { "type": "string", "enum": ["kg", "lb"] },
            "Unused": { "not": {} },
        },
    });
    let want = json!({
        "description": "An order.",
        "type": "object",
        "properties": {
            "guest": { "type": "string", "description": "Who." },
            "note": { "type": ["string", "null"] },
            "tip": { "type": ["integer", "null"], "minimum": 0 },
            "tries": { "type": "integer", "minimum": 0, "maximum": 255, "default": 3 },
            "items": { "type": "array", "items": { "$ref": "#/$defs/Line" } },
        },
        "required": ["guest", "items", "note", "tip", "tries"],
        "additionalProperties": false,
        "$defs": {
            "Line": {
                "type": "object",
                "properties": {
                    "sku": { "type": "string" },
                    "unit": { "anyOf": [{ "$ref": "#/$defs/Unit" }, { "type": "null" }] },
                },
                "required": ["sku", "unit"],
                "additionalProperties": false,
            },
            "Unit": { "type": "string", "enum": ["kg", "lb"] },
        },
    });
    assert_eq!(to_strict(schema).expect("has a strict form"), want);
}

#[test]
fn no_fields_at_all_are_fine_at_the_root() {
    let want = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    assert_eq!(to_strict(json!({ "type": "object" })), Ok(want));
}

#[test]
fn optional_fields_may_be_null() {
    let cases = [
        (json!({ "type": "string" }), json!({ "type": ["string", "null"] })),
        (json!({ "type": ["string", "integer"] }), json!({ "type": ["string", "integer", "null"] })),
        (json!({ "type": "null" }), json!({ "type": "null" })),
        (json!({ "enum": ["a", "b"] }), json!({ "type": ["string", "null"], "enum": ["a", "b", null] })),
        (json!({ "enum": ["a", null] }), json!({ "type": ["null", "string"], "enum": ["a", null] })),
        (
            json!({ "const": "a", "description": "It." }),
            json!({ "description": "It.", "anyOf": [{ "type": "string", "const": "a" }, { "type": "null" }] }),
        ),
        (
            json!({ "type": "object", "properties": {}, "additionalProperties": false, "description": "It." }),
            json!({
                "description": "It.",
                "anyOf": [
                    { "type": "object", "properties": {}, "required": [], "additionalProperties": false },
                    { "type": "null" },
                ],
            }),
        ),
        (
            json!({ "oneOf": [{ "const": 1 }, { "const": true }] }),
            json!({ "anyOf": [
                { "const": 1, "type": "integer" },
                { "const": true, "type": "boolean" },
                { "type": "null" },
            ] }),
        ),
        (
            json!({ "anyOf": [{ "type": "string" }, { "type": "null" }] }),
            json!({ "anyOf": [{ "type": "string" }, { "type": "null" }] }),
        ),
        (json!({ "type": "string", "default": "x" }), json!({ "type": "string", "default": "x" })),
        (json!({ "type": "string", "nullable": true }), json!({ "type": ["string", "null"] })),
    ];
    for (from, want) in cases {
        assert_eq!(strict_optional_field(from.clone()), want, "{from}");
    }
}

#[test]
fn words_that_forbid_nothing_are_kept_as_words_or_go() {
    let cases = [
        (json!({ "type": "string", "format": "uuid" }), json!({ "type": "string", "format": "uuid" })),
        (
            json!({ "type": "string", "format": "uri", "description": "Where." }),
            json!({ "type": "string", "description": "Where. (format: uri)" }),
        ),
        (json!({ "type": ["number", "null"], "format": "double" }), json!({ "type": ["number", "null"] })),
        (
            json!({ "type": "string", "examples": ["Rome"], "x-own": 1, "deprecated": true }),
            json!({ "type": "string", "description": "(for example: \"Rome\")" }),
        ),
    ];
    for (from, want) in cases {
        assert_eq!(strict_required_field(from.clone()), want, "{from}");
    }
}

#[test]
fn references_with_siblings_are_written_out() {
    let schema = json!({
        "type": "object",
        "properties": {
            "plain": { "$ref": "#/$defs/Unit" },
            "told": { "$ref": "#/$defs/Unit", "description": "Mine.", "default": "lb" },
            "alone": { "allOf": [{ "$ref": "#/$defs/Unit" }], "default": null },
        },
        "required": ["plain", "told", "alone"],
        "$defs": { "Unit": { "type": "string", "enum": ["kg", "lb"], "description": "Its own." } },
    });
    let unit = json!({ "type": "string", "enum": ["kg", "lb"], "description": "Its own." });
    let want = json!({
        "plain": { "$ref": "#/$defs/Unit" },
        "told": { "type": "string", "enum": ["kg", "lb"], "description": "Mine.", "default": "lb" },
        "alone": { "$ref": "#/$defs/Unit" },
    });
    let got = to_strict(schema).expect("has a strict form");
    assert_eq!((&got["properties"], &got["$defs"]), (&want, &json!({ "Unit": unit })));
}

#[test]
fn a_tagged_variant_is_one_object() {
    let field = json!({ "oneOf": [{
        "type": "object",
        "$ref": "#/$defs/Circle",
        "properties": { "kind": { "type": "string", "const": "circle" } },
        "required": ["kind"],
    }] });
    let schema = json!({
        "type": "object",
        "properties": { "shape": field },
        "required": ["shape"],
        "$defs": { "Circle": {
            "type": "object",
            "properties": { "r": { "type": "number" } },
            "required": ["r"],
            "additionalProperties": false,
        } },
    });
    let want = json!({
        "type": "object",
        "properties": { "shape": { "anyOf": [{
            "type": "object",
            "properties": { "kind": { "type": "string", "const": "circle" }, "r": { "type": "number" } },
            "required": ["kind", "r"],
            "additionalProperties": false,
        }] } },
        "required": ["shape"],
        "additionalProperties": false,
    });
    assert_eq!(to_strict(schema), Ok(want));
}

#[test]
fn recursion_ends() {
    let schema = json!({
        "$ref": "#/$defs/Node",
        "$defs": { "Node": {
            "type": "object",
            "properties": {
                "next": { "$ref": "#/$defs/Node", "description": "After it." },
                "kids": { "type": "array", "items": { "$ref": "#/$defs/Node" } },
            },
            "required": ["kids"],
        } },
    });
    let next =
        json!({ "description": "After it.", "anyOf": [{ "$ref": "#/$defs/Node" }, { "type": "null" }] });
    let got = to_strict(schema).expect("has a strict form");
    assert_eq!(got["$defs"]["Node"]["properties"]["next"], next);
    assert_eq!(got["properties"]["kids"], json!({ "type": "array", "items": { "$ref": "#/$defs/Node" } }));

    let own = json!({
        "type": "object",
        "properties": { "up": { "anyOf": [{ "$ref": "#" }, { "type": "null" }] } },
    });
    assert_eq!(
        to_strict(own).expect("has a strict form")["properties"],
        json!({ "up": { "anyOf": [{ "$ref": "#" }, { "type": "null" }] } })
    );
    assert_eq!(
        strict_refusal(json!({ "$ref": "#" })),
        ["`#` must be an object; put the value into a field of a struct"]
    );
}

#[test]
fn what_cannot_be_said_is_refused_with_every_reason() {
    let schema = json!({
        "type": "object",
        "properties": {
            "any": true,
            "map": { "type": "object", "additionalProperties": { "type": "string" } },
            "open": { "type": "object" },
            "pair": { "type": "array", "prefixItems": [{ "type": "string" }], "items": false },
            "set": { "type": "array", "items": { "type": "object", "additionalProperties": true },
                     "uniqueItems": true },
            "a/b": { "type": "string", "not": { "const": "x" } },
            "both": { "allOf": [{ "type": "string" }, { "minLength": 1 }] },
            "flat": { "type": "object", "properties": {}, "anyOf": [] },
            "lost": { "$ref": "#/$defs/Gone" },
        },
        "required": ["ghost"],
    });
    let map = "an open map has no strict form; use a list of entries with a key and a value, or make the tool non-strict";
    assert_eq!(
        strict_refusal(schema),
        [
            "`#` requires `ghost`, which is not among its `properties`".to_owned(),
            "`#/properties/a~1b` has `not`: a condition has no strict form; check it in the tool, or make the tool \
             non-strict"
                .to_owned(),
            "`#/properties/any` allows any value; give it a type".to_owned(),
            "`#/properties/both` has `allOf` with several parts; write one schema that holds them all".to_owned(),
            "`#/properties/flat` has `properties` beside `anyOf`; put the union into a field of its own".to_owned(),
            "`#/properties/lost` refers to `#/$defs/Gone`, which is not in the schema".to_owned(),
            format!("`#/properties/map` has `additionalProperties`: {map}"),
            "`#/properties/open` is an object of anything; name its fields with `properties`".to_owned(),
            "`#/properties/pair` has `prefixItems`: a tuple has no strict form; use a struct with named fields, or \
             make the tool non-strict"
                .to_owned(),
            format!("`#/properties/set/items` has `additionalProperties`: {map}"),
            "`#/properties/set` has `uniqueItems`: a set has no strict form; use a list and ignore what repeats, or \
             make the tool non-strict"
                .to_owned(),
        ]
    );
}

#[test]
fn maps_are_told_apart_from_other_reasons() {
    let with = |field: serde_json::Value| {
        let schema = json!({ "type": "object", "properties": { "field": field }, "required": ["field"] });
        to_strict(schema).expect_err("it has no strict form")
    };
    let maps = [
        json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        json!({ "type": "object", "patternProperties": { "^[0-9]+$": {} }, "additionalProperties": false }),
        json!({ "type": "object" }),
    ];
    for map in maps {
        let error = with(map);
        assert!(error.has_only_maps(), "{error}");
        assert_eq!(error.map_places, ["#/properties/field"]);
    }
    let both = json!({ "type": "array", "items": { "type": "object" }, "uniqueItems": true });
    assert!(!with(both).has_only_maps());
}

#[test]
fn the_root_is_an_object() {
    let want = ["`#` must be an object; put the value into a field of a struct"];
    for root in [
        json!({ "type": "string" }),
        json!({ "type": ["object", "null"] }),
        json!({ "anyOf": [{ "type": "object", "properties": {}, "additionalProperties": false }] }),
    ] {
        assert_eq!(strict_refusal(root), want);
    }
    assert_eq!(strict_refusal(json!(true)), ["`#` allows any value; give it a type"]);
    let error = to_strict(json!(3)).expect_err("is no schema").to_string();
    assert_eq!(error, "the schema has no strict form: `#` is not a schema");
}

#[test]
fn depth_is_bounded() {
    let mut schema = json!({ "type": "string" });
    for _ in 0..40 {
        schema = json!({ "type": "array", "items": schema });
    }
    let got = strict_refusal(json!({ "type": "object", "properties": { "deep": schema } }));
    assert_eq!(got.len(), 1);
    assert!(got[0].ends_with("is nested deeper than 32 levels; make it flatter"), "{}", got[0]);
}

/// Generates a schema that has a strict form, with a value that satisfies it.
fn arbitrary_schema_and_value() -> impl Strategy<Value = (Value, Value)> {
    let leaf = prop_oneof![
        Just((json!({ "type": "string" }), json!("x"))),
        Just((json!({ "type": "integer", "format": "int64", "minimum": 0 }), json!(3))),
        Just((json!({ "type": ["number", "null"] }), json!(null))),
        Just((json!({ "type": "boolean", "default": true }), json!(false))),
        Just((json!({ "type": "string", "enum": ["a", "b"] }), json!("b"))),
        Just((json!({ "$ref": "#/$defs/Unit" }), json!("kg"))),
        Just((json!({ "$ref": "#/$defs/Unit", "description": "It." }), json!("lb"))),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..3).prop_map(|of| {
                let schemas: Vec<_> = of.iter().map(|(schema, _)| schema.clone()).collect();
                (json!({ "anyOf": schemas }), of[0].1.clone())
            }),
            inner.clone().prop_map(|(schema, value)| {
                (json!({ "type": "array", "items": schema }), json!([value, value]))
            }),
            object_schema(inner),
        ]
    })
}

fn object_schema(field: impl Strategy<Value = (Value, Value)>) -> impl Strategy<Value = (Value, Value)> {
    prop::collection::btree_map("[a-f]", (field, any::<bool>()), 1..4).prop_map(|fields| {
        let schemas: Map<_, _> =
            fields.iter().map(|(name, ((schema, _), _))| (name.clone(), schema.clone())).collect();
        let values: Map<_, _> =
            fields.iter().map(|(name, ((_, value), _))| (name.clone(), value.clone())).collect();
        let required: Vec<_> =
            fields.iter().filter(|(_, (_, required))| *required).map(|(name, _)| name).collect();
        (json!({ "type": "object", "properties": schemas, "required": required }), Value::Object(values))
    })
}

fn with_object_root() -> impl Strategy<Value = (Value, Value)> {
    object_schema(arbitrary_schema_and_value()).prop_map(|(mut schema, value)| {
        schema["$defs"] = json!({ "Unit": { "type": "string", "enum": ["kg", "lb"], "title": "Unit" } });
        (schema, value)
    })
}

proptest! {
    #[test]
    fn the_strict_form_is_its_own_strict_form((schema, _) in with_object_root()) {
        let once = to_strict(schema).expect("has a strict form");
        prop_assert_eq!(to_strict(once.clone()), Ok(once));
    }

    #[test]
    fn a_full_value_fits_both_forms((schema, value) in with_object_root()) {
        prop_assert_eq!(validate(&schema, &value), vec![]);
        prop_assert_eq!(validate(&to_strict(schema).expect("has a strict form"), &value), vec![]);
    }

    #[test]
    fn what_fits_the_strict_form_is_closed((schema, value) in with_object_root()) {
        let mut value = value;
        value["zz"] = json!(1);
        prop_assert_eq!(validate(&to_strict(schema).expect("has a strict form"), &value).len(), 1);
    }
}

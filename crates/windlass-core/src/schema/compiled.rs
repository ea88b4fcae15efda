//! A compiled schema: keywords are parsed once and references are resolved once.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Number, Value};

use super::wording::{quote_value, type_phrase};
use super::{SchemaViolation, resolve_reference, validate};
use crate::canonical::scan::CanonicalText;
use crate::canonical::{canonical_json, write_text};

/// A schema for repeated validation. It is compiled on first use.
#[derive(Debug)]
pub struct CompiledSchema {
    schema: Arc<Value>,
    nodes: OnceLock<Vec<SchemaNode>>,
}

impl CompiledSchema {
    /// Creates a compiled schema; compilation is deferred to the first validation.
    pub fn new(schema: Arc<Value>) -> Self {
        Self { schema, nodes: OnceLock::new() }
    }

    /// Validates canonical text; returns no violations if it is valid.
    pub fn validate_text(&self, canonical: &str) -> Vec<SchemaViolation> {
        validate::validate_text(self.nodes.get_or_init(|| compile_schema(&self.schema)), canonical)
    }
}

/// The index of a subschema in the node list. The root is the first node.
pub(super) type SchemaNodeId = usize;

#[derive(Debug)]
pub(super) enum SchemaNode {
    AnyValue,
    NoValue,
    /// A type without other rules.
    Typed(TypeRule),
    /// A reference without other rules.
    Reference(SchemaNodeId),
    Rules(Box<SchemaRules>),
}

/// The rules of a schema; absent keywords have empty rules.
#[derive(Debug, Default)]
pub(super) struct SchemaRules {
    pub(super) nullable: bool,
    pub(super) reference: Option<Result<SchemaNodeId, String>>,
    pub(super) types: Option<TypeRule>,
    /// Values of `const` and of `enum`.
    pub(super) choices: Vec<AllowedValues>,
    pub(super) fields: ObjectRules,
    pub(super) items: ArrayRules,
    pub(super) length: SizeRange,
    pub(super) bounds: Vec<NumberBound>,
    pub(super) all_of: Vec<SchemaNodeId>,
    pub(super) any_of: Vec<SchemaNodeId>,
    pub(super) one_of: Vec<SchemaNodeId>,
    /// True if there are rules besides types, fields and items.
    pub(super) has_other_rules: bool,
}

#[derive(Debug, Default)]
pub(super) struct TypeRule {
    /// Set of the value types that are allowed.
    pub(super) first_bytes: JsonTypeSet,
    /// True if a number must be an integer.
    pub(super) is_integer: bool,
    pub(super) names: Vec<String>,
}

/// A set of JSON types. Canonical text identifies the type of a value by its first byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JsonTypeSet(u8);

impl JsonTypeSet {
    const NUMBER: Self = Self(1);
    const ALL: Self = Self(63);

    /// Returns the type of a value that starts with this byte.
    pub(super) fn from_first_byte(byte: u8) -> Self {
        Self(match byte {
            b'n' => 2,
            b't' | b'f' => 4,
            b'"' => 8,
            b'[' => 16,
            b'{' => 32,
            _ => 1,
        })
    }

    pub(super) fn contains(self, kind: Self) -> bool {
        self.0 & kind.0 != 0
    }

    pub(super) fn is_number(self) -> bool {
        self == Self::NUMBER
    }

    fn insert(&mut self, kind: Self) {
        self.0 |= kind.0;
    }
}

#[derive(Debug)]
pub(super) struct AllowedValues {
    /// Allowed values as canonical text; equal values have equal texts.
    pub(super) canonical_values: Vec<String>,
    /// Allowed values as display text.
    pub(super) display_values: Vec<String>,
}

#[derive(Debug, Default)]
pub(super) struct ObjectRules {
    /// All declared or required fields, sorted by name.
    pub(super) fields: Vec<FieldRule>,
    /// Indices of the required fields in `fields`, in the schema's order.
    pub(super) required: Vec<usize>,
    /// Names of the declared fields, in the schema's order.
    pub(super) known_names: Vec<String>,
    pub(super) additional: AdditionalFields,
    pub(super) size: SizeRange,
}

#[derive(Debug)]
pub(super) struct FieldRule {
    /// The name as in canonical text, without quotes; equal names have equal texts.
    pub(super) name: String,
    pub(super) key: FieldKey,
    pub(super) node: Option<SchemaNodeId>,
}

/// The name of a field with its quotes and colon, for comparison with the text.
#[derive(Debug)]
pub(super) struct FieldKey {
    /// First eight bytes and the mask of those that exist; they identify most keys.
    prefix: u64,
    prefix_mask: u64,
    rest: Vec<u8>,
    pub(super) len: usize,
}

impl FieldKey {
    fn new(name: &str) -> Self {
        let text = format!("\"{name}\":");
        let mut head = [0; 8];
        let len = text.len().min(8);
        head[..len].copy_from_slice(&text.as_bytes()[..len]);
        Self {
            prefix: u64::from_le_bytes(head),
            prefix_mask: u64::MAX >> (64 - 8 * len),
            rest: text.as_bytes()[len..].to_vec(),
            len: text.len(),
        }
    }

    #[inline]
    pub(super) fn is_at(&self, text: CanonicalText<'_>, at: usize) -> bool {
        (text.word_at(at) ^ self.prefix) & self.prefix_mask == 0
            && (self.rest.is_empty() || text.starts_with_at(at + 8, &self.rest))
    }
}

/// The rule for fields that are not declared.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum AdditionalFields {
    #[default]
    Unconstrained,
    Forbidden,
    MatchingSchema(SchemaNodeId),
}

#[derive(Debug, Default)]
pub(super) struct ArrayRules {
    pub(super) prefix_items: Vec<SchemaNodeId>,
    pub(super) items: Option<SchemaNodeId>,
    pub(super) are_unique: bool,
    pub(super) size: SizeRange,
}

/// A range for a number of elements or characters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SizeRange {
    pub(super) min: Option<u64>,
    pub(super) max: Option<u64>,
}

impl SizeRange {
    pub(super) fn is_unbounded(self) -> bool {
        self.min.is_none() && self.max.is_none()
    }
}

/// A bound of a number.
#[derive(Debug)]
pub(super) struct NumberBound {
    pub(super) kind: BoundSide,
    pub(super) limit: Number,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum BoundSide {
    AtLeast,
    AtMost,
    MoreThan,
    LessThan,
}

/// Compiles a schema into a list of nodes. Every reachable subschema occurs once.
pub(super) fn compile_schema(schema: &Value) -> Vec<SchemaNode> {
    let mut reader = SchemaCompiler { root: schema, ids_by_address: BTreeMap::new(), schemas: Vec::new() };
    reader.node_id(schema);
    let mut nodes = Vec::new();
    // Compiling a node can append further schemas.
    while let Some(schema) = reader.schemas.get(nodes.len()) {
        nodes.push(match schema {
            Value::Object(rules) => reader.compile_node(rules),
            Value::Bool(false) => SchemaNode::NoValue,
            _ => SchemaNode::AnyValue,
        });
    }
    nodes
}

struct SchemaCompiler<'a> {
    root: &'a Value,
    /// Node ids by schema address, so that every schema is compiled once.
    ids_by_address: BTreeMap<*const Value, SchemaNodeId>,
    schemas: Vec<&'a Value>,
}

impl<'a> SchemaCompiler<'a> {
    fn node_id(&mut self, schema: &'a Value) -> SchemaNodeId {
        *self.ids_by_address.entry(schema).or_insert_with(|| {
            self.schemas.push(schema);
            self.schemas.len() - 1
        })
    }

    fn node_ids(&mut self, schemas: &'a [Value]) -> Vec<SchemaNodeId> {
        schemas.iter().map(|schema| self.node_id(schema)).collect()
    }

    fn compile_node(&mut self, rules: &'a Map<String, Value>) -> SchemaNode {
        // Common simple subschemas get their own node kinds, so that validation does not examine all rules.
        let (mut parts, mut more) = (0, 0);
        for keyword in rules.keys() {
            parts += usize::from(CONTAINER_KEYWORDS.contains(&keyword.as_str()));
            more += usize::from(OTHER_KEYWORDS.contains(&keyword.as_str()));
        }
        if (parts, more) == (0, 0) {
            return type_rule(rules).map_or(SchemaNode::AnyValue, SchemaNode::Typed);
        }
        let read = self.compile_rules(rules);
        match &read.reference {
            Some(Ok(target)) if (parts, more) == (0, 1) && read.types.is_none() => {
                SchemaNode::Reference(*target)
            }
            _ => SchemaNode::Rules(Box::new(SchemaRules { has_other_rules: more > 0, ..read })),
        }
    }

    fn compile_rules(&mut self, rules: &'a Map<String, Value>) -> SchemaRules {
        SchemaRules {
            has_other_rules: true,
            nullable: rules.get("nullable") == Some(&Value::Bool(true)),
            reference: rules.get("$ref").and_then(Value::as_str).map(|target| {
                resolve_reference(self.root, target)
                    .map(|schema| self.node_id(schema))
                    .ok_or_else(|| target.to_owned())
            }),
            types: type_rule(rules),
            choices: allowed_values(rules),
            fields: self.compile_fields(rules),
            items: ArrayRules {
                prefix_items: self.node_ids(keyword_list(rules, "prefixItems")),
                items: rules.get("items").map(|schema| self.node_id(schema)),
                are_unique: rules.get("uniqueItems") == Some(&Value::Bool(true)),
                size: size_range(rules, ["minItems", "maxItems"]),
            },
            length: size_range(rules, ["minLength", "maxLength"]),
            bounds: number_bounds(rules),
            all_of: self.node_ids(keyword_list(rules, "allOf")),
            any_of: self.node_ids(keyword_list(rules, "anyOf")),
            one_of: self.node_ids(keyword_list(rules, "oneOf")),
        }
    }

    fn compile_fields(&mut self, rules: &'a Map<String, Value>) -> ObjectRules {
        let known = rules.get("properties").and_then(Value::as_object);
        let required: Vec<&str> = keyword_list(rules, "required").iter().filter_map(Value::as_str).collect();
        let mut named: Vec<FieldRule> = Vec::new();
        for (name, schema) in known.into_iter().flatten() {
            named.push(field_rule(name, Some(self.node_id(schema))));
        }
        for name in &required {
            if known.is_none_or(|known| !known.contains_key(*name)) {
                named.push(field_rule(name, None));
            }
        }
        named.sort_by(|a, b| a.name.cmp(&b.name));
        named.dedup_by(|a, b| a.name == b.name);
        ObjectRules {
            required: required
                .iter()
                .filter_map(|name| named.binary_search_by(|field| field.name.cmp(&escape_name(name))).ok())
                .collect(),
            fields: named,
            known_names: known.into_iter().flat_map(Map::keys).cloned().collect(),
            additional: match rules.get("additionalProperties") {
                None => AdditionalFields::Unconstrained,
                // `patternProperties` is not supported, and may declare further fields.
                Some(Value::Bool(false)) if rules.contains_key("patternProperties") => {
                    AdditionalFields::Unconstrained
                }
                Some(Value::Bool(false)) => AdditionalFields::Forbidden,
                Some(schema) => AdditionalFields::MatchingSchema(self.node_id(schema)),
            },
            size: size_range(rules, ["minProperties", "maxProperties"]),
        }
    }
}

/// The keywords for objects and arrays.
const CONTAINER_KEYWORDS: [&str; 9] = [
    "properties",
    "required",
    "additionalProperties",
    "minProperties",
    "maxProperties",
    "prefixItems",
    "items",
    "minItems",
    "maxItems",
];

/// All other supported keywords except `type`.
const OTHER_KEYWORDS: [&str; 14] = [
    "nullable",
    "$ref",
    "const",
    "enum",
    "uniqueItems",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "allOf",
    "anyOf",
    "oneOf",
];

fn keyword_list<'a>(rules: &'a Map<String, Value>, keyword: &str) -> &'a [Value] {
    rules.get(keyword).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn field_rule(name: &str, node: Option<SchemaNodeId>) -> FieldRule {
    let name = escape_name(name);
    FieldRule { key: FieldKey::new(&name), name, node }
}

/// Returns a name as it appears between the quotes of canonical text.
fn escape_name(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 2);
    write_text(name, &mut text);
    text[1..text.len() - 1].to_owned()
}

fn size_range(rules: &Map<String, Value>, [least, most]: [&str; 2]) -> SizeRange {
    let limit = |keyword: &str| rules.get(keyword).and_then(Value::as_u64);
    SizeRange { min: limit(least), max: limit(most) }
}

fn type_rule(rules: &Map<String, Value>) -> Option<TypeRule> {
    let wanted = match rules.get("type")? {
        one @ Value::String(_) => std::slice::from_ref(one),
        Value::Array(several) => several,
        _ => return None,
    };
    let mut types = TypeRule::default();
    let mut takes_any_number = false;
    for name in wanted.iter().filter_map(Value::as_str) {
        types.first_bytes.insert(match name {
            "null" => JsonTypeSet::from_first_byte(b'n'),
            "boolean" => JsonTypeSet::from_first_byte(b't'),
            "string" => JsonTypeSet::from_first_byte(b'"'),
            "number" | "integer" => JsonTypeSet::NUMBER,
            "array" => JsonTypeSet::from_first_byte(b'['),
            "object" => JsonTypeSet::from_first_byte(b'{'),
            _ => JsonTypeSet::ALL,
        });
        match name {
            "null" | "boolean" | "string" | "array" | "object" => {}
            "integer" => types.is_integer = true,
            _ => takes_any_number = true,
        }
        types.names.push(type_phrase(name).to_owned());
    }
    types.is_integer &= !takes_any_number;
    Some(types)
}

fn allowed_values(rules: &Map<String, Value>) -> Vec<AllowedValues> {
    let constant = rules.get("const").map(std::slice::from_ref);
    let several = rules.get("enum").and_then(Value::as_array).map(Vec::as_slice);
    let choice = |allowed: &[Value]| AllowedValues {
        canonical_values: allowed.iter().map(canonical_json).collect(),
        display_values: allowed.iter().map(quote_value).collect(),
    };
    [constant, several].into_iter().flatten().map(choice).collect()
}

fn number_bounds(rules: &Map<String, Value>) -> Vec<NumberBound> {
    let limits = [
        ("minimum", BoundSide::AtLeast),
        ("maximum", BoundSide::AtMost),
        ("exclusiveMinimum", BoundSide::MoreThan),
        ("exclusiveMaximum", BoundSide::LessThan),
    ];
    let bound = |(keyword, side)| match rules.get(keyword) {
        Some(Value::Number(limit)) => Some(NumberBound { kind: side, limit: limit.clone() }),
        _ => None,
    };
    limits.into_iter().filter_map(bound).collect()
}

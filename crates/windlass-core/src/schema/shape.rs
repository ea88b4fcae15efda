//! A schema made ready to check with: every keyword is read once, and every reference is followed once.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Number, Value};

use super::words::{brief, type_words};
use super::{Problem, check, resolve};
use crate::canonical::{canonical, write_text};
use crate::scan::Canonical;

/// A schema that texts are checked against, again and again. What that takes is made when it is first needed.
#[derive(Debug)]
pub struct Shape {
    schema: Arc<Value>,
    nodes: OnceLock<Vec<Node>>,
}

impl Shape {
    /// Of a schema.
    pub fn new(schema: Arc<Value>) -> Self {
        Self { schema, nodes: OnceLock::new() }
    }

    /// Checks canonical text. Empty means that it fits.
    pub fn check(&self, canonical: &str) -> Vec<Problem> {
        check::check_text(self.nodes.get_or_init(|| nodes(&self.schema)), canonical)
    }
}

/// A schema inside the whole, by its number. The whole is the first.
pub(super) type NodeId = usize;

#[derive(Debug)]
pub(super) enum Node {
    Anything,
    Nothing,
    /// A type, and no more.
    Typed(Types),
    /// Another schema, and no more.
    Same(NodeId),
    Rules(Box<Rules>),
}

/// What a schema asks for. What it does not ask for is empty.
#[derive(Debug, Default)]
pub(super) struct Rules {
    pub(super) nullable: bool,
    pub(super) reference: Option<Result<NodeId, String>>,
    pub(super) types: Option<Types>,
    /// Of `const` and of `enum`.
    pub(super) choices: Vec<Choice>,
    pub(super) fields: Fields,
    pub(super) items: Items,
    pub(super) length: Size,
    pub(super) bounds: Vec<Bound>,
    pub(super) all_of: Vec<NodeId>,
    pub(super) any_of: Vec<NodeId>,
    pub(super) one_of: Vec<NodeId>,
    /// Whether it asks for more than types, fields and items.
    pub(super) has_more: bool,
}

#[derive(Debug, Default)]
pub(super) struct Types {
    /// A bit for every byte that a value of these types may begin with.
    pub(super) begins: Begins,
    /// Whether a number must be whole.
    pub(super) is_whole: bool,
    pub(super) words: Vec<String>,
}

/// The kinds of value, as canonical text tells them apart by their first byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Begins(u8);

impl Begins {
    const NUMBER: Self = Self(1);
    const ALL: Self = Self(63);

    /// What a value is that begins with this byte.
    pub(super) fn of(byte: u8) -> Self {
        Self(match byte {
            b'n' => 2,
            b't' | b'f' => 4,
            b'"' => 8,
            b'[' => 16,
            b'{' => 32,
            _ => 1,
        })
    }

    pub(super) fn has(self, kind: Self) -> bool {
        self.0 & kind.0 != 0
    }

    pub(super) fn is_number(self) -> bool {
        self == Self::NUMBER
    }

    fn add(&mut self, kind: Self) {
        self.0 |= kind.0;
    }
}

#[derive(Debug)]
pub(super) struct Choice {
    /// What is allowed, as canonical text: equal values have the same.
    pub(super) texts: Vec<String>,
    /// The same as it is shown.
    pub(super) names: Vec<String>,
}

#[derive(Debug, Default)]
pub(super) struct Fields {
    /// Every field that is known or required, sorted by its name.
    pub(super) named: Vec<Field>,
    /// Places in `named`, as the schema has them.
    pub(super) required: Vec<usize>,
    /// The names that are known, as the schema has them.
    pub(super) known: Vec<String>,
    pub(super) rest: Rest,
    pub(super) size: Size,
}

#[derive(Debug)]
pub(super) struct Field {
    /// The name as canonical text has it, without quotes: the same names have the same.
    pub(super) name: String,
    pub(super) key: Key,
    pub(super) node: Option<NodeId>,
}

/// The name of a field with its quotes and a colon.
#[derive(Debug)]
pub(super) struct Key {
    /// The first eight bytes, and which bits of them there are: most keys are known by them.
    head: u64,
    mask: u64,
    rest: Vec<u8>,
    pub(super) len: usize,
}

impl Key {
    fn new(name: &str) -> Self {
        let text = format!("\"{name}\":");
        let mut head = [0; 8];
        let len = text.len().min(8);
        head[..len].copy_from_slice(&text.as_bytes()[..len]);
        Self {
            head: u64::from_le_bytes(head),
            mask: u64::MAX >> (64 - 8 * len),
            rest: text.as_bytes()[len..].to_vec(),
            len: text.len(),
        }
    }

    #[inline]
    pub(super) fn is_at(&self, text: Canonical<'_>, at: usize) -> bool {
        (text.word(at) ^ self.head) & self.mask == 0
            && (self.rest.is_empty() || text.is_at(at + 8, &self.rest))
    }
}

/// What other fields may be.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Rest {
    #[default]
    Unchecked,
    Refused,
    Checked(NodeId),
}

#[derive(Debug, Default)]
pub(super) struct Items {
    pub(super) first: Vec<NodeId>,
    pub(super) rest: Option<NodeId>,
    pub(super) are_unique: bool,
    pub(super) size: Size,
}

/// How many there may be of something.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    pub(super) least: Option<u64>,
    pub(super) most: Option<u64>,
}

impl Size {
    pub(super) fn is_any(self) -> bool {
        self.least.is_none() && self.most.is_none()
    }
}

/// A limit of a number.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) side: Side,
    pub(super) limit: Number,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    AtLeast,
    AtMost,
    MoreThan,
    LessThan,
}

/// Reads a schema. What it leads to is in the list once.
pub(super) fn nodes(schema: &Value) -> Vec<Node> {
    let mut reader = Reader { root: schema, ids: BTreeMap::new(), found: Vec::new() };
    reader.id(schema);
    let mut nodes = Vec::new();
    // What is read leads to more.
    while let Some(schema) = reader.found.get(nodes.len()) {
        nodes.push(match schema {
            Value::Object(rules) => reader.node(rules),
            Value::Bool(false) => Node::Nothing,
            _ => Node::Anything,
        });
    }
    nodes
}

struct Reader<'a> {
    root: &'a Value,
    /// By where a schema lies, so that each is read once, however it is come to.
    ids: BTreeMap<*const Value, NodeId>,
    found: Vec<&'a Value>,
}

impl<'a> Reader<'a> {
    fn id(&mut self, schema: &'a Value) -> NodeId {
        *self.ids.entry(schema).or_insert_with(|| {
            self.found.push(schema);
            self.found.len() - 1
        })
    }

    fn ids(&mut self, schemas: &'a [Value]) -> Vec<NodeId> {
        schemas.iter().map(|schema| self.id(schema)).collect()
    }

    fn node(&mut self, rules: &'a Map<String, Value>) -> Node {
        // What most schemas inside others are is told apart here, and need not be each time.
        let (mut parts, mut more) = (0, 0);
        for keyword in rules.keys() {
            parts += usize::from(PARTS.contains(&keyword.as_str()));
            more += usize::from(MORE.contains(&keyword.as_str()));
        }
        if (parts, more) == (0, 0) {
            return types(rules).map_or(Node::Anything, Node::Typed);
        }
        let read = self.rules(rules);
        match &read.reference {
            Some(Ok(target)) if (parts, more) == (0, 1) && read.types.is_none() => Node::Same(*target),
            _ => Node::Rules(Box::new(Rules { has_more: more > 0, ..read })),
        }
    }

    fn rules(&mut self, rules: &'a Map<String, Value>) -> Rules {
        Rules {
            has_more: true,
            nullable: rules.get("nullable") == Some(&Value::Bool(true)),
            reference: rules.get("$ref").and_then(Value::as_str).map(|target| {
                resolve(self.root, target).map(|schema| self.id(schema)).ok_or_else(|| target.to_owned())
            }),
            types: types(rules),
            choices: choices(rules),
            fields: self.fields(rules),
            items: Items {
                first: self.ids(list(rules, "prefixItems")),
                rest: rules.get("items").map(|schema| self.id(schema)),
                are_unique: rules.get("uniqueItems") == Some(&Value::Bool(true)),
                size: size(rules, ["minItems", "maxItems"]),
            },
            length: size(rules, ["minLength", "maxLength"]),
            bounds: bounds(rules),
            all_of: self.ids(list(rules, "allOf")),
            any_of: self.ids(list(rules, "anyOf")),
            one_of: self.ids(list(rules, "oneOf")),
        }
    }

    fn fields(&mut self, rules: &'a Map<String, Value>) -> Fields {
        let known = rules.get("properties").and_then(Value::as_object);
        let required: Vec<&str> = list(rules, "required").iter().filter_map(Value::as_str).collect();
        let mut named: Vec<Field> = Vec::new();
        for (name, schema) in known.into_iter().flatten() {
            named.push(field(name, Some(self.id(schema))));
        }
        for name in &required {
            if known.is_none_or(|known| !known.contains_key(*name)) {
                named.push(field(name, None));
            }
        }
        named.sort_by(|a, b| a.name.cmp(&b.name));
        named.dedup_by(|a, b| a.name == b.name);
        Fields {
            required: required
                .iter()
                .filter_map(|name| named.binary_search_by(|field| field.name.cmp(&written(name))).ok())
                .collect(),
            named,
            known: known.into_iter().flat_map(Map::keys).cloned().collect(),
            rest: match rules.get("additionalProperties") {
                None => Rest::Unchecked,
                // Patterns are not read here, and a field may be known through one of them.
                Some(Value::Bool(false)) if rules.contains_key("patternProperties") => Rest::Unchecked,
                Some(Value::Bool(false)) => Rest::Refused,
                Some(schema) => Rest::Checked(self.id(schema)),
            },
            size: size(rules, ["minProperties", "maxProperties"]),
        }
    }
}

/// The keywords that ask for something of objects and of lists.
const PARTS: [&str; 9] = [
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

/// All other keywords that are read, besides `type`.
const MORE: [&str; 14] = [
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

fn list<'a>(rules: &'a Map<String, Value>, keyword: &str) -> &'a [Value] {
    rules.get(keyword).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn field(name: &str, node: Option<NodeId>) -> Field {
    let name = written(name);
    Field { key: Key::new(&name), name, node }
}

/// A name as it stands between the quotes of canonical text.
fn written(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 2);
    write_text(name, &mut text);
    text[1..text.len() - 1].to_owned()
}

fn size(rules: &Map<String, Value>, [least, most]: [&str; 2]) -> Size {
    let limit = |keyword: &str| rules.get(keyword).and_then(Value::as_u64);
    Size { least: limit(least), most: limit(most) }
}

fn types(rules: &Map<String, Value>) -> Option<Types> {
    let wanted = match rules.get("type")? {
        one @ Value::String(_) => std::slice::from_ref(one),
        Value::Array(several) => several,
        _ => return None,
    };
    let mut types = Types::default();
    let mut takes_any_number = false;
    for name in wanted.iter().filter_map(Value::as_str) {
        types.begins.add(match name {
            "null" => Begins::of(b'n'),
            "boolean" => Begins::of(b't'),
            "string" => Begins::of(b'"'),
            "number" | "integer" => Begins::NUMBER,
            "array" => Begins::of(b'['),
            "object" => Begins::of(b'{'),
            _ => Begins::ALL,
        });
        match name {
            "null" | "boolean" | "string" | "array" | "object" => {}
            "integer" => types.is_whole = true,
            _ => takes_any_number = true,
        }
        types.words.push(type_words(name).to_owned());
    }
    types.is_whole &= !takes_any_number;
    Some(types)
}

fn choices(rules: &Map<String, Value>) -> Vec<Choice> {
    let constant = rules.get("const").map(std::slice::from_ref);
    let several = rules.get("enum").and_then(Value::as_array).map(Vec::as_slice);
    let choice = |allowed: &[Value]| Choice {
        texts: allowed.iter().map(canonical).collect(),
        names: allowed.iter().map(brief).collect(),
    };
    [constant, several].into_iter().flatten().map(choice).collect()
}

fn bounds(rules: &Map<String, Value>) -> Vec<Bound> {
    let limits = [
        ("minimum", Side::AtLeast),
        ("maximum", Side::AtMost),
        ("exclusiveMinimum", Side::MoreThan),
        ("exclusiveMaximum", Side::LessThan),
    ];
    let bound = |(keyword, side)| match rules.get(keyword) {
        Some(Value::Number(limit)) => Some(Bound { side, limit: limit.clone() }),
        _ => None,
    };
    limits.into_iter().filter_map(bound).collect()
}

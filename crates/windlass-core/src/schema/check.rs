//! Does a value fit a schema? Lists every way in which it does not, in words that a model can act on.
//!
//! What is not understood (`pattern`, `format`, `not` …) is ignored: such a rule is the tool's own to enforce.
//! The work is bounded, whatever the schema and the value are.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Map, Value};

use crate::canonical::canonical;

/// How many problems are listed before the rest is only counted.
const LISTED: usize = 20;
/// How deep a schema may lead, references included.
const DEPTH: usize = 96;
/// How many schemas are looked at. Unions of references to themselves would otherwise not end in our lifetime.
const STEPS: usize = 100_000;
/// How much of a value is quoted.
const QUOTED: usize = 40;
/// How many alternatives are named.
const NAMED: usize = 30;

/// One way in which something does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where: `items[2].qty`, or `arguments` for the whole.
    pub path: String,
    /// What: `must be an integer, is the string "many"`.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.path, self.message)
    }
}

/// Checks `value` against `schema`. Empty means that it fits.
pub fn check(schema: &Value, value: &Value) -> Vec<Problem> {
    let mut checker = Checker { root: schema, steps: STEPS };
    let mut found = Found::default();
    checker.visit(schema, value, &Path::Root, 0, &mut found);
    let more = found.count - found.list.len();
    let mut problems: Vec<Problem> = found.list.into_iter().map(|note| note.problem).collect();
    if more > 0 {
        let message = format!("has {more} more {}", if more == 1 { "problem" } else { "problems" });
        problems.push(Problem { path: Path::Root.to_string(), message });
    }
    problems
}

/// The problems as one text, separated by semicolons.
pub fn describe(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Where the check stands. A list of borrowed steps, so that a value that fits costs no text.
enum Path<'a> {
    Root,
    Field(&'a Self, &'a str),
    Index(&'a Self, usize),
}

impl Path<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Root => 0,
            Self::Field(parent, _) | Self::Index(parent, _) => parent.len() + 1,
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("arguments"),
            Self::Index(parent, at) => write!(f, "{parent}[{at}]"),
            Self::Field(parent, name) => {
                let plain = !name.is_empty()
                    && name.len() <= 2 * QUOTED
                    && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '$'));
                match (parent, plain) {
                    (Self::Root, true) => f.write_str(name),
                    (parent, true) => write!(f, "{parent}.{name}"),
                    (parent, false) => write!(f, "{parent}[{}]", quoted(name)),
                }
            }
        }
    }
}

/// What kind of problem it is, for telling which branch of a union was meant.
#[derive(Clone, PartialEq)]
enum Kind {
    /// The wrong type; holds the right ones.
    Type(Vec<String>),
    /// Not one of the allowed values; holds them, written out.
    Choice(Vec<String>),
    /// A field that is missing or should not be there.
    Shape,
    Other,
}

struct Note {
    problem: Problem,
    kind: Kind,
    depth: usize,
}

#[derive(Default)]
struct Found {
    list: Vec<Note>,
    count: usize,
}

impl Found {
    fn add(&mut self, path: &Path<'_>, kind: Kind, message: impl FnOnce() -> String) {
        self.count += 1;
        if self.list.len() < LISTED {
            let problem = Problem { path: path.to_string(), message: message() };
            self.list.push(Note { problem, kind, depth: path.len() });
        }
    }

    fn append(&mut self, other: Self) {
        self.count += other.count;
        let room = LISTED - self.list.len();
        self.list.extend(other.list.into_iter().take(room));
    }

    /// The lower, the likelier it is that the value at `depth` was meant for this branch: it has the right type,
    /// then the right tag, then the right fields.
    fn distance(&self, depth: usize) -> (bool, usize, usize, usize) {
        let count = |test: &dyn Fn(&Note) -> bool| self.list.iter().filter(|note| test(note)).count();
        (
            count(&|note| note.depth == depth && !matches!(note.kind, Kind::Shape | Kind::Other)) > 0,
            count(&|note| note.depth == depth + 1 && matches!(note.kind, Kind::Choice(_))),
            count(&|note| note.depth == depth + 1 && note.kind == Kind::Shape),
            self.count,
        )
    }
}

struct Checker<'a> {
    root: &'a Value,
    steps: usize,
}

impl Checker<'_> {
    fn visit(&mut self, schema: &Value, value: &Value, path: &Path<'_>, depth: usize, found: &mut Found) {
        if self.steps == 0 || depth > DEPTH {
            return found.add(path, Kind::Other, || "is too deep or too large to be checked".to_owned());
        }
        self.steps -= 1;
        let rules = match schema {
            Value::Object(rules) => rules,
            Value::Bool(false) => {
                return found.add(path, Kind::Shape, || format!("must not be given, is {}", shown(value)));
            }
            _ => return,
        };
        if value.is_null() && rules.get("nullable") == Some(&Value::Bool(true)) {
            return;
        }
        if let Some(target) = rules.get("$ref").and_then(Value::as_str) {
            match resolve(self.root, target) {
                Some(target) => self.visit(target, value, path, depth + 1, found),
                None => found.add(path, Kind::Other, || {
                    format!("cannot be checked: the schema refers to `{target}`, which it does not have")
                }),
            }
        }
        if !check_type(rules, value, path, found) {
            // What else the schema asks for is asked of the right type.
            return;
        }
        check_choice(rules, value, path, found);
        match value {
            Value::Object(fields) => self.visit_object(rules, fields, path, depth, found),
            Value::Array(items) => self.visit_list(rules, items, path, depth, found),
            Value::String(text) => check_text(rules, text, path, found),
            Value::Number(_) => check_number(rules, value, path, found),
            Value::Null | Value::Bool(_) => {}
        }
        for part in list(rules, "allOf") {
            self.visit(part, value, path, depth + 1, found);
        }
        for (keyword, one_only) in [("anyOf", false), ("oneOf", true)] {
            let branches = list(rules, keyword);
            if !branches.is_empty() {
                self.visit_union(branches, one_only, value, path, depth, found);
            }
        }
    }

    fn visit_object(
        &mut self,
        rules: &Map<String, Value>,
        fields: &Map<String, Value>,
        path: &Path<'_>,
        depth: usize,
        found: &mut Found,
    ) {
        for name in list(rules, "required").iter().filter_map(Value::as_str) {
            if !fields.contains_key(name) {
                found.add(&Path::Field(path, name), Kind::Shape, || "is missing".to_owned());
            }
        }
        let known = rules.get("properties").and_then(Value::as_object);
        let rest = match rules.get("additionalProperties") {
            // Patterns are not read here, and a field may be known through one of them.
            Some(Value::Bool(false)) if rules.contains_key("patternProperties") => None,
            rest => rest,
        };
        for (name, field) in fields {
            let at = Path::Field(path, name);
            match (known.and_then(|known| known.get(name)), rest) {
                (Some(schema), _) => self.visit(schema, field, &at, depth + 1, found),
                (None, Some(Value::Bool(false))) => found.add(&at, Kind::Shape, || unknown_field(known)),
                (None, Some(schema)) => self.visit(schema, field, &at, depth + 1, found),
                (None, None) => {}
            }
        }
        check_size(rules, ["minProperties", "maxProperties"], fields.len(), ["field", "fields"], path, found);
    }

    fn visit_list(
        &mut self,
        rules: &Map<String, Value>,
        items: &[Value],
        path: &Path<'_>,
        depth: usize,
        found: &mut Found,
    ) {
        let first = list(rules, "prefixItems");
        for (at, item) in items.iter().enumerate() {
            if let Some(schema) = first.get(at).or_else(|| rules.get("items")) {
                self.visit(schema, item, &Path::Index(path, at), depth + 1, found);
            }
        }
        check_size(rules, ["minItems", "maxItems"], items.len(), ["item", "items"], path, found);
        if rules.get("uniqueItems") == Some(&Value::Bool(true)) {
            let mut seen = BTreeSet::new();
            for (at, item) in items.iter().enumerate() {
                if !seen.insert(canonical(item)) {
                    found.add(&Path::Index(path, at), Kind::Other, || "repeats an earlier item".to_owned());
                }
            }
        }
    }

    fn visit_union(
        &mut self,
        branches: &[Value],
        one_only: bool,
        value: &Value,
        path: &Path<'_>,
        depth: usize,
        found: &mut Found,
    ) {
        let mut fits = 0;
        let mut tried = Vec::with_capacity(branches.len());
        for branch in branches {
            let mut own = Found::default();
            self.visit(branch, value, path, depth + 1, &mut own);
            if own.count > 0 {
                tried.push(own);
                continue;
            }
            fits += 1;
            if !one_only {
                return;
            }
        }
        match fits {
            0 => {}
            1 => return,
            _ => {
                return found.add(path, Kind::Other, || "fits more than one of the allowed forms".to_owned());
            }
        }
        let here = path.len();
        if let Some((kind, message)) = nothing_near(&tried, here, value) {
            return found.add(path, kind, || message);
        }
        if let Some(closest) = tried.into_iter().min_by_key(|own| own.distance(here)) {
            found.append(closest);
        }
    }
}

/// Where every branch wants another type or another value, one message that names them all.
fn nothing_near(tried: &[Found], here: usize, value: &Value) -> Option<(Kind, String)> {
    let (mut types, mut choices): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for own in tried {
        let [note] = own.list.as_slice() else { return None };
        let (into, from) = match &note.kind {
            Kind::Type(from) if note.depth == here => (&mut types, from),
            Kind::Choice(from) if note.depth == here => (&mut choices, from),
            _ => return None,
        };
        for name in from {
            if !into.contains(name) {
                into.push(name.clone());
            }
        }
    }
    Some(match (types.is_empty(), choices.is_empty()) {
        (false, true) => (Kind::Type(types.clone()), wrong_type(&types, value)),
        // `null` beside a list of values is a value like them.
        (true, false) => (Kind::Choice(choices.clone()), wrong_choice(&choices, value)),
        (false, false) => {
            choices.append(&mut types);
            (Kind::Choice(choices.clone()), wrong_choice(&choices, value))
        }
        (true, true) => return None,
    })
}

fn check_type(rules: &Map<String, Value>, value: &Value, path: &Path<'_>, found: &mut Found) -> bool {
    let wanted: Vec<&str> = match rules.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => return true,
    };
    let fits = wanted.iter().any(|name| match *name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => is_whole(value),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    });
    if !fits {
        let wanted: Vec<String> = wanted.iter().map(|name| type_words(name).to_owned()).collect();
        let message = wrong_type(&wanted, value);
        found.add(path, Kind::Type(wanted), || message);
    }
    fits
}

fn check_choice(rules: &Map<String, Value>, value: &Value, path: &Path<'_>, found: &mut Found) {
    let constant = rules.get("const").map(std::slice::from_ref);
    let several = rules.get("enum").and_then(Value::as_array).map(Vec::as_slice);
    for allowed in [constant, several].into_iter().flatten() {
        let own = canonical(value);
        if allowed.iter().any(|one| one == value || canonical(one) == own) {
            continue;
        }
        let names: Vec<String> = allowed.iter().map(brief).collect();
        let message = wrong_choice(&names, value);
        found.add(path, Kind::Choice(names), || message);
    }
}

fn check_text(rules: &Map<String, Value>, text: &str, path: &Path<'_>, found: &mut Found) {
    let limits = ["minLength", "maxLength"];
    if limits.iter().any(|limit| rules.contains_key(*limit)) {
        check_size(rules, limits, text.chars().count(), ["character", "characters"], path, found);
    }
}

fn check_number(rules: &Map<String, Value>, value: &Value, path: &Path<'_>, found: &mut Found) {
    let limits = [
        ("minimum", "at least", &[Ordering::Greater, Ordering::Equal][..]),
        ("maximum", "at most", &[Ordering::Less, Ordering::Equal]),
        ("exclusiveMinimum", "more than", &[Ordering::Greater]),
        ("exclusiveMaximum", "less than", &[Ordering::Less]),
    ];
    for (keyword, words, allowed) in limits {
        let Some(limit) = rules.get(keyword).filter(|limit| limit.is_number()) else { continue };
        if compare(value, limit).is_some_and(|order| !allowed.contains(&order)) {
            found.add(path, Kind::Other, || format!("must be {words} {}, is {}", brief(limit), brief(value)));
        }
    }
}

fn check_size(
    rules: &Map<String, Value>,
    [least, most]: [&str; 2],
    size: usize,
    [one, many]: [&str; 2],
    path: &Path<'_>,
    found: &mut Found,
) {
    let limit = |keyword: &str| rules.get(keyword).and_then(Value::as_u64);
    let counted = |count: u64| format!("{count} {}", if count == 1 { one } else { many });
    let size = size as u64;
    if let Some(least) = limit(least).filter(|least| size < *least) {
        found.add(path, Kind::Other, || format!("must have at least {}, has {size}", counted(least)));
    }
    if let Some(most) = limit(most).filter(|most| size > *most) {
        found.add(path, Kind::Other, || format!("must have at most {}, has {size}", counted(most)));
    }
}

/// The schema that a local reference names. Shared with the strict form.
pub(super) fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(reference.strip_prefix('#')?)
}

fn list<'a>(rules: &'a Map<String, Value>, keyword: &str) -> &'a [Value] {
    rules.get(keyword).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn is_whole(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
}

/// Integers are compared with all their digits; a double would take 2^53 and its successor for the same.
fn compare(a: &Value, b: &Value) -> Option<Ordering> {
    let whole = |value: &Value| value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    match (whole(a), whole(b)) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => a.as_f64()?.partial_cmp(&b.as_f64()?),
    }
}

fn wrong_type(wanted: &[String], value: &Value) -> String {
    format!("must be {}, is {}", either(wanted), shown(value))
}

fn wrong_choice(allowed: &[String], value: &Value) -> String {
    match allowed {
        [one] => format!("must be {one}, is {}", shown(value)),
        _ => {
            format!("must be one of {}, is {}", enumerated(allowed.iter().map(String::as_str)), shown(value))
        }
    }
}

fn unknown_field(known: Option<&Map<String, Value>>) -> String {
    match known.filter(|known| !known.is_empty()) {
        Some(known) => {
            format!("is not a known field; known are: {}", enumerated(known.keys().map(String::as_str)))
        }
        None => "is not a known field; no fields are known here".to_owned(),
    }
}

fn type_words(name: &str) -> &str {
    match name {
        "boolean" => "true or false",
        "string" => "a string",
        "number" => "a number",
        "integer" => "an integer",
        "array" => "a list",
        "object" => "an object",
        other => other,
    }
}

fn either(names: &[String]) -> String {
    match names {
        [] => "nothing".to_owned(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

fn enumerated<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(NAMED);
    let text = names.take(NAMED).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{text} and {more} more") } else { text }
}

/// A value with its kind, as in `is the string "many"`.
fn shown(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) => value.to_string(),
        Value::Number(_) => format!("the number {}", brief(value)),
        Value::String(text) => format!("the string {}", quoted(text)),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
    }
}

fn brief(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        other => cut(&canonical(other)),
    }
}

fn quoted(text: &str) -> String {
    Value::String(cut(text)).to_string()
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;

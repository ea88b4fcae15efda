//! Validation of a value against a schema. Reports all violations, in words that a model can act on.
//!
//! Unsupported keywords (`pattern`, `format`, `not` …) are ignored; the tool must enforce such rules itself.
//! The work is bounded for every schema and value. The value is canonical text and is validated in place: its
//! first byte gives its type, and equal values have equal texts.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Number, Value};

use super::compiled::{
    AdditionalFields, ArrayRules, BoundSide, JsonTypeSet, ObjectRules, SchemaNode, SchemaNodeId, SchemaRules,
    SizeRange, TypeRule, compile_schema,
};
use super::violations::{SizeLimit, ValuePath, ViolationKind, ViolationList, merge_branch_mismatches};
use super::wording::unescape_string;
use crate::canonical::canonical_json;
use crate::canonical::scan::CanonicalText;

/// Maximum depth of nested schemas, including references.
const MAX_DEPTH: usize = 96;
/// Maximum number of schemas that are visited. Unions of recursive references would otherwise take exponential
/// time.
const MAX_STEPS: usize = 100_000;

/// One violation of a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaViolation {
    /// Path of the value, such as `items[2].qty`; `arguments` for the root.
    pub path: String,
    /// Description, such as `must be an integer, is the string "many"`.
    pub message: String,
}

impl fmt::Display for SchemaViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.path, self.message)
    }
}

/// Validates `value` against `schema`; returns no violations if it is valid. For repeated validation, use a
/// [`CompiledSchema`](super::CompiledSchema).
pub fn validate(schema: &Value, value: &Value) -> Vec<SchemaViolation> {
    validate_text(&compile_schema(schema), &canonical_json(value))
}

/// Joins violations into one text, separated by semicolons.
pub fn describe_violations(problems: &[SchemaViolation]) -> String {
    let mut text = String::new();
    for (at, problem) in problems.iter().enumerate() {
        for part in [if at > 0 { "; `" } else { "`" }, &problem.path, "` ", &problem.message] {
            text.push_str(part);
        }
    }
    text
}

pub(super) fn validate_text(nodes: &[SchemaNode], text: &str) -> Vec<SchemaViolation> {
    let mut checker = SchemaValidator { nodes, text: CanonicalText(text), steps_left: MAX_STEPS };
    let mut found = ViolationList::default();
    checker.visit_value(0, 0, &ValuePath::Root, 0, &mut found);
    let more = found.count - found.listed.len();
    let mut problems: Vec<SchemaViolation> = Vec::with_capacity(found.listed.len() + 1);
    for note in found.listed {
        let message = note.kind.message(checker.text, note.value_at);
        problems.push(SchemaViolation { path: note.path, message });
    }
    if more > 0 {
        let message = format!("has {more} more {}", if more == 1 { "problem" } else { "problems" });
        problems.push(SchemaViolation { path: ValuePath::Root.to_text(), message });
    }
    problems
}

struct SchemaValidator<'s, 't> {
    nodes: &'s [SchemaNode],
    text: CanonicalText<'t>,
    steps_left: usize,
}

impl<'s, 't> SchemaValidator<'s, 't> {
    /// Validates the value at a position. Returns its end, if validation determined it.
    #[inline(always)]
    fn visit_value(
        &mut self,
        node: SchemaNodeId,
        at: usize,
        path: &ValuePath<'_>,
        depth: usize,
        found: &mut ViolationList<'s>,
    ) -> Option<usize> {
        if let Some(SchemaNode::Typed(types)) = self.nodes.get(node)
            && self.steps_left > 0
            && depth <= MAX_DEPTH
        {
            self.steps_left -= 1;
            return self.visit_typed(types, at, path, found);
        }
        self.visit_node(node, at, path, depth, found)
    }

    fn visit_node(
        &mut self,
        node: SchemaNodeId,
        at: usize,
        path: &ValuePath<'_>,
        depth: usize,
        found: &mut ViolationList<'s>,
    ) -> Option<usize> {
        let (mut node, mut depth, nodes) = (node, depth, self.nodes);
        loop {
            if self.steps_left == 0 || depth > MAX_DEPTH {
                found.push(path, at, ViolationKind::LimitExceeded);
                return None;
            }
            self.steps_left -= 1;
            match nodes.get(node)? {
                SchemaNode::Reference(target) => (node, depth) = (*target, depth + 1),
                SchemaNode::Typed(types) => return self.visit_typed(types, at, path, found),
                SchemaNode::Rules(rules) if !rules.has_other_rules => {
                    let fits =
                        rules.types.as_ref().is_none_or(|types| self.check_type(types, at, path, found));
                    return if fits { self.visit_elements(rules, at, path, depth, found) } else { None };
                }
                SchemaNode::Rules(rules) => return self.visit_rules(rules, at, path, depth, found),
                SchemaNode::NoValue => {
                    found.push(path, at, ViolationKind::ForbiddenValue);
                    return None;
                }
                SchemaNode::AnyValue => return None,
            }
        }
    }

    fn visit_rules(
        &mut self,
        rules: &'s SchemaRules,
        at: usize,
        path: &ValuePath<'_>,
        depth: usize,
        found: &mut ViolationList<'s>,
    ) -> Option<usize> {
        let kind = JsonTypeSet::from_first_byte(self.text.byte_at(at));
        if rules.nullable && kind == JsonTypeSet::from_first_byte(b'n') {
            return None;
        }
        let mut end = None;
        match &rules.reference {
            None => {}
            Some(Ok(target)) => end = self.visit_value(*target, at, path, depth + 1, found),
            Some(Err(target)) => found.push(path, at, ViolationKind::UnresolvedReference(target)),
        }
        // The remaining rules apply only to values of the right type.
        if rules.types.as_ref().is_some_and(|types| !self.check_type(types, at, path, found)) {
            return end;
        }
        for choice in &rules.choices {
            let value = self.text.value_at(at);
            end = Some(at + value.len());
            if !choice.canonical_values.iter().any(|allowed| allowed == value) {
                found.push(path, at, ViolationKind::NotAllowedValue(Cow::Borrowed(&choice.display_values)));
            }
        }
        end = self.visit_elements(rules, at, path, depth, found).or(end);
        if self.text.byte_at(at) == b'"' && !rules.length.is_unbounded() {
            let length = unescape_string(self.text.string_at(at)).chars().count();
            check_size(rules.length, length, ["character", "characters"], path, at, found);
        } else if kind.is_number() && !rules.bounds.is_empty() {
            self.check_bounds(rules, at, path, found);
        }
        for part in &rules.all_of {
            end = self.visit_value(*part, at, path, depth + 1, found).or(end);
        }
        for (branches, one_only) in [(&rules.any_of, false), (&rules.one_of, true)] {
            if !branches.is_empty() {
                end = self.visit_union(branches, one_only, at, path, depth, found).or(end);
            }
        }
        end
    }

    /// Validates a value against a type alone, the most common case.
    #[inline(always)]
    fn visit_typed(
        &self,
        types: &'s TypeRule,
        at: usize,
        path: &ValuePath<'_>,
        found: &mut ViolationList<'s>,
    ) -> Option<usize> {
        match self.text.byte_at(at) {
            b'"' if types.first_bytes.contains(JsonTypeSet::from_first_byte(b'"')) => {
                Some(self.text.string_end(at))
            }
            b'0'..=b'9' if types.first_bytes.contains(JsonTypeSet::from_first_byte(b'0')) => {
                let end = self.digits_end(at);
                match self.text.byte_at(end) {
                    b',' | b'}' | b']' => Some(end),
                    _ => self.visit_typed_slow(types, at, path, found),
                }
            }
            _ => self.visit_typed_slow(types, at, path, found),
        }
    }

    #[inline(never)]
    fn visit_typed_slow(
        &self,
        types: &'s TypeRule,
        at: usize,
        path: &ValuePath<'_>,
        found: &mut ViolationList<'s>,
    ) -> Option<usize> {
        // The ends of objects and arrays are found when they are visited.
        let is_short = !matches!(self.text.byte_at(at), b'{' | b'[');
        (self.check_type(types, at, path, found) && is_short).then(|| self.text.value_end(at))
    }

    fn check_type(
        &self,
        types: &'s TypeRule,
        at: usize,
        path: &ValuePath<'_>,
        found: &mut ViolationList<'s>,
    ) -> bool {
        let kind = JsonTypeSet::from_first_byte(self.text.byte_at(at));
        let fits = types.first_bytes.contains(kind)
            && !(types.is_integer && kind.is_number() && !self.is_integer(at));
        if !fits {
            found.push(path, at, ViolationKind::WrongType(Cow::Borrowed(&types.names)));
        }
        fits
    }

    #[inline]
    fn digits_end(&self, at: usize) -> usize {
        let mut end = at;
        while self.text.byte_at(end).is_ascii_digit() {
            end += 1;
        }
        end
    }

    /// Returns true if a number has no fraction. Doubles with a positive exponent are too large to have one.
    fn is_integer(&self, at: usize) -> bool {
        !matches!(self.text.byte_at(self.digits_end(at + 1)), b'.' | b'e')
            || self.text.value_at(at).bytes().any(|byte| byte == b'+')
    }

    #[inline]
    fn visit_elements(
        &mut self,
        rules: &'s SchemaRules,
        at: usize,
        path: &ValuePath<'_>,
        depth: usize,
        found: &mut ViolationList<'s>,
    ) -> Option<usize> {
        match self.text.byte_at(at) {
            b'{' => Some(self.visit_object(&rules.fields, at, path, depth, found)),
            b'[' => Some(self.visit_array(&rules.items, at, path, depth, found)),
            _ => None,
        }
    }

    fn visit_object(
        &mut self,
        fields: &'s ObjectRules,
        at: usize,
        path: &ValuePath<'_>,
        depth: usize,
        found: &mut ViolationList<'s>,
    ) -> usize {
        let (begin, first) = (at, found.listed.len());
        let (mut at, mut count, mut likely) = (at + 1, 0, 0);
        let mut seen = SeenFields::default();
        while self.text.byte_at(at) == b'"' {
            // Fields of the value and of the schema are both sorted, so the next field usually matches the next
            // rule.
            let (name, value, place) = match fields.fields.get(likely) {
                Some(field) if field.key.is_at(self.text, at) => {
                    (&*field.name, at + field.key.len, Some(likely))
                }
                _ => self.find_field(fields, at),
            };
            let mut node = None;
            if let Some(place) = place {
                seen.insert(place);
                likely = place + 1;
                node = fields.fields[place].node;
            }
            let path = ValuePath::Field(path, name);
            let end = match (node, fields.additional) {
                (Some(node), _) | (None, AdditionalFields::MatchingSchema(node)) => {
                    self.visit_value(node, value, &path, depth + 1, found)
                }
                (None, AdditionalFields::Forbidden) => {
                    found.push(&path, value, ViolationKind::UnknownField(&fields.known_names));
                    None
                }
                (None, AdditionalFields::Unconstrained) => None,
            };
            at = end.unwrap_or_else(|| self.text.value_end(value));
            at += usize::from(self.text.byte_at(at) == b',');
            count += 1;
        }
        // Missing fields are reported first.
        let missing = fields.required.iter().filter(|place| !seen.contains(**place));
        for (before, place) in missing.enumerate() {
            let path = ValuePath::Field(path, &fields.fields[*place].name);
            found.insert(first + before, &path, begin, ViolationKind::MissingField);
        }
        check_size(fields.size, count, ["field", "fields"], path, begin, found);
        at + 1
    }

    /// Returns the name of the field at a position, the position of its value, and its index among the rules.
    fn find_field<'a>(&self, fields: &'a ObjectRules, at: usize) -> (&'a str, usize, Option<usize>)
    where
        't: 'a,
    {
        let key_end = self.text.string_end(at);
        let name = self.text.slice(at + 1, key_end - 1);
        let place = fields.fields.binary_search_by(|field| (*field.name).cmp(name)).ok();
        (name, key_end + 1, place)
    }

    fn visit_array(
        &mut self,
        items: &'s ArrayRules,
        at: usize,
        path: &ValuePath<'_>,
        depth: usize,
        found: &mut ViolationList<'s>,
    ) -> usize {
        let begin = at;
        let (mut at, mut count) = (at + 1, 0);
        let mut places = Vec::new();
        while !matches!(self.text.byte_at(at), b']' | 0) {
            let node = items.prefix_items.get(count).copied().or(items.items);
            let end = node.and_then(|node| {
                self.visit_value(node, at, &ValuePath::Index(path, count), depth + 1, found)
            });
            let end = end.unwrap_or_else(|| self.text.value_end(at));
            if items.are_unique {
                places.push((at, end));
            }
            at = end + usize::from(self.text.byte_at(end) == b',');
            count += 1;
        }
        check_size(items.size, count, ["item", "items"], path, begin, found);
        let mut seen = BTreeSet::new();
        for (index, (from, until)) in places.into_iter().enumerate() {
            if !seen.insert(self.text.slice(from, until)) {
                found.push(&ValuePath::Index(path, index), from, ViolationKind::DuplicateItem);
            }
        }
        at + 1
    }

    fn visit_union(
        &mut self,
        branches: &[SchemaNodeId],
        one_only: bool,
        at: usize,
        path: &ValuePath<'_>,
        depth: usize,
        found: &mut ViolationList<'s>,
    ) -> Option<usize> {
        let mut fits = 0;
        let mut end = None;
        let mut tried = Vec::new();
        for branch in branches {
            let mut own = ViolationList::default();
            end = self.visit_value(*branch, at, path, depth + 1, &mut own).or(end);
            if own.count > 0 {
                tried.push(own);
                continue;
            }
            fits += 1;
            if !one_only {
                return end;
            }
        }
        let here = path.depth();
        if fits > 1 {
            found.push(path, at, ViolationKind::AmbiguousUnion);
        } else if fits == 0 {
            if let Some(what) = merge_branch_mismatches(&tried, here) {
                found.push(path, at, what);
            } else if let Some(closest) = tried.into_iter().min_by_key(|own| own.branch_distance(here)) {
                found.append(closest);
            }
        }
        end
    }

    fn check_bounds(
        &self,
        rules: &'s SchemaRules,
        at: usize,
        path: &ValuePath<'_>,
        found: &mut ViolationList<'s>,
    ) {
        let text = self.text.value_at(at);
        let number = text.parse::<i64>().map(Number::from).or_else(|_| serde_json::from_str(text));
        let Ok(number) = number else { return };
        for bound in &rules.bounds {
            let fits = compare_numbers(&number, &bound.limit).is_none_or(|order| match bound.kind {
                BoundSide::AtLeast => order.is_ge(),
                BoundSide::AtMost => order.is_le(),
                BoundSide::MoreThan => order.is_gt(),
                BoundSide::LessThan => order.is_lt(),
            });
            if !fits {
                found.push(path, at, ViolationKind::OutOfBounds(bound));
            }
        }
    }
}

/// The set of declared fields that the object has.
#[derive(Default)]
struct SeenFields {
    first_word: u64,
    more_words: Vec<u64>,
}

impl SeenFields {
    fn insert(&mut self, place: usize) {
        let bit = 1 << (place % 64);
        match (place / 64).checked_sub(1) {
            None => self.first_word |= bit,
            Some(word) => {
                if self.more_words.len() <= word {
                    self.more_words.resize(word + 1, 0);
                }
                self.more_words[word] |= bit;
            }
        }
    }

    fn contains(&self, place: usize) -> bool {
        let word = match (place / 64).checked_sub(1) {
            None => self.first_word,
            Some(word) => self.more_words.get(word).copied().unwrap_or_default(),
        };
        word & (1 << (place % 64)) != 0
    }
}

fn check_size(
    limits: SizeRange,
    size: usize,
    of: [&'static str; 2],
    path: &ValuePath<'_>,
    at: usize,
    found: &mut ViolationList<'_>,
) {
    if let Some(least) = limits.min.filter(|least| (size as u64) < *least) {
        found.push(path, at, ViolationKind::WrongSize { limit: SizeLimit::Min(least), size, unit: of });
    }
    if let Some(most) = limits.max.filter(|most| size as u64 > *most) {
        found.push(path, at, ViolationKind::WrongSize { limit: SizeLimit::Max(most), size, unit: of });
    }
}

/// Compares integers exactly; as doubles, 2^53 and 2^53 + 1 would be equal.
fn compare_numbers(a: &Number, b: &Number) -> Option<Ordering> {
    let whole = |number: &Number| number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    match (whole(a), whole(b)) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => a.as_f64()?.partial_cmp(&b.as_f64()?),
    }
}

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;

//! Does a value fit a schema? Lists every way in which it does not, in words that a model can act on.
//!
//! What is not understood (`pattern`, `format`, `not` …) is ignored: such a rule is the tool's own to enforce.
//! The work is bounded, whatever the schema and the value are. The value is canonical text, and is checked where it
//! stands: its first byte says what it is, and equal values are equal texts.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Number, Value};

use super::found::{Found, Limit, Path, What, nothing_near};
use super::shape::{Begins, Fields, Items, Node, NodeId, Rest, Rules, Side, Size, Types, nodes};
use super::words::plain;
use crate::canonical::canonical;
use crate::scan::Canonical;

/// How deep a schema may lead, references included.
const DEPTH: usize = 96;
/// How many schemas are looked at. Unions of references to themselves would otherwise not end in our lifetime.
const STEPS: usize = 100_000;

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

/// Checks `value` against `schema`. Empty means that it fits. Whoever checks against it again keeps a [`Shape`](super::Shape).
pub fn check(schema: &Value, value: &Value) -> Vec<Problem> {
    check_text(&nodes(schema), &canonical(value))
}

/// The problems as one text, separated by semicolons.
pub fn describe(problems: &[Problem]) -> String {
    let mut text = String::new();
    for (at, problem) in problems.iter().enumerate() {
        for part in [if at > 0 { "; `" } else { "`" }, &problem.path, "` ", &problem.message] {
            text.push_str(part);
        }
    }
    text
}

pub(super) fn check_text(nodes: &[Node], text: &str) -> Vec<Problem> {
    let mut checker = Checker { nodes, text: Canonical(text), steps: STEPS };
    let mut found = Found::default();
    checker.visit(0, 0, &Path::Root, 0, &mut found);
    let more = found.count - found.list.len();
    let mut problems: Vec<Problem> = Vec::with_capacity(found.list.len() + 1);
    for note in found.list {
        let message = note.what.message(checker.text, note.at);
        problems.push(Problem { path: note.path, message });
    }
    if more > 0 {
        let message = format!("has {more} more {}", if more == 1 { "problem" } else { "problems" });
        problems.push(Problem { path: Path::Root.to_text(), message });
    }
    problems
}

struct Checker<'s, 't> {
    nodes: &'s [Node],
    text: Canonical<'t>,
    steps: usize,
}

impl<'s, 't> Checker<'s, 't> {
    /// Checks the value that begins at a place. Says where it ends, if that was found out.
    #[inline(always)]
    fn visit(
        &mut self,
        node: NodeId,
        at: usize,
        path: &Path<'_>,
        depth: usize,
        found: &mut Found<'s>,
    ) -> Option<usize> {
        if let Some(Node::Typed(types)) = self.nodes.get(node)
            && self.steps > 0
            && depth <= DEPTH
        {
            self.steps -= 1;
            return self.visit_typed(types, at, path, found);
        }
        self.visit_node(node, at, path, depth, found)
    }

    fn visit_node(
        &mut self,
        node: NodeId,
        at: usize,
        path: &Path<'_>,
        depth: usize,
        found: &mut Found<'s>,
    ) -> Option<usize> {
        let (mut node, mut depth, nodes) = (node, depth, self.nodes);
        loop {
            if self.steps == 0 || depth > DEPTH {
                found.add(path, at, What::TooMuch);
                return None;
            }
            self.steps -= 1;
            match nodes.get(node)? {
                Node::Same(target) => (node, depth) = (*target, depth + 1),
                Node::Typed(types) => return self.visit_typed(types, at, path, found),
                Node::Rules(rules) if !rules.has_more => {
                    let fits =
                        rules.types.as_ref().is_none_or(|types| self.check_type(types, at, path, found));
                    return if fits { self.visit_parts(rules, at, path, depth, found) } else { None };
                }
                Node::Rules(rules) => return self.visit_rules(rules, at, path, depth, found),
                Node::Nothing => {
                    found.add(path, at, What::Unwanted);
                    return None;
                }
                Node::Anything => return None,
            }
        }
    }

    fn visit_rules(
        &mut self,
        rules: &'s Rules,
        at: usize,
        path: &Path<'_>,
        depth: usize,
        found: &mut Found<'s>,
    ) -> Option<usize> {
        let kind = Begins::of(self.text.byte(at));
        if rules.nullable && kind == Begins::of(b'n') {
            return None;
        }
        let mut end = None;
        match &rules.reference {
            None => {}
            Some(Ok(target)) => end = self.visit(*target, at, path, depth + 1, found),
            Some(Err(target)) => found.add(path, at, What::NoTarget(target)),
        }
        // What else the schema asks for is asked of the right type.
        if rules.types.as_ref().is_some_and(|types| !self.check_type(types, at, path, found)) {
            return end;
        }
        for choice in &rules.choices {
            let value = self.text.value(at);
            end = Some(at + value.len());
            if !choice.texts.iter().any(|allowed| allowed == value) {
                found.add(path, at, What::Choice(Cow::Borrowed(&choice.names)));
            }
        }
        end = self.visit_parts(rules, at, path, depth, found).or(end);
        if self.text.byte(at) == b'"' && !rules.length.is_any() {
            let length = plain(self.text.string(at)).chars().count();
            check_size(rules.length, length, ["character", "characters"], path, at, found);
        } else if kind.is_number() && !rules.bounds.is_empty() {
            self.check_bounds(rules, at, path, found);
        }
        for part in &rules.all_of {
            end = self.visit(*part, at, path, depth + 1, found).or(end);
        }
        for (branches, one_only) in [(&rules.any_of, false), (&rules.one_of, true)] {
            if !branches.is_empty() {
                end = self.visit_union(branches, one_only, at, path, depth, found).or(end);
            }
        }
        end
    }

    /// What most values are, at hand.
    #[inline(always)]
    fn visit_typed(
        &self,
        types: &'s Types,
        at: usize,
        path: &Path<'_>,
        found: &mut Found<'s>,
    ) -> Option<usize> {
        match self.text.byte(at) {
            b'"' if types.begins.has(Begins::of(b'"')) => Some(self.text.string_end(at)),
            b'0'..=b'9' if types.begins.has(Begins::of(b'0')) => {
                let end = self.digits_end(at);
                match self.text.byte(end) {
                    b',' | b'}' | b']' => Some(end),
                    _ => self.visit_other(types, at, path, found),
                }
            }
            _ => self.visit_other(types, at, path, found),
        }
    }

    #[inline(never)]
    fn visit_other(
        &self,
        types: &'s Types,
        at: usize,
        path: &Path<'_>,
        found: &mut Found<'s>,
    ) -> Option<usize> {
        // Where objects and lists end is for whoever goes over them to say.
        let is_short = !matches!(self.text.byte(at), b'{' | b'[');
        (self.check_type(types, at, path, found) && is_short).then(|| self.text.value_end(at))
    }

    fn check_type(&self, types: &'s Types, at: usize, path: &Path<'_>, found: &mut Found<'s>) -> bool {
        let kind = Begins::of(self.text.byte(at));
        let fits = types.begins.has(kind) && !(types.is_whole && kind.is_number() && !self.is_whole(at));
        if !fits {
            found.add(path, at, What::Type(Cow::Borrowed(&types.words)));
        }
        fits
    }

    #[inline]
    fn digits_end(&self, at: usize) -> usize {
        let mut end = at;
        while self.text.byte(end).is_ascii_digit() {
            end += 1;
        }
        end
    }

    /// Whether a number has no fraction. Doubles with a positive exponent are too large to have one.
    fn is_whole(&self, at: usize) -> bool {
        !matches!(self.text.byte(self.digits_end(at + 1)), b'.' | b'e')
            || self.text.value(at).bytes().any(|byte| byte == b'+')
    }

    #[inline]
    fn visit_parts(
        &mut self,
        rules: &'s Rules,
        at: usize,
        path: &Path<'_>,
        depth: usize,
        found: &mut Found<'s>,
    ) -> Option<usize> {
        match self.text.byte(at) {
            b'{' => Some(self.visit_object(&rules.fields, at, path, depth, found)),
            b'[' => Some(self.visit_list(&rules.items, at, path, depth, found)),
            _ => None,
        }
    }

    fn visit_object(
        &mut self,
        fields: &'s Fields,
        at: usize,
        path: &Path<'_>,
        depth: usize,
        found: &mut Found<'s>,
    ) -> usize {
        let (begin, first) = (at, found.list.len());
        let (mut at, mut count, mut likely) = (at + 1, 0, 0);
        let mut seen = Seen::default();
        while self.text.byte(at) == b'"' {
            // Both are sorted, so the next field is the one after the last, as a rule.
            let (name, value, place) = match fields.named.get(likely) {
                Some(field) if field.key.is_at(self.text, at) => {
                    (&*field.name, at + field.key.len, Some(likely))
                }
                _ => self.find(fields, at),
            };
            let mut node = None;
            if let Some(place) = place {
                seen.add(place);
                likely = place + 1;
                node = fields.named[place].node;
            }
            let path = Path::Field(path, name);
            let end = match (node, fields.rest) {
                (Some(node), _) | (None, Rest::Checked(node)) => {
                    self.visit(node, value, &path, depth + 1, found)
                }
                (None, Rest::Refused) => {
                    found.add(&path, value, What::Unknown(&fields.known));
                    None
                }
                (None, Rest::Unchecked) => None,
            };
            at = end.unwrap_or_else(|| self.text.value_end(value));
            at += usize::from(self.text.byte(at) == b',');
            count += 1;
        }
        // What is missing is told first.
        let missing = fields.required.iter().filter(|place| !seen.has(**place));
        for (before, place) in missing.enumerate() {
            let path = Path::Field(path, &fields.named[*place].name);
            found.insert(first + before, &path, begin, What::Missing);
        }
        check_size(fields.size, count, ["field", "fields"], path, begin, found);
        at + 1
    }

    /// The name of a field at a place, where its value begins, and which of the named ones it is.
    fn find<'a>(&self, fields: &'a Fields, at: usize) -> (&'a str, usize, Option<usize>)
    where
        't: 'a,
    {
        let key_end = self.text.string_end(at);
        let name = self.text.between(at + 1, key_end - 1);
        let place = fields.named.binary_search_by(|field| (*field.name).cmp(name)).ok();
        (name, key_end + 1, place)
    }

    fn visit_list(
        &mut self,
        items: &'s Items,
        at: usize,
        path: &Path<'_>,
        depth: usize,
        found: &mut Found<'s>,
    ) -> usize {
        let begin = at;
        let (mut at, mut count) = (at + 1, 0);
        let mut places = Vec::new();
        while !matches!(self.text.byte(at), b']' | 0) {
            let node = items.first.get(count).copied().or(items.rest);
            let end = node.and_then(|node| self.visit(node, at, &Path::Index(path, count), depth + 1, found));
            let end = end.unwrap_or_else(|| self.text.value_end(at));
            if items.are_unique {
                places.push((at, end));
            }
            at = end + usize::from(self.text.byte(end) == b',');
            count += 1;
        }
        check_size(items.size, count, ["item", "items"], path, begin, found);
        let mut seen = BTreeSet::new();
        for (index, (from, until)) in places.into_iter().enumerate() {
            if !seen.insert(self.text.between(from, until)) {
                found.add(&Path::Index(path, index), from, What::Repeated);
            }
        }
        at + 1
    }

    fn visit_union(
        &mut self,
        branches: &[NodeId],
        one_only: bool,
        at: usize,
        path: &Path<'_>,
        depth: usize,
        found: &mut Found<'s>,
    ) -> Option<usize> {
        let mut fits = 0;
        let mut end = None;
        let mut tried = Vec::new();
        for branch in branches {
            let mut own = Found::default();
            end = self.visit(*branch, at, path, depth + 1, &mut own).or(end);
            if own.count > 0 {
                tried.push(own);
                continue;
            }
            fits += 1;
            if !one_only {
                return end;
            }
        }
        let here = path.len();
        if fits > 1 {
            found.add(path, at, What::Ambiguous);
        } else if fits == 0 {
            if let Some(what) = nothing_near(&tried, here) {
                found.add(path, at, what);
            } else if let Some(closest) = tried.into_iter().min_by_key(|own| own.distance(here)) {
                found.append(closest);
            }
        }
        end
    }

    fn check_bounds(&self, rules: &'s Rules, at: usize, path: &Path<'_>, found: &mut Found<'s>) {
        let text = self.text.value(at);
        let number = text.parse::<i64>().map(Number::from).or_else(|_| serde_json::from_str(text));
        let Ok(number) = number else { return };
        for bound in &rules.bounds {
            let fits = compare(&number, &bound.limit).is_none_or(|order| match bound.side {
                Side::AtLeast => order.is_ge(),
                Side::AtMost => order.is_le(),
                Side::MoreThan => order.is_gt(),
                Side::LessThan => order.is_lt(),
            });
            if !fits {
                found.add(path, at, What::Bound(bound));
            }
        }
    }
}

/// Which of the named fields are there.
#[derive(Default)]
struct Seen {
    first: u64,
    rest: Vec<u64>,
}

impl Seen {
    fn add(&mut self, place: usize) {
        let bit = 1 << (place % 64);
        match (place / 64).checked_sub(1) {
            None => self.first |= bit,
            Some(word) => {
                if self.rest.len() <= word {
                    self.rest.resize(word + 1, 0);
                }
                self.rest[word] |= bit;
            }
        }
    }

    fn has(&self, place: usize) -> bool {
        let word = match (place / 64).checked_sub(1) {
            None => self.first,
            Some(word) => self.rest.get(word).copied().unwrap_or_default(),
        };
        word & (1 << (place % 64)) != 0
    }
}

fn check_size(
    limits: Size,
    size: usize,
    of: [&'static str; 2],
    path: &Path<'_>,
    at: usize,
    found: &mut Found<'_>,
) {
    if let Some(least) = limits.least.filter(|least| (size as u64) < *least) {
        found.add(path, at, What::Size { limit: Limit::Least(least), size, of });
    }
    if let Some(most) = limits.most.filter(|most| size as u64 > *most) {
        found.add(path, at, What::Size { limit: Limit::Most(most), size, of });
    }
}

/// Integers are compared with all their digits; a double would take 2^53 and its successor for the same.
fn compare(a: &Number, b: &Number) -> Option<Ordering> {
    let whole = |number: &Number| number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    match (whole(a), whole(b)) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => a.as_f64()?.partial_cmp(&b.as_f64()?),
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;

//! Violations: their path, their kind and their message.

use std::borrow::Cow;
use std::fmt::{self, Write};

use super::compiled::{BoundSide, NumberBound};
use super::wording::{
    MAX_QUOTED_CHARS, describe_value, join_truncated, join_with_or, quote_text, truncate_text,
    unescape_string,
};
use crate::canonical::scan::CanonicalText;
use crate::canonical::write_number;

/// Maximum number of violations that are listed; the rest are only counted.
pub(super) const MAX_LISTED: usize = 20;

/// The path of the value that is being validated. It borrows its parents, so that valid values cause no
/// allocation.
pub(super) enum ValuePath<'a> {
    Root,
    /// A field, with its name as in canonical text.
    Field(&'a Self, &'a str),
    Index(&'a Self, usize),
}

impl ValuePath<'_> {
    pub(super) fn depth(&self) -> usize {
        match self {
            Self::Root => 0,
            Self::Field(parent, _) | Self::Index(parent, _) => parent.depth() + 1,
        }
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = String::with_capacity(32);
        self.write_to(&mut text);
        if text.is_empty() { "arguments".to_owned() } else { text }
    }

    /// Writes the path from the root. The root itself is written only before an index.
    fn write_to(&self, out: &mut String) {
        let parent = match self {
            Self::Root => return,
            Self::Field(parent, _) | Self::Index(parent, _) => parent,
        };
        parent.write_to(out);
        match self {
            Self::Field(_, name) => {
                let name = &*unescape_string(name);
                let is_plain = !name.is_empty()
                    && name.len() <= 2 * MAX_QUOTED_CHARS
                    && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '$'));
                match (parent, is_plain) {
                    (Self::Root, true) => out.push_str(name),
                    (_, true) => {
                        out.push('.');
                        out.push_str(name);
                    }
                    (parent, false) => parent.write_index(out, quote_text(name)),
                }
            }
            Self::Index(parent, at) => parent.write_index(out, at),
            Self::Root => {}
        }
    }

    fn write_index(&self, out: &mut String, index: impl fmt::Display) {
        let root = if matches!(self, Self::Root) { "arguments" } else { "" };
        let written = write!(out, "{root}[{index}]");
        debug_assert!(written.is_ok(), "writing to a string does not fail");
    }
}

/// The kind of a violation. Its message is formatted only if it is reported.
#[derive(Clone)]
pub(super) enum ViolationKind<'s> {
    LimitExceeded,
    UnresolvedReference(&'s str),
    /// The value has the wrong type; holds the allowed types.
    WrongType(Cow<'s, [String]>),
    /// The value is not one of the allowed values; holds them as display text.
    NotAllowedValue(Cow<'s, [String]>),
    ForbiddenValue,
    MissingField,
    UnknownField(&'s [String]),
    WrongSize {
        limit: SizeLimit,
        size: usize,
        unit: [&'static str; 2],
    },
    OutOfBounds(&'s NumberBound),
    DuplicateItem,
    AmbiguousUnion,
}

#[derive(Clone, Copy)]
pub(super) enum SizeLimit {
    Min(u64),
    Max(u64),
}

impl ViolationKind<'_> {
    /// Returns true if a field is missing or not allowed.
    fn is_field_mismatch(&self) -> bool {
        matches!(self, Self::ForbiddenValue | Self::MissingField | Self::UnknownField(_))
    }

    pub(super) fn message(&self, text: CanonicalText<'_>, at: usize) -> String {
        match self {
            Self::LimitExceeded => "is too deep or too large to be checked".to_owned(),
            Self::UnresolvedReference(target) => {
                format!("cannot be checked: the schema refers to `{target}`, which it does not have")
            }
            Self::WrongType(wanted) => {
                format!("must be {}, is {}", join_with_or(wanted), describe_value(text, at))
            }
            Self::NotAllowedValue(allowed) => match &**allowed {
                [one] => format!("must be {one}, is {}", describe_value(text, at)),
                several => {
                    format!("must be one of {}, is {}", join_truncated(several), describe_value(text, at))
                }
            },
            Self::ForbiddenValue => format!("must not be given, is {}", describe_value(text, at)),
            Self::MissingField => "is missing".to_owned(),
            Self::UnknownField([]) => "is not a known field; no fields are known here".to_owned(),
            Self::UnknownField(known) => {
                format!("is not a known field; known are: {}", join_truncated(known))
            }
            Self::WrongSize { limit, size, unit: [one, many] } => {
                let (words, limit) = match limit {
                    SizeLimit::Min(least) => ("at least", least),
                    SizeLimit::Max(most) => ("at most", most),
                };
                format!("must have {words} {limit} {}, has {size}", if *limit == 1 { one } else { many })
            }
            Self::OutOfBounds(bound) => {
                let words = match bound.kind {
                    BoundSide::AtLeast => "at least",
                    BoundSide::AtMost => "at most",
                    BoundSide::MoreThan => "more than",
                    BoundSide::LessThan => "less than",
                };
                let mut limit = String::new();
                write_number(&bound.limit, &mut limit);
                format!("must be {words} {}, is {}", truncate_text(&limit), truncate_text(text.value_at(at)))
            }
            Self::DuplicateItem => "repeats an earlier item".to_owned(),
            Self::AmbiguousUnion => "fits more than one of the allowed forms".to_owned(),
        }
    }
}

pub(super) struct ViolationNote<'s> {
    pub(super) path: String,
    /// Length of the path.
    depth: usize,
    /// Position of the value in the text.
    pub(super) value_at: usize,
    pub(super) kind: ViolationKind<'s>,
}

#[derive(Default)]
pub(super) struct ViolationList<'s> {
    pub(super) listed: Vec<ViolationNote<'s>>,
    pub(super) count: usize,
}

impl<'s> ViolationList<'s> {
    #[cold]
    pub(super) fn push(&mut self, path: &ValuePath<'_>, at: usize, what: ViolationKind<'s>) {
        self.insert(self.listed.len(), path, at, what);
    }

    /// Inserts a violation before others. Violations beyond the limit are only counted.
    pub(super) fn insert(&mut self, place: usize, path: &ValuePath<'_>, at: usize, what: ViolationKind<'s>) {
        self.count += 1;
        if place < MAX_LISTED {
            self.listed.insert(
                place,
                ViolationNote { path: path.to_text(), depth: path.depth(), value_at: at, kind: what },
            );
            self.listed.truncate(MAX_LISTED);
        }
    }

    pub(super) fn append(&mut self, other: Self) {
        self.count += other.count;
        let room = MAX_LISTED - self.listed.len();
        self.listed.extend(other.listed.into_iter().take(room));
    }

    /// Returns a ranking key for a union branch; lower means that the value at `depth` was more likely meant
    /// for this branch: it has the right type, then the right tag, then the right fields.
    pub(super) fn branch_distance(&self, depth: usize) -> (bool, usize, usize, usize) {
        let count =
            |test: &dyn Fn(&ViolationNote<'_>) -> bool| self.listed.iter().filter(|note| test(note)).count();
        (
            count(&|note| {
                note.depth == depth
                    && matches!(note.kind, ViolationKind::WrongType(_) | ViolationKind::NotAllowedValue(_))
            }) > 0,
            count(&|note| note.depth == depth + 1 && matches!(note.kind, ViolationKind::NotAllowedValue(_))),
            count(&|note| note.depth == depth + 1 && note.kind.is_field_mismatch()),
            self.count,
        )
    }
}

/// Returns one violation that names all alternatives if every branch expects another type or another value.
pub(super) fn merge_branch_mismatches<'s>(
    tried: &[ViolationList<'s>],
    here: usize,
) -> Option<ViolationKind<'s>> {
    let (mut types, mut choices): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for own in tried {
        let [note] = own.listed.as_slice() else { return None };
        let (into, from) = match &note.kind {
            ViolationKind::WrongType(from) if note.depth == here => (&mut types, from),
            ViolationKind::NotAllowedValue(from) if note.depth == here => (&mut choices, from),
            _ => return None,
        };
        for name in &**from {
            if !into.contains(name) {
                into.push(name.clone());
            }
        }
    }
    match (types.is_empty(), choices.is_empty()) {
        (false, true) => Some(ViolationKind::WrongType(types.into())),
        (true, true) => None,
        // `null` beside a list of values is listed as one of them.
        (_, false) => {
            choices.append(&mut types);
            Some(ViolationKind::NotAllowedValue(choices.into()))
        }
    }
}

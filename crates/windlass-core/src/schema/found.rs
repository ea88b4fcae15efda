//! What a check finds: where, what, and how it is put.

use std::borrow::Cow;
use std::fmt::{self, Write};

use super::shape::{Bound, Side};
use super::words::{QUOTED, cut, either, enumerated, plain, quoted, shown};
use crate::canonical::write_number;
use crate::scan::Canonical;

/// How many problems are listed before the rest is only counted.
pub(super) const LISTED: usize = 20;

/// Where the check stands. A list of borrowed steps, so that a value that fits costs no text.
pub(super) enum Path<'a> {
    Root,
    /// A field, its name as canonical text has it.
    Field(&'a Self, &'a str),
    Index(&'a Self, usize),
}

impl Path<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Root => 0,
            Self::Field(parent, _) | Self::Index(parent, _) => parent.len() + 1,
        }
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = String::with_capacity(32);
        self.write(&mut text);
        if text.is_empty() { "arguments".to_owned() } else { text }
    }

    /// Writes the steps from the root on; the root itself is nothing where a plain name follows.
    fn write(&self, out: &mut String) {
        let parent = match self {
            Self::Root => return,
            Self::Field(parent, _) | Self::Index(parent, _) => parent,
        };
        parent.write(out);
        match self {
            Self::Field(_, name) => {
                let name = &*plain(name);
                let is_plain = !name.is_empty()
                    && name.len() <= 2 * QUOTED
                    && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '$'));
                match (parent, is_plain) {
                    (Self::Root, true) => out.push_str(name),
                    (_, true) => {
                        out.push('.');
                        out.push_str(name);
                    }
                    (parent, false) => parent.write_index(out, quoted(name)),
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

/// What is wrong. It is put into words only where it is told.
#[derive(Clone)]
pub(super) enum What<'s> {
    TooMuch,
    NoTarget(&'s str),
    /// The wrong type; holds the right ones.
    Type(Cow<'s, [String]>),
    /// Not one of the allowed values; holds them, written out.
    Choice(Cow<'s, [String]>),
    Unwanted,
    Missing,
    Unknown(&'s [String]),
    Size {
        limit: Limit,
        size: usize,
        of: [&'static str; 2],
    },
    Bound(&'s Bound),
    Repeated,
    Ambiguous,
}

#[derive(Clone, Copy)]
pub(super) enum Limit {
    Least(u64),
    Most(u64),
}

impl What<'_> {
    /// Whether a field is missing or should not be there.
    fn is_shape(&self) -> bool {
        matches!(self, Self::Unwanted | Self::Missing | Self::Unknown(_))
    }

    pub(super) fn message(&self, text: Canonical<'_>, at: usize) -> String {
        match self {
            Self::TooMuch => "is too deep or too large to be checked".to_owned(),
            Self::NoTarget(target) => {
                format!("cannot be checked: the schema refers to `{target}`, which it does not have")
            }
            Self::Type(wanted) => format!("must be {}, is {}", either(wanted), shown(text, at)),
            Self::Choice(allowed) => match &**allowed {
                [one] => format!("must be {one}, is {}", shown(text, at)),
                several => format!("must be one of {}, is {}", enumerated(several), shown(text, at)),
            },
            Self::Unwanted => format!("must not be given, is {}", shown(text, at)),
            Self::Missing => "is missing".to_owned(),
            Self::Unknown([]) => "is not a known field; no fields are known here".to_owned(),
            Self::Unknown(known) => format!("is not a known field; known are: {}", enumerated(known)),
            Self::Size { limit, size, of: [one, many] } => {
                let (words, limit) = match limit {
                    Limit::Least(least) => ("at least", least),
                    Limit::Most(most) => ("at most", most),
                };
                format!("must have {words} {limit} {}, has {size}", if *limit == 1 { one } else { many })
            }
            Self::Bound(bound) => {
                let words = match bound.side {
                    Side::AtLeast => "at least",
                    Side::AtMost => "at most",
                    Side::MoreThan => "more than",
                    Side::LessThan => "less than",
                };
                let mut limit = String::new();
                write_number(&bound.limit, &mut limit);
                format!("must be {words} {}, is {}", cut(&limit), cut(text.value(at)))
            }
            Self::Repeated => "repeats an earlier item".to_owned(),
            Self::Ambiguous => "fits more than one of the allowed forms".to_owned(),
        }
    }
}

pub(super) struct Note<'s> {
    pub(super) path: String,
    /// How long the path is.
    depth: usize,
    /// Where the value begins.
    pub(super) at: usize,
    pub(super) what: What<'s>,
}

#[derive(Default)]
pub(super) struct Found<'s> {
    pub(super) list: Vec<Note<'s>>,
    pub(super) count: usize,
}

impl<'s> Found<'s> {
    #[cold]
    pub(super) fn add(&mut self, path: &Path<'_>, at: usize, what: What<'s>) {
        self.insert(self.list.len(), path, at, what);
    }

    /// Adds a problem before others. Those that no longer find room are only counted.
    pub(super) fn insert(&mut self, place: usize, path: &Path<'_>, at: usize, what: What<'s>) {
        self.count += 1;
        if place < LISTED {
            self.list.insert(place, Note { path: path.to_text(), depth: path.len(), at, what });
            self.list.truncate(LISTED);
        }
    }

    pub(super) fn append(&mut self, other: Self) {
        self.count += other.count;
        let room = LISTED - self.list.len();
        self.list.extend(other.list.into_iter().take(room));
    }

    /// The lower, the likelier it is that the value at `depth` was meant for this branch: it has the right type,
    /// then the right tag, then the right fields.
    pub(super) fn distance(&self, depth: usize) -> (bool, usize, usize, usize) {
        let count = |test: &dyn Fn(&Note<'_>) -> bool| self.list.iter().filter(|note| test(note)).count();
        (
            count(&|note| note.depth == depth && matches!(note.what, What::Type(_) | What::Choice(_))) > 0,
            count(&|note| note.depth == depth + 1 && matches!(note.what, What::Choice(_))),
            count(&|note| note.depth == depth + 1 && note.what.is_shape()),
            self.count,
        )
    }
}

/// Where every branch wants another type or another value, one problem that names them all.
pub(super) fn nothing_near<'s>(tried: &[Found<'s>], here: usize) -> Option<What<'s>> {
    let (mut types, mut choices): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for own in tried {
        let [note] = own.list.as_slice() else { return None };
        let (into, from) = match &note.what {
            What::Type(from) if note.depth == here => (&mut types, from),
            What::Choice(from) if note.depth == here => (&mut choices, from),
            _ => return None,
        };
        for name in &**from {
            if !into.contains(name) {
                into.push(name.clone());
            }
        }
    }
    match (types.is_empty(), choices.is_empty()) {
        (false, true) => Some(What::Type(types.into())),
        (true, true) => None,
        // `null` beside a list of values is a value like them.
        (_, false) => {
            choices.append(&mut types);
            Some(What::Choice(choices.into()))
        }
    }
}

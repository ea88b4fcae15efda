//! Conditions of a rule: on an argument, and on the time of day.

use std::cmp::Ordering;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use regex::Regex;
use serde_json::Value;

use super::rule::NamePattern;

/// The text in the place of a secret argument, in stored calls.
pub(super) const SECRET_PLACEHOLDER: &str = "[secret]";

/// Returns true if a value has a secret that was taken out of it, so that nobody can tell what it was.
pub(super) fn has_lost_secret(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains(SECRET_PLACEHOLDER),
        Value::Array(values) => values.iter().any(has_lost_secret),
        Value::Object(fields) => fields.values().any(has_lost_secret),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// The result of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConditionOutcome {
    Holds,
    Fails,
    /// The argument is there, but the condition does not apply to it: another type, an ambiguous path or address, or a
    /// secret that was not kept.
    Unknown,
}

impl ConditionOutcome {
    fn of(holds: bool) -> Self {
        if holds { Self::Holds } else { Self::Fails }
    }

    pub(super) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Holds, _) | (_, Self::Holds) => Self::Holds,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Fails, Self::Fails) => Self::Fails,
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Fails, _) | (_, Self::Fails) => Self::Fails,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Holds, Self::Holds) => Self::Holds,
        }
    }
}

/// The direction in which a rule decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleStrictness {
    /// The rule allows calls.
    Allows,
    /// The rule asks about calls, or denies them.
    Restricts,
}

impl RuleStrictness {
    /// Combines the outcomes for two values that a condition is about: a rule that allows needs both to hold, one that asks
    /// or denies only one of them.
    fn combine(self, one: ConditionOutcome, other: ConditionOutcome) -> ConditionOutcome {
        match self {
            Self::Allows => one.and(other),
            Self::Restricts => one.or(other),
        }
    }
}

/// The reading of paths in arguments.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathReading<'a> {
    /// The folder against which relative paths are resolved.
    pub(super) workspace: &'a Path,
    pub(super) links: LinkReading,
}

/// The treatment of links of the file system in paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkReading {
    /// A path is also judged by the place that it leads to now. A rule that asks or denies matches if it did not match by
    /// the text, but never the other way round.
    Followed,
    /// A path is judged by its text alone, which is the same at any time.
    Ignored,
}

/// A condition on one argument; all of its parts must hold.
#[derive(Clone, Debug, Default)]
pub(super) struct ArgumentCondition {
    pub(super) equals: Vec<Value>,
    pub(super) at_most: Option<f64>,
    pub(super) at_least: Option<f64>,
    pub(super) inside: Vec<PathBuf>,
    pub(super) hosts: Vec<NamePattern>,
    pub(super) matches: Option<Regex>,
}

impl ArgumentCondition {
    /// Checks the argument at a path of field names joined by dots. Lists on the path stand for their elements: for a
    /// rule that allows, every element must satisfy the condition; for one that asks or denies, one of them.
    pub(super) fn check(
        &self,
        arguments: &Value,
        path: &str,
        paths: PathReading<'_>,
        strictness: RuleStrictness,
    ) -> ConditionOutcome {
        let fields: Vec<&str> = path.split('.').collect();
        self.check_fields(arguments, &fields, paths, strictness)
    }

    fn check_fields(
        &self,
        value: &Value,
        fields: &[&str],
        paths: PathReading<'_>,
        strictness: RuleStrictness,
    ) -> ConditionOutcome {
        match (value, fields.split_first()) {
            (Value::Null, _) => ConditionOutcome::Fails,
            (Value::String(_), _) if has_lost_secret(value) => ConditionOutcome::Unknown,
            (Value::Array(values), _) => {
                let is_named = fields.is_empty() && self.equals.contains(value);
                if is_named || values.is_empty() {
                    return if is_named { ConditionOutcome::Holds } else { ConditionOutcome::Unknown };
                }
                let outcomes = values.iter().map(|value| self.check_fields(value, fields, paths, strictness));
                outcomes
                    .reduce(|one, other| strictness.combine(one, other))
                    .unwrap_or(ConditionOutcome::Unknown)
            }
            (value, None) => self.check_value(value, paths),
            (value, Some((field, inner))) => {
                // A name may have dots itself. If the argument has both readings, a rule that allows needs both to hold.
                let nested = value.get(field).map(|value| (value, inner));
                let dotted = if inner.is_empty() { None } else { value.get(fields.join(".")) };
                let readings = nested.into_iter().chain(dotted.map(|value| (value, &[][..])));
                let outcomes =
                    readings.map(|(value, inner)| self.check_fields(value, inner, paths, strictness));
                outcomes
                    .reduce(|one, other| strictness.combine(one, other))
                    .unwrap_or(ConditionOutcome::Fails)
            }
        }
    }

    fn check_value(&self, value: &Value, paths: PathReading<'_>) -> ConditionOutcome {
        let mut outcome = ConditionOutcome::Holds;
        if !self.equals.is_empty() {
            outcome = outcome.and(ConditionOutcome::of(self.equals.iter().any(|one| is_equal(one, value))));
        }
        for (bound, is_within) in
            [(self.at_most, Ordering::is_le as fn(Ordering) -> bool), (self.at_least, Ordering::is_ge)]
        {
            if let Some(bound) = bound {
                outcome = outcome.and(match compare_number(value, bound) {
                    Some(order) => ConditionOutcome::of(is_within(order)),
                    None => ConditionOutcome::Unknown,
                });
            }
        }
        if !self.inside.is_empty() {
            outcome =
                outcome.and(match value.as_str().and_then(|path| resolve_path(path, paths.workspace)) {
                    Some(path) => self.check_inside(&path, paths),
                    None => ConditionOutcome::Unknown,
                });
        }
        if !self.hosts.is_empty() {
            outcome = outcome.and(match value.as_str().and_then(url_host) {
                Some(host) => ConditionOutcome::of(self.hosts.iter().any(|pattern| pattern.matches(&host))),
                None => ConditionOutcome::Unknown,
            });
        }
        if let Some(pattern) = &self.matches {
            outcome = outcome.and(match value.as_str() {
                Some(text) => ConditionOutcome::of(pattern.is_match(text)),
                None => ConditionOutcome::Unknown,
            });
        }
        outcome
    }

    /// Checks that a path is inside one of the folders, by its text and behind all links. What a link leads elsewhere
    /// is neither.
    fn check_inside(&self, path: &Path, paths: PathReading<'_>) -> ConditionOutcome {
        let folders: Vec<PathBuf> = self
            .inside
            .iter()
            .filter_map(|folder| resolve_path(&folder.to_string_lossy(), paths.workspace))
            .collect();
        let is_inside = folders.iter().any(|folder| path.starts_with(folder));
        if !path.is_absolute() || paths.links == LinkReading::Ignored {
            return ConditionOutcome::of(is_inside);
        }
        let Some(real) = resolve_links(path) else { return ConditionOutcome::Unknown };
        let is_really_inside =
            folders.iter().any(|folder| resolve_links(folder).is_some_and(|folder| real.starts_with(folder)));
        if is_inside == is_really_inside {
            ConditionOutcome::of(is_inside)
        } else {
            ConditionOutcome::Unknown
        }
    }
}

/// Returns true if two values are the same. Numbers are compared exactly: `1.0` is `1`, and no large number is its
/// neighbour.
fn is_equal(one: &Value, other: &Value) -> bool {
    match (integer(one), integer(other)) {
        (Some(one), Some(other)) => one == other,
        _ => match (one.as_f64(), other.as_f64()) {
            (Some(_), Some(bound)) => compare_number(one, bound) == Some(Ordering::Equal),
            _ => one == other,
        },
    }
}

/// Returns the value of a number that is written without a fraction.
fn integer(value: &Value) -> Option<i128> {
    value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from))
}

/// Compares a number with a bound, exactly; `None` if it is no number.
fn compare_number(value: &Value, bound: f64) -> Option<Ordering> {
    let Some(number) = integer(value) else {
        return value.as_f64().filter(|number| number.is_finite())?.partial_cmp(&bound);
    };
    // Integers of JSON have at most 64 bits, so that bounds beyond this are beyond all of them.
    const BEYOND: f64 = 1e30;
    if bound.is_nan() {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, reason = "the number is within the range")]
    let whole = bound.clamp(-BEYOND, BEYOND).floor() as i128;
    Some(number.cmp(&whole).then_with(|| if bound.fract() == 0.0 { Ordering::Equal } else { Ordering::Less }))
}

/// Returns a path with all links resolved. The part that does not exist yet stays as it is; `None` if it cannot be
/// resolved.
fn resolve_links(path: &Path) -> Option<PathBuf> {
    for known in path.ancestors() {
        match known.canonicalize() {
            Ok(real) => return Some(real.join(path.strip_prefix(known).ok()?)),
            // A link without a target may get one.
            Err(_) if known.is_symlink() => return None,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(_) => return None,
        }
    }
    None
}

/// Returns a path without `.`, resolved against the workspace; `None` if it has `..`, control characters, or a home
/// folder's `~`.
fn resolve_path(text: &str, workspace: &Path) -> Option<PathBuf> {
    if text.contains(char::is_control) || text.starts_with('~') {
        return None;
    }
    let mut resolved = workspace.to_owned();
    for part in Path::new(text).components() {
        match part {
            Component::RootDir => resolved = PathBuf::from("/"),
            Component::CurDir => {}
            Component::Normal(part) => resolved.push(part),
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(resolved)
}

/// Returns the host of a URL in lower case; `None` if the URL could be read in more than one way.
pub(super) fn url_host(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    if !scheme.eq_ignore_ascii_case("https") && !scheme.eq_ignore_ascii_case("http") {
        return None;
    }
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        Some(_) => return None,
        None => authority,
    };
    // Other characters, such as `@`, `\` and percent signs, are read differently by different programs.
    let is_plain = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.');
    (is_plain && !host.is_empty() && !url.contains(['\\', ' ', '\t', '\n', '\r']))
        .then(|| host.trim_end_matches('.').to_ascii_lowercase())
}

/// A range of the time of day, which may span midnight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HoursRange {
    /// Minutes since midnight, UTC: the first of the range, and the first after it.
    start: u32,
    end: u32,
}

const MINUTES_OF_DAY: u32 = 24 * 60;

/// Parses a time of day, as `14:30`, into minutes since midnight.
pub(super) fn parse_clock(text: &str) -> Option<u32> {
    let (hour, minute) = text.split_once(':')?;
    let digits = |text: &str| {
        (text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| text.parse().ok())
            .flatten()
    };
    let (hour, minute): (u32, u32) = (digits(hour)?, digits(minute)?);
    (hour < 24 && minute < 60).then_some(hour * 60 + minute)
}

impl HoursRange {
    /// Parses `09:00-17:30`, `22:00-06:00` or, with an offset from UTC, `09:00-17:30+02:00`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (start, rest) = text.split_at_checked(5)?;
        let (end, offset) = rest.strip_prefix('-')?.split_at_checked(5)?;
        // Minutes to add to a local time for the time in UTC.
        let shift = match offset.split_at_checked(1) {
            None => 0,
            Some(("+", offset)) => MINUTES_OF_DAY - parse_clock(offset)?,
            Some(("-", offset)) => parse_clock(offset)?,
            Some(_) => return None,
        };
        let to_utc = |minute: u32| (minute + shift) % MINUTES_OF_DAY;
        let range = Self { start: to_utc(parse_clock(start)?), end: to_utc(parse_clock(end)?) };
        // Nobody can tell whether `09:00-09:00` means no time or the whole day.
        (range.start != range.end).then_some(range)
    }

    pub(super) fn check(&self, minute_of_day: Option<u32>) -> ConditionOutcome {
        let Some(now) = minute_of_day else { return ConditionOutcome::Unknown };
        ConditionOutcome::of(if self.start < self.end {
            (self.start..self.end).contains(&now)
        } else {
            now >= self.start || now < self.end
        })
    }
}

//! Converts JSON text to canonical text without building a JSON value; used for tool-call arguments.
//!
//! Text that is already canonical is returned without copying; otherwise unchanged ranges are copied as a
//! whole. Rare inputs (an escape in a key, a duplicate key, deep nesting, invalid JSON) fall back to parsing
//! into a [`Value`], which defines the result. Both paths therefore accept the same inputs and report the same
//! errors.

use std::borrow::Cow;
use std::cell::Cell;
use std::cmp::Ordering;

use serde_json::{Number, Value};

use crate::canonical::scan::{HIGH_BITS, plain_prefix_len, plain_prefix_len_of_word};
use crate::canonical::{canonical_json, cmp_utf16, write_number, write_text};

/// Returns JSON text in canonical form; borrowed if it is canonical already.
///
/// # Errors
///
/// Returns the parser's error if `text` is not valid JSON.
pub fn canonical_text(text: &str) -> Result<Cow<'_, str>, serde_json::Error> {
    with_spare_writer(|written| {
        let canonical = canonicalize_into(text, written)?;
        let is_same = std::ptr::eq(canonical, text);
        Ok(if is_same { Cow::Borrowed(text) } else { Cow::Owned(canonical.to_owned()) })
    })
}

/// Calls `then` with the canonical form of the JSON `text`, which is written to a reused thread-local buffer.
///
/// # Errors
///
/// Returns the parser's error if `text` is not valid JSON.
pub fn with_canonical_text<T>(text: &str, then: impl FnOnce(&str) -> T) -> Result<T, serde_json::Error> {
    with_spare_writer(|written| canonicalize_into(text, written).map(then))
}

/// Maximum capacity in bytes of the buffers that are kept for reuse.
const MAX_SPARE_CAPACITY: usize = 64 * 1024;

thread_local! {
    /// The reused buffers. Allocating and freeing large buffers for every text would also slow down later small
    /// allocations.
    static LAST: Cell<CanonicalWriter> = Cell::default();
}

fn with_spare_writer<T>(work: impl FnOnce(&mut CanonicalWriter) -> T) -> T {
    let mut written = LAST.take();
    let done = work(&mut written);
    if written.out.capacity() <= MAX_SPARE_CAPACITY
        && written.members.capacity() * size_of::<ObjectMember>() <= MAX_SPARE_CAPACITY
    {
        LAST.set(written);
    }
    done
}

fn canonicalize_into<'a>(
    text: &'a str,
    written: &'a mut CanonicalWriter,
) -> Result<&'a str, serde_json::Error> {
    written.clear();
    let is_short = u32::try_from(text.len()).is_ok_and(|len| len < u32::MAX / 8);
    match is_short.then(|| scan_document(text.as_bytes(), written)).flatten() {
        Some(()) if written.copied_until == 0 => return Ok(text),
        Some(()) => written.copy_until(text.as_bytes(), text.len()),
        None => written.out = canonical_json(&serde_json::from_str::<Value>(text)?).into_bytes(),
    }
    // The output consists of whole `str` slices, so it is valid UTF-8.
    Ok(std::str::from_utf8(&written.out).unwrap_or_default())
}

/// Maximum nesting depth on the fast path.
const MAX_DEPTH: u32 = 64;

/// Maximum number of members that are sorted by insertion.
const INSERTION_SORT_MAX: usize = 32;

/// Maximum number of digits of an integer that is copied without a range check.
const MAX_PLAIN_DIGITS: usize = 18;

/// Maximum number of digits of a decimal that survives a round trip through a double.
const MAX_EXACT_DIGITS: usize = 15;

/// The output state of the scan. The input position is passed as an argument so that it stays in a register.
#[derive(Default)]
struct CanonicalWriter {
    /// The output so far. The input from `copied_until` up to the current position is still to be copied.
    out: Vec<u8>,
    copied_until: usize,
    depth: u32,
    /// Members of the objects that are open, innermost last.
    members: Vec<ObjectMember>,
}

/// A member of an object. Positions are 32-bit; longer texts take the fallback.
#[derive(Clone, Copy)]
struct ObjectMember {
    /// First eight bytes of the key, which distinguish most keys in one comparison.
    key_prefix: u64,
    /// Position of the key in the input.
    key_start: u32,
    key_end: u32,
    /// Position of the member in the output.
    start: u32,
    end: u32,
}

impl ObjectMember {
    fn key<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        text.get(self.key_start as usize..self.key_end as usize).unwrap_or_default()
    }

    #[inline]
    fn cmp_keys(&self, other: &Self, text: &[u8]) -> Ordering {
        if self.key_prefix != other.key_prefix && (self.key_prefix | other.key_prefix) & HIGH_BITS == 0 {
            self.key_prefix.cmp(&other.key_prefix)
        } else {
            cmp_utf16(self.key(text), other.key(text))
        }
    }
}

/// Sorts the members of an object; returns `None` if a key occurs twice. Objects are usually small, and most
/// keys differ in their first eight bytes.
fn sort_members(members: &mut [ObjectMember], text: &[u8]) -> Option<()> {
    let heads = members.iter().fold(0, |heads, member| heads | member.key_prefix);
    if members.len() > INSERTION_SORT_MAX || heads & HIGH_BITS != 0 {
        members.sort_unstable_by(|a, b| a.cmp_keys(b, text));
        return members.windows(2).all(|two| two[0].cmp_keys(&two[1], text).is_lt()).then_some(());
    }
    for next in 1..members.len() {
        let member = members[next];
        let sorted = &mut members[..=next];
        let mut place = next;
        while place > 0 && sorted[place - 1].key_prefix > member.key_prefix {
            sorted[place] = sorted[place - 1];
            place -= 1;
        }
        while place > 0 && sorted[place - 1].key_prefix == member.key_prefix {
            match sorted[place - 1].cmp_keys(&member, text) {
                Ordering::Less => break,
                Ordering::Equal => return None,
                Ordering::Greater => sorted[place] = sorted[place - 1],
            }
            place -= 1;
        }
        sorted[place] = member;
    }
    Some(())
}

impl CanonicalWriter {
    fn clear(&mut self) {
        self.out.clear();
        self.members.clear();
        (self.copied_until, self.depth) = (0, 0);
    }

    /// Returns the output position that corresponds to an input position.
    fn output_position(&self, at: usize) -> usize {
        self.out.len() + at - self.copied_until
    }

    fn copy_until(&mut self, text: &[u8], until: usize) {
        if self.out.is_empty() {
            self.out.reserve(2 * text.len() + 8);
        }
        self.out.extend_from_slice(&text[self.copied_until..until]);
        self.copied_until = until;
    }

    /// Replaces an input range by other text in the output.
    fn replace_range(&mut self, text: &[u8], from: usize, until: usize, with: &str) {
        self.copy_until(text, from);
        self.out.extend_from_slice(with.as_bytes());
        self.copied_until = until;
    }

    /// Rewrites the members of an object in sorted order; returns `None` if a key occurs twice.
    fn reorder_members(&mut self, text: &[u8], first: usize, begin: usize, at: usize) -> Option<()> {
        self.copy_until(text, at);
        let members = &mut self.members[first..];
        sort_members(members, text)?;
        // A comma is appended so that every member ends with one. The sorted members are written after the
        // existing output and then copied over it.
        self.out.push(b',');
        let end = self.out.len();
        for member in members {
            self.out.extend_from_within(member.start as usize..=member.end as usize);
        }
        self.out.copy_within(end.., begin);
        self.out.truncate(end - 1);
        Some(())
    }
}

fn scan_document(text: &[u8], written: &mut CanonicalWriter) -> Option<()> {
    let end = scan_value(text, 0, written)?;
    (skip_optional_space(text, end, written) == text.len()).then_some(())
}

/// Returns the position of the next byte that is not white space. White space is omitted from the output.
#[inline]
fn skip_optional_space(text: &[u8], at: usize, written: &mut CanonicalWriter) -> usize {
    match text.get(at) {
        Some(..=b' ') => skip_space(text, at, written),
        _ => at,
    }
}

#[inline(never)]
fn skip_space(text: &[u8], from: usize, written: &mut CanonicalWriter) -> usize {
    let rest = &text[from..];
    let space = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\n' | b'\t' | b'\r')).count();
    written.replace_range(text, from, from + space, "");
    from + space
}

/// Scans a value and the white space before it; returns the position after the value.
fn scan_value(text: &[u8], at: usize, written: &mut CanonicalWriter) -> Option<usize> {
    let at = skip_optional_space(text, at, written);
    match text.get(at)? {
        b'"' => scan_string(text, at, written),
        b'{' => scan_object(text, enter_container(at, written)?, written),
        b'[' => scan_array(text, enter_container(at, written)?, written),
        b't' => scan_literal(text, at, b"true"),
        b'f' => scan_literal(text, at, b"false"),
        b'n' => scan_literal(text, at, b"null"),
        _ => scan_number(text, at, written),
    }
}

/// Scans a value like [`scan_value`], with an inlined path for strings, the most common element.
#[inline]
fn scan_element(text: &[u8], at: usize, written: &mut CanonicalWriter) -> Option<usize> {
    match text.get(at) {
        Some(b'"') => scan_string(text, at, written),
        _ => scan_value(text, at, written),
    }
}

/// Enters a container; returns the position after its opening bracket, or `None` if it is nested too deeply.
fn enter_container(at: usize, written: &mut CanonicalWriter) -> Option<usize> {
    written.depth += 1;
    (written.depth <= MAX_DEPTH).then_some(at + 1)
}

fn scan_literal(text: &[u8], at: usize, word: &[u8]) -> Option<usize> {
    text.get(at..)?.starts_with(word).then_some(at + word.len())
}

/// Returns the position of `byte`, the next expected byte after optional white space.
#[inline]
fn expect_byte(text: &[u8], at: usize, byte: u8, written: &mut CanonicalWriter) -> Option<usize> {
    if text.get(at) == Some(&byte) {
        return Some(at);
    }
    let at = skip_optional_space(text, at, written);
    (*text.get(at)? == byte).then_some(at)
}

/// The token after an element of an array or of an object, with its position.
enum AfterElement {
    NextElement(usize),
    ContainerEnd(usize),
}

#[inline]
fn next_element(text: &[u8], at: usize, end: u8, written: &mut CanonicalWriter) -> Option<AfterElement> {
    if text.get(at) == Some(&b',') {
        return Some(AfterElement::NextElement(at + 1));
    }
    let at = skip_optional_space(text, at, written);
    match *text.get(at)? {
        b',' => Some(AfterElement::NextElement(at + 1)),
        byte if byte == end => Some(AfterElement::ContainerEnd(at)),
        _ => None,
    }
}

fn scan_array(text: &[u8], at: usize, written: &mut CanonicalWriter) -> Option<usize> {
    let mut at = skip_optional_space(text, at, written);
    if *text.get(at)? != b']' {
        loop {
            at = scan_element(text, at, written)?;
            match next_element(text, at, b']', written)? {
                AfterElement::NextElement(next) => at = next,
                AfterElement::ContainerEnd(end) => {
                    at = end;
                    break;
                }
            }
        }
    }
    written.depth -= 1;
    Some(at + 1)
}

fn scan_object(text: &[u8], at: usize, written: &mut CanonicalWriter) -> Option<usize> {
    let mut at = skip_optional_space(text, at, written);
    if *text.get(at)? != b'}' {
        let (first, begin) = (written.members.len(), written.output_position(at));
        let mut is_ordered = true;
        let mut before = 0;
        loop {
            at = expect_byte(text, at, b'"', written)?;
            let from = written.output_position(at);
            let mut member = scan_member_key(text, at, from as u32)?;
            if is_ordered && !(member.key_prefix > before && (member.key_prefix | before) & HIGH_BITS == 0) {
                let last = written.members[first..].last();
                is_ordered = last.is_none_or(|last| last.cmp_keys(&member, text).is_lt());
            }
            before = member.key_prefix;
            at = expect_byte(text, member.key_end as usize + 1, b':', written)?;
            at = scan_element(text, at + 1, written)?;
            member.end = written.output_position(at) as u32;
            written.members.push(member);
            match next_element(text, at, b'}', written)? {
                AfterElement::NextElement(next) => at = next,
                AfterElement::ContainerEnd(end) => {
                    at = end;
                    break;
                }
            }
        }
        if !is_ordered {
            written.reorder_members(text, first, begin, at)?;
        }
        written.members.truncate(first);
    }
    written.depth -= 1;
    Some(at + 1)
}

/// Scans the start of a member up to the end of its key; returns `None` if the key contains escapes.
#[inline]
fn scan_member_key(text: &[u8], at: usize, from: u32) -> Option<ObjectMember> {
    let rest = text.get(at + 1..)?;
    let (len, head) = match rest.first_chunk::<8>() {
        Some(word) => match plain_prefix_len_of_word(*word) {
            Some(len) => (len, u64::from_be_bytes(*word) & !(u64::MAX >> (8 * len))),
            None => (8 + plain_prefix_len(&rest[8..])?, u64::from_be_bytes(*word)),
        },
        None => {
            let len = plain_prefix_len(rest)?;
            (len, short_key_prefix(rest, len))
        }
    };
    let key = at as u32 + 1;
    (rest.get(len) == Some(&b'"')).then_some(ObjectMember {
        key_prefix: head,
        key_start: key,
        key_end: key + len as u32,
        start: from,
        end: 0,
    })
}

#[inline]
fn scan_string(text: &[u8], at: usize, written: &mut CanonicalWriter) -> Option<usize> {
    let rest = text.get(at + 1..)?;
    let len = match rest.first_chunk::<8>().and_then(|word| plain_prefix_len_of_word(*word)) {
        Some(len) => len,
        None => plain_prefix_len(rest)?,
    };
    if rest.get(len) == Some(&b'"') { Some(at + len + 2) } else { scan_escaped_string(text, at, written) }
}

/// Scans a string that contains escapes.
#[inline(never)]
fn scan_escaped_string(text: &[u8], from: usize, written: &mut CanonicalWriter) -> Option<usize> {
    let mut at = from + 1;
    loop {
        at += plain_prefix_len(text.get(at..)?)?;
        match text[at] {
            b'"' => break,
            b'\\' => at += 2,
            _ => return None,
        }
    }
    at += 1;
    let token = &text[from..at];
    let read: String = serde_json::from_slice(token).ok()?;
    let mut canonical = String::with_capacity(token.len());
    write_text(&read, &mut canonical);
    if canonical.as_bytes() != token {
        written.replace_range(text, from, at, &canonical);
    }
    Some(at)
}

/// Scans a number. Integers and shortest decimals, the common cases, are copied unchanged.
#[inline]
fn scan_number(text: &[u8], from: usize, written: &mut CanonicalWriter) -> Option<usize> {
    let digits = |mut at: usize| {
        while text.get(at).is_some_and(u8::is_ascii_digit) {
            at += 1;
        }
        at
    };
    let begin = from + usize::from(text[from] == b'-');
    let point = digits(begin);
    let (whole, leads_with_zero) = (point - begin, text.get(begin) == Some(&b'0'));
    match text.get(point) {
        Some(b'.') => {
            let end = digits(point + 1);
            let is_plain = !matches!(text.get(end), Some(b'.' | b'e' | b'E' | b'+' | b'-'))
                && whole > 0
                && end > point + 1
                // Decimals below 1e-6 are written with an exponent.
                && !(leads_with_zero && (whole > 1 || text[point + 1] == b'0'))
                && whole + end - point - 1 <= MAX_EXACT_DIGITS
                && text[end - 1] != b'0';
            if is_plain { Some(end) } else { scan_unusual_number(text, from, written) }
        }
        Some(b'e' | b'E' | b'+' | b'-') => scan_unusual_number(text, from, written),
        _ if (1..=MAX_PLAIN_DIGITS).contains(&whole) && (!leads_with_zero || point == from + 1) => {
            Some(point)
        }
        _ => scan_unusual_number(text, from, written),
    }
}

#[inline(never)]
fn scan_unusual_number(text: &[u8], from: usize, written: &mut CanonicalWriter) -> Option<usize> {
    let rest = &text[from..];
    let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
    let len = rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
    let (token, until) = (&rest[..len], from + len);
    match canonical_number_len(token) {
        Some(plain) if plain == len => {}
        Some(plain) => written.replace_range(text, from + plain, until, ""),
        None => {
            let number: Number = serde_json::from_slice(token).ok()?;
            let mut canonical = String::new();
            write_number(&number, &mut canonical);
            if canonical.as_bytes() != token {
                written.replace_range(text, from, until, &canonical);
            }
        }
    }
    Some(until)
}

/// Returns the bytes of a key shorter than eight bytes as an integer with the same ordering.
#[inline(never)]
fn short_key_prefix(key: &[u8], len: usize) -> u64 {
    let mut head = [0; 8];
    for (byte, from) in head.iter_mut().zip(&key[..len]) {
        *byte = *from;
    }
    u64::from_be_bytes(head)
}

/// Returns the length of the prefix of `token` that is its canonical form. Returns `None` if the canonical form
/// is not a prefix or is not cheap to determine: exponents, many digits, minus zero, very small numbers, and
/// invalid numbers.
fn canonical_number_len(token: &[u8]) -> Option<usize> {
    let sign = usize::from(token.first() == Some(&b'-'));
    let digits = |from: usize| token[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let whole = digits(sign);
    let point = sign + whole;
    let leads_with_zero = token.get(sign) == Some(&b'0');
    if whole == 0 || (leads_with_zero && whole > 1) {
        return None;
    }
    if point == token.len() {
        return (whole <= MAX_PLAIN_DIGITS && !(sign == 1 && leads_with_zero)).then_some(point);
    }
    let fraction = digits(point + 1);
    let is_decimal = token[point] == b'.' && fraction > 0 && point + 1 + fraction == token.len();
    if !is_decimal || whole + fraction > MAX_EXACT_DIGITS {
        return None;
    }
    let zeros = token.iter().rev().take_while(|byte| **byte == b'0').count();
    if zeros >= fraction {
        return (!(sign == 1 && leads_with_zero)).then_some(point);
    }
    let is_small = leads_with_zero && token[point + 1..].iter().take_while(|byte| **byte == b'0').count() > 4;
    (!is_small).then_some(token.len() - zeros)
}

#[cfg(test)]
#[path = "canonicalize_tests.rs"]
mod tests;

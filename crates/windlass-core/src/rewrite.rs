//! From JSON text to canonical text, without a value in between: what calls are made of is read this way.
//!
//! What is canonical already is found to be so and not written again; of the rest, what stands is copied in one piece.
//! What is rare (an escape in a key, a key that comes twice, deep nesting, anything wrong) is left to the way
//! through a value, which is the rule. So the two cannot differ in what they accept or say.

use std::borrow::Cow;
use std::cell::Cell;
use std::cmp::Ordering;

use serde_json::{Number, Value};

use crate::canonical::{canonical, utf16_order, write_number, write_text};
use crate::scan::{HIGH, plain_head, plain_len};

/// Rewrites JSON text in canonical form, where it is not in it.
pub fn canonical_text(text: &str) -> Result<Cow<'_, str>, serde_json::Error> {
    with_spare(|written| {
        let canonical = rewrite(text, written)?;
        let is_same = std::ptr::eq(canonical, text);
        Ok(if is_same { Cow::Borrowed(text) } else { Cow::Owned(canonical.to_owned()) })
    })
}

/// As [`canonical_text`], for whoever does not keep the text: it is written where the last one was.
pub fn with_canonical_text<T>(text: &str, then: impl FnOnce(&str) -> T) -> Result<T, serde_json::Error> {
    with_spare(|written| rewrite(text, written).map(then))
}

/// The most room that is kept for the next text.
const SPARE: usize = 64 * 1024;

thread_local! {
    /// What large pieces of memory cost is not only their own time: after them, small ones are slower to come by.
    static LAST: Cell<Written> = Cell::default();
}

fn with_spare<T>(work: impl FnOnce(&mut Written) -> T) -> T {
    let mut written = LAST.take();
    let done = work(&mut written);
    if written.out.capacity() <= SPARE && written.members.capacity() * size_of::<Member>() <= SPARE {
        LAST.set(written);
    }
    done
}

fn rewrite<'a>(text: &'a str, written: &'a mut Written) -> Result<&'a str, serde_json::Error> {
    written.clear();
    let is_short = u32::try_from(text.len()).is_ok_and(|len| len < u32::MAX / 8);
    match is_short.then(|| whole(text.as_bytes(), written)).flatten() {
        Some(()) if written.kept_from == 0 => return Ok(text),
        Some(()) => written.keep(text.as_bytes(), text.len()),
        None => written.out = canonical(&serde_json::from_str::<Value>(text)?).into_bytes(),
    }
    // It is made of whole pieces of text.
    Ok(std::str::from_utf8(&written.out).unwrap_or_default())
}

/// How deep values may be nested on this way.
const DEEPEST: u32 = 64;

/// Up to how many members are sorted by looking at one after another.
const MEMBERS: usize = 32;

/// The longest whole number that is copied without a look at its size.
const PLAIN_DIGITS: usize = 18;

/// Decimals of up to so many digits read as a double and print as they were.
const EXACT_DIGITS: usize = 15;

/// What came of the text so far. The place in the text is not in it: it is handed on, so that it stays at hand.
#[derive(Default)]
struct Written {
    /// What was written. The text from `kept_from` on follows, as it stands.
    out: Vec<u8>,
    kept_from: usize,
    depth: u32,
    /// The members of the objects that are open, the innermost last.
    members: Vec<Member>,
}

/// A member of an object. Places in texts of more than 4 GiB are not for this way.
#[derive(Clone, Copy)]
struct Member {
    /// The beginning of the key, so that most keys are told apart in one look.
    head: u64,
    /// Where the key is in the text.
    key: u32,
    key_end: u32,
    /// Where the member is in what is written.
    from: u32,
    until: u32,
}

impl Member {
    fn key<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        text.get(self.key as usize..self.key_end as usize).unwrap_or_default()
    }

    #[inline]
    fn order(&self, other: &Self, text: &[u8]) -> Ordering {
        if self.head != other.head && (self.head | other.head) & HIGH == 0 {
            self.head.cmp(&other.head)
        } else {
            utf16_order(self.key(text), other.key(text))
        }
    }
}

/// Sorts the members of an object, unless a key comes twice. There are few of them as a rule, and nearly all are told
/// apart in one look.
fn sort(members: &mut [Member], text: &[u8]) -> Option<()> {
    let heads = members.iter().fold(0, |heads, member| heads | member.head);
    if members.len() > MEMBERS || heads & HIGH != 0 {
        members.sort_unstable_by(|a, b| a.order(b, text));
        return members.windows(2).all(|two| two[0].order(&two[1], text).is_lt()).then_some(());
    }
    for next in 1..members.len() {
        let member = members[next];
        let sorted = &mut members[..=next];
        let mut place = next;
        while place > 0 && sorted[place - 1].head > member.head {
            sorted[place] = sorted[place - 1];
            place -= 1;
        }
        while place > 0 && sorted[place - 1].head == member.head {
            match sorted[place - 1].order(&member, text) {
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

impl Written {
    fn clear(&mut self) {
        self.out.clear();
        self.members.clear();
        (self.kept_from, self.depth) = (0, 0);
    }

    /// The place in what is written that a place in the text has.
    fn place(&self, at: usize) -> usize {
        self.out.len() + at - self.kept_from
    }

    fn keep(&mut self, text: &[u8], until: usize) {
        if self.out.is_empty() {
            self.out.reserve(2 * text.len() + 8);
        }
        self.out.extend_from_slice(&text[self.kept_from..until]);
        self.kept_from = until;
    }

    /// Writes something in place of the text between these places.
    fn replace(&mut self, text: &[u8], from: usize, until: usize, with: &str) {
        self.keep(text, from);
        self.out.extend_from_slice(with.as_bytes());
        self.kept_from = until;
    }

    /// Writes the members of an object again, sorted. A key that comes twice is not for this way.
    fn put_in_order(&mut self, text: &[u8], first: usize, begin: usize, at: usize) -> Option<()> {
        self.keep(text, at);
        let members = &mut self.members[first..];
        sort(members, text)?;
        // Every member is followed by a comma, the last one too for a moment. In order they are written behind the
        // others, and then in their place.
        self.out.push(b',');
        let end = self.out.len();
        for member in members {
            self.out.extend_from_within(member.from as usize..=member.until as usize);
        }
        self.out.copy_within(end.., begin);
        self.out.truncate(end - 1);
        Some(())
    }
}

fn whole(text: &[u8], written: &mut Written) -> Option<()> {
    let end = value(text, 0, written)?;
    (after_space(text, end, written) == text.len()).then_some(())
}

/// The next place that is no space. Space is not written.
#[inline]
fn after_space(text: &[u8], at: usize, written: &mut Written) -> usize {
    match text.get(at) {
        Some(..=b' ') => skip_space(text, at, written),
        _ => at,
    }
}

#[inline(never)]
fn skip_space(text: &[u8], from: usize, written: &mut Written) -> usize {
    let rest = &text[from..];
    let space = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\n' | b'\t' | b'\r')).count();
    written.replace(text, from, from + space, "");
    from + space
}

/// Goes over a value, and over the space before it: says where it ends.
fn value(text: &[u8], at: usize, written: &mut Written) -> Option<usize> {
    let at = after_space(text, at, written);
    match text.get(at)? {
        b'"' => string(text, at, written),
        b'{' => object(text, deeper(at, written)?, written),
        b'[' => list(text, deeper(at, written)?, written),
        b't' => word(text, at, b"true"),
        b'f' => word(text, at, b"false"),
        b'n' => word(text, at, b"null"),
        _ => number(text, at, written),
    }
}

/// As [`value`], and at hand for what most values inside others are.
#[inline]
fn part(text: &[u8], at: usize, written: &mut Written) -> Option<usize> {
    match text.get(at) {
        Some(b'"') => string(text, at, written),
        _ => value(text, at, written),
    }
}

/// What follows the bracket at this place.
fn deeper(at: usize, written: &mut Written) -> Option<usize> {
    written.depth += 1;
    (written.depth <= DEEPEST).then_some(at + 1)
}

fn word(text: &[u8], at: usize, word: &[u8]) -> Option<usize> {
    text.get(at..)?.starts_with(word).then_some(at + word.len())
}

/// The place of this byte, which comes next where there is no space.
#[inline]
fn at_byte(text: &[u8], at: usize, byte: u8, written: &mut Written) -> Option<usize> {
    if text.get(at) == Some(&byte) {
        return Some(at);
    }
    let at = after_space(text, at, written);
    (*text.get(at)? == byte).then_some(at)
}

/// What comes after a part of a list or of an object, and where.
enum Then {
    Part(usize),
    End(usize),
}

#[inline]
fn after_part(text: &[u8], at: usize, end: u8, written: &mut Written) -> Option<Then> {
    if text.get(at) == Some(&b',') {
        return Some(Then::Part(at + 1));
    }
    let at = after_space(text, at, written);
    match *text.get(at)? {
        b',' => Some(Then::Part(at + 1)),
        byte if byte == end => Some(Then::End(at)),
        _ => None,
    }
}

fn list(text: &[u8], at: usize, written: &mut Written) -> Option<usize> {
    let mut at = after_space(text, at, written);
    if *text.get(at)? != b']' {
        loop {
            at = part(text, at, written)?;
            match after_part(text, at, b']', written)? {
                Then::Part(next) => at = next,
                Then::End(end) => {
                    at = end;
                    break;
                }
            }
        }
    }
    written.depth -= 1;
    Some(at + 1)
}

fn object(text: &[u8], at: usize, written: &mut Written) -> Option<usize> {
    let mut at = after_space(text, at, written);
    if *text.get(at)? != b'}' {
        let (first, begin) = (written.members.len(), written.place(at));
        let mut is_ordered = true;
        let mut before = 0;
        loop {
            at = at_byte(text, at, b'"', written)?;
            let from = written.place(at);
            let mut member = member(text, at, from as u32)?;
            if is_ordered && !(member.head > before && (member.head | before) & HIGH == 0) {
                let last = written.members[first..].last();
                is_ordered = last.is_none_or(|last| last.order(&member, text).is_lt());
            }
            before = member.head;
            at = at_byte(text, member.key_end as usize + 1, b':', written)?;
            at = part(text, at + 1, written)?;
            member.until = written.place(at) as u32;
            written.members.push(member);
            match after_part(text, at, b'}', written)? {
                Then::Part(next) => at = next,
                Then::End(end) => {
                    at = end;
                    break;
                }
            }
        }
        if !is_ordered {
            written.put_in_order(text, first, begin, at)?;
        }
        written.members.truncate(first);
    }
    written.depth -= 1;
    Some(at + 1)
}

/// The beginning of a member, up to the end of its key, which must be plain.
#[inline]
fn member(text: &[u8], at: usize, from: u32) -> Option<Member> {
    let rest = text.get(at + 1..)?;
    let (len, head) = match rest.first_chunk::<8>() {
        Some(word) => match plain_head(*word) {
            Some(len) => (len, u64::from_be_bytes(*word) & !(u64::MAX >> (8 * len))),
            None => (8 + plain_len(&rest[8..])?, u64::from_be_bytes(*word)),
        },
        None => {
            let len = plain_len(rest)?;
            (len, head(rest, len))
        }
    };
    let key = at as u32 + 1;
    (rest.get(len) == Some(&b'"')).then_some(Member { head, key, key_end: key + len as u32, from, until: 0 })
}

#[inline]
fn string(text: &[u8], at: usize, written: &mut Written) -> Option<usize> {
    let rest = text.get(at + 1..)?;
    let len = match rest.first_chunk::<8>().and_then(|word| plain_head(*word)) {
        Some(len) => len,
        None => plain_len(rest)?,
    };
    if rest.get(len) == Some(&b'"') { Some(at + len + 2) } else { escaped(text, at, written) }
}

/// A string with escapes.
#[inline(never)]
fn escaped(text: &[u8], from: usize, written: &mut Written) -> Option<usize> {
    let mut at = from + 1;
    loop {
        at += plain_len(text.get(at..)?)?;
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
        written.replace(text, from, at, &canonical);
    }
    Some(at)
}

/// A number. Most are whole, or decimals that are written as short as they can be.
#[inline]
fn number(text: &[u8], from: usize, written: &mut Written) -> Option<usize> {
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
                // Very small ones have an exponent.
                && !(leads_with_zero && (whole > 1 || text[point + 1] == b'0'))
                && whole + end - point - 1 <= EXACT_DIGITS
                && text[end - 1] != b'0';
            if is_plain { Some(end) } else { other_number(text, from, written) }
        }
        Some(b'e' | b'E' | b'+' | b'-') => other_number(text, from, written),
        _ if (1..=PLAIN_DIGITS).contains(&whole) && (!leads_with_zero || point == from + 1) => Some(point),
        _ => other_number(text, from, written),
    }
}

#[inline(never)]
fn other_number(text: &[u8], from: usize, written: &mut Written) -> Option<usize> {
    let rest = &text[from..];
    let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
    let len = rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
    let (token, until) = (&rest[..len], from + len);
    match plain_number(token) {
        Some(plain) if plain == len => {}
        Some(plain) => written.replace(text, from + plain, until, ""),
        None => {
            let number: Number = serde_json::from_slice(token).ok()?;
            let mut canonical = String::new();
            write_number(&number, &mut canonical);
            if canonical.as_bytes() != token {
                written.replace(text, from, until, &canonical);
            }
        }
    }
    Some(until)
}

/// The bytes of a key of less than eight as a number that is ordered as they are.
#[inline(never)]
fn head(key: &[u8], len: usize) -> u64 {
    let mut head = [0; 8];
    for (byte, from) in head.iter_mut().zip(&key[..len]) {
        *byte = *from;
    }
    u64::from_be_bytes(head)
}

/// How much of a number is its canonical form, where it is a beginning of it. None where that takes more than a
/// look: exponents, many digits, minus nothing, very small ones, and what is no number at all.
fn plain_number(token: &[u8]) -> Option<usize> {
    let sign = usize::from(token.first() == Some(&b'-'));
    let digits = |from: usize| token[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let whole = digits(sign);
    let point = sign + whole;
    let leads_with_zero = token.get(sign) == Some(&b'0');
    if whole == 0 || (leads_with_zero && whole > 1) {
        return None;
    }
    if point == token.len() {
        return (whole <= PLAIN_DIGITS && !(sign == 1 && leads_with_zero)).then_some(point);
    }
    let fraction = digits(point + 1);
    let is_decimal = token[point] == b'.' && fraction > 0 && point + 1 + fraction == token.len();
    if !is_decimal || whole + fraction > EXACT_DIGITS {
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
#[path = "rewrite_tests.rs"]
mod tests;

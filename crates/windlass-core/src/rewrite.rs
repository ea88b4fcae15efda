//! From JSON text to canonical text, without a value in between: what calls are made of is read this way.
//!
//! What is canonical already is found to be so and not written again; of the rest, what stands is copied in one piece.
//! What is rare (an escape in a key, a key that comes twice, deep nesting, anything wrong) is left to the way
//! through a value, which is the rule. So the two cannot differ in what they accept or say.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::{Number, Value};

use crate::canonical::{canonical, utf16_order, write_number, write_text};
use crate::scan::{HIGH, plain_len};

/// Rewrites JSON text in canonical form, where it is not in it.
pub fn canonical_text(text: &str) -> Result<Cow<'_, str>, serde_json::Error> {
    let mut rewriter = Rewriter { text, ..Rewriter::default() };
    match rewriter.whole() {
        Some(()) if rewriter.kept_from == 0 => Ok(Cow::Borrowed(text)),
        Some(()) => {
            rewriter.write_kept(text.len());
            // It is made of whole pieces of text.
            Ok(Cow::Owned(String::from_utf8(rewriter.out).unwrap_or_default()))
        }
        None => serde_json::from_str::<Value>(text).map(|value| Cow::Owned(canonical(&value))),
    }
}

/// How deep values may be nested on this way.
const DEEPEST: u32 = 64;

/// The longest whole number that is copied without a look at its size.
const PLAIN_DIGITS: usize = 18;

/// Decimals of up to so many digits read as a double and print as they were.
const EXACT_DIGITS: usize = 15;

#[derive(Default)]
struct Rewriter<'a> {
    text: &'a str,
    at: usize,
    /// What was written. The text from `kept_from` on follows, as it stands.
    out: Vec<u8>,
    kept_from: usize,
    depth: u32,
    /// The members of the objects that are open, the innermost last.
    members: Vec<Member<'a>>,
    unordered: Vec<u8>,
}

/// A member of an object.
struct Member<'a> {
    key: &'a str,
    /// The beginning of the key, so that most keys are told apart in one look.
    head: u64,
    /// Where it stands in what is written.
    from: usize,
    until: usize,
}

impl Member<'_> {
    fn order(&self, other: &Self) -> Ordering {
        match self.head.cmp(&other.head) {
            unequal if unequal.is_ne() && (self.head | other.head) & HIGH == 0 => unequal,
            _ => utf16_order(self.key, other.key),
        }
    }
}

impl<'a> Rewriter<'a> {
    fn whole(&mut self) -> Option<()> {
        self.value()?;
        self.skip_space();
        (self.at == self.text.len()).then_some(())
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// The place in what is written that the text has come to.
    fn written(&self) -> usize {
        self.out.len() + self.at - self.kept_from
    }

    fn write_kept(&mut self, until: usize) {
        if self.out.capacity() == 0 {
            self.out.reserve(self.text.len() + 8);
        }
        self.out.extend_from_slice(&self.text.as_bytes()[self.kept_from..until]);
        self.kept_from = until;
    }

    /// Writes something in place of the text from here on up to where it has come to.
    fn replace(&mut self, from: usize, with: &str) {
        self.write_kept(from);
        self.out.extend_from_slice(with.as_bytes());
        self.kept_from = self.at;
    }

    fn skip_space(&mut self) {
        if self.peek().is_some_and(|byte| byte <= b' ') {
            let from = self.at;
            while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.peek() {
                self.at += 1;
            }
            self.replace(from, "");
        }
    }

    /// The next byte that is no space.
    fn next(&mut self) -> Option<u8> {
        self.skip_space();
        self.peek()
    }

    fn value(&mut self) -> Option<()> {
        match self.next()? {
            b'"' => self.string(),
            b'{' => self.nested(Self::object),
            b'[' => self.nested(Self::list),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.number(),
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Option<()>) -> Option<()> {
        self.depth += 1;
        (self.depth <= DEEPEST).then_some(())?;
        self.at += 1;
        read(self)?;
        self.at += 1;
        self.depth -= 1;
        Some(())
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.text.as_bytes()[self.at..].starts_with(word).then(|| self.at += word.len())
    }

    fn list(&mut self) -> Option<()> {
        if self.next()? == b']' {
            return Some(());
        }
        loop {
            self.value()?;
            match self.next()? {
                b',' => self.at += 1,
                b']' => return Some(()),
                _ => return None,
            }
        }
    }

    fn object(&mut self) -> Option<()> {
        if self.next()? == b'}' {
            return Some(());
        }
        let (first, begin) = (self.members.len(), self.written());
        let mut is_ordered = true;
        loop {
            self.skip_space();
            let from = self.written();
            let mut member = self.member(from)?;
            if let Some(before) = self.members[first..].last() {
                is_ordered &= before.order(&member).is_lt();
            }
            (self.next()? == b':').then(|| self.at += 1)?;
            self.value()?;
            member.until = self.written();
            self.members.push(member);
            match self.next()? {
                b',' => self.at += 1,
                b'}' => break,
                _ => return None,
            }
        }
        if !is_ordered {
            self.put_in_order(first, begin)?;
        }
        self.members.truncate(first);
        Some(())
    }

    /// Writes the members of an object again, sorted. A key that comes twice is not for this way.
    fn put_in_order(&mut self, first: usize, begin: usize) -> Option<()> {
        self.write_kept(self.at);
        let members = &mut self.members[first..];
        members.sort_unstable_by(Member::order);
        if members.windows(2).any(|two| two[0].head == two[1].head && two[0].key == two[1].key) {
            return None;
        }
        self.unordered.clear();
        self.unordered.reserve(self.out.len() - begin + 1);
        for member in members {
            self.unordered.extend_from_slice(&self.out[member.from..member.until]);
            self.unordered.push(b',');
        }
        self.unordered.pop();
        self.out[begin..].copy_from_slice(&self.unordered);
        Some(())
    }

    /// The beginning of a member, up to the end of its key, which must be plain.
    fn member(&mut self, from: usize) -> Option<Member<'a>> {
        (self.peek()? == b'"').then_some(())?;
        let begin = self.at + 1;
        let rest = &self.text.as_bytes()[begin..];
        let len = plain_len(rest)?;
        (rest[len] == b'"').then_some(())?;
        self.at = begin + len + 1;
        Some(Member { key: &self.text[begin..begin + len], head: head(rest, len), from, until: 0 })
    }

    fn string(&mut self) -> Option<()> {
        let from = self.at;
        let rest = &self.text.as_bytes()[from + 1..];
        let len = plain_len(rest)?;
        if rest[len] == b'"' {
            self.at = from + len + 2;
        } else {
            let token = self.escaped()?;
            let text: String = serde_json::from_str(token).ok()?;
            let mut written = String::with_capacity(token.len());
            write_text(&text, &mut written);
            if written != token {
                self.replace(from, &written);
            }
        }
        Some(())
    }

    /// A string with its quotes.
    fn escaped(&mut self) -> Option<&'a str> {
        let begin = self.at;
        self.at += 1;
        loop {
            self.at += plain_len(self.text.as_bytes().get(self.at..)?)?;
            match self.peek()? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => return None,
            }
        }
        self.at += 1;
        // After a backslash there may be the middle of a character.
        self.text.get(begin..self.at)
    }

    fn number(&mut self) -> Option<()> {
        let rest = &self.text.as_bytes()[self.at..];
        let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        let end = rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
        let (from, token) = (self.at, self.text.get(self.at..self.at + end)?);
        self.at += end;
        match plain_number(token.as_bytes()) {
            Some(len) if len == end => {}
            Some(len) => self.replace(from + len, ""),
            None => {
                let number: Number = serde_json::from_str(token).ok()?;
                let mut written = String::new();
                write_number(&number, &mut written);
                if written != token {
                    self.replace(from, &written);
                }
            }
        }
        Some(())
    }
}

/// The first eight bytes of a key of this length as a number that is ordered as they are.
fn head(key: &[u8], len: usize) -> u64 {
    let head = match key.first_chunk::<8>() {
        Some(head) => u64::from_be_bytes(*head),
        None => {
            key[..len].iter().fold(0, |head, byte| (head << 8) | u64::from(*byte)) << (64 - 8 * len.max(1))
        }
    };
    if len < 8 { head & !(u64::MAX >> (8 * len)) } else { head }
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

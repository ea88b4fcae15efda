//! From JSON text to canonical text, without a value in between: what calls are made of is read this way.
//!
//! What is rare (an escape in a key, a key that comes twice, deep nesting, anything wrong) is left to the way
//! through a value, which is the rule. So the two cannot differ in what they accept or say.

use serde_json::{Number, Value};

use crate::canonical::{canonical, utf16_order, write_number, write_text};

/// Rewrites JSON text in canonical form.
pub fn canonical_text(text: &str) -> Result<String, serde_json::Error> {
    let mut rewriter = Rewriter { text, out: Vec::with_capacity(text.len() + 8), ..Rewriter::default() };
    match rewriter.whole().and_then(|()| String::from_utf8(rewriter.out).ok()) {
        Some(rewritten) => Ok(rewritten),
        None => serde_json::from_str::<Value>(text).map(|value| canonical(&value)),
    }
}

/// How deep values may be nested on this way.
const DEEPEST: u32 = 64;

/// The longest whole number that is copied without a look at its size.
const PLAIN_DIGITS: usize = 18;

/// Decimals of up to so many digits read as a double and print as they were.
const EXACT_DIGITS: usize = 15;

/// The bytes that stand for more than themselves in a string, or may not be in one.
const ENDS_PLAIN: [bool; 256] = {
    let mut ends = [false; 256];
    let mut byte = 0;
    while byte < 0x20 {
        ends[byte] = true;
        byte += 1;
    }
    ends[b'"' as usize] = true;
    ends[b'\\' as usize] = true;
    ends
};

#[derive(Default)]
struct Rewriter<'a> {
    text: &'a str,
    at: usize,
    out: Vec<u8>,
    depth: u32,
    /// The members of the objects that are open, the innermost last.
    members: Vec<Member<'a>>,
    unordered: Vec<u8>,
}

/// A member of an object.
struct Member<'a> {
    key: &'a str,
    /// Where it stands in what was written.
    from: usize,
    until: usize,
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

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.skip_space();
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn value(&mut self) -> Option<()> {
        self.skip_space();
        match self.peek()? {
            b'"' => self.string(),
            b'{' => self.nested(Self::object),
            b'[' => self.nested(Self::list),
            b't' => self.word("true"),
            b'f' => self.word("false"),
            b'n' => self.word("null"),
            _ => self.number(),
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Option<()>) -> Option<()> {
        self.depth += 1;
        (self.depth <= DEEPEST).then_some(())?;
        self.at += 1;
        read(self)?;
        self.depth -= 1;
        Some(())
    }

    fn word(&mut self, word: &str) -> Option<()> {
        self.text[self.at..].starts_with(word).then_some(())?;
        self.out.extend_from_slice(word.as_bytes());
        self.at += word.len();
        Some(())
    }

    fn list(&mut self) -> Option<()> {
        self.out.push(b'[');
        self.skip_space();
        if self.peek()? != b']' {
            loop {
                self.value()?;
                self.skip_space();
                match self.peek()? {
                    b',' => self.out.push(b','),
                    b']' => break,
                    _ => return None,
                }
                self.at += 1;
            }
        }
        self.at += 1;
        self.out.push(b']');
        Some(())
    }

    fn object(&mut self) -> Option<()> {
        self.out.push(b'{');
        let (first, begin) = (self.members.len(), self.out.len());
        let mut is_ordered = true;
        self.skip_space();
        if self.peek()? != b'}' {
            loop {
                let from = self.out.len();
                let key = self.key()?;
                if let Some(before) = self.members[first..].last() {
                    is_ordered &= utf16_order(before.key, key).is_lt();
                }
                self.expect(b':')?;
                self.out.push(b':');
                self.value()?;
                self.members.push(Member { key, from, until: self.out.len() });
                self.skip_space();
                match self.peek()? {
                    b',' => self.out.push(b','),
                    b'}' => break,
                    _ => return None,
                }
                self.at += 1;
            }
        }
        self.at += 1;
        if !is_ordered {
            self.put_in_order(first, begin)?;
        }
        self.members.truncate(first);
        self.out.push(b'}');
        Some(())
    }

    /// Writes the members of an object again, sorted. A key that comes twice is not for this way.
    fn put_in_order(&mut self, first: usize, begin: usize) -> Option<()> {
        let members = &mut self.members[first..];
        members.sort_unstable_by(|one, other| utf16_order(one.key, other.key));
        if members.windows(2).any(|two| two[0].key == two[1].key) {
            return None;
        }
        self.unordered.clear();
        self.unordered.extend_from_slice(&self.out[begin..]);
        self.out.truncate(begin);
        for (at, member) in members.iter().enumerate() {
            if at > 0 {
                self.out.push(b',');
            }
            self.out.extend_from_slice(&self.unordered[member.from - begin..member.until - begin]);
        }
        Some(())
    }

    /// A key, which must be plain.
    fn key(&mut self) -> Option<&'a str> {
        self.skip_space();
        let (token, is_plain) = self.string_token()?;
        is_plain.then_some(())?;
        self.out.extend_from_slice(token.as_bytes());
        Some(&token[1..token.len() - 1])
    }

    fn string(&mut self) -> Option<()> {
        let (token, is_plain) = self.string_token()?;
        if is_plain {
            self.out.extend_from_slice(token.as_bytes());
        } else {
            let text: String = serde_json::from_str(token).ok()?;
            let mut written = String::with_capacity(token.len());
            write_text(&text, &mut written);
            self.out.extend_from_slice(written.as_bytes());
        }
        Some(())
    }

    /// A string with its quotes, and whether it is without escapes.
    fn string_token(&mut self) -> Option<(&'a str, bool)> {
        let (begin, mut is_plain) = (self.at, true);
        (self.peek()? == b'"').then(|| self.at += 1)?;
        loop {
            let rest = &self.text.as_bytes()[self.at..];
            self.at += rest.iter().position(|byte| ENDS_PLAIN[usize::from(*byte)])?;
            match self.peek()? {
                b'"' => break,
                b'\\' => {
                    is_plain = false;
                    self.at += 2;
                }
                _ => return None,
            }
            // After a backslash there may be no more text, or the middle of a character.
            (self.at <= self.text.len()).then_some(())?;
        }
        self.at += 1;
        Some((self.text.get(begin..self.at)?, is_plain))
    }

    fn number(&mut self) -> Option<()> {
        let rest = &self.text.as_bytes()[self.at..];
        let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        let end = rest.iter().take_while(|byte| is_part(byte)).count();
        let token = self.text.get(self.at..self.at + end)?;
        self.at += end;
        match plain_number(token.as_bytes()) {
            Some(len) => self.out.extend_from_slice(&token.as_bytes()[..len]),
            None => {
                let number: Number = serde_json::from_str(token).ok()?;
                let mut written = String::new();
                write_number(&number, &mut written);
                self.out.extend_from_slice(written.as_bytes());
            }
        }
        Some(())
    }
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

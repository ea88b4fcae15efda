//! Hostile texts: nothing hidden is left, and nothing is lost.

#![allow(clippy::expect_used)]

use proptest::prelude::*;
use windlass_text::testing::{HOSTILE_CHARACTERS, unquote};
use windlass_text::{SafeText, StreamEscaper, escape_json, is_hidden, text_width};

/// Texts of ordinary and of hostile characters.
fn any_text() -> impl Strategy<Value = String> {
    let hostile = prop::sample::select(HOSTILE_CHARACTERS);
    prop::collection::vec(
        prop_oneof![3 => hostile, 2 => any::<char>(), 2 => prop::char::range(' ', '~')],
        0..60,
    )
    .prop_map(|letters| letters.into_iter().collect())
}

fn assert_visible(text: &str) {
    assert!(!text.chars().any(is_hidden), "{text:?}");
    let is_base = |letter: char| letter.is_alphanumeric() || text_width(&letter.to_string()) == 0;
    let mut previous = ' ';
    for letter in text.chars() {
        let is_mark = text_width(&letter.to_string()) == 0;
        assert!(!is_mark || is_base(previous), "a mark without a letter: {text:?}");
        previous = letter;
    }
}

proptest! {
    #[test]
    fn a_literal_shows_everything_and_can_be_read_back(text in any_text()) {
        let literal = SafeText::quote(&text);
        assert_visible(literal.as_str());
        prop_assert_eq!(unquote(literal.as_str()), Some(text));
    }

    #[test]
    fn a_line_has_nothing_hidden(text in any_text()) {
        assert_visible(SafeText::from_line(&text).as_str());
        for line in SafeText::from_lines(&text) {
            assert_visible(line.as_str());
        }
        assert_visible(SafeText::from_words(&text).as_str());
    }

    #[test]
    fn joined_texts_have_nothing_hidden(one in any_text(), other in any_text()) {
        let mut joined = SafeText::from_line(&one);
        joined.push(&SafeText::from_line(&other));
        assert_visible(joined.as_str());
    }

    #[test]
    fn json_keeps_its_value(text in any_text()) {
        let json = format!("{{\"a\":{}}}", json_string(&text));
        let escaped = escape_json(&json);
        assert_visible(&escaped);
        prop_assert_eq!(json_units(&escaped), json_units(&json));
    }

    #[test]
    fn wrapping_loses_nothing_and_stays_inside(text in any_text(), width in 2_usize..40) {
        let safe = SafeText::quote(&text);
        let lines = safe.wrap(width);
        prop_assert!(lines.iter().all(|line| line.width() <= width));
        prop_assert_eq!(lines.iter().map(SafeText::as_str).collect::<String>(), safe.as_str());
    }

    #[test]
    fn pieces_are_escaped_like_the_whole(text in any_text(), cuts in prop::collection::vec(0_usize..60, 0..5)) {
        let mut whole = StreamEscaper::default();
        let mut expected = whole.escape(&text);
        expected.push_str(whole.finish());
        let mut pieces = StreamEscaper::default();
        let mut found = String::new();
        for (place, letter) in text.chars().enumerate() {
            found.push_str(&pieces.escape(&letter.to_string()));
            if cuts.contains(&place) {
                found.push_str(&pieces.escape(""));
            }
        }
        found.push_str(pieces.finish());
        prop_assert_eq!(&found, &expected);
        let is_allowed = |letter: char| matches!(letter, '\n' | '\u{fe0f}' | '\u{20e3}');
        prop_assert!(!found.chars().any(|letter| is_hidden(letter) && !is_allowed(letter)), "{:?}", found);
    }
}

/// Writes a JSON string as a model may: only what JSON requires is escaped.
fn json_string(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            '\0'..'\u{20}' => out.push_str(&format!("\\u{:04x}", u32::from(letter))),
            _ => out.push(letter),
        }
    }
    out + "\""
}

/// The UTF-16 units of a JSON text whose escapes are resolved.
fn json_units(json: &str) -> Vec<u16> {
    let mut units = Vec::new();
    let mut letters = json.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            units.extend(letter.encode_utf16(&mut [0; 2]).iter());
            continue;
        }
        match letters.next().expect("an escape has a letter") {
            'u' => {
                let hex: String = letters.by_ref().take(4).collect();
                units.push(u16::from_str_radix(&hex, 16).expect("it is a number"));
            }
            other => units.extend(['\\', other].map(|letter| letter as u16)),
        }
    }
    units
}

#[test]
fn known_attacks_are_visible() {
    for (attack, shown) in [
        ("ls\u{1b}[2K\rrm", r"ls\u{1b}[2K\rrm"),
        ("\u{9b}2J", r"\u{9b}2J"),
        ("\u{1b}]52;c;cm0=\u{7}", r"\u{1b}]52;c;cm0=\u{7}"),
        ("pay\u{202e}001", r"pay\u{202e}001"),
        ("a\u{2066}b\u{2069}", r"a\u{2066}b\u{2069}"),
        ("in\u{200b}visible", r"in\u{200b}visible"),
        ("tag\u{e0041}\u{e007f}", r"tag\u{e0041}\u{e007f}"),
        ("vs\u{fe01}\u{e0100}", r"vs\u{fe01}\u{e0100}"),
        ("\u{301}lone", r"\u{301}lone"),
        (" \u{301}", r" \u{301}"),
        ("e\u{301}", "e\u{301}"),
        ("s\u{336}t", r"s\u{336}t"),
        ("z\u{301}\u{301}\u{301}\u{301}\u{301}", "z\u{301}\u{301}\u{301}\u{301}\\u{301}"),
        ("rm\u{a0}-rf", r"rm\u{a0}-rf"),
        ("Füße, 日本語, ไทย, हिन्दी, 👍", "Füße, 日本語, ไทย, हिन्दी, 👍"),
    ] {
        assert_eq!(SafeText::from_line(attack).as_str(), shown);
    }
}

#[test]
fn prose_keeps_its_emoji_and_line_ends() {
    let mut stream = StreamEscaper::default();
    assert_eq!(
        stream.escape("1\u{fe0f}\u{20e3} ok\r\n\u{26a0}\u{fe0f} x\u{fe0f}"),
        "1\u{fe0f}\u{20e3} ok\n\u{26a0}\u{fe0f} x\\u{fe0f}"
    );
}

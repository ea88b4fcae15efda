//! Removal of a secret from a text, in the forms in which pages and addresses write it.

use data_encoding::{BASE64, BASE64_NOPAD, BASE64URL, BASE64URL_NOPAD, HEXLOWER, HEXUPPER};

/// Replacement for a secret value.
const REDACTED_TEXT: &str = "[secret]";
/// Length below which only the plain and the percent-encoded form are searched: other forms of a very short
/// text occur by chance.
const MIN_ENCODED_LEN: usize = 4;

/// Replaces a secret in a text: as it is, percent-encoded once or repeatedly, in whole or in part, with `+`
/// for a space, with HTML entities, with the escapes of JSON, in base64 and in hex.
pub(crate) fn mask_secret(text: String, secret: &str) -> String {
    if secret.is_empty() {
        return text;
    }
    let mut text = mask_percent_encoded(text, secret);
    if secret.len() < MIN_ENCODED_LEN {
        return text;
    }
    let json = serde_json::to_string(secret).unwrap_or_default();
    let json = json.strip_prefix('"').and_then(|json| json.strip_suffix('"')).unwrap_or_default();
    let bytes = secret.as_bytes();
    let forms = [
        escape_html(secret, "&#39;"),
        escape_html(secret, "&#x27;"),
        escape_html(secret, "&apos;"),
        json.to_owned(),
        BASE64.encode(bytes),
        BASE64_NOPAD.encode(bytes),
        BASE64URL.encode(bytes),
        BASE64URL_NOPAD.encode(bytes),
        HEXLOWER.encode(bytes),
        HEXUPPER.encode(bytes),
    ];
    for form in forms {
        if !form.is_empty() && text.contains(&form) {
            text = text.replace(&form, REDACTED_TEXT);
        }
    }
    text
}

/// Replaces a secret whose bytes are plain or percent-encoded, in any mixture.
fn mask_percent_encoded(text: String, secret: &str) -> String {
    let bytes = text.as_bytes();
    let mut masked = String::new();
    let (mut at, mut copied) = (0, 0);
    while at < bytes.len() {
        match match_encoded(&bytes[at..], secret.as_bytes()) {
            Some(len) if text.is_char_boundary(at) && text.is_char_boundary(at + len) => {
                masked.push_str(&text[copied..at]);
                masked.push_str(REDACTED_TEXT);
                at += len;
                copied = at;
            }
            _ => at += 1,
        }
    }
    if copied == 0 {
        return text;
    }
    masked.push_str(&text[copied..]);
    masked
}

/// Returns the number of bytes at the start of `text` that encode `secret`.
fn match_encoded(text: &[u8], secret: &[u8]) -> Option<usize> {
    let [wanted, later @ ..] = secret else { return Some(0) };
    // The encoded form is tried first, because a percent sign may stand for itself or begin a code.
    let encoded = encoded_len(text, *wanted);
    let plain = match text.first()? {
        byte if byte == wanted => Some(1),
        b'+' if *wanted == b' ' => Some(1),
        _ => None,
    };
    let lens = encoded.into_iter().chain(plain);
    lens.into_iter().find_map(|len| match_encoded(&text[len..], later).map(|rest| len + rest))
}

/// Returns the length of the percent code of a byte at the start of a text. A percent sign that was encoded
/// itself is `%25`, however often.
fn encoded_len(text: &[u8], wanted: u8) -> Option<usize> {
    let mut at = 1;
    if text.first() != Some(&b'%') {
        return None;
    }
    loop {
        let digits = std::str::from_utf8(text.get(at..at + 2)?).ok()?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let next_is_code =
            text.get(at + 2..at + 4).is_some_and(|next| next.iter().all(u8::is_ascii_hexdigit));
        if digits == "25" && (wanted != b'%' || text[at + 2..].starts_with(b"25")) && next_is_code {
            at += 2;
            continue;
        }
        return (u8::from_str_radix(digits, 16).ok()? == wanted).then_some(at + 2);
    }
}

fn escape_html(text: &str, apostrophe: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', apostrophe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_written_form_of_a_secret_is_masked() {
        let secret = "p&ss 'wörd'/%";
        let forms = [
            "p&ss 'wörd'/%",
            "p%26ss%20'w%C3%B6rd'%2F%25",
            "p%26ss+%27w%c3%b6rd%27%2f%25",
            "p%2526ss%2520%2527w%25C3%25B6rd%2527%252F%2525",
            "p&amp;ss &#39;wörd&#39;/%",
            "p&amp;ss &#x27;wörd&#x27;/%",
            "cCZzcyAnd8O2cmQnLyU=",
            "cCZzcyAnd8O2cmQnLyU",
            "702673732027 77c3b67264272f25",
        ];
        for form in &forms[..8] {
            assert_eq!(mask_secret(format!("q={form}&x"), secret), "q=[secret]&x", "{form}");
        }
        let hex = forms[8].replace(' ', "");
        assert_eq!(mask_secret(hex, secret), REDACTED_TEXT);
        assert_eq!(
            mask_secret(r#"{"a":"tab\tand \"q\""}"#.to_owned(), "tab\tand \"q\""),
            r#"{"a":"[secret]"}"#
        );
    }

    #[test]
    fn other_text_is_left_alone() {
        for text in ["", "%", "%2", "100%25 sure", "ö%C3", "no secret here"] {
            assert_eq!(mask_secret(text.to_owned(), "s3cret"), text);
        }
    }
}

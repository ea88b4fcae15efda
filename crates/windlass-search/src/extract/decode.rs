//! Decoding of bytes to text: by a byte order mark, by the encoding that the file declares, as UTF-8, or by detection.
//!
//! Invariant: text is never decoded with replacement characters or in a doubtful encoding without a word. Bytes that
//! fit no encoding are refused by name.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};

use super::DocumentFormat;

/// Number of bytes at the start of a file in which an encoding can be declared.
const DECLARATION_BYTES: usize = 1024;
/// Maximum number of bytes that the detection looks at.
const DETECTION_BYTES: usize = 1 << 20;

/// A decoded text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DecodedText {
    pub(super) text: String,
    /// Description of a doubt about the encoding, for the report.
    pub(super) warning: Option<String>,
}

/// Decodes the bytes of a text file. The error is the reason for the report.
pub(super) fn decode_text(kind: DocumentFormat, bytes: &[u8]) -> Result<DecodedText, String> {
    let certain = |text: String| DecodedText { text, warning: None };
    if let Some((encoding, mark)) = Encoding::for_bom(bytes) {
        let text = encoding.decode_without_bom_handling(&bytes[mark..]).0.into_owned();
        return Ok(certain(text));
    }
    if !is_text(bytes) {
        return Err("it is not text".to_owned());
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && !has_iso_2022_escapes(bytes)
    {
        return Ok(certain(text.to_owned()));
    }
    if let Some(label) = declared_encoding(kind, &bytes[..bytes.len().min(DECLARATION_BYTES)]) {
        match Encoding::for_label(label.as_bytes()) {
            // A declaration of UTF-8 that is not true says nothing about the encoding.
            Some(encoding) if encoding != UTF_8 => {
                if let Some(text) = encoding.decode_without_bom_handling_and_without_replacement(bytes) {
                    return Ok(certain(text.into_owned()));
                }
            }
            Some(_) => {}
            None => return Err(format!("it declares the encoding `{label}`, which is not known")),
        }
    }
    if let Some(decoded) = decode_damaged_utf8(bytes) {
        return Ok(decoded);
    }
    detect_encoding(bytes)
}

/// Returns true if the bytes look like text in some encoding: no NUL bytes, and few control characters.
pub(super) fn is_text(bytes: &[u8]) -> bool {
    let step = (bytes.len() / 65_536).max(1);
    let mut seen = 0usize;
    let mut odd = 0usize;
    for byte in bytes[..bytes.len().min(8192)].iter().chain(bytes.iter().step_by(step)) {
        seen += 1;
        match byte {
            0 => return false,
            0x01..=0x08 | 0x0e..=0x1a | 0x1c..=0x1f | 0x7f => odd += 1,
            _ => {}
        }
    }
    odd * 20 <= seen
}

/// Returns true if ISO-2022-JP switches its character sets in the text; all its bytes are ASCII.
fn has_iso_2022_escapes(bytes: &[u8]) -> bool {
    bytes.windows(3).any(|three| matches!(three, b"\x1b$B" | b"\x1b$@"))
}

/// Returns the name of the encoding that a page, an XML file or source code declares.
fn declared_encoding(kind: DocumentFormat, start: &[u8]) -> Option<String> {
    let start = String::from_utf8_lossy(start).to_ascii_lowercase();
    let value_after = |mark: &str| {
        let rest = &start[start.find(mark)? + mark.len()..];
        let rest =
            rest.trim_start().trim_start_matches(['=', ':']).trim_start().trim_start_matches(['"', '\'']);
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let label: String = rest.chars().take_while(|c| is_part(*c)).take(40).collect();
        (!label.is_empty()).then_some(label)
    };
    match kind {
        DocumentFormat::Html => value_after("charset").or_else(|| value_after("encoding")),
        DocumentFormat::Code if start.starts_with("<?xml") => value_after("encoding"),
        // PEP 263, as Emacs and Vim write it too: in a comment in one of the first two lines.
        DocumentFormat::Code | DocumentFormat::Text => {
            let mut lines = start.lines().take(2);
            let is_declaration = lines
                .any(|line| line.contains('#') && (line.contains("coding:") || line.contains("coding=")));
            if is_declaration { value_after("coding") } else { None }
        }
        DocumentFormat::Markdown | DocumentFormat::Pdf => None,
    }
}

/// Decodes UTF-8 with a few invalid bytes, such as a log with a truncated line; `None` if it is another encoding.
fn decode_damaged_utf8(bytes: &[u8]) -> Option<DecodedText> {
    let (mut wide, mut bad) = (0usize, 0usize);
    for chunk in bytes.utf8_chunks() {
        wide += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
        bad += usize::from(!chunk.invalid().is_empty());
    }
    (wide > bad * 8).then(|| DecodedText {
        text: String::from_utf8_lossy(bytes).into_owned(),
        warning: Some(format!("{bad} places in it are not UTF-8 and were replaced")),
    })
}

/// Detects a legacy encoding by the frequencies of its characters.
fn detect_encoding(bytes: &[u8]) -> Result<DecodedText, String> {
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Allow);
    detector.feed(&bytes[..bytes.len().min(DETECTION_BYTES)], bytes.len() <= DETECTION_BYTES);
    let guess = detector.guess(None, Utf8Detection::Deny);
    let refused = || {
        format!(
            "its encoding was not recognised (it is not UTF-8, and not valid as {}); hint: convert it to UTF-8",
            guess.name()
        )
    };
    let text = guess.decode_without_bom_handling_and_without_replacement(bytes).ok_or_else(refused)?;
    let (mut letters, mut odd, mut has_controls) = (0usize, 0usize, false);
    for c in text.chars().filter(|c| !c.is_ascii()) {
        has_controls |= c.is_control();
        let is_common = c.is_alphanumeric()
            || matches!(c, '\u{a0}' | '\u{ad}'..='\u{ff}' | '\u{2000}'..='\u{206f}' | '\u{3000}'..='\u{303f}' | '\u{ff00}'..='\u{ffef}');
        letters += usize::from(is_common);
        odd += usize::from(!is_common);
    }
    // Text has letters; other data decodes to symbols and controls. The languages of Western Europe, to which the
    // detection resorts, are mostly ASCII.
    let is_usual = guess == WINDOWS_1252;
    if has_controls || odd * 4 > letters + odd || (is_usual && (letters + odd) * 3 > bytes.len()) {
        return Err(refused());
    }
    let warning =
        (!is_usual).then(|| format!("its encoding is not declared; it was read as {}", guess.name()));
    Ok(DecodedText { text: text.into_owned(), warning })
}

#[cfg(test)]
mod tests {
    use encoding_rs::{
        BIG5, EUC_JP, EUC_KR, Encoding, GBK, ISO_2022_JP, ISO_8859_2, KOI8_R, SHIFT_JIS, WINDOWS_1251,
        WINDOWS_1252,
    };

    use super::decode_text;
    use crate::DocumentFormat;

    const RUSSIAN: &str = "Насос нужно продуть перед зимой, иначе вода в трубах замёрзнет и разорвёт их.";
    const CHINESE: &str = "冬天来临之前必须给水泵放气，否则管道里的水会结冰并使管道破裂。请每年检查两次。";
    const JAPANESE: &str =
        "冬になる前にポンプの空気を抜いてください。そうしないと配管の水が凍って破裂します。";

    #[test]
    fn legacy_encodings_are_detected_or_declared() {
        let cases: [(&'static Encoding, &str); 9] = [
            (GBK, CHINESE),
            (SHIFT_JIS, JAPANESE),
            (EUC_JP, JAPANESE),
            (ISO_2022_JP, JAPANESE),
            (WINDOWS_1251, RUSSIAN),
            (KOI8_R, RUSSIAN),
            (WINDOWS_1252, "Das Gerät muß überprüft werden, bevor der Frost einsetzt."),
            (EUC_KR, "겨울이 오기 전에 펌프의 공기를 빼야 합니다. 그렇지 않으면 관이 얼어 터집니다."),
            (BIG5, "冬天來臨之前必須給水泵放氣，否則管道裡的水會結冰並使管道破裂。請每年檢查兩次。"),
        ];
        for (encoding, text) in cases {
            let (bytes, _, has_failed) = encoding.encode(text);
            assert!(!has_failed, "{}", encoding.name());
            let decoded = decode_text(DocumentFormat::Text, &bytes).expect("decodes");
            assert_eq!(decoded.text, text, "{}", encoding.name());
            assert_eq!(decoded.warning.is_none(), encoding == WINDOWS_1252, "{:?}", decoded.warning);
            let page = format!("<html><head><meta charset=\"{}\"></head><p>{text}", encoding.name());
            let decoded = decode_text(DocumentFormat::Html, &encoding.encode(&page).0).expect("decodes");
            assert!(decoded.text.ends_with(text) && decoded.warning.is_none(), "{decoded:?}");
        }
        let source = format!("# -*- coding: iso-8859-2 -*-\n# {}\n", "źródło");
        let decoded = decode_text(DocumentFormat::Code, &ISO_8859_2.encode(&source).0).expect("declared");
        assert_eq!(decoded.text, source);
    }

    #[test]
    fn other_bytes_are_refused_by_name() {
        let mut state = 9u64;
        let noise: Vec<u8> = (0..4000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                0x80 | state.to_be_bytes()[0]
            })
            .collect();
        let refused = decode_text(DocumentFormat::Text, &noise).expect_err("noise");
        assert!(refused.contains("encoding was not recognised"), "{refused}");
        let page = b"<meta charset=x-klingon><p>caf\xe9 caf\xe9";
        let refused = decode_text(DocumentFormat::Html, page).expect_err("an unknown name");
        assert_eq!(refused, "it declares the encoding `x-klingon`, which is not known");
    }

    #[test]
    fn damaged_utf8_is_read_with_a_warning() {
        let mut bytes = "Привет, мир. Насос нужно продуть.".as_bytes().to_vec();
        bytes.push(0xd0);
        let decoded = decode_text(DocumentFormat::Text, &bytes).expect("reads");
        assert!(decoded.text.starts_with("Привет"), "{decoded:?}");
        assert!(decoded.warning.is_some_and(|warning| warning.contains("not UTF-8")));
    }
}

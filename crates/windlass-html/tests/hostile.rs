//! Any input is read without a panic, in linear time, and to no more text than it has.

use proptest::prelude::*;
use windlass_html::{HtmlReader, HtmlToken, HtmlTokenKind};

/// Parts of pages that change the state of the tokeniser, or leave it open.
#[rustfmt::skip]
const FRAGMENTS: [&str; 48] = [
    "<", ">", "</", "/>", "<!--", "-->", "<!", "<?", "<![CDATA[", "]]>", "\"", "'", "=", " ", "\n", "\r\n", "\0", "&",
    "&amp", "&#x", "&#9999999999;", "&nGt;", "&NotEqualTilde;", ";", "é", "text", "<p>", "</p>", "<a b=\"", "<a b='",
    "<a x=\"><a \" ", "<br/>", "<title>", "</title>", "<script>", "</script>", "<script/>", "<style", "<svg>",
    "</svg>", "<template>", "<noscript>", "<plaintext", "<textarea>", "<h1>", "<table><tr><td>", "<!doctype html",
    "<xmp>",
];

/// Reads a page, and checks what holds for every page.
fn read_checked(page: &str) -> Vec<HtmlToken> {
    let tokens: Vec<HtmlToken> = HtmlReader::new(page).collect();
    let last_line = 1 + u32::try_from(page.matches('\n').count()).unwrap_or(u32::MAX);
    let mut line = 1;
    let mut text_bytes = 0;
    for token in &tokens {
        assert!(line <= token.line && token.line <= last_line, "lines ascend: {token:?}");
        line = token.line;
        if let HtmlTokenKind::Text(text) = &token.kind {
            assert!(
                !text.is_empty() && !text.contains(['\n', '\r', '\t']) && !text.contains("  "),
                "{text:?}"
            );
            text_bytes += text.len();
        }
    }
    // A NUL byte becomes a character of three bytes; the longest reference in proportion is `&nGt;`.
    assert!(text_bytes <= 3 * page.len(), "{text_bytes} bytes of text from {} bytes", page.len());
    assert!(tokens.len() <= page.len());
    tokens
}

proptest! {
    #[test]
    fn any_sequence_of_fragments_is_read(parts in prop::collection::vec(0..FRAGMENTS.len(), 0..60)) {
        let page: String = parts.into_iter().map(|at| FRAGMENTS[at]).collect();
        read_checked(&page);
    }

    #[test]
    fn any_text_is_read(page in "\\PC*") {
        read_checked(&page);
    }

    #[test]
    fn a_budget_gives_the_beginning_of_the_text(
        parts in prop::collection::vec(0..FRAGMENTS.len(), 0..40),
        budget in 0..100_usize,
    ) {
        let page: String = parts.into_iter().map(|at| FRAGMENTS[at]).collect();
        let whole = joined_text(HtmlReader::new(&page));
        let mut reader = HtmlReader::new(&page).max_text_bytes(budget);
        let part = joined_text(reader.by_ref());
        prop_assert!(part.len() <= budget && whole.starts_with(&part));
        prop_assert_eq!(reader.is_truncated(), part != whole);
    }

    #[test]
    fn a_word_has_the_line_that_it_stands_on(rows in prop::collection::vec((0..FRAGMENTS.len(), 0..4_usize), 1..30)) {
        // Each row has a tag, a comment or a line break inside a tag, and then a word with its number.
        let mut page = String::new();
        let mut line = 1;
        for (at, form) in rows {
            let markup = ["<p>", "<!-- a\nb -->", "<p\n class=\"a>\nb\">", "<script>\n</script>"][form];
            page.push_str(markup);
            line += markup.matches('\n').count();
            page.push_str(&format!("{}line{line}", " ".repeat(at % 3)));
            page.push_str(["\n", "\r\n", "&amp;\n"][at % 3]);
            line += 1;
        }
        let mut words = 0;
        for token in read_checked(&page) {
            if let HtmlTokenKind::Text(text) = token.kind
                && let Some(number) = text.trim().trim_end_matches('&').strip_prefix("line")
            {
                prop_assert_eq!(number, token.line.to_string());
                words += 1;
            }
        }
        prop_assert!(words > 0);
    }
}

fn joined_text(tokens: impl Iterator<Item = HtmlToken>) -> String {
    tokens
        .filter_map(|token| match token.kind {
            HtmlTokenKind::Text(text) => Some(text),
            HtmlTokenKind::OpenTag(_) | HtmlTokenKind::CloseTag(_) => None,
        })
        .collect()
}

/// With quadratic work one of these pages would take hours.
#[test]
fn long_pages_of_one_fragment_take_linear_time() {
    for fragment in FRAGMENTS {
        read_checked(&fragment.repeat(400_000 / fragment.len()));
    }
}

#[test]
fn nested_titles_do_not_multiply_their_text() {
    let page = "<title>".repeat(8192 / 7);
    let tokens = read_checked(&page);
    assert_eq!(tokens.len(), 2, "the first title, and the others as its text");
}

/// The tokeniser calls itself for each attribute, so that a page could exhaust the stack, which ends the whole process.
#[test]
fn a_tag_with_many_attributes_does_not_exhaust_the_stack() {
    for attribute in ["a=\"1\" ", "a=\"1\"", "a='1' ", "a=1 ", "a ", "a=\">\" "] {
        let page = format!("<p>one<p {}>two", attribute.repeat(20_000));
        let tokens = read_checked(&page);
        let mut texts = tokens.iter().filter_map(|token| match &token.kind {
            HtmlTokenKind::Text(text) => Some(text.as_str()),
            HtmlTokenKind::OpenTag(_) | HtmlTokenKind::CloseTag(_) => None,
        });
        assert_eq!(texts.next(), Some("one"), "{attribute}");
        assert!(texts.next_back().is_some_and(|last| last.ends_with("two")), "{attribute}");
    }
}

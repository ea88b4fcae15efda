//! Pages and their tokens.

use windlass_html::{HtmlReader, HtmlTokenKind};

/// Writes tokens as `line text`, `line <name>` and `line </name>`.
fn tokens(page: &str) -> Vec<String> {
    HtmlReader::new(page)
        .map(|token| match token.kind {
            HtmlTokenKind::Text(text) => format!("{} {text}", token.line),
            HtmlTokenKind::OpenTag(name) => format!("{} <{name}>", token.line),
            HtmlTokenKind::CloseTag(name) => format!("{} </{name}>", token.line),
        })
        .collect()
}

fn text(page: &str) -> String {
    HtmlReader::new(page)
        .filter_map(|token| match token.kind {
            HtmlTokenKind::Text(text) => Some(text),
            HtmlTokenKind::OpenTag(_) | HtmlTokenKind::CloseTag(_) => None,
        })
        .collect()
}

#[test]
fn text_and_tags_come_in_order_with_their_lines() {
    let page =
        "<!doctype html>\n<P class=\"a>b\"\n   id='c>d'>One\n  two<br/>\r\n\r\n three</p><!-- 4\n5 -->\n six";
    assert_eq!(tokens(page), ["2  ", "2 <p>", "3 One two", "4 <br>", "6  three", "6 </p>", "8  six"]);
}

#[test]
fn character_references_are_decoded() {
    for (page, expected) in [
        ("&amp;&lt;&gt;&quot;&apos;", "&<>\"'"),
        ("&Aacute;&NotEqualTilde;&CounterClockwiseContourIntegral;", "Á≂̸∳"),
        ("&mdash;&ndash;&hellip;", "—–…"),
        ("a&nbsp;&nbsp;b", "a b"),
        ("&#8211;&#x41;&#X42;", "–AB"),
        // The standard replaces code points that are no characters, and reads 128 to 159 as Windows-1252.
        ("&#0;&#xd800;&#xffffffff;&#128;", "\u{fffd}\u{fffd}\u{fffd}€"),
        // Some names need no semicolon; unknown names are text.
        ("&copy 1 &eacutes &nosuch; &é; &;&#;&#x; R&D &", "© 1 és &nosuch; &é; &;&#;&#x; R&D &"),
    ] {
        assert_eq!(text(page), expected, "{page}");
    }
}

#[test]
fn elements_without_visible_text_are_skipped() {
    for (page, expected) in [
        ("a<script>if (a < b) { x('</p>') }</script>b", "ab"),
        ("a<script><!-- <script>1</script> -->2</script>b", "ab"),
        ("a<STYLE>p > b {}</Style >b", "ab"),
        ("a<noscript><p>x</noscript>b", "ab"),
        ("a<template><template>x</template>y</template>b", "ab"),
        ("a<svg><title>x</title><text>y</text></svg>b", "ab"),
        ("a<math><mi>x</mi></math><iframe><p>x</iframe>b", "ab"),
        ("a<script src='x'/>b<svg/>c<template/>d", "abcd"),
        ("a</script></svg>b", "ab"),
        ("a<script>x", "a"),
        ("a<svg>x<p>y", "a"),
    ] {
        assert_eq!(text(page), expected, "{page}");
    }
}

#[test]
fn the_content_of_a_title_is_text() {
    assert_eq!(
        tokens("<title>a <b> &amp; <title>\n</TITLE>c"),
        ["1 <title>", "1 a <b> & <title> ", "2 </title>", "2 c"]
    );
    assert_eq!(tokens("<title/>b"), ["1 <title>", "1 b"]);
}

#[test]
fn a_sign_that_starts_no_tag_is_text() {
    for (page, expected) in [
        ("a < b", "a < b"),
        ("1<2 && 3<4", "1<2 && 3<4"),
        ("<", "<"),
        ("</", "</"),
        ("a<é>b", "a<é>b"),
        ("a<>b", "a<>b"),
        ("a<?php echo 1 ?>b", "ab"),
        ("a<![CDATA[x]]>b", "ab"),
        ("a<!-->b", "ab"),
        ("a<!--b", "a"),
        ("a<b c", "a"),
    ] {
        assert_eq!(text(page), expected, "{page}");
    }
}

#[test]
fn a_quote_that_is_not_closed_hides_only_its_tag() {
    assert_eq!(tokens("<p class=\"x>One\n<b>two</b>"), ["1 <p>", "1 One ", "2 <b>", "2 two", "2 </b>"]);
    assert_eq!(text("<i a='>b<i a=\"><u>c</u>"), "bc");
    assert_eq!(text("a<script src=\"x>hidden</script>b"), "ab");
    // Without a closing sign there is no rest.
    assert_eq!(tokens("a<b c=\"d"), ["1 a"]);
}

#[test]
fn the_text_ends_at_the_budget() {
    let read = |page, bytes| {
        let mut reader = HtmlReader::new(page).max_text_bytes(bytes);
        let text: String = reader
            .by_ref()
            .filter_map(|token| match token.kind {
                HtmlTokenKind::Text(text) => Some(text),
                HtmlTokenKind::OpenTag(_) | HtmlTokenKind::CloseTag(_) => None,
            })
            .collect();
        assert!(reader.next().is_none(), "the reader has ended");
        (text, reader.is_truncated())
    };
    assert_eq!(read("<p>one</p><p>two</p>", 6), ("onetwo".to_owned(), false));
    assert_eq!(read("<p>one</p><p>two</p>", 5), ("onetw".to_owned(), true));
    assert_eq!(read("<p>one</p><p>two</p>", 3), ("one".to_owned(), true));
    assert_eq!(read("<p>one</p><script>two</script>", 3), ("one".to_owned(), false));
    assert_eq!(read("a&eacute;b", 2), ("a".to_owned(), true));
    assert_eq!(read("   a   b", 3), (" a ".to_owned(), true));
}

//! Conversion of HTML to text: one line for each block element.

use windlass_html::{ElementLayout, HtmlReader, HtmlTokenKind};

pub(super) fn html_to_text(page: &str) -> String {
    let mut text = String::new();
    for token in HtmlReader::new(page) {
        match token.kind {
            HtmlTokenKind::Text(more) => push_text(&mut text, &more),
            HtmlTokenKind::OpenTag(name) | HtmlTokenKind::CloseTag(name) => match ElementLayout::of(&name) {
                ElementLayout::Inline => {}
                ElementLayout::Cell => push_text(&mut text, " "),
                ElementLayout::Block | ElementLayout::Heading(_) => end_line(&mut text),
            },
        }
    }
    end_line(&mut text);
    text.pop();
    text
}

/// Appends text, and at most one space between two words.
fn push_text(text: &mut String, more: &str) {
    let at_start = text.is_empty() || text.ends_with([' ', '\n']);
    text.push_str(if at_start { more.trim_start() } else { more });
}

/// Starts a new line, unless the current one is empty.
fn end_line(text: &mut String) {
    text.truncate(text.trim_end_matches(' ').len());
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::html_to_text;

    #[test]
    fn a_page_is_its_text() {
        let page = "<!doctype html><html><HEAD><title>Tides &amp; more</title><style>p{}</style></HEAD><body>\
                    <!-- no --><h1>Tides</h1>\n<p>High   at <b>six</b>,\n low at 3 &lt; 4 &#8211; &#x41;.</p>\
                    <script>if (a < b) { alert('<p>x</p>') }</script><ul><li>one<li>two</ul></body></html>";
        assert_eq!(html_to_text(page), "Tides & more\nTides\nHigh at six, low at 3 < 4 – A.\none\ntwo");
    }

    #[test]
    fn what_is_broken_is_read_as_far_as_it_goes() {
        for page in [
            "<",
            "a < b",
            "<p",
            "<script>x",
            "&",
            "&#xffffffff;",
            "&é;x",
            "<!--",
            "</",
            "<é>",
            "<head><title>x",
        ] {
            html_to_text(page);
        }
        assert_eq!(html_to_text("a < b & c"), "a < b & c");
    }

    #[test]
    fn the_cells_of_a_table_are_separate_words() {
        let page =
            "<table><tr><th>port</th><th>tide</th></tr>\n<tr><td>Brest <td>high</table>\n<dl><dt>a<dd>b</dl>";
        assert_eq!(html_to_text(page), "port tide\nBrest high\na\nb");
    }

    #[test]
    fn nested_titles_do_not_multiply_the_text() {
        assert!(html_to_text(&"<head><title>".repeat(600)).len() <= 8192);
    }
}

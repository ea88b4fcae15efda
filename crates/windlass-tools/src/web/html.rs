//! The text of a page: what a reader would see, roughly. Enough to read an article, and no browser.

/// Elements whose content nobody reads.
const SKIPPED: [&str; 6] = ["script", "style", "noscript", "template", "svg", "head"];
/// Elements that begin a line.
const LINES: [&str; 20] = [
    "p",
    "div",
    "br",
    "li",
    "ul",
    "ol",
    "tr",
    "table",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "section",
    "article",
    "header",
    "footer",
    "pre",
    "blockquote",
];

pub(super) fn text_of(page: &str) -> String {
    let mut text = String::new();
    let mut rest = page;
    while let Some(at) = rest.find('<') {
        push(&mut text, &rest[..at]);
        let tag = &rest[at + 1..];
        if let Some(comment) = tag.strip_prefix("!--") {
            rest = comment.find("-->").map_or("", |end| &comment[end + 3..]);
            continue;
        }
        let name_end = tag.find(|c: char| !c.is_ascii_alphanumeric() && c != '/').unwrap_or(tag.len());
        let name = tag[..name_end].trim_matches('/').to_ascii_lowercase();
        if name.is_empty() && !tag.starts_with(['!', '?']) {
            // Not a tag: a sign of its own.
            push(&mut text, "<");
            rest = tag;
            continue;
        }
        rest = tag.find('>').map_or("", |end| &tag[end + 1..]);
        if name == "title" && !tag.starts_with('/') {
            continue;
        }
        if SKIPPED.contains(&name.as_str()) && !tag.starts_with('/') {
            let (inside, after) = split_at_end(rest, &name);
            if name == "head"
                && let Some((title, _)) = inside
                    .split_once("<title")
                    .and_then(|(_, rest)| rest.split_once('>'))
                    .map(|(_, rest)| split_at_end(rest, "title"))
            {
                push(&mut text, title);
                text.push('\n');
            }
            rest = after;
        } else if LINES.contains(&name.as_str()) && !text.ends_with('\n') {
            text.push('\n');
        }
    }
    push(&mut text, rest);
    text.trim().to_owned()
}

/// What stands before the end of an element, and what stands after it.
fn split_at_end<'a>(rest: &'a str, name: &str) -> (&'a str, &'a str) {
    let is_end =
        |at: usize| rest[at + 2..].get(..name.len()).is_some_and(|found| found.eq_ignore_ascii_case(name));
    match rest.match_indices("</").map(|(at, _)| at).find(|at| is_end(*at)) {
        Some(end) => (&rest[..end], rest[end..].split_once('>').map_or("", |(_, after)| after)),
        None => (rest, ""),
    }
}

/// Adds text with its white space drawn together and its signs decoded.
fn push(text: &mut String, more: &str) {
    let mut rest = more;
    while let Some(next) = rest.chars().next() {
        let (sign, length) = match next {
            '&' => decode(rest).unwrap_or(('&', 1)),
            other => (other, other.len_utf8()),
        };
        rest = &rest[length..];
        if !sign.is_whitespace() {
            text.push(sign);
        } else if !text.is_empty() && !text.ends_with(char::is_whitespace) {
            text.push(' ');
        }
    }
}

/// The sign that `&…;` stands for, and how long it is written.
fn decode(text: &str) -> Option<(char, usize)> {
    let end = text.bytes().take(12).position(|byte| byte == b';')?;
    let sign = match &text[1..end] {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        "nbsp" => ' ',
        "mdash" | "ndash" => '–',
        "hellip" => '…',
        name => {
            let number = name.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                None => number.parse().ok()?,
            };
            char::from_u32(code)?
        }
    };
    Some((sign, end + 1))
}

#[cfg(test)]
mod tests {
    use super::text_of;

    #[test]
    fn a_page_is_its_text() {
        let page = "<!doctype html><html><HEAD><title>Tides &amp; more</title><style>p{}</style></HEAD><body>\
                    <!-- no --><h1>Tides</h1>\n<p>High   at <b>six</b>,\n low at 3 &lt; 4 &#8211; &#x41;.</p>\
                    <script>if (a < b) { alert('<p>x</p>') }</script><ul><li>one<li>two</ul></body></html>";
        assert_eq!(text_of(page), "Tides & more\nTides\nHigh at six, low at 3 < 4 – A.\none\ntwo");
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
            text_of(page);
        }
        assert_eq!(text_of("a < b & c"), "a < b & c");
    }
}

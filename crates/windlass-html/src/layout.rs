//! The default layout of elements.

/// Block elements without headings and cells, sorted for binary search. These are the elements that the HTML
/// standard displays as blocks by default, and `br` and `title`.
const BLOCK_ELEMENTS: [&str; 47] = [
    "address",
    "article",
    "aside",
    "blockquote",
    "body",
    "br",
    "caption",
    "center",
    "dd",
    "details",
    "dialog",
    "dir",
    "div",
    "dl",
    "dt",
    "fieldset",
    "figcaption",
    "figure",
    "footer",
    "form",
    "header",
    "hgroup",
    "hr",
    "html",
    "legend",
    "li",
    "listing",
    "main",
    "menu",
    "nav",
    "ol",
    "optgroup",
    "option",
    "p",
    "plaintext",
    "pre",
    "search",
    "section",
    "summary",
    "table",
    "tbody",
    "tfoot",
    "thead",
    "title",
    "tr",
    "ul",
    "xmp",
];

/// The way in which an element separates its text from the text around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementLayout {
    /// The text continues, as in `<b>` and every unknown element.
    Inline,
    /// The text is a cell of a table row: it is separated by a space.
    Cell,
    /// The text stands in lines of its own, as in `<p>` and `<li>`.
    Block,
    /// The text is a heading of this level, 1 to 6, in lines of its own.
    Heading(u8),
}

impl ElementLayout {
    /// Returns the layout of an element by its lower-case name.
    pub fn of(name: &str) -> Self {
        match name.as_bytes() {
            [b'h', digit @ b'1'..=b'6'] => Self::Heading(digit - b'0'),
            b"td" | b"th" => Self::Cell,
            _ if BLOCK_ELEMENTS.binary_search(&name).is_ok() => Self::Block,
            _ => Self::Inline,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_ELEMENTS, ElementLayout};

    #[test]
    fn every_block_element_is_found() {
        assert!(BLOCK_ELEMENTS.is_sorted());
        for name in BLOCK_ELEMENTS {
            assert_eq!(ElementLayout::of(name), ElementLayout::Block, "{name}");
        }
    }

    #[test]
    fn headings_have_levels_and_other_elements_are_inline() {
        assert_eq!(ElementLayout::of("h6"), ElementLayout::Heading(6));
        assert_eq!(ElementLayout::of("td"), ElementLayout::Cell);
        for name in ["b", "h0", "h7", "h12", "x-card", "", "é"] {
            assert_eq!(ElementLayout::of(name), ElementLayout::Inline, "{name}");
        }
    }
}

//! Extraction of text from HTML: a block of text for each block element, with its line and its heading.

use windlass_html::{ElementLayout, HtmlReader, HtmlTokenKind};

use super::line_based::add_splits_within_line;
use super::{ExtractedText, ExtractionBudget, SplitPoint, SplitStrength};

pub(super) fn extract_html(page: &str, budget: ExtractionBudget) -> ExtractedText {
    let mut reader = HtmlReader::new(page).max_text_bytes(budget.text_bytes);
    let mut extractor = HtmlTextExtractor::default();
    for token in reader.by_ref() {
        match token.kind {
            HtmlTokenKind::Text(text) => extractor.push_text(&text, token.line),
            HtmlTokenKind::OpenTag(name) => match ElementLayout::of(&name) {
                ElementLayout::Heading(level) => extractor.start_heading(level),
                layout => extractor.separate(layout),
            },
            HtmlTokenKind::CloseTag(name) => extractor.separate(ElementLayout::of(&name)),
        }
    }
    extractor.finish_block();
    if reader.is_truncated() {
        let note = format!("only its first {} bytes of text were read", budget.text_bytes);
        extractor.output.warnings.push(note);
    }
    extractor.output
}

/// The state of the extraction.
#[derive(Default)]
struct HtmlTextExtractor {
    output: ExtractedText,
    block: String,
    block_line: u32,
    /// Level of the heading element that is open, if any.
    heading_level: Option<u8>,
}

impl HtmlTextExtractor {
    fn push_text(&mut self, text: &str, line: u32) {
        if self.block.is_empty() {
            self.block_line = line;
        }
        let text = if self.block.is_empty() || self.block.ends_with(' ') { text.trim_start() } else { text };
        self.block.push_str(text);
    }

    fn start_heading(&mut self, level: u8) {
        self.finish_block();
        self.heading_level = Some(level);
    }

    /// Separates the text before a tag from the text after it.
    fn separate(&mut self, layout: ElementLayout) {
        match layout {
            ElementLayout::Inline => {}
            // The cells of a row stay in one block.
            ElementLayout::Cell => self.push_text(" ", self.block_line),
            ElementLayout::Block => self.finish_block(),
            ElementLayout::Heading(_) => {
                self.finish_block();
                self.heading_level = None;
            }
        }
    }

    fn finish_block(&mut self) {
        let block = std::mem::take(&mut self.block);
        let block = block.trim_end();
        if block.is_empty() {
            return;
        }
        let mut strength = SplitStrength::Block;
        if let Some(level) = self.heading_level {
            self.output.outline.enter_heading(level, block);
            strength = SplitStrength::Section;
        }
        let split = SplitPoint {
            offset: self.output.text.len(),
            line: self.block_line,
            page: 0,
            heading: self.output.outline.current(),
            strength,
        };
        self.output.split_points.push(split);
        add_splits_within_line(block, split, &mut self.output.split_points);
        self.output.text.push_str(block);
        self.output.text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ExtractionBudget, SplitStrength};
    use super::extract_html;

    const BUDGET: ExtractionBudget = ExtractionBudget { text_bytes: 1 << 20, inflated_bytes: 0, steps: 0 };

    #[test]
    fn blocks_have_their_lines_and_headings() {
        let page = "<html><head><title>Valves</title><style>p{}</style></head>\n<body><h1>Brass\nvalves</h1>\n<p>Grease \
                    &amp; <b>turn</b> &mdash; twice.\n</p>\n\n<table><tr><td>one<td> two</tr>\n<tr><td>three</table>\
                    <h2>Care</h2>after<script>no</script>wards";
        let found = extract_html(page, BUDGET);
        assert_eq!(
            found.text,
            "Valves\nBrass valves\nGrease & turn — twice.\none two\nthree\nCare\nafterwards\n"
        );
        let blocks: Vec<_> = found
            .split_points
            .iter()
            .map(|split| (split.line, found.outline.path(split.heading), split.strength))
            .collect();
        let block = |line, heading: &str| (line, heading.to_owned(), SplitStrength::Block);
        let section = |line, heading: &str| (line, heading.to_owned(), SplitStrength::Section);
        assert_eq!(
            blocks,
            [
                block(1, ""),
                section(2, "Brass valves"),
                block(4, "Brass valves"),
                block(7, "Brass valves"),
                block(8, "Brass valves"),
                section(8, "Brass valves > Care"),
                block(8, "Brass valves > Care"),
            ]
        );
        assert!(found.warnings.is_empty());
    }

    #[test]
    fn a_long_page_is_read_up_to_the_budget() {
        let found = extract_html("<p>one</p><p>two</p>", ExtractionBudget { text_bytes: 4, ..BUDGET });
        assert_eq!(found.text, "one\nt\n");
        assert_eq!(found.warnings, ["only its first 4 bytes of text were read"]);
    }

    #[test]
    fn a_small_page_of_nested_elements_stays_small() {
        let titles = extract_html(&"<title>".repeat(8192 / 7), BUDGET);
        assert!(titles.text.len() <= 8192);
        let long = "a".repeat(200);
        let above: String = (1..6).map(|level| format!("<h{level}>{long}")).collect();
        let headings = extract_html(&format!("{above}{}", "<h6>x".repeat(1400)), BUDGET);
        assert!(headings.text.len() <= 8192);
        let last = headings.split_points.last().map(|split| headings.outline.path(split.heading));
        assert_eq!(last, Some(format!("{} > x", [long.as_str(); 5].join(" > "))));
    }
}

//! Markdown as it is shown.

use super::super::style::ColourMode;
use super::{MarkdownMode, MarkdownRenderer};

/// Renders a text that arrives in pieces of one letter.
fn render(mode: MarkdownMode, width: usize, text: &str) -> Vec<String> {
    let mut renderer = MarkdownRenderer::new(mode);
    let mut lines = Vec::new();
    for letter in text.chars() {
        lines.extend(renderer.push(&letter.to_string(), width));
        let shown = renderer.preview(width);
        assert!(shown.iter().all(|line| line.width() <= width), "a preview fits the width: {shown:?}");
    }
    lines.extend(renderer.finish(width));
    lines.iter().map(|line| line.plain().to_string()).collect()
}

fn styled(text: &str) -> Vec<String> {
    render(MarkdownMode::Styled, 40, text)
}

#[test]
fn blocks_are_rendered() {
    let text = "# Title\n\nSome words.\n\n- one\n- [x] two\n  1. three\n\n> said\n\n---\n```rust\nlet a = 1;\n```\nend";
    let shown = [
        "Title",
        "",
        "Some words.",
        "",
        "• one",
        "☑ two",
        "  1. three",
        "",
        "│ said",
        "",
        "────────────────────────────────────────",
        "  rust",
        "  let a = 1;",
        "end",
    ];
    assert_eq!(styled(text), shown);
}

#[test]
fn lines_break_between_words_and_keep_their_indent() {
    let shown = render(MarkdownMode::Styled, 14, "- the windlass hauls a load\n\nsupercalifragilistic");
    assert_eq!(shown, ["• the windlass", "  hauls a load", "", "supercalifragi", "listic"]);
    assert_eq!(render(MarkdownMode::Styled, 7, "end of it "), ["end of", "it"]);
}

#[test]
fn marks_become_styles() {
    let mut renderer = MarkdownRenderer::new(MarkdownMode::Styled);
    let lines = renderer.push("a **strong** *word*, `co*de*`, max_tokens and 2 * 3 * 4\n", 80);
    let shown: Vec<String> = lines.iter().map(|line| line.to_ansi(ColourMode::Coloured)).collect();
    let wanted = "a \x1b[1mstrong\x1b[0m \x1b[3mword\x1b[0m, \x1b[36mco*de*\x1b[0m, max_tokens and 2 * 3 * 4";
    assert_eq!(shown, [wanted]);
}

#[test]
fn marks_that_do_not_end_are_shown() {
    for text in ["**strong", "a ` b", "[a](b", "2 ** 3", "snake_case_name", "a*", "_ _", "![", "\\"] {
        assert_eq!(styled(text), [text]);
    }
    assert_eq!(styled("\\*not\\*"), ["*not*"]);
}

#[test]
fn the_target_of_a_link_is_shown() {
    assert_eq!(styled("[your bank](https://evil.test/x)"), ["your bank (https://evil.test/x)"]);
    assert_eq!(styled("[https://a.b](https://a.b)"), ["https://a.b"]);
}

#[test]
fn tables_have_columns_if_they_fit() {
    let table = "| tool | calls |\n| --- | ---: |\n| `pay` | 3 |\n| a \\| b | 12 |\n\nend";
    let shown = ["tool   calls", "────────────", "pay    3", "a | b  12", "", "end"];
    assert_eq!(styled(table), shown);
    let narrow = render(MarkdownMode::Styled, 10, "| tool | calls |\n| --- | --- |\n| pay | 3 |\n");
    assert_eq!(narrow, ["| tool |", "calls |", "| --- |", "--- |", "| pay | 3", "|"]);
    assert_eq!(
        styled("| a |\n| --- |\n| b | c |\n"),
        ["| a |", "| --- |", "| b | c |"],
        "no cell is left out"
    );
}

#[test]
fn without_styles_the_marks_stay() {
    let shown = render(MarkdownMode::Plain, 12, "# A **b** c\n```\ncode\n```\n| x |");
    assert_eq!(shown, ["# A **b** c", "```", "code", "```", "| x |"]);
}

#[test]
fn hidden_characters_are_escaped_wherever_they_stand() {
    for text in [
        "# a\u{1b}[2Jb",
        "`a\u{1b}[2Jb`",
        "**a\u{1b}[2Jb**",
        "| a\u{1b}[2Jb |",
        "[x](a\u{1b}[2Jb)",
        "- a\u{202e}b",
    ] {
        for mode in [MarkdownMode::Styled, MarkdownMode::Plain] {
            for line in render(mode, 60, text) {
                assert!(!line.chars().any(windlass_text::is_hidden), "{text:?}: {line:?}");
            }
        }
    }
}

//! The display of a call that may be longer than the screen. A decision is possible only after its last line.
//!
//! **Invariant:** all pages have the size of the window that they are shown in. If the window changes its size between two
//! pages, the call is displayed from its first line again, so that no line has scrolled past unseen.

use super::call_review::CallReview;
use super::decision_prompts::choice_prompt;
use crate::terminal::{StyledText, Terminal, TextStyle, paint, pluralise, styled};

/// Rows of the screen that a page leaves for the prompt.
const PROMPT_ROWS: usize = 3;

/// A call displayed page by page.
pub(crate) struct ReviewPager<'a> {
    review: &'a CallReview,
    lines: Vec<StyledText>,
    printed: usize,
    size: WindowSize,
}

/// The columns and rows of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WindowSize {
    columns: usize,
    rows: usize,
}

impl WindowSize {
    fn of_terminal(term: &Terminal) -> Self {
        Self { columns: term.width(), rows: term.height() }
    }
}

/// The answer to the prompt between two pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PagerChoice {
    NextPage,
    Reject,
    Later,
}

impl PagerChoice {
    /// Parses an answer; `None` for anything else, an approval above all.
    pub(crate) fn parse(answer: &str) -> Option<Self> {
        match answer.trim().to_lowercase().as_str() {
            "" => Some(Self::NextPage),
            "n" | "no" => Some(Self::Reject),
            "l" | "later" | "q" => Some(Self::Later),
            _ => None,
        }
    }
}

impl<'a> ReviewPager<'a> {
    /// Lays out the call for the size of the terminal.
    pub(crate) fn new(term: &Terminal, review: &'a CallReview) -> Self {
        let size = WindowSize::of_terminal(term);
        Self { review, lines: review.lines(Some(size.columns)), printed: 0, size }
    }

    /// Prints the next page, or the first one anew if the window has another size; none if the window is too small.
    pub(crate) fn print_page(&mut self, term: &Terminal) {
        let size = WindowSize::of_terminal(term);
        if size != self.size {
            let is_begun = self.printed > 0;
            *self = Self { size, lines: self.review.lines(Some(size.columns)), printed: 0, ..*self };
            if is_begun {
                term.eprint_line("  The window has another size: the call is displayed from its start.");
            }
        }
        if term.is_window_too_small() {
            self.printed = 0;
            term.eprint_line("  The window is too small to display the call.");
            return;
        }
        let page = size.rows.saturating_sub(PROMPT_ROWS).max(1);
        for line in self.lines.iter().skip(self.printed).take(page) {
            term.eprint_line(line.clone());
        }
        self.printed = (self.printed + page).min(self.lines.len());
    }

    /// Returns true if every line was printed.
    pub(crate) fn is_at_end(&self) -> bool {
        self.printed >= self.lines.len()
    }

    /// Returns the prompt between two pages.
    pub(crate) fn prompt(&self, can_reject: bool) -> StyledText {
        let left = pluralise(self.lines.len().saturating_sub(self.printed), "more line", "more lines");
        let choices: &[(&str, &str)] = match can_reject {
            true => &[("Enter", " next page"), ("n", "o"), ("l", "ater")],
            false => &[("Enter", " next page"), ("l", "ater")],
        };
        styled!["  ", paint(TextStyle::Waiting, left), ": ", choice_prompt(choices), " "]
    }

    /// Explains why an answer is not accepted yet.
    pub(crate) fn print_refusal(&self, term: &Terminal) {
        term.eprint_line(
            "  The call can be decided when all of it was displayed; press Enter for the next page.",
        );
    }
}

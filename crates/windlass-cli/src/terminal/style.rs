//! Text with styles, named by meaning. Every piece of it is safe text, and only the terminal turns a style into
//! a control sequence.

use windlass_text::SafeText;

/// Coloured or plain output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColourMode {
    Plain,
    Coloured,
}

/// The meaning of a piece of text, which determines its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextStyle {
    /// Success.
    Success,
    /// Failure or error.
    Failure,
    /// Waiting for a person.
    Waiting,
    /// Names and identifiers.
    Name,
    /// Headings.
    Title,
    /// Secondary text.
    Faint,
    /// Hints.
    Hint,
    /// Strong text of an answer.
    Strong,
    /// Emphasised text of an answer.
    Emphasis,
    /// Code in an answer.
    Code,
}

/// A line of text in pieces, each with a style. Any text can be converted to it, and is escaped then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StyledText {
    pieces: Vec<(Option<TextStyle>, SafeText)>,
}

/// Creates a [`StyledText`] of pieces.
macro_rules! styled {
    ($($piece:expr),* $(,)?) => {
        $crate::terminal::StyledText::default()$(.with($piece))*
    };
}
pub(crate) use styled;

/// Gives a text a style.
pub(crate) fn paint(style: TextStyle, text: impl Into<StyledText>) -> StyledText {
    let pieces = text.into().pieces.into_iter().map(|(_, text)| (Some(style), text)).collect();
    StyledText { pieces }
}

impl StyledText {
    /// Appends a piece.
    pub(crate) fn with(mut self, piece: impl Into<Self>) -> Self {
        self.pieces.extend(piece.into().pieces);
        self
    }

    /// Breaks the text into lines of at most `width` columns. Nothing is left out.
    pub(crate) fn wrap(&self, width: usize) -> Vec<Self> {
        let mut lines = vec![Self::default()];
        let mut used = 0;
        for (style, text) in &self.pieces {
            for (place, part) in text.wrap_after(width.saturating_sub(used), width).into_iter().enumerate() {
                if place > 0 {
                    lines.push(Self::default());
                    used = 0;
                }
                used += part.width();
                if let Some(line) = lines.last_mut()
                    && !part.is_empty()
                {
                    line.pieces.push((*style, part));
                }
            }
        }
        lines
    }

    /// Breaks the text between words into lines of at most `width` columns. A word that is longer than a line is broken
    /// too. Spaces at a break are left out.
    pub(crate) fn wrap_words(&self, width: usize) -> Vec<Self> {
        self.break_lines(|rest| {
            let fitting = fitting_letters(rest, width);
            if fitting == rest.len() {
                return fitting;
            }
            // A space directly after the line is a break too.
            let is_space = |at: &usize| rest.get(*at).is_some_and(|(_, letter)| *letter == ' ');
            (1..=fitting).rev().find(is_space).unwrap_or(fitting)
        })
    }

    /// Breaks the text as [`StyledText::wrap_words`] does, but never within backticks: a command that is copied from the
    /// terminal has no line end. What is too long for a line is left to the terminal.
    pub(crate) fn wrap_around_code(&self, width: usize) -> Vec<Self> {
        self.break_lines(|rest| {
            let fitting = fitting_letters(rest, width);
            if fitting == rest.len() {
                return fitting;
            }
            let mut is_code = false;
            let mut last_break = None;
            // Spaces at the beginning are the indent.
            let indent = rest.iter().take_while(|(_, letter)| *letter == ' ').count();
            for (at, (_, letter)) in rest.iter().enumerate().skip(indent) {
                is_code ^= *letter == '`';
                if *letter == ' ' && !is_code {
                    if at > fitting {
                        return last_break.unwrap_or(at);
                    }
                    last_break = Some(at);
                }
            }
            last_break.unwrap_or(rest.len())
        })
    }

    /// Breaks the text into lines. The function returns the number of letters of the next line, at least one.
    fn break_lines(&self, next_length: impl Fn(&[StyledLetter]) -> usize) -> Vec<Self> {
        let letters: Vec<StyledLetter> = self
            .pieces
            .iter()
            .flat_map(|(style, text)| text.as_str().chars().map(move |letter| (*style, letter)))
            .collect();
        let mut lines = Vec::new();
        let mut start = 0;
        while let Some(rest) = letters.get(start..).filter(|rest| !rest.is_empty()) {
            let (line, after) = rest.split_at(next_length(rest));
            lines.push(Self::from_letters(line));
            let spaces = after.iter().take_while(|(_, letter)| *letter == ' ').count();
            start += line.len() + spaces;
        }
        if lines.is_empty() {
            lines.push(Self::default());
        }
        lines
    }

    /// Joins letters to pieces. Letters of safe text are safe, and are escaped once more if a break made them unsafe.
    fn from_letters(letters: &[StyledLetter]) -> Self {
        let mut pieces: Vec<(Option<TextStyle>, String)> = Vec::new();
        for (style, letter) in letters {
            match pieces.last_mut() {
                Some((last, text)) if last == style => text.push(*letter),
                _ => pieces.push((*style, letter.to_string())),
            }
        }
        let pieces = pieces.into_iter().map(|(style, text)| (style, SafeText::from_prose(&text))).collect();
        Self { pieces }
    }

    /// Returns the width in columns.
    pub(crate) fn width(&self) -> usize {
        self.pieces.iter().map(|(_, text)| text.width()).sum()
    }

    /// Returns the text without its styles.
    pub(crate) fn plain(&self) -> SafeText {
        let mut text = SafeText::default();
        self.pieces.iter().for_each(|(_, piece)| text.push(piece));
        text
    }

    /// Returns the text with the control sequences of its styles.
    pub(super) fn to_ansi(&self, mode: ColourMode) -> String {
        let mut out = String::new();
        for (style, text) in &self.pieces {
            match (mode, style) {
                (ColourMode::Coloured, Some(style)) => {
                    out.push_str(&format!("\x1b[{}m{text}\x1b[0m", style.ansi_code()));
                }
                (ColourMode::Plain, _) | (ColourMode::Coloured, None) => out.push_str(text.as_str()),
            }
        }
        out
    }
}

/// A letter and its style.
type StyledLetter = (Option<TextStyle>, char);

/// Returns the number of letters that fit `width` columns, and at least one.
fn fitting_letters(letters: &[StyledLetter], width: usize) -> usize {
    let mut used = 0;
    let too_wide = letters.iter().position(|(_, letter)| {
        used += windlass_text::char_width(*letter);
        used > width
    });
    too_wide.map_or(letters.len(), |at| at.max(1))
}

impl From<SafeText> for StyledText {
    fn from(text: SafeText) -> Self {
        Self { pieces: vec![(None, text)] }
    }
}

impl From<&SafeText> for StyledText {
    fn from(text: &SafeText) -> Self {
        text.clone().into()
    }
}

impl From<&str> for StyledText {
    fn from(text: &str) -> Self {
        SafeText::from_line(text).into()
    }
}

impl From<&String> for StyledText {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<String> for StyledText {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl TextStyle {
    fn ansi_code(self) -> &'static str {
        match self {
            Self::Success => "32",
            Self::Failure => "1;31",
            Self::Waiting => "1;33",
            Self::Name => "36",
            Self::Title => "1",
            Self::Faint => "2",
            Self::Hint => "1;34",
            Self::Strong => "1",
            Self::Emphasis => "3",
            Self::Code => "36",
        }
    }
}

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
        }
    }
}

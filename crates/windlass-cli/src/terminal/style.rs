//! Text styles, named by meaning.

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

impl ColourMode {
    pub(crate) fn paint(self, paint: TextStyle, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Coloured => format!("\x1b[{}m{text}\x1b[0m", paint.ansi_code()),
        }
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

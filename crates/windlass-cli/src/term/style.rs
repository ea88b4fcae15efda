//! Colours, few and by meaning.

/// Whether text is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Colour,
}

/// What a piece of text means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    /// It went well.
    Good,
    /// It went badly.
    Bad,
    /// It waits for somebody.
    Wait,
    /// Names of things.
    Name,
    /// Headings.
    Title,
    /// What may be skipped.
    Faint,
    /// Advice.
    Note,
}

impl Style {
    pub(crate) fn of(self, paint: Paint, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Colour => format!("\x1b[{}m{text}\x1b[0m", paint.code()),
        }
    }
}

impl Paint {
    fn code(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Bad => "1;31",
            Self::Wait => "1;33",
            Self::Name => "36",
            Self::Title => "1",
            Self::Faint => "2",
            Self::Note => "1;34",
        }
    }
}

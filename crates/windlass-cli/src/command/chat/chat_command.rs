//! The commands of a conversation, which begin with a slash.

/// The commands, each with its parameter and its description.
pub(super) const CHAT_COMMANDS: [(&str, &str, &str); 8] = [
    ("/help", "", "show this help"),
    ("/model", "[NAME]", "show the model, or go on with another one"),
    ("/tools", "", "list the agent's tools"),
    ("/undo", "[COUNT]", "rewind the session to before your last message, or your last COUNT messages"),
    ("/sessions", "", "list the sessions"),
    ("/session", "[NAME]", "show the name of this session, or change to another"),
    ("/usage", "", "show the tokens of this conversation"),
    ("/quit", "", "quit (also Ctrl-D)"),
];

/// The keys of the line editor.
pub(super) const CHAT_KEYS: [(&str, &str); 5] = [
    ("Enter", "send the message; Alt-Enter or a backslash at the end of a line begins another line"),
    ("Up, Ctrl-R", "earlier messages"),
    ("Tab", "complete a command or the name of a file"),
    ("Ctrl-C", "stops the current turn; a second Ctrl-C quits"),
    ("images", "the path of an image in a message sends the image"),
];

/// A line of a conversation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChatLine<'a> {
    Empty,
    Message(&'a str),
    Help,
    Model(Option<&'a str>),
    Tools,
    /// The number of messages to undo.
    Undo(usize),
    Sessions,
    Session(Option<&'a str>),
    Usage,
    Quit,
    /// A word that looks like a command and is none.
    Unknown(&'a str),
    /// A command with a word that it does not take.
    Misused(&'a str),
}

impl<'a> ChatLine<'a> {
    /// Parses a line. A path such as `/etc/hosts` at its start is part of a message.
    pub(super) fn parse(line: &'a str) -> Self {
        let line = line.trim();
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let argument = Some(rest.trim()).filter(|rest| !rest.is_empty());
        match (word, argument) {
            ("", None) => Self::Empty,
            ("/help" | "/?", None) => Self::Help,
            ("/model", name) => Self::Model(name),
            ("/tools", None) => Self::Tools,
            ("/undo", None) => Self::Undo(1),
            ("/undo", Some(count)) => match count.parse() {
                Ok(count) if count > 0 => Self::Undo(count),
                _ => Self::Misused(word),
            },
            ("/sessions", None) => Self::Sessions,
            ("/session", name) => Self::Session(name),
            ("/usage", None) => Self::Usage,
            ("/quit" | "/exit" | "/q", None) => Self::Quit,
            ("/help" | "/?" | "/tools" | "/sessions" | "/usage" | "/quit" | "/exit" | "/q", Some(_)) => {
                Self::Misused(word)
            }
            (word, None) if word.starts_with('/') && !word[1..].contains('/') => Self::Unknown(word),
            _ => Self::Message(line),
        }
    }
}

/// Returns the known command that is most like a word, if one is.
pub(super) fn similar_command(word: &str) -> Option<&'static str> {
    let begins = |name: &&str| name.starts_with(word) || word.starts_with(name);
    let shares =
        |name: &&str| name.chars().zip(word.chars()).take_while(|(one, other)| one == other).count() >= 3;
    let names = || CHAT_COMMANDS.iter().map(|(name, _, _)| *name);
    names().find(begins).or_else(|| names().find(shares))
}

#[cfg(test)]
mod tests {
    use super::{ChatLine, similar_command};

    #[test]
    fn lines_are_commands_or_messages() {
        let cases = [
            ("  ", ChatLine::Empty),
            ("/help", ChatLine::Help),
            ("/model", ChatLine::Model(None)),
            ("/model ollama:qwen3 ", ChatLine::Model(Some("ollama:qwen3"))),
            ("/session ann", ChatLine::Session(Some("ann"))),
            ("/undo", ChatLine::Undo(1)),
            ("/undo 2", ChatLine::Undo(2)),
            ("/undo that", ChatLine::Misused("/undo")),
            ("/undo 0", ChatLine::Misused("/undo")),
            ("/quit now", ChatLine::Misused("/quit")),
            ("/etc/hosts is long", ChatLine::Message("/etc/hosts is long")),
            ("/modle", ChatLine::Unknown("/modle")),
            ("/etc/hosts", ChatLine::Message("/etc/hosts")),
            ("two\nlines", ChatLine::Message("two\nlines")),
        ];
        for (line, wanted) in cases {
            assert_eq!(ChatLine::parse(line), wanted, "{line:?}");
        }
        assert_eq!((similar_command("/modle"), similar_command("/xyz")), (Some("/model"), None));
    }
}

//! Patterns of commands: a program, and its arguments one by one.

use serde_json::Value;

use super::condition::{ConditionOutcome, has_lost_secret};
use super::rule::NamePattern;

/// The last argument of a pattern that stands for any further arguments.
const ANY_ARGUMENTS: &str = "**";

/// Programs that execute no other program and read no configuration, whatever their arguments are. Only these may have
/// open arguments in a rule that allows: most others have an option that executes a program, such as `find -exec`,
/// `git -c alias`, `sort --compress-program`, `tar --to-command` and `file -z`.
const HARMLESS_PROGRAMS: [&str; 32] = [
    "basename",
    "cat",
    "cksum",
    "cmp",
    "cut",
    "date",
    "df",
    "diff",
    "dirname",
    "du",
    "echo",
    "false",
    "grep",
    "head",
    "id",
    "ls",
    "md5sum",
    "nl",
    "od",
    "printf",
    "pwd",
    "readlink",
    "realpath",
    "seq",
    "sha256sum",
    "sha512sum",
    "stat",
    "tail",
    "tr",
    "true",
    "uname",
    "wc",
];

/// Returns true if a program executes no other program and reads no configuration, whatever its arguments are. A pattern
/// of open arguments is safe for no other program.
pub fn is_harmless_program(program: &str) -> bool {
    HARMLESS_PROGRAMS.contains(&program)
}

/// A pattern of a command. It never matches shell text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandPattern {
    program: String,
    arguments: Vec<NamePattern>,
    has_open_arguments: bool,
    /// True if the program is meant by any path to it, in a rule that asks or denies.
    covers_paths: bool,
}

impl CommandPattern {
    /// Creates a pattern of a program and patterns of its arguments. A last `**` stands for any further arguments.
    ///
    /// # Errors
    ///
    /// Returns the reason if the program is a pattern, or if the arguments of a program that may execute others
    /// are open.
    pub(crate) fn new(program: &str, arguments: &[String]) -> Result<Self, String> {
        let pattern = Self { covers_paths: false, ..Self::open(program, arguments)? };
        let is_open =
            pattern.has_open_arguments || pattern.arguments.iter().any(|argument| !argument.is_literal());
        if is_open && !is_harmless_program(program) {
            return Err(format!(
                "`{program}` may execute other programs by its arguments, so write all of them out, without `*`"
            ));
        }
        Ok(pattern)
    }

    /// Creates a pattern of a rule that asks or denies: its arguments may be open for every program, and a program
    /// without a path also stands for `/bin/rm` and `../rm`.
    ///
    /// # Errors
    ///
    /// Returns the reason if the program is a pattern, or `**` is not the last argument.
    pub(crate) fn open(program: &str, arguments: &[String]) -> Result<Self, String> {
        let (has_open_arguments, fixed) = split_open(arguments);
        if program.is_empty() || program.contains(['*', '?']) {
            return Err("`program` must be the name of one program".to_owned());
        }
        if fixed.iter().any(|argument| argument == ANY_ARGUMENTS) {
            return Err("`**` must be the last argument: it stands for all that follow".to_owned());
        }
        let arguments = fixed.iter().cloned().map(NamePattern).collect();
        let covers_paths = !program.contains('/');
        Ok(Self { program: program.to_owned(), arguments, has_open_arguments, covers_paths })
    }

    /// Parses a pattern from words separated by spaces, such as `git status --short` or `ls **`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace().map(str::to_owned);
        let program = words.next().unwrap_or_default();
        Self::new(&program, &words.collect::<Vec<_>>())
    }

    /// Returns true if a command is this program with matching arguments.
    pub(crate) fn matches(&self, program: &str, arguments: &[&str]) -> bool {
        let name = if self.covers_paths { program.rsplit('/').next() } else { Some(program) };
        name == Some(self.program.as_str())
            && (arguments.len() == self.arguments.len()
                || (self.has_open_arguments && arguments.len() > self.arguments.len()))
            && self.arguments.iter().zip(arguments).all(|(pattern, argument)| pattern.matches(argument))
    }

    /// Checks the arguments `program`, `args` and `shell` of a call.
    pub(super) fn check(&self, call: &Value) -> ConditionOutcome {
        let absent = |name: &str| call.get(name).is_none_or(Value::is_null);
        let has_secret = ["program", "args"].iter().any(|name| call.get(name).is_some_and(has_lost_secret));
        if !absent("shell") || has_secret {
            return ConditionOutcome::Unknown;
        }
        let Some(program) = call.get("program").and_then(Value::as_str) else {
            return ConditionOutcome::Unknown;
        };
        let arguments: Option<Vec<&str>> = match call.get("args") {
            None | Some(Value::Null) => Some(Vec::new()),
            Some(Value::Array(words)) => words.iter().map(Value::as_str).collect(),
            Some(_) => None,
        };
        match arguments {
            Some(arguments) if self.matches(program, &arguments) => ConditionOutcome::Holds,
            Some(_) => ConditionOutcome::Fails,
            None => ConditionOutcome::Unknown,
        }
    }
}

/// Returns true if the last argument is `**`, and the arguments in front of it.
fn split_open(arguments: &[String]) -> (bool, &[String]) {
    match arguments.split_last() {
        Some((last, fixed)) if last == ANY_ARGUMENTS => (true, fixed),
        _ => (false, arguments),
    }
}

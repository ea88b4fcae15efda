//! What can go wrong, in words for a person: what happened, and what to do about it.

use std::process::ExitCode;

use windlass::error::{StoreError, StoreErrorKind};
use windlass::store::{OpenError, PostError};
use windlass::{DecideError, RunError};

/// How the command ended. The numbers are documented in `windlass --help` and do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// What was asked for is done.
    Done,
    /// It failed.
    Failed,
    /// The command was not understood.
    Usage,
    /// The run waits for a person.
    Waits,
    /// The run was cancelled.
    Cancelled,
    /// There is no such run, agent, call or file.
    NotFound,
    /// A journal is not what was written.
    Broken,
    /// Somebody else drives the run.
    Busy,
    /// A defect of Windlass itself.
    Defect,
    /// Left at once, by a second Ctrl-C. What ran is as a crash would leave it.
    Left,
}

impl Exit {
    /// The number that the shell sees.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Waits => 3,
            Self::Cancelled => 4,
            Self::NotFound => 5,
            Self::Broken => 6,
            Self::Busy => 7,
            Self::Defect => 70,
            Self::Left => 130,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Something that went wrong.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Problem {
    message: String,
    hint: Option<String>,
    exit: Exit,
}

impl Problem {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, exit: Exit::Failed }
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(message).exits(Exit::NotFound)
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(message).exits(Exit::Usage)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn exits(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    pub(crate) fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let problem = Self::new(error.to_string());
        match error.kind() {
            StoreErrorKind::NoSuchRun => {
                problem.exits(Exit::NotFound).hint("`windlass runs` lists what there is")
            }
            StoreErrorKind::Leased | StoreErrorKind::Fenced | StoreErrorKind::Stale => problem
                .exits(Exit::Busy)
                .hint("another process drives it; it can be taken over when that one ends and its lease runs out"),
            StoreErrorKind::Decided => problem.hint("`windlass show` says what was decided, and by whom"),
            StoreErrorKind::Corrupt => problem
                .exits(Exit::Broken)
                .hint("`windlass verify` says which record is the first that is bad; what stands before it can be exported"),
            StoreErrorKind::TooNew => problem.hint("update windlass: the file was written by a newer one"),
            StoreErrorKind::Disk => problem.hint("look whether the disk is full, and whether you may write there"),
            _ => problem,
        }
    }
}

impl From<OpenError> for Problem {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Store(error) => error.into(),
            other => Self::new(other.to_string())
                .exits(Exit::Broken)
                .hint("`windlass verify` says which record is the first that is bad"),
        }
    }
}

impl From<PostError> for Problem {
    fn from(error: PostError) -> Self {
        match error {
            PostError::Open(error) => error.into(),
            PostError::Decide(error) => error.into(),
            PostError::Store(error) => error.into(),
            other => Self::new(other.to_string()),
        }
    }
}

impl From<DecideError> for Problem {
    fn from(error: DecideError) -> Self {
        let problem = Self::new(error.to_string());
        match error {
            DecideError::NotPending(_) => {
                problem.exits(Exit::NotFound).hint("`windlass show` lists the calls that wait")
            }
            DecideError::Arguments(_) => {
                problem.hint("give a JSON object, such as '{\"path\": \"notes.md\"}'")
            }
            _ => problem,
        }
    }
}

impl From<RunError> for Problem {
    fn from(error: RunError) -> Self {
        let message = error.to_string();
        match error {
            RunError::Store(error) | RunError::Session(error) => Self::from(error),
            RunError::Failed(_) => Self::new(message).hint("`windlass show` tells what it did until then"),
            RunError::Config(_) => Self::new(message).hint("nothing has happened; look at the agent's file"),
            _ => Self::new(message).exits(Exit::Broken),
        }
    }
}

impl From<std::io::Error> for Problem {
    fn from(error: std::io::Error) -> Self {
        Self::new(error.to_string())
    }
}

//! Errors of the command, each with an optional hint and an exit code.

use std::process::ExitCode;

use windlass::error::{DecisionError, RunError};
use windlass::error::{StoreError, StoreErrorKind};
use windlass::store::{OpenRunError, PostDecisionError};

/// The outcome of the command. The exit codes are documented in `windlass --help` and are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandExit {
    /// The command succeeded.
    Success,
    /// The command failed.
    Failure,
    /// The arguments are invalid.
    UsageError,
    /// The run waits for a person.
    WaitingForPerson,
    /// The run was cancelled or detached.
    Cancelled,
    /// The run, agent, call or file does not exist.
    NotFound,
    /// A journal is corrupt.
    CorruptJournal,
    /// Another process holds the run's lease.
    RunLeased,
    /// The provider of the model is away. The run waits for another attempt.
    ProviderAway,
    /// An internal error of Windlass.
    InternalError,
    /// The user interrupted the command with a second Ctrl-C. The run is left as a crash would leave it.
    Interrupted,
}

impl CommandExit {
    /// Returns the exit code of the process.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::UsageError => 2,
            Self::WaitingForPerson => 3,
            Self::Cancelled => 4,
            Self::NotFound => 5,
            Self::CorruptJournal => 6,
            Self::RunLeased => 7,
            Self::ProviderAway => 8,
            Self::InternalError => 70,
            Self::Interrupted => 130,
        }
    }
}

impl From<CommandExit> for ExitCode {
    fn from(exit: CommandExit) -> Self {
        Self::from(exit.code())
    }
}

/// An error that is shown to the user.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct CliError {
    message: String,
    hint: Option<String>,
    exit: CommandExit,
}

impl CliError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, exit: CommandExit::Failure }
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(message).with_exit(CommandExit::NotFound)
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(message).with_exit(CommandExit::UsageError)
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn with_exit(mut self, exit: CommandExit) -> Self {
        self.exit = exit;
        self
    }

    pub(crate) fn exit(&self) -> CommandExit {
        self.exit
    }

    pub(crate) fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        let problem = Self::new(error.to_string());
        match error.kind() {
            StoreErrorKind::RunNotFound => {
                problem.with_exit(CommandExit::NotFound).with_hint("`windlass runs` lists the runs")
            }
            StoreErrorKind::LeaseHeld | StoreErrorKind::Fenced | StoreErrorKind::Stale => {
                problem.with_exit(CommandExit::RunLeased).with_hint(
                    "another process holds the run's lease; the run can be taken over when the lease expires",
                )
            }
            StoreErrorKind::AlreadyDecided => {
                problem.with_hint("`windlass show` lists the decisions and who made them")
            }
            StoreErrorKind::Corrupt => problem.with_exit(CommandExit::CorruptJournal).with_hint(
                "`windlass verify` names the first invalid record; the records before it can be exported",
            ),
            StoreErrorKind::UnknownKey => {
                problem.with_hint("add the key to the file that `--encryption-key-file` names")
            }
            StoreErrorKind::UnsupportedVersion => {
                problem.with_hint("update windlass: the file was written by a newer version")
            }
            StoreErrorKind::Disk => problem.with_hint("check the free disk space and the write permissions"),
            _ => problem,
        }
    }
}

impl From<OpenRunError> for CliError {
    fn from(error: OpenRunError) -> Self {
        match error {
            OpenRunError::Store(error) => error.into(),
            other => Self::new(other.to_string())
                .with_exit(CommandExit::CorruptJournal)
                .with_hint("`windlass verify` names the first invalid record"),
        }
    }
}

impl From<PostDecisionError> for CliError {
    fn from(error: PostDecisionError) -> Self {
        match error {
            PostDecisionError::Open(error) => error.into(),
            PostDecisionError::Decide(error) => error.into(),
            PostDecisionError::Store(error) => error.into(),
            other => Self::new(other.to_string()),
        }
    }
}

impl From<DecisionError> for CliError {
    fn from(error: DecisionError) -> Self {
        let problem = Self::new(error.to_string());
        match error {
            DecisionError::NotPending(_) => {
                problem.with_exit(CommandExit::NotFound).with_hint("`windlass show` lists the pending calls")
            }
            DecisionError::InvalidArguments(_) => {
                problem.with_hint("give a JSON object, such as '{\"path\": \"notes.md\"}'")
            }
            _ => problem,
        }
    }
}

impl From<RunError> for CliError {
    fn from(error: RunError) -> Self {
        let message = error.to_string();
        match error {
            RunError::Store(error) | RunError::Session(error) => Self::from(error),
            RunError::Failed(failed) => {
                let shows = "`windlass show` shows what the run did before it failed";
                let in_doubt = &failed.settlement.in_doubt;
                Self::new(message).with_hint(match in_doubt.len() {
                    0 => shows.to_owned(),
                    count => format!("{shows}; in doubt: {count} of its calls may have taken effect"),
                })
            }
            RunError::Config(_) => Self::new(message).with_hint("nothing was executed; check the agent file"),
            _ => Self::new(message).with_exit(CommandExit::CorruptJournal),
        }
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        Self::new(error.to_string())
    }
}

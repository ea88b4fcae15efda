//! Refusals of calls, with messages for the model, and workspace errors for the operator.
//!
//! **Invariant:** a refusal's message never contains a host path outside the workspace.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use windlass::tool::ToolError;

/// The reason why a built-in tool refused a call or could not execute it.
///
/// The message is written for the model. Its paths are relative to the workspace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolRefusal {
    /// The path is invalid or outside the workspace.
    #[error("`{path}` {reason}: give a path relative to the workspace, such as `src/main.rs`")]
    InvalidPath {
        /// The path, as the model wrote it.
        path: String,
        /// The reason.
        reason: &'static str,
    },
    /// The file does not exist.
    #[error("`{path}` is not there: list_files shows what is")]
    NotFound {
        /// The path.
        path: String,
    },
    /// The path contains a link that leaves the workspace, or that is not followed.
    #[error("`{path}` {reason}: use the path of the file itself, inside the workspace")]
    LinkRefused {
        /// The path.
        path: String,
        /// The reason.
        reason: &'static str,
    },
    /// The path is of another kind than the tool requires.
    #[error("`{path}` is {found}, and {tool} needs {required}")]
    WrongKind {
        /// The path.
        path: String,
        /// The kind that was found.
        found: &'static str,
        /// The tool.
        tool: &'static str,
        /// The kind that the tool requires.
        required: &'static str,
    },
    /// The file exceeds the size limit.
    #[error("`{path}` has {bytes} bytes, more than the {limit} that are read at once: {hint}")]
    TooLarge {
        /// The path.
        path: String,
        /// The size.
        bytes: u64,
        /// The limit.
        limit: u64,
        /// The advice for the model.
        hint: &'static str,
    },
    /// The file is not UTF-8 text.
    #[error("`{path}` is not text in UTF-8: it cannot be shown or changed here")]
    NotText {
        /// The path.
        path: String,
    },
    /// The file does not have the version that the call is based on.
    #[error("`{path}` {reason}: read it with read_file, and give the version that it tells")]
    VersionMismatch {
        /// The path.
        path: String,
        /// The reason.
        reason: &'static str,
    },
    /// The file is hidden from agents, or belongs to Git.
    #[error("`{path}` {reason}: leave it alone, or ask the person to change it")]
    Protected {
        /// The path.
        path: String,
        /// The reason.
        reason: &'static str,
    },
    /// An edit does not apply to the file's text.
    #[error("`{path}`: {reason}: read the file again and give the text exactly as it stands there")]
    EditMismatch {
        /// The path.
        path: String,
        /// The edit and the reason.
        reason: String,
    },
    /// A search pattern is invalid.
    #[error("the pattern cannot be read: {reason}: correct it, or search for literal text")]
    InvalidPattern {
        /// The reason.
        reason: String,
    },
    /// The arguments are contradictory or incomplete.
    #[error("{reason}")]
    InvalidArguments {
        /// The reason, with advice for the model.
        reason: String,
    },
    /// The command could not be run.
    #[error("the command could not be run: {reason}")]
    CommandNotRun {
        /// The reason, with advice for the model.
        reason: String,
    },
    /// The page could not be fetched.
    #[error("`{url}` {reason}")]
    FetchFailed {
        /// The URL.
        url: String,
        /// The reason, with advice for the model.
        reason: String,
    },
    /// A system call failed.
    #[error("`{path}` could not be used: {reason}")]
    SystemError {
        /// The path.
        path: String,
        /// The kind of the system error.
        reason: String,
    },
}

impl ToolRefusal {
    /// Converts a system error about a path of the workspace.
    pub(crate) fn from_errno(path: impl ToString, error: Errno) -> Self {
        let path = path.to_string();
        match error {
            Errno::NOENT => Self::NotFound { path },
            Errno::XDEV => Self::LinkRefused { path, reason: "leads out of the workspace through a link" },
            Errno::LOOP => Self::LinkRefused { path, reason: "goes through a link that is not followed" },
            Errno::NOTDIR => Self::SystemError { path, reason: "a part of the path is not a folder".into() },
            other => Self::SystemError { path, reason: io::Error::from(other).kind().to_string() },
        }
    }

    pub(crate) fn from_io(path: impl ToString, error: &io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(errno) => Self::from_errno(path, errno),
            None => Self::SystemError { path: path.to_string(), reason: error.kind().to_string() },
        }
    }

    /// Converts the refusal into a tool error that the model sees.
    pub(crate) fn into_tool_error(self) -> ToolError {
        ToolError::visible(self.to_string())
    }
}

/// An error of opening skills.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SkillError {
    /// The folder with the skills cannot be read.
    #[error("the skills in `{}` cannot be read: {source}", folder.display())]
    Unreadable {
        /// The folder.
        folder: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// A folder is not a valid skill.
    #[error("`{}` is not a skill: {reason}", folder.display())]
    Invalid {
        /// The folder of the skill.
        folder: PathBuf,
        /// The reason.
        reason: String,
    },
}

/// An error of opening or configuring a workspace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkspaceError {
    /// The folder cannot be opened.
    #[error(
        "the workspace `{folder}` cannot be opened: {source}; name a folder that is there and can be read"
    )]
    Open {
        /// The folder.
        folder: String,
        /// The I/O error.
        source: io::Error,
    },
    /// A pattern of hidden files is invalid.
    #[error("`{pattern}` cannot be read as a pattern of files: {reason}; write it as in a .gitignore file")]
    InvalidPattern {
        /// The pattern.
        pattern: String,
        /// The reason.
        reason: String,
    },
}

//! Why a call was refused, in words for the model: where, and what to do. Host paths are never in them.

use std::io;

use rustix::io::Errno;
use windlass::ToolError;

/// Why a tool refused a call, or could not carry it out.
///
/// Its text is written for the model. Paths in it are those of the workspace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The path itself will not do.
    #[error("`{path}` {why}: give a path relative to the workspace, such as `src/main.rs`")]
    Path {
        /// The path, as it was written.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Nothing is there.
    #[error("`{path}` is not there: list_files shows what is")]
    Missing {
        /// The path.
        path: String,
    },
    /// A link on the way leads out, or links are not followed here.
    #[error("`{path}` {why}: use the path of the file itself, inside the workspace")]
    Link {
        /// The path.
        path: String,
        /// What is wrong with the link.
        why: &'static str,
    },
    /// Something else is there than what is needed.
    #[error("`{path}` is {is}, and {tool} needs {needs}")]
    Kind {
        /// The path.
        path: String,
        /// What is there.
        is: &'static str,
        /// The tool.
        tool: &'static str,
        /// What it needs.
        needs: &'static str,
    },
    /// More than the tools take.
    #[error("`{path}` has {bytes} bytes, more than the {limit} that are read at once: {hint}")]
    TooLarge {
        /// The path.
        path: String,
        /// How much there is.
        bytes: u64,
        /// How much is taken.
        limit: u64,
        /// What to do.
        hint: &'static str,
    },
    /// Not text.
    #[error("`{path}` is not text in UTF-8: it cannot be shown or changed here")]
    Binary {
        /// The path.
        path: String,
    },
    /// It changed since it was read, or was never read.
    #[error("`{path}` {why}: read it with read_file, and give the version that it tells")]
    Stale {
        /// The path.
        path: String,
        /// What does not fit.
        why: &'static str,
    },
    /// It is kept from agents.
    #[error("`{path}` {why}: leave it alone, or ask the person to change it")]
    Kept {
        /// The path.
        path: String,
        /// By what.
        why: &'static str,
    },
    /// An edit does not fit the file.
    #[error("`{path}`: {what}: read the file again and give the text exactly as it stands there")]
    Edit {
        /// The path.
        path: String,
        /// Which edit, and why.
        what: String,
    },
    /// A search pattern cannot be read.
    #[error("the pattern cannot be read: {what}: correct it, or search for literal text")]
    Pattern {
        /// Why.
        what: String,
    },
    /// The arguments do not say what is wanted.
    #[error("{what}")]
    Arguments {
        /// What to do.
        what: String,
    },
    /// The program could not be run.
    #[error("the command could not be run: {what}")]
    Command {
        /// Why, and what to do.
        what: String,
    },
    /// The page could not be had.
    #[error("`{url}` {what}")]
    Fetch {
        /// The address.
        url: String,
        /// Why, and what to do.
        what: String,
    },
    /// The system said no.
    #[error("`{path}` could not be used: {what}")]
    System {
        /// The path.
        path: String,
        /// What the system said.
        what: String,
    },
}

impl Refusal {
    /// What the system said about a path of the workspace.
    pub(crate) fn system(path: impl ToString, error: Errno) -> Self {
        let path = path.to_string();
        match error {
            Errno::NOENT => Self::Missing { path },
            Errno::XDEV => Self::Link { path, why: "leads out of the workspace through a link" },
            Errno::LOOP => Self::Link { path, why: "goes through a link that is not followed" },
            Errno::NOTDIR => Self::System { path, what: "a part of the path is not a folder".into() },
            other => Self::System { path, what: io::Error::from(other).kind().to_string() },
        }
    }

    pub(crate) fn io(path: impl ToString, error: &io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(errno) => Self::system(path, errno),
            None => Self::System { path: path.to_string(), what: error.kind().to_string() },
        }
    }

    /// As the error of a body: the model reads it.
    pub(crate) fn told(self) -> ToolError {
        ToolError::tell(self.to_string())
    }
}

/// Why a workspace cannot be used.
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
        /// Why.
        source: io::Error,
    },
    /// A pattern of files to hide cannot be read.
    #[error("`{pattern}` cannot be read as a pattern of files: {why}; write it as in a .gitignore file")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// Why.
        why: String,
    },
}

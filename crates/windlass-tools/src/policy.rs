//! Approval policies and limits of the built-in tools.

use std::time::Duration;

/// The policy that decides which calls of a built-in tool require a person's approval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BuiltInApprovalPolicy {
    /// Every call.
    #[default]
    Always,
    /// No call.
    Never,
    /// Every call except those for the listed items: folders for file changes, whole commands for commands
    /// (`git status --short`, or `ls **` with any arguments for a program that executes no other), hosts for pages.
    ExceptFor(Vec<String>),
}

impl BuiltInApprovalPolicy {
    /// Creates [`BuiltInApprovalPolicy::ExceptFor`] from any texts.
    pub fn except_for<T: Into<String>>(places: impl IntoIterator<Item = T>) -> Self {
        Self::ExceptFor(places.into_iter().map(Into::into).collect())
    }
}

/// The limits of size and time of the built-in tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolLimits {
    /// Maximum size of a file that is read or changed, in bytes.
    pub max_file_bytes: u64,
    /// Maximum size of one output of a file, a search or a page, in bytes.
    pub max_shown_bytes: usize,
    /// Maximum number of lines of a file in one output.
    pub max_shown_lines: usize,
    /// Maximum number of listed paths, or of found lines, in one output.
    pub max_entries: usize,
    /// Maximum number of bytes kept of each of a command's stdout and stderr.
    pub max_output_bytes: usize,
    /// Timeout of a command if the call sets none.
    pub default_command_timeout: Duration,
    /// Upper bound of a timeout that a call sets.
    pub max_command_timeout: Duration,
    /// Timeout of a page, including its redirects.
    pub fetch_timeout: Duration,
    /// Maximum number of bytes read from a page.
    pub max_page_bytes: usize,
}

impl Default for ToolLimits {
    fn default() -> Self {
        Self {
            max_file_bytes: 4 * 1024 * 1024,
            max_shown_bytes: 64 * 1024,
            max_shown_lines: 2_000,
            max_entries: 500,
            max_output_bytes: 32 * 1024,
            default_command_timeout: Duration::from_secs(60),
            max_command_timeout: Duration::from_secs(600),
            fetch_timeout: Duration::from_secs(20),
            max_page_bytes: 2 * 1024 * 1024,
        }
    }
}

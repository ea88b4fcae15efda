//! Words of commands that a person copies into a shell.

use std::path::Path;

/// Returns a path as one word of a shell, in single quotes if it needs them.
pub(crate) fn shell_path(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if text.chars().all(is_plain) && !text.is_empty() {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
#[path = "shell_words_tests.rs"]
mod tests;

//! Exact text replacements of `patch_file`.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::text::truncate;

/// Maximum number of bytes of a text that a message quotes.
const MAX_QUOTED_BYTES: usize = 80;

/// One exact replacement.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Edit")]
pub(crate) struct FileEdit {
    /// The text to replace, exactly as it stands in the file, with enough around it to be there only once.
    pub(super) old: String,
    /// What stands there afterwards.
    pub(super) new: String,
    /// Which places. Without it: the one place where it is.
    pub(super) places: Option<EditPlaces>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Places")]
pub(super) enum EditPlaces {
    #[default]
    One,
    All,
}

/// Applies the replacements in sequence, each to the result of the one before.
///
/// # Errors
///
/// Returns the reason if a text is empty, not found, or found more than once without `places: all`.
pub(super) fn apply_edits(before: &str, edits: &[FileEdit]) -> Result<String, String> {
    if edits.is_empty() {
        return Err("there are no edits".into());
    }
    let mut text = before.to_owned();
    for (at, edit) in edits.iter().enumerate() {
        let (number, shown) = (at + 1, truncate(&edit.old, MAX_QUOTED_BYTES));
        if edit.old.is_empty() {
            return Err(format!("edit {number} has an empty `old`"));
        }
        let found = text.matches(edit.old.as_str()).count();
        text = match (found, edit.places.unwrap_or_default()) {
            (0, _) => return Err(format!("the text of edit {number} is not there: {shown:?}")),
            (1, EditPlaces::One) => text.replacen(edit.old.as_str(), &edit.new, 1),
            (_, EditPlaces::All) => text.replace(edit.old.as_str(), &edit.new),
            (_, EditPlaces::One) => {
                return Err(format!(
                    "the text of edit {number} is there {found} times, so give more of what is around it: \
                     {shown:?}"
                ));
            }
        };
    }
    Ok(text)
}

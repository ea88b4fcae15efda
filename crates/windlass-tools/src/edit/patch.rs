//! Exact replacements.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::text::cut;

/// How much of a text is repeated in a message.
const SHOWN: usize = 80;

/// One exact replacement.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Edit {
    /// The text to replace, exactly as it stands in the file, with enough around it to be there only once.
    pub(super) old: String,
    /// What stands there afterwards.
    pub(super) new: String,
    /// Which places. Without it: the one place where it is.
    pub(super) places: Option<Places>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Places {
    #[default]
    One,
    All,
}

/// Makes the replacements one after the other, each in what the one before left.
pub(super) fn replace(before: &str, edits: &[Edit]) -> Result<String, String> {
    if edits.is_empty() {
        return Err("there are no edits".into());
    }
    let mut text = before.to_owned();
    for (at, edit) in edits.iter().enumerate() {
        let (number, shown) = (at + 1, cut(&edit.old, SHOWN));
        if edit.old.is_empty() {
            return Err(format!("edit {number} has an empty `old`"));
        }
        let found = text.matches(edit.old.as_str()).count();
        text = match (found, edit.places.unwrap_or_default()) {
            (0, _) => return Err(format!("the text of edit {number} is not there: {shown:?}")),
            (1, Places::One) => text.replacen(edit.old.as_str(), &edit.new, 1),
            (_, Places::All) => text.replace(edit.old.as_str(), &edit.new),
            (_, Places::One) => {
                return Err(format!(
                    "the text of edit {number} is there {found} times, so give more of what is around it: \
                     {shown:?}"
                ));
            }
        };
    }
    Ok(text)
}

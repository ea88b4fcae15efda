//! The model that a name stands for.

use std::path::Path;

use windlass::model::SharedModel;

use super::script::Script;
use crate::problem::Problem;

/// The prefix of a model that answers from a file.
const SCRIPTED: &str = "scripted:";

/// The model that is called `named`: `provider:name`, or `scripted:FILE` beside the agent.
pub(super) fn find(named: &str, folder: &Path) -> Result<SharedModel, Problem> {
    if let Some(file) = named.strip_prefix(SCRIPTED) {
        return Ok(Script::read(&folder.join(file))?.into());
    }
    Err(Problem::new(format!("model `{named}` cannot be reached: this windlass knows scripted models alone"))
        .hint("write `model = \"scripted:FILE\"`"))
}

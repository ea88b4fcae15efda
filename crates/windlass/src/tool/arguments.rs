//! Freezing arguments: what the model wrote becomes one canonical text, or a message that says what is wrong.

use std::panic::AssertUnwindSafe;

use serde::de::DeserializeOwned;
use serde_json::Value;
use windlass_core::schema::{Shape, describe};
use windlass_core::with_canonical_text;

use super::{Tool, ToolBody};

/// The longest arguments that are read, in bytes.
const LONGEST: usize = 4 * 1024 * 1024;

impl<C: Send + Sync + 'static> Tool<C> {
    /// Whether a call could run with these arguments. If not: what the model would be told is wrong with them.
    pub fn check(&self, arguments: &str) -> Result<(), String> {
        freeze(arguments, |frozen| match &self.body {
            ToolBody::Function(body) => body.prepare(frozen).map(drop),
            ToolBody::Agent(agent) => checked_value(frozen, &agent.shape).map(drop),
        })?
    }
}

/// Frozen arguments as a value, which has no type but its schema.
pub(crate) fn checked_value(frozen: &str, shape: &Shape) -> Result<Value, String> {
    let problems = shape.check(frozen);
    if problems.is_empty() { read(frozen, shape) } else { Err(describe(&problems)) }
}

/// Freezes what the model wrote. The body never sees anything else, so what was shown, decided, recorded and
/// run is the same. Some providers write nothing at all for a call without arguments.
pub(crate) fn freeze<T>(raw: &str, then: impl FnOnce(&str) -> T) -> Result<T, String> {
    if raw.len() > LONGEST {
        return Err(format!("`arguments` must be at most {LONGEST} bytes long, is {} bytes long", raw.len()));
    }
    let written = if raw.trim().is_empty() { "{}" } else { raw };
    let frozen = with_canonical_text(written, |frozen| match kind(frozen) {
        None => Ok(then(frozen)),
        Some(kind) => Err(format!("`arguments` must be a JSON object, is {kind}")),
    });
    frozen.map_err(|error| format!("`arguments` must be JSON: {error}"))?
}

/// Reads canonical arguments as `A`, or lists everything that is wrong with them, by path.
pub(crate) fn read<A: DeserializeOwned>(text: &str, shape: &Shape) -> Result<A, String> {
    // A type may do what it likes while it is read.
    match std::panic::catch_unwind(AssertUnwindSafe(|| serde_json::from_str(text))) {
        Ok(read) => read.map_err(|error| problems::<A>(text, shape, &error)),
        Err(_) => Err("`arguments` cannot be read".to_owned()),
    }
}

/// Only wrong arguments pay for finding out all that is wrong with them.
#[cold]
fn problems<A: DeserializeOwned>(text: &str, shape: &Shape, error: &serde_json::Error) -> String {
    let found = shape.check(text);
    if !found.is_empty() {
        return describe(&found);
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    match serde_path_to_error::deserialize::<_, A>(&mut reader) {
        Err(placed) => match placed.path().to_string().as_str() {
            "." => format!("`arguments` {}", without_place(placed.inner())),
            path => format!("`{path}` {}", without_place(placed.inner())),
        },
        Ok(_) => error.to_string(),
    }
}

/// An error's text without line and column, which mean nothing to the model: it did not write this text.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

/// What canonical text is, where it is not an object.
fn kind(text: &str) -> Option<&'static str> {
    match text.as_bytes().first() {
        Some(b'{') => None,
        Some(b'n') => Some("null"),
        Some(b't' | b'f') => Some("a boolean"),
        Some(b'"') => Some("a string"),
        Some(b'[') => Some("a list"),
        Some(_) | None => Some("a number"),
    }
}

//! Prompt caching: the points up to which a provider caches a prompt, and the key by which it finds one again.
//!
//! A provider serves the beginning of a prompt from its cache if it is the same as before. Tools, instructions and earlier
//! items are encoded in the same way in every request of a run, so that only the end of a prompt is new.

use serde_json::{Map, Value};
use windlass::core::canonical::Digest;
use windlass::core::item::{Item, Role};
use windlass::model::{ModelRequest, PromptCaching};

/// True if a request asks for cache points: others will follow that begin in the same way, or the settings name a
/// retention. `field` is the name of a point in the API: points of the application replace ours, because their number is
/// limited.
pub(crate) fn wants_cache_points(request: &ModelRequest<'_>, field: &str) -> bool {
    let settings = request.settings;
    let is_followed = !request.tools.is_empty()
        || !request.handoffs.is_empty()
        || request.input.iter().any(|item| match &**item {
            Item::Message(message) => message.role == Role::Assistant,
            Item::Call(_) | Item::HostedTool(_) => true,
            _ => false,
        });
    settings.prompt_cache != Some(PromptCaching::Off)
        && (is_followed || settings.prompt_cache_retention.is_some())
        && !has_field(&settings.extra, field)
}

fn has_field(fields: &Map<String, Value>, name: &str) -> bool {
    fields.iter().any(|(key, value)| key == name || is_field_within(value, name))
}

fn is_field_within(value: &Value, name: &str) -> bool {
    match value {
        Value::Object(fields) => has_field(fields, name),
        Value::Array(values) => values.iter().any(|value| is_field_within(value, name)),
        _ => false,
    }
}

/// Returns the key of a conversation, by which a provider sends its requests to the same cache. It is a digest: the ids of
/// sessions and runs are the application's.
pub(crate) fn conversation_cache_key(request: &ModelRequest<'_>) -> Option<String> {
    let id = request.conversation_id?;
    (request.settings.prompt_cache != Some(PromptCaching::Off))
        .then(|| Digest::of_parts(&["prompt cache", id, request.agent.as_str()]).short_hex())
}

/// Returns the places of the turns whose ends are cached: the end of the conversation, and that of the request before,
/// which is too far behind for the provider's own search if the model made many calls. `is_of_user` is false for the turns
/// of the model, which go back as they came.
pub(crate) fn cached_turns(turns: usize, is_of_user: impl Fn(usize) -> bool) -> impl Iterator<Item = usize> {
    let last_before = |end: usize, is_user: bool| (0..end).rev().find(|place| is_of_user(*place) == is_user);
    let last = last_before(turns, true);
    let before = last.and_then(|last| last_before(last, false)).and_then(|said| last_before(said, true));
    before.into_iter().chain(last)
}

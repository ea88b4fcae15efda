//! The settings that a provider has. A request with another setting is refused before it is sent, because a setting that
//! is silently ignored is found out too late.

use windlass::model::{ModelError, ModelErrorKind, ModelSettings, PromptCaching, ToolSearchPlace};

/// The settings that every protocol of this crate has.
const COMMON_SETTINGS: [&str; 7] = [
    "tool_choice",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "max_tokens",
    "on_length_limit",
    "prompt_cache",
];

/// Checks that a provider has all settings of a request. `supported` are those beside the common ones.
///
/// # Errors
///
/// Returns an error of the kind [`ModelErrorKind::InvalidRequest`] that names the first setting that the provider lacks.
pub(crate) fn check_settings(
    api: &str,
    settings: &ModelSettings,
    supported: &[&str],
    unsupported: &[&str],
) -> Result<(), ModelError> {
    if settings.prompt_cache == Some(PromptCaching::Off) && settings.prompt_cache_retention.is_some() {
        let text = "the setting `prompt_cache_retention` contradicts `prompt_cache`, which is off";
        return Err(ModelError::new(text).with_kind(ModelErrorKind::InvalidRequest));
    }
    for name in settings.setting_names() {
        // The search of this library needs nothing of a provider.
        if name == "tool_search" && settings.tool_search == Some(ToolSearchPlace::Local) {
            continue;
        }
        let is_supported = COMMON_SETTINGS.contains(&name) || supported.contains(&name);
        if !is_supported || unsupported.contains(&name) {
            let text = format!(
                "{api} has no setting `{name}`; hint: remove it, or write the provider's own field in `extra`"
            );
            return Err(ModelError::new(text).with_kind(ModelErrorKind::InvalidRequest));
        }
    }
    Ok(())
}

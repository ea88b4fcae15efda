//! The settings that a provider has. A request with another setting is refused before it is sent, because a setting that
//! is silently ignored is found out too late.

use windlass::model::{ModelError, ModelErrorKind, ModelSettings};

/// The settings that every protocol of this crate has.
const COMMON_SETTINGS: [&str; 6] =
    ["tool_choice", "parallel_tool_calls", "temperature", "top_p", "max_tokens", "on_length_limit"];

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
    for name in settings.setting_names() {
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

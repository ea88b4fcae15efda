//! The section `[approvers]` of an agent file: the people whose signatures count.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use windlass::core::authenticity::ApproverKey;
use windlass::store::ApproverPolicy;

/// The public keys of one approver.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum ApproverKeys {
    One(String),
    Several(Vec<String>),
}

/// The approvers by name.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct ApproversSpec(BTreeMap<String, ApproverKeys>);

/// The part of an agent file that is read without the rest.
#[derive(Deserialize)]
struct ApproversSection {
    approvers: Option<ApproversSpec>,
    workspace: Option<PathBuf>,
}

impl ApproversSpec {
    /// Returns the policy: each key with its name.
    ///
    /// # Errors
    ///
    /// Fails with the name of an approver whose key is none.
    pub(super) fn to_policy(&self) -> Result<ApproverPolicy, String> {
        let mut policy = ApproverPolicy::new();
        for (name, keys) in &self.0 {
            let keys = match keys {
                ApproverKeys::One(key) => std::slice::from_ref(key),
                ApproverKeys::Several(keys) => keys,
            };
            for key in keys {
                let key = ApproverKey::new(key.as_str());
                if !key.is_well_formed() {
                    return Err(format!(
                        "the key of the approver `{name}` is not `ed25519:` and 64 hex digits"
                    ));
                }
                if let Some(other) = policy.name_of(&key) {
                    return Err(format!("the approvers `{other}` and `{name}` have the same key"));
                }
                policy = policy.approver(name.as_str(), key);
            }
        }
        Ok(policy)
    }
}

/// Reads the approvers from the text of an agent file, with the rules of its policy that say who decides about which call.
///
/// # Errors
///
/// Fails if the text is not TOML, a key is none, or a rule names somebody who is no approver: then nobody can tell whose
/// signatures count.
pub(crate) fn parse_approvers(text: &str, folder: &Path) -> Result<Option<ApproverPolicy>, String> {
    let section: ApproversSection =
        toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
    let listed = section.approvers.as_ref().map(ApproversSpec::to_policy).transpose()?;
    let workspace = section.workspace.map_or_else(|| folder.to_owned(), |workspace| folder.join(workspace));
    with_policy_rules(listed, text, &workspace)
}

#[cfg(unix)]
fn with_policy_rules(
    listed: Option<ApproverPolicy>,
    text: &str,
    workspace: &Path,
) -> Result<Option<ApproverPolicy>, String> {
    use std::sync::Arc;

    let policy = windlass_tools::ToolPolicy::parse_section(crate::project::AGENT_FILE, text)
        .map_err(|error| error.to_string())?;
    let Some(policy) = policy.filter(|policy| policy.named_approvers().next().is_some()) else {
        return Ok(listed);
    };
    let listed = listed.unwrap_or_default();
    let unknown = policy.named_approvers().find(|(name, _)| !listed.names().any(|listed| listed == *name));
    if let Some((name, line)) = unknown {
        return Err(format!(
            "line {line}: the rule names the approver `{name}`, whose key [approvers] does not have"
        ));
    }
    Ok(Some(listed.with_rules(Arc::new(policy.workspace(workspace)))))
}

#[cfg(not(unix))]
fn with_policy_rules(
    listed: Option<ApproverPolicy>,
    _text: &str,
    _workspace: &Path,
) -> Result<Option<ApproverPolicy>, String> {
    Ok(listed)
}

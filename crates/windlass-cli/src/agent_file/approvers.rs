//! The section `[approvers]` of an agent file: the people whose signatures count.

use std::collections::BTreeMap;

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

/// Reads the approvers from the text of an agent file.
///
/// # Errors
///
/// Fails if the text is not TOML or a key is none: then nobody can tell whose signatures count.
pub(crate) fn parse_approvers(text: &str) -> Result<Option<ApproverPolicy>, String> {
    let section: ApproversSection =
        toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
    section.approvers.map(|spec| spec.to_policy()).transpose()
}

//! The approver's own key of the user, and what it means in a project: with approvers in its agent file, decisions count
//! with the signature of one of them only.
//!
//! **Invariant:** a private key is read by this process alone; only its signatures and its public half leave it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass::core::canonical::Digest;
use windlass::core::decision::{Decision, PendingCall};
use windlass::store::{ApproverPolicy, ApproverSigner};

use crate::cli_error::CliError;
use crate::project::{CliProject, state_folder};
use crate::project_keys::{create_private_text, ensure_outside_folder, ensure_private, random_secret};

/// Environment variable with the path of the user's approver key.
const APPROVER_KEY_VARIABLE: &str = "WINDLASS_APPROVER_KEY";
/// First line of the file with the key.
const HEADER: &str = "windlass approver key 1";

/// The user as the approvers of a project know him or her.
#[derive(Clone, Debug)]
pub(crate) enum ApproverIdentity {
    /// The project has no approvers: decisions need no signature.
    NotRequired,
    /// The user is an approver.
    Approver {
        /// Name in the agent file.
        name: String,
        /// The private key.
        signer: Arc<ApproverSigner>,
        /// The approvers of the project.
        policy: Arc<ApproverPolicy>,
    },
    /// The user is no approver, for this reason.
    Stranger {
        /// The reason.
        reason: String,
    },
}

impl ApproverIdentity {
    /// Reads the user's key if the project has approvers.
    pub(crate) fn of_project(project: &CliProject) -> Result<Self, CliError> {
        match project.approvers()? {
            None => Ok(Self::NotRequired),
            Some(policy) => Self::in_policy(policy),
        }
    }

    fn in_policy(policy: ApproverPolicy) -> Result<Self, CliError> {
        let names: Vec<&str> = policy.names().collect();
        let names = if names.is_empty() { "nobody".to_owned() } else { names.join(" or ") };
        let path = approver_key_path()?;
        if !path.exists() {
            let reason = format!("only {names} can decide here, and you have no approver's key");
            return Ok(Self::Stranger { reason });
        }
        let signer = read_signer(&path)?;
        Ok(match policy.name_of(signer.key()) {
            Some(name) => Self::Approver {
                name: name.to_owned(),
                signer: Arc::new(signer),
                policy: Arc::new(policy.clone()),
            },
            None => {
                let reason =
                    format!("only {names} can decide here, and your key {} is not listed", signer.key());
                Self::Stranger { reason }
            }
        })
    }

    /// Returns the key that signs decisions, if the user is an approver.
    pub(crate) fn signer(&self) -> Option<Arc<ApproverSigner>> {
        match self {
            Self::Approver { signer, .. } => Some(signer.clone()),
            Self::NotRequired | Self::Stranger { .. } => None,
        }
    }

    /// Returns the name under which the user decides: that of the approver, or else `user`.
    pub(crate) fn name_or(&self, user: impl FnOnce() -> String) -> String {
        match self {
            Self::Approver { name, .. } => name.clone(),
            Self::NotRequired | Self::Stranger { .. } => user(),
        }
    }

    /// Returns the reason why an approval of a call by the user does not count.
    pub(crate) fn refusal(&self, call: &PendingCall) -> Option<String> {
        match self {
            Self::Stranger { reason } => Some(reason.clone()),
            Self::Approver { name, policy, .. } => {
                let deciders = policy.deciders(call);
                let deciding = if deciders.is_empty() { "nobody".to_owned() } else { deciders.join(" or ") };
                let refused =
                    || format!("only {deciding} can decide about this call, and your key is that of {name}");
                (!deciders.contains(&name.as_str())).then(refused)
            }
            Self::NotRequired => None,
        }
    }

    /// Checks that the user may make a decision, under a name that was passed.
    ///
    /// # Errors
    ///
    /// Fails if the decision would not count. A rejection always does.
    pub(crate) fn check_decision(&self, decision: &Decision, by: Option<&str>) -> Result<(), CliError> {
        match (self, by) {
            (Self::Stranger { reason }, _) if !matches!(decision, Decision::Reject { .. }) => {
                Err(CliError::new(format!("the decision would not count: {reason}")).with_hint(
                    "`windlass key approver` prints your key; whoever keeps agent.toml lists it under [approvers]",
                ))
            }
            (Self::Approver { name, .. }, Some(by)) if by != name => Err(CliError::usage(format!(
                "your key is that of `{name}`, and does not sign in the name of `{by}`"
            ))),
            (Self::NotRequired | Self::Approver { .. } | Self::Stranger { .. }, _) => Ok(()),
        }
    }
}

/// Returns the path of the user's approver key.
pub(crate) fn approver_key_path() -> Result<PathBuf, CliError> {
    let named = std::env::var_os(APPROVER_KEY_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let of_state = || state_folder().map(|state| state.join("windlass").join("keys").join("approver.key"));
    named.or_else(of_state).ok_or_else(|| {
        CliError::new("there is no folder for your key: neither XDG_STATE_HOME nor HOME is set")
            .with_hint(format!("set {APPROVER_KEY_VARIABLE} to a file"))
    })
}

/// Checks that the tools of an agent cannot read the user's approver key.
pub(crate) fn ensure_approver_key_outside(workspace: &Path) -> Result<(), CliError> {
    let path = approver_key_path()?;
    if path.exists() { ensure_outside_folder(&path, workspace, APPROVER_KEY_VARIABLE) } else { Ok(()) }
}

/// Reads the user's approver key, and creates it if there is none.
pub(crate) fn open_signer(path: &Path) -> Result<ApproverSigner, CliError> {
    if !path.exists() {
        let secret = Digest::from_bytes(random_secret()?);
        create_private_text(path, &format!("{HEADER}\n{secret}\n"))?;
    }
    read_signer(path)
}

/// Reads the user's approver key.
///
/// # Errors
///
/// Fails if there is none.
pub(crate) fn read_own_signer() -> Result<ApproverSigner, CliError> {
    let path = approver_key_path()?;
    if !path.exists() {
        return Err(
            CliError::not_found("you have no approver's key").with_hint("`windlass key approver` makes one")
        );
    }
    read_signer(&path)
}

fn read_signer(path: &Path) -> Result<ApproverSigner, CliError> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| CliError::new(format!("your key in `{shown}` cannot be read: {error}")))?;
    ensure_private(path, "make another one with `windlass key approver` in its place")?;
    parse_signer(&text)
        .ok_or_else(|| CliError::new(format!("`{shown}` is not a file with an approver's key")))
}

/// Parses the text of a key file.
fn parse_signer(text: &str) -> Option<ApproverSigner> {
    let mut lines = text.lines();
    let secret = lines.next().filter(|header| *header == HEADER).and_then(|_| lines.next())?;
    ApproverSigner::from_seed(secret.trim().parse::<Digest>().ok()?.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::{HEADER, parse_signer};

    #[cfg(target_os = "linux")]
    #[test]
    fn fuzz_key_files_are_refused_or_read() {
        let seeds = [format!("{HEADER}\n{}\n", "0f".repeat(32)), format!("{HEADER}\r\n{}", "AB".repeat(32))];
        let target = windlass_fuzz::FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "approver_key").seeds(seeds);
        target.words([HEADER, "\n", "ff", "\u{feff}"]).run(
            module_path!(),
            "fuzz_key_files_are_refused_or_read",
            |input| {
                let text = String::from_utf8_lossy(input);
                if let Some(signer) = parse_signer(&text) {
                    let shown = format!("{signer:?}");
                    let secret = text.lines().nth(1).unwrap_or_default().trim();
                    assert!(signer.key().is_well_formed() && !shown.contains(secret), "{shown}");
                }
            },
        );
    }
}

//! The agent file of a stored run. The file decides which tools there are and what they may do, so that a store must not
//! choose it.
//!
//! **Invariant:** an agent file that a store names is used only if its path has a valid MAC, or the store has no keys. With
//! approvers it must also be the project's own, because whoever has the key of the store is no approver.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use windlass::core::authenticity::{MacKeyring, MacMessage, MessageMac};
use windlass::core::canonical::Digest;
use windlass::core::id::RunId;
use windlass::store::Store;

use crate::agent_file::AgentFile;
use crate::cli_error::CliError;
use crate::project::{AGENT_FILE, CliProject};

/// Name of the artefact with the path of a run's agent file.
pub(crate) const AGENT_PATH_ARTEFACT: &str = ".agent";

/// Beginning of the ids of voice conversations. The runs of a conversation have its id, a slash, and a part of their own.
pub(crate) const VOICE_CONVERSATION_PREFIX: &str = "talk-";

/// The path of an agent file as the store has it.
#[derive(Serialize, Deserialize)]
struct StoredAgentPath {
    path: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mac: Option<MessageMac>,
}

/// Returns the artefact with the path of the agent file of a run or of a conversation.
pub(crate) fn encode_agent_path(run: &RunId, path: &Path, keys: Option<&MacKeyring>) -> Vec<u8> {
    let mac = keys.map(|keys| keys.authenticate(&path_message(run, &path_digest(path))));
    let stored = StoredAgentPath { path: path.to_owned(), mac };
    // A path that is not Unicode cannot be written, and the run is then resumed with --agent.
    serde_json::to_vec(&stored).unwrap_or_default()
}

/// Returns the path of the agent file of a stored run, if it is recorded.
///
/// # Errors
///
/// Fails if the path is not authentic.
pub(crate) async fn recorded_agent_path(
    project: &CliProject,
    store: &dyn Store,
    run: &RunId,
) -> Result<Option<PathBuf>, CliError> {
    let Some(body) = store.load_artefact(run, AGENT_PATH_ARTEFACT).await? else { return Ok(None) };
    let Ok(StoredAgentPath { path, mac }) = serde_json::from_slice(&body) else { return Ok(None) };
    let refuse = |reason: &str| {
        CliError::new(format!("run {run} names the agent file `{}`, and {reason}", path.display())).with_hint(
            format!(
                "if it is yours, `windlass resume {run} --agent FILE` goes on with the file that you name"
            ),
        )
    };
    if store.approvers().is_some() && !is_same_file(&path, &project.folder().join(AGENT_FILE)) {
        return Err(refuse("a project with approvers believes no file but its own agent.toml"));
    }
    if let Some(keys) = store.mac_keys() {
        let digest = path_digest(&path);
        keys.verify(&path_message(run, &digest), mac.as_ref())
            .map_err(|error| refuse(&format!("that cannot be believed: {error}")))?;
    }
    Ok(Some(path))
}

/// Returns the agent file that started a run, if it is still there.
///
/// # Errors
///
/// Fails if the store names a file that cannot be believed.
pub(crate) async fn agent_file_of_run(
    project: &CliProject,
    store: &dyn Store,
    run: &RunId,
) -> Result<Option<AgentFile>, CliError> {
    let path = recorded_agent_path(project, store, run).await?;
    Ok(path.and_then(|path| AgentFile::read(&path).ok()))
}

/// Returns the message of a path's MAC. The runs of one voice conversation have the same beginning, and one path.
fn path_message<'a>(run: &'a RunId, digest: &'a Digest) -> MacMessage<'a> {
    let scope = run.as_str().split('/').next().unwrap_or_default();
    MacMessage::Artefact { scope, name: AGENT_PATH_ARTEFACT, body: digest }
}

/// Returns true if a run executes the calls of a voice conversation, whose process goes on with it.
pub(crate) fn is_voice_run(run: &RunId) -> bool {
    run.as_str().starts_with(VOICE_CONVERSATION_PREFIX) && run.as_str().contains('/')
}

fn path_digest(path: &Path) -> Digest {
    Digest::of_text(&path.as_os_str().as_encoded_bytes().escape_ascii().to_string())
}

/// Returns true if both paths lead to one file.
pub(crate) fn is_same_file(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

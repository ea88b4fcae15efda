//! The evidence of a pending call: the screen that its tool saved when the call was held, as an approver is shown it.
//!
//! **Invariant:** the digest of a review covers its evidence, so that a decision is about the screen that was displayed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use data_encoding::BASE64;
use windlass::artefact::fetch_media;
use windlass::core::{canonical::Digest, decision::PendingCall, id::RunId};
use windlass::store::Store;
use windlass::tool::{CallEvidence, fetch_evidence};

use super::call_review::CallReview;
use crate::agent_file::AgentFile;
use crate::cli_error::CliError;
use crate::project_keys::write_private;
use crate::store_place::create_private_folder;

/// Time after which the file of a displayed picture is removed.
const PICTURE_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Creates the review of a call of a stored run, with the evidence that its tool saved. A picture is written to a file
/// beside the store, which only the user can read; the review has its path.
pub(crate) async fn review_stored_call(
    store_path: &Path,
    store: &dyn Store,
    run: &RunId,
    pending: &PendingCall,
    file: Option<&AgentFile>,
) -> Result<CallReview, CliError> {
    let review = CallReview::new(run, pending, file);
    let Some(evidence) = fetch_evidence(store, run, &pending.path).await? else { return Ok(review) };
    let picture = match fetch_picture(store, &evidence).await? {
        Some(picture) => Some(save_picture(&store_path.with_extension("pictures"), &picture)?),
        None => None,
    };
    Ok(review.with_evidence(&evidence, picture.as_deref()))
}

/// Returns the picture of the evidence as bytes.
async fn fetch_picture(store: &dyn Store, evidence: &CallEvidence) -> Result<Option<Vec<u8>>, CliError> {
    let Some(picture) = &evidence.picture else { return Ok(None) };
    let base64 = match (&picture.data, &picture.url) {
        (Some(data), _) => Some(data.clone()),
        (None, Some(url)) => fetch_media(store, url).await?,
        (None, None) => None,
    };
    Ok(base64.and_then(|base64| BASE64.decode(base64.as_bytes()).ok()))
}

/// Writes a picture to a file that its content names, and removes the files of earlier days.
fn save_picture(folder: &Path, picture: &[u8]) -> Result<PathBuf, CliError> {
    let path = folder.join(format!("{}.png", Digest::of_bytes(picture)));
    let failed = |error: std::io::Error| {
        CliError::new(format!("the picture of the call cannot be written to `{}`: {error}", path.display()))
    };
    create_private_folder(folder).map_err(failed)?;
    for entry in std::fs::read_dir(folder).map_err(failed)?.flatten() {
        let age = entry.metadata().and_then(|metadata| metadata.modified()).map(|at| at.elapsed());
        if matches!(age, Ok(Ok(age)) if age > PICTURE_LIFETIME) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    match write_private(&path, picture) {
        Ok(()) => Ok(path),
        // The name says what the file has.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(path),
        Err(error) => Err(failed(error)),
    }
}

//! The keys of a store: secrets that tell decisions of the user from those of anybody else who can write to the store.
//!
//! **Invariant:** a key is never in a folder where the tools of an agent work, and only the user can read it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass::core::authenticity::MacKeyring;
use windlass::store::EncryptionKeys;

use crate::cli_error::CliError;

/// Environment variable with the path of the keyring.
pub(crate) const KEY_FILE_VARIABLE: &str = "WINDLASS_KEY_FILE";

/// Environment variable with the path of the encryption keys.
pub(crate) const ENCRYPTION_KEY_FILE_VARIABLE: &str = "WINDLASS_ENCRYPTION_KEY_FILE";

/// Reads the keys that encrypt a store.
pub(crate) fn read_encryption_keys(path: &Path) -> Result<EncryptionKeys, CliError> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        CliError::new(format!("the encryption keys in `{shown}` cannot be read: {error}"))
    })?;
    EncryptionKeys::from_text(&text)
        .map_err(|error| CliError::new(format!("`{shown}` is not a file with encryption keys: {error}")))
}

/// The keys of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreKeySource {
    /// A file in the user's state folder, which is created with the store.
    OfProject(PathBuf),
    /// A file that the user named. It must exist.
    Named(PathBuf),
    /// A store that the user named, without keys.
    Absent,
}

impl StoreKeySource {
    /// Returns the path of the file, if there are keys.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::OfProject(path) | Self::Named(path) => Some(path),
            Self::Absent => None,
        }
    }

    /// Reads the keys, and creates those of a project if they do not exist.
    pub(crate) fn open(&self) -> Result<Option<Arc<MacKeyring>>, CliError> {
        if let Self::OfProject(path) = self {
            create_keyring(path).map_err(|error| {
                CliError::new(format!("`{}` cannot be created: {error}", path.display()))
                    .with_hint(format!("set {KEY_FILE_VARIABLE} to a file with keys"))
            })?;
        }
        self.read()
    }

    /// Reads the keys.
    pub(crate) fn read(&self) -> Result<Option<Arc<MacKeyring>>, CliError> {
        let Some(path) = self.path() else { return Ok(None) };
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| CliError::new(format!("the keys in `{shown}` cannot be read: {error}")))?;
        if let Self::OfProject(path) = self {
            ensure_private(path, "if somebody may have read them, `windlass key rotate`")?;
        }
        let keys = MacKeyring::from_text(&text)
            .map_err(|error| CliError::new(format!("`{shown}` is not a file with keys: {error}")))?;
        Ok(Some(Arc::new(keys)))
    }

    /// Adds a new key, which makes the MACs from now on. The earlier ones still verify.
    pub(crate) fn rotate(&self) -> Result<Arc<MacKeyring>, CliError> {
        let Some(path) = self.path() else {
            return Err(CliError::usage("the store has no keys")
                .with_hint(format!("--key-file or {KEY_FILE_VARIABLE} names a file with keys")));
        };
        self.open()?;
        let text = std::fs::read_to_string(path)?;
        let separator = if text.ends_with('\n') { "" } else { "\n" };
        let new = MacKeyring::text_of_secrets(&[random_secret()?]);
        let line = new.lines().nth(1).unwrap_or_default();
        replace_private_file(path, &format!("{text}{separator}{line}\n"))?;
        self.read()?.ok_or_else(|| CliError::new("the keys cannot be read"))
    }

    /// Checks that the tools of an agent cannot read the keys.
    ///
    /// # Errors
    ///
    /// Fails if the file is in the folder in which they work.
    pub(crate) fn ensure_outside(&self, workspace: &Path) -> Result<(), CliError> {
        self.path().map_or(Ok(()), |path| ensure_outside_folder(path, workspace, KEY_FILE_VARIABLE))
    }
}

/// Checks that a file with keys is outside the folder in which the tools of an agent work. `variable` names another place
/// for it.
///
/// # Errors
///
/// Fails if the file is in the folder, or if that cannot be found out.
pub(crate) fn ensure_outside_folder(path: &Path, workspace: &Path, variable: &str) -> Result<(), CliError> {
    let absolute = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path));
    match (absolute(workspace), absolute(path)) {
        (Ok(workspace), Ok(path)) if !path.starts_with(&workspace) => Ok(()),
        _ => Err(CliError::usage(format!(
            "the keys in `{}` are in the folder in which the agent's tools work",
            path.display()
        ))
        .with_hint(format!(
            "set `workspace` in the agent file to a narrower folder, or XDG_STATE_HOME or {variable} to a place outside"
        ))),
    }
}

/// Creates a keyring with one random key, unless the file exists.
fn create_keyring(path: &Path) -> Result<(), CliError> {
    if path.exists() {
        return Ok(());
    }
    create_private_text(path, &MacKeyring::text_of_secrets(&[random_secret()?]))
}

/// Creates a private file and its folder, unless the file exists.
pub(crate) fn create_private_text(path: &Path, text: &str) -> Result<(), CliError> {
    if let Some(folder) = path.parent() {
        crate::store_place::create_private_folder(folder)?;
    }
    // Another process may create it at the same time: whoever links its file first wins.
    let draft = draft_path(path);
    write_private(&draft, text)?;
    let linked = std::fs::hard_link(&draft, path);
    std::fs::remove_file(&draft)?;
    match linked {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Replaces a private file as a whole.
fn replace_private_file(path: &Path, text: &str) -> Result<(), CliError> {
    let draft = draft_path(path);
    write_private(&draft, text)?;
    std::fs::rename(&draft, path)
        .map_err(|error| CliError::new(format!("`{}` cannot be written: {error}", path.display())))
}

/// Returns a name that no other process uses, beside a file.
fn draft_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", uuid::Uuid::now_v7().simple()));
    name.into()
}

/// Writes a new file that only the user can read, and waits for the disk.
pub(crate) fn write_private(path: &Path, content: impl AsRef<[u8]>) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(content.as_ref())?;
    file.sync_all()
}

/// Checks that only the user can read a file with keys. `remedy` is the advice if somebody has read it.
#[cfg(unix)]
pub(crate) fn ensure_private(path: &Path, remedy: &str) -> Result<(), CliError> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let metadata = std::fs::metadata(path)?;
    let shown = path.display();
    // Whoever owns a file knows what is in it.
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(CliError::new(format!("the keys in `{shown}` belong to another user")));
    }
    if metadata.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(CliError::new(format!("other users can read or change the keys in `{shown}`"))
        .with_hint(format!("`chmod 600 {shown}`; {remedy}")))
}

#[cfg(not(unix))]
pub(crate) fn ensure_private(_path: &Path, _remedy: &str) -> Result<(), CliError> {
    Ok(())
}

/// Returns 32 bytes from the system's source of randomness.
pub(crate) fn random_secret() -> Result<[u8; 32], CliError> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret)
        .map_err(|error| CliError::new(format!("the system has no randomness for a key: {error}")))?;
    Ok(secret)
}

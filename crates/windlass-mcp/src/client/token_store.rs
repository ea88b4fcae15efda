//! Storage of OAuth credentials between processes.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rmcp::transport::auth::{AuthError, CredentialStore, StoredCredentials};

/// A store of OAuth credentials, such as the keychain of a user. The credentials are an opaque text that contains
/// secrets.
pub trait OAuthTokenStore: Send + Sync {
    /// Returns the credentials for a server's URL, if there are any.
    fn load<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<Option<String>, String>>;

    /// Stores the credentials for a server's URL, replacing earlier ones.
    fn save<'a>(&'a self, url: &'a str, credentials: String) -> BoxFuture<'a, Result<(), String>>;

    /// Removes the credentials for a server's URL.
    fn remove<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<(), String>>;
}

/// A store of OAuth credentials in a file that only its owner can read (mode 0600). It is replaced atomically, under a
/// lock on a second file with the ending `.lock`, so that servers and processes can share it.
#[derive(Clone, Debug)]
pub struct OAuthTokenFile {
    path: PathBuf,
}

impl OAuthTokenFile {
    /// Creates the store. The file and its folder are created with the first credentials.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    fn read(&self) -> Result<BTreeMap<String, String>, String> {
        match std::fs::read_to_string(&self.path) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| self.failed("parsed", &error)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(self.failed("read", &error)),
        }
    }

    /// Changes the credentials, on a thread that may wait for other writers.
    async fn update(
        &self,
        change: impl FnOnce(&mut BTreeMap<String, String>) + Send + 'static,
    ) -> Result<(), String> {
        let file = self.clone();
        let updated = tokio::task::spawn_blocking(move || file.update_locked(change)).await;
        updated.map_err(|error| self.failed("written", &error))?
    }

    fn update_locked(&self, change: impl FnOnce(&mut BTreeMap<String, String>)) -> Result<(), String> {
        // The lock ends when the file is closed.
        let _lock = self.lock().map_err(|error| self.failed("locked", &error))?;
        let mut credentials = self.read()?;
        change(&mut credentials);
        let text = serde_json::to_string(&credentials).map_err(|error| self.failed("written", &error))?;
        self.replace(&text).map_err(|error| self.failed("written", &error))
    }

    /// Waits until no other writer has the lock, and takes it.
    fn lock(&self) -> io::Result<File> {
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut path = self.path.clone().into_os_string();
        path.push(".lock");
        let file = private_file().create(true).truncate(false).open(path)?;
        file.lock()?;
        Ok(file)
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        let new = self.path.with_extension(format!("new-{}", uuid::Uuid::new_v4()));
        let mut file = private_file().create_new(true).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)
    }

    fn failed(&self, verb: &str, error: &dyn std::fmt::Display) -> String {
        format!("the OAuth credentials in {} cannot be {verb}: {error}", self.path.display())
    }
}

/// Returns the options of a file that only its owner can read and write.
fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

impl OAuthTokenStore for OAuthTokenFile {
    fn load<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<Option<String>, String>> {
        async move { Ok(self.read()?.remove(url)) }.boxed()
    }

    fn save<'a>(&'a self, url: &'a str, credentials: String) -> BoxFuture<'a, Result<(), String>> {
        let url = url.to_owned();
        self.update(move |all| drop(all.insert(url, credentials))).boxed()
    }

    fn remove<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<(), String>> {
        let url = url.to_owned();
        self.update(move |all| drop(all.remove(&url))).boxed()
    }
}

/// The credentials of one server in a store.
pub(super) struct ServerCredentials {
    pub(super) store: Arc<dyn OAuthTokenStore>,
    pub(super) url: String,
}

fn store_error(reason: String) -> AuthError {
    AuthError::InternalError(reason)
}

// rmcp declares this trait with `async_trait`; these are the signatures that it expands to.
impl CredentialStore for ServerCredentials {
    fn load<'a, 'b>(&'a self) -> BoxFuture<'b, Result<Option<StoredCredentials>, AuthError>>
    where
        'a: 'b,
        Self: 'b,
    {
        async move {
            let Some(text) = self.store.load(&self.url).await.map_err(store_error)? else { return Ok(None) };
            match serde_json::from_str(&text) {
                Ok(credentials) => Ok(Some(credentials)),
                Err(error) => {
                    tracing::warn!(%error, url = %self.url, "stored OAuth credentials cannot be read");
                    Ok(None)
                }
            }
        }
        .boxed()
    }

    fn save<'a, 'b>(&'a self, credentials: StoredCredentials) -> BoxFuture<'b, Result<(), AuthError>>
    where
        'a: 'b,
        Self: 'b,
    {
        async move {
            let text = serde_json::to_string(&credentials).map_err(|error| store_error(error.to_string()))?;
            self.store.save(&self.url, text).await.map_err(store_error)
        }
        .boxed()
    }

    fn clear<'a, 'b>(&'a self) -> BoxFuture<'b, Result<(), AuthError>>
    where
        'a: 'b,
        Self: 'b,
    {
        async move { self.store.remove(&self.url).await.map_err(store_error) }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_file_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("new/tokens.json");
        let store = OAuthTokenFile::new(&path);
        assert_eq!(store.load("https://a").await, Ok(None));
        store.save("https://a", "one".to_owned()).await.expect("it is stored");
        store.save("https://b", "two".to_owned()).await.expect("it is stored");
        store.remove("https://b").await.expect("it is removed");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        let again = OAuthTokenFile::new(&path);
        assert_eq!(again.load("https://a").await, Ok(Some("one".to_owned())));
        assert_eq!(again.load("https://b").await, Ok(None));
        let left = std::fs::read_dir(path.parent().expect("a folder")).expect("it can be read").count();
        assert_eq!(left, 2, "no temporary file is left beside the lock");
    }

    /// Two servers that store their credentials at the same moment both keep them.
    #[tokio::test(flavor = "multi_thread")]
    async fn writers_of_one_token_file_keep_the_credentials_of_each_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens.json");
        let mut writers = tokio::task::JoinSet::new();
        for server in 0..8 {
            // Each has a handle of its own, as processes do.
            let store = OAuthTokenFile::new(&path);
            writers.spawn(async move {
                let url = format!("https://{server}.example");
                for renewal in 0..20 {
                    store.save(&url, renewal.to_string()).await.expect("it is stored");
                    assert_eq!(store.load(&url).await, Ok(Some(renewal.to_string())));
                }
            });
        }
        while let Some(ended) = writers.join_next().await {
            ended.expect("the credentials are kept");
        }
    }
}

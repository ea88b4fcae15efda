//! The place of a store: a SQLite file, or a database that the machines of a fleet share.
//!
//! **Invariant:** the address of a database is shown without user and password.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass::core::id::SessionId;
use windlass::fleet::RunQueue;
use windlass::session::{Session, list_all_sessions};
use windlass::store::{ApproverPolicy, EncryptedStore, EncryptionKeys, RestoreReport, SqliteStore, Store};

use crate::cli_error::CliError;
use crate::live_trace::trace_store;
use crate::project_keys::StoreKeySource;
use crate::terminal::print_store_warning;

/// The store of a project, which is a queue too.
pub(crate) type ProjectStore = Arc<dyn RunQueue>;

/// The secrets and signatures that a store believes.
#[derive(Clone, Debug)]
pub(crate) struct StoreTrust {
    /// Keys that authenticate decisions.
    pub(crate) keys: StoreKeySource,
    /// People whose signatures count.
    pub(crate) approvers: Option<ApproverPolicy>,
    /// Keys that encrypt the contents, if they are encrypted.
    pub(crate) encryption: Option<EncryptionKeys>,
}

/// Beginnings of the addresses of databases.
const DATABASE_SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];

/// The place of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StorePlace {
    /// A SQLite file.
    File(PathBuf),
    /// A PostgreSQL database, by its address.
    Database(String),
}

impl fmt::Display for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Database(address) => f.write_str(&address_without_secrets(address)),
        }
    }
}

impl StorePlace {
    /// Returns the place that a user has named: the address of a database, or a file.
    pub(crate) fn from_name(name: &Path) -> Self {
        match name.to_str() {
            Some(text) if DATABASE_SCHEMES.iter().any(|scheme| text.starts_with(scheme)) => {
                Self::Database(text.to_owned())
            }
            _ => Self::File(name.to_owned()),
        }
    }

    /// Returns the file, if the store is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Database(_) => None,
        }
    }

    /// Returns false if the store is a file that does not exist. Nobody knows before a connection if a database has a store.
    pub(crate) fn may_exist(&self) -> bool {
        self.file().is_none_or(Path::exists)
    }

    /// Opens the store, creating it if it does not exist. Only the user can read a file and its folder that are created
    /// here.
    pub(crate) async fn open_or_create(&self, trust: &StoreTrust) -> Result<ProjectStore, CliError> {
        if let Some(path) = self.file() {
            if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                create_private_folder(folder).map_err(|error| creation_error(folder, &error))?;
            }
            create_private_file(path).map_err(|error| creation_error(path, &error))?;
        }
        self.open(trust).await
    }

    /// Puts in doubt what the runs of a database that was restored may have done since its backup.
    pub(crate) async fn restore_database(&self) -> Result<RestoreReport, CliError> {
        match self {
            Self::File(_) => Err(CliError::usage("the store is a file")),
            Self::Database(address) => restore_database(address).await,
        }
    }

    /// Opens the store, which exists. The spans of its runs are sent while they are written, if the variables `OTEL_*` name
    /// a collector.
    pub(crate) async fn open(&self, trust: &StoreTrust) -> Result<ProjectStore, CliError> {
        let store: ProjectStore = match self {
            Self::File(path) => Arc::new(open_file(path, trust)?),
            Self::Database(address) => connect_database(address, trust).await?,
        };
        let store: ProjectStore = match &trust.encryption {
            Some(keys) => Arc::new(EncryptedStore::new(store, keys.clone())),
            None => store,
        };
        Ok(trace_store(store))
    }
}

#[cfg(feature = "postgres")]
async fn restore_database(address: &str) -> Result<RestoreReport, CliError> {
    let options = windlass_postgres::PostgresOptions::default();
    Ok(windlass_postgres::PostgresStore::restore(address, options).await?)
}

#[cfg(not(feature = "postgres"))]
async fn restore_database(_: &str) -> Result<RestoreReport, CliError> {
    Err(without_postgres())
}

/// Returns a session in the store of a project.
pub(crate) fn session_in_store(name: &str, store: &ProjectStore) -> Result<Session, CliError> {
    let runs: Arc<dyn Store> = store.clone();
    Session::in_run_store(name.into(), &runs).ok_or_else(|| CliError::new("the store keeps no sessions"))
}

/// Lists the sessions in the store of a project.
pub(crate) async fn list_sessions(store: &ProjectStore) -> Result<Vec<SessionId>, CliError> {
    match store.sessions() {
        Some(sessions) => Ok(list_all_sessions(sessions).await?),
        None => Ok(Vec::new()),
    }
}

/// Opens the SQLite file of a store.
pub(crate) fn open_file(path: &Path, trust: &StoreTrust) -> Result<SqliteStore, CliError> {
    let is_store = match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() > 0 => has_sqlite_header(path),
        Ok(_) | Err(_) => true,
    };
    if !is_store {
        let shown = path.display();
        return Err(CliError::usage(format!("`{shown}` is not a store of Windlass"))
            .with_hint("--store and WINDLASS_STORE name the SQLite file with the runs; `windlass verify FILE` reads an exported journal"));
    }
    let mut store = SqliteStore::open(path)?;
    if let Some(keys) = trust.keys.open()? {
        store = store.with_keys(keys);
    }
    if let Some(approvers) = trust.approvers.clone() {
        store = store.with_approvers(approvers);
    }
    for warning in store.warnings() {
        print_store_warning(path, warning);
    }
    Ok(store)
}

#[cfg(feature = "postgres")]
async fn connect_database(address: &str, trust: &StoreTrust) -> Result<ProjectStore, CliError> {
    let mut store = windlass_postgres::PostgresStore::connect(address).await?;
    if let Some(keys) = trust.keys.open()? {
        store = store.with_keys(keys);
    }
    if let Some(approvers) = trust.approvers.clone() {
        store = store.with_approvers(approvers);
    }
    Ok(Arc::new(store))
}

#[cfg(not(feature = "postgres"))]
async fn connect_database(_: &str, _: &StoreTrust) -> Result<ProjectStore, CliError> {
    Err(without_postgres())
}

#[cfg(not(feature = "postgres"))]
fn without_postgres() -> CliError {
    CliError::usage("this build of windlass has no PostgreSQL")
        .with_hint("`cargo install windlass-cli --features postgres` builds it with PostgreSQL")
}

/// Returns the address of a database without its user, password and options.
fn address_without_secrets(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").unwrap_or(("postgres", address));
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    // A password may have any character, so that only the last `@` ends it.
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    format!("{scheme}://{place}")
}

/// Returns true if a file begins as a SQLite file does.
fn has_sqlite_header(path: &Path) -> bool {
    use std::io::Read;
    let mut header = [0; 16];
    std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut header)).is_ok()
        && header == *b"SQLite format 3\0"
}

/// Creates a folder that only the user can read, and the folders above it as the system's defaults say.
pub(crate) fn create_private_folder(folder: &Path) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Creates an empty file that only the user can read, unless it exists. SQLite gives its companion files the same
/// permissions.
fn create_private_file(path: &Path) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn creation_error(path: &Path, error: &std::io::Error) -> CliError {
    CliError::new(format!("`{}` cannot be created: {error}", path.display())).with_hint(
        "use --store to choose another file, or set XDG_STATE_HOME to a folder that you can write to",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_database_is_shown_without_user_and_password() {
        let cases = [
            ("postgres://ann:s3cret@db.example/fleet", "postgres://db.example/fleet"),
            ("postgres://ann:s3@c/ret@db.example:5433/fleet?password=x", "postgres://db.example:5433/fleet"),
            ("postgresql://db.example/fleet", "postgresql://db.example/fleet"),
            ("postgres:///fleet?host=/run&user=ann&password=s3cret", "postgres:///fleet"),
        ];
        for (address, shown) in cases {
            assert_eq!(StorePlace::from_name(Path::new(address)).to_string(), shown);
        }
        assert_eq!(StorePlace::from_name(Path::new("runs.db")), StorePlace::File("runs.db".into()));
    }
}

//! A project: the folder of an agent and the store of its runs.
//!
//! The store is not in the folder, because the tools of the agent work there: it is in the user's state folder, by
//! the id of the project, and only the user can read it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass::core::{canonical::Digest, id::RunId};
use windlass::store::SqliteStore;
use windlass::store::{RunQuery, RunStatus, Store, StoredRun, list_all_runs};

use crate::args::CliArgs;
use crate::cli_error::CliError;
use crate::project_keys::{KEY_FILE_VARIABLE, StoreKeySource};
use crate::terminal::{Terminal, print_store_warning};

/// Name of the agent file in its folder.
pub(crate) const AGENT_FILE: &str = "agent.toml";
const STORE_FILE: &str = "windlass.db";
/// Environment variable with the path of the store.
const STORE_VARIABLE: &str = "WINDLASS_STORE";

/// The folder and the store that a command works on.
#[derive(Clone, Debug)]
pub(crate) struct CliProject {
    folder: PathBuf,
    store_path: PathBuf,
    key_source: StoreKeySource,
}

impl CliProject {
    /// Returns the project of the command: the folder given by `-C`, or else the nearest folder at or above
    /// the current one that has an agent or runs.
    pub(crate) fn from_args(args: &CliArgs) -> Result<Self, CliError> {
        let here = std::env::current_dir()?;
        let folder = match &args.project {
            Some(folder) if folder.is_dir() => folder.clone(),
            Some(folder) => {
                return Err(CliError::not_found(format!("there is no folder `{}`", folder.display())));
            }
            None => find_in_ancestors(&here).unwrap_or(here),
        };
        Self::of_args_and_folder(args, folder)
    }

    fn of_args_and_folder(args: &CliArgs, folder: PathBuf) -> Result<Self, CliError> {
        let named = |given: &Option<PathBuf>, variable| {
            let of_variable =
                || std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
            given.clone().or_else(of_variable)
        };
        let store = named(&args.store, STORE_VARIABLE);
        let key_source = match (named(&args.key_file, KEY_FILE_VARIABLE), &store) {
            (Some(path), _) => StoreKeySource::Named(path),
            (None, Some(_)) => StoreKeySource::Absent,
            (None, None) => StoreKeySource::OfProject(default_key_path(&folder)?),
        };
        let store_path = store.map_or_else(|| default_store_path(&folder), Ok)?;
        Ok(Self { folder, store_path, key_source })
    }

    /// Returns the project of an agent file: the folder given by `-C`, or else the folder of the file. Hints of the
    /// terminal name the folder if it is not found from the current one.
    pub(crate) fn of_agent_file(args: &CliArgs, file: &Path, term: &Terminal) -> Result<Self, CliError> {
        if args.project.is_some() {
            return Self::from_args(args);
        }
        let folder = match file.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => std::env::current_dir()?,
        };
        let project = Self::of_args_and_folder(args, folder)?;
        if Self::from_args(args)?.store_path != project.store_path {
            let here = std::env::current_dir()?;
            let shown = project.folder.strip_prefix(&here).unwrap_or(&project.folder);
            term.set_command_prefix(format!("windlass -C {}", shown.display()));
        }
        Ok(project)
    }

    /// Returns the project of a folder, with the default store.
    pub(crate) fn of_folder(folder: &Path) -> Result<Self, CliError> {
        let key_source = StoreKeySource::OfProject(default_key_path(folder)?);
        Ok(Self { folder: folder.to_owned(), store_path: default_store_path(folder)?, key_source })
    }

    /// Returns the project of a store file, which is read and written as it is, without keys.
    pub(crate) fn of_store(path: &Path) -> Self {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Self { folder: folder.to_owned(), store_path: path.to_owned(), key_source: StoreKeySource::Absent }
    }

    /// Returns the place of the store's keys.
    pub(crate) fn key_source(&self) -> &StoreKeySource {
        &self.key_source
    }

    /// Returns the folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the store.
    pub(crate) fn store_path(&self) -> &Path {
        &self.store_path
    }

    /// Returns true if the store is in the folder, where the tools of the agent may reach it.
    pub(crate) fn is_store_in_folder(&self) -> bool {
        let absolute = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path));
        match (absolute(&self.folder), absolute(&self.store_path)) {
            (Ok(folder), Ok(store)) => store.starts_with(folder),
            _ => false,
        }
    }

    /// Opens the store, creating it if it does not exist. Only the user can read a store and its folder that are
    /// created here.
    pub(crate) fn open_or_create(&self) -> Result<Arc<SqliteStore>, CliError> {
        let parent = self.store_path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = parent {
            create_private_folder(folder).map_err(|error| creation_error(folder, &error))?;
        }
        create_private_file(&self.store_path).map_err(|error| creation_error(&self.store_path, &error))?;
        self.open_file()
    }

    /// Opens the store.
    ///
    /// # Errors
    ///
    /// Fails if it does not exist.
    pub(crate) fn open_existing(&self) -> Result<Arc<SqliteStore>, CliError> {
        if self.store_path.exists() {
            return self.open_file();
        }
        Err(CliError::not_found(format!("no runs found for the project `{}`", self.folder.display())).with_hint(
            format!(
                "`windlass run` starts the first run, and makes {}; use -C for another project or --store for another file",
                self.store_path.display()
            ),
        ))
    }

    fn open_file(&self) -> Result<Arc<SqliteStore>, CliError> {
        let is_store = match std::fs::metadata(&self.store_path) {
            Ok(metadata) if metadata.len() > 0 => has_sqlite_header(&self.store_path),
            Ok(_) | Err(_) => true,
        };
        if !is_store {
            let shown = self.store_path.display();
            return Err(CliError::usage(format!("`{shown}` is not a store of Windlass"))
                .with_hint("--store and WINDLASS_STORE name the SQLite file with the runs; `windlass verify FILE` reads an exported journal"));
        }
        let mut store = SqliteStore::open(&self.store_path)?;
        if let Some(keys) = self.key_source.open()? {
            store = store.with_keys(keys);
        }
        for warning in store.warnings() {
            print_store_warning(&self.store_path, warning);
        }
        Ok(Arc::new(store))
    }

    /// Deletes the store of a demonstration, so that it can start anew.
    pub(crate) fn delete_store(&self) -> Result<(), CliError> {
        for suffix in ["", "-wal", "-shm", "-turn", "-next"] {
            let mut name = self.store_path.clone().into_os_string();
            name.push(suffix);
            match std::fs::remove_file(&name) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    let shown = Path::new(&name).display();
                    return Err(CliError::new(format!("`{shown}` cannot be deleted: {error}")));
                }
            }
        }
        Ok(())
    }
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

fn find_in_ancestors(here: &Path) -> Option<PathBuf> {
    let has_store = |folder: &Path| default_store_path(folder).is_ok_and(|path| path.is_file());
    let is_project = |folder: &&Path| folder.join(AGENT_FILE).is_file() || has_store(folder);
    here.ancestors().find(is_project).map(Path::to_owned)
}

/// Returns the path of a project's store in the user's state folder.
fn default_store_path(folder: &Path) -> Result<PathBuf, CliError> {
    let state = state_folder().ok_or_else(|| {
        CliError::new("there is no folder for the store: neither XDG_STATE_HOME nor HOME is set")
            .with_hint("use --store to choose a file")
    })?;
    Ok(state.join("windlass").join("projects").join(project_id(folder)?).join(STORE_FILE))
}

/// Returns the path of the keys of a project's store in the user's state folder.
fn default_key_path(folder: &Path) -> Result<PathBuf, CliError> {
    let store = default_store_path(folder)?;
    let state = store.ancestors().nth(3).unwrap_or(&store);
    Ok(state.join("keys").join(format!("{}.keys", project_id(folder)?)))
}

/// Returns the user's state folder.
fn state_folder() -> Option<PathBuf> {
    let named = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let of_home = || named("HOME").map(|home| home.join(".local").join("state"));
    named("XDG_STATE_HOME").or_else(of_home).or_else(|| named("LOCALAPPDATA"))
}

/// Returns the id of a project: the name of its folder, for people, and the digest of its path.
fn project_id(folder: &Path) -> Result<String, CliError> {
    let path = folder.canonicalize().or_else(|_| std::path::absolute(folder))?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name: String =
        name.chars().filter(|letter| letter.is_ascii_alphanumeric() || *letter == '-').take(32).collect();
    // Paths that are not Unicode have different ids too.
    let digest =
        Digest::of_text(&format!("{}", path.as_os_str().as_encoded_bytes().escape_ascii())).to_string();
    Ok(format!("{name}-{}", digest.get(..16).unwrap_or(&digest)))
}

/// Creates a run id: ten random letters and digits, short enough to read out and type.
pub(crate) fn new_run_id() -> RunId {
    const ID_ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let uuid = uuid::Uuid::now_v7();
    // The last bytes of a version 7 UUID are random.
    let id = uuid.as_bytes()[8..].iter().chain(&uuid.as_bytes()[6..8]).map(|byte| {
        let letter = ID_ALPHABET.get(usize::from(byte & 31)).copied().unwrap_or(b'0');
        char::from(letter)
    });
    RunId::new(id.collect::<String>())
}

/// Returns the run with this id or unique id prefix; without one, the newest run that matches `is_wanted`.
pub(crate) async fn find_run(
    store: &dyn Store,
    named: Option<&str>,
    is_wanted: impl Fn(&StoredRun) -> bool,
) -> Result<StoredRun, CliError> {
    let runs = list_all_runs(store, RunQuery::default()).await?;
    let Some(named) = named else {
        return runs.into_iter().find(is_wanted).ok_or_else(|| {
            CliError::not_found("no matching run found").with_hint("`windlass runs` lists the runs")
        });
    };
    if let Some(exact) = runs.iter().find(|run| run.run.as_str() == named) {
        return Ok(exact.clone());
    }
    let mut matching = runs.into_iter().filter(|run| run.run.as_str().starts_with(named));
    match (matching.next(), matching.next()) {
        (Some(only), None) => Ok(only),
        (Some(one), Some(other)) => Err(CliError::usage(format!("several run ids begin with `{named}`"))
            .with_hint(format!("for example `{}` and `{}`; type more characters", one.run, other.run))),
        (None, _) => Err(CliError::not_found(format!("there is no run `{named}`"))
            .with_hint("`windlass runs` lists the runs")),
    }
}

/// Returns true if the run has not ended and can be resumed.
pub(crate) fn is_resumable(run: &StoredRun) -> bool {
    matches!(run.status, RunStatus::Running | RunStatus::Paused)
}

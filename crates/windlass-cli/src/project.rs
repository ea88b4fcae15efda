//! A project: the folder of an agent and the store of its runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass::core::id::RunId;
use windlass::store::SqliteStore;
use windlass::store::{RunStatus, Store, StoredRun};

use crate::args::CliArgs;
use crate::cli_error::CliError;

/// Name of the agent file in its folder.
pub(crate) const AGENT_FILE: &str = "agent.toml";
/// Folder for the command's own files.
const STATE_FOLDER: &str = ".windlass";
const STORE_FILE: &str = "windlass.db";
/// Environment variable with the path of the store.
const STORE_VARIABLE: &str = "WINDLASS_STORE";

/// The folder and the store that a command works on.
#[derive(Clone, Debug)]
pub(crate) struct CliProject {
    folder: PathBuf,
    store_path: PathBuf,
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
        Ok(Self { store_path: store_path_for(args, &folder), folder })
    }

    /// Returns the project of an agent file: the folder given by `-C`, or else the folder of the file.
    pub(crate) fn of_agent_file(args: &CliArgs, file: &Path) -> Result<Self, CliError> {
        if args.project.is_some() {
            return Self::from_args(args);
        }
        let folder = match file.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => std::env::current_dir()?,
        };
        Ok(Self { store_path: store_path_for(args, &folder), folder })
    }

    /// Returns the folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the store.
    pub(crate) fn store_path(&self) -> &Path {
        &self.store_path
    }

    /// Opens the store, creating it if it does not exist.
    pub(crate) fn open_or_create(&self) -> Result<Arc<SqliteStore>, CliError> {
        if self.store_path.ends_with(Path::new(STATE_FOLDER).join(STORE_FILE)) {
            // The store is not source code, so version control ignores its folder.
            let folder = self.store_path.parent().unwrap_or(Path::new("."));
            std::fs::create_dir_all(folder).map_err(|error| creation_error(folder, &error))?;
            let ignored = folder.join(".gitignore");
            if !ignored.exists() {
                std::fs::write(&ignored, "*\n").map_err(|error| creation_error(&ignored, &error))?;
            }
        }
        Ok(Arc::new(SqliteStore::open(&self.store_path)?))
    }

    /// Opens the store.
    ///
    /// # Errors
    ///
    /// Fails if it does not exist.
    pub(crate) fn open_existing(&self) -> Result<Arc<SqliteStore>, CliError> {
        if self.store_path.exists() {
            return self.open_or_create();
        }
        Err(CliError::not_found(format!(
            "no runs found: the file `{}` does not exist",
            self.store_path.display()
        ))
        .with_hint(
            "`windlass run` starts the first run; use -C for another project or --store for another file",
        ))
    }
}

fn creation_error(path: &Path, error: &std::io::Error) -> CliError {
    CliError::new(format!("`{}` cannot be created: {error}", path.display()))
        .with_hint("use --store to choose another file")
}

fn find_in_ancestors(here: &Path) -> Option<PathBuf> {
    let is_project = |folder: &&Path| {
        folder.join(AGENT_FILE).is_file() || folder.join(STATE_FOLDER).join(STORE_FILE).is_file()
    };
    here.ancestors().find(is_project).map(Path::to_owned)
}

fn store_path_for(args: &CliArgs, folder: &Path) -> PathBuf {
    let named = || std::env::var_os(STORE_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    args.store.clone().or_else(named).unwrap_or_else(|| folder.join(STATE_FOLDER).join(STORE_FILE))
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
    let runs = store.list_runs().await?;
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

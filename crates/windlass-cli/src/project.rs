//! A project: where an agent lives, and where its runs are kept.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass::SqliteStore;
use windlass::core::RunId;
use windlass::store::{RunStatus, Store, StoredRun};

use crate::args::Args;
use crate::problem::Problem;

/// The name of an agent's file in its folder.
pub(crate) const AGENT_FILE: &str = "agent.toml";
/// The folder for what the command keeps.
const OWN_FOLDER: &str = ".windlass";
const STORE_FILE: &str = "windlass.db";
/// The variable that names the store.
const STORE_VARIABLE: &str = "WINDLASS_STORE";

/// Where things are.
#[derive(Clone, Debug)]
pub(crate) struct Project {
    folder: PathBuf,
    store: PathBuf,
}

impl Project {
    /// The project that the command is about: the folder that was named, or else the nearest one above this that
    /// has an agent or runs.
    pub(crate) fn find(args: &Args) -> Result<Self, Problem> {
        let here = std::env::current_dir()?;
        let folder = match &args.project {
            Some(folder) if folder.is_dir() => folder.clone(),
            Some(folder) => {
                return Err(Problem::not_found(format!("there is no folder `{}`", folder.display())));
            }
            None => above(&here).unwrap_or(here),
        };
        Ok(Self { store: store_of(args, &folder), folder })
    }

    /// The project of an agent's file: the project that was named, or else the folder of the file.
    pub(crate) fn of_agent(args: &Args, file: &Path) -> Result<Self, Problem> {
        if args.project.is_some() {
            return Self::find(args);
        }
        let folder = match file.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => std::env::current_dir()?,
        };
        Ok(Self { store: store_of(args, &folder), folder })
    }

    /// Its folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file with its runs.
    pub(crate) fn store_path(&self) -> &Path {
        &self.store
    }

    /// Opens the store, and makes it where it is not there.
    pub(crate) fn open_or_make(&self) -> Result<Arc<SqliteStore>, Problem> {
        if self.store.ends_with(Path::new(OWN_FOLDER).join(STORE_FILE)) {
            // What the command keeps is nobody's source: version control is told so.
            let folder = self.store.parent().unwrap_or(Path::new("."));
            std::fs::create_dir_all(folder).map_err(|error| cannot_make(folder, &error))?;
            let ignored = folder.join(".gitignore");
            if !ignored.exists() {
                std::fs::write(&ignored, "*\n").map_err(|error| cannot_make(&ignored, &error))?;
            }
        }
        Ok(Arc::new(SqliteStore::open(&self.store)?))
    }

    /// Opens the store, where there is one.
    pub(crate) fn open(&self) -> Result<Arc<SqliteStore>, Problem> {
        if self.store.exists() {
            return self.open_or_make();
        }
        Err(Problem::not_found(format!("there are no runs here: no file `{}`", self.store.display()))
            .hint("`windlass run` makes the first; -C names another project, --store another file"))
    }
}

fn cannot_make(path: &Path, error: &std::io::Error) -> Problem {
    Problem::new(format!("`{}` cannot be made: {error}", path.display()))
        .hint("--store names another file for the runs")
}

fn above(here: &Path) -> Option<PathBuf> {
    let is_project = |folder: &&Path| {
        folder.join(AGENT_FILE).is_file() || folder.join(OWN_FOLDER).join(STORE_FILE).is_file()
    };
    here.ancestors().find(is_project).map(Path::to_owned)
}

fn store_of(args: &Args, folder: &Path) -> PathBuf {
    let named = || std::env::var_os(STORE_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    args.store.clone().or_else(named).unwrap_or_else(|| folder.join(OWN_FOLDER).join(STORE_FILE))
}

/// A new id for a run: ten letters and digits by chance, so that it can be read out and typed.
pub(crate) fn new_run_id() -> RunId {
    const LETTERS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let uuid = uuid::Uuid::now_v7();
    // The last bytes of such an id are nothing but chance.
    let id = uuid.as_bytes()[8..].iter().chain(&uuid.as_bytes()[6..8]).map(|byte| {
        let letter = LETTERS.get(usize::from(byte & 31)).copied().unwrap_or(b'0');
        char::from(letter)
    });
    RunId::new(id.collect::<String>())
}

/// The run that is meant by the beginning of its id; without one, the newest that `is_wanted`.
pub(crate) async fn pick(
    store: &dyn Store,
    named: Option<&str>,
    is_wanted: impl Fn(&StoredRun) -> bool,
) -> Result<StoredRun, Problem> {
    let runs = store.runs().await?;
    let Some(named) = named else {
        return runs.into_iter().find(is_wanted).ok_or_else(|| {
            Problem::not_found("there is no such run").hint("`windlass runs` lists what there is")
        });
    };
    if let Some(exact) = runs.iter().find(|run| run.run.as_str() == named) {
        return Ok(exact.clone());
    }
    let mut matching = runs.into_iter().filter(|run| run.run.as_str().starts_with(named));
    match (matching.next(), matching.next()) {
        (Some(only), None) => Ok(only),
        (Some(one), Some(other)) => Err(Problem::usage(format!("several runs begin with `{named}`"))
            .hint(format!("`{}` and `{}` are two of them: give more letters", one.run, other.run))),
        (None, _) => Err(Problem::not_found(format!("there is no run `{named}`"))
            .hint("`windlass runs` lists what there is")),
    }
}

/// Whether a run can be gone on with.
pub(crate) fn is_open(run: &StoredRun) -> bool {
    matches!(run.status, RunStatus::Running | RunStatus::Paused)
}

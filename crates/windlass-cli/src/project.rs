//! A project: the folder of an agent and the store of its runs.
//!
//! The store is not in the folder, because the tools of the agent work there: it is in the user's state folder, by
//! the id of the project, and only the user can read it.

use std::path::{Path, PathBuf};

use windlass::core::{canonical::Digest, id::RunId};
use windlass::store::{ApproverPolicy, RunQuery, RunStatus, SqliteStore, Store, StoredRun, list_all_runs};

use crate::agent_file::{AgentFile, parse_approvers};
use crate::agent_path::is_same_file;
use crate::args::CliArgs;
use crate::cli_error::CliError;
use crate::project_keys::{
    ENCRYPTION_KEY_FILE_VARIABLE, KEY_FILE_VARIABLE, StoreKeySource, ensure_outside_folder,
    read_encryption_keys,
};
use crate::shell_words::shell_path;
use crate::store_place::{self, ProjectStore, StorePlace, StoreTrust};
use crate::terminal::Terminal;

/// Name of the agent file in its folder.
pub(crate) const AGENT_FILE: &str = "agent.toml";
const STORE_FILE: &str = "windlass.db";
/// Environment variable with the path of the store.
const STORE_VARIABLE: &str = "WINDLASS_STORE";

/// The folder and the store that a command works on.
#[derive(Clone, Debug)]
pub(crate) struct CliProject {
    folder: PathBuf,
    store_place: StorePlace,
    local_path: PathBuf,
    key_source: StoreKeySource,
    /// File with the keys that encrypt the store, if it is encrypted.
    encryption_key_file: Option<PathBuf>,
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
        let store_place = match store {
            Some(store) => StorePlace::from_name(&store),
            None => StorePlace::File(default_store_path(&folder)?),
        };
        let local_path = match store_place.file() {
            Some(path) => path.to_owned(),
            None => default_store_path(&folder)?,
        };
        let encryption_key_file = named(&args.encryption_key_file, ENCRYPTION_KEY_FILE_VARIABLE);
        Ok(Self { folder, store_place, local_path, key_source, encryption_key_file })
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
        if Self::from_args(args)?.store_place != project.store_place {
            let here = std::env::current_dir()?;
            let shown = project.folder.strip_prefix(&here).unwrap_or(&project.folder);
            term.set_command_prefix(format!("windlass -C {}", shell_path(shown)));
        }
        Ok(project)
    }

    /// Returns the project of a folder, with the default store.
    pub(crate) fn of_folder(folder: &Path) -> Result<Self, CliError> {
        let key_source = StoreKeySource::OfProject(default_key_path(folder)?);
        let local_path = default_store_path(folder)?;
        let store_place = StorePlace::File(local_path.clone());
        let folder = folder.to_owned();
        Ok(Self { folder, store_place, local_path, key_source, encryption_key_file: None })
    }

    /// Returns the project of a named store, which is read and written as it is, without keys.
    pub(crate) fn of_store(name: &Path) -> Self {
        let store_place = StorePlace::from_name(name);
        let parent = store_place.file().and_then(Path::parent);
        let folder = parent.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let local_path = store_place.file().unwrap_or(Path::new("windlass")).to_owned();
        let (folder, key_source) = (folder.to_owned(), StoreKeySource::Absent);
        Self { folder, key_source, local_path, store_place, encryption_key_file: None }
    }

    /// Sets the file with the keys that encrypt the store.
    pub(crate) fn with_encryption(self, args: &CliArgs) -> Self {
        let variable = std::env::var_os(ENCRYPTION_KEY_FILE_VARIABLE).filter(|path| !path.is_empty());
        let encryption_key_file = args.encryption_key_file.clone().or_else(|| variable.map(PathBuf::from));
        Self { encryption_key_file, ..self }
    }

    /// Checks that the tools of an agent cannot read the encryption keys.
    ///
    /// # Errors
    ///
    /// Fails if the file is in the folder in which they work.
    pub(crate) fn ensure_encryption_keys_outside(&self, workspace: &Path) -> Result<(), CliError> {
        match &self.encryption_key_file {
            Some(path) => ensure_outside_folder(path, workspace, ENCRYPTION_KEY_FILE_VARIABLE),
            None => Ok(()),
        }
    }

    /// Checks that the tools of an agent cannot change the store. A driver writes to it while they run, so that it cannot be
    /// made read-only for them everywhere.
    ///
    /// # Errors
    ///
    /// Fails if the agent has tools that work in a folder which has the store.
    pub(crate) fn ensure_store_outside(&self, file: &AgentFile) -> Result<(), CliError> {
        let workspace = file.workspace_folder();
        if !file.has_workspace_tools()? || !self.is_store_in(&workspace) {
            return Ok(());
        }
        Err(CliError::usage(format!("{} is in the folder in which the agent's tools work", self.store_place))
            .with_hint(format!(
                "name a file outside with --store or {STORE_VARIABLE}, leave it out for the project's own store, or set \
                 `workspace` in the agent file to a narrower folder"
            )))
    }

    /// Returns the place of the store's keys.
    pub(crate) fn key_source(&self) -> &StoreKeySource {
        &self.key_source
    }

    /// Returns the folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the approvers of the project, and the rules that say who of them decides about which call: those in its
    /// `agent.toml`, which neither the store nor the tools of an agent can change.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, because nobody can tell then whose signatures count.
    pub(crate) fn approvers(&self) -> Result<Option<ApproverPolicy>, CliError> {
        let path = self.folder.join(AGENT_FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CliError::new(format!("`{}` cannot be read: {error}", path.display()))),
        };
        parse_approvers(&text, &self.folder).map_err(|error| {
            CliError::new(format!("the approvers in `{}` cannot be read: {error}", path.display()))
        })
    }

    /// Checks that an agent file does not name other approvers than the project.
    pub(crate) fn check_approvers(&self, file: &AgentFile) -> Result<(), CliError> {
        let own = file.approvers()?;
        let of_project = self.approvers()?;
        if file.policy().has_approvers() && !is_same_file(file.path(), &self.folder.join(AGENT_FILE)) {
            return Err(CliError::usage(format!(
                "a rule in `{}` names approvers, and only rules in the {AGENT_FILE} of the project can",
                file.path().display()
            )));
        }
        let is_same =
            |own: &ApproverPolicy| of_project.as_ref().is_some_and(|other| own.has_same_keys(other));
        if own.as_ref().is_none_or(is_same) {
            return Ok(());
        }
        Err(CliError::usage(format!(
            "the approvers in `{}` are not those of the project `{}`",
            file.path().display(),
            self.folder.display()
        ))
        .with_hint(format!("list the approvers of a project in its {AGENT_FILE}")))
    }

    /// Returns the place of the store.
    pub(crate) fn store_place(&self) -> &StorePlace {
        &self.store_place
    }

    /// Returns the path beside which private files of the project are kept: that of the store, or for a database that of the
    /// project's own file in the user's state folder.
    pub(crate) fn local_path(&self) -> &Path {
        &self.local_path
    }

    /// Returns the folder with the journals of voice conversations, beside the file of the store. `None` for a database, whose
    /// other machines do not have the folder, and for an encrypted store: these journals are plain text.
    #[cfg(any(feature = "talk", feature = "serve"))]
    pub(crate) fn live_journals(&self) -> Option<PathBuf> {
        let file = self.store_place.file().filter(|_| self.encryption_key_file.is_none())?;
        let mut name = file.as_os_str().to_owned();
        name.push("-live");
        Some(PathBuf::from(name))
    }

    /// Returns true if the store is a file in the folder, where the tools of the agent may reach it.
    pub(crate) fn is_store_in_folder(&self) -> bool {
        self.is_store_in(&self.folder)
    }

    fn is_store_in(&self, folder: &Path) -> bool {
        let Some(path) = self.store_place.file() else { return false };
        // The file may not exist yet, beneath a link.
        let real = |path: &Path| {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            let known = path.ancestors().find_map(|known| Some((known, known.canonicalize().ok()?)));
            known.map_or(path.clone(), |(known, real)| match path.strip_prefix(known) {
                Ok(rest) if rest.as_os_str().is_empty() => real,
                Ok(rest) => real.join(rest),
                Err(_) => path.clone(),
            })
        };
        real(path).starts_with(real(folder))
    }

    /// Opens the store, creating it if it does not exist.
    pub(crate) async fn open_or_create(&self) -> Result<ProjectStore, CliError> {
        self.store_place.open_or_create(&self.store_trust()?).await
    }

    /// Opens the store.
    ///
    /// # Errors
    ///
    /// Fails if it does not exist.
    pub(crate) async fn open_existing(&self) -> Result<ProjectStore, CliError> {
        self.ensure_exists()?;
        self.store_place.open(&self.store_trust()?).await
    }

    /// Opens the SQLite file of the store.
    ///
    /// # Errors
    ///
    /// Fails if it does not exist, or the store is a database.
    pub(crate) fn open_existing_file(&self) -> Result<SqliteStore, CliError> {
        self.ensure_exists()?;
        let path = self.store_place.file().ok_or_else(|| {
            CliError::usage("the store is a database")
                .with_hint("use the tools of the database, such as pg_dump")
        })?;
        store_place::open_file(path, &self.store_trust()?)
    }

    /// Returns the keys and the approvers of the store.
    fn store_trust(&self) -> Result<StoreTrust, CliError> {
        let encryption = self.encryption_key_file.as_deref().map(read_encryption_keys).transpose()?;
        Ok(StoreTrust { keys: self.key_source.clone(), approvers: self.approvers()?, encryption })
    }

    fn ensure_exists(&self) -> Result<(), CliError> {
        if self.store_place.may_exist() {
            return Ok(());
        }
        let first = match self.folder.join(AGENT_FILE).is_file() {
            true => "`windlass run` starts the first run",
            false => "`windlass init` makes this folder an agent, and `windlass run` starts the first run",
        };
        let place = &self.store_place;
        Err(CliError::not_found(format!("no runs found for the project `{}`", self.folder.display()))
            .with_hint(format!(
                "{first}, which makes {place}; use -C for another project or --store for another file"
            )))
    }

    /// Deletes the store of a demonstration, so that it can start anew.
    pub(crate) fn delete_store(&self) -> Result<(), CliError> {
        let Some(path) = self.store_place.file() else { return Ok(()) };
        for suffix in ["", "-wal", "-shm", "-turn", "-next"] {
            let mut name = path.to_owned().into_os_string();
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
pub(crate) fn state_folder() -> Option<PathBuf> {
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

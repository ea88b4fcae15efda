//! A folder in which an agent may work, and the tools for it.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use windlass::Tool;

use crate::edit::{self, Diff};
use crate::error::{Refusal, WorkspaceError};
use crate::files::{Found, Place, Root, Walk, text_of};
use crate::policy::{Approve, Limits};
use crate::sandbox::Sandbox;
use crate::{command, find, read};

/// A folder in which an agent may work.
///
/// Its tools reach nothing outside of it: not by `..`, not by absolute paths, not through links. It is cheap to
/// clone.
#[derive(Clone, Debug)]
pub struct Workspace {
    root: Arc<Root>,
    hidden: Gitignore,
    pub(crate) limits: Limits,
    pub(crate) writes: Approve,
    pub(crate) commands: Approve,
    pub(crate) sandbox: Sandbox,
    git: GitFolder,
}

/// Whether the repository's own data may be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GitFolder {
    Kept,
    Open,
}

/// What a path is meant to lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    Folder,
}

impl Workspace {
    /// The folder must be there.
    pub fn new(folder: impl AsRef<Path>) -> Result<Self, WorkspaceError> {
        let folder = folder.as_ref();
        let root = Root::open(folder)
            .map_err(|source| WorkspaceError::Open { folder: folder.display().to_string(), source })?;
        Ok(Self {
            root: Arc::new(root),
            hidden: Gitignore::empty(),
            limits: Limits::default(),
            writes: Approve::default(),
            commands: Approve::default(),
            sandbox: Sandbox::default(),
            git: GitFolder::Kept,
        })
    }

    /// When a person decides about changes of files. Without this: always.
    #[must_use]
    pub fn approve_writes(mut self, approve: Approve) -> Self {
        self.writes = approve;
        self
    }

    /// When a person decides about commands. Without this: always. Shell text is always asked about, unless it is
    /// [`Approve::Never`].
    #[must_use]
    pub fn approve_commands(mut self, approve: Approve) -> Self {
        self.commands = approve;
        self
    }

    /// Files that the file tools do as if they were not there, as patterns of a `.gitignore` file. Commands are
    /// not bound by it.
    pub fn hide<'a>(mut self, patterns: impl IntoIterator<Item = &'a str>) -> Result<Self, WorkspaceError> {
        let mut builder = GitignoreBuilder::new("");
        let refused = |pattern: &str, error: ignore::Error| WorkspaceError::Pattern {
            pattern: pattern.to_owned(),
            why: error.to_string(),
        };
        for pattern in patterns {
            builder.add_line(None, pattern).map_err(|error| refused(pattern, error))?;
        }
        self.hidden = builder.build().map_err(|error| refused("all of them", error))?;
        Ok(self)
    }

    /// Lets tools change files in `.git` too. Git runs some of them as programs.
    #[must_use]
    pub fn open_git(mut self) -> Self {
        self.git = GitFolder::Open;
        self
    }

    /// How much is read, shown and waited for.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How commands are restricted.
    #[must_use]
    pub fn sandbox(mut self, sandbox: Sandbox) -> Self {
        self.sandbox = sandbox;
        self
    }

    /// The folder, with all links resolved.
    pub fn folder(&self) -> &Path {
        self.root.path()
    }

    /// The tools that read files, change them and run commands.
    pub fn tools<C: Send + Sync + 'static>(&self) -> Vec<Tool<C>> {
        let mut tools = self.file_tools();
        tools.push(command::run_command(self));
        tools
    }

    /// The tools that read files and change them.
    pub fn file_tools<C: Send + Sync + 'static>(&self) -> Vec<Tool<C>> {
        let mut tools = self.reading_tools();
        tools.push(edit::write_file(self));
        tools.push(edit::patch_file(self));
        tools
    }

    /// The tools that change nothing.
    pub fn reading_tools<C: Send + Sync + 'static>(&self) -> Vec<Tool<C>> {
        vec![read::read_file(self), find::list_files(self), find::search_files(self)]
    }

    /// What a call of `write_file` or `patch_file` would change, for the person who decides about it. Nothing
    /// for other tools and for arguments that cannot be read.
    pub fn preview(&self, tool: &str, arguments: &str) -> Option<Diff> {
        edit::preview(self, tool, arguments)
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// The text of a file.
    pub(crate) fn read_text(&self, place: &Place, tool: &'static str) -> Result<String, Refusal> {
        let file = self.root.open_file(place)?;
        self.real(place, &file, Kind::File)?;
        text_of(file, place, self.limits.file_bytes, tool).map(|(text, _)| text)
    }

    /// A folder to look into, with the place where it really stands, and the workspace where none is named.
    pub(crate) fn enter(&self, path: Option<&str>) -> Result<(Place, OwnedFd), Refusal> {
        let place = self.folder_at(path)?;
        let folder = self.root.open_folder(&place)?;
        let real = self.real(&place, &folder, Kind::Folder)?;
        Ok((real, folder))
    }

    /// Visits all that is in a folder and is not hidden.
    pub(crate) fn walk(
        &self,
        (start, folder): &(Place, OwnedFd),
        visit: &mut dyn FnMut(&Found<'_>) -> Walk,
    ) -> Result<(), Refusal> {
        self.root.walk(start, folder, &self.hidden, visit)
    }

    /// Where something stands that was opened by this name. A link does not uncover what is hidden.
    fn real(&self, place: &Place, opened: &OwnedFd, kind: Kind) -> Result<Place, Refusal> {
        let kept = || Refusal::Kept { path: place.to_string(), why: "leads to what is kept from agents" };
        match self.root.real_place(opened) {
            Some(real) => self.shown(real, kind).map_err(|_| kept()),
            None if self.hidden.is_empty() || cfg!(not(target_os = "linux")) => Ok(place.clone()),
            None => Err(kept()),
        }
    }

    /// A file to read.
    pub(crate) fn file(&self, path: &str) -> Result<Place, Refusal> {
        self.shown(Place::named(path, self.root.path())?, Kind::File)
    }

    /// A folder to look into; the workspace where none is named.
    pub(crate) fn folder_at(&self, path: Option<&str>) -> Result<Place, Refusal> {
        match path {
            None => Ok(Place::root()),
            Some(path) => self.shown(Place::read(path, self.root.path())?, Kind::Folder),
        }
    }

    /// A file to change.
    pub(crate) fn file_to_change(&self, path: &str) -> Result<Place, Refusal> {
        let place = self.file(path)?;
        match self.git {
            GitFolder::Kept if place.is_in_git() => {
                Err(Refusal::Kept { path: place.to_string(), why: "belongs to Git" })
            }
            GitFolder::Kept | GitFolder::Open => Ok(place),
        }
    }

    fn shown(&self, place: Place, kind: Kind) -> Result<Place, Refusal> {
        let is_folder = kind == Kind::Folder;
        if !place.is_root() && self.hidden.matched_path_or_any_parents(place.as_path(), is_folder).is_ignore()
        {
            return Err(Refusal::Kept { path: place.to_string(), why: "is kept from agents" });
        }
        Ok(place)
    }

    /// Whether a person decides about a change of this file.
    pub(crate) fn asks_to_change(&self, path: &str) -> bool {
        match &self.writes {
            Approve::Always => true,
            Approve::Never => false,
            Approve::OutsideOf(folders) => {
                let Ok(place) = self.file_to_change(path) else { return true };
                !folders.iter().any(|folder| {
                    Place::read(folder, self.root.path()).is_ok_and(|folder| place.is_within(&folder))
                })
            }
        }
    }
}

//! The workspace: a folder in which an agent works, and its tools.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use windlass::tool::Tool;

use crate::edit::{self, FileDiff};
use crate::error::{ToolRefusal, WorkspaceError};
use crate::files::{HiddenLinks, WalkControl, WalkEntry, WorkspacePath, WorkspaceRoot, read_text_and_mode};
use crate::policy::{BuiltInApprovalPolicy, ToolLimits};
use crate::protection::{PathProtection, protection_of, repository_protection_of};
use crate::sandbox::Sandbox;
use crate::skills::Skills;
use crate::{command, find, git, read};

/// A folder in which an agent works.
///
/// The file tools prevent path traversal: they reach nothing outside the workspace by `..`, absolute paths or
/// links. A workspace is cheap to clone.
#[derive(Clone, Debug)]
pub struct Workspace {
    root: Arc<WorkspaceRoot>,
    hidden: Gitignore,
    pub(crate) limits: ToolLimits,
    pub(crate) write_approval: BuiltInApprovalPolicy,
    pub(crate) command_approval: BuiltInApprovalPolicy,
    pub(crate) sandbox: Sandbox,
    /// Read-only paths beside those with protected names, absolute.
    protected: Vec<PathBuf>,
    pub(crate) git_identity: Option<(String, String)>,
    pub(crate) skills: Skills,
}

/// The expected kind of a path's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkspacePathKind {
    File,
    Folder,
}

impl Workspace {
    /// Opens an existing folder as a workspace.
    ///
    /// # Errors
    ///
    /// Returns an error if the folder does not exist or cannot be opened.
    pub fn new(folder: impl AsRef<Path>) -> Result<Self, WorkspaceError> {
        let folder = folder.as_ref();
        let root = WorkspaceRoot::open(folder)
            .map_err(|source| WorkspaceError::Open { folder: folder.display().to_string(), source })?;
        Ok(Self {
            root: Arc::new(root),
            hidden: Gitignore::empty(),
            limits: ToolLimits::default(),
            write_approval: BuiltInApprovalPolicy::default(),
            command_approval: BuiltInApprovalPolicy::default(),
            sandbox: Sandbox::default(),
            protected: Vec::new(),
            git_identity: None,
            skills: Skills::default(),
        })
    }

    /// Sets the approval policy of file changes. Default: always.
    #[must_use]
    pub fn approve_writes(mut self, approve: BuiltInApprovalPolicy) -> Self {
        self.write_approval = approve;
        self
    }

    /// Sets the approval policy of commands. Default: always. Shell text requires approval unless the policy is
    /// [`BuiltInApprovalPolicy::Never`]. An exempt command is written out, as `git status --short`; a last `**`
    /// stands for any arguments, and is accepted only for programs that execute no other program.
    #[must_use]
    pub fn approve_commands(mut self, approve: BuiltInApprovalPolicy) -> Self {
        self.command_approval = approve;
        self
    }

    /// Hides files from the file tools, by patterns of `.gitignore` syntax. Commands are not affected.
    ///
    /// # Errors
    ///
    /// Returns an error if a pattern is invalid.
    pub fn hide<'a>(mut self, patterns: impl IntoIterator<Item = &'a str>) -> Result<Self, WorkspaceError> {
        let mut builder = GitignoreBuilder::new("");
        let refused = |pattern: &str, error: ignore::Error| WorkspaceError::InvalidPattern {
            pattern: pattern.to_owned(),
            reason: error.to_string(),
        };
        for pattern in patterns {
            builder.add_line(None, pattern).map_err(|error| refused(pattern, error))?;
        }
        self.hidden = builder.build().map_err(|error| refused("all of them", error))?;
        Ok(self)
    }

    /// Makes a path read-only for the file tools and for commands, whatever a policy permits: a run store, a file
    /// with rules. A relative path is one of the workspace.
    ///
    /// Some names are always read-only: `.git`, `.gitattributes`, `.gitmodules`, `agent.toml`, `.mcp.json` and
    /// `.windlass`. Changes of instruction files, such as `AGENTS.md`, require approval each time.
    #[must_use]
    pub fn protect(mut self, path: impl AsRef<Path>) -> Self {
        let path = self.root.path().join(path);
        self.protected.push(path.canonicalize().unwrap_or(path));
        self
    }

    /// Sets the author of commits of the tool `git_commit`. Default: the repository's configuration.
    #[must_use]
    pub fn git_identity(mut self, name: impl Into<String>, email: impl Into<String>) -> Self {
        self.git_identity = Some((name.into(), email.into()));
        self
    }

    /// Sets the limits of size and time.
    #[must_use]
    pub fn limits(mut self, limits: ToolLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the sandbox of commands.
    #[must_use]
    pub fn sandbox(mut self, sandbox: Sandbox) -> Self {
        self.sandbox = sandbox;
        self
    }

    /// Returns the canonical path of the workspace.
    pub fn folder(&self) -> &Path {
        self.root.path()
    }

    /// Returns the tools that read files, change files, run commands and commit to Git, and those of the skills.
    pub fn tools<C: Send + Sync + 'static>(&self) -> Vec<Tool<C>> {
        let mut tools = self.file_tools();
        tools.push(command::run_command(self));
        tools.push(git::git_commit(self));
        tools.extend(self.skill_tools());
        tools
    }

    /// Returns the tools that read and change files.
    pub fn file_tools<C: Send + Sync + 'static>(&self) -> Vec<Tool<C>> {
        let mut tools = self.read_only_tools();
        tools.push(edit::write_file(self));
        tools.push(edit::patch_file(self));
        tools
    }

    /// Returns the tools that only read files.
    pub fn read_only_tools<C: Send + Sync + 'static>(&self) -> Vec<Tool<C>> {
        vec![read::read_file(self), find::list_files(self), find::search_files(self)]
    }

    /// Returns a preview of a `write_file` or `patch_file` call for the approver; `None` for other tools and for
    /// invalid arguments.
    pub fn preview(&self, tool: &str, arguments: &str) -> Option<FileDiff> {
        edit::preview_call(self, tool, arguments)
    }

    pub(crate) fn root(&self) -> &WorkspaceRoot {
        &self.root
    }

    /// Reads the text of a file.
    pub(crate) fn read_text(&self, place: &WorkspacePath, tool: &'static str) -> Result<String, ToolRefusal> {
        let file = self.root.open_file(place)?;
        self.check_resolved(place, &file, WorkspacePathKind::File)?;
        self.ensure_no_hidden_link(place, &file)?;
        read_text_and_mode(file, place, self.limits.max_file_bytes, tool).map(|(text, _)| text)
    }

    /// Opens a folder, or the workspace if no path is given, and returns it with its resolved path.
    pub(crate) fn open_folder(&self, path: Option<&str>) -> Result<(WorkspacePath, OwnedFd), ToolRefusal> {
        let place = self.folder_path(path)?;
        let folder = self.root.open_folder(&place)?;
        let real = self.check_resolved(&place, &folder, WorkspacePathKind::Folder)?;
        Ok((real, folder))
    }

    fn ensure_no_hidden_link(&self, place: &WorkspacePath, file: &OwnedFd) -> Result<(), ToolRefusal> {
        if self.hidden_links().covers(file) {
            let reason = "is a hard link to what is kept from agents";
            return Err(ToolRefusal::Protected { path: place.to_string(), reason });
        }
        Ok(())
    }

    /// Returns the identities of hidden files that have more than one name, found on first use.
    pub(crate) fn hidden_links(&self) -> HiddenLinks<'_> {
        HiddenLinks::new(&self.root, &self.hidden)
    }

    /// Visits the contents of a folder that are not hidden.
    pub(crate) fn walk(
        &self,
        (start, folder): &(WorkspacePath, OwnedFd),
        visit: &mut dyn FnMut(&WalkEntry<'_>) -> WalkControl,
    ) -> Result<(), ToolRefusal> {
        self.root.walk(start, folder, &self.hidden, visit)
    }

    /// Returns the resolved path of an opened file or folder.
    ///
    /// # Errors
    ///
    /// Returns a refusal if a link leads to a hidden file.
    fn check_resolved(
        &self,
        place: &WorkspacePath,
        opened: &OwnedFd,
        kind: WorkspacePathKind,
    ) -> Result<WorkspacePath, ToolRefusal> {
        let kept = || ToolRefusal::Protected {
            path: place.to_string(),
            reason: "leads to what is kept from agents",
        };
        match self.root.resolve_opened(opened) {
            Some(real) => self.ensure_visible(real, kind).map_err(|_| kept()),
            None if self.hidden.is_empty() || cfg!(not(target_os = "linux")) => Ok(place.clone()),
            None => Err(kept()),
        }
    }

    /// Parses the path of a file that is not hidden.
    pub(crate) fn file_path(&self, path: &str) -> Result<WorkspacePath, ToolRefusal> {
        self.ensure_visible(WorkspacePath::parse_named(path, self.root.path())?, WorkspacePathKind::File)
    }

    /// Parses the path of a folder that is not hidden; the workspace itself if no path is given.
    pub(crate) fn folder_path(&self, path: Option<&str>) -> Result<WorkspacePath, ToolRefusal> {
        match path {
            None => Ok(WorkspacePath::root()),
            Some(path) => {
                self.ensure_visible(WorkspacePath::parse(path, self.root.path())?, WorkspacePathKind::Folder)
            }
        }
    }

    /// Parses the path of a file that may be changed.
    pub(crate) fn writable_path(&self, path: &str) -> Result<WorkspacePath, ToolRefusal> {
        let place = self.file_path(path)?;
        match self.protection_of(&place) {
            Some(PathProtection::ReadOnly(reason)) => {
                Err(ToolRefusal::Protected { path: place.to_string(), reason })
            }
            Some(PathProtection::AskEachTime) | None => {
                // A change is checked against the old text, which a model could guess from the refusals.
                if !self.hidden.is_empty()
                    && let Ok(file) = self.root.open_file(&place)
                {
                    self.ensure_no_hidden_link(&place, &file)?;
                }
                Ok(place)
            }
        }
    }

    /// Returns true if a change of this file requires approval each time: it is an instruction file.
    pub(crate) fn needs_write_approval_each_time(&self, path: &str) -> bool {
        // An invalid path and a read-only one are refused, so nobody is asked about them.
        WorkspacePath::parse(path, self.root.path())
            .is_ok_and(|place| self.protection_of(&place) == Some(PathProtection::AskEachTime))
    }

    fn protection_of(&self, place: &WorkspacePath) -> Option<PathProtection> {
        let absolute = self.root.path().join(place.as_path());
        // A store consists of several files whose names begin with the same text.
        let is_named = |protected: &PathBuf| {
            absolute.starts_with(protected)
                || (!protected.is_dir()
                    && protected.parent() == absolute.parent()
                    && absolute
                        .as_os_str()
                        .as_encoded_bytes()
                        .starts_with(protected.as_os_str().as_encoded_bytes()))
        };
        if self.protected.iter().any(is_named) {
            return Some(PathProtection::ReadOnly("is protected"));
        }
        let by_name = protection_of(place.parts());
        if let Some(PathProtection::ReadOnly(_)) = by_name {
            return by_name;
        }
        let by_repository = repository_protection_of(self.root.path(), place.parts());
        by_repository.or(by_name).or_else(|| self.protection_by_link(&absolute))
    }

    /// Returns the protection of a path to which a protected name of the workspace's top folder is a link, as in
    /// `AGENTS.md -> docs/agents.md`.
    fn protection_by_link(&self, absolute: &Path) -> Option<PathProtection> {
        let entries = std::fs::read_dir(self.root.path()).into_iter().flatten().flatten();
        let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
        let mut found = None;
        for link in links {
            let Some(protection) = protection_of([link.file_name().to_string_lossy().as_ref()]) else {
                continue;
            };
            if link.path().canonicalize().is_ok_and(|target| absolute.starts_with(target)) {
                match protection {
                    PathProtection::ReadOnly(_) => return Some(protection),
                    PathProtection::AskEachTime => found = Some(protection),
                }
            }
        }
        found
    }

    /// Returns the protected paths that exist, beside those with protected names.
    pub(crate) fn protected_paths(&self) -> Vec<PathBuf> {
        self.protected.iter().flat_map(|path| with_companions(path)).collect()
    }

    fn ensure_visible(
        &self,
        place: WorkspacePath,
        kind: WorkspacePathKind,
    ) -> Result<WorkspacePath, ToolRefusal> {
        let is_folder = kind == WorkspacePathKind::Folder;
        if !place.is_root() && self.hidden.matched_path_or_any_parents(place.as_path(), is_folder).is_ignore()
        {
            return Err(ToolRefusal::Protected { path: place.to_string(), reason: "is kept from agents" });
        }
        Ok(place)
    }

    /// Returns true if a change of this file requires approval.
    pub(crate) fn needs_write_approval(&self, path: &str) -> bool {
        match &self.write_approval {
            BuiltInApprovalPolicy::Always => true,
            BuiltInApprovalPolicy::Never => false,
            BuiltInApprovalPolicy::ExceptFor(folders) => {
                let Ok(place) = self.writable_path(path) else { return true };
                !folders.iter().any(|folder| {
                    WorkspacePath::parse(folder, self.root.path())
                        .is_ok_and(|folder| place.is_within(&folder))
                })
            }
        }
    }
}

/// Returns a path and, for a file, the files beside it whose names begin with its name, such as the log of a database.
fn with_companions(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![path.to_owned()];
    let (Some(folder), Some(name), false) = (path.parent(), path.file_name(), path.is_dir()) else {
        return found;
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let other = entry.file_name();
        if other != name && other.as_encoded_bytes().starts_with(name.as_encoded_bytes()) {
            found.push(entry.path());
        }
    }
    found
}

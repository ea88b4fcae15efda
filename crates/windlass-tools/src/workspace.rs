//! The workspace: a folder in which an agent works, and its tools.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use windlass::tool::Tool;

use crate::edit::{self, FileDiff};
use crate::error::{ToolRefusal, WorkspaceError};
use crate::files::{WalkControl, WalkEntry, WorkspacePath, WorkspaceRoot, read_text_and_mode};
use crate::policy::{BuiltInApprovalPolicy, ToolLimits};
use crate::sandbox::Sandbox;
use crate::{command, find, read};

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
    git_access: GitFolderAccess,
}

/// The access of the file tools to `.git`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GitFolderAccess {
    Protected,
    Writable,
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
            git_access: GitFolderAccess::Protected,
        })
    }

    /// Sets the approval policy of file changes. Default: always.
    #[must_use]
    pub fn approve_writes(mut self, approve: BuiltInApprovalPolicy) -> Self {
        self.write_approval = approve;
        self
    }

    /// Sets the approval policy of commands. Default: always. Shell text requires approval unless the policy is
    /// [`BuiltInApprovalPolicy::Never`].
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

    /// Permits changes of files in `.git`. Git executes some of them, such as hooks.
    #[must_use]
    pub fn allow_git_writes(mut self) -> Self {
        self.git_access = GitFolderAccess::Writable;
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

    /// Returns the tools that read files, change files and run commands.
    pub fn tools<C: Send + Sync + 'static>(&self) -> Vec<Tool<C>> {
        let mut tools = self.file_tools();
        tools.push(command::run_command(self));
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
        read_text_and_mode(file, place, self.limits.max_file_bytes, tool).map(|(text, _)| text)
    }

    /// Opens a folder, or the workspace if no path is given, and returns it with its resolved path.
    pub(crate) fn open_folder(&self, path: Option<&str>) -> Result<(WorkspacePath, OwnedFd), ToolRefusal> {
        let place = self.folder_path(path)?;
        let folder = self.root.open_folder(&place)?;
        let real = self.check_resolved(&place, &folder, WorkspacePathKind::Folder)?;
        Ok((real, folder))
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
        match self.git_access {
            GitFolderAccess::Protected if place.is_in_git() => {
                Err(ToolRefusal::Protected { path: place.to_string(), reason: "belongs to Git" })
            }
            GitFolderAccess::Protected | GitFolderAccess::Writable => Ok(place),
        }
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

//! The search for protected files beneath a folder.

use std::collections::{HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::kept_file::{FileIdentity, identity};
use crate::protection::{BareRepository, GIT_PROGRAM_PATHS, PathProtection, protection_of_name};

/// Maximum depth of the folders beneath a protected folder.
const MAX_DEPTH: usize = 16;
/// The files of a `.hg` folder that determine the programs that Mercurial executes.
const MERCURIAL_PROGRAM_PATHS: [&str; 4] = ["hgrc", "hgrc-not-shared", "requires", "sharedpath"];

/// A protected path that exists.
pub(super) struct ProtectedPath {
    pub(super) path: PathBuf,
    pub(super) identity: FileIdentity,
    pub(super) rank: ProtectedRank,
}

/// The order in which paths are protected where there are too many of them: a command can make as many
/// [`ProtectedRank::Nested`] files as it likes, and they stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProtectedRank {
    /// Rules and programs, and the paths that the application names.
    Rule,
    /// Instruction files of the workspace.
    Instruction,
    /// Instruction files of lower folders. Packages bring their own, which nobody obeys there.
    Nested,
}

impl ProtectedRank {
    fn of(path: &Path, root: &Path) -> Self {
        let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        let is_top = path.parent() == Some(root);
        match protection_of_name(&name) {
            Some(PathProtection::ReadOnly(_)) if !name.eq_ignore_ascii_case(".gitattributes") || is_top => {
                Self::Rule
            }
            Some(PathProtection::AskEachTime) if is_top => Self::Instruction,
            Some(PathProtection::ReadOnly(_) | PathProtection::AskEachTime) => Self::Nested,
            None => Self::Rule,
        }
    }

    /// Returns true if something obeys or executes such a file as soon as it exists.
    pub(super) fn is_executed(self) -> bool {
        match self {
            Self::Rule | Self::Instruction => true,
            Self::Nested => false,
        }
    }
}

impl ProtectedPath {
    pub(super) fn find(path: PathBuf, rank: ProtectedRank) -> Option<Self> {
        let found = fs::symlink_metadata(&path).ok()?;
        Some(Self { identity: identity(&found), path, rank })
    }

    /// Lists the files at or beneath this path that determine which programs run, up to `budget`.
    pub(super) fn program_files(&self, budget: &mut usize) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for part in program_paths(&self.path) {
            list_files(&part, is_named_folder(&self.path, ".git"), 0, budget, &mut files);
        }
        files
    }
}

/// Returns the parts of a protected path that determine which programs run.
pub(super) fn program_paths(path: &Path) -> Vec<PathBuf> {
    let is_folder = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    if is_named_folder(path, ".git") {
        GIT_PROGRAM_PATHS.iter().map(|part| path.join(part)).collect()
    } else if is_named_folder(path, ".hg") {
        MERCURIAL_PROGRAM_PATHS.iter().map(|part| path.join(part)).collect()
    } else if is_folder && (is_named_folder(path, ".windlass")) {
        // The program itself writes there while the command runs.
        Vec::new()
    } else {
        vec![path.to_owned()]
    }
}

pub(super) fn is_git_folder(path: &Path) -> bool {
    is_named_folder(path, ".git")
}

fn is_named_folder(path: &Path, name: &str) -> bool {
    let is_named = path.file_name().is_some_and(|own| own.eq_ignore_ascii_case(name));
    is_named && fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Finds the protected paths beneath a folder, without following links, those of the upper folders first. The second
/// value is false if more than `max_entries` were there.
pub(super) fn find_protected(
    root: &Path,
    extra: &[PathBuf],
    max_entries: usize,
) -> (Vec<ProtectedPath>, bool) {
    let mut found = Vec::new();
    let mut visited = 0usize;
    let mut is_complete = true;
    let mut folders = VecDeque::from([root.to_owned()]);
    'folders: while let Some(folder) = folders.pop_front() {
        let mut repository = BareRepository::default();
        // An unreadable folder of the user is not writable for a command of the same user either.
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            visited += 1;
            if visited > max_entries {
                is_complete = false;
                break 'folders;
            }
            let (name, path) = (entry.file_name(), entry.path());
            repository.add(&name);
            // Git's own folders have too many files, and nobody works in them.
            let is_opaque = name.eq_ignore_ascii_case(".git") || name.eq_ignore_ascii_case(".hg");
            if !is_opaque && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push_back(path.clone());
            }
            if protection_of_name(&name.to_string_lossy()).is_some() {
                let rank = ProtectedRank::of(&path, root);
                found.extend(ProtectedPath::find(path, rank));
            }
        }
        for part in repository.protected_parts() {
            found.extend(ProtectedPath::find(folder.join(part), ProtectedRank::Rule));
        }
    }
    let known: HashSet<PathBuf> = found.iter().map(|found| found.path.clone()).collect();
    for path in extra.iter().filter(|path| !is_beneath(path, &known)) {
        found.extend(ProtectedPath::find(path.clone(), ProtectedRank::Rule));
    }
    (found, is_complete)
}

/// Returns true if a path is one of `known`, or beneath one of them.
pub(super) fn is_beneath(path: &Path, known: &HashSet<PathBuf>) -> bool {
    path.ancestors().any(|folder| known.contains(folder))
}

/// Lists the path itself if it is not a folder, or the files beneath it, without following links.
fn list_files(path: &Path, is_git: bool, depth: usize, budget: &mut usize, files: &mut Vec<PathBuf>) {
    let Ok(found) = fs::symlink_metadata(path) else { return };
    let Some(rest) = budget.checked_sub(1) else { return };
    *budget = rest;
    if !found.is_dir() {
        if !is_git || decides_programs(path) {
            files.push(path.to_owned());
        }
        return;
    }
    if depth >= MAX_DEPTH {
        return;
    }
    // Objects and references are data, and there are many of them. Repositories are found on their own.
    let is_left_out = |name: &OsStr| {
        let names: &[&str] = if is_git { &["objects", "refs", "logs"] } else { &[".git", ".hg"] };
        names.iter().any(|left_out| name == *left_out)
    };
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if !is_left_out(&entry.file_name()) {
            list_files(&entry.path(), is_git, depth + 1, budget, files);
        }
    }
}

/// Returns true if a file beneath a `.git` folder decides which programs Git executes.
fn decides_programs(file: &Path) -> bool {
    let is_deciding = |name: &OsStr| {
        ["hooks", "info", "config", "config.worktree", "commondir", "gitdir"]
            .iter()
            .any(|known| name == *known)
    };
    file.file_name().is_some_and(is_deciding)
        || file.parent().and_then(Path::file_name).is_some_and(|folder| folder == "hooks" || folder == "info")
}

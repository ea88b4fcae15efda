//! Protected files of the workspace, as a command sees them.
//!
//! Where the kernel permits a mount namespace, every protected file and folder is a read-only mount, so that a
//! command cannot change, remove or replace it. Elsewhere a command can, and its changes are undone when it ends.
//! Everywhere, a protected file that a command created is renamed when it ends, so that nothing obeys it.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::scratch::random_name;
use crate::protection::{PathProtection, protection_of_name};

/// Maximum number of entries of the workspace that are visited.
const MAX_ENTRIES: usize = 100_000;
/// Maximum depth of the visited folders.
const MAX_DEPTH: usize = 32;
/// Maximum number of protected paths.
const MAX_PROTECTED: usize = 512;
/// Maximum size of a file whose text is kept to undo changes.
const MAX_KEPT_BYTES: u64 = 1024 * 1024;
/// Maximum number of files whose text is kept.
const MAX_KEPT_FILES: usize = 512;
/// The files and folders of a `.git` folder that determine the programs that Git executes.
const GIT_PROGRAM_PATHS: [&str; 8] =
    ["config", "config.worktree", "hooks", "info", "commondir", "gitdir", "worktrees", "modules"];

/// The access of a command to `.git` folders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum GitAccess {
    /// Nothing in them can be changed.
    #[default]
    ReadOnly,
    /// Objects, references and the index can be changed, but not hooks, configuration and attributes.
    Commit,
}

/// The protected paths of a workspace before a command runs.
pub(super) struct ProtectedFiles {
    root: PathBuf,
    /// Paths and identities (device and inode) of what exists.
    existing: Vec<(PathBuf, (u64, u64))>,
    /// Texts of the files that decide which programs run, to undo changes.
    kept: BTreeMap<PathBuf, KeptFile>,
    extra: Vec<PathBuf>,
    git: GitAccess,
    /// True if every protected path was found within the limits.
    pub(super) is_complete: bool,
}

struct KeptFile {
    bytes: Vec<u8>,
    mode: u32,
}

impl ProtectedFiles {
    /// Finds the protected paths of a workspace, and `extra`, which are absolute.
    pub(super) fn find(root: &Path, extra: &[PathBuf], git: GitAccess) -> Self {
        let (existing, is_complete) = find_protected(root, extra);
        let mut files = Self {
            root: root.to_owned(),
            existing,
            kept: BTreeMap::new(),
            extra: extra.to_vec(),
            git,
            is_complete,
        };
        let mut kept = BTreeMap::new();
        for (path, _) in &files.existing {
            for path in files.program_paths(path) {
                keep_files(&path, &mut kept, 0);
            }
        }
        files.kept = kept;
        files
    }

    /// Returns the paths to mount read-only, and the paths to mount writable onto themselves so that they can be
    /// neither renamed nor replaced.
    pub(super) fn mounts(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let (mut read_only, mut pinned) = (Vec::new(), Vec::new());
        for (path, _) in &self.existing {
            if self.git == GitAccess::Commit && is_git_folder(path) {
                pinned.push(path.clone());
                read_only.extend(self.program_paths(path).into_iter().filter(|path| path.exists()));
            } else {
                read_only.push(path.clone());
            }
        }
        (read_only, pinned)
    }

    /// Undoes the changes of a command, and returns a sentence about each for the model.
    pub(super) fn restore(&self) -> Vec<String> {
        let mut told = Vec::new();
        let shown = |path: &Path| path.strip_prefix(&self.root).unwrap_or(path).display().to_string();
        let known: Vec<(u64, u64)> = self.existing.iter().map(|(_, identity)| *identity).collect();
        let (now, _) = find_protected(&self.root, &self.extra);
        for (path, identity) in &now {
            let is_known_path = self.existing.iter().any(|(known, _)| known == path);
            if known.contains(identity)
                || (is_known_path && !is_git_folder(path))
                || !is_executed(path, &self.root)
            {
                continue;
            }
            told.push(set_aside(path, &shown(path)));
        }
        for (path, kept) in &self.kept {
            let is_unchanged = fs::read(path).is_ok_and(|bytes| bytes == kept.bytes)
                && fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
            if is_unchanged {
                continue;
            }
            // A folder that the command moved away is moved together with its files.
            if path.parent().is_none_or(|folder| !folder.is_dir()) {
                continue;
            }
            if fs::symlink_metadata(path).is_ok() {
                told.push(set_aside(path, &shown(path)));
            }
            match write_kept(path, kept) {
                Ok(()) => told.push(format!("`{}` was changed, and has its old text again", shown(path))),
                Err(error) => {
                    told.push(format!("`{}` was changed, and cannot be restored: {error}", shown(path)))
                }
            }
        }
        for (path, _) in &self.existing {
            for part in self.program_paths(path) {
                for new in files_beneath(&part, 0) {
                    if !self.kept.contains_key(&new) && !self.is_too_large_to_keep(&new) {
                        told.push(set_aside(&new, &shown(&new)));
                    }
                }
            }
        }
        told
    }

    /// Returns the parts of a protected path that decide which programs run.
    fn program_paths(&self, path: &Path) -> Vec<PathBuf> {
        if is_git_folder(path) {
            GIT_PROGRAM_PATHS.iter().map(|part| path.join(part)).collect()
        } else if path.is_dir() {
            Vec::new()
        } else {
            vec![path.to_owned()]
        }
    }

    fn is_too_large_to_keep(&self, path: &Path) -> bool {
        self.kept.len() >= MAX_KEPT_FILES
            || fs::symlink_metadata(path).is_ok_and(|found| found.len() > MAX_KEPT_BYTES)
    }
}

/// Returns true if something obeys or executes a file of this name as soon as it exists here.
fn is_executed(path: &Path, root: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_top = path.parent() == Some(root);
    match protection_of_name(name) {
        Some(PathProtection::ReadOnly(_)) => !name.eq_ignore_ascii_case(".gitattributes") || is_top,
        // Packages bring instruction files of their own, which nobody obeys there.
        Some(PathProtection::AskEachTime) => is_top,
        None => true,
    }
}

fn is_git_folder(path: &Path) -> bool {
    let is_named = path.file_name().is_some_and(|name| name.eq_ignore_ascii_case(".git"));
    is_named && fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Finds the protected paths beneath a folder, without following links. The second value is false if a limit was
/// reached.
fn find_protected(root: &Path, extra: &[PathBuf]) -> (Vec<(PathBuf, (u64, u64))>, bool) {
    let mut found = Vec::new();
    let mut is_complete = true;
    let mut visited = 0usize;
    let mut folders = vec![(root.to_owned(), 0usize)];
    while let Some((folder, depth)) = folders.pop() {
        // An unreadable folder of the user is not writable for a command of the same user either.
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            visited += 1;
            if visited > MAX_ENTRIES || found.len() >= MAX_PROTECTED {
                return (with_extra(found, extra), false);
            }
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if protection_of_name(name).is_some() {
                if let Ok(known) = fs::symlink_metadata(entry.path()) {
                    found.push((entry.path(), identity(&known)));
                }
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if depth < MAX_DEPTH {
                    folders.push((entry.path(), depth + 1));
                } else {
                    is_complete = false;
                }
            }
        }
    }
    (with_extra(found, extra), is_complete)
}

fn with_extra(mut found: Vec<(PathBuf, (u64, u64))>, extra: &[PathBuf]) -> Vec<(PathBuf, (u64, u64))> {
    for path in extra {
        let is_beneath_known = found.iter().any(|(known, _)| path.starts_with(known));
        if let (false, Ok(known)) = (is_beneath_known, fs::symlink_metadata(path)) {
            found.push((path.clone(), identity(&known)));
        }
    }
    found
}

fn identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// Keeps the texts of the regular files at or beneath a path.
fn keep_files(path: &Path, kept: &mut BTreeMap<PathBuf, KeptFile>, depth: usize) {
    for file in files_beneath(path, depth) {
        let Ok(found) = fs::symlink_metadata(&file) else { continue };
        if !found.is_file() || found.len() > MAX_KEPT_BYTES || kept.len() >= MAX_KEPT_FILES {
            continue;
        }
        if let Ok(bytes) = fs::read(&file) {
            kept.insert(file, KeptFile { bytes, mode: found.permissions().mode() });
        }
    }
}

/// Returns the path itself if it is not a folder, or the files beneath it.
fn files_beneath(path: &Path, depth: usize) -> Vec<PathBuf> {
    let Ok(found) = fs::symlink_metadata(path) else { return Vec::new() };
    if !found.is_dir() {
        return vec![path.to_owned()];
    }
    if depth >= 4 {
        return Vec::new();
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten().take(MAX_KEPT_FILES);
    // Objects and references are data, and there are many of them.
    let is_data = |name: &std::ffi::OsStr| ["objects", "refs", "logs"].iter().any(|data| name == *data);
    entries
        .filter(|entry| !is_data(&entry.file_name()))
        .flat_map(|entry| files_beneath(&entry.path(), depth + 1))
        .filter(|file| decides_programs(file))
        .collect()
}

/// Returns true if a file beneath a `.git` folder decides which programs Git executes.
fn decides_programs(file: &Path) -> bool {
    let is_deciding = |name: &std::ffi::OsStr| {
        ["hooks", "info", "config", "config.worktree", "commondir", "gitdir"]
            .iter()
            .any(|known| name == *known)
    };
    file.file_name().is_some_and(is_deciding)
        || file.parent().and_then(Path::file_name).is_some_and(|folder| folder == "hooks" || folder == "info")
}

/// Renames a path, so that nothing obeys it, and returns a sentence about that.
fn set_aside(path: &Path, shown: &str) -> String {
    let renamed = random_name(".untrusted-").and_then(|suffix| {
        let mut aside = path.as_os_str().to_owned();
        aside.push(suffix.get(..suffix.len().min(22)).unwrap_or(&suffix));
        fs::rename(path, &aside)?;
        Ok(PathBuf::from(aside))
    });
    match renamed {
        Ok(aside) => {
            let name = aside.file_name().unwrap_or_default().to_string_lossy().into_owned();
            format!(
                "`{shown}` was made or changed by the command, and was renamed to `{name}`: a person may look at it"
            )
        }
        Err(error) => format!("`{shown}` was made or changed by the command, and cannot be renamed: {error}"),
    }
}

fn write_kept(path: &Path, kept: &KeptFile) -> io::Result<()> {
    fs::write(path, &kept.bytes)?;
    fs::set_permissions(path, fs::Permissions::from_mode(kept.mode))
}

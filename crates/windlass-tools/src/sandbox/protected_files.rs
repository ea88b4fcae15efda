//! Protected files of the workspace, as a command sees them.
//!
//! Where the kernel permits a mount namespace, every protected file and folder is a read-only mount, so that a
//! command cannot change, remove or replace it. Elsewhere a command can, and its changes are undone when it ends.
//! Everywhere, a protected file that a command created is renamed when it ends, so that nothing obeys it.
//!
//! **Invariant:** no limit hides a changed rule. The limits bound mounts and kept texts, rules first. A rule beyond
//! them is renamed if it has changed, and the command's report has the gap.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::kept_file::{ChangeTime, FileIdentity, FilePlace, KeptFile, changed_at, identity, set_aside};
use super::protected_search::{ProtectedPath, find_protected, is_beneath, is_git_folder, program_paths};

/// Maximum number of sentences about changes for the model.
const MAX_SENTENCES: usize = 32;

/// The limits of the work before a command runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProtectionLimits {
    /// Maximum number of entries of the workspace that are visited.
    entries: usize,
    /// Maximum number of protected paths that are mounted.
    mounts: usize,
    /// Maximum number of files and folders that are visited for their texts.
    listed_files: usize,
    /// Maximum size of all texts that are kept to undo changes.
    kept_bytes: u64,
}

impl Default for ProtectionLimits {
    fn default() -> Self {
        Self { entries: 100_000, mounts: 1024, listed_files: 20_000, kept_bytes: 64 * 1024 * 1024 }
    }
}

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
    extra: Vec<PathBuf>,
    /// Paths and identities (device and inode) of what exists.
    existing: HashMap<PathBuf, FileIdentity>,
    /// The files that decide which programs run, to undo changes.
    kept: BTreeMap<PathBuf, KeptFile>,
    /// The paths to mount read-only. A link is not mounted: its target is.
    pub(super) read_only: Vec<PathBuf>,
    /// The paths to mount writable onto themselves, so that they can be neither renamed nor replaced.
    pub(super) pinned: Vec<PathBuf>,
    /// True if every protected path was found and is to be mounted.
    pub(super) is_complete: bool,
    /// True if every file that decides which programs run is in `kept`.
    has_every_file: bool,
    /// The time of the file system before the command ran.
    began: ChangeTime,
}

/// The protection of files while a command ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MountState {
    /// The command could not change what is mounted.
    Mounted,
    /// Nothing was mounted.
    NotMounted,
}

impl ProtectedFiles {
    /// Finds the protected paths of a workspace, and `extra`, which are absolute. `fresh` is a file or folder that was
    /// made just now.
    pub(super) fn find(
        root: &Path,
        extra: &[PathBuf],
        git: GitAccess,
        fresh: &Path,
        limits: ProtectionLimits,
    ) -> Self {
        let began = fs::symlink_metadata(fresh).map_or((i64::MIN, 0), |found| changed_at(&found));
        let (mut found, mut is_complete) = find_protected(root, extra, limits.entries);
        found.extend(link_targets(&found, root));
        found.sort_by_key(|protected| protected.rank);

        let (mut read_only, mut pinned) = (Vec::new(), Vec::new());
        let mut mounted = HashSet::new();
        for ProtectedPath { path, .. } in found.iter().filter(|protected| !protected.path.is_symlink()) {
            if is_beneath(path, &mounted) {
                continue;
            }
            if mounted.len() >= limits.mounts {
                is_complete = false;
                break;
            }
            mounted.insert(path.clone());
            if git == GitAccess::Commit && is_git_folder(path) {
                pinned.push(path.clone());
                read_only.extend(program_paths(path).into_iter().filter(|path| path.exists()));
            } else {
                read_only.push(path.clone());
            }
        }

        let mut kept = BTreeMap::new();
        let (mut listed, mut text_budget) = (limits.listed_files, limits.kept_bytes);
        // The folders of packages are as many as there are packages, and nothing obeys their files.
        let is_kept = |protected: &&ProtectedPath| {
            protected.rank.is_executed()
                || !fs::symlink_metadata(&protected.path).is_ok_and(|found| found.is_dir())
        };
        for protected in found.iter().filter(is_kept) {
            for path in protected.program_files(&mut listed) {
                if let Some(file) = KeptFile::read(&path, &mut text_budget) {
                    kept.insert(path, file);
                }
            }
        }
        Self {
            root: root.to_owned(),
            extra: extra.to_vec(),
            existing: found.into_iter().map(|protected| (protected.path, protected.identity)).collect(),
            kept,
            read_only,
            pinned,
            has_every_file: is_complete && listed > 0,
            is_complete,
            began,
        }
    }

    /// Undoes the changes of a command, and returns a sentence about each for the model.
    pub(super) fn restore(&self, mounts: MountState) -> Vec<String> {
        let mut told = Vec::new();
        let shown = |path: &Path| path.strip_prefix(&self.root).unwrap_or(path).display().to_string();
        let intact = match mounts {
            MountState::Mounted => self.intact_mounts(),
            MountState::NotMounted => HashSet::new(),
        };
        let known = KnownFiles::of(self);
        // The command decides how much there is to visit now, so there is no limit behind which it could hide a file.
        let (now, _) = find_protected(&self.root, &self.extra, usize::MAX);
        for protected in now.iter().filter(|protected| protected.rank.is_executed()) {
            let path = &protected.path;
            let is_same_place = self.existing.contains_key(path) && !is_git_folder(path);
            if !is_same_place && !known.has_path(protected) {
                told.extend(set_aside(path, &shown(path)));
                continue;
            }
            if is_beneath(path, &intact) {
                continue;
            }
            let mut unbounded = usize::MAX;
            for file in protected.program_files(&mut unbounded) {
                let is_judged = self.kept.contains_key(&file) || is_beneath(&file, &intact);
                if !is_judged && !known.has_file(&file, path) {
                    told.extend(set_aside(&file, &shown(&file)));
                }
            }
        }
        for (path, kept) in &self.kept {
            // A mounted file could be changed by another of its names only.
            let has_one_name = || fs::symlink_metadata(path).is_ok_and(|found| found.nlink() <= 1);
            if !is_beneath(path, &intact) || !has_one_name() {
                told.extend(kept.undo(path, &shown(path)));
            }
        }
        if let Some(more) = told.len().checked_sub(MAX_SENTENCES).filter(|more| *more > 0) {
            told.truncate(MAX_SENTENCES);
            told.push(format!("{more} more such files were renamed or restored"));
        }
        told
    }

    /// Returns the paths that were mounted read-only and are still in their place.
    fn intact_mounts(&self) -> HashSet<PathBuf> {
        let is_intact = |path: &&PathBuf| {
            let before = self.existing.get(*path).copied().or_else(|| Some(self.kept.get(*path)?.identity));
            before.is_some() && fs::symlink_metadata(path).ok().map(|found| identity(&found)) == before
        };
        self.read_only.iter().filter(is_intact).cloned().collect()
    }
}

/// Finds the targets of protected links: a target is read under the name of its link, so it is protected too.
fn link_targets(found: &[ProtectedPath], root: &Path) -> Vec<ProtectedPath> {
    let known: HashSet<PathBuf> = found.iter().map(|protected| protected.path.clone()).collect();
    let links = found.iter().filter(|protected| protected.path.is_symlink());
    let targets = links.filter_map(|link| Some((link.path.canonicalize().ok()?, link.rank)));
    targets
        .filter(|(target, _)| target.starts_with(root) && !is_beneath(target, &known))
        .filter_map(|(target, rank)| ProtectedPath::find(target, rank))
        .collect()
}

/// The files that were there before a command, by their identities: the command may have moved them.
struct KnownFiles<'a> {
    before: &'a ProtectedFiles,
    paths: HashSet<FileIdentity>,
    files: HashMap<FileIdentity, &'a KeptFile>,
}

impl<'a> KnownFiles<'a> {
    fn of(before: &'a ProtectedFiles) -> Self {
        Self {
            before,
            paths: before.existing.values().copied().collect(),
            files: before.kept.values().map(|kept| (kept.identity, kept)).collect(),
        }
    }

    /// Returns true if a protected path was there before the command, perhaps in another folder. The files beneath it
    /// are another matter.
    fn has_path(&self, protected: &ProtectedPath) -> bool {
        if let Some(kept) = self.files.get(&protected.identity) {
            return FilePlace::open(&protected.path).is_some_and(|place| kept.is_unchanged(&place));
        }
        self.paths.contains(&protected.identity)
            || (!self.before.has_every_file && self.is_older(&protected.path))
    }

    /// Returns true if a file beneath a protected path, or at it, was there before the command.
    fn has_file(&self, file: &Path, protected: &Path) -> bool {
        let kept = fs::symlink_metadata(file).ok().and_then(|found| self.files.get(&identity(&found)));
        if let Some(kept) = kept {
            return FilePlace::open(file).is_some_and(|place| kept.is_unchanged(&place));
        }
        // A folder that was moved here has files that are older than the command.
        let mut way = file.ancestors().take_while(|part| *part != protected);
        !self.before.has_every_file && self.is_older(file) && way.all(|part| self.is_older(part))
    }

    /// Returns true if the command cannot have made or changed a file, by the time of its last change.
    fn is_older(&self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok_and(|found| changed_at(&found) < self.before.began)
    }
}

#[cfg(test)]
#[path = "protected_files_tests.rs"]
mod tests;

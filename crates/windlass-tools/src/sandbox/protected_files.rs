//! Protected files of the workspace, as a command sees them.
//!
//! Where the kernel permits a mount namespace, every protected file and folder is a read-only mount, so that a
//! command cannot change, remove or replace it. Elsewhere a command can, and its changes are undone when it ends.
//! Everywhere, a protected file that a command created is renamed when it ends, so that nothing obeys it.
//!
//! **Invariant:** the helper is not restricted, so it follows no link that a command may have made: it changes a file
//! only through its folder, opened without following links.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::scratch::random_name;
use crate::protection::{PathProtection, is_bare_repository_file, protection_of_name};

/// Maximum number of entries of the workspace that are visited before a command runs.
const MAX_ENTRIES: usize = 100_000;
/// Maximum number of protected paths that are mounted.
const MAX_PROTECTED: usize = 512;
/// Maximum size of a file whose text is kept to undo changes.
const MAX_KEPT_BYTES: u64 = 1024 * 1024;
/// Maximum number of files whose text is kept.
const MAX_KEPT_FILES: usize = 512;
/// Maximum number of sentences about changes for the model.
const MAX_SENTENCES: usize = 32;
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
    existing: Vec<(PathBuf, FileIdentity)>,
    /// Texts of the files that decide which programs run, to undo changes.
    kept: BTreeMap<PathBuf, KeptFile>,
    extra: Vec<PathBuf>,
    git: GitAccess,
    /// True if every protected path was found within the limits.
    pub(super) is_complete: bool,
    /// The time of the file system before the command ran.
    began: (i64, i64),
}

/// Device and inode of a file.
type FileIdentity = (u64, u64);

enum KeptFile {
    Text { bytes: Vec<u8>, mode: u32, identity: FileIdentity },
    Link { target: OsString },
}

impl ProtectedFiles {
    /// Finds the protected paths of a workspace, and `extra`, which are absolute. `fresh` is a file or folder that was
    /// made just now.
    pub(super) fn find(root: &Path, extra: &[PathBuf], git: GitAccess, fresh: &Path) -> Self {
        let began = fs::symlink_metadata(fresh).map_or((i64::MIN, 0), |found| changed_at(&found));
        let (mut existing, is_complete) = find_protected(root, extra, MAX_ENTRIES);
        // The target of a link is read in its name, so it is protected too.
        let mut targets = Vec::new();
        for (path, _) in existing.iter().filter(|(path, _)| path.is_symlink()) {
            if let Ok(target) = path.canonicalize()
                && target.starts_with(root)
                && let Ok(found) = fs::symlink_metadata(&target)
            {
                targets.push((target, identity(&found)));
            }
        }
        targets.retain(|(target, _)| !existing.iter().any(|(known, _)| target.starts_with(known)));
        existing.extend(targets);
        let mut files = Self {
            root: root.to_owned(),
            existing,
            kept: BTreeMap::new(),
            extra: extra.to_vec(),
            git,
            is_complete,
            began,
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
    /// neither renamed nor replaced. A link is not mounted: its target is.
    pub(super) fn mounts(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let (mut read_only, mut pinned) = (Vec::new(), Vec::new());
        for (path, _) in self.existing.iter().filter(|(path, _)| !path.is_symlink()).take(MAX_PROTECTED) {
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
        // The command decides how much there is to visit now, so there is no limit behind which it could hide a file.
        let (now, _) = find_protected(&self.root, &self.extra, usize::MAX);
        for (path, identity) in &now {
            let is_known_path = self.existing.iter().any(|(known, _)| known == path);
            if self.is_known_file(path, *identity)
                || (is_known_path && !is_git_folder(path))
                || !is_executed(path, &self.root)
            {
                continue;
            }
            told.extend(set_aside(path, &shown(path)));
        }
        for (path, kept) in &self.kept {
            // A folder that the command moved away is moved together with its files. A link in its place leads elsewhere.
            let Some(place) = FilePlace::open(path) else { continue };
            if kept.is_unchanged(&place) {
                continue;
            }
            if place.exists() {
                told.extend(set_aside(path, &shown(path)));
            }
            told.push(match kept.restore(&place) {
                Ok(()) => format!("`{}` was changed, and has its old text again", shown(path)),
                Err(error) => format!("`{}` was changed, and cannot be restored: {error}", shown(path)),
            });
        }
        for (path, _) in &self.existing {
            if FilePlace::open(path).is_none() {
                continue;
            }
            for part in self.program_paths(path) {
                for new in files_beneath(&part, 0) {
                    if !self.kept.contains_key(&new) && !self.is_too_large_to_keep(&new) {
                        told.extend(set_aside(&new, &shown(&new)));
                    }
                }
            }
        }
        if let Some(more) = told.len().checked_sub(MAX_SENTENCES).filter(|more| *more > 0) {
            told.truncate(MAX_SENTENCES);
            told.push(format!("{more} more such files were renamed or restored"));
        }
        told
    }

    /// Returns true if a file was there before the command, perhaps in another folder, with the same text.
    fn is_known_file(&self, path: &Path, identity: FileIdentity) -> bool {
        let is_known = self.existing.iter().any(|(_, known)| *known == identity);
        if !is_known {
            // Beyond the limits the time of the last change tells whether the command could have made it.
            let is_older = || fs::symlink_metadata(path).is_ok_and(|found| changed_at(&found) < self.began);
            return !self.is_complete && is_older();
        }
        let texts = self.kept.values().find_map(|kept| match kept {
            KeptFile::Text { bytes, identity: known, .. } if *known == identity => Some(bytes),
            KeptFile::Text { .. } | KeptFile::Link { .. } => None,
        });
        texts.is_none_or(|text| FilePlace::open(path).and_then(|place| place.read()).as_ref() == Some(text))
    }

    /// Returns the parts of a protected path that decide which programs run.
    fn program_paths(&self, path: &Path) -> Vec<PathBuf> {
        if is_git_folder(path) {
            GIT_PROGRAM_PATHS.iter().map(|part| path.join(part)).collect()
        } else if fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()) {
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

/// A file by its folder, which was opened without following any link.
struct FilePlace<'a> {
    folder: OwnedFd,
    name: &'a OsStr,
}

impl<'a> FilePlace<'a> {
    /// Opens the folder of an absolute path; `None` if it is gone, or if a link is on the way.
    fn open(path: &'a Path) -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (folder, name) = (path.parent()?, path.file_name()?);
        let mut opened = rustix::fs::open("/", flags, Mode::empty()).ok()?;
        for part in folder.components() {
            match part {
                Component::RootDir | Component::CurDir => {}
                Component::Normal(part) => {
                    opened = rustix::fs::openat(&opened, part, flags, Mode::empty()).ok()?;
                }
                Component::ParentDir | Component::Prefix(_) => return None,
            }
        }
        Some(Self { folder: opened, name })
    }

    fn exists(&self) -> bool {
        rustix::fs::statat(&self.folder, self.name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Reads a regular file of at most [`MAX_KEPT_BYTES`].
    fn read(&self) -> Option<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.folder, self.name, flags, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        let mut bytes = Vec::new();
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let read = File::from(file).take(MAX_KEPT_BYTES + 1).read_to_end(&mut bytes);
        (is_file && read.is_ok()).then_some(bytes)
    }

    fn rename(&self, aside: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.folder, self.name, &self.folder, aside)?)
    }
}

impl KeptFile {
    /// Reads a file, or a link; `None` if it is too large or another kind of file.
    fn read(path: &Path) -> Option<Self> {
        let found = fs::symlink_metadata(path).ok()?;
        let place = FilePlace::open(path)?;
        if found.is_symlink() {
            return Some(Self::Link { target: read_link(&place)? });
        }
        if !found.is_file() || found.len() > MAX_KEPT_BYTES {
            return None;
        }
        Some(Self::Text { bytes: place.read()?, mode: found.mode() & 0o7777, identity: identity(&found) })
    }

    fn is_unchanged(&self, place: &FilePlace<'_>) -> bool {
        match self {
            Self::Text { bytes, .. } => place.read().as_ref() == Some(bytes),
            Self::Link { target } => read_link(place).as_ref() == Some(target),
        }
    }

    /// Makes the file or the link anew, where there is none.
    fn restore(&self, place: &FilePlace<'_>) -> io::Result<()> {
        match self {
            Self::Text { bytes, mode, .. } => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&place.folder, place.name, flags, Mode::from_raw_mode(0o600))?;
                let mut file = File::from(file);
                file.write_all(bytes)?;
                file.set_permissions(fs::Permissions::from_mode(*mode))
            }
            Self::Link { target } => Ok(rustix::fs::symlinkat(target, &place.folder, place.name)?),
        }
    }
}

fn read_link(place: &FilePlace<'_>) -> Option<OsString> {
    use std::os::unix::ffi::OsStringExt;
    let target = rustix::fs::readlinkat(&place.folder, place.name, Vec::new()).ok()?;
    Some(OsString::from_vec(target.into_bytes()))
}

/// Returns true if something obeys or executes a file of this name as soon as it exists here.
fn is_executed(path: &Path, root: &Path) -> bool {
    let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    let is_top = path.parent() == Some(root);
    match protection_of_name(&name) {
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

/// Finds the protected paths beneath a folder, without following links, those of the upper folders first. The second
/// value is false if more than `max_entries` were there.
fn find_protected(
    root: &Path,
    extra: &[PathBuf],
    max_entries: usize,
) -> (Vec<(PathBuf, FileIdentity)>, bool) {
    let mut found = Vec::new();
    let mut visited = 0usize;
    let mut folders = VecDeque::from([root.to_owned()]);
    while let Some(folder) = folders.pop_front() {
        let mut repository = BareRepository::default();
        // An unreadable folder of the user is not writable for a command of the same user either.
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            visited += 1;
            if visited > max_entries {
                return (with_extra(found, extra), false);
            }
            let name = entry.file_name();
            repository.add(&name);
            if protection_of_name(&name.to_string_lossy()).is_some() {
                found.extend(with_identity(entry.path()));
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push_back(entry.path());
            }
        }
        for part in repository.protected_parts() {
            found.extend(with_identity(folder.join(part)));
        }
    }
    (with_extra(found, extra), true)
}

/// The parts by which Git takes a folder for a repository of its own, whose configuration it executes.
#[derive(Default)]
struct BareRepository {
    heads: Vec<OsString>,
    has_objects: bool,
    has_references: bool,
}

impl BareRepository {
    fn add(&mut self, name: &OsStr) {
        if is_bare_repository_file(&name.to_string_lossy()) {
            self.heads.push(name.to_owned());
        }
        self.has_objects |= name.eq_ignore_ascii_case("objects");
        self.has_references |= name.eq_ignore_ascii_case("refs");
    }

    fn protected_parts(self) -> Vec<OsString> {
        if self.heads.is_empty() || !self.has_objects || !self.has_references {
            return Vec::new();
        }
        let programs = ["config", "config.worktree", "hooks"].map(OsString::from);
        self.heads.into_iter().chain(programs).collect()
    }
}

fn with_identity(path: PathBuf) -> Option<(PathBuf, FileIdentity)> {
    let found = fs::symlink_metadata(&path).ok()?;
    Some((path, identity(&found)))
}

fn with_extra(mut found: Vec<(PathBuf, FileIdentity)>, extra: &[PathBuf]) -> Vec<(PathBuf, FileIdentity)> {
    for path in extra {
        let is_beneath_known = found.iter().any(|(known, _)| path.starts_with(known));
        if !is_beneath_known {
            found.extend(with_identity(path.clone()));
        }
    }
    found
}

fn identity(found: &Metadata) -> FileIdentity {
    (found.dev(), found.ino())
}

/// Returns the time of the last change of a file or its names, which programs cannot set.
fn changed_at(found: &Metadata) -> (i64, i64) {
    (found.ctime(), found.ctime_nsec())
}

/// Keeps the texts of the regular files at or beneath a path, and links.
fn keep_files(path: &Path, kept: &mut BTreeMap<PathBuf, KeptFile>, depth: usize) {
    for file in files_beneath(path, depth) {
        if kept.len() >= MAX_KEPT_FILES {
            return;
        }
        if let Some(text) = KeptFile::read(&file) {
            kept.insert(file, text);
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
    let is_data = |name: &OsStr| ["objects", "refs", "logs"].iter().any(|data| name == *data);
    entries
        .filter(|entry| !is_data(&entry.file_name()))
        .flat_map(|entry| files_beneath(&entry.path(), depth + 1))
        .filter(|file| decides_programs(file))
        .collect()
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

/// Renames a path, so that nothing obeys it, and returns a sentence about that; `None` if a link is on the way to it.
fn set_aside(path: &Path, shown: &str) -> Option<String> {
    let place = FilePlace::open(path)?;
    let renamed = random_name(".untrusted-").and_then(|suffix| {
        let mut aside = place.name.to_owned();
        aside.push(suffix.get(..suffix.len().min(22)).unwrap_or(&suffix));
        place.rename(&aside)?;
        Ok(aside)
    });
    Some(match renamed {
        Ok(aside) => format!(
            "`{shown}` was made or changed by the command, and was renamed to `{}`: a person may look at it",
            aside.to_string_lossy()
        ),
        Err(error) => format!("`{shown}` was made or changed by the command, and cannot be renamed: {error}"),
    })
}

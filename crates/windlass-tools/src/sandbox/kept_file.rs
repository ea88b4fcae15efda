//! Files as they were before a command ran, to undo its changes.
//!
//! **Invariant:** the helper is not restricted, so it follows no link that a command may have made: it changes a file
//! only through its folder, opened without following links.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::scratch::random_name;

/// Maximum size of a file whose text is kept to undo changes.
const MAX_KEPT_BYTES: u64 = 1024 * 1024;

/// Device and inode of a file.
pub(super) type FileIdentity = (u64, u64);

/// The time of the last change of a file or its names, which programs cannot set.
pub(super) type ChangeTime = (i64, i64);

pub(super) fn identity(found: &Metadata) -> FileIdentity {
    (found.dev(), found.ino())
}

pub(super) fn changed_at(found: &Metadata) -> ChangeTime {
    (found.ctime(), found.ctime_nsec())
}

/// A file by its folder, which was opened without following any link.
pub(super) struct FilePlace<'a> {
    folder: OwnedFd,
    name: &'a OsStr,
    path: &'a Path,
}

impl<'a> FilePlace<'a> {
    /// Opens the folder of an absolute path; `None` if it is gone, or if a link is on the way.
    pub(super) fn open(path: &'a Path) -> Option<Self> {
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
        Some(Self { folder: opened, name, path })
    }

    pub(super) fn exists(&self) -> bool {
        rustix::fs::statat(&self.folder, self.name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Reads a regular file of at most [`MAX_KEPT_BYTES`].
    pub(super) fn read(&self) -> Option<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.folder, self.name, flags, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        let mut bytes = Vec::new();
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let read = File::from(file).take(MAX_KEPT_BYTES + 1).read_to_end(&mut bytes);
        (is_file && read.is_ok()).then_some(bytes)
    }

    /// Returns the identity of the file and the time of its last change. Nothing runs that could change the way to it.
    fn stamp(&self) -> Option<(FileIdentity, ChangeTime)> {
        let found = fs::symlink_metadata(self.path).ok()?;
        Some((identity(&found), changed_at(&found)))
    }

    fn rename(&self, aside: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.folder, self.name, &self.folder, aside)?)
    }
}

/// A file as it was before the command.
pub(super) struct KeptFile {
    pub(super) identity: FileIdentity,
    changed_at: ChangeTime,
    content: KeptContent,
}

enum KeptContent {
    Text {
        bytes: Vec<u8>,
        mode: u32,
    },
    Link {
        target: OsString,
    },
    /// The file is too large or unreadable, or there are too many of them: a change is seen, and cannot be undone.
    NotRead,
}

impl KeptFile {
    /// Reads a file or a link. The text of a regular file is taken out of `text_budget`, and not kept if it does not
    /// fit. Returns `None` if the file is gone, or if a link leads to it.
    pub(super) fn read(path: &Path, text_budget: &mut u64) -> Option<Self> {
        let found = fs::symlink_metadata(path).ok()?;
        let place = FilePlace::open(path)?;
        let content = if found.is_symlink() {
            KeptContent::Link { target: read_link(&place)? }
        } else if found.is_file() && found.len() <= MAX_KEPT_BYTES.min(*text_budget) {
            match place.read() {
                Some(bytes) => {
                    *text_budget = text_budget.saturating_sub(bytes.len() as u64);
                    KeptContent::Text { bytes, mode: found.mode() & 0o7777 }
                }
                None => KeptContent::NotRead,
            }
        } else {
            KeptContent::NotRead
        };
        Some(Self { identity: identity(&found), changed_at: changed_at(&found), content })
    }

    /// Returns true if the file at this place has the text that was kept. Without a text the time of the last change
    /// decides.
    pub(super) fn is_unchanged(&self, place: &FilePlace<'_>) -> bool {
        match &self.content {
            KeptContent::Text { bytes, .. } => place.read().as_ref() == Some(bytes),
            KeptContent::Link { target } => read_link(place).as_ref() == Some(target),
            KeptContent::NotRead => place.stamp() == Some((self.identity, self.changed_at)),
        }
    }

    /// Undoes the change of the file, and returns sentences about that.
    pub(super) fn undo(&self, path: &Path, shown: &str) -> Vec<String> {
        // A folder that the command moved away is moved together with its files. A link in its place leads elsewhere.
        let Some(place) = FilePlace::open(path) else { return Vec::new() };
        if self.is_unchanged(&place) {
            return Vec::new();
        }
        let mut told = Vec::new();
        if place.exists() {
            told.extend(set_aside(path, shown));
        }
        told.push(match self.restore(&place) {
            Ok(()) => format!("`{shown}` was changed, and has its old text again"),
            Err(error) => format!("`{shown}` was changed, and cannot be restored: {error}"),
        });
        told
    }

    /// Makes the file or the link anew, where there is none.
    fn restore(&self, place: &FilePlace<'_>) -> io::Result<()> {
        match &self.content {
            KeptContent::Text { bytes, mode } => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&place.folder, place.name, flags, Mode::from_raw_mode(0o600))?;
                let mut file = File::from(file);
                file.write_all(bytes)?;
                file.set_permissions(fs::Permissions::from_mode(*mode))
            }
            KeptContent::Link { target } => Ok(rustix::fs::symlinkat(target, &place.folder, place.name)?),
            KeptContent::NotRead => Err(io::Error::other("it was too large to keep its text")),
        }
    }
}

fn read_link(place: &FilePlace<'_>) -> Option<OsString> {
    use std::os::unix::ffi::OsStringExt;
    let target = rustix::fs::readlinkat(&place.folder, place.name, Vec::new()).ok()?;
    Some(OsString::from_vec(target.into_bytes()))
}

/// Renames a path, so that nothing obeys it, and returns a sentence about that; `None` if a link is on the way to it.
pub(super) fn set_aside(path: &Path, shown: &str) -> Option<String> {
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

//! Opening of files and folders beneath one open directory.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{self, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::WorkspacePath;
use crate::error::ToolRefusal;

/// Open flags that prevent inheritance by children, a controlling terminal, and blocking on a FIFO.
const SAFE_FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NOCTTY).union(OFlags::NONBLOCK);

/// The open directory of a workspace, from which all paths are resolved.
#[derive(Debug)]
pub(crate) struct WorkspaceRoot {
    folder: OwnedFd,
    /// The canonical path, for absolute paths in arguments and for child processes.
    path: PathBuf,
}

impl WorkspaceRoot {
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.canonicalize()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = fs::open(&path, flags, Mode::empty())?;
        Ok(Self { folder, path })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file for reading. Links inside the workspace are followed.
    pub(crate) fn open_file(&self, place: &WorkspacePath) -> Result<OwnedFd, ToolRefusal> {
        self.open_beneath(place, OFlags::RDONLY | SAFE_FLAGS)
    }

    /// Opens a folder. Links inside the workspace are followed.
    pub(crate) fn open_folder(&self, place: &WorkspacePath) -> Result<OwnedFd, ToolRefusal> {
        self.open_beneath(place, OFlags::RDONLY | OFlags::DIRECTORY | SAFE_FLAGS)
    }

    /// Returns the path of an opened file with all links resolved; `None` if it cannot be determined.
    #[cfg(target_os = "linux")]
    pub(crate) fn resolve_opened(&self, opened: &OwnedFd) -> Option<WorkspacePath> {
        use std::os::fd::AsRawFd;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).ok()?;
        WorkspacePath::parse(path.to_str()?, &self.path).ok()
    }

    /// Returns `None`: links are not followed on this platform, so the given path is the resolved one.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn resolve_opened(&self, _: &OwnedFd) -> Option<WorkspacePath> {
        None
    }

    /// Opens the parent folder of a file and returns it with the file's name. No link is followed, so the
    /// named file itself is changed.
    pub(crate) fn open_parent<'a>(
        &self,
        place: &'a WorkspacePath,
        missing: MissingFolderPolicy,
    ) -> Result<(OwnedFd, &'a str), ToolRefusal> {
        let mut parts: Vec<&str> = place.parts().collect();
        let name = parts.pop().ok_or(ToolRefusal::InvalidPath {
            path: ".".into(),
            reason: "is the workspace itself, not a file",
        })?;
        let folder =
            self.open_folder_chain(&parts, missing).map_err(|errno| ToolRefusal::from_errno(place, errno))?;
        Ok((folder, name))
    }

    fn open_folder_chain(&self, parts: &[&str], missing: MissingFolderPolicy) -> Result<OwnedFd, Errno> {
        let mut folder = rustix::io::fcntl_dupfd_cloexec(&self.folder, 0)?;
        for part in parts {
            folder = match open_folder_at(folder.as_fd(), part) {
                Err(Errno::NOENT) if missing == MissingFolderPolicy::Create => {
                    match fs::mkdirat(&folder, *part, Mode::from_raw_mode(0o777)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(errno),
                    }
                    open_folder_at(folder.as_fd(), part)?
                }
                other => other?,
            };
        }
        Ok(folder)
    }

    /// Opens a path with `openat2` and `RESOLVE_BENEATH`, so that the kernel refuses to leave the workspace.
    #[cfg(target_os = "linux")]
    fn open_beneath(&self, place: &WorkspacePath, flags: OFlags) -> Result<OwnedFd, ToolRefusal> {
        use rustix::fs::ResolveFlags;
        /// Concurrent renames make the kernel fail with EAGAIN on `..` in links; the call is then retried.
        const MAX_TRIES: u32 = 32;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..MAX_TRIES {
            match fs::openat2(&self.folder, place.as_path(), flags, Mode::empty(), resolve) {
                Ok(opened) => return Ok(opened),
                Err(Errno::AGAIN | Errno::INTR) => {}
                // `openat2` is missing, or blocked by a seccomp filter.
                Err(Errno::NOSYS | Errno::PERM) => return self.open_nofollow(place, flags),
                Err(errno) => return Err(ToolRefusal::from_errno(place, errno)),
            }
        }
        Err(ToolRefusal::from_errno(place, Errno::AGAIN))
    }

    #[cfg(not(target_os = "linux"))]
    fn open_beneath(&self, place: &WorkspacePath, flags: OFlags) -> Result<OwnedFd, ToolRefusal> {
        self.open_nofollow(place, flags)
    }

    fn open_nofollow(&self, place: &WorkspacePath, flags: OFlags) -> Result<OwnedFd, ToolRefusal> {
        if place.is_root() {
            return rustix::io::fcntl_dupfd_cloexec(&self.folder, 0)
                .map_err(|errno| ToolRefusal::from_errno(place, errno));
        }
        let (folder, name) = self.open_parent(place, MissingFolderPolicy::Refuse)?;
        fs::openat(&folder, name, flags | OFlags::NOFOLLOW, Mode::empty())
            .map_err(|errno| ToolRefusal::from_errno(place, errno))
    }
}

/// The treatment of missing parent folders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingFolderPolicy {
    Create,
    Refuse,
}

/// Opens a subfolder by name, without following a link.
pub(super) fn open_folder_at(folder: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | SAFE_FLAGS;
    fs::openat(folder, name, flags, Mode::empty()).map_err(|errno| match errno {
        // `O_DIRECTORY` reports an unfollowed link as ENOTDIR.
        Errno::NOTDIR if is_symlink(folder, name) => Errno::LOOP,
        other => other,
    })
}

/// Opens a file in a folder by name, without following a link.
pub(super) fn open_file_at(folder: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    fs::openat(folder, name, OFlags::RDONLY | OFlags::NOFOLLOW | SAFE_FLAGS, Mode::empty())
}

fn is_symlink(folder: BorrowedFd<'_>, name: &str) -> bool {
    fs::statat(folder, name, fs::AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

/// Reads the text and the mode of an open file.
///
/// # Errors
///
/// Returns a refusal if it is not a regular file, exceeds `limit` bytes, or is not UTF-8 text.
pub(crate) fn read_text_and_mode(
    file: OwnedFd,
    place: &WorkspacePath,
    limit: u64,
    tool: &'static str,
) -> Result<(String, Mode), ToolRefusal> {
    let stat = fs::fstat(&file).map_err(|errno| ToolRefusal::from_errno(place, errno))?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => None,
        FileType::Directory => Some("a folder"),
        FileType::Fifo => Some("a pipe"),
        FileType::Socket => Some("a socket"),
        FileType::CharacterDevice | FileType::BlockDevice => Some("a device"),
        FileType::Symlink | FileType::Unknown => Some("not a plain file"),
    };
    if let Some(is) = kind {
        return Err(ToolRefusal::WrongKind { path: place.to_string(), found: is, tool, required: "a file" });
    }
    let too_large = |bytes| ToolRefusal::TooLarge {
        path: place.to_string(),
        bytes,
        limit,
        hint: "search_files finds the part that matters",
    };
    let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if size > limit {
        return Err(too_large(size));
    }
    let mut bytes = Vec::new();
    // The file may grow while it is read.
    File::from(file)
        .take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| ToolRefusal::from_io(place, &error))?;
    if bytes.len() as u64 > limit {
        return Err(too_large(bytes.len() as u64));
    }
    let text = String::from_utf8(bytes).map_err(|_| ToolRefusal::NotText { path: place.to_string() })?;
    if text.contains('\0') {
        return Err(ToolRefusal::NotText { path: place.to_string() });
    }
    Ok((text, Mode::from_raw_mode(stat.st_mode & 0o7777)))
}

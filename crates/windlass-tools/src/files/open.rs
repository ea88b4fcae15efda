//! Opening what is beneath one open folder.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{self, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::Place;
use crate::error::Refusal;

/// Nothing is passed on to children, no terminal is taken over, and nobody waits for the other end of a pipe.
const SAFE: OFlags = OFlags::CLOEXEC.union(OFlags::NOCTTY).union(OFlags::NONBLOCK);

/// The folder of a workspace, held open: what is beneath it is looked up from here.
#[derive(Debug)]
pub(crate) struct Root {
    folder: OwnedFd,
    /// Its path with all links resolved, for absolute paths that mean something in it, and for children.
    path: PathBuf,
}

impl Root {
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.canonicalize()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = fs::open(&path, flags, Mode::empty())?;
        Ok(Self { folder, path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A file to read. Links inside the workspace are followed.
    pub(crate) fn open_file(&self, place: &Place) -> Result<OwnedFd, Refusal> {
        self.open_beneath(place, OFlags::RDONLY | SAFE)
    }

    /// A folder. Links inside the workspace are followed.
    pub(crate) fn open_folder(&self, place: &Place) -> Result<OwnedFd, Refusal> {
        self.open_beneath(place, OFlags::RDONLY | OFlags::DIRECTORY | SAFE)
    }

    /// Where something that was opened really stands, without the links on the way to it; nothing where that
    /// cannot be said.
    #[cfg(target_os = "linux")]
    pub(crate) fn real_place(&self, opened: &OwnedFd) -> Option<Place> {
        use std::os::fd::AsRawFd;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).ok()?;
        Place::read(path.to_str()?, &self.path).ok()
    }

    /// No link was followed, so it stands where it was named.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn real_place(&self, _: &OwnedFd) -> Option<Place> {
        None
    }

    /// The folder that a file stands in, and the file's name there. No link is followed, so what is changed is
    /// what was named.
    pub(crate) fn parent<'a>(
        &self,
        place: &'a Place,
        missing: MissingFolders,
    ) -> Result<(OwnedFd, &'a str), Refusal> {
        let mut parts: Vec<&str> = place.parts().collect();
        let name = parts
            .pop()
            .ok_or(Refusal::Path { path: ".".into(), why: "is the workspace itself, not a file" })?;
        let folder = self.step_down(&parts, missing).map_err(|errno| Refusal::system(place, errno))?;
        Ok((folder, name))
    }

    fn step_down(&self, parts: &[&str], missing: MissingFolders) -> Result<OwnedFd, Errno> {
        let mut folder = rustix::io::fcntl_dupfd_cloexec(&self.folder, 0)?;
        for part in parts {
            folder = match open_folder_at(folder.as_fd(), part) {
                Err(Errno::NOENT) if missing == MissingFolders::Make => {
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

    /// The kernel walks the path and refuses every way out of the folder.
    #[cfg(target_os = "linux")]
    fn open_beneath(&self, place: &Place, flags: OFlags) -> Result<OwnedFd, Refusal> {
        use rustix::fs::ResolveFlags;
        /// Renames elsewhere make the kernel give up on `..` in links; it asks to try again.
        const TRIES: u32 = 32;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..TRIES {
            match fs::openat2(&self.folder, place.as_path(), flags, Mode::empty(), resolve) {
                Ok(opened) => return Ok(opened),
                Err(Errno::AGAIN | Errno::INTR) => {}
                // Where the call itself is not there, or filtered.
                Err(Errno::NOSYS | Errno::PERM) => return self.open_without_links(place, flags),
                Err(errno) => return Err(Refusal::system(place, errno)),
            }
        }
        Err(Refusal::system(place, Errno::AGAIN))
    }

    #[cfg(not(target_os = "linux"))]
    fn open_beneath(&self, place: &Place, flags: OFlags) -> Result<OwnedFd, Refusal> {
        self.open_without_links(place, flags)
    }

    fn open_without_links(&self, place: &Place, flags: OFlags) -> Result<OwnedFd, Refusal> {
        if place.is_root() {
            return rustix::io::fcntl_dupfd_cloexec(&self.folder, 0)
                .map_err(|errno| Refusal::system(place, errno));
        }
        let (folder, name) = self.parent(place, MissingFolders::Refuse)?;
        fs::openat(&folder, name, flags | OFlags::NOFOLLOW, Mode::empty())
            .map_err(|errno| Refusal::system(place, errno))
    }
}

/// What to do about folders on the way that are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingFolders {
    Make,
    Refuse,
}

/// A folder in a folder, by its name, and not by a link.
pub(super) fn open_folder_at(folder: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | SAFE;
    fs::openat(folder, name, flags, Mode::empty()).map_err(|errno| match errno {
        // What a link that is not followed looks like, with this flag.
        Errno::NOTDIR if is_link(folder, name) => Errno::LOOP,
        other => other,
    })
}

/// A file in a folder, by its name, and not by a link.
pub(super) fn open_file_at(folder: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    fs::openat(folder, name, OFlags::RDONLY | OFlags::NOFOLLOW | SAFE, Mode::empty())
}

fn is_link(folder: BorrowedFd<'_>, name: &str) -> bool {
    fs::statat(folder, name, fs::AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

/// The text of an open file, and its mode. Whatever is not a plain file is refused before it is read.
pub(crate) fn text_of(
    file: OwnedFd,
    place: &Place,
    limit: u64,
    tool: &'static str,
) -> Result<(String, Mode), Refusal> {
    let stat = fs::fstat(&file).map_err(|errno| Refusal::system(place, errno))?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => None,
        FileType::Directory => Some("a folder"),
        FileType::Fifo => Some("a pipe"),
        FileType::Socket => Some("a socket"),
        FileType::CharacterDevice | FileType::BlockDevice => Some("a device"),
        FileType::Symlink | FileType::Unknown => Some("not a plain file"),
    };
    if let Some(is) = kind {
        return Err(Refusal::Kind { path: place.to_string(), is, tool, needs: "a file" });
    }
    let too_large = |bytes| Refusal::TooLarge {
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
    // It may grow while it is read.
    File::from(file).take(limit + 1).read_to_end(&mut bytes).map_err(|error| Refusal::io(place, &error))?;
    if bytes.len() as u64 > limit {
        return Err(too_large(bytes.len() as u64));
    }
    let text = String::from_utf8(bytes).map_err(|_| Refusal::Binary { path: place.to_string() })?;
    if text.contains('\0') {
        return Err(Refusal::Binary { path: place.to_string() });
    }
    Ok((text, Mode::from_raw_mode(stat.st_mode & 0o7777)))
}

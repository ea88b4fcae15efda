//! Hard links to hidden files: another name of the same file must not uncover it.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::os::fd::AsFd;

use ignore::gitignore::Gitignore;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};

use super::{WorkspacePath, WorkspaceRoot};

/// Maximum number of entries that are visited to find hidden files.
const MAX_ENTRIES: usize = 200_000;
/// Maximum depth of the visited folders.
const MAX_DEPTH: usize = 64;

/// The hidden files of a workspace that have more than one name.
pub(crate) struct HiddenLinks<'a> {
    root: &'a WorkspaceRoot,
    hidden: &'a Gitignore,
    /// Devices and inodes; `None` if the workspace is too large to know them.
    found: OnceCell<Option<BTreeSet<(u64, u64)>>>,
}

impl<'a> HiddenLinks<'a> {
    pub(crate) fn new(root: &'a WorkspaceRoot, hidden: &'a Gitignore) -> Self {
        Self { root, hidden, found: OnceCell::new() }
    }

    /// Returns true if an open file is a hidden file under another name, or if that cannot be known.
    pub(crate) fn covers(&self, file: impl AsFd) -> bool {
        if self.hidden.is_empty() {
            return false;
        }
        // Only a file with several names can be another one.
        let Ok(stat) = fs::fstat(file) else { return true };
        if stat.st_nlink < 2 || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return false;
        }
        let found = self.found.get_or_init(|| self.find());
        found.as_ref().is_none_or(|found| found.contains(&identity(&stat)))
    }

    /// Visits all folders, hidden ones included, without following links.
    fn find(&self) -> Option<BTreeSet<(u64, u64)>> {
        let mut found = BTreeSet::new();
        let mut visited = 0usize;
        let mut folders = vec![(WorkspacePath::root(), false, 0usize)];
        while let Some((place, is_hidden, depth)) = folders.pop() {
            let Ok(folder) = self.root.open_folder_nofollow(&place) else { continue };
            for entry in fs::Dir::read_from(&folder).ok()?.flatten() {
                let Ok(name) = entry.file_name().to_str() else { continue };
                if name == "." || name == ".." {
                    continue;
                }
                visited += 1;
                if visited > MAX_ENTRIES {
                    return None;
                }
                let Ok(stat) = fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
                let path = place.join(name);
                let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
                let is_hidden = is_hidden || self.hidden.matched(path.as_path(), is_folder).is_ignore();
                if is_folder {
                    if depth >= MAX_DEPTH {
                        return None;
                    }
                    folders.push((path, is_hidden, depth + 1));
                } else if is_hidden && stat.st_nlink > 1 {
                    found.insert(identity(&stat));
                }
            }
        }
        Some(found)
    }
}

#[allow(clippy::unnecessary_cast, reason = "the types of these fields differ between platforms")]
fn identity(stat: &fs::Stat) -> (u64, u64) {
    (stat.st_dev as u64, stat.st_ino as u64)
}

impl WorkspaceRoot {
    /// Opens a folder without following a link.
    fn open_folder_nofollow(&self, place: &WorkspacePath) -> rustix::io::Result<std::os::fd::OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fs::openat(self.descriptor(), place.as_path(), flags, Mode::empty())
    }
}

//! Changing a file: the whole new text stands beside it, on the disk, before it takes its place in one step.
//! Whoever reads sees the old text or the new one, also after a crash at any moment.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, AtFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::open::{MissingFolders, open_file_at, text_of};
use super::{Place, Root, Version};
use crate::error::Refusal;

/// Where a file says which call wrote it. It moves into place with the file, in the same step.
const WRITTEN_BY: &str = "user.windlass.call";

/// What must be there before a file is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected<'a> {
    /// Nothing.
    Nothing,
    /// A file of this version.
    Version(&'a str),
}

/// A change of one file.
pub(crate) struct Replacement<'a> {
    pub(crate) place: &'a Place,
    pub(crate) expected: Expected<'a>,
    /// The key of the call.
    pub(crate) key: &'a str,
    /// The longest file that is read.
    pub(crate) limit: u64,
    pub(crate) tool: &'static str,
}

/// What is known of a change after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// The file says that this call wrote it, or holds what it would have written.
    Happened,
    /// The file is as it was before.
    DidNotHappen,
    /// It is neither.
    Unknown,
}

/// What is there now.
struct Current {
    text: String,
    mode: Mode,
}

impl Replacement<'_> {
    /// What the file holds now, if it is as expected; nothing where nothing is expected.
    pub(crate) fn before(&self, root: &Root) -> Result<Option<String>, Refusal> {
        let current = match root.parent(self.place, MissingFolders::Refuse) {
            Ok((folder, name)) => self.current(folder.as_fd(), name)?,
            Err(Refusal::Missing { .. }) => None,
            Err(refusal) => return Err(refusal),
        };
        self.check(current.as_ref())?;
        Ok(current.map(|current| current.text))
    }

    /// Puts the text in its place.
    pub(crate) fn put(&self, root: &Root, text: &str) -> Result<(), Refusal> {
        let missing = match self.expected {
            Expected::Nothing => MissingFolders::Make,
            Expected::Version(_) => MissingFolders::Refuse,
        };
        let (folder, name) = root.parent(self.place, missing)?;
        let current = self.current(folder.as_fd(), name)?;
        self.check(current.as_ref())?;
        let beside = self.beside();
        let done = self
            .write_beside(folder.as_fd(), &beside, text, current.map(|current| current.mode))
            // Once more, as late as it can be: writing takes time.
            .and_then(|()| self.check(self.current(folder.as_fd(), name)?.as_ref()))
            .and_then(|()| self.move_in(folder.as_fd(), &beside, name));
        if done.is_err() {
            remove(folder.as_fd(), &beside)?;
        }
        done
    }

    /// What the disk says of a call that a crash interrupted. What it left behind is removed.
    pub(crate) fn evidence(&self, root: &Root, wanted: Option<&str>) -> Result<Evidence, Refusal> {
        let (folder, name) = match root.parent(self.place, MissingFolders::Refuse) {
            Ok(found) => found,
            Err(Refusal::Missing { .. }) if self.expected == Expected::Nothing => {
                return Ok(Evidence::DidNotHappen);
            }
            Err(refusal) => return Err(refusal),
        };
        remove(folder.as_fd(), &self.beside())?;
        match open_file_at(folder.as_fd(), name) {
            Ok(file) if written_by(&file).as_deref() == Some(self.key) => return Ok(Evidence::Happened),
            Ok(_) | Err(_) => {}
        }
        let current = self.current(folder.as_fd(), name)?;
        let text = current.as_ref().map(|current| current.text.as_str());
        Ok(match (self.check(current.as_ref()), text, wanted) {
            (Ok(()), _, _) => Evidence::DidNotHappen,
            (Err(_), Some(text), Some(wanted)) if text == wanted => Evidence::Happened,
            (Err(_), _, _) => Evidence::Unknown,
        })
    }

    fn current(&self, folder: BorrowedFd<'_>, name: &str) -> Result<Option<Current>, Refusal> {
        match open_file_at(folder, name) {
            Ok(file) => {
                let (text, mode) = text_of(file, self.place, self.limit, self.tool)?;
                Ok(Some(Current { text, mode }))
            }
            Err(Errno::NOENT) => Ok(None),
            // A socket cannot be opened, and is not to be replaced.
            Err(errno) => Err(Refusal::system(self.place, errno)),
        }
    }

    fn check(&self, current: Option<&Current>) -> Result<(), Refusal> {
        let stale = |why| Refusal::Stale { path: self.place.to_string(), why };
        match (self.expected, current) {
            (Expected::Nothing, None) => Ok(()),
            (Expected::Nothing, Some(_)) => Err(stale("is there already, and no version was given")),
            (Expected::Version(_), None) => Err(Refusal::Missing { path: self.place.to_string() }),
            (Expected::Version(told), Some(current)) if Version::of(&current.text).is(told) => Ok(()),
            (Expected::Version(_), Some(_)) => Err(stale("has changed since that version")),
        }
    }

    /// The name of the file beside it. It belongs to the call, so a call that runs again finds its own.
    fn beside(&self) -> String {
        format!(".windlass-{}.part", self.key)
    }

    fn write_beside(
        &self,
        folder: BorrowedFd<'_>,
        beside: &str,
        text: &str,
        mode: Option<Mode>,
    ) -> Result<(), Refusal> {
        remove(folder, beside)?;
        let system = |errno| Refusal::system(self.place, errno);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::openat(folder, beside, flags, Mode::from_raw_mode(0o666)).map_err(system)?;
        if let Some(mode) = mode {
            fs::fchmod(&file, mode).map_err(system)?;
        }
        let mut file = File::from(file);
        file.write_all(text.as_bytes()).map_err(|error| Refusal::io(self.place, &error))?;
        mark(&file, self.key);
        file.sync_all().map_err(|error| Refusal::io(self.place, &error))
    }

    fn move_in(&self, folder: BorrowedFd<'_>, beside: &str, name: &str) -> Result<(), Refusal> {
        let moved = match self.expected {
            Expected::Nothing => rename_to_nothing(folder, beside, name),
            Expected::Version(_) => fs::renameat(folder, beside, folder, name),
        };
        moved.map_err(|errno| match errno {
            Errno::EXIST => Refusal::Stale { path: self.place.to_string(), why: "appeared meanwhile" },
            errno => Refusal::system(self.place, errno),
        })?;
        fs::fsync(folder).map_err(|errno| Refusal::system(self.place, errno))
    }
}

/// Takes a name that nobody has, or fails.
fn rename_to_nothing(folder: BorrowedFd<'_>, beside: &str, name: &str) -> Result<(), Errno> {
    #[cfg(target_os = "linux")]
    match fs::renameat_with(folder, beside, folder, name, fs::RenameFlags::NOREPLACE) {
        // File systems that do not have it say so.
        Err(Errno::INVAL | Errno::NOSYS) => {}
        other => return other,
    }
    fs::linkat(folder, beside, folder, name, AtFlags::empty())?;
    fs::unlinkat(folder, beside, AtFlags::empty())
}

/// Not every file system can keep it. Without it, the file's text is what there is to go by.
fn mark(file: &File, key: &str) {
    let marked = fs::fsetxattr(file, WRITTEN_BY, key.as_bytes(), XattrFlags::empty());
    debug_assert!(marked != Err(Errno::INVAL), "the name of the mark is right");
}

fn written_by(file: &OwnedFd) -> Option<String> {
    let mut room = [0; 128];
    let length = fs::fgetxattr(file, WRITTEN_BY, &mut room).ok()?;
    String::from_utf8(room.get(..length)?.to_vec()).ok()
}

fn remove(folder: BorrowedFd<'_>, name: &str) -> Result<(), Refusal> {
    match fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(Refusal::system(name, errno)),
    }
}

#[cfg(test)]
#[path = "replace_tests.rs"]
mod tests;

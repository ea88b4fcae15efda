//! Atomic replacement of a file: the new text is written to a temporary file beside it, synced, and renamed.
//!
//! **Invariant:** a reader sees the old text or the new text, never a mixture, even after a crash.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, AtFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::open::{MissingFolderPolicy, open_file_at, read_text_and_mode};
use super::{FileVersion, WorkspacePath, WorkspaceRoot};
use crate::error::ToolRefusal;

/// The extended attribute that names the call that wrote a file. The rename makes it visible together with
/// the text.
const CALL_MARK_XATTR: &str = "user.windlass.call";

/// The precondition of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilePrecondition<'a> {
    /// The file does not exist.
    Absent,
    /// The file has this version.
    Version(&'a str),
}

/// An atomic replacement of one file.
pub(crate) struct FileReplacement<'a> {
    pub(crate) path: &'a WorkspacePath,
    pub(crate) precondition: FilePrecondition<'a>,
    /// The idempotency key of the call.
    pub(crate) call_key: &'a str,
    /// Maximum size of a file that is read, in bytes.
    pub(crate) max_bytes: u64,
    pub(crate) tool_name: &'static str,
}

/// The evidence on the disk about a change that a crash interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CrashEvidence {
    /// The file carries the mark of this call, or has the text that the call would have written.
    Happened,
    /// The precondition still holds.
    DidNotHappen,
    /// Neither.
    Unknown,
}

/// The current text and mode of a file.
struct CurrentFile {
    text: String,
    mode: Mode,
}

impl FileReplacement<'_> {
    /// Returns the file's current text, or `None` if the file is expected not to exist.
    ///
    /// # Errors
    ///
    /// Returns a refusal if the precondition does not hold.
    pub(crate) fn read_old_text(&self, root: &WorkspaceRoot) -> Result<Option<String>, ToolRefusal> {
        let current = match root.open_parent(self.path, MissingFolderPolicy::Refuse) {
            Ok((folder, name)) => self.read_current(folder.as_fd(), name)?,
            Err(ToolRefusal::NotFound { .. }) => None,
            Err(refusal) => return Err(refusal),
        };
        self.check_precondition(current.as_ref())?;
        Ok(current.map(|current| current.text))
    }

    /// Replaces the file's text atomically.
    ///
    /// # Errors
    ///
    /// Returns a refusal if the precondition does not hold or a system call fails; the temporary file is removed.
    pub(crate) fn write(&self, root: &WorkspaceRoot, text: &str) -> Result<(), ToolRefusal> {
        let missing = match self.precondition {
            FilePrecondition::Absent => MissingFolderPolicy::Create,
            FilePrecondition::Version(_) => MissingFolderPolicy::Refuse,
        };
        let (folder, name) = root.open_parent(self.path, missing)?;
        let current = self.read_current(folder.as_fd(), name)?;
        self.check_precondition(current.as_ref())?;
        let beside = self.temp_name();
        let done = self
            .write_temp(folder.as_fd(), &beside, text, current.map(|current| current.mode))
            // The precondition is checked again just before the rename, because writing takes time.
            .and_then(|()| self.check_precondition(self.read_current(folder.as_fd(), name)?.as_ref()))
            .and_then(|()| self.rename_into_place(folder.as_fd(), &beside, name));
        if done.is_err() {
            remove_if_present(folder.as_fd(), &beside)?;
        }
        done
    }

    /// Collects the evidence about a call that a crash interrupted, and removes its temporary file.
    pub(crate) fn collect_evidence(
        &self,
        root: &WorkspaceRoot,
        wanted: Option<&str>,
    ) -> Result<CrashEvidence, ToolRefusal> {
        let (folder, name) = match root.open_parent(self.path, MissingFolderPolicy::Refuse) {
            Ok(found) => found,
            Err(ToolRefusal::NotFound { .. }) if self.precondition == FilePrecondition::Absent => {
                return Ok(CrashEvidence::DidNotHappen);
            }
            Err(refusal) => return Err(refusal),
        };
        remove_if_present(folder.as_fd(), &self.temp_name())?;
        match open_file_at(folder.as_fd(), name) {
            Ok(file) if read_call_mark(&file).as_deref() == Some(self.call_key) => {
                return Ok(CrashEvidence::Happened);
            }
            Ok(_) | Err(_) => {}
        }
        let current = self.read_current(folder.as_fd(), name)?;
        let text = current.as_ref().map(|current| current.text.as_str());
        Ok(match (self.check_precondition(current.as_ref()), text, wanted) {
            (Ok(()), _, _) => CrashEvidence::DidNotHappen,
            (Err(_), Some(text), Some(wanted)) if text == wanted => CrashEvidence::Happened,
            (Err(_), _, _) => CrashEvidence::Unknown,
        })
    }

    fn read_current(&self, folder: BorrowedFd<'_>, name: &str) -> Result<Option<CurrentFile>, ToolRefusal> {
        match open_file_at(folder, name) {
            Ok(file) => {
                let (text, mode) = read_text_and_mode(file, self.path, self.max_bytes, self.tool_name)?;
                Ok(Some(CurrentFile { text, mode }))
            }
            Err(Errno::NOENT) => Ok(None),
            // This includes sockets, which cannot be opened and must not be replaced.
            Err(errno) => Err(ToolRefusal::from_errno(self.path, errno)),
        }
    }

    fn check_precondition(&self, current: Option<&CurrentFile>) -> Result<(), ToolRefusal> {
        let stale = |why| ToolRefusal::VersionMismatch { path: self.path.to_string(), reason: why };
        match (self.precondition, current) {
            (FilePrecondition::Absent, None) => Ok(()),
            (FilePrecondition::Absent, Some(_)) => Err(stale("is there already, and no version was given")),
            (FilePrecondition::Version(_), None) => {
                Err(ToolRefusal::NotFound { path: self.path.to_string() })
            }
            (FilePrecondition::Version(told), Some(current))
                if FileVersion::of_text(&current.text).matches(told) =>
            {
                Ok(())
            }
            (FilePrecondition::Version(_), Some(_)) => Err(stale("has changed since that version")),
        }
    }

    /// Returns the name of the temporary file. It contains the call's key, so that a repeated call finds its own.
    fn temp_name(&self) -> String {
        format!(".windlass-{}.part", self.call_key)
    }

    fn write_temp(
        &self,
        folder: BorrowedFd<'_>,
        beside: &str,
        text: &str,
        mode: Option<Mode>,
    ) -> Result<(), ToolRefusal> {
        remove_if_present(folder, beside)?;
        let system = |errno| ToolRefusal::from_errno(self.path, errno);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::openat(folder, beside, flags, Mode::from_raw_mode(0o666)).map_err(system)?;
        if let Some(mode) = mode {
            fs::fchmod(&file, mode).map_err(system)?;
        }
        let mut file = File::from(file);
        file.write_all(text.as_bytes()).map_err(|error| ToolRefusal::from_io(self.path, &error))?;
        set_call_mark(&file, self.call_key);
        file.sync_all().map_err(|error| ToolRefusal::from_io(self.path, &error))
    }

    fn rename_into_place(&self, folder: BorrowedFd<'_>, beside: &str, name: &str) -> Result<(), ToolRefusal> {
        let moved = match self.precondition {
            FilePrecondition::Absent => rename_noreplace(folder, beside, name),
            FilePrecondition::Version(_) => fs::renameat(folder, beside, folder, name),
        };
        moved.map_err(|errno| match errno {
            Errno::EXIST => {
                ToolRefusal::VersionMismatch { path: self.path.to_string(), reason: "appeared meanwhile" }
            }
            errno => ToolRefusal::from_errno(self.path, errno),
        })?;
        fs::fsync(folder).map_err(|errno| ToolRefusal::from_errno(self.path, errno))
    }
}

/// Renames a file to a name that must not exist.
///
/// # Errors
///
/// Returns `EEXIST` if the name is taken.
fn rename_noreplace(folder: BorrowedFd<'_>, beside: &str, name: &str) -> Result<(), Errno> {
    #[cfg(target_os = "linux")]
    match fs::renameat_with(folder, beside, folder, name, fs::RenameFlags::NOREPLACE) {
        // The file system does not support `RENAME_NOREPLACE`.
        Err(Errno::INVAL | Errno::NOSYS) => {}
        other => return other,
    }
    fs::linkat(folder, beside, folder, name, AtFlags::empty())?;
    fs::unlinkat(folder, beside, AtFlags::empty())
}

/// Marks a file with the key of the call that wrote it. A file system without extended attributes ignores
/// this, and the file's text is then the only evidence.
fn set_call_mark(file: &File, key: &str) {
    let marked = fs::fsetxattr(file, CALL_MARK_XATTR, key.as_bytes(), XattrFlags::empty());
    debug_assert!(marked != Err(Errno::INVAL), "the name of the mark is right");
}

fn read_call_mark(file: &OwnedFd) -> Option<String> {
    let mut room = [0; 128];
    let length = fs::fgetxattr(file, CALL_MARK_XATTR, &mut room).ok()?;
    String::from_utf8(room.get(..length)?.to_vec()).ok()
}

fn remove_if_present(folder: BorrowedFd<'_>, name: &str) -> Result<(), ToolRefusal> {
    match fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(ToolRefusal::from_errno(name, errno)),
    }
}

#[cfg(test)]
#[path = "replace_tests.rs"]
mod tests;

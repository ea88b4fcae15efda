//! Traversal of the workspace: sorted, without following links, and without files that Git ignores.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{self, Dir, FileType};

use super::open::{open_file_at, open_folder_at, read_text_and_mode};
use super::{HiddenLinks, WorkspacePath, WorkspaceRoot};
use crate::error::ToolRefusal;

/// Maximum depth of the traversal.
const MAX_DEPTH: usize = 64;
/// Maximum number of entries read from one folder.
const MAX_FOLDER_ENTRIES: usize = 100_000;
/// Maximum size of a `.gitignore` file, in bytes; a larger one is ignored.
const MAX_IGNORE_BYTES: u64 = 1024 * 1024;

/// A file or folder visited by the traversal.
pub(crate) struct WalkEntry<'a> {
    pub(crate) path: WorkspacePath,
    pub(crate) is_folder: bool,
    folder: BorrowedFd<'a>,
    name: &'a str,
}

impl WalkEntry<'_> {
    /// Reads the file's text.
    ///
    /// # Errors
    ///
    /// Returns a refusal if the file is not text, exceeds `limit` bytes, or is a hidden file under another name.
    pub(crate) fn read_text(&self, limit: u64, hidden: &HiddenLinks<'_>) -> Result<String, ToolRefusal> {
        let file = open_file_at(self.folder, self.name)
            .map_err(|errno| ToolRefusal::from_errno(&self.path, errno))?;
        if hidden.covers(&file) {
            return Err(ToolRefusal::NotFound { path: self.path.to_string() });
        }
        read_text_and_mode(file, &self.path, limit, "search_files").map(|(text, _)| text)
    }
}

/// A visitor's decision about the rest of the traversal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkControl {
    Continue,
    /// Continue without descending into this folder.
    SkipFolder,
    Stop,
}

impl WorkspaceRoot {
    /// Visits the contents of an open folder recursively. Files that match `hidden` are skipped.
    pub(crate) fn walk(
        &self,
        start: &WorkspacePath,
        folder: &OwnedFd,
        hidden: &Gitignore,
        visit: &mut dyn FnMut(&WalkEntry<'_>) -> WalkControl,
    ) -> Result<(), ToolRefusal> {
        let mut rules = vec![hidden.clone()];
        // `.gitignore` files above the start folder apply too.
        let mut above = WorkspacePath::root();
        for part in start.parts() {
            rules.extend(
                self.open_folder(&above).ok().and_then(|folder| load_ignore_rules(folder.as_fd(), &above)),
            );
            above = above.join(part);
        }
        walk_folder(folder.as_fd(), start, &mut rules, visit, 0).map(|_| ())
    }
}

fn walk_folder(
    folder: BorrowedFd<'_>,
    place: &WorkspacePath,
    rules: &mut Vec<Gitignore>,
    visit: &mut dyn FnMut(&WalkEntry<'_>) -> WalkControl,
    depth: usize,
) -> Result<WalkControl, ToolRefusal> {
    let known = rules.len();
    rules.extend(load_ignore_rules(folder, place));
    let entries = list_entries(folder).map_err(|errno| ToolRefusal::from_errno(place, errno))?;
    for (name, is_folder) in &entries {
        let place = place.join(name);
        if is_ignored(rules, &place, *is_folder) || name == ".git" {
            continue;
        }
        let next = visit(&WalkEntry { path: place.clone(), is_folder: *is_folder, folder, name });
        match next {
            WalkControl::Continue => {}
            WalkControl::SkipFolder => continue,
            WalkControl::Stop => return Ok(WalkControl::Stop),
        }
        if *is_folder && depth < MAX_DEPTH {
            // A folder that was removed meanwhile, or is unreadable, is skipped.
            let Some(inner) = open_folder_at(folder, name).ok() else { continue };
            if walk_folder(inner.as_fd(), &place, rules, visit, depth + 1)? == WalkControl::Stop {
                return Ok(WalkControl::Stop);
            }
        }
    }
    rules.truncate(known);
    Ok(WalkControl::Continue)
}

/// Lists the regular files and folders of a folder, sorted by name; true marks a folder. Links, FIFOs, sockets and
/// devices are omitted.
fn list_entries(folder: BorrowedFd<'_>) -> Result<Vec<(String, bool)>, rustix::io::Errno> {
    let mut found = Vec::new();
    for entry in Dir::read_from(folder)?.take(MAX_FOLDER_ENTRIES) {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        if name == "." || name == ".." || name.contains(char::is_control) {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => fs::statat(folder, name, fs::AtFlags::SYMLINK_NOFOLLOW)
                .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
            known => known,
        };
        match kind {
            FileType::Directory => found.push((name.to_owned(), true)),
            FileType::RegularFile => found.push((name.to_owned(), false)),
            FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => {}
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Loads the rules of a folder's `.gitignore` file, if it has one.
fn load_ignore_rules(folder: BorrowedFd<'_>, place: &WorkspacePath) -> Option<Gitignore> {
    let file: OwnedFd = open_file_at(folder, ".gitignore").ok()?;
    let (text, _) = read_text_and_mode(file, place, MAX_IGNORE_BYTES, "search_files").ok()?;
    let mut builder = GitignoreBuilder::new(if place.is_root() { "" } else { place.as_path() });
    for line in text.lines() {
        // An invalid line is skipped, as Git does.
        builder.add_line(None, line).ok();
    }
    builder.build().ok()
}

fn is_ignored(rules: &[Gitignore], place: &WorkspacePath, is_folder: bool) -> bool {
    // The nearest `.gitignore` takes precedence, but it cannot reveal hidden files.
    let Some((hidden, nearer)) = rules.split_first() else { return false };
    if hidden.matched(place.as_path(), is_folder).is_ignore() {
        return true;
    }
    for rule in nearer.iter().rev() {
        match rule.matched(place.as_path(), is_folder) {
            Match::Ignore(_) => return true,
            Match::Whitelist(_) => return false,
            Match::None => {}
        }
    }
    false
}

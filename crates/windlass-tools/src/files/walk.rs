//! Walking through the workspace: in order, without following links, leaving out what Git ignores.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{self, Dir, FileType};

use super::open::{open_file_at, open_folder_at, text_of};
use super::{Place, Root};
use crate::error::Refusal;

/// How deep folders are followed.
const DEEPEST: usize = 64;
/// How many entries of one folder are looked at.
const WIDEST: usize = 100_000;
/// How much of a `.gitignore` file is read.
const IGNORE_BYTES: u64 = 1024 * 1024;

/// Something that was found.
pub(crate) struct Found<'a> {
    pub(crate) place: Place,
    pub(crate) is_folder: bool,
    folder: BorrowedFd<'a>,
    name: &'a str,
}

impl Found<'_> {
    /// The file's text, where it is text and not too long.
    pub(crate) fn text(&self, limit: u64) -> Result<String, Refusal> {
        let file =
            open_file_at(self.folder, self.name).map_err(|errno| Refusal::system(&self.place, errno))?;
        text_of(file, &self.place, limit, "search_files").map(|(text, _)| text)
    }
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walk {
    On,
    /// Not into this folder.
    Past,
    Stop,
}

impl Root {
    /// Visits what is in an open folder and in the folders in it. `hidden` is left out as if it were not there.
    pub(crate) fn walk(
        &self,
        start: &Place,
        folder: &OwnedFd,
        hidden: &Gitignore,
        visit: &mut dyn FnMut(&Found<'_>) -> Walk,
    ) -> Result<(), Refusal> {
        let mut rules = vec![hidden.clone()];
        // What stands above the start has its say too.
        let mut above = Place::root();
        for part in start.parts() {
            rules.extend(self.open_folder(&above).ok().and_then(|folder| rules_of(folder.as_fd(), &above)));
            above = above.join(part);
        }
        walk_folder(folder.as_fd(), start, &mut rules, visit, 0).map(|_| ())
    }
}

fn walk_folder(
    folder: BorrowedFd<'_>,
    place: &Place,
    rules: &mut Vec<Gitignore>,
    visit: &mut dyn FnMut(&Found<'_>) -> Walk,
    depth: usize,
) -> Result<Walk, Refusal> {
    let known = rules.len();
    rules.extend(rules_of(folder, place));
    let entries = entries(folder).map_err(|errno| Refusal::system(place, errno))?;
    for (name, is_folder) in &entries {
        let place = place.join(name);
        if is_ignored(rules, &place, *is_folder) || name == ".git" {
            continue;
        }
        let next = visit(&Found { place: place.clone(), is_folder: *is_folder, folder, name });
        match next {
            Walk::On => {}
            Walk::Past => continue,
            Walk::Stop => return Ok(Walk::Stop),
        }
        if *is_folder && depth < DEEPEST {
            // What is gone by now, or may not be read, is passed over, as a listing would.
            let Some(inner) = open_folder_at(folder, name).ok() else { continue };
            if walk_folder(inner.as_fd(), &place, rules, visit, depth + 1)? == Walk::Stop {
                return Ok(Walk::Stop);
            }
        }
    }
    rules.truncate(known);
    Ok(Walk::On)
}

/// The plain files and folders of a folder, by name. Links, pipes and devices are not shown.
fn entries(folder: BorrowedFd<'_>) -> Result<Vec<(String, bool)>, rustix::io::Errno> {
    let mut found = Vec::new();
    for entry in Dir::read_from(folder)?.take(WIDEST) {
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

/// What the `.gitignore` of a folder says.
fn rules_of(folder: BorrowedFd<'_>, place: &Place) -> Option<Gitignore> {
    let file: OwnedFd = open_file_at(folder, ".gitignore").ok()?;
    let (text, _) = text_of(file, place, IGNORE_BYTES, "search_files").ok()?;
    let mut builder = GitignoreBuilder::new(if place.is_root() { "" } else { place.as_path() });
    for line in text.lines() {
        // A line that cannot be read is passed over, as Git does.
        builder.add_line(None, line).ok();
    }
    builder.build().ok()
}

fn is_ignored(rules: &[Gitignore], place: &Place, is_folder: bool) -> bool {
    // The folder nearest to the file has the last word, but what is hidden stays hidden.
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

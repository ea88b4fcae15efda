//! Signs that a file is not the store that its owner takes it for: found when it is opened, reported as values.
//!
//! A store knows two things about its past. The table `store` has the number of its commits, and the file `…-turn`
//! beside it the number that the last synced commit reached: if the table is behind, commits are lost. And the table
//! has the place at which the store was driven last: a copy is at another.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, params};

use super::file::SqliteError;
use super::writer_turn::{TURN_SUFFIX, open_companion_file};

/// A sign that a file is not the store that its owner takes it for. The store works; somebody should look.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreWarning {
    /// The file has several names (hard links). SQLite's write-ahead log belongs to a name: a process that opens the
    /// file under another name does not see what is in the log, and may damage the file.
    HardLinks {
        /// Number of names.
        names: u64,
    },
    /// Commits are missing that were on the disk: the write-ahead log was deleted, or an older file was put in place of
    /// this one. Calls that had run may run again.
    LostCommits {
        /// Number of commits that the file has.
        found: u64,
        /// Number of commits that it had.
        expected: u64,
    },
    /// The file is a copy, and the original is still there. Both must not be driven: each would do the same calls.
    Copied {
        /// Path of the original.
        original: PathBuf,
    },
    /// The file is a backup. It is read and not written until it is restored: see
    /// [`SqliteStore::restore`](crate::store::SqliteStore::restore).
    Backup,
    /// The file was driven last at another place, and may be a copy. If the original is still driven, both do the same
    /// calls.
    Moved {
        /// Name of the host.
        host: String,
        /// Path of the file on that host.
        path: PathBuf,
    },
}

impl fmt::Display for StoreWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HardLinks { names } => write!(
                f,
                "the file has {names} names (hard links): records that were written under another name may be missing \
                 here; hint: use one name for all processes"
            ),
            Self::LostCommits { found, expected } => write!(
                f,
                "{} commits are missing: the file has {found} of {expected}; its write-ahead log was deleted, or an older \
                 copy was put in its place, and calls that had run may run again; hint: `windlass restore` puts them in doubt",
                expected.saturating_sub(*found)
            ),
            Self::Copied { original } => write!(
                f,
                "the file is a copy of `{}`, which is still there: if both are driven, the same calls are made twice",
                original.display()
            ),
            Self::Backup => f.write_str(
                "the file is a backup: it can be read, and nothing is written to it; hint: `windlass restore` makes a \
                 store of it, in which calls that may have run since are in doubt",
            ),
            Self::Moved { host, path } => write!(
                f,
                "the file was driven last as `{}` on host `{host}`: if it is a copy and the original is driven too, the \
                 same calls are made twice",
                path.display()
            ),
        }
    }
}

/// The place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FilePlace {
    host: String,
    path: String,
    /// Number of the file in its file system; 0 where there is none.
    inode: i64,
}

impl FilePlace {
    /// Returns the place of a file that exists.
    pub(super) fn of_file(path: &Path) -> Self {
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        Self { host: host_name(), inode: inode(&path), path: path.to_string_lossy().into_owned() }
    }

    /// Returns true if both are the same file of the same host. The disk of a clone has the same paths and inodes.
    fn is_same_file(&self, other: &Self) -> bool {
        self == other
    }
}

/// Returns the warnings about a file that is open.
pub(super) fn find_warnings(db: &Connection, path: &Path) -> Result<Vec<StoreWarning>, SqliteError> {
    if super::schema::is_backup(db)? {
        return Ok(vec![StoreWarning::Backup]);
    }
    let mut warnings = Vec::new();
    let names = count_names(path);
    if names > 1 {
        warnings.push(StoreWarning::HardLinks { names });
    }
    // The mark is read first: a commit between the two reads raises the number in the table.
    let mark = CommitMark::open(path).and_then(|mut mark| mark.read());
    let (id, commits) = read_commits(db)?;
    if let Some((of, expected)) = mark
        && of == id
        && expected > commits
    {
        warnings.push(StoreWarning::LostCommits { found: commits, expected });
    }
    let here = FilePlace::of_file(path);
    match read_place(db)? {
        Some(driven) if !driven.is_same_file(&here) => {
            warnings.push(if original_exists(&driven, &here) {
                StoreWarning::Copied { original: driven.path.into() }
            } else {
                StoreWarning::Moved { host: driven.host, path: driven.path.into() }
            });
        }
        _ => {}
    }
    Ok(warnings)
}

/// Records that the store is driven at this place, unless it is a copy whose original is still there.
pub(super) fn record_place(db: &Connection, here: &FilePlace) -> Result<(), SqliteError> {
    if let Some(driven) = read_place(db)?
        && (driven.is_same_file(here) || original_exists(&driven, here))
    {
        return Ok(());
    }
    let update = "UPDATE store SET host = ?1, path = ?2, inode = ?3";
    db.execute(update, params![here.host, here.path, here.inode])?;
    Ok(())
}

fn original_exists(driven: &FilePlace, here: &FilePlace) -> bool {
    driven.host == here.host
        && driven.path != here.path
        && inode(Path::new(&driven.path)) == driven.inode
        && driven.inode != 0
}

fn read_place(db: &Connection) -> Result<Option<FilePlace>, SqliteError> {
    let select = "SELECT host, path, inode FROM store WHERE path IS NOT NULL";
    let found = db.query_row(select, [], |row| {
        Ok(FilePlace { host: row.get(0)?, path: row.get(1)?, inode: row.get(2)? })
    });
    Ok(found.optional()?)
}

fn read_commits(db: &Connection) -> Result<(String, u64), SqliteError> {
    let select = "SELECT id, commits FROM store";
    let (id, commits) = db.query_row(select, [], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)))?;
    Ok((id, super::from_sql_integer(commits)?))
}

/// The number of synced commits, beside the file.
#[derive(Debug)]
pub(super) struct CommitMark {
    file: File,
}

impl CommitMark {
    pub(super) fn open(database: &Path) -> Option<Self> {
        Some(Self { file: open_companion_file(database, TURN_SUFFIX).ok()? })
    }

    fn read(&mut self) -> Option<(String, u64)> {
        let mut text = String::new();
        self.file.seek(SeekFrom::Start(0)).ok()?;
        self.file.read_to_string(&mut text).ok()?;
        let (id, commits) = text.trim_end().rsplit_once(' ')?;
        Some((id.to_owned(), commits.parse().ok()?))
    }

    /// Writes the number of a commit that is on the disk. The mark itself need not be: an older one warns less.
    pub(super) fn write(&mut self, store: &str, commits: u64) {
        let text = format!("{store} {commits:020}\n");
        let written = self.file.seek(SeekFrom::Start(0)).and_then(|_| self.file.write_all(text.as_bytes()));
        if let Err(error) = written {
            tracing::debug!(%error, "the number of commits could not be noted");
        }
    }
}

/// Returns the name of this host, which survives a restart.
fn host_name() -> String {
    let name = ["/etc/machine-id", "/proc/sys/kernel/hostname"].iter().find_map(|path| {
        let text = fs::read_to_string(path).ok()?;
        Some(text.trim().to_owned()).filter(|name| !name.is_empty())
    });
    name.unwrap_or_default()
}

#[cfg(unix)]
fn inode(path: &Path) -> i64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).map_or(0, |file| file.ino().cast_signed())
}

#[cfg(not(unix))]
fn inode(_: &Path) -> i64 {
    0
}

#[cfg(unix)]
fn count_names(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).map_or(1, |file| file.nlink())
}

#[cfg(not(unix))]
fn count_names(_: &Path) -> u64 {
    1
}

//! Online backups: a consistent copy of the file while runs go on, and stores that are made of them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::SqliteStore;
use super::file::DatabaseFile;
use super::schema::{APPLICATION_ID, BACKUP_APPLICATION_ID};
use super::writer_turn::TURN_SUFFIX;
use crate::error::{StoreError, StoreErrorKind};
use crate::store::{RestoreReport, mark_restored};

/// Endings of the files that SQLite and the writer keep beside a store.
const COMPANION_SUFFIXES: [&str; 3] = ["-wal", "-shm", TURN_SUFFIX];

/// Writes a copy of the database to `target`, which must not exist. The copy has all commits before the call, and is
/// complete and on the disk when it has its name.
pub(super) fn write_backup(file: &DatabaseFile, target: &Path) -> Result<(), StoreError> {
    if target.exists() {
        let message = format!("`{}` exists already; a backup does not replace a file", target.display());
        return Err(StoreError::with_kind(StoreErrorKind::AlreadyExists, message));
    }
    let partial = target.with_added_extension("partial");
    copy_database(file, &partial)?;
    mark_file(&partial, &format!("PRAGMA application_id = {BACKUP_APPLICATION_ID}"))
        .and_then(|()| publish(&partial, target).map_err(|error| disk_error(target, error)))
}

/// Makes a store of a backup at a path that does not exist.
pub(super) async fn restore_backup(backup: PathBuf, target: PathBuf) -> Result<RestoreReport, StoreError> {
    if target.exists() {
        let message = format!(
            "`{}` exists already; a restore does not replace a store; hint: move it away with its companion files",
            target.display()
        );
        return Err(StoreError::with_kind(StoreErrorKind::AlreadyExists, message));
    }
    let partial = target.with_added_extension("partial");
    // Until the file has its name, nothing drives it: an interrupted restore leaves no store.
    run_blocking({
        let partial = partial.clone();
        move || {
            remove_companions(&partial).map_err(|error| disk_error(&partial, error))?;
            let source = DatabaseFile::new(backup);
            drop(source.connect_to_salvage()?);
            copy_database(&source, &partial)?;
            mark_file(&partial, &format!("PRAGMA application_id = {APPLICATION_ID}"))
        }
    })
    .await?;
    let store = SqliteStore::open(&partial)?;
    let report = mark_restored(&store).await?;
    run_blocking(move || {
        // Waits until everything is in the file.
        drop(store);
        mark_file(
            &partial,
            "UPDATE store SET host = NULL, path = NULL, inode = NULL; PRAGMA journal_mode = delete",
        )?;
        // The log and the mark beside the path are those of the store that is lost.
        remove_companions(&partial)
            .and_then(|()| remove_companions(&target))
            .and_then(|()| publish(&partial, &target))
            .map_err(|error| disk_error(&target, error))
    })
    .await?;
    Ok(report)
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(StoreError::new("the restore was not finished").with_source(error)))
}

/// Copies a database to a file, in place of an unfinished copy.
fn copy_database(file: &DatabaseFile, partial: &Path) -> Result<(), StoreError> {
    remove_if_present(partial).map_err(|error| disk_error(partial, error))?;
    let Some(name) = partial.to_str() else {
        return Err(StoreError::new(format!("`{}` is not a path in UTF-8", partial.display())));
    };
    let copied = file
        .connect_to_copy()
        .and_then(|db| db.execute("VACUUM INTO ?1", [name]).map_err(|error| file.to_store_error(error)));
    if copied.is_err() {
        fs::remove_file(partial).ok();
    }
    copied.map(|_| ())
}

/// Executes statements in a copy that nobody else has open.
fn mark_file(copy: &Path, statements: &str) -> Result<(), StoreError> {
    Connection::open(copy)
        .and_then(|db| db.execute_batch(statements))
        .map_err(|error| DatabaseFile::new(copy.to_owned()).to_store_error(error))
}

/// Gives a complete copy its name.
fn publish(partial: &Path, target: &Path) -> std::io::Result<()> {
    File::open(partial).and_then(|copy| copy.sync_all())?;
    // A link fails if the name was taken meanwhile; a rename would replace the file.
    fs::hard_link(partial, target).or_else(|_| fs::rename(partial, target))?;
    fs::remove_file(partial).ok();
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all())
}

fn remove_companions(path: &Path) -> std::io::Result<()> {
    COMPANION_SUFFIXES.iter().try_for_each(|suffix| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        remove_if_present(Path::new(&name))
    })
}

fn remove_if_present(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn disk_error(path: &Path, error: std::io::Error) -> StoreError {
    let message = format!("`{}` cannot be written: {error}", path.display());
    StoreError::with_kind(StoreErrorKind::Disk, message).with_source(error)
}

//! Online backups: a consistent copy of the file while runs go on.

use std::fs::{self, File};
use std::path::Path;

use super::file::DatabaseFile;
use crate::error::{StoreError, StoreErrorKind};

/// Writes a copy of the database to `target`, which must not exist. The copy has all commits before the call, and is
/// complete and on the disk when it has its name.
pub(super) fn write_backup(file: &DatabaseFile, target: &Path) -> Result<(), StoreError> {
    if target.exists() {
        let message = format!("`{}` exists already; a backup does not replace a file", target.display());
        return Err(StoreError::with_kind(StoreErrorKind::AlreadyExists, message));
    }
    let partial = target.with_added_extension("partial");
    let failed = |error: std::io::Error| {
        let message = format!("the backup `{}` cannot be written: {error}", target.display());
        StoreError::with_kind(StoreErrorKind::Disk, message).with_source(error)
    };
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        Ok(()) | Err(_) => {}
    }
    let Some(name) = partial.to_str() else {
        return Err(StoreError::new(format!("`{}` is not a path in UTF-8", target.display())));
    };
    let copied = file
        .connect_to_copy()
        .and_then(|db| db.execute("VACUUM INTO ?1", [name]).map_err(|error| file.to_store_error(error)));
    if let Err(error) = copied {
        fs::remove_file(&partial).ok();
        return Err(error);
    }
    File::open(&partial).and_then(|copy| copy.sync_all()).map_err(failed)?;
    // A link fails if the name was taken meanwhile; a rename would replace the file.
    fs::hard_link(&partial, target).or_else(|_| fs::rename(&partial, target)).map_err(failed)?;
    fs::remove_file(&partial).ok();
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}

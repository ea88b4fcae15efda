//! The private temporary folder of a command.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The command's private temporary folder, which is also its `HOME`; removed on drop.
pub(super) struct ScratchFolder(PathBuf);

impl ScratchFolder {
    /// Makes a folder that did not exist, with a name that nobody can predict.
    pub(super) fn new() -> io::Result<Self> {
        let path = std::env::temp_dir().join(random_name("windlass-command-")?);
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Returns a file name with 128 random bits after `prefix`.
#[cfg(target_os = "linux")]
pub(super) fn random_name(prefix: &str) -> io::Result<String> {
    let mut bits = [0u8; 16];
    let mut filled = 0;
    while let Some(rest) = bits.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())?;
    }
    let number = u128::from_ne_bytes(bits);
    Ok(format!("{prefix}{number:032x}"))
}

/// Returns a file name with 128 random bits after `prefix`.
#[cfg(not(target_os = "linux"))]
pub(super) fn random_name(prefix: &str) -> io::Result<String> {
    use std::io::Read;
    let mut bits = [0u8; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bits)?;
    Ok(format!("{prefix}{:032x}", u128::from_ne_bytes(bits)))
}

//! The executable of the helper, as an open descriptor.
//!
//! **Invariant:** the helper is never started by a path that a command could have changed. Our own executable is
//! opened once, through the kernel's link to the running program, and is executed from that descriptor, so that a
//! renamed, replaced or deleted file has no effect. A copy in memory (`memfd`) would do the same, but costs the
//! size of the program and is forbidden on machines with `vm.memfd_noexec`; it is not needed, because an executable
//! beneath a folder in which commands may write is refused.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};

/// Our own executable, opened by [`open_own`].
static OWN_EXECUTABLE: OnceLock<Option<OwnedFd>> = OnceLock::new();

/// An opened executable that no command can change.
pub(super) struct HelperExecutable {
    descriptor: OwnedFd,
    /// The path by which it was opened, for platforms that cannot execute a descriptor.
    path: PathBuf,
}

/// Opens our own executable. Later calls keep the descriptor of the first.
pub(super) fn open_own() {
    OWN_EXECUTABLE.get_or_init(|| open_program(&own_path()?).ok());
}

impl HelperExecutable {
    /// Returns our own executable.
    ///
    /// # Errors
    ///
    /// Returns the reason if it could not be opened, or if it lies beneath one of the folders `writable`.
    pub(super) fn own(writable: &[&Path]) -> Result<Self, String> {
        let opened = OWN_EXECUTABLE.get().and_then(Option::as_ref);
        let opened = opened.ok_or("this program cannot open its own executable: is /proc there?")?;
        let descriptor = rustix::io::fcntl_dupfd_cloexec(opened, 0)
            .map_err(|error| format!("the helper cannot be opened: {error}"))?;
        Self { descriptor, path: own_path().unwrap_or_default() }.ensure_out_of_reach(writable)
    }

    /// Opens another program.
    ///
    /// # Errors
    ///
    /// Returns the reason if it cannot be opened, or if it lies beneath one of the folders `writable`.
    pub(super) fn of_program(program: &Path, writable: &[&Path]) -> Result<Self, String> {
        let descriptor = open_program(program)
            .map_err(|error| format!("the helper `{}` cannot be opened: {error}", program.display()))?;
        Self { descriptor, path: program.to_owned() }.ensure_out_of_reach(writable)
    }

    /// Returns the path under which a child process of this one executes the descriptor.
    pub(super) fn exec_path(&self) -> PathBuf {
        if cfg!(target_os = "linux") {
            // The kernel resolves this path in the child, before it closes the child's copy of the descriptor.
            format!("/proc/self/fd/{}", self.descriptor.as_raw_fd()).into()
        } else {
            self.path.clone()
        }
    }

    fn ensure_out_of_reach(self, writable: &[&Path]) -> Result<Self, String> {
        let path = if cfg!(target_os = "linux") {
            std::fs::read_link(self.exec_path())
        } else {
            self.path.canonicalize()
        };
        let path = path.map_err(|error| format!("the place of the helper is not known: {error}"))?;
        for folder in writable {
            let folder = folder.canonicalize().unwrap_or_else(|_| (*folder).to_owned());
            if path.starts_with(&folder) {
                return Err(format!(
                    "the helper `{}` lies in `{}`, where commands may write, so that a command could replace it: \
                     install the program elsewhere, or choose another workspace",
                    path.display(),
                    folder.display()
                ));
            }
        }
        Ok(self)
    }
}

fn open_program(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Returns the kernel's link to the running program, which does not depend on the file's name.
fn own_path() -> Option<PathBuf> {
    if cfg!(target_os = "linux") { Some("/proc/self/exe".into()) } else { std::env::current_exe().ok() }
}

/// Returns the path by which this process starts its own program again.
///
/// # Errors
///
/// Returns an error if the program has no path.
pub(super) fn running_program() -> std::io::Result<PathBuf> {
    own_path().ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotFound))
}

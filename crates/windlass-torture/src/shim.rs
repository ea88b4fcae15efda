//! The fault shim of a process: a preloaded C library, and the control file by which the torturer steers it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("shim.c");

/// Environment variable that names the control file of a process.
const CONTROL_VARIABLE: &str = "WINDLASS_TORTURE_CONTROL";

/// Number of fields in the control file, 8 bytes each: see `struct control` in `shim.c`.
const FIELD_COUNT: usize = 7;

/// The compiled library.
#[derive(Clone, Debug)]
pub struct FaultShim {
    library: PathBuf,
}

impl FaultShim {
    /// Compiles the library with the C compiler of the machine.
    ///
    /// # Errors
    /// Returns the reason why there is no library: there is no compiler, or it fails.
    pub fn compile(folder: &Path) -> Result<Self, String> {
        let (source, library) = (folder.join("shim.c"), folder.join("shim.so"));
        std::fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
        let compiled = Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(&source)
            .arg("-ldl")
            .output()
            .map_err(|error| format!("`cc` cannot be run: {error}"))?;
        if compiled.status.success() {
            Ok(Self { library })
        } else {
            Err(String::from_utf8_lossy(&compiled.stderr).into_owned())
        }
    }

    /// Makes a command start under the shim, with this control file.
    pub fn preload(&self, command: &mut Command, control: &FaultControl) {
        command.env("LD_PRELOAD", &self.library).env(CONTROL_VARIABLE, &control.path);
    }
}

/// The moment within a store operation at which a process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillStage {
    /// Before the operation.
    Before,
    /// After half of the bytes of a write.
    Torn,
    /// After the operation.
    After,
}

/// The control file of one process.
#[derive(Debug)]
pub struct FaultControl {
    path: PathBuf,
    file: File,
}

impl FaultControl {
    /// Creates a control file without faults.
    ///
    /// # Errors
    /// Returns the error of the file system.
    pub fn create(path: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&path)?;
        file.write_all_at(&[0; FIELD_COUNT * 8], 0)?;
        Ok(Self { path, file })
    }

    /// Sets the distance of the process's wall clock from the true one.
    ///
    /// # Errors
    /// Returns the error of the write.
    pub fn set_clock_offset(&self, seconds: i64) -> io::Result<()> {
        self.set_field(0, seconds)
    }

    /// Lets all writes to store files fail for want of space, or ends that.
    ///
    /// # Errors
    /// Returns the error of the write.
    pub fn set_disk_full(&self, is_full: bool) -> io::Result<()> {
        self.set_field(1, i64::from(is_full))
    }

    /// Lets the next syncs of store files fail.
    ///
    /// # Errors
    /// Returns the error of the write.
    pub fn fail_syncs(&self, count: i64) -> io::Result<()> {
        self.set_field(2, count)
    }

    /// Kills the process in the n-th store operation from now.
    ///
    /// # Errors
    /// Returns the error of the write.
    pub fn kill_in_operation(&self, count: i64, stage: KillStage) -> io::Result<()> {
        let stage = match stage {
            KillStage::Before => 0,
            KillStage::Torn => 1,
            KillStage::After => 2,
        };
        self.set_field(4, stage)?;
        self.set_field(3, count)
    }

    /// Ends all faults but the offset of the clock.
    ///
    /// # Errors
    /// Returns the error of the write.
    pub fn clear_faults(&self) -> io::Result<()> {
        self.set_field(1, 0)?;
        self.set_field(2, 0)?;
        self.set_field(3, 0)
    }

    /// Returns the number of writes and of syncs that the shim let fail.
    ///
    /// # Errors
    /// Returns the error of the read.
    pub fn failure_counts(&self) -> io::Result<(u64, u64)> {
        Ok((self.field(5)?, self.field(6)?))
    }

    fn set_field(&self, place: u64, value: i64) -> io::Result<()> {
        self.file.write_all_at(&value.to_ne_bytes(), place * 8)
    }

    fn field(&self, place: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, place * 8)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

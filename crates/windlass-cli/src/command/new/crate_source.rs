//! The source of the Windlass crates that a new project depends on.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::super::quote_toml;
use crate::args::NewArgs;
use crate::cli_error::CliError;

/// File in which cargo records the source of each program that it installed, in the folder that has `bin/`.
const INSTALL_RECORD: &str = ".crates.toml";
/// Folders beneath cargo's home in which it keeps sources for itself; it deletes them when it likes.
const CARGO_FOLDERS: [&str; 2] = ["git/checkouts", "registry/src"];

/// The source of the Windlass crates.
pub(super) enum CrateSource {
    /// The folder `crates` of a clone.
    Path(PathBuf),
    /// A Git repository.
    Git(GitSource),
}

impl CrateSource {
    /// Returns a Git repository that answers, the named clone, the revision that this command was installed from, or the
    /// clone that it was built in. A source that does not resolve is an error.
    pub(super) fn find(asked: &NewArgs) -> Result<Self, CliError> {
        if let Some(url) = &asked.git {
            let source = GitSource { url: url.clone(), revision: None };
            source.verify()?;
            return Ok(Self::Git(source));
        }
        if let Some(clone) = asked.path.as_deref() {
            let folders = [clone.join("crates"), clone.to_owned()];
            let Some(crates) = folders.into_iter().find(|folder| is_windlass_clone(folder)) else {
                return Err(CliError::not_found(format!("`{}` is not a clone of Windlass", clone.display()))
                    .with_hint("--path must be the folder that contains `crates/windlass`"));
            };
            return Ok(Self::Path(std::path::absolute(crates)?));
        }
        if let Some(source) = read_install_record() {
            source.verify()?;
            return Ok(Self::Git(source));
        }
        let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(PathBuf::from);
        match built_in.filter(|folder| is_windlass_clone(folder) && !is_cargo_folder(folder)) {
            Some(crates) => Ok(Self::Path(crates)),
            None => Err(CliError::not_found("the clone that this command was built in is gone")
                .with_hint("name the crates with `--path CLONE` or `--git URL`; nothing was written")),
        }
    }

    /// Returns the source of a crate as the fields of an inline table of TOML.
    pub(super) fn fields(&self, name: &str) -> String {
        // A folder name may contain characters that TOML must escape.
        match self {
            Self::Path(crates) => format!("path = {}", quote_toml(&crates.join(name).to_string_lossy())),
            Self::Git(GitSource { url, revision: None }) => format!("git = {}", quote_toml(url)),
            Self::Git(GitSource { url, revision: Some(revision) }) => {
                format!("git = {}, rev = {}", quote_toml(url), quote_toml(revision))
            }
        }
    }
}

/// A Git repository, at a revision or at its default branch.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GitSource {
    url: String,
    revision: Option<String>,
}

impl GitSource {
    /// Reads the source of an installed package: `git+URL?branch=NAME#REVISION`.
    fn from_package_source(source: &str) -> Option<Self> {
        let (url, revision) = source.strip_prefix("git+")?.rsplit_once('#')?;
        let url = url.split_once('?').map_or(url, |(url, _)| url);
        let is_revision = revision.len() >= 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_revision.then(|| Self { url: url.to_owned(), revision: Some(revision.to_owned()) })
    }

    /// Asks the repository for the revision, or whether it is there.
    fn verify(&self) -> Result<(), CliError> {
        let Self { url, revision } = self;
        // Git obeys the configuration of the repository in the current folder, which may be somebody else's and may name
        // programs to run. So it runs in a repository of its own.
        let scratch = std::env::temp_dir().join(format!("windlass-new-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir(&scratch)?;
        let _removed = RemovedFolder(&scratch);
        let made = run_git(&scratch, &["init", "--quiet", "--bare"])?;
        require_success(&made, || format!("`{}` cannot become a Git repository", scratch.display()))?;
        let local = Path::new(url).canonicalize().ok().filter(|path| path.is_dir());
        let place = local.as_deref().and_then(Path::to_str).unwrap_or(url);
        let Some(revision) = revision else {
            let listed = run_git(&scratch, &["ls-remote", "--exit-code", "--", place, "HEAD"])?;
            return require_success(&listed, || format!("there is no Git repository at `{url}`"));
        };
        // A revision need not be the end of a branch, so it is fetched, without its files.
        let words = ["fetch", "--quiet", "--depth", "1", "--filter", "tree:0", "--", place, revision];
        let fetched = run_git(&scratch, &words)?;
        require_success(&fetched, || {
            format!(
                "the Git repository `{url}`, which this command was installed from, has no revision {revision}"
            )
        })
    }
}

/// A folder that is removed at the end of its scope.
struct RemovedFolder<'p>(&'p Path);

impl Drop for RemovedFolder<'_> {
    fn drop(&mut self) {
        // What is left in the folder for temporary files is removed by the system.
        let _removed = std::fs::remove_dir_all(self.0);
    }
}

/// Runs git in a folder. It asks for no password.
fn run_git(folder: &Path, words: &[&str]) -> Result<Output, CliError> {
    let mut command = Command::new("git");
    let ran =
        command.current_dir(folder).args(words).env("GIT_TERMINAL_PROMPT", "0").stdin(Stdio::null()).output();
    ran.map_err(|error| {
        CliError::new(format!("git cannot be started: {error}"))
            .with_hint("`--path CLONE` names a clone on this machine; nothing was written")
    })
}

fn require_success(output: &Output, problem: impl FnOnce() -> String) -> Result<(), CliError> {
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(CliError::not_found(format!("{}: {}", problem(), said.trim()))
        .with_hint("`--path CLONE` names a clone on this machine; nothing was written"))
}

/// Returns the Git repository that cargo installed this command from.
fn read_install_record() -> Option<GitSource> {
    let program = std::env::current_exe().ok()?;
    let record = program.parent()?.parent()?.join(INSTALL_RECORD);
    find_installed_source(&std::fs::read_to_string(record).ok()?)
}

/// Returns the Git repository of this version of the command in the text of an install record.
fn find_installed_source(record: &str) -> Option<GitSource> {
    let record: toml::Table = record.parse().ok()?;
    let package = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"), " (");
    let sources = record.get("v1")?.as_table()?.keys();
    let source = sources.into_iter().find_map(|name| name.strip_prefix(package)?.strip_suffix(')'))?;
    GitSource::from_package_source(source)
}

/// Returns true if cargo keeps a folder for itself.
fn is_cargo_folder(folder: &Path) -> bool {
    let folder = folder.to_string_lossy().replace('\\', "/");
    CARGO_FOLDERS.iter().any(|kept| folder.contains(&format!("/{kept}/")))
}

fn is_windlass_clone(crates: &Path) -> bool {
    crates.join("windlass/Cargo.toml").is_file()
}

#[cfg(test)]
#[path = "crate_source_tests.rs"]
mod tests;

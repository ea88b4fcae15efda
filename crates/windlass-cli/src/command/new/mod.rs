//! `windlass new`: creates a Rust project with an agent and tests that need no API key.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::quote_toml;
use crate::args::NewArgs;
use crate::cli_error::{CliError, CommandExit};
use crate::terminal::{OutputFormat, Terminal, TextStyle, paint, styled};

const CARGO_TEMPLATE: &str = include_str!("Cargo.toml.in");
const LIB_TEMPLATE: &str = include_str!("lib.rs.in");
const MAIN_TEMPLATE: &str = include_str!("main.rs.in");
const TEST_TEMPLATE: &str = include_str!("test.rs.in");
const README_TEMPLATE: &str = include_str!("README.md.in");

pub(crate) fn run(asked: &NewArgs, term: &Terminal) -> Result<CommandExit, CliError> {
    let folder = Path::new(&asked.name);
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if !is_crate_name(&name) {
        return Err(CliError::usage(format!("`{name}` cannot be the name of a Rust project"))
            .with_hint("use letters, digits, `-` and `_`, starting with a letter: `windlass new my-agent`"));
    }
    if folder.exists() {
        return Err(CliError::usage(format!("`{}` already exists", folder.display()))
            .with_hint("choose another name"));
    }
    let source = find_source(asked)?;
    let fill = |text: &str| {
        text.replace("{{name}}", &name)
            .replace("{{crate}}", &name.replace('-', "_"))
            .replace("{{windlass}}", &source.fields("windlass"))
            .replace("{{windlass-models}}", &source.fields("windlass-models"))
    };
    for (path, text) in [
        ("Cargo.toml", CARGO_TEMPLATE),
        ("src/lib.rs", LIB_TEMPLATE),
        ("src/main.rs", MAIN_TEMPLATE),
        ("tests/agent.rs", TEST_TEMPLATE),
        ("README.md", README_TEMPLATE),
        (".gitignore", "/target\n*.db\n*.db-shm\n*.db-wal\n"),
    ] {
        write_file(&folder.join(path), &fill(text))?;
    }
    match term.output_format() {
        OutputFormat::Json => term.print_json(&json!({ "type": "new", "name": name, "folder": folder })),
        OutputFormat::Text => {
            let folder = folder.display();
            term.print_line(styled![
                paint(TextStyle::Success, "✓"),
                format!(" created {folder}: an agent with tools, and tests that need no API key"),
            ]);
            term.print_line(format!("  cd {folder} && cargo test && cargo run"));
            term.print_line("  cargo run --features models -- openai:gpt-5-mini   # with OPENAI_API_KEY");
        }
    }
    Ok(CommandExit::Success)
}

/// Returns the source of the Windlass crates in the project's manifest: a Git repository that answers, the named clone,
/// or the clone that this command was built in. A source that does not resolve is not written.
fn find_source(asked: &NewArgs) -> Result<CrateSource, CliError> {
    if let Some(url) = &asked.git {
        verify_repository(url)?;
        return Ok(CrateSource::Git(url.clone()));
    }
    let named = asked.path.as_deref();
    let found = match named {
        Some(clone) => {
            let folders = [clone.join("crates"), clone.to_owned()];
            folders.into_iter().find(|folder| is_windlass_clone(folder))
        }
        None => {
            let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(PathBuf::from);
            built_in.filter(|folder| is_windlass_clone(folder))
        }
    };
    match (found, named) {
        (Some(crates), _) => Ok(CrateSource::Path(std::path::absolute(crates)?)),
        (None, Some(clone)) => {
            Err(CliError::not_found(format!("`{}` is not a clone of Windlass", clone.display()))
                .with_hint("--path must be the folder that contains `crates/windlass`"))
        }
        (None, None) => Err(CliError::not_found("the clone that this command was built in is gone")
            .with_hint("name the crates with `--path CLONE` or `--git URL`; nothing was written")),
    }
}

/// Asks a Git repository whether it is there.
fn verify_repository(url: &str) -> Result<(), CliError> {
    let listed = std::process::Command::new("git")
        .args(["ls-remote", "--exit-code", "--", url, "HEAD"])
        .env("GIT_TERMINAL_PROMPT", "0")
        .stdin(std::process::Stdio::null())
        .output();
    match listed {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.trim();
            Err(CliError::not_found(format!("there is no Git repository at `{url}`: {said}"))
                .with_hint("`--path CLONE` names a clone on this machine; nothing was written"))
        }
        Err(error) => Err(CliError::new(format!("git cannot be started: {error}"))
            .with_hint("`--path CLONE` names a clone on this machine; nothing was written")),
    }
}

/// The source of the Windlass crates.
enum CrateSource {
    /// The folder `crates` of a clone.
    Path(PathBuf),
    /// The URL of a repository.
    Git(String),
}

impl CrateSource {
    /// Returns the source of a crate as the fields of an inline table of TOML.
    fn fields(&self, name: &str) -> String {
        // A folder name may contain characters that TOML must escape.
        match self {
            Self::Path(crates) => format!("path = {}", quote_toml(&crates.join(name).to_string_lossy())),
            Self::Git(url) => format!("git = {}", quote_toml(url)),
        }
    }
}

fn is_windlass_clone(crates: &Path) -> bool {
    crates.join("windlass/Cargo.toml").is_file()
}

fn is_crate_name(name: &str) -> bool {
    name.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_')
        && !["windlass", "test", "core", "std"].contains(&name)
}

fn write_file(path: &Path, text: &str) -> Result<(), CliError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(path, text))
        .map_err(|error| CliError::new(format!("`{}` cannot be created: {error}", path.display())))
}

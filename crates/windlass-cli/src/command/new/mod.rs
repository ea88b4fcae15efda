//! `windlass new`: creates a Rust project with an agent and tests that need no API key.

use std::path::{Path, PathBuf};

use serde_json::json;

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
    let source = windlass_dependency(asked.path.as_deref())?;
    let fill = |text: &str| {
        text.replace("{{name}}", &name)
            .replace("{{crate}}", &name.replace('-', "_"))
            .replace("{{windlass}}", &source)
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
        }
    }
    Ok(CommandExit::Success)
}

/// Returns the `windlass` dependency line of the project: a path to the named clone or to the one this
/// command was built in, or else the registry version.
fn windlass_dependency(named: Option<&Path>) -> Result<String, CliError> {
    let crates = match named {
        Some(clone) => {
            let crates = [clone.join("crates"), clone.to_owned()];
            let Some(crates) = crates.into_iter().find(|folder| is_windlass_clone(folder)) else {
                return Err(CliError::not_found(format!("`{}` is not a clone of Windlass", clone.display()))
                    .with_hint("--path must be the folder that contains `crates/windlass`"));
            };
            Some(std::path::absolute(crates)?)
        }
        None => {
            let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(PathBuf::from);
            built_in.filter(|folder| is_windlass_clone(folder))
        }
    };
    Ok(match crates {
        Some(crates) => {
            // A folder name may contain characters that TOML must escape.
            let path = quote_toml(&crates.join("windlass").to_string_lossy());
            format!("windlass = {{ path = {path} }}")
        }
        None => format!("windlass = \"{}\"", env!("CARGO_PKG_VERSION")),
    })
}

fn is_windlass_clone(crates: &Path) -> bool {
    crates.join("windlass/Cargo.toml").is_file()
}

fn quote_toml(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
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

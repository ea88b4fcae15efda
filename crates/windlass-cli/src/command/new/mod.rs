//! `windlass new`: creates a Rust project with an agent and tests that need no API key.

mod crate_source;

use std::path::Path;

use serde_json::json;

use self::crate_source::CrateSource;
use crate::args::NewArgs;
use crate::cli_error::{CliError, CommandExit};
use crate::shell_words::shell_path;
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
    let source = CrateSource::find(asked)?;
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
            term.print_line(styled![
                paint(TextStyle::Success, "✓"),
                format!(" created {}: an agent with tools, and tests that need no API key", folder.display()),
            ]);
            term.print_line(format!("  cd {} && cargo test && cargo run", shell_path(folder)));
            term.print_line("  cargo run --features models -- openai:gpt-5-mini   # with OPENAI_API_KEY");
        }
    }
    Ok(CommandExit::Success)
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

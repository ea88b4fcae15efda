//! `windlass new`: a project of one's own, that builds, runs, and has a test, with no key.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::args::NewArgs;
use crate::problem::{Exit, Problem};
use crate::term::{Form, Paint, Term};

const CARGO: &str = include_str!("Cargo.toml.in");
const LIB: &str = include_str!("lib.rs.in");
const MAIN: &str = include_str!("main.rs.in");
const TEST: &str = include_str!("test.rs.in");
const README: &str = include_str!("README.md.in");

pub(crate) fn run(asked: &NewArgs, term: &Term) -> Result<Exit, Problem> {
    let folder = Path::new(&asked.name);
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if !is_crate_name(&name) {
        return Err(Problem::usage(format!("`{name}` cannot be the name of a Rust project"))
            .hint("letters, digits, `-` and `_`, and a letter first: `windlass new my-agent`"));
    }
    if folder.exists() {
        return Err(
            Problem::usage(format!("`{}` is there already", folder.display())).hint("choose another name")
        );
    }
    let source = source(asked.path.as_deref())?;
    let fill = |text: &str| {
        text.replace("{{name}}", &name)
            .replace("{{crate}}", &name.replace('-', "_"))
            .replace("{{windlass}}", &source)
    };
    for (path, text) in [
        ("Cargo.toml", CARGO),
        ("src/lib.rs", LIB),
        ("src/main.rs", MAIN),
        ("tests/agent.rs", TEST),
        ("README.md", README),
        (".gitignore", "/target\n*.db\n*.db-shm\n*.db-wal\n"),
    ] {
        write(&folder.join(path), &fill(text))?;
    }
    match term.form() {
        Form::Json => term.say_json(&json!({ "type": "new", "name": name, "folder": folder })),
        Form::Human => {
            let paint = term.paint_out();
            term.say(format!(
                "{} {} is there: an agent with a tool, and a test that needs no key",
                { paint.of(Paint::Good, "✓") },
                folder.display()
            ));
            term.say(format!("  cd {} && cargo test && cargo run", folder.display()));
        }
    }
    Ok(Exit::Done)
}

/// Where the project gets Windlass from: the clone that was named or that this command was built in, or else the
/// registry.
fn source(named: Option<&Path>) -> Result<String, Problem> {
    let crates = match named {
        Some(clone) => {
            let crates = [clone.join("crates"), clone.to_owned()];
            let Some(crates) = crates.into_iter().find(|folder| is_ours(folder)) else {
                return Err(Problem::not_found(format!("`{}` is not a clone of Windlass", clone.display()))
                    .hint("--path names the folder that has `crates/windlass` in it"));
            };
            Some(std::path::absolute(crates)?)
        }
        None => {
            let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(PathBuf::from);
            built_in.filter(|folder| is_ours(folder))
        }
    };
    Ok(match crates {
        Some(crates) => {
            // A name of a folder may hold what TOML would take for something else.
            let path = toml_text(&crates.join("windlass").to_string_lossy());
            format!("windlass = {{ path = {path} }}")
        }
        None => format!("windlass = \"{}\"", env!("CARGO_PKG_VERSION")),
    })
}

fn is_ours(crates: &Path) -> bool {
    crates.join("windlass/Cargo.toml").is_file()
}

fn toml_text(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn is_crate_name(name: &str) -> bool {
    name.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_')
        && !["windlass", "test", "core", "std"].contains(&name)
}

fn write(path: &Path, text: &str) -> Result<(), Problem> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(path, text))
        .map_err(|error| Problem::new(format!("`{}` cannot be made: {error}", path.display())))
}

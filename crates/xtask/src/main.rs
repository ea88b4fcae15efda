//! Checks of the repository itself, run as `cargo run -p xtask -- <task>`.

mod book;
mod definitions;
mod docs;
mod names;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["names"] => names::check(root),
        ["names", "--list"] => names::list(root),
        ["docs"] => docs::check(root),
        ["docs", "--write"] => docs::write(root),
        ["docs", "--full", file] => docs::write_full(root, Path::new(file)),
        ["book", folder] => book::complete(root, Path::new(folder)),
        _ => {
            eprintln!(
                "usage: cargo run -p xtask -- names [--list] | docs [--write | --full FILE] | book FOLDER"
            );
            ExitCode::from(2)
        }
    }
}

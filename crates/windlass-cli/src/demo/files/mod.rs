//! The files of the demo.

use std::path::{Path, PathBuf};

use crate::cli_error::CliError;

/// Marker file of a folder that the demo created and may delete.
const MARKER_FILE: &str = ".windlass-demo";

const DEMO_FILES: [(&str, &str); 5] = [
    ("agent.toml", include_str!("agent.toml")),
    ("answers.toml", include_str!("answers.toml")),
    ("inbox/harbour.txt", "Harbour Office\nInvoice H-204\nBerth 7, three nights\nTotal: 40 euros\n"),
    ("inbox/pilot.txt", "Pilot Station\nInvoice P-77\nOne pilot, inbound\nTotal: 60 euros\n"),
    ("inbox/ropeworks.txt", "Ropeworks\nInvoice R-1931\nMooring line, 220 m\nTotal: 480 euros\n"),
];

/// Creates the folder, replacing one of an earlier demo. Any other existing folder is left alone.
pub(super) fn create_folder(folder: &Path) -> Result<PathBuf, CliError> {
    let shown = folder.display();
    if folder.exists() {
        if !folder.join(MARKER_FILE).is_file() {
            return Err(CliError::usage(format!("`{shown}` already exists and was not created by the demo"))
                .with_hint("use --folder to choose another place"));
        }
        std::fs::remove_dir_all(folder).map_err(|error| creation_error(folder, &error))?;
    }
    for part in ["", "inbox", "paid", "bank"] {
        let part = folder.join(part);
        std::fs::create_dir_all(&part).map_err(|error| creation_error(&part, &error))?;
    }
    write_file(
        &folder.join(MARKER_FILE),
        "Created by `windlass demo`, which deletes and recreates this folder each time.\n",
    )?;
    for (name, text) in DEMO_FILES {
        write_file(&folder.join(name), text)?;
    }
    Ok(std::path::absolute(folder)?)
}

fn write_file(path: &Path, text: &str) -> Result<(), CliError> {
    std::fs::write(path, text).map_err(|error| creation_error(path, &error))
}

fn creation_error(path: &Path, error: &std::io::Error) -> CliError {
    CliError::new(format!("`{}` cannot be created: {error}", path.display()))
        .with_hint("use --folder to choose another place, such as a folder under /tmp")
}

//! The files that the demo works on.

use std::path::{Path, PathBuf};

use crate::problem::Problem;

/// A file that says that a folder was made by the demo, and may be made again.
const MARK: &str = ".windlass-demo";

const FILES: [(&str, &str); 5] = [
    ("agent.toml", include_str!("agent.toml")),
    ("answers.toml", include_str!("answers.toml")),
    ("inbox/harbour.txt", "Harbour Office\nInvoice H-204\nBerth 7, three nights\nTotal: 40 euros\n"),
    ("inbox/pilot.txt", "Pilot Station\nInvoice P-77\nOne pilot, inbound\nTotal: 60 euros\n"),
    ("inbox/ropeworks.txt", "Ropeworks\nInvoice R-1931\nMooring line, 220 m\nTotal: 480 euros\n"),
];

/// Makes the folder anew. One that the demo did not make is left alone.
pub(super) fn make(folder: &Path) -> Result<PathBuf, Problem> {
    let shown = folder.display();
    if folder.exists() {
        if !folder.join(MARK).is_file() {
            return Err(Problem::usage(format!(
                "`{shown}` is there already, and is not a folder of the demo"
            ))
            .hint("--folder names another place"));
        }
        std::fs::remove_dir_all(folder).map_err(|error| cannot(folder, &error))?;
    }
    for part in ["", "inbox", "paid", "bank"] {
        let part = folder.join(part);
        std::fs::create_dir_all(&part).map_err(|error| cannot(&part, &error))?;
    }
    write(&folder.join(MARK), "Made by `windlass demo`, which makes it anew each time.\n")?;
    for (name, text) in FILES {
        write(&folder.join(name), text)?;
    }
    Ok(std::path::absolute(folder)?)
}

fn write(path: &Path, text: &str) -> Result<(), Problem> {
    std::fs::write(path, text).map_err(|error| cannot(path, &error))
}

fn cannot(path: &Path, error: &std::io::Error) -> Problem {
    Problem::new(format!("`{}` cannot be made: {error}", path.display()))
        .hint("--folder names another place, such as a folder under /tmp")
}

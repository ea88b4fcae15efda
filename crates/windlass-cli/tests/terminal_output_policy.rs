//! Only the terminal module writes: everything else goes through text that is escaped.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::path::{Path, PathBuf};

/// Words with which a module could write to a terminal itself, or make a control sequence.
const FORBIDDEN: [&str; 14] = [
    "print!(",
    "println!(",
    "eprint!(",
    "eprintln!(",
    "dbg!(",
    "stdout()",
    "stderr()",
    "io::Stdout",
    "io::Stderr",
    "/dev/tty",
    "\\x1b",
    "\\u{1b}",
    ".ansi()",
    "error.print()",
];

/// Places outside `terminal/` that may use a word, each with the reason.
const EXCEPTIONS: [(&str, &str, &str); 1] =
    [("run_driver/call_review_tests.rs", "\\u{1b}", "hostile texts of tests")];

#[test]
fn only_the_terminal_module_writes() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect_files(&source, &mut files);
    assert!(files.len() > 40, "the files are found: {}", files.len());
    let mut found = Vec::new();
    for path in files {
        let name = path.strip_prefix(&source).expect("it is below").to_string_lossy().into_owned();
        if name.starts_with("terminal/") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("it can be read");
        for (number, line) in text.lines().enumerate() {
            let is_excepted =
                |word: &str| EXCEPTIONS.iter().any(|(file, used, _)| *file == name && *used == word);
            for word in FORBIDDEN.iter().filter(|word| line.contains(**word) && !is_excepted(word)) {
                found.push(format!("{name}:{}: {word}", number + 1));
            }
        }
    }
    assert!(found.is_empty(), "these lines go past the terminal module: {found:#?}");
}

fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            collect_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
